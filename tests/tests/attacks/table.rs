// SPDX-License-Identifier: Apache-2.0
//! The table of ends in `oshrun(1)`, and whether `oshrun` does as it says.

use crate::support::ends::{ROWS, matches, row};
use crate::support::program::{LIMIT, Program};
use crate::support::{Ran, crate_dir, run, scratch};
use libtest_mimic::{Failed, Trial};
use std::path::Path;
use std::process::Command;
use std::sync::Arc;

pub fn trials(prefix: &Path) -> Vec<Trial> {
    let special = |name: &str| Program::new(prefix, &crate_dir().join(name), "", &["-O1"]);
    let faults = special("c/special/faults.c");
    let (waiting, survivors) = (faults.clone(), special("c/special/survivors.c"));
    let page = prefix.join("share/man/man1/oshrun.1");
    vec![
        Trial::test("messages_are_told_from_others", || {
            let message = "oshrun: PE <pe> (pid <pid>) was killed by <signal>; ending the job";
            let line = "oshrun: PE 1 (pid 7) was killed by SIGKILL (Killed); ending the job";
            assert!(matches(message, line) && matches("a <b>", "a x y") && matches("a", "a"));
            assert!(!matches(message, &line[1..]) && !matches(message, &format!("{line}!")));
            assert!(!matches("a <b>", "a ") && !matches("-", "a") && !matches("a <b> c", "a  c"));
            Ok(())
        }),
        Trial::test("the_manual_has_the_table_of_ends", move || {
            let page = std::fs::read_to_string(page)?;
            // As the page has it: without the marks of its language.
            let words = |text: &str| text.replace("\\-", "-").replace("\\&", "").replace('\\', "");
            let page = words(&page);
            for row in &*ROWS {
                assert!(page.contains(row.what), "{}", row.what);
                for message in row.messages.into_iter().filter(|message| *message != "-") {
                    assert!(page.contains(message), "{message}");
                }
            }
            Ok(())
        }),
        Trial::test("jobs_end_as_the_table_says", move || jobs(&faults)),
        Trial::test("jobs_that_take_a_while_end_as_the_table_says", move || {
            long_jobs(&waiting, &survivors)
        }),
    ]
}

/// Ends that need no moment.
fn jobs(faults: &Arc<Program>) -> Result<(), Failed> {
    let timeout = ["--timeout", "1"];
    let hosts = ["--hosts", "2", "--fault", "host 1 die at 0s"];
    expect(&faults.launch_with(&timeout, 2, &["finalize-alone"], &[])?, "timeout", 124)?;
    expect(&faults.launch_with(&hosts, 2, &["finalize-alone"], &[])?, "dies_early", 1)?;
    let going_on = [("SHMEM_ON_LOSS", "continue")];
    expect(&faults.launch_with(&hosts, 2, &["finalize-alone"], &going_on)?, "dies_early", 1)?;
    expect(&faults.launch(2, &["exit-early"], &[])?, "error", 1)?;
    expect(&faults.launch(2, &["leave-second", "_exit"], &[])?, "leave", 1)?;
    expect(&faults.launch(2, &["leave-second", "exec-long"], &[])?, "closed", 1)?;
    // A busy machine may give reason to warn of what was measured.
    let ran = faults.launch(3, &["global-exit"], &[("SHMEM_TUNE", "off")])?;
    expect(&ran, "global_exit", 7)?;
    let command = |words: &[&str]| {
        let mut oshrun = faults.oshrun();
        oshrun.args(words);
        run(&mut oshrun, LIMIT)
    };
    let folder = scratch("attacks").display().to_string();
    expect(&command(&["./no-such-program"])?, "program", 127)?;
    expect(&command(&[&folder])?, "program", 126)?;
    expect(&command(&["-n", "none", "true"])?, "usage", 2)?;
    expect(&command(&["-n", "2", "sh", "-c", "exit 7"])?, "exit", 7)?;
    expect(&command(&["-n", "2", "sh", "-c", "kill -SEGV $$"])?, "signal", 128 + 11)?;
    Ok(())
}

/// Prints for as long as it takes to find out that nobody takes it.
const PRINTING: &str = "for i in 1 2 3 4 5; do echo $i; sleep 0.1; done";

/// Ends that take a while, most of it asleep.
fn long_jobs(faults: &Arc<Program>, survivors: &Arc<Program>) -> Result<(), Failed> {
    let executable = faults.executable()?.display().to_string();
    let oshrun = faults.oshrun();
    // `$0` is oshrun, `$1` a program.
    let shell = |script: &str| {
        let mut shell = Command::new("bash");
        shell.args(["-c", script]).arg(oshrun.get_program()).arg(&executable);
        shell.envs(oshrun.get_envs().filter_map(|(name, value)| Some((name, value?))));
        shell
    };
    // Runs a job, and what the second script does to it once it is under way.
    let disturbed = |options: &str, job: &str, deed: &str| {
        let begun = "until [ $(wc -l < $ready) = 2 ]; do sleep 0.02; done";
        let script = format!(
            "export ready=$(mktemp); $0 {options} bash -c '{job}' & oshrun=$!; \
             {begun}; rm $ready; read runner < /proc/$oshrun/task/$oshrun/children; \
             {deed}; wait $oshrun"
        );
        shell(&script)
    };
    let near = scratch("attacks").join("near");
    // Another machine that is this one.
    std::fs::write(&near, "shift; exec sh -c \"$*\"\n")?;
    let machines = format!("--host a:1,b:1 --rsh 'sh {}' -x ready", near.display());
    let ready = "echo >> $ready";
    let cases = [
        ("script", 1, shell("$0 -n 2 sh -c '\"$0\" leave-second _exit; exec sleep 50' $1")),
        ("request", 1, shell("$0 -n 2 bash -c 'echo garbage >&$PMI_FD; exec sleep 50'")),
        ("output", 1, shell("exec $0 --label sh -c 'echo x; exec sleep 0.5' > /dev/full")),
        // Who goes on printing is not ended by it.
        ("output", 1, shell(&format!("exec $0 -n 2 sh -c '{PRINTING}' > /dev/full"))),
        ("absent", 1, shell("$0 -n 2 sh -c '[ $PMI_RANK = 0 ] || exec \"$0\" global-exit' $1")),
        ("unmet", 1, shell("exec $0 --host none.invalid:1 --rsh false true")),
        (
            "stubborn",
            128 + libc::SIGTERM,
            disturbed(
                "-n 2",
                &format!("trap : TERM; {ready}; for i in {{1..500}}; do sleep 0.1; done"),
                "kill -TERM $oshrun",
            ),
        ),
        (
            "launcher",
            128 + libc::SIGKILL,
            disturbed("-n 2", &format!("{ready}; exec sleep 50"), "kill -KILL $runner"),
        ),
        (
            "machine",
            1,
            disturbed(
                &machines,
                &format!("{ready}; exec sleep 50"),
                "read agent other < /proc/$runner/task/$runner/children; kill -KILL $agent",
            ),
        ),
        (
            "interrupt",
            128 + libc::SIGTERM,
            disturbed("-n 2", &format!("{ready}; exec sleep 50"), "kill -TERM $oshrun"),
        ),
    ];
    let jobs = cases.map(|(key, code, mut command)| {
        (key, code, std::thread::spawn(move || run(&mut command, LIMIT)))
    });
    // When even a busy machine has started the job.
    let faults = [
        ("continue", "link 0 down at 2s; link 2 down at 2s", "abba"),
        ("continue", "host 3 die at 2s", "aaax"),
        ("end", "host 3 die at 2s", "aaax"),
    ];
    let [split, lost, dies] = faults.map(|(on_loss, plan, group)| {
        let (survivors, setting) = (survivors.clone(), format!("SHMEM_ON_LOSS={on_loss}"));
        std::thread::spawn(move || {
            let options = ["--hosts", "4", "-x", &setting, "--fault", plan];
            survivors.launch_with(&options, 4, &[group], &[("SHMEM_TUNE", "off")])
        })
    });
    for (key, code, job) in jobs {
        expect(&job.join().expect("no panic")?, key, code)?;
    }
    expect(&dies.join().expect("no panic")?, "dies", 1)?;
    expect(&lost.join().expect("no panic")?, "lost", 125)?;
    let ran = split.join().expect("no panic")?;
    expect(&ran, "split", 125)?;
    let told = ran.stderr.lines().any(|line| row("unreachable").prints(line));
    if told { Ok(()) } else { Err(ran.account("expected hosts to be told of").into()) }
}

/// The code, and a line that the row of the table has.
fn expect(ran: &Ran, key: &str, code: i32) -> Result<(), Failed> {
    let row = row(key);
    let told = match row.is_silent() {
        true => ran.stderr.is_empty(),
        false => ran.stderr.lines().any(|line| row.prints(line)),
    };
    let numbers: Vec<i32> = row.code.split(", ").filter_map(|code| code.parse().ok()).collect();
    let as_said = numbers.is_empty() || numbers.contains(&code);
    if ran.code == Some(code) && as_said && told {
        return Ok(());
    }
    Err(ran.account(&format!("expected code {code} and what the table says of '{key}'")).into())
}
