// SPDX-License-Identifier: Apache-2.0
//! The fabric: all links of a ring of emulated hosts, as its launcher holds it.

use super::EmulatedPort;
use super::config::{LinkConfig, check_timing, checked_window};
use super::fault::{self, Fault};
use super::link::Link;
use super::profile::{Profile, Speed, WriteCombining};
use super::sys::monotonic_ns;
use crate::ntb::port::{Counters, LinkState, LinkTiming, PortError, Result};
use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::Arc;
use tombolo_core::memory::{seal, sealable};

/// Most hosts of a ring.
pub const HOSTS: u32 = 64;

/// What a ring is made of.
#[derive(Clone, Debug)]
pub struct FabricSpec {
    /// Hosts: 2 to [`HOSTS`]. Two hosts have two links between them.
    pub hosts: u32,
    /// Rules of the hardware.
    pub profile: Profile,
    /// Those of other hardware, which links take turns with: link 0 has `profile`, link 1 the first of
    /// these, and so on.
    pub others: Vec<Profile>,
    /// Whether time is modelled.
    pub speed: Speed,
    /// The time model.
    pub timing: LinkTiming,
    /// Size of every window, a power of two from 1 MiB; the profile's sizes if none.
    pub window_size: Option<u64>,
    /// Slots of every window, a power of two; by its size if none.
    pub slots: Option<usize>,
    /// How stores leave the CPU.
    pub write_combining: WriteCombining,
    /// Seed of everything random.
    pub seed: u64,
}

impl FabricSpec {
    /// `hosts` hosts with default hardware, in direct speed.
    pub fn new(hosts: u32) -> FabricSpec {
        FabricSpec {
            hosts,
            profile: Profile::default(),
            others: Vec::new(),
            speed: Speed::default(),
            timing: LinkTiming::default(),
            window_size: None,
            slots: None,
            write_combining: WriteCombining::default(),
            seed: 1,
        }
    }
}

/// The two ports of a host.
pub struct HostPorts {
    /// Towards the host one lower.
    pub left: Arc<EmulatedPort>,
    /// Towards the host one higher.
    pub right: Arc<EmulatedPort>,
}

/// All links of a ring. Link `n` ties host `n`, on its right, to host `n + 1`, on its left.
///
/// The launcher makes it and hands every process of host `h` the two descriptors of
/// [`Fabric::fds_of`]; that is all a process needs ([`EmulatedPort::open`]). Nothing is left in the
/// system when the last process is gone.
pub struct Fabric {
    links: Vec<(Link, OwnedFd)>,
}

impl Fabric {
    /// Makes the links of a ring.
    pub fn create(spec: &FabricSpec) -> Result<Fabric> {
        if !(2..=HOSTS).contains(&spec.hosts) {
            return Err(PortError::Invalid(format!(
                "a ring of {} hosts cannot be made: 2 to {HOSTS} are possible",
                spec.hosts
            )));
        }
        check_timing(&spec.timing)?;
        let windows = |profile: Profile| {
            let sizes = spec.window_size.map_or(profile.window_sizes(), |size| [size; 2]);
            let windows = sizes.map(|size| {
                let slots = spec.slots.unwrap_or(profile.slots(size));
                checked_window(profile, size, slots as u64)
            });
            windows.into_iter().collect::<Result<Vec<_>>>()
        };
        let started_ns = monotonic_ns();
        let make = |link| {
            let turn = link as usize % (1 + spec.others.len());
            let profile = [&[spec.profile][..], &spec.others].concat()[turn];
            let config = LinkConfig {
                link,
                hosts: spec.hosts,
                profile,
                speed: spec.speed,
                write_combining: spec.write_combining,
                timing: spec.timing,
                windows: windows(profile)?,
                seed: spec.seed ^ u64::from(link) << 32,
                started_ns,
            };
            let fd = sealable("tombolo-ntb-link")
                .map_err(|e| PortError::system("creating an NTB link", e))?;
            let link = Link::create(&fd, config)?;
            seal(&fd);
            Ok((link, fd))
        };
        Ok(Fabric { links: (0..spec.hosts).map(make).collect::<Result<_>>()? })
    }

    /// Opens a fabric made by another process, with the descriptors of all its links in order.
    pub fn open(fds: Vec<OwnedFd>) -> Result<Fabric> {
        let count = fds.len();
        let mut links = Vec::with_capacity(count);
        for (index, fd) in fds.into_iter().enumerate() {
            let link = Link::open(&fd)?;
            if link.config.link as usize != index || link.config.hosts as usize != count {
                return Err(PortError::Invalid(format!(
                    "link {} of {} was given as link {index} of {count}",
                    link.config.link, link.config.hosts
                )));
            }
            links.push((link, fd));
        }
        if links.is_empty() {
            return Err(PortError::Invalid("an NTB fabric without links".into()));
        }
        Ok(Fabric { links })
    }

    /// Hosts, which are as many as links.
    pub fn hosts(&self) -> u32 {
        self.links.len() as u32
    }

    /// Descriptors of all links in order. They close on exec unless told otherwise.
    pub fn fds(&self) -> Vec<BorrowedFd<'_>> {
        self.links.iter().map(|(_, fd)| fd.as_fd()).collect()
    }

    /// Descriptors of the links to the left and to the right of `host`.
    pub fn fds_of(&self, host: u32) -> Result<[BorrowedFd<'_>; 2]> {
        self.check_host(host)?;
        let left = (host + self.hosts() - 1) % self.hosts();
        Ok([left, host].map(|link| self.links[link as usize].1.as_fd()))
    }

    /// Opens both ports of a host in this process. Several hosts may live in one process: tests do.
    pub fn ports(&self, host: u32) -> Result<HostPorts> {
        let [left, right] = self.fds_of(host)?;
        Ok(HostPorts {
            left: Arc::new(EmulatedPort::open(left, host)?),
            right: Arc::new(EmulatedPort::open(right, host)?),
        })
    }

    /// Brings a fault about.
    pub fn inject(&self, fault: Fault) -> Result<()> {
        fault::inject(self, fault)
    }

    /// Counters of both ends of a link: at host `link`, and at the next one.
    pub fn counters(&self, link: u32) -> Result<[Counters; 2]> {
        let link = self.link(link)?;
        Ok([0, 1].map(|side| link.side(side).counters()))
    }

    /// Whether a link is up in truth, whatever its ends believe.
    pub fn link_state(&self, link: u32) -> Result<LinkState> {
        Ok(super::true_state(self.link(link)?))
    }

    pub(super) fn link(&self, link: u32) -> Result<&Link> {
        let found = self.links.get(link as usize);
        found.map(|(link, _)| link).ok_or_else(|| {
            PortError::Invalid(format!("there is no link {link}: the last is {}", self.hosts() - 1))
        })
    }

    /// Links of a host with the side it is on.
    pub(super) fn links_of(&self, host: u32) -> Result<[(&Link, usize); 2]> {
        self.check_host(host)?;
        let left = (host + self.hosts() - 1) % self.hosts();
        Ok([(self.link(host)?, 0), (self.link(left)?, 1)])
    }

    fn check_host(&self, host: u32) -> Result<()> {
        if host < self.hosts() {
            return Ok(());
        }
        Err(PortError::Invalid(format!(
            "there is no host {host}: the last is {}",
            self.hosts() - 1
        )))
    }
}
