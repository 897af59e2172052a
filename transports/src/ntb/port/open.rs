// SPDX-License-Identifier: Apache-2.0
//! Ports on PCI functions of this machine.

use super::bridge::{BridgePort, Offer};
use super::engine::nearest;
use super::functions::{Function, PortName, Role};
use super::ivshmem::IvshmemPort;
use super::{NtbPort, PortError, Result, amd, engine, epf, intel, plx, switchtec, vfio};
use std::sync::Arc;

/// Opens two functions for this process alone, each as the port that drives its kind, and those of
/// `engines` that are near to them. An engine that cannot be used is told and left alone.
pub fn open_pair(functions: [&Function; 2], engines: &[Function]) -> Result<[Arc<dyn NtbPort>; 2]> {
    let devices = vfio::open(&functions)?;
    let places =
        functions.map(|function| function.place().filter(|_| function.kind.uses_engines()));
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
    let ports: Vec<_> = ports.collect::<Result<_>>()?;
    ports.try_into().map_err(|_| PortError::Unsupported("second device"))
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
