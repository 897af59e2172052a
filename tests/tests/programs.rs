// SPDX-License-Identifier: Apache-2.0
//! C and C++ programs, compiled by the installed `oshcc` and run by the installed `oshrun`.
//!
//! `c/*.c` each run on 1, 2, 3, 4 and 7 PEs and together call every routine of the standard.
//! They run again with all arguments checked, and with their PEs on emulated hosts, tied into rings of
//! several sizes and speeds. Networks are for `network.rs`.
//! `c/special` holds programs that want arguments, fail on purpose, or exist in one language only.

use libtest_mimic::Trial;
use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tombolo_tests::{nodes, unless};

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::program::{LIMIT, Program, run_trials};
use support::{crate_dir, routines, run, scratch, tool};
use tombolo_tests::conformance::{BACK_ENDS, unavailable};

const PES: [usize; 5] = [1, 2, 3, 4, 7];

/// Programs also built in other ways than the compiler's default, and those ways.
const VARIED: [&str; 4] = ["static_data", "pointers", "processes", "contended"];
const BUILDS: [(&str, &[&str]); 4] = [
    ("position independent", &["-fPIE", "-pie"]),
    ("at a fixed address", &["-fno-pie", "-no-pie"]),
    ("statically linked", &["-static"]),
    ("with the library linked in", &["--static-tombolo"]),
];
/// Programs also built so that their static data lie in several segments, those builds, and how they run.
const GAPPED: [&str; 3] = ["static_data", "processes", "constants"];
const GAPS: [(&str, &[&str]); 2] =
    [("with a gap in its data", &["-DWITH_GAP"]), ("with constants in the gap", LARGE_DATA)];
const LARGE_DATA: &[&str] = match cfg!(target_arch = "x86_64") {
    true => &["-mcmodel=medium", "-mlarge-data-threshold=64", "-fno-pie", "-no-pie"],
    false => &[],
};
const OVER_GAPS: [&[&str]; 5] = [
    &[],
    &["-x", "SHMEM_STATIC=cma"],
    &["--hosts", "3"],
    &["--hosts", "3", "-x", "SHMEM_NTB_DMA=1"],
    &["--hosts", "3", "-x", "SHMEM_TRANSPORTS=tcp"],
];
/// Programs that use static data, run again with it reached by CMA.
const BY_CMA: [&str; 5] = ["static_data", "rma", "amo", "random", "constants"];
/// Programs in which non-blocking operations go on by themselves, whatever their length and whether or not a
/// processor is free for them.
const BESIDE: [&str; 7] =
    ["rma", "contexts", "signal", "random", "static_data", "threads", "profiling"];
/// Programs that synchronise often, run with more PEs than this machine is likely to have cores.
const CROWDED: [&str; 4] = ["teams", "locks", "contended", "collectives"];
/// Programs started by MPICH's launcher as well, which knows nothing of this library but PMI-1.
const UNDER_HYDRA: [&str; 4] = ["setup", "rma", "collectives", "static_data"];

/// Programs of which the process's first thread, or threads of the library, are not as most programs expect.
const THREADED: [&str; 3] = ["main_leaves.c", "last_thread.c", "signals_taken.c"];

/// Rings on which every program runs: number of PEs, and options of `oshrun`.
const RINGS: [(usize, &[&str]); 9] = [
    (4, &["--hosts", "2"]),
    (6, &["--hosts", "3", "--placement", "cyclic", "-x", "SHMEM_NTB_WINDOW=1m"]),
    (5, &["--hosts", "5", "-x", "SHMEM_NTB_DIRECT=off", "-x", "SHMEM_NTB_CRC=on"]),
    (4, &["--hosts", "4", "-x", "SHMEM_NTB_DIRECT=off", "-x", "SHMEM_NTB_STEPS=on"]),
    (4, &["--hosts", "4", "-x", "SHMEM_NTB_DIRECT=off", "-x", "SHMEM_NTB_CHUNK=512"]),
    (5, &["--hosts", "3", "-x", "SHMEM_NTB_LANES=2", "-x", "SHMEM_NTB_PROFILE=switchtec"]),
    (3, &["--hosts", "3", "-x", "SHMEM_NTB_SPEED=modelled"]),
    (4, &["--hosts", "3", "-x", "SHMEM_NTB_DMA=1"]),
    (4, &["--hosts", "4", "-x", "SHMEM_NTB_DMA=1", "-x", "SHMEM_NTB_DIRECT=off"]),
];
/// Emulated hosts on which every program runs over TCP where there can be no hosts in namespaces: number of PEs, and
/// options.
const OVER_TCP: (usize, &[&str]) = (4, &["--hosts", "2", "-x", "SHMEM_TRANSPORTS=shm,tcp"]);
/// Emulated hosts on which every program runs over libfabric, on the first likewise: number of PEs, and options.
const OVER_OFI: [(usize, &[&str]); 2] = [
    (4, &["--hosts", "2", "-x", "SHMEM_TRANSPORTS=shm,ofi"]),
    (3, &["--hosts", "3", "-x", "SHMEM_TRANSPORTS=ofi", "-x", "SHMEM_OFI_PROVIDER=udp;ofi_rxd"]),
];
/// What goes wrong with the links while `special/traffic.c` must not notice.
const FLAPS: &str = "link 1 down at 1100ms; up at 1300ms; link 0 down at 1400ms; up at 1500ms; \
                     down at 1550ms";
const DAMAGE: &str =
    "link 0 corrupt 300; link 1 corrupt 300; delay 20us at 200ms; delay 0us at 300ms";
/// Rings that survive it: PEs, options, and the faults.
const HARDSHIPS: [(usize, &[&str], &str); 8] = [
    (6, &["--hosts", "3"], FLAPS),
    (4, &["--hosts", "2", "-x", "SHMEM_NTB_WINDOW=1m"], FLAPS),
    (5, &["--hosts", "5", "-x", "SHMEM_NTB_PROFILE=intel-gen3"], FLAPS),
    (3, &["--hosts", "3", "-x", "SHMEM_NTB_DMA=1"], FLAPS),
    (4, &["--hosts", "4", "-x", "SHMEM_NTB_DMA=1", "-x", "SHMEM_NTB_DIRECT=off"], FLAPS),
    (4, &["--hosts", "4", "-x", "SHMEM_NTB_CRC=on", "-x", "SHMEM_NTB_DIRECT=off"], DAMAGE),
    (4, &["--hosts", "4", "-x", "SHMEM_NTB_STEPS=on", "-x", "SHMEM_NTB_DIRECT=off"], FLAPS),
    (12, &["--hosts", "4"], FLAPS),
];
/// Rings that do not: PEs, options, the faults, and which PEs may be found to be out of reach.
const DISASTERS: [(usize, &[&str], &str, &[&str]); 2] = [
    (6, &["--hosts", "3"], "host 2 die at 2000ms", &["PE 4", "PE 5"]),
    (
        4,
        &["--hosts", "4"],
        "link 0 down at 2000ms; link 2 down at 2000ms",
        &["PE 0", "PE 1", "PE 2", "PE 3"],
    ),
];
/// Jobs of 3 PEs whose transports leave something to the service thread of the target, or nothing: options
/// of `oshrun`, and the argument of `special/served.c`.
const SERVED: [(&[&str], &str); 7] = [
    (&[], "alone"),
    (&["--hosts", "3"], "alone"),
    (&["--hosts", "3", "-x", "SHMEM_NTB_DIRECT=off"], "alone"),
    (&["--hosts", "2", "-x", "SHMEM_NTB_SPEED=modelled"], "alone"),
    (&["-x", "SHMEM_TRANSPORTS=cma"], "served"),
    (&["-x", "SHMEM_STATIC=cma"], "served"),
    (&["--hosts", "3", "-x", "SHMEM_ROUTE=put:*=ntb"], "served"),
];
/// Three hosts of one machine, between which a PE that is stopped carries out nothing.
const QUIET_OF_ONE: [&[&str]; 5] = [
    &["--hosts", "3"],
    &["--hosts", "3", "-x", "SHMEM_NTB_DIRECT=off"],
    &["--hosts", "3", "-x", "SHMEM_NTB_SPEED=modelled"],
    &["--hosts", "3", "-x", "SHMEM_TRANSPORTS=tcp", "-x", "SHMEM_SILENCE=60"],
    &["--hosts", "3", "-x", "SHMEM_TRANSPORTS=ofi", "-x", "SHMEM_SILENCE=60"],
];

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let dir = crate_dir().join("c");
    let all: Vec<Arc<Program>> = sources(&dir)
        .into_iter()
        .map(|source| Program::new(prefix, &source, "", &["-O1", "-pthread"]))
        .collect();
    let named = |name: &str| {
        all.iter().find(|program| program.name == name).expect("a program of the folder").clone()
    };
    let mut trials = Vec::new();
    let no_ofi = unavailable(BACK_ENDS.iter().find(|one| one.name == "ofi_tcp").expect("a row"));
    // `network.rs` runs every program over TCP and over libfabric on hosts that share less than these do.
    let beyond = nodes::unavailable().is_none().then(|| "runs on hosts of network.rs".to_owned());
    let quiet_of_one = Program::new(prefix, &dir.join("special/quiet_of_one.c"), "", &["-O1"]);
    for options in QUIET_OF_ONE {
        let missing = no_ofi.as_ref().filter(|_| options.contains(&"SHMEM_TRANSPORTS=ofi"));
        trials.push(unless(missing, runs_on_hosts(&quiet_of_one, 3, options)));
    }
    let no_ofi = [no_ofi.clone().or_else(|| beyond.clone()), no_ofi];
    for program in &all {
        trials.extend(PES.map(|pes| runs(program, pes, &[])));
        // Checks find nothing in a right program.
        trials.push(runs(program, 4, &[("SHMEM_DEBUG", "1")]));
        trials.extend(RINGS.map(|(pes, options)| runs_on_hosts(program, pes, options)));
        let over_tcp = runs_on_hosts(program, OVER_TCP.0, OVER_TCP.1);
        trials.push(unless(beyond.as_ref(), over_tcp));
        for ((pes, options), missing) in OVER_OFI.into_iter().zip(&no_ofi) {
            trials.push(unless(missing.as_ref(), runs_on_hosts(program, pes, options)));
        }
    }
    trials.push(every_routine_is_called(&all));

    for name in VARIED {
        for (how, flags) in BUILDS {
            let flags = [flags, &["-O1", "-pthread"]].concat();
            let program = Program::new(prefix, &dir.join(format!("{name}.c")), how, &flags);
            trials.extend([1, 3].map(|pes| runs(&program, pes, &[])));
        }
    }
    for name in GAPPED {
        for (how, flags) in GAPS {
            let flags = [flags, &["-O1", "-pthread"]].concat();
            let program = Program::new(prefix, &dir.join(format!("{name}.c")), how, &flags);
            trials.extend(OVER_GAPS.map(|options| runs_on_hosts(&program, 3, options)));
        }
    }
    for name in BY_CMA {
        trials.extend([1, 3].map(|pes| runs(&named(name), pes, &[("SHMEM_STATIC", "cma")])));
    }
    // Words of several threads go through the lines of the service thread, of which there are fewer.
    trials.push(runs(&named("threads"), 2, &[("SHMEM_TRANSPORTS", "cma")]));
    let beside = [("SHMEM_OVERLAP", "64")];
    trials.extend(BESIDE.map(|name| runs(&named(name), 3, &beside)));
    trials.extend(CROWDED.map(|name| runs(&named(name), 16, &[])));
    trials.extend(UNDER_HYDRA.map(|name| runs_under_hydra(&named(name))));
    trials.push(two_jobs_at_once(named("random"), named("locks")));

    let special = |file: &str| Program::new(prefix, &dir.join("special").join(file), "", &["-O1"]);
    let cxx = special("generics.cc");
    trials.extend(PES.map(|pes| runs(&cxx, pes, &[])));
    trials.push(mpmd(special("mpmd.c")));
    for (how, flags) in [BUILDS[0], BUILDS[3]] {
        let flags = [flags, &["-O1", "-pthread"]].concat();
        let source = dir.join("special/threads_before.c");
        trials.push(runs(&Program::new(prefix, &source, how, &flags), 3, &[]));
    }
    for (how, flags) in [("", &[][..]), BUILDS[3]] {
        let flags = [flags, &["-O1", "-pthread"]].concat();
        let source = dir.join("special/forks.c");
        trials.push(runs(&Program::new(prefix, &source, how, &flags), 2, &[]));
    }
    trials.extend(static_forks(prefix, &dir.join("special/static_fork.c")));
    for file in THREADED {
        let program =
            Program::new(prefix, &dir.join("special").join(file), "", &["-O1", "-pthread"]);
        trials.extend([1, 3].map(|pes| runs(&program, pes, &[])));
        trials.push(runs(&program, 3, &[("SHMEM_TRANSPORTS", "cma")]));
    }
    trials.extend([1, 3].map(|pes| runs(&special("no_streams.c"), pes, &[])));
    let traffic = special("traffic.c");
    trials.extend(HARDSHIPS.map(|(pes, options, plan)| endures(&traffic, pes, options, plan)));
    trials.extend(
        DISASTERS
            .map(|(pes, options, plan, lost)| ends_clearly(&traffic, (pes, options, plan), lost)),
    );
    let served = special("served.c");
    trials.extend(SERVED.map(|(options, expected)| is_served(&served, options, expected)));
    trials.extend(global_exits(&special("global_exit.c")));
    for (how, flags) in [("", &[][..]), BUILDS[2], BUILDS[3]] {
        let flags = [flags, &["-O1", "-pthread"]].concat();
        let source = |name: &str| dir.join("special").join(name);
        let program = Program::new(prefix, &source("at_exit.cc"), how, &flags);
        trials.extend(["atexit", "object", "destructor"].map(|who| finalises(&program, who)));
        let program = Program::new(prefix, &source("last_words.cc"), how, &flags);
        let rest = if how.is_empty() { LAST_WORDS.len() } else { 2 };
        trials.extend(LAST_WORDS[..rest].iter().map(|case| last_words(&program, case)));
    }
    let parting = special("parting.c");
    trials.extend(["init", "start_pes"].map(|by| does_not_end_the_others(&parting, by)));
    trials.push(runs(&special("asked.c"), 2, &[]));
    trials.push(runs(&special("handles.c"), 2, &[]));
    let line = special("line.c");
    trials.extend([1, 3].map(|pes| runs(&line, pes, &[])));
    trials.push(runs(&line, 3, &[("SHMEM_TRANSPORTS", "cma")]));
    trials.push(killed(special("killed.c")));
    trials.push(too_many_teams(special("many_teams.c")));
    let heap_size = special("heap_size.c");
    let sizes = [("0", "0"), ("20m", "20971520"), ("3e3k", "3072000")];
    let sized = |checks: &'static str| {
        let program = heap_size.clone();
        sizes.map(move |(size, bytes)| whole_heap(program.clone(), size, bytes, checks))
    };
    trials.extend(["0", "1"].into_iter().flat_map(sized));
    let errors = special("errors.c");
    trials.extend(ERRORS.iter().map(|error| mistake(errors.clone(), error)));
    trials
}

/// PEs have a service thread where somebody may need it: elsewhere it takes time from them.
fn is_served(
    program: &Arc<Program>,
    options: &'static [&'static str],
    expected: &'static str,
) -> Trial {
    let program = program.clone();
    Trial::test(format!("{} {} {expected}", program.name, options.join(" ")), move || {
        program.launch_with(options, 3, &[expected], &[])?.succeeded()?;
        Ok(())
    })
}

fn sources(dir: &Path) -> Vec<PathBuf> {
    let mut sources: Vec<PathBuf> = fs::read_dir(dir)
        .expect("the programs are there")
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    sources
}

/// "rma on 3 PEs": succeeds, in time.
fn runs(program: &Arc<Program>, pes: usize, env: &[(&'static str, &'static str)]) -> Trial {
    let (program, env) = (program.clone(), env.to_vec());
    let mut name = format!("{} on {pes} PEs", program.name);
    if !program.how.is_empty() {
        name += &format!(", {}", program.how);
    }
    for (variable, value) in &env {
        name += &format!(", {variable}={value}");
    }
    Trial::test(name, move || {
        program.launch(pes, &[], &env)?.succeeded()?;
        Ok(())
    })
}

/// "rma on 4 PEs --hosts 2": succeeds on emulated hosts.
fn runs_on_hosts(program: &Arc<Program>, pes: usize, options: &'static [&str]) -> Trial {
    let program = program.clone();
    let mut name = format!("{} on {pes} PEs {}", program.name, options.join(" "));
    if !program.how.is_empty() {
        name += &format!(", {}", program.how);
    }
    Trial::test(name, move || {
        program.launch_with(options, pes, &[], &[])?.succeeded()?;
        Ok(())
    })
}

/// Traffic that does not notice faults, which people are told of.
fn endures(
    program: &Arc<Program>,
    pes: usize,
    options: &'static [&str],
    plan: &'static str,
) -> Trial {
    let program = program.clone();
    let name = format!("{} on {pes} PEs {} endures {plan}", program.name, options.join(" "));
    Trial::test(name, move || {
        let options = [options, &["--fault", plan]].concat();
        // A busy machine takes a while to start a job, and would take longer to measure first.
        let untuned = [("SHMEM_TUNE", "off")];
        let ran = program.launch_with(&options, pes, &["1.7"], &untuned)?.succeeded()?;
        let told = ran.stderr.lines().filter(|line| line.contains("NTB link")).count();
        match (plan.matches("down").count(), told) {
            // A link in poor health may be rested.
            (0, _) => Ok(()),
            // Warned once for each time; the last may come with the end of the program.
            (downs, told) if told >= downs - 1 && told <= downs => Ok(()),
            (downs, _) => Err(ran.account(&format!("expected {downs} warnings")).into()),
        }
    })
}

/// Faults that leave PEs out of reach end the job, which says so.
fn ends_clearly(
    program: &Arc<Program>,
    (pes, options, plan): (usize, &'static [&str], &'static str),
    lost: &'static [&str],
) -> Trial {
    let program = program.clone();
    let name = format!("{} on {pes} PEs {} ends after {plan}", program.name, options.join(" "));
    Trial::test(name, move || {
        let options = [options, &["--fault", plan]].concat();
        let ran = program.launch_with(&options, pes, &["30"], &[])?;
        let says = |line: &str| {
            line.contains("cannot be reached any more") && lost.iter().any(|pe| line.contains(pe))
        };
        if matches!(ran.code, Some(code) if code != 0) && ran.stderr.lines().any(says) {
            return Ok(());
        }
        Err(ran.account(&format!("expected failure and a line naming one of {lost:?}")).into())
    })
}

fn runs_under_hydra(program: &Arc<Program>) -> Trial {
    let program = program.clone();
    let name = format!("{} on 4 PEs, started by MPICH's mpiexec", program.name);
    let is_missing = Command::new("mpiexec.hydra").arg("--version").output().is_err();
    let trial = Trial::test(name, move || {
        let executable = program.executable()?;
        let mut mpiexec = Command::new("mpiexec.hydra");
        mpiexec.args(["-n", "4"]).arg(executable);
        mpiexec.env("SHMEM_SYMMETRIC_SIZE", "16m").env("SHMEM_TUNE_CACHE", scratch("tuning"));
        run(&mut mpiexec, LIMIT)?.succeeded()?;
        Ok(())
    });
    unless(is_missing.then_some("needs mpiexec.hydra of MPICH"), trial)
}

/// The programs together refer to every routine of the standard's list.
fn every_routine_is_called(programs: &[Arc<Program>]) -> Trial {
    let programs = programs.to_vec();
    Trial::test("every_routine_is_called", move || {
        let mut called = BTreeSet::new();
        for program in &programs {
            let executable = program.executable()?.display().to_string();
            for line in tool("nm", &["-D", "--undefined-only", &executable])?.lines() {
                let symbol = line.split_whitespace().last().unwrap_or_default();
                called.insert(symbol.split('@').next().unwrap_or_default().to_owned());
            }
        }
        let list = routines();
        let not_called: Vec<&str> = list
            .iter()
            .map(|routine| routine.name.as_str())
            .filter(|name| !called.contains(*name))
            .collect();
        match not_called.is_empty() {
            true => Ok(()),
            false => Err(format!("{} never called: {not_called:?}", not_called.len()).into()),
        }
    })
}

fn two_jobs_at_once(first: Arc<Program>, second: Arc<Program>) -> Trial {
    Trial::test("two_jobs_at_once_do_not_meet", move || {
        // Compiled before, so that the jobs do run at the same time.
        first.executable()?;
        second.executable()?;
        let other = std::thread::spawn(move || second.launch(3, &[], &[])?.succeeded());
        let one = first.launch(4, &[], &[])?.succeeded();
        other.join().expect("no panic")?;
        one?;
        Ok(())
    })
}

fn mpmd(program: Arc<Program>) -> Trial {
    Trial::test("several_programs_make_one_job", move || {
        let executable = program.executable()?;
        let mut oshrun = program.oshrun();
        oshrun.args(["-n", "1"]).arg(&executable).args(["a", ":", "-n", "2"]);
        oshrun.arg(&executable).args(["b", ":", "-n", "1"]).arg(&executable).arg("c");
        let ran = run(&mut oshrun, LIMIT)?.succeeded()?;
        match ran.stdout.contains("roles abbc") {
            true => Ok(()),
            false => Err(ran.account("expected 'roles abbc'").into()),
        }
    })
}

/// `shmem_global_exit` from the last PE while the others do something.
fn global_exits(program: &Arc<Program>) -> Vec<Trial> {
    let cases = [(0, "wait"), (7, "wait"), (255, "spin"), (3, "barrier")];
    let trial = |(status, meanwhile): (i32, &'static str)| {
        let program = program.clone();
        let name = format!("global_exit({status}) ends PEs that {meanwhile}");
        Trial::test(name, move || {
            let ran = program.launch(3, &[&status.to_string(), meanwhile], &[])?;
            if ran.code != Some(status) {
                return Err(ran.account(&format!("expected exit code {status}")).into());
            }
            if !ran.stdout.contains("output of PE 2 before the end") {
                return Err(ran.account("expected the output of PE 2 to be flushed").into());
            }
            Ok(())
        })
    };
    cases.into_iter().map(trial).collect()
}

/// ", statically linked", unless in the compiler's default way.
fn built(program: &Program) -> String {
    if program.how.is_empty() { String::new() } else { format!(", {}", program.how) }
}

/// The library is still there for what runs at exit, and finalised by that.
fn finalises(program: &Arc<Program>, who: &'static str) -> Trial {
    let program = program.clone();
    let name = format!("what runs at exit finalises by {who}{}", built(&program));
    Trial::test(name, move || {
        let ran = program.launch(2, &[who], &[])?.succeeded()?;
        let told = |pe: usize| ran.stdout.contains(&format!("PE {pe} is finalised by {who}"));
        match told(0) && told(1) {
            true => Ok(()),
            false => Err(ran.account("expected both PEs to be finalised").into()),
        }
    })
}

/// What `last_words.cc` does and what it must have written to its standard output; its file only where
/// nothing keeps it from being closed.
struct LastWords {
    way: &'static str,
    says: &'static [&'static str],
    closes: bool,
}

const fn last_words_of(
    way: &'static str,
    says: &'static [&'static str],
    closes: bool,
) -> LastWords {
    LastWords { way, says, closes }
}

const ALL_WORDS: [&str; 4] = ["in a stream", "in the C library", "at exit", "destroyed"];
const LAST_WORDS: [LastWords; 10] = [
    last_words_of("plain", &ALL_WORDS, true),
    last_words_of("finalise", &["at exit", "finalised", "destroyed"], true),
    last_words_of("wait", &["in the C library"], false),
    last_words_of("again", &ALL_WORDS, true),
    last_words_of("hang", &[], false),
    last_words_of("late", &["in the C library"], false),
    last_words_of("exit", &ALL_WORDS, true),
    last_words_of("thread", &ALL_WORDS, true),
    last_words_of("two", &ALL_WORDS, true),
    last_words_of("signal", &ALL_WORDS, true),
];

/// `shmem_global_exit` ends the process as `exit` does, and the job with its code, in time.
fn last_words(program: &Arc<Program>, case: &'static LastWords) -> Trial {
    let (program, way) = (program.clone(), case.way);
    let name = format!("global_exit ends the process as exit does, {way}{}", built(&program));
    Trial::test(name, move || {
        let file = scratch("last-words").join(format!("{way}-{}", program.how));
        let _ = fs::remove_file(&file);
        let ran = program.launch(2, &[&file.display().to_string(), way], &[])?;
        if ran.code != Some(7) || !case.says.iter().all(|words| ran.stdout.contains(words)) {
            return Err(ran.account(&format!("expected exit code 7 and {:?}", case.says)).into());
        }
        if case.closes && fs::read_to_string(&file)? != "in a file\n" {
            return Err(ran.account("expected the file to be complete").into());
        }
        let in_vain = "shmem_global_exit: what the program runs at exit has not ended after 5 s";
        match ran.stderr.contains(in_vain) == (way == "hang") {
            true => Ok(()),
            false => Err(ran.account("expected the end to come by itself, unless it hangs").into()),
        }
    })
}

/// The library warns of a fork that may do harm: in a statically linked program that has several threads.
fn static_forks(prefix: &Path, source: &Path) -> Vec<Trial> {
    let linked = Program::new(prefix, source, "statically linked", &["-O1", "-static"]);
    let loading = Program::new(prefix, source, "", &["-O1"]);
    let ways: [(&Arc<Program>, &'static [&'static str], bool); 4] = [
        (&linked, &["--hosts", "2"], true),
        (&linked, &[], false),
        (&linked, &["--hosts", "2", "-x", "SHMEM_STATIC=cma"], false),
        (&loading, &["--hosts", "2"], false),
    ];
    let trial = |(program, options, warns): (&Arc<Program>, &'static [&'static str], bool)| {
        let program = program.clone();
        let kind = if warns { "a warning" } else { "no warning" };
        let name = format!("{kind} of a fork{} {}", built(&program), options.join(" "));
        Trial::test(name, move || {
            let ran = program.launch_with(options, 2, &[], &[])?;
            let warned = ran.stderr.contains("linked with -static and forks");
            match warned == warns && ran.stdout.matches("status 1").count() == 2 {
                true => Ok(()),
                false => Err(ran.account(&format!("expected a warning: {warns}")).into()),
            }
        })
    };
    ways.into_iter().map(trial).collect()
}

/// The code of a PE that has done its part is the job's, whose others go on.
fn does_not_end_the_others(program: &Arc<Program>, by: &'static str) -> Trial {
    let program = program.clone();
    let name = format!("a code after finalisation does not end the others, {by}");
    Trial::test(name, move || {
        let ran = program.launch(2, &[by], &[])?;
        let told = ran.stderr.contains("exited with code 3 after shmem_finalize");
        match ran.code == Some(3) && told && ran.stdout.contains("PE 1 has ended") {
            true => Ok(()),
            false => Err(ran.account("expected code 3 and the end of PE 1").into()),
        }
    })
}

fn killed(program: Arc<Program>) -> Trial {
    Trial::test("a_killed_pe_ends_the_job_and_is_named", move || {
        let ran = program.launch(3, &[], &[])?;
        let named = |line: &&str| line.contains("PE 2") && line.to_lowercase().contains("kill");
        if matches!(ran.code, Some(code) if code != 0) && ran.stderr.lines().any(|l| named(&l)) {
            return Ok(());
        }
        Err(ran.account("expected failure and a line with 'PE 2' and the signal").into())
    })
}

/// One line says why there are no more teams, however often the PEs ask for some.
fn too_many_teams(program: Arc<Program>) -> Trial {
    Trial::test("too_many_teams_are_told_of_once", move || {
        let ran = program.launch(2, &[], &[])?.succeeded()?;
        let lines = ran.stderr.lines().filter(|line| line.contains("teams at one time"));
        match lines.count() {
            1 if ran.stderr.contains("shmem_team_split_strided") => Ok(()),
            _ => Err(ran.account("expected one line about the teams").into()),
        }
    })
}

/// The program gets all of the heap, whether or not arguments are checked.
fn whole_heap(
    program: Arc<Program>,
    size: &'static str,
    bytes: &'static str,
    checks: &'static str,
) -> Trial {
    let name = format!("a heap of {size} has {bytes} bytes, SHMEM_DEBUG={checks}");
    Trial::test(name, move || {
        let env = [("SHMEM_SYMMETRIC_SIZE", size), ("SHMEM_DEBUG", checks)];
        program.launch(2, &[bytes], &env)?.succeeded()?;
        Ok(())
    })
}

/// A mistake `errors.c` makes, and what the line that the library prints must contain.
struct Mistake {
    case: &'static str,
    pes: usize,
    says: &'static [&'static str],
}

const fn mistake_of(case: &'static str, pes: usize, says: &'static [&'static str]) -> Mistake {
    Mistake { case, pes, says }
}

/// The line also names the PE that made the mistake, except before `shmem_init`, when the library
/// does not know it: there it is for `oshrun` to say which PE ended.
const ERRORS: [Mistake; 47] = [
    mistake_of("pe-too-large", 2, &["shmem_long_p", "2"]),
    mistake_of("pe-negative", 2, &["shmem_long_g", "-1"]),
    mistake_of("pe-out-of-team", 2, &["shmem_ctx_long_p", "2"]),
    mistake_of("not-symmetric", 2, &["shmem_long_p", "symmetric"]),
    mistake_of("not-symmetric-amo", 2, &["shmem_long_atomic_inc", "symmetric"]),
    mistake_of("constant", 2, &["shmem_long_put", "constants of the program"]),
    mistake_of("not-symmetric-wait", 1, &["shmem_long_wait_until", "symmetric"]),
    mistake_of("past-heap", 2, &["shmem_putmem", "1099511627776"]),
    mistake_of("past-block", 2, &["shmem_long_put", "past the end of its block of 128 bytes"]),
    mistake_of("past-variables", 1, &["shmem_long_wait_until_all", "ivars", "past the end"]),
    mistake_of("past-fcollect", 2, &["shmem_long_fcollect", "dest", "past the end"]),
    mistake_of("short-source", 2, &["shmem_long_broadcast", "source", "past the end"]),
    mistake_of("null-source", 2, &["shmem_long_put", "source is a null pointer"]),
    mistake_of("past-static", 2, &["shmem_getmem", "1099511627776"]),
    mistake_of("misaligned-amo", 2, &["shmem_long_atomic_add", "align"]),
    mistake_of("misaligned-wait", 1, &["shmem_long_wait_until", "not aligned to 8 bytes"]),
    mistake_of("overlapping-put", 1, &["shmem_long_put", "overlap"]),
    mistake_of("overlapping-strides", 2, &["shmem_long_alltoalls", "overlap"]),
    mistake_of("overlapping-blocks", 2, &["shmem_long_fcollect", "overlap"]),
    mistake_of("no-stride", 2, &["shmem_long_iput", "dst = 0", "at least 1"]),
    mistake_of("wraps-broadcast", 2, &["shmem_long_broadcast", "past the end"]),
    mistake_of("wraps-collect", 2, &["shmem_long_collect", "past the end"]),
    mistake_of("wraps-alltoalls", 2, &["shmem_long_alltoalls", "past the end"]),
    mistake_of("wraps-stride", 2, &["shmem_long_alltoalls", "past the end"]),
    mistake_of("wraps-iput", 2, &["shmem_long_iput", "past the end"]),
    mistake_of("past-ibget", 2, &["shmem_long_ibget", "past the end"]),
    mistake_of("wraps-reduce", 2, &["shmem_long_sum_reduce", "past the end"]),
    mistake_of("wraps-fcollect", 2, &["shmem_fcollect64", "past the end"]),
    mistake_of("collective-mismatch", 2, &["shmem_long_sum_reduce"]),
    mistake_of("root-mismatch", 3, &["shmem_long_broadcast"]),
    mistake_of("no-root", 2, &["shmem_long_broadcast", "PE_root = 2", "0 to 1"]),
    mistake_of("malloc-mismatch", 2, &["shmem_malloc", " 128 "]),
    mistake_of("use-after-free", 2, &["shmem_long_p"]),
    mistake_of("double-free", 2, &["shmem_free"]),
    mistake_of("invalid-context", 2, &["shmem_ctx_long_p", "SHMEM_CTX_INVALID"]),
    mistake_of("destroyed-context", 2, &["shmem_ctx_long_p", "is not a context"]),
    mistake_of("destroyed-team", 2, &["shmem_team_n_pes", "is not a team"]),
    mistake_of("quiet-of-no-pe", 2, &["shmem_pe_quiet", "pe = 2 is not a PE"]),
    mistake_of("invalid-comparison", 1, &["shmem_long_test", "77"]),
    mistake_of("invalid-signal", 1, &["shmem_long_put_signal", "9"]),
    mistake_of("signal-in-dest", 2, &["shmem_long_put_signal", "lies inside dest"]),
    mistake_of("before-init", 1, &["shmem_long_p", "shmem_init"]),
    mistake_of("barrier-before-init", 2, &["shmem_barrier_all", "shmem_init"]),
    mistake_of("malloc-before-init", 1, &["shmem_malloc", "shmem_init"]),
    mistake_of("after-finalize", 2, &["shmem_long_p", "shmem_finalize"]),
    mistake_of("barrier-after-finalize", 1, &["shmem_barrier_all", "shmem_finalize"]),
    mistake_of("none", 2, &[]),
];

fn mistake(program: Arc<Program>, mistake: &'static Mistake) -> Trial {
    Trial::test(format!("SHMEM_DEBUG reports {}", mistake.case), move || {
        let ran = program.launch(mistake.pes, &[mistake.case], &[("SHMEM_DEBUG", "1")])?;
        if mistake.says.is_empty() {
            // The control: without a mistake the program ends with the code for "not noticed".
            return match ran.code {
                Some(98) => Ok(()),
                _ => Err(ran.account("expected exit code 98").into()),
            };
        }
        if !matches!(ran.code, Some(code) if code != 0 && code != 98 && code < 128) {
            return Err(ran.account("expected the library to end the job").into());
        }
        let unnumbered = mistake.case.ends_with("before-init");
        let fits = |line: &str| {
            (unnumbered || names_a_pe(line)) && mistake.says.iter().all(|part| line.contains(part))
        };
        if ran.stderr.lines().any(fits) && ran.stderr.lines().any(names_a_pe) {
            return Ok(());
        }
        let says = mistake.says;
        Err(ran.account(&format!("expected a line with the PE and all of {says:?}")).into())
    })
}

/// "PE 3", in any sentence.
fn names_a_pe(line: &str) -> bool {
    line.split("PE ").skip(1).any(|rest| rest.starts_with(|c: char| c.is_ascii_digit()))
}
