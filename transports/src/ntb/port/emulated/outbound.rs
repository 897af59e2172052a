// SPDX-License-Identifier: Apache-2.0
//! Outbound windows: the CPU's stores, with or without write-combining between.

use super::link::Link;
use super::posted::Posted;
use super::profile::WriteCombining;
use super::random::Random;
use super::sys::SharedMapping;
use super::translation::{MapCache, Target, look_up};
use super::words::LinkWord;
use crate::ntb::port::{Event, Line, Outbound, Result, WindowMapping};
use std::sync::atomic::{AtomicU64, Ordering, fence};
use std::sync::{Arc, Mutex, PoisonError};
use tombolo_core::copy;

/// Payload of the TLPs that a CPU's stores become.
const TLP: usize = Line::BYTES;
/// Line buffers of a core.
const BUFFERS: usize = 10;

/// An outbound window as one requester has it open.
pub struct EmulatedOutbound {
    posted: Posted,
    maps: Arc<MapCache>,
    combining: Option<Combining>,
}

impl EmulatedOutbound {
    pub fn new(posted: Posted, maps: Arc<MapCache>) -> EmulatedOutbound {
        let config = &posted.link().config;
        let combining = (config.write_combining == WriteCombining::Adversarial).then(|| {
            let stream = 1 << 48 | (posted.side() as u64) << 32 | posted.window() as u64;
            Combining {
                buffers: Vec::with_capacity(BUFFERS),
                random: Random::new(config.seed, stream),
            }
        });
        EmulatedOutbound { posted, maps, combining }
    }
}

impl Outbound for EmulatedOutbound {
    fn size(&self) -> usize {
        self.posted.size()
    }

    fn open(&mut self, offset: usize, len: usize) -> Result<()> {
        self.posted.open(offset, len)
    }

    unsafe fn write(&mut self, offset: usize, source: *const u8, len: usize) {
        match &mut self.combining {
            // SAFETY: the caller's promise.
            None => unsafe { self.posted.send(offset, source, len, TLP) },
            // SAFETY: the caller's promise.
            Some(combining) => unsafe { combining.store(&mut self.posted, offset, source, len) },
        }
    }

    fn write_line(&mut self, offset: usize, line: &Line) {
        if !offset.is_multiple_of(Line::BYTES) {
            return self.posted.count(Event::WindowFaults, 1);
        }
        // SAFETY: a line is readable for its own length.
        unsafe { self.write(offset, line.0.as_ptr().cast(), Line::BYTES) }
    }

    fn flush(&mut self) {
        if let Some(combining) = &mut self.combining {
            combining.drain(&mut self.posted);
        }
        fence(Ordering::SeqCst);
        self.posted.leave();
    }

    fn read(&mut self, offset: usize, dest: &mut [u8]) {
        // A read pushes earlier writes of the requester before it.
        self.flush();
        self.posted.settle();
        self.posted.receive(offset, dest);
    }

    fn map(&mut self, offset: usize, len: usize) -> Option<Box<dyn WindowMapping>> {
        if self.combining.is_some() {
            return None;
        }
        self.posted.open(offset, len).ok()?;
        let mapping = EmulatedMapping::new(&mut self.posted, &self.maps, offset, len)?;
        Some(Box::new(mapping))
    }
}

impl Drop for EmulatedOutbound {
    fn drop(&mut self) {
        self.flush();
    }
}

/// Write-combining at its worst: lines stay in buffers until others need the room or a flush comes,
/// and leave in random order.
struct Combining {
    buffers: Vec<Buffer>,
    random: Random,
}

struct Buffer {
    /// Offset of the line in the window.
    line: usize,
    /// Bytes that have been stored, one bit each.
    stored: u64,
    data: Line,
}

impl Combining {
    /// # Safety
    /// `source` must be readable for `len` bytes.
    unsafe fn store(&mut self, posted: &mut Posted, offset: usize, source: *const u8, len: usize) {
        let mut done = 0;
        while done < len {
            let Some(at) = offset.checked_add(done) else {
                return posted.count(Event::WindowFaults, 1);
            };
            let within = at % TLP;
            let piece = (len - done).min(TLP - within);
            let buffer = self.buffer(posted, at - within);
            // SAFETY: `within + piece <= 64`; `done + piece <= len` of readable bytes.
            unsafe {
                let data = buffer.data.0.as_mut_ptr().cast::<u8>().add(within);
                data.copy_from_nonoverlapping(source.add(done), piece);
            }
            buffer.stored |= (u64::MAX >> (TLP - piece)) << within;
            done += piece;
        }
    }

    /// The buffer of a line; pushes a random one out when there is none.
    fn buffer(&mut self, posted: &mut Posted, line: usize) -> &mut Buffer {
        let found = self.buffers.iter().position(|buffer| buffer.line == line);
        let index = found.unwrap_or_else(|| {
            if self.buffers.len() == BUFFERS {
                self.evict(posted);
            }
            self.buffers.push(Buffer { line, stored: 0, data: Line([0; 8]) });
            self.buffers.len() - 1
        });
        &mut self.buffers[index]
    }

    fn evict(&mut self, posted: &mut Posted) {
        let victim = self.random.below(self.buffers.len() as u64) as usize;
        let buffer = self.buffers.swap_remove(victim);
        let mut stored = buffer.stored;
        while stored != 0 {
            let start = stored.trailing_zeros() as usize;
            let len = (stored >> start).trailing_ones() as usize;
            // SAFETY: `start + len <= 64`, inside the buffer's line.
            unsafe {
                let data = buffer.data.0.as_ptr().cast::<u8>().add(start);
                posted.send(buffer.line + start, data, len, TLP);
            }
            stored &= !((u64::MAX >> (TLP - len)) << start);
        }
    }

    fn drain(&mut self, posted: &mut Posted) {
        while !self.buffers.is_empty() {
            self.evict(posted);
        }
    }
}

/// Peer memory for plain stores.
struct EmulatedMapping {
    link: Arc<Link>,
    mapping: Arc<SharedMapping>,
    /// Where writes take their time: who makes them.
    requester: Option<Mutex<Posted>>,
    /// Offset in the window.
    offset: usize,
    owner: usize,
    window: usize,
    first_slot: usize,
    targets: Vec<Target>,
    word: LinkWord,
    /// The window's count of changes when the targets were last seen unchanged.
    changes: AtomicU64,
    start: usize,
    len: usize,
}

impl EmulatedMapping {
    /// None unless the link is up and the range is open and contiguous in one memory.
    fn new(
        posted: &mut Posted,
        maps: &MapCache,
        offset: usize,
        len: usize,
    ) -> Option<EmulatedMapping> {
        let link = Arc::clone(posted.link());
        let (owner, window) = (1 - posted.side(), posted.window());
        if len == 0 || offset >= posted.size() || len > posted.size() - offset {
            return None;
        }
        let word = link.word();
        let changes = link.side(owner).window_changes[window].load(Ordering::SeqCst);
        let slot_size = link.config.windows[window].slot_size() as usize;
        let (first_slot, last_slot) = (offset / slot_size, (offset + len - 1) / slot_size);
        let targets = (first_slot..=last_slot)
            .map(|slot| look_up(link.memory(), owner, window, slot))
            .collect::<Option<Vec<Target>>>()?;
        let contiguous =
            targets.windows(2).all(|pair| pair[0].continues_in(&pair[1], slot_size as u64));
        let start = offset - first_slot * slot_size;
        let into_last = (offset + len - 1) % slot_size + 1;
        let open = into_last as u64 <= targets.last()?.size;
        if !word.is_up() || !contiguous || !open {
            return None;
        }
        let mapping = maps.mapping(targets.first()?).ok()?;
        let start = usize::try_from(targets[0].offset).ok()?.checked_add(start)?;
        let inside = start.checked_add(len)? <= mapping.size();
        inside.then_some(EmulatedMapping {
            link,
            mapping,
            requester: posted.share().map(Mutex::new),
            offset,
            owner,
            window,
            first_slot,
            targets,
            word,
            changes: AtomicU64::new(changes),
            start,
            len,
        })
    }

    /// Whether the link and the window are as they were when last looked at.
    #[inline]
    fn is_unchanged(&self) -> bool {
        let memory = self.link.memory();
        let changes = memory.sides[self.owner].window_changes[self.window].load(Ordering::Acquire);
        memory.status.read() == self.word && changes == self.changes.load(Ordering::Relaxed)
    }

    /// The same, or what has changed in the window was not ours.
    #[cold]
    #[inline(never)]
    fn is_still_open(&self) -> bool {
        let side = self.link.side(self.owner);
        let changes = side.window_changes[self.window].load(Ordering::Acquire);
        let open = !self.is_cut()
            && self.targets.iter().enumerate().all(|(index, target)| {
                let entry = &side.windows[self.window][self.first_slot + index];
                entry.generation.load(Ordering::Acquire) == target.generation
            });
        if open {
            self.changes.store(changes, Ordering::Relaxed);
        }
        open
    }

    /// A write that takes its time, or one after a change. Apart from `write`, which then has nothing to
    /// keep over a call.
    ///
    /// # Safety
    /// As [`WindowMapping::write`], and the range is inside.
    #[inline(never)]
    unsafe fn write_otherwise(&self, offset: usize, source: *const u8, len: usize) -> bool {
        if !self.is_open() {
            return false;
        }
        match &self.requester {
            // SAFETY: by the caller's word.
            None => unsafe { self.store(offset, source, len) },
            Some(requester) => {
                let mut requester = requester.lock().unwrap_or_else(PoisonError::into_inner);
                // SAFETY: by the caller's word.
                unsafe { requester.send(self.offset + offset, source, len, TLP) };
                requester.leave();
            }
        }
        self.is_open()
    }

    /// # Safety
    /// As [`WindowMapping::write`], and the range is inside.
    #[inline(always)]
    unsafe fn store(&self, offset: usize, source: *const u8, len: usize) {
        // SAFETY: inside the mapping; the caller vouches for the source.
        unsafe { copy::cached(self.mapping.base().add(self.start + offset), source, len) };
        fence(Ordering::Release);
    }
}

impl WindowMapping for EmulatedMapping {
    fn size(&self) -> usize {
        self.len
    }

    #[inline]
    unsafe fn write(&self, offset: usize, source: *const u8, len: usize) -> bool {
        if offset.checked_add(len).is_none_or(|end| end > self.len) {
            return false;
        }
        if self.requester.is_some() || !self.is_unchanged() {
            // SAFETY: the caller's promise; inside, as was just checked.
            return unsafe { self.write_otherwise(offset, source, len) };
        }
        // SAFETY: as above.
        unsafe { self.store(offset, source, len) };
        self.is_open()
    }

    #[inline]
    fn is_open(&self) -> bool {
        self.is_unchanged() || self.is_still_open()
    }

    fn is_cut(&self) -> bool {
        self.link.memory().status.read() != self.word
    }
}
