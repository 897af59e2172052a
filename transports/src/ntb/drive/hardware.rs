// SPDX-License-Identifier: Apache-2.0
//! The NTB ports of this host: two, or one at an end of a line of hosts.

use super::cabling::{self, Far, HostPorts, RingPosition};
use super::sharing;
use crate::ntb::NtbSettings;
use crate::ntb::port::emulated::EmulatedPort;
use crate::ntb::port::functions::Function;
use crate::ntb::port::{AbsentPort, LinkState, NtbPort, open_ports};
use crate::ntb::settings::Ports;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use std::time::Duration;
use tombolo_core::config::Least;
use tombolo_core::transport::Job;

/// Ports and the place in the ring that they give this host.
pub struct Hardware {
    /// By [`Side`](crate::ntb::ring::Side): right, left.
    pub ports: [Arc<dyn NtbPort>; 2],
    /// Position of this host in the ring; in the job, as long as cables have not told.
    pub host: u16,
    /// Hosts of the ring.
    pub hosts: u16,
    /// Cables tell the ring.
    learns: bool,
    /// Another PE of this host has opened the ports, and hears what cables tell.
    pub beside: bool,
}

/// What figures over the links of a host depend on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PortFacts {
    /// They are devices of the machine, not ports that the launcher emulates.
    pub devices: bool,
    /// The slower one of the two links, where both keep a rate: others are as fast as memory.
    pub link: Option<LinkState>,
}

impl Hardware {
    /// What figures depend on.
    pub fn facts(&self) -> PortFacts {
        let paced = self.ports.iter().all(|port| port.capabilities().paced);
        let states = self.ports.iter().map(|port| port.link_state());
        let rate = |state: &LinkState| state.speed.lane_bytes_per_s() * f64::from(state.width);
        let slower = states.min_by(|a, b| rate(a).total_cmp(&rate(b)));
        PortFacts { devices: self.learns, link: slower.filter(|_| paced) }
    }

    /// Opens the ports; the error says to people why there are none.
    pub fn find(job: &Job<'_>, settings: &NtbSettings) -> Result<Hardware, String> {
        match settings.links {
            Some(links) => {
                let host = job.config.host.ok_or("TOMBOLO_NTB_FD is set without TOMBOLO_HOST")?;
                let opened =
                    |fd| open(fd, host).map_err(|why| format!("TOMBOLO_NTB_FD='{links}': {why}"));
                Hardware::emulated(opened(links.right)?, opened(links.left)?, host)
            }
            None => Hardware::of_machine(job, settings),
        }
    }

    fn emulated(right: EmulatedPort, left: EmulatedPort, host: u32) -> Result<Hardware, String> {
        let hosts = right.config().hosts;
        let ends = [right.peer_host(), left.peer_host()];
        if left.config().hosts != hosts || ends != [(host + 1) % hosts, (host + hosts - 1) % hosts]
        {
            return Err(format!(
                "the NTB links of host {host} lead to hosts {} and {}: not a ring of {hosts}",
                ends[1], ends[0]
            ));
        }
        Hardware::new([Arc::new(right), Arc::new(left)], [host, hosts], false)
    }

    /// Whether a host with several PEs has functions to open; the error says why not.
    pub fn check(job: &Job<'_>, settings: &NtbSettings) -> Result<(), String> {
        pick(&Function::all(), settings.ports.as_ref())?;
        match job.localities.iter().all(|place| place.host == job.localities[job.pe].host) {
            true => Err("all PEs are on one host, and need no links".into()),
            false => Ok(()),
        }
    }

    /// The ports that the first PE of this host lends.
    pub fn borrowed(job: &Job<'_>) -> Result<Hardware, String> {
        Ok(Hardware { beside: true, ..Hardware::with(sharing::borrowed(job)?, job)? })
    }

    /// Ports on PCI functions of this machine.
    fn of_machine(job: &Job<'_>, settings: &NtbSettings) -> Result<Hardware, String> {
        let functions = Function::all();
        let Picked { right, left } = pick(&functions, settings.ports.as_ref())?;
        let functions: Vec<&Function> = [Some(right), left].into_iter().flatten().collect();
        // Engines lock memory once more, so none are opened that are not wanted.
        let engines = match settings.dma {
            Least::Never => vec![],
            _ => {
                let functions: Vec<Function> = functions.iter().copied().cloned().collect();
                Function::engines(&functions)
            }
        };
        let mut ports = open_ports(&functions, &engines).map_err(|e| e.to_string())?.into_iter();
        let right = ports.next().ok_or("no port was opened")?;
        let left = ports.next().unwrap_or_else(|| Arc::new(AbsentPort::beside(right.clone())));
        Hardware::with([right, left], job)
    }

    /// By [`Side`](crate::ntb::ring::Side): whether there is no port.
    pub fn absent(&self) -> [bool; 2] {
        self.ports.each_ref().map(|port| port.is_absent())
    }

    /// Ports whose cables are still to tell where they lead.
    pub fn with(ports: [Arc<dyn NtbPort>; 2], job: &Job<'_>) -> Result<Hardware, String> {
        let hosts = job.localities.iter().map(|place| place.host_index).max().unwrap_or(0) + 1;
        Hardware::new(ports, [job.localities[job.pe].host_index, hosts], true)
    }

    fn new(
        ports: [Arc<dyn NtbPort>; 2],
        place: [u32; 2],
        learns: bool,
    ) -> Result<Hardware, String> {
        let small = |number: u32| u16::try_from(number).map_err(|_| "the ring is too large");
        let [host, hosts] = place;
        let (host, hosts) = (small(host)?, small(hosts)?);
        Ok(Hardware { ports, host, hosts, learns, beside: false })
    }

    /// Ports as tests make them, of a host that knows its place.
    #[cfg(test)]
    pub fn of_tests(ports: [Arc<dyn NtbPort>; 2], host: u16, hosts: u16) -> Hardware {
        Hardware { ports, host, hosts, learns: false, beside: false }
    }

    /// Learns who is at the far ends of the ports, where that is not known, nor heard by another PE of the host.
    pub fn meet(&self, incarnation: u32, limit: Duration) -> Result<[Option<Far>; 2], String> {
        match self.learns && !self.beside {
            true => cabling::meet(&self.ports, self.host, incarnation, limit),
            false => Ok([None; 2]),
        }
    }

    /// The place of each host of the job in the ring, from what all have heard; none where hosts
    /// know their places.
    pub fn arrange(&self, hosts: &[HostPorts]) -> Result<Option<Vec<RingPosition>>, String> {
        self.learns.then(|| cabling::arrange(hosts)).transpose()
    }
}

/// The functions of a host's ports: of one alone cables tell whether it is right or left.
#[derive(Debug)]
struct Picked<'a> {
    right: &'a Function,
    left: Option<&'a Function>,
}

fn pick<'a>(functions: &'a [Function], chosen: Option<&Ports>) -> Result<Picked<'a>, String> {
    let bound: Vec<&Function> = functions.iter().filter(|function| function.is_bound()).collect();
    if let Some(Ports { right, left }) = chosen {
        let find = |address: &str| {
            let found = bound.iter().find(|function| function.address == address);
            found.copied().ok_or_else(|| {
                format!(
                    "SHMEM_NTB_PORTS names {address}, which is no NTB function that is bound to vfio-pci \
                     and that this build drives: see oshinfo"
                )
            })
        };
        return Ok(Picked { right: find(right)?, left: left.as_deref().map(find).transpose()? });
    }
    match bound[..] {
        [left, right] => Ok(Picked { right, left: Some(left) }),
        [only] => Ok(Picked { right: only, left: None }),
        [] if functions.is_empty() => {
            Err("no NTB port on this machine, and no emulated one (oshrun --hosts makes them)"
                .into())
        }
        [] => Err(format!(
            "no NTB port of this machine can be used yet: {}; oshinfo shows the commands",
            functions.iter().map(Function::describe).collect::<Vec<_>>().join("; ")
        )),
        _ => Err(format!(
            "there are {} NTB ports: name those to use, SHMEM_NTB_PORTS=LEFT,RIGHT, among {}",
            bound.len(),
            bound.iter().map(|function| function.address.as_str()).collect::<Vec<_>>().join(", ")
        )),
    }
}

fn open(fd: RawFd, host: u32) -> Result<EmulatedPort, String> {
    let failed = |e: &dyn std::fmt::Display| format!("opening the emulated NTB port: {e}");
    // SAFETY: borrowed for this call; a number that is no open descriptor makes it fail.
    let fd = unsafe { BorrowedFd::borrow_raw(fd) };
    // The launcher had to let it through to this process; it is not for programs started from here.
    fcntl(fd, FcntlArg::F_SETFD(FdFlag::FD_CLOEXEC)).map_err(|e| failed(&e))?;
    EmulatedPort::open(fd, host).map_err(|e| failed(&e))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ntb::port::functions::Kind;

    fn functions(drivers: &[&str]) -> Vec<Function> {
        let function = |(index, driver): (usize, &&str)| Function {
            address: format!("0000:00:1{index}.0"),
            kind: Kind::IVSHMEM,
            driver: Some((*driver).to_owned()),
            group: Some(index as u32),
            in_the_way: vec![],
        };
        drivers.iter().enumerate().map(function).collect()
    }

    #[test]
    fn ports_are_the_two_that_are_bound_or_those_that_are_named() {
        let bound = functions(&["vfio-pci", "uio", "vfio-pci"]);
        let picked = |functions: &[Function], named: Option<&Ports>| {
            let Picked { right, left } = pick(functions, named).unwrap();
            (left.map(|left| left.address.clone()), right.address.clone())
        };
        let (first, third) = ("0000:00:10.0".to_owned(), "0000:00:12.0".to_owned());
        assert_eq!(picked(&bound, None), (Some(first.clone()), third.clone()));
        let named =
            |left: &str, right: &str| Ports { left: Some(left.into()), right: right.into() };
        let turned = named("0000:00:12.0", "0000:00:10.0");
        assert_eq!(picked(&bound, Some(&turned)), (Some(third.clone()), first.clone()));
        // One alone, because there are no more or because it is named.
        assert_eq!(picked(&bound[..1], None), (None, first));
        let one = Ports { left: None, right: third.clone() };
        assert_eq!(picked(&bound, Some(&one)), (None, third));
        let why = pick(&bound, Some(&named("0000:00:11.0", "0000:00:10.0"))).unwrap_err();
        assert!(why.contains("0000:00:11.0") && why.contains("oshinfo"), "{why}");
    }

    #[test]
    fn other_numbers_of_ports_are_told() {
        let told = |drivers: &[&str]| pick(&functions(drivers), None).unwrap_err();
        assert!(told(&[]).contains("no NTB port on this machine"), "{}", told(&[]));
        assert!(told(&["uio"]).contains("bound to uio"), "{}", told(&["uio"]));
        let three = told(&["vfio-pci"; 3]);
        assert!(three.contains("SHMEM_NTB_PORTS") && three.contains("0000:00:12.0"), "{three}");
    }
}
