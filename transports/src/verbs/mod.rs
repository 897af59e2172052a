// SPDX-License-Identifier: Apache-2.0
//! Verbs: InfiniBand, RoCE, and RoCE in software.
//!
//! ```text
//! network, rails (shared) -> net: connections, one queue for completions -> card, link, datagrams -> sys
//! choose: which device, port and address       hello: how two PEs connect       queue: what has ended
//! amos: which atomic operations the card does
//! ```
//!
//! - The library is loaded at run time, and only where the transport is wanted; without it, or without a
//!   device, the transport says so and is not used.
//! - A port is taken when it has worked in a trial of puts, gets and messages. Several that are named share
//!   long transfers, and go on without one that fails ([`crate::network::rails`]); cards then carry out AMOs
//!   only where they are asked to, because those under way are lost with the first card.
//! - A PE has one reliable connection to each PE that it uses, made when it is first used ([`hello`]).
//!   Buffers for messages are shared by all of them. The heap and static data are registered, and so
//!   held in memory, once; pages that the card fetches on demand are not used, because only some cards
//!   have them and each first access takes long.
//!
//! # AMOs
//!
//! Cards add to variables of 8 bytes, and compare and swap them; to read is to add nothing. `SHMEM_VERBS_AMO`
//! decides whether they do. What a card's operations exclude it says itself:
//!
//! - Each other, and not those of processors: most cards, and rxe. They are offered as `device_amos`, so
//!   that the core uses them for all AMOs of 8 bytes on the variables of a PE, or for none: where several
//!   PEs of a host map each other's memory, the target's processor carries out all. A PE reaches its own
//!   variables by a connection to itself. What the card does not have the core makes of compare-and-swap,
//!   which takes two round trips; a signal that sets is a store, and as before.
//! - Those of processors too: some cards, over PCI Express. Then the card does what it has and the target's
//!   processor the rest, wherever the variable is, and a PE's own processor goes on by itself.
//!
//! The card is used where it can be, because fetch-add and compare-and-swap then take no longer when the
//! target's processor is busy, and locks and counters are made of these. Other things take longer: AMOs of
//! a PE on its own variables, those made of compare-and-swap, and many without a result, which travel
//! together to a processor. A program that lives by these is better served by `target`. Variables of 4
//! bytes are the processor's always.
//!
//! # When a put is complete
//!
//! The contract wants a put to be visible to everybody at the target. The InfiniBand specification
//! (volume 1, rules on RDMA WRITE) does not promise that of an acknowledged write: its data may be on
//! their way from the card to memory. It names what the target may rely on: that a message which was
//! posted later on the connection has come in, or that a later atomic operation has changed memory. And
//! it has the target carry out an RDMA READ after the writes before it: it returns what they wrote.
//! A card fetches that over the bus on which it has sent the writes, which a read does not overtake on
//! PCI Express.
//!
//! So a write, or a variable that the card changes, is taken for complete when a read of a byte has ended
//! that was posted after it on the same connection, at the place of the last write. Nobody reads after
//! each: a read is posted when somebody waits, or when many writes do ([`queue`]). A signal is a message
//! after the data, and needs no read.
//!
//! Where the device is software, the kernel of the target has copied the data before it acknowledges
//! them: there the acknowledgement is enough, and one is asked for with the last of many writes.
//! `SHMEM_VERBS_CONFIRM` decides otherwise.
//!
//! # Words
//!
//! A card writes aligned words of up to 8 bytes whole. The kernel copies bytes in whichever order its
//! processor likes: with devices that are software, puts and gets of words are messages, and the
//! target's processor carries them out.
//!
//! # Order
//!
//! Writes of one connection reach memory in the order posted (the memory is not registered for relaxed
//! order), and a message that follows them is told of when they have. `fence` therefore waits for
//! nothing; what follows a fence waits in the card for reads and AMOs before it.

mod amos;
mod card;
mod choose;
mod datagrams;
mod devices;
mod hello;
mod link;
mod net;
mod queue;
mod settings;
mod sys;

use crate::network::endpoint::Served;
use crate::network::open::{Kind, random};
use crate::network::rails::Rails;
use crate::network::transport::{BackEnd, Over};
use crate::network::{is_on_one_machine, trial};
use amos::Domain;
use card::{Card, Port};
use choose::{DeviceState, GidKind};
use devices::Devices;
use net::{Manner, Net};
use settings::{AmoBy, VerbsSettings};
use sys::Library;
use tombolo_core::config::Table;
use tombolo_core::interfaces::shared_by_all;
use tombolo_core::transport::Job;

/// Messages that may come in at a time; the engine posts no more buffers.
const RECEIVES: u32 = 128;

/// The transport over verbs.
pub type Verbs = Over<Cards>;

/// The back end.
pub struct Cards;

/// The ports that work, all of one kind.
pub struct Chosen {
    devices: Devices,
    lanes: Vec<Lane>,
    /// By the user: the card is to carry out AMOs.
    amos_asked_for: bool,
    /// What was tried before and does not work, and why.
    failed: Vec<String>,
}

/// One of them.
struct Lane {
    index: usize,
    state: DeviceState,
    port: Port,
    ends_prove: bool,
    domain: Domain,
}

fn choose(job: &Job<'_>) -> Result<Chosen, String> {
    let settings = VerbsSettings::read(job.config.environment()).map_err(|e| e.to_string())?;
    let wishes = choose::wishes(&settings.device, &settings.port)?;
    let library = Library::get()?;
    let devices = Devices::list(library)?;
    let states = devices.states();
    let amos_asked_for = settings.amo == AmoBy::Card;
    let amo = match settings.amo {
        // Of several cards one may fail, and with it what it had under way.
        AmoBy::Auto if wishes.len() > 1 => AmoBy::Target,
        amo => amo,
    };
    let (here, shared) = (is_on_one_machine(job), shared_by_all(job));
    let (mut lanes, mut failed): (Vec<Lane>, _) = (vec![], vec![]);
    for (device, number) in wishes {
        let mut candidates = choose::candidates(&states, &device, number)?;
        candidates.retain(|(index, number)| {
            !lanes.iter().any(|lane| lane.index == *index && u32::from(lane.port.number) == *number)
        });
        let told =
            |index: usize, number: u32, why| format!("{} port {number}: {why}", states[index].name);
        let mut ports = vec![];
        for (index, number) in candidates {
            let card = devices.open(index);
            let port = |card: Card| {
                Ok((index, card.choose_port(number, settings.gid, here, &shared)?, card))
            };
            match card.and_then(port) {
                Ok(port) => ports.push(port),
                Err(why) => failed.push(told(index, number, why)),
            }
        }
        ports.sort_by_key(|(index, port, _)| {
            choose::precedence(states[*index].is_software, port.link, &port.gid, &shared)
        });
        let found = ports.into_iter().find_map(|(index, port, card)| {
            let state = states[index].clone();
            let ends_prove = settings.confirm.is_by_acknowledgement(state.is_software);
            let domain = card.atomic_operations().and_then(|domain| domain.wished(amo));
            let lane = domain.map(|domain| Lane { index, state, port, ends_prove, domain });
            let works = lane.and_then(|lane| lane.that_works(&devices, amo, &mut failed));
            works.map_err(|why| failed.push(told(index, port.number.into(), why))).ok()
        });
        lanes.push(found.ok_or_else(|| match failed.is_empty() {
            true => "one RDMA port is named twice".into(),
            false => format!("no RDMA device works: {}", failed.join("; ")),
        })?);
    }
    Ok(Chosen { devices, lanes, amos_asked_for, failed })
}

impl Lane {
    /// This one, if it works when tried.
    fn that_works(
        mut self,
        devices: &Devices,
        amo: AmoBy,
        failed: &mut Vec<String>,
    ) -> Result<Lane, String> {
        match self.try_out(devices) {
            Ok(()) => {}
            // Without those operations it may do.
            Err(why) if amo != AmoBy::Card && self.domain != Domain::None => {
                self.domain = Domain::None;
                self.try_out(devices)?;
                let (name, number) = (&self.state.name, self.port.number);
                failed.push(format!("{name} port {number} with AMOs of the card: {why}"));
            }
            Err(why) => return Err(why),
        }
        Ok(self)
    }

    fn try_out(&self, devices: &Devices) -> Result<(), String> {
        trial::run(self.open(devices)?, self.open(devices)?)
    }

    fn open(&self, devices: &Devices) -> Result<Net, String> {
        let manner = Manner {
            is_software: self.state.is_software,
            ends_prove: self.ends_prove,
            domain: self.domain,
            receives: RECEIVES,
            id: random()?,
        };
        Net::open(devices.open(self.index)?, self.port, &manner)
    }

    /// Only ports of one kind reach each other.
    fn kind(&self) -> String {
        let wire = match (self.port.link, self.port.gid.kind) {
            (sys::LINK_INFINIBAND, _) => "InfiniBand",
            (_, GidKind::V1) => "RoCE v1",
            _ => "RoCE v2",
        };
        let software = if self.state.is_software { " in software" } else { "" };
        format!("{wire}{software}")
    }

    fn describe(&self) -> String {
        let Port { number, gid, .. } = &self.port;
        let (name, address) = (&self.state.name, choose::address(&gid.gid));
        format!("device {name}, port {number}, GID {} ({address})", gid.index)
    }
}

impl Chosen {
    fn describe(&self) -> Vec<String> {
        let (first, others) = self.lanes.split_first().expect("one at least");
        let (kind, what) = (first.kind(), first.describe());
        let mut lines = vec![format!("{kind}, {what}: the first that worked when tried")];
        lines.extend(
            others.iter().map(|lane| format!("long transfers also by {}", lane.describe())),
        );
        lines.extend(self.failed.iter().map(|why| format!("failed: {why}")));
        let shown = if first.ends_prove { "their acknowledgement" } else { "a read after them" };
        lines.push(format!("{shown} shows puts to have arrived"));
        lines.push(first.domain.describe().into());
        lines
    }
}

impl BackEnd for Cards {
    const NAME: &'static str = "verbs";
    const SETTINGS: Table = VerbsSettings::TABLE;
    type Net = Rails<Net>;
    type Chosen = Chosen;

    fn choose(job: &Job<'_>) -> Result<Chosen, String> {
        choose(job)
    }

    fn open(chosen: Chosen, _job: &Job<'_>) -> Result<(Rails<Net>, Kind, Vec<String>), String> {
        let nets = chosen.lanes.iter().map(|lane| lane.open(&chosen.devices));
        let labels = chosen.lanes.iter().map(Lane::describe).collect();
        let net = Rails::new(nets.collect::<Result<_, _>>()?, labels)?;
        let first = &chosen.lanes[0];
        let name = |lane: &Lane| format!("{} port {}", lane.state.name, lane.port.number);
        let names: Vec<String> = chosen.lanes.iter().map(name).collect();
        let kind = Kind {
            name: first.kind(),
            medium: names.join(" and "),
            served: if first.state.is_copied { Served::WORDS } else { Served::BY_DEVICE },
            max_len: net.max_len(),
            wait_fd: net.wait_fd(),
            amos_asked_for: (chosen.amos_asked_for && first.domain == Domain::Card)
                .then_some("SHMEM_VERBS_AMO=card"),
        };
        let mut description = chosen.describe();
        description.extend(net.describe());
        Ok((net, kind, description))
    }

    fn unlike(theirs: &str, mine: &str) -> String {
        format!("it uses {theirs} and this PE {mine}: see SHMEM_VERBS_DEVICE and SHMEM_VERBS_GID")
    }
}
