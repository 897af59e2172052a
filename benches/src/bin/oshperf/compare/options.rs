// SPDX-License-Identifier: Apache-2.0
//! What to compare.

use super::ways::{self, Way};
use crate::catalogue::Op;
use crate::sizes::{self, Sizes};
use crate::tool;
use clap::Args;
use std::path::PathBuf;

/// Sizes unless some are given.
const SIZES: &str = "8..4M";

/// See the parts of `oshperf(1)`.
#[derive(Args)]
pub struct Options {
    /// PEs of each job
    #[arg(short = 'n', long = "pes", value_name = "COUNT", default_value = "2",
        value_parser = tool::whole(2, 1024))]
    pub pes: u32,

    /// Spread the PEs over this many emulated hosts, for every way; without it ways within a host
    /// are measured on one host and the others on two
    #[arg(long, value_name = "COUNT", value_parser = tool::whole(1, u32::MAX),
        conflicts_with = "host")]
    pub hosts: Option<u32>,

    /// Run on these machines, as `oshrun --host` does; oshperf is at the same place on each
    #[arg(long, value_name = "LIST")]
    pub host: Option<String>,

    /// The command that starts a program on another machine, as for `oshrun --rsh`
    #[arg(long, value_name = "COMMAND", requires = "host",
        value_parser = |line: &str| line.parse().map(|_: tool::Words| line.to_owned()))]
    pub rsh: Option<String>,

    /// The ways: shm, cma, ntb:direct, ntb:packets, ntb:modelled, verbs, tcp, ofi, ofi:PROVIDER; all that can be used
    /// unless given, but for ofi where it would run over the network that tcp uses
    #[arg(long = "ways", value_name = "LIST", value_delimiter = ',')]
    named: Vec<Way>,

    /// What is measured
    #[arg(
        long,
        value_name = "LIST",
        value_enum,
        value_delimiter = ',',
        default_value = "put,get,strided,amo,rate,bibw,overlap,signal,collectives,contexts"
    )]
    pub ops: Vec<Op>,

    /// Sizes in bytes: 8..4M for the powers of two, or a list such as 8,1000,64K
    #[arg(long, value_name = "SIZES", default_value = SIZES, value_parser = Sizes::read)]
    pub sizes: Sizes,

    /// Rounds; in each every way is measured once
    #[arg(long, value_name = "COUNT", default_value = "5",
        value_parser = tool::whole(1, 1000))]
    pub rounds: u32,

    /// Milliseconds for each point of each way and round
    #[arg(long, value_name = "MS", default_value = "4", value_parser = sizes::budget)]
    pub budget: f64,

    /// Write a table for spreadsheets
    #[arg(long, value_name = "FILE")]
    pub csv: Option<PathBuf>,

    /// Write everything as JSON, for `oshperf diff`
    #[arg(long, value_name = "FILE")]
    pub json: Option<PathBuf>,

    /// Write a page with plots
    #[arg(long, value_name = "FILE")]
    pub html: Option<PathBuf>,
}

impl Options {
    /// The ways that are to be measured, where they can be used.
    pub fn ways(&self) -> Vec<Way> {
        if self.named.is_empty() { ways::all() } else { self.named.clone() }
    }

    /// What is wrong with them that no option alone tells.
    pub fn mistake(&self) -> Option<String> {
        let twice = |at: &usize| self.named[..*at].contains(&self.named[*at]);
        let at = (0..self.named.len()).find(twice)?;
        Some(format!("--ways names {} twice", self.named[at].name))
    }
}
