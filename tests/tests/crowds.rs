// SPDX-License-Identifier: Apache-2.0
//! Jobs of many PEs on one host: how they end, what each PE takes, and limits that they meet.
//!
//! The programs of `c` run on 64 PEs as well, and one on 512: these tests take long and are ignored
//! unless asked for, as `cargo dev soak` does (`--include-ignored`).

use libtest_mimic::{Failed, Trial};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::fs;
use std::path::Path;
use std::process::{Child, Command};
use std::sync::Arc;
use std::time::Duration;
use tombolo_tests::unless;

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::program::{LIMIT, Program, run_trials};
use support::{Ran, crate_dir, run};

type Case = fn(&Program) -> Result<(), Failed>;

const CASES: [(&str, Case); 7] = [
    ("many_pes_start_and_end", many_pes_start_and_end),
    ("a_killed_pe_of_many_ends_the_job_and_is_named", a_killed_pe_is_named),
    ("a_timeout_shows_every_one_of_many_pes", a_timeout_shows_every_pe),
    ("what_a_pe_takes_does_not_grow_with_the_pes", what_a_pe_takes_does_not_grow),
    ("who_waits_by_an_amo_gives_way", who_waits_by_an_amo_gives_way),
    ("a_limit_on_descriptors_is_named", a_limit_on_descriptors_is_named),
    ("a_limit_on_address_space_is_named", a_limit_on_address_space_is_named),
];

/// Why a test is ignored by default, as part of its name.
const LONG: &str = "takes long: cargo dev soak runs it";

/// Busy processes beside a job.
const BUSY: usize = 40;

/// Longest that one of these takes.
const LONG_LIMIT: Duration = Duration::from_secs(300);

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let dir = crate_dir().join("c");
    let crowd = Program::new(prefix, &dir.join("special/crowd.c"), "", &["-O1"]);
    let mut trials: Vec<Trial> = CASES
        .into_iter()
        .map(|(name, case)| {
            let crowd = crowd.clone();
            Trial::test(name, move || case(&crowd))
        })
        .collect();
    let mut sources: Vec<_> = fs::read_dir(&dir)
        .expect("the programs are there")
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    for source in sources {
        let program = Program::new(prefix, &source, "", &["-O1", "-pthread"]);
        trials.push(long(program, 64, &[]));
    }
    trials.push(long(crowd, 512, &["nothing"]));
    let traffic = Program::new(prefix, &dir.join("special/stopped.c"), "", &["-O1"]);
    let name = format!("links_are_kept_among_{BUSY}_busy_processes");
    trials.push(unless(Some(LONG), Trial::test(name, move || links_are_kept(&traffic))));
    trials
}

/// Processes that never sleep, ended when dropped.
struct Busy(Vec<Child>);

impl Busy {
    fn start(count: usize) -> Result<Busy, Failed> {
        let mut all = Busy(Vec::new());
        for _ in 0..count {
            // Ends by itself if this test is killed.
            all.0.push(
                Command::new("timeout").args(["120", "sh", "-c", "while :; do :; done"]).spawn()?,
            );
        }
        Ok(all)
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        for child in &mut self.0 {
            let _ = kill(Pid::from_raw(child.id() as i32), Signal::SIGTERM);
            let _ = child.wait();
        }
    }
}

/// Hosts that seldom get a processor blame neither links nor each other.
fn links_are_kept(traffic: &Program) -> Result<(), Failed> {
    let _busy = Busy::start(BUSY)?;
    for options in [&["--hosts", "3"][..], &["--hosts", "3", "-x", "SHMEM_NTB_DIRECT=off"]] {
        let env = [("SHMEM_TUNE", "off")];
        let ran = traffic.launch_within(LONG_LIMIT, options, 3, &["20", "-1", "0"], &env)?;
        let ran = ran.succeeded()?;
        let sound = (0..3).all(|pe| ran.stdout.contains(&format!("PE {pe}: 0 bad")));
        expect(sound && ran.stderr.is_empty(), &ran, "all data and no word of links")?;
    }
    Ok(())
}

/// "rma on 64 PEs": succeeds.
fn long(program: Arc<Program>, pes: usize, args: &'static [&'static str]) -> Trial {
    let name = format!("{} on {pes} PEs", program.name);
    let test = move || {
        program.launch_within(LONG_LIMIT, &[], pes, args, &[])?.succeeded()?;
        Ok(())
    };
    unless(Some(LONG), Trial::test(name, test))
}

fn expect(right: bool, ran: &Ran, what: &str) -> Result<(), Failed> {
    if right { Ok(()) } else { Err(ran.account(&format!("expected {what}")).into()) }
}

fn many_pes_start_and_end(crowd: &Program) -> Result<(), Failed> {
    crowd.launch(128, &["nothing"], &[])?.succeeded()?;
    Ok(())
}

fn a_killed_pe_is_named(crowd: &Program) -> Result<(), Failed> {
    let ran = crowd.launch(128, &["kill"], &[])?;
    let named = |line: &&str| line.contains("PE 64 ") && line.contains("SIGKILL");
    let lines = ran.stderr.lines().filter(named).count();
    expect(ran.code == Some(137) && lines == 1, &ran, "one line with PE 64 and its signal")
}

fn a_timeout_shows_every_pe(crowd: &Program) -> Result<(), Failed> {
    let ran = crowd.launch_with(&["--timeout", "3"], 128, &["hang"], &[])?;
    let shown = |pe: usize| {
        let begin = format!("oshrun: PE {pe} (pid ");
        ran.stderr.lines().filter(|line| line.starts_with(&begin)).count()
    };
    let all = (0..128).all(|pe| shown(pe) == 1);
    expect(ran.code == Some(124) && all, &ran, "one line for each of 128 PEs")
}

/// Most descriptors, mappings and KiB of private memory that a PE gets by `shmem_init`.
fn counts(crowd: &Program, pes: usize) -> Result<[i64; 3], Failed> {
    let ran = crowd.launch(pes, &["counts"], &[])?.succeeded()?;
    let told = ran.stdout.lines().find_map(|line| line.strip_prefix("counts "));
    let numbers: Vec<i64> = told
        .unwrap_or_default()
        .split_whitespace()
        .filter_map(|number| number.parse().ok())
        .collect();
    numbers.try_into().map_err(|_| ran.account("expected three counts").into())
}

fn what_a_pe_takes_does_not_grow(crowd: &Program) -> Result<(), Failed> {
    let few = counts(crowd, 4)?;
    let many = counts(crowd, 64)?;
    let [descriptors, mappings, memory] = [0, 1, 2].map(|at| many[at] - few[at]);
    // A library more or less may be loaded, or a few pages of memory lie in a mapping of their own.
    let right = descriptors <= 2 && mappings <= 8 && memory <= 512;
    let least = many[0] <= 8 && many[1] <= 40 && many[2] <= 1024;
    match right && least {
        true => Ok(()),
        false => Err(format!("4 PEs: {few:?}, 64 PEs: {many:?}").into()),
    }
}

fn who_waits_by_an_amo_gives_way(crowd: &Program) -> Result<(), Failed> {
    let processors = std::thread::available_parallelism()?.get();
    for by in ["reads", "compares", "swaps"] {
        let ran = crowd.launch(8 * processors, &[by], &[])?.succeeded()?;
        let told = ran.stdout.lines().find_map(|line| line.strip_prefix("looks "));
        let looks: u64 = told.and_then(|number| number.parse().ok()).unwrap_or(u64::MAX);
        // In the time that the system leaves a processor to a PE, it could look a hundred thousand times. The
        // looks of a whole wait would depend on what else the machine does.
        expect(looks < 1_000, &ran, "fewer looks")?;
    }
    Ok(())
}

/// Runs 64 PEs of `crowd` below a limit of the shell.
fn limited(crowd: &Program, limit: &str) -> Result<Ran, Failed> {
    let oshrun = crowd.oshrun();
    let mut shell = Command::new("sh");
    let script = format!("ulimit {limit} && exec \"$0\" -n 64 \"$1\" nothing");
    shell.args(["-c", &script]).arg(oshrun.get_program()).arg(crowd.executable()?);
    shell.envs(oshrun.get_envs().filter_map(|(name, value)| Some((name, value?))));
    Ok(run(&mut shell, LIMIT)?)
}

fn a_limit_on_descriptors_is_named(crowd: &Program) -> Result<(), Failed> {
    let ran = limited(crowd, "-n 64")?;
    let says = |line: &str| line.contains("open files") && line.contains("ulimit -n");
    expect(ran.code == Some(1) && ran.stderr.lines().any(says), &ran, "the limit to be named")
}

fn a_limit_on_address_space_is_named(crowd: &Program) -> Result<(), Failed> {
    // Less than 64 heaps of 16 MiB.
    let ran = limited(crowd, "-v 1000000")?;
    let says = |line: &str| line.contains("shmem_init") && line.contains("ulimit -v");
    expect(ran.code == Some(1) && ran.stderr.lines().any(says), &ran, "the limit to be named")
}
