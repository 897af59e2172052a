// SPDX-License-Identifier: Apache-2.0
//! The ports that PEs listen at, for networks whose firewalls let some through.

use std::fmt;
use std::ops::RangeInclusive;
use tombolo_core::config::Value;

/// The ports that a PE may listen at; none if the system chooses one.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Ports(Option<RangeInclusive<u16>>);

impl Ports {
    /// All of them, in the order in which a process tries them; 0 stands for the choice of the system. Processes with
    /// different numbers begin at different ports, so that the PEs of a host soon find one that is free.
    pub fn in_turn(&self, process: u32) -> impl Iterator<Item = u16> {
        let ports = self.0.clone().unwrap_or(0..=0);
        let (first, count) = (u32::from(*ports.start()), ports.len() as u32);
        (0..count).map(move |nth| (first + (process % count + nth) % count) as u16)
    }
}

impl Value for Ports {
    const FORM: &'static str =
        "auto, a port from 1 to 65535, or the first and the last of several, such as 50000-50100";

    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        if text.eq_ignore_ascii_case("auto") {
            return Ok(Ports(None));
        }
        let port = |text: &str| text.trim().parse().ok().filter(|port: &u16| *port > 0);
        let (first, last) = text.split_once('-').unwrap_or((text, text));
        let ports = port(first).zip(port(last)).map(|(first, last)| first..=last);
        let ports = ports.filter(|ports| !ports.is_empty());
        ports.map(|ports| Ports(Some(ports))).ok_or_else(|| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.0 {
            None => f.write_str("auto"),
            Some(ports) if ports.start() == ports.end() => write!(f, "{}", ports.start()),
            Some(ports) => write!(f, "{}-{}", ports.start(), ports.end()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::config::Shown;

    #[test]
    fn ports_are_read_and_shown() {
        for (text, shown) in [
            (" Auto ", "auto"),
            ("50000-50100", "50000-50100"),
            (" 50000 - 50100 ", "50000-50100"),
            ("65535", "65535"),
            ("7-7", "7"),
        ] {
            assert_eq!(Shown(&Ports::parse(text).unwrap()).to_string(), shown, "{text}");
        }
        for text in ["0", "0-5", "65536", "9-8", "-", "5-", "-5", "1-2-3", "a", "1,2", "off"] {
            let why = Ports::parse(text).unwrap_err();
            assert!(why.starts_with("expected auto, a port"), "{text}: {why}");
        }
    }

    #[test]
    fn a_process_tries_each_port_once_and_begins_where_others_do_not() {
        let tried = |text: &str, process: u32| {
            Ports::parse(text).unwrap().in_turn(process).collect::<Vec<_>>()
        };
        assert_eq!(tried("auto", 7), [0]);
        assert_eq!(tried("80", 7), [80]);
        assert_eq!(tried("50000-50003", 8), [50000, 50001, 50002, 50003]);
        assert_eq!(tried("50000-50003", 10), [50002, 50003, 50000, 50001]);
        let all = tried("1-65535", u32::MAX);
        assert_eq!(
            (all.len(), all.iter().max(), all.iter().min()),
            (65535, Some(&65535), Some(&1))
        );
    }
}
