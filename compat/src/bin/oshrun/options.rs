//! The command line.

use crate::report;
use clap::{Args, CommandFactory, Parser, ValueEnum};
use std::ffi::{OsStr, OsString};
use std::time::Duration;
use tombolo_core::config::{OnLoss, Value};
use tombolo_transports::ntb::port::emulated::{Fault, FaultPlan};

const EXAMPLES: &str = "\
Examples:
  oshrun -n 4 ./app                     4 PEs of app
  oshrun -n 4 --label ./app | sort      each line of output begins with its PE: [2] text
  oshrun -n 8 --timeout 60 ./app        end a job that hangs, and show where each PE hangs
  oshrun -n 2 -x SHMEM_DEBUG=1 ./app    set an environment variable for the PEs
  oshrun -n 6 --hosts 3 ./app           3 emulated hosts tied into a ring by NTB links
  oshrun -n 1 ./master : -n 3 ./worker  two programs in one job: PE 0 and PEs 1 to 3
  kill -QUIT PID-OF-OSHRUN              (or Ctrl-\\) print what each PE is waiting for

Exit code: that of the first PE that failed, 128 + signal number if a signal killed it;
124 after --timeout, 125 PEs were lost or cut off and all others ended well (SHMEM_ON_LOSS=continue),
126 program cannot be executed, 127 program not found, 2 wrong usage, 1 when the job broke in
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
}

/// One program of a job.
pub struct Program {
    pub count: usize,
    pub command: OsString,
    pub arguments: Vec<OsString>,
    pub environment: Vec<(OsString, OsString)>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
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
    version = concat!(env!("CARGO_PKG_VERSION"), " (Tombolo, OpenSHMEM 1.6)"),
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

    /// Spread the PEs over this many emulated hosts of this machine
    #[arg(long, value_name = "COUNT", value_parser = parse_count)]
    hosts: Option<usize>,

    /// How PEs are dealt to hosts
    #[arg(long, value_enum, default_value = "block")]
    placement: Placement,

    /// Make links between emulated hosts fail: "link 1 down at 200ms; up at 800ms; host 2 die at 1s"
    #[arg(long, value_name = "PLAN", default_value = "")]
    fault: FaultPlan,

    #[command(flatten)]
    section: Section,
}

/// What may differ from one program of a job to the next.
#[derive(Args)]
struct Section {
    /// Number of PEs (-np is understood as well)
    #[arg(short = 'n', long = "np", value_name = "COUNT", default_value = "1")]
    #[arg(allow_hyphen_values = true, value_parser = parse_count)]
    count: usize,

    /// Set an environment variable for the PEs; the whole environment is passed on anyway
    #[arg(short = 'x', value_name = "NAME[=VALUE]")]
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
        let first = Options::try_parse_from(sections.next().expect("split yields at least one"))?;
        let mut programs = vec![Program::from_section(first.section)];
        for section in sections {
            programs.push(Program::from_section(Further::try_parse_from(section)?.section));
        }
        let plan = Plan {
            programs,
            label: first.label,
            timeout: first.timeout,
            bind: first.bind,
            hosts: first.hosts,
            placement: first.placement,
            faults: first.fault,
        };
        let inherited = std::env::var_os(CRC).is_some();
        let plan = plan.with_crc_where_needed(inherited);
        match plan.hosts {
            Some(hosts) if hosts > plan.size() => Err(Options::command().error(
                clap::error::ErrorKind::ValueValidation,
                format!("--hosts {hosts} with {} PEs would leave a host without PE", plan.size()),
            )),
            _ => Ok(plan),
        }
    }

    /// Damaged packets are noticed by their CRC alone: it is on in a job that is to have some, unless
    /// the user has said otherwise.
    fn with_crc_where_needed(mut self, inherited: bool) -> Plan {
        let damages = |fault: &Fault| matches!(fault, Fault::Corrupt { ppm: 1.., .. });
        let needed = self.faults.0.iter().any(|(_, fault)| damages(fault));
        let set = |program: &Program| program.environment.iter().any(|(name, _)| name == CRC);
        if needed && !inherited && !self.programs.iter().any(set) {
            for program in &mut self.programs {
                program.environment.push((CRC.into(), "on".into()));
            }
        }
        self
    }

    /// Whether all PEs go on when some cannot be reached any more.
    pub fn goes_on(&self) -> bool {
        let inherited = std::env::var_os("SHMEM_ON_LOSS");
        self.programs.iter().all(|program| {
            let given = program.environment.iter().rev().find(|(name, _)| name == "SHMEM_ON_LOSS");
            let value = given.map(|(_, value)| value).or(inherited.as_ref());
            let parsed = value.and_then(|value| OnLoss::parse(value.to_str()?).ok());
            parsed == Some(OnLoss::Continue)
        })
    }

    /// Number of PEs of the job.
    pub fn size(&self) -> usize {
        self.programs.iter().map(|program| program.count).sum()
    }
}

impl Program {
    fn from_section(section: Section) -> Program {
        let mut command = section.command.into_iter();
        Program {
            count: section.count,
            command: command.next().expect("clap requires a program"),
            arguments: command.collect(),
            environment: section.environment.iter().filter_map(|x| parse_export(x)).collect(),
        }
    }
}

/// Turns `-np`, which every launcher takes and which is no option by the usual rules, into
/// `--np`, among the options that stand before the program.
fn accept_np(section: &[OsString], command: &clap::Command) -> Vec<OsString> {
    let takes_value = |option: &OsStr| {
        command.get_arguments().any(|argument| {
            argument.get_action().takes_values()
                && (argument.get_short().is_some_and(|s| *option == *format!("-{s}"))
                    || argument.get_long().is_some_and(|l| *option == *format!("--{l}")))
        })
    };
    let mut result = Vec::with_capacity(section.len());
    let mut rest = section.iter();
    while let Some(arg) = rest.next() {
        let is_option = arg.as_encoded_bytes().starts_with(b"-") && arg != "--";
        let arg = if arg == "-np" { OsString::from("--np") } else { arg.clone() };
        let with_value = takes_value(&arg);
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

fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count) if (1..=COUNT_MAX).contains(&count) => Ok(count),
        _ => Err(format!("expected a whole number, at least 1 and at most {COUNT_MAX}")),
    }
}

fn parse_seconds(text: &str) -> Result<Duration, String> {
    match Duration::parse(text) {
        Ok(time) if !time.is_zero() => Ok(time),
        _ => Err(format!("expected {}, above 0", Duration::FORM)),
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
mod tests {
    use super::*;

    fn plan(line: &str) -> Result<Plan, clap::Error> {
        Plan::try_from_args(
            std::iter::once("oshrun").chain(line.split_whitespace()).map(OsString::from),
        )
    }

    #[test]
    fn np_is_an_option_before_the_program_and_an_argument_after_it() {
        let plan = plan("--label -np 3 ./app -np 7 --label").unwrap_or_else(|e| panic!("{e}"));
        assert_eq!((plan.size(), plan.label), (3, true));
        assert_eq!(plan.programs[0].arguments, ["-np", "7", "--label"]);
    }

    #[test]
    fn np_is_found_after_options_with_and_without_values() {
        for line in
            ["-x A=-np -np 2 ./app", "--timeout 9 -l -np 2 ./app", "--bind=none -np 2 ./app"]
        {
            let plan = plan(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            assert_eq!((plan.size(), plan.programs[0].command.to_str()), (2, Some("./app")));
        }
    }

    #[test]
    fn packets_have_a_crc_where_they_are_to_be_damaged() {
        let crcs = |line: &str| -> Vec<Option<OsString>> {
            let words = format!("oshrun {line}");
            let words = words.split(' ').map(|word| word.replace('~', " ").into());
            let words: Vec<OsString> = words.collect();
            // Whatever the environment of this test has.
            let plan = Plan::try_from_args(words.into_iter()).unwrap().with_crc_where_needed(false);
            let of = |program: &Program| {
                let mut set =
                    program.environment.iter().filter(|(name, _)| name == "SHMEM_NTB_CRC");
                set.next().map(|(_, value)| value.clone())
            };
            plan.programs.iter().map(of).collect()
        };
        let on = Some(OsString::from("on"));
        assert_eq!(crcs("--hosts 2 --fault link~0~corrupt~5 a : b"), [on.clone(), on]);
        assert_eq!(crcs("--hosts 2 --fault link~0~down a : b"), [None, None]);
        let off = Some(OsString::from("off"));
        let line = "--hosts 2 --fault link~0~corrupt~5 -x SHMEM_NTB_CRC=off a : b";
        assert_eq!(crcs(line), [off, None]);
    }

    #[test]
    fn a_job_goes_on_if_all_its_programs_ask_for_it() {
        for (line, goes_on) in [
            ("-x SHMEM_ON_LOSS=continue a", true),
            ("-x SHMEM_ON_LOSS=end a", false),
            ("-x SHMEM_ON_LOSS=end -x SHMEM_ON_LOSS=Continue a", true),
            ("-x SHMEM_ON_LOSS=continue a : -x SHMEM_ON_LOSS=end b", false),
        ] {
            let plan = plan(line).unwrap_or_else(|e| panic!("{line}: {e}"));
            assert_eq!(plan.goes_on(), goes_on, "{line}");
        }
    }

    #[test]
    fn programs_are_separated_by_colons() {
        let plan = plan("-n 1 -x A=1=2 a x : -n 2 -x B= b : c").unwrap_or_else(|e| panic!("{e}"));
        let found: Vec<_> =
            plan.programs.iter().map(|p| (p.count, p.command.to_str().unwrap())).collect();
        assert_eq!(found, [(1, "a"), (2, "b"), (1, "c")]);
        assert_eq!(plan.programs[0].environment, [("A".into(), "1=2".into())]);
        assert_eq!(plan.programs[1].environment, [("B".into(), "".into())]);
    }

    #[test]
    fn wrong_usage_is_refused() {
        for line in [
            "",
            "-n 0 a",
            "-n -1 a",
            "-n x a",
            "-n 18446744073709551615 a",
            "-n 4194305 a",
            "--timeout 1e19 a",
            "--timeout nan a",
            "-n",
            "--timeout 0 a",
            "--timeout -1 a",
            "--hosts 3 -n 2 a",
            "a : --label b",
            "a :",
            ": a",
            "--unknown a",
            "--bind socket a",
            "--hosts 2 -n 2 --fault sometimes a",
        ] {
            assert!(plan(line).is_err(), "{line}");
        }
    }
}
