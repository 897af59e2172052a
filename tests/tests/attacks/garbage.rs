// SPDX-License-Identifier: Apache-2.0
//! A PE writes garbage over memory that it shares with others. See `c/attacks/garbage.c`.

use crate::support::crate_dir;
use crate::support::ends::{all_known, row};
use crate::support::program::Program;
use crate::{Cases, Way, ways};
use libtest_mimic::{Failed, Trial};
use std::path::Path;
use std::sync::Arc;
use tombolo_tests::unless;

/// Memory files: of windows, links, heaps, and the status board.
const FILES: [&str; 4] = ["tombolo-ntb ", "tombolo-ntb-link", HEAP, "tombolo-board"];
const HEAP: &str = "tombolo-heap";
const HOW: [&str; 4] = ["zeros", "ones", "noise", "words"];
/// Jobs of a test for each way that PEs reach each other.
const JOBS: usize = 5;

pub fn trials(prefix: &Path) -> Vec<Trial> {
    let source = crate_dir().join("c/attacks/garbage.c");
    let program = Program::new(prefix, &source, "", &["-O1"]);
    let trial = |(salt, way): (usize, Way)| {
        let program = program.clone();
        let name = format!("garbage_in_memory_crashes_nobody_{}", way.name);
        let missing = way.missing.clone();
        unless(missing, Trial::test(name, move || attack(&program, &way, salt as u64)))
    };
    // Other networks share no memory between hosts; without order it is the same as on one host.
    let others = ["over_tcp", "over_ofi", "over_verbs", "over_unordered"];
    let ways = ways().into_iter().filter(|way| !others.contains(&way.name));
    ways.enumerate().map(trial).collect()
}

fn attack(program: &Arc<Program>, way: &Way, salt: u64) -> Result<(), Failed> {
    let far = way.options.contains(&"--hosts");
    let mut cases = Cases::new(JOBS + 1, 7000 + salt);
    while cases.next() {
        let (victim, file) = (cases.below(3), cases.of(&FILES[if far { 0 } else { 2 }..]));
        let (how, seed) = (cases.of(&HOW), cases.below(1 << 30));
        let case = format!("PE {victim} writes {how} over '{file}', seed {seed}, {}", way.name);
        // Silent hosts are given up sooner than by default.
        let more = ["--timeout", "30", "-x", "SHMEM_NTB_SILENCE=2"];
        let options = [way.options, &more].concat();
        let arguments = [&victim.to_string(), file, how, &seed.to_string()];
        let ran = program.launch_with(&options, 3, &arguments, &[("SHMEM_TUNE", "off")])?;
        let told = |keys: &[&str]| {
            ran.stderr.lines().any(|line| keys.iter().any(|key| row(key).prints(line)))
        };
        let right = match ran.code {
            Some(0) => all_known(&ran),
            Some(1) => told(&["error", "unreachable"]) && all_known(&ran),
            // Whoever waits for a word that was overwritten waits for ever.
            Some(124) => file == HEAP,
            // Nobody but the PE that has done it to itself.
            _ => ran.stderr.contains(&format!("PE {victim} (pid ")) && told(&["signal"]),
        };
        if !right || ran.stderr.contains("panicked") || !ran.stdout.contains("places were hit") {
            return Err(ran.account(&format!("{case}: expected an end that the table has")).into());
        }
    }
    Ok(())
}
