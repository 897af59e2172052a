// SPDX-License-Identifier: Apache-2.0
//! What was posted to a connection and has not ended.
//!
//! A connection carries out operations in the order in which they were posted, and tells of the end
//! of those that were signalled: all before that one have ended too. A write has ended when it was
//! acknowledged; whether that shows that its data can be read is said by whoever keeps the queue.

use std::collections::VecDeque;
use std::ffi::c_void;

/// Operations that a connection holds at a time.
pub const DEPTH: usize = 128;
/// Operations in a row that are not signalled.
const UNSIGNALLED: usize = 16;
/// Writes that need proof and may wait for it together.
const UNPROVEN: usize = 64;
/// While so few operations are under way each is signalled: somebody may wait for the last one.
const FEW: usize = 4;

/// What an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Work {
    /// It writes to the target's memory.
    Write,
    /// It reads from there.
    Read,
    /// It sends a message.
    Send,
    /// It adds to a variable of the target and reads its old value.
    FetchAdd,
    /// It replaces a variable of the target that has a certain value and reads its old one.
    CompareSwap,
}

impl Work {
    /// Whether it changes the target's memory.
    pub fn changes(self) -> bool {
        matches!(self, Work::Write | Work::FetchAdd | Work::CompareSwap)
    }

    /// Whether it brings something from there: what is posted after it may overtake it.
    pub fn brings(self) -> bool {
        matches!(self, Work::Read | Work::FetchAdd | Work::CompareSwap)
    }
}

#[derive(Clone, Copy)]
struct Posted {
    work: Work,
    /// Null if nobody is told of the end.
    context: *mut c_void,
}

/// See the module.
pub struct Queue {
    posted: VecDeque<Posted>,
    /// Number of the first one in `posted`.
    first: u32,
    /// Contexts of writes that have ended, and are not known to be readable.
    unproven: VecDeque<*mut c_void>,
    /// Operations since the last one that was signalled.
    unsignalled: usize,
    /// Whether the end of a signalled operation, not only that of a read, shows that writes before it
    /// can be read.
    ends_prove: bool,
    /// Whether a write was posted after the last operation that will show it to be readable.
    pub is_open: bool,
    /// Operations under way that bring something.
    pub reads: u32,
}

impl Queue {
    /// Nothing was posted.
    pub fn new(ends_prove: bool) -> Queue {
        Queue {
            posted: VecDeque::with_capacity(DEPTH),
            first: 0,
            unproven: VecDeque::with_capacity(DEPTH + UNPROVEN),
            unsignalled: 0,
            ends_prove,
            is_open: false,
            reads: 0,
        }
    }

    /// Whether there is room for an operation and for a read after it.
    pub fn has_room(&self) -> bool {
        self.posted.len() + 2 <= DEPTH
    }

    /// Whether there is room for that read.
    pub fn has_room_for_proof(&self) -> bool {
        self.posted.len() < DEPTH
    }

    /// Whether so many writes wait for proof that it should be asked for.
    pub fn is_long(&self) -> bool {
        self.is_open && !self.ends_prove && self.posted.len() + self.unproven.len() >= UNPROVEN
    }

    /// Whether an operation that is about to be posted should be signalled. `told`: somebody waits for
    /// its own end.
    pub fn should_signal(&self, work: Work, told: bool) -> bool {
        match work {
            Work::Read => true,
            Work::Send => told || self.unsignalled + 1 >= UNSIGNALLED,
            _ if self.unsignalled + 1 >= UNSIGNALLED => true,
            _ => self.ends_prove && self.posted.len() < FEW,
        }
    }

    /// Number of the operation that is posted next.
    pub fn next(&self) -> u32 {
        self.first.wrapping_add(self.posted.len() as u32)
    }

    /// An operation was posted.
    pub fn push(&mut self, work: Work, context: *mut c_void, signalled: bool) {
        self.posted.push_back(Posted { work, context });
        self.unsignalled = if signalled { 0 } else { self.unsignalled + 1 };
        self.reads += u32::from(work.brings());
        let proves = work == Work::Read || signalled && self.ends_prove;
        self.is_open = !proves && (self.is_open || work.changes());
    }

    /// Operation `number` and all before it have ended; `told` gets the contexts of those that are
    /// complete. False if there is no such operation.
    pub fn end(&mut self, number: u32, mut told: impl FnMut(*mut c_void)) -> bool {
        let count = number.wrapping_sub(self.first) as usize + 1;
        let Some(last) = count.checked_sub(1).and_then(|last| self.posted.get(last)) else {
            return false;
        };
        let proves = self.ends_prove || last.work == Work::Read;
        if proves {
            self.unproven.drain(..).for_each(&mut told);
        }
        for Posted { work, context } in self.posted.drain(..count) {
            self.reads -= u32::from(work.brings());
            match context {
                context if context.is_null() => {}
                context if work.changes() && !proves => self.unproven.push_back(context),
                context => told(context),
            }
        }
        self.first = number.wrapping_add(1);
        true
    }

    /// Operation `number` has failed, those before it have ended. Gives its context, or that of another
    /// one which cannot complete any more; `told` gets those that are complete.
    pub fn fail(&mut self, number: u32, mut told: impl FnMut(*mut c_void)) -> Option<*mut c_void> {
        let at = number.wrapping_sub(self.first) as usize;
        self.posted.get(at)?;
        for Posted { work, context } in self.posted.drain(..at) {
            self.reads -= u32::from(work.brings());
            match context {
                context if context.is_null() => {}
                context if work.changes() && !self.ends_prove => {
                    self.unproven.push_back(context);
                }
                context => told(context),
            }
        }
        let failed = self.posted.pop_front()?;
        self.reads -= u32::from(failed.work.brings());
        self.first = number.wrapping_add(1);
        if !failed.context.is_null() {
            return Some(failed.context);
        }
        self.unproven.pop_front().or_else(|| {
            let other = self.posted.iter_mut().find(|one| !one.context.is_null())?;
            Some(std::mem::replace(&mut other.context, std::ptr::null_mut()))
        })
    }

    /// Takes the contexts of everything that has not completed: the connection is closed.
    pub fn clear(&mut self, told: impl FnMut(*mut c_void)) {
        let posted = self.posted.drain(..).map(|one| one.context).filter(|one| !one.is_null());
        self.unproven.drain(..).chain(posted).for_each(told);
        (self.reads, self.is_open) = (0, false);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::ptr::{null_mut, without_provenance_mut};

    fn context(number: usize) -> *mut c_void {
        without_provenance_mut(number)
    }

    /// Posts and says whether it was signalled.
    fn post(queue: &mut Queue, work: Work, number: usize) -> bool {
        assert!(queue.has_room());
        let signalled = queue.should_signal(work, number > 0);
        queue.push(work, context(number), signalled);
        signalled
    }

    fn end(queue: &mut Queue, number: u32) -> Vec<usize> {
        let mut told = vec![];
        assert!(queue.end(number, |one| told.push(one.addr())));
        told
    }

    #[test]
    fn the_end_of_one_is_that_of_all_before_it() {
        let mut queue = Queue::new(true);
        queue.first = u32::MAX - 1;
        for number in 1..=4 {
            assert!(post(&mut queue, Work::Write, number) && !queue.is_open);
        }
        assert!(!post(&mut queue, Work::Write, 5) && queue.is_open);
        assert_eq!(end(&mut queue, 0), [1, 2, 3]);
        assert!(!queue.end(0, |_| ()) && !queue.end(77, |_| ()));
        assert!(post(&mut queue, Work::Read, 6) && !queue.is_open);
        assert_eq!(queue.reads, 1);
        assert_eq!(end(&mut queue, 3), [4, 5, 6]);
        assert_eq!(queue.reads, 0);
    }

    #[test]
    fn without_proof_writes_wait_for_a_read() {
        let mut queue = Queue::new(false);
        assert!(!post(&mut queue, Work::Write, 1) && queue.is_open);
        // A message whose buffer somebody waits for.
        assert!(post(&mut queue, Work::Send, 2) && queue.is_open);
        assert_eq!(end(&mut queue, 1), [2]);
        assert!(!post(&mut queue, Work::Write, 3));
        assert!(post(&mut queue, Work::Read, 0) && !queue.is_open);
        // After the read: it says nothing about this one.
        assert!(!post(&mut queue, Work::Write, 4) && queue.is_open);
        assert_eq!(end(&mut queue, 3), [1, 3]);
        let mut left = vec![];
        queue.clear(|one| left.push(one.addr()));
        assert_eq!((left, queue.is_open), (vec![4], false));
    }

    #[test]
    fn an_old_value_alone_is_no_proof_of_the_new_one() {
        for ends_prove in [true, false] {
            let mut queue = Queue::new(ends_prove);
            for (number, work) in [Work::FetchAdd, Work::CompareSwap].into_iter().enumerate() {
                // Where it is proof, somebody may wait for it.
                assert_eq!(post(&mut queue, work, number + 1), ends_prove);
            }
            assert_eq!((queue.reads, queue.is_open), (2, !ends_prove));
            assert_eq!(end(&mut queue, 1), if ends_prove { vec![1, 2] } else { vec![] });
            assert_eq!(queue.reads, 0);
            assert!(post(&mut queue, Work::Read, 0) && !queue.is_open);
            assert_eq!(end(&mut queue, 2), if ends_prove { vec![] } else { vec![1, 2] });
        }
    }

    #[test]
    fn a_failure_is_told_for_something_that_waits() {
        for ends_prove in [true, false] {
            let mut queue = Queue::new(ends_prove);
            for number in 1..=3 {
                post(&mut queue, Work::Write, number);
            }
            post(&mut queue, Work::Read, 0);
            let mut told = vec![];
            let mut fail = |queue: &mut Queue, number| {
                queue.fail(number, |one| told.push(one.addr())).map(|one| one.addr())
            };
            assert_eq!(fail(&mut queue, 1), Some(2));
            // The read has no context of its own.
            assert_eq!(fail(&mut queue, 3), if ends_prove { None } else { Some(1) });
            assert_eq!(fail(&mut queue, 3), None);
            assert_eq!(told, if ends_prove { vec![1, 3] } else { vec![] });
            let mut left = vec![];
            queue.clear(|one| left.push(one.addr()));
            assert_eq!((left, queue.reads), (if ends_prove { vec![] } else { vec![3] }, 0));
        }
    }

    #[test]
    fn there_is_always_an_end_to_wait_for() {
        for ends_prove in [true, false] {
            let mut queue = Queue::new(ends_prove);
            let mut signalled = 0;
            while queue.has_room() {
                signalled += usize::from(post(&mut queue, Work::Write, 1));
            }
            assert!((DEPTH / UNSIGNALLED - 1..DEPTH / UNSIGNALLED + FEW).contains(&signalled));
            assert_eq!(queue.is_long(), !ends_prove);
            queue.push(Work::Read, null_mut(), true);
            assert_eq!(queue.posted.len(), DEPTH);
        }
    }
}
