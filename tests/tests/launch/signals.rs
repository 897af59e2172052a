// SPDX-License-Identifier: Apache-2.0
//! Signals to the launcher, and what becomes of the processes of a job.

use crate::harness::{Job, is_running, is_stopped, oshrun, run, shell, wait_until};
use nix::sys::signal::{SaFlags, SigAction, SigHandler, SigSet, Signal, kill, killpg, sigaction};
use nix::unistd::Pid;
use std::fs::File;
use std::io::{Read, Write};
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

cases! {
    user_signals_are_passed_on,
    an_interrupt_leaves_nothing_running,
    a_second_interrupt_kills,
    a_program_may_finish_after_an_interrupt,
    a_program_may_finish_after_its_script_was_interrupted,
    a_program_may_finish_after_others_have_ended,
    a_background_job_stops_as_a_whole_when_it_may_not_write,
    an_interrupt_of_the_group_counts_once,
    an_interrupt_that_is_late_counts,
    output_of_other_hosts_is_waited_for_after_a_failure,
    an_interrupt_ends_the_wait_for_output_of_other_hosts,
    an_interrupt_ends_the_wait_for_a_reader_of_the_profile,
    pes_that_ignore_an_interrupt_are_killed,
    a_stopped_job_of_several_hosts_leaves_the_terminal_to_the_shell,
    a_job_can_be_stopped_and_continued,
    a_job_that_is_continued_while_it_stops_goes_on,
    a_killed_launcher_takes_its_pes_along,
    a_killed_launcher_takes_along_what_scripts_started,
    the_process_that_runs_the_job_may_be_killed,
    a_pe_that_ends_a_job_for_want_of_another_does_not_hide_its_end,
    a_stopped_job_ends_with_its_shell,
    processes_left_behind_are_killed,
    processes_left_behind_are_killed_after_a_stop,
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
    // Not by what comes where they are left alone.
    assert!(!outcome.stderr.contains("PEs still run 5 s after"), "{}", outcome.stderr);
    assert!(pids.iter().all(|pid| !is_running(*pid)));
}

fn a_program_may_finish_after_an_interrupt() {
    let script = "trap 'echo saved; exit 0' TERM; echo ready; while :; do sleep 0.01; done";
    let mut job = Job::start(shell("-n 2", script));
    assert_eq!([job.line(), job.line()], ["ready", "ready"]);
    job.send(Signal::SIGTERM);
    assert_eq!(job.finish().well().text(), "saved\nsaved\n");
}

fn a_program_may_finish_after_its_script_was_interrupted() {
    let mut command = shell("-n 2", "\"$0\" pe save; exit 3");
    command.arg(std::env::current_exe().expect("the test knows its own place"));
    let mut job = Job::start(command);
    assert_eq!([job.line(), job.line()], ["ready", "ready"]);
    job.send(Signal::SIGTERM);
    let outcome = job.finish();
    assert_eq!(outcome.text(), "saved\nsaved\n", "{}", outcome.stderr);
}

fn a_program_may_finish_after_others_have_ended() {
    // One takes its time, one fails meanwhile, one is killed by the signal itself.
    for (signal, code) in [("TERM", "exit 0"), ("INT", "exit 3"), ("INT", "kill -ABRT $$")] {
        let script = format!(
            "case $PMI_RANK in \
             0) trap 'sleep 2; echo saved; exit 0' {signal};; \
             1) trap '{code}' {signal};; \
             esac; echo ready; while :; do sleep 0.01; done"
        );
        let mut job = Job::start(shell("-n 3", &script));
        (0..3).for_each(|_| assert_eq!(job.line(), "ready"));
        job.send(if signal == "INT" { Signal::SIGINT } else { Signal::SIGTERM });
        let outcome = job.finish();
        assert_eq!(outcome.text(), "saved\n", "{}", outcome.stderr);
        assert_ne!(outcome.status.code(), Some(0));
    }
}

/// A terminal, with a shell that controls jobs in it.
struct Terminal {
    shell: Child,
    terminal: File,
    said: String,
}

impl Terminal {
    fn open() -> Terminal {
        // SAFETY: plain system calls; the descriptors are this function's own.
        let (terminal, other) = unsafe {
            let terminal = libc::posix_openpt(libc::O_RDWR | libc::O_NOCTTY | libc::O_CLOEXEC);
            assert!(terminal >= 0 && libc::grantpt(terminal) == 0 && libc::unlockpt(terminal) == 0);
            let other = libc::ioctl(terminal, libc::TIOCGPTPEER, libc::O_RDWR | libc::O_NOCTTY);
            assert!(other >= 0, "the other side of a terminal");
            libc::fcntl(terminal, libc::F_SETFL, libc::O_NONBLOCK);
            (File::from_raw_fd(terminal), File::from_raw_fd(other))
        };
        let stream = || Stdio::from(other.try_clone().expect("a descriptor"));
        let mut shell = Command::new("bash");
        shell.args(["--norc", "--noprofile", "-i"]).env("PS1", "").env("TERM", "dumb");
        shell.stdin(stream()).stdout(stream()).stderr(stream());
        let control = || {
            nix::unistd::setsid()?;
            // SAFETY: standard input is the terminal.
            match unsafe { libc::ioctl(0, libc::TIOCSCTTY, 0) } {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        };
        // SAFETY: `control` makes system calls only, which is all that may be done after a fork.
        unsafe { shell.pre_exec(control) };
        let shell = shell.spawn().expect("bash");
        Terminal { shell, terminal, said: String::new() }
    }

    fn say(&mut self, line: &str) {
        writeln!(self.terminal, "{line}").expect("a terminal");
    }

    /// Waits until `text` has appeared `count` times since the start; asks `meanwhile` again and again.
    fn expect(&mut self, text: &str, count: usize, meanwhile: Option<&str>) {
        let begin = Instant::now();
        let mut bytes = [0; 4096];
        while self.said.matches(text).count() < count {
            assert!(begin.elapsed() < Duration::from_secs(20), "no '{text}' in '{}'", self.said);
            if let Ok(n @ 1..) = self.terminal.read(&mut bytes) {
                self.said.push_str(&String::from_utf8_lossy(&bytes[..n]));
                continue;
            }
            std::thread::sleep(Duration::from_millis(20));
            if let Some(line) = meanwhile {
                self.say(line);
            }
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        // The end of the terminal hangs up on all jobs in it.
        let _ = self.shell.kill();
        let _ = self.shell.wait();
    }
}

fn a_background_job_stops_as_a_whole_when_it_may_not_write() {
    let mut terminal = Terminal::open();
    terminal.say("stty tostop -echo; echo rea''dy");
    terminal.expect("ready", 1, None);
    let job = shell("-n 2", "echo hel''lo; sleep 0.1; echo hel''lo");
    let words = std::iter::once(job.get_program()).chain(job.get_args());
    let words: Vec<String> = words.map(|w| format!("\"{}\"", w.to_string_lossy())).collect();
    terminal.say(&format!("{} &", words.join(" ")));
    terminal.expect("Stopped", 1, Some("jobs"));
    assert!(!terminal.said.contains("hello"), "{}", terminal.said);
    terminal.say("fg; echo co''de $?");
    terminal.expect("code 0", 1, None);
    assert_eq!(terminal.said.matches("hello").count(), 4, "{}", terminal.said);
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

/// The signal ends the PEs of the group a moment before the launcher hears of it, or, where the machine is busy,
/// long before.
fn an_interrupt_that_is_late_counts() {
    for count in [1, 2] {
        let mut command = oshrun(&format!("-n {count} PE hang"));
        command.process_group(0);
        let mut job = Job::start(command);
        let pids = job.pids(count);
        job.send(Signal::SIGSTOP);
        wait_until("the signal cannot be passed on", || is_stopped(job.pid()));
        killpg(job.pid(), Signal::SIGINT).unwrap();
        wait_until("the PEs end", || pids.iter().all(|pid| !is_running(*pid)));
        std::thread::sleep(Duration::from_millis(10));
        job.send(Signal::SIGCONT);
        let outcome = job.finish();
        match outcome.signal() {
            Some(signal) => assert_eq!((signal, outcome.stderr.as_str()), (libc::SIGINT, "")),
            None => assert_eq!(outcome.code(), 128 + libc::SIGINT, "{}", outcome.stderr),
        }
    }
}

/// Bytes of output that are on their way at once and of which, while nobody reads, some cannot leave their host.
const MUCH: usize = 1_500_000;

/// A job on several hosts, which are names of this one, with all its output written and none read: PE 1 writes it,
/// and PE 0 exits with `code` when all is written.
fn unread_job(name: &str, code: u8) -> Job {
    let written = std::env::temp_dir().join(format!("tombolo-{name}-{}", std::process::id()));
    let written = written.display();
    let script = format!(
        "if [ $PMI_RANK = 1 ]; then \"$0\" pe pour {MUCH}; : >'{written}'; exit; fi; \
         while [ ! -e '{written}' ]; do sleep 0.01; done; rm '{written}'; echo written >&2; \
         exit {code}"
    );
    let mut command = shell("--host localhost,127.0.0.1", &script);
    command.arg(std::env::current_exe().expect("the test knows its own place"));
    let job = Job::start(command);
    job.wait_for_message("written", 1);
    job
}

fn output_of_other_hosts_is_waited_for_after_a_failure() {
    let job = unread_job("failed", 3);
    job.wait_for_message("exited with code 3; ending the job", 1);
    // Longer than hosts are waited for that do not answer.
    std::thread::sleep(Duration::from_millis(4500));
    let outcome = job.finish();
    assert_eq!((outcome.code(), outcome.stdout.len()), (3, MUCH), "{}", outcome.stderr);
    assert_eq!(outcome.stderr.lines().count(), 2, "{}", outcome.stderr);
}

fn an_interrupt_ends_the_wait_for_output_of_other_hosts() {
    let job = unread_job("unread", 0);
    // That the PEs have ended is known a moment later: the first may be for them.
    wait_until("it ends", || {
        std::thread::sleep(Duration::from_millis(20));
        job.send(Signal::SIGINT);
        !is_running(job.pid())
    });
    let outcome = job.finish();
    assert_eq!(outcome.signal(), Some(libc::SIGINT), "{}", outcome.stderr);
    assert_eq!(outcome.stderr, "written\n");
}

fn an_interrupt_ends_the_wait_for_a_reader_of_the_profile() {
    let (_reader, mut writer) = std::io::pipe().unwrap();
    // SAFETY: a system call on a descriptor that is open.
    let room = unsafe { libc::fcntl(writer.as_raw_fd(), libc::F_GETPIPE_SZ) };
    writer.write_all(&vec![b'x'; room as usize]).unwrap();
    let mut command = oshrun("-n 1 --profile=text true");
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(writer);
    let mut oshrun = command.spawn().unwrap();
    let pid = Pid::from_raw(oshrun.id() as i32);
    std::thread::sleep(Duration::from_millis(200));
    let begin = Instant::now();
    while oshrun.try_wait().unwrap().is_none() && begin.elapsed() < Duration::from_secs(10) {
        kill(pid, Signal::SIGINT).unwrap();
        std::thread::sleep(Duration::from_millis(20));
    }
    // Nothing happens where it has ended.
    oshrun.kill().unwrap();
    assert_eq!(oshrun.wait().unwrap().signal(), Some(libc::SIGINT));
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
        assert!(Duration::from_secs(5) < outcome.time && outcome.time < Duration::from_secs(25));
        assert!(pids.iter().all(|pid| !is_running(*pid)));
    }
}

fn a_stopped_job_of_several_hosts_leaves_the_terminal_to_the_shell() {
    let mut terminal = Terminal::open();
    terminal.say("stty -echo; echo rea''dy");
    terminal.expect("ready", 1, None);
    // Names of one machine, which get an agent each.
    let script = "[ $PMI_RANK = 1 ] || { echo started; read line; echo read $line; }";
    let job = shell("--host localhost,127.0.0.1", script);
    let words = std::iter::once(job.get_program()).chain(job.get_args());
    let words: Vec<String> = words.map(|w| format!("'{}'", w.to_string_lossy())).collect();
    terminal.say(&words.join(" "));
    terminal.expect("started", 1, None);
    write!(terminal.terminal, "\x1a").expect("a terminal");
    terminal.expect("Stopped", 1, None);
    terminal.say("echo for the she''ll");
    terminal.expect("for the shell", 1, None);
    terminal.say("fg");
    // The shell names the job when it has stopped, and when it goes on.
    terminal.expect("PMI_RANK", 2, None);
    terminal.say("words");
    terminal.expect("read words", 1, None);
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

/// The process that was started is continued before it has come to stopping itself.
fn a_job_that_is_continued_while_it_stops_goes_on() {
    let mut command = oshrun("-n 2 PE hang");
    // As below.
    command.process_group(0);
    let mut job = Job::start(command);
    job.pids(2);
    let launcher = runs_the_job(&job);
    for pid in [job.pid(), launcher] {
        kill(pid, Signal::SIGSTOP).unwrap();
        wait_until("it is stopped", || is_stopped(pid));
    }
    job.send(Signal::SIGCONT);
    wait_until("all goes on", || ![job.pid(), launcher].into_iter().any(is_stopped));
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

/// The process that runs a job, which the one that was started waits for.
fn runs_the_job(job: &Job) -> Pid {
    let children = format!("/proc/{0}/task/{0}/children", job.pid());
    Pid::from_raw(std::fs::read_to_string(children).unwrap().trim().parse().unwrap())
}

fn the_process_that_runs_the_job_may_be_killed() {
    let (job, programs) = job_of_scripts();
    kill(runs_the_job(&job), Signal::SIGKILL).unwrap();
    let outcome = job.finish();
    assert_eq!(outcome.code(), 128 + libc::SIGKILL);
    assert!(outcome.stderr.contains("was killed by SIGKILL"), "{}", outcome.stderr);
    assert!(programs.iter().all(|pid| !is_running(*pid)));
}

/// The launcher gets no processor while one PE is killed and another one, which misses it, ends the job.
fn a_pe_that_ends_a_job_for_want_of_another_does_not_hide_its_end() {
    let mut command = oshrun("-n 2 PE follow");
    // As below.
    command.process_group(0);
    let mut job = Job::start(command);
    let mut lines = [job.line(), job.line()];
    lines.sort();
    let pids = lines.map(|line| Pid::from_raw(line[2..].parse().expect("a process id")));
    let launcher = runs_the_job(&job);
    kill(launcher, Signal::SIGSTOP).unwrap();
    wait_until("the launcher is stopped", || is_stopped(launcher));
    kill(pids[1], Signal::SIGKILL).unwrap();
    wait_until("a PE is killed", || !is_running(pids[1]));
    job.stdin.as_mut().expect("piped").write_all(b"end\n").unwrap();
    wait_until("the other one ends", || !is_running(pids[0]));
    kill(launcher, Signal::SIGCONT).unwrap();
    job.send(Signal::SIGCONT);
    let outcome = job.finish();
    assert_eq!(outcome.code(), 128 + libc::SIGKILL, "{}", outcome.stderr);
    assert!(outcome.stderr.starts_with("oshrun: PE 1 (pid "), "{}", outcome.stderr);
}

fn a_stopped_job_ends_with_its_shell() {
    let mut terminal = Terminal::open();
    terminal.say("stty -echo; echo rea''dy");
    terminal.expect("ready", 1, None);
    let job = shell("-n 2", "echo pid=$$; exec sleep 1000");
    let words = std::iter::once(job.get_program()).chain(job.get_args());
    let words: Vec<String> = words.map(|w| format!("'{}'", w.to_string_lossy())).collect();
    terminal.say(&words.join(" "));
    terminal.expect("pid=", 2, None);
    write!(terminal.terminal, "\x1a").expect("a terminal");
    terminal.expect("Stopped", 1, None);
    // The shell names the job as well.
    let pes = terminal.said.split("pid=").skip(1).filter_map(first_number);
    let pes: Vec<Pid> = pes.collect();
    assert!(pes.len() == 2, "{}", terminal.said);
    // Of a busy machine some may not have come to it yet.
    wait_until("the PEs stop", || pes.iter().all(|pid| is_stopped(*pid)));
    terminal.shell.kill().expect("a shell");
    for pid in pes {
        wait_until("the PEs end", || !is_running(pid));
    }
}

/// The process id that a text begins with, if one does.
fn first_number(text: &str) -> Option<Pid> {
    let digits: String = text.chars().take_while(char::is_ascii_digit).collect();
    digits.parse().ok().map(Pid::from_raw)
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

/// The launcher is stopped while it waits for them to end by themselves, for longer than it would wait.
fn processes_left_behind_are_killed_after_a_stop() {
    let mut command = shell("-n 1", "setsid sleep 1000 & echo $!; echo $$");
    // The system hangs up a group of which a process is stopped, if nobody outside can continue it: that
    // may be so of the group of the tests.
    command.process_group(0);
    let mut job = Job::start(command);
    let [orphan, pe] = job.pids(2)[..] else { panic!("two processes") };
    let launcher = runs_the_job(&job);
    wait_until("the PE's end is seen", || kill(pe, None).is_err());
    std::thread::sleep(Duration::from_millis(50));
    kill(launcher, Signal::SIGSTOP).unwrap();
    std::thread::sleep(Duration::from_secs(3));
    kill(launcher, Signal::SIGCONT).unwrap();
    wait_until("what is left is killed", || !is_running(orphan));
    job.send(Signal::SIGCONT);
    job.finish().well();
}

fn the_end_of_a_pipeline_may_finish() {
    // The shell ends at once; what copies its output needs a moment longer.
    let script = "(sleep 0.05; echo late) &";
    assert_eq!(run(shell("-n 2", script)).well().text(), "late\nlate\n");
}
