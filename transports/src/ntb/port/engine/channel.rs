// SPDX-License-Identifier: Apache-2.0
//! An engine, and the channels that share it.

use super::Window;
use super::chip::{Chip, Facts, Shared};
use super::queue::{Queue, Source};
use crate::ntb::port::bridge::Device;
use crate::ntb::port::listener::{self, Source as Interrupts};
use crate::ntb::port::{DmaChannel, DmaProgress, DmaRefusal, DmaTransfer, PortError, Result};
use nix::sys::eventfd::EventFd;
use std::hash::{BuildHasher, RandomState};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, OnceLock, PoisonError};
use std::time::{Duration, Instant};
use tombolo_core::board::monotonic_ns;

/// How long the transfers of a channel that is closed, or those of a link that is taken down, may take
/// to end by themselves.
const CLOSE: Duration = Duration::from_millis(100);
/// How long the copy of a trial may take, and the pattern to arrive.
const TRIAL_NS: u64 = 1_000_000_000;
const ARRIVAL: Duration = Duration::from_millis(200);
/// Bytes of a trial.
pub const PATTERN: usize = 64;

/// The port that engines write through.
pub trait Host: Send + Sync {
    /// Looks at the link; its generation if it is up.
    fn refresh(&self) -> Option<u64>;

    /// What was registered.
    fn sources(&self) -> Vec<Source>;

    /// Where functions reach the memory of the peer that the engine of a number may write in a trial.
    fn trial_address(&self, engine: usize) -> u64;

    /// What the peer has there.
    fn read_trial(&self, engine: usize) -> [u64; PATTERN / 8];

    /// All that a channel had queued was carried out.
    fn tell(&self);
}

/// A function that copies.
pub struct Engine {
    device: Arc<dyn Device>,
    facts: Facts,
    host: Arc<dyn Host>,
    /// Among those of its port.
    number: usize,
    /// What it is to write in a trial.
    pattern: Shared,
    /// Whether it reaches the peer, once that is known.
    tried: OnceLock<Result<(), String>>,
    /// Something is under way.
    busy: AtomicBool,
    queue: Mutex<Queue>,
}

impl Engine {
    /// The engine of a number among those of a port.
    pub fn new(chip: Box<dyn Chip>, host: Arc<dyn Host>, number: usize) -> Result<Engine> {
        let (device, facts) = (chip.device().clone(), chip.facts());
        if device.interrupts().is_empty() {
            return Err(PortError::Invalid(format!("{} raises no interrupts", device.describe())));
        }
        let pattern = Shared::new(&device, PATTERN, facts.addresses)?;
        Ok(Engine {
            device,
            facts,
            host,
            number,
            pattern,
            tried: OnceLock::new(),
            busy: AtomicBool::new(false),
            queue: Mutex::new(Queue::new(chip)),
        })
    }

    pub fn facts(&self) -> &Facts {
        &self.facts
    }

    /// What it is, and how it is used, for people.
    pub fn describe(&self) -> String {
        let state = match (self.queue().given_up(), self.tried.get()) {
            (Some(why), _) => format!("not used any more, because {why}"),
            (None, Some(Err(why))) => format!("not used: {why}"),
            (None, Some(Ok(()))) => "reaches the peer".into(),
            (None, None) => "not tried".into(),
        };
        format!("{}, {}: {state}", self.facts.name, self.device.describe())
    }

    fn queue(&self) -> MutexGuard<'_, Queue> {
        self.queue.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Lets the queue go on.
    fn advance(&self, queue: &mut Queue) {
        queue.advance();
        self.busy.store(!queue.is_empty(), Ordering::Relaxed);
    }

    /// Waits until nothing is under way, or ends it.
    pub fn settle(&self) {
        let begun = Instant::now();
        loop {
            let mut queue = self.queue();
            self.advance(&mut queue);
            if queue.is_empty() {
                return;
            }
            if begun.elapsed() > CLOSE {
                return queue.restart();
            }
            drop(queue);
            std::thread::sleep(Duration::from_micros(50));
        }
    }

    /// Whether the engine reaches the peer. Tried once; the link has to be up for that.
    fn try_out(&self) -> Result<()> {
        let generation = self.host.refresh().ok_or(PortError::NotConnected)?;
        let verdict = match self.tried.get() {
            Some(verdict) => verdict.clone(),
            None => {
                let verdict = self.attempt();
                if self.host.refresh() != Some(generation) {
                    return Err(PortError::NotConnected);
                }
                self.tried.get_or_init(|| verdict).clone()
            }
        };
        verdict.map_err(|why| {
            PortError::Invalid(format!("{} does not serve: {why}", self.device.describe()))
        })
    }

    fn attempt(&self) -> Result<(), String> {
        let words: [u64; PATTERN / 8] = std::array::from_fn(|word| {
            let random = RandomState::new().hash_one(word);
            self.pattern.memory.store(8 * word, random);
            random
        });
        let to = self.host.trial_address(self.number);
        let deadline = monotonic_ns() + TRIAL_NS;
        if !self.queue().copy_alone(self.pattern.address, to, PATTERN as u32, deadline) {
            return Err("it does not copy from memory into the window of the bridge".into());
        }
        let begun = Instant::now();
        while self.host.read_trial(self.number) != words {
            if begun.elapsed() > ARRIVAL {
                return Err(
                    "what it writes into the window of the bridge does not arrive at the peer: the root \
                     complex, or the switch, does not pass it on, or the bridge rejects it"
                        .into(),
                );
            }
            std::thread::sleep(Duration::from_micros(100));
        }
        Ok(())
    }
}

/// What wakes the thread of an engine.
pub struct Attendant(pub Arc<Engine>);

impl Interrupts for Attendant {
    fn interrupts(&self) -> &[EventFd] {
        self.0.device.interrupts()
    }

    fn attend(&self, raised: u64) {
        listener::take(self.0.device.interrupts(), raised);
        let mut queue = self.0.queue();
        if raised != 0 {
            queue.attend();
        }
        self.0.advance(&mut queue);
        let news = queue.take_news();
        drop(queue);
        if news {
            self.0.host.tell();
        }
    }

    /// What is under way is looked at. What comes to an engine that was idle interrupts, unless the engine has
    /// missed that it should begin.
    fn patience_ms(&self) -> Option<u8> {
        Some(if self.0.busy.load(Ordering::Relaxed) { 1 } else { 10 })
    }
}

/// A channel of an engine.
pub struct Channel {
    engine: Arc<Engine>,
    handle: usize,
}

impl Channel {
    /// A channel that writes through `window`.
    pub fn new(engine: Arc<Engine>, window: Box<dyn Window>) -> Result<Channel> {
        let handle = engine.queue().add(window)?;
        Ok(Channel { engine, handle })
    }
}

impl DmaChannel for Channel {
    fn open(&mut self, offset: usize, len: usize) -> Result<()> {
        self.engine.try_out()?;
        let sources = self.engine.host.sources();
        self.engine.queue().open(self.handle, sources, offset, len)
    }

    unsafe fn submit(&mut self, transfer: DmaTransfer) -> std::result::Result<u64, DmaRefusal> {
        let mut queue = self.engine.queue();
        let number = queue.submit(self.handle, transfer)?;
        let busy = !queue.is_empty();
        self.engine.busy.store(busy, Ordering::Relaxed);
        let news = !busy && queue.take_news();
        drop(queue);
        if news {
            self.engine.host.tell();
        }
        Ok(number)
    }

    fn poll(&mut self) -> DmaProgress {
        let mut queue = self.engine.queue();
        self.engine.advance(&mut queue);
        queue.progress(self.handle)
    }

    fn wake(&mut self) -> bool {
        self.engine.queue().wake(self.handle);
        true
    }
}

impl Drop for Channel {
    /// A source may be freed from now on.
    fn drop(&mut self) {
        let begun = Instant::now();
        loop {
            let mut queue = self.engine.queue();
            self.engine.advance(&mut queue);
            if queue.is_busy(self.handle) && begun.elapsed() > CLOSE {
                queue.restart();
            }
            if !queue.is_busy(self.handle) {
                return queue.remove(self.handle);
            }
            drop(queue);
            std::thread::sleep(Duration::from_micros(50));
        }
    }
}
