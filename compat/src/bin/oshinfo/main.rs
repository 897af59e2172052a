// SPDX-License-Identifier: Apache-2.0
//! `oshinfo`: what this installation of Tombolo is and how it is set up; in a job, what the job has.

mod clock;
mod collectives;
mod doctor;
#[path = "../oshrun/hosts/list.rs"]
mod hosts;
mod manual;
mod measure;
mod overview;
mod predict;
#[path = "../../tool.rs"]
mod tool;

use clap::error::ErrorKind;
use clap::{CommandFactory, Parser};
use doctor::Machine;
use std::path::{Path, PathBuf};
use std::process::ExitCode;
use tombolo::describe;
use tombolo::tools::{Session, join};
use tombolo_core::bootstrap;
use tombolo_core::config::{Bytes, CacheDirectory, Config, ReportForm, Value};
use tombolo_selector::cache::{self, Saved};
use tombolo_selector::pattern::{By, Pattern, Topology};
use tombolo_selector::report::{self, difference};
use tombolo_selector::{Origin, Tuning};

const IN_A_JOB: &str = "\
In a job, as in `oshrun -n 4 --hosts 2 oshinfo`, it shows the job's PEs, hosts,
ports, links, windows and routes, and which transports reach which PEs and why
others do not; --tuning explains the routes of the job;
--predict also measures the pattern.";

/// What stands in the place of a file for the comparison of two.
const DIFF: &str = "diff";
const TABLES: &str =
    "two saved tables are compared by oshinfo --tuning=diff OLD NEW; --tuning=FILE explains one";
const STRAY: &str =
    "all arguments of oshinfo are options, but for the two saved tables of --tuning=diff";

/// What options of --predict have no meaning with. Where an option conflicts with what another one requires,
/// clap does not ask for what is required.
const NOT_PREDICT: [&str; 3] = ["tuning", "doctor", "collectives"];

/// Options.
#[derive(Parser)]
#[command(
    name = "oshinfo",
    version = tool::VERSION,
    about = "Show version, build, transports and environment variables of this OpenSHMEM",
    override_usage = "oshinfo [OPTIONS]\n       oshinfo --tuning=diff OLD NEW",
    after_help = IN_A_JOB,
)]
struct Options {
    /// Print the environment variables as a section of a manual page
    #[arg(long, hide = true)]
    man_environment: bool,

    /// Explain the routes of the last job that measured, or of a saved table; --tuning=diff OLD NEW shows
    /// what differs between two saved tables: times, and channels taken
    #[arg(long, value_name = "FILE", num_args = 0..=1)]
    tuning: Option<Option<PathBuf>>,

    /// Form of the explanation: text, json or html
    #[arg(long, default_value = "text", value_parser = ReportForm::parse, requires = "tuning")]
    #[arg(conflicts_with_all = ["doctor", "predict", "collectives"])]
    form: ReportForm,

    /// With --tuning=diff: two saved tables
    #[arg(hide = true, conflicts_with = "form")]
    tables: Vec<PathBuf>,

    /// Find out what makes jobs slow or impossible on this machine, and how to change it
    #[arg(long, conflicts_with_all = ["tuning", "predict", "collectives"])]
    doctor: bool,

    /// With --doctor: also on these machines, each through ssh
    #[arg(long, value_name = "LIST", requires = "doctor", value_parser = machines)]
    #[arg(conflicts_with_all = ["tuning", "predict", "collectives"])]
    host: Vec<Machines>,

    /// With --host: the command that starts a program on another machine
    #[arg(long, value_name = "COMMAND", default_value = "ssh", requires = "host")]
    #[arg(conflicts_with_all = ["tuning", "predict", "collectives", "root"])]
    rsh: tool::Words,

    /// With --doctor: read the files of /proc and /sys that are copied below a directory, and try nothing
    #[arg(long, value_name = "DIRECTORY", requires = "doctor", value_parser = copied_files)]
    #[arg(conflicts_with_all = ["host", "tuning", "predict", "collectives"])]
    root: Option<PathBuf>,

    /// List the algorithms of the collective operations; in a job with the times that they take there
    #[arg(long, conflicts_with_all = ["tuning", "predict"])]
    collectives: bool,

    /// Estimate a communication pattern from what was measured: gather, broadcast, alltoall or
    /// ring-shift
    #[arg(long, value_name = "PATTERN", conflicts_with = "tuning")]
    predict: Option<Pattern>,

    /// How the pattern is carried out: get, put or staged; all of them if left out
    #[arg(long, value_name = "METHOD", requires = "predict", conflicts_with_all = NOT_PREDICT)]
    by: Option<By>,

    /// Bytes that one PE sends to another, such as 8 or 64k; several sizes if left out
    #[arg(long, requires = "predict", conflicts_with_all = NOT_PREDICT, value_parser = size)]
    size: Option<u64>,

    /// Hosts that take part in the pattern; 1 if left out
    #[arg(long, requires = "predict", conflicts_with_all = NOT_PREDICT)]
    #[arg(value_parser = tool::whole(1, u32::MAX))]
    hosts: Option<u32>,

    /// What connects the hosts: ring or network; what was measured if left out
    #[arg(long, requires = "predict", conflicts_with_all = NOT_PREDICT)]
    topology: Option<Topology>,

    /// PEs on each of them; 4 if left out
    #[arg(long, requires = "predict", conflicts_with_all = NOT_PREDICT)]
    #[arg(value_parser = tool::whole(1, u32::MAX))]
    pes: Option<u32>,
}

impl Options {
    fn compares(&self) -> bool {
        matches!(&self.tuning, Some(Some(file)) if file == Path::new(DIFF))
    }

    fn has_stray_arguments(&self) -> bool {
        !self.tables.is_empty() && !self.compares()
    }
}

fn size(text: &str) -> Result<u64, String> {
    /// What all PEs of a pattern exchange together can be counted.
    const MOST: u64 = 1 << 40;
    match Bytes::parse(text)?.0 {
        bytes @ 1..=MOST => Ok(bytes),
        _ => Err("expected 1 byte to 1 TiB".into()),
    }
}

/// Names of machines.
#[derive(Clone)]
struct Machines(Vec<String>);

/// A list as `oshrun --host` takes it; how many PEs a machine is to get does not matter.
fn machines(text: &str) -> Result<Machines, String> {
    let named = hosts::from_list(text)?;
    Ok(Machines(named.into_iter().map(|host| host.name).collect()))
}

/// A directory with copies of the files of a machine.
fn copied_files(text: &str) -> Result<PathBuf, String> {
    let path = PathBuf::from(text);
    match ["proc", "sys"].iter().any(|name| path.join(name).is_dir()) {
        true => Ok(path),
        false => Err("expected a directory with copies of /proc and /sys in it".into()),
    }
}

fn main() -> ExitCode {
    if tool::completes(Options::command) {
        return ExitCode::SUCCESS;
    }
    let options: Options = tool::options();
    if bootstrap::is_launched() {
        return in_job(&options);
    }
    if options.has_stray_arguments() {
        return wrong(STRAY);
    }
    if options.doctor {
        return doctor(&options);
    }
    let text = match &options {
        Options { man_environment: true, .. } => Ok(manual::environment()),
        Options { tables, .. } if options.compares() => {
            let [old, new] = &tables[..] else { return wrong(TABLES) };
            saved(Some(old)).and_then(|old| Ok(difference::text(&old, &saved(Some(new))?)))
        }
        Options { tuning: Some(file), .. } => {
            saved(file.as_deref()).map(|tuning| explained(&tuning, &options))
        }
        Options { predict: Some(pattern), .. } => estimated(*pattern, &options),
        Options { collectives: true, .. } => Ok(describe::collectives().to_string()),
        _ => Ok(overview::overview()),
    };
    finish(text, true)
}

/// Examines this machine or a copy of another's files, then other machines. The exit code is that of
/// the worst finding.
fn doctor(options: &Options) -> ExitCode {
    let machine = options.root.as_ref().map_or_else(Machine::this, Machine::below);
    let findings = doctor::examine(&machine);
    let mut text = doctor::render(&machine, &findings);
    let mut worst = doctor::worst(&findings);
    let own = std::env::current_exe().unwrap_or_default();
    for name in options.host.iter().flat_map(|machines| &machines.0) {
        let (theirs, grade) = doctor::others(&own, &options.rsh.0, name);
        text += &format!("\n{theirs}");
        worst = worst.max(grade);
    }
    tool::print(text);
    ExitCode::from(worst.code())
}

/// Takes part in the job in which this process was started. PE 0 prints.
fn in_job(options: &Options) -> ExitCode {
    let session = match join() {
        Ok(session) => session,
        Err(error) => return finish(Err(error.to_string()), true),
    };
    let speaks = session.pe() == 0;
    if let Some(why) = misplaced(options) {
        // All PEs leave in good order, so that the message is not lost with the job.
        if speaks {
            wrong(why);
        }
        drop(session);
        return ExitCode::from(2);
    }
    let text = shown(&session, options);
    finish(text, speaks)
}

/// Tells what is wrong with the arguments.
fn wrong(why: &str) -> ExitCode {
    let _ = Options::command().error(ErrorKind::ArgumentConflict, why).print();
    ExitCode::from(2)
}

/// Why options have no meaning in a job.
fn misplaced(options: &Options) -> Option<&'static str> {
    match options {
        Options { man_environment: true, .. } => Some("--man-environment is not for jobs"),
        Options { doctor: true, .. } => Some(
            "--doctor examines machines, not jobs: start oshinfo without oshrun, with --host for \
             other machines",
        ),
        _ if options.compares() => {
            Some("--tuning=diff compares files: start oshinfo without oshrun")
        }
        _ if options.has_stray_arguments() => Some(STRAY),
        Options { tuning: Some(Some(_)), .. } => Some(
            "in a job --tuning explains the routes of the job and takes no file; start oshinfo \
             without oshrun to explain a file, or set SHMEM_TUNE to use it in the job",
        ),
        Options { hosts: Some(_), .. }
        | Options { pes: Some(_), .. }
        | Options { topology: Some(_), .. } => Some(
            "--hosts, --topology and --pes of oshinfo are for estimates without a job; this job has the \
             hosts and PEs that it was started with: oshrun -n PES --hosts HOSTS oshinfo --predict ...",
        ),
        _ => None,
    }
}

/// Collective: what PE 0 is to print.
fn shown(session: &Session, options: &Options) -> Result<String, String> {
    match options {
        Options { tuning: Some(_), .. } => Ok(explained(&session.tuning(), options)),
        Options { predict: Some(pattern), .. } => predict::compared(session, *pattern, options),
        Options { collectives: true, .. } => {
            let measured = collectives::measured(session).map_err(|e| e.to_string())?;
            Ok(measured.to_string())
        }
        _ => {
            let sections = describe::whole_job(session).map_err(|e| e.to_string())?;
            Ok(sections.map_or_else(String::new, |sections| overview::of_job(&sections)))
        }
    }
}

fn explained(tuning: &Tuning, options: &Options) -> String {
    report::Explanation::of(tuning).render(options.form)
}

fn finish(text: Result<String, String>, speaks: bool) -> ExitCode {
    match text {
        Ok(text) => {
            if speaks {
                tool::print(text);
            }
            ExitCode::SUCCESS
        }
        Err(why) => {
            if speaks {
                tool::complain(format_args!("oshinfo: {why}"));
            }
            ExitCode::FAILURE
        }
    }
}

/// Transports between PEs of one host.
const WITHIN_A_HOST: &[&str] = &["shm", "cma"];

/// What was measured: a file, or the newest one in the cache.
fn saved(file: Option<&Path>) -> Result<Tuning, String> {
    match file {
        Some(path) => {
            let text = cache::read(path, cache::Owner::Any).map_err(|e| e.to_string());
            let saved = text.and_then(|text| Saved::parse(&text));
            let saved = saved.map_err(|why| format!("{}: {why}", path.display()))?;
            Ok(without_job(path.to_owned(), saved))
        }
        None => Ok(cached()?.remove(0)),
    }
}

/// What is in the cache, the newest first; at least one.
fn cached() -> Result<Vec<Tuning>, String> {
    let config = Config::from_env().map_err(|e| e.to_string())?;
    let directory = cache::directory(&config.tune_cache)?.ok_or(match config.tune_cache {
        CacheDirectory::Off => "no measurements are kept: SHMEM_TUNE_CACHE is off",
        _ => {
            "no measurements are kept: neither SHMEM_TUNE_CACHE nor XDG_CACHE_HOME nor HOME is the absolute \
             path of a directory"
        }
    })?;
    let all: Vec<Tuning> =
        cache::newest_first(&directory).map(|(path, saved)| without_job(path, saved)).collect();
    match all.is_empty() {
        false => Ok(all),
        true => Err(format!(
            "no measurements in {}: start a program with several PEs first",
            directory.display()
        )),
    }
}

fn without_job(path: PathBuf, Saved { machine, measured, .. }: Saved) -> Tuning {
    Tuning::without_job(Origin::File(path), machine, measured, tombolo_transports::NAMES)
}

/// Estimates from the newest measurements that know of hosts and PEs as asked for. Those come first that were made
/// over the transports that jobs of this environment use within a host, and of these the ones that can be relied on.
fn estimated(pattern: Pattern, options: &Options) -> Result<String, String> {
    let config = Config::from_env().map_err(|e| e.to_string())?;
    let used = config.transports.choose(WITHIN_A_HOST);
    let is_like = |tuning: &Tuning| {
        let measured: Vec<&str> = cache::transports(tuning.machine()).split('+').collect();
        WITHIN_A_HOST.iter().all(|name| measured.contains(name) == used.contains(name))
    };
    let mut all = cached()?;
    all.sort_by_key(|tuning| (!is_like(tuning), tuning.measured().doubt().is_some()));
    let mut results = all.into_iter().map(|tuning| predict::estimates(&tuning, pattern, options));
    let first = results.next().unwrap_or_else(|| Err("no measurements".into()));
    first.or_else(|why| results.find_map(Result::ok).ok_or(why))
}
