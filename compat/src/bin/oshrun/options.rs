// SPDX-License-Identifier: Apache-2.0
//! The command line.

use crate::fleet;
use crate::hosts::{self, Machines, Named};
use crate::profile::{self, Form, Wish};
use crate::report;
use crate::tool::{self, Words};
use clap::builder::{OsStringValueParser, TypedValueParser};
use clap::error::ErrorKind;
use clap::{Args, CommandFactory, Parser, ValueEnum};
use serde::{Deserialize, Serialize};
use std::ffi::{OsStr, OsString};
use std::path::PathBuf;
use std::time::Duration;
use tombolo_core::config::{Asked, OnLoss, Value};
use tombolo_core::profile::EVENTS_MAX;
use tombolo_transports::ntb::port::emulated::{Fault, FaultPlan};

mod strangers;

const EXAMPLES: &str = "\
Examples:
  oshrun -n 4 ./app                     4 PEs of app
  oshrun -n 4 --label ./app | sort      each line of output begins with its PE: [2] text
  oshrun -n 8 --timeout 60 ./app        end a job that hangs, and show where each PE hangs
  oshrun -n 4 --profile ./app           show where the time of a job went
  oshrun -n 2 -x SHMEM_DEBUG=1 ./app    set an environment variable for the PEs
  oshrun --host n1:4,n2:4 ./app         4 PEs on each of two machines, started through ssh
  oshrun -n 6 --hostfile FILE ./app     the machines that a file names, one a line: n1 slots=4
  oshrun -n 6 --hosts 3 ./app           3 emulated hosts tied into a ring by NTB links
  oshrun -n 1 ./master : -n 3 ./worker  two programs in one job: PE 0 and PEs 1 to 3
  kill -QUIT PID-OF-OSHRUN              (or Ctrl-\\) print what each PE is waiting for

Exit code: that of the first PE that failed, or 128 + the number of the signal
that killed it; 124 after --timeout; 125 when PEs were lost or cut off and all
others ended well (SHMEM_ON_LOSS=continue); 126 when the program cannot be
executed, 127 when there is none; 2 on wrong usage; 1 when the job broke in
another way (oshrun says how). The manual page oshrun(1) has more.";

const ABOUT: &str = "Run an OpenSHMEM program on several processing elements (PEs)";

/// A job as asked for on the command line.
pub struct Plan {
    /// Programs in the order of their PEs; at least one.
    pub programs: Vec<Program>,
    pub label: bool,
    pub timeout: Option<Duration>,
    pub bind: Bind,
    /// Number of emulated hosts, if any.
    pub hosts: Option<usize>,
    pub placement: Placement,
    /// What goes wrong with the links between them.
    pub faults: FaultPlan,
    /// The machines of the job, unless it is this one alone.
    pub machines: Option<Machines>,
    pub remote: Remote,
    /// What is to be shown of what the PEs do.
    pub wish: Wish,
}

/// What runs a command on another machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Rsh {
    /// A command, called with the name of the machine and a line for a shell there.
    Command(Vec<String>),
    /// Slurm's `srun`, for machines of the allocation that this process is in.
    Srun,
}

impl Default for Rsh {
    fn default() -> Rsh {
        Rsh::Command(vec!["ssh".into()])
    }
}

/// How PEs are started on other machines.
#[derive(Clone, Debug, Default)]
pub struct Remote {
    /// The command that runs another one on a machine.
    pub rsh: Rsh,
    /// How long a machine may be silent.
    pub silence: Duration,
    /// Working directory of the PEs.
    pub directory: Option<PathBuf>,
}

/// One program of a job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Program {
    pub count: usize,
    pub command: OsString,
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
pub enum Bind {
    /// Leave PEs to the scheduler of the operating system.
    None,
    /// One core for each PE, not shared with another bound job; a notice if that is not possible.
    Core,
    /// As "core" where that is possible, else as "none".
    Auto,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Placement {
    /// Neighbouring PEs share a host.
    Block,
    /// PEs are dealt to the hosts in turn.
    Cyclic,
}

#[derive(Parser)]
#[command(
    name = "oshrun",
    version = crate::tool::VERSION,
    about = ABOUT,
    after_help = EXAMPLES,
    override_usage = "oshrun [OPTIONS] PROGRAM [ARGUMENTS]... [: [-n COUNT] [-x NAME[=VALUE]] PROGRAM...]...",
)]
struct Options {
    /// Begin each line of output with the PE that wrote it
    #[arg(short, long)]
    label: bool,

    /// End the job after this many seconds and print what each PE was doing
    #[arg(long, value_name = "SECONDS", value_parser = parse_seconds)]
    timeout: Option<Duration>,

    /// Whether PEs are bound to cores
    #[arg(long, value_enum, default_value = "none")]
    bind: Bind,

    /// Run on these machines, with so many PEs on each: "n1:4,n2:4" (also -host)
    #[arg(long, value_name = "LIST", value_delimiter = ',', conflicts_with_all = ["hosts", "hostfile"])]
    host: Vec<String>,

    /// Run on the machines that a file names, one a line: "n1 slots=4" (also -hostfile)
    #[arg(long, value_name = "FILE", conflicts_with = "hosts")]
    hostfile: Option<PathBuf>,

    /// Number of PEs on each machine (also -ppn)
    #[arg(long, value_name = "COUNT", value_parser = parse_count, conflicts_with = "hosts")]
    ppn: Option<usize>,

    /// The command that starts a program on another machine, called with its name and a command; not given: srun on
    /// machines of a Slurm allocation, else ssh
    #[arg(long, value_name = "COMMAND")]
    rsh: Option<Words>,

    /// Give up a machine that was silent for so long
    #[arg(long, value_name = "SECONDS", default_value = "15", value_parser = parse_silence)]
    silence: Duration,

    /// Run the PEs in this directory (also -wdir)
    #[arg(long, value_name = "DIRECTORY")]
    wdir: Option<PathBuf>,

    /// Spread the PEs over this many emulated hosts of this machine
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    hosts: Option<usize>,

    /// How PEs are dealt to hosts
    #[arg(long, value_enum, default_value = "block")]
    placement: Placement,

    /// Make links between emulated hosts fail: "link 1 down at 200ms; up at 800ms; host 2 die at 1s"; see oshrun(1) for
    /// all faults
    #[arg(long, value_name = "PLAN", default_value = "", hide_default_value = true)]
    fault: FaultPlan,

    /// Show what the PEs did: calls, bytes and times by routine, size and channel, and who exchanged how
    /// much with whom; as text on standard error, or in a file: text:PATH, html:PATH, json:PATH
    #[arg(long, value_name = "FORM", num_args = 0..=1, require_equals = true)]
    #[arg(default_missing_value = "text", value_parser = Form::parse)]
    profile: Option<Form>,

    /// Write a timeline of calls, waits, transfers and faults to a file, for ui.perfetto.dev or
    /// chrome://tracing
    #[arg(long, value_name = "PATH", value_parser = parse_path)]
    trace: Option<PathBuf>,

    /// With --trace: keep so many events of each PE, the latest [default: 65536]
    #[arg(long, value_name = "COUNT", requires = "trace", value_parser = parse_events)]
    trace_events: Option<usize>,

    #[command(flatten)]
    section: Section,
}

/// What may differ from one program of a job to the next.
#[derive(Args)]
struct Section {
    /// Number of PEs (also -np) [default: 1, or as many as the machines take]
    #[arg(short = 'n', long = "np", value_name = "COUNT")]
    #[arg(allow_hyphen_values = true, value_parser = parse_count)]
    count: Option<usize>,

    /// Set an environment variable for the PEs; on this machine the whole environment is passed on anyway
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
    #[arg(value_parser = OsStringValueParser::new().try_map(check_export))]
    environment: Vec<OsString>,

    /// The program and its arguments
    #[arg(value_name = "PROGRAM", required = true, trailing_var_arg = true)]
    command: Vec<OsString>,
}

/// The part of the command line after a `:`.
#[derive(Parser)]
#[command(
    name = "oshrun",
    override_usage = "oshrun ... : [-n COUNT] [-x NAME[=VALUE]] PROGRAM [ARGUMENTS]...",
    after_help = "All other options apply to the whole job and stand before the first program."
)]
struct Further {
    #[command(flatten)]
    section: Section,
}

/// Most PEs of a program, and most hosts: as many as there can be processes on Linux.
const COUNT_MAX: usize = 1 << 22;

const CRC: &str = "SHMEM_NTB_CRC";
const DIRECT: &str = "SHMEM_NTB_DIRECT";
const SPEED: &str = "SHMEM_NTB_SPEED";

/// The definition of the command line.
pub fn command() -> clap::Command {
    Options::command()
}

impl Plan {
    /// Reads the command line; prints and exits when it is wrong or asks for help.
    pub fn from_args(args: impl Iterator<Item = OsString>) -> Plan {
        Plan::try_from_args(args).unwrap_or_else(|error| error.exit())
    }

    fn try_from_args(args: impl Iterator<Item = OsString>) -> Result<Plan, clap::Error> {
        let mut args = args;
        let name = args.next().unwrap_or_else(|| "oshrun".into());
        let all: Vec<OsString> = args.collect();
        let mut sections = all.split(|arg| arg == ":").map(|section| {
            let section = accept_np(section, &Options::command());
            std::iter::once(name.clone()).chain(section).collect::<Vec<_>>()
        });
        let mut command = Options::command();
        let strangers: Vec<String> = all
            .split(|arg| arg == ":")
            .flat_map(|section| strangers::advice(section, &command))
            .collect();
        if !strangers.is_empty() {
            return Err(command.error(ErrorKind::UnknownArgument, strangers.join("\n       ")));
        }
        let mut first: Options =
            tool::options_of(sections.next().expect("split yields at least one"))?;
        let further: Vec<Further> = sections.map(tool::options_of).collect::<Result<_, _>>()?;
        let named = first.named_hosts().map_err(|why| wrong(&why))?;
        // A single program has as many PEs as the machines take.
        if let (Some(named), None, []) = (&named, first.section.count, further.as_slice()) {
            first.section.count = Some(hosts::capacity(named, first.ppn));
        }
        let remote = first.remote(hosts::is_program(fleet::SRUN_NAME));
        let wish = Wish {
            profile: first.profile,
            trace: first.trace,
            events: first.trace_events.unwrap_or(profile::EVENTS),
        };
        let mut programs = vec![Program::from_section(first.section)];
        programs.extend(further.into_iter().map(|further| Program::from_section(further.section)));
        let size = programs.iter().map(|program| program.count).sum();
        let machines = match named {
            Some(named) => {
                let machines = hosts::deal(&named, first.ppn, size, first.placement);
                Some(machines.map_err(|why| wrong(&why))?)
            }
            None => None,
        };
        // On this machine alone nothing else is needed.
        let machines =
            machines.filter(|m| m.names.len() > 1 || !hosts::is_this_machine(&m.names[0]));
        let plan = Plan {
            programs,
            machines,
            remote,
            wish,
            label: first.label,
            timeout: first.timeout,
            bind: first.bind,
            hosts: first.hosts,
            placement: first.placement,
            faults: first.fault,
        };
        let plan = plan.prepared_for_faults(|name| std::env::var_os(name).is_some());
        match plan.hosts {
            Some(hosts) if hosts > plan.size() => Err(wrong(&format!(
                "--hosts {hosts} with {} PEs would leave a host without PE",
                plan.size()
            ))),
            _ => Ok(plan),
        }
    }

    /// Sets what faults need to have their effect, unless the user has said otherwise: all data go
    /// in packets, which alone are damaged and delayed; where packets are damaged they have the CRC by
    /// which that is noticed; and where they are delayed the links keep time, because a link that does
    /// not delays the processor that stores to it, and with it everything else that processor does.
    fn prepared_for_faults(mut self, inherited: impl Fn(&str) -> bool) -> Plan {
        let any = |is: fn(&Fault) -> bool| self.faults.0.iter().any(|(_, fault)| is(fault));
        let damages = any(|fault| matches!(fault, Fault::Corrupt { ppm: 1.., .. }));
        let delays = any(|fault| matches!(fault, Fault::Delay { .. }));
        let needed =
            [(CRC, "on", damages), (DIRECT, "off", damages || delays), (SPEED, "modelled", delays)];
        for (name, value, _) in needed.into_iter().filter(|(_, _, needed)| *needed) {
            let set =
                |program: &Program| program.environment.iter().any(|(other, _)| other == name);
            if !inherited(name) && !self.programs.iter().any(set) {
                for program in &mut self.programs {
                    program.environment.push((name.into(), value.into()));
                }
            }
        }
        self
    }

    /// Whether all PEs go on when some cannot be reached any more.
    pub fn goes_on(&self) -> bool {
        self.programs.iter().all(|program| {
            let value = program.variable("SHMEM_ON_LOSS");
            value.and_then(|value| OnLoss::parse(&value).ok()) == Some(OnLoss::Continue)
        })
    }

    /// Number of PEs of the job.
    pub fn size(&self) -> usize {
        self.programs.iter().map(|program| program.count).sum()
    }
}

impl Options {
    /// The machines that the user, or else Slurm, wants the job to run on.
    fn named_hosts(&self) -> Result<Option<Vec<Named>>, String> {
        if !self.host.is_empty() {
            return hosts::from_list(&self.host.join(","))
                .map(Some)
                .map_err(|e| format!("--host: {e}"));
        }
        if let Some(file) = &self.hostfile {
            let name = file.display();
            let text =
                std::fs::read_to_string(file).map_err(|e| format!("--hostfile {name}: {e}"))?;
            return hosts::from_file(&text)
                .map(Some)
                .map_err(|e| format!("--hostfile {name}: {e}"));
        }
        if self.hosts.is_some() {
            return Ok(None);
        }
        match hosts::from_slurm(|name| std::env::var(name).ok()) {
            Some(named) => named.map(Some),
            None if self.ppn.is_some() => Err("--ppn needs --host or --hostfile".into()),
            None => Ok(None),
        }
    }

    /// `has_srun` says whether Slurm's command is there.
    fn remote(&self, has_srun: bool) -> Remote {
        let names_hosts = !self.host.is_empty() || self.hostfile.is_some();
        let rsh = match self.rsh.clone() {
            Some(Words(rsh)) => Rsh::Command(rsh),
            // All others are hosts of the allocation.
            None if !names_hosts && has_srun => Rsh::Srun,
            None => Rsh::default(),
        };
        Remote { rsh, silence: self.silence, directory: self.wdir.clone() }
    }
}

impl Program {
    /// A variable of the PEs' environment: as `-x` gives it, or else as this process has it. Empty text
    /// counts as not set.
    fn variable(&self, name: &str) -> Option<String> {
        let given = self.environment.iter().rev().find(|(other, _)| other == name);
        let value = given.map(|(_, value)| value.clone()).or_else(|| std::env::var_os(name))?;
        value.into_string().ok().filter(|value| !value.is_empty())
    }

    /// Whether `SHMEM_DEBUG` has the calls of the PEs checked.
    pub fn is_checked(&self) -> bool {
        let value = self.variable("SHMEM_DEBUG").or_else(|| self.variable("SMA_DEBUG"));
        value.and_then(|value| Asked::parse(&value).ok()) == Some(Asked(true))
    }
}

/// The error of a command line that clap cannot find wrong.
fn wrong(why: &str) -> clap::Error {
    Options::command().error(ErrorKind::ValueValidation, why)
}

impl Program {
    fn from_section(section: Section) -> Program {
        let mut command = section.command.into_iter();
        Program {
            count: section.count.unwrap_or(1),
            command: command.next().expect("clap requires a program"),
            arguments: command.collect(),
            environment: section.environment.iter().filter_map(|x| parse_export(x)).collect(),
        }
    }
}

/// Turns `-np` and others, which every launcher takes and which are no options by the usual rules,
/// into `--np` and so on, among the options that stand before the program.
fn accept_np(section: &[OsString], command: &clap::Command) -> Vec<OsString> {
    let mut result = Vec::with_capacity(section.len());
    let mut rest = section.iter();
    while let Some(arg) = rest.next() {
        let is_option = arg.as_encoded_bytes().starts_with(b"-") && arg != "--";
        let arg = long_form(arg);
        let with_value = takes_value(&arg, command);
        result.push(arg);
        if !is_option {
            break;
        }
        if with_value {
            result.extend(rest.next().cloned());
        }
    }
    result.extend(rest.cloned());
    result
}

/// `--np` for `-np` and so on.
fn long_form(arg: &OsStr) -> OsString {
    let long = ["--np", "--ppn", "--host", "--hostfile", "--wdir"];
    let meant = long.into_iter().find(|long| arg == &long[1..]);
    meant.map_or_else(|| arg.to_owned(), OsString::from)
}

/// Whether an option has a value, which is the next word.
fn takes_value(option: &OsStr, command: &clap::Command) -> bool {
    command.get_arguments().any(|argument| {
        argument.get_action().takes_values()
            && !argument.is_require_equals_set()
            && (argument.get_short().is_some_and(|s| *option == *format!("-{s}"))
                || argument.get_long().is_some_and(|l| *option == *format!("--{l}")))
    })
}

fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=COUNT_MAX).contains(&count) => Ok(count),
        _ => Err(format!("expected a whole number, at least 1 and at most {COUNT_MAX}")),
    }
}

fn parse_path(text: &str) -> Result<PathBuf, String> {
    match text.is_empty() {
        true => Err("expected a path".into()),
        false => std::path::absolute(text).map_err(|e| e.to_string()),
    }
}

fn parse_events(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=EVENTS_MAX).contains(&count) => Ok(count),
        _ => Err(format!("expected a whole number, at least 1 and at most {EVENTS_MAX}")),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match Duration::parse(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(format!("expected {}, above 0", Duration::FORM)),
    }
}

/// Shorter than a second is what a busy machine takes for nothing in particular.
fn parse_silence(text: &str) -> Result<Duration, String> {
    match parse_seconds(text) {
        Ok(time) if time >= Duration::from_secs(1) => Ok(time),
        _ => Err("expected a number of seconds, at least 1".into()),
    }
}

/// What stands behind `-x`, if it begins with a name. Without a value that is one as shells have them, or that of a
/// variable that is set: or else it may be the program, taken for a name.
fn check_export(text: OsString) -> Result<OsString, &'static str> {
    let bytes = text.as_encoded_bytes();
    let is_name = |bytes: &[u8]| {
        let (letter, rest) = bytes.split_first().unwrap_or((&b'=', bytes));
        let is_letter = |byte: &u8| byte.is_ascii_alphabetic() || *byte == b'_';
        is_letter(letter) && rest.iter().all(|byte| is_letter(byte) || byte.is_ascii_digit())
    };
    let given = match bytes.iter().position(|byte| *byte == b'=') {
        Some(at) => at > 0,
        None => is_name(bytes) || !bytes.is_empty() && std::env::var_os(&text).is_some(),
    };
    match given {
        true => Ok(text),
        false => Err(
            "it is not a name of a variable; expected NAME or NAME=VALUE, and the program after it",
        ),
    }
}

/// `NAME=VALUE`, or `NAME` with the value it has in our own environment.
fn parse_export(text: &OsStr) -> Option<(OsString, OsString)> {
    use std::os::unix::ffi::OsStrExt;
    let bytes = text.as_bytes();
    if let Some(at) = bytes.iter().position(|byte| *byte == b'=') {
        return Some((
            OsStr::from_bytes(&bytes[..at]).into(),
            OsStr::from_bytes(&bytes[at + 1..]).into(),
        ));
    }
    let value = std::env::var_os(text);
    if value.is_none() {
        let name = text.display();
        report::line(format_args!("-x {name}: not set in the environment, nothing to pass on"));
    }
    Some((text.into(), value?))
}

#[cfg(test)]
mod tests;
