// SPDX-License-Identifier: Apache-2.0
//! The examples that are installed: each gives one result, whatever the number of PEs and the transport. The programs of
//! `benches/c` compile.

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use libtest_mimic::{Failed, Trial};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use support::program::{LIMIT, Program, run_trials};
use support::{crate_dir, include_dir, installed, run, scratch, tool};
use tombolo_tests::unless;

/// Source, and what it prints: all of it, but for `heat.c`, which shows how far it is before.
const EXAMPLES: [(&str, &str); 14] = [
    ("stencil.c", "stencil: 64 points, 100 steps, sum 357.529855361\n"),
    ("stencil.cc", "stencil: 64 points, 100 steps, sum 357.529855361\n"),
    ("samplesort.c", "samplesort: 100000 numbers, in order, checksum 0764ed85548001c4\n"),
    ("histogram.c", "histogram: 20000 accesses counted, squares 418938, gathered 418938: right\n"),
    ("bfs.c", BFS),
    ("worksteal.c", "worksteal: 200 tasks, 8418 steps\n"),
    ("cg.c", "cg: 200 unknowns, solved\n"),
    ("ring.c", "ring: 1000 messages of 1024 bytes from each PE, all as they were sent\n"),
    ("rotget.c", "rotget: 65536 numbers round all PEs, each back where it was\n"),
    ("dip.c", "dip: 130000 elements, inner product 2383629.061905\n"),
    ("randput.c", "randput: 5000 puts from each PE, all as they were sent last\n"),
    ("matmul.c", "matmul: 20 x 20, trace 2399: right\n"),
    ("hashtable.cc", "hashtable: 20000 insertions, 500 keys: right\n"),
    ("heat.c", "heat: 32 points, 100 steps, sum 455.995099014\n"),
];

const BFS: &str = "\
level  0          1 #
level  1          3 ##
level  2          9 ####
level  3         26 #########
level  4         65 ######################
level  5        134 ##############################################
level  6        145 ##################################################
level  7         63 ######################
level  8         12 #####
level  9          3 ##
level 10          1 #
bfs: 462 of 500 vertices reached, 11 levels, sum of levels 2473
";

/// Number of PEs and options of `oshrun`.
const JOBS: [(usize, &[&str]); 5] =
    [(1, &[]), (3, &[]), (4, &[]), (4, &["--hosts", "2"]), (3, &["-x", "SHMEM_TRANSPORTS=cma"])];

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let place = prefix.join("share/tombolo/examples");
    let mut trials = vec![];
    for (source, result) in EXAMPLES {
        let flags: &[&str] = match source.ends_with(".cc") {
            true => &["-O2", "-std=c++20"],
            // Before the source, where the linker would leave out what nobody has asked for yet.
            false => &["-O2", "-Wl,--no-as-needed,-lm"],
        };
        let program = program(prefix, &place.join(source), flags);
        for (pes, options) in JOBS {
            let program = program.clone();
            let name = format!("{source} on {pes} PEs {}", options.join(" "));
            trials.push(Trial::test(name, move || {
                // Smaller than its default, which is for people to look at.
                let picture = scratch("examples").join(format!("heat-{pes}-{}.png", options.len()));
                let picture = picture.display().to_string();
                // Small: many atomic operations take their time where a busy machine serves them.
                let args: &[&str] = match source {
                    "heat.c" => &[&picture, "32", "100"],
                    "bfs.c" => &["500"],
                    "worksteal.c" => &["200"],
                    _ => &[],
                };
                let ran = program.launch_with(options, pes, args, &[])?.succeeded()?;
                let is_right = match source {
                    "heat.c" => ran.stdout.ends_with(result),
                    _ => ran.stdout == result,
                };
                match is_right {
                    true => Ok(()),
                    false => Err(ran.account(&format!("expected {result:?}")).into()),
                }
            }));
        }
    }
    for (pes, options) in JOBS {
        trials.push(in_python(prefix, pes, options));
    }
    trials.push(needing("make", "the_makefile_builds_and_runs_all", prefix, make));
    trials.push(needing("cmake", "the_cmake_project_builds_all", prefix, cmake));
    trials.push(needing("cc", "the_programs_of_the_benchmarks_compile", prefix, benchmarks));
    trials
}

fn program(prefix: &Path, source: &Path, flags: &[&str]) -> Arc<Program> {
    let language = if source.extension().is_some_and(|e| e == "cc") { "in C++" } else { "in C" };
    Program::new(prefix, source, language, flags)
}

fn in_python(prefix: &Path, pes: usize, options: &'static [&'static str]) -> Trial {
    let prefix = prefix.to_owned();
    let missing = (!installed("python3")).then_some("needs python3");
    let trial = Trial::test(format!("stencil.py on {pes} PEs {}", options.join(" ")), move || {
        // By this alone the program finds the library.
        let mut oshrun = Command::new(prefix.join("bin/oshrun"));
        oshrun.env("PATH", path(&prefix)).env_remove("LD_LIBRARY_PATH");
        oshrun.env("SHMEM_SYMMETRIC_SIZE", "16m").env("SHMEM_TUNE_CACHE", scratch("tuning"));
        oshrun.args(["-n", &pes.to_string()]).args(options);
        oshrun.arg("python3").arg(prefix.join("share/tombolo/examples/stencil.py"));
        let ran = run(&mut oshrun, LIMIT)?.succeeded()?;
        match ran.stdout == EXAMPLES[0].1 {
            true => Ok(()),
            false => Err(ran.account(&format!("expected {:?}", EXAMPLES[0].1)).into()),
        }
    });
    unless(missing, trial)
}

fn needing(
    program: &'static str,
    name: &str,
    prefix: &Path,
    test: fn(&Path) -> Result<(), Failed>,
) -> Trial {
    let prefix = prefix.to_owned();
    let missing = (!installed(program)).then(|| format!("needs {program}"));
    unless(missing, Trial::test(name, move || test(&prefix)))
}

/// `PATH` with the tools of the installation first, as its users have it.
fn path(prefix: &Path) -> String {
    let path = std::env::var("PATH").unwrap_or_default();
    format!("{}:{path}", prefix.join("bin").display())
}

/// In a copy, because it writes beside its sources.
fn make(prefix: &Path) -> Result<(), Failed> {
    let folder = scratch("examples-make");
    for entry in std::fs::read_dir(prefix.join("share/tombolo/examples"))?.flatten() {
        if entry.file_type()?.is_file() {
            std::fs::copy(entry.path(), folder.join(entry.file_name()))?;
        }
    }
    let mut make = Command::new("make");
    make.env("PATH", path(prefix)).env_remove("LD_LIBRARY_PATH");
    make.env("SHMEM_SYMMETRIC_SIZE", "16m").env("SHMEM_TUNE_CACHE", scratch("tuning"));
    make.arg("-C").arg(&folder).args(["run", "OSHRUN=oshrun -n 2"]);
    let ran = run(&mut make, Duration::from_secs(180))?.succeeded()?;
    for (source, _) in EXAMPLES {
        // At their default sizes the numbers may be others.
        let name = source.split('.').next().unwrap_or_default();
        let told = ran.stdout.lines().any(|line| line.starts_with(&format!("{name}: ")));
        assert!(told && !ran.stdout.contains("NOT"), "{source}: {}", ran.stdout);
    }
    Ok(())
}

fn cmake(prefix: &Path) -> Result<(), Failed> {
    let build = scratch("examples-cmake");
    let source = prefix.join("share/tombolo/examples");
    let mut configure = Command::new("cmake");
    configure.arg("-S").arg(&source).arg("-B").arg(&build);
    configure.arg(format!("-DCMAKE_PREFIX_PATH={}", prefix.display()));
    run(&mut configure, Duration::from_secs(60))?.succeeded()?;
    let mut cmake = Command::new("cmake");
    run(cmake.arg("--build").arg(&build), Duration::from_secs(180))?.succeeded()?;
    let mut oshrun = Command::new(prefix.join("bin/oshrun"));
    oshrun.env("SHMEM_SYMMETRIC_SIZE", "16m").env("SHMEM_TUNE_CACHE", scratch("tuning"));
    let ran = run(oshrun.args(["-n", "2"]).arg(build.join("cg")), LIMIT)?.succeeded()?;
    match ran.stdout == result_of("cg.c") {
        true => Ok(()),
        false => Err(ran.account("expected the same result").into()),
    }
}

fn result_of(source: &str) -> &'static str {
    EXAMPLES.iter().find(|(name, _)| *name == source).map_or("", |(_, result)| result)
}

/// Some of the programs of `benches/c` are run by hand only, for records.
fn benchmarks(_: &Path) -> Result<(), Failed> {
    let folder = crate_dir().with_file_name("benches").join("c");
    let paths = std::fs::read_dir(folder)?.flatten().map(|entry| entry.path());
    let is_c = |path: &PathBuf| path.extension().is_some_and(|extension| extension == "c");
    let sources: Vec<PathBuf> = paths.filter(is_c).collect();
    assert!(!sources.is_empty(), "no programs");
    let mut args =
        ["-Wall", "-Wextra", "-Werror", "-fsyntax-only", "-I"].map(PathBuf::from).to_vec();
    args.push(include_dir());
    args.extend(sources);
    tool("cc", &args)?;
    Ok(())
}
