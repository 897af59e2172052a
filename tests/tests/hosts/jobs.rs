// SPDX-License-Identifier: Apache-2.0
//! Jobs that go well.

use crate::harness::{Job, run, run_with_input};
use crate::{NODES, oshrun, shell};
use std::process::Command;

cases! {
    pes_of_several_hosts_exchange_values,
    hosts_get_their_pes_in_blocks,
    hosts_are_named_in_a_file_or_by_slurm,
    pes_know_their_number_on_their_machine,
    long_lines_of_several_hosts_are_never_torn,
    this_machine_needs_no_ssh,
    programs_share_a_job,
    many_pes_start_and_end,
    pes_have_the_environment_of_the_job,
    limits_and_directories_are_those_of_the_job,
    memory_may_be_locked_as_far_as_the_host_allows,
    labels_name_the_pe_of_every_line,
    lines_of_several_hosts_are_never_torn,
    both_streams_in_one_file_stay_in_order,
    a_slow_reader_holds_up_nothing_but_the_output,
    input_goes_to_pe_0_alone,
    a_prompt_appears_before_its_line_ends,
}

/// "HOST PE" of each PE, in order.
fn placed(line: &str) -> Vec<String> {
    placed_by(shell(line, "echo $PMI_RANK $(hostname)"))
}

#[track_caller]
fn placed_by(command: Command) -> Vec<String> {
    let outcome = run(command).well();
    let mut lines: Vec<(usize, String)> = outcome
        .text()
        .lines()
        .map(|line| {
            let (pe, host) = line.split_once(' ').unwrap();
            (pe.parse().unwrap(), host.to_owned())
        })
        .collect();
    lines.sort();
    assert!(lines.iter().map(|(pe, _)| *pe).eq(0..lines.len()), "{lines:?}");
    lines.into_iter().map(|(_, host)| host).collect()
}

fn pes_of_several_hosts_exchange_values() {
    for (hosts, mapping) in [
        ("n1:2,n2:2", "(vector,(0,2,2))"),
        ("n1:1,n2:3,n3:1", "(vector,(0,1,1),(1,1,3),(2,1,1))"),
        ("n3:2", "(vector,(0,1,2))"),
    ] {
        let outcome = run(oshrun(&format!("--host {hosts} PE exchange"))).well();
        let size = outcome.text().lines().count();
        let expected: Vec<String> =
            (0..size).map(|pe| format!("PE {pe} of {size}, program 0, {mapping}")).collect();
        assert_eq!(outcome.sorted(), expected, "{hosts}");
    }
}

fn hosts_get_their_pes_in_blocks() {
    assert_eq!(placed("--host n2:2,n1:1"), ["n2", "n2", "n1"]);
    assert_eq!(placed("-n 3 --host n2:2,n1:4"), ["n2", "n2", "n1"]);
    assert_eq!(placed("-n 3 --host n1,n2"), ["n1", "n1", "n2"]);
    assert_eq!(placed("--host n1:9,n2:9 -ppn 2"), ["n1", "n1", "n2", "n2"]);
    assert_eq!(placed("--host n1:3,n2:1 --placement cyclic"), ["n1", "n2", "n1", "n1"]);
    let wrong = run(oshrun("-n 4 --host n1:2,n2:1 true"));
    assert_eq!(wrong.code(), 2);
    assert!(wrong.stderr.contains("4 PEs do not fit: the hosts take 3"), "{}", wrong.stderr);
}

fn hosts_are_named_in_a_file_or_by_slurm() {
    let folder = tempfile::tempdir().unwrap();
    let file = folder.path().join("hosts");
    std::fs::write(&file, "# two of them\nn2 slots=2\nn1:1 # first\n").unwrap();
    assert_eq!(placed(&format!("--hostfile {}", file.display())), ["n2", "n2", "n1"]);
    drop(folder);
    let allocated = || {
        // There is no Slurm that srun could ask.
        let mut command = shell("--rsh ssh", "echo $PMI_RANK $(hostname)");
        command.env("SLURM_JOB_ID", "7").env("SLURM_JOB_NODELIST", "n[1-3]");
        command.env("SLURM_TASKS_PER_NODE", "2,1(x2)");
        command
    };
    assert_eq!(placed_by(allocated()), ["n1", "n1", "n2", "n3"]);
    let mut wrong = allocated();
    wrong.env("SLURM_TASKS_PER_NODE", "2");
    let wrong = run(wrong);
    assert_eq!(wrong.code(), 2);
    assert!(wrong.stderr.contains("SLURM_TASKS_PER_NODE"), "{}", wrong.stderr);
}

fn pes_know_their_number_on_their_machine() {
    let script = "echo $PMI_RANK $(hostname): $MPI_LOCALRANKID of $MPI_LOCALNRANKS";
    let expected = |places: &[&str]| -> Vec<String> {
        (0..).zip(places).map(|(pe, place): (usize, _)| format!("{pe} {place}")).collect()
    };
    let named = run(shell("--host n2:2,n1:1", script)).well();
    assert_eq!(named.sorted(), expected(&["n2: 0 of 2", "n2: 1 of 2", "n1: 0 of 1"]));
    let mut allocated = shell("--rsh ssh --placement cyclic", script);
    allocated.env("SLURM_JOB_ID", "7").env("SLURM_JOB_NODELIST", "n[1-2]");
    allocated.env("SLURM_TASKS_PER_NODE", "2,1");
    let allocated = run(allocated).well();
    assert_eq!(allocated.sorted(), expected(&["n1: 0 of 2", "n2: 0 of 1", "n1: 1 of 2"]));
}

fn long_lines_of_several_hosts_are_never_torn() {
    let script = "yes $PMI_RANK | tr -d '\\n' | head -c 2500000; echo";
    let outcome = run(shell("--host n1,n2 -n 2 --label", script)).well();
    for line in outcome.text().lines() {
        let (label, text) = line.split_once("] ").unwrap();
        let digit = label.trim_start_matches('[');
        assert!(text.chars().all(|c| c.to_string() == digit), "torn: a line of PE {digit}");
    }
    assert_eq!(outcome.text().lines().count(), 6);
}

fn this_machine_needs_no_ssh() {
    // There is no sshd on the login host, and no command to reach others.
    assert_eq!(placed("--host login:2"), ["login", "login"]);
    assert_eq!(placed("-n 2 --host localhost --rsh /nonexistent"), ["login", "login"]);
    assert_eq!(placed("--host n1:1,login:1"), ["n1", "login"]);
    assert_eq!(run(oshrun("--host login:2,n1:2 PE exchange")).well().text().lines().count(), 4);
}

fn programs_share_a_job() {
    let line = "--host n1:2,n2:2 -n 1 PE exchange : -n 3 -x A=b PE exchange";
    let outcome = run(oshrun(line)).well();
    let programs: Vec<&str> =
        outcome.sorted().iter().map(|line| line.split(", ").nth(1).unwrap()).collect();
    assert_eq!(programs, ["program 0", "program 1", "program 1", "program 1"]);
}

fn many_pes_start_and_end() {
    assert_eq!(run(oshrun("--host n1:32,n2:32 PE exchange")).well().text().lines().count(), 64);
}

fn pes_have_the_environment_of_the_job() {
    let script = "echo $SHMEM_SYMMETRIC_SIZE,$SMA_DEBUG,$GIVEN,$PASSED,$OTHER,$TOMBOLO_HOST,$PATH";
    let mut command = shell("--host n1:1,n2:1 -x GIVEN=a=b -x PASSED", script);
    command.env("SHMEM_SYMMETRIC_SIZE", "3m").env("SMA_DEBUG", "1").env("PASSED", "x y");
    command.env("OTHER", "not passed on");
    let path = format!("{}:/somewhere", std::env::var("PATH").unwrap());
    command.env("PATH", &path);
    let line = format!("3m,1,a=b,x y,,,{path}");
    assert_eq!(run(command).well().sorted(), [&line, &line]);
}

fn limits_and_directories_are_those_of_the_job() {
    let script = "ulimit -c; ulimit -n; umask; pwd";
    let outer = "ulimit -S -c 17; ulimit -S -n 99; umask 027; cd /usr/lib; exec \"$@\"";
    let inner = shell("--host n1:1", script);
    let mut command = NODES.login("sh");
    command.args(["-c", outer, "sh"]).arg(inner.get_program()).args(inner.get_args());
    assert_eq!(run(command).well().text(), "17\n99\n0027\n/usr/lib\n");
    assert_eq!(
        run(shell("--host n1:1 --wdir /usr/share", "pwd; echo $PWD")).well().text(),
        "/usr/share\n/usr/share\n"
    );
    let wrong = run(shell("--host n1:1,n2:1 --wdir /no/such", "pwd"));
    assert_eq!((wrong.code(), wrong.text()), (1, ""));
    assert!(
        wrong.stderr.contains("cannot run in the directory '/no/such': No such file"),
        "{}",
        wrong.stderr
    );
}

fn memory_may_be_locked_as_far_as_the_host_allows() {
    let mut login = NODES.login("ssh");
    login.args(["n1", "ulimit -H -l"]);
    let own = run(login).well().text().to_owned();
    assert_ne!(own, "8\n", "n1 has the limit that the test sets");
    let inner = shell("--host n1:1", "ulimit -S -l");
    let mut command = NODES.login("sh");
    command.args(["-c", "ulimit -S -l 8; exec \"$@\"", "sh"]);
    command.arg(inner.get_program()).args(inner.get_args());
    assert_eq!(run(command).well().text(), own);
}

fn labels_name_the_pe_of_every_line() {
    let outcome = run(shell("--host n1:1,n2:1 --label", "echo a; echo b >&2; printf c"));
    assert_eq!(outcome.sorted(), ["[0] a", "[0] c", "[1] a", "[1] c"]);
    let mut errors: Vec<&str> = outcome.stderr.lines().collect();
    errors.sort();
    assert_eq!(errors, ["[0] b", "[1] b"]);
}

fn lines_of_several_hosts_are_never_torn() {
    let outcome = run(oshrun("--host n1:2,n2:2 PE lines 3000")).well();
    let mut next = [0; 4];
    for line in outcome.text().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [rank, number, text] = words.as_slice() else { panic!("torn: {line}") };
        let (pe, number): (usize, usize) = (rank.parse().unwrap(), number.parse().unwrap());
        assert_eq!(next[pe], number, "in order");
        assert_eq!(*text, rank.repeat(100 + number % 50));
        next[pe] += 1;
    }
    assert_eq!(next, [3000; 4]);
}

fn both_streams_in_one_file_stay_in_order() {
    let inner =
        shell("--host n1:1,n2:1 --label", "for i in 1 2 3; do echo o$i; echo e$i >&2; done");
    let mut command = NODES.login("sh");
    command.args(["-c", "exec \"$@\" 2>&1", "sh"]).arg(inner.get_program()).args(inner.get_args());
    let outcome = run(command).well();
    for pe in ["[0] ", "[1] "] {
        let lines: Vec<&str> =
            outcome.text().lines().filter_map(|line| line.strip_prefix(pe)).collect();
        assert_eq!(lines, ["o1", "e1", "o2", "e2", "o3", "e3"]);
    }
}

fn a_slow_reader_holds_up_nothing_but_the_output() {
    // PE 1 ends the job while PE 0 has far more to print than fits anywhere.
    let script = "test $PMI_RANK = 0 && exec yes; sleep 0.5; echo ended >&2; exit 7";
    let mut job = Job::start(shell("--host n1:1,n2:1", script));
    job.wait_for_message("exited with code 7", 1);
    assert_eq!(job.line(), "y");
    assert_eq!(job.finish().code(), 7);
    // When nobody reads, the job ends without a word.
    let mut job = Job::start(shell("--host n1:1,n2:1", "exec yes"));
    assert_eq!(job.line(), "y");
    job.close_output();
    let outcome = job.finish();
    assert_eq!((outcome.signal(), outcome.stderr.as_str()), (Some(libc::SIGPIPE), ""));
}

fn input_goes_to_pe_0_alone() {
    let input: Vec<u8> = (0..3_000_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
    let outcome = run_with_input(oshrun("--host n1:2,n2:1 PE copy"), &input).well();
    assert!(outcome.stdout == input, "{} of {} bytes", outcome.stdout.len(), input.len());
    // What is not read harms nobody.
    assert_eq!(run_with_input(oshrun("--host n1:1,n2:1 true"), &input).well().code(), 0);
}

fn a_prompt_appears_before_its_line_ends() {
    let mut job = Job::start(shell(
        "--host n1:1,n2:1",
        "test $PMI_RANK = 0 && { printf '? '; read x; echo $x; }; true",
    ));
    let mut prompt = [0; 2];
    job.read_exact(&mut prompt);
    assert_eq!(&prompt, b"? ");
    use std::io::Write;
    job.stdin.as_mut().unwrap().write_all(b"answer\n").unwrap();
    assert_eq!(job.line(), "answer");
    job.finish().well();
}
