// SPDX-License-Identifier: Apache-2.0
//! Emulated rings of hosts for jobs whose PEs are threads.

use crate::{MakeTransports, run_job_of};
use std::os::fd::AsRawFd;
use tombolo_core::World;
use tombolo_transports::ntb::port::Event;
use tombolo_transports::ntb::port::emulated::{Fabric, FabricSpec, Profile, Speed, WriteCombining};

/// How hosts are tied together, and how PEs are set up to use it.
#[derive(Clone, Copy, Debug)]
pub struct Ring {
    /// Most hosts.
    pub hosts_max: usize,
    /// Whether PEs with numbers that follow each other are on one host; otherwise they are dealt to hosts in turn.
    pub in_blocks: bool,
    /// Hardware.
    pub profile: Profile,
    /// Other hardware, which every second link has.
    pub other: Option<Profile>,
    /// Size of every window, if not that of the profile.
    pub window_size: Option<u64>,
    /// Whether time is modelled.
    pub speed: Speed,
    /// How stores leave the CPU.
    pub write_combining: WriteCombining,
    /// Environment of the PEs.
    pub environment: &'static [(&'static str, &'static str)],
}

/// Every PE on a host of its own, with windows for direct access.
pub const DIRECT: Ring = Ring {
    hosts_max: 64,
    in_blocks: false,
    profile: Profile::Plx8749,
    other: None,
    window_size: None,
    speed: Speed::Direct,
    write_combining: WriteCombining::InOrder,
    environment: &[],
};
/// The same with everything over the rings, and two lanes.
pub const RING_ONLY: Ring =
    Ring { environment: &[("SHMEM_NTB_DIRECT", "off"), ("SHMEM_NTB_LANES", "2")], ..DIRECT };
/// Windows smaller than the heap.
pub const SMALL: Ring = Ring { window_size: Some(1 << 20), ..DIRECT };
/// Several PEs on a host, not the same number on both.
pub const TWO_HOSTS: Ring = Ring { hosts_max: 2, ..DIRECT };
/// The same with PEs of a host that follow each other.
pub const TWO_HOSTS_IN_BLOCKS: Ring = Ring { in_blocks: true, ..TWO_HOSTS };
/// The same as [`TWO_HOSTS`] with everything over the rings.
pub const TWO_HOSTS_SMALL: Ring = Ring { hosts_max: 2, ..SMALL };
/// Other hardware, with checksums and short packets.
pub const INTEL_CRC: Ring = Ring {
    profile: Profile::IntelGen3,
    environment: &[
        ("SHMEM_NTB_CRC", "on"),
        ("SHMEM_NTB_DIRECT", "off"),
        ("SHMEM_NTB_CHUNK", "576"),
    ],
    ..DIRECT
};
/// Stores that leave the CPU in any order unless flushed.
pub const SWITCHTEC_COMBINING: Ring =
    Ring { profile: Profile::Switchtec, write_combining: WriteCombining::Adversarial, ..DIRECT };
/// Two kinds of hardware, whose windows and doorbells differ; everything over the rings.
pub const MIXED: Ring = Ring { other: Some(Profile::Switchtec), ..RING_ONLY };
/// The same with direct windows.
pub const MIXED_DIRECT: Ring = Ring { profile: Profile::IntelGen3, environment: &[], ..MIXED };
/// With the pace of hardware.
pub const MODELLED: Ring = Ring { speed: Speed::Modelled, ..DIRECT };

/// Direct puts by DMA engines, as short as they may be.
pub const DMA: Ring = Ring { environment: &[("SHMEM_NTB_DMA", "1")], ..DIRECT };
/// Packets by DMA engines, as short as they may be, and nothing past the rings.
pub const DMA_PACKETS: Ring =
    Ring { environment: &[("SHMEM_NTB_DMA", "1"), ("SHMEM_NTB_DIRECT", "off")], ..DIRECT };
/// Direct puts and packets by DMA engines, with the pace of hardware.
pub const DMA_MODELLED: Ring = Ring { speed: Speed::Modelled, ..DMA };

impl Ring {
    /// Ties hosts for a job of `n_pes`, at least 2.
    pub fn fabric(&self, n_pes: usize) -> Fabric {
        let mut spec = FabricSpec::new(self.hosts_max.min(n_pes) as u32);
        spec.profile = self.profile;
        spec.others = self.other.into_iter().collect();
        spec.speed = self.speed;
        spec.window_size = self.window_size;
        spec.write_combining = self.write_combining;
        Fabric::create(&spec).expect("a fabric")
    }

    /// Runs a job on the hosts of `fabric`; see [`run_job_of`].
    pub fn run(
        &self,
        fabric: &Fabric,
        n_pes: usize,
        transports: &MakeTransports,
        body: impl Fn(&World) + Sync,
    ) {
        self.run_with(fabric, n_pes, &[], transports, body);
    }

    /// The same with more environment.
    pub fn run_with(
        &self,
        fabric: &Fabric,
        n_pes: usize,
        more: &[(&str, &str)],
        transports: &MakeTransports,
        body: impl Fn(&World) + Sync,
    ) {
        let environment = |pe: usize| {
            let host = match self.in_blocks {
                true => pe as u32 * fabric.hosts() / n_pes as u32,
                false => pe as u32 % fabric.hosts(),
            };
            let fds = fabric.fds_of(host).expect("a host of the fabric");
            let fds = fds.map(|fd| fd.as_raw_fd().to_string()).join(",");
            let own = [("TOMBOLO_HOST", host.to_string()), ("TOMBOLO_NTB_FD", fds)];
            let all = self.environment.iter().map(|(name, value)| (*name, value.to_string()));
            let more = more.iter().map(|(name, value)| (*name, value.to_string()));
            all.chain(own).chain(more).collect()
        };
        run_job_of(n_pes, &environment, &|_| transports(), body);
    }
}

/// Nothing is ever read across a link.
pub fn check_counters(fabric: &Fabric) {
    for link in 0..fabric.hosts() {
        for side in fabric.counters(link).expect("a link of the fabric") {
            assert_eq!(side[Event::Reads], 0, "reads across link {link}: {side}");
        }
    }
}
