// SPDX-License-Identifier: Apache-2.0
//! What is known of each peer, and how it is found to be gone.
//!
//! A peer is lost when an operation on it fails for another reason than a refusal, or when it has
//! been silent for `SHMEM_SILENCE` while something waits for it. So that something does, a peer that
//! was used and has been silent for [`QUIET_NS`] is sent an empty request. The network itself may
//! wait far longer, such as a quarter of an hour where it is TCP. Whoever knows that a peer's process has ended
//! need not wait for so long.

use super::{Engine, RMAS};
use crate::network::Network;
use crate::network::message::Header;
use std::ptr::null;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicUsize, Ordering};
use tombolo_core::board::monotonic_ns;
use tombolo_core::transport::SegmentKind;

/// How long a peer may be silent before it is asked for a sign of life. Together with the usual `SHMEM_SILENCE`
/// and the time between looks less than 10 seconds, which is what users are told.
const QUIET_NS: u64 = 2_000_000_000;
/// How long a peer whose process has ended may be silent before it is given up: what it had sent comes in that time.
const ENDED_NS: u64 = 500_000_000;
/// Time between looks at the peers.
const LOOK_NS: u64 = 250_000_000;

/// Requests to one peer that wait for their answer at a time.
pub const WINDOW: usize = 8;

/// A peer's segment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct TheirSegment {
    /// Address by which it is named.
    pub base: u64,
    /// Key of its registration.
    pub key: u64,
    /// Its length in bytes; 0 where it is not reached.
    pub len: usize,
}

/// What a peer has told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Theirs {
    /// Where messages and RMA go.
    pub address: u64,
    /// What it wants to see in messages.
    pub token: u64,
    /// Its segments.
    pub segments: [TheirSegment; SegmentKind::ALL.len()],
}

/// A peer.
pub struct Peer {
    pub(crate) theirs: Theirs,
    pub is_used: bool,
    pub is_lost: bool,
    /// In the list of those with a request that the endpoint did not take.
    pub is_unsent: bool,
    /// An RMA operation was not taken, as while there is no connection, and is tried again.
    pub is_blocked: bool,
    /// The request that is being filled.
    pub open: Option<u16>,
    /// Requests that wait for their answer.
    pub sent: [u16; WINDOW],
    pub sent_count: usize,
    /// How many of these, the last ones, are to be sent again before anything else.
    pub to_repeat: usize,
    /// How many of these, the last ones, are not urgent: the peer delays the answers.
    pub delayed_count: usize,
    /// In the list of peers that delay answers.
    pub is_delaying: bool,
    /// Requests follow each other so closely that they travel together.
    pub is_burst: bool,
    /// Turn of the next request.
    pub turn: u32,
    /// RMA may go when all requests before this turn have been answered.
    pub fenced: u32,
    /// Turn of the last request of the peer that was carried out, and how many up to this one have not been
    /// answered.
    pub served: u32,
    /// See `served`.
    pub held: u8,
    pub rmas: u32,
    /// Bytes of all RMA operations.
    pub under_way: usize,
    /// So many were under way that no more are posted until all are over: some networks put the data that a peer asks for
    /// before all messages to it, which would wait as long as it went on asking.
    pub is_full: bool,
    /// Its process is known to have ended.
    pub has_ended: bool,
    /// When something came from it or something began to wait, on the engine's clock.
    pub heard: u64,
}

impl Peer {
    /// One that was not used yet; unreachable if there is none.
    pub fn new(theirs: Option<Theirs>) -> Peer {
        let nobody = Theirs {
            address: u64::MAX,
            token: 0,
            segments: [TheirSegment::default(); SegmentKind::ALL.len()],
        };
        Peer {
            is_lost: theirs.is_none(),
            theirs: theirs.unwrap_or(nobody),
            is_used: false,
            is_unsent: false,
            is_blocked: false,
            open: None,
            sent: [0; WINDOW],
            sent_count: 0,
            to_repeat: 0,
            delayed_count: 0,
            is_delaying: false,
            is_burst: false,
            turn: 1,
            fenced: 0,
            served: 0,
            held: 0,
            rmas: 0,
            under_way: 0,
            is_full: false,
            has_ended: false,
            heard: 0,
        }
    }

    /// Requests of which the peer delays the answers.
    pub fn delayed(&self) -> &[u16] {
        &self.sent[self.sent_count - self.delayed_count..self.sent_count]
    }

    /// Whether something that was issued waits for the peer.
    fn is_awaited(&self) -> bool {
        self.rmas > 0 || self.sent_count > 0 || self.open.is_some()
    }
}

/// Peers that were given up, for those who do not have the engine's lock.
pub struct Lost {
    /// By PE, why.
    by_pe: Box<[OnceLock<String>]>,
    /// 1 + the first one, or 0.
    first: AtomicUsize,
}

impl Lost {
    /// None of `n_pes`.
    pub fn none(n_pes: usize) -> Lost {
        let by_pe = std::iter::repeat_with(OnceLock::new).take(n_pes).collect();
        Lost { by_pe, first: AtomicUsize::new(0) }
    }

    /// The first one that was given up.
    pub fn first(&self) -> Option<usize> {
        self.first.load(Ordering::Acquire).checked_sub(1)
    }

    /// Whether a PE was given up.
    pub fn has(&self, pe: usize) -> bool {
        self.by_pe.get(pe).is_some_and(|why| why.get().is_some())
    }

    /// Why a PE was given up.
    pub fn why(&self, pe: usize) -> Option<String> {
        self.by_pe.get(pe)?.get().cloned()
    }

    fn add(&self, pe: usize, why: &str) {
        if let Some(lost) = self.by_pe.get(pe) {
            let _ = lost.set(why.into());
            let _ = self.first.compare_exchange(0, pe + 1, Ordering::AcqRel, Ordering::Relaxed);
        }
    }
}

impl<N: Network> Engine<N> {
    /// Something is about to wait for a peer.
    pub(super) fn use_peer(&mut self, pe: u32) {
        let clock = self.clock;
        let peer = &mut self.peers[pe as usize];
        if !peer.is_awaited() && !peer.is_blocked {
            peer.heard = clock;
        }
        if !peer.is_used {
            peer.is_used = true;
            self.used.push(pe);
        }
    }

    /// Something came from a peer.
    pub(super) fn hear(&mut self, pe: u32) {
        self.peers[pe as usize].heard = self.clock;
        if !self.peers[pe as usize].is_used {
            self.peers[pe as usize].is_used = true;
            self.used.push(pe);
        }
    }

    /// Lets the engine's clock go on while the process runs, and looks at the peers now and then.
    pub(super) fn look_at_clock(&mut self) {
        let now = monotonic_ns();
        let passed = now.saturating_sub(self.looked_ns);
        if passed < LOOK_NS {
            return;
        }
        self.looked_ns = now;
        // A process that did not run for longer could not have heard of anybody.
        self.clock += passed.min(2 * LOOK_NS);
        self.net.look();
        for at in 0..self.used.len() {
            let pe = self.used[at];
            let peer = &self.peers[pe as usize];
            let silent = self.clock - peer.heard;
            if peer.is_lost {
                continue;
            }
            self.answer_held(pe);
            let peer = &self.peers[pe as usize];
            // What is not taken waits for this peer only if there is room otherwise.
            let is_blocked = peer.is_blocked && self.free_rmas.len() > RMAS / 2;
            if peer.rmas > 0 {
                // It may have been issued by a program that computes, and waits for nothing.
                self.net.confirm();
            }
            let peer = &self.peers[pe as usize];
            if peer.has_ended {
                if silent > ENDED_NS {
                    self.lose(pe, "its process has ended");
                }
            } else if peer.is_awaited() || is_blocked {
                if silent > self.silence_ns {
                    let seconds = silent / 1_000_000_000;
                    self.lose(pe, &format!("nothing came from it for {seconds} s (SHMEM_SILENCE)"));
                }
            } else if silent > QUIET_NS {
                self.ask_for_sign(pe);
            }
        }
    }

    /// Sends an empty request.
    fn ask_for_sign(&mut self, pe: u32) {
        if self.open_batch(pe).is_some() {
            self.use_peer(pe);
            self.flush(pe);
        }
    }

    /// The process of a peer has ended: it is given up as soon as nothing comes from it any more.
    pub fn has_ended(&mut self, pe: usize) {
        if pe < self.peers.len() {
            self.hear(pe as u32);
            self.peers[pe].has_ended = true;
        }
    }

    /// Gives up a peer for a reason of others.
    pub fn give_up(&mut self, pe: usize, why: &str) {
        if pe < self.peers.len() {
            self.lose(pe as u32, why);
        }
    }

    /// Gives up a peer: what was issued to it fails, and nothing of it is touched any more.
    #[cold]
    pub(super) fn lose(&mut self, pe: u32, why: &str) {
        if self.peers[pe as usize].is_lost {
            return;
        }
        tracing::info!("PE {pe} is given up: {why}");
        self.peers[pe as usize].is_lost = true;
        // Before any operation is seen to fail: whoever asks why must find it.
        self.lost.add(pe as usize, why);
        // Where the network closes the connection with it, a late answer writes nowhere.
        self.net.remove(self.peers[pe as usize].theirs.address);
        for rma in self.rmas.iter_mut().filter(|rma| rma.pe == pe && !rma.stream.is_null()) {
            // SAFETY: streams live until everything issued on them has completed.
            unsafe { (*rma.stream).fail(pe, false) };
            rma.stream = null();
        }
        self.due.retain(|due| {
            if due.pe == pe {
                // SAFETY: as above.
                unsafe { (*due.stream).fail(pe, false) };
            }
            due.pe != pe
        });
        self.unserved.retain(|request| Header::decode(request).is_some_and(|it| it.pe != pe));
        let peer = &mut self.peers[pe as usize];
        (peer.rmas, peer.under_way, peer.is_full) = (0, 0, false);
        for index in 0..self.batches.len() {
            if self.batches[index].pe == pe && self.batches[index].is_awaited {
                self.batch_failed(index);
            }
        }
        let peer = &mut self.peers[pe as usize];
        (peer.open, peer.sent_count, peer.to_repeat, peer.is_blocked) = (None, 0, 0, false);
        (peer.delayed_count, peer.held) = (0, 0);
    }
}
