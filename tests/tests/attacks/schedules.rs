// SPDX-License-Identifier: Apache-2.0
//! Faults of links at any time, by chance, that leave all hosts connected: nothing is lost, and nothing
//! counts twice. See `c/special/traffic.c`.

use crate::Cases;
use crate::support::crate_dir;
use crate::support::program::Program;
use libtest_mimic::{Failed, Trial};
use std::path::Path;
use std::sync::Arc;

/// Rings: options of `oshrun`.
const RINGS: [&[&str]; 6] = [
    &["-n", "3", "--hosts", "3"],
    &["-n", "3", "--hosts", "3", "-x", "SHMEM_NTB_DMA=1"],
    &["-n", "4", "--hosts", "4", "-x", "SHMEM_NTB_DMA=64", "-x", "SHMEM_NTB_DIRECT=off"],
    &["-n", "3", "--hosts", "3", "-x", "SHMEM_NTB_DIRECT=off"],
    &["-n", "4", "--hosts", "2", "-x", "SHMEM_NTB_CHUNK=512"],
    &["-n", "5", "--hosts", "5"],
];
/// Jobs of the test.
const JOBS: usize = 3;

pub fn trials(prefix: &Path) -> Vec<Trial> {
    let source = crate_dir().join("c/special/traffic.c");
    let program = Program::new(prefix, &source, "", &["-O1"]);
    vec![Trial::test("faults_that_leave_hosts_connected_lose_nothing", move || attack(&program))]
}

fn attack(program: &Arc<Program>) -> Result<(), Failed> {
    let mut cases = Cases::new(JOBS + 1, 600);
    while cases.next() {
        let ring = cases.of(&RINGS);
        let plan = plan(&mut cases, ring);
        let options = [&ring[2..], &["-x", "SHMEM_NTB_CRC=on", "--fault", &plan]].concat();
        // The number of PEs is among the options.
        let pes: usize = ring[1].parse().expect("a number");
        let ran = program.launch_with(&options, pes, &["1"], &[("SHMEM_TUNE", "off")])?;
        if ran.code != Some(0) {
            return Err(ran.account(&format!("{options:?}: expected all data")).into());
        }
    }
    Ok(())
}

/// What happens in a second. One link at a time is down.
fn plan(cases: &mut Cases, ring: &[&str]) -> String {
    let hosts: usize = ring[3].parse().expect("a number");
    let mut clauses = vec![];
    let mut at = 20 + cases.below(100);
    while at < 900 {
        let link = cases.below(hosts);
        let (length, ppm) = (1 + cases.below(120), cases.below(400));
        match cases.below(5) {
            0 => clauses.push(format!("link {link} corrupt {ppm} at {at}ms")),
            1 => clauses.push(format!("link {link} delay {length}us at {at}ms")),
            2 => clauses.push(format!("link {link} dma-errors {} at {at}ms", ppm * 1000)),
            _ => clauses.push(format!("link {link} down at {at}ms; up at {}ms", at + length)),
        }
        // What was down is in use again before the next one goes down.
        at += length + 50 + cases.below(200);
    }
    clauses.join("; ")
}
