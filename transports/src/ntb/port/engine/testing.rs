// SPDX-License-Identifier: Apache-2.0
//! Engines without hardware: a model plays registers and descriptors of one, and here is what is around it, a
//! function beside a bridge on the bus of its machine. For tests.
//!
//! It keeps to the rules of PCI Express and to no more: what the function writes through the bridge arrives
//! late, in any order where the function is allowed to mark its writes so, in pieces of 4 bytes at times;
//! and whoever has seen what it wrote later comes after what it wrote before.

pub mod cases;

use super::chip::Chip;
use crate::ntb::port::Result;
use crate::ntb::port::bridge::Device;
use crate::ntb::port::bridge::testing::{Function, Model, accesses_by_width};
use crate::ntb::port::vfio::Trained;
use nix::sys::eventfd::{EfdFlags, EventFd};
use std::fmt::{self, Debug};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::Duration;

/// The registers of an engine, and what it does.
pub trait Machinery: Send + 'static {
    /// As it is after a reset.
    fn new() -> Self;

    /// The driver.
    fn drive(device: Arc<dyn Device>) -> Result<Box<dyn Chip>>;

    fn read(&mut self, offset: usize, bytes: usize) -> u64;

    fn write(&mut self, offset: usize, bytes: usize, value: u64);

    /// Does a part of what is to be done. False: there is nothing.
    fn step(&mut self, bus: &mut Bus<'_>) -> bool;
}

/// What an engine does that it should not, but may.
#[derive(Clone, Copy, Debug, Default)]
pub struct Manner {
    /// Stops without a word after so many descriptors.
    pub silent_after: Option<u64>,
    /// Carries out nothing, and says so.
    pub fails: bool,
    /// Meets an error at what is to be done next, and waits.
    pub halts: bool,
    /// Carries out nothing new, but hears what it is told.
    pub holds: bool,
    /// Its registers read as all ones.
    pub gone: bool,
}

/// The way to memory, and numbers that differ.
pub struct Bus<'a> {
    machine: &'a dyn Reach,
    pub manner: Manner,
    /// Descriptors that were carried out.
    pub done: &'a mut u64,
    random: &'a mut u64,
    written: Vec<(u64, Vec<u8>)>,
    interrupts: bool,
    /// It may reach memory.
    is_master: bool,
}

impl Bus<'_> {
    /// Reads memory; false: it may not.
    pub fn fetch(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.is_master && self.machine.fetch(address, bytes)
    }

    /// Writes memory, or a window.
    pub fn post(&mut self, address: u64, bytes: &[u8]) {
        if self.is_master {
            self.written.push((address, bytes.to_vec()));
        }
    }

    pub fn interrupt(&mut self) {
        self.interrupts = true;
    }

    pub fn random(&mut self, below: usize) -> usize {
        *self.random = self.random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        (*self.random >> 33) as usize % below.max(1)
    }

    pub fn is_silent(&self) -> bool {
        self.manner.silent_after.is_some_and(|after| *self.done >= after)
    }

    /// What the function has written takes its way. What may pass each other waits in `held` for a while.
    fn leave(&mut self, held: &mut Vec<(u64, Vec<u8>)>, may_reorder: bool) {
        let written = std::mem::take(&mut self.written);
        let all: Vec<_> = held.drain(..).chain(written).collect();
        for (address, bytes) in all {
            if may_reorder && self.random(3) > 0 {
                held.push((address, bytes));
                continue;
            }
            let cut = if self.random(4) == 0 { 4 } else { bytes.len().max(1) };
            for (index, part) in bytes.chunks(cut).enumerate() {
                self.machine.post(address + (index * cut) as u64, part);
            }
        }
    }
}

/// What the function reaches of its machine.
trait Reach: Send + Sync {
    fn fetch(&self, address: u64, bytes: &mut [u8]) -> bool;
    fn post(&self, address: u64, bytes: &[u8]);
    /// So much of what was posted arrives.
    fn arrive(&self, most: usize);
}

struct Beside<M> {
    bridge: Arc<Function<M>>,
    requester: u16,
}

impl<M: Model> Reach for Beside<M> {
    fn fetch(&self, address: u64, bytes: &mut [u8]) -> bool {
        self.bridge.bench().fetch(self.bridge.process(), address, bytes)
    }

    fn post(&self, address: u64, bytes: &[u8]) {
        self.bridge.bench().post(self.bridge.process(), self.requester, address, bytes);
    }

    fn arrive(&self, most: usize) {
        self.bridge.bench().settle(self.bridge.process().0, most);
    }
}

/// The state of a function.
struct State<E> {
    engine: E,
    /// Configuration space, by two bytes.
    config: [u16; 128],
    manner: Manner,
    done: u64,
    random: u64,
    held: Vec<(u64, Vec<u8>)>,
}

const COMMAND: usize = 0x04 / 2;
const CAPABILITY: usize = 0x60;

impl<E: Machinery> State<E> {
    fn new(seed: u64) -> State<E> {
        let manner = Manner::default();
        let config = State::<E>::space();
        State { engine: E::new(), config, manner, done: 0, random: seed, held: vec![] }
    }

    /// A PCI Express capability of version 2, behind another one; writes may pass each other.
    fn space() -> [u16; 128] {
        let mut config = [0; 128];
        config[0x34 / 2] = 0x40;
        config[0x40 / 2] = 0x6001;
        config[CAPABILITY / 2] = 0x0010;
        config[CAPABILITY / 2 + 1] = 0x0002;
        config[(CAPABILITY + 0x08) / 2] = 0x2810;
        config[(CAPABILITY + 0x28) / 2] = 0x0100;
        config
    }

    fn step(&mut self, machine: &dyn Reach, event: &EventFd) -> bool {
        let is_master = self.config[COMMAND] & 4 != 0;
        if self.manner.gone {
            return false;
        }
        let may_reorder = self.config[(CAPABILITY + 0x08) / 2] & 0x10 != 0
            || self.config[(CAPABILITY + 0x28) / 2] & 0x300 != 0;
        let State { engine, manner, done, random, held, .. } = self;
        let mut bus = Bus {
            machine,
            manner: *manner,
            done,
            random,
            written: vec![],
            interrupts: false,
            is_master,
        };
        let busy = engine.step(&mut bus);
        bus.leave(held, may_reorder);
        if bus.interrupts {
            event.write(1).expect("room in an event");
        }
        let most = bus.random(6);
        machine.arrive(most);
        busy || !held.is_empty()
    }
}

/// An engine's function, and the thread that it is.
pub struct Beyond<M, E> {
    bridge: Arc<Function<M>>,
    state: Arc<Mutex<State<E>>>,
    event: Arc<[EventFd; 1]>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl<M: Model, E: Machinery> Beyond<M, E> {
    /// Beside a bridge, with that requester number.
    pub fn new(bridge: Arc<Function<M>>, requester: u16) -> Arc<Beyond<M, E>> {
        let event = EventFd::from_value_and_flags(0, EfdFlags::EFD_NONBLOCK).unwrap();
        let (event, stop) = (Arc::new([event]), Arc::new(AtomicBool::new(false)));
        let state = Arc::new(Mutex::new(State::<E>::new(requester.into())));
        let (own, events, ends) = (state.clone(), event.clone(), stop.clone());
        let machine = Beside { bridge: bridge.clone(), requester };
        let thread = std::thread::spawn(move || {
            let mut idle = 0;
            while !ends.load(Ordering::Relaxed) {
                if lock(&own).step(&machine, &events[0]) {
                    idle = 0;
                    std::thread::yield_now();
                } else {
                    machine.arrive(usize::MAX);
                    // Processors are few, and most engines of a test have nothing to do.
                    idle = (idle + 1).min(20);
                    std::thread::sleep(Duration::from_micros(50) * idle);
                }
            }
        });
        Arc::new(Beyond { bridge, state, event, stop, thread: Some(thread) })
    }

    /// From now on it behaves so.
    pub fn behave(&self, manner: Manner) {
        let mut state = lock(&self.state);
        (state.manner, state.done) = (manner, 0);
    }

    /// Descriptors that were carried out since.
    pub fn done(&self) -> u64 {
        lock(&self.state).done
    }

    /// Whether it may reach memory.
    pub fn is_master(&self) -> bool {
        lock(&self.state).config[COMMAND] & 4 != 0
    }
}

fn lock<T>(state: &Mutex<T>) -> MutexGuard<'_, T> {
    state.lock().unwrap_or_else(PoisonError::into_inner)
}

impl<M, E> Drop for Beyond<M, E> {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        let _ = self.thread.take().map(JoinHandle::join);
    }
}

impl<M, E> Debug for Beyond<M, E> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "an engine beside {:?}", self.bridge)
    }
}

impl<M: Model, E: Machinery> Beyond<M, E> {
    fn read(&self, bar: usize, offset: usize, bytes: usize) -> u64 {
        let mut state = lock(&self.state);
        assert!(bar == 0 && offset.is_multiple_of(bytes), "{bytes} at {offset:#x} of BAR {bar}");
        if state.manner.gone { u64::MAX } else { state.engine.read(offset, bytes) }
    }

    fn write(&self, bar: usize, offset: usize, bytes: usize, value: u64) {
        let mut state = lock(&self.state);
        assert!(bar == 0 && offset.is_multiple_of(bytes), "{bytes} at {offset:#x} of BAR {bar}");
        if !state.manner.gone {
            state.engine.write(offset, bytes, value);
        }
    }
}

impl<M: Model, E: Machinery> Device for Beyond<M, E> {
    fn bar_size(&self, bar: usize) -> usize {
        if bar == 0 { 0x4000 } else { 0 }
    }

    accesses_by_width!();

    fn config16(&self, offset: usize) -> u16 {
        let state = lock(&self.state);
        if state.manner.gone { u16::MAX } else { state.config[offset % 256 / 2] }
    }

    fn set_config16(&self, offset: usize, value: u16) -> Result<()> {
        lock(&self.state).config[offset / 2] = value;
        Ok(())
    }

    fn reset(&self) -> Result<()> {
        let mut state = lock(&self.state);
        state.engine = E::new();
        let command = state.config[COMMAND];
        state.config = State::<E>::space();
        state.config[COMMAND] = command;
        Ok(())
    }

    unsafe fn store(&self, _bar: usize, _offset: usize, _source: *const u8, _len: usize) {
        unreachable!("an engine has no window");
    }

    fn store_words(&self, _bar: usize, _offset: usize, _words: &[u64]) {
        unreachable!("an engine has no window");
    }

    unsafe fn load(&self, _bar: usize, _offset: usize, _dest: *mut u8, _len: usize) {
        unreachable!("an engine has no window");
    }

    fn combines(&self) -> bool {
        false
    }

    fn drain(&self) {}

    fn trained(&self) -> Trained {
        self.bridge.trained()
    }

    fn interrupts(&self) -> &[EventFd] {
        &*self.event
    }

    fn has_msix(&self) -> bool {
        false
    }

    fn reserve(&self, len: u64, align: u64) -> Result<u64> {
        self.bridge.reserve(len, align)
    }

    unsafe fn map(&self, address: u64, base: *mut u8, len: usize) -> Result<()> {
        // SAFETY: the caller's promise.
        unsafe { self.bridge.map(address, base, len) }
    }

    fn map_bar(&self, _address: u64, _bar: usize, _offset: usize, _len: usize) -> Result<()> {
        unreachable!("an engine has no window");
    }

    fn unmap(&self, address: u64, len: usize) {
        self.bridge.unmap(address, len);
    }

    fn describe(&self) -> String {
        format!("an engine beside {}", self.bridge.describe())
    }
}
