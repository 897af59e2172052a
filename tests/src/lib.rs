// SPDX-License-Identifier: Apache-2.0
//! Test support: jobs whose PEs are threads of the test process, the conformance suite that every
//! back end has to pass, transports that misbehave, several hosts on one machine, and a cluster under
//! Slurm.

pub mod conformance;
pub mod doubles;
pub mod guests;
pub mod nodes;
pub mod ring;
pub mod slurm;
pub mod watchdog;

use libtest_mimic::Trial;
use std::os::fd::{FromRawFd, OwnedFd};
use std::sync::Arc;
use tombolo_core::board::Board;
use tombolo_core::bootstrap::{self, Bootstrap, Threads};
use tombolo_core::config::{Bytes, Descriptor, Environment};
use tombolo_core::transport::Transport;
use tombolo_core::{Config, Setup, World};
use watchdog::Watchdog;

/// A test that is ignored if what it needs is missing; the reason is printed before its name.
pub fn unless(missing: Option<impl Into<String>>, trial: Trial) -> Trial {
    match missing {
        Some(why) => trial.with_kind(why).with_ignored_flag(true),
        None => trial,
    }
}

/// A user of this process's own, one of four: what is limited or told apart by user is not for other tests.
pub fn own_user(number: u32) -> u32 {
    20_000 + 4 * (std::process::id() % 10_000) + number
}

/// More than any job of threads takes: their PEs would wait for each other for ever.
const LIMIT_SECONDS: u64 = 400;

/// Makes the transports of one PE.
pub type MakeTransports = dyn Fn() -> Vec<Box<dyn Transport>> + Sync;

/// Runs `body` once per PE, each on a thread with a world of its own; panics if any of them does.
/// `environment` is all that the worlds see of an environment.
pub fn run_job(
    n_pes: usize,
    environment: &[(&str, &str)],
    transports: &MakeTransports,
    body: impl Fn(&World) + Sync,
) {
    let environment = |_| environment.iter().copied().collect();
    run_job_of(n_pes, &environment, &|_| transports(), body);
}

/// As [`run_job`], with an environment and transports of its own for each PE.
pub fn run_job_of(
    n_pes: usize,
    environment: &(dyn Fn(usize) -> Environment + Sync),
    transports: &(dyn Fn(usize) -> Vec<Box<dyn Transport>> + Sync),
    body: impl Fn(&World) + Sync,
) {
    let test = std::thread::current().name().unwrap_or_default().to_owned();
    let _watched = Watchdog::start(test, LIMIT_SECONDS);
    let board = Arc::new(Board::create(n_pes).expect("a board"));
    std::thread::scope(|scope| {
        for (pe, bootstrap) in Threads::job(n_pes).into_iter().enumerate() {
            let (board, body) = (board.clone(), &body);
            scope.spawn(move || {
                let config = Config::from_environment(environment(pe));
                let mut config = config.expect("a valid environment");
                if config.environment().get("SHMEM_SYMMETRIC_SIZE").is_none() {
                    config.symmetric_size = Bytes(4 << 20);
                }
                let world = World::start(Setup {
                    bootstrap: Arc::new(bootstrap),
                    board,
                    config,
                    transports: transports(pe),
                    share_statics: false,
                    several_threads: false,
                })
                .expect("the world starts");
                body(&world);
                world.stop().expect("the world stops");
            });
        }
    });
}

/// Runs `body` as one PE of a job that `oshrun` has started, of which this process is a part.
pub fn run_as_pe(transports: &MakeTransports, body: impl Fn(&World)) {
    let config = Config::from_env().expect("a valid environment");
    let bootstrap = bootstrap::from_env(&config).expect("a launcher");
    let bootstrap: Arc<dyn Bootstrap> = bootstrap.into();
    let board = match config.board_fd {
        // SAFETY: the launcher passed it for this use alone.
        Some(Descriptor(fd)) => Board::open(unsafe { OwnedFd::from_raw_fd(fd) }, bootstrap.n_pes()),
        None => Board::create(bootstrap.n_pes()),
    };
    let world = World::start(Setup {
        bootstrap: bootstrap.clone(),
        board: Arc::new(board.expect("a board")),
        config,
        transports: transports(),
        share_statics: false,
        several_threads: false,
    })
    .expect("the world starts");
    body(&world);
    world.stop().expect("the world stops");
    bootstrap.finalize();
}
