// SPDX-License-Identifier: Apache-2.0
//! What every transport must do, written against the contract in [`tombolo_core::transport`].
//!
//! A back end is a [`BackEnd`], one of [`BACK_ENDS`] or somebody else's; a case is a function over a
//! running job. A case that needs what a back end does not claim still runs, through the core's
//! emulation, since programs rely on the result, not on who produced it.
//!
//! A crate with a transport of its own depends on this one for its tests, and has a test without a
//! harness of the form:
//!
//! ```no_run
//! use tombolo_tests::conformance::{self, BackEnd, on_one_host};
//! # use tombolo_tests::doubles::{Faults, Faulty};
//!
//! const MINE: BackEnd = on_one_host(
//!     "mine",
//!     || vec![Box::new(Faulty::new("mine", Faults::none()))],
//!     &[],
//! );
//!
//! fn main() {
//!     conformance::main(&[MINE]);
//! }
//! ```
//!
//! Each case runs in a process of its own. One that takes longer than [`LIMIT_SECONDS`] is ended, and
//! told by its name.

mod blocks;

use crate::doubles::{Faults, Faulty};
use crate::ring::{self, Ring};
use crate::unless;
use crate::watchdog::Watchdog;
use crate::{run_as_pe, run_job};
use libtest_mimic::{Arguments, Trial};
use std::io;
use std::process::Command;
use std::time::Instant;
use tombolo_core::ops::Mode;
use tombolo_core::transport::{
    Amo, AmoOp, Job, Locality, SegmentKind, SignalOp, Status, Stream, Transport,
};
use tombolo_core::wait::Reason;
use tombolo_core::{Config, Context, ContextOptions, Waiting, World};

/// A back end under test.
pub struct BackEnd {
    /// Name in test names.
    pub name: &'static str,
    /// Makes the transports that a PE gets.
    pub transports: fn() -> Vec<Box<dyn Transport>>,
    /// Emulated hosts that the PEs are on, if they are not all on one.
    pub ring: Option<Ring>,
    /// Times that a case is run over the transport without order, each with a seed of its own; fewer for long ones.
    pub seeds: u64,
    /// Settings that it needs.
    pub environment: &'static [(&'static str, &'static str)],
}

/// A case of the suite.
pub struct Case {
    /// What must hold.
    pub name: &'static str,
    /// PEs it needs.
    pub n_pes: usize,
    /// Checks it on one PE of the job; panics if it does not hold.
    pub check: fn(&World),
}

/// A back end whose PEs are on emulated hosts.
pub const fn on_ring(
    name: &'static str,
    transports: fn() -> Vec<Box<dyn Transport>>,
    ring: Ring,
) -> BackEnd {
    BackEnd { name, transports, ring: Some(ring), environment: &[], seeds: 1 }
}

/// A back end whose PEs are all on this host.
pub const fn on_one_host(
    name: &'static str,
    transports: fn() -> Vec<Box<dyn Transport>>,
    environment: &'static [(&'static str, &'static str)],
) -> BackEnd {
    BackEnd { name, transports, ring: None, environment, seeds: 1 }
}

/// Back ends of this repository by their names.
fn named<const N: usize>(names: [&str; N]) -> Vec<Box<dyn Transport>> {
    names.map(|name| tombolo_transports::create(name).expect("known")).into()
}

/// Every back end, with what it is made of.
pub const BACK_ENDS: &[BackEnd] = &[
    on_one_host("shm", || named(["shm"]), &[]),
    on_one_host("cma", || named(["cma"]), &[]),
    BackEnd { seeds: 40, ..on_one_host("unordered", || named(["unordered"]), &[]) },
    BackEnd {
        seeds: 20,
        ..on_ring("unordered_two_hosts", || named(["shm", "unordered"]), ring::TWO_HOSTS)
    },
    on_ring("ntb", || named(["ntb"]), ring::DIRECT),
    on_ring("ntb_ring_only", || named(["ntb"]), ring::RING_ONLY),
    on_ring("ntb_small_windows", || named(["ntb"]), ring::SMALL),
    on_ring("ntb_two_hosts", || named(["shm", "ntb"]), ring::TWO_HOSTS),
    on_ring("ntb_two_hosts_small_windows", || named(["shm", "ntb"]), ring::TWO_HOSTS_SMALL),
    on_ring("ntb_intel_crc", || named(["ntb"]), ring::INTEL_CRC),
    on_ring("ntb_switchtec_combining", || named(["ntb"]), ring::SWITCHTEC_COMBINING),
    on_ring("ntb_mixed_ring_only", || named(["ntb"]), ring::MIXED),
    on_ring("ntb_mixed", || named(["ntb"]), ring::MIXED_DIRECT),
    on_ring("ntb_modelled", || named(["ntb"]), ring::MODELLED),
    on_ring("ntb_dma", || named(["ntb"]), ring::DMA),
    on_ring("ntb_dma_packets", || named(["ntb"]), ring::DMA_PACKETS),
    // A transport of somebody else.
    on_one_host("foreign", || vec![Box::new(Faulty::new("foreign", Faults::none()))], &[]),
    on_one_host("verbs", || named(["verbs"]), &[VERBS]),
    on_one_host("verbs_read", || named(["verbs"]), &[VERBS, ("SHMEM_VERBS_CONFIRM", "read")]),
    on_one_host("verbs_target", || named(["verbs"]), &[VERBS, ("SHMEM_VERBS_AMO", "target")]),
    on_one_host("verbs_two", || named(["verbs"]), &[VERBS, ("SHMEM_VERBS_DEVICE", "rxe0,rxe1")]),
    on_one_host("tcp", || named(["tcp"]), &[TCP]),
    on_one_host("tcp_two_rails", || named(["tcp"]), &[TCP, ("SHMEM_TCP_INTERFACE", "lo,lo")]),
    on_one_host("ofi_net", || named(["ofi"]), &[OFI, ("SHMEM_OFI_PROVIDER", "net")]),
    on_one_host("ofi_tcp", || named(["ofi"]), &[OFI, ("SHMEM_OFI_PROVIDER", "tcp;ofi_rxm")]),
    on_one_host("ofi_udp", || named(["ofi"]), &[OFI, ("SHMEM_OFI_PROVIDER", "udp;ofi_rxd")]),
    on_one_host("ofi_sockets", || named(["ofi"]), &[OFI, ("SHMEM_OFI_PROVIDER", "sockets")]),
    on_one_host("ofi_shm", || named(["ofi"]), &[OFI, ("SHMEM_OFI_PROVIDER", "shm")]),
    on_one_host("ofi_verbs", || named(["ofi"]), &[OFI, ("SHMEM_OFI_PROVIDER", "verbs;ofi_rxm")]),
    on_one_host(
        "ofi_tcp_atomics",
        || named(["ofi"]),
        &[OFI, ("SHMEM_OFI_PROVIDER", "tcp;ofi_rxm"), ("SHMEM_OFI_ATOMICS", "provider")],
    ),
    on_one_host("ofi_two_rails", || named(["ofi"]), &[OFI, ("SHMEM_OFI_INTERFACE", "lo,lo")]),
];

/// On one host it is used only if it is named.
const VERBS: (&str, &str) = ("SHMEM_TRANSPORTS", "verbs");
/// See `VERBS`.
const TCP: (&str, &str) = ("SHMEM_TRANSPORTS", "tcp");
/// See `VERBS`.
const OFI: (&str, &str) = ("SHMEM_TRANSPORTS", "ofi");

/// Why a back end cannot be tested here, if it cannot.
pub fn unavailable(back_end: &BackEnd) -> Option<String> {
    let environment = back_end.environment.iter().copied().collect();
    let config = Config::from_environment(environment).expect("valid settings");
    let here = Locality::alone_on(0);
    let job = Job { pe: 0, localities: &[here], config: &config, meeting: None };
    // Those on a ring are given their links later.
    let own = if back_end.ring.is_none() { (back_end.transports)() } else { Vec::new() };
    own.iter().find_map(|transport| {
        transport.probe(&job).err().map(|why| format!("{}: {why}", transport.name()))
    })
}

/// Longest time of one job of a case.
pub const LIMIT_SECONDS: u64 = 120;
/// The same between processes, which meet through the launcher hundreds of times: between virtual machines that
/// share busy processors that alone takes a minute.
const LIMIT_SECONDS_BY_LAUNCHER: u64 = 400;
/// Says which case a process is to run.
pub const CASE: &str = "TOMBOLO_CONFORMANCE_CASE";
/// Says on which back end a process is to run, as one PE of a job that `oshrun` has started, the cases for
/// as many PEs as the job has.
pub const BACK_END: &str = "TOMBOLO_CONFORMANCE_BACK_END";

/// Says that such a job runs the cases for fewer PEs as well.
const SMALLER: &str = "TOMBOLO_CONFORMANCE_SMALLER";

/// The test program: runs every case on every back end, those without the hardware ignored.
pub fn main(back_ends: &'static [BackEnd]) {
    if !ran_as_asked(back_ends) {
        libtest_mimic::run(&Arguments::from_args(), trials(back_ends)).exit();
    }
}

/// The name of a case on a back end.
fn name_of(back_end: &BackEnd, case: &Case) -> String {
    format!("{}::{}", back_end.name, case.name)
}

/// Whether this process was started to run what [`CASE`] or [`BACK_END`] says, and has.
pub fn ran_as_asked(back_ends: &'static [BackEnd]) -> bool {
    if let Ok(name) = std::env::var(BACK_END) {
        let back_end = back_ends.iter().find(|one| one.name == name).expect("a back end");
        run_as_pe(&back_end.transports, |world| {
            let smaller = std::env::var_os(SMALLER).is_some();
            for case in fitting(world.n_pes(), smaller) {
                let begun = Instant::now();
                let name = format!("{name}::{}", case.name);
                let watched = format!("{name}, PE {}", world.pe());
                let _watched = Watchdog::start(watched, LIMIT_SECONDS_BY_LAUNCHER);
                if world.pe() < case.n_pes {
                    (case.check)(world);
                    announce(world, END);
                } else {
                    while announce(world, b"") != END {}
                }
                if world.pe() == 0 {
                    println!("{name}: {:.1?}", begun.elapsed());
                }
            }
        });
        return true;
    }
    let Ok(asked) = std::env::var(CASE) else { return false };
    // Not left alone when the test program is killed.
    nix::sys::prctl::set_pdeathsig(nix::sys::signal::Signal::SIGKILL).expect("a signal");
    let mut all = back_ends.iter().flat_map(|one| CASES.iter().map(move |case| (one, case)));
    let (back_end, case) = all.find(|(one, case)| name_of(one, case) == asked).expect("a case");
    run(back_end, case);
    true
}

/// Every case on every back end, each in a process of its own, which calls [`ran_as_asked`].
pub fn trials(back_ends: &'static [BackEnd]) -> Vec<Trial> {
    let trial = |(back_end, case): (&BackEnd, &Case), unavailable: &Option<String>| {
        let name = name_of(back_end, case);
        let trial = Trial::test(name.clone(), move || {
            let own = std::env::current_exe()?;
            let status = Command::new(own).env(CASE, name).status()?;
            if status.success() { Ok(()) } else { Err(status.to_string().into()) }
        });
        unless(unavailable.as_ref(), trial)
    };
    let of = |back_end: &'static BackEnd| {
        let unavailable = unavailable(back_end);
        CASES.iter().map(move |case| trial((back_end, case), &unavailable))
    };
    back_ends.iter().flat_map(of).collect()
}

/// Cases for so many PEs, and for fewer of them if those are asked for. A case leaves memory allocated on its PEs, and
/// needs the same places on all of them: so those for more PEs come first.
fn fitting(n_pes: usize, smaller: bool) -> Vec<&'static Case> {
    let fits = |case: &&Case| case.n_pes == n_pes || smaller && case.n_pes < n_pes;
    let mut all: Vec<&Case> = CASES.iter().filter(fits).collect();
    all.sort_by_key(|case| std::cmp::Reverse(case.n_pes));
    all
}

/// What the PEs of a case say at its end.
const END: &[u8] = b"end";

/// Meets all PEs, those that only look on included; returns what PE 0 says.
fn announce(world: &World, what: &[u8]) -> Vec<u8> {
    let mut all = world.bootstrap().allgather(what).expect("all PEs meet");
    all.swap_remove(0)
}

/// Has an `oshrun` with options run the cases for as many PEs as it starts, on one of some back ends: each PE is a
/// process of this program, whose `main` calls [`ran_as_asked`] for them. With `smaller`, those for fewer PEs as well: the first PEs
/// run them, and the others do not call the library meanwhile.
pub fn run_by(
    oshrun: &mut Command,
    back_ends: &[BackEnd],
    name: &str,
    smaller: bool,
) -> io::Result<()> {
    let back_end = back_ends.iter().find(|one| one.name == name).expect("a back end");
    let ring = back_end.ring.iter().flat_map(|ring| ring.environment);
    for (name, value) in back_end.environment.iter().chain(ring) {
        oshrun.args(["-x", &format!("{name}={value}")]);
    }
    if smaller {
        oshrun.args(["-x", &format!("{SMALLER}=1")]);
    }
    oshrun.args(["-x", &format!("{BACK_END}={name}")]).arg(std::env::current_exe()?);
    Ok(())
}

/// Whether a job of so many PEs, made by [`run_by`], says that all cases ended well. Each says how long it took.
pub fn all_ran(name: &str, n_pes: usize, smaller: bool, said: &str) -> Result<(), String> {
    let ran =
        |case: &Case| said.lines().any(|l| l.starts_with(&format!("{name}::{}: ", case.name)));
    let asked = fitting(n_pes, smaller);
    let missing: Vec<&str> = asked.iter().filter(|case| !ran(case)).map(|case| case.name).collect();
    match missing.is_empty() && !asked.is_empty() {
        true => Ok(()),
        false => Err(format!("did not run with {n_pes} PEs: {missing:?}\n{said}")),
    }
}

/// Cases that move so much that each seed takes them through thousands of chances, and takes long: with so many seeds
/// at most.
const LONG: [&str; 3] = [
    "put_arrives_at_every_size_and_offset",
    "get_reads_what_is_there_at_every_size_and_offset",
    "blocks_arrive_and_are_read_at_every_stride",
];
const SEEDS_OF_LONG: u64 = 10;

/// Runs a case on a back end.
pub fn run(back_end: &BackEnd, case: &Case) {
    let make = back_end.transports;
    let is_long = LONG.contains(&case.name);
    let seeds = if is_long { back_end.seeds.min(SEEDS_OF_LONG) } else { back_end.seeds };
    for seed in 1..=seeds {
        let seed = seed.to_string();
        let name = format!("{}::{} with SHMEM_UNORDERED_SEED={seed}", back_end.name, case.name);
        let _watched = Watchdog::start(name, LIMIT_SECONDS);
        let own = [("SHMEM_UNORDERED_SEED", seed.as_str())];
        let environment = [back_end.environment, &own].concat();
        match &back_end.ring {
            // A single PE has nobody behind a link.
            Some(ring) if case.n_pes > 1 => {
                let fabric = ring.fabric(case.n_pes);
                ring.run_with(&fabric, case.n_pes, &environment, &make, case.check);
                ring::check_counters(&fabric);
            }
            _ => run_job(case.n_pes, &environment, &make, case.check),
        }
    }
}

/// The suite.
pub const CASES: &[Case] = &[
    Case { name: "put_arrives_at_every_size_and_offset", n_pes: 2, check: puts_arrive },
    Case { name: "get_reads_what_is_there_at_every_size_and_offset", n_pes: 2, check: gets_read },
    Case { name: "blocks_arrive_and_are_read_at_every_stride", n_pes: 2, check: blocks::arrive },
    Case { name: "quiet_makes_nbi_puts_visible", n_pes: 3, check: quiet_completes },
    Case { name: "nbi_gets_are_filled_after_quiet", n_pes: 2, check: nbi_gets },
    Case { name: "fence_orders_data_before_flag", n_pes: 2, check: fence_orders },
    Case { name: "signal_is_seen_after_its_data", n_pes: 2, check: signal_follows },
    Case { name: "fetch_add_from_all_pes_loses_nothing", n_pes: 4, check: adds_add_up },
    Case { name: "every_amo_returns_the_old_value", n_pes: 2, check: amo_values },
    Case { name: "compare_swap_has_one_winner", n_pes: 4, check: one_winner },
    Case { name: "a_pe_can_address_itself", n_pes: 1, check: to_itself },
    Case { name: "contexts_complete_independently", n_pes: 2, check: contexts },
    Case { name: "out_of_bounds_is_refused", n_pes: 2, check: bounds },
    Case { name: "the_end_of_a_line_is_seen_last", n_pes: 2, check: ends_last },
    Case { name: "both_directions_can_do_the_same", n_pes: 4, check: alike },
    Case { name: "passive_target_needs_no_library_call", n_pes: 2, check: passive },
];

const ROUTINE: &str = "conformance";

fn allocate(world: &World, len: usize) -> *mut u8 {
    let place = world.heap().allocate(len, 64);
    assert!(!place.is_null());
    place
}

/// Meets all PEs without using the transport under test.
fn meet(world: &World) {
    announce(world, b"");
}

fn put(world: &World, dest: *mut u8, source: &[u8], pe: usize, mode: Mode) {
    // SAFETY: a slice that lives until the caller has called quiet.
    unsafe { world.put(world.context(), dest, source.as_ptr(), source.len(), pe, mode, ROUTINE) };
}

fn get(world: &World, dest: &mut [u8], source: *const u8, pe: usize, mode: Mode) {
    let (at, len) = (dest.as_mut_ptr(), dest.len());
    // SAFETY: a slice that lives until the caller has called quiet.
    unsafe { world.get(world.context(), at, source, len, pe, mode, ROUTINE) };
}

fn local(at: *const u8, len: usize) -> Vec<u8> {
    // SAFETY: part of this PE's heap; the caller has synchronised with its writers.
    (0..len).map(|i| unsafe { at.add(i).read_volatile() }).collect()
}

fn pattern(len: usize, seed: usize) -> Vec<u8> {
    (0..len).map(|i| (i.wrapping_mul(31) ^ seed.wrapping_mul(131) ^ (i >> 8)) as u8).collect()
}

const SIZES: &[usize] =
    &[1, 2, 3, 4, 7, 8, 9, 15, 16, 63, 64, 65, 255, 1024, 4095, 4096, 8191, 65_537, 1 << 20];

/// Of each byte beside a range that is put or got.
const BESIDE: u8 = 0xa5;

fn puts_arrive(world: &World) {
    let space = allocate(world, (1 << 20) + 128);
    for (round, len) in SIZES.iter().enumerate() {
        for offset in [0, 1, 4, 13] {
            let mut bytes = pattern(*len, round + offset);
            // SAFETY: this PE's heap, to which nobody puts before all meet.
            unsafe {
                space.write_bytes(BESIDE, 16);
                space.add(offset + len).write_bytes(BESIDE, 64);
            }
            meet(world);
            if world.pe() == 0 {
                put(world, space.wrapping_add(offset), &bytes, 1, Mode::Blocking);
                world.quiet(world.context(), ROUTINE);
            }
            meet(world);
            if world.pe() == 1 {
                bytes.splice(0..0, [BESIDE; 16].into_iter().take(offset));
                bytes.extend([BESIDE; 64]);
                assert_eq!(local(space, bytes.len()), bytes, "{len} at {offset}");
            }
        }
    }
    meet(world);
}

fn gets_read(world: &World) {
    let space = allocate(world, (1 << 20) + 64);
    let all = pattern((1 << 20) + 64, world.pe());
    put(world, space, &all, world.pe(), Mode::Blocking);
    meet(world);
    let other = 1 - world.pe();
    let expected = pattern((1 << 20) + 64, other);
    for len in SIZES {
        for offset in [0, 1, 4, 13] {
            let mut got = vec![BESIDE; len + 64];
            get(world, &mut got[..*len], space.wrapping_add(offset), other, Mode::Blocking);
            assert_eq!(got[..*len], expected[offset..offset + len], "{len} at {offset}");
            assert_eq!(got[*len..], [BESIDE; 64], "behind {len} at {offset}");
        }
    }
    meet(world);
}

fn quiet_completes(world: &World) {
    const PIECE: usize = 1000;
    let space = allocate(world, 3 * 50 * PIECE);
    let sources: Vec<Vec<u8>> = (0..50).map(|i| pattern(PIECE, world.pe() * 50 + i)).collect();
    for (i, source) in sources.iter().enumerate() {
        let at = space.wrapping_add((world.pe() * 50 + i) * PIECE);
        for pe in 0..3 {
            put(world, at, source, pe, Mode::NonBlocking);
        }
    }
    world.quiet(world.context(), ROUTINE);
    meet(world);
    for piece in 0..150 {
        assert_eq!(local(space.wrapping_add(piece * PIECE), PIECE), pattern(PIECE, piece));
    }
    meet(world);
}

fn nbi_gets(world: &World) {
    let space = allocate(world, 64 << 10);
    put(world, space, &pattern(64 << 10, world.pe()), world.pe(), Mode::Blocking);
    meet(world);
    let other = 1 - world.pe();
    let mut parts: Vec<Vec<u8>> = (0..64).map(|_| vec![0; 1024]).collect();
    for (i, part) in parts.iter_mut().enumerate() {
        get(world, part, space.wrapping_add(i * 1024), other, Mode::NonBlocking);
    }
    world.quiet(world.context(), ROUTINE);
    assert_eq!(parts.concat(), pattern(64 << 10, other));
    meet(world);
}

fn wait_word(world: &World, word: *mut u64, at_least: u64) {
    world.wait(
        Waiting { routine: ROUTINE, argument: word as u64, reason: Reason::Variable },
        || {
            // SAFETY: an aligned word of this PE's heap.
            unsafe {
                (*word.cast::<std::sync::atomic::AtomicU64>())
                    .load(std::sync::atomic::Ordering::Acquire)
                    >= at_least
            }
        },
    );
}

/// Tells PE 0 that a round is over. What it was told before is complete, so that no smaller number
/// arrives after this one: two puts may arrive in either order, and each of them again, until they are.
fn tell(world: &World, answer: *mut u64, round: u64) {
    put(world, answer.cast(), &round.to_le_bytes(), 0, Mode::Blocking);
    world.quiet(world.context(), ROUTINE);
}

fn fence_orders(world: &World) {
    const LEN: usize = 5000;
    let data = allocate(world, LEN);
    let flags = allocate(world, 16).cast::<u64>();
    let (flag, answer) = (flags, flags.wrapping_add(1));
    for round in 1..=50u64 {
        if world.pe() == 0 {
            let bytes = pattern(LEN, round as usize);
            put(world, data, &bytes, 1, Mode::Blocking);
            world.fence(world.context(), ROUTINE);
            put(world, flag.cast(), &round.to_le_bytes(), 1, Mode::Blocking);
            wait_word(world, answer, round);
        } else {
            wait_word(world, flag, round);
            assert_eq!(local(data, LEN), pattern(LEN, round as usize), "round {round}");
            tell(world, answer, round);
        }
    }
    world.quiet(world.context(), ROUTINE);
    meet(world);
}

fn signal_follows(world: &World) {
    // Networks send short puts in one message with their signals, and longer ones apart from them.
    const LENS: [usize; 4] = [3000, 20_000, 65_000, 100_000];
    let data = allocate(world, LENS[3]);
    let words = allocate(world, 16).cast::<u64>();
    let (signal, answer) = (words, words.wrapping_add(1));
    for round in 1..=50u64 {
        let op = if round % 2 == 0 { SignalOp::Set } else { SignalOp::Add };
        let value = if op == SignalOp::Set { round } else { 1 };
        let len = LENS[round as usize % LENS.len()];
        if world.pe() == 0 {
            let bytes = pattern(len, round as usize);
            // SAFETY: the source is used until the signal has been answered below.
            unsafe {
                world.put_signal(
                    world.context(),
                    data,
                    bytes.as_ptr(),
                    len,
                    signal,
                    value,
                    op,
                    1,
                    Mode::NonBlocking,
                    ROUTINE,
                );
            }
            wait_word(world, answer, round);
            world.quiet(world.context(), ROUTINE);
        } else {
            wait_word(world, signal, round);
            assert_eq!(local(data, len), pattern(len, round as usize), "round {round}");
            tell(world, answer, round);
        }
    }
    world.quiet(world.context(), ROUTINE);
    meet(world);
}

fn amo(op: AmoOp, size: u8, operand: u64, compare: u64) -> Amo {
    Amo { op, size, operand, compare }
}

fn adds_add_up(world: &World) {
    let counter = allocate(world, 8);
    meet(world);
    let mut last = None;
    for _ in 0..500 {
        let add = amo(AmoOp::Add, 8, 1, 0);
        let old = world.amo_fetch(world.context(), counter, add, 2, ROUTINE);
        assert!(last < Some(old), "a counter that only grows went from {last:?} to {old}");
        last = Some(old);
        // SAFETY: no result is asked for.
        unsafe { world.amo_nbi(world.context(), None, counter, add, 2, ROUTINE) };
    }
    world.quiet(world.context(), ROUTINE);
    meet(world);
    let fetch = amo(AmoOp::Fetch, 8, 0, 0);
    assert_eq!(world.amo_fetch(world.context(), counter, fetch, 2, ROUTINE), 4 * 1000);
    meet(world);
}

fn amo_values(world: &World) {
    let block = allocate(world, 24);
    // SAFETY: this PE's heap, where nobody changes anything before all meet.
    unsafe { block.write_bytes(BESIDE, 24) };
    meet(world);
    if world.pe() == 0 {
        for (size, at) in [(4u8, 0), (4, 12), (8, 16)] {
            let variable = block.wrapping_add(at);
            let top = if size == 4 { u64::from(u32::MAX) } else { u64::MAX };
            let run = |op, operand, compare| {
                let one = amo(op, size, operand, compare);
                world.amo_fetch(world.context(), variable, one, 1, ROUTINE)
            };
            run(AmoOp::Set, top, 0);
            assert_eq!(run(AmoOp::Add, 3, 0), top);
            assert_eq!(run(AmoOp::Or, 0b1100, 0), 2);
            assert_eq!(run(AmoOp::And, 0b0110, 0), 0b1110);
            assert_eq!(run(AmoOp::Xor, 0b0011, 0), 0b0110);
            assert_eq!(run(AmoOp::CompareSwap, 9, 4), 0b0101);
            assert_eq!(run(AmoOp::CompareSwap, 9, 5), 0b0101);
            assert_eq!(run(AmoOp::Set, 1, 0), 9);
            let mut old = 0u64;
            let place = (&raw mut old).cast();
            // SAFETY: `old` lives until quiet.
            unsafe {
                let add = amo(AmoOp::Add, size, 1, 0);
                world.amo_nbi(world.context(), Some(place), variable, add, 1, ROUTINE);
            }
            world.quiet(world.context(), ROUTINE);
            // SAFETY: written through the pointer above.
            assert_eq!(unsafe { place.cast::<u64>().read_volatile() }, 1);
            assert_eq!(run(AmoOp::Fetch, 0, 0), 2);
        }
    }
    meet(world);
    if world.pe() == 1 {
        assert_eq!(local(block.wrapping_add(4), 8), [BESIDE; 8], "beside the variables");
    }
    meet(world);
}

fn one_winner(world: &World) {
    let word = allocate(world, 8);
    meet(world);
    for round in 0..100u64 {
        let swap = amo(AmoOp::CompareSwap, 8, round * 8 + 1 + world.pe() as u64, round * 8);
        let old = world.amo_fetch(world.context(), word, swap, 0, ROUTINE);
        let won = u64::from(old == round * 8);
        meet(world);
        let all = world.bootstrap().allgather(&[won as u8]).expect("all PEs meet");
        assert_eq!(all.iter().map(|w| w[0]).sum::<u8>(), 1, "round {round}");
        if won == 1 {
            let next = amo(AmoOp::Set, 8, (round + 1) * 8, 0);
            world.amo_fetch(world.context(), word, next, 0, ROUTINE);
        }
        meet(world);
    }
}

fn to_itself(world: &World) {
    let space = allocate(world, 256);
    put(world, space, &pattern(256, 1), 0, Mode::Blocking);
    let mut back = vec![0; 256];
    get(world, &mut back, space, 0, Mode::Blocking);
    assert_eq!(back, pattern(256, 1));
    let old = world.amo_fetch(world.context(), space, amo(AmoOp::Set, 8, 77, 0), 0, ROUTINE);
    assert_eq!(old.to_le_bytes(), pattern(256, 1)[..8]);
}

fn contexts(world: &World) {
    let space = allocate(world, 8 * 4096);
    meet(world);
    let options = ContextOptions { private: true, ..ContextOptions::default() };
    let all: Vec<Context> =
        (0..8).map(|_| world.new_context(world.team().clone(), options)).collect();
    let sources: Vec<Vec<u8>> = (0..8).map(|i| pattern(4096, i)).collect();
    // Transports tell streams apart by their ids.
    let mut ids: Vec<u32> = all
        .iter()
        .chain([world.context(), world.internal_context()])
        .flat_map(|context| context.streams().first().map(|stream| stream.id))
        .collect();
    let streams = ids.len();
    // Lanes are chosen by them, in each run alike: no other PE of the process counts.
    assert_eq!(ids[8], 0, "the default context is not the first");
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), streams, "contexts share a stream");
    if world.pe() == 0 {
        for (i, context) in all.iter().enumerate() {
            // What others have under way is not outstanding here.
            assert!(context.is_quiet(), "context {i}");
            let at = space.wrapping_add(i * 4096);
            let (source, mode) = (sources[i].as_ptr(), Mode::NonBlocking);
            // SAFETY: the sources live to the end of the function.
            unsafe { world.put(context, at, source, 4096, 1, mode, ROUTINE) };
        }
        for context in &all {
            world.quiet(context, ROUTINE);
            assert!(context.is_quiet());
        }
    }
    meet(world);
    if world.pe() == 1 {
        assert_eq!(local(space, 8 * 4096), sources.concat());
    }
    meet(world);
}

fn bounds(world: &World) {
    use tombolo_core::transport::Remote;
    let stream = Stream::new(u32::MAX, true);
    let other = 1 - world.pe();
    let mut endpoints =
        (0..world.transports().len()).filter_map(|index| world.endpoint(index, other));
    let endpoint = endpoints.next().expect("an endpoint");
    assert!(endpoint.capabilities(SegmentKind::Heap).reach());
    let mut byte = [0u8; 16];
    for offset in [world.heap().len() - 8, world.heap().len(), usize::MAX - 4] {
        let remote = Remote { segment: SegmentKind::Heap, offset };
        // SAFETY: the local buffer is valid; the remote range is what is being tested.
        let (put, get) = unsafe {
            (
                endpoint.put(&stream, remote, byte.as_ptr(), 16, true),
                endpoint.get(&stream, byte.as_mut_ptr(), remote, 16),
            )
        };
        assert_eq!((put, get), (Status::Failed, Status::Failed), "offset {offset:#x}");
    }
    assert!(stream.is_quiet());
    meet(world);
}

/// Lines put by the endpoint itself, whatever it promises about their words: where it says that the end
/// of a short put appears last, whoever sees the end sees the rest.
fn ends_last(world: &World) {
    use tombolo_core::transport::Remote;
    const ROUNDS: u64 = 200;
    let line = allocate(world, 64);
    let answer = allocate(world, 8).cast::<u64>();
    meet(world);
    let mut endpoints =
        (0..world.transports().len()).filter_map(|index| world.endpoint(index, 1 - world.pe()));
    let endpoint = endpoints.next().expect("an endpoint");
    let can = endpoint.capabilities(SegmentKind::Heap);
    let fits = can.put && 64 % can.put_align == 0 && can.put_max >= 64;
    // Elsewhere the core puts its messages in two steps, or asks the target.
    let rounds = if can.ends_last && fits { ROUNDS } else { 0 };
    let offset = line as usize - world.heap().base() as usize;
    let dest = Remote { segment: SegmentKind::Heap, offset };
    let stream = Stream::new(u32::MAX, true);
    for round in 1..=rounds {
        if world.pe() == 0 {
            let words = [round * 0x0101_0101_0101; 8];
            let wait = Waiting { routine: ROUTINE, argument: round, reason: Reason::Variable };
            world.wait(wait, || {
                // SAFETY: the words stay as they are until the stream is quiet.
                let put = unsafe { endpoint.put(&stream, dest, words.as_ptr().cast(), 64, false) };
                assert_ne!(put, Status::Failed);
                put != Status::Again
            });
            world.wait(wait, || {
                world.transports().iter().for_each(|transport| _ = transport.quiet(&stream));
                stream.is_quiet()
            });
            wait_word(world, answer, round);
        } else {
            // The low byte alone is what a word that does not appear whole can be asked for.
            let end = line.wrapping_add(56).cast::<std::sync::atomic::AtomicU8>();
            // SAFETY: a byte of this PE's heap.
            let seen = || unsafe { (*end).load(std::sync::atomic::Ordering::Acquire) };
            world.wait(
                Waiting { routine: ROUTINE, argument: round, reason: Reason::Variable },
                || seen() == round as u8,
            );
            let expected = (round * 0x0101_0101_0101).to_le_bytes().repeat(7);
            assert_eq!(local(line, 56), expected, "round {round}");
            tell(world, answer, round);
        }
    }
    world.quiet(world.context(), ROUTINE);
    meet(world);
}

/// What an endpoint can do is what the peer's endpoint to this PE can do: from its own ones a PE knows
/// whether others will ask its service thread.
fn alike(world: &World) {
    let can = |transport: usize, pe: usize| {
        let endpoint = world.endpoint(transport, pe)?;
        Some(SegmentKind::ALL.map(|kind| endpoint.capabilities(kind)))
    };
    let transports = 0..world.transports().len();
    let row = |transport: usize| (0..world.n_pes()).map(move |pe| can(transport, pe));
    let own: Vec<String> = transports
        .flat_map(row)
        .map(|can| can.map_or_else(String::new, |can| format!("{can:?}")))
        .collect();
    assert!(own.iter().any(|can| !can.is_empty()), "no endpoint");
    let told = world.bootstrap().allgather(own.join("\n").as_bytes()).expect("all PEs meet");
    for (pe, theirs) in told.iter().enumerate() {
        let theirs = std::str::from_utf8(theirs).expect("text");
        for (at, back) in theirs.split('\n').enumerate() {
            let (transport, to) = (at / world.n_pes(), at % world.n_pes());
            let here = &own[at - to + pe];
            if to == world.pe() && !here.is_empty() && !back.is_empty() {
                assert_eq!(here, back, "{}, PE {pe}", world.transports()[transport].name());
            }
        }
    }
    meet(world);
}

fn passive(world: &World) {
    let space = allocate(world, 64);
    meet(world);
    if world.pe() == 0 {
        put(world, space, &pattern(64, 5), 1, Mode::Blocking);
        world.quiet(world.context(), ROUTINE);
        let mut back = vec![0; 64];
        get(world, &mut back, space, 1, Mode::Blocking);
        assert_eq!(back, pattern(64, 5));
        let add = amo(AmoOp::Add, 8, 1, 0);
        let first = u64::from_le_bytes(back[..8].try_into().expect("8 bytes"));
        assert_eq!(world.amo_fetch(world.context(), space, add, 1, ROUTINE), first);
    }
    // PE 1 has only waited for the launcher meanwhile.
    meet(world);
}
