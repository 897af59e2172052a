// SPDX-License-Identifier: Apache-2.0
//! `oshperf against`: how fast this library is, as ratios.
//!
//! Builds C programs, whose sources it holds, runs them under Tombolo and, where there is one, under
//! another OpenSHMEM in turn, and compares what they measured: with a reference measured in the same
//! process (a plain store, the best plain copy, the CPU's instruction, a cache line's way between
//! cores), and with the other implementation. `--record` keeps the figures with the machine they
//! were taken on.

mod figures;
pub mod implementation;
pub mod programs;
mod record;
mod report;
pub mod samples;

use crate::files;
use crate::progress::Progress;
use crate::tool;
use crate::{interrupt, machine};
use clap::Args;
use implementation::Implementation;
use samples::Samples;
use std::error::Error;
use std::path::{Path, PathBuf};

const EXAMPLES: &str = "\
Examples:
  oshperf against                              everything, against Open MPI if it is installed
  oshperf against \"mpi: CC=/opt/mpi/bin/oshcc RUN=/opt/mpi/bin/oshrun\"
                                               that one; Open MPI's launcher is given what it needs
  oshperf against \"sos: CC=/opt/sos/bin/oshcc RUN='/opt/sos/bin/oshrun --bind-to core'\"
  oshperf against --only barrier,copy          some programs
  oshperf against --peer none --repeat 1       quickly, without comparison
  cargo dev bench --record                     the same of a source tree, kept in benches/record

Run it on an idle machine with at least 4 cores: on a busy one, times depend on how the operating
system shares processors. Exit code: 0 when all was measured, also when a target was missed; 1 when not.";

/// See the parts of `oshperf(1)`.
#[derive(Args)]
#[command(after_help = EXAMPLES)]
pub struct Options {
    /// The other OpenSHMEM: "NAME: CC=COMPILER RUN=LAUNCHER", the launcher with all options but -n
    #[arg(value_name = "OTHER", value_parser = Implementation::described, conflicts_with = "peer")]
    other: Option<Implementation>,

    /// Without OTHER: `auto` (Open MPI if installed), `none`, or OSHCC,OSHRUN
    #[arg(long, value_name = "PEER", default_value = "auto", value_parser = implementation::peer)]
    peer: String,

    /// Installation to measure; that of this oshperf unless given
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,

    /// Run each program this many times, taking turns
    #[arg(long, value_name = "TIMES", default_value = "3", value_parser = tool::whole(1, u32::MAX))]
    repeat: u32,

    /// Only these programs, separated by commas; see --list
    #[arg(long, value_name = "NAMES", value_delimiter = ',', value_parser = programs::known)]
    only: Vec<String>,

    /// Print the programs and end
    #[arg(long)]
    list: bool,

    /// Keep the figures as markdown and JSON in this directory
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "benches/record")]
    record: Option<PathBuf>,

    /// Where the programs are built; in a folder that is removed at the end unless given
    #[arg(long, value_name = "DIR")]
    build: Option<PathBuf>,
}

/// Measures and prints.
pub fn measure(options: &Options) -> Result<(), String> {
    if options.list {
        for run in programs::RUNS {
            tool::print(format!("{:15} {:>4}  {}\n", run.program, run.place(), run.about));
        }
        return Ok(());
    }
    run(options).map_err(|why| why.to_string())
}

fn run(options: &Options) -> Result<(), Box<dyn Error>> {
    let runs = programs::chosen(&options.only);
    interrupt::catch()?;
    if let Some(directory) = &options.record {
        record::prepare(directory)?;
    }
    let mut implementations = vec![Implementation::tombolo(&prefix(options)?)?];
    match &options.other {
        Some(other) => implementations.push(other.clone()),
        None => implementations.extend(Implementation::peer(&options.peer)?),
    }
    let passing = files::passing_folder()?;
    let build = options.build.as_deref().unwrap_or(passing.path());
    let mut names: Vec<&str> = runs.iter().map(|run| run.program).collect();
    names.dedup();
    let steps = implementations.len() + options.repeat as usize * runs.len();
    let progress = Progress::new(steps as u64);
    for implementation in &implementations {
        progress.now(format!("building with {}", implementation.title));
        implementation.build(&build.join(&implementation.name), &names)?;
        progress.step();
    }
    let before = machine::Machine::here();
    let mut samples = vec![Samples::default(); implementations.len()];
    let mut notes = Vec::new();
    for repetition in 1..=options.repeat {
        for run in runs.iter().take_while(|_| !interrupt::wanted()) {
            let (program, place) = (run.program, run.place());
            for (implementation, samples) in implementations.iter().zip(&mut samples) {
                let title = &implementation.title;
                progress
                    .now(format!("{repetition} of {}: {program}@{place}, {title}", options.repeat));
                let build = build.join(&implementation.name);
                match run.measure(implementation, &build, samples) {
                    Err(_) if interrupt::wanted() => break,
                    Err(why) => {
                        let what = format!("{program}@{place}, {title}: ");
                        // The first time tells enough.
                        if !notes.iter().any(|note: &String| note.starts_with(&what)) {
                            notes.push(what + &why.to_string());
                        }
                    }
                    Ok(()) => {}
                }
            }
            progress.step();
        }
    }
    drop(progress);
    // Before anything is printed: where that is not possible any more, as at a terminal that has hung up, this
    // process ends at once.
    passing.close()?;
    if interrupt::wanted() {
        notes.push("interrupted: these are the figures up to then".into());
    }
    let outcome =
        record::Comparison::new(before, &implementations, &samples, options.repeat, notes);
    tool::print(report::markdown(&outcome));
    if let Some(directory) = &options.record {
        match unrecorded(&options.only, &outcome.notes) {
            Some(why) => tool::complain(format_args!("oshperf: nothing is recorded: {why}")),
            None => {
                for path in record::write(&outcome, directory)? {
                    tool::print(format!("recorded in {}\n", path.display()));
                }
            }
        }
    }
    if interrupt::wanted() {
        return Err("interrupted".into());
    }
    if outcome.notes.iter().any(|note| note.contains(&outcome.implementations[0].title)) {
        return Err("not everything could be measured; see the notes above".into());
    }
    Ok(())
}

/// Why the figures are not those of a whole run, if so: an earlier record of this day stays then.
fn unrecorded(only: &[String], notes: &[String]) -> Option<&'static str> {
    match () {
        () if !only.is_empty() => Some("a record is of all programs, and --only names some"),
        () if !notes.is_empty() => Some("not everything could be measured"),
        () => None,
    }
}

/// The installation that is measured.
fn prefix(options: &Options) -> Result<PathBuf, Box<dyn Error>> {
    if let Some(prefix) = &options.prefix {
        return Ok(prefix.clone());
    }
    let own = std::env::current_exe()?;
    let prefix = own.parent().and_then(Path::parent).ok_or("where is oshperf?")?;
    Ok(prefix.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn whole_runs_alone_are_recorded() {
        let some = ["hello".to_owned()];
        assert_eq!(unrecorded(&[], &[]), None);
        assert!(unrecorded(&some, &[]).is_some_and(|why| why.contains("--only")));
        assert!(unrecorded(&[], &some).is_some());
    }
}
