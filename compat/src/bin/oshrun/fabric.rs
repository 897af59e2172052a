// SPDX-License-Identifier: Apache-2.0
//! The links between emulated hosts, and what is to go wrong with them.

use crate::options::{Plan, Program};
use crate::spawn::Failure;
use std::ffi::OsString;
use std::os::fd::{AsRawFd, RawFd};
use std::time::Duration;
use tombolo_transports::ntb::NtbSettings;
use tombolo_transports::ntb::port::PortError;
use tombolo_transports::ntb::port::emulated::{Fabric, FabricSpec, Fault, HOSTS};

/// The ring of a job on two or more emulated hosts.
pub struct Ring {
    fabric: Option<Fabric>,
    /// What is still to come, earliest first.
    faults: std::vec::IntoIter<(Duration, Fault)>,
}

impl Ring {
    /// Makes the links that the plan asks for.
    pub fn new(plan: &Plan) -> Result<Ring, Failure> {
        let wrong = |text: String| Failure { code: 2, text };
        let hosts = plan.hosts.unwrap_or(1);
        if hosts < 2 {
            return match plan.faults.0.is_empty() {
                true => Ok(Ring { fabric: None, faults: Vec::new().into_iter() }),
                false => Err(wrong("--fault needs --hosts with at least 2 hosts".into())),
            };
        }
        if hosts > HOSTS as usize {
            return Err(wrong(format!("--hosts {hosts}: at most {HOSTS} hosts can be emulated")));
        }
        for (_, fault) in &plan.faults.0 {
            fault.check(hosts as u32).map_err(|why| wrong(format!("--fault: {why}")))?;
        }
        let spec = spec(hosts, &plan.programs[0]).map_err(wrong)?;
        let fabric = Fabric::create(&spec).map_err(|e| {
            let code = if matches!(e, PortError::Invalid(_)) { 2 } else { 1 };
            Failure { code, text: format!("--hosts: {e}") }
        })?;
        Ok(Ring { fabric: Some(fabric), faults: plan.faults.0.clone().into_iter() })
    }

    /// Descriptors of the links to the left and to the right of a host.
    pub fn links_of(&self, host: usize) -> Option<[RawFd; 2]> {
        let fds = self.fabric.as_ref()?.fds_of(host as u32).ok()?;
        Some(fds.map(|fd| fd.as_raw_fd()))
    }

    /// Takes the links of a host down whose PEs are no more: its neighbours need not find out by its
    /// silence, which may be that of a process that is stopped.
    pub fn lose(&self, host: usize) {
        if let Some(fabric) = &self.fabric {
            // The host was placed by this ring.
            let _ = fabric.inject(Fault::HostDie { host: host as u32 });
        }
    }

    /// Time of the next fault since the start of the job.
    pub fn next_fault(&self) -> Option<Duration> {
        self.faults.as_slice().first().map(|(at, _)| *at)
    }

    /// The next fault as people write it.
    pub fn next_fault_words(&self) -> String {
        self.faults.as_slice().first().map_or_else(String::new, |(_, fault)| fault.to_string())
    }

    /// Brings the next fault about. Gives the host that dies of it, and why it could not be done.
    pub fn inject(&mut self) -> (Option<usize>, Option<String>) {
        let (Some(fabric), Some((_, fault))) = (&self.fabric, self.faults.next()) else {
            return (None, None);
        };
        let failed =
            fabric.inject(fault).err().map(|e| format!("--fault: '{fault}' cannot be done: {e}"));
        match fault {
            Fault::HostDie { host } => (Some(host as usize), failed),
            _ => (None, failed),
        }
    }
}

fn spec(hosts: usize, program: &Program) -> Result<FabricSpec, String> {
    // What is set for the PEs with -x holds for their links as well. The PEs compare what they have:
    // programs that differ do not start.
    let given = program.environment.iter().cloned();
    let text = |os: OsString| os.to_string_lossy().into_owned();
    let all = std::env::vars_os().chain(given).map(|(name, value)| (text(name), text(value)));
    // What another launcher has set for this process is not for its PEs.
    let all = all.filter(|(name, _)| !name.starts_with("TOMBOLO_"));
    let settings = NtbSettings::read(&all.collect()).map_err(|e| e.to_string())?;
    let mut spec = FabricSpec::new(hosts as u32);
    spec.profile = settings.profile;
    spec.speed = settings.speed;
    spec.window_size = settings.window.map(|window| window.0);
    Ok(spec)
}
