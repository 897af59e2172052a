// SPDX-License-Identifier: Apache-2.0
//! How the PEs of a host share its NTB devices: the first opens them, and lends its ports to the others.
//!
//! All agree: where the first has no ports, whatever the reason, it tells the others, and none has. It goes on without
//! the transport then, while a thread of it stays until all have heard why.

use super::hardware::Hardware;
use crate::ntb::NtbSettings;
use crate::ntb::port::shared::{Server, ports};
use crate::ntb::port::{AbsentPort, NtbPort};
use std::fmt::Display;
use std::sync::{Arc, OnceLock};
use tombolo_core::transport::{Job, Meeting};

/// What a PE does about the devices of its host.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Place {
    /// Opens them for itself: there is no other PE, or links are emulated, which any process may open.
    Alone,
    /// Opens them, and lends its ports.
    First,
    /// Uses those of the first.
    Beside,
}

impl Place {
    /// That of this PE.
    pub fn of(job: &Job<'_>, settings: &NtbSettings) -> Place {
        let alone = (0..job.n_pes()).all(|pe| pe == job.pe || !job.is_local(pe));
        match job.localities[job.pe].local_index {
            _ if alone || settings.links.is_some() => Place::Alone,
            0 => Place::First,
            _ => Place::Beside,
        }
    }
}

/// Where the PE that is first lends its ports.
#[derive(Default)]
pub struct Sharing {
    server: OnceLock<Server>,
}

impl Sharing {
    /// Has the others wait for what becomes of the devices.
    pub fn begin(&self, job: &Job<'_>) -> Result<(), String> {
        if self.server.get().is_none() {
            let others = (0..job.n_pes()).filter(|pe| *pe != job.pe && job.is_local(*pe)).count();
            let server = Server::open(&meeting(job)?, others, job.config.start_timeout);
            let server =
                server.map_err(|e| format!("sharing NTB devices with the PEs of its host: {e}"))?;
            // Nobody else opens one.
            let _ = self.server.set(server);
        }
        Ok(())
    }

    /// Tells the others that there are no ports, if this is why.
    pub fn tell<T, E: Display>(&self, found: Result<T, E>) -> Result<T, E> {
        if let (Some(server), Err(why)) = (self.server.get(), &found) {
            server.refuse(&format!("the first PE of this host has no NTB ports: {why}"));
        }
        found
    }

    /// Lends the ports of a host, if there are others.
    pub fn lend(&self, hardware: &Hardware) -> Result<(), String> {
        let Some(server) = self.server.get() else { return Ok(()) };
        let present = hardware.ports.iter().filter(|port| !port.is_absent());
        let present: Vec<Arc<dyn NtbPort>> = present.cloned().collect();
        server.lend(&present).map_err(|error| error.to_string())
    }

    /// Nobody else uses the ports any more, or not for long.
    pub fn end(&mut self) {
        if let Some(server) = self.server.take() {
            server.await_end();
        }
    }
}

/// The ports that the first PE of this host lends, by [`Side`](crate::ntb::ring::Side).
pub fn borrowed(job: &Job<'_>) -> Result<[Arc<dyn NtbPort>; 2], String> {
    let ports = ports(&meeting(job)?, job.config.start_timeout).map_err(|e| e.to_string())?;
    let mut ports = ports.into_iter();
    let right = ports.next().ok_or("the first PE of this host has no NTB port")?;
    let left = ports.next().unwrap_or_else(|| Arc::new(AbsentPort::beside(right.clone())));
    Ok([right, left])
}

fn meeting(job: &Job<'_>) -> Result<Meeting, String> {
    job.meeting.ok_or_else(|| {
        format!(
            "host {} has several PEs, which have no Unix sockets to share its NTB devices by",
            job.localities[job.pe].host_name
        )
    })
}
