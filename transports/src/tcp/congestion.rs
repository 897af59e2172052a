// SPDX-License-Identifier: Apache-2.0
//! Congestion control of connections: which one, by its name in Linux.
//!
//! BBR, which some hosts have for all connections, was made for long distances. It sends no faster than a rate that it
//! has seen before. Where a program pauses between its transfers, that is far below the rate of the network. Between two
//! hosts on one machine 256 KiB took two to three times as long with it as with the others, and 1 MiB five times.

use nix::errno::Errno;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, sockopt};
use std::ffi::{OsStr, OsString};
use std::os::fd::{AsFd, OwnedFd};

/// What is taken in place of BBR, the first that may be used.
const INSTEAD: [&str; 2] = ["cubic", "reno"];

/// The congestion control of sockets; none if it is that of the host.
pub type Congestion = Option<OsString>;

/// What a setting asks for. An error if it may not be used here.
pub fn choose(wish: &str) -> Result<Congestion, String> {
    if wish == "system" {
        return Ok(None);
    }
    let flags = SockFlag::SOCK_CLOEXEC;
    // Where there are no sockets, that is what is told later.
    let Ok(socket) = socket::socket(AddressFamily::Inet, SockType::Stream, flags, None) else {
        return Ok(None);
    };
    let try_one = |name: &str| set(&socket, &Some(name.into()));
    if wish == "auto" {
        let instead = in_place_of(&of(&socket), |name| try_one(name).is_ok());
        return Ok(instead.map(OsString::from));
    }
    match try_one(wish) {
        Ok(()) => Ok(Some(wish.into())),
        Err(error) => Err(refusal(wish, error)),
    }
}

/// What is to be used instead of the congestion control of the host, if something is.
fn in_place_of(of_host: &OsStr, may_be_used: impl Fn(&str) -> bool) -> Option<&'static str> {
    let is_bbr = of_host.to_string_lossy().starts_with("bbr");
    INSTEAD.into_iter().find(|name| is_bbr && may_be_used(name))
}

/// That of a socket.
fn of(socket: &OwnedFd) -> OsString {
    let name = socket::getsockopt(socket, sockopt::TcpCongestion).unwrap_or_default();
    // The system fills it up with zeros.
    let name = name.to_string_lossy();
    name.trim_end_matches('\0').into()
}

/// Why one may not be used, and which may.
fn refusal(wish: &str, error: Errno) -> String {
    let (why, what, list) = match error {
        Errno::ENOENT => ("this host has none of this name", "there are", "available"),
        error => (error.desc(), "all users may choose", "allowed"),
    };
    let list = format!("/proc/sys/net/ipv4/tcp_{list}_congestion_control");
    let names = std::fs::read_to_string(list).unwrap_or_default();
    let names = names.split_whitespace().collect::<Vec<_>>().join(", ");
    format!("SHMEM_TCP_CONGESTION={wish}: {why}; {what}: {names}")
}

/// Gives a socket its congestion control. Those that it accepts inherit it.
pub fn set(socket: &impl AsFd, congestion: &Congestion) -> Result<(), Errno> {
    match congestion {
        Some(name) => socket::setsockopt(socket, sockopt::TcpCongestion, name),
        None => Ok(()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bbr_is_replaced_by_what_may_be_used() {
        let of = |host: &str, usable: &[&str]| {
            in_place_of(OsStr::new(host), |name| usable.contains(&name))
        };
        assert_eq!(of("bbr", &["reno", "cubic"]), Some("cubic"));
        assert_eq!(of("bbr3", &["reno"]), Some("reno"));
        assert_eq!(of("bbr", &[]), None);
        assert_eq!(of("cubic", &["reno", "cubic"]), None);
        assert_eq!(of("dctcp", &["reno", "cubic"]), None);
    }

    #[test]
    fn what_is_asked_for_is_taken_or_refused() {
        assert_eq!(choose("system"), Ok(None));
        // Every Linux has it, and lets everybody use it.
        assert_eq!(choose("reno"), Ok(Some("reno".into())));
        let why = choose("nonsense").unwrap_err();
        assert!(why.starts_with("SHMEM_TCP_CONGESTION=nonsense: this host has none"), "{why}");
        assert!(why.contains("reno"), "{why}");
        let why = refusal("cubic", Errno::EPERM);
        assert!(why.starts_with(
            "SHMEM_TCP_CONGESTION=cubic: Operation not permitted; all users may choose: reno"
        ));
    }
}
