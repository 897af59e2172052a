// SPDX-License-Identifier: Apache-2.0
//! Values of variables that make no sense: jobs run without them, or end at once with nothing but lines
//! that name the variable.

use crate::Cases;
use crate::support::program::{LIMIT, Program};
use crate::support::{crate_dir, run, scratch, tool};
use libtest_mimic::{Failed, Trial};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::Instant;

/// Where the PEs of a job are.
const PLACES: [&[&str]; 2] = [&[], &["--hosts", "2"]];
/// Jobs of the test.
const JOBS: usize = 24;

pub fn trials(prefix: &Path) -> Vec<Trial> {
    let source = crate_dir().join("c/special/few.c");
    let program = Program::new(prefix, &source, "", &["-O1"]);
    let oshinfo = prefix.join("bin/oshinfo");
    vec![Trial::test("values_without_sense_are_named", move || attack(&program, &oshinfo))]
}

/// The variables that `oshinfo` knows.
fn variables(oshinfo: &Path) -> Result<Vec<String>, Failed> {
    let text = tool(oshinfo, &["" as &str; 0])?;
    let first = |line: &str| line.split_whitespace().next().map(str::to_owned);
    let all: Vec<String> = text.lines().filter_map(first).collect();
    let all: Vec<String> = all.into_iter().filter(|word| word.starts_with("SHMEM_")).collect();
    assert!(all.len() > 25, "{all:?}");
    Ok(all)
}

fn attack(program: &Arc<Program>, oshinfo: &Path) -> Result<(), Failed> {
    let variables = variables(oshinfo)?;
    let variables: Vec<&str> = variables.iter().map(String::as_str).collect();
    let fifo = scratch("attacks").join(format!("values-{}", std::process::id()));
    tool("mkfifo", &[&fifo])?;
    let (fifo, long) = (fifo.display().to_string(), "x".repeat(5000));
    let values = [
        "",
        "-1",
        "0",
        "1e13",
        "1e400",
        "nan",
        "inf",
        "-0",
        "18446744073709551616",
        "999t",
        "1.5",
        "0x10",
        "99999999999999999999g",
        "\u{e9}\u{200b}",
        "%s%n",
        " ",
        "a b",
        "--",
        ",",
        ",,",
        ":",
        "=",
        "*",
        "put:*=",
        "put:*=none",
        "on,off",
        "/dev/zero",
        "/proc/self/mem",
        "/",
        "../..",
        &fifo,
        &long,
    ];
    let mut cases = Cases::new(JOBS + 1, 500);
    while cases.next() {
        let (variable, value) = (cases.of(&variables), cases.of(&values));
        let place = cases.of(&PLACES);
        let mut oshrun = program.oshrun();
        // Nothing that the variable may be about is set already.
        oshrun.env_remove("SHMEM_SYMMETRIC_SIZE").env_remove("SHMEM_TUNE_CACHE");
        oshrun.env("SHMEM_TUNE", "off").args(["-n", "2"]).args(place);
        oshrun.args(["-x", &format!("{variable}={value}")]).arg(program.executable()?);
        one(&mut oshrun, variable).map_err(|why| format!("{variable}='{value:.60}': {why}"))?;
    }
    std::fs::remove_file(&fifo)?;
    Ok(())
}

fn one(oshrun: &mut Command, variable: &str) -> Result<(), String> {
    let begun = Instant::now();
    let ran = run(oshrun, LIMIT).map_err(|error| error.to_string())?;
    // The program itself ends where a value that makes sense leaves it no memory.
    let lines = ran.stderr.lines().filter(|line| !line.is_empty() && !line.contains("check.h:"));
    let right = match ran.code {
        Some(0) => true,
        // What concerns oshrun as well is refused by it.
        Some(1 | 2) => {
            lines.clone().count() > 0 && lines.clone().all(|line| line.contains(variable))
        }
        _ => false,
    };
    if right && !ran.stderr.contains("panicked") && begun.elapsed() < LIMIT / 2 {
        return Ok(());
    }
    Err(ran.account("expected success, or soon a line that names the variable"))
}
