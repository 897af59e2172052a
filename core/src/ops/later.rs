// SPDX-License-Identifier: Apache-2.0
//! Non-blocking puts and gets that return before the copy: see [`crate::copier`].
//!
//! A context has a stream of its own for them, after those of the transports. So quiet, and fence, which this
//! stream never keeps order for, wait until they are complete.

use super::{Mode, copy_by};
use crate::context::Context;
use crate::copier::{Copier, Copy};
use crate::route::Channel;
use crate::transport::{Status, Stream};
use crate::wait::Reason;
use crate::world::World;

impl World {
    /// The length from which copies go on beside the program, the largest number where none do.
    pub fn later_least(&self) -> usize {
        self.copier.as_ref().map_or(usize::MAX, Copier::least)
    }

    /// [`World::put`] that need not be complete before the next quiet.
    ///
    /// # Safety
    /// As [`World::put`], non-blocking.
    pub unsafe fn put_nbi(
        &self,
        context: &Context,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        pe: usize,
        routine: &'static str,
    ) {
        if len >= self.later_least() {
            let target = self.target(routine, "dest", dest, len, pe);
            let channel = self.routes_to(context, pe).put[target.segment as usize].choose(len);
            if matches!(channel, Channel::Cached | Channel::Streaming) {
                // SAFETY: located, and mapped by the channel; the caller vouches for the source until the next
                // quiet.
                return unsafe {
                    self.copy_later(context, channel, self.mapped(target, pe), source, len);
                };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.put(context, dest, source, len, pe, Mode::NonBlocking, routine) };
    }

    /// [`World::get`] that need not be complete before the next quiet.
    ///
    /// # Safety
    /// As [`World::get`], non-blocking.
    pub unsafe fn get_nbi(
        &self,
        context: &Context,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        pe: usize,
        routine: &'static str,
    ) {
        if len >= self.later_least() {
            let target = self.place(routine, "source", source, len, pe, true);
            let channel = target.map_or(Channel::Unreachable, |target| {
                self.routes_to(context, pe).get[target.segment as usize].choose(len)
            });
            if let Some(target) = target
                && matches!(channel, Channel::Cached | Channel::Streaming)
            {
                // SAFETY: located, and mapped by the channel; the caller vouches for the destination until the
                // next quiet.
                return unsafe {
                    self.copy_later(context, channel, dest, self.mapped(target, pe), len);
                };
            }
        }
        // SAFETY: the caller's promise.
        unsafe { self.get(context, dest, source, len, pe, Mode::NonBlocking, routine) };
    }

    /// Has the copier copy. What it does not take is copied here.
    ///
    /// # Safety
    /// The channel is a copy, and both ranges are valid until the next quiet of the context.
    unsafe fn copy_later(
        &self,
        context: &Context,
        channel: Channel,
        dest: *mut u8,
        source: *const u8,
        len: usize,
    ) {
        let stream = context.stream(self.transports().len());
        let copy = Copy { dest, source, len, streaming: channel == Channel::Streaming, stream };
        // SAFETY: the caller's promise; contexts are quiet before they go.
        let enter = |copier: &Copier| unsafe { copier.enter(&copy) };
        _ = stream.counted(|| {
            if self.copier.as_ref().is_some_and(enter) {
                return Status::Pending;
            }
            // SAFETY: the caller's promise.
            unsafe { copy_by(channel, dest, source, len) };
            Status::Complete
        });
    }

    /// Copies what is left, and waits for what others copy. Another thread of a shared context may enter a copy
    /// meanwhile and then wait for this one.
    pub(super) fn until_copied(&self, stream: &Stream, routine: &'static str) {
        self.until(routine, self.pe(), Reason::Completion, || {
            stream.is_quiet() || {
                self.copier.iter().for_each(Copier::help);
                stream.is_quiet()
            }
        });
    }
}
