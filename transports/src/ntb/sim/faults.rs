// SPDX-License-Identifier: Apache-2.0
//! Faults to inject, and how people write them.
//!
//! Clauses are separated by `;`. What happens at a time is written as for the launcher
//! ([`FaultPlan`](crate::ntb::port::emulated::FaultPlan)); the rest is about all links at once:
//!
//! ```text
//! link 1 down at 200us      the cable between hosts 1 and 2
//! up at 800us               no link named: the one named last
//! host 2 die at 1ms         its threads stop; its links stay electrically up
//! flap 500us                a random cable goes down about so often, for up to as long
//! loss 0.001                a posted write vanishes with this probability
//! corrupt 0.001             a bit of a posted write flips
//! delay 0.01 5us            a posted write is held up, and all behind it
//! stall 500us               a random host's threads stop about so often, for up to as long
//! rough                     writes arrive in pieces and DMA engines write when they like, as far as ports allow
//! ```

use crate::ntb::port::emulated::{Fault, Subject, parse_clause, parse_time};
use std::str::FromStr;

/// Something that happens at a known time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// A cable loses (false) or regains (true) its link.
    Link(u16, bool),
    /// A host stops.
    Die(u16),
    /// A cable changes so many of a million writes from now on.
    Corrupt(u16, u32),
    /// On a cable writes are under way so many nanoseconds longer from now on.
    Delay(u16, u64),
}

/// Faults of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Faults {
    /// Scheduled ones, with the time in nanoseconds.
    pub incidents: Vec<(u64, Incident)>,
    /// Mean time between random flaps, in nanoseconds.
    pub flap_ns: Option<u64>,
    /// Probability that a write is lost.
    pub loss: f64,
    /// Probability that a write is corrupted.
    pub corrupt: f64,
    /// Probability that a write is held up, and for how long in nanoseconds.
    pub delay: (f64, u64),
    /// Mean time between random stops of a host's threads, in nanoseconds.
    pub stall_ns: Option<u64>,
    /// Writes of payload arrive in pieces, in any order, and what a DMA engine writes has no order with what
    /// the CPU does.
    pub rough: bool,
}

impl Faults {
    /// Whether anything can go wrong.
    pub fn any(&self) -> bool {
        *self != Faults::default()
    }

    /// Whether writes can vanish or change while the link stays up, which only a CRC can tell.
    pub fn needs_crc(&self) -> bool {
        let damages = |(_, incident): &(u64, Incident)| matches!(incident, Incident::Corrupt(..));
        self.loss > 0.0 || self.corrupt > 0.0 || self.incidents.iter().any(damages)
    }

    fn clause(&mut self, clause: &str, subject: &mut Option<Subject>) -> Result<(), String> {
        let words: Vec<&str> = clause.split_whitespace().collect();
        match words[..] {
            ["flap", every] => match nanoseconds(every)? {
                0 => return Err("expected a time above 0".into()),
                every => self.flap_ns = Some(every),
            },
            ["stall", every] => match nanoseconds(every)? {
                0 => return Err("expected a time above 0".into()),
                every => self.stall_ns = Some(every),
            },
            ["rough"] => self.rough = true,
            ["loss", share] => self.loss = probability(share)?,
            ["corrupt", share] => self.corrupt = probability(share)?,
            ["delay", share, time] => self.delay = (probability(share)?, nanoseconds(time)?),
            _ => {
                let (at, fault) = parse_clause(clause, subject)?;
                let incident = match fault {
                    Fault::LinkDown { link } => Incident::Link(number(link)?, false),
                    Fault::LinkUp { link } => Incident::Link(number(link)?, true),
                    Fault::HostDie { host } => Incident::Die(number(host)?),
                    Fault::Corrupt { link, ppm } => Incident::Corrupt(number(link)?, ppm),
                    Fault::Delay { link, by } => {
                        Incident::Delay(number(link)?, by.as_nanos() as u64)
                    }
                    _ => {
                        return Err("of one link, only 'down', 'up', 'corrupt' and 'delay' are \
                                     simulated"
                            .into());
                    }
                };
                self.incidents.push((at.as_nanos() as u64, incident));
            }
        }
        Ok(())
    }
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Faults, String> {
        let mut faults = Faults::default();
        let mut subject = None;
        for clause in text.split(';').map(str::trim).filter(|clause| !clause.is_empty()) {
            faults.clause(clause, &mut subject).map_err(|why| {
                format!(
                    "'{clause}': {why} (faults: 'link N down at TIME', 'link N up at TIME', \
                     'host N die at TIME', 'flap TIME', 'loss P', 'corrupt P', 'delay P TIME', \
                     'stall TIME', 'rough')"
                )
            })?;
        }
        Ok(faults)
    }
}

fn number(index: u32) -> Result<u16, String> {
    index.try_into().map_err(|_| format!("{index} is beyond any ring"))
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("'{text}' is no probability from 0 to 1")),
    }
}

fn nanoseconds(text: &str) -> Result<u64, String> {
    Ok(parse_time(text)?.as_nanos() as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_read_as_written() {
        let faults: Faults =
            "link 1 down at 200us; up at 1ms; host 2 die at 3s; loss 0.5; delay 0.1 5us"
                .parse()
                .unwrap();
        let expected = vec![
            (200_000, Incident::Link(1, false)),
            (1_000_000, Incident::Link(1, true)),
            (3_000_000_000, Incident::Die(2)),
        ];
        assert_eq!(faults.incidents, expected);
        assert_eq!((faults.loss, faults.delay), (0.5, (0.1, 5_000)));
        assert!(faults.needs_crc() && faults.any() && !Faults::default().any());
    }

    #[test]
    fn nonsense_is_explained() {
        let cases = [
            ("link 1 sideways", "a link can be"),
            ("link 1 dma-errors 5", "only 'down', 'up'"),
            ("link 70000 down", "beyond any ring"),
            ("host x die at 1ms", "'x' is no number"),
            ("up at 1ms", "names no link"),
            ("loss 2", "no probability"),
            ("flap 0us", "above 0"),
            ("flap 3", "no time"),
        ];
        for (text, expected) in cases {
            let error = Faults::from_str(text).unwrap_err();
            assert!(error.contains(expected) && error.contains("faults:"), "{text}: {error}");
        }
    }
}
