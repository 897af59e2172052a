// SPDX-License-Identifier: Apache-2.0
//! `oshperf`: how fast the ways between PEs are, what the machine allows, and what changed.

mod against;
mod catalogue;
mod compare;
mod diff;
mod files;
mod interrupt;
mod job;
mod limits;
mod machine;
mod paper;
mod pe;
mod progress;
mod raw;
mod routes;
mod sizes;
mod stats;
#[path = "../../../../compat/src/tool.rs"]
mod tool;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser, Subcommand};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  oshperf compare                                        all ways that this machine can use
  oshperf compare --ways shm,cma --ops put,get --sizes 8..64K
  oshperf compare --host n1,n2 --ways tcp,ofi --html page.html
  oshperf compare --json new.json; oshperf diff old.json new.json
  oshperf routes --hosts 2                               is the fastest route taken, at every size?
  oshperf paper contexts                                 a published experiment, redone here
  oshperf limits                                         what the machine does without a library

Exit code: 0 when all was done, 1 when something failed or was interrupted,
2 wrong usage. A way that cannot be used is no failure while there is another
one. The manual page oshperf(1) has more.";

/// Compare the ways between OpenSHMEM PEs
#[derive(Parser)]
#[command(
    name = "oshperf",
    version = tool::VERSION,
    after_help = EXAMPLES,
)]
struct Cli {
    #[command(subcommand)]
    command: Command,
}

#[derive(Subcommand)]
enum Command {
    /// Compare shared memory, kernel copies, NTB links and networks with each other
    Compare(compare::Options),
    /// Compare this library with plain code and with another OpenSHMEM, by compiled C programs
    Against(against::Options),
    /// Show what became faster or slower between two reports of `compare --json`; exit code 1 if
    /// something became slower or fails now
    Diff(diff::Options),
    /// Measure what this machine can do without any library
    Limits(limits::Options),
    /// Compare the route that is taken at each size with all others that are usable
    Routes(routes::Options),
    /// Redo published experiments, with the published figures beside
    Paper(paper::Options),
    /// The program of the jobs that the other commands start
    #[command(hide = true)]
    Pe(pe::Options),
}

/// Ends with what is wrong with the options of a command, and how that command is used.
fn wrong(command: &str, why: &str) -> ! {
    let mut all = Cli::command();
    all.build();
    let command = all.find_subcommand_mut(command).expect("a command of this program");
    command.error(ErrorKind::ValueValidation, why).exit()
}

fn main() -> ExitCode {
    if tool::completes(Cli::command) {
        return ExitCode::SUCCESS;
    }
    let done = match tool::options::<Cli>().command {
        Command::Compare(options) => match options.mistake() {
            Some(why) => wrong("compare", &why),
            None => compare::compare(&options),
        },
        Command::Against(options) => against::measure(&options).map(|()| true),
        Command::Diff(options) => diff::diff(&options),
        Command::Limits(options) => limits::limits(&options),
        Command::Routes(options) => routes::routes(&options),
        Command::Paper(options) => match options.mistake() {
            Some(why) => wrong("paper", &why),
            None => paper::paper(&options),
        },
        Command::Pe(options) => pe::main(&options).map(|()| true),
    };
    match done {
        Ok(true) => ExitCode::SUCCESS,
        Ok(false) => ExitCode::FAILURE,
        Err(why) => {
            tool::complain(format_args!("oshperf: {why}"));
            ExitCode::FAILURE
        }
    }
}
