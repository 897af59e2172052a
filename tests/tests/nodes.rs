// SPDX-License-Identifier: Apache-2.0
//! The hosts that other tests run jobs on are what they are said to be.

use libtest_mimic::{Arguments, Trial};
use std::process::Command;
use std::time::{Duration, Instant};
use tombolo_tests::nodes::{Nodes, unavailable};
use tombolo_tests::unless;

const CASES: [(&str, fn()); 4] = [
    ("hosts_reach_each_other_and_share_files_alone", hosts_share_files_alone),
    ("a_cable_can_be_pulled_and_plugged", a_cable_can_be_pulled_and_plugged),
    ("a_host_takes_its_processes_along", a_host_takes_its_processes_along),
    ("a_killed_test_leaves_nothing_behind", a_killed_test_leaves_nothing_behind),
];

/// Has this program make hosts and be killed.
const VICTIM: &str = "--make-hosts-and-wait";

fn main() {
    if std::env::args().any(|argument| argument == VICTIM) {
        return be_killed();
    }
    let missing = unavailable();
    let trials = CASES.map(|(name, case)| {
        let trial = Trial::test(name, move || {
            case();
            Ok(())
        });
        unless(missing, trial)
    });
    libtest_mimic::run(&Arguments::from_args(), trials.into()).exit();
}

fn start(count: usize) -> Nodes {
    Nodes::start(count).unwrap_or_else(|why| panic!("{why}"))
}

fn output(command: &mut Command) -> String {
    let output = command.output().unwrap();
    let stderr = String::from_utf8_lossy(&output.stderr);
    assert!(output.status.success(), "{command:?}: {} {stderr}", output.status);
    String::from_utf8(output.stdout).unwrap().trim().to_owned()
}

fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < Duration::from_secs(20), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

fn hosts_share_files_alone() {
    let nodes = start(2);
    assert_eq!(output(nodes.login("ssh").args(["n1", "ssh n2 hostname"])), "n2");
    assert_eq!(output(&mut nodes.login("hostname")), "login");
    assert_eq!(output(nodes.login("pwd").arg("-P")), output(nodes.on(1, "pwd").arg("-P")));
    for directory in ["/dev/shm", "/run", "/tmp"] {
        let file = format!("{directory}/tombolo-nodes");
        output(nodes.on(1, "touch").arg(&file));
        assert!(nodes.on(1, "test").args(["-e", &file]).status().unwrap().success());
        assert!(!nodes.on(2, "test").args(["-e", &file]).status().unwrap().success(), "{file}");
        assert!(!std::path::Path::new(&file).exists(), "{file}");
    }
    let spaces = |host| {
        ["net", "uts", "ipc", "pid", "mnt"]
            .map(|kind| output(nodes.on(host, "readlink").arg(format!("/proc/self/ns/{kind}"))))
    };
    let (one, two) = (spaces(1), spaces(2));
    assert!(one.iter().zip(&two).all(|(a, b)| a != b), "{one:?} {two:?}");
}

fn a_cable_can_be_pulled_and_plugged() {
    let nodes = start(1);
    let reachable = || {
        let mut ssh = nodes.login("ssh");
        ssh.args(["-o", "ConnectTimeout=1", "n1", "true"]);
        ssh.output().unwrap().status.success()
    };
    wait_until("the host is reached", reachable);
    nodes.plug(1, false);
    assert!(!reachable());
    nodes.plug(1, true);
    wait_until("the host is reached again", reachable);
}

fn a_host_takes_its_processes_along() {
    let mut nodes = start(2);
    let mut ssh =
        nodes.login("ssh").args(["n1", "setsid sleep 1000 & exec sleep 1001"]).spawn().unwrap();
    let sleepers = |nodes: &Nodes| -> Vec<i32> {
        let all = nodes.processes(1).into_iter();
        all.filter(|process| process.command.starts_with("sleep 100"))
            .map(|process| process.pid)
            .collect()
    };
    wait_until("two processes run", || sleepers(&nodes).len() == 2);
    let pids = sleepers(&nodes);
    nodes.power_off(1);
    wait_until("they are gone", || pids.iter().all(|pid| !is_there(*pid)));
    // The other end was told nothing.
    assert!(ssh.try_wait().unwrap().is_none());
    ssh.kill().unwrap();
    ssh.wait().unwrap();
    assert_eq!(output(nodes.login("ssh").args(["n2", "hostname"])), "n2");
}

fn be_killed() {
    let nodes = start(1);
    let mut ssh = nodes.on(1, "sleep").arg("2000").spawn().unwrap();
    wait_until("it runs", || !nodes.processes(1).is_empty());
    println!("{}", nodes.processes(1)[0].pid);
    ssh.wait().unwrap();
}

fn a_killed_test_leaves_nothing_behind() {
    use std::io::{BufRead, BufReader};
    let mut victim = Command::new(std::env::current_exe().unwrap());
    let mut victim = victim.arg(VICTIM).stdout(std::process::Stdio::piped()).spawn().unwrap();
    let mut line = String::new();
    BufReader::new(victim.stdout.take().unwrap()).read_line(&mut line).unwrap();
    let pid: i32 = line.trim().parse().unwrap();
    assert!(is_there(pid));
    victim.kill().unwrap();
    victim.wait().unwrap();
    wait_until("the host is gone", || !is_there(pid));
}

fn is_there(pid: i32) -> bool {
    std::path::Path::new(&format!("/proc/{pid}")).exists()
}
