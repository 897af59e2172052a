// SPDX-License-Identifier: Apache-2.0
//! Ports on PCI functions of this machine.

use super::functions::Function;
use super::ivshmem::IvshmemPort;
use super::{NtbPort, PortError, Result, amd, epf, intel, plx, switchtec, vfio};
use std::sync::Arc;

/// Opens two functions for this process alone, each as the port that drives its kind.
pub fn open_pair(functions: [&Function; 2]) -> Result<[Arc<dyn NtbPort>; 2]> {
    let devices = vfio::open(&functions)?;
    let ports = devices.into_iter().zip(functions).map(|(device, function)| {
        Ok(match function.kind.port {
            Some("ivshmem") => Arc::new(IvshmemPort::open(device)?) as Arc<dyn NtbPort>,
            Some("epf") => Arc::new(epf::open(device)?),
            Some("plx") => Arc::new(plx::open(device)?),
            Some("intel") => Arc::new(intel::open(device)?),
            Some("switchtec") => Arc::new(switchtec::open(device)?),
            Some("amd") => Arc::new(amd::open(device)?),
            _ => return Err(PortError::Unsupported("driver in this build")),
        })
    });
    let ports: Vec<_> = ports.collect::<Result<_>>()?;
    ports.try_into().map_err(|_| PortError::Unsupported("second device"))
}
