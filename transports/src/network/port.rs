// SPDX-License-Identifier: Apache-2.0
//! A PE's endpoint as its threads share it.

use super::engine::{Counters, Engine, Lost, Theirs};
use super::{Atomics, Network};
use std::os::fd::RawFd;
use std::sync::{Arc, Mutex, MutexGuard, TryLockError};
use tombolo_core::transport::{Status, Stream};

/// The engine, behind the lock that lets one thread at a time work on it: networks go
/// without locks of their own, which would be taken several times for each operation.
pub struct Port<N: Network> {
    engine: Mutex<Option<Engine<N>>>,
    lost: Arc<Lost>,
    wait_fd: Option<RawFd>,
}

impl<N: Network> Port<N> {
    /// A port on an engine.
    pub fn new(engine: Engine<N>, lost: Arc<Lost>, wait_fd: Option<RawFd>) -> Port<N> {
        Port { engine: Mutex::new(Some(engine)), lost, wait_fd }
    }

    fn lock(&self) -> MutexGuard<'_, Option<Engine<N>>> {
        self.engine.lock().unwrap_or_else(|e| e.into_inner())
    }

    /// Enters a peer's address; sends nothing.
    pub fn insert(&self, name: &[u8]) -> Result<u64, String> {
        self.lock().as_mut().ok_or("closed")?.insert(name)
    }

    /// See [`Network::introduce`].
    pub fn introduce(&self, peer: u64, host: &str) {
        if let Some(engine) = self.lock().as_mut() {
            engine.introduce(peer, host);
        }
    }

    /// See [`Network::atomics`].
    pub fn atomics(&self, peer: u64) -> Atomics {
        self.lock().as_ref().map_or_else(Atomics::default, |engine| engine.net.atomics(peer))
    }

    /// See [`Engine::meet`].
    pub fn meet(&self, peers: Vec<Option<Theirs>>) {
        if let Some(engine) = self.lock().as_mut() {
            engine.meet(peers);
        }
    }

    /// Issues an operation; it fails once the port is closed.
    pub fn issue(&self, issue: impl FnOnce(&mut Engine<N>) -> Status) -> Status {
        self.lock().as_mut().map_or(Status::Failed, issue)
    }

    /// Makes progress, unless another thread is at it; true if something moved.
    pub fn progress(&self) -> bool {
        match self.engine.try_lock() {
            Ok(mut engine) => engine.as_mut().is_some_and(Engine::progress),
            Err(TryLockError::Poisoned(engine)) => {
                engine.into_inner().as_mut().is_some_and(Engine::progress)
            }
            // Whoever has it makes progress.
            Err(TryLockError::WouldBlock) => true,
        }
    }

    /// Whether a thread works on it at this moment.
    pub fn is_taken(&self) -> bool {
        matches!(self.engine.try_lock(), Err(TryLockError::WouldBlock))
    }

    /// See [`Engine::fence`].
    pub fn fence(&self, stream: &Stream) -> Status {
        self.lock().as_mut().map_or(Status::Complete, |engine| engine.fence(stream))
    }

    /// Whether nothing of a stream is under way; sees to it that what is completes.
    pub fn quiet(&self, stream: &Stream) -> Status {
        if stream.is_quiet() {
            return Status::Complete;
        }
        // Whoever has the lock is asked again.
        if let Ok(mut engine) = self.engine.try_lock()
            && let Some(engine) = engine.as_mut()
        {
            engine.quiet(stream);
        }
        Status::Pending
    }

    /// Whether nothing of a stream is under way to a peer; no as well while another thread has the engine.
    pub fn is_quiet_to(&self, pe: u32, stream: &Stream) -> bool {
        let engine = self.engine.try_lock();
        engine
            .is_ok_and(|engine| engine.as_ref().is_none_or(|engine| engine.is_quiet_to(pe, stream)))
    }

    /// A descriptor that becomes readable when there is something to do, after `arm`.
    pub fn wait_fd(&self) -> Option<RawFd> {
        self.wait_fd
    }

    /// Whether all there was is done, so that the descriptor tells of what comes.
    pub fn arm(&self) -> bool {
        self.lock().as_mut().is_none_or(Engine::may_sleep)
    }

    /// Peers that were given up.
    pub fn lost(&self) -> &Lost {
        &self.lost
    }

    /// Gives up a peer.
    pub fn give_up(&self, pe: usize, why: &str) {
        if let Some(engine) = self.lock().as_mut() {
            engine.give_up(pe, why);
        }
    }

    /// See [`Engine::has_ended`].
    pub fn has_ended(&self, pe: usize) {
        if let Some(engine) = self.lock().as_mut() {
            engine.has_ended(pe);
        }
    }

    /// What was done so far.
    pub fn counters(&self) -> Counters {
        self.lock().as_ref().map_or_else(Counters::default, Engine::counters)
    }

    /// Closes the endpoint.
    pub fn close(&self) {
        self.lock().take();
    }
}
