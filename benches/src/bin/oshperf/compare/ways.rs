// SPDX-License-Identifier: Apache-2.0
//! Ways for data to get from PE to PE, and how a job is made to take one of them.

use crate::pe::Ceiling;
use clap::ValueEnum;
use serde::{Deserialize, Serialize};
use std::fmt;
use std::str::FromStr;

/// The ways that are tried unless some are named.
const ALL: [&str; 8] =
    ["shm", "cma", "ntb:direct", "ntb:packets", "ntb:modelled", "verbs", "tcp", "ofi"];

/// Every way, each to be measured if it can be used; libfabric only over what no other way drives.
pub fn all() -> Vec<Way> {
    let way = |name: &&str| name.parse::<Way>().expect("the name of a way");
    let unnamed = |way: Way| Way { is_named: false, ..way };
    ALL.iter().map(way).map(unnamed).collect()
}

/// What figures are figures of.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Mark {
    /// The thing itself.
    Measured,
    /// Memory that stands for a link, as fast as it allows: of emulated ports, and of virtual machines' devices.
    Emulated,
    /// The time model of a link.
    Modelled,
}

impl fmt::Display for Mark {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Mark::Measured => "measured",
            Mark::Emulated => "emulated",
            Mark::Modelled => "modelled",
        })
    }
}

/// A way.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Way {
    /// As the user names it.
    pub name: String,
    /// What makes a job take it.
    pub environment: Vec<(&'static str, String)>,
    /// Whether it leads to other hosts.
    pub across: bool,
    /// What its figures are, where NTB ports are emulated; see [`Basis`](super::basis::Basis).
    pub mark: Mark,
    /// The transport whose refusal explains why it cannot be used.
    pub transport: String,
    /// The user has named it.
    pub is_named: bool,
}

impl FromStr for Way {
    type Err = String;

    fn from_str(name: &str) -> Result<Way, String> {
        let (transport, variant) = name.split_once(':').unwrap_or((name, ""));
        let set = |name, value: &str| (name, value.to_owned());
        let (transports, mut environment, mark) = match (transport, variant) {
            ("shm", "") | ("cma", "") => (transport.to_owned(), vec![], Mark::Measured),
            ("ntb", "direct") => (
                "shm,ntb".to_owned(),
                vec![set("SHMEM_NTB_SPEED", "direct"), set("SHMEM_NTB_DIRECT", "on")],
                Mark::Emulated,
            ),
            ("ntb", "packets") => (
                "shm,ntb".to_owned(),
                vec![set("SHMEM_NTB_SPEED", "direct"), set("SHMEM_NTB_DIRECT", "off")],
                Mark::Emulated,
            ),
            ("ntb", "modelled") => (
                "shm,ntb".to_owned(),
                vec![set("SHMEM_NTB_SPEED", "modelled"), set("SHMEM_NTB_DIRECT", "off")],
                Mark::Modelled,
            ),
            ("ofi", provider) => {
                ("shm,ofi".to_owned(), vec![set("SHMEM_OFI_PROVIDER", provider)], Mark::Measured)
            }
            ("tcp", "") => ("shm,tcp".to_owned(), vec![], Mark::Measured),
            ("verbs", "") => ("shm,verbs".to_owned(), vec![], Mark::Measured),
            _ => {
                return Err(format!(
                    "there is no way '{name}'; expected one of shm, cma, ntb:direct, ntb:packets, \
                     ntb:modelled, tcp, ofi, ofi:PROVIDER, verbs"
                ));
            }
        };
        environment.insert(0, ("SHMEM_TRANSPORTS", transports));
        let across = !matches!(transport, "shm" | "cma");
        let transport = transport.to_owned();
        let name = name.to_owned();
        Ok(Way { name, environment, across, mark, transport, is_named: true })
    }
}

impl Way {
    /// What its ceiling is measured with in the job; `Ceiling::None` also where it is computed.
    pub fn ceiling(&self) -> Ceiling {
        match (self.transport.as_str(), self.mark) {
            ("shm", _) => Ceiling::Mapped,
            ("cma", _) => Ceiling::Cma,
            ("ntb", Mark::Emulated) => Ceiling::Memory,
            ("tcp", _) => Ceiling::Tcp,
            ("ofi", _) => Ceiling::Libfabric,
            ("verbs", _) => Ceiling::Verbs,
            _ => Ceiling::None,
        }
    }

    /// Why a job that took this way did not start, from what it wrote on standard error.
    pub fn refusal(&self, stderr: &str) -> String {
        let lines = || stderr.lines().map(str::trim).filter(|line| !line.is_empty());
        let tells = |line: &&str| line.contains("shmem_init: ") || line.starts_with("oshperf: ");
        let line = lines().find(tells).or_else(|| lines().next());
        let Some(line) = line else { return "the job ended without a word".to_owned() };
        let line = line.strip_prefix("oshperf: ").unwrap_or(line);
        let text = line.split_once("shmem_init: ").map_or(line, |(_, text)| text);
        let text = text.split_once("no transport reaches ").map_or(text, |(_, text)| text);
        // "PE 1: ofi: why; shm: the PEs are on different hosts; SHMEM_TRANSPORTS=..."
        let own = format!("{}: ", self.transport);
        let part = text.split_once(&own).map(|(_, rest)| rest.split("; SHMEM_").next());
        let part = part.flatten().unwrap_or(text);
        let part = part.split("; shm: ").next().unwrap_or(part);
        // The list of all that was not taken is for oshinfo.
        part.split(" (another ").next().unwrap_or(part).trim().to_owned()
    }
}

impl Ceiling {
    /// As the option of a PE has it.
    pub fn option(self) -> String {
        let value = self.to_possible_value().expect("none is hidden");
        value.get_name().to_owned()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ways_are_read_and_unknown_ones_named() {
        let (ways, named) = (all(), "ofi:tcp".parse::<Way>().unwrap());
        assert!(ways.len() == 8 && ways.iter().all(|way| !way.is_named) && named.is_named);
        for wrong in ["", "smoke", "shm:x", "ntb", "ntb:fast", "verbs:1"] {
            let why = wrong.parse::<Way>().unwrap_err();
            assert!(why.contains(&format!("'{wrong}'")) && why.contains("ntb:direct"), "{why}");
        }
    }

    #[test]
    fn refusals_are_those_of_the_transport() {
        let refusal = |way: &str, text: &str| way.parse::<Way>().unwrap().refusal(text);
        let text = "tombolo: PE 0: shmem_init: no transport reaches PE 1: shm: the PEs are on \
                    different hosts; SHMEM_TRANSPORTS=shm leaves other transports out: set \
                    SHMEM_TRANSPORTS=all\n";
        assert_eq!(refusal("shm", text), "the PEs are on different hosts");
        let text = "tombolo: PE 0: shmem_init: no transport reaches PE 1: ofi: none of the 2 offers \
                    of libfabric fits SHMEM_OFI_PROVIDER=x (another provider is asked for: tcp on \
                    lo); shm: the PEs are on different hosts; SHMEM_TRANSPORTS=shm,ofi leaves";
        let expected = "none of the 2 offers of libfabric fits SHMEM_OFI_PROVIDER=x";
        assert_eq!(refusal("ofi:x", text), expected);
        let text = "oshrun: PE 0 exited with code 1; ending the job\n\
                    oshperf: SHMEM_TRANSPORTS='shm,verbs': there is no transport \
                    'verbs'; expected one of shm, cma";
        assert!(refusal("verbs", text).contains("there is no transport 'verbs'"));
        let text = format!("oshperf: ofi: {}\n", crate::pe::over_ip("tcp;ofi_rxm"));
        assert_eq!(refusal("ofi", &text), crate::pe::over_ip("tcp;ofi_rxm"));
        assert_eq!(refusal("shm", ""), "the job ended without a word");
    }
}
