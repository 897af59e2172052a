// SPDX-License-Identifier: Apache-2.0
//! C programs whose processes reach each other over the transport that keeps the contract and nothing
//! more, with the library as it is built for tests.

use libtest_mimic::Trial;
use std::fs;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::program::{LIMIT, Program, run_trials};
use support::{crate_dir, library_of_tests, run};

/// Seeds of each program; `TOMBOLO_SEEDS=N` for more.
const SEEDS: u32 = 2;
const PES: u32 = 2;

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let seeds = std::env::var("TOMBOLO_SEEDS").map_or(Ok(SEEDS), |text| text.parse());
    let seeds = seeds.expect("TOMBOLO_SEEDS is a number");
    let library = library_of_tests();
    let mut sources: Vec<_> = fs::read_dir(crate_dir().join("c"))
        .expect("the programs are there")
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    let runs = |source: &PathBuf| {
        let program = Program::new(prefix, source, "", &["-O1", "-pthread"]);
        let library = library.clone();
        Trial::test(format!("{} with {seeds} seeds", program.name), move || {
            let library = library?;
            (1..=seeds).try_for_each(|seed| endures(&program, &library, seed))
        })
    };
    sources.iter().map(runs).collect()
}

fn endures(program: &Arc<Program>, library: &Path, seed: u32) -> Result<(), libtest_mimic::Failed> {
    let executable = program.executable()?;
    let mut oshrun = program.oshrun();
    oshrun.args(["-n", &PES.to_string(), "-x", "CHECK_APART=1"]).arg(executable);
    oshrun.env("LD_LIBRARY_PATH", library).env("SHMEM_TRANSPORTS", "unordered");
    oshrun.env("SHMEM_UNORDERED_SEED", seed.to_string()).env("SHMEM_TUNE", "off");
    let ran = run(&mut oshrun, 2 * LIMIT).map_err(|error| format!("{oshrun:?}: {error}"))?;
    ran.succeeded().map_err(|why| format!("with SHMEM_UNORDERED_SEED={seed}: {why}"))?;
    Ok(())
}
