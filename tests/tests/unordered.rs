//! C programs whose processes reach each other over the transport that keeps the contract and nothing
//! more, with the library as it is built for tests.

use libtest_mimic::Trial;
use std::fs;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::sync::Arc;

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::program::{LIMIT, Program, run_trials};
use support::{crate_dir, run, scratch};

/// Seeds of each program; `TOMBOLO_SEEDS=N` for more.
const SEEDS: u32 = 2;
const PES: u32 = 2;
/// Programs that take too long over it, and why.
