// SPDX-License-Identifier: Apache-2.0
//! Ports on PCI functions of this machine.

use super::bridge::{BridgePort, Offer};
use super::engine::nearest;
use super::functions::{Function, PortName, Role};
use super::ivshmem::IvshmemPort;
use super::{NtbPort, PortError, Result, amd, engine, epf, intel, plx, switchtec, vfio};
use std::sync::Arc;

/// Opens functions for this process alone, each as the port that drives its kind, and those of
/// `engines` that are near to them. An engine that cannot be used is told and left alone.
pub fn open_ports(functions: &[&Function], engines: &[Function]) -> Result<Vec<Arc<dyn NtbPort>>> {
    let devices = vfio::open(functions)?;
    let place = |function: &&Function| function.place().filter(|_| function.kind.uses_engines());
    let places: Vec<_> = functions.iter().map(place).collect();
    let bound: Vec<&Function> = engines.iter().filter(|engine| engine.is_bound()).collect();
    let near: Vec<_> = bound.iter().map(|engine| engine.place()).collect();
    let given = nearest::assign(&places, &near);
    let ports = devices.into_iter().zip(functions).zip(given).map(|((device, function), given)| {
        let offers = given.into_iter().filter_map(|index| offer(&device, bound[index]));
        // Before the device goes to its port: they join its address space.
        let offers: Vec<Offer> = offers.collect();
        let bridge = |port: Result<BridgePort>| {
            port.map(|port| Arc::new(port.with_engines(offers)) as Arc<dyn NtbPort>)
        };
        match function.kind.role {
            Role::Port(PortName::Ivshmem) => Ok(Arc::new(IvshmemPort::open(device)?) as _),
            Role::Port(PortName::Epf) => bridge(epf::open(device)),
            Role::Port(PortName::Plx) => bridge(plx::open(device)),
            Role::Port(PortName::Intel) => bridge(intel::open(device)),
            Role::Port(PortName::Switchtec) => bridge(switchtec::open(device)),
            Role::Port(PortName::Amd) => bridge(amd::open(device)),
            Role::Engine(_) => Err(PortError::Unsupported("link at a DMA engine")),
        }
    });
    ports.collect()
}

/// An engine in the address space of `device`.
fn offer(device: &vfio::Device, function: &Function) -> Option<Offer> {
    let opened = vfio::join(device, function).and_then(|own| engine::open(function, own));
    match (opened, function.requester()) {
        (Ok(chip), Some(requester)) => Some(Offer { chip, requester }),
        (Ok(_), None) => None,
        (Err(error), _) => {
            tracing::warn!(%error, "DMA engine {} is not used", function.address);
            None
        }
    }
}
