// SPDX-License-Identifier: Apache-2.0
//! Jobs that go on when PEs are lost.

use super::program::Program;
use libtest_mimic::Trial;
use std::sync::Arc;

/// Exit code of `oshrun` when PEs were lost and all others have ended well.
pub const WITHOUT_LOST: i32 = 125;
pub const GOING_ON: (&str, &str) = ("SHMEM_ON_LOSS", "continue");
pub const UNTUNED: (&str, &str) = ("SHMEM_TUNE", "off");

/// Programs that ask for it go on without PEs that are lost, of which people are told.
pub fn goes_on(
    program: &Arc<Program>,
    (pes, options, plan, groups): (usize, &'static [&str], &'static str, &'static str),
) -> Trial {
    let program = program.clone();
    let options_text = options.join(" ");
    let name = format!("{} {groups} on {pes} PEs {options_text} goes on {plan}", program.name);
    Trial::test(name, move || {
        let options = [options, &["--fault", plan]].concat();
        // Measuring would take a busy machine longer than it is until the fault.
        let ran = program.launch_with(&options, pes, &[groups], &[GOING_ON, UNTUNED])?;
        let dead = |letter: char| "xkd".contains(letter);
        if ran.code != Some(WITHOUT_LOST) {
            return Err(ran.account(&format!("expected exit code {WITHOUT_LOST}")).into());
        }
        // Hosts whose PEs are dead are not waited for as those whose PEs may only be stopped.
        if ran.stderr.contains("does not answer") {
            return Err(ran.account("expected nobody to wait for the dead").into());
        }
        // Where nobody has died, only the summary tells that operations had no effect.
        let split = ran.stderr.lines().any(|line| line.contains("the network was split"));
        if split == groups.contains(dead) {
            return Err(ran
                .account("the summary says split where it was not, or the reverse")
                .into());
        }
        for (pe, letter) in groups.chars().enumerate() {
            let went_on = ran.stdout.contains(&format!("PE {pe} went on"));
            let is_lost = groups.chars().any(|other| other != letter && !dead(other));
            let warning = format!("PE {pe} on ");
            let warned = ran.stderr.lines().filter(|line| line.contains(&warning)).count();
            // Each host warns once.
            if went_on == dead(letter) || (1..pes).contains(&warned) != is_lost {
                return Err(ran.account(&format!("PE {pe}: {warned} warnings")).into());
            }
        }
        Ok(())
    })
}
