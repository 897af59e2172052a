// SPDX-License-Identifier: Apache-2.0
//! Programs on the simulated ring: threads play PEs, one for each host, and run what real PEs run, while
//! time is virtual.
//!
//! - [`LiveRing::transport`] gives each PE a transport whose packets go over simulated links. Everything
//!   above it is the real thing: the core, collectives, a program.
//! - One thread runs at a time: the PE whose clock is behind those of all others and all events. It runs
//!   on until it issues an operation or waits, and then lets the events before its own time happen. So
//!   the same program gives the same times.
//! - Lanes work beside their PE, which is held up by what it waits for, and by a lane that it hands an
//!   operation to, but not by copies that lanes make for it.
//! - What a PE does between two calls of the transport takes no time but what it says by [`spend_ns`].
//! - A PE that waits looks again when a word was written to its memory, when all operations of a stream of
//!   its own are complete, and a while after bytes were: it waits for flags, as a rule, and not for data.

mod endpoint;
mod memory;
mod state;
#[cfg(test)]
mod tests;

use std::cell::Cell;
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};

use tombolo_core::transport::{Status, Stream, Transport};

use super::SimError;
use super::model::{HostModel, LinkModel};
use crate::ntb::ring::{Config, Engine};
use endpoint::LiveTransport;
use memory::LiveMemory;
use state::State;

/// Virtual time in which nothing wakes a PE, after which nothing will.
const PATIENCE_PS: u64 = 1_000_000_000_000;

thread_local! {
    static SPENT_PS: Cell<u64> = const { Cell::new(0) };
}

/// The PE of this thread has been busy for so long, in virtual time.
pub fn spend_ns(ns: f64) {
    SPENT_PS.set(SPENT_PS.get() + (ns * 1000.0) as u64);
}

/// Hosts, and how they are tied together.
#[derive(Clone, Copy, Debug)]
pub struct LiveSetup {
    /// Hosts of the ring, each with one PE.
    pub hosts: u16,
    /// Lanes of each PE, each with a service thread of its own.
    pub lanes: u16,
    /// Settings of the engines.
    pub config: Config,
    /// Links.
    pub link: LinkModel,
    /// CPUs.
    pub host: HostModel,
    /// Of everything random.
    pub seed: u64,
}

/// A ring on which threads of this process play PEs.
#[derive(Clone)]
pub struct LiveRing(Arc<Shared>);

struct Shared {
    setup: LiveSetup,
    state: Mutex<State>,
    /// By PE: it is its turn.
    turns: Vec<Condvar>,
}

impl LiveRing {
    /// Hosts whose links come up when all PEs have entered.
    pub fn new(setup: LiveSetup) -> Result<LiveRing, SimError> {
        let state = Mutex::new(State::new(&setup)?);
        let turns = (0..setup.hosts).map(|_| Condvar::new()).collect();
        Ok(LiveRing(Arc::new(Shared { setup, state, turns })))
    }

    /// The transport of a PE, which is on the host of its number.
    pub fn transport(&self, pe: usize) -> Box<dyn Transport> {
        Box::new(LiveTransport::new(self.0.clone(), pe))
    }

    /// The PE of this thread lives in virtual time from here on: all have to come, before any of them
    /// communicates.
    pub fn enter(&self, pe: usize) {
        let shared = &*self.0;
        let mut state = shared.lock();
        state.entered += 1;
        if state.entered == state.pes.len() {
            while !state.lanes.iter().all(|lane| lane.engine.is_whole()) {
                state.step(&shared.setup);
            }
            let now_ps = state.lanes.iter().map(|lane| lane.free_ps).max().unwrap_or(0);
            state.resume_all(now_ps);
            shared.pass_on(state);
        } else {
            drop(state);
        }
        SPENT_PS.set(0);
        drop(shared.until_my_turn(pe));
    }

    /// The PE of this thread does nothing any more.
    pub fn leave(&self, pe: usize) {
        let mut state = self.0.at_my_time(pe);
        state.left += 1;
        state.turn = None;
        if state.left < state.pes.len() {
            self.0.pass_on(state);
        }
    }

    /// Waits for all PEs, which takes no time but that of the last one.
    pub fn align(&self, pe: usize) {
        let mut state = self.0.at_my_time(pe);
        state.aligned += 1;
        if state.aligned == state.pes.len() {
            state.aligned = 0;
            let latest = state.pes.iter().map(|pe| pe.now_ps).max().unwrap_or(0);
            state.resume_all(latest);
        }
        drop(self.0.let_others_run(state, pe));
    }

    /// The clock of a PE.
    pub fn now_ns(&self, pe: usize) -> f64 {
        self.0.at_my_time(pe).pes[pe].now_ps as f64 / 1000.0
    }
}

impl Shared {
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Everything before this PE's time has happened.
    fn at_my_time(&self, pe: usize) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        assert_eq!(state.turn, Some(pe), "PE {pe} communicates outside of virtual time");
        state.pes[pe].now_ps += SPENT_PS.take();
        let now_ps = state.pes[pe].now_ps;
        if state.next_ps().is_some_and(|at_ps| at_ps < now_ps) {
            state.resume(pe, now_ps);
            return self.let_others_run(state, pe);
        }
        state
    }

    /// Lets time go on until it is this PE's turn again.
    fn let_others_run<'a>(
        &'a self,
        mut state: MutexGuard<'a, State>,
        pe: usize,
    ) -> MutexGuard<'a, State> {
        self.go_on(&mut state);
        if state.turn == Some(pe) {
            return state;
        }
        self.wake(state);
        self.until_my_turn(pe)
    }

    /// Lets things happen until it is some PE's turn, and wakes its thread.
    fn pass_on(&self, mut state: MutexGuard<'_, State>) {
        self.go_on(&mut state);
        self.wake(state);
    }

    /// Lets things happen until it is some PE's turn.
    fn go_on(&self, state: &mut State) {
        state.turn = None;
        let begun_ps = state.next_ps().unwrap_or(0);
        while state.turn.is_none() && state.broken.is_none() {
            let at_ps = state.step(&self.setup);
            if at_ps > begun_ps + PATIENCE_PS {
                let waiting = state.pes.iter().filter(|pe| pe.waits).count();
                state.broken = Some(format!("{waiting} PEs wait for nothing at {at_ps} ps"));
            }
        }
    }

    /// Wakes the thread whose turn it is, which needs the lock then.
    fn wake(&self, state: MutexGuard<'_, State>) {
        let turn = state.turn;
        drop(state);
        match turn {
            Some(pe) => self.turns[pe].notify_one(),
            None => self.turns.iter().for_each(Condvar::notify_one),
        }
    }

    fn until_my_turn(&self, pe: usize) -> MutexGuard<'_, State> {
        let others = |state: &mut State| state.turn != Some(pe) && state.broken.is_none();
        let state = self.turns[pe].wait_while(self.lock(), others);
        let state = state.unwrap_or_else(PoisonError::into_inner);
        if let Some(why) = state.broken.clone() {
            drop(state);
            panic!("the simulated ring stands still: {why}");
        }
        state
    }

    /// A PE's thread is lost: the others would wait for it.
    fn give_up(&self, pe: usize) {
        let mut state = self.lock();
        state.broken.get_or_insert_with(|| format!("PE {pe} has failed"));
        self.turns.iter().for_each(Condvar::notify_one);
    }

    /// Waits for news since this PE looked last: what happens before its own time counts too.
    fn wait(&self, pe: usize) {
        let mut state = self.lock();
        assert_eq!(state.turn, Some(pe), "PE {pe} waits outside of virtual time");
        if std::mem::take(&mut state.pes[pe].fresh) {
            return;
        }
        state.pes[pe].now_ps += SPENT_PS.take();
        state.pes[pe].waits = true;
        let mut state = self.let_others_run(state, pe);
        state.pes[pe].fresh = true;
    }

    /// Hands an operation on PE `to` to the engine of the lane that the stream keeps to.
    fn submit(
        &self,
        pe: usize,
        to: usize,
        stream: &Stream,
        act: impl FnOnce(u64, &mut Engine, &mut LiveMemory<'_>) -> Status,
    ) -> Status {
        let mut state = self.at_my_time(pe);
        let at = self.lane(pe, stream);
        let token = state.token(stream, pe, to);
        let start_ps = state.pes[pe].now_ps.max(state.lanes[at].free_ps);
        let mut status = Status::Again;
        let until_ps = state.with_lane(&self.setup, at, start_ps, |engine, host| {
            host.timed.now_ps += host.timed.model.submit_ps;
            status = act(token as u64, engine, host);
        });
        state.lanes[at].free_ps = until_ps;
        state.pes[pe].now_ps = until_ps;
        state.wake(at, until_ps);
        state.pes[pe].refused = status == Status::Again;
        if status != Status::Pending {
            state.give_back(token);
        }
        status
    }

    fn fence(&self, pe: usize, stream: &Stream) -> bool {
        let mut state = self.at_my_time(pe);
        let at = self.lane(pe, stream);
        let engine = &mut state.lanes[at].engine;
        (0..self.setup.hosts).fold(true, |ordered, host| engine.fence(stream.id, host) & ordered)
    }

    fn lane(&self, pe: usize, stream: &Stream) -> usize {
        let lanes = usize::from(self.setup.lanes);
        pe * lanes + stream.id as usize % lanes
    }
}
