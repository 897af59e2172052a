// SPDX-License-Identifier: Apache-2.0
//! A completion queue of libfabric, and what a thread sleeps on until there is something in it.

use super::rdm::close;
use super::sys;
use std::ffi::c_int;
use std::os::fd::RawFd;
use std::ptr::null_mut;

/// See the module. Opened on a fabric and a domain that are closed after it.
pub struct Queue {
    fabric: *mut sys::Fabric,
    pub cq: *mut sys::Cq,
    /// What the queue wakes, where its own descriptor is of no use; else null.
    wait: *mut sys::Wait,
    /// Becomes readable when there is something to do, after `may_sleep`.
    pub fd: Option<RawFd>,
}

impl Queue {
    /// Opens one for so many entries, with a descriptor to sleep on if there is one that can be used;
    /// an error of libfabric if there is no queue.
    ///
    /// # Safety
    /// Fabric and domain are open, of the provider of this name, and stay open as long as the queue.
    pub unsafe fn open(
        fabric: *mut sys::Fabric,
        domain: *mut sys::Domain,
        entries: usize,
        provider: &str,
    ) -> Result<Queue, c_int> {
        let open = |wait_obj, wait| {
            let mut queue = Queue { fabric, cq: null_mut(), wait, fd: None };
            // SAFETY: by the caller's word.
            let made = unsafe { queue.make(domain, entries, wait_obj) };
            if made == 0 { Ok(queue) } else { Err(made) }
        };
        if let Ok(queue) = open(sys::WAIT_FD, null_mut())
            && (!matches!(provider, "tcp" | "net") || queue.settles())
        {
            return Ok(queue);
        }
        // SAFETY: by the caller's word.
        let wait = unsafe { open_wait(fabric) };
        if !wait.is_null()
            && let Ok(queue) = open(sys::WAIT_SET, wait)
        {
            return Ok(queue);
        }
        open(sys::WAIT_NONE, null_mut())
    }

    /// # Safety
    /// The domain is open, and so is what is to be woken.
    unsafe fn make(&mut self, domain: *mut sys::Domain, entries: usize, wait_obj: c_int) -> c_int {
        let mut attr = sys::CqAttr {
            size: entries,
            flags: 0,
            format: sys::CQ_FORMAT_MSG,
            wait_obj,
            signaling_vector: 0,
            wait_cond: 0,
            wait_set: self.wait,
        };
        // SAFETY: by the caller's word; `attr` outlives the call.
        unsafe {
            let make = (*(*domain).ops).cq_open;
            let made = make(domain, &raw mut attr, &raw mut self.cq, null_mut());
            if made == 0 {
                self.fd = match wait_obj {
                    sys::WAIT_FD => descriptor(self.cq.cast()),
                    sys::WAIT_SET => descriptor(self.wait.cast()),
                    _ => None,
                };
            }
            made
        }
    }

    /// Whether all there was has been taken, so that the descriptor tells of what comes.
    pub fn may_sleep(&self) -> bool {
        let mut queue: *mut sys::Fid = self.cq.cast();
        // SAFETY: fabric and queue are open, and so is what the queue wakes unless it is null.
        self.fd.is_some()
            && unsafe {
                match self.wait.as_ref() {
                    // Waiting for no time forgets what was told, and looks into the queue.
                    Some(wait) => ((*wait.ops).wait)(self.wait, 0) != 0,
                    None => ((*(*self.fabric).ops).trywait)(self.fabric, &raw mut queue, 1) == 0,
                }
            }
    }

    /// Whether the descriptor, if there is one, stops telling of what was taken. That of TCP without a
    /// layer above does not before libfabric 1.19: who sleeps on it would wake at once, again and again.
    pub fn settles(&self) -> bool {
        let Some(fd) = self.fd else { return true };
        // SAFETY: the queue is open. One that cannot be signalled is taken at its word.
        let is_signalled = unsafe { ((*(*self.cq).ops).signal)(self.cq) } == 0;
        !is_signalled || self.may_sleep() && !is_readable(fd)
    }
}

impl Drop for Queue {
    fn drop(&mut self) {
        // SAFETY: nobody else uses them; the queue before what it wakes.
        unsafe {
            close(self.cq.cast());
            close(self.wait.cast());
        }
    }
}

/// Something for a queue to wake; null if the fabric has no such thing.
///
/// # Safety
/// The fabric is open.
unsafe fn open_wait(fabric: *mut sys::Fabric) -> *mut sys::Wait {
    let mut wait = null_mut();
    let mut attr = sys::WaitAttr { wait_obj: sys::WAIT_FD, flags: 0 };
    // SAFETY: by the caller's word; `attr` outlives the call.
    let made = unsafe { ((*(*fabric).ops).wait_open)(fabric, &raw mut attr, &raw mut wait) };
    if made == 0 { wait } else { null_mut() }
}

/// The descriptor of a queue, or of what queues wake.
///
/// # Safety
/// It is open.
unsafe fn descriptor(of: *mut sys::Fid) -> Option<RawFd> {
    let mut fd: c_int = -1;
    // SAFETY: by the caller's word; GETWAIT of what was opened with WAIT_FD writes a descriptor.
    let asked = unsafe { ((*(*of).ops).control)(of, sys::GETWAIT, (&raw mut fd).cast()) };
    (asked == 0 && fd >= 0).then_some(fd)
}

fn is_readable(fd: RawFd) -> bool {
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut polled, 1, 0) > 0 }
}

#[cfg(test)]
mod tests {
    use super::super::choose::{Offers, Wish};
    use super::super::rdm::Rdm;
    use super::super::sys::installed;
    use super::*;
    use crate::network::Network;
    use crate::network::rails::Rail;

    #[test]
    fn a_descriptor_stops_telling_of_what_was_taken() {
        let Some(library) = installed() else { return };
        let mut tried = 0;
        for provider in ["net", "tcp"] {
            let wish = Wish { provider: provider.into(), one_machine: true, ..Wish::default() };
            let Ok(offers) = Offers::find(library, &wish) else { continue };
            tried += 1;
            // SAFETY: of the offers, which are only read.
            let rdm =
                unsafe { Rdm::open(library, offers.info(&offers.candidates[0]), 3, 16, false) };
            let mut rdm = rdm.expect("an endpoint of TCP");
            let fd = rdm.wait_fd().expect("TCP has a descriptor");
            assert!(rdm.queue.as_ref().is_some_and(Queue::settles), "{provider}");
            assert!(rdm.may_sleep() && !is_readable(fd), "{provider}");
        }
        assert!(tried > 0, "no way to use TCP");
    }
}
