// SPDX-License-Identifier: Apache-2.0
//! Attacks on jobs, the same for every transport: PEs that end or hurt themselves at any moment, PEs
//! that write garbage over what they share, links that fail, settings that make no sense, and programs
//! that use much of everything.
//!
//! A test takes some of many cases, the same in every run. `cargo dev soak` goes on with others for as
//! long as it is told: `TOMBOLO_SOAK_SECONDS` is the time for each test, `TOMBOLO_SOAK_SEED` the first
//! seed.

mod ends;
mod garbage;
mod growth;
mod neighbours;
mod schedules;
#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "shared with tests that use other parts of it")]
mod support;
mod table;
mod values;

use std::path::Path;
use std::time::{Duration, Instant};
use support::program::run_trials;
use tombolo_core::random::Random;
use tombolo_tests::conformance::{BACK_ENDS, unavailable};

fn main() {
    if neighbours::is_one() {
        return;
    }
    run_trials(|prefix| {
        let mut trials = ends::trials(prefix);
        trials.extend(garbage::trials(prefix));
        trials.extend(growth::trials(prefix));
        trials.extend(neighbours::trials(prefix));
        trials.extend(schedules::trials(prefix));
        trials.extend(table::trials(prefix));
        trials.extend(values::trials(prefix));
        trials
    })
}

/// Where the PEs of a job are and how they reach each other.
struct Way {
    name: &'static str,
    /// Options of `oshrun`.
    options: &'static [&'static str],
    /// Why it cannot be taken here.
    missing: Option<String>,
}

/// Every transport that there is.
fn ways() -> Vec<Way> {
    let way = |name, options| Way { name, options, missing: None };
    let needs = |name| unavailable(BACK_ENDS.iter().find(|one| one.name == name).expect("a row"));
    vec![
        way("on_one_host", &[]),
        way("over_cma", &["-x", "SHMEM_TRANSPORTS=cma", "-x", "SHMEM_STATIC=cma"]),
        way("over_the_ring", &["--hosts", "3"]),
        way("over_packets", &["--hosts", "3", "-x", "SHMEM_NTB_DIRECT=off"]),
        way("over_tcp", &["--hosts", "3", "-x", "SHMEM_TRANSPORTS=shm,tcp"]),
        Way {
            missing: needs("ofi_tcp"),
            ..way("over_ofi", &["--hosts", "3", "-x", "SHMEM_TRANSPORTS=shm,ofi"])
        },
        Way {
            missing: needs("verbs"),
            ..way("over_verbs", &["--hosts", "3", "-x", "SHMEM_TRANSPORTS=shm,verbs"])
        },
        without_order(),
    ]
}

/// Over the transport that keeps the contract and nothing more, with the library as it is built for
/// tests.
fn without_order() -> Way {
    let library = support::library_of_tests();
    let path = library.as_deref().map_or_else(|_| "".into(), Path::to_string_lossy);
    let path = &*Box::leak(format!("LD_LIBRARY_PATH={path}").into_boxed_str());
    let options = ["-x", path, "-x", "SHMEM_TRANSPORTS=unordered", "-x", "SHMEM_UNORDERED_SEED=4"];
    Way { name: "over_unordered", options: Box::leak(options.into()), missing: library.err() }
}

/// What to try next: as often as the test is told, or as long.
struct Cases {
    random: Random,
    left: usize,
    until: Option<Instant>,
}

impl Cases {
    /// `count` cases; when soaking, as many as there is time for. `salt` tells tests apart.
    fn new(count: usize, salt: u64) -> Cases {
        let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse().ok());
        let seed: u64 = number("TOMBOLO_SOAK_SEED").unwrap_or(1);
        let soak = number("TOMBOLO_SOAK_SECONDS").map(Duration::from_secs);
        let until = soak.map(|time| Instant::now() + time);
        let random = Random::new(seed.wrapping_mul(1000).wrapping_add(salt));
        Cases { random, left: count, until }
    }

    /// Whether there is another.
    fn next(&mut self) -> bool {
        self.left = self.left.saturating_sub(1);
        match self.until {
            Some(until) => Instant::now() < until,
            None => self.left > 0,
        }
    }

    /// A number below `bound`.
    fn below(&mut self, bound: usize) -> usize {
        self.random.below(bound as u64) as usize
    }

    fn of<T: Copy>(&mut self, list: &[T]) -> T {
        self.random.pick(list)
    }
}
