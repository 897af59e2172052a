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
/// Tests of the target `attacks` that are given time by turns; the others take little.
const TIMED: u64 = 14;
/// So many of them are under way at once.
const AT_ONCE: u64 = 2;

const HELP: &str = "\
Usage: cargo dev soak --minutes N [--seed S]

Attacks jobs, with other cases in each run. The N minutes begin when all is built:
  a third      garbage wherever something is read from other processes
  once         the C programs on 64 PEs, one on 512, links among 40 busy processes
  what is left PEs that end or hurt themselves, faults of links, settings that make no sense,
               at least a third

A failure does not end the run. --seed repeats the cases of an earlier run in the same order; the moment
at which an attack hits a job is a matter of chance each time.
";

pub fn soak(tree: &Tree, args: &[String]) -> Result<(), Failure> {
    if matches!(args, [option] if option == "--help" || option == "-h") {
        print!("{HELP}");
        return Ok(());
    }
    let (time, seed) =
        asked(args).ok_or_else(|| Failure::new(format!("soak: wrong arguments\n\n{HELP}")))?;
    let prefix = tree.target("tombolo");
    install(tree, &prefix)?;
    announce("building the tests");
    run(&mut tree.cargo(&["test", "--quiet", "--workspace", "--no-run"]))?;
    announce(&format!("seed {seed}"));
    let begin = Instant::now();
    let garbage = garbage(tree, seed, begin + time / 3);
    let crowds = ["test", "--workspace", "--test", "crowds", "--", "--include-ignored"];
    let crowds = run(tree.cargo(&crowds).env("TOMBOLO_PREFIX", &prefix));
    let left = time.saturating_sub(begin.elapsed()).max(time / 3);
    let attacks = ["test", "--workspace", "--test", "attacks", "--"];
    let mut command = tree.cargo(&attacks);
    command.env("TOMBOLO_PREFIX", &prefix).env("TOMBOLO_SOAK_SEED", seed.to_string());
    // Each gets at least a second.
    let each = left.as_secs() * AT_ONCE / TIMED + 1;
    let attacks = run(command.env("TOMBOLO_SOAK_SECONDS", each.to_string()));
    let failures: Vec<String> = [garbage, crowds, attacks]
        .into_iter()
        .filter_map(Result::err)
        .map(|e| e.to_string())
        .collect();
    if failures.is_empty() {
        return Ok(());
    }
    let minutes = time.as_secs() / 60;
    let again = format!("the same cases again: cargo dev soak --minutes {minutes} --seed {seed}");
    Err(Failure::new(format!("{}\n{again}", failures.join("\n"))))
}

/// The time and the seed.
fn asked(args: &[String]) -> Option<(Duration, u64)> {
    let now = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |time| time.as_secs());
    let (minutes, seed) = match args {
        [option, minutes] if option == "--minutes" => (minutes, now),
        [option, minutes, other, seed] if option == "--minutes" && other == "--seed" => {
            (minutes, seed.parse().ok()?)
        }
        _ => return None,
    };
    let minutes: u64 = minutes.parse().ok().filter(|minutes| (1..=100_000).contains(minutes))?;
    Some((Duration::from_secs(minutes * 60), seed))
}

/// Rounds of what reads garbage, each with a seed of its own.
fn garbage(tree: &Tree, seed: u64, until: Instant) -> Result<(), Failure> {
    let mut rounds = 0;
    while rounds == 0 || Instant::now() < until {
        let fuzz = ["test", "--quiet", "--workspace", "--no-fail-fast", "--lib", "--bins", "--"];
        let mut command = tree.cargo(&fuzz);
        command.args(FUZZERS).env("PROPTEST_CASES", "5000");
        run(command.env("PROPTEST_RNG_SEED", seed.wrapping_add(rounds).to_string()))?;
        rounds += 1;
    }
    announce(&format!("{rounds} rounds of garbage"));
    Ok(())
}
