//! Signals to the launcher, and what becomes of the processes of a job.

use crate::harness::{Job, is_running, is_stopped, oshrun, run, shell, wait_until};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, killpg, sigaction};
use nix::unistd::Pid;
use std::os::unix::process::CommandExt;
use std::time::Duration;

cases! {
    user_signals_are_passed_on,
    an_interrupt_leaves_nothing_running,
    a_second_interrupt_kills,
    a_program_may_finish_after_an_interrupt,
    an_interrupt_of_the_group_counts_once,
    pes_that_ignore_an_interrupt_are_killed,
    a_job_can_be_stopped_and_continued,
    a_killed_launcher_takes_its_pes_along,
    a_killed_launcher_takes_along_what_scripts_started,
    the_process_that_runs_the_job_may_be_killed,
    processes_left_behind_are_killed,
    the_end_of_a_pipeline_may_finish,
}

fn user_signals_are_passed_on() {
    let script = "trap 'echo heard; exit 0' USR1; echo ready; while :; do sleep 0.01; done";
    let mut job = Job::start(shell("-n 2", script));
    assert_eq!([job.line(), job.line()], ["ready", "ready"]);
    job.send(Signal::SIGUSR1);
    assert_eq!(job.finish().well().text(), "heard\nheard\n");
}

/// Has the jobs of these tests heed signals even where the tests were started with some ignored, as
/// by nohup or in the background of a script: `oshrun` goes on ignoring those.
pub fn heed() {
    let default = SigAction::new(SigHandler::SigDfl, SaFlags::empty(), SigSet::empty());
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP, Signal::SIGQUIT] {
        // SAFETY: the default action runs no code of ours.
        unsafe { sigaction(signal, &default) }.expect("these signals can be set");
    }
}

fn an_interrupt_leaves_nothing_running() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let mut job = Job::start(oshrun("-n 3 PE hang"));
        let pids = job.pids(3);
        job.send(signal);
        let outcome = job.finish();
        assert_eq!((outcome.signal(), outcome.stderr.as_str()), (Some(signal as i32), ""));
        assert!(pids.iter().all(|pid| !is_running(*pid)));
    }
}

fn a_second_interrupt_kills() {
    let mut job = Job::start(oshrun("-n 2 PE ignore SIGINT"));
    let pids = job.pids(2);
    job.send(Signal::SIGINT);
    // Two of the same that arrive together count as one: the first has to be seen before.
    job.send(Signal::SIGQUIT);
    job.wait_for_message("PE 1", 1);
    job.send(Signal::SIGINT);
    let outcome = job.finish();
    assert_eq!(outcome.signal(), Some(libc::SIGINT));
    assert!(outcome.time < Duration::from_secs(4), "{:?}", outcome.time);
    assert!(pids.iter().all(|pid| !is_running(*pid)));
}

fn a_program_may_finish_after_an_interrupt() {
    let script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let mut job = Job::start(shell("-n 2", script));
    assert_eq!([job.line(), job.line()], ["ready", "ready"]);
    job.send(Signal::SIGTERM);
    assert_eq!(job.finish().well().text(), "saved\nsaved\n");
}

fn an_interrupt_of_the_group_counts_once() {
    // A second one would kill.
    let script =
        "trap 'sleep 0.3; echo saved; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let mut command = shell("-n 2", script);
    command.process_group(0);
    let mut job = Job::start(command);
    assert_eq!([job.line(), job.line()], ["ready", "ready"]);
    killpg(job.pid(), Signal::SIGTERM).unwrap();
    let outcome = job.finish();
    assert_eq!((outcome.signal(), outcome.text()), (None, "saved\nsaved\n"));
}

fn pes_that_ignore_an_interrupt_are_killed() {
    let jobs = [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP].map(|signal| {
        let mut job = Job::start(oshrun(&format!("-n 2 PE ignore {signal}")));
        let pids = job.pids(2);
        job.send(signal);
        (signal, job, pids)
    });
    for (signal, job, pids) in jobs {
        let outcome = job.finish();
        assert_eq!(outcome.signal(), Some(signal as i32));
        assert!(outcome.stderr.contains(&format!("PEs still run 5 s after {signal}; killing")));
        assert!(Duration::from_secs(5) < outcome.time && outcome.time < Duration::from_secs(10));
        assert!(pids.iter().all(|pid| !is_running(*pid)));
    }
}

fn a_job_can_be_stopped_and_continued() {
    let mut job = Job::start(oshrun("-n 2 PE hang"));
    let pids = job.pids(2);
    let all = || pids.iter().copied().chain([job.pid()]);
    job.send(Signal::SIGTSTP);
    wait_until("all are stopped", || all().all(is_stopped));
    job.send(Signal::SIGCONT);
    wait_until("all go on", || all().all(|pid| is_running(pid) && !is_stopped(pid)));
    job.send(Signal::SIGTERM);
    assert_eq!(job.finish().signal(), Some(libc::SIGTERM));
}

fn a_killed_launcher_takes_its_pes_along() {
    let mut job = Job::start(oshrun("-n 4 PE ignore SIGTERM"));
    let pids = job.pids(4);
    job.send(Signal::SIGKILL);
    assert_eq!(job.finish().signal(), Some(libc::SIGKILL));
    for pid in pids {
        wait_until("the kernel kills the PEs", || !is_running(pid));
    }
}

/// What a job of these PEs has started: a program in the script's session and one in its own.
fn job_of_scripts() -> (Job, Vec<Pid>) {
    let mut job =
        Job::start(shell("-n 2", "setsid sleep 1000 & echo $!; sleep 1000 & echo $!; wait"));
    let programs = job.pids(4);
    (job, programs)
}

fn a_killed_launcher_takes_along_what_scripts_started() {
    let (job, programs) = job_of_scripts();
    job.send(Signal::SIGKILL);
    assert_eq!(job.finish().signal(), Some(libc::SIGKILL));
    for pid in programs {
        wait_until("what scripts have started is killed", || !is_running(pid));
    }
}

fn the_process_that_runs_the_job_may_be_killed() {
    let (job, programs) = job_of_scripts();
    let children = format!("/proc/{0}/task/{0}/children", job.pid());
    let launcher: i32 = std::fs::read_to_string(children).unwrap().trim().parse().unwrap();
    kill(Pid::from_raw(launcher), Signal::SIGKILL).unwrap();
    let outcome = job.finish();
    assert_eq!(outcome.code(), 128 + libc::SIGKILL);
    assert!(outcome.stderr.contains("was killed by SIGKILL"), "{}", outcome.stderr);
    assert!(programs.iter().all(|pid| !is_running(*pid)));
}

fn processes_left_behind_are_killed() {
    let mut job = Job::start(oshrun("-n 2 PE orphan"));
    let orphans = job.pids(2);
    job.finish().well();
    assert!(orphans.iter().all(|pid| !is_running(*pid)));
    // A script that dies leaves the program it waits for behind.
    let mut job = Job::start(shell("-n 2", "trap '' TERM; sleep 1000 & echo $!; wait; sleep 1000"));
    let programs = job.pids(2);
    job.send(Signal::SIGTERM);
    // Seen before the second signal is sent, as above.
    job.send(Signal::SIGQUIT);
    job.wait_for_message("PE 1", 1);
    job.send(Signal::SIGTERM);
    assert_eq!(job.finish().signal(), Some(libc::SIGTERM));
    assert!(programs.iter().all(|pid| !is_running(*pid)));
}

fn the_end_of_a_pipeline_may_finish() {
    // The shell ends at once; what copies its output needs a moment longer.
    let script = "(sleep 0.05; echo late) &";
    assert_eq!(run(shell("-n 2", script)).well().text(), "late\nlate\n");
}
