//! An OpenSHMEM implementation: its compiler wrapper, its launcher and what they want to be told.

use crate::programs;
use nix::sys::signal::{Signal, killpg};
use nix::unistd::Pid;
use std::error::Error;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Output, Stdio};
use std::sync::mpsc;
use std::thread;
use std::time::Duration;

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What is measured, or what it is compared with.
#[derive(Clone, Debug)]
pub struct Implementation {
    /// Short, for directories.
    pub name: &'static str,
    /// With its version, for people.
    pub title: String,
    oshcc: PathBuf,
    oshrun: PathBuf,
    /// Arguments of every job.
    always: &'static [&'static str],
    /// Arguments that give each PE a core, and that leave them free.
    bound: &'static [&'static str],
    free: &'static [&'static str],
}

/// Open MPI binds PEs unless told otherwise and refuses more PEs than cores unless told otherwise.
/// Its one-sided components other than `ucx` crash in finalize when a job has no fabric (4.1.4).
const OPEN_MPI: &[&str] = &["--oversubscribe", "--mca", "osc", "ucx"];
const OPEN_MPI_AS_ROOT: &[&str] =
    &["--allow-run-as-root", "--oversubscribe", "--mca", "osc", "ucx"];

impl Implementation {
    /// This library, from an installation.
    pub fn tombolo(prefix: &Path) -> Result<Implementation> {
        let tool = |name: &str| {
            fs::canonicalize(prefix.join("bin").join(name)).map_err(|_| {
                format!(
                    "no {name} in {}/bin: run `cargo dev install --prefix {0}` first, \
                     in the directory of the repository",
                    prefix.display()
                )
            })
        };
        Ok(Implementation {
            name: "tombolo",
            title: format!("Tombolo {}", env!("CARGO_PKG_VERSION")),
            oshcc: tool("oshcc")?,
            oshrun: tool("oshrun")?,
            always: &[],
            bound: &["--bind", "auto"],
            free: &["--bind", "none"],
        })
    }

    /// The implementation to compare with, if there is to be one.
    pub fn peer(choice: &str) -> Result<Option<Implementation>> {
        match choice {
            "none" => Ok(None),
            "auto" => {
                let found = Implementation::recognise("oshcc".into(), "oshrun".into());
                if found.is_none() {
                    eprintln!("no other OpenSHMEM is installed: nothing is compared with one");
                }
                Ok(found)
            }
            pair => {
                let (oshcc, oshrun) =
                    pair.split_once(',').ok_or("--peer takes auto, none, or OSHCC,OSHRUN")?;
                let found = Implementation::recognise(oshcc.into(), oshrun.into());
                Ok(Some(found.ok_or_else(|| format!("{oshrun} --version does not run"))?))
            }
        }
    }

    fn recognise(oshcc: PathBuf, oshrun: PathBuf) -> Option<Implementation> {
        let output = Command::new(&oshrun).arg("--version").stdin(Stdio::null()).output().ok()?;
        let text = String::from_utf8_lossy(&output.stdout).into_owned();
        let first = text.lines().next().unwrap_or("").trim();
        if first.contains("Tombolo") || !output.status.success() {
            return None;
        }
        let version = first.rsplit(' ').next().unwrap_or("");
        if first.contains("OpenRTE") || first.contains("Open MPI") {
            let root = fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0);
            let always = if root { OPEN_MPI_AS_ROOT } else { OPEN_MPI };
            return Some(Implementation {
                name: "openmpi",
                title: format!("Open MPI {version}"),
                oshcc,
                oshrun,
                always,
                bound: &["--bind-to", "core"],
                free: &["--bind-to", "none"],
            });
        }
        let title = if first.is_empty() { "another OpenSHMEM".into() } else { first.to_string() };
        Some(Implementation {
            name: "peer",
            title,
            oshcc,
            oshrun,
            always: &[],
            bound: &[],
            free: &[],
        })
    }

    /// Compiles all programs into `place`. The references go to a library of their own.
    pub fn build(&self, sources: &Path, place: &Path) -> Result<()> {
        fs::create_dir_all(place).map_err(|e| format!("{}: {e}", place.display()))?;
        let place = fs::canonicalize(place)?;
        let plain = place.join("libplain.so");
        let source = sources.join("plain.c");
        let mut cc = Command::new("cc");
        compile(cc.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&plain).arg(&source))?;
        for program in programs::names() {
            let mut oshcc = Command::new(&self.oshcc);
            oshcc.args(["-O2", "-std=gnu11", "-o"]).arg(place.join(program));
            oshcc.arg(sources.join(program).with_extension("c"));
            oshcc.arg("-L").arg(&place).args(["-lplain", "-lpthread"]);
            oshcc.arg(format!("-Wl,-rpath,{}", place.display()));
            compile(&mut oshcc)?;
        }
        Ok(())
    }

    /// The launcher, ready for further options and the program; confined to `cpus` if given.
    pub fn job(&self, bind: bool, cpus: Option<&str>) -> Command {
        let mut command = match cpus {
            None => Command::new(&self.oshrun),
            Some(cpus) => {
                let mut command = Command::new("taskset");
                command.args(["-c", cpus]).arg(&self.oshrun);
                command
            }
        };
        command.args(self.always).args(if bind { self.bound } else { self.free });
        command
    }
}

fn compile(command: &mut Command) -> Result<()> {
    let output = command
        .output()
        .map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))?;
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        return Err(format!("{command:?} failed:\n{text}").into());
    }
    Ok(())
}

/// Runs a job to its end; one that takes longer than `limit` is killed with all its processes.
pub fn finish(mut command: Command, limit: Duration) -> Result<Output> {
    let child = command
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .map_err(|e| format!("{}: {e}", command.get_program().to_string_lossy()))?;
    let group = Pid::from_raw(child.id() as i32);
    let (done, ended) = mpsc::channel();
    let waiter = thread::spawn(move || {
        // The receiver is gone only if this job was given up.
        let _ = done.send(child.wait_with_output());
    });
    let output = match ended.recv_timeout(limit) {
        Ok(output) => output?,
        Err(_) => {
            // The launcher first, so that it can end processes that left its group.
            let _ = killpg(group, Signal::SIGTERM);
            if ended.recv_timeout(Duration::from_secs(3)).is_err() {
                let _ = killpg(group, Signal::SIGKILL);
            }
            return Err(format!("did not end within {} s", limit.as_secs()).into());
        }
    };
    // The thread has sent its only message.
    let _ = waiter.join();
    if !output.status.success() {
        let text = String::from_utf8_lossy(&output.stderr);
        let line = text.lines().find(|line| !line.trim().is_empty()).unwrap_or("no message");
        return Err(format!("{}: {line}", output.status).into());
    }
    Ok(output)
}
