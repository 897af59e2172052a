// SPDX-License-Identifier: Apache-2.0
//! Which transports a process may use, and what each of them says about this machine.

use tombolo_core::config::{Shown, Transports};
use tombolo_core::transport::{Job, Locality, Transport};
use tombolo_core::{Config, Error, Result};
use tombolo_transports::{NAMES, ON_REQUEST, create};

/// What is known of a transport without a job.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Survey {
    /// Name of the transport.
    pub name: &'static str,
    /// Lines about it if it can be used, or why it cannot.
    pub state: std::result::Result<Vec<String>, String>,
}

/// An error if `SHMEM_TRANSPORTS` has a name that there is none of.
pub(crate) fn check(config: &Config) -> Result<()> {
    match config.transports.named().iter().find(|name| create(name).is_none()) {
        None => Ok(()),
        Some(name) => Err(Error::Config {
            name: "SHMEM_TRANSPORTS".into(),
            value: Shown(&config.transports).to_string(),
            why: format!("there is no transport '{name}'; expected one of {}", NAMES.join(", ")),
        }),
    }
}

/// Makes the transports that `SHMEM_TRANSPORTS` asks for, in order of preference; a name that there
/// is none of is an error.
pub(crate) fn chosen(config: &Config) -> Result<Vec<Box<dyn Transport>>> {
    check(config)?;
    let known = match &config.transports {
        Transports::AllBut(_) => NAMES.to_vec(),
        Transports::Only(_) => [NAMES, ON_REQUEST].concat(),
    };
    Ok(config.transports.choose(&known).into_iter().filter_map(create).collect())
}

/// Tries every transport on this machine, as a job of one PE would.
pub fn survey(config: &Config) -> Vec<Survey> {
    let wanted = config.transports.choose(NAMES);
    let here = Locality::alone_on(config.host.unwrap_or(0));
    let job = Job { pe: 0, localities: &[here], config, meeting: None };
    NAMES
        .iter()
        .filter_map(|name| create(name))
        .map(|transport| {
            let name = transport.name();
            let state = match wanted.contains(&name) {
                false => Err("left out by SHMEM_TRANSPORTS".to_owned()),
                true => transport.probe(&job).map(|()| transport.describe()),
            };
            Survey { name, state }
        })
        .collect()
}
