// SPDX-License-Identifier: Apache-2.0
//! Links that do not carry what is written to them although their ports say that they are up: direct puts
//! that are under way end, by another way, and what was written first does not arrive last.

use super::{Link, Stop, ports_of, run};
use crate::ntb::port::{
    BusAddress, Capabilities, Counters, InboundMemory, LinkState, NtbPort, Outbound, PortError,
    Region, Result, Wake, engine, plx, switchtec,
};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::sync::{Arc, Mutex};
use std::time::Duration;
use tombolo_core::World;
use tombolo_core::ops::Mode;
use tombolo_core::random::Random;

/// Puts of a round, and the longest.
const PUTS: usize = 8;
const BYTES_MAX: usize = 64 << 10;
const SEEDS: u64 = 3;
/// Only a failing test takes so long.
const LIMIT: Duration = Duration::from_secs(100);

/// What happens to the link.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Trouble {
    /// The neighbour's device is gone.
    Gone,
    /// All that is written arrives late.
    Held,
}

/// A test that hangs fails.
fn within(limit: Duration, act: impl FnOnce() + Send + 'static) {
    let (tell, told) = channel();
    let thread = std::thread::spawn(move || {
        act();
        tell.send(()).expect("somebody waits");
    });
    if told.recv_timeout(limit).is_err() {
        assert!(thread.is_finished(), "it hangs");
    }
    thread.join().expect("it passes");
}

/// A PE puts to a neighbour without waiting, again and again to the same places; trouble begins before one of
/// the puts of round 2, and what was held arrives after round 3.
fn puts_end(make: Make, settings: Settings) {
    for seed in 0..SEEDS {
        for trouble in [Trouble::Gone, Trouble::Held] {
            within(LIMIT, move || put_over_a_troubled_link(make, settings, trouble, seed));
        }
    }
}

type Settings = &'static [(&'static str, &'static str)];
/// Makes the links of a ring, and their engines.
type Make = fn() -> (Vec<Link>, Vec<Stop>);

fn put_over_a_troubled_link(make: Make, settings: Settings, trouble: Trouble, seed: u64) {
    let (links, _engines) = make();
    let ports = ports_of(&links);
    let mut random = Random::new(seed);
    let mut below = |limit: usize| random.below(limit as u64) as usize;
    // The side that puts: the right port of host 0 or the left port of host 1, which are neighbours.
    let side = below(2);
    let lens: Vec<usize> = (0..PUTS).map(|_| 1 + below(BYTES_MAX)).collect();
    let first = below(PUTS);
    let cable = Arc::clone(&links[0].1);
    run(ports, settings, |world, _| {
        let context = world.context();
        let meet = || world.bootstrap().barrier().expect("all PEs meet");
        let [from, to] = [(); 2].map(|()| world.heap().allocate(PUTS * BYTES_MAX, 64));
        meet();
        if world.pe() == side {
            for round in 1..=3u8 {
                // SAFETY: this PE's heap, from which nothing is read now.
                unsafe { from.write_bytes(round, PUTS * BYTES_MAX) };
                for (put, len) in lens.iter().enumerate() {
                    if (round, put) == (2, first) {
                        begin(trouble, &*cable, side);
                    }
                    start_put(world, to, from, put * BYTES_MAX, *len, 1 - side);
                }
                world.quiet(context, "quiet");
            }
            cable.release(side);
        }
        meet();
        if world.pe() == 1 - side {
            // What was held has arrived when it was let go.
            for (put, len) in lens.iter().enumerate() {
                // SAFETY: inside of the heap; nobody writes there now.
                let here = unsafe {
                    std::slice::from_raw_parts(to.add(put * BYTES_MAX).cast_const(), *len)
                };
                assert!(here.iter().all(|byte| *byte == 3), "{trouble:?} {seed}: put {put}");
            }
        }
        meet();
    });
}

fn begin(trouble: Trouble, cable: &dyn super::Cable, side: usize) {
    match trouble {
        Trouble::Gone => cable.lose(1 - side),
        Trouble::Held => cable.hold(side),
    }
}

fn start_put(world: &World, to: *mut u8, from: *mut u8, at: usize, len: usize, pe: usize) {
    let (to, from) = (to.wrapping_add(at), from.wrapping_add(at).cast_const());
    // SAFETY: inside of the heap, which stays what it is until the callers have waited.
    unsafe { world.put(world.context(), to, from, len, pe, Mode::NonBlocking, "put") };
}

fn without_engines(make: fn() -> Link) -> (Vec<Link>, Vec<Stop>) {
    ((0..3).map(|_| make()).collect(), vec![])
}

/// A port that closes no window until it is told to.
struct Stubborn(Arc<dyn NtbPort>, Arc<AtomicBool>);

macro_rules! passed_on {
    ($($name:ident($($argument:ident: $type:ty),*) -> $result:ty;)*) => {
        $(fn $name(&self, $($argument: $type),*) -> $result {
            self.0.$name($($argument),*)
        })*
    };
}

/// All but translations.
macro_rules! all_others_passed_on {
    () => {
        passed_on! {
            capabilities() -> &Capabilities;
            link_enable() -> Result<()>;
            link_disable() -> Result<()>;
            link_state() -> LinkState;
            link_event() -> bool;
            inbound_memory(window: usize, first_slot: usize, len: usize) -> Result<InboundMemory>;
            register(region: &Region<'_>) -> Result<BusAddress>;
            unregister(address: BusAddress) -> Result<()>;
            outbound(window: usize) -> Result<Box<dyn Outbound>>;
            db_read() -> u64;
            db_clear(bits: u64) -> ();
            db_read_mask() -> u64;
            db_set_mask(bits: u64) -> ();
            db_clear_mask(bits: u64) -> ();
            peer_db_set(bits: u64) -> ();
            db_wait(bits: u64, timeout: Duration) -> Wake;
            spad_read(index: usize) -> u32;
            spad_write(index: usize, value: u32) -> ();
            peer_spad_read(index: usize) -> u32;
            peer_spad_write(index: usize, value: u32) -> ();
            counters() -> Counters;
            describe() -> String;
        }
    };
}

impl NtbPort for Stubborn {
    fn mw_clear_trans(&self, window: usize, first_slot: usize, slots: usize) -> Result<()> {
        match self.1.load(Ordering::SeqCst) {
            true => self.0.mw_clear_trans(window, first_slot, slots),
            false => Err(PortError::Busy("it does not want to".into())),
        }
    }

    passed_on! {
        mw_set_trans(window: usize, slot: usize, address: BusAddress, size: u64) -> Result<()>;
    }
    all_others_passed_on!();
}

/// A port that opens one slot of what it is to open in a window, and the others when it is told to.
struct Hesitant(Arc<dyn NtbPort>, Mutex<Vec<(usize, usize, BusAddress, u64)>>);

/// The window of the rings.
const RINGS: usize = 0;

impl Hesitant {
    fn open(&self) {
        for (window, slot, address, size) in self.1.lock().unwrap().drain(..) {
            self.0.mw_set_trans(window, slot, address, size).unwrap();
        }
    }
}

impl NtbPort for Hesitant {
    fn mw_set_trans(
        &self,
        window: usize,
        slot: usize,
        address: BusAddress,
        size: u64,
    ) -> Result<()> {
        let first = self.capabilities().windows[window].slot_size();
        if window != RINGS || size <= first {
            return self.0.mw_set_trans(window, slot, address, size);
        }
        let rest = (window, slot + 1, address.plus(first), size - first);
        self.1.lock().unwrap().push(rest);
        self.0.mw_set_trans(window, slot, address, first)
    }

    passed_on! {
        mw_clear_trans(window: usize, first_slot: usize, slots: usize) -> Result<()>;
    }
    all_others_passed_on!();
}

/// The first slot of a neighbour is enough for a link to be used. What opens later is used as well.
#[test]
fn a_region_that_opens_bit_by_bit_is_used_as_a_whole() {
    const LEN: usize = 50_000;
    within(LIMIT, || {
        let (links, _) = without_engines(plx::tests::link);
        let mut ports = ports_of(&links);
        let [right, left] = ports[1].clone();
        let hesitant = Arc::new(Hesitant(left, Mutex::default()));
        ports[1] = [right, hesitant.clone()];
        run(ports, &[], |world, _| {
            let meet = || world.bootstrap().barrier().expect("all PEs meet");
            let [from, to] = [(); 2].map(|()| world.heap().allocate(LEN, 64));
            // SAFETY: this PE's heap, from which nothing is read now.
            unsafe { from.write_bytes(7, LEN) };
            meet();
            if world.pe() == 1 {
                assert!(!hesitant.1.lock().unwrap().is_empty(), "all is open");
                hesitant.open();
                // There is no other way.
                links[2].1.lose(0);
            }
            meet();
            if world.pe() == 0 {
                let (context, from) = (world.context(), from.cast_const());
                // SAFETY: inside of the heap; the put blocks.
                unsafe { world.put(context, to, from, LEN, 1, Mode::Blocking, "put") };
                world.quiet(context, "quiet");
            }
            meet();
            // SAFETY: inside of the heap; nobody writes there now.
            let here = unsafe { std::slice::from_raw_parts(to.cast_const(), LEN) };
            assert!(world.pe() != 1 || here.iter().all(|byte| *byte == 7));
            meet();
        });
    });
}

/// A neighbour whose window stays open is lost: nobody knows what arrives there.
#[test]
fn a_neighbour_that_does_not_close_its_window_is_given_up() {
    const SETTINGS: Settings = &[("SHMEM_ON_LOSS", "continue"), ("SHMEM_NTB_SILENCE", "1")];
    within(LIMIT, || {
        let (links, _) = without_engines(plx::tests::link);
        let mut ports = ports_of(&links);
        let [right, left] = ports[1].clone();
        let willing = Arc::new(AtomicBool::new(false));
        ports[1] = [right, Arc::new(Stubborn(left, willing.clone()))];
        run(ports, SETTINGS, |world, _| {
            let meet = || world.bootstrap().barrier().expect("all PEs meet");
            let [from, to] = [(); 2].map(|()| world.heap().allocate(BYTES_MAX, 64));
            meet();
            if world.pe() == 0 {
                start_put(world, to, from, 0, 100, 1);
                world.quiet(world.context(), "quiet");
                assert!(!world.is_lost(1));
                links[0].1.hold(0);
                start_put(world, to, from, 0, 100, 1);
                world.quiet(world.context(), "quiet");
                assert!(world.is_lost(1) && !world.is_lost(2));
                links[0].1.release(0);
                // Memory is closed before it goes away.
                willing.store(true, Ordering::SeqCst);
            }
            meet();
        });
    });
}

#[test]
fn puts_by_the_processor_end_over_bridges_in_switches() {
    puts_end(|| without_engines(plx::tests::link), &[]);
}

#[test]
fn puts_by_the_processor_end_over_ports_of_a_switch() {
    puts_end(|| without_engines(switchtec::tests::link), &[]);
}

#[test]
fn puts_by_engines_end() {
    puts_end(|| (0..3).map(|_| engine::plx::tests::link()).unzip(), &[("SHMEM_NTB_DMA", "4k")]);
}
