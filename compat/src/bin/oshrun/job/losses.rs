// SPDX-License-Identifier: Apache-2.0
//! PEs that are lost, and the others that go on without them.

use super::Job;
use crate::report;
use crate::wire::Order;

impl Job {
    /// PE `pe` has failed in the way that `how` tells. True if the others go on without it, of
    /// which people are told:
    ///
    /// - the programs asked for it, and no signal is ending the job;
    /// - the PE was between the ends of `shmem_init` and `shmem_finalize`: before and after, the
    ///   others cannot do without it;
    /// - somebody is left.
    ///
    /// PEs of a host serve for each other what arrives over its links. So of several emulated hosts
    /// one is lost as a whole.
    pub(super) fn goes_on_without(&mut self, pe: usize, how: &str, running: bool) -> bool {
        let gone = self.hosts.unit_of(pe);
        if !running || !self.can_go_on_without(&gone) {
            return false;
        }
        let name = self.name(pe);
        match gone.len() {
            1 => report::line(format_args!("{name} {how}; the others go on without it")),
            _ => report::line(format_args!(
                "{name} {how}; the others go on without the PEs of its host, which are {}",
                listed(&gone)
            )),
        }
        self.lose(&gone);
        self.ring.lose(self.hosts.of(pe));
        true
    }

    /// Whether the programs asked to go on, no signal is ending the job, and others are left.
    pub(super) fn can_go_on_without(&self, gone: &[usize]) -> bool {
        let asked = self.goes_on && self.verdict.is_none() && self.interrupted.is_none();
        let mut rest = (0..self.pes.len()).filter(|other| !gone.contains(other));
        asked && rest.any(|other| self.pes[other].alive && !self.pes[other].lost)
    }

    /// From now on these PEs are lost. What is left of them is killed, and if the others go on,
    /// barriers do not wait for them.
    pub(super) fn lose(&mut self, gone: &[usize]) {
        for &pe in gone {
            self.pes[pe].lost = true;
            self.pes[pe].lost_at = None;
        }
        self.order(Order::Lose { pes: gone.to_vec(), going_on: self.goes_on });
        // Theirs may have been the last that a barrier waited for.
        self.open_barrier();
    }

    /// Says at the end of a job that went well otherwise which PEs it has lost.
    pub(super) fn count_losses(&self) {
        let lost: Vec<usize> = (0..self.pes.len()).filter(|pe| self.pes[*pe].lost).collect();
        if self.verdict.is_none() && self.parting.is_none() && !lost.is_empty() {
            let all = self.pes.len();
            report::line(format_args!(
                "{} of {all} PEs lost ({}); all others have ended well",
                lost.len(),
                listed(&lost)
            ));
        }
        let apart = self.apart();
        if self.verdict.is_none() && !apart.is_empty() {
            let pairs: Vec<String> =
                apart.iter().map(|(pe, missed)| format!("PE {pe} without PE {missed}")).collect();
            report::line(format_args!(
                "the network was split: PEs went on without others that were running, and operations \
                 on them had no effect ({})",
                pairs.join(", ")
            ));
        }
    }

    /// PEs that are not lost and went on without others that are not lost either, each with the first
    /// that it missed.
    pub(super) fn apart(&self) -> Vec<(usize, usize)> {
        let here = |pe: &usize| !self.pes[*pe].lost;
        let missed = (0..self.pes.len()).filter(here).filter_map(|pe| {
            let other = self.pes[pe].missed.filter(here)?;
            Some((pe, other))
        });
        missed.collect()
    }
}

/// "2, 3 and 7".
pub(super) fn listed(pes: &[usize]) -> String {
    let words: Vec<String> = pes.iter().map(usize::to_string).collect();
    match words.as_slice() {
        [] => String::new(),
        [one] => one.clone(),
        [first @ .., last] => format!("{} and {last}", first.join(", ")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_read_as_people_write_them() {
        assert_eq!(
            [listed(&[4]), listed(&[2, 3]), listed(&[2, 3, 7])],
            ["4", "2 and 3", "2, 3 and 7"]
        );
    }
}
