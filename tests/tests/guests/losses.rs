// SPDX-License-Identifier: Apache-2.0
//! Guests that end while a job runs.

use crate::Stage;
use crate::ring::{LIMIT, Which};
use crate::support::{Ran, run};
use libtest_mimic::Failed;
use std::process::Command;
use std::time::{Duration, Instant};
use tombolo_tests::guests::Guests;

/// Exit code of `oshrun` when PEs were lost and all others have ended well.
pub const WITHOUT_LOST: i32 = 125;
/// From the start of the transport until the program sends; a guest that ends before then ends the
/// start of the job.
const UNDER_WAY: Duration = Duration::from_secs(8);

/// Runs a job and ends a guest when a PE there is at work, which a thread of this name tells.
pub fn run_without(
    guests: &mut Guests,
    guest: usize,
    thread: &str,
    mut oshrun: Command,
) -> Result<Ran, Failed> {
    std::thread::scope(|scope| {
        let job = scope.spawn(move || run(&mut oshrun, LIMIT));
        let begun = Instant::now();
        let at_work = format!("cat /proc/[0-9]*/task/*/comm 2> /dev/null | grep -q {thread}");
        while !guests.on(guest, &at_work).status()?.success() {
            if job.is_finished() || begun.elapsed() > LIMIT {
                break;
            }
        }
        std::thread::sleep(UNDER_WAY);
        guests.power_off(guest);
        job.join().expect("no panic").map_err(Failed::from)
    })
}

/// With `SHMEM_ON_LOSS=continue` the ring of three becomes a line of two.
pub fn the_others_go_on(stage: &Stage) -> Result<(), Failed> {
    let mut held = stage.ring(Which::Three)?;
    let ring = held.as_mut().expect("just made");
    let mut oshrun = ring.everywhere();
    oshrun.args(["-x", "SHMEM_ON_LOSS=continue"]);
    oshrun.arg(stage.program("survivors").executable()?).arg("aax");
    let ran = run_without(&mut ring.guests, 3, "shmem-ntb", oshrun)?;
    drop(held.take());
    match ran.code {
        Some(WITHOUT_LOST) => Ok(()),
        _ => Err(ran.account("expected the others to go on").into()),
    }
}

/// Without, the job ends and says which PE is lost.
pub fn a_lost_guest_ends_the_job(stage: &Stage, which: Which) -> Result<(), Failed> {
    let mut held = stage.ring(which)?;
    let ring = held.as_mut().expect("just made");
    let mut oshrun = ring.everywhere();
    oshrun.arg(stage.program("survivors").executable()?).arg("ax");
    let ran = run_without(&mut ring.guests, 2, "shmem-ntb", oshrun)?;
    drop(held.take());
    let told = ran.stderr.contains("PE 1") || ran.stderr.contains("g2");
    match ran.code {
        Some(code) if code != 0 && code != WITHOUT_LOST && told => Ok(()),
        _ => Err(ran.account("expected the job to end").into()),
    }
}
