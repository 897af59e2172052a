// SPDX-License-Identifier: Apache-2.0
//! Jobs to measure in.

use crate::common;
use std::sync::Arc;
use tombolo_core::board::Board;
use tombolo_core::bootstrap::{self, Bootstrap};
use tombolo_core::transport::Transport;
use tombolo_core::{Config, Setup, World};
use tombolo_tests::ring::{DIRECT, Ring};

const WITH_WINDOWS: Ring = Ring {
    environment: &[
        ("SHMEM_TUNE", "always"),
        ("SHMEM_TUNE_CACHE", "off"),
        ("SHMEM_SYMMETRIC_SIZE", "256m"),
    ],
    ..DIRECT
};
const WITHOUT_WINDOWS: Ring = Ring {
    environment: &[
        ("SHMEM_NTB_DIRECT", "off"),
        ("SHMEM_TUNE_CACHE", "off"),
        ("SHMEM_SYMMETRIC_SIZE", "256m"),
    ],
    ..DIRECT
};

fn all() -> Vec<Box<dyn Transport>> {
    tombolo_transports::NAMES.iter().copied().filter_map(tombolo_transports::create).collect()
}

/// Runs `body` on the PE that this process is.
pub fn of_processes(body: impl Fn(&World)) {
    let config = Config::from_env().expect("a valid environment");
    let bootstrap: Arc<dyn Bootstrap> = bootstrap::from_env(&config).expect("a launcher").into();
    let board = Arc::new(Board::create(bootstrap.n_pes()).expect("a board"));
    let world = World::start(Setup {
        bootstrap: bootstrap.clone(),
        board,
        config,
        transports: all(),
        share_statics: true,
    })
    .expect("the world starts");
    body(&world);
    world.stop().expect("the world stops");
    bootstrap.finalize();
}

/// Runs `body` on PEs that are threads. Where there is more than one host PE 0 also gets its part of
/// a job on a ring without direct windows.
pub fn of_threads(hosts: usize, body: impl Fn(&World, Option<&World>) + Sync) {
    if hosts == 1 {
        let environment = [("SHMEM_TUNE", "always"), ("SHMEM_SYMMETRIC_SIZE", "256m")];
        return common::run_job(2, &environment, &common::local, |world| body(world, None));
    }
    let rings = WITHOUT_WINDOWS.fabric(hosts);
    WITHOUT_WINDOWS.run(&rings, hosts, &all, |ring| {
        if ring.pe() == 0 {
            let fabric = WITH_WINDOWS.fabric(hosts);
            WITH_WINDOWS.run(&fabric, hosts, &all, |world| {
                body(world, Some(ring).filter(|ring| ring.pe() == world.pe()));
            });
        }
        ring.bootstrap().barrier().expect("all PEs meet");
    });
}
