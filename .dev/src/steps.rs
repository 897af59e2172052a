// SPDX-License-Identifier: Apache-2.0
//! Running other programs, and saying so.

use std::fmt;
use std::io::IsTerminal;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Why a command of `cargo dev` failed, for people.
#[derive(Debug)]
pub struct Failure(String);

impl Failure {
    pub fn new(text: impl Into<String>) -> Failure {
        Failure(text.into())
    }
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

/// Says what comes next.
pub fn announce(what: &str) {
    match std::io::stderr().is_terminal() {
        true => eprintln!("\x1b[1;32m==>\x1b[0m \x1b[1m{what}\x1b[0m"),
        false => eprintln!("==> {what}"),
    }
}

/// Runs `command`; its failure is ours.
pub fn run(command: &mut Command) -> Result<(), Failure> {
    let status = command.status().map_err(|error| cannot_run(command, &error))?;
    match status.success() {
        true => Ok(()),
        false => Err(Failure(format!("{status}: {}", shown(command)))),
    }
}

/// Runs `command` and returns what it prints.
pub fn output(command: &mut Command) -> Result<String, Failure> {
    let output = command.output().map_err(|error| cannot_run(command, &error))?;
    match output.status.success() {
        true => Ok(String::from_utf8_lossy(&output.stdout).into_owned()),
        false => Err(Failure(format!(
            "{}: {}\n{}",
            output.status,
            shown(command),
            String::from_utf8_lossy(&output.stderr)
        ))),
    }
}

/// The command as one would type it.
pub fn shown(command: &Command) -> String {
    let words = std::iter::once(command.get_program()).chain(command.get_args());
    let own = std::env::current_dir().unwrap_or_default();
    let short = |word: &std::ffi::OsStr| {
        let word = Path::new(word);
        word.strip_prefix(&own).unwrap_or(word).display().to_string()
    };
    words.map(short).collect::<Vec<_>>().join(" ")
}

pub fn cannot_run(command: &Command, error: &std::io::Error) -> Failure {
    Failure(format!("cannot run {}: {error}", command.get_program().display()))
}

/// The program called `name`, if it is installed.
pub fn find(name: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH")?;
    std::env::split_paths(&path).map(|place| place.join(name)).find(|file| file.is_file())
}
