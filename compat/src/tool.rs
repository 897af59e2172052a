// SPDX-License-Identifier: Apache-2.0
//! What the tools have in common: each includes this file, so that a new version needs no new library.

use clap::error::ContextKind;
use clap::{Command, Parser, ValueEnum};
use clap_complete::Shell;
use std::ffi::OsString;
use std::fmt::Display;
use std::io::{ErrorKind, Write};
use std::path::Path;

/// Version and, where `cargo dev install` built the tool, the commit it was built from.
pub const VERSION: &str = match option_env!("TOMBOLO_VERSION") {
    Some(version) => version,
    None => concat!(env!("CARGO_PKG_VERSION"), " (Tombolo, OpenSHMEM 1.6)"),
};

/// If the command line is `--completions SHELL` and nothing else: prints what has that shell complete
/// the options of this command, and says so. For `cargo dev install`; people see no such option.
pub fn completes(command: impl FnOnce() -> Command) -> bool {
    let args: Vec<String> = std::env::args_os().skip(1).flat_map(|arg| arg.into_string()).collect();
    let [option, shell] = args.as_slice() else { return false };
    let Some(shell) = Shell::from_str(shell, true).ok().filter(|_| option == "--completions")
    else {
        return false;
    };
    let mut command = command();
    let name = command.get_name().to_owned();
    let mut script = Vec::new();
    clap_complete::generate(shell, &mut command, name, &mut script);
    print(script);
    true
}

/// The options on the command line; prints and exits when they are wrong or ask for help.
#[allow(dead_code, reason = "oshrun reads its programs one by one")]
pub fn options<T: Parser>() -> T {
    options_of(std::env::args_os()).unwrap_or_else(|error| error.exit())
}

/// The options on a command line, the name of the tool first. A number below 0 is the value of the option before
/// it, which says what it expects. Of an option that does not exist clap says that it could be a value behind
/// "--"; left out here, for hardly anybody means that.
pub fn options_of<T: Parser>(args: impl IntoIterator<Item = OsString>) -> Result<T, clap::Error> {
    let mut command = taking_negative_numbers(T::command());
    let mut found = command.try_get_matches_from_mut(args).map_err(|mut error| {
        error.remove(ContextKind::Suggested);
        error
    })?;
    T::from_arg_matches_mut(&mut found).map_err(|error| error.format(&mut command))
}

fn taking_negative_numbers(command: Command) -> Command {
    let command = command.mut_args(|argument| {
        let is_option = !argument.is_positional() && argument.get_action().takes_values();
        argument.allow_negative_numbers(is_option)
    });
    command.mut_subcommands(taking_negative_numbers)
}

/// What reads a whole number from a command line; its errors name the numbers that are expected.
#[allow(dead_code, reason = "some tools have no such option")]
pub fn whole(least: u32, most: u32) -> impl Fn(&str) -> Result<u32, String> + Clone {
    move |text| match (text.parse(), most) {
        (Ok(number), _) if (least..=most).contains(&number) => Ok(number),
        (_, u32::MAX) => Err(format!("expected a whole number, at least {least}")),
        _ => Err(format!("expected a whole number from {least} to {most}")),
    }
}

/// A command and its arguments, as a shell would take them from a line.
#[allow(dead_code, reason = "some tools have no such option")]
#[derive(Clone, Debug)]
pub struct Words(pub Vec<String>);

impl std::str::FromStr for Words {
    type Err = &'static str;

    fn from_str(line: &str) -> Result<Words, &'static str> {
        match shlex::split(line) {
            None => Err("a quote is not closed, or nothing follows a backslash"),
            Some(words) if words.is_empty() => Err("no command is given"),
            Some(words) => Ok(Words(words)),
        }
    }
}

/// Writes a line to standard error; where that is not possible there is nobody to tell.
pub fn complain(what: impl Display) {
    let _ = std::io::stderr().write_all(format!("{what}\n").as_bytes());
}

/// Prints text. A reader that has seen enough, as `head`, is no error; where the text cannot be written for
/// another reason, such as a full disk, that is said and the tool ends with 1.
pub fn print(text: impl AsRef<[u8]>) {
    let mut out = std::io::stdout();
    match out.write_all(text.as_ref()).and_then(|()| out.flush()) {
        Err(why) if why.kind() != ErrorKind::BrokenPipe => {
            let tool = std::env::args_os().next().unwrap_or_default();
            let name = Path::new(&tool).file_name().unwrap_or(&tool).to_string_lossy();
            complain(format_args!("{name}: cannot write to standard output: {why}"));
            std::process::exit(1);
        }
        _ => {}
    }
}
