// SPDX-License-Identifier: Apache-2.0
//! A PE that ends or hurts itself in some way, in some phase of the job. See `c/attacks/ends.c`.

use crate::support::ends::{
    Attack, ENDS, EXCHANGES, HURTS, MARK, OF_ROOT, PHASES, SIGNALS, all_in, all_known, judge, row,
};
use crate::support::program::{LIMIT, Program};
use crate::support::{Ran, crate_dir, run, scratch};
use crate::{Cases, Way, ways};
use libtest_mimic::{Failed, Trial};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tombolo_tests::unless;

/// Jobs of a test for each way that PEs reach each other, and over one that is slow.
const JOBS: [usize; 2] = [14, 4];
/// Why nobody runs all of them every day.
const LONG: &str = "all ways to end in a phase: 38 jobs";

pub fn trials(prefix: &Path) -> Vec<Trial> {
    let source = crate_dir().join("c/attacks/ends.c");
    let program = Program::new(prefix, &source, "", &["-O1", "-pthread"]);
    let trial = |(salt, way): (usize, Way)| {
        let (program, missing) = (program.clone(), way.missing.clone());
        let name = format!("ends_{}", way.name);
        unless(missing, Trial::test(name, move || attack(&program, &way, salt as u64)))
    };
    let mut trials: Vec<Trial> = ways().into_iter().enumerate().map(trial).collect();
    if !is_root() {
        // Those above go by without a word then.
        let of_root = ways().into_iter().map(|way| {
            let name = format!("ends_{}: what only root can do to itself", way.name);
            unless(Some("needs root"), Trial::test(name, || Err("needs root".into())))
        });
        trials.extend(of_root);
    }
    for (phase, way) in
        (0..PHASES.len()).flat_map(|phase| ways().into_iter().map(move |way| (phase, way)))
    {
        let program = program.clone();
        let name = format!("all_ends_in_{}_{}", PHASES[phase], way.name);
        let reason = way.missing.clone().unwrap_or_else(|| LONG.into());
        let test = Trial::test(name, move || {
            all_in(phase).try_for_each(|next| told(&program, &way, &next))
        });
        trials.push(unless(Some(reason), test));
    }
    let no_root = (!is_root()).then_some("needs root");
    let needs_root = |trial: Trial| unless(no_root, trial);
    let between = program.clone();
    let name = "rights_given_up_between_exchanges_are_told_soon";
    trials.push(needs_root(Trial::test(name, move || between_exchanges(&between))));
    let (one, other, third) = (program.clone(), program.clone(), program.clone());
    let name = "rights_given_up_in_shmem_init_are_told_soon";
    trials.push(needs_root(Trial::test(name, move || rights(&one))));
    let name = "a_pe_that_may_answer_no_more_ends_the_job";
    trials.push(needs_root(Trial::test(name, move || no_answers(&other))));
    let name = "pes_of_two_users_are_told_at_once";
    trials.push(needs_root(Trial::test(name, move || two_users(&third))));
    for way in ways().into_iter().filter(|way| way.name == "over_ofi") {
        let (program, missing) = (program.clone(), way.missing.clone());
        let name = "few_descriptors_are_told_over_ofi";
        let trial = Trial::test(name, move || few_descriptors(&program, &way));
        trials.push(unless(missing, trial));
    }
    let source = crate_dir().join("c/attacks/growth.c");
    let program = Program::new(prefix, &source, "to start", &["-O1"]);
    trials.push(Trial::test("hosts_die_while_a_job_starts", move || hosts_die(&program)));
    trials
}

/// What a PE sees and may do no more when it opens its links: they work, or it says so long before the
/// start takes too long for everybody.
fn rights(program: &Arc<Program>) -> Result<(), Failed> {
    let cases = ["root", "user"].into_iter().flat_map(|way| [(way, 100), (way, 4000)]);
    // Where it is too late for it, most of the time goes by asleep.
    let jobs: Vec<_> = cases
        .map(|(way, delay)| {
            let program = program.clone();
            std::thread::spawn(move || {
                let options = ["--hosts", "3", "-x", "SHMEM_NTB_DIRECT=off"];
                let begun = Instant::now();
                let arguments = ["0", way, "init", &delay.to_string()];
                let env = [("SHMEM_TUNE", "off"), ("SHMEM_START_TIMEOUT", "300")];
                (program.launch_with(&options, 3, &arguments, &env), begun.elapsed())
            })
        })
        .collect();
    for job in jobs {
        let (ran, took) = job.join().expect("no panic");
        let ran = ran?;
        let told = ran.stderr.lines().any(|line| row("error").prints(line));
        let right = ran.code == Some(0) || ran.code == Some(1) && told;
        if !right || !all_known(&ran) || took > LIMIT / 2 {
            return Err(ran.account("expected success, or the reason soon").into());
        }
    }
    Ok(())
}

/// The same exactly after one of the exchanges of the start, when others rely on what the PE has told.
fn between_exchanges(program: &Arc<Program>) -> Result<(), Failed> {
    let near = ways().into_iter().take(2).map(|way| (3, way.options));
    let all = near.chain([(4, &["--hosts", "2"][..])]);
    let victims = all.flat_map(|(pes, options)| [0, 1].map(|victim| (pes, options, victim)));
    let jobs = victims.map(|(pes, options, victim)| {
        let program = program.clone();
        std::thread::spawn(move || {
            // Over the ring it takes a while until a link is given up.
            let exchanges = if pes == 4 { 1 } else { EXCHANGES };
            for (exchange, way) in
                (1..=exchanges).flat_map(|number| ["user", "root"].map(|way| (number, way)))
            {
                let arguments = [&victim.to_string(), way, "exchange", &exchange.to_string()];
                let env = [("SHMEM_TUNE", "off"), ("SHMEM_START_TIMEOUT", "300")];
                let begun = Instant::now();
                let ran = program.launch_with(options, pes, &arguments, &env)?;
                let told = ran.stderr.lines().any(|line| row("error").prints(line));
                let right = ran.code == Some(0) || ran.code == Some(1) && told;
                if !right || !all_known(&ran) || begun.elapsed() > LIMIT / 2 {
                    let case =
                        format!("{options:?} {arguments:?}: expected success, or the reason soon");
                    return Err(ran.account(&case));
                }
            }
            Ok(())
        })
    });
    for job in jobs.collect::<Vec<_>>() {
        job.join().expect("no panic")?;
    }
    Ok(())
}

/// A PE that carries out what others ask of it, and may not write to them any more.
fn no_answers(program: &Arc<Program>) -> Result<(), Failed> {
    let Some(way) = ways().into_iter().find(|way| way.name == "over_cma") else {
        return Err("no jobs over cma".into());
    };
    for (delay, going_on) in [(200, false), (200, true), (2000, false)] {
        let next = Attack { victim: 0, way: "user", phase: "locks", delay, going_on };
        one(program, &way, &next).map_err(|why| format!("{next:?}: {why}"))?;
    }
    Ok(())
}

/// PEs of two users: each would wait for the other until the start has taken too long.
fn two_users(program: &Arc<Program>) -> Result<(), Failed> {
    for (way, victim) in ways().iter().take(2).flat_map(|way| [(way, 0), (way, 2)]) {
        let arguments = [&victim.to_string(), "user", "before", "0"];
        let env = [("SHMEM_TUNE", "off"), ("SHMEM_START_TIMEOUT", "300")];
        let ran = program.launch_with(way.options, 3, &arguments, &env)?;
        let told = |line: &str| row("error").prints(line) && line.contains("run as users ");
        if ran.code != Some(1) || !ran.stderr.lines().any(told) || !all_known(&ran) {
            return Err(ran.account("expected the two users to be named").into());
        }
    }
    Ok(())
}

/// A PE that may open so few files that its network cannot be opened, or opens and cannot connect.
fn few_descriptors(program: &Arc<Program>, way: &Way) -> Result<(), Failed> {
    for limit in [12, 24, 30] {
        let mut oshrun = program.oshrun();
        oshrun.args(["-n", "3"]).args(way.options).args(["sh", "-c"]);
        oshrun.arg(format!("[ $PMI_RANK != 1 ] || ulimit -n {limit}; exec \"$@\"")).arg("sh");
        oshrun.arg(program.executable()?).args(["0", "fork", "computing", "0"]);
        let ran = run(oshrun.env("SHMEM_TUNE", "off"), LIMIT)?;
        let told = |line: &str| row("error").prints(line) && line.contains("ulimit -n");
        if ran.code != Some(1) || !ran.stderr.lines().any(told) || !all_known(&ran) {
            let case = format!("{limit} files: expected the limit to be named");
            return Err(ran.account(&case).into());
        }
    }
    Ok(())
}

/// At any time from before the start to after the end of short jobs.
fn hosts_die(program: &Arc<Program>) -> Result<(), Failed> {
    let mut cases = Cases::new(JOBS[0] + 1, 99);
    while cases.next() {
        let (host, at) = (cases.below(4), cases.below(120));
        let fault = format!("host {host} die at {at}ms");
        let on_loss = cases.of(&["end", "continue"]);
        let options = ["--hosts", "4", "--fault", &fault];
        let env = [("SHMEM_ON_LOSS", on_loss), ("SHMEM_TUNE", "off")];
        let ran = program.launch_with(&options, 4, &["contexts", "5"], &env)?;
        let told = |keys: &[&str]| {
            ran.stderr.lines().any(|line| keys.iter().any(|key| row(key).prints(line)))
        };
        let right = match ran.code {
            Some(0) => true,
            Some(1) => told(&["dies_early", "absent", "error"]),
            Some(125) => told(&["lost"]),
            _ => false,
        };
        // What the launcher's protocol says is for nobody.
        if !right || !all_known(&ran) || ran.stderr.contains("cmd=") {
            let case = format!("{fault}, {on_loss}: expected an end that the table has");
            return Err(ran.account(&case).into());
        }
    }
    Ok(())
}

fn attack(program: &Arc<Program>, way: &Way, salt: u64) -> Result<(), Failed> {
    let all: Vec<&str> = SIGNALS.iter().map(|(name, _)| *name).chain(ENDS).chain(HURTS).collect();
    let count = JOBS[usize::from(way.name == "over_unordered")];
    let mut cases = Cases::new(count + 1, salt);
    while cases.next() {
        let mut next = Attack {
            victim: cases.below(3),
            way: cases.of(&all),
            phase: cases.of(&PHASES),
            delay: cases.below(20_000),
            going_on: cases.below(2) == 1,
        };
        match next.phase {
            "init" => next.delay *= 3,
            "exchange" => next.delay = 1 + next.delay % EXCHANGES,
            _ => {}
        }
        told(program, way, &next)?;
    }
    Ok(())
}

/// An attack, named if it fails, or if it is left out.
fn told(program: &Arc<Program>, way: &Way, next: &Attack) -> Result<(), Failed> {
    if let Some(reason) = left_out(next, way) {
        eprintln!("left out: {next:?} {}: {reason}", way.name);
        return Ok(());
    }
    Ok(one(program, way, next).map_err(|why| format!("{next:?} {}: {why}", way.name))?)
}

/// Why nobody could pass.
fn left_out(next: &Attack, way: &Way) -> Option<&'static str> {
    let drops = ["init", "exchange", "finalize"].contains(&next.phase);
    match (next.way, way.name) {
        _ if OF_ROOT.contains(&next.way) && !is_root() => Some("needs root"),
        // As they are dropped at the start and at the end.
        ("closefrom", "over_unordered") if drops => Some(
            "debug assertions of Rust's library end a process that drops a descriptor which \
             somebody else has closed",
        ),
        ("descriptors", "over_ofi") if next.phase == "init" => Some(
            "libfabric crashes if it cannot open a file while it starts: it frees memory twice",
        ),
        _ => None,
    }
}

fn is_root() -> bool {
    nix::unistd::geteuid().is_root()
}

fn one(program: &Arc<Program>, way: &Way, next: &Attack) -> Result<(), String> {
    static JOBS: AtomicUsize = AtomicUsize::new(0);
    let mark = format!("{}-{}", std::process::id(), JOBS.fetch_add(1, Ordering::Relaxed));
    let folder = scratch("attacks").join(&mark);
    std::fs::create_dir_all(&folder).map_err(|e| e.to_string())?;
    let mut oshrun = program.oshrun();
    oshrun.args(["-n", "3", "-x", &format!("SHMEM_ON_LOSS={}", next.on_loss())]);
    oshrun.args(way.options).arg(program.executable()?).args(next.arguments());
    // Whatever a job leaves behind is found by these.
    oshrun.env(MARK, &mark).env("TMPDIR", &folder).env("HOME", &folder).current_dir(&folder);
    // What is measured at the start takes long, and tests of its own have it.
    oshrun.env("SHMEM_TUNE", "off");
    let ran = run(&mut oshrun, LIMIT).map_err(|error| format!("{oshrun:?}: {error}"))?;
    let caught = is_caught_by_another_library(&ran, next, way);
    if !caught {
        judge(&ran, next, way.name)?;
    }
    leaves_nothing(&mark).map_err(|left| ran.account(&format!("left behind: {left}")))?;
    let files: Vec<_> = std::fs::read_dir(&folder).into_iter().flatten().flatten().collect();
    // Where the limits allow it and the machine wants it so, a core file is what a crash leaves.
    let is_of_crash = |name: &str| name.starts_with("core") || caught && name.ends_with(".btr");
    let left = files.iter().find(|file| !is_of_crash(&file.file_name().to_string_lossy()));
    if let Some(file) = left {
        return Err(ran.account(&format!("left behind: {}", file.path().display())));
    }
    std::fs::remove_dir_all(&folder).map_err(|e| e.to_string())
}

/// Whether a library behind libfabric has taken the signal. While it is loaded it handles most: it exits
/// with code 1 and tells of some where the program was, also in a file. Its handlers are taken away after
/// that.
fn is_caught_by_another_library(ran: &Ran, next: &Attack, way: &Way) -> bool {
    let loads = next.phase == "init" && way.name == "over_ofi";
    let is_signal = SIGNALS.iter().any(|(name, _)| *name == next.way);
    let told = |line: &str| row("exit").prints(line) && line.contains(" exited with code 1;");
    loads && is_signal && ran.code == Some(1) && ran.stderr.lines().any(told)
}

/// An error names a process of the job that still runs.
pub fn leaves_nothing(mark: &str) -> Result<(), String> {
    let mark = format!("{MARK}={mark}");
    let of_job = |process: &std::fs::DirEntry| {
        let environment = std::fs::read(process.path().join("environ")).unwrap_or_default();
        environment.split(|byte| *byte == 0).any(|variable| variable == mark.as_bytes())
    };
    let begin = Instant::now();
    loop {
        let processes = std::fs::read_dir("/proc").into_iter().flatten().flatten();
        let Some(left) = processes.into_iter().find(of_job) else { return Ok(()) };
        // The kernel takes its time where a machine is busy.
        if begin.elapsed() > Duration::from_secs(5) {
            let command = std::fs::read_to_string(left.path().join("cmdline"));
            return Err(format!("{:?} {:?}", left.file_name(), command));
        }
        std::thread::sleep(Duration::from_millis(5));
    }
}
