//! `oshrun`: starts an OpenSHMEM job, serves it and cleans up after it.
//!
//! - [`keeper`]: two processes that keep watch over each other.
//! - [`options`]: the command line, resolved into a [`options::Plan`].
//! - [`placement`]: which host and which cores each PE gets.
//! - [`fabric`]: the links between emulated hosts, and their faults.
//! - [`spawn`]: starting one PE.
//! - [`pmi`]: the PMI-1 server, a state machine without I/O.
//! - [`output`]: forwarding what the PEs print.
//! - [`signals`]: signals as a stream of events, their names, children left behind.
//! - [`job`]: supervision from the first PE to the last, and the exit code.

mod cores;
mod fabric;
mod job;
mod keeper;
mod options;
mod output;
mod placement;
mod pmi;
mod report;
mod signals;
mod spawn;

use job::Ending;
use keeper::{Launcher, Role};
use options::Plan;
use std::process::ExitCode;

fn main() -> ExitCode {
    let plan = Plan::from_args(std::env::args_os());
    let ending = match keeper::split() {
        Ok(Role::Keeper(ending)) => ending,
        Ok(Role::Launcher(launcher)) => launch(plan, launcher),
        Err(error) => cannot_start(&error),
    };
    match ending {
        Ending::Code(code) => ExitCode::from(code),
        Ending::Signal(signal) => signals::end_by(signal),
    }
}

fn launch(plan: Plan, launcher: Launcher) -> Ending {
    // One thread on purpose: PEs ask the kernel to be killed when the thread that started them
    // ends, and a fork of a process with one thread is cheap and safe.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build();
    match runtime {
        Ok(runtime) => runtime.block_on(job::run(plan, launcher)),
        Err(error) => cannot_start(&error),
    }
}

fn cannot_start(error: &std::io::Error) -> Ending {
    report::line(format_args!("cannot start: {error}"));
    Ending::Code(1)
}
