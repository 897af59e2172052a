// SPDX-License-Identifier: Apache-2.0
//! `oshrun` on several hosts, over real `ssh`: the hosts are namespaces of this machine.
//!
//! The PEs are those of the tests of the launcher on one host: they need nothing but what a launcher
//! gives. As there, every job has a watchdog.

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        /// Every case with its name.
        pub const CASES: &[(&str, fn())] = &[$((stringify!($name), $name)),*];
    };
}

mod ends;
#[path = "../launch/harness.rs"]
#[allow(dead_code, reason = "shared with the tests of the launcher on one host")]
mod harness;
mod jobs;
mod many;
#[path = "../launch/pe.rs"]
mod pe;
mod start;

use libtest_mimic::{Arguments, Trial};
use std::process::Command;
use std::sync::LazyLock;
use tombolo_tests::nodes::{Nodes, unavailable};
use tombolo_tests::unless;

/// Hosts for jobs that leave them as they are.
static NODES: LazyLock<Nodes> = LazyLock::new(|| nodes(3));

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|arg| arg == "pe") {
        return pe::main(&args[2..]);
    }
    let mut arguments = Arguments::from_args();
    // Jobs have several processes each, and ssh computes: more at a time would measure the scheduler.
    arguments.test_threads.get_or_insert(2);
    let missing = unavailable();
    let cases = [jobs::CASES, start::CASES, ends::CASES, many::CASES].concat();
    let trials = cases.into_iter().map(|(name, case)| {
        let trial = Trial::test(name, move || {
            case();
            Ok(())
        });
        unless(missing, trial)
    });
    libtest_mimic::run(&arguments, trials.collect()).exit();
}

/// Hosts of one's own.
fn nodes(count: usize) -> Nodes {
    Nodes::start(count).unwrap_or_else(|why| panic!("{why}"))
}

/// `oshrun` on the login host, with options and a program separated by spaces; `PE` stands for the PE
/// program.
fn oshrun_on(nodes: &Nodes, line: &str) -> Command {
    let mut command = harness::oshrun(line);
    nodes.enter(&mut command);
    for name in ["SLURM_JOB_ID", "SHMEM_ON_LOSS"] {
        command.env_remove(name);
    }
    command
}

/// As [`oshrun_on`], beside hosts that others use as well.
fn oshrun(line: &str) -> Command {
    oshrun_on(&NODES, line)
}

/// `oshrun` running `script` in a shell as every PE.
fn shell(options: &str, script: &str) -> Command {
    let mut command = oshrun(options);
    command.args(["sh", "-c", script]);
    command
}
