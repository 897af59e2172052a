// SPDX-License-Identifier: Apache-2.0
//! How a link was made, as words in its memory: whoever opens it needs nothing else.

use super::layout::{SLOTS, WINDOWS};
use super::profile::{Profile, Speed, WriteCombining};
use crate::ntb::port::{LinkTiming, PcieGen, PortError, Result, Window};
use std::ops::RangeInclusive;

/// Sizes that a window can have; powers of two.
pub const WINDOW_BYTES: RangeInclusive<u64> = 1 << 20..=1 << 40;

/// What every user of a link must agree on.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LinkConfig {
    /// Number of the link: it ties host `link` to host `link + 1` (of the ring).
    pub link: u32,
    /// Hosts of the ring.
    pub hosts: u32,
    /// Rules of the hardware.
    pub profile: Profile,
    /// Whether time is modelled.
    pub speed: Speed,
    /// How stores leave the CPU.
    pub write_combining: WriteCombining,
    /// The time model.
    pub timing: LinkTiming,
    /// Windows, the same on both sides.
    pub windows: Vec<Window>,
    /// Seed of everything random on the link.
    pub seed: u64,
    /// `CLOCK_MONOTONIC` when the fabric was made, nanoseconds: the start of its clocks.
    pub started_ns: u64,
}

impl LinkConfig {
    /// Words it takes in memory.
    pub const WORDS: usize = 18 + 2 * WINDOWS;

    /// Hosts at side 0 and side 1.
    pub fn hosts_of_sides(&self) -> [u32; 2] {
        [self.link, (self.link + 1) % self.hosts]
    }

    pub(super) fn to_words(&self) -> [u64; LinkConfig::WORDS] {
        let timing = &self.timing;
        let mut words = [0; LinkConfig::WORDS];
        let head = [
            u64::from(self.link),
            u64::from(self.hosts),
            self.profile as u64,
            self.speed as u64,
            self.write_combining as u64,
            self.seed,
            self.started_ns,
            timing.speed as u64,
            u64::from(timing.width),
            u64::from(timing.max_payload),
            u64::from(timing.tlp_overhead),
            u64::from(timing.dllp_permille),
            u64::from(timing.propagation_ns),
            u64::from(timing.read_ns),
            u64::from(timing.register_write_ns),
            u64::from(timing.register_read_ns),
            u64::from(timing.doorbell_ns),
            self.windows.len() as u64,
        ];
        words[..head.len()].copy_from_slice(&head);
        for (pair, window) in words[head.len()..].chunks_exact_mut(2).zip(&self.windows) {
            pair.copy_from_slice(&[window.size, window.slots as u64]);
        }
        words
    }

    /// Reads it back; an error for anything `to_words` would not have written.
    pub(super) fn from_words(words: &[u64; LinkConfig::WORDS]) -> Result<LinkConfig> {
        let broken = |what: &str| PortError::Invalid(format!("NTB link memory: bad {what}"));
        let small = |index: usize| u32::try_from(words[index]).map_err(|_| broken("number"));
        let profile = Profile::ALL.into_iter().find(|p| *p as u64 == words[2]);
        let profile = profile.ok_or_else(|| broken("profile"))?;
        let speed = Speed::ALL.into_iter().find(|s| *s as u64 == words[3]);
        let write_combining = [WriteCombining::InOrder, WriteCombining::Adversarial];
        let write_combining = write_combining.into_iter().find(|w| *w as u64 == words[4]);
        let generation = PcieGen::ALL.into_iter().find(|g| *g as u64 == words[7]);
        let timing = LinkTiming {
            speed: generation.ok_or_else(|| broken("PCIe generation"))?,
            width: small(8)?,
            max_payload: small(9)?,
            tlp_overhead: small(10)?,
            dllp_permille: small(11)?,
            propagation_ns: small(12)?,
            read_ns: small(13)?,
            register_write_ns: small(14)?,
            register_read_ns: small(15)?,
            doorbell_ns: small(16)?,
        };
        check_timing(&timing)?;
        let count = words[17] as usize;
        if count == 0 || count > WINDOWS {
            return Err(broken("number of windows"));
        }
        let windows = words[18..].chunks_exact(2).take(count);
        let windows = windows
            .map(|pair| checked_window(profile, pair[0], pair[1]))
            .collect::<Result<Vec<Window>>>()?;
        let (link, hosts) = (small(0)?, small(1)?);
        if hosts < 2 || link >= hosts {
            return Err(broken("ring"));
        }
        Ok(LinkConfig {
            link,
            hosts,
            profile,
            speed: speed.ok_or_else(|| broken("speed"))?,
            write_combining: write_combining.ok_or_else(|| broken("write-combining model"))?,
            timing,
            windows,
            seed: words[5],
            started_ns: words[6],
        })
    }
}

/// Refuses a time model that divides by zero or whose payload is no size of a TLP.
pub(super) fn check_timing(timing: &LinkTiming) -> Result<()> {
    let payload_ok =
        timing.max_payload.is_power_of_two() && (64..=4096).contains(&timing.max_payload);
    if !payload_ok || !(1..=32).contains(&timing.width) || timing.dllp_permille >= 1000 {
        return Err(PortError::Invalid(format!(
            "the NTB time model cannot be used: payload {} (a power of two from 64 to 4096), \
             width {} (1 to 32), DLLP share {} (below 1000)",
            timing.max_payload, timing.width, timing.dllp_permille
        )));
    }
    Ok(())
}

/// A window under the rules of `profile`, from 1 MiB up.
pub(super) fn checked_window(profile: Profile, size: u64, slots: u64) -> Result<Window> {
    let size_ok = size.is_power_of_two() && WINDOW_BYTES.contains(&size);
    let slots_ok = slots.is_power_of_two() && slots <= SLOTS as u64;
    if !size_ok || !slots_ok || size / slots < 4096 {
        return Err(PortError::Invalid(format!(
            "an NTB window of {size} bytes in {slots} slots cannot be made: the size is a power \
             of two from 1 MiB to 1 TiB, slots are a power of two up to {SLOTS} and no smaller \
             than 4 KiB each"
        )));
    }
    Ok(profile.window(size, slots as usize))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config() -> LinkConfig {
        LinkConfig {
            link: 2,
            hosts: 3,
            profile: Profile::Switchtec,
            speed: Speed::Modelled,
            write_combining: WriteCombining::Adversarial,
            timing: LinkTiming { width: 4, ..LinkTiming::default() },
            windows: vec![
                checked_window(Profile::Switchtec, 1 << 20, 16).unwrap(),
                checked_window(Profile::Switchtec, 1 << 30, 1).unwrap(),
            ],
            seed: 7,
            started_ns: 9,
        }
    }

    #[test]
    fn a_link_is_read_back_as_it_was_made() {
        assert_eq!(LinkConfig::from_words(&config().to_words()).unwrap(), config());
        assert_eq!(config().hosts_of_sides(), [2, 0]);
    }

    #[test]
    fn every_broken_word_is_refused_or_harmless() {
        for index in 0..LinkConfig::WORDS {
            for value in [u64::MAX, 1 << 33, 0] {
                let mut words = config().to_words();
                words[index] = value;
                if let Ok(read) = LinkConfig::from_words(&words) {
                    assert!(read.link < read.hosts, "word {index} = {value:#x}");
                    assert!(read.windows.iter().all(|w| w.slot_size() >= 4096));
                    assert!(read.timing.line_bytes_per_s() > 0.0);
                }
            }
        }
    }
}
