// SPDX-License-Identifier: Apache-2.0
//! Faults that a launcher injects, and their plan.

use super::fabric::Fabric;
use super::link::Link;
use super::words::Need;
use super::writer::DELAY_MAX_NS;
use crate::ntb::port::{PortError, Result};
use std::fmt;
use std::str::FromStr;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// Something that goes wrong, or right again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The cable of a link is pulled: writes on their way are cut at a TLP and lost.
    LinkDown {
        /// The link.
        link: u32,
    },
    /// The cable is put in again.
    LinkUp {
        /// The link.
        link: u32,
    },
    /// A host goes down: its links vanish. Ending its processes is the launcher's business.
    HostDie {
        /// The host.
        host: u32,
    },
    /// TLPs are damaged at random.
    Corrupt {
        /// The link.
        link: u32,
        /// Per million TLPs; 0 ends it.
        ppm: u32,
    },
    /// Writes arrive later.
    Delay {
        /// The link.
        link: u32,
        /// By how much; zero ends it, a second is the most.
        by: Duration,
    },
    /// DMA transfers fail at random.
    DmaErrors {
        /// The link.
        link: u32,
        /// Per million transfers; 0 ends it.
        ppm: u32,
    },
    /// A host goes on believing that a link is up, whatever happens to it.
    StuckBelief {
        /// The link.
        link: u32,
        /// The host.
        host: u32,
        /// Whether it does.
        stuck: bool,
    },
}

/// As it is written in a [`FaultPlan`].
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Fault::LinkDown { link } => write!(f, "link {link} down"),
            Fault::LinkUp { link } => write!(f, "link {link} up"),
            Fault::HostDie { host } => write!(f, "host {host} die"),
            Fault::Corrupt { link, ppm } => write!(f, "link {link} corrupt {ppm}"),
            Fault::Delay { link, by } => write!(f, "link {link} delay {}ns", by.as_nanos()),
            Fault::DmaErrors { link, ppm } => write!(f, "link {link} dma-errors {ppm}"),
            Fault::StuckBelief { link, host, stuck: true } => write!(f, "link {link} stuck {host}"),
            Fault::StuckBelief { link, host, .. } => write!(f, "link {link} unstuck {host}"),
        }
    }
}

impl Fault {
    /// Whether a ring of so many hosts has what it is about; the error says what it has not.
    pub fn check(&self, hosts: u32) -> std::result::Result<(), String> {
        let (link, host) = match *self {
            Fault::LinkDown { link }
            | Fault::LinkUp { link }
            | Fault::Corrupt { link, .. }
            | Fault::Delay { link, .. }
            | Fault::DmaErrors { link, .. } => (Some(link), None),
            Fault::HostDie { host } => (None, Some(host)),
            Fault::StuckBelief { link, host, .. } => (Some(link), Some(host)),
        };
        for (kind, number) in [("link", link), ("host", host)] {
            if let Some(number) = number.filter(|number| *number >= hosts) {
                return Err(format!(
                    "'{self}': there is no {kind} {number}: {kind}s are numbered 0 to {}",
                    hosts - 1
                ));
            }
        }
        if let (Some(link), Some(host)) = (link, host) {
            let next = (link + 1) % hosts;
            if host != link && host != next {
                return Err(format!("'{self}': link {link} ties hosts {link} and {next}"));
            }
        }
        Ok(())
    }
}

/// Brings a fault about. An error if it names what the fabric does not have.
pub(super) fn inject(fabric: &Fabric, fault: Fault) -> Result<()> {
    match fault {
        Fault::LinkDown { link } => cut(fabric.link(link)?, Need::Cable),
        Fault::LinkUp { link } => {
            fabric.link(link)?.change(Need::Cable, true);
            Ok(())
        }
        Fault::HostDie { host } => {
            for (link, side) in fabric.links_of(host)? {
                cut(link, if side == 0 { Need::Host0 } else { Need::Host1 })?;
            }
            Ok(())
        }
        Fault::Corrupt { link, ppm } => set(fabric.link(link)?, |link| {
            link.memory().faults.corrupt_ppm.store(ppm, Ordering::Relaxed);
        }),
        Fault::Delay { link, by } => set(fabric.link(link)?, |link| {
            let ns = by.as_nanos().min(DELAY_MAX_NS.into()) as u64;
            link.memory().faults.delay_ns.store(ns, Ordering::Relaxed);
        }),
        Fault::DmaErrors { link, ppm } => set(fabric.link(link)?, |link| {
            link.memory().faults.dma_error_ppm.store(ppm, Ordering::Relaxed);
        }),
        Fault::StuckBelief { link, host, stuck } => {
            let link = fabric.link(link)?;
            let sides = link.config.hosts_of_sides();
            let side = sides.iter().position(|h| *h == host).ok_or_else(|| {
                PortError::Invalid(format!(
                    "host {host} is not on link {}, which ties hosts {} and {}",
                    link.config.link, sides[0], sides[1]
                ))
            })?;
            let belief = &link.memory().faults.stuck_belief;
            if stuck {
                belief.fetch_or(1 << side, Ordering::Relaxed);
            } else {
                belief.fetch_and(!(1 << side), Ordering::Relaxed);
            }
            Ok(())
        }
    }
}

/// Takes a link down. Returns when nothing of either side is on its way any more.
fn cut(link: &Link, need: Need) -> Result<()> {
    link.change(need, false);
    link.drain(0)?;
    link.drain(1)
}

/// Changes the control block, then tells the data path whether to look at it.
fn set(link: &Link, change: impl FnOnce(&Link)) -> Result<()> {
    change(link);
    let faults = &link.memory().faults;
    let any = faults.corrupt_ppm.load(Ordering::Relaxed) != 0
        || faults.delay_ns.load(Ordering::Relaxed) != 0;
    link.memory().status.faulty.store(any.into(), Ordering::Release);
    Ok(())
}

/// Faults with the time of each since the start, earliest first.
///
/// Written as `link 1 down at 200ms; up at 800ms; host 2 die at 1s`: clauses end with `;`, one that
/// names no link or host is about the last one named, and one without `at` happens at the start.
/// Clauses: `link N down`, `up`, `corrupt PPM`, `delay TIME`, `dma-errors PPM`, `stuck HOST`,
/// `unstuck HOST`; `host N die`. Times: `100ns`, `50us`, `200ms`, `1s`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct FaultPlan(pub Vec<(Duration, Fault)>);

impl FromStr for FaultPlan {
    type Err = PortError;

    fn from_str(text: &str) -> Result<FaultPlan> {
        let mut subject = None;
        let mut plan = Vec::new();
        for clause in text.split(';').map(str::trim).filter(|clause| !clause.is_empty()) {
            plan.push(parse_clause(clause, &mut subject).map_err(|why| {
                PortError::Invalid(format!("fault '{clause}' is not understood: {why}"))
            })?);
        }
        plan.sort_by_key(|(at, _)| *at);
        Ok(FaultPlan(plan))
    }
}

/// What the clauses of a plan are about.
#[derive(Clone, Copy)]
pub(crate) enum Subject {
    Link(u32),
    Host(u32),
}

/// Reads one clause; `subject` is what the one before was about.
pub(crate) fn parse_clause(
    clause: &str,
    subject: &mut Option<Subject>,
) -> std::result::Result<(Duration, Fault), String> {
    let mut words: Vec<&str> = clause.split_whitespace().collect();
    let mut at = Duration::ZERO;
    if let [.., "at", time] = words[..] {
        at = parse_time(time)?;
        words.truncate(words.len() - 2);
    }
    if let [kind @ ("link" | "host"), number, ..] = words[..] {
        let index = parse_number(number)?;
        *subject = Some(if kind == "link" { Subject::Link(index) } else { Subject::Host(index) });
        words.drain(..2);
    }
    let subject = subject.ok_or("it names no link or host")?;
    let fault = match (subject, &words[..]) {
        (Subject::Link(link), ["down"]) => Fault::LinkDown { link },
        (Subject::Link(link), ["up"]) => Fault::LinkUp { link },
        (Subject::Link(link), ["corrupt", n]) => Fault::Corrupt { link, ppm: parse_ppm(n)? },
        (Subject::Link(link), ["dma-errors", n]) => Fault::DmaErrors { link, ppm: parse_ppm(n)? },
        (Subject::Link(link), ["delay", time]) => Fault::Delay { link, by: parse_time(time)? },
        (Subject::Link(link), [word @ ("stuck" | "unstuck"), host]) => {
            Fault::StuckBelief { link, host: parse_number(host)?, stuck: *word == "stuck" }
        }
        (Subject::Host(host), ["die"]) => Fault::HostDie { host },
        (Subject::Link(_), _) => {
            return Err("a link can be down, up, corrupt PPM, delay TIME, dma-errors PPM, \
                        stuck HOST, unstuck HOST"
                .into());
        }
        (Subject::Host(_), _) => return Err("a host can die".into()),
    };
    Ok((at, fault))
}

fn parse_number(word: &str) -> std::result::Result<u32, String> {
    word.parse().map_err(|_| format!("'{word}' is no number"))
}

fn parse_ppm(word: &str) -> std::result::Result<u32, String> {
    match parse_number(word)? {
        ppm @ ..=1_000_000 => Ok(ppm),
        _ => Err(format!("'{word}' is more than a million in a million")),
    }
}

/// Reads a time such as `200ms`.
pub(crate) fn parse_time(word: &str) -> std::result::Result<Duration, String> {
    let digits = word.len() - word.trim_start_matches(|c: char| c.is_ascii_digit()).len();
    let (number, unit) = word.split_at(digits);
    let unit_ns: u64 = match unit {
        "ns" => 1,
        "us" => 1_000,
        "ms" => 1_000_000,
        "s" => 1_000_000_000,
        _ => return Err(format!("'{word}' is no time such as 200ms or 1s")),
    };
    let number: u64 = number.parse().map_err(|_| format!("'{word}' is no time such as 200ms"))?;
    let ns = number.checked_mul(unit_ns).ok_or_else(|| format!("'{word}' is too long"))?;
    Ok(Duration::from_nanos(ns))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_is_read_as_it_is_written() {
        let text = "link 1 up at 800ms; down at 200ms; host 2 die at 1s; link 0 corrupt 50; \
                    delay 3us at 5ms; stuck 1; unstuck 1 at 2s; dma-errors 7";
        let ms = Duration::from_millis;
        let expected = [
            (ms(0), Fault::Corrupt { link: 0, ppm: 50 }),
            (ms(0), Fault::StuckBelief { link: 0, host: 1, stuck: true }),
            (ms(0), Fault::DmaErrors { link: 0, ppm: 7 }),
            (ms(5), Fault::Delay { link: 0, by: Duration::from_micros(3) }),
            (ms(200), Fault::LinkDown { link: 1 }),
            (ms(800), Fault::LinkUp { link: 1 }),
            (ms(1000), Fault::HostDie { host: 2 }),
            (ms(2000), Fault::StuckBelief { link: 0, host: 1, stuck: false }),
        ];
        assert_eq!(text.parse::<FaultPlan>().unwrap().0, expected);
        for (_, fault) in expected {
            let again = fault.to_string().parse::<FaultPlan>().unwrap().0;
            assert_eq!(again, [(ms(0), fault)], "{fault}");
        }
    }

    #[test]
    fn faults_are_checked_against_the_ring() {
        let check = |text: &str| {
            let plan: FaultPlan = text.parse().unwrap();
            plan.0[0].1.check(4)
        };
        for text in ["link 3 down", "host 3 die", "link 3 stuck 0", "link 1 unstuck 1"] {
            assert_eq!(check(text), Ok(()), "{text}");
        }
        for (text, expected) in [
            ("link 4 down", "'link 4 down': there is no link 4: links are numbered 0 to 3"),
            ("host 7 die", "there is no host 7: hosts are numbered 0 to 3"),
            ("link 1 stuck 4", "there is no host 4"),
            ("link 1 stuck 3", "link 1 ties hosts 1 and 2"),
        ] {
            assert!(check(text).unwrap_err().contains(expected), "{text}");
        }
    }

    #[test]
    fn what_is_wrong_with_a_plan_is_said() {
        let cases = [
            ("down at 1s", "names no link"),
            ("link x down", "'x' is no number"),
            ("link 1 down at soon", "'soon' is no time"),
            ("link 1 explode", "a link can be"),
            ("host 1 down", "a host can die"),
            ("link 1 delay 99999999999999s", "too long"),
            ("link 1 corrupt 2000000", "more than a million"),
        ];
        for (text, expected) in cases {
            let error = text.parse::<FaultPlan>().unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
