// SPDX-License-Identifier: Apache-2.0
//! The transfers that one engine was given, by the channels that share it, in their order.

use super::Window;
use super::chip::{self, Chip, Copy, Facts, Health};
use crate::ntb::port::{DmaProgress, DmaRefusal, DmaTransfer, Event, PortError, Result};
use tombolo_core::board::monotonic_ns;

/// Channels that share an engine at most, and transfers of each that may be under way.
pub const HANDLES: usize = 16;
pub const PER_HANDLE: usize = 64;
/// An engine that has not gone on for so long is asked how it is.
const LOOK_NS: u64 = 1_000_000;
/// So many transfers that fail one after another, and the engine is not used any more.
const FAILURES_MAX: u32 = 8;

/// Memory that an engine may read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Source {
    /// Where it is in this process.
    pub base: usize,
    pub len: usize,
    /// Where functions find it.
    pub address: u64,
}

/// What one channel has.
struct Handle {
    window: Box<dyn Window>,
    sources: Vec<Source>,
    submitted: u64,
    finished: u64,
    failed: u64,
    /// Finished, and somebody knows.
    told: u64,
    wakes: bool,
}

/// A transfer that was submitted.
#[derive(Clone, Copy)]
struct Entry {
    handle: usize,
    /// None where there is nothing to copy.
    copy: Option<u64>,
    /// Part of it was to go where nothing is open.
    lost: bool,
    flag: Option<(usize, u64)>,
    /// Generation of the link.
    generation: u64,
}

pub struct Queue {
    chip: Box<dyn Chip>,
    facts: Facts,
    /// Used in turn; those from `oldest` to `next` are under way.
    entries: Box<[Entry]>,
    oldest: u64,
    next: u64,
    copies: u64,
    handles: [Option<Handle>; HANDLES],
    /// When the engine last went on, or was asked how it is.
    looked_at: u64,
    failures: u32,
    /// Why it is not used any more.
    given_up: Option<String>,
}

impl Queue {
    pub fn new(chip: Box<dyn Chip>) -> Queue {
        let none = Entry { handle: 0, copy: None, lost: false, flag: None, generation: 0 };
        let facts = chip.facts();
        assert!(HANDLES * PER_HANDLE < facts.descriptors, "{facts:?}");
        Queue {
            chip,
            entries: vec![none; HANDLES * PER_HANDLE].into(),
            oldest: 0,
            next: 0,
            copies: 0,
            handles: Default::default(),
            looked_at: monotonic_ns(),
            failures: 0,
            given_up: None,
            facts,
        }
    }

    /// Why the engine is not used any more, if it is not.
    pub fn given_up(&self) -> Option<&str> {
        self.given_up.as_deref()
    }

    pub fn is_empty(&self) -> bool {
        self.oldest == self.next
    }

    /// A new channel that writes through `window`.
    pub fn add(&mut self, window: Box<dyn Window>) -> Result<usize> {
        let place = self.handles.iter().position(Option::is_none).ok_or_else(|| {
            PortError::Exhausted(format!("a DMA engine is shared by {HANDLES} channels already"))
        })?;
        self.handles[place] = Some(Handle {
            window,
            sources: vec![],
            submitted: 0,
            finished: 0,
            failed: 0,
            told: 0,
            wakes: false,
        });
        Ok(place)
    }

    /// Takes a channel away. None of its transfers is under way.
    pub fn remove(&mut self, handle: usize) {
        self.handles[handle] = None;
    }

    fn handle(&mut self, handle: usize) -> &mut Handle {
        self.handles[handle].as_mut().expect("a channel is there until it is dropped")
    }

    /// Opens a range of a channel's window; from now on it reads from `sources`.
    pub fn open(
        &mut self,
        handle: usize,
        sources: Vec<Source>,
        offset: usize,
        len: usize,
    ) -> Result<()> {
        let handle = self.handle(handle);
        handle.sources = sources;
        handle.window.open(offset, len)
    }

    pub fn wake(&mut self, handle: usize) {
        self.handle(handle).wakes = true;
    }

    /// Whether something of a channel is under way.
    pub fn is_busy(&self, handle: usize) -> bool {
        self.handles[handle].as_ref().is_some_and(|handle| handle.submitted != handle.finished)
    }

    /// How far a channel has come. It knows then.
    pub fn progress(&mut self, handle: usize) -> DmaProgress {
        let handle = self.handle(handle);
        handle.told = handle.finished;
        DmaProgress { finished: handle.finished, failed: handle.failed }
    }

    /// Whether a channel that is to be told has carried out all and has not been told.
    pub fn take_news(&mut self) -> bool {
        let due = |handle: &&mut Handle| {
            handle.wakes && handle.finished == handle.submitted && handle.told != handle.finished
        };
        let handles = self.handles.iter_mut().flatten().filter(due);
        handles.map(|handle| handle.told = handle.finished).count() > 0
    }

    pub fn attend(&mut self) {
        self.chip.attend();
    }

    /// Queues a transfer. Its source stays readable until it has finished.
    pub fn submit(&mut self, index: usize, transfer: DmaTransfer) -> Result<u64, DmaRefusal> {
        let DmaTransfer { offset, source, len, flag } = transfer;
        if self.given_up.is_some() {
            return Err(DmaRefusal::Gone);
        }
        if len > self.facts.max_len {
            return Err(DmaRefusal::TooLong);
        }
        let was_empty = self.is_empty();
        let handle = self.handles[index].as_mut().ok_or(DmaRefusal::Gone)?;
        let base = source.addr();
        let holds = |source: &&Source| {
            base >= source.base
                && base - source.base < source.len
                && len <= source.len - (base - source.base)
        };
        let from = match handle.sources.iter().find(holds) {
            Some(source) => source.address + (base - source.base) as u64,
            None if len == 0 => 0,
            None => return Err(DmaRefusal::Unregistered),
        };
        if handle.submitted - handle.finished == PER_HANDLE as u64 {
            return Err(DmaRefusal::Full);
        }
        // A write is lost from where nothing is open any more.
        let open = if len > 0 { handle.window.permitted(offset, len) } else { 0 };
        let to = handle.window.address() + offset as u64;
        handle.submitted += 1;
        let number = handle.submitted;
        let copy = (open > 0).then_some(self.copies);
        let entry = Entry {
            handle: index,
            copy,
            lost: open < len,
            flag,
            generation: handle.window.generation(),
        };
        // The first of several interrupts: from then on it is looked at until there are none.
        let tells = handle.wakes || was_empty;
        let place = (self.next % self.entries.len() as u64) as usize;
        self.entries[place] = entry;
        self.next += 1;
        if was_empty {
            self.looked_at = monotonic_ns();
        }
        match copy {
            Some(number) => {
                self.copies += 1;
                self.chip.put(number, &Copy { from, to, len: open as u32, tells });
                self.chip.go();
            }
            None => self.advance(),
        }
        Ok(number)
    }

    /// Finishes what the engine has carried out, in the order of submission, and writes the flags.
    pub fn advance(&mut self) {
        let before = self.oldest;
        while self.oldest < self.next {
            let entry = self.entries[(self.oldest % self.entries.len() as u64) as usize];
            let done = match entry.copy {
                None => true,
                Some(number) => match self.chip.outcome(number) {
                    Some(done) => done,
                    None => break,
                },
            };
            self.finish(entry, done);
        }
        if self.oldest != before {
            self.looked_at = monotonic_ns();
            if self.failures >= FAILURES_MAX {
                self.give_up("its transfers fail");
            }
        } else if self.oldest < self.next {
            self.look();
        }
    }

    /// The engine has not gone on.
    fn look(&mut self) {
        let entry = self.entries[(self.oldest % self.entries.len() as u64) as usize];
        let window = self.handles[entry.handle].as_ref().map(|handle| &handle.window);
        if window.is_none_or(|window| window.generation() != entry.generation) {
            // What is under way would reach whatever the window leads to when the link comes back.
            return self.restart();
        }
        let now = monotonic_ns();
        if now.saturating_sub(self.looked_at) < LOOK_NS {
            return;
        }
        self.looked_at = now;
        match self.chip.look() {
            Health::Working => {}
            Health::Halted => self.recover(),
            Health::Gone => self.give_up("it does not answer any more"),
        }
    }

    /// Begins again after an error. What follows the transfer that has met it is none of its.
    fn recover(&mut self) {
        let failures = self.failures + 1;
        self.restart();
        self.failures = failures;
        if failures >= FAILURES_MAX {
            self.give_up("its transfers fail");
        }
    }

    fn finish(&mut self, entry: Entry, done: bool) {
        self.oldest += 1;
        self.failures = if done { 0 } else { self.failures + 1 };
        let Some(handle) = &mut self.handles[entry.handle] else { return };
        handle.window.count(Event::DmaTransfers);
        if !done {
            handle.window.count(Event::DmaErrors);
            handle.failed += 1;
        } else if let Some((offset, value)) = entry.flag.filter(|_| !entry.lost) {
            handle.window.store_flag(offset, value);
        }
        handle.finished += 1;
    }

    /// Ends all that is under way: what the engine has not carried out by then has failed.
    pub fn restart(&mut self) {
        if !self.chip.stop() {
            return self.give_up("it does not stop");
        }
        self.fail_rest();
        self.failures = 0;
        if let Err(error) = self.chip.start(self.copies) {
            self.give_up(&error.to_string());
        }
    }

    /// The engine is not used any more, and reaches no memory.
    pub fn give_up(&mut self, why: &str) {
        if self.given_up.is_some() {
            return;
        }
        let device = self.chip.device().clone();
        tracing::warn!("{}, a DMA engine, is not used any more: {why}", device.describe());
        chip::silence(&*device);
        self.given_up = Some(why.to_owned());
        self.fail_rest();
    }

    fn fail_rest(&mut self) {
        while self.oldest < self.next {
            let entry = self.entries[(self.oldest % self.entries.len() as u64) as usize];
            let done = entry.copy.is_none_or(|number| self.chip.outcome(number) == Some(true));
            self.finish(entry, done);
        }
    }

    /// One copy for a trial, when nothing else is under way: whether it has ended well by `deadline`.
    pub fn copy_alone(&mut self, from: u64, to: u64, len: u32, deadline: u64) -> bool {
        if self.given_up.is_some() || !self.is_empty() {
            return false;
        }
        let number = self.copies;
        self.copies += 1;
        self.chip.put(number, &Copy { from, to, len, tells: false });
        self.chip.go();
        loop {
            match self.chip.outcome(number) {
                Some(done) => return done,
                None if monotonic_ns() > deadline => {
                    self.restart();
                    return false;
                }
                None => std::thread::yield_now(),
            }
        }
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        if self.given_up.is_none() && !self.chip.stop() {
            chip::silence(&**self.chip.device());
        }
    }
}
