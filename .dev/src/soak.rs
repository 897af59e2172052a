// SPDX-License-Identifier: Apache-2.0
//! `cargo dev soak`: the attacks of the tests, others each time, for as long as there is time, and the
//! tests that take too long for every day.

use crate::Tree;
use crate::install::install;
use crate::steps::{Failure, announce, run};
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

/// Tests that draw their cases, each time others, by a part of their names: what processes that write
/// garbage can do.
const FUZZERS: [&str; 9] = [
    "garbage",
    "do_no_harm",
    "does_no_harm",
    "arbitrary_lines",
    "any_flipped_bit",
    "noise_is_no_request",
    "read_beyond_a_record",
    "a_torn_one_does_not",
    "whatever_the_variables_hold",
];
/// Tests of the target `attacks` take time by turns; so many are under way at once.
const AT_ONCE: u64 = 2;

pub fn soak(tree: &Tree, args: &[String]) -> Result<(), Failure> {
    let minutes = match args {
        [option, minutes] if option == "--minutes" => minutes.parse().ok(),
        _ => None,
    };
    let minutes: u64 = minutes
        .filter(|minutes| (1..=100_000).contains(minutes))
        .ok_or_else(|| Failure::new("usage: cargo dev soak --minutes N"))?;
    let prefix = tree.target("tombolo");
    install(tree, &prefix)?;
    let seed = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    // A third for processes that write garbage.
    let begin = Instant::now();
    let until = begin + Duration::from_secs(minutes * 60 / 3);
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < until {
        let fuzz = ["test", "--quiet", "--workspace", "--lib", "--bins", "--"];
        run(tree.cargo(&fuzz).args(FUZZERS).env("PROPTEST_CASES", "5000"))?;
        rounds += 1;
    }
    announce(&format!("{rounds} rounds of garbage in {} s", begin.elapsed().as_secs()));
    let crowds = ["test", "--workspace", "--test", "crowds", "--", "--include-ignored"];
    run(tree.cargo(&crowds).env("TOMBOLO_PREFIX", &prefix))?;
    let attacks = ["test", "--workspace", "--test", "attacks", "--"];
    // Those that are given time; the others take little.
    let timed = 14;
    let seconds = (minutes * 60 * 2 / 3 * AT_ONCE / timed).to_string();
    announce(&format!("attacks from seed {seed}"));
    let mut command = tree.cargo(&attacks);
    command.env("TOMBOLO_PREFIX", &prefix).env("TOMBOLO_SOAK_SEED", seed.to_string());
    run(command.env("TOMBOLO_SOAK_SECONDS", seconds))
}
