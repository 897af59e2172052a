//! The contract between the core and its transports.
//!
//! A [`Transport`] is set up once per process; [`Transport::connect`] then gives one [`Endpoint`]
//! for every peer it reaches. Set-up returns `Result`; the data path returns a [`Status`] and never
//! blocks, allocates, logs or takes a lock another PE's speed depends on.
//!
//! Addresses never cross this interface: remote memory is named by segment and offset
//! ([`Remote`]), which is the same on every PE of the job.

use crate::config::Config;
use crate::error::Result;
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

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
    /// Its length in bytes.
    pub len: usize,
    /// The memory file behind it; none where the memory is private to this process.
    pub file: Option<BorrowedFd<'a>>,
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

/// Completion counters of one context on one transport.
///
/// - Whoever issues raises `issued` (only the context's own thread, unless the context is shared).
/// - The transport raises `completed` when the operation is visible at the target (put, AMO) or the
///   result has been written (get, fetching AMO). The result is written before the count, with
///   release order.
/// - `failed` holds 1 + the number of a PE for which an operation failed: the PE became unreachable,
///   or, with [`Stream::REFUSED`] added, it refused the operation. Failed operations are counted as
///   completed, after `failed` was set: nothing of them is touched any more.
#[derive(Debug, Default)]
#[repr(C, align(128))]
pub struct Stream {
    /// Names the stream to the transport; operations of one stream may depend on each other's
    /// order, those of different streams never do.
    pub id: u32,
    /// The context is private to one thread or serialised by the program: no lock is needed.
    pub exclusive: bool,
    /// Operations accepted.
    pub issued: AtomicU64,
    /// Operations completed, raised by the transport.
    pub completed: AtomicU64,
    /// 1 + a PE that was lost or refused, or 0.
    pub failed: AtomicU32,
}

impl Stream {
    /// Added to `failed` when the PE did not take an operation, such as one out of range.
    pub const REFUSED: u32 = 1 << 31;

    /// A stream with nothing outstanding.
    pub fn new(id: u32, exclusive: bool) -> Stream {
        Stream { id, exclusive, ..Stream::default() }
    }

    /// Counts an operation on `pe` that failed as completed.
    pub fn fail(&self, pe: u32, refused: bool) {
        let mark = if refused { Stream::REFUSED } else { 0 };
        // A refusal outranks a loss, which the program may have asked to live with.
        self.failed.fetch_max((pe + 1) | mark, Ordering::Release);
        self.completed.fetch_add(1, Ordering::Release);
    }

    /// True when everything issued has completed.
    pub fn is_quiet(&self) -> bool {
        self.completed.load(Ordering::Acquire) >= self.issued.load(Ordering::Relaxed)
    }
}

/// The operation of an AMO. Integer operations wrap; values travel as bits in a `u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AmoOp {
    /// Replace by the operand; the fetching form is a swap.
    Set = 0,
    /// Add the operand.
    Add = 1,
    /// Bitwise and.
    And = 2,
    /// Bitwise or.
    Or = 3,
    /// Bitwise exclusive or.
    Xor = 4,
    /// Read only; fetching form only.
    Fetch = 5,
    /// Replace by the operand if equal to `compare`; fetching form only.
    CompareSwap = 6,
}

impl AmoOp {
    /// The operation of that number; none of a number that stands for nothing.
    pub fn from_bits(bits: u8) -> Option<AmoOp> {
        const ALL: [AmoOp; 7] = [
            AmoOp::Set,
            AmoOp::Add,
            AmoOp::And,
            AmoOp::Or,
            AmoOp::Xor,
            AmoOp::Fetch,
            AmoOp::CompareSwap,
        ];
        ALL.get(usize::from(bits)).copied()
    }
}

/// An atomic memory operation on one naturally aligned variable of 4 or 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amo {
    /// What to do.
    pub op: AmoOp,
    /// Bytes of the variable: 4 or 8.
    pub size: u8,
    /// Operand, zero-extended.
    pub operand: u64,
    /// Comparand of `CompareSwap`, zero-extended.
    pub compare: u64,
}

/// How `put_signal` changes the signal word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SignalOp {
    /// Replace.
    Set = 0,
    /// Add.
    Add = 1,
}

impl From<SignalOp> for AmoOp {
    fn from(op: SignalOp) -> AmoOp {
        match op {
            SignalOp::Set => AmoOp::Set,
            SignalOp::Add => AmoOp::Add,
        }
    }
}

/// A signal that follows a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The 8-byte signal word at the target.
    pub word: Remote,
    /// How it is changed.
    pub op: SignalOp,
    /// By what.
    pub value: u64,
}

impl Signal {
    /// The AMO that changes the signal word.
    pub fn amo(&self) -> Amo {
        Amo { op: self.op.into(), size: 8, operand: self.value, compare: 0 }
    }
}

/// What an endpoint does by itself; what is missing is emulated in the core, or the endpoint is not
/// a candidate.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Capabilities {
    /// `put`.
    pub put: bool,
    /// `get`.
    pub get: bool,
    /// AMOs of 4 and 8 bytes, atomic with the target's own CPU atomics.
    pub amo: bool,
    /// `put_signal`.
    pub put_signal: bool,
    /// Aligned words of 4 and 8 bytes arrive whole; where they do not, the core sends them as AMOs.
    pub whole_words: bool,
    /// The target's CPU must run for an operation to complete.
    pub needs_target_cpu: bool,
    /// Largest payload one operation takes; longer ones are split by the caller. 0: no limit.
    pub max_bytes: usize,
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
    /// What this endpoint can do.
    fn capabilities(&self) -> Capabilities;

    /// The peer's segment as memory, where there is such a thing.
    fn mapped(&self, segment: SegmentKind) -> Option<Mapping>;

    /// Whether operations on the peer's segment can be carried out at all.
    fn reaches(&self, segment: SegmentKind) -> bool;

    /// Copies `len` bytes to the peer. Needs `put`.
    ///
    /// - `Complete` and `Pending` (counted in `stream`): `source` may be reused at once when
    ///   `blocking`; when not, only after `Complete` or after the count.
    /// - Aligned words of 4 and 8 bytes appear whole where `whole_words` says so.
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

    /// Changes one variable of the peer atomically. Needs `amo`.
    ///
    /// - With `result` the old value (`amo.size` bytes) is written there before completion.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn amo(
        &self,
        stream: &Stream,
        target: Remote,
        amo: Amo,
        result: Option<*mut u8>,
    ) -> Status;

    /// `put`, then the signal after the data is visible. Needs `put_signal`.
    ///
    /// # Safety
    /// See the trait.
    unsafe fn put_signal(
        &self,
        stream: &Stream,
        dest: Remote,
        source: *const u8,
        len: usize,
        signal: Signal,
        blocking: bool,
    ) -> Status;

    /// Orders what the stream issued to this peer before what it issues later. `Pending`: not yet;
    /// make progress and call again.
    fn fence(&self, stream: &Stream) -> Status;
}

/// Identity of a PE for the purpose of choosing transports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Locality {
    /// Equal on two PEs if and only if they may share memory. Emulated hosts count as hosts.
    pub host: u64,
    /// Position of the host in the job, in order of its lowest PE.
    pub host_index: u32,
    /// Position of the PE among those of its host.
    pub local_index: u32,
    /// Name of the host, for people.
    pub host_name: String,
    /// Process id on its host.
    pub pid: i32,
}

/// Number of hosts of a job.
pub fn hosts(localities: &[Locality]) -> u32 {
    localities.iter().map(|locality| locality.host_index).max().unwrap_or(0) + 1
}

/// Hops between two hosts, by their positions, the shorter way round a ring of `hosts`.
pub fn hops(a: u32, b: u32, hosts: u32) -> u32 {
    let forth = (a + hosts - b) % hosts;
    forth.min(hosts - forth)
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
}

/// One way to reach other PEs.
pub trait Transport: Send + Sync {
    /// The name people use in `SHMEM_TRANSPORTS`.
    fn name(&self) -> &'static str;

    /// Tries the real thing and says why it cannot be used, in words for people. Never decides by
    /// reading a setting of the system.
    fn probe(&self, job: &Job<'_>) -> std::result::Result<(), String>;

    /// Registers this PE's segments and returns an opaque address for the other PEs.
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

    /// Moves outstanding work on; cheap when there is none. Callable from any thread.
    fn progress(&self) {}

    /// A PE that this transport reached and has given up, if any: who waits for what it would
    /// have done waits in vain.
    fn lost(&self) -> Option<usize> {
        None
    }

    /// Whether this transport reached `pe` and has given it up: everything issued to it fails.
    fn is_lost(&self, _pe: usize) -> bool {
        false
    }

    /// Whether waiting PEs must call `progress`.
    fn needs_progress(&self) -> bool {
        false
    }

    /// Readable when `progress` has something to do.
    fn event_fd(&self) -> Option<RawFd> {
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
