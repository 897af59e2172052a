// SPDX-License-Identifier: Apache-2.0
//! What the tests of the installed library share: its place, the lists, and commands under
//! a watchdog.

pub mod ends;
pub mod job;
pub mod losses;
pub mod program;
pub mod samples;

use std::ffi::OsStr;
use std::fs::{self, File};
use std::io;
use std::os::unix::fs::symlink;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::atomic::{AtomicUsize, Ordering};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

/// Folder of this crate.
pub fn crate_dir() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

/// Headers as they are in the repository.
pub fn include_dir() -> PathBuf {
    crate_dir().with_file_name("compat").join("include")
}

/// A folder for what tests of one program make: others that run at the same time have their own.
pub fn scratch(name: &str) -> PathBuf {
    let own = Path::new(env!("CARGO_TARGET_TMPDIR")).join(env!("CARGO_CRATE_NAME"));
    let dir = own.join(name);
    fs::create_dir_all(&dir).expect("a folder below target/ can be made");
    dir
}

/// Where the library and its tools are installed: `TOMBOLO_PREFIX`, or `target/tombolo`. An error
/// says what to do when nothing is there.
pub fn prefix() -> Result<PathBuf, String> {
    let prefix = match std::env::var_os("TOMBOLO_PREFIX") {
        Some(prefix) => PathBuf::from(prefix),
        None => crate_dir().with_file_name("target").join("tombolo"),
    };
    let prefix = std::path::absolute(&prefix).map_err(|error| error.to_string())?;
    if prefix.join("bin/oshcc").is_file() {
        return Ok(prefix);
    }
    Err(format!(
        "no installed library in {}: `cargo dev test` installs one there before it runs the tests; \
         set TOMBOLO_PREFIX to test another",
        prefix.display()
    ))
}

/// A folder with the library as this build has it for tests, under the name that programs look for.
pub fn library_of_tests() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let built = own.ancestors().map(|dir| dir.join("libtombolo.so")).find(|file| file.is_file());
    let built = built.ok_or("no libtombolo.so beside this test: build the whole workspace")?;
    let bytes = fs::read(&built).map_err(|error| format!("{}: {error}", built.display()))?;
    let setting = b"SHMEM_UNORDERED_SEED";
    if !bytes.windows(setting.len()).any(|window| window == setting) {
        return Err(format!(
            "{} was built without the transport: build the whole workspace (cargo test --workspace)",
            built.display()
        ));
    }
    let folder = scratch("unordered");
    let link = folder.join("libtombolo.so.0");
    let _ = fs::remove_file(&link);
    symlink(&built, &link).map_err(|error| format!("{}: {error}", link.display()))?;
    Ok(folder)
}

/// Whether a program of this name is in `PATH`.
pub fn installed(program: &str) -> bool {
    std::env::var_os("PATH")
        .is_some_and(|path| std::env::split_paths(&path).any(|dir| dir.join(program).is_file()))
}

/// How a command ended and what it printed.
#[derive(Debug)]
pub struct Ran {
    /// Exit code; `None` when a signal ended it, the watchdog's included.
    pub code: Option<i32>,
    /// Signal that ended it.
    pub signal: Option<i32>,
    /// After this time the watchdog killed it.
    pub killed_after: Option<Duration>,
    pub stdout: String,
    pub stderr: String,
}

impl Ran {
    /// The command's output if it ended with code 0, else an account of what happened.
    pub fn succeeded(self) -> Result<Ran, String> {
        match self.code {
            Some(0) => Ok(self),
            _ => Err(self.account("expected success")),
        }
    }

    /// `expected`, how the command ended instead, and the ends of its outputs.
    pub fn account(&self, expected: &str) -> String {
        let ended = match (self.killed_after, self.code, self.signal) {
            (Some(limit), _, _) => format!("still ran after {} s, killed", limit.as_secs()),
            (None, Some(code), _) => format!("exit code {code}"),
            (None, None, signal) => format!("ended by signal {signal:?}"),
        };
        let (stdout, stderr) = (tail(&self.stdout), tail(&self.stderr));
        format!("{expected}: {ended}\n--- stdout\n{stdout}\n--- stderr\n{stderr}")
    }
}

fn tail(text: &str) -> String {
    let lines: Vec<&str> = text.lines().collect();
    lines[lines.len().saturating_sub(40)..].join("\n")
}

/// Has a command end with this process, and its job with it.
pub fn ends_with_this(command: &mut Command) -> &mut Command {
    let end = || Ok(nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL)?);
    // SAFETY: a system call on plain values.
    unsafe { command.pre_exec(end) }
}

/// For `oshrun` to print what its PEs wait for, before it is killed.
const REPORT: Duration = Duration::from_secs(5);

/// Runs `command` in a process group of its own, and kills the group after `limit`. Where the command is a job of
/// `oshrun`, its standard error says then what each PE was doing.
///
/// Output goes through files: processes that outlive the command cannot keep the test waiting for
/// the end of a pipe.
pub fn run(command: &mut Command, limit: Duration) -> io::Result<Ran> {
    static RUNS: AtomicUsize = AtomicUsize::new(0);
    let unique = format!("{}-{}", std::process::id(), RUNS.fetch_add(1, Ordering::Relaxed));
    let paths = ["out", "err"].map(|kind| scratch("output").join(format!("{unique}.{kind}")));
    ends_with_this(command)
        .process_group(0)
        .stdin(Stdio::null())
        .stdout(File::create(&paths[0])?)
        .stderr(File::create(&paths[1])?);
    let mut child = command.spawn()?;

    let group = child.id();
    let is_oshrun = Path::new(command.get_program()).file_name() == Some("oshrun".as_ref());
    let (ended, watch) = mpsc::channel::<()>();
    let watchdog = thread::spawn(move || {
        let is_late = |limit| watch.recv_timeout(limit) == Err(mpsc::RecvTimeoutError::Timeout);
        let kill = |what: &[&str]| _ = Command::new("kill").args(what).status();
        if !is_late(limit) {
            return None;
        }
        if is_oshrun {
            kill(&["-QUIT", &group.to_string()]);
        }
        if !is_oshrun || is_late(REPORT) {
            // The group still exists: its leader, the child, has not been waited for.
            kill(&["-KILL", "--", &format!("-{group}")]);
        }
        Some(limit)
    });
    let status = child.wait()?;
    drop(ended);
    let killed_after = watchdog.join().expect("the watchdog does not panic");
    // It may have ended by itself after all.
    let killed_after = killed_after.filter(|_| status.signal() == Some(libc::SIGKILL));

    let [stdout, stderr] = [read(&paths[0])?, read(&paths[1])?];
    for path in paths {
        fs::remove_file(path)?;
    }
    Ok(Ran { code: status.code(), signal: status.signal(), killed_after, stdout, stderr })
}

fn read(path: &Path) -> io::Result<String> {
    Ok(String::from_utf8_lossy(&fs::read(path)?).into_owned())
}

/// Runs a compiler or another short tool; an error holds the command and what it said.
pub fn tool<S: AsRef<OsStr>>(program: impl AsRef<OsStr>, args: &[S]) -> Result<String, String> {
    let mut command = Command::new(program);
    command.args(args);
    let ran = run(&mut command, Duration::from_secs(120))
        .map_err(|error| format!("{command:?}: {error}"))?;
    match ran.succeeded() {
        Ok(ran) => Ok(ran.stdout),
        Err(account) => Err(format!("{command:?}\n{account}")),
    }
}

/// A routine of the standard.
pub struct Routine {
    /// `shmem_int_put`
    pub name: String,
    /// `void shmem_int_put(int *dest, const int *source, size_t nelems, int pe);`
    pub prototype: String,
}

/// Every C routine of OpenSHMEM 1.6.
pub fn routines() -> Vec<Routine> {
    let rows = rows("openshmem-1.6-c-prototypes.tsv");
    let routines: Vec<Routine> = rows
        .into_iter()
        .map(|row| Routine { name: row[0].clone(), prototype: row[2].clone() })
        .collect();
    assert_eq!(routines.len(), 1876, "the list is complete");
    routines
}

/// Rows of a list in `data`, split into columns, comments left out.
pub fn rows(file: &str) -> Vec<Vec<String>> {
    let text = fs::read_to_string(crate_dir().join("data").join(file)).expect("the list is there");
    text.lines()
        .filter(|line| !line.starts_with('#'))
        .map(|line| line.split('\t').map(str::to_owned).collect())
        .collect()
}
