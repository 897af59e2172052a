// SPDX-License-Identifier: Apache-2.0
//! Posted writes, as the handles of a port make them. In modelled time they are kept until they are due,
//! and placed by whoever looks after the wire.

use super::flight::Piece;
use super::link::Link;
use super::pace;
use super::translation::MapCache;
use super::wire::Wire;
use super::writer::Writer;
use crate::ntb::port::{Event, Result};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};

/// The way of one writer through one window. Its own where writes are placed at once; shared with
/// those who place them later where they take their time.
pub struct Posted {
    held: Held,
    link: Arc<Link>,
    side: usize,
    window: usize,
    size: usize,
}

enum Held {
    Alone(Box<Writer>),
    Shared(Arc<Shared>),
}

/// A writer that a wire knows, until the last who writes by it is gone.
struct Shared {
    writer: Arc<Mutex<Writer>>,
    wire: Arc<Wire>,
}

impl Drop for Shared {
    fn drop(&mut self) {
        loop {
            let Some(left_ps) = lock(&self.writer).advance(self.wire.now_ps()) else { break };
            pace::pause(left_ps);
        }
        self.wire.remove(&self.writer);
    }
}

impl Posted {
    /// A new writer; `wire` where time is modelled.
    pub fn new(
        link: Arc<Link>,
        maps: Arc<MapCache>,
        wire: Option<Arc<Wire>>,
        side: usize,
        window: usize,
    ) -> Result<Posted> {
        let size = link.config.windows[window].size as usize;
        let writer = Writer::new(Arc::clone(&link), maps, side, window)?;
        let held = match wire {
            None => Held::Alone(Box::new(writer)),
            Some(wire) => {
                let writer = Arc::new(Mutex::new(writer));
                wire.add(Arc::clone(&writer));
                Held::Shared(Arc::new(Shared { writer, wire }))
            }
        };
        Ok(Posted { held, link, side, window, size })
    }

    pub fn size(&self) -> usize {
        self.size
    }

    pub fn window(&self) -> usize {
        self.window
    }

    pub fn link(&self) -> &Arc<Link> {
        &self.link
    }

    /// Side of the writer; the memory is at the other one.
    pub fn side(&self) -> usize {
        self.side
    }

    /// Something that happens to the writer.
    #[inline]
    fn with<R>(&mut self, act: impl FnOnce(&mut Writer) -> R) -> R {
        match &mut self.held {
            Held::Alone(writer) => act(writer),
            Held::Shared(shared) => act(&mut lock(&shared.writer)),
        }
    }

    pub fn count(&mut self, event: Event, by: u64) {
        self.with(|writer| writer.count(event, by));
    }

    /// Opens all slots of a range that the peer has opened; an error says why not all.
    pub fn open(&mut self, offset: usize, len: usize) -> Result<()> {
        self.with(|writer| writer.open(offset, len))
    }

    /// Sends `len` bytes in TLPs of up to `tlp` bytes (a power of two), cut at its multiples.
    ///
    /// # Safety
    /// `source` must be readable for `len` bytes.
    pub unsafe fn send(&mut self, offset: usize, source: *const u8, len: usize, tlp: usize) {
        // SAFETY: the caller's promise.
        self.with(|writer| unsafe { writer.send(offset, source, len, tlp) });
    }

    /// A piece leaves at `from_ps` at the earliest; see [`Writer::depart`].
    pub fn depart(
        &mut self,
        offset: usize,
        len: usize,
        tlp: usize,
        from_ps: u64,
    ) -> Result<Piece, usize> {
        self.with(|writer| writer.depart(offset, len, tlp, from_ps))
    }

    /// A piece that is due arrives. False: not all of it does.
    ///
    /// # Safety
    /// `source` must be readable for the length of the piece.
    pub unsafe fn arrive(&mut self, piece: &Piece, source: *const u8) -> bool {
        // SAFETY: the caller's promise.
        self.with(|writer| unsafe { writer.arrive(piece, source) })
    }

    /// Reads `dest.len()` bytes, all ones where nothing answers. Counts one read for every 8 bytes.
    pub fn receive(&mut self, offset: usize, dest: &mut [u8]) {
        self.with(|writer| writer.receive(offset, dest));
    }

    /// What was sent arrives though this writer may not come by again.
    #[inline]
    pub fn leave(&self) {
        if let Held::Shared(shared) = &self.held {
            shared.wire.wake();
        }
    }

    /// Waits until everything sent so far is placed.
    pub fn settle(&mut self) {
        while let Held::Shared(shared) = &self.held {
            let Some(left_ps) = lock(&shared.writer).advance(shared.wire.now_ps()) else { break };
            pace::pause(left_ps);
        }
    }

    /// The same writer for another thread; none where it is not shared.
    pub fn share(&self) -> Option<Posted> {
        let Held::Shared(shared) = &self.held else { return None };
        let held = Held::Shared(Arc::clone(shared));
        let Posted { ref link, side, window, size, .. } = *self;
        Some(Posted { held, link: Arc::clone(link), side, window, size })
    }
}

pub fn lock(writer: &Mutex<Writer>) -> MutexGuard<'_, Writer> {
    writer.lock().unwrap_or_else(PoisonError::into_inner)
}
