// SPDX-License-Identifier: Apache-2.0
//! Connections of TCP that libfabric before 1.18 cannot close itself.
//!
//! The answer to a read that has half arrived stands in two lists of a connection of its provider `tcp` (and
//! `net`). Closing the connection ends what is in either, so that the read fails twice, the second time
//! without its context, through which the layer `ofi_rxm` reads: the process dies of SIGSEGV
//! (`tcpx_ep_flush_all_queues` in `tcpx_ep.c`, `rxm_handle_comp_error` in `rxm_cq.c`). A connection whose
//! socket fails is closed rightly: so where reads are under way, the socket is made to fail first.

use super::sys::FiAddr;
use nix::sys::socket::{Shutdown, SockaddrStorage, getpeername, getsockname, shutdown};
use std::ffi::{OsStr, c_void};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::RawFd;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Whether connections of a provider are concerned in a version of the library.
pub fn are_fragile(provider: &str, version: (u32, u32)) -> bool {
    matches!(provider, "tcp;ofi_rxm" | "net;ofi_rxm") && version < (1, 18)
}

/// How long the library may take to close what was broken; it looks for that every 10 ms.
const BREAKING: Duration = Duration::from_millis(200);

/// Reads under way, by context.
pub struct Reads(Vec<(*mut c_void, FiAddr)>);

impl Reads {
    /// None, with room for so many.
    pub fn up_to(most: usize) -> Reads {
        Reads(Vec::with_capacity(most))
    }

    pub fn add(&mut self, context: *mut c_void, from: FiAddr) {
        self.0.push((context, from));
    }

    /// An operation has ended, maybe a read.
    pub fn end(&mut self, context: *mut c_void) {
        if let Some(at) = self.0.iter().position(|(one, _)| *one == context) {
            self.0.swap_remove(at);
        }
    }

    /// Whether there are any from a peer.
    pub fn are_under_way(&self, from: FiAddr) -> bool {
        self.0.iter().any(|(_, one)| *one == from)
    }
}

/// The socket address in these bytes, if they are one of IP, in the form of the system.
pub fn address(bytes: &[u8]) -> Option<SocketAddr> {
    let family = u16::from_ne_bytes(*bytes.first_chunk()?);
    let port = u16::from_be_bytes(*bytes.get(2..)?.first_chunk()?);
    let ip = match i32::from(family) {
        libc::AF_INET => IpAddr::from(*bytes.get(4..)?.first_chunk::<4>()?),
        libc::AF_INET6 => IpAddr::from(*bytes.get(8..)?.first_chunk::<16>()?),
        _ => return None,
    };
    Some(SocketAddr::new(ip, port))
}

fn of(address: &SockaddrStorage) -> Option<SocketAddr> {
    let v4 = address.as_sockaddr_in().map(|at| (IpAddr::V4(at.ip()), at.port()));
    let found = v4.or_else(|| address.as_sockaddr_in6().map(|at| (IpAddr::V6(at.ip()), at.port())));
    found.map(SocketAddr::from)
}

/// A connected socket of this process.
#[derive(Debug)]
pub struct Connection {
    fd: RawFd,
    /// What the system calls it, which no later socket is called.
    name: PathBuf,
}

fn entry(fd: RawFd) -> PathBuf {
    Path::new("/proc/self/fd").join(fd.to_string())
}

impl Connection {
    /// Those of an endpoint that listens at `own` with one that listens at `peer`. Which of those that the
    /// host of `peer` has opened is its own cannot be seen: then all of that host that are in trouble.
    pub fn between(own: SocketAddr, peer: SocketAddr) -> Vec<Connection> {
        let numbers = std::fs::read_dir("/proc/self/fd").into_iter().flatten().flatten();
        let number = |name: &OsStr| name.to_str()?.parse().ok();
        let sockets = numbers.filter_map(|entry| number(&entry.file_name())).filter_map(|fd| {
            let far = of(&getpeername::<SockaddrStorage>(fd).ok()?)?;
            let near = of(&getsockname::<SockaddrStorage>(fd).ok()?)?;
            let connection = Connection { fd, name: std::fs::read_link(entry(fd)).ok()? };
            (far.ip() == peer.ip() && near.ip() == own.ip()).then_some((near, far, connection))
        });
        let (opened_here, others): (Vec<_>, Vec<_>) =
            sockets.partition(|(_, far, _)| far.port() == peer.port());
        let opened_there = others
            .into_iter()
            .filter(|(near, _, connection)| near.port() == own.port() && connection.is_troubled());
        let found: Vec<_> = match opened_here.is_empty() {
            true => opened_there.collect(),
            false => opened_here,
        };
        found.into_iter().map(|(_, _, connection)| connection).collect()
    }

    /// Whether the other end has closed it, or does not acknowledge what was sent.
    fn is_troubled(&self) -> bool {
        /// As the system numbers states (`tcp_states.h`).
        const ESTABLISHED: u8 = 1;
        let mut info = [0u8; 8];
        let mut len = info.len() as u32;
        // SAFETY: at most `len` bytes are written.
        let found = unsafe {
            let place = info.as_mut_ptr().cast();
            libc::getsockopt(self.fd, libc::IPPROTO_TCP, libc::TCP_INFO, place, &raw mut len)
        };
        let [state, _, retransmits, ..] = info;
        found == 0 && (state != ESTABLISHED || retransmits > 0)
    }

    /// Ends it at once, both ways. Whoever looks at it next finds an error.
    pub fn abort(&self) {
        let none = libc::sockaddr { sa_family: libc::AF_UNSPEC as u16, sa_data: [0; 14] };
        // SAFETY: an address of its own length. To connect to no address drops what has arrived.
        unsafe { libc::connect(self.fd, &raw const none, size_of_val(&none) as u32) };
        // Without this nobody is told. It says that there is no connection, and does it nonetheless.
        let _ = shutdown(self.fd, Shutdown::Both);
    }

    /// Whether it was not closed so far.
    pub fn is_open(&self) -> bool {
        std::fs::read_link(entry(self.fd)).is_ok_and(|name| name == self.name)
    }
}

/// Ends connections; true when the library, which `look` has look at its sockets, has closed them all.
pub fn break_all(connections: &[Connection], mut look: impl FnMut()) -> bool {
    connections.iter().for_each(Connection::abort);
    let begun = Instant::now();
    while connections.iter().any(Connection::is_open) {
        if begun.elapsed() > BREAKING {
            return false;
        }
        look();
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::{Read, Write};
    use std::net::{TcpListener, TcpStream};
    use std::os::fd::AsRawFd;

    fn listener() -> (TcpListener, SocketAddr) {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a port");
        let address = listener.local_addr().expect("its address");
        (listener, address)
    }

    fn fds(connections: &[Connection]) -> Vec<RawFd> {
        connections.iter().map(|one| one.fd).collect()
    }

    #[test]
    fn a_connection_is_found_from_both_ends_and_fails_at_once() {
        let ((own, own_address), (_, other)) = (listener(), listener());
        let mut out = TcpStream::connect(own_address).expect("a connection");
        let (mut accepted, _) = own.accept().expect("a connection");
        assert!(
            Connection::between(other, own_address).iter().all(|one| one.fd == out.as_raw_fd())
        );
        assert_eq!(fds(&Connection::between(own_address, other)), [0; 0], "of another peer, maybe");
        out.write_all(b"half").expect("a connection");
        out.shutdown(std::net::Shutdown::Write).expect("a connection");
        let found = Connection::between(own_address, other);
        assert_eq!(fds(&found), [accepted.as_raw_fd()]);
        accepted.set_nonblocking(true).expect("a socket");
        assert!(!break_all(&found, || ()), "nobody has closed it");
        let mut bytes = [0; 8];
        assert!(accepted.read(&mut bytes).is_err() || bytes == [0; 8]);
        let mut accepted = Some(accepted);
        assert!(break_all(&found, || drop(accepted.take())));
        assert!(out.read(&mut bytes).map_or(true, |count| count == 0));
    }

    #[test]
    fn the_connection_to_one_peer_of_a_host_is_told_from_others() {
        let ((_own, own_address), (a, a_address), (b, b_address)) =
            (listener(), listener(), listener());
        let to_a = TcpStream::connect(a_address).expect("a connection");
        let to_b = TcpStream::connect(b_address).expect("a connection");
        let (_at_a, _at_b) = (a.accept(), b.accept());
        assert_eq!(fds(&Connection::between(own_address, a_address)), [to_a.as_raw_fd()]);
        assert_eq!(fds(&Connection::between(own_address, b_address)), [to_b.as_raw_fd()]);
    }

    #[test]
    fn addresses_are_read_and_other_bytes_are_not() {
        let mut bytes = [0; 16];
        bytes[..8].copy_from_slice(&[libc::AF_INET as u8, 0, 0x12, 0x34, 10, 99, 0, 1]);
        assert_eq!(address(&bytes), Some(SocketAddr::from(([10, 99, 0, 1], 0x1234))));
        assert_eq!(address(&bytes[..3]), None);
        assert_eq!(address(&[0; 16]), None);
    }

    #[test]
    fn reads_are_known_until_they_end() {
        let mut reads = Reads::up_to(2);
        let mut places = [0u8; 2];
        let [a, b] = places.each_mut().map(|place| std::ptr::from_mut(place).cast::<c_void>());
        reads.add(a, 1);
        reads.add(b, 2);
        reads.end(a);
        reads.end(a);
        assert!(!reads.are_under_way(1) && reads.are_under_way(2));
    }
}
