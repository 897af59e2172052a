// SPDX-License-Identifier: Apache-2.0
//! Runs in which every operation is looked at: it moves bytes that no other one moves, to or from a place of its
//! own, and what it has done is looked at when it ends, when its place is used again, and at the end.

use std::collections::{BTreeMap, BTreeSet};

use super::memory::Symmetric;
use super::program::{Call, PeId, Step, WorkloadPlan};
use super::world::{Transfer, World};

/// So many parts of what a PE exposes are got in turn, each so many bytes further on.
const SHIFTS: usize = 8;
const SHIFT_BYTES: usize = 64;

/// What is known of the operations of such a run.
#[derive(Default)]
pub(super) struct Exact {
    /// The last put to a place, if it has completed, and whether it was a second one.
    last: BTreeMap<Place, (u64, bool)>,
    /// Results of fetching additions, by target.
    fetched: BTreeSet<(usize, u64)>,
    /// Fetching additions, other ones and signals that were handed in, by target.
    made: BTreeMap<usize, [u64; 3]>,
}

/// Where a PE puts to: source, target and number.
type Place = (PeId, PeId, usize);

impl WorkloadPlan {
    /// Sources of a lane.
    pub(super) fn count_sources(&self) -> usize {
        if self.exact { 2 * self.workload.depth } else { 1 }
    }

    /// Address of a source.
    pub(super) fn source(&self, slot: usize, second: bool) -> usize {
        if self.exact { self.workload.size * (2 * slot + usize::from(second)) } else { 0 }
    }

    /// Fills the source of a put.
    pub(super) fn fill_source(&self, token: u64, call: &Call, local: &mut [u8]) {
        let at = self.source(call.slot, call.second);
        WorkloadPlan::fill(name(token, call.second), &mut local[at..at + call.part.len]);
    }

    /// Whether the source of a put may be used again at once. Then it is.
    pub(super) fn retains(&self, token: u64, second: bool) -> bool {
        self.exact && (token / 4 + u64::from(second)).is_multiple_of(2)
    }

    /// Bytes of an operation.
    pub(super) fn len_of(&self, token: u64) -> usize {
        let size = self.workload.size;
        if !self.exact {
            return size;
        }
        let noise = (token.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 33) as usize;
        // Many are short.
        let most = if noise.is_multiple_of(4) { size.min(40) } else { size };
        1 + (noise >> 2) % most
    }

    /// Places of each source at a target.
    pub(super) fn places(&self) -> usize {
        if self.exact { self.workload.depth } else { 1 }
    }

    /// Offset of one of them.
    pub(super) fn place(&self, slot: usize) -> usize {
        if self.exact { slot * self.stride() } else { 0 }
    }

    /// Offset of what a get brings.
    pub(super) fn shift(&self, token: u64) -> usize {
        if self.exact { token as usize % SHIFTS * SHIFT_BYTES } else { 0 }
    }

    /// Bytes for all offsets.
    pub(super) fn shifts(&self) -> usize {
        if self.exact { SHIFTS * SHIFT_BYTES } else { 0 }
    }

    fn has_put(&self, place: Place, (token, second): (u64, bool), symmetric: &[Symmetric]) -> bool {
        let (from, to, slot) = place;
        let at = self.put_offset(from) + self.place(slot);
        let segment = &symmetric[usize::from(to.host)][usize::from(to.pe)];
        let found = &segment[at..at + self.len_of(token)];
        WorkloadPlan::is_data(name(token, second), 0, found)
    }

    /// Whether a get has brought the right bytes and touched no others; forgets them.
    fn has_got(&self, token: u64, slot: usize, to: PeId, local: &mut [u8]) -> bool {
        let (number, shift, len) = (self.number(to), self.shift(token), self.len_of(token));
        let (got, others) = self.dest_of(slot, local).split_at_mut(len);
        let sound =
            WorkloadPlan::is_data(number, shift, got) && others.iter().all(|byte| *byte == 0);
        got.fill(0);
        sound
    }

    fn dest_of<'a>(&self, slot: usize, local: &'a mut [u8]) -> &'a mut [u8] {
        let at = self.dest(slot);
        &mut local[at..at + self.workload.size]
    }
}

impl World<'_> {
    /// An operation is to be handed in.
    pub(super) fn note_made(&mut self, transfer: &Transfer, now_ps: u64) {
        let place = (transfer.from, transfer.to, transfer.slot);
        let counter = match transfer.step {
            Step::Fetch => Some(0),
            Step::Add => Some(1),
            Step::PutSignal => Some(2),
            Step::Put | Step::Get => None,
        };
        if let Some(counter) = counter {
            let target = self.plan.number(transfer.to);
            self.exact.made.entry(target).or_default()[counter] += 1;
        }
        if matches!(transfer.step, Step::Put | Step::PutSignal) {
            self.check_place(place, now_ps);
            self.exact.last.remove(&place);
        }
    }

    /// An operation has ended well.
    pub(super) fn check_ended(&mut self, token: u64, transfer: &Transfer, now_ps: u64) {
        let Transfer { step, from, to, slot, lane, second, .. } = *transfer;
        let local = &mut self.lanes[lane].memory.local;
        let number = self.plan.number(to);
        let sound = match step {
            Step::Put | Step::PutSignal => {
                self.exact.last.insert((from, to, slot), (token, second));
                return self.check_place((from, to, slot), now_ps);
            }
            Step::Get => self.plan.has_got(token, slot, to, local),
            Step::Fetch => {
                let value = self.plan.result(slot, local);
                let made = self.exact.made.get(&number).map_or(0, |made| made[0]);
                value < made && self.exact.fetched.insert((number, value))
            }
            Step::Add => true,
        };
        if !sound {
            let what = format!("{step:?} {token} at {to:?} brought something else at {now_ps} ps");
            self.wrong = Some(what);
        }
    }

    /// An operation has failed: a get may have brought a part.
    pub(super) fn forget_failed(&mut self, transfer: &Transfer) {
        if transfer.step == Step::Get {
            let local = &mut self.lanes[transfer.lane].memory.local;
            self.plan.dest_of(transfer.slot, local).fill(0);
        }
    }

    /// Whether the last put to a place that completed is still there.
    fn check_place(&mut self, place: Place, now_ps: u64) {
        let Some(&put) = self.exact.last.get(&place) else { return };
        if !self.is_there(place, put) {
            let what = format!("put {put:?} to {place:?} is not there at {now_ps} ps");
            self.wrong = Some(what);
        }
    }

    fn is_there(&self, place: Place, put: (u64, bool)) -> bool {
        self.dead[usize::from(place.1.host)] || self.plan.has_put(place, put, &self.symmetric)
    }

    /// What is wrong at the end. `least` is what was counted for sure.
    pub(super) fn check_exactly(&self) -> Option<String> {
        let puts = self.exact.last.iter().find(|(place, put)| !self.is_there(**place, **put));
        if let Some((place, put)) = puts {
            return Some(format!("put {put:?} to {place:?} is not there at the end"));
        }
        (0..self.pes.len()).find_map(|number| {
            let id = self.pe_id(number);
            if self.dead[usize::from(id.host)] {
                return None;
            }
            let counted = self.plan.counters(id, &self.symmetric);
            let least = self.expected[number];
            let most = self.exact.made.get(&number).copied().unwrap_or_default();
            let sound = (0..3).all(|at| (least[at]..=most[at]).contains(&counted[at]));
            (!sound).then(|| {
                format!("{id:?} counted {counted:?}, {least:?} completed, {most:?} were handed in")
            })
        })
    }
}

/// What tells the data of a put from those of others.
fn name(token: u64, second: bool) -> usize {
    (token as usize * 2 + usize::from(second)).wrapping_mul(0x9e37_79b1) >> 7
}
