// SPDX-License-Identifier: Apache-2.0
//! What is possible without the library, measured in the same job right after what it is compared
//! with.

use super::points::{in_unit, window};
use super::timing::{self, Times};
use super::{Ceiling, Pe, Word};
use crate::catalogue::Test;
use crate::raw::{self, End};
use nix::sys::mman::{MapFlags, ProtFlags, mmap_anonymous};
use std::ffi::c_long;
use std::io::{Read, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::num::NonZero;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tombolo_core::transport::{Amo, AmoOp};
use tombolo_transports::Alone;

/// Copies shorter than this are not tried past the caches.
const STREAMING: usize = 4096;

/// What the ceilings are measured with.
pub enum Ceilings {
    /// Memory of the other PE, or memory that processes share; null on other PEs than 0.
    Memory { at: *mut u8, whose: Whose },
    /// The other PE's process and the address of its buffer.
    Cma { pid: i32, address: usize },
    /// A connection between the two PEs, on these.
    Tcp { stream: Option<TcpStream>, buffer: Vec<u8> },
    /// A network by itself, on these two; `tolds` counts what they have told each other.
    Network { end: Option<Box<dyn Alone>>, tolds: u64 },
    /// Nothing is measured.
    None,
}

/// Whose memory is copied to.
#[derive(PartialEq)]
pub enum Whose {
    Peer,
    Own,
}

impl Ceilings {
    /// Collective.
    pub fn new(pe: &Pe, ceiling: Ceiling) -> Ceilings {
        match ceiling {
            Ceiling::Mapped => {
                let at = pe.session.ptr(pe.dest, pe.peer);
                if at.is_null() {
                    Ceilings::None
                } else {
                    Ceilings::Memory { at, whose: Whose::Peer }
                }
            }
            Ceiling::Memory => match shared(pe.room) {
                Some(at) => Ceilings::Memory { at, whose: Whose::Own },
                None => Ceilings::None,
            },
            Ceiling::Cma => {
                let address = pe.give(pe.dest as u64) as usize;
                let pid = pe.session.localities()[pe.peer].pid;
                Ceilings::Cma { pid, address }
            }
            Ceiling::Tcp => {
                let stream = connect(pe);
                Ceilings::Tcp { stream, buffer: vec![7; 64 * pe.room.max(LARGEST_SERIES)] }
            }
            Ceiling::Libfabric => Ceilings::Network { end: meet(pe, "ofi"), tolds: 0 },
            Ceiling::Verbs => Ceilings::Network { end: meet(pe, "verbs"), tolds: 0 },
            Ceiling::None => Ceilings::None,
        }
    }

    /// What is possible for a test at a point, in its unit; None where nothing comparable is known.
    /// Collective.
    pub fn measure(&mut self, pe: &Pe, test: &Test, x: u64) -> Option<f64> {
        let size = x as usize;
        let times = match self {
            Ceilings::Memory { at, whose } => memory(pe, *at, whose, test.name, size),
            Ceilings::Cma { pid, address } => cma(pe, *pid, *address, test.name, size),
            Ceilings::Tcp { stream, buffer } => tcp(pe, stream, buffer, test.name, size),
            Ceilings::Network { end, tolds } => network(pe, end, tolds, test.name, size),
            Ceilings::None => None,
        }?;
        Some(in_unit(test.kind, x, times.median()))
    }
}

fn alone(pe: &Pe, operation: impl FnMut()) -> Option<Times> {
    pe.barrier();
    let times = (pe.me == 0).then(|| timing::alone(pe.budget / 2, operation));
    pe.barrier();
    times
}

/// Plain copies and atomics; the way of a cache line for signals, where it goes to the other PE.
fn memory(pe: &Pe, at: *mut u8, whose: &Whose, name: &str, size: usize) -> Option<Times> {
    let (to, from) = if name == "get" { (pe.dest, at) } else { (at, pe.source) };
    match name {
        "put" | "get" | "rate" => {
            // A word needs no call of a function that copies any number of bytes.
            let plain = match size {
                1 => word::<u8>(pe, to, from),
                2 => word::<u16>(pe, to, from),
                4 => word::<u32>(pe, to, from),
                8 => word::<u64>(pe, to, from),
                // SAFETY: the buffers hold the size.
                _ => alone(pe, || unsafe { raw::copy(to, from, size) }),
            };
            if size < STREAMING {
                return plain;
            }
            // SAFETY: as above.
            let past = alone(pe, || unsafe { raw::copy_streaming(to, from, size) });
            if plain.as_ref()?.median() <= past.as_ref()?.median() { plain } else { past }
        }
        "fetch_add" | "add" | "compare_swap" if *whose == Whose::Peer => {
            // SAFETY: aligned, and of both PEs only through atomics meanwhile.
            let word = unsafe { AtomicU64::from_ptr(at.cast()) };
            alone(pe, || match name {
                "compare_swap" => {
                    let _ = word.compare_exchange(0, 0, Ordering::SeqCst, Ordering::SeqCst);
                }
                _ => {
                    std::hint::black_box(word.fetch_add(1, Ordering::SeqCst));
                }
            })
        }
        "signal" if *whose == Whose::Peer => line_and_copy(pe, at, size),
        _ => None,
    }
}

fn word<T: Copy>(pe: &Pe, to: *mut u8, from: *const u8) -> Option<Times> {
    // SAFETY: the buffers hold 8 bytes and more, and begin at multiples of that.
    alone(pe, || unsafe { raw::copy_word::<T>(to, from) })
}

/// One way of a cache line between the two PEs, with a plain copy before it.
fn line_and_copy(pe: &Pe, at: *mut u8, size: usize) -> Option<Times> {
    let own = pe.word(Word::Atomic);
    let other = if pe.me == 0 { pe.peer } else { 0 };
    let theirs = pe.session.ptr(own, other);
    // PE 0's map of the other one's buffer was given; the other one needs its own.
    let to = if pe.me == 0 { at } else { pe.session.ptr(pe.dest, 0) };
    // SAFETY: a word of this PE's; the other PE writes it by plain stores from here on.
    unsafe { own.write_volatile(0) };
    pe.barrier();
    let usable = !theirs.is_null() && !to.is_null();
    let mut trip: c_long = 0;
    let mut once = || {
        trip += 1;
        // SAFETY: mapped words and buffers.
        unsafe {
            let send = || {
                raw::copy(to, pe.source, size);
                AtomicU64::from_ptr(theirs.cast()).store(trip as u64, Ordering::Release);
            };
            if pe.me == 0 {
                send();
            }
            raw::await_word(AtomicU64::from_ptr(own.cast()), trip as u64);
            if pe.me != 0 {
                send();
            }
        }
    };
    let usable = pe.in_pair() && usable;
    const FIRST: u32 = 8;
    let begun = Instant::now();
    if usable {
        (0..FIRST).for_each(|_| once());
    }
    let plan = pe.plan(begun.elapsed() / FIRST);
    let times = usable.then(|| timing::run(plan, once));
    pe.barrier();
    times.filter(|_| pe.me == 0).map(|times| times.divided(2.0))
}

fn cma(pe: &Pe, pid: i32, address: usize, name: &str, size: usize) -> Option<Times> {
    // SAFETY: this PE's buffers, which nobody else writes meanwhile.
    let (from, to) = unsafe {
        (std::slice::from_raw_parts(pe.source, size), std::slice::from_raw_parts_mut(pe.dest, size))
    };
    let mut refused = false;
    let times = match name {
        "put" | "rate" => alone(pe, || refused |= raw::cma_write(pid, address, from).is_err()),
        "get" => alone(pe, || refused |= raw::cma_read(pid, address, to).is_err()),
        _ => None,
    };
    times.filter(|_| !refused)
}

/// Room for a series of small messages.
const LARGEST_SERIES: usize = 64;

fn tcp(
    pe: &Pe,
    stream: &mut Option<TcpStream>,
    buffer: &mut [u8],
    name: &str,
    size: usize,
) -> Option<Times> {
    // Bytes there, bytes back, and what part of an exchange counts.
    let messages = window(size, pe.room);
    let (there, back, parts) = match name {
        "put" => (size, 1, 1),
        "get" => (8, size, 1),
        "fetch_add" | "compare_swap" => (8, 8, 1),
        "add" => (8, 1, 1),
        "signal" => (size, size, 2),
        "rate" => (size * messages, 1, messages),
        _ => return None,
    };
    let end = if pe.me == 0 { End::Caller } else { End::Answerer };
    let mut broken = stream.is_none();
    let mut once = |count: u64| {
        if let Some(stream) = stream.as_ref().filter(|_| !broken) {
            broken |= raw::exchange(stream, end, count, (there, back), buffer).is_err();
        }
    };
    pe.barrier();
    const FIRST: u64 = 4;
    let begun = Instant::now();
    once(FIRST);
    let plan = pe.plan(begun.elapsed() / FIRST as u32);
    let mut values = Vec::new();
    for _ in 0..plan.samples {
        let begun = Instant::now();
        once(plan.group);
        values.push(begun.elapsed().as_nanos() as f64 / (plan.group * parts as u64) as f64);
    }
    // What is left of an exchange that broke would be taken for part of the next one.
    let whole = pe.both(!broken);
    if !whole {
        *stream = None;
    }
    (pe.me == 0 && whole).then(|| Times::new(values, None))
}

/// One end of a network by itself on each PE of the pair; none if either has none. Collective.
fn meet(pe: &Pe, transport: &str) -> Option<Box<dyn Alone>> {
    let open = || {
        let end = tombolo_transports::alone(transport, &pe.job(), pe.room)?;
        end.inspect_err(|why| eprintln!("oshperf: no ceiling of {transport}: {why}")).ok()
    };
    let mut end = pe.in_pair().then(open).flatten();
    let card = end.as_ref().and_then(|end| end.card().ok()).unwrap_or_default();
    let theirs = pe.swap(&card);
    let has_met = end.as_mut().is_some_and(|end| end.meet(&theirs).is_ok());
    pe.both(has_met).then_some(end).flatten()
}

/// What a network does by itself: puts with what says that they have arrived, gets, and words told to and fro. An AMO
/// that the network does not carry out takes a word there and one back.
fn network(
    pe: &Pe,
    end: &mut Option<Box<dyn Alone>>,
    tolds: &mut u64,
    name: &str,
    size: usize,
) -> Option<Times> {
    let amo = |op, operand| Amo { op, size: 8, operand, compare: 0 };
    let amo = match name {
        "compare_swap" => amo(AmoOp::CompareSwap, 0),
        _ => amo(AmoOp::Add, 1),
    };
    let messages = window(size, pe.room);
    let manner = match (name, end.as_ref()) {
        ("put" | "get" | "rate", Some(_)) => Some(false),
        ("fetch_add" | "compare_swap" | "add", Some(end)) => Some(!end.has(amo)),
        ("signal", Some(end)) if end.tells_in_order() => Some(true),
        _ => None,
    };
    // As PE 0 sees it: others than the pair have no end.
    let is_told = match pe.agree(manner.map_or(2, u64::from)) {
        2 => return None,
        is_told => is_told == 1,
    };
    let mut failed = end.is_none();
    let mut once = || {
        let Some(end) = end.as_mut().filter(|_| !failed) else { return };
        let done = match name {
            _ if is_told => {
                *tolds += 1;
                let len = if name == "signal" { size } else { 0 };
                to_and_fro(end.as_mut(), pe.me == 0, len, *tolds)
            }
            "put" => end.put(size, 1),
            "get" => end.get(size),
            "rate" => end.put(size, messages),
            _ => end.amo(amo),
        };
        failed = done.is_err();
    };
    let parts = match name {
        "rate" => messages as f64,
        "signal" => 2.0,
        _ => 1.0,
    };
    pe.barrier();
    let times = if is_told {
        const FIRST: u32 = 8;
        // The first one may make the connection.
        once();
        let begun = Instant::now();
        (0..FIRST).for_each(|_| once());
        let plan = pe.plan(begun.elapsed() / FIRST);
        Some(timing::run(plan, once))
    } else {
        let times = (pe.me == 0).then(|| timing::alone(pe.budget / 2, &mut once));
        *tolds += 1;
        // The other end does its part until it is told that this was all.
        let told = match end {
            Some(end) if pe.me == 0 => end.tell(0, *tolds),
            Some(end) => await_told(end.as_mut(), *tolds, pe.budget + 4 * raw::PATIENCE),
            None => Ok(()),
        };
        failed |= told.is_err();
        times
    };
    // What is under way still needs the processor.
    failed |= end.as_mut().is_some_and(|end| end.put(0, 0).is_err());
    let whole = pe.both(!failed);
    if !whole {
        *end = None;
    }
    times.filter(|_| pe.me == 0 && whole).map(|times| times.divided(parts))
}

/// Tells the other end a number behind so many bytes, and waits for the same from it. One end begins.
fn to_and_fro(end: &mut dyn Alone, begins: bool, len: usize, number: u64) -> Result<(), String> {
    if begins {
        end.tell(len, number)?;
    }
    await_told(end, number, raw::PATIENCE)?;
    if !begins {
        end.tell(len, number)?;
    }
    Ok(())
}

fn await_told(end: &mut dyn Alone, number: u64, limit: Duration) -> Result<(), String> {
    /// Looks before others may need the processor.
    const LOOKS: u32 = 32;
    let (mut looks, begun) = (0u32, Instant::now());
    while end.told()? != number {
        looks += 1;
        if looks.is_multiple_of(LOOKS) {
            if begun.elapsed() > limit {
                return Err("the other end tells nothing".to_owned());
            }
            std::thread::yield_now();
        }
    }
    Ok(())
}

/// A connection between the two PEs of the pair, by the interface that the transport would take. Collective.
fn connect(pe: &Pe) -> Option<TcpStream> {
    let listener = (pe.me == pe.peer && pe.n > 1).then(|| listen(pe)).flatten();
    let greeting = std::process::id().to_le_bytes();
    let address = listener.as_ref().and_then(|listener| listener.local_addr().ok());
    let card = address.map(|address| [&greeting, address.to_string().as_bytes()].concat());
    let theirs = pe.swap(&card.unwrap_or_default());
    let stream = match listener {
        Some(listener) => accept(&listener, greeting),
        None if pe.me == 0 => call(&theirs),
        None => None,
    };
    let stream = stream.filter(|stream| raw::prepare(stream).is_ok());
    // Both have one, or neither uses it.
    pe.both(stream.is_some()).then_some(stream).flatten()
}

fn listen(pe: &Pe) -> Option<TcpListener> {
    TcpListener::bind((tombolo_transports::tcp::address(&pe.job()).ok()?, 0)).ok()
}

/// Calls the PE whose card this is: a greeting, and where it listens.
fn call(card: &[u8]) -> Option<TcpStream> {
    let (greeting, address) = card.split_first_chunk::<4>()?;
    let address: SocketAddr = std::str::from_utf8(address).ok()?.parse().ok()?;
    let mut stream = TcpStream::connect_timeout(&address, raw::PATIENCE).ok()?;
    stream.write_all(greeting).ok()?;
    Some(stream)
}

/// The first that calls with this greeting: others may call as well.
fn accept(listener: &TcpListener, greeting: [u8; 4]) -> Option<TcpStream> {
    listener.set_nonblocking(true).ok()?;
    let begun = Instant::now();
    while begun.elapsed() < raw::PATIENCE {
        if let Ok((mut stream, _)) = listener.accept() {
            let mut said = [0; 4];
            let heard = stream
                .set_nonblocking(false)
                .and_then(|()| stream.set_read_timeout(Some(raw::PATIENCE / 4)))
                .and_then(|()| stream.read_exact(&mut said));
            if heard.is_ok() && said == greeting {
                return Some(stream);
            }
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    None
}

/// Memory as processes share it.
fn shared(len: usize) -> Option<*mut u8> {
    let (access, flags) = (ProtFlags::PROT_READ | ProtFlags::PROT_WRITE, MapFlags::MAP_SHARED);
    // SAFETY: new memory, which stays until the process ends.
    let at = unsafe { mmap_anonymous(None, NonZero::new(len)?, access, flags) }.ok()?;
    let at = at.as_ptr().cast::<u8>();
    // SAFETY: just mapped; its pages come now rather than while times are taken.
    unsafe { at.write_bytes(1, len) };
    Some(at)
}
