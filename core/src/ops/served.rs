//! Operations that the target's service thread carries out, and the control area they go through.

use super::Mode;
use crate::amo;
use crate::control;
use crate::copy;
use crate::route::Channel;
use crate::service::{self, Bell, Unanswered, Wire};
use crate::transport::{Amo, Remote, SegmentKind};
use crate::world::World;
use std::sync::atomic::{AtomicU64, Ordering};

impl World {
    /// Has the target execute an AMO and waits for the old value; see [`crate::service`].
    pub(super) fn request(
        &self,
        target: Remote,
        amo: Amo,
        pe: usize,
        routine: &'static str,
    ) -> u64 {
        if pe == self.pe() {
            let base = match target.segment {
                SegmentKind::Heap => self.heap().base(),
                SegmentKind::Static => {
                    self.static_data().map_or(std::ptr::null_mut(), |d| d.base())
                }
            };
            // SAFETY: located and aligned by `amo_target`, or a whole word of a put.
            return unsafe { amo::execute(base.wrapping_add(target.offset), amo) };
        }
        let mut tickets = self.tickets.lock().unwrap_or_else(|e| e.into_inner());
        tickets[pe] = service::next_ticket(tickets[pe]);
        let line = ServiceLine { world: self, pe, routine };
        match service::request(&line, target, amo, tickets[pe]) {
            Ok(old) => old,
            // What a lost PE answers.
            Err(Unanswered::Gone) => 0,
            Err(Unanswered::Refused) => {
                self.stop_job(routine, format_args!("PE {pe} refused an atomic operation"))
            }
        }
    }

    /// A put into a peer's control area that does not go through whole-word emulation itself.
    fn control_put(
        &self,
        offset: usize,
        source: *const u8,
        len: usize,
        pe: usize,
        routine: &'static str,
    ) {
        let target = Remote { segment: SegmentKind::Heap, offset };
        match self.routes().peers[pe].put[0].choose(len) {
            Channel::Endpoint(index) => {
                let endpoint = self.endpoint_of(index, pe, routine);
                // SAFETY: the source is a local variable of the caller, and the put blocks.
                let sent = unsafe {
                    self.send(
                        self.context(),
                        index,
                        endpoint,
                        target,
                        source,
                        len,
                        pe,
                        Mode::Blocking,
                        routine,
                    )
                };
                if !sent && !self.is_dropped(pe) {
                    self.another_way(index, pe, target, false, routine);
                    self.control_put(offset, source, len, pe, routine);
                }
            }
            // SAFETY: as above; the control area is mapped.
            _ => unsafe { copy::cached(self.mapped(target, pe), source, len) },
        }
    }

    fn control_get(&self, word: &mut u64, offset: usize, pe: usize, routine: &'static str) {
        let source = self.heap().base().wrapping_add(offset);
        let mapped = self.ptr(source.cast::<AtomicU64>(), pe);
        if !mapped.is_null() {
            // SAFETY: a mapped, aligned word of the peer's control area.
            *word = unsafe { (*mapped).load(Ordering::Acquire) };
            return;
        }
        // SAFETY: the destination is valid for 8 bytes, and the get blocks.
        unsafe {
            let dest = std::ptr::from_mut(word).cast();
            self.get(self.context(), dest, source, 8, pe, Mode::Blocking, routine);
        }
    }
}

/// This PE's line at PE `pe`.
struct ServiceLine<'a> {
    world: &'a World,
    pe: usize,
    routine: &'static str,
}

impl Wire for ServiceLine<'_> {
    fn put(&self, offset: usize, words: &[u64]) {
        let offset = control::service_slot(self.world.pe()) + offset;
        let source = words.as_ptr().cast();
        self.world.control_put(offset, source, size_of_val(words), self.pe, self.routine);
    }

    fn get(&self, offset: usize) -> u64 {
        let mut word = 0;
        let offset = control::service_slot(self.world.pe()) + offset;
        self.world.control_get(&mut word, offset, self.pe, self.routine);
        word
    }

    fn ring(&self) {
        let bell = self.world.heap().base().wrapping_add(control::service_bell());
        let bell = self.world.ptr(bell, self.pe).cast::<Bell>();
        if !bell.is_null() {
            // SAFETY: the peer's mapped control area holds its bell there.
            unsafe { (*bell).ring() };
        }
    }

    fn until(&self, mut ready: impl FnMut() -> bool) -> bool {
        let mut answered = false;
        self.world.until(self.routine, self.pe, || {
            answered = ready();
            answered || self.world.goes_on_without(self.pe)
        });
        answered
    }
}
