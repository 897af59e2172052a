// SPDX-License-Identifier: Apache-2.0
//! TCP between any hosts, by the sockets of the operating system and without any library.
//!
//! ```text
//! network (shared) -> rails (shared): several interfaces -> net: sockets of one interface
//!     -> listener: connections that others make; peer: a connection -> socket, frame, out
//! ```
//!
//! - There is one connection with each peer that is used, made when something is first sent. Messages, puts and
//!   gets of a pair of PEs go by it in the order issued, so that `fence` waits for nothing.
//! - What comes for memory that was named goes there from the socket without another copy.
//! - The target's processor does the work of the network: it may as well carry out short puts and gets, which
//!   keeps words whole and gathers them.
//! - While one connection is all there is, a poll is one attempt to receive from it; otherwise one question to
//!   the system which sockets have something.
//! - Nobody is listened to who does not know a number that PEs tell each other by way of the launcher.

mod congestion;
mod frame;
mod listener;
mod net;
mod out;
mod peer;
mod ports;
mod settings;
mod socket;
#[cfg(test)]
mod tests;

use crate::network::endpoint::Served;
use crate::network::open::Kind;
use crate::network::rails::Rails;
use crate::network::transport::{BackEnd, Over};
use crate::network::{Network, is_on_one_machine};
use congestion::Congestion;
use net::Net;
use ports::Ports;
use settings::TcpSettings;
use std::net::IpAddr;
use tombolo_core::config::Table;
use tombolo_core::interfaces::{self, Interface};
use tombolo_core::transport::Job;

/// The transport over TCP.
pub type Tcp = Over<Sockets>;

/// The back end.
pub struct Sockets;

/// How sockets are made.
pub struct Chosen {
    interfaces: Vec<Interface>,
    ports: Ports,
    congestion: Congestion,
}

/// The interface that a setting names; otherwise that of the address `shared`, in a network of all hosts, or the first
/// that leads where the job is.
fn choose(
    wish: &str,
    one_machine: bool,
    shared: Option<IpAddr>,
    all: &[Interface],
) -> Result<Interface, String> {
    let fits = |one: &&Interface| match (wish, shared) {
        ("", Some(address)) if !one_machine => one.address == address,
        ("", _) => one.address.is_loopback() == one_machine,
        _ => interfaces::is_on(&one.name, Some(one.address), wish),
    };
    let usable = all.iter().filter(|one| !interfaces::is_link_local(one.address));
    usable.clone().find(fits).cloned().ok_or_else(|| {
        let all: Vec<String> =
            usable.map(|one| format!("{} ({})", one.name, one.address)).collect();
        let what = match (wish, one_machine) {
            ("", false) => "no network interface leads to other hosts".into(),
            ("", true) => "the loopback interface is not up (ip link set lo up)".into(),
            _ => format!("SHMEM_TCP_INTERFACE={wish}: there is no such interface"),
        };
        match all.is_empty() {
            true => format!("{what}; none is up"),
            false => format!("{what}; those that are up: {}", all.join(", ")),
        }
    })
}

fn describe(one: &Interface) -> String {
    format!("TCP on {} ({})", one.name, one.address)
}

/// The address at which other PEs reach this one: that of the first interface. The error says why there is none.
pub fn address(job: &Job<'_>) -> Result<IpAddr, String> {
    Ok(Sockets::choose(job)?.interfaces[0].address)
}

impl BackEnd for Sockets {
    const NAME: &'static str = "tcp";
    const SETTINGS: Table = TcpSettings::TABLE;
    type Net = Rails<Net>;
    type Chosen = Chosen;

    fn choose(job: &Job<'_>) -> Result<Chosen, String> {
        let settings = TcpSettings::read(job.config.environment()).map_err(|e| e.to_string())?;
        let (all, here) = (Interface::all(), is_on_one_machine(job));
        let shared = interfaces::shared_by_all(job).first().copied();
        let wishes = settings.interface.split(',');
        let chosen = wishes.map(|wish| choose(wish.trim(), here, shared, &all));
        Ok(Chosen {
            interfaces: chosen.collect::<Result<_, _>>()?,
            ports: settings.ports,
            congestion: congestion::choose(&settings.congestion)?,
        })
    }

    fn open(
        Chosen { interfaces, ports, congestion }: Chosen,
        _job: &Job<'_>,
    ) -> Result<(Rails<Net>, Kind, Vec<String>), String> {
        let open = |one: &Interface| Net::open(one.address, &ports, congestion.clone());
        let nets = interfaces.iter().map(open).collect::<Result<_, _>>()?;
        let labels: Vec<String> = interfaces.iter().map(describe).collect();
        let mut lines = vec![labels[0].clone()];
        lines.extend(labels[1..].iter().map(|other| format!("long transfers also by {other}")));
        if let Some(name) = &congestion {
            lines.push(format!("congestion control {}", name.to_string_lossy()));
        }
        let net = Rails::new(nets, labels)?;
        lines.extend(net.describe());
        let names: Vec<&str> = interfaces.iter().map(|one| &*one.name).collect();
        let kind = Kind {
            name: Self::NAME.into(),
            medium: names.join(" and "),
            served: Served::by_processor(net.message_max()),
            max_len: net.max_len(),
            wait_fd: net.wait_fd(),
            amos_asked_for: None,
        };
        Ok((net, kind, lines))
    }

    fn unlike(theirs: &str, mine: &str) -> String {
        format!("it uses {theirs} and this PE {mine}")
    }
}
