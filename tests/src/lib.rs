//! Test support: jobs whose PEs are threads of the test process, and the conformance suite that
//! every back end has to pass.

pub mod conformance;
pub mod ring;

use std::sync::Arc;
use tombolo_core::board::Board;
use tombolo_core::bootstrap::Threads;
use tombolo_core::transport::Transport;
use tombolo_core::{Config, Setup, World};

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
    let lookup = |_: usize, name: &str| {
        let found = environment.iter().find(|(n, _)| *n == name);
        found.map(|(_, value)| value.to_string())
    };
    run_job_of(n_pes, &lookup, &|_| transports(), body);
}

/// As [`run_job`], with an environment and transports of its own for each PE.
pub fn run_job_of(
    n_pes: usize,
    environment: &(dyn Fn(usize, &str) -> Option<String> + Sync),
    transports: &(dyn Fn(usize) -> Vec<Box<dyn Transport>> + Sync),
    body: impl Fn(&World) + Sync,
) {
    let board = Arc::new(Board::create(n_pes).expect("a board"));
    let lookup = |pe: usize, name: &str| {
        let default = || (name == "SHMEM_SYMMETRIC_SIZE").then(|| "4m".to_owned());
        environment(pe, name).or_else(default)
    };
    std::thread::scope(|scope| {
        for (pe, bootstrap) in Threads::job(n_pes).into_iter().enumerate() {
            let (board, body) = (board.clone(), &body);
            scope.spawn(move || {
                let config = Config::from_lookup(|name| lookup(pe, name));
                let world = World::start(Setup {
                    bootstrap: Arc::new(bootstrap),
                    board,
                    config: config.expect("a valid environment"),
                    transports: transports(pe),
                    share_statics: false,
                })
                .expect("the world starts");
                body(&world);
                world.stop().expect("the world stops");
            });
        }
    });
}
