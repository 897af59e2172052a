// SPDX-License-Identifier: Apache-2.0
//! How jobs end that something happens to, and that nothing is left of them.

use crate::harness::{Job, Outcome, run, wait_until};
use crate::{nodes, oshrun, oshrun_on, shell};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::Command;
use std::time::Duration;
use tombolo_tests::nodes::{Nodes, Process};

cases! {
    the_exit_code_is_that_of_the_pe_that_failed,
    a_crash_ends_the_job_and_names_the_host,
    abort_ends_the_job_with_its_code,
    malformed_requests_end_the_job_with_a_reason,
    a_pe_that_never_joins_is_a_failure,
    signals_reach_all_hosts,
    an_interrupt_leaves_nothing_running,
    pes_that_ignore_an_interrupt_are_killed,
    a_job_can_be_stopped_and_continued,
    a_timeout_tells_what_each_pe_was_doing,
    what_pes_leave_behind_is_killed,
    a_killed_launcher_ends_the_job,
    a_killed_agent_ends_the_job,
    a_killed_ssh_ends_the_job,
    a_cut_cable_ends_the_job,
    a_host_without_power_ends_the_job,
    a_lost_pe_is_told_to_all_hosts,
    a_barrier_does_not_wait_for_the_only_pe_of_a_host_once_it_is_lost,
    an_agent_that_is_told_to_end_is_the_loss_of_its_pes,
    a_lost_host_is_the_loss_of_its_pes,
}

/// Two hosts, and a job of scripts that would run for long: each PE has a child in a session of its
/// own.
fn long_job(options: &str) -> (Nodes, Job) {
    let nodes = nodes(2);
    let mut command = oshrun_on(&nodes, &format!("--host n1:2,n2:2 {options}"));
    command.args(["sh", "-c", "setsid sleep 1000 & sleep 1001 & echo ready; wait"]);
    let mut job = Job::start(command);
    (0..4).for_each(|_| assert_eq!(job.line(), "ready"));
    // On their way to their programs.
    wait_until("all programs run", || [1, 2].iter().all(|host| sleepers(&nodes, *host) == 4));
    (nodes, job)
}

pub fn sleepers(nodes: &Nodes, host: usize) -> usize {
    nodes.processes(host).iter().filter(|p| p.command.starts_with("sleep 100")).count()
}

#[track_caller]
pub fn nothing_is_left(nodes: &Nodes, hosts: &[usize]) {
    for host in hosts {
        wait_until(&format!("nothing is left on n{host}"), || {
            nodes.processes(*host).iter().all(|process| process.command.is_empty())
        });
    }
}

/// The processes of the agent: the keeper, and the one that runs the job.
pub fn agent(nodes: &Nodes, host: usize) -> [Pid; 2] {
    let all = nodes.processes(host);
    let ours: Vec<&Process> =
        all.iter().filter(|p| p.command.ends_with("oshrun --agent")).collect();
    let [one, other] = ours.as_slice() else { panic!("{all:?}") };
    let is_child = children(Pid::from_raw(one.pid)).contains(&other.pid);
    let pids = [one.pid, other.pid].map(Pid::from_raw);
    if is_child { pids } else { [pids[1], pids[0]] }
}

pub fn children(pid: Pid) -> Vec<i32> {
    let path = format!("/proc/{pid}/task/{pid}/children");
    let text = std::fs::read_to_string(path).unwrap_or_default();
    text.split_whitespace().map(|pid| pid.parse().unwrap()).collect()
}

fn the_exit_code_is_that_of_the_pe_that_failed() {
    let outcome = run(oshrun("--host n1:2,n2:2 PE exit 2 5"));
    assert_eq!(outcome.code(), 5);
    assert!(outcome.stderr.starts_with("oshrun: PE 2 (pid "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(", host n2) exited with code 5"), "{}", outcome.stderr);
    assert_eq!(run(oshrun("--host n1:1,n2:1 true")).well().code(), 0);
}

fn a_crash_ends_the_job_and_names_the_host() {
    let outcome = run(oshrun("--host n1:2,n2:1 PE crash 2 11"));
    assert_eq!(outcome.code(), 128 + 11);
    let pid = outcome.text().trim();
    let line = format!("oshrun: PE 2 (pid {pid}, host n2) was killed by SIGSEGV (");
    assert!(outcome.stderr.starts_with(&line), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
}

fn abort_ends_the_job_with_its_code() {
    let outcome = run(oshrun("--host n1:2,n2:2 PE abort 3 9"));
    assert_eq!((outcome.code(), outcome.text(), outcome.stderr.as_str()), (9, "last words\n", ""));
}

#[track_caller]
fn failed_with(outcome: &Outcome, what: &str) {
    assert_eq!(outcome.code(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains(what), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
}

fn malformed_requests_end_the_job_with_a_reason() {
    let outcome = run(oshrun("--host n2:1,n1:1 PE send rubbish"));
    failed_with(&outcome, "host n2) sent a wrong PMI request: not a request: 'rubbish'");
    failed_with(&run(oshrun("--host n1:1,n2:1 PE leave")), "exited without calling shmem_finalize");
    failed_with(&run(oshrun("--host n1:1,n2:1 PE close")), "closed its connection before");
}

fn a_pe_that_never_joins_is_a_failure() {
    failed_with(&run(oshrun("--host n1:2,n2:2 PE skip 1")), "PE 1 (");
    failed_with(&run(oshrun("--host n1:1,n2:1 PE skip 1")), "has exited while other PEs wait");
}

fn signals_reach_all_hosts() {
    let script = "trap 'echo heard; exit 0' USR1; echo ready; while :; do sleep 0.01; done";
    let mut job = Job::start(shell("--host n1:1,n2:1", script));
    assert_eq!([job.line(), job.line()], ["ready", "ready"]);
    job.send(Signal::SIGUSR1);
    assert_eq!(job.finish().well().text(), "heard\nheard\n");
}

fn an_interrupt_leaves_nothing_running() {
    for signal in [Signal::SIGINT, Signal::SIGTERM, Signal::SIGHUP] {
        let (nodes, job) = long_job("");
        job.send(signal);
        let outcome = job.finish();
        assert_eq!((outcome.signal(), outcome.stderr.as_str()), (Some(signal as i32), ""));
        nothing_is_left(&nodes, &[1, 2]);
    }
}

fn pes_that_ignore_an_interrupt_are_killed() {
    let mut job = Job::start(oshrun("--host n1:1,n2:1 PE ignore SIGTERM"));
    job.pids(2);
    job.send(Signal::SIGTERM);
    let outcome = job.finish();
    assert_eq!(outcome.signal(), Some(libc::SIGTERM));
    assert!(
        outcome.stderr.contains("PEs still run 5 s after SIGTERM; killing"),
        "{}",
        outcome.stderr
    );
}

fn a_job_can_be_stopped_and_continued() {
    // The agents hear nothing of it for longer than they would put up with.
    let (nodes, job) = long_job("--silence 5");
    job.send(Signal::SIGTSTP);
    let stopped = |nodes: &Nodes| {
        let shells =
            |host| nodes.processes(host).into_iter().filter(|p| p.command.starts_with("sh -c"));
        let pids: Vec<i32> = [1, 2].into_iter().flat_map(shells).map(|p| p.pid).collect();
        pids.len() == 4 && pids.iter().all(|pid| crate::harness::is_stopped(Pid::from_raw(*pid)))
    };
    wait_until("all are stopped", || crate::harness::is_stopped(job.pid()) && stopped(&nodes));
    std::thread::sleep(Duration::from_secs(6));
    job.send(Signal::SIGCONT);
    wait_until("all go on", || !stopped(&nodes));
    std::thread::sleep(Duration::from_secs(1));
    job.send(Signal::SIGTERM);
    let outcome = job.finish();
    assert_eq!((outcome.signal(), outcome.stderr.as_str()), (Some(libc::SIGTERM), ""));
}

fn a_timeout_tells_what_each_pe_was_doing() {
    let outcome = run(oshrun("--host n1:1,n2:1 --timeout 6 PE blocked"));
    assert_eq!(outcome.code(), 124, "{}", outcome.stderr);
    let lines: Vec<&str> = outcome.stderr.lines().collect();
    assert_eq!(lines.len(), 3, "{}", outcome.stderr);
    assert_eq!(lines[0], "oshrun: the job has not ended after 6 s; ending it");
    assert!(
        lines[1].starts_with("oshrun: PE 0 (pid ") && lines[1].contains(", host n1): not in a "),
        "{}",
        lines[1]
    );
    assert!(lines[2].contains(", host n2): in shmem_barrier_all"), "{}", lines[2]);
    let mut job = Job::start(oshrun("--host n1:1,n2:1 PE blocked"));
    job.pids(2);
    job.send(Signal::SIGQUIT);
    job.wait_for_message("host n2): in shmem_barrier_all", 1);
    job.send(Signal::SIGTERM);
    job.finish();
}

fn what_pes_leave_behind_is_killed() {
    let nodes = nodes(2);
    run(oshrun_on(&nodes, "--host n1:1,n2:1 PE orphan")).well();
    nothing_is_left(&nodes, &[1, 2]);
}

fn a_killed_launcher_ends_the_job() {
    for both in [false, true] {
        let (nodes, job) = long_job("");
        let runner = children(job.pid());
        job.send(Signal::SIGKILL);
        if both {
            runner.iter().for_each(|pid| _ = kill(Pid::from_raw(*pid), Signal::SIGKILL));
        }
        assert_eq!(job.finish().signal(), Some(libc::SIGKILL));
        nothing_is_left(&nodes, &[1, 2]);
    }
}

fn a_killed_agent_ends_the_job() {
    for which in [0, 1] {
        let (nodes, job) = long_job("");
        kill(agent(&nodes, 2)[which], Signal::SIGKILL).unwrap();
        let outcome = job.finish();
        assert_eq!(outcome.code(), 1, "{}", outcome.stderr);
        assert!(outcome.stderr.contains("host n2"), "{}", outcome.stderr);
        assert!(outcome.stderr.contains("ending the job"), "{}", outcome.stderr);
        nothing_is_left(&nodes, &[1, 2]);
    }
}

fn a_killed_ssh_ends_the_job() {
    let (nodes, job) = long_job("");
    let runner = Pid::from_raw(children(job.pid())[0]);
    let is_ssh = |pid: &i32| {
        let command = std::fs::read_to_string(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.starts_with("ssh\0") && command.contains("\0n1\0")
    };
    let ssh = children(runner).into_iter().find(is_ssh).unwrap();
    kill(Pid::from_raw(ssh), Signal::SIGKILL).unwrap();
    let outcome = job.finish();
    failed_with(&outcome, "host n1 is lost: ssh was killed by SIGKILL");
    nothing_is_left(&nodes, &[1, 2]);
}

fn a_cut_cable_ends_the_job() {
    let (nodes, job) = long_job("--silence 3");
    nodes.plug(2, false);
    let outcome = job.finish();
    failed_with(&outcome, "host n2 is lost: nothing was heard of it for 3 s; ending the job");
    // The host that was cut off finds out by itself.
    wait_until("no PE is left", || [1, 2].iter().all(|host| sleepers(&nodes, *host) == 0));
}

fn a_host_without_power_ends_the_job() {
    let (mut nodes, job) = long_job("--silence 3");
    nodes.power_off(1);
    failed_with(&job.finish(), "host n1 is lost: nothing was heard of it for 3 s");
    nothing_is_left(&nodes, &[2]);
}

fn going_on(nodes: &Nodes, line: &str) -> Command {
    let mut command = oshrun_on(nodes, &format!("-x SHMEM_ON_LOSS=continue {line}"));
    command.env("SHMEM_ON_LOSS", "continue");
    command
}

fn a_lost_pe_is_told_to_all_hosts() {
    use std::io::Write;
    let mut job = Job::start(going_on(&crate::NODES, "--host n1:2,n2:2 PE outlive 0"));
    assert_eq!(job.line(), "ready");
    job.stdin.as_mut().unwrap().write_all(b"die\n").unwrap();
    let outcome = job.finish();
    assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
    assert_eq!(outcome.sorted(), ["PE 1 goes on", "PE 2 goes on", "PE 3 goes on"]);
    assert!(outcome.stderr.contains("host n1) was killed by SIGKILL"), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("1 of 4 PEs lost (0)"), "{}", outcome.stderr);
}

fn a_barrier_does_not_wait_for_the_only_pe_of_a_host_once_it_is_lost() {
    use std::io::Write;
    let mut job = Job::start(going_on(&crate::NODES, "--host n1:1,n2:2 PE await 0"));
    (0..3).for_each(|_| assert_eq!(job.line(), "ready"));
    // So that the others are in the barrier.
    std::thread::sleep(Duration::from_millis(500));
    job.stdin.as_mut().unwrap().write_all(b"die\n").unwrap();
    let outcome = job.finish();
    assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
    assert_eq!(outcome.sorted(), ["PE 1 goes on", "PE 2 goes on"]);
}

/// Told to end, as by a host that shuts down, it says so before it ends.
fn an_agent_that_is_told_to_end_is_the_loss_of_its_pes() {
    let nodes = nodes(3);
    let mut job = Job::start(going_on(&nodes, "--host n1:1,n2:2,n3:1 PE outlive 1"));
    assert_eq!(job.line(), "ready");
    kill(agent(&nodes, 2)[1], Signal::SIGTERM).unwrap();
    let outcome = job.finish();
    assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
    assert_eq!(outcome.sorted(), ["PE 0 goes on", "PE 3 goes on"]);
    let line = "host n2 is lost: its agent was told to end by SIGTERM; the others go on without PEs 1 and 2";
    assert!(outcome.stderr.contains(line), "{}", outcome.stderr);
    nothing_is_left(&nodes, &[1, 2, 3]);
}

fn a_lost_host_is_the_loss_of_its_pes() {
    let mut nodes = nodes(3);
    let mut job = Job::start(going_on(&nodes, "--silence 3 --host n1:1,n2:2,n3:1 PE outlive 1"));
    assert_eq!(job.line(), "ready");
    nodes.power_off(2);
    let outcome = job.finish();
    assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
    assert_eq!(outcome.sorted(), ["PE 0 goes on", "PE 3 goes on"]);
    let line =
        "host n2 is lost: nothing was heard of it for 3 s; the others go on without PEs 1 and 2";
    assert!(outcome.stderr.contains(line), "{}", outcome.stderr);
    nothing_is_left(&nodes, &[1, 3]);
}
