//! Jobs whose PEs are threads of the test process.

use std::sync::Arc;
use tombolo_core::board::Board;
use tombolo_core::bootstrap::Threads;
use tombolo_core::transport::Transport;
use tombolo_core::{Config, Setup, World};

/// Makes the transports of one PE.
pub type MakeTransports = dyn Fn(usize) -> Vec<Box<dyn Transport>> + Sync;

/// The transports of one host.
pub fn local(_pe: usize) -> Vec<Box<dyn Transport>> {
    ["shm", "cma"].into_iter().filter_map(tombolo_transports::create).collect()
}

/// Runs `body` once per PE, each on a thread with a world of its own. `environment` is all that
/// the worlds see of an environment.
pub fn run_job(
    n_pes: usize,
    environment: &[(&str, &str)],
    transports: &MakeTransports,
    body: impl Fn(&World) + Sync,
) {
    let board = Arc::new(Board::create(n_pes).expect("a board"));
    let lookup = |name: &str| {
        let found = environment.iter().find(|(n, _)| *n == name).map(|(_, value)| *value);
        let default = match name {
            "SHMEM_SYMMETRIC_SIZE" => Some("16m"),
            "SHMEM_TUNE_CACHE" => Some("off"),
            _ => None,
        };
        found.or(default).map(str::to_owned)
    };
    std::thread::scope(|scope| {
        for (pe, bootstrap) in Threads::job(n_pes).into_iter().enumerate() {
            let (board, body) = (board.clone(), &body);
            scope.spawn(move || {
                let world = World::start(Setup {
                    bootstrap: Arc::new(bootstrap),
                    board,
                    config: Config::from_lookup(lookup).expect("a valid environment"),
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
