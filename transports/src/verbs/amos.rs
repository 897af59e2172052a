// SPDX-License-Identifier: Apache-2.0
//! Which atomic operations the cards of two PEs carry out for each other, and in whose domain.

use super::settings::AmoBy;
use super::sys;
use crate::network::Atomics;
use std::ffi::c_int;
use tombolo_core::transport::{AmoOp, AmoSet};

/// What the atomic operations of a card exclude, from nothing to everything.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
#[repr(u8)]
pub enum Domain {
    /// There are none, or they are not used.
    #[default]
    None = 0,
    /// Each other.
    Card = 1,
    /// Those of the processor too.
    Processor = 2,
}

impl Domain {
    /// What the interface says with a number.
    pub fn of(atomic_cap: c_int) -> Domain {
        match atomic_cap {
            sys::ATOMIC_HCA => Domain::Card,
            sys::ATOMIC_GLOB => Domain::Processor,
            _ => Domain::None,
        }
    }

    /// What is used of it; an error if it is asked for and there is nothing.
    pub fn wished(self, by: AmoBy) -> Result<Domain, String> {
        match (by, self) {
            (AmoBy::Target, _) => Ok(Domain::None),
            (AmoBy::Card, Domain::None) => {
                Err("it has no atomic operations, and SHMEM_VERBS_AMO=card asks for them".into())
            }
            (AmoBy::Auto | AmoBy::Card, domain) => Ok(domain),
        }
    }

    /// The domain with a number that a PE has told.
    pub fn from_bits(bits: u8) -> Option<Domain> {
        [Domain::None, Domain::Card, Domain::Processor].into_iter().find(|one| *one as u8 == bits)
    }

    /// What two PEs do on each other's variables, this being the domain of one card: no more than either
    /// card can, so that both say the same.
    pub fn with(self, other: Domain) -> Atomics {
        // Of 8 bytes. To read is to add nothing; what is missing is made of compare-and-swap, or done by the
        // target's processor where that may be mixed.
        const ALL: AmoSet =
            AmoSet::NONE.with(AmoOp::Add, 8).with(AmoOp::Fetch, 8).with(AmoOp::CompareSwap, 8);
        let domain = self.min(other);
        let amos = if domain == Domain::None { AmoSet::NONE } else { ALL };
        Atomics { amos, coherent: domain == Domain::Processor }
    }

    /// A line for people.
    pub fn describe(self) -> &'static str {
        match self {
            Domain::None => "the target's processor carries out AMOs",
            Domain::Card => {
                "the card carries out AMOs of 8 bytes, where no other PE of a host maps the variables"
            }
            Domain::Processor => {
                "the card carries out additions, comparisons and reads of 8 bytes as AMOs; the target's \
                 processor, with whose they are atomic, the others"
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_card_is_used_where_it_can_and_asked_for_where_it_cannot() {
        let domains = [0, sys::ATOMIC_HCA, sys::ATOMIC_GLOB, 3].map(Domain::of);
        assert_eq!(domains, [Domain::None, Domain::Card, Domain::Processor, Domain::None]);
        for domain in domains {
            assert_eq!(domain.wished(AmoBy::Auto), Ok(domain));
            assert_eq!(domain.wished(AmoBy::Target), Ok(Domain::None));
            match domain.wished(AmoBy::Card) {
                Ok(used) => assert!(used == domain && domain != Domain::None),
                Err(why) => assert!(domain == Domain::None && why.contains("SHMEM_VERBS_AMO=card")),
            }
            assert_eq!(Domain::from_bits(domain as u8), Some(domain));
        }
        assert_eq!(Domain::from_bits(3), None);
    }

    #[test]
    fn two_cards_do_what_the_lesser_can_in_its_domain() {
        let all = [Domain::None, Domain::Card, Domain::Processor];
        for (a, b) in all.into_iter().flat_map(|a| all.map(|b| (a, b))) {
            let both = a.with(b);
            assert_eq!(both, b.with(a));
            let lesser = a.min(b);
            // Never in two domains.
            let device = both.of_device().is_sufficient(8);
            let processor = both.of_processor().has(AmoOp::Add, 8);
            assert_eq!((device, processor), (lesser == Domain::Card, lesser == Domain::Processor));
            assert!(!both.amos.has(AmoOp::Add, 4) && !both.amos.has(AmoOp::Set, 8));
        }
    }
}
