// SPDX-License-Identifier: Apache-2.0
//! Guests that end while a job runs.

use crate::Stage;
use crate::ring::{LIMIT, Ring, Which};
use crate::support::{Ran, run};
use libtest_mimic::Failed;
use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};
use tombolo_tests::guests::Guests;

/// Exit code of `oshrun` when PEs were lost and all others have ended well.
pub const WITHOUT_LOST: i32 = 125;
/// A file that the program makes when all PEs have started: a guest that ends before then ends the start
/// of the job.
const UNDER_WAY: &str = "/tmp/under-way";
/// What PEs that are left exchange after a loss: less than on one machine, because it takes a guest long.
pub const FEW_ROUNDS: [&str; 2] = ["-x", "CHECK_ROUNDS=20"];
/// The same where a second carries about a MB.
pub const FEWER_ROUNDS: [&str; 2] = ["-x", "CHECK_ROUNDS=5"];
/// For traffic to be under way.
const TRAFFIC: Duration = Duration::from_secs(2);

/// Runs `survivors`, PEs of these letters, which would not end, and ends a guest that has a PE at work.
pub fn run_without(
    guests: &mut Guests,
    guest: usize,
    mut oshrun: Command,
    (survivors, letters): (&Path, &str),
) -> Result<Ran, Failed> {
    oshrun.args(["-x", &format!("CHECK_UNDER_WAY={UNDER_WAY}")]).arg(survivors).arg(letters);
    std::thread::scope(|scope| {
        let job = scope.spawn(move || run(&mut oshrun, LIMIT));
        let begun = Instant::now();
        let at_work = format!("test -e {UNDER_WAY}");
        while !guests.on(guest, &at_work).status()?.success() {
            if job.is_finished() || begun.elapsed() > LIMIT {
                break;
            }
        }
        std::thread::sleep(TRAFFIC);
        let was_running = !job.is_finished();
        guests.power_off(guest);
        let ran = job.join().expect("no panic")?;
        match was_running {
            true => Ok(ran),
            false => Err(ran.account("expected the job to run until the guest ends").into()),
        }
    })
}

/// What `survivors` takes: the PE of a guest is lost, all others reach each other.
fn letters(which: Which, lost: usize) -> String {
    (1..=which.guests()).map(|guest| if guest == lost { 'x' } else { 'a' }).collect()
}

/// With `SHMEM_ON_LOSS=continue` a ring of three becomes a line of two, and one of four a line of three.
pub fn the_others_go_on(stage: &Stage, which: Which) -> Result<(), Failed> {
    let mut held = stage.ring(which)?;
    let ring = held.as_mut().expect("just made");
    let ran = go_on_without(stage, ring, which);
    drop(held.take());
    ran
}

/// The same on a ring that is held.
pub fn go_on_without(stage: &Stage, ring: &mut Ring, which: Which) -> Result<(), Failed> {
    const LOST: usize = 3;
    let mut oshrun = ring.everywhere();
    oshrun.args(["-x", "SHMEM_ON_LOSS=continue"]);
    oshrun.args(if which.is_served() { FEWER_ROUNDS } else { FEW_ROUNDS });
    let survivors = stage.program("survivors").executable()?;
    let letters = letters(which, LOST);
    let ran = run_without(&mut ring.guests, LOST, oshrun, (&survivors, &letters))?;
    match ran.code {
        Some(WITHOUT_LOST) => Ok(()),
        _ => Err(ran.account("expected the others to go on").into()),
    }
}

/// Without, the job ends, and says which host is lost and nothing else.
pub fn a_lost_guest_ends_the_job(stage: &Stage, which: Which) -> Result<(), Failed> {
    let mut held = stage.ring(which)?;
    let ring = held.as_mut().expect("just made");
    let survivors = stage.program("survivors").executable()?;
    let oshrun = ring.everywhere();
    let letters = letters(which, 2);
    let ran = run_without(&mut ring.guests, 2, oshrun, (&survivors, &letters))?;
    drop(held.take());
    let told: Vec<&str> = ran.stderr.lines().filter(|line| line.contains("oshrun: ")).collect();
    let is_it = |line: &str| line.contains("host g2 is lost: ") && line.ends_with("ending the job");
    match (ran.code, &told[..]) {
        (Some(1), [line]) if is_it(line) => Ok(()),
        _ => Err(ran.account("expected the job to end for the loss of host g2 alone").into()),
    }
}
