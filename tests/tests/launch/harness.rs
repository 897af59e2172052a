// SPDX-License-Identifier: Apache-2.0
//! Running `oshrun` under a watchdog.

use nix::sys::prctl::set_pdeathsig;
use nix::sys::signal::{Signal, kill};
use nix::unistd::Pid;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::PathBuf;
use std::process::{Child, ChildStdout, Command, ExitStatus, Stdio};
use std::sync::mpsc::{Sender, channel};
use std::sync::{Arc, LazyLock, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// No job of these tests takes longer unless something is wrong.
const WATCHDOG: Duration = Duration::from_secs(30);

/// The launcher: of the installation under test, else one that is built now.
static OSHRUN: LazyLock<PathBuf> = LazyLock::new(|| {
    if let Some(prefix) = std::env::var_os("TOMBOLO_PREFIX") {
        return PathBuf::from(prefix).join("bin/oshrun");
    }
    let own = std::env::current_exe().expect("the test knows its own place");
    let profile = own.ancestors().nth(2).expect("tests lie in target/PROFILE/deps");
    let mut build = Command::new(env!("CARGO"));
    build.args(["build", "--quiet", "--package", "tombolo", "--bin", "oshrun"]);
    if profile.ends_with("release") {
        build.arg("--release");
    }
    assert!(build.status().expect("cargo runs").success(), "oshrun does not build");
    profile.join("oshrun")
});

/// `oshrun` with options and a program, separated by spaces; `PE` stands for the PE program.
pub fn oshrun(line: &str) -> Command {
    let own = std::env::current_exe().expect("the test knows its own place");
    let mut command = Command::new(&*OSHRUN);
    for word in line.split_whitespace() {
        match word {
            "PE" => command.arg(&own).arg("pe"),
            "OSHRUN" => command.arg(&*OSHRUN),
            word => command.arg(word),
        };
    }
    // The tests themselves may run under a launcher.
    for name in
        ["PMI_FD", "PMI_RANK", "PMI_SIZE", "TOMBOLO_HOST", "TOMBOLO_BOUND", "TOMBOLO_ONE_MACHINE"]
    {
        command.env_remove(name);
    }
    command
}

/// `oshrun` running `script` in a shell as every PE.
pub fn shell(options: &str, script: &str) -> Command {
    let mut command = oshrun(options);
    command.args(["sh", "-c", script]);
    command
}

/// How a job ended.
pub struct Outcome {
    pub status: ExitStatus,
    pub stdout: Vec<u8>,
    pub stderr: String,
    pub time: Duration,
}

impl Outcome {
    pub fn code(&self) -> i32 {
        self.status.code().unwrap_or_else(|| panic!("{}; {}", self.status, self.stderr))
    }

    pub fn signal(&self) -> Option<i32> {
        self.status.signal()
    }

    pub fn text(&self) -> &str {
        std::str::from_utf8(&self.stdout).expect("text")
    }

    /// Lines of standard output in alphabetical order.
    pub fn sorted(&self) -> Vec<&str> {
        let mut lines: Vec<_> = self.text().lines().collect();
        lines.sort();
        lines
    }

    /// Asserts success without a word from `oshrun`.
    #[track_caller]
    pub fn well(self) -> Outcome {
        assert_eq!((self.status.code(), self.stderr.as_str()), (Some(0), ""), "{}", self.status);
        self
    }
}

/// Runs `command` to its end.
#[track_caller]
pub fn run(command: Command) -> Outcome {
    run_with_input(command, b"")
}

/// Runs `command` to its end with `input` on its standard input.
#[track_caller]
pub fn run_with_input(command: Command, input: &[u8]) -> Outcome {
    let mut job = Job::start(command);
    let mut stdin = job.stdin.take().expect("piped");
    // Meanwhile the output is read, or neither side would get on.
    std::thread::scope(|scope| {
        scope.spawn(move || {
            // A program that does not read its input is none of our business.
            let _ = stdin.write_all(input);
        });
        job.finish()
    })
}

/// A running job.
pub struct Job {
    child: Child,
    begin: Instant,
    pub stdin: Option<std::process::ChildStdin>,
    stdout: Option<BufReader<ChildStdout>>,
    stderr: JoinHandle<String>,
    /// What standard error has said so far.
    said: Arc<Mutex<String>>,
    watchdog: (Sender<()>, JoinHandle<bool>),
}

impl Job {
    pub fn start(mut command: Command) -> Job {
        command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
        // No job is left behind when the test program is killed.
        // SAFETY: a system call on plain values.
        unsafe { command.pre_exec(|| Ok(set_pdeathsig(Signal::SIGKILL)?)) };
        let mut child = command.spawn().expect("oshrun starts");
        let pid = Pid::from_raw(child.id() as i32);
        let (disarm, armed) = channel();
        let watchdog = std::thread::spawn(move || {
            let bites = armed.recv_timeout(WATCHDOG).is_err();
            if bites {
                // The kernel then kills the PEs.
                let _ = kill(pid, Signal::SIGKILL);
            }
            bites
        });
        let said = Arc::new(Mutex::new(String::new()));
        let (pipe, writer) = (child.stderr.take().expect("piped"), said.clone());
        let stderr = std::thread::spawn(move || {
            for line in BufReader::new(pipe).split(b'\n').map_while(Result::ok) {
                let line = String::from_utf8_lossy(&line).into_owned() + "\n";
                writer.lock().expect("not poisoned").push_str(&line);
            }
            writer.lock().expect("not poisoned").clone()
        });
        Job {
            begin: Instant::now(),
            stdin: child.stdin.take(),
            stdout: child.stdout.take().map(BufReader::new),
            child,
            stderr,
            said,
            watchdog: (disarm, watchdog),
        }
    }

    pub fn pid(&self) -> Pid {
        Pid::from_raw(self.child.id() as i32)
    }

    pub fn send(&self, signal: Signal) {
        kill(self.pid(), signal).expect("oshrun runs");
    }

    /// The next line of standard output.
    #[track_caller]
    pub fn line(&mut self) -> String {
        let mut line = String::new();
        let count = self.stdout.as_mut().expect("open").read_line(&mut line).expect("readable");
        assert!(count > 0, "the job ended; it said: {}", self.said.lock().expect("not poisoned"));
        line.trim_end().to_owned()
    }

    /// The next bytes of standard output, as many as `bytes` holds.
    pub fn read_exact(&mut self, bytes: &mut [u8]) {
        self.stdout.as_mut().expect("open").read_exact(bytes).expect("the job prints");
    }

    /// The next `count` lines, each holding the process id of a PE.
    #[track_caller]
    pub fn pids(&mut self, count: usize) -> Vec<Pid> {
        (0..count).map(|_| Pid::from_raw(self.line().parse().expect("a process id"))).collect()
    }

    /// Stops reading the output.
    pub fn close_output(&mut self) {
        self.stdout = None;
    }

    /// Waits until standard error has `count` lines that hold `text`.
    pub fn wait_for_message(&self, text: &str, count: usize) {
        wait_until(&format!("{count} times '{text}' on standard error"), || {
            let said = self.said.lock().expect("not poisoned");
            said.lines().filter(|line| line.contains(text)).count() >= count
        });
    }

    /// Waits for the end.
    #[track_caller]
    pub fn finish(mut self) -> Outcome {
        drop(self.stdin.take());
        let mut stdout = vec![];
        if let Some(mut pipe) = self.stdout.take() {
            pipe.read_to_end(&mut stdout).expect("readable");
        }
        let status = self.child.wait().expect("a child of ours");
        let time = self.begin.elapsed();
        let stderr = self.stderr.join().expect("reads");
        let (disarm, watchdog) = self.watchdog;
        // Fails only if the watchdog has gone already, which the next line finds.
        let _ = disarm.send(());
        assert!(!watchdog.join().expect("waits"), "hung and was killed; it said: {stderr}");
        Outcome { status, stdout, stderr, time }
    }
}

/// Waits for something that is about to become true.
#[track_caller]
pub fn wait_until(what: &str, mut condition: impl FnMut() -> bool) {
    let begin = Instant::now();
    while !condition() {
        assert!(begin.elapsed() < WATCHDOG, "in vain: {what}");
        std::thread::sleep(Duration::from_millis(1));
    }
}

/// Whether a process runs (or is stopped), as opposed to having ended.
pub fn is_running(pid: Pid) -> bool {
    state(pid).is_some_and(|state| !"ZX".contains(state))
}

/// Whether a process is stopped by a signal.
pub fn is_stopped(pid: Pid) -> bool {
    state(pid) == Some('T')
}

fn state(pid: Pid) -> Option<char> {
    let stat = std::fs::read_to_string(format!("/proc/{pid}/stat")).ok()?;
    stat.rsplit_once(") ")?.1.chars().next()
}
