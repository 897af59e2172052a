// SPDX-License-Identifier: Apache-2.0
//! A peer with several rails, what is known of each rail to it, and when one is to be given up.

use super::name::{Keys, Name};
use super::words::Word;

/// Looks after which a rail from which nothing came is asked for a sign of life: a second.
const QUIET: u32 = 4;
/// Looks in which something came by another rail and nothing by this one, although it was asked, until it
/// is given up: one and a half seconds. A peer that does not run is silent on all rails.
const BEHIND: u32 = 6;
/// Looks for which transfers that end are a sign of life beside an answer that does not come: it waits
/// behind them. A message that was lost with its connection does not come at all.
const DELAYED: u32 = 24;

/// How a rail to a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum State {
    Open,
    /// Given up and closed here, maybe not yet there.
    Closed,
    /// Closed at both ends, so that nothing arrives by it any more.
    Gone,
}

/// A rail to a peer.
#[derive(Clone, Debug)]
pub struct Way {
    /// Of the peer on this rail.
    pub address: u64,
    pub state: State,
    /// Why it was given up.
    pub why: String,
    /// Bytes of transfers under way.
    pub under_way: usize,
    pub is_used: bool,
    /// Something came by it since the last look.
    pub is_heard: bool,
    /// It was answered since the last look.
    pub is_answered: bool,
    /// What is to be said of it, as bits of [`Word`].
    pub owed: u8,
    /// Looks since it was asked for a sign of life, if it has given none.
    pub asked: Option<u32>,
    /// Looks since something came by it.
    quiet: u32,
    behind: u32,
}

impl Way {
    pub fn new(address: u64) -> Way {
        Way {
            address,
            state: State::Open,
            why: String::new(),
            under_way: 0,
            is_used: false,
            is_heard: false,
            is_answered: false,
            owed: 0,
            asked: None,
            quiet: 0,
            behind: 0,
        }
    }

    /// What the last quarter of a second has shown; true if the rail is to be given up. `others`: something
    /// came by another rail. `suspected`: a rail to this peer does not answer.
    fn look(&mut self, others: bool, suspected: bool) -> bool {
        self.quiet = if self.is_heard { 0 } else { self.quiet + 1 };
        if self.is_answered {
            (self.asked, self.behind) = (None, 0);
        }
        match &mut self.asked {
            Some(looks) => {
                *looks += 1;
                match (self.is_heard && *looks <= DELAYED, others) {
                    (true, _) => self.behind = 0,
                    (false, true) => self.behind += 1,
                    (false, false) => {}
                }
            }
            None if suspected || self.is_used && self.quiet >= QUIET => {
                self.asked = Some(0);
                self.owed |= Word::Ask as u8;
            }
            None => {}
        }
        (self.is_heard, self.is_answered) = (false, false);
        self.behind >= BEHIND
    }
}

/// A peer.
pub struct Peer {
    pub name: Name,
    /// By rail; as many as both PEs have.
    pub ways: Vec<Way>,
    /// For people, where they are to be told.
    pub host: Option<String>,
    pub is_used: bool,
    pub is_removed: bool,
    /// Its messages take another rail than before; those that were not answered go first.
    pub is_moving: bool,
    /// In the list of those to whom something is to be said.
    pub is_listed: bool,
}

impl Peer {
    pub fn new(name: Name, addresses: Vec<u64>) -> Peer {
        let ways = addresses.into_iter().map(Way::new).collect();
        Peer {
            name,
            ways,
            host: None,
            is_used: false,
            is_removed: false,
            is_moving: false,
            is_listed: false,
        }
    }

    /// Its keys for the memory that has this key on the first rail.
    pub fn keys(&self, first: u64) -> Option<&Keys> {
        self.name.keys.iter().find(|keys| keys[0] == first)
    }

    /// The open rails.
    pub fn open(&self) -> impl Iterator<Item = usize> {
        (0..self.ways.len()).filter(|rail| self.ways[*rail].state == State::Open)
    }

    /// The rail for messages and short transfers.
    pub fn first(&self) -> Option<usize> {
        self.open().next()
    }

    /// Whether a rail to it does not answer, so that the others are asked all the time.
    pub fn is_suspected(&self) -> bool {
        let is_silent = |way: &Way| way.asked.is_some_and(|looks| looks > 0);
        self.ways.iter().any(|way| way.state == State::Open && is_silent(way))
    }

    /// A quarter of a second has passed: the rail that is to be given up, if there is one.
    pub fn look(&mut self) -> Option<usize> {
        for way in self.ways.iter_mut().filter(|way| way.state == State::Closed) {
            way.owed |= Word::Closed as u8;
        }
        if self.open().count() < 2 {
            return None;
        }
        let heard = self.open().filter(|rail| self.ways[*rail].is_heard).fold(0, |a, r| a | 1 << r);
        let suspected = self.is_suspected();
        let mut worst = None;
        for rail in 0..self.ways.len() {
            let is_open = self.ways[rail].state == State::Open;
            if is_open && self.ways[rail].look(heard & !(1u32 << rail) != 0, suspected) {
                worst = Some(rail);
            }
        }
        worst
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn peer() -> Peer {
        let mut peer = Peer::new(Name::default(), vec![0, 0]);
        peer.ways.iter_mut().for_each(|way| way.is_used = true);
        peer
    }

    /// Looks until a rail is given up, at most 100 times; `answers` says whether a rail that was asked
    /// answers before the next look, which is the `n`th.
    fn looks(peer: &mut Peer, answers: impl Fn(usize, u32) -> bool) -> Option<(u32, usize)> {
        for n in 0..100 {
            if let Some(rail) = peer.look() {
                return Some((n, rail));
            }
            for rail in 0..2 {
                let way = &mut peer.ways[rail];
                if way.asked.is_some() && answers(rail, n) {
                    (way.is_heard, way.is_answered) = (true, true);
                }
            }
        }
        None
    }

    #[test]
    fn a_rail_is_given_up_when_the_other_answers() {
        let (n, rail) = looks(&mut peer(), |rail, _| rail == 1).expect("it is given up");
        // Before the peer is, after six seconds.
        assert!(rail == 0 && n < 16, "{n}");
    }

    #[test]
    fn a_peer_that_answers_or_does_not_run_keeps_its_rails() {
        assert_eq!(looks(&mut peer(), |_, _| true), None);
        assert_eq!(looks(&mut peer(), |_, _| false), None);
        // It is stopped now and then; when it goes on it answers by one rail before the other.
        assert_eq!(looks(&mut peer(), |rail, n| n % 10 == rail as u32), None);
    }

    #[test]
    fn transfers_that_end_are_signs_of_life_for_some_time() {
        let mut peer = peer();
        let mut given_up = None;
        for n in 0..100 {
            given_up = peer.look();
            if given_up.is_some() {
                assert!(n > DELAYED, "{n}");
                break;
            }
            peer.ways[0].is_heard = true;
            if n > 8 {
                peer.ways[0].asked.get_or_insert(0);
            }
            (peer.ways[1].is_heard, peer.ways[1].is_answered) = (true, true);
        }
        assert_eq!(given_up, Some(0));
    }
}
