// SPDX-License-Identifier: Apache-2.0
//! `cargo dev sim`: the NTB ring protocol on simulated hosts, under virtual time.
//!
//! All figures it prints are modelled, and the same arguments give the same output, to the byte;
//! `engine` alone measures wall-clock time.

#![deny(clippy::print_stdout, reason = "`say` tells of text that cannot be written")]

/// Prints a line.
macro_rules! say {
    () => { $crate::tool::print("\n") };
    ($($text:tt)+) => { $crate::tool::print(format!($($text)+) + "\n") };
}

mod collectives;
mod contexts;
mod engine;
mod figures;
mod load;
mod plot;
mod print;
mod processors;
mod soak;
mod targets;
#[allow(dead_code, reason = "it completes no command line")]
#[path = "../../../../compat/src/tool.rs"]
mod tool;
mod tune;

use std::path::PathBuf;
use std::process::ExitCode;

use clap::{Args, Parser, Subcommand, ValueEnum};
use nix::sys::signal::{SigHandler, Signal, signal};
use tombolo_transports::ntb::port::emulated::Profile;
use tombolo_transports::ntb::ring::{Config, Geometry};
use tombolo_transports::ntb::sim::{
    Faults, HostModel, Operation, Pattern, Simulation, Workload, Writer, run,
};

/// Runs the NTB ring protocol on simulated hosts under virtual time.
///
/// Results are modelled, not measured on hardware. The same arguments give the same output.
#[derive(Parser)]
#[command(name = "ntbsim", args_conflicts_with_subcommands = true)]
struct Cli {
    #[command(subcommand)]
    command: Option<Command>,
    #[command(flatten)]
    world: World,
}

#[derive(Subcommand)]
enum Command {
    /// Many seeds: two-slot rings under all-to-all, and faults; stops at the first failure.
    Soak(soak::Soak),
    /// Redoes the published figures 4 to 7 as tables and plots, and shows the cost up to 64 hosts.
    Figures {
        /// Directory for figures.md and the SVG plots; made if absent.
        dir: PathBuf,
    },
    /// Compares the simulated ring with its targets; fails if one is missed.
    Targets,
    /// Collectives of the library on 2 to 64 hosts: what they take, and what the links would allow.
    Collectives(collectives::Collectives),
    /// Small operations of one context beside large ones of another; fails if a median is more than
    /// three times that alone.
    Contexts,
    /// Compares what is reached when everybody sends with what the links carry, and shows whether
    /// random targets and a single one are fair to all PEs.
    Load,
    /// Compares the chosen chunk, slots and lanes with the best of an exhaustive search; fails if
    /// a choice is more than 5 % from it. Takes minutes.
    Tune {
        /// Prints the table as JSON.
        #[arg(long)]
        json: bool,
    },
    /// Compares, on processors slower and faster than the one whose costs are built in, the settings
    /// that these costs give with those that the processor's own costs give. Takes minutes.
    Processors,
    /// Measures what the protocol itself costs on this machine, in wall-clock time.
    Engine,
}

/// One simulated run.
#[derive(Args, Clone)]
struct World {
    /// Hosts of the ring.
    #[arg(long, default_value_t = 3)]
    hosts: u16,
    /// PEs of each host.
    #[arg(long, default_value_t = 1)]
    pes_per_host: u16,
    /// Lanes of each PE, each with a service thread of its own.
    #[arg(long, alias = "threads", default_value_t = 1)]
    lanes: u16,
    /// Who talks to whom.
    #[arg(long, value_enum, default_value_t = PatternName::Neighbour)]
    pattern: PatternName,
    /// Hosts between sender and target, for 'neighbour' and 'pair'.
    #[arg(long, default_value_t = 1)]
    hops: u16,
    /// What the PEs do.
    #[arg(long, value_enum, default_value_t = OperationName::Put)]
    op: OperationName,
    /// Bytes of an operation.
    #[arg(long, default_value_t = 65536)]
    size: usize,
    /// Operations of each PE.
    #[arg(long, default_value_t = 200)]
    count: u64,
    /// Operations a PE has outstanding; 1 waits for each.
    #[arg(long, default_value_t = 8)]
    depth: usize,
    /// Seed of everything random.
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Faults, for example 'link 1 down at 200us; link 1 up at 800us; host 2 die at 1ms;
    /// flap 500us; loss 0.001; corrupt 0.001; delay 0.01 5us; stall 500us; rough'.
    #[arg(long, default_value = "")]
    faults: Faults,
    /// Link: plx8749 (Gen3 x8), intel-gen3 (x16) or switchtec (Gen4 x8).
    #[arg(long, default_value = "plx8749", value_parser = profile)]
    profile: Profile,
    /// Largest TLP payload in bytes; the profile's if absent.
    #[arg(long)]
    mps: Option<u32>,
    /// Who moves bulk data: the CPU in 64-byte TLPs, or the DMA engine in the largest ones.
    #[arg(long, value_enum, default_value_t = WriterName::Cpu)]
    writer: WriterName,
    /// Payload bytes of a slot.
    #[arg(long, default_value_t = 8192)]
    chunk: usize,
    /// Slots of the request and reply rings; a power of two.
    #[arg(long, default_value_t = 32)]
    slots: u32,
    /// CRC32C of headers and payloads; on by itself when faults need it.
    #[arg(long)]
    crc: bool,
    /// Large transfers use both directions.
    #[arg(long)]
    split: bool,
    /// Idle threads block and need a doorbell, instead of polling.
    #[arg(long)]
    sleepers: bool,
    /// Prints the whole report as JSON.
    #[arg(long)]
    json: bool,
}

#[derive(Clone, Copy, ValueEnum)]
enum PatternName {
    /// Every PE to the same PE `--hops` hosts to the right.
    Neighbour,
    /// The same, but only host 0 sends.
    Pair,
    /// Every PE to all PEs of other hosts in turn.
    Alltoall,
    /// Every PE to a random PE of another host.
    Uniform,
    /// Every PE to PE 0 of host 0.
    Hotspot,
}

#[derive(Clone, Copy, ValueEnum)]
enum OperationName {
    /// Puts.
    Put,
    /// Gets.
    Get,
    /// Fetching additions.
    Amo,
    /// Puts with signal, gets and additions in turn.
    Mixed,
}

#[derive(Clone, Copy, ValueEnum)]
enum WriterName {
    /// Streaming stores.
    Cpu,
    /// The bridge's engine.
    Dma,
}

fn main() -> ExitCode {
    // Ends quietly, as other programs do, when nobody reads on: `ntbsim load | head`.
    // SAFETY: no handler is installed, and there is one thread.
    unsafe { signal(Signal::SIGPIPE, SigHandler::SigDfl) }.expect("SIGPIPE may be changed");
    let cli = Cli::parse();
    let done = match &cli.command {
        None => single(&cli.world),
        Some(Command::Soak(soak)) => soak.run(),
        Some(Command::Figures { dir }) => figures::draw(dir),
        Some(Command::Targets) => targets::check(),
        Some(Command::Load) => load::show(),
        Some(Command::Collectives(collectives)) => collectives.show(),
        Some(Command::Contexts) => contexts::check(),
        Some(Command::Tune { json }) => tune::tune(*json),
        Some(Command::Processors) => processors::compare(),
        Some(Command::Engine) => engine::measure(),
    };
    match done {
        Ok(()) => ExitCode::SUCCESS,
        Err(why) => {
            eprintln!("ntbsim: {why}");
            ExitCode::FAILURE
        }
    }
}

fn single(world: &World) -> Result<(), String> {
    let simulation = world.simulation()?;
    let report = run(&simulation).map_err(|error| error.to_string())?;
    if world.json {
        let text = serde_json::to_string_pretty(&report).map_err(|error| error.to_string())?;
        say!("{text}");
    } else {
        print::report(&report);
    }
    Ok(())
}

impl World {
    fn simulation(&self) -> Result<Simulation, String> {
        let slots = [self.slots, self.slots, self.slots.max(2)];
        let geometry = Geometry::new(self.chunk, slots).map_err(|error| error.to_string())?;
        let mut link = self.profile.link();
        if let Some(mps_bytes) = self.mps {
            if !mps_bytes.is_power_of_two() || !(64..=4096).contains(&mps_bytes) {
                return Err(format!("--mps {mps_bytes}: expected a power of two, 64 to 4096"));
            }
            link.mps_bytes = mps_bytes;
        }
        let mut config = Config::simulated(geometry, self.faults.any());
        config.crc = self.crc || self.faults.needs_crc();
        config.split = self.split;
        if self.sleepers {
            config.tick_ns = 1_000_000;
        }
        Ok(Simulation {
            hosts: self.hosts,
            pes: self.pes_per_host,
            lanes: self.lanes,
            config,
            link,
            host: HostModel::desktop(match self.writer {
                WriterName::Cpu => Writer::Cpu,
                WriterName::Dma => Writer::Dma,
            }),
            sleepers: self.sleepers,
            workload: Workload {
                pattern: match self.pattern {
                    PatternName::Neighbour => Pattern::Neighbour(self.hops),
                    PatternName::Pair => Pattern::Pair(self.hops),
                    PatternName::Alltoall => Pattern::Alltoall,
                    PatternName::Uniform => Pattern::Uniform,
                    PatternName::Hotspot => Pattern::Hotspot,
                },
                operation: match self.op {
                    OperationName::Put => Operation::Put,
                    OperationName::Get => Operation::Get,
                    OperationName::Amo => Operation::Amo,
                    OperationName::Mixed => Operation::Mixed,
                },
                size: self.size,
                count: self.count,
                depth: self.depth,
            },
            beside: None,
            faults: self.faults.clone(),
            exact: false,
            seed: self.seed,
            patience_ns: 200_000_000,
        })
    }
}

/// A quiet ring with defaults, for the tables.
fn base(hosts: u16, pattern: Pattern, operation: Operation, writer: Writer) -> Simulation {
    let geometry = Geometry::new(8192, [32, 32, 64]).expect("the default rings are sound");
    let mut config = Config::simulated(geometry, false);
    config.split = false;
    Simulation {
        hosts,
        pes: 1,
        lanes: 1,
        config,
        link: Profile::Plx8749.link(),
        host: HostModel::desktop(writer),
        sleepers: false,
        workload: Workload { pattern, operation, size: 65536, count: 100, depth: 8 },
        beside: None,
        faults: Faults::default(),
        exact: false,
        seed: 1,
        patience_ns: 200_000_000,
    }
}

fn profile(name: &str) -> Result<Profile, String> {
    let found = Profile::ALL.into_iter().find(|profile| profile.name() == name);
    let [first, second, third] = Profile::ALL.map(Profile::name);
    found.ok_or_else(|| format!("'{name}': expected {first}, {second} or {third}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_that_cannot_be_simulated_are_wrong_usage() {
        let parse = |line: &str| Cli::try_parse_from(line.split_whitespace()).map(drop);
        assert!(parse("ntbsim collectives --hosts 2,64 --most 8").is_ok());
        for wrong in ["--hosts 1", "--hosts 65", "--most 0", "--most 18446744073709551615"] {
            assert!(parse(&format!("ntbsim collectives {wrong}")).is_err(), "{wrong}");
        }
    }
}
