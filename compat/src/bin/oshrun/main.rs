// SPDX-License-Identifier: Apache-2.0
//! `oshrun`: starts an OpenSHMEM job, serves it and cleans up after it.
//!
//! - [`keeper`]: two processes that keep watch over each other.
//! - [`options`]: the command line, resolved into a [`options::Plan`].
//! - [`hosts`]: the machines that the user or Slurm names.
//! - [`placement`]: which host each PE gets, and [`cores`]: which cores.
//! - [`fabric`]: the links between emulated hosts, and their faults.
//! - [`host`]: the PEs of one host, and [`spawn`]: starting one of them.
//! - [`fleet`]: the agents on other hosts, [`agent`]: what they do, [`relay`]: what reaches some of them
//!   where they are many, [`wire`]: what is said between.
//! - [`pmi`]: the PMI-1 server, a state machine without I/O.
//! - [`output`]: forwarding what the PEs print.
//! - [`profile`]: what PEs have counted, shown.
//! - [`thread`]: threads, which there may be no more of.
//! - [`signals`]: signals as a stream of events, their names, children left behind.
//! - [`job`]: supervision from the first PE to the last, and the exit code.

mod agent;
mod cores;
mod fabric;
mod fleet;
mod host;
mod hosts;
mod job;
mod keeper;
mod options;
mod output;
mod placement;
mod pmi;
mod profile;
mod relay;
mod report;
mod signals;
mod spawn;
mod thread;
#[path = "../../tool.rs"]
mod tool;
mod wire;

use job::Ending;
use keeper::{Launcher, Role};
use options::Plan;
use std::process::ExitCode;

fn main() -> ExitCode {
    if tool::completes(options::command) {
        return ExitCode::SUCCESS;
    }
    if relay::is_wanted() {
        return ended(relay::run());
    }
    let plan = (!agent::is_wanted()).then(|| Plan::from_args(std::env::args_os()));
    let ending = match keeper::split() {
        Ok(Role::Keeper(ending)) => ending,
        Ok(Role::Launcher(launcher)) => launch(plan, launcher),
        Err(error) => cannot_start(&error),
    };
    ended(ending)
}

fn ended(ending: Ending) -> ExitCode {
    report::flush();
    match ending {
        Ending::Code(code) => ExitCode::from(code),
        Ending::Signal(signal) => signals::end_by(signal),
    }
}

fn launch(plan: Option<Plan>, launcher: Launcher) -> Ending {
    // One thread on purpose: PEs ask the kernel to be killed when the thread that started them
    // ends, and a fork of a process with one thread is cheap and safe.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => match plan {
            Some(plan) => runtime.block_on(job::run(plan, launcher)),
            None => runtime.block_on(agent::run(launcher)),
        },
        Err(error) => {
            let why = thread::reason(&error);
            cannot_start(&std::io::Error::other(format!("waiting for several events: {why}")))
        }
    }
}

fn cannot_start(error: &std::io::Error) -> Ending {
    report::line(format_args!("cannot start: {}", thread::reason(error)));
    Ending::Code(1)
}
