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

/// Seeds of each program at each place, of which the second one goes on where the first has ended;
/// `TOMBOLO_SEEDS=N` for more.
const SEEDS: u32 = 1;
/// Two PEs, which share nothing that they map.
const ON_ONE: [&str; 2] = ["-n", "2"];
/// Two PEs on one emulated host and one on another: those of a host map their memory.
const ON_HOSTS: [&str; 4] = ["-n", "3", "--hosts", "2"];
const HOSTS: [(&str, &str); 1] = [("SHMEM_TRANSPORTS", "shm,unordered")];
/// Programs that are run with every put and get above a cache line divided among this transport and another, and with
/// every non-blocking one by either of them.
const SEVERAL: [&str; 4] = ["contexts", "random", "rma", "signal"];
/// With these seeds the transport takes any alignment, as it has to for parts.
const SEVERAL_SEEDS: [u32; 2] = [2, 3];
const PARTS: &str = "put:>64=unordered+cma,get:>64=cma+unordered";
const EITHER: &str = "put:>64=unordered/cma,get:>64=cma/unordered";

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
            (1..=seeds).try_for_each(|seed| endures(&program, &library, seed, &ON_ONE, &[]))
        })
    };
    let several = sources.iter().filter(|source| {
        SEVERAL.iter().any(|name| source.file_stem().is_some_and(|stem| stem == *name))
    });
    let several = several.flat_map(|source| [(source, "parts", PARTS), (source, "some", EITHER)]);
    let several = several.map(|(source, what, routes)| {
        let program = Program::new(prefix, source, "", &["-O1", "-pthread"]);
        let library = library.clone();
        Trial::test(format!("{} with {what} by another transport", program.name), move || {
            let more = [("SHMEM_TRANSPORTS", "unordered,cma"), ("SHMEM_ROUTE", routes)];
            let library = library?;
            SEVERAL_SEEDS
                .iter()
                .try_for_each(|seed| endures(&program, &library, *seed, &ON_ONE, &more))
        })
    });
    let on_hosts = |source: &PathBuf| {
        let program = Program::new(prefix, source, "", &["-O1", "-pthread"]);
        let library = library.clone();
        Trial::test(format!("{} on two hosts with {seeds} seeds", program.name), move || {
            let library = library?;
            let mut seeds = seeds + 1..=2 * seeds;
            seeds.try_for_each(|seed| endures(&program, &library, seed, &ON_HOSTS, &HOSTS))
        })
    };
    let on_hosts = sources.iter().map(on_hosts);
    sources.iter().map(runs).chain(several).chain(on_hosts).collect()
}

fn endures(
    program: &Arc<Program>,
    library: &Path,
    seed: u32,
    places: &[&str],
    environment: &[(&str, &str)],
) -> Result<(), libtest_mimic::Failed> {
    let executable = program.executable()?;
    let mut oshrun = program.oshrun();
    oshrun.args(places).args(["-x", "CHECK_APART=1", "-x", "CHECK_SHORT=1"]).arg(executable);
    oshrun.env("LD_LIBRARY_PATH", library).env("SHMEM_TRANSPORTS", "unordered");
    oshrun.env("SHMEM_UNORDERED_SEED", seed.to_string()).env("SHMEM_TUNE", "off");
    oshrun.envs(environment.iter().copied());
    let ran = run(&mut oshrun, 2 * LIMIT).map_err(|error| format!("{oshrun:?}: {error}"))?;
    let ran = ran.succeeded().map_err(|why| format!("with SHMEM_UNORDERED_SEED={seed}: {why}"))?;
    if ran.stderr.contains("is not used") {
        return Err(ran.account("expected the routes that were asked for").into());
    }
    Ok(())
}
