// SPDX-License-Identifier: Apache-2.0
//! The contract between the core and its transports.
//!
//! A [`Transport`] is set up once per process; [`Transport::connect`] then gives one [`Endpoint`]
//! for every peer it reaches. Set-up returns `Result`; the data path returns a [`Status`] and never
//! blocks, allocates, logs or takes a lock another PE's speed depends on.
//!
//! Addresses never cross this interface: remote memory is named by segment and offset
//! ([`Remote`]), which is the same on every PE of the job.
//!
//! # Order
//!
//! Operations are issued on a [`Stream`]. What a transport promises about their order, and all that
//! the layers above may rely on:
//!
//! - Two operations of one stream to one PE may become visible in either order, each of them byte
//!   by byte in any order, unless [`Capabilities::ordered`] says otherwise. An operation may write its
//!   bytes more than once until it is complete, and never afterwards.
//! - [`Transport::fence`] puts everything that a stream issued before it ahead of everything that it
//!   issues afterwards, PE by PE.
//! - [`Endpoint::put_signal`] changes its signal word after its own data are visible, and does not write
//!   them again afterwards. It orders nothing else.
//! - AMOs are executed exactly once, however often a transport repeats them on the way.
//! - Nothing orders operations of different streams, or of different transports, or operations on
//!   different PEs, but completion: what is issued after another operation was seen to be complete
//!   follows it.
//!
//! # Completion
//!
//! - A put or AMO is complete when it is visible to the target's CPU and to everybody else who
//!   reads the target's memory by any means: sent is not arrived. A get is complete when its result
//!   is in the local buffer.
//! - [`Transport::quiet`] says whether everything that a stream issued is complete.
//! - Accesses to mapped memory ([`Endpoint::mapped`]) are the CPU's own: they are complete when the
//!   CPU's fence has retired.
//!
//! # Local buffers
//!
//! Sources and destinations may be any memory of the process; a transport that has to register or
//! to copy them does so itself, with the help of [`registration`](crate::registration).

use crate::config::{Config, Table};
use crate::error::Result;
use crate::wait::Reason;
use ipnet::IpNet;
use std::any::Any;
use std::fmt;
use std::os::fd::{BorrowedFd, RawFd};

mod amo;
mod blocks;
mod carriers;
mod news;
mod stream;

pub use amo::{Amo, AmoOp, AmoSet, Signal, SignalOp};
pub use blocks::Blocks;
pub use carriers::{Carrier, CarrierChoice, Carriers, EngineChoice};
pub use news::{News, Told, Work};
pub use stream::Stream;

/// Which symmetric segment.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
#[repr(u8)]
pub enum SegmentKind {
    /// The symmetric heap, with the runtime's own control area at its start.
    Heap = 0,
    /// Writable static data of the executable.
    Static = 1,
}

impl SegmentKind {
    /// All kinds, in index order.
    pub const ALL: [SegmentKind; 2] = [SegmentKind::Heap, SegmentKind::Static];
}

/// A symmetric segment of this PE.
#[derive(Clone, Copy, Debug)]
pub struct Segment<'a> {
    /// Which one.
    pub kind: SegmentKind,
    /// Where it lies in this process.
    pub base: *mut u8,
    /// Its length in bytes. Static data may have gaps, which need not be mapped in this process.
    pub len: usize,
    /// Where it lies without gaps, as a device needs it: at `base`, or where it has gaps in a second mapping
    /// of the file. Null where there is no such place.
    pub whole: *mut u8,
    /// The memory file behind it, which may hold segments of other PEs too; none where the memory is
    /// private to this process.
    pub file: Option<BorrowedFd<'a>>,
    /// Where in the file it begins.
    pub file_offset: usize,
    /// Equal on two PEs if and only if their segments have the same layout.
    pub layout: u64,
}

/// A place in a segment of a peer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Remote {
    /// The segment.
    pub segment: SegmentKind,
    /// Bytes from its start.
    pub offset: usize,
}

impl Remote {
    /// Whether `len` bytes from here all lie inside a segment of `size` bytes.
    #[inline]
    pub const fn fits(self, len: usize, size: usize) -> bool {
        match self.offset.checked_add(len) {
            Some(end) => end <= size,
            None => false,
        }
    }
}

/// What became of an operation on the data path.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[must_use]
pub enum Status {
    /// Done as far as the operation's own contract asks; nothing is counted.
    Complete,
    /// Accepted: `issued` of the stream was raised, `completed` will follow.
    Pending,
    /// No room now and nothing was done: make progress, then call again.
    Again,
    /// The peer cannot be reached over this transport any more; nothing was done.
    Failed,
}

/// What an endpoint does by itself on one segment of its peer. What is missing is emulated in the
/// core; a segment on which there is neither `put` nor `get` is not reached.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// `put`.
    pub put: bool,
    /// `get`.
    pub get: bool,
    /// `amo`: AMOs that are atomic with atomic instructions of the target's CPU. The core has the target
    /// execute all others.
    pub amos: AmoSet,
    /// `device_amo`: AMOs that are atomic among each other alone, such as those of a network card. All
    /// AMOs on one variable, from whatever PE, exclude each other: the core uses these for the
    /// variables of one size of a PE only if every PE of the job does, that PE included.
    pub device_amos: AmoSet,
    /// `put_signal` with these operations on its word.
    pub signals: AmoSet,
    /// Words of 4 and 8 bytes appear whole in puts of up to [`Capabilities::WHOLE`] bytes whose offset and length are
    /// multiples of the word's, as those of typed arrays are; where they do not, the target writes puts of one word. In
    /// other puts a word may be seen half written, for example one of 8 bytes in a put that begins 4 bytes before it, or
    /// one at which a network cut a long put: OpenSHMEM promises nothing of words that are put, only of variables that
    /// AMOs and signals change.
    pub whole_words: bool,
    /// The last 8 bytes of a put of 16 to 64 bytes at a multiple of 8 appear no earlier than the bytes
    /// before them, even where words do not appear whole. Messages of the core then take one put.
    pub ends_last: bool,
    /// Puts, AMOs and signals of one stream to one PE become visible in the order in which they were
    /// issued: where every endpoint of a transport says so, nobody asks the transport for a fence.
    pub ordered: bool,
    /// The target's CPU must run for an operation to complete.
    pub needs_target_cpu: bool,
    /// Longest put in bytes; the core cuts longer ones.
    pub put_max: usize,
    /// Longest get in bytes; the core cuts longer ones.
    pub get_max: usize,
    /// Multiple in bytes that offset and length of a put must be of; the target writes what does
    /// not fit.
    pub put_align: usize,
    /// Multiple in bytes that offset and length of a get must be of; the core gets more than asked for.
    pub get_align: usize,
    /// Longest blocking put that does not wait for its arrival, because its source is copied or leaves
    /// at once. The core issues longer ones as non-blocking puts and waits for them.
    pub inline_max: usize,
    /// Most bytes that `put_blocks` and `get_blocks` take at a time; 0 where there is neither. The core then puts or
    /// gets each block by itself, as it does where words do not appear whole or there is an alignment.
    pub blocks_max: usize,
}

impl Capabilities {
    /// Bytes of the longest puts in which words appear whole where [`Capabilities::whole_words`] says so: a message of
    /// the core.
    pub const WHOLE: usize = 64;

    /// Nothing: the segment is not reached.
    pub const NONE: Capabilities = Capabilities {
        put: false,
        get: false,
        amos: AmoSet::NONE,
        device_amos: AmoSet::NONE,
        signals: AmoSet::NONE,
        whole_words: false,
        ends_last: false,
        ordered: false,
        needs_target_cpu: false,
        put_max: usize::MAX,
        get_max: usize::MAX,
        put_align: 1,
        get_align: 1,
        inline_max: usize::MAX,
        blocks_max: 0,
    };

    /// Whether anything can be done on the segment.
    pub const fn reach(&self) -> bool {
        self.put || self.get
    }

    /// Whether the core never has to ask the target for what the endpoint does not do by itself.
    pub fn is_sufficient(&self) -> bool {
        let words = self.whole_words && self.put_align == 1;
        self.put && self.get && words && self.amos == AmoSet::ALL
    }
}

impl Default for Capabilities {
    fn default() -> Capabilities {
        Capabilities::NONE
    }
}

/// How far away a PE is, from near to far.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Distance {
    /// The PE itself.
    Myself,
    /// On the same host.
    Host,
    /// On a host this many links away; the next one is 1.
    Hops(u32),
    /// Behind a network in which all hosts are equally far apart, as far as is known.
    Network,
}

impl Distance {
    /// Whether the PE is on another host.
    pub const fn is_remote(self) -> bool {
        matches!(self, Distance::Hops(_) | Distance::Network)
    }
}

impl fmt::Display for Distance {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Distance::Myself => f.write_str("self"),
            Distance::Host => f.write_str("same host"),
            Distance::Hops(hops) => write!(f, "{hops} hops"),
            Distance::Network => f.write_str("network"),
        }
    }
}

/// A peer's segment as memory of this process.
#[derive(Clone, Copy, Debug)]
pub struct Mapping {
    /// Where the segment's offset 0 lies in this process.
    pub base: *mut u8,
    /// Bytes that may be touched.
    pub len: usize,
    /// Loads are allowed and cheap (false for windows that must only be written).
    pub load: bool,
    /// CPU atomics on it are atomic with those of the owner.
    pub atomic: bool,
}

/// The data path to one peer.
///
/// # Safety of the operations
/// Local buffers must be valid for the stated length until the operation's contract lets go of
/// them. Remote ranges must lie inside the segment: callers check, endpoints check again only what
/// comes from another process.
pub trait Endpoint: Send + Sync {
    /// What this endpoint can do on a segment. The same as long as the endpoint exists, and the same
    /// as what the peer's endpoint to this PE can do on such a segment, where both PEs have one: from
    /// this a PE knows whether others will ask its service thread.
    fn capabilities(&self, segment: SegmentKind) -> Capabilities;

    /// The peer's segment as memory, where there is such a thing.
    fn mapped(&self, segment: SegmentKind) -> Option<Mapping>;

    /// Whether nothing that a stream issued to this peer is under way, given that the stream has something under way.
    /// May say no where it is not known. [`Transport::quiet`] sees to it that all of the stream completes.
    fn is_quiet(&self, _stream: &Stream) -> bool {
        false
    }

    /// Between which carriers of puts others may choose at present: nothing where there is one carrier only.
    fn carrier_choice(&self) -> CarrierChoice {
        CarrierChoice::default()
    }

    /// Chooses the carriers of puts that are issued from now on, as far as there is a choice. Callable at any time
    /// and from any thread: what a put promises does not depend on its carrier.
    fn set_carriers(&self, _carriers: Carriers) {}

    /// Copies `len` bytes to the peer. Needs `put`.
    ///
    /// - `Complete` and `Pending` (counted in `stream`): `source` may be reused at once when
    ///   `blocking`; when not, only after `Complete` or after the count.
    /// - Words of 4 and 8 bytes appear whole as `whole_words` says; the last one of a short put appears last where
    ///   `ends_last` says so.
    /// - Who sees a put sees what was complete before it was issued, on any processor.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn put(
        &self,
        stream: &Stream,
        dest: Remote,
        source: *const u8,
        len: usize,
        blocking: bool,
    ) -> Status;

    /// Copies `len` bytes from the peer. Needs `get`. `Pending`: `dest` is filled before the count.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn get(&self, stream: &Stream, dest: *mut u8, source: Remote, len: usize) -> Status;

    /// Changes one variable of the peer atomically. Needs the operation in `amos`.
    ///
    /// - With `result` the old value (`amo.size` bytes) is written there before completion.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn amo(
        &self,
        _stream: &Stream,
        _target: Remote,
        _amo: Amo,
        _result: Option<*mut u8>,
    ) -> Status {
        Status::Failed
    }

    /// As `amo`, atomic among such operations alone. Needs the operation in `device_amos`.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn device_amo(
        &self,
        _stream: &Stream,
        _target: Remote,
        _amo: Amo,
        _result: Option<*mut u8>,
    ) -> Status {
        Status::Failed
    }

    /// `put`, then the signal after the data is visible. Needs `put_signal`.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn put_signal(
        &self,
        _stream: &Stream,
        _dest: Remote,
        _source: *const u8,
        _len: usize,
        _signal: Signal,
        _blocking: bool,
    ) -> Status {
        Status::Failed
    }

    /// Copies blocks to the peer from `source`, where they lie one behind the other. Needs `blocks_max`, and no more
    /// bytes in all. Each block appears as one of a `put` would; `source` may be reused at once.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn put_blocks(&self, _stream: &Stream, _dest: Blocks, _source: *const u8) -> Status {
        Status::Failed
    }

    /// Copies blocks from the peer to `dest`, one behind the other. Needs `blocks_max`, and no more bytes in all.
    /// `Pending`: `dest` is filled before the count.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn get_blocks(&self, _stream: &Stream, _dest: *mut u8, _source: Blocks) -> Status {
        Status::Failed
    }
}

/// Identity of a PE for the purpose of choosing transports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locality {
    /// Equal on two PEs if and only if they may share memory. Emulated hosts count as hosts.
    pub host: u64,
    /// Equal on two PEs if they may run on the same processors, also where those of one machine are on several
    /// hosts: containers, or emulated hosts.
    pub processors: u64,
    /// Position of the host in the job, in order of its lowest PE.
    pub host_index: u32,
    /// Position of the PE among those of its host.
    pub local_index: u32,
    /// Name of the host, for people.
    pub host_name: String,
    /// Process id on its host; 0 if this process numbers processes in another namespace.
    pub pid: i32,
    /// Of the first PE of a host: addresses by which other hosts may reach it, with their networks. None on
    /// emulated hosts.
    pub networks: Vec<IpNet>,
}

impl Locality {
    /// This process as the only PE of a host, of which nothing else is known.
    pub fn alone_on(host: u32) -> Locality {
        Locality {
            host: host.into(),
            processors: 0,
            host_index: host,
            local_index: 0,
            host_name: "here".into(),
            pid: std::process::id() as i32,
            networks: vec![],
        }
    }
}

/// What a transport is told about the job.
#[derive(Debug)]
pub struct Job<'a> {
    /// This PE.
    pub pe: usize,
    /// Where every PE is; the length is the number of PEs.
    pub localities: &'a [Locality],
    /// The environment.
    pub config: &'a Config,
    /// By what the PEs of this host find each other once more; none where there is one PE, or they cannot pass
    /// descriptors to each other.
    pub meeting: Option<Meeting>,
}

/// Random bytes that the PEs of one host have in common. They were told by the launcher alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Meeting {
    /// Part of the names of sockets, which every user of the machine sees.
    pub name: [u8; 8],
    /// What who connects has to know; nobody else is told.
    pub token: [u8; 8],
}

impl Job<'_> {
    /// Number of PEs.
    pub fn n_pes(&self) -> usize {
        self.localities.len()
    }

    /// Whether `pe` is on this PE's host.
    pub fn is_local(&self, pe: usize) -> bool {
        self.localities[pe].host == self.localities[self.pe].host
    }

    /// PEs that share the processors of this one, itself included: one that `oshrun` has bound shares its
    /// own with nobody.
    pub fn sharers(&self) -> usize {
        if self.config.bound.0 {
            return 1;
        }
        let own = self.localities[self.pe].processors;
        self.localities.iter().filter(|locality| locality.processors == own).count()
    }
}

/// Who has to call [`Transport::progress`] for operations to complete and to be served.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Progress {
    /// Nobody.
    None,
    /// A PE that waits: its own operations gain by it. The transport's threads or hardware serve
    /// other PEs meanwhile.
    Waiting,
    /// A PE that waits, and the service thread of the core while the program computes.
    Always,
}

/// One way to reach other PEs. Who knows a transport by its type may ask it more, through [`Any`].
pub trait Transport: Any + Send + Sync {
    /// The name people use in `SHMEM_TRANSPORTS`.
    fn name(&self) -> &'static str;

    /// Its environment variables, declared by [`settings!`](crate::settings). A transport reads their
    /// values from [`Config::environment`] of its job; those that all PEs must have alike have been
    /// compared when it is probed.
    fn settings(&self) -> Table {
        Table::EMPTY
    }

    /// Tries the real thing and says why it cannot be used, in words for people. Never decides by
    /// reading a setting of the system.
    fn probe(&self, job: &Job<'_>) -> std::result::Result<(), String>;

    /// Registers this PE's segments and returns an opaque address for the other PEs. Their memory stays mapped until
    /// the transport is closed, or dropped where the start fails.
    fn open(&mut self, job: &Job<'_>, segments: &[Segment<'_>]) -> Result<Vec<u8>>;

    /// Collective: with every PE's address (empty where its `open` failed), gives an endpoint for
    /// each PE that is reached, this one included, and a reason for each that is not.
    fn connect(
        &mut self,
        job: &Job<'_>,
        addresses: &[Vec<u8>],
    ) -> Result<Vec<std::result::Result<Box<dyn Endpoint>, String>>>;

    /// The segments of this host's PEs as memory of this process, by local index and segment; none
    /// where they are not mapped. For transports that deliver on behalf of other PEs of the host.
    ///
    /// Called once, when all transports have connected and before any PE may be written to. The
    /// memory stays mapped until `close` has returned.
    fn deliver_to(&mut self, _memory: &[[Option<Mapping>; SegmentKind::ALL.len()]]) -> Result<()> {
        Ok(())
    }

    /// Says, by PE, whether `device_amo` of this transport carries out the AMOs on variables there, of the
    /// sizes for which `device_amos` is sufficient. Called once, after `connect`.
    fn amos_settled(&self, _by_device: &[bool]) {}

    /// How far apart two PEs of different hosts are on this transport, if it can tell: the same for
    /// both and on every PE. Called after `connect`.
    fn distance(&self, _a: usize, _b: usize) -> Option<Distance> {
        None
    }

    /// Orders what the stream issued to each PE before what it issues to the same PE later.
    /// `Pending`: not yet; make progress and call again.
    fn fence(&self, stream: &Stream) -> Status {
        self.quiet(stream)
    }

    /// Whether everything that the stream issued is complete. `Pending`: not yet; make progress and
    /// call again. Called before every wait for completion, so that a transport may send for
    /// confirmation then, rather than with every operation.
    fn quiet(&self, stream: &Stream) -> Status {
        if stream.is_quiet() { Status::Complete } else { Status::Pending }
    }

    /// Moves outstanding work on; true if something moved. Cheap when there is nothing to do.
    /// Callable from any thread, by several at the same time.
    fn progress(&self) -> bool {
        false
    }

    /// Whether another thread works on the transport at this moment, so that there is nothing to do for
    /// `progress`. A guess is enough: a service thread then looks again a little later.
    fn is_taken(&self) -> bool {
        false
    }

    /// Who has to call `progress`.
    fn progress_needed(&self) -> Progress {
        Progress::None
    }

    /// What holds up operations of this PE at this moment, if it is one of [`Reason::Credit`],
    /// [`Reason::Relay`] and [`Reason::Link`]. Asked in waits of jobs that are profiled.
    fn held_up_by(&self) -> Option<Reason> {
        None
    }

    /// Has `told` be told from now on what happens to links, and what threads of the transport do. Only
    /// in jobs of which a timeline is made.
    fn tell(&self, _told: Told) {}

    /// Readable when `progress` has something to do, once [`Transport::arm`] was called. For the service
    /// thread to sleep on, and for threads of the program that wait, at the same time: one that arms may take
    /// from another what this one would be woken for, but then sees to it itself. Without it the service
    /// thread looks again every now and then.
    fn event_fd(&self) -> Option<RawFd> {
        None
    }

    /// Prepares for sleeping on `event_fd`. False: there may be something to do already, so do not
    /// sleep.
    fn arm(&self) -> bool {
        true
    }

    /// The lowest PE that this transport reached and has given up, if any.
    fn first_unreachable(&self) -> Option<usize> {
        None
    }

    /// Whether this transport reached `pe` and has given it up, for good: everything issued to it
    /// fails.
    fn has_given_up(&self, _pe: usize) -> bool {
        false
    }

    /// Gives up `pe` because the program goes on without it: what is issued to it from now on fails, and what is
    /// under way may. A transport that cannot give up a single PE does nothing.
    fn give_up(&self, _pe: usize, _why: &str) {}

    /// The process of `pe` is known to have ended. A transport that would take long to find that out, and wait for it
    /// meanwhile, gives the PE up once what it had sent before may be expected to have come.
    fn has_ended(&self, _pe: usize) {}

    /// Why this transport has given up `pe`, in words for people; none if it does not tell.
    fn why_given_up(&self, _pe: usize) -> Option<String> {
        None
    }

    /// The devices or interfaces that carry the data, by names that stay from one job to the next; none where there
    /// is nothing to choose from. What was measured holds for these alone.
    fn medium(&self) -> Option<&str> {
        None
    }

    /// Lines for people about what all PEs of this host share: links, windows, limits.
    fn describe(&self) -> Vec<String> {
        Vec::new()
    }

    /// Lines for people about what is this PE's own: what it has mapped, its counters.
    fn describe_own(&self) -> Vec<String> {
        Vec::new()
    }

    /// Ends service. Endpoints may not be used afterwards. May be called again.
    fn close(&mut self) {}
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pes_of_several_hosts_share_processors_and_bound_ones_do_not() {
        let locality = |host, processors| Locality { processors, ..Locality::alone_on(host) };
        let localities = [locality(0, 7), locality(1, 7), locality(2, 8)];
        let sharers = |pe, bound: &'static str| {
            let config = Config::from_environment([("TOMBOLO_BOUND", bound)].into_iter().collect());
            Job { pe, localities: &localities, config: &config.unwrap(), meeting: None }.sharers()
        };
        assert_eq!([0, 1, 2].map(|pe| sharers(pe, "off")), [2, 2, 1]);
        assert_eq!(sharers(0, "on"), 1);
    }
}
