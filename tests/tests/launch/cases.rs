// SPDX-License-Identifier: Apache-2.0
//! The cases.

use crate::harness::{Job, Outcome, is_running, oshrun, run, run_with_input, shell};
use libtest_mimic::Trial;
use nix::sys::resource::{Resource, getrlimit, setrlimit};
use nix::sys::signal::Signal;
use nix::unistd::{Uid, setuid};
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::CommandExt;
use std::process::Command;
use std::time::Duration;
use tombolo_tests::{own_user, unless};

cases! {
    pes_exchange_values_through_the_server,
    many_pes_start_and_end,
    a_job_can_start_a_job,
    a_pe_may_be_started_by_a_script,
    a_pe_is_one_program,
    the_exit_code_is_that_of_the_pe_that_failed,
    a_crash_ends_the_job_and_is_named,
    a_crash_of_a_checked_pe_needs_no_hint,
    a_real_time_signal_is_an_end_as_well,
    leaving_without_finalize_is_a_failure,
    a_lost_connection_is_a_failure,
    a_pe_that_never_joins_is_a_failure,
    a_script_does_not_hide_the_end_of_its_program,
    programs_that_cannot_go_on_end_with_a_lost_pe,
    abort_ends_the_job_quietly_with_its_code,
    malformed_requests_end_the_job_with_a_reason,
    input_goes_to_pe_0_alone,
    labels_name_the_pe_of_every_line,
    lines_that_are_too_long_become_lines_with_labels,
    pes_know_their_number_on_their_host,
    lines_of_several_pes_are_never_torn,
    bytes_arrive_as_they_were_written,
    the_last_words_of_a_crashed_pe_arrive,
    both_streams_in_one_file_stay_in_order,
    a_prompt_appears_before_its_line_ends,
    a_reader_that_leaves_ends_the_job_quietly,
    programs_share_a_job,
    variables_are_set_for_their_program,
    pes_run_in_the_directory_that_is_asked_for,
    this_machine_may_be_named,
    hosts_are_emulated_by_block_and_in_turn,
    a_timeout_tells_what_each_pe_was_doing,
    a_report_can_be_asked_for,
    programs_that_cannot_run_are_named,
    machine_code_is_given_to_no_shell,
    a_low_limit_on_files_is_raised_for_many_hosts,
    a_limit_on_files_is_named,
    agents_pass_on_the_signal_mask_of_the_job,
    input_that_cannot_be_read_is_told,
    wrong_usage_is_explained,
}

fn pes_exchange_values_through_the_server() {
    for size in [1, 2, 4, 7] {
        let outcome = run(oshrun(&format!("-n {size} PE exchange"))).well();
        let expected: Vec<String> = (0..size)
            .map(|pe| format!("PE {pe} of {size}, program 0, (vector,(0,1,{size}))"))
            .collect();
        assert_eq!(outcome.sorted(), expected);
    }
}

fn many_pes_start_and_end() {
    assert_eq!(run(oshrun("-np 64 PE exchange")).well().text().lines().count(), 64);
}

fn a_job_can_start_a_job() {
    assert_eq!(
        run(oshrun("-n 2 --hosts 2 OSHRUN -n 3 PE exchange")).well().text().lines().count(),
        6
    );
}

fn a_pe_may_be_started_by_a_script() {
    let own = std::env::current_exe().unwrap();
    let script = format!("'{}' pe exchange; true", own.display());
    assert_eq!(run(shell("-n 3", &script)).well().text().lines().count(), 3);
}

fn a_pe_is_one_program() {
    let mut command = oshrun("-n 1 sh -c");
    let own = std::env::current_exe().expect("the test knows its own place");
    command.arg("\"$0\" pe exchange; \"$0\" pe exchange").arg(own);
    let outcome = run(command);
    assert_eq!(outcome.code(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains("start a job for each"), "{}", outcome.stderr);
}

fn the_exit_code_is_that_of_the_pe_that_failed() {
    let outcome = run(oshrun("-n 3 PE exit 1 5"));
    assert_eq!(outcome.code(), 5);
    assert!(outcome.stderr.starts_with("oshrun: PE 1 (pid "), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("exited with code 5"), "{}", outcome.stderr);
    assert_eq!(run(oshrun("-n 4 true")).well().code(), 0);
    assert_eq!(run(shell("-n 2", "exit 255")).code(), 255);
}

fn a_crash_ends_the_job_and_is_named() {
    for (number, name) in
        [(libc::SIGSEGV, "SIGSEGV"), (libc::SIGKILL, "SIGKILL"), (libc::SIGABRT, "SIGABRT")]
    {
        let outcome = run(oshrun(&format!("-n 3 -x SHMEM_DEBUG=0 PE crash 2 {number}")));
        assert_eq!(outcome.code(), 128 + number);
        let hint =
            outcome.stderr.contains("; run with SHMEM_DEBUG=1 to find a wrong PE or address;");
        assert_eq!(hint, number == libc::SIGSEGV, "{}", outcome.stderr);
        let machine = nix::unistd::gethostname().unwrap();
        let (pid, machine) = (outcome.text().trim(), machine.display());
        let start = format!("oshrun: PE 2 (pid {pid}, host {machine}) was killed by {name} (");
        assert!(outcome.stderr.starts_with(&start), "{}", outcome.stderr);
        assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
        // Generous for machines under load: a second is promised for the launcher's own part.
        assert!(outcome.time < Duration::from_secs(15), "{:?}", outcome.time);
    }
}

fn a_crash_of_a_checked_pe_needs_no_hint() {
    let line = format!("-n 1 PE crash 0 {0} : -n 1 -x SHMEM_DEBUG=1 PE crash 1 {0}", libc::SIGSEGV);
    let outcome = run(oshrun(&line));
    let of = |pe: &str| outcome.stderr.lines().find(|line| line.starts_with(pe));
    // The first to crash ends the job; whichever it is, the hint is for the other.
    match (of("oshrun: PE 0 "), of("oshrun: PE 1 ")) {
        (Some(line), None) => assert!(line.contains("run with SHMEM_DEBUG=1"), "{line}"),
        (None, Some(line)) => assert!(!line.contains("run with SHMEM_DEBUG=1"), "{line}"),
        other => panic!("{other:?}"),
    }
}

fn a_real_time_signal_is_an_end_as_well() {
    let number = libc::SIGRTMIN() + 2;
    assert_eq!(run(oshrun(&format!("-n 2 PE crash 0 {number}"))).code(), 128 + number);
}

#[track_caller]
fn failed_with(outcome: &Outcome, what: &str) {
    assert_eq!(outcome.code(), 1, "{}", outcome.stderr);
    assert!(outcome.stderr.contains(what), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
}

fn leaving_without_finalize_is_a_failure() {
    failed_with(&run(oshrun("-n 2 PE leave")), "exited without calling shmem_finalize");
}

fn a_lost_connection_is_a_failure() {
    failed_with(&run(oshrun("-n 2 PE close")), "closed its connection before shmem_finalize");
}

fn a_pe_that_never_joins_is_a_failure() {
    failed_with(&run(oshrun("-n 3 PE skip 1")), "has exited while other PEs wait");
}

fn a_script_does_not_hide_the_end_of_its_program() {
    // The script holds the connection open.
    let own = std::env::current_exe().unwrap();
    let script = format!("'{}' pe crash 1 9 || exec sleep 1000", own.display());
    let outcome = run(shell("-n 2", &script));
    assert_eq!(outcome.code(), 1, "{}", outcome.stderr);
    let program = outcome.text().trim();
    let says = format!(
        "runs a script whose program (pid {program}) ended before shmem_finalize; ending the job"
    );
    assert!(outcome.stderr.lines().any(|line| line.ends_with(&says)), "{}", outcome.stderr);
}

/// Not initialised as far as the launcher can tell: only OpenSHMEM programs know how to go on.
fn programs_that_cannot_go_on_end_with_a_lost_pe() {
    let outcome = run(oshrun("-n 3 -x SHMEM_ON_LOSS=continue PE crash 2 9"));
    assert_eq!(outcome.code(), 128 + libc::SIGKILL);
    assert!(outcome.stderr.contains("; ending the job"), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 1, "{}", outcome.stderr);
}

fn abort_ends_the_job_quietly_with_its_code() {
    // 256 would turn into success if it were cut to 8 bits as it is.
    for (asked, code) in [(7, 7), (0, 0), (256, 1), (-1, 255)] {
        let outcome = run(oshrun(&format!("-n 3 PE abort 1 {asked}")));
        assert_eq!((outcome.code(), outcome.stderr.as_str()), (code, ""));
        assert_eq!(outcome.text(), "last words\n");
    }
}

fn malformed_requests_end_the_job_with_a_reason() {
    for line in ["garbage", "cmd=spawn_nprocs=2", "cmd=put", "cmd=get_kvsname=x_key=y", "cmd=init"]
    {
        let outcome = run(oshrun(&format!("-n 2 PE send {line}")));
        failed_with(&outcome, "PE 0 (pid ");
        failed_with(&outcome, "sent a wrong PMI request: ");
    }
    let endless = format!("-n 2 PE send {}", "x".repeat(100_000));
    failed_with(&run(oshrun(&endless)), "sent a wrong PMI request: ");
}

fn input_goes_to_pe_0_alone() {
    let input: Vec<u8> = (0..300_000u32).map(|i| (i % 251) as u8).collect();
    let outcome = run_with_input(shell("-n 3", "cat"), &input).well();
    assert!(outcome.stdout == input, "{} bytes", outcome.stdout.len());
}

fn labels_name_the_pe_of_every_line() {
    let outcome = run(shell("-n 3 --label", "echo a; echo; echo e >&2; printf $PMI_RANK"));
    let expected: Vec<String> = (0..3)
        .flat_map(|pe| [format!("[{pe}] "), format!("[{pe}] {pe}"), format!("[{pe}] a")])
        .collect();
    assert_eq!((outcome.code(), outcome.sorted()), (0, expected.iter().map(|s| &**s).collect()));
    let mut errors: Vec<_> = outcome.stderr.lines().collect();
    errors.sort();
    assert_eq!(errors, ["[0] e", "[1] e", "[2] e"]);
}

fn lines_of_several_pes_are_never_torn() {
    let outcome = run(oshrun("-n 4 PE lines 2000")).well();
    let mut next = [0usize; 4];
    for line in outcome.text().lines() {
        let words: Vec<&str> = line.split(' ').collect();
        let [rank, number, rest] = words[..] else { panic!("torn: {line}") };
        let pe: usize = rank.parse().unwrap();
        assert_eq!((number.parse(), rest.len()), (Ok(next[pe]), 100 + next[pe] % 50), "{line}");
        next[pe] += 1;
    }
    assert_eq!(next, [2000; 4]);
}

fn bytes_arrive_as_they_were_written() {
    let input: Vec<u8> =
        (0..3_000_000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    for size in ["-n 1", "-n 2"] {
        let outcome = run_with_input(shell(size, "cat"), &input).well();
        assert!(outcome.stdout == input, "{size}: {} bytes", outcome.stdout.len());
    }
}

fn the_last_words_of_a_crashed_pe_arrive() {
    let outcome = run(shell("-n 2", "printf 'last words'; kill -KILL $$"));
    assert!(outcome.text().starts_with("last words"), "{}", outcome.text());
}

/// Each PE's lines come in pieces, none of which has text of another one.
fn lines_that_are_too_long_become_lines_with_labels() {
    let script = "yes $PMI_RANK | tr -d '\\n' | head -c 2500000; echo; echo end";
    let outcome = run(shell("-n 2 --label", script)).well();
    for pe in 0..2 {
        let label = format!("[{pe}] ");
        let lines: Vec<_> = outcome.text().lines().filter_map(|l| l.strip_prefix(&label)).collect();
        let of_pe = |line: &&str| line.chars().all(|c| c.to_string() == pe.to_string());
        assert_eq!(lines.len(), 4, "PE {pe}");
        assert!(lines[..3].iter().all(of_pe) && lines[3] == "end", "torn: PE {pe}");
        let lengths: Vec<usize> = lines.iter().map(|line| line.len()).collect();
        assert_eq!(lengths, [1 << 20, 1 << 20, 2_500_000 - (2 << 20), 3]);
    }
    assert_eq!(outcome.text().lines().count(), 8, "a line without a label");
}

fn both_streams_in_one_file_stay_in_order() {
    let script = "for i in 1 2 3 4 5 6 7 8; do echo out $i; echo err $i >&2; done";
    let mut command = std::process::Command::new("sh");
    let inner = shell("-n 2 --label", script);
    command
        .arg("-c")
        .arg("exec \"$@\" 2>&1")
        .arg("sh")
        .arg(inner.get_program())
        .args(inner.get_args());
    let outcome = run(command).well();
    for pe in 0..2 {
        let label = format!("[{pe}] ");
        let lines: Vec<_> = outcome.text().lines().filter_map(|l| l.strip_prefix(&label)).collect();
        let expected: Vec<String> =
            (1..9).flat_map(|i| [format!("out {i}"), format!("err {i}")]).collect();
        assert_eq!(lines, expected);
    }
}

fn a_prompt_appears_before_its_line_ends() {
    use std::io::Write;
    let mut job = Job::start(shell(
        "-n 2",
        "[ $PMI_RANK = 1 ] || { printf 'name? '; read name; echo $name; }",
    ));
    let mut prompt = [0; 6];
    job.read_exact(&mut prompt);
    assert_eq!(&prompt, b"name? ");
    job.stdin.take().unwrap().write_all(b"ada\n").unwrap();
    assert_eq!(job.finish().well().text(), "ada\n");
}

fn a_reader_that_leaves_ends_the_job_quietly() {
    for options in ["-n 1", "-n 4", "-n 4 --label"] {
        let mut job = Job::start(oshrun(&format!("{options} yes")));
        assert!(job.line().ends_with('y'));
        job.close_output();
        let outcome = job.finish();
        assert_eq!((outcome.signal(), outcome.stderr.as_str()), (Some(libc::SIGPIPE), ""));
    }
}

fn programs_share_a_job() {
    let outcome = run(oshrun("-n 1 PE exchange : -n 2 PE exchange : PE exchange")).well();
    let programs: Vec<_> =
        outcome.sorted().iter().map(|line| line.split(", ").nth(1).unwrap().to_owned()).collect();
    assert_eq!(programs, ["program 0", "program 1", "program 1", "program 2"]);
}

fn pes_run_in_the_directory_that_is_asked_for() {
    assert_eq!(run(shell("-n 2 --wdir /usr/lib", "pwd")).well().text(), "/usr/lib\n/usr/lib\n");
    let told = run(oshrun("-n 2 --wdir /usr/lib env")).well();
    assert_eq!(told.text().lines().filter(|line| *line == "PWD=/usr/lib").count(), 2);
    let wrong = run(shell("--wdir /no/such", "pwd"));
    assert_eq!(wrong.code(), 2, "{}", wrong.stderr);
    assert!(wrong.stderr.contains("--wdir /no/such: No such file"), "{}", wrong.stderr);
}

fn this_machine_may_be_named() {
    for line in ["--host localhost:3", "-host localhost -n 3", "--host localhost --ppn 3"] {
        // As without: no agent comes in between.
        let outcome = run(oshrun(&format!("{line} --rsh /no/such PE exchange"))).well();
        assert_eq!(outcome.text().lines().count(), 3, "{line}");
    }
}

fn variables_are_set_for_their_program() {
    let mut command = oshrun("-x A=1=2 -x GIVEN -n 1 sh -c");
    command.arg("echo $A $B $GIVEN").args(["-x", "--"]).env("GIVEN", "inherited");
    command.args([":", "-x", "B=", "-n", "1", "sh", "-c", "echo \"${A-none} ${B-none} $GIVEN\""]);
    let outcome = run(command).well();
    assert_eq!(outcome.sorted(), ["1=2 inherited", "none  inherited"]);
    let outcome = run(oshrun("-x NOT_SET_ANYWHERE true"));
    assert_eq!(outcome.code(), 0);
    assert!(outcome.stderr.contains("NOT_SET_ANYWHERE: not set"), "{}", outcome.stderr);
}

fn hosts_are_emulated_by_block_and_in_turn() {
    let hosts = |options: &str| -> String {
        let outcome = run(shell(options, "echo $PMI_RANK ${TOMBOLO_HOST-none}")).well();
        outcome.sorted().iter().map(|line| line.split_once(' ').unwrap().1).collect()
    };
    assert_eq!(hosts("-n 5 --hosts 2"), "00011");
    assert_eq!(hosts("-n 5 --hosts 2 --placement cyclic"), "01010");
    assert_eq!(hosts("-n 2"), "nonenone");
}

fn pes_know_their_number_on_their_host() {
    let told = |options: &str| -> Vec<String> {
        let mut command = shell(options, "echo $PMI_RANK: $MPI_LOCALRANKID of $MPI_LOCALNRANKS");
        // Those of a launcher around this one.
        command.env("MPI_LOCALRANKID", "7").env("MPI_LOCALNRANKS", "9");
        run(command).well().sorted().into_iter().map(str::to_owned).collect()
    };
    assert_eq!(told("-n 3"), ["0: 0 of 3", "1: 1 of 3", "2: 2 of 3"]);
    assert_eq!(told(""), ["0: 0 of 1"]);
    assert_eq!(told("-n 3 --hosts 2"), ["0: 0 of 2", "1: 1 of 2", "2: 0 of 1"]);
    assert_eq!(told("-n 3 --hosts 2 --placement cyclic"), ["0: 0 of 2", "1: 0 of 1", "2: 1 of 2"]);
    // A script decides by it.
    let script = "[ $MPI_LOCALRANKID = 0 ] && exec echo first; exec echo other";
    assert_eq!(
        run(shell("-n 4 --hosts 2", script)).well().sorted(),
        ["first", "first", "other", "other"]
    );
}

fn a_timeout_tells_what_each_pe_was_doing() {
    let mut job = Job::start(oshrun("-n 3 --timeout 3 PE blocked"));
    let pids = job.pids(3);
    let outcome = job.finish();
    assert_eq!(outcome.code(), 124);
    let lines: Vec<_> = outcome.stderr.lines().collect();
    assert_eq!(lines.len(), 4, "{}", outcome.stderr);
    assert!(lines[0].contains("has not ended after 3 s"), "{}", lines[0]);
    assert!(
        lines[1].starts_with("oshrun: PE 0 (pid ")
            && lines[1].contains("): not in a blocking SHMEM call"),
        "{}",
        lines[1]
    );
    assert!(lines[3].contains("PE 2") && lines[3].contains("in shmem_barrier_all"), "{}", lines[3]);
    assert!(pids.iter().all(|pid| outcome.stderr.contains(&format!("(pid {pid}): "))));
    assert!(pids.iter().all(|pid| !is_running(*pid)));
}

fn a_report_can_be_asked_for() {
    let mut job = Job::start(oshrun("-n 2 PE blocked"));
    let pids = job.pids(2);
    for times in 1..3 {
        job.send(Signal::SIGQUIT);
        job.wait_for_message("in shmem_barrier_all", times);
    }
    assert!(pids.iter().all(|pid| is_running(*pid)), "a report ends nothing");
    job.send(Signal::SIGTERM);
    assert_eq!(job.finish().signal(), Some(libc::SIGTERM));
}

fn programs_that_cannot_run_are_named() {
    for (program, code, what) in [
        ("./no-such-program", 127, "no such file"),
        ("no-such-program", 127, "not found in PATH"),
        ("/tmp", 126, "it is a directory"),
        ("/etc/passwd", 126, "no permission"),
    ] {
        let outcome = run(oshrun(&format!("-n 2 {program}")));
        assert_eq!(outcome.code(), code, "{program}");
        assert!(
            outcome.stderr.contains(what) && outcome.stderr.contains(program),
            "{}",
            outcome.stderr
        );
    }
    // A program that cannot start after others have started.
    let mut command = oshrun("-n 2 sleep 1000 : -n 1 no-such-program");
    command.stdin(std::process::Stdio::null());
    assert_eq!(run(command).code(), 127);
}

fn machine_code_is_given_to_no_shell() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("machine-code");
    // To a shell this is a command.
    std::fs::write(&place, "\x7fELF; echo a shell runs this\n").unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).unwrap();
    let outcome = run(oshrun(&format!("-n 2 {}", place.display())));
    assert_eq!((outcome.code(), outcome.text()), (126, ""), "{}", outcome.stderr);
    assert!(outcome.stderr.contains("another kind of machine"), "{}", outcome.stderr);
}

fn agents_pass_on_the_signal_mask_of_the_job() {
    let masks = |options: &str| {
        let outcome = run(oshrun(&format!("{options} grep SigBlk /proc/self/status"))).well();
        outcome.text().lines().map(str::to_owned).collect::<Vec<_>>()
    };
    // Names of one machine, which get an agent each.
    let (alone, agents) = (masks("-n 2"), masks("--host localhost,127.0.0.1"));
    assert_eq!((alone.len(), agents), (2, alone));
}

fn input_that_cannot_be_read_is_told() {
    // Names of one machine, which get an agent each.
    let mut command = oshrun("--host localhost,127.0.0.1 /bin/sh -c");
    command.arg("[ $PMI_RANK = 1 ] || ! read line").env("PATH", "/no/such");
    let outcome = run_with_input(command, b"line\n");
    assert_eq!(outcome.code(), 0, "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("oshrun: PE 0 gets no input"), "{}", outcome.stderr);
}

fn a_low_limit_on_files_is_raised_for_many_hosts() {
    let folder = tempfile::tempdir().unwrap();
    let place = folder.path().join("no-ssh");
    std::fs::write(&place, "#!/bin/sh\nexec sh -c \"$2\"\n").unwrap();
    std::fs::set_permissions(&place, std::fs::Permissions::from_mode(0o755)).unwrap();
    let hosts: Vec<String> = (0..15).map(|host| format!("host{host}")).collect();
    let line = format!("--host {} --rsh {} echo well", hosts.join(","), place.display());
    let mut command = oshrun(&line);
    // SAFETY: system calls on plain values.
    unsafe {
        command.pre_exec(|| {
            let (_, hard) = getrlimit(Resource::RLIMIT_NOFILE)?;
            Ok(setrlimit(Resource::RLIMIT_NOFILE, 32, hard)?)
        });
    }
    assert_eq!(run(command).well().text(), "well\n".repeat(15));
}

fn a_limit_on_files_is_named() {
    // The loader of programs needs one beside the standard streams.
    for limit in 4..24 {
        let mut command = oshrun("-n 2 true");
        // SAFETY: a system call on plain values.
        unsafe {
            command.pre_exec(move || Ok(setrlimit(Resource::RLIMIT_NOFILE, limit, limit)?));
        }
        let outcome = run(command);
        assert_eq!(outcome.code(), 1, "{limit}: {}", outcome.stderr);
        let told = |line: &str| line.starts_with("oshrun: ") && line.contains("ulimit -n");
        assert!(outcome.stderr.lines().all(told), "{limit}: {}", outcome.stderr);
        assert!(!outcome.stderr.is_empty(), "{limit}");
    }
}

fn wrong_usage_is_explained() {
    for (line, what) in [
        ("-n 0 true", "at least 1"),
        ("-n -2 true", "at least 1"),
        ("-n two true", "at least 1"),
        ("-n 18446744073709551615 true", "at most"),
        ("--timeout 1e19 true", "a number of seconds"),
        ("", "PROGRAM"),
        ("-n 2 true :", "PROGRAM"),
        ("--hosts 3 -n 2 true", "without PE"),
        ("--timeout never true", "number of seconds"),
        ("--no-such-option true", "--no-such-option"),
    ] {
        let outcome = run(oshrun(line));
        assert_eq!(outcome.code(), 2, "{line}");
        assert!(outcome.stderr.contains(what), "{line}: {}", outcome.stderr);
    }
    for option in ["--help", "--version"] {
        assert!(!run(oshrun(option)).well().stdout.is_empty());
    }
}

/// Cases that not every machine has what it takes for.
pub fn with_needs() -> Vec<Trial> {
    let cores = std::thread::available_parallelism().map_or(1, |count| count.get());
    let bound = Trial::test("bound_jobs_do_not_share_cores", || {
        bound_jobs_do_not_share_cores();
        Ok(())
    });
    let limit = Trial::test("a_limit_on_processes_is_named", || {
        a_limit_on_processes_is_named();
        Ok(())
    });
    let can_be_another = nix::unistd::geteuid().is_root()
        && as_another(oshrun("--version"), None).output().is_ok_and(|run| run.status.success());
    let another = "needs root, and a launcher that others may run";
    let closed = Trial::test("jobs_run_in_directories_to_which_there_is_no_way", || {
        jobs_run_in_directories_to_which_there_is_no_way();
        Ok(())
    });
    let foreign = Trial::test("numbers_of_another_namespace_are_no_children", || {
        numbers_of_another_namespace_are_no_children();
        Ok(())
    });
    let can_unshare = Command::new("unshare").args(UNSHARE).arg("true").output();
    let can_unshare = can_unshare.is_ok_and(|run| run.status.success());
    let unshared = "needs unshare, and the right to make a process namespace";
    vec![
        unless((!can_unshare).then_some(unshared), foreign),
        unless((cores < 2).then_some("needs two cores"), bound),
        unless((!can_be_another).then_some(another), limit),
        unless((!can_be_another).then_some(another), closed),
    ]
}

/// A process namespace of its own, with the `/proc` of the one around it.
const UNSHARE: [&str; 1] = ["-pf"];

/// Process 1 of that `/proc` has children whose numbers are those of others here, or of nobody.
fn numbers_of_another_namespace_are_no_children() {
    let oshrun = oshrun("-n 2 true");
    let mut command = Command::new("unshare");
    command.args(UNSHARE).arg(oshrun.get_program()).args(oshrun.get_args());
    run(command).well();
}

/// Has a command run as another user, who may have so many processes.
fn as_another(mut command: Command, processes: Option<u64>) -> Command {
    let limited = own_user(0);
    command.current_dir("/").uid(limited).gid(limited);
    if let Some(limit) = processes {
        // SAFETY: a system call on plain values.
        unsafe { command.pre_exec(move || Ok(setrlimit(Resource::RLIMIT_NPROC, limit, limit)?)) };
    }
    command
}

fn jobs_run_in_directories_to_which_there_is_no_way() {
    let place = tempfile::tempdir().unwrap();
    let own = place.path().join("own");
    std::fs::create_dir(&own).unwrap();
    std::fs::set_permissions(place.path(), std::fs::Permissions::from_mode(0o700)).unwrap();
    let mut command = oshrun("-n 2 true");
    command.current_dir(own);
    let shut_out = Uid::from_raw(own_user(1));
    // It is in the directory already.
    // SAFETY: a system call on plain values.
    unsafe { command.pre_exec(move || Ok(setuid(shut_out)?)) };
    run(command).well();
}

fn a_limit_on_processes_is_named() {
    // Keeper, launcher, two threads for output, two PEs.
    for limit in 1..=6 {
        let outcome = run(as_another(shell("-n 2", "exec true"), Some(limit)));
        match limit {
            6 => _ = outcome.well(),
            _ => {
                assert_eq!(outcome.code(), 1, "{limit}: {}", outcome.stderr);
                let told = |line: &str| line.starts_with("oshrun: ") && line.contains("ulimit -u");
                assert!(outcome.stderr.lines().all(told), "{limit}: {}", outcome.stderr);
            }
        }
    }
}

fn bound_jobs_do_not_share_cores() {
    let script = "echo $TOMBOLO_BOUND $(grep Cpus_allowed_list /proc/self/status); read end";
    let mut first = Job::start(shell("-n 1 --bind core", script));
    let mut second = Job::start(shell("-n 1 --bind core", script));
    let (one, two) = (first.line(), second.line());
    assert!(one.starts_with("on ") && two.starts_with("on ") && one != two, "{one}; {two}");
    // `read` fails at the end of the input, which is not the point here.
    first.finish();
    second.finish();
    let outcome = run(oshrun("-n 1000 --bind core true"));
    assert_eq!(outcome.code(), 0);
    assert!(outcome.stderr.contains("1000 PEs on "), "{}", outcome.stderr);
}
