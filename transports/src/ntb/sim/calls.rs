// SPDX-License-Identifier: Apache-2.0
//! What the programs of a world do: they hand in operations, and take in those that have ended.

use tombolo_core::transport::Status;

use super::program::{Call, Part, PeId, Step};
use super::world::{Lane, Transfer, What, World};
use crate::ntb::ring::Completion;

/// Marks tokens of transfers beside the workload; the rest is the PE.
const BESIDE: u64 = 1 << 63;

impl World<'_> {
    /// The program's part: hands in what may be outstanding.
    pub(super) fn work(&mut self, at: usize, now_ps: u64) {
        let lanes_per_pe = usize::from(self.simulation.lanes);
        let Lane { host, index, .. } = self.lanes[at];
        let number = usize::from(host) * usize::from(self.simulation.pes) + index / lanes_per_pe;
        let id = self.pe_id(number);
        if !self.plan.works(id) {
            return;
        }
        if index.is_multiple_of(lanes_per_pe) {
            self.issue_beside(at, number, id);
            self.issue(number, id, now_ps);
        }
        let mine = (index % lanes_per_pe) as u16;
        let waiting = std::mem::take(&mut self.pes[number].waiting);
        let mut later = Vec::new();
        for (token, call, part_of) in waiting {
            let accepted =
                part_of == mine && later.is_empty() && self.hand_in(at, token, &call, now_ps);
            if !accepted {
                later.push((token, call, part_of));
            }
        }
        self.pes[number].waiting = later;
        for other in 0..lanes_per_pe {
            let lane = at - usize::from(mine) + other;
            if lane != at && self.pes[number].waiting.iter().any(|w| usize::from(w.2) == other) {
                let at_ps = self.lanes[lane].free_ps.max(now_ps);
                self.wake(lane, at_ps);
            }
        }
    }

    fn issue(&mut self, number: usize, from: PeId, now_ps: u64) {
        let lanes_per_pe = usize::from(self.simulation.lanes);
        let first =
            usize::from(from.host) * self.lanes_per_host() + usize::from(from.pe) * lanes_per_pe;
        while self.pes[number].issued < self.plan.workload.count {
            let Some(slot) = self.pes[number].free_slots.pop() else { return };
            let index = self.pes[number].issued;
            self.pes[number].issued += 1;
            let step = self.plan.step(index);
            let to = self.plan.target(from, index, &mut self.random);
            let token = self.transfers.len() as u64;
            let size = self.plan.len_of(token);
            let exact = self.plan.exact;
            let split = !exact && matches!(step, Step::Put | Step::Get) && self.is_split();
            let second = exact && step == Step::Put && !index.is_multiple_of(3);
            let (parts, calls) = match (split, second) {
                (true, _) => (lanes_per_pe, lanes_per_pe),
                (false, second) => (1, 1 + usize::from(second)),
            };
            let each = size.div_ceil(parts).next_multiple_of(64);
            let lane_of = |part: usize| if split { part } else { index as usize % lanes_per_pe };
            let transfer = Transfer {
                pe: number,
                from,
                to,
                step,
                slot,
                lane: first + lane_of(0),
                second,
                start_ps: now_ps,
                parts: calls as u16,
                outcome: Completion::Done,
            };
            if exact {
                self.note_made(&transfer, now_ps);
            }
            for call in 0..calls {
                let (second, part) = if split { (false, call) } else { (call == 1, 0) };
                let len = each.min(size.saturating_sub(part * each));
                let part_of = lane_of(part) as u16;
                let part = Part { from: part * each, len };
                let call = Call { step, from, to, slot, part, second };
                if exact {
                    let local = &mut self.lanes[transfer.lane].memory.local;
                    self.plan.fill_source(token, &call, local);
                }
                self.pes[number].waiting.push((token, call, part_of));
            }
            self.transfers.push(transfer);
        }
    }

    fn is_split(&self) -> bool {
        let chunk_bytes = self.simulation.config.geometry.chunk_bytes();
        self.plan.workload.size >= usize::from(self.simulation.lanes) * chunk_bytes
    }

    fn issue_beside(&mut self, at: usize, number: usize, from: PeId) {
        if self.plan.beside.is_none() || self.pes[number].beside {
            return;
        }
        let plan = self.plan;
        let to = plan.target(from, 0, &mut self.random);
        let start_ps = self.lanes[at].free_ps;
        let (mut status, mut until_ps) = (Status::Again, start_ps);
        self.with_host(at, start_ps, |engine, host| {
            host.now_ps += host.model.submit_ps;
            status = plan.submit_beside(engine, host, BESIDE | number as u64, to);
            until_ps = host.now_ps;
        });
        if status == Status::Pending {
            self.pes[number].beside = true;
            self.lanes[at].free_ps = until_ps;
        }
    }

    fn end_beside(&mut self, number: usize, outcome: Completion) {
        let from = self.pe_id(number);
        let to = self.plan.target(from, 0, &mut self.random);
        self.pes[number].beside = false;
        if outcome != Completion::Done {
            return;
        }
        self.beside_bytes += self.plan.beside.map_or(0, |beside| beside.size as u64);
        let lane = number * usize::from(self.simulation.lanes);
        let local = &mut self.lanes[lane].memory.local;
        let far = &mut self.symmetric[usize::from(to.host)][usize::from(to.pe)];
        if !self.plan.check_beside([from, to], local, far) {
            self.wrong = Some(format!("{from:?} moved other data beside its workload"));
        }
    }

    fn hand_in(&mut self, at: usize, token: u64, call: &Call, now_ps: u64) -> bool {
        let plan = self.plan;
        // A copy of what is kept may carry on with what is to be stored: not before now.
        let start_ps = self.lanes[at].free_ps.max(if plan.exact { now_ps } else { 0 });
        let mut status = Status::Again;
        let mut until_ps = start_ps;
        self.with_host(at, start_ps, |engine, host| {
            host.now_ps += host.model.submit_ps;
            status = plan.submit(engine, host, token, call);
            until_ps = host.now_ps;
        });
        match status {
            Status::Again => return false,
            Status::Pending => {}
            Status::Complete => self.completions.push((token, Completion::Done)),
            Status::Failed => self.completions.push((token, Completion::Lost)),
        }
        if plan.retains(token, call.second) && matches!(call.step, Step::Put | Step::PutSignal) {
            let at_source = plan.source(call.slot, call.second);
            self.lanes[at].memory.local[at_source..at_source + call.part.len].fill(0xee);
        }
        self.lanes[at].free_ps = until_ps;
        true
    }

    /// Takes in operations that ended and sends off what was written.
    pub(super) fn collect(&mut self, now_ps: u64) {
        for post in std::mem::take(&mut self.network.outbox) {
            self.push(post.at_ps, What::Arrive(post));
        }
        for (token, outcome) in std::mem::take(&mut self.completions) {
            if token & BESIDE != 0 {
                self.end_beside((token & !BESIDE) as usize, outcome);
                continue;
            }
            let transfer = &mut self.transfers[token as usize];
            transfer.parts -= 1;
            if outcome != Completion::Done {
                transfer.outcome = outcome;
            }
            if transfer.parts == 0 {
                self.end(token as usize, now_ps);
            }
        }
    }

    fn end(&mut self, token: usize, now_ps: u64) {
        let transfer = self.transfers[token];
        let Transfer { pe, to, step, slot, start_ps, outcome, .. } = transfer;
        self.pes[pe].ended += 1;
        self.news += 1;
        if self.slowest_of_mean.is_none() && self.pes[pe].ended == self.plan.workload.count {
            self.slowest_of_mean = Some(self.slowest_of_mean());
        }
        self.pes[pe].free_slots.push(slot);
        self.end_ps = self.end_ps.max(now_ps);
        let lanes_per_pe = usize::from(self.simulation.lanes);
        let first = pe / usize::from(self.simulation.pes) * self.lanes_per_host()
            + pe % usize::from(self.simulation.pes) * lanes_per_pe;
        let at_ps = self.lanes[first].free_ps.max(now_ps);
        self.wake(first, at_ps);
        let target = self.plan.number(to);
        if outcome != Completion::Done {
            self.failed += 1;
            self.uncertain[target] = true;
            if self.plan.exact {
                self.forget_failed(&transfer);
            }
            return;
        }
        self.latencies_ps.push(now_ps - start_ps);
        if self.plan.exact {
            self.check_ended(token as u64, &transfer, now_ps);
        }
        match step {
            _ if self.plan.exact && matches!(step, Step::Put | Step::Get) => {}
            Step::Put => self.note_put(to, pe),
            Step::PutSignal => {
                self.expected[target][2] += 1;
                if !self.plan.exact {
                    self.note_put(to, pe);
                }
            }
            Step::Fetch => self.expected[target][0] += 1,
            Step::Add => self.expected[target][1] += 1,
            Step::Get => self.check_get(first, to, slot, now_ps),
        }
    }

    fn slowest_of_mean(&self) -> f64 {
        let working = (0..self.pes.len()).filter(|&pe| self.plan.works(self.pe_id(pe)));
        let ended: Vec<u64> = working.map(|pe| self.pes[pe].ended).collect();
        let mean = ended.iter().sum::<u64>() as f64 / ended.len() as f64;
        ended.into_iter().min().unwrap_or(0) as f64 / mean
    }

    fn note_put(&mut self, to: PeId, pe: usize) {
        let from = self.pe_id(pe);
        self.puts.insert((to, from));
    }

    fn check_get(&mut self, first: usize, to: PeId, slot: usize, now_ps: u64) {
        let lanes_per_pe = usize::from(self.simulation.lanes);
        let size = self.plan.workload.size;
        let at = self.plan.dest(slot);
        let chunk = self.simulation.config.geometry.chunk_bytes();
        // Each lane has buffers of its own; a split get has a part in each.
        let split = size >= lanes_per_pe * chunk;
        let parts = if split { lanes_per_pe } else { 1 };
        let each = size.div_ceil(parts).next_multiple_of(64);
        let sound = (0..parts).all(|part| {
            let from = part * each;
            let range = at + from..at + from + each.min(size.saturating_sub(from));
            let candidates = if split { part..part + 1 } else { 0..lanes_per_pe };
            let mut lanes = candidates.map(|lane| &self.lanes[first + lane].memory.local);
            lanes.any(|local| self.plan.check_get(to, from, &local[range.clone()]))
        });
        for lane in first..first + lanes_per_pe {
            self.lanes[lane].memory.local[at..at + size].fill(0);
        }
        if !sound {
            self.wrong = Some(format!("a get from {to:?} brought other data at {now_ps} ps"));
        }
    }
}
