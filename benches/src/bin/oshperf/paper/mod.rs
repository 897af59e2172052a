// SPDX-License-Identifier: Apache-2.0
//! `oshperf paper`: published experiments, redone here, with the published figures beside.
//!
//! Each paper is a set of C programs, whose sources this program holds, run by the installation's own
//! compiler wrapper and launcher. What is measured is not on the published machines: each paper says in
//! a sentence what differs, and each row what kind of figure it is.

mod found;
mod papers;

use crate::against::implementation::{Implementation, finish};
use crate::against::samples::Samples;
use crate::files;
use crate::interrupt;
use crate::machine::Machine;
use crate::progress::Progress;
use crate::tool;
use clap::{Args, ValueEnum};
use found::Found;
use serde::Serialize;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// A job that prints nothing for longer is given up.
const LIMIT: Duration = Duration::from_secs(120);

/// A paper, as the command line names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Name {
    /// OpenSHMEM over a switchless ring of NTB links (Lim & Cha)
    Ring,
    /// OpenSHMEM between two PCs (Joo & Choi, 2016)
    Pair,
    /// Designs for several cores on a host (MVAPICH2-X)
    Hybrid,
    /// A multilevel model and self-tuning (SHMEM+)
    Tuning,
    /// Contexts (Dinan & Flajslik)
    Contexts,
}

/// See the parts of `oshperf(1)`.
#[derive(Args)]
pub struct Options {
    /// The paper
    #[arg(value_name = "PAPER", value_enum)]
    paper: Name,

    /// Run each program this many times, taking turns
    #[arg(long, value_name = "TIMES", default_value = "1", value_parser = tool::whole(1, 100))]
    repeat: u32,

    /// Run only these parts; `list` names all
    #[arg(long, value_name = "LIST", value_delimiter = ',')]
    only: Vec<String>,

    /// Installation to measure; that of this oshperf unless given
    #[arg(long, value_name = "DIR")]
    prefix: Option<PathBuf>,

    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What kind of figure ours is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// The thing itself: memory of one host, a network within it.
    Measured,
    /// Memory that stands for a link.
    Emulated,
    /// Over links that take the time of hardware.
    Modelled,
}

/// A program in one set-up.
#[derive(Clone, Debug)]
pub struct Job {
    pub program: &'static str,
    pub pes: u32,
    /// Emulated hosts, and whether their links take their time.
    pub hosts: Option<(u32, bool)>,
    /// Environment variables of the PEs.
    pub environment: Vec<&'static str>,
    /// What the program is told, words between spaces.
    pub arguments: String,
    /// What the names of its samples end with.
    pub place: &'static str,
}

/// What is run for a paper on this machine.
pub struct Jobs {
    pub run: Vec<Job>,
    /// What cannot be run here, each with its reason.
    pub not_here: Vec<String>,
}

impl Jobs {
    /// All that the paper asks for.
    fn all(run: Vec<Job>) -> Jobs {
        Jobs { run, not_here: Vec::new() }
    }
}

/// What a paper found, and what is found here.
#[derive(Debug, Serialize)]
pub struct Row {
    pub experiment: String,
    pub published: &'static str,
    pub here: String,
    pub mark: Mark,
}

/// A paper: what is run for it, and what follows.
pub struct Paper {
    pub title: &'static str,
    /// What differs from the published set-up.
    pub set_up: &'static str,
    pub jobs: fn() -> Jobs,
    pub rows: fn(&Found<'_>) -> Vec<Row>,
}

#[derive(Serialize)]
struct Report<'a> {
    paper: &'a str,
    set_up: &'a str,
    machine: Machine,
    /// The parts that were asked for; all if empty.
    only: &'a [String],
    /// How often each program ran.
    repeat: u32,
    /// Whether all of the paper was measured.
    complete: bool,
    rows: Vec<Row>,
    notes: Vec<String>,
    not_here: Vec<String>,
}

impl Options {
    /// What is wrong with the command line, where that depends on the paper.
    pub fn mistake(&self) -> Option<String> {
        if self.only == ["list"] {
            return None;
        }
        let jobs = (papers::of(self.paper).jobs)();
        let known: Vec<String> = jobs.run.iter().map(Job::part).collect();
        let other = self.only.iter().find(|only| !known.contains(only))?;
        Some(format!("there is no part '{other}'; there are {}", known.join(", ")))
    }
}

/// Measures and prints. True if all was measured.
pub fn paper(options: &Options) -> Result<bool, String> {
    interrupt::catch().map_err(|why| format!("cannot catch Ctrl-C: {why}"))?;
    let paper = papers::of(options.paper);
    let Jobs { mut run, not_here } = (paper.jobs)();
    if options.only == ["list"] {
        run.iter().for_each(|job| tool::print(job.part() + "\n"));
        return Ok(true);
    }
    if !options.only.is_empty() {
        run.retain(|job| options.only.contains(&job.part()));
    }
    let prefix = match &options.prefix {
        Some(prefix) => prefix.clone(),
        None => {
            let own = std::env::current_exe().map_err(|why| why.to_string())?;
            own.parent().and_then(Path::parent).ok_or("where is oshperf?")?.to_owned()
        }
    };
    files::check([&options.json])?;
    let machine = Machine::here();
    let Measured { samples, ran, mut notes } =
        measure(&run, &prefix, options.repeat).map_err(|why| why.to_string())?;
    let found = Found::new(&samples);
    let rows = (paper.rows)(&found);
    notes.extend(found.notes(&ran));
    let done = !interrupt::wanted() && notes.is_empty();
    let report = Report {
        paper: paper.title,
        set_up: paper.set_up,
        machine,
        only: &options.only,
        repeat: options.repeat,
        complete: done && options.only.is_empty(),
        rows,
        notes,
        not_here,
    };
    let kept = keep(&options.json, &report, done);
    tool::print(text(&report));
    kept?;
    Ok(done)
}

/// Writes the file that is asked for. An earlier one stays where nothing was measured, or less. `done` says that all
/// parts that were asked for came to their end.
fn keep(path: &Option<PathBuf>, report: &Report<'_>, done: bool) -> Result<(), String> {
    if !done && report.rows.is_empty() {
        return Err("nothing could be measured".to_owned());
    }
    files::report(path, report, report.complete)
}

/// What jobs have measured.
struct Measured {
    samples: Samples,
    /// Places of those that came to their end each time.
    ran: Vec<&'static str>,
    /// What went wrong.
    notes: Vec<String>,
}

/// Runs the jobs in turn.
fn measure(
    jobs: &[Job],
    prefix: &Path,
    repeat: u32,
) -> Result<Measured, Box<dyn std::error::Error>> {
    let own = Implementation::tombolo(prefix)?;
    let folder = files::passing_folder()?;
    let mut names: Vec<&str> = jobs.iter().map(|job| job.program).collect();
    names.sort_unstable();
    names.dedup();
    let progress = Progress::new(u64::from(repeat) * jobs.len() as u64);
    progress.now("compiling the programs");
    own.build(folder.path(), &names)?;
    let (mut samples, mut notes) = (Samples::default(), Vec::new());
    let mut ran: Vec<&str> = jobs.iter().map(|job| job.place).collect();
    for _ in 0..repeat {
        for job in jobs.iter().take_while(|_| !interrupt::wanted()) {
            progress.now(format!("{} ({})", job.program, job.place));
            let run =
                finish(job.command(&own, folder.path()), LIMIT).map_err(|why| why.to_string());
            let done = run.and_then(|output| match samples.read(&output, job.place)? {
                0 => Err("it printed no samples".to_owned()),
                _ => Ok(()),
            });
            if let Err(why) = done {
                ran.retain(|place| *place != job.place);
                notes.push(format!("{} ({}): {why}", job.program, job.place));
            }
            progress.step();
        }
    }
    if interrupt::wanted() {
        ran.clear();
    }
    Ok(Measured { samples, ran, notes })
}

impl Job {
    /// The job as a part of the paper, for `--only`.
    fn part(&self) -> String {
        format!("{}@{}", self.program, self.place)
    }

    fn command(&self, own: &Implementation, folder: &Path) -> std::process::Command {
        let mut job = own.job(false, None);
        if let Some((hosts, modelled)) = self.hosts {
            job.arg("--hosts").arg(hosts.to_string());
            if modelled {
                job.args(["-x", "SHMEM_NTB_SPEED=modelled", "-x", "SHMEM_NTB_DIRECT=off"]);
            }
        }
        for variable in &self.environment {
            job.args(["-x", variable]);
        }
        job.arg("-n").arg(self.pes.to_string()).arg(folder.join(self.program));
        job.args(self.arguments.split_whitespace());
        job
    }
}

fn text(report: &Report<'_>) -> String {
    let Machine { cpu, cores, kernel, load, date } = &report.machine;
    let mut text = format!(
        "# Tombolo oshperf {}: {}\n# {cpu}, {cores} cores, kernel {kernel}, load {load:.1} before the \
         start, {date}\n",
        env!("CARGO_PKG_VERSION"),
        report.paper
    );
    match report.only {
        _ if report.complete => {}
        [] => text += "# Not complete: what was measured before it ended\n",
        only => text += &format!("# Not complete: of the parts only {}\n", only.join(", ")),
    }
    for line in wrapped(report.set_up, 96) {
        text += &format!("# {line}\n");
    }
    let width = |of: fn(&Row) -> usize| report.rows.iter().map(of).max().unwrap_or(0).max(10);
    let [first, second, third] = [
        width(|row| row.experiment.len()),
        width(|row| row.published.len()),
        width(|row| row.here.len()),
    ];
    text +=
        &format!("\n{:first$}  {:second$}  {:third$}  kind\n", "experiment", "published", "here");
    for Row { experiment, published, here, mark } in &report.rows {
        let kind = match mark {
            Mark::Measured => "measured",
            Mark::Emulated => "emulated",
            Mark::Modelled => "modelled",
        };
        text += &format!("{experiment:first$}  {published:second$}  {here:third$}  {kind}\n");
    }
    for note in &report.not_here {
        text += &format!("# not here: {note}\n");
    }
    for note in &report.notes {
        text += &format!("# not measured: {note}\n");
    }
    text
}

fn wrapped(text: &str, width: usize) -> Vec<String> {
    let mut lines = vec![String::new()];
    for word in text.split_whitespace() {
        let last = lines.last_mut().expect("never empty");
        if !last.is_empty() && last.len() + 1 + word.len() > width {
            lines.push(word.to_owned());
        } else {
            if !last.is_empty() {
                last.push(' ');
            }
            last.push_str(word);
        }
    }
    lines
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::against::programs;

    #[test]
    fn every_paper_has_its_programs_and_rows_for_what_they_print() {
        for name in Name::value_variants() {
            let paper = papers::of(*name);
            let jobs = (paper.jobs)().run;
            assert!(!jobs.is_empty() && paper.set_up.ends_with('.'), "{name:?}");
            for job in &jobs {
                assert!(programs::has_source(job.program), "{}", job.program);
                let alike = jobs
                    .iter()
                    .filter(|other| other.place == job.place && other.program == job.program);
                assert_eq!(alike.count(), 1, "{}", job.place);
                // A list of parts is split at commas.
                assert!(!job.part().contains([',', ' ']), "{}", job.part());
            }
            // Without samples there is nothing to say, but that they are missing: some of each job.
            let (samples, places) = (Samples::default(), jobs.iter().map(|job| job.place));
            let found = Found::new(&samples);
            assert!((paper.rows)(&found).is_empty(), "{name:?}");
            for place in places {
                assert!(
                    !found.notes(&[place]).is_empty(),
                    "{name:?}: no row has samples of {place}"
                );
            }
        }
    }

    fn report(only: &[String], complete: bool) -> Report<'_> {
        let row = Row {
            experiment: "a put".into(),
            published: "1 us",
            here: "2 us".into(),
            mark: Mark::Modelled,
        };
        Report {
            paper: "A paper",
            set_up: "Everything differs.",
            machine: Machine::here(),
            only,
            repeat: 1,
            complete,
            rows: vec![row],
            notes: vec!["x: why".into()],
            not_here: vec!["y: one socket".into()],
        }
    }

    #[test]
    fn a_part_of_a_paper_costs_no_earlier_report_of_all() {
        let folder = files::passing_folder().unwrap();
        let path = Some(folder.path().join("paper.json"));
        let only = ["x@2".to_owned()];
        keep(&path, &report(&only, false), true).unwrap();
        let read = || std::fs::read_to_string(path.as_ref().unwrap()).unwrap();
        let value: serde_json::Value = serde_json::from_str(&read()).unwrap();
        assert_eq!(
            [&value["complete"], &value["repeat"], &value["only"][0]],
            [&serde_json::json!(false), &serde_json::json!(1), &serde_json::json!("x@2")]
        );
        keep(&path, &report(&[], true), true).unwrap();
        let whole = read();
        assert!(keep(&path, &report(&only, false), true).is_err());
        let nothing = Report { rows: Vec::new(), ..report(&[], false) };
        let why = keep(&path, &nothing, false).unwrap_err();
        assert!(why.contains("nothing could be measured"), "{why}");
        assert_eq!(read(), whole);
        assert!(text(&report(&only, false)).contains("# Not complete: of the parts only x@2\n"));
        assert!(text(&report(&[], false)).contains("# Not complete: what was"));
    }

    #[test]
    fn what_was_not_measured_is_said_below_the_table() {
        let text = text(&report(&[], true));
        assert!(text.contains("# Everything differs.\n\nexperiment"), "{text}");
        assert!(
            text.contains("a put       1 us        2 us        modelled\n# not here: y: one socket\n# not measured: x: why\n"),
            "{text}"
        );
    }
}
