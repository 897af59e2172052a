// SPDX-License-Identifier: Apache-2.0
//! Sockets: how they are made, how both sides greet, and how they end.

use super::congestion::{self, Congestion};
use super::frame::{self, GREETING};
use nix::errno::Errno;
use nix::sys::epoll::Epoll;
use nix::sys::socket::{self, AddressFamily, SockFlag, SockType, SockaddrStorage, sockopt};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, OwnedFd};

/// A socket that does not block and sends without delay.
pub fn new(address: IpAddr, congestion: &Congestion) -> Result<OwnedFd, Errno> {
    let family = if address.is_ipv4() { AddressFamily::Inet } else { AddressFamily::Inet6 };
    let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
    let socket = socket::socket(family, SockType::Stream, flags, None)?;
    socket::setsockopt(&socket, sockopt::TcpNoDelay, &true)?;
    congestion::set(&socket, congestion)?;
    Ok(socket)
}

/// A socket that connects from an interface, whatever the system would choose.
pub fn connect(from: IpAddr, to: SocketAddr, congestion: &Congestion) -> Result<OwnedFd, Errno> {
    let socket = new(from, congestion)?;
    take_port_late(&socket);
    let from = SockaddrStorage::from(SocketAddr::new(from, 0));
    socket::bind(socket.as_raw_fd(), &from)?;
    match socket::connect(socket.as_raw_fd(), &SockaddrStorage::from(to)) {
        Ok(()) | Err(Errno::EINPROGRESS) => Ok(socket),
        Err(error) => Err(error),
    }
}

/// Has the system choose the port of this end when it connects, so that connections to different peers may have the
/// same one: an interface has some 28,000. A system that cannot do so takes a port for each connection.
fn take_port_late(socket: &OwnedFd) {
    let on: libc::c_int = 1;
    // SAFETY: reads one number.
    unsafe {
        libc::setsockopt(
            socket.as_raw_fd(),
            libc::IPPROTO_IP,
            libc::IP_BIND_ADDRESS_NO_PORT,
            (&raw const on).cast(),
            size_of_val(&on) as u32,
        );
    }
}

/// Ends a connection, of which a process that was forked may have the socket too: closing it would leave it open, and
/// the descriptor to sleep on would tell of it for ever.
pub fn end(epoll: &Epoll, socket: &OwnedFd) {
    // It may not be there, or not be connected.
    let _ = epoll.delete(socket);
    let _ = socket::shutdown(socket.as_raw_fd(), socket::Shutdown::Both);
}

/// Sends the own greeting by a connection by which nothing was sent. One whose socket has no room for so few bytes is
/// not used.
pub fn greet(socket: &OwnedFd, to: u64, from: u64) -> Result<(), Errno> {
    let greeting = frame::greeting(to, from);
    match socket::send(socket.as_raw_fd(), &greeting, socket::MsgFlags::MSG_NOSIGNAL)? {
        GREETING => Ok(()),
        _ => Err(Errno::ENOBUFS),
    }
}

/// The part of a greeting that has come.
#[derive(Default)]
pub struct Greeting {
    pub bytes: [u8; GREETING],
    have: usize,
}

impl Greeting {
    /// Takes what has come of it: whether that is all.
    pub fn read(&mut self, socket: &OwnedFd) -> Result<bool, i32> {
        let rest = &mut self.bytes[self.have..];
        match socket::recv(socket.as_raw_fd(), rest, socket::MsgFlags::empty()) {
            Ok(0) => Err(libc::ECONNRESET),
            Ok(came) => {
                self.have += came;
                Ok(self.have == GREETING)
            }
            Err(Errno::EAGAIN | Errno::EINTR) => Ok(false),
            Err(error) => Err(error as i32),
        }
    }
}
