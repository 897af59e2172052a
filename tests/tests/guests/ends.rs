// SPDX-License-Identifier: Apache-2.0
//! A PE that ends or hurts itself, of a job over verbs between two guests. See `c/attacks/ends.c`.

use crate::Stage;
use crate::rdma::Trio;
use crate::ring::LIMIT;
use crate::support::ends::{Attack, MARK, all_in, judge};
use crate::support::run;
use libtest_mimic::Failed;
use std::sync::atomic::{AtomicUsize, Ordering};

/// What `oshrun` says of a host that is silent at the end of a job.
const UNANSWERED: &str = " does not answer; what runs there ends when it finds the connection lost";
/// PEs 0 and 1 are on one guest, PE 2 on another.
const PLACES: &str = "g1:2,g2:1";

const fn attack(
    victim: usize,
    way: &'static str,
    phase: &'static str,
    delay: usize,
    going_on: bool,
) -> Attack {
    Attack { victim, way, phase, delay, going_on }
}

/// For every day: each phase, and ways that differ in what the kernel and the launcher make of them.
const SELECTED: [Attack; 9] = [
    attack(0, "quick_exit", "before", 0, false),
    attack(1, "SIGSEGV", "init", 30_000, false),
    attack(2, "exec", "exchange", 2, true),
    attack(1, "user", "computing", 3_000, false),
    attack(2, "SIGKILL", "rma", 9_000, true),
    attack(0, "descriptors", "collectives", 5_000, false),
    attack(2, "closefrom", "locks", 7_000, true),
    attack(1, "exit", "finalize", 1_000, false),
    attack(0, "_exit", "after", 0, true),
];

/// The selection.
pub fn selected(stage: &Stage) -> Result<(), Failed> {
    SELECTED.iter().try_for_each(|next| one(stage, next))
}

/// All ways in a phase: one that fails does not hide the others.
pub fn of_phase(stage: &Stage, phase: usize) -> Result<(), Failed> {
    let mut failures = vec![];
    for next in all_in(phase) {
        if let Err(why) = one(stage, &next) {
            failures.push(why.message().unwrap_or_default().to_owned());
            // The next ones boot others.
            stage.end_guests();
        }
    }
    if failures.is_empty() { Ok(()) } else { Err(failures.join("\n").into()) }
}

fn one(stage: &Stage, next: &Attack) -> Result<(), Failed> {
    static JOBS: AtomicUsize = AtomicUsize::new(0);
    let mark = format!("{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
    let trio = stage.trio()?;
    let trio = trio.as_ref().expect("just made");
    let mut oshrun = trio.oshrun(PLACES, "verbs");
    oshrun.args(["-x", &format!("SHMEM_ON_LOSS={}", next.on_loss())]);
    oshrun.args(["-x", &format!("{MARK}={mark}")]);
    oshrun.arg(stage.program("ends").executable()?).args(next.arguments());
    let mut ran = run(&mut oshrun, LIMIT)?;
    // A guest that gets no processor for five seconds at the end is not waited for.
    let waited = |line: &&str| !(line.starts_with("oshrun: host g") && line.contains(UNANSWERED));
    ran.stderr = ran.stderr.lines().filter(waited).map(|line| format!("{line}\n")).collect();
    let told = |why: String| Failed::from(format!("{next:?}: {why}"));
    judge(&ran, next, "over_verbs").map_err(told)?;
    [1, 2].iter().try_for_each(|guest| leaves_nothing(trio, *guest, &mark))?;
    Ok(())
}

/// An error names what a job has left in a guest: processes, or memory that they shared.
fn leaves_nothing(trio: &Trio, guest: usize, mark: &str) -> Result<(), Failed> {
    let script = format!(
        "for i in 1 2 3 4 5 6 7 8; do
             left=$(grep -lsz '^{MARK}={mark}$' /proc/[0-9]*/environ; ls -A /dev/shm)
             [ -z \"$left\" ] && exit 0
             sleep 1
         done
         echo \"left behind: $left\" >&2; exit 1"
    );
    run(&mut trio.guests.on(guest, &script), LIMIT)?.succeeded()?;
    Ok(())
}
