// SPDX-License-Identifier: Apache-2.0
//! An OpenSHMEM implementation: its compiler wrapper, its launcher and what they want to be told.

use super::programs;
use crate::interrupt;
use crate::job::{self, End};
use std::error::Error;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

/// The name of this library.
const OWN: &str = "tombolo";

type Result<T> = std::result::Result<T, Box<dyn Error>>;

/// What is measured, or what it is compared with.
#[derive(Clone, Debug)]
pub struct Implementation {
    /// Short, for directories.
    pub name: String,
    /// With its version, for people.
    pub title: String,
    /// The compiler wrapper and its first arguments.
    oshcc: Vec<String>,
    /// The launcher and the arguments of every job.
    oshrun: Vec<String>,
    /// Arguments that give each PE a core, and that leave them free.
    bound: &'static [&'static str],
    free: &'static [&'static str],
}

/// The name of Open MPI where it is recognised.
const OPEN_MPI_NAME: &str = "openmpi";
/// Open MPI binds PEs unless told otherwise and refuses more PEs than cores unless told otherwise.
/// Its one-sided components other than `ucx` crash in finalize when a job has no fabric (4.1.4).
const OPEN_MPI: &[&str] = &["--oversubscribe", "--mca", "osc", "ucx"];
const OPEN_MPI_AS_ROOT: &[&str] =
    &["--allow-run-as-root", "--oversubscribe", "--mca", "osc", "ucx"];

/// Checks what `--peer` takes.
pub fn peer(text: &str) -> std::result::Result<String, String> {
    match text {
        "auto" | "none" => Ok(text.to_owned()),
        pair if pair.contains(',') => Ok(text.to_owned()),
        _ => Err("expected auto, none, or OSHCC,OSHRUN".to_owned()),
    }
}

impl Implementation {
    /// This library, from an installation.
    pub fn tombolo(prefix: &Path) -> Result<Implementation> {
        let tool = |name: &str| {
            let path = fs::canonicalize(prefix.join("bin").join(name));
            let path = path.map_err(|_| format!("no {name} in {}/bin", prefix.display()))?;
            Ok::<String, Box<dyn Error>>(path.display().to_string())
        };
        Ok(Implementation {
            name: OWN.to_owned(),
            title: format!("Tombolo {}", env!("CARGO_PKG_VERSION")),
            oshcc: vec![tool("oshcc")?],
            oshrun: vec![tool("oshrun")?],
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
        let shown = |path: &Path| path.display().to_string();
        let (cc, run) = (vec![shown(&oshcc)], vec![shown(&oshrun)]);
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
                name: OPEN_MPI_NAME.to_owned(),
                title: format!("Open MPI {version}"),
                oshcc: cc,
                oshrun: run.into_iter().chain(always.iter().map(|s| s.to_string())).collect(),
                bound: &["--bind-to", "core"],
                free: &["--bind-to", "none"],
            });
        }
        let title = if first.is_empty() { "another OpenSHMEM".into() } else { first.to_string() };
        Some(Implementation {
            name: "peer".to_owned(),
            title,
            oshcc: cc,
            oshrun: run,
            bound: &[],
            free: &[],
        })
    }

    /// The one that `NAME: CC=... RUN=...` describes, in the quotes of a shell.
    pub fn described(text: &str) -> std::result::Result<Implementation, String> {
        let form = "expected NAME: CC=COMPILER RUN=LAUNCHER, such as \"mpi: CC=/opt/bin/oshcc \
                    RUN='/opt/bin/oshrun --bind-to core'\"";
        let wrong = |why: &str| format!("{why}; {form}");
        let (name, rest) = text.split_once(':').ok_or_else(|| wrong("there is no NAME:"))?;
        let name = name.trim();
        let plain = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        if name.is_empty() || name == OWN || !name.chars().all(plain) {
            return Err(wrong(&format!("'{name}' is no name for it")));
        }
        let (mut oshcc, mut oshrun) = (Vec::new(), Vec::new());
        for word in words(rest).ok_or_else(|| wrong("a quote is not closed"))? {
            let (key, value) = word.split_once('=').unwrap_or((&word, ""));
            let place = match key {
                "CC" => &mut oshcc,
                "RUN" => &mut oshrun,
                _ => return Err(wrong(&format!("'{word}' is neither CC=... nor RUN=..."))),
            };
            *place = words(value).ok_or_else(|| wrong("a quote is not closed"))?;
        }
        if oshcc.is_empty() || oshrun.is_empty() {
            return Err(wrong("CC or RUN is missing"));
        }
        let given = Implementation {
            name: name.to_owned(),
            title: name.to_owned(),
            oshcc,
            oshrun,
            bound: &[],
            free: &[],
        };
        Ok(given.with_what_it_needs())
    }

    /// With the options that a known launcher needs, unless the user has given some.
    fn with_what_it_needs(self) -> Implementation {
        let [oshrun] = &self.oshrun[..] else { return self };
        let known = Implementation::recognise(PathBuf::new(), oshrun.into());
        match known.filter(|known| known.name == OPEN_MPI_NAME) {
            Some(Implementation { title, oshrun, bound, free, .. }) => {
                let title = format!("{} ({title})", self.name);
                Implementation { title, oshrun, bound, free, ..self }
            }
            None => self,
        }
    }

    /// Compiles all programs into `place`. The references go to a library of their own.
    pub fn build(&self, place: &Path, names: &[&str]) -> Result<()> {
        let sources = &place.join("sources");
        fs::create_dir_all(sources).map_err(|e| format!("{}: {e}", sources.display()))?;
        let place = fs::canonicalize(place)?;
        programs::write_sources(sources)?;
        let plain = place.join("libplain.so");
        let source = sources.join("plain.c");
        let mut cc = Command::new("cc");
        compile(cc.args(["-O2", "-shared", "-fPIC", "-o"]).arg(&plain).arg(&source))?;
        for program in names {
            if interrupt::wanted() {
                return Err("interrupted".into());
            }
            let mut oshcc = command(&self.oshcc);
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
        let mut job = match cpus {
            None => command(&self.oshrun),
            Some(cpus) => {
                let mut job = Command::new("taskset");
                job.args(["-c", cpus]).args(&self.oshrun);
                job
            }
        };
        job.args(if bind { self.bound } else { self.free });
        job
    }

    /// Whether it is this library.
    pub fn is_own(&self) -> bool {
        self.name == OWN
    }
}

fn command(words: &[String]) -> Command {
    let mut command = Command::new(&words[0]);
    command.args(&words[1..]);
    command
}

/// The words of a shell's line; None if a quote is not closed.
fn words(text: &str) -> Option<Vec<String>> {
    shlex::split(text)
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

/// What a job printed; one that is silent for longer than `limit` is ended with all its processes.
pub fn finish(command: Command, limit: Duration) -> Result<String> {
    let mut text = String::new();
    match job::run(command, limit, |line| text += &format!("{line}\n")) {
        End::Well => Ok(text),
        End::Interrupted => Err("interrupted".into()),
        End::Badly(why) => Err(reason(&why).into()),
    }
}

/// The line of what a job said that tells why it failed: the first that is neither a rule nor a warning,
/// which some libraries begin with in every job.
fn reason(said: &str) -> &str {
    let words = |line: &&str| line.contains(char::is_alphanumeric);
    let warns = |line: &str| line.to_ascii_lowercase().contains("warning");
    let lines = || said.lines().map(str::trim).filter(words);
    let first = lines().find(|line| !warns(line)).or_else(|| lines().next());
    first.unwrap_or("no message")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn open_mpi_is_given_what_it_needs_unless_the_user_says() {
        use std::os::unix::fs::PermissionsExt;
        let folder = tempfile::tempdir().unwrap();
        let launcher = folder.path().join("oshrun");
        fs::write(&launcher, "#!/bin/sh\necho 'oshrun (OpenRTE) 4.1.4'\n").unwrap();
        fs::set_permissions(&launcher, fs::Permissions::from_mode(0o700)).unwrap();
        let run = launcher.display();
        let found = Implementation::described(&format!("mpi: CC=cc RUN={run}")).unwrap();
        assert_eq!((found.name.as_str(), found.title.as_str()), ("mpi", "mpi (Open MPI 4.1.4)"));
        assert!(found.oshrun.ends_with(&["osc".into(), "ucx".into()]), "{found:?}");
        assert_eq!(found.bound, ["--bind-to", "core"]);
        let found = Implementation::described(&format!("mpi: CC=cc RUN='{run} -x A'")).unwrap();
        assert_eq!(found.oshrun[1..], ["-x", "A"]);
        assert_eq!(found.title, "mpi");
    }

    #[test]
    fn a_failure_is_told_by_its_reason_not_by_a_warning_before_it() {
        let said = "-----\nWARNING: no fabric\n\n[h:1] segmentation fault\nit ended\n-----\n";
        assert_eq!(reason(said), "[h:1] segmentation fault");
        assert_eq!(reason("----\n  Warning: a\n"), "Warning: a");
        assert_eq!(reason("\n---\n"), "no message");
    }

    #[test]
    fn others_are_described_in_the_quotes_of_a_shell() {
        let text = "mpi: CC=/opt/oshcc RUN='/opt/my run/oshrun --bind-to core'";
        let found = Implementation::described(text).unwrap();
        assert_eq!(found.oshcc, ["/opt/oshcc"]);
        assert_eq!(found.oshrun, ["/opt/my", "run/oshrun", "--bind-to", "core"]);
        for wrong in [
            "",
            "mpi",
            "mpi: CC=a",
            "mpi: CC=a RUN='b",
            "m p: CC=a RUN=b",
            "mpi: X=1",
            "tombolo: CC=a RUN=b",
        ] {
            let why = Implementation::described(wrong).unwrap_err();
            assert!(why.contains("expected NAME: CC="), "{wrong}: {why}");
        }
    }
}
