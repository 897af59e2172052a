//! `oshperf`: how fast this library is, as ratios.
//!
//! Builds the C programs of `benches/c`, runs them under Tombolo and, where there is one, under
//! another OpenSHMEM in turn, and compares what they measured: with a reference measured in the same
//! process (a plain store, the best plain copy, the CPU's instruction, a cache line's way between
//! cores), and with the other implementation. `--record` keeps the figures with the machine they
//! were taken on.

mod figures;
mod implementation;
mod machine;
mod programs;
mod record;
mod report;
mod samples;

use clap::Parser;
use implementation::Implementation;
use samples::Samples;
use std::error::Error;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

const EXAMPLES: &str = "\
Examples:
  cargo dev install --prefix target/tombolo    what is measured has to be installed
  cargo dev bench                              everything, against Open MPI if it is installed
  cargo dev bench --only barrier,copy          some programs
  cargo dev bench --peer none --repeat 1       quickly, without comparison
  cargo dev bench --record                     and keep the figures in benches/record

Run it on an idle machine with at least 4 cores: the figures of a busy one are those of its
scheduler. Exit code: 0 when all was measured, also when a target was missed; 1 when not.";

/// Measure this OpenSHMEM library against plain code and against another implementation
#[derive(Parser)]
#[command(name = "oshperf", version, after_help = EXAMPLES)]
struct Options {
    /// Installation to measure, as made by `cargo dev install --prefix DIR`
    #[arg(long, value_name = "DIR", default_value = "target/tombolo")]
    prefix: PathBuf,

    /// The other implementation: `auto` (Open MPI if installed), `none`, or OSHCC,OSHRUN
    #[arg(long, value_name = "PEER", default_value = "auto")]
    peer: String,

    /// Run each program this many times, taking turns
    #[arg(long, value_name = "TIMES", default_value = "3", value_parser = clap::value_parser!(u32).range(1..))]
    repeat: u32,

    /// Only these programs, separated by commas; see --list
    #[arg(long, value_name = "NAMES", value_delimiter = ',')]
    only: Vec<String>,

    /// Print the programs and end
    #[arg(long)]
    list: bool,

    /// Keep the figures as markdown and JSON in this directory
    #[arg(long, value_name = "DIR", num_args = 0..=1, default_missing_value = "benches/record")]
    record: Option<PathBuf>,

    /// Sources of the programs
    #[arg(long, value_name = "DIR", default_value = "benches/c")]
    sources: PathBuf,

    /// Where the programs are built
    #[arg(long, value_name = "DIR", default_value = "target/oshperf")]
    build: PathBuf,
}

fn main() -> ExitCode {
    let options = Options::parse();
    if options.list {
        for run in programs::RUNS {
            println!("{:15} {:>4}  {}", run.program, run.place(), run.about);
        }
        return ExitCode::SUCCESS;
    }
    match measure(&options) {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("oshperf: {why}");
            ExitCode::FAILURE
        }
    }
}

fn measure(options: &Options) -> Result<(), Box<dyn Error>> {
    let runs = programs::chosen(&options.only)?;
    let mut implementations = vec![Implementation::tombolo(&options.prefix)?];
    implementations.extend(Implementation::peer(&options.peer)?);
    for implementation in &implementations {
        eprintln!("building the programs with {}", implementation.title);
        implementation.build(&options.sources, &build_place(&options.build, implementation))?;
    }
    let before = machine::Machine::here();
    let mut samples = vec![Samples::default(); implementations.len()];
    let mut notes = Vec::new();
    for repetition in 1..=options.repeat {
        for run in &runs {
            eprintln!("run {repetition} of {}: {}@{}", options.repeat, run.program, run.place());
            for (implementation, samples) in implementations.iter().zip(&mut samples) {
                let place = build_place(&options.build, implementation);
                if let Err(why) = run.measure(implementation, &place, samples) {
                    let (program, place) = (run.program, run.place());
                    let note = format!("{program}@{place}, {}: {why}", implementation.title);
                    eprintln!("  {note}");
                    notes.push(note);
                }
            }
        }
    }
    let outcome = record::Outcome::new(before, &implementations, &samples, options.repeat, notes);
    print!("{}", report::markdown(&outcome));
    if let Some(directory) = &options.record {
        for path in record::write(&outcome, directory)? {
            println!("recorded in {}", path.display());
        }
    }
    if outcome.notes.iter().any(|note| note.contains(&outcome.implementations[0].title)) {
        return Err("not everything could be measured; see the notes above".into());
    }
    Ok(())
}

fn build_place(build: &Path, implementation: &Implementation) -> PathBuf {
    build.join(implementation.name)
}
