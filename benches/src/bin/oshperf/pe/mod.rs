// SPDX-License-Identifier: Apache-2.0
//! `oshperf` as the program of a job: what `oshperf compare` starts through `oshrun`.
//!
//! PE 0 measures against the PE half way round; the others take part in collective operations, and
//! wait in a barrier otherwise. PE 0 prints a line per point, as JSON.

pub mod api;
mod ceilings;
mod points;
pub mod timing;

use crate::catalogue::Test;
use api::*;
use clap::{Args, ValueEnum};
use serde::{Deserialize, Serialize};
use std::any::Any;
use std::ffi::c_long;
use std::time::Duration;
use tombolo::describe::Block;
use tombolo::tools;
use tombolo_core::transport::Job;
use tombolo_transports::ntb::drive::Ntb;
use tombolo_transports::ofi::is_software;

/// What lines of measurements begin with.
pub const MARK: &str = "oshperf: ";

/// Why figures of the model cannot be had of devices.
const NO_MODEL: &str = "the NTB ports are devices, whose links take their own time and no model's";

/// A line.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Output {
    /// What the job has: printed first.
    Facts(Facts),
    /// What was measured at a point.
    Point(Point),
}

/// What a job has.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Facts {
    /// Hosts that the PEs are on.
    pub hosts: u32,
    /// The PE that PE 0 measures against.
    pub peer: usize,
    /// Links between the hosts of the two in a ring.
    pub hops: u32,
    /// Ways from PE 0 to it.
    pub routes: String,
    /// What the transports of PE 0 say.
    pub transports: Vec<String>,
    /// The NTB ports of the host of PE 0, where they are in use.
    pub ports: Option<Ports>,
}

/// NTB ports.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Ports {
    /// They are devices, not emulated.
    pub devices: bool,
    /// The slower one of the two links; none where they are as fast as memory.
    pub link: Option<Link>,
}

/// A link as its ends have negotiated it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct Link {
    /// Generation of PCI Express.
    pub generation: u64,
    /// Number of lanes.
    pub width: u32,
    /// Largest payload of a TLP, bytes.
    pub max_payload: u32,
}

impl Ports {
    /// Those of this process; none where the NTB transport is not used.
    fn here(session: &tools::Session) -> Option<Ports> {
        let find = |transport: &dyn Any| transport.downcast_ref::<Ntb>().and_then(Ntb::ports);
        let facts = session.transports().iter().find_map(|transport| find(transport.as_ref()))?;
        let link = facts.link.map(|link| Link {
            generation: link.speed as u64,
            width: link.width,
            max_payload: link.max_payload,
        });
        Some(Ports { devices: facts.devices, link })
    }

    /// Whether they are devices whose links have a rate of their own.
    pub fn are_links(&self) -> bool {
        self.devices && self.link.is_some()
    }
}

/// What was measured at a point in one job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Name of the test.
    pub test: String,
    /// Size or number of threads.
    pub x: u64,
    /// Values in the unit of the test, in increasing order: all, or some that stand for all.
    pub values: Vec<f64>,
    /// Of latencies: values that are spread as those are that the last of `values` stands for. Empty if `values` holds
    /// all.
    pub tail: Vec<f64>,
    /// Processor time of PE 0's process per operation, microseconds.
    pub cpu_us: Option<f64>,
    /// What is possible without the library, in the unit of the test.
    pub ceiling: Option<f64>,
}

/// What the ceiling is measured with.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Ceiling {
    /// Plain stores and copies to the mapped memory of the other PE
    Mapped,
    /// Copies by the kernel
    Cma,
    /// Plain copies to memory that processes share
    Memory,
    /// TCP between the two PEs
    Tcp,
    /// The provider of libfabric that the job uses
    Libfabric,
    /// The RDMA card that the job uses
    Verbs,
    /// Nothing
    None,
}

/// Options of a PE.
#[derive(Args)]
pub struct Options {
    /// Names of the tests; none: print what the job has and end
    #[arg(long, value_delimiter = ',')]
    tests: Vec<String>,
    /// Sizes in bytes
    #[arg(long, value_delimiter = ',')]
    sizes: Vec<u64>,
    /// Microseconds for a point
    #[arg(long)]
    budget: u64,
    /// What the ceiling is measured with
    #[arg(long)]
    ceiling: Ceiling,
    /// NTB links have to take the time of the model
    #[arg(long)]
    modelled: bool,
    /// libfabric has to use devices of its own
    #[arg(long)]
    devices: bool,
}

/// This PE and its memory.
struct Pe {
    session: tools::Session,
    me: usize,
    n: usize,
    /// The PE that PE 0 measures against.
    peer: usize,
    budget: Duration,
    words: *mut c_long,
    /// Room for as many bytes on every PE, and for each PE where all PEs send.
    dest: *mut u8,
    source: *mut u8,
    /// The largest size.
    room: usize,
}

/// Words of symmetric memory, each in a cache line of its own.
#[derive(Clone, Copy)]
enum Word {
    /// What PE 0 tells all.
    Told,
    /// Of atomic operations.
    Atomic,
    /// Of signals.
    Signal,
    /// What the other PE tells PE 0, and two more.
    Answer,
    /// Of contexts: one line each.
    Threads,
}

/// Of [`Pe::swap`]: what the two ends of a network have to know of each other is shorter.
const SWAPPED_MAX: usize = 512;
const LINE: usize = 64;
const LINES: usize = 4 + points::THREADS_MAX;

/// Takes part in the job.
pub fn main(options: &Options) -> Result<(), String> {
    let session = tools::join().map_err(|e| e.to_string())?;
    let (me, n) = (session.pe(), session.n_pes());
    let peer = n / 2;
    let ports = Ports::here(&session);
    if options.modelled && ports.is_some_and(|ports| ports.devices) {
        return Err(format!("ntb: {NO_MODEL}"));
    }
    if let Some(provider) = software(&session).filter(|_| options.devices) {
        return Err(format!("ofi: {}", over_ip(&provider)));
    }
    if me == 0 {
        print(&Output::Facts(facts(&session, peer, ports)));
    }
    if options.tests.is_empty() {
        return Ok(());
    }
    let room = options.sizes.iter().copied().max().unwrap_or(8) as usize;
    let tests: Option<Vec<&Test>> = options.tests.iter().map(|name| Test::find(name)).collect();
    let tests = tests.ok_or("there is no such test")?;
    let of_all = room.next_multiple_of(LINE) * n;
    let memory = Block::take(&session, LINES * LINE + 2 * of_all).map_err(|e| e.to_string())?;
    let start = memory.start;
    // It stays until the process ends.
    std::mem::forget(memory);
    let (words, dest) = (start.cast(), start.wrapping_add(LINES * LINE));
    let source = dest.wrapping_add(of_all);
    // SAFETY: the whole block is this PE's, and nobody else uses it yet.
    unsafe {
        start.write_bytes(0, LINES * LINE);
        (0..2 * of_all).for_each(|at| dest.add(at).write((at % 251) as u8));
    }
    let budget = Duration::from_micros(options.budget);
    let pe = Pe { session, me, n, peer, budget, words, dest, source, room };
    pe.barrier();
    // Memory is no ceiling of links that are none.
    let are_links = || pe.agree(ports.is_some_and(|ports| ports.are_links()).into()) == 1;
    let ceiling = match options.ceiling {
        Ceiling::Memory if are_links() => Ceiling::None,
        ceiling => ceiling,
    };
    let mut ceilings = ceilings::Ceilings::new(&pe, ceiling);
    for test in tests {
        for x in test.points(&options.sizes) {
            let taken = pe.measure(test, x)?;
            let ceiling = ceilings.measure(&pe, test, x);
            if let Some(taken) = taken {
                print(&Output::Point(Point { ceiling, ..taken }));
            }
        }
    }
    pe.barrier();
    Ok(())
}

/// The provider of libfabric that the job uses, if the processor does its work.
fn software(session: &tools::Session) -> Option<String> {
    let ofi = session.transports().iter().find(|transport| transport.name() == "ofi")?;
    let (provider, _) = ofi.medium()?.split_once(" on ")?;
    is_software(provider).then(|| provider.to_owned())
}

/// Why libfabric is left out unless it is named.
pub fn over_ip(provider: &str) -> String {
    format!("its provider {provider} uses the network that tcp drives; --ways ofi measures it")
}

fn print(line: &Output) {
    let text = serde_json::to_string(line).expect("a line has no maps");
    println!("{MARK}{text}");
}

fn facts(session: &tools::Session, peer: usize, ports: Option<Ports>) -> Facts {
    let transports = session.transports().iter().flat_map(|transport| {
        let own = transport.describe().into_iter().chain(transport.describe_own());
        own.map(|line| format!("{}: {line}", transport.name())).collect::<Vec<_>>()
    });
    let (hosts, there) = (session.hosts(), session.localities()[peer].host_index);
    Facts {
        hosts,
        peer,
        hops: there.min(hosts - there),
        routes: tombolo_selector::report::routes(session, peer),
        transports: transports.collect(),
        ports,
    }
}

impl Pe {
    fn barrier(&self) {
        // SAFETY: the library is initialised, and all PEs come here.
        unsafe { shmem_barrier_all() };
    }

    fn word(&self, word: Word) -> *mut c_long {
        self.words.wrapping_byte_add(word as usize * LINE)
    }

    /// As transports see it.
    fn job(&self) -> Job<'_> {
        let (localities, config) = (self.session.localities(), self.session.config());
        Job { pe: self.me, localities, config, meeting: None }
    }

    /// PE 0 and the one that it measures against.
    fn in_pair(&self) -> bool {
        self.me == 0 || self.me == self.peer
    }

    /// The number that PE 0 has. Collective.
    fn agree(&self, number: u64) -> u64 {
        let word = self.word(Word::Told);
        self.barrier();
        if self.me == 0 {
            // SAFETY: symmetric words that only PE 0 writes, between two barriers.
            (0..self.n).for_each(|pe| unsafe { shmem_long_p(word, number as c_long, pe as i32) });
        }
        self.barrier();
        // SAFETY: this PE's own word; written before the barrier.
        unsafe { word.read_volatile() as u64 }
    }

    /// Whether both PEs of the pair have something. Collective.
    fn both(&self, has: bool) -> bool {
        let other = self.give(has.into());
        self.agree(u64::from(other == 1 && has)) == 1
    }

    /// The bytes that the other PE of the pair has, up to [`SWAPPED_MAX`] of them. Collective.
    fn swap(&self, own: &[u8]) -> Vec<u8> {
        let len = self.give(own.len() as u64) as usize;
        let word = |at: usize| {
            let mut word = [0; 8];
            word.iter_mut()
                .zip(own.get(at..).unwrap_or_default())
                .for_each(|(to, from)| *to = *from);
            self.give(u64::from_le_bytes(word)).to_le_bytes()
        };
        // All PEs take part in every word.
        let mut theirs: Vec<u8> = (0..SWAPPED_MAX).step_by(8).flat_map(word).collect();
        theirs.truncate(len);
        theirs
    }

    /// The number that the other PE of the pair has, on both. Collective.
    fn give(&self, number: u64) -> u64 {
        let word = self.word(Word::Answer);
        let other = if self.me == 0 { self.peer } else { 0 };
        self.barrier();
        if self.in_pair() {
            // SAFETY: a symmetric word that one PE writes, between two barriers.
            unsafe { shmem_long_p(word, number as c_long, other as i32) };
        }
        self.barrier();
        // SAFETY: this PE's own word; written before the barrier.
        unsafe { word.read_volatile() as u64 }
    }
}
