// SPDX-License-Identifier: Apache-2.0
//! C programs over TCP whose calls take any number of bytes, or fail for a while, as on a busy network; and
//! transfers on two interfaces of which one loses a connection at any moment.

use libtest_mimic::{Failed, Trial};
use std::net::{Ipv6Addr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use tombolo_tests::unless;

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::Ran;
use support::crate_dir;
use support::program::{Program, run_trials};

const SEEDS: u32 = 2;
/// With these each way to lose a connection has its turn.
const LOSSES: u32 = 6;
/// Programs with many kinds of operations.
const PROGRAMS: [&str; 6] = ["amo", "contexts", "random", "rma", "signal", "threads"];

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let sources = crate_dir().join("c");
    let special = sources.join("special");
    let flags = ["-shared", "-fPIC", "-O1"];
    let sockets = Program::new(prefix, &special.join("torn_sockets.c"), "", &flags);
    let striped = Program::new(prefix, &special.join("striped.c"), "", &["-O1"]);
    let whole = PROGRAMS.iter().map(|name| {
        let source = sources.join(format!("{name}.c"));
        let program = Program::new(prefix, &source, "", &["-O1", "-pthread"]);
        let sockets = sockets.clone();
        Trial::test(format!("{name} by calls that take a part"), move || {
            (1..=SEEDS).try_for_each(|seed| launch(&program, &sockets, seed, &[]).map(drop))
        })
    });
    let missing = TcpListener::bind((Ipv6Addr::LOCALHOST, 0)).err();
    let missing = missing.map(|error| format!("no address ::1 here: {error}"));
    let halves = [("4", "second"), ("6", "first")].map(|(family, which)| {
        let (striped, sockets) = (striped.clone(), sockets.clone());
        let name = format!("transfers_survive_the_loss_of_the_{which}_interface");
        let trial = Trial::test(name, move || loses(&striped, &sockets, family));
        unless(missing.as_ref(), trial)
    });
    whole.chain(halves).collect()
}

fn launch(
    program: &Arc<Program>,
    sockets: &Arc<Program>,
    seed: u32,
    more: &[(&str, &str)],
) -> Result<Ran, Failed> {
    let sockets = format!("LD_PRELOAD={}", sockets.executable()?.display());
    let seed = seed.to_string();
    let mut env =
        vec![("SHMEM_TRANSPORTS", "shm,tcp"), ("SHMEM_TUNE", "off"), ("TORN_SEED", &seed)];
    env.extend(more);
    // For the PEs alone, not for the launcher.
    let options = ["--hosts", "2", "-x", &sockets];
    let ran = program.launch_with(&options, 4, &[], &env)?;
    Ok(ran.succeeded().map_err(|why| format!("with TORN_SEED={seed}: {why}"))?)
}

fn loses(striped: &Arc<Program>, sockets: &Arc<Program>, family: &str) -> Result<(), Failed> {
    let more = [("SHMEM_TCP_INTERFACE", "::1,127.0.0.1"), ("TORN_FAMILY", family)];
    for seed in 1..=LOSSES {
        let ran = launch(striped, sockets, seed, &more)?;
        if !ran.stderr.contains("is given up towards") {
            return Err(ran.account("expected the loss of an interface").into());
        }
    }
    Ok(())
}
