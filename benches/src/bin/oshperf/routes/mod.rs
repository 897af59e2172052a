// SPDX-License-Identifier: Apache-2.0
//! `oshperf routes`: whether the route that is taken is the fastest one, at every size.
//!
//! All happens in one job: at each size the usable routes are forced in turns, so that what else the machine
//! does hits them alike, and the one that the selector takes there is compared with the fastest. Started
//! outside of a job it starts one of itself.

mod judge;
mod text;
mod turns;
mod ways;

use crate::files;
use crate::interrupt;
use crate::job::{self, End};
use crate::machine::Machine;
use crate::pe::api::shmem_barrier_all;
use crate::sizes::{self, Sizes};
use crate::tool;
use clap::{Args, ValueEnum};
use judge::Size;
use serde::{Deserialize, Serialize};
use std::cell::Cell;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tombolo::describe::Block;
use tombolo::tools::{self, Session};
use tombolo_core::bootstrap;
use tombolo_selector::class::Class;
use tombolo_selector::report::describe;
use tombolo_selector::{COLD_AREA, Reuse};
use turns::Buffers;

/// The largest size unless sizes are given.
const LARGEST: u64 = 4 << 20;
/// Between the buffers, so that they do not compete for the same sets of a cache.
const GAP: usize = 4096 + 256;

/// See the parts of `oshperf(1)`.
#[derive(Args)]
pub struct Options {
    /// PEs of the job that it starts; 2 if left out
    #[arg(short = 'n', long = "pes", value_name = "COUNT", value_parser = tool::whole(2, 1024))]
    pes: Option<u32>,

    /// Spread the PEs over this many emulated hosts
    #[arg(long, value_name = "COUNT", value_parser = tool::whole(1, u32::MAX))]
    hosts: Option<u32>,

    /// What is measured
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "put,get,puts,nbi"
    )]
    ops: Vec<Op>,

    /// Sizes in bytes: 8..4M for the powers of two, or a list such as 8,1000,64K; without it the powers of
    /// two from 8 to 4M and the sizes half-way between them
    #[arg(long, value_name = "SIZES", value_parser = Sizes::read)]
    sizes: Option<Sizes>,

    /// Milliseconds for each route at each size
    #[arg(long, value_name = "MS", default_value = "4", value_parser = sizes::budget)]
    budget: f64,

    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// An operation that is routed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Op {
    /// A blocking put, waited for
    Put,
    /// A blocking get
    Get,
    /// One of four blocking puts that are waited for together, where their sources may be copied
    Puts,
    /// One of sixteen non-blocking puts that are waited for together
    Nbi,
}

impl Op {
    /// Operations that are timed together.
    fn count(self) -> usize {
        match self {
            Op::Put | Op::Get => 1,
            Op::Puts => 4,
            Op::Nbi => 16,
        }
    }
}

/// Where the local buffer lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Local {
    /// In the symmetric heap.
    Heap,
    /// In memory of this process alone.
    Private,
}

/// All sizes of an operation towards PEs of a class.
#[derive(Debug, Serialize, Deserialize)]
pub struct Group {
    /// The class, in words.
    pub to: String,
    /// The operation.
    pub op: Op,
    /// Where its local buffer lies.
    pub local: Local,
    /// By size.
    pub sizes: Vec<Size>,
}

/// Everything that is reported.
#[derive(Serialize)]
struct Report<'a> {
    machine: &'a Machine,
    version: &'static str,
    /// False as long as groups are missing.
    complete: bool,
    groups: &'a [Group],
}

/// Measures in this job, or starts one that does. True if all was measured.
pub fn routes(options: &Options) -> Result<bool, String> {
    if bootstrap::is_launched() { in_job(options).map(|()| true) } else { start(options) }
}

/// Starts a job of this program with the same options.
fn start(options: &Options) -> Result<bool, String> {
    let own = std::env::current_exe().map_err(|why| format!("where is oshperf? {why}"))?;
    let mut command = Command::new(job::oshrun());
    command.arg("-n").arg(options.pes.unwrap_or(2).to_string());
    if let Some(hosts) = options.hosts {
        command.arg("--hosts").arg(hosts.to_string());
    }
    command.arg(own).args(std::env::args_os().skip(1));
    interrupt::catch().map_err(|why| format!("cannot catch Ctrl-C: {why}"))?;
    match job::show(command, |line| tool::print(format!("{line}\n"))) {
        End::Well => Ok(true),
        End::Interrupted => Err("interrupted".to_owned()),
        End::Badly(why) if why.is_empty() => Ok(false),
        End::Badly(why) => Err(why),
    }
}

/// Takes part in the job: PE 0 measures and prints, while the others wait.
fn in_job(options: &Options) -> Result<(), String> {
    let session = tools::join().map_err(|why| why.to_string())?;
    let sizes = options.sizes.as_ref().map_or_else(usual, |sizes| sizes.0.clone());
    let largest = sizes.last().copied().unwrap_or(8) as usize;
    // As the routes are made for: the same memory again and again, or always other memory.
    let cold = session.tuning().reuse() == Reuse::Cold;
    let room = if cold { largest.max(COLD_AREA) } else { largest };
    let whole = room.next_multiple_of(4096) + GAP;
    let memory = Block::take(&session, 2 * whole).map_err(|why| why.to_string())?;
    let mut private = vec![1u8; whole];
    // SAFETY: this PE's block, which nobody else uses yet.
    unsafe { memory.start.write_bytes(1, 2 * whole) };
    barrier();
    let result = (session.pe() == 0).then(|| {
        let buffers = Buffers {
            there: memory.start,
            heap: memory.start.wrapping_add(whole),
            private: private.as_mut_ptr(),
            room: if cold { room } else { 0 },
            next: Cell::new(0),
        };
        measure(&session, options, &sizes, buffers)
    });
    barrier();
    result.unwrap_or(Ok(()))
}

fn barrier() {
    // SAFETY: the library is initialised, and all PEs come here.
    unsafe { shmem_barrier_all() };
}

impl Options {
    /// An error if they ask for another job than this one.
    fn check(&self, session: &Session) -> Result<(), String> {
        let (pes, hosts) = (session.n_pes() as u32, session.hosts());
        let differs = |asked: Option<u32>, there| asked.is_some_and(|asked| asked != there);
        match differs(self.pes, pes) || differs(self.hosts, hosts) {
            true => Err(format!(
                "-n and --hosts are for a job that oshperf starts; this one was started with {}",
                text::place(session)
            )),
            false => Ok(()),
        }
    }
}

/// Powers of two and the sizes half-way between them.
fn usual() -> Vec<u64> {
    let powers = (3..).map(|shift| 1u64 << shift).take_while(|size| *size <= LARGEST);
    powers.flat_map(|size| [size, size + size / 2]).filter(|size| *size <= LARGEST).collect()
}

fn measure(
    session: &Session,
    options: &Options,
    sizes: &[u64],
    buffers: Buffers,
) -> Result<(), String> {
    options.check(session)?;
    files::check([&options.json])?;
    let tuning = session.tuning();
    let (origin, grade) = (tuning.origin(), tuning.measured().grade());
    tool::print(format!(
        "# Routes taken against the fastest usable one; {}\n# For the routes: {origin}, grade {grade}\n",
        text::place(session)
    ));
    let taken = session.routes().clone();
    let budget = Duration::from_secs_f64(options.budget / 1e3);
    let mut targets: Vec<(Class, usize)> = Vec::new();
    for pe in (0..session.n_pes()).filter(|pe| *pe != session.pe()) {
        let class = tuning.class_of(pe);
        if !targets.iter().any(|(known, _)| *known == class) {
            targets.push((class, pe));
        }
    }
    let machine = Machine::here();
    let mut groups = Vec::new();
    for (class, pe) in targets {
        for &op in &options.ops {
            for local in [Local::Heap, Local::Private] {
                let names = ways::names(session, &taken, pe, op, sizes);
                let mut group = Group { to: describe(class), op, local, sizes: Vec::new() };
                for &bytes in sizes {
                    let ways = ways::of(session, &taken, pe, op, bytes as usize);
                    if ways.all.is_empty() || op == Op::Puts && !ways.copy {
                        continue;
                    }
                    let place = turns::Place::new(session, &buffers, local, pe, op, bytes as usize);
                    let size = judge::size(&place, &ways, budget, tuning.reuse());
                    if group.sizes.is_empty() {
                        tool::print(text::head(&group, &names));
                    }
                    tool::print(text::line(&size, &names));
                    group.sizes.push(size);
                }
                if !group.sizes.is_empty() {
                    tool::print(text::foot(&group));
                    groups.push(group);
                    keep(&options.json, &machine, &groups, false)?;
                }
            }
        }
    }
    session.set_routes(taken);
    tool::print(text::end(&groups));
    if groups.is_empty() {
        return Err("nothing could be measured".to_owned());
    }
    keep(&options.json, &machine, &groups, true)
}

/// Writes the file that is asked for, again after each group: an interruption ends this process with its
/// job. An earlier report that is complete stays until this one is.
fn keep(
    path: &Option<PathBuf>,
    machine: &Machine,
    groups: &[Group],
    complete: bool,
) -> Result<(), String> {
    if !complete && path.as_deref().is_some_and(files::is_complete) {
        return Ok(());
    }
    let version = env!("CARGO_PKG_VERSION");
    files::json(path, &Report { machine, version, complete, groups })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_usual_sizes_are_powers_of_two_and_what_is_between() {
        let sizes = usual();
        assert_eq!(sizes[..4], [8, 12, 16, 24]);
        assert_eq!(sizes[sizes.len() - 2..], [3 << 20, 4 << 20]);
        assert!(sizes.is_sorted());
    }

    #[test]
    fn groups_are_kept_as_soon_as_they_are_measured() {
        let folder = files::passing_folder().unwrap();
        let path = Some(folder.path().join("routes.json"));
        let group = || Group { to: "PEs".into(), op: Op::Put, local: Local::Heap, sizes: vec![] };
        let machine = Machine::here();
        let kept = |count: usize, complete| {
            let groups: Vec<Group> = (0..count).map(|_| group()).collect();
            keep(&path, &machine, &groups, complete).unwrap();
            let text = std::fs::read_to_string(path.as_ref().unwrap()).unwrap();
            let value: serde_json::Value = serde_json::from_str(&text).unwrap();
            assert_eq!(value["version"], env!("CARGO_PKG_VERSION"));
            assert!(value["machine"]["cpu"].is_string());
            (value["groups"].as_array().unwrap().len(), value["complete"] == true)
        };
        assert_eq!(
            [kept(1, false), kept(2, false), kept(3, true)],
            [(1, false), (2, false), (3, true)]
        );
        assert_eq!(kept(1, false), (3, true), "an earlier report");
        assert_eq!(kept(2, true), (2, true));
    }
}
