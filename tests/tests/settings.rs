// SPDX-License-Identifier: Apache-2.0
//! Environment variables as users get to know them: what is refused, what is warned of, how often,
//! and in which words.

#[allow(dead_code, reason = "shared with tests that use other parts of it")]
mod support;

use libtest_mimic::{Arguments, Failed, Trial};
use nix::sys::resource::{Resource, setrlimit};
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::path::PathBuf;
use std::process::Command;
use std::sync::Arc;
use support::program::{LIMIT, Program};
use support::{Ran, prefix, run, scratch, tool};
use tombolo_tests::{own_user, unless};

const PROGRAM: &str = r"
#include <shmem.h>
int main(void) {
    static long sum;
    shmem_init();
    shmem_long_atomic_add(&sum, 1, 0);
    shmem_barrier_all();
    shmem_finalize();
    return 0;
}
";

type Case = fn(&Program) -> Result<(), Failed>;

const CASES: [(&str, Case); 12] = [
    ("settings_that_differ_are_named_once", settings_that_differ_are_named_once),
    ("a_bad_value_is_named_once", a_bad_value_is_named_once),
    ("transports_are_named_once_and_known", transports_are_named_once_and_known),
    ("transports_that_do_not_suffice_are_named", transports_that_do_not_suffice_are_named),
    ("unusual_names_are_warned_of_once", unusual_names_are_warned_of_once),
    ("an_empty_value_means_the_default", an_empty_value_means_the_default),
    (
        "version_and_info_are_printed_whatever_they_are",
        version_and_info_are_printed_whatever_they_are,
    ),
    ("a_full_disk_ends_no_program", a_full_disk_ends_no_program),
    ("what_launchers_set_is_checked", what_launchers_set_is_checked),
    ("a_table_is_a_regular_file", a_table_is_a_regular_file),
    ("a_cache_in_unsafe_hands_is_not_used", a_cache_in_unsafe_hands_is_not_used),
    ("without_a_home_nothing_is_kept", without_a_home_nothing_is_kept),
];

fn main() {
    let arguments = Arguments::from_args();
    let trials = match prefix() {
        Ok(prefix) => {
            let source = scratch("settings").join("program.c");
            fs::write(&source, PROGRAM).expect("a folder of this test");
            let program = Program::new(&prefix, &source, "", &[]);
            let trial = |(name, case): &(&str, Case)| {
                let (program, case): (Arc<Program>, Case) = (program.clone(), *case);
                Trial::test(*name, move || case(&program))
            };
            let mut trials: Vec<Trial> = CASES.iter().map(trial).collect();
            let can_be_another = nix::unistd::geteuid().is_root()
                && as_another(program.oshrun().arg("--version"), 100)
                    .output()
                    .is_ok_and(|run| run.status.success());
            let missing = (!can_be_another).then_some("needs root, and what others may run");
            let limit = move || a_limit_on_processes_is_named(&program);
            trials.push(unless(missing, Trial::test("a_limit_on_processes_is_named", limit)));
            trials
        }
        Err(missing) => vec![Trial::test("the_library_is_installed", || Err(missing.into()))],
    };
    libtest_mimic::run(&arguments, trials).exit();
}

/// `oshrun` with words separated by spaces; `PE` stands for the program.
fn job(program: &Program, line: &str) -> Result<Command, Failed> {
    let executable = program.executable()?;
    let mut oshrun = program.oshrun();
    for word in line.split_whitespace() {
        match word {
            "PE" => oshrun.arg(&executable),
            word => oshrun.arg(word),
        };
    }
    Ok(oshrun)
}

/// Runs it. Nothing is measured unless that is what the line is about: a busy machine may give reason
/// to warn of it.
fn ran(program: &Program, line: &str) -> Result<Ran, Failed> {
    let mut job = job(program, line)?;
    if !line.contains("SHMEM_TUNE") {
        job.env("SHMEM_TUNE", "off");
    }
    Ok(run(&mut job, LIMIT)?)
}

/// Expects the job to end with code 1 and one line that holds all of `parts`.
#[track_caller]
fn refused(ran: &Ran, parts: &[&str]) {
    assert_eq!(ran.code, Some(1), "{}", ran.account("a refusal"));
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.account("one line"));
    for part in parts {
        assert!(ran.stderr.contains(part), "{}", ran.account(part));
    }
}

fn settings_that_differ_are_named_once(program: &Program) -> Result<(), Failed> {
    for (hosts, name, one, other) in [
        ("", "SHMEM_DEBUG", "on", "off"),
        ("", "SHMEM_TRANSPORTS", "shm,cma", "cma,shm"),
        ("", "SHMEM_STATIC", "remap", "cma"),
        ("", "SHMEM_ROUTE", "put:heap:*=cma", "get:heap:*=cma"),
        ("", "SHMEM_COLL", "reduce:share", "reduce:publish+share"),
        ("", "SHMEM_SYMMETRIC_SIZE", "16m", "32m"),
        ("", "SHMEM_ON_LOSS", "continue", "end"),
        ("--hosts 2", "SHMEM_ROUTE", "put:heap:*=ntb", "get:heap:*=ntb"),
        ("--hosts 2", "SHMEM_NTB_LANES", "1", "2"),
        ("--hosts 2", "SHMEM_NTB_CHUNK", "1k", "2k"),
        ("--hosts 2", "SHMEM_NTB_CRC", "on", "off"),
        ("--hosts 2", "SHMEM_NTB_SPEED", "direct", "modelled"),
        ("--hosts 2", "SHMEM_NTB_WINDOW", "1m", "2m"),
    ] {
        let line = format!("{hosts} -n 2 -x {name}={one} PE : -n 1 -x {name}={other} PE");
        refused(&ran(program, &line)?, &[&format!("{name} is "), "on PE 0 and ", "on PE 2:"]);
    }
    let line = "-n 1 PE : -n 1 -x SHMEM_ROUTE=put:*=cma PE";
    refused(&ran(program, line)?, &["SHMEM_ROUTE is the default on PE 0 and 'put:*=cma' on PE 1"]);
    // How often PEs measure is their own business.
    ran(program, "-n 1 -x SHMEM_TUNE=always PE : -n 1 PE")?.succeeded()?;
    Ok(())
}

fn a_bad_value_is_named_once(program: &Program) -> Result<(), Failed> {
    for setting in [
        "SHMEM_START_TIMEOUT=1e13",
        "SHMEM_SYMMETRIC_SIZE=lots",
        "SHMEM_SYMMETRIC_SIZE=-16m",
        "SHMEM_SYMMETRIC_SIZE=nan",
        "SHMEM_LOG=loud",
        "SHMEM_ROUTE=put:heep=cma",
        "SHMEM_COLL=reduce:rings",
        "SHMEM_TUNE_CACHE=here",
        "SHMEM_NTB_LANES=0",
        "SHMEM_NTB_CHUNK=100",
        "SHMEM_NTB_WINDOW=3m",
        "SHMEM_NTB_DIRECT=none",
        "SHMEM_HUGE_PAGES=maybe",
    ] {
        let name = setting.split('=').next().unwrap_or_default();
        let all = ran(program, &format!("-n 3 -x {setting} PE"))?;
        refused(&all, &["tombolo: PE 0: shmem_init: ", name]);
        let one = ran(program, &format!("-n 2 PE : -n 1 -x {setting} PE"))?;
        refused(&one, &["tombolo: PE 2: shmem_init: ", name]);
    }
    Ok(())
}

fn transports_are_named_once_and_known(program: &Program) -> Result<(), Failed> {
    for twice in ["shm,shm", "ntb,ntb", "shm,ntb,ntb"] {
        let ran = ran(program, &format!("-n 2 -x SHMEM_TRANSPORTS={twice} PE"))?;
        refused(&ran, &["SHMEM_TRANSPORTS", "is named twice"]);
    }
    let ran = ran(program, "-n 2 -x SHMEM_TRANSPORTS=shm,ucx PE")?;
    refused(&ran, &["SHMEM_TRANSPORTS='shm,ucx'", "no transport 'ucx'", "shm, cma, ntb"]);
    Ok(())
}

fn transports_that_do_not_suffice_are_named(program: &Program) -> Result<(), Failed> {
    for line in [
        "-n 2 -x SHMEM_TRANSPORTS=ntb PE",
        "-n 4 --hosts 2 -x SHMEM_TRANSPORTS=cma,ntb PE",
        "-n 2 --hosts 2 -x SHMEM_TRANSPORTS=shm,cma PE",
    ] {
        let ran = ran(program, line)?;
        refused(&ran, &["leaves other transports out: set SHMEM_TRANSPORTS=all"]);
    }
    Ok(())
}

fn unusual_names_are_warned_of_once(program: &Program) -> Result<(), Failed> {
    for (setting, warning) in [
        ("SHMEM_TRANSPORT=shm", "did you mean SHMEM_TRANSPORTS?"),
        ("SHMEM_SYMETRIC_SIZE=8m", "did you mean SHMEM_SYMMETRIC_SIZE?"),
        ("SHMEM_NTB_THREADS=1", "SHMEM_NTB_THREADS is another name of SHMEM_NTB_LANES"),
    ] {
        for line in [format!("-n 3 -x {setting} PE"), format!("-n 2 PE : -n 1 -x {setting} PE")] {
            if line.contains(':') && setting.contains("NTB") {
                continue; // A setting that all must have alike.
            }
            let ran = ran(program, &line)?.succeeded()?;
            assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.account("one warning"));
            assert!(ran.stderr.contains(warning), "{}", ran.account(warning));
        }
    }
    let mut old = job(program, "-n 3 -x SHMEM_SYMMETRIC_HEAP_SIZE=8m PE")?;
    old.env_remove("SHMEM_SYMMETRIC_SIZE").env("SHMEM_TUNE", "off");
    let ran = run(&mut old, LIMIT)?.succeeded()?;
    assert_eq!(ran.stderr.lines().count(), 1, "{}", ran.account("one warning"));
    assert!(ran.stderr.contains("is another name of SHMEM_SYMMETRIC_SIZE"), "{}", ran.stderr);
    let quiet = "-n 2 -x SHMEM_UCX_TLS=tcp -x SHMEM_COLL_RADIX=4 PE";
    let ran = self::ran(program, quiet)?.succeeded()?;
    assert_eq!(ran.stderr, "", "variables of other implementations");
    Ok(())
}

fn an_empty_value_means_the_default(program: &Program) -> Result<(), Failed> {
    let line = "-n 2 -x SHMEM_SYMMETRIC_SIZE= -x SHMEM_NTB_PROFILE= -x SHMEM_START_TIMEOUT= PE";
    let ran = ran(program, line)?.succeeded()?;
    assert_eq!(ran.stderr, "");
    Ok(())
}

fn version_and_info_are_printed_whatever_they_are(program: &Program) -> Result<(), Failed> {
    for value in ["1", "0", "off", ""] {
        for name in ["SHMEM_VERSION", "SMA_VERSION", "SHMEM_INFO"] {
            let ran = ran(program, &format!("-n 2 -x {name}={value} PE"))?.succeeded()?;
            let printed = ran.stdout.matches("OpenSHMEM 1.6").count();
            assert_eq!(printed, 1, "{}", ran.account("the version, once"));
            let all = ran.stdout.contains("Environment variables");
            assert_eq!(all, name == "SHMEM_INFO", "{}", ran.account("what was asked for"));
        }
    }
    let ran = ran(program, "-n 2 PE")?.succeeded()?;
    assert_eq!(ran.stdout, "");
    Ok(())
}

/// Has a command run as a user without other processes, who may have so many.
fn as_another(command: &mut Command, processes: u64) -> &mut Command {
    let limited = own_user(0);
    let limit = move || Ok(setrlimit(Resource::RLIMIT_NPROC, processes, processes)?);
    command.current_dir("/").uid(limited).gid(limited);
    // SAFETY: a system call on plain values.
    unsafe { command.pre_exec(limit) }
}

/// Whichever thread of the launcher or of a PE is the one too many.
fn a_limit_on_processes_is_named(program: &Program) -> Result<(), Failed> {
    for processes in 4..12 {
        let mut job = job(program, "-n 2 --hosts 2 PE")?;
        job.env("SHMEM_TUNE", "always").env("SHMEM_TUNE_CACHE", "off").env("HOME", "/");
        let ran = run(as_another(&mut job, processes), LIMIT)?;
        // With four processes there is no job of two PEs.
        if ran.code != Some(0) || processes == 4 {
            let told = |line: &str| line.contains("ulimit -u");
            assert!(ran.code == Some(1), "{processes}: {}", ran.account("a refusal"));
            assert!(ran.stderr.lines().any(told), "{processes}: {}", ran.account("why"));
        }
    }
    Ok(())
}

/// What the library says is lost then, and no more.
fn a_full_disk_ends_no_program(program: &Program) -> Result<(), Failed> {
    for (name, stream) in [("SHMEM_INFO", "1"), ("SHMEM_NO_SUCH_NAME", "2")] {
        let mut shell = Command::new("sh");
        shell.args(["-c", &format!("exec \"$0\" {stream}>/dev/full")]);
        shell.arg(program.executable()?).env(name, "1").env("SHMEM_TUNE", "off");
        let ran = run(&mut shell, LIMIT)?.succeeded()?;
        assert_eq!(
            ran.stderr.contains("cannot write to standard output"),
            stream == "1",
            "{ran:?}"
        );
    }
    Ok(())
}

fn what_launchers_set_is_checked(program: &Program) -> Result<(), Failed> {
    for (setting, options) in [
        ("TOMBOLO_BOARD_FD=-1", ""),
        ("TOMBOLO_BOARD_FD=4000", ""),
        ("TOMBOLO_HOST=x", ""),
        ("TOMBOLO_NTB_FD=,", "--hosts 2"),
    ] {
        let ran = ran(program, &format!("{options} -n 2 -x {setting} PE"))?;
        let name = setting.split('=').next().unwrap_or_default();
        refused(&ran, &[name]);
    }
    Ok(())
}

fn a_table_is_a_regular_file(program: &Program) -> Result<(), Failed> {
    let fifo = scratch("settings").join(format!("fifo-{}", std::process::id()));
    tool("mkfifo", &[&fifo])?;
    let fifo = fifo.display().to_string();
    for path in ["/dev/zero", &fifo] {
        let ran = ran(program, &format!("-n 2 -x SHMEM_TUNE={path} PE"))?;
        refused(&ran, &["SHMEM_TUNE=", "it is no regular file"]);
    }
    fs::remove_file(&fifo)?;
    Ok(())
}

/// A fresh folder of a case.
fn folder(name: &str) -> Result<PathBuf, Failed> {
    let folder = scratch("settings").join(format!("{name}-{}", std::process::id()));
    fs::create_dir_all(&folder)?;
    Ok(folder)
}

fn a_cache_in_unsafe_hands_is_not_used(program: &Program) -> Result<(), Failed> {
    let folder = folder("unsafe")?;
    fs::set_permissions(&folder, fs::Permissions::from_mode(0o777))?;
    let cache = folder.display().to_string();
    let ran = ran(program, &format!("-n 3 -x SHMEM_TUNE_CACHE={cache} PE"))?.succeeded()?;
    // A busy machine may be warned of as well.
    let told = ran.stderr.lines().filter(|line| line.contains("all users can write")).count();
    assert_eq!(told, 1, "{}", ran.account("one warning of the cache"));
    assert_eq!(fs::read_dir(&folder)?.count(), 0, "something was kept");
    fs::remove_dir(&folder)?;
    Ok(())
}

fn without_a_home_nothing_is_kept(program: &Program) -> Result<(), Failed> {
    let folder = folder("home")?;
    let mut job = job(program, "-n 2 PE")?;
    job.env_remove("SHMEM_TUNE_CACHE").env_remove("XDG_CACHE_HOME").env("HOME", "");
    run(job.current_dir(&folder), LIMIT)?.succeeded()?;
    assert_eq!(fs::read_dir(&folder)?.count(), 0, "a folder in the working directory");
    fs::remove_dir(&folder)?;
    Ok(())
}
