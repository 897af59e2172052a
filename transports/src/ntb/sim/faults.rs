//! Faults to inject, and how people write them.
//!
//! Clauses are separated by `;`:
//!
//! ```text
//! link 1 down at 200us      the cable between hosts 1 and 2
//! link 1 up at 800us
//! host 2 die at 1ms         its threads stop; its links stay electrically up
//! flap 500us                a random cable goes down about so often, for up to as long
//! loss 0.001                a posted write vanishes with this probability
//! corrupt 0.001             a bit of a posted write flips
//! delay 0.01 5us            a posted write is held up, and all behind it
//! ```

use std::str::FromStr;

/// Something that happens at a known time.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Incident {
    /// A cable loses (false) or regains (true) its link.
    Link(u16, bool),
    /// A host stops.
    Die(u16),
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
}

impl Faults {
    /// Whether anything can go wrong.
    pub fn any(&self) -> bool {
        *self != Faults::default()
    }

    /// Whether writes can vanish or change while the link stays up, which only a CRC can tell.
    pub fn needs_crc(&self) -> bool {
        self.loss > 0.0 || self.corrupt > 0.0
    }

    fn clause(&mut self, words: &[&str]) -> Result<(), String> {
        match words {
            ["link", link, state @ ("up" | "down"), "at", at] => {
                let incident = Incident::Link(number(link)?, *state == "up");
                self.incidents.push((nanoseconds(at)?, incident));
            }
            ["host", host, "die", "at", at] => {
                self.incidents.push((nanoseconds(at)?, Incident::Die(number(host)?)));
            }
            ["flap", every] => match nanoseconds(every)? {
                0 => return Err("'flap 0': expected a time above 0".into()),
                every => self.flap_ns = Some(every),
            },
            ["loss", share] => self.loss = probability(share)?,
            ["corrupt", share] => self.corrupt = probability(share)?,
            ["delay", share, time] => self.delay = (probability(share)?, nanoseconds(time)?),
            _ => {
                return Err(format!(
                    "'{}' is not a fault: expected 'link N down at TIME', 'link N up at TIME', \
                     'host N die at TIME', 'flap TIME', 'loss P', 'corrupt P' or 'delay P TIME'",
                    words.join(" ")
                ));
            }
        }
        Ok(())
    }
}

impl FromStr for Faults {
    type Err = String;

    fn from_str(text: &str) -> Result<Faults, String> {
        let mut faults = Faults::default();
        for clause in text.split(';') {
            let words: Vec<&str> = clause.split_whitespace().collect();
            if !words.is_empty() {
                faults.clause(&words)?;
            }
        }
        Ok(faults)
    }
}

fn number(text: &str) -> Result<u16, String> {
    text.parse().map_err(|_| format!("'{text}': expected a number"))
}

fn probability(text: &str) -> Result<f64, String> {
    match text.parse() {
        Ok(share) if (0.0..=1.0).contains(&share) => Ok(share),
        _ => Err(format!("'{text}': expected a probability from 0 to 1")),
    }
}

fn nanoseconds(text: &str) -> Result<u64, String> {
    let units = [("ns", 1), ("us", 1_000), ("ms", 1_000_000), ("s", 1_000_000_000)];
    units
        .into_iter()
        .find_map(|(unit, scale)| {
            let count: u64 = text.strip_suffix(unit)?.parse().ok()?;
            count.checked_mul(scale)
        })
        .ok_or_else(|| format!("'{text}': expected a time such as 200us or 3ms"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn faults_read_as_written() {
        let faults: Faults =
            "link 1 down at 200us; link 1 up at 1ms; host 2 die at 3s; loss 0.5; delay 0.1 5us"
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
        for text in ["link 1 sideways", "loss 2", "flap 0us", "host x die at 1ms", "flap 3"] {
            assert!(Faults::from_str(text).unwrap_err().contains("expected"), "{text}");
        }
    }
}
