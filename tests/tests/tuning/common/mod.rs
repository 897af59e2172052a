// SPDX-License-Identifier: Apache-2.0
//! Jobs of threads set up for tuning: room to measure in, and no cache but the test's own.

use tombolo_core::World;
use tombolo_core::transport::Transport;

/// The transports of one host.
pub fn local(_pe: usize) -> Vec<Box<dyn Transport>> {
    ["shm", "cma"].into_iter().filter_map(tombolo_transports::create).collect()
}

/// Runs `body` once per PE; `environment` is all that the worlds see of an environment.
pub fn run_job(
    n_pes: usize,
    environment: &[(&str, &str)],
    transports: &(dyn Fn(usize) -> Vec<Box<dyn Transport>> + Sync),
    body: impl Fn(&World) + Sync,
) {
    let defaults = [("SHMEM_SYMMETRIC_SIZE", "16m"), ("SHMEM_TUNE_CACHE", "off")];
    let environment = |_| defaults.iter().chain(environment).copied().collect();
    tombolo_tests::run_job_of(n_pes, &environment, transports, body);
}
