// SPDX-License-Identifier: Apache-2.0
//! Jobs that cannot start.

use crate::harness::{Job, Outcome, run, run_with_input, wait_until};
use crate::{NODES, nodes, oshrun, oshrun_on};
use nix::sys::signal::Signal;
use std::io::Write;
use std::os::unix::fs::PermissionsExt;
use std::path::PathBuf;
use std::time::Duration;

cases! {
    hosts_that_cannot_be_reached_are_named,
    a_host_without_oshrun_is_named,
    other_versions_are_refused,
    what_is_no_agent_is_named,
    programs_that_cannot_run_are_named_with_their_host,
    agents_refuse_what_they_do_not_understand,
    a_start_can_be_interrupted,
    what_a_remote_shell_prints_does_no_harm,
    secrets_are_on_no_command_line,
}

/// One line that names the host and gives the reason, and nothing started anywhere.
#[track_caller]
fn refused(outcome: &Outcome, code: i32, what: &[&str]) {
    assert_eq!((outcome.code(), outcome.text()), (code, ""), "{}", outcome.stderr);
    assert!(what.iter().all(|what| outcome.stderr.contains(what)), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
}

/// A script that takes the place of `ssh`; `$1` is the host and `$2` the command.
pub struct Rsh(PathBuf);

impl Rsh {
    pub fn new(name: &str, script: &str) -> Rsh {
        let path = std::env::temp_dir().join(format!("tombolo-{name}-{}", std::process::id()));
        let mut file = std::fs::File::create(&path).unwrap();
        file.write_all(format!("#!/bin/sh\n{script}\n").as_bytes()).unwrap();
        file.set_permissions(std::fs::Permissions::from_mode(0o755)).unwrap();
        Rsh(path)
    }

    pub fn path(&self) -> std::path::Display<'_> {
        self.0.display()
    }

    #[track_caller]
    fn run(&self, line: &str) -> Outcome {
        run(oshrun(&format!("--rsh {} {line}", self.0.display())))
    }
}

impl Drop for Rsh {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(&self.0);
    }
}

fn hosts_that_cannot_be_reached_are_named() {
    let said = [
        "host nowhere.invalid: cannot start oshrun there: ssh ended with code 255 and said: ssh: Could not resolve hostname",
    ];
    refused(&run(oshrun("--host n1:1,nowhere.invalid:1 echo started")), 1, &said);
    let said = [
        "host 10.99.0.254: cannot start oshrun there: ssh ended with code 255",
        "Connection refused",
    ];
    refused(&run(oshrun("--host n1:1,10.99.0.254:1 echo started")), 1, &said);
    let said = [
        "host no-such-user@n2: cannot start oshrun there: ssh ended with code 255",
        "Permission denied",
    ];
    refused(&run(oshrun("--host n1:1,no-such-user@n2:1 echo started")), 1, &said);
    let nodes = nodes(2);
    nodes.plug(2, false);
    let outcome = run(oshrun_on(&nodes, "--host n1:1,n2:1 echo started"));
    refused(&outcome, 1, &["host n2: cannot start oshrun there: ssh ended with code 255"]);
    assert!(outcome.time < Duration::from_secs(20), "{:?}", outcome.time);
    let outcome = run(oshrun("--rsh /nonexistent/rsh --host n1:1,n2:1 echo started"));
    refused(&outcome, 1, &["cannot run '/nonexistent/rsh' to reach host n1: No such file"]);
}

fn a_host_without_oshrun_is_named() {
    // The program is looked for where it is here.
    let rsh =
        Rsh::new("lost", "exec ssh -oBatchMode=yes $1 \"$(echo \"$2\" | sed s/oshrun/lost/)\"");
    let said = [": cannot start oshrun there: tombolo-lost-", "code 127", "lost: No such file"];
    refused(&rsh.run("--host n1:1,n2:1 echo started"), 1, &said);
}

fn other_versions_are_refused() {
    let rsh = Rsh::new(
        "older",
        "test $1 = n1 && exec sh -c \"$2\"; echo tombolo-agent 0.0.1 7; exec cat > /dev/null",
    );
    let own = env!("CARGO_PKG_VERSION");
    let said = format!(
        "host n2: has oshrun of version 0.0.1, protocol 7, and this is version {own}, protocol"
    );
    refused(
        &rsh.run("--host n1:1,n2:1 echo started"),
        1,
        &[&said, "install the same on all hosts"],
    );
}

fn what_is_no_agent_is_named() {
    let rsh = Rsh::new("silent", "echo hello; echo strange >&2; exit 3");
    let said = [
        "host n1: cannot start oshrun there: tombolo-silent-",
        "ended with code 3 and said: strange",
    ];
    refused(&rsh.run("--host n1:1 echo started"), 1, &said);
    let script = "printf 'tombolo-agent %s 5\\n' $VERSION; yes; exec sleep 1000";
    let rsh = Rsh::new("chatter", script);
    let mut command = oshrun(&format!("--rsh {} --host n1:1 echo started", rsh.0.display()));
    command.env("VERSION", env!("CARGO_PKG_VERSION"));
    let outcome = run(command);
    assert_eq!(outcome.code(), 1);
    assert!(
        outcome.stderr.contains("host n1 is lost: its agent sends a message of"),
        "{}",
        outcome.stderr
    );
}

fn programs_that_cannot_run_are_named_with_their_host() {
    let outcome = run(oshrun("--host n1:1,n2:1 no-such-program"));
    refused(&outcome, 127, &["host n", "cannot run 'no-such-program': not found in PATH"]);
    // One that only some hosts have.
    let mut there = NODES.on(1, "sh");
    there.args(["-c", "mkdir -p /run/tombolo && cp /bin/true /run/tombolo/some"]);
    assert!(there.status().unwrap().success());
    let outcome = run(oshrun("--host n1:1,n2:1 /run/tombolo/some"));
    refused(&outcome, 127, &["host n2: cannot run '/run/tombolo/some': no such file"]);
}

fn agents_refuse_what_they_do_not_understand() {
    let greeting = format!("tombolo-agent {} 5\n", env!("CARGO_PKG_VERSION"));
    let garbage: Vec<u8> = (0..100_000u32).map(|i| (i * 31 + i / 7) as u8).collect();
    let with = |rest: &[u8]| [greeting.as_bytes(), rest].concat();
    for (input, why) in [
        (b"GET / HTTP/1.0\r\n\r\n".to_vec(), "this is for oshrun itself to call"),
        (garbage.clone(), "this is for oshrun itself to call"),
        (with(&garbage), "which is too long"),
        (with(&[3, 0, 0, 0, 200, 200, 200]), "a message that cannot be read"),
        (with(&[3, 0, 0, 0, 0]), "cut off"),
        // An order, but not the first.
        (with(&[1, 0, 0, 0, 2]), "the first message is not the description of the job"),
    ] {
        let outcome = run_with_input(oshrun("--agent"), &input);
        assert_eq!((outcome.code(), outcome.text()), (2, greeting.as_str()), "{why}");
        assert!(outcome.stderr.contains(why), "{why}: {}", outcome.stderr);
    }
    for input in [vec![], with(b"")] {
        assert_eq!(run_with_input(oshrun("--agent"), &input).well().text(), greeting);
    }
}

fn a_start_can_be_interrupted() {
    let rsh =
        Rsh::new("hangs", "test $1 = n1 && exec ssh -oBatchMode=yes $1 \"$2\"; exec sleep 1000");
    let nodes = nodes(1);
    let line = format!("--rsh {} --host n1:1,elsewhere:1 echo started", rsh.0.display());
    let job = Job::start(oshrun_on(&nodes, &line));
    wait_until("one agent waits", || {
        nodes.processes(1).iter().filter(|p| p.command.ends_with("oshrun --agent")).count() == 2
    });
    job.send(Signal::SIGINT);
    let outcome = job.finish();
    assert_eq!((outcome.signal(), outcome.text()), (Some(libc::SIGINT), ""), "{}", outcome.stderr);
    wait_until("nothing is left", || nodes.processes(1).iter().all(|p| p.command.is_empty()));
    let outcome = run(oshrun_on(&nodes, &format!("--timeout 3 {line}")));
    let said = "oshrun: PE 1 (host elsewhere): not started yet";
    assert_eq!((outcome.code(), outcome.text()), (124, ""), "{}", outcome.stderr);
    assert!(outcome.stderr.contains(said), "{}", outcome.stderr);
}

fn what_a_remote_shell_prints_does_no_harm() {
    let rsh = Rsh::new(
        "motd",
        "echo Welcome to $1; echo; printf 'no end of line '; exec ssh -oBatchMode=yes $1 \"$2\"",
    );
    let outcome = rsh.run("--host n1:1,n2:1 PE exchange");
    assert_eq!(outcome.well().text().lines().count(), 2);
}

fn secrets_are_on_no_command_line() {
    let rsh = Rsh::new("plain", "echo \"$*\" >&2; exec ssh -oBatchMode=yes $1 \"$2\"");
    let script = "test \"$SHMEM_HIDDEN\" && cat /proc/[0-9]*/cmdline | tr '\\0' ' '";
    let line = format!("--rsh {} --host n3:1 sh -c", rsh.0.display());
    let mut command = oshrun(&line);
    command.arg(script).env("SHMEM_HIDDEN", "tell-nobody");
    let outcome = run(command);
    let said = format!("{}{}", outcome.text(), outcome.stderr);
    assert!(said.contains("--agent") && !said.contains("tell-nobody"), "{said}");
    assert_eq!(outcome.code(), 0, "{said}");
}
