// SPDX-License-Identifier: Apache-2.0
//! What the figures of a way are, and which ceiling they are held against. For NTB links that depends on the ports
//! that the PEs have found.

use super::link;
use super::ways::{Mark, Way};
use crate::catalogue::{Op, Test};
use crate::pe::{Ceiling, Facts, Link, Ports};
use tombolo_transports::ntb::port::{LinkTiming, PcieGen};

/// A way, and what its jobs have told of the ports.
#[derive(Clone, Copy)]
pub struct Basis<'a> {
    way: &'a Way,
    ports: Option<Ports>,
    /// Links between the two PEs.
    hops: u32,
}

impl<'a> Basis<'a> {
    /// Of a way whose jobs have told this, if they have.
    pub fn new(way: &'a Way, facts: Option<&Facts>) -> Basis<'a> {
        let ports = facts.and_then(|facts| facts.ports);
        Basis { way, ports, hops: facts.map_or(1, |facts| facts.hops) }
    }

    /// The links of devices, which keep a rate.
    fn device(&self) -> Option<Link> {
        self.ports.filter(Ports::are_links)?.link
    }

    /// What the figures are.
    pub fn mark(&self) -> Mark {
        if self.device().is_some() { Mark::Measured } else { self.way.mark }
    }

    /// The ceiling of a test at a point, where it is computed and not measured; None within where nothing comparable
    /// is known.
    pub fn computed(&self, test: &Test, x: u64) -> Option<Option<f64>> {
        let timing = |link: Link| {
            let Link { generation, width, max_payload } = link;
            let speed = PcieGen::ALL.into_iter().find(|speed| *speed as u64 == generation)?;
            Some(LinkTiming { speed, width, max_payload, ..LinkTiming::default() })
        };
        if let Some(link) = self.device() {
            return Some(timing(link).and_then(|timing| link::rate(&timing, test, x)));
        }
        let timing = self.ports.and_then(|ports| ports.link).and_then(timing).unwrap_or_default();
        (self.way.mark == Mark::Modelled).then(|| link::ceiling(&timing, self.hops, test, x))
    }

    /// The ceiling in words, with what kind of figure it is; None where there is none.
    pub fn ceiling(&self, op: Op, one_machine: bool) -> Option<(String, Mark)> {
        if let Some(Link { generation, width, .. }) = self.device() {
            let words = format!("rate of one link, Gen{generation} x{width} as negotiated");
            return Some((words, Mark::Modelled));
        }
        let (words, mark) = match self.way.ceiling() {
            Ceiling::Mapped => {
                let words = match op {
                    Op::Amo => "the processor's instruction on the other PE's memory",
                    Op::Signal => "plain copy, and a cache line's way to the other PE",
                    _ => {
                        "plain copy to or from the other PE's memory, of a word by a load and a store"
                    }
                };
                (words, Mark::Measured)
            }
            Ceiling::Cma => ("the kernel's copy alone", Mark::Measured),
            Ceiling::Memory => (
                "plain copy to or from shared memory, of a word by a load and a store",
                Mark::Emulated,
            ),
            Ceiling::Tcp if one_machine => ("TCP within the machine", Mark::Measured),
            Ceiling::Tcp => ("TCP between the two machines", Mark::Measured),
            Ceiling::Libfabric => ("libfabric's provider alone", Mark::Measured),
            Ceiling::Verbs => ("the RDMA card alone", Mark::Measured),
            Ceiling::None if self.way.mark == Mark::Modelled => {
                ("rate of the link", Mark::Modelled)
            }
            Ceiling::None => return None,
        };
        Some((words.to_owned(), mark))
    }

    /// Why some figures have no ceiling.
    pub fn remark(&self) -> Option<String> {
        self.device().map(|_| {
            "times of single operations have no ceiling: how long the link takes for one is not known"
                .to_owned()
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn facts(ports: Option<Ports>) -> Facts {
        let (routes, transports) = (String::new(), Vec::new());
        Facts { hosts: 2, peer: 1, hops: 1, routes, transports, ports }
    }

    fn link(generation: u64, width: u32) -> Option<Link> {
        Some(Link { generation, width, max_payload: 256 })
    }

    #[test]
    fn figures_over_devices_are_measured_and_held_against_their_links() {
        let rate = Test::find("rate").unwrap();
        let device = facts(Some(Ports { devices: true, link: link(4, 8) }));
        for name in ["ntb:direct", "ntb:packets"] {
            let way: Way = name.parse().unwrap();
            let basis = Basis::new(&way, Some(&device));
            assert_eq!(basis.mark(), Mark::Measured);
            let (words, mark) = basis.ceiling(Op::Rate, false).unwrap();
            assert_eq!(
                (words.as_str(), mark),
                ("rate of one link, Gen4 x8 as negotiated", Mark::Modelled)
            );
            // Twice that of Gen3, and as published: 13.23 GB/s.
            let ceiling = basis.computed(rate, 1 << 20).unwrap().unwrap();
            assert!((ceiling / 13_230.0 - 1.0).abs() < 0.03, "{ceiling}");
            assert_eq!(basis.computed(Test::find("put").unwrap(), 8), Some(None));
            assert!(basis.remark().unwrap().contains("not known"));
        }
        // Of a generation that nobody knows.
        let way: Way = "ntb:direct".parse().unwrap();
        let later = facts(Some(Ports { devices: true, link: link(99, 8) }));
        assert_eq!(Basis::new(&way, Some(&later)).computed(rate, 8), Some(None));
    }

    #[test]
    fn memory_that_stands_for_a_link_is_no_device() {
        // As ivshmem of virtual machines is.
        for devices in [true, false] {
            let memory = facts(Some(Ports { devices, link: None }));
            let way: Way = "ntb:packets".parse().unwrap();
            let basis = Basis::new(&way, Some(&memory));
            assert_eq!((basis.mark(), basis.remark()), (Mark::Emulated, None));
            assert_eq!(basis.computed(Test::find("rate").unwrap(), 8), None, "measured");
            assert!(basis.ceiling(Op::Rate, true).unwrap().0.starts_with("plain copy"));
        }
    }

    #[test]
    fn modelled_links_are_held_against_their_model() {
        let way: Way = "ntb:modelled".parse().unwrap();
        let rate = Test::find("rate").unwrap();
        let of = |width| {
            let facts = facts(Some(Ports { devices: false, link: link(3, width) }));
            let basis = Basis::new(&way, Some(&facts));
            assert_eq!(basis.mark(), Mark::Modelled);
            assert_eq!(basis.ceiling(Op::Rate, true).unwrap().1, Mark::Modelled);
            basis.computed(rate, 1 << 20).unwrap().unwrap()
        };
        assert!((of(8) / of(4) - 2.0).abs() < 1e-6);
        // Other networks have ceilings of their own.
        let tcp: Way = "tcp".parse().unwrap();
        let basis = Basis::new(&tcp, Some(&facts(None)));
        assert_eq!((basis.mark(), basis.computed(rate, 8)), (Mark::Measured, None));
    }
}
