// SPDX-License-Identifier: Apache-2.0
//! Where others connect, and the connections they have made until it is known whose they are.

use super::congestion::Congestion;
use super::frame;
use super::ports::Ports;
use super::socket::{Greeting, end, new};
use nix::errno::Errno;
use nix::sys::epoll::{Epoll, EpollEvent, EpollFlags};
use nix::sys::socket::{self, SockaddrStorage, sockopt};
use std::net::{IpAddr, SocketAddr};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::sync::Once;
use tombolo_core::config::Shown;

/// Connections that are kept while it is not known whose they are, beside one for each peer.
pub const ACCEPTED_MAX: usize = 64;
/// Looks, each a quarter of a second, after which one is closed that has not greeted.
const PATIENCE: u32 = 20;

/// This process or the machine has no room for another socket, which may change.
pub const NO_ROOM: [Errno; 4] = [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM];

/// What an event of the descriptor belongs to that is not a peer's: the listener, or the accepted connection whose
/// number has this bit added.
pub const LISTENER: u64 = u64::MAX;
pub const ACCEPTED: u64 = 1 << 40;

/// See the module.
pub struct Listener {
    socket: OwnedFd,
    pub address: SocketAddr,
    /// The socket is left alone while this process can open no more.
    is_paused: bool,
    /// The oldest first.
    accepted: Vec<Accepted>,
    /// How many were accepted so far.
    arrivals: u64,
}

/// A connection that somebody else has made.
struct Accepted {
    socket: OwnedFd,
    greeting: Greeting,
    /// Its number among all that were accepted.
    arrival: u64,
    /// Looks since then.
    age: u32,
    /// The token of the PE that has made it, when its greeting has come.
    from: Option<u64>,
}

impl Listener {
    /// Listens at an address of this host, on the first of the ports that is free.
    pub fn open(
        address: IpAddr,
        ports: &Ports,
        congestion: &Congestion,
        epoll: &Epoll,
    ) -> Result<Listener, String> {
        let mut tried = ports.in_turn(std::process::id()).map(|port| {
            let at = SocketAddr::new(address, port);
            listening(at, congestion).map_err(|(what, error)| (what, at, error))
        });
        let socket = match tried.find(|one| !matches!(one, Err((.., Errno::EADDRINUSE)))) {
            Some(Ok(socket)) => socket,
            Some(Err((what, at, error))) => return Err(format!("{what} at {at}: {error}")),
            None => {
                let ports = Shown(ports);
                return Err(format!("no port is free at {address} (SHMEM_TCP_PORTS={ports})"));
            }
        };
        let port = socket::getsockname::<SockaddrStorage>(socket.as_raw_fd())
            .map(|name| port_of(&name))
            .map_err(|e| format!("getsockname at {address}: {e}"))?;
        listen_to(epoll, &socket).map_err(|e| format!("epoll at {address}: {e}"))?;
        let address = SocketAddr::new(address, port);
        Ok(Listener { socket, address, is_paused: false, accepted: vec![], arrivals: 0 })
    }

    /// How many connections there are of which it is not known whose they are.
    pub fn accepted(&self) -> usize {
        self.accepted.len()
    }

    /// Accepts a connection, if there is one: its number.
    pub fn accept(&mut self, epoll: &Epoll, peers: usize) -> Option<u64> {
        let flags = libc::SOCK_NONBLOCK | libc::SOCK_CLOEXEC;
        let (no_address, no_len) = (std::ptr::null_mut(), std::ptr::null_mut());
        // SAFETY: asks for no address; a descriptor of this process's own comes back.
        let fd = unsafe { libc::accept4(self.socket.as_raw_fd(), no_address, no_len, flags) };
        if fd < 0 {
            let error = Errno::last();
            if NO_ROOM.contains(&error) {
                self.is_paused = epoll.delete(&self.socket).is_ok();
                tell_of_no_room(error);
            }
            return None;
        }
        // SAFETY: just made, and nobody else's.
        let socket = unsafe { OwnedFd::from_raw_fd(fd) };
        let _ = socket::setsockopt(&socket, sockopt::TcpNoDelay, &true);
        self.arrivals += 1;
        let (greeting, arrival) = (Greeting::default(), self.arrivals);
        epoll.add(&socket, EpollEvent::new(EpollFlags::EPOLLIN, ACCEPTED | arrival)).ok()?;
        self.make_room(epoll, peers);
        self.accepted.push(Accepted { socket, greeting, arrival, age: 0, from: None });
        Some(arrival)
    }

    /// Where there are too many by which no greeting has come, closes the oldest.
    fn make_room(&mut self, epoll: &Epoll, peers: usize) {
        let strangers = || self.accepted.iter().map(|one| one.from.is_none());
        if strangers().filter(|is_strange| *is_strange).count() >= peers + ACCEPTED_MAX
            && let Some(oldest) = strangers().position(|is_strange| is_strange)
        {
            end(epoll, &self.accepted.remove(oldest).socket);
        }
    }

    /// Something has come by an accepted connection: the token of whoever has made it, if that is all of a greeting for
    /// the owner of the token `to`. What is no such greeting ends the connection.
    pub fn read_greeting(&mut self, epoll: &Epoll, arrival: u64, to: u64) -> Option<u64> {
        let at = self.accepted.iter().position(|one| one.arrival == arrival)?;
        let one = &mut self.accepted[at];
        let from = match one.greeting.read(&one.socket) {
            Ok(false) => return None,
            Ok(true) => frame::greeted(&one.greeting.bytes, to),
            Err(_) => None,
        };
        one.from = from;
        if from.is_some() {
            // Nothing more comes before it is answered.
            let _ = epoll.delete(&one.socket);
        } else {
            end(epoll, &self.accepted.remove(at).socket);
        }
        from
    }

    /// Gives away the connection that the PE with this token has made: the last one, if it has given up others.
    pub fn take(&mut self, epoll: &Epoll, from: u64) -> Option<OwnedFd> {
        let at = self.accepted.iter().rposition(|one| one.from == Some(from))?;
        let socket = self.accepted.remove(at).socket;
        self.refuse(epoll, from);
        Some(socket)
    }

    /// Ends connections that the PE with this token has made.
    pub fn refuse(&mut self, epoll: &Epoll, from: u64) {
        self.accepted.retain(|one| {
            let stays = one.from != Some(from);
            if !stays {
                end(epoll, &one.socket);
            }
            stays
        });
    }

    /// Four times a second: closes connections of strangers, and listens again where there was no room.
    pub fn look(&mut self, epoll: &Epoll) {
        self.accepted.retain_mut(|one| {
            one.age += 1;
            let stays = one.from.is_some() || one.age <= PATIENCE;
            if !stays {
                end(epoll, &one.socket);
            }
            stays
        });
        if self.is_paused {
            self.is_paused = listen_to(epoll, &self.socket).is_err();
        }
    }
}

/// Once, because the others only see that nothing comes from this PE.
#[cold]
fn tell_of_no_room(error: Errno) {
    static TOLD: Once = Once::new();
    TOLD.call_once(|| {
        tracing::warn!(
            "this PE cannot accept connections of others for the moment: {} (ulimit -n)",
            error.desc()
        );
    });
}

/// A socket that listens at an address and a port; otherwise which call failed, and why.
fn listening(at: SocketAddr, congestion: &Congestion) -> Result<OwnedFd, (&'static str, Errno)> {
    let socket = new(at.ip(), congestion).map_err(|error| ("socket", error))?;
    if at.port() != 0 {
        // Connections of a job that has ended keep a port for a minute. With this option it can be had all the same.
        socket::setsockopt(&socket, sockopt::ReuseAddr, &true).map_err(|e| ("SO_REUSEADDR", e))?;
    }
    socket::bind(socket.as_raw_fd(), &SockaddrStorage::from(at)).map_err(|e| ("bind", e))?;
    // The option lets two sockets be bound to one port; the second one to listen is told here that it is in use.
    socket::listen(&socket, socket::Backlog::MAXCONN).map_err(|e| ("listen", e))?;
    Ok(socket)
}

fn listen_to(epoll: &Epoll, socket: &OwnedFd) -> Result<(), Errno> {
    epoll.add(socket, EpollEvent::new(EpollFlags::EPOLLIN, LISTENER))
}

fn port_of(name: &SockaddrStorage) -> u16 {
    let v4 = name.as_sockaddr_in().map(|name| name.port());
    v4.or_else(|| name.as_sockaddr_in6().map(|name| name.port())).unwrap_or(0)
}
