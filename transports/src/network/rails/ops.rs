// SPDX-License-Identifier: Apache-2.0
//! What is under way on several rails: what is to be known of an operation to repeat it on another one.

use super::MOST;
use crate::network::engine::{Context, ENTRIES, RMAS};
use crate::network::{Local, RemoteAddress};
use std::ffi::c_void;
use std::ptr::null_mut;

/// What an operation is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Receive,
    Send,
    Amo,
    Read,
    Write,
}

/// Where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    /// Its place is free.
    Free,
    /// The rail has it.
    Posted,
    /// The rail has let go of it, without having carried it out for certain: it is to be repeated.
    Ended,
    /// The rail has it, and nobody waits for it any more.
    Orphan,
}

/// An operation.
#[derive(Clone, Copy)]
pub struct Op<K> {
    pub kind: Kind,
    pub state: State,
    pub rail: u8,
    /// Of all but receives.
    pub peer: u32,
    /// By which its owner knows it.
    pub context: *mut c_void,
    pub local: Local<[K; MOST]>,
    /// As the first rail names it.
    pub remote: RemoteAddress,
}

impl<K> Op<K> {
    /// Whether it may be carried out more than once until it is complete.
    pub fn is_repeatable(&self) -> bool {
        matches!(self.kind, Kind::Read | Kind::Write)
    }
}

/// Places for all that can be under way, with a context each for the rail.
pub struct Ops<K> {
    all: Box<[Op<K>]>,
    contexts: Box<[Context]>,
    free: Vec<u16>,
}

impl<K: Copy + Default> Ops<K> {
    /// For `rails` rails.
    pub fn new(rails: usize) -> Ops<K> {
        // Each rail that is given up may keep the places of what it had.
        let count = ENTRIES + RMAS * rails;
        let nothing = Op {
            kind: Kind::Receive,
            state: State::Free,
            rail: 0,
            peer: 0,
            context: null_mut(),
            local: Local { at: null_mut(), len: 0, key: [K::default(); MOST] },
            remote: RemoteAddress { address: 0, key: 0 },
        };
        Ops {
            all: vec![nothing; count].into(),
            contexts: vec![Context::default(); count].into(),
            free: (0..count as u16).rev().collect(),
        }
    }

    /// A place with an operation that is about to be posted, and its context; none if there is no place.
    pub fn enter(&mut self, op: Op<K>) -> Option<(u16, *mut c_void)> {
        let index = self.free.pop()?;
        self.all[usize::from(index)] = op;
        Some((index, (&raw mut self.contexts[usize::from(index)]).cast()))
    }

    /// Gives a place back, and says what was there.
    pub fn leave(&mut self, index: u16) -> Op<K> {
        let op = &mut self.all[usize::from(index)];
        let was = *op;
        op.state = State::Free;
        self.free.push(index);
        was
    }

    /// The place that a context belongs to.
    pub fn index(&self, context: *mut c_void) -> Option<u16> {
        let bytes = (context as usize).checked_sub(self.contexts.as_ptr() as usize)?;
        let index = bytes / size_of::<Context>();
        (index < self.contexts.len()).then_some(index as u16)
    }

    /// The context of a place.
    pub fn context(&mut self, index: u16) -> *mut c_void {
        (&raw mut self.contexts[usize::from(index)]).cast()
    }

    /// The places of all operations on a peer.
    pub fn of(&self, peer: u64) -> Vec<u16> {
        let is_of = |index: &u16| {
            let op = &self[*index];
            op.state != State::Free && op.kind != Kind::Receive && u64::from(op.peer) == peer
        };
        (0..self.all.len() as u16).filter(is_of).collect()
    }
}

impl<K> std::ops::Index<u16> for Ops<K> {
    type Output = Op<K>;

    fn index(&self, index: u16) -> &Op<K> {
        &self.all[usize::from(index)]
    }
}

impl<K> std::ops::IndexMut<u16> for Ops<K> {
    fn index_mut(&mut self, index: u16) -> &mut Op<K> {
        &mut self.all[usize::from(index)]
    }
}
