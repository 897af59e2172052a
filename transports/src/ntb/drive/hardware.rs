//! The two NTB ports of this host.

use crate::ntb::NtbSettings;
use crate::ntb::port::NtbPort;
use crate::ntb::port::emulated::EmulatedPort;
use nix::fcntl::{FcntlArg, FdFlag, fcntl};
use std::os::fd::{BorrowedFd, RawFd};
use std::sync::Arc;
use tombolo_core::Config;

/// Ports and the place in the ring that they give this host.
pub struct Hardware {
    /// By [`Side`](crate::ntb::ring::Side): right, left.
    pub ports: [Arc<dyn NtbPort>; 2],
    /// Position of this host.
    pub host: u16,
    /// Hosts of the ring.
    pub hosts: u16,
}

impl Hardware {
    /// Opens the ports; the error says to people why there are none.
    pub fn find(config: &Config, settings: &NtbSettings) -> Result<Hardware, String> {
        let Some(links) = settings.links else {
            return Err("no NTB port on this machine: there is no emulated one (oshrun --hosts \
                        makes them), and this build drives no NTB hardware"
                .into());
        };
        let host = config.host.ok_or("TOMBOLO_NTB_FD is set without TOMBOLO_HOST")?;
        let opened = |fd| open(fd, host).map_err(|why| format!("TOMBOLO_NTB_FD='{links}': {why}"));
        let (right, left) = (opened(links.right)?, opened(links.left)?);
        let hosts = right.config().hosts;
        let ends = [right.peer_host(), left.peer_host()];
        if left.config().hosts != hosts || ends != [(host + 1) % hosts, (host + hosts - 1) % hosts]
        {
            return Err(format!(
                "the NTB links of host {host} lead to hosts {} and {}: not a ring of {hosts}",
                ends[1], ends[0]
            ));
        }
        let small = |number: u32| u16::try_from(number).map_err(|_| "the ring is too large");
        Ok(Hardware {
            ports: [Arc::new(right), Arc::new(left)],
            host: small(host)?,
            hosts: small(hosts)?,
        })
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
