// SPDX-License-Identifier: Apache-2.0
//! Jobs on so many hosts that relays reach most of them: on `n1`, `n5`, `n9` and `n13`, each for the three
//! hosts after it. Over real `ssh`, which takes some 0.2 s of a processor for each host.

use crate::ends::{agent, children, nothing_is_left, sleepers};
use crate::harness::{Job, Outcome, is_stopped, run, run_with_input, wait_until};
use crate::start::Rsh;
use crate::{nodes, oshrun_on};
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::process::Command;
use std::sync::LazyLock;
use std::time::Duration;
use tombolo_tests::nodes::Nodes;

cases! {
    relays_are_used_from_sixteen_hosts_on,
    values_output_and_input_pass_through_relays,
    codes_and_signals_pass_through_relays,
    a_job_behind_relays_can_be_stopped_and_continued,
    hosts_that_relays_cannot_reach_are_reached_without,
    a_killed_launcher_of_many_hosts_ends_the_job,
    a_killed_relay_ends_the_job,
    what_is_killed_behind_a_relay_ends_the_job,
    a_host_without_power_behind_a_relay_ends_the_job,
    a_relay_without_power_ends_the_job,
    jobs_that_go_on_need_no_relay,
}

const COUNT: usize = 16;

/// Hosts for jobs that leave them as they are.
static NODES: LazyLock<Nodes> = LazyLock::new(|| nodes(COUNT));

/// "n1:1,n2:1,...".
fn all_hosts() -> String {
    let names: Vec<String> = (1..=COUNT).map(|host| format!("n{host}:1")).collect();
    names.join(",")
}

fn oshrun(options: &str) -> Command {
    oshrun_on(&NODES, &format!("--host {} {options}", all_hosts()))
}

/// A job of scripts that would run for long, with a child each in a session of its own.
fn long_job(options: &str) -> (Nodes, Job) {
    let nodes = nodes(COUNT);
    let mut command = oshrun_on(&nodes, &format!("--host {} {options}", all_hosts()));
    command.args(["sh", "-c", "setsid sleep 1000 & sleep 1001 & echo ready; wait"]);
    let mut job = Job::start(command);
    (0..COUNT).for_each(|_| assert_eq!(job.line(), "ready"));
    wait_until("all programs run", || (1..=COUNT).all(|host| sleepers(&nodes, host) == 2));
    (nodes, job)
}

fn commands_like(nodes: &Nodes, host: usize, what: impl Fn(&str) -> bool) -> Vec<Pid> {
    let all = nodes.processes(host).into_iter().filter(|process| what(&process.command));
    all.map(|process| Pid::from_raw(process.pid)).collect()
}

/// The `ssh` by which a relay reaches a host.
fn ssh_to(nodes: &Nodes, relay: usize, host: usize) -> Pid {
    let name = format!(" n{host} ");
    let found = commands_like(nodes, relay, |it| it.starts_with("ssh ") && it.contains(&name));
    assert_eq!(found.len(), 1, "{:?}", nodes.processes(relay));
    found[0]
}

fn relay(nodes: &Nodes, host: usize) -> Vec<Pid> {
    commands_like(nodes, host, |it| it.ends_with("oshrun --agent --relay"))
}

/// One line of the launcher, which says `what`; and nothing is left but on the `dead` host.
#[track_caller]
fn ends_with(nodes: &Nodes, outcome: &Outcome, what: &str, dead: Option<usize>) {
    assert_eq!(outcome.code(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains(what), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
    let alive: Vec<usize> = (1..=COUNT).filter(|host| Some(*host) != dead).collect();
    nothing_is_left(nodes, &alive);
}

fn relays_are_used_from_sixteen_hosts_on() {
    let (nodes, job) = long_job("");
    let relays = (1..=COUNT).filter(|host| !relay(&nodes, *host).is_empty());
    assert!(relays.eq([1, 5, 9, 13]));
    let runner = Pid::from_raw(children(job.pid())[0]);
    let of_ssh = |pid: &i32| {
        let command = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
        command.starts_with(b"ssh\0")
    };
    assert_eq!(children(runner).iter().filter(|pid| of_ssh(pid)).count(), 4);
    (6..=8).for_each(|host| _ = ssh_to(&nodes, 5, host));
    job.send(Signal::SIGTERM);
    let outcome = job.finish();
    assert_eq!((outcome.signal(), outcome.stderr.as_str()), (Some(libc::SIGTERM), ""));
    nothing_is_left(&nodes, &(1..=COUNT).collect::<Vec<_>>());
}

fn values_output_and_input_pass_through_relays() {
    assert_eq!(run(oshrun("PE exchange")).well().text().lines().count(), COUNT);
    let outcome = run(oshrun("PE lines 300")).well();
    let mut next = [0; COUNT];
    for line in outcome.text().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [rank, number, text] = words.as_slice() else { panic!("torn: {line}") };
        let (pe, number): (usize, usize) = (rank.parse().unwrap(), number.parse().unwrap());
        assert_eq!((next[pe], *text), (number, &*rank.repeat(100 + number % 50)));
        next[pe] += 1;
    }
    assert_eq!(next, [300; COUNT]);
    let input: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
    let outcome = run_with_input(oshrun("PE copy"), &input).well();
    assert!(outcome.stdout == input, "{} of {} bytes", outcome.stdout.len(), input.len());
}

fn codes_and_signals_pass_through_relays() {
    let outcome = run(oshrun("PE exit 6 5"));
    assert_eq!(outcome.code(), 5);
    assert!(outcome.stderr.contains(", host n7) exited with code 5"), "{}", outcome.stderr);
    let outcome = run(oshrun("PE crash 4 11"));
    assert_eq!(outcome.code(), 128 + 11);
    assert!(outcome.stderr.contains(", host n5) was killed by SIGSEGV"), "{}", outcome.stderr);
    let mut command = oshrun("");
    let script = "trap 'echo heard; exit 0' USR1; echo ready; while :; do sleep 0.05; done";
    command.args(["sh", "-c", script]);
    let mut job = Job::start(command);
    (0..COUNT).for_each(|_| assert_eq!(job.line(), "ready"));
    job.send(Signal::SIGUSR1);
    assert_eq!(job.finish().well().text(), "heard\n".repeat(COUNT));
    let outcome = run(oshrun("--timeout 15 PE blocked"));
    assert_eq!((outcome.code(), outcome.stderr.lines().count()), (124, 1 + COUNT));
    assert!(outcome.stderr.contains(", host n16): in shmem_barrier_all"), "{}", outcome.stderr);
}

fn a_job_behind_relays_can_be_stopped_and_continued() {
    let (nodes, job) = long_job("--silence 8");
    job.send(Signal::SIGTSTP);
    let scripts = |host| commands_like(&nodes, host, |it| it.starts_with("sh -c"));
    let stopped = || (1..=COUNT).flat_map(scripts).filter(|pid| is_stopped(*pid)).count();
    wait_until("all are stopped", || is_stopped(job.pid()) && stopped() == COUNT);
    std::thread::sleep(Duration::from_secs(9));
    job.send(Signal::SIGCONT);
    wait_until("all go on", || stopped() == 0);
    std::thread::sleep(Duration::from_secs(1));
    job.send(Signal::SIGTERM);
    let outcome = job.finish();
    assert_eq!((outcome.signal(), outcome.stderr.as_str()), (Some(libc::SIGTERM), ""));
}

fn hosts_that_relays_cannot_reach_are_reached_without() {
    // Other hosts have no such file: they have a `/tmp` of their own.
    let rsh = Rsh::new("only-here", "exec ssh -oBatchMode=yes \"$@\"");
    let outcome = run(oshrun(&format!("--rsh {} PE exchange", rsh.path()))).well();
    assert_eq!(outcome.text().lines().count(), COUNT);
    // What fails without a relay as well is told as on few hosts.
    let hosts = all_hosts().replace("n7:1", "nowhere.invalid:1");
    let outcome = run(oshrun_on(&NODES, &format!("--host {hosts} echo started")));
    let said = "oshrun: host nowhere.invalid: cannot start oshrun there: ssh ended with code 255 \
                and said: ssh: Could not resolve hostname";
    assert_eq!((outcome.code(), outcome.text()), (1, ""));
    assert!(outcome.stderr.starts_with(said), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
}

fn a_killed_launcher_of_many_hosts_ends_the_job() {
    let (nodes, job) = long_job("");
    let runner = children(job.pid());
    job.send(Signal::SIGKILL);
    runner.iter().for_each(|pid| _ = kill(Pid::from_raw(*pid), Signal::SIGKILL));
    assert_eq!(job.finish().signal(), Some(libc::SIGKILL));
    nothing_is_left(&nodes, &(1..=COUNT).collect::<Vec<_>>());
}

fn a_killed_relay_ends_the_job() {
    let (nodes, job) = long_job("");
    relay(&nodes, 5).iter().for_each(|pid| kill(*pid, Signal::SIGKILL).unwrap());
    ends_with(&nodes, &job.finish(), "oshrun: host n5 is lost: ssh ended with code", None);
}

fn what_is_killed_behind_a_relay_ends_the_job() {
    type Victim = fn(&Nodes) -> Pid;
    let victims: [(Victim, &str); 3] = [
        (|nodes| ssh_to(nodes, 5, 7), "host n7 is lost: ssh on host n5 was killed by SIGKILL"),
        (|nodes| agent(nodes, 7)[0], "host n7 is lost: "),
        (|nodes| agent(nodes, 5)[0], "host n5 is lost: "),
    ];
    for (victim, what) in victims {
        let (nodes, job) = long_job("");
        kill(victim(&nodes), Signal::SIGKILL).unwrap();
        ends_with(&nodes, &job.finish(), what, None);
    }
}

fn a_host_without_power_behind_a_relay_ends_the_job() {
    let (mut nodes, job) = long_job("--silence 8");
    nodes.power_off(6);
    let what = "host n6 is lost: nothing was heard of it for 8 s; ending the job";
    ends_with(&nodes, &job.finish(), what, Some(6));
}

fn a_relay_without_power_ends_the_job() {
    let (mut nodes, job) = long_job("--silence 8");
    nodes.power_off(5);
    let outcome = job.finish();
    assert_eq!(outcome.code(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("host n5 is lost: nothing was heard"), "{}", outcome.stderr);
    nothing_is_left(&nodes, &(1..=4).chain(9..=COUNT).collect::<Vec<_>>());
    // Those behind it find out by themselves; their sshd believes the connection to be there still.
    for host in 6..=8 {
        let ours = || commands_like(&nodes, host, |it| !it.is_empty() && !it.starts_with("sshd"));
        wait_until(&format!("nothing of the job is left on n{host}"), || ours().is_empty());
    }
}

fn jobs_that_go_on_need_no_relay() {
    let mut nodes = nodes(COUNT);
    let line = format!("--silence 8 -x SHMEM_ON_LOSS=continue --host {} PE outlive 4", all_hosts());
    let mut command = oshrun_on(&nodes, &line);
    command.env("SHMEM_ON_LOSS", "continue");
    let mut job = Job::start(command);
    assert_eq!(job.line(), "ready");
    assert!((1..=COUNT).all(|host| relay(&nodes, host).is_empty()));
    nodes.power_off(5);
    let outcome = job.finish();
    assert_eq!(outcome.code(), 125, "{}", outcome.stderr);
    assert_eq!(outcome.text().matches("goes on").count(), COUNT - 1, "{}", outcome.text());
}
