// SPDX-License-Identifier: Apache-2.0
//! Passing descriptors of memory files from one PE of a host to the others.
//!
//! Each PE listens on a socket in the abstract namespace under a random name. Those that are not the
//! first of their host close theirs again, connect to that of the first, and get one message with the
//! descriptors.
//!
//! Every user of the machine sees the name and can connect. Who wants something has to send a random
//! token, published only through the launcher, and holds up nobody as long as it sends nothing. Processes
//! of other users get no files, whatever they send, and only a few of them stay connected: a PE that has
//! changed its user since it told where it is knows the token, and is told why it gets nothing.

use crate::{passing, random};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind,
    connect, getsockopt, listen, recv, send, sendmsg, setsockopt, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io::{self, IoSlice};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::time::{Duration, Instant};

const TOKEN: usize = 8;
const NAME: usize = 8;
/// Bytes of a user: its number, and the number space that it is from.
const USER: usize = 12;
/// Files that are handed out at most.
const FILES_MAX: usize = 2;
/// Connections of other users that are kept until they send something.
const STRANGERS_MAX: usize = 8;
/// Bytes of a message at most: the token, and why there are no files.
const MESSAGE_MAX: usize = TOKEN + 1024;

/// What the first PE of a host has for the others: files, or the reason why there are none.
pub type Files = Result<Vec<OwnedFd>, String>;

/// The end of the first PE.
#[derive(Debug)]
pub struct Listener {
    socket: OwnedFd,
    token: [u8; TOKEN],
    name: [u8; NAME],
    /// User whose processes may take part.
    user: libc::uid_t,
}

/// A process that has connected.
struct Connection {
    socket: OwnedFd,
    user: libc::uid_t,
}

impl Listener {
    /// Listens under a random name.
    pub fn open() -> io::Result<Listener> {
        let (token, name) = random()?;
        let socket = stream_of_messages(SockFlag::SOCK_NONBLOCK)?;
        bind(socket.as_raw_fd(), &UnixAddr::new_abstract(&name)?)?;
        listen(&socket, Backlog::MAXALLOWABLE)?;
        // SAFETY: no arguments, cannot fail.
        let user = unsafe { libc::geteuid() };
        Ok(Listener { socket, token, name, user })
    }

    /// What the others need to connect, and whose process this is.
    pub fn address(&self) -> Vec<u8> {
        let space = std::fs::metadata("/proc/self/ns/user").map_or(0, |space| space.ino());
        let user = self.user.to_ne_bytes();
        [self.token.as_slice(), &self.name, &user, &space.to_ne_bytes()].concat()
    }

    /// Gives `files` to `count` other PEs.
    pub fn hand_out(&self, files: &Files, count: usize, limit: Duration) -> io::Result<()> {
        let deadline = Instant::now() + limit;
        // Connected, and silent so far.
        let mut silent: Vec<Connection> = Vec::new();
        let mut left = count;
        while left > 0 {
            let sockets = silent.iter().map(|connection| &connection.socket);
            let mut polled: Vec<PollFd<'_>> = std::iter::once(&self.socket)
                .chain(sockets)
                .map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN))
                .collect();
            let time = deadline.saturating_duration_since(Instant::now());
            match poll(&mut polled, PollTimeout::try_from(time).unwrap_or(PollTimeout::MAX)) {
                Ok(0) if Instant::now() >= deadline => return Err(absent(left)),
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
            let ready: Vec<bool> = polled.iter().map(|fd| fd.any().unwrap_or(true)).collect();
            let mut speaks = ready[1..].iter();
            let (speaking, others): (Vec<Connection>, _) =
                silent.drain(..).partition(|_| *speaks.next().unwrap_or(&false));
            silent = others;
            if ready[0] {
                silent.extend(self.accept()?);
                self.limit_strangers(&mut silent);
            }
            for connection in speaking {
                let refused =
                    (connection.user != self.user).then(|| Err(two(self.user, connection.user)));
                let given = refused.as_ref().unwrap_or(files);
                // Who says something else is disconnected, and the others are served.
                if self.knows_token(&connection.socket)
                    && self.give(&connection.socket, given, deadline).is_ok()
                {
                    left = left.saturating_sub(1);
                }
            }
        }
        Ok(())
    }

    /// The next connection; none if it is gone again.
    fn accept(&self) -> io::Result<Option<Connection>> {
        let socket = match accept4(self.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
            // SAFETY: a new descriptor that nobody else owns.
            Ok(socket) => unsafe { OwnedFd::from_raw_fd(socket) },
            Err(Errno::EAGAIN | Errno::ECONNABORTED | Errno::EINTR) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let user = getsockopt(&socket, sockopt::PeerCredentials)?.uid();
        Ok(Some(Connection { socket, user }))
    }

    /// Disconnects the process of another user that has been silent for longest, if there are too many.
    fn limit_strangers(&self, silent: &mut Vec<Connection>) {
        let is_stranger = |connection: &Connection| connection.user != self.user;
        if silent.iter().filter(|connection| is_stranger(connection)).count() > STRANGERS_MAX
            && let Some(first) = silent.iter().position(is_stranger)
        {
            silent.remove(first);
        }
    }

    fn knows_token(&self, peer: &OwnedFd) -> bool {
        let mut said = [0; TOKEN + 1];
        let len = recv(peer.as_raw_fd(), &mut said, MsgFlags::MSG_DONTWAIT);
        len == Ok(TOKEN) && said[..TOKEN] == self.token
    }

    fn give(&self, peer: &OwnedFd, files: &Files, deadline: Instant) -> io::Result<()> {
        let (numbers, why): (Vec<i32>, &str) = match files {
            Ok(files) => (files.iter().map(AsRawFd::as_raw_fd).collect(), ""),
            Err(why) => (Vec::new(), why),
        };
        let mut message = [self.token.as_slice(), why.as_bytes()].concat();
        message.truncate(MESSAGE_MAX);
        set_timeout(peer, deadline)?;
        let control = [ControlMessage::ScmRights(&numbers)];
        let control = if numbers.is_empty() { &control[..0] } else { &control[..] };
        loop {
            let data = [IoSlice::new(&message)];
            match sendmsg::<UnixAddr>(
                peer.as_raw_fd(),
                &data,
                control,
                MsgFlags::MSG_NOSIGNAL,
                None,
            ) {
                Ok(_) => return Ok(()),
                // Too many descriptors under way for this user: their receivers take them off.
                Err(Errno::ETOOMANYREFS | Errno::EINTR) if Instant::now() < deadline => {
                    std::thread::sleep(Duration::from_micros(100));
                }
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// Why processes of two users cannot share memory.
fn two(one: u32, other: u32) -> String {
    format!(
        "PEs of this host run as users {one} and {other}: they can share memory only if all are \
         processes of one user"
    )
}

/// Why processes with these addresses give each other nothing, if they are of two users. Numbers from
/// different number spaces may be of one user.
pub fn two_users<'a>(addresses: impl Iterator<Item = &'a [u8]>) -> Option<String> {
    let user = |address: &'a [u8]| {
        let (user, space) = address.get(TOKEN + NAME..)?.split_first_chunk()?;
        Some((u32::from_ne_bytes(*user), space))
    };
    let mut users = addresses.filter_map(user);
    let first = users.next()?;
    let other = users.find(|other| other.0 != first.0 && other.1 == first.1)?;
    Some(two(first.0, other.0))
}

/// Gets what the listener at `address` hands out.
pub fn fetch(address: &[u8], limit: Duration) -> io::Result<Files> {
    let deadline = Instant::now() + limit;
    let (token, name) = address
        .split_first_chunk::<TOKEN>()
        .filter(|(_, rest)| rest.len() == NAME + USER)
        .map(|(token, rest)| (token, &rest[..NAME]))
        .ok_or_else(|| io::Error::other("its address cannot be read"))?;
    let socket = stream_of_messages(SockFlag::empty())?;
    set_timeout(&socket, deadline)?;
    connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
    send(socket.as_raw_fd(), token, MsgFlags::MSG_NOSIGNAL)?;
    receive(&socket, token).map_err(|e| match e.kind() {
        io::ErrorKind::WouldBlock => io::Error::new(
            io::ErrorKind::TimedOut,
            "it did not give its memory files within SHMEM_START_TIMEOUT",
        ),
        _ => e,
    })
}

/// The token and the name in an address.
pub fn token_and_name(address: &[u8]) -> Option<([u8; TOKEN], [u8; NAME])> {
    let (token, rest) = address.split_first_chunk()?;
    Some((*token, *rest.first_chunk()?))
}

/// Whether this error of [`fetch`] is that of a first PE that has ended or gives nothing, which tells why by itself.
pub fn is_of_first(error: &io::Error) -> bool {
    use io::ErrorKind::{BrokenPipe, ConnectionRefused, ConnectionReset, TimedOut, UnexpectedEof};
    let kinds = [BrokenPipe, ConnectionRefused, ConnectionReset, TimedOut, UnexpectedEof];
    kinds.contains(&error.kind())
}

fn receive(socket: &OwnedFd, token: &[u8; TOKEN]) -> io::Result<Files> {
    let mut message = [0u8; MESSAGE_MAX];
    let received = passing::receive(socket.as_fd(), &mut message, FILES_MAX, MsgFlags::empty())?;
    // The kernel drops descriptors for which there is no room.
    if received.files_lost {
        return Err(Errno::EMFILE.into());
    }
    if received.len == 0 {
        return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "it has gone away"));
    }
    parse(&message[..received.len], token, received.files)
        .ok_or_else(|| io::Error::other("a process that is not of this job answered"))
}

fn parse(message: &[u8], token: &[u8; TOKEN], files: Vec<OwnedFd>) -> Option<Files> {
    let why = message.strip_prefix(token)?;
    match (why.is_empty(), files.len()) {
        (true, 1..=FILES_MAX) => Some(Ok(files)),
        (false, 0) => Some(Err(String::from_utf8_lossy(why).into_owned())),
        _ => None,
    }
}

fn absent(missing: usize) -> io::Error {
    io::Error::new(
        io::ErrorKind::TimedOut,
        format!(
            "{missing} of the PEs of this host did not ask for the memory files within SHMEM_START_TIMEOUT"
        ),
    )
}

fn stream_of_messages(flags: SockFlag) -> io::Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

fn random() -> io::Result<([u8; TOKEN], [u8; NAME])> {
    let mut bytes = [0; TOKEN + NAME];
    random::fill(&mut bytes)?;
    let (mut token, mut name) = ([0; TOKEN], [0; NAME]);
    token.copy_from_slice(&bytes[..TOKEN]);
    name.copy_from_slice(&bytes[TOKEN..]);
    Ok((token, name))
}

fn set_timeout(socket: &OwnedFd, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let left = TimeVal::microseconds(left.as_micros().min(i64::MAX as u128) as i64);
    setsockopt(socket, sockopt::ReceiveTimeout, &left)?;
    Ok(setsockopt(socket, sockopt::SendTimeout, &left)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::memfd::{MFdFlags, memfd_create};
    use proptest::prelude::*;

    const LIMIT: Duration = Duration::from_secs(20);

    fn file() -> OwnedFd {
        memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap()
    }

    fn number(file: &OwnedFd) -> u64 {
        nix::sys::stat::fstat(file).unwrap().st_ino
    }

    fn connected(address: &[u8]) -> OwnedFd {
        let socket = stream_of_messages(SockFlag::empty()).unwrap();
        let name = UnixAddr::new_abstract(&address[TOKEN..TOKEN + NAME]).unwrap();
        connect(socket.as_raw_fd(), &name).unwrap();
        socket
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

        /// Whatever answers in place of the first PE: it is refused, or what it gives is taken.
        #[test]
        fn garbage_from_processes_does_no_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..40), knows: bool, files in 0usize..4,
        ) {
            let token = [7; TOKEN];
            let message = if knows { [&token[..], &bytes].concat() } else { bytes.clone() };
            let given = (0..files).map(|_| file()).collect();
            match parse(&message, &token, given) {
                None => {}
                Some(Ok(taken)) => prop_assert!(knows && taken.len() == files && files <= FILES_MAX),
                Some(Err(_)) => prop_assert!(knows && files == 0 && !bytes.is_empty()),
            }
        }
    }

    #[test]
    fn a_pe_that_has_changed_its_user_is_told_among_silent_strangers() {
        let mut listener = Listener::open().unwrap();
        let address = listener.address();
        // Everybody is of another user now.
        listener.user ^= 1;
        let _silent: Vec<OwnedFd> = (0..3 * STRANGERS_MAX).map(|_| connected(&address)).collect();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| fetch(&address, LIMIT).unwrap());
            listener.hand_out(&Ok(vec![file()]), 1, LIMIT).unwrap();
            let why = other.join().unwrap().unwrap_err();
            assert!(why.contains("run as users"), "{why}");
        });
    }

    #[test]
    fn strangers_that_are_silent_do_not_use_up_descriptors() {
        let mut listener = Listener::open().unwrap();
        let address = listener.address();
        listener.user ^= 1;
        let mut silent = Vec::new();
        for _ in 0..3 * STRANGERS_MAX {
            let _gone = connected(&address);
            silent.extend(listener.accept().unwrap());
            listener.limit_strangers(&mut silent);
        }
        assert_eq!(silent.len(), STRANGERS_MAX);
        // Those of this user may be as many as there are PEs.
        listener.user ^= 1;
        let one = connected(&address);
        silent.extend(listener.accept().unwrap());
        listener.limit_strangers(&mut silent);
        assert_eq!(silent.len(), STRANGERS_MAX + 1);
        drop(one);
    }

    #[test]
    fn users_are_told_apart_within_a_number_space() {
        let listener = |user| Listener { user, ..Listener::open().unwrap() };
        let address = |user| listener(user).address();
        let two = |addresses: &[Vec<u8>]| two_users(addresses.iter().map(Vec::as_slice));
        assert_eq!(two(&[address(7), address(7), vec![]]), None);
        assert_eq!(two(&[address(7), address(7), address(9)]), Some(super::two(7, 9)));
        let mut elsewhere = address(9);
        *elsewhere.last_mut().unwrap() ^= 1;
        assert_eq!(two(&[address(7), elsewhere]), None);
    }

    #[test]
    fn everyone_gets_the_files_and_strangers_are_turned_away() {
        let listener = Listener::open().unwrap();
        let address = listener.address();
        let files = Ok(vec![file(), file()]);
        let numbers: Vec<u64> = files.as_ref().unwrap().iter().map(number).collect();
        // They connect first and say nothing, or something else.
        let _silent = [(); 3].map(|()| connected(&address));
        let mut wrong = address.clone();
        wrong[0] ^= 1;
        std::thread::scope(|scope| {
            scope.spawn(|| assert!(fetch(&wrong, LIMIT).is_err()));
            for _ in 0..3 {
                scope.spawn(|| {
                    let got = fetch(&address, LIMIT).unwrap().unwrap();
                    assert_eq!(got.iter().map(number).collect::<Vec<_>>(), numbers);
                });
            }
            listener.hand_out(&files, 3, LIMIT).unwrap();
            drop(listener);
        });
    }

    #[test]
    fn the_reason_why_there_are_no_files_is_told() {
        let listener = Listener::open().unwrap();
        let address = listener.address();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| fetch(&address, LIMIT).unwrap());
            listener.hand_out(&Err("no memory".into()), 1, LIMIT).unwrap();
            assert_eq!(other.join().unwrap().unwrap_err(), "no memory");
        });
    }

    #[test]
    fn a_pe_that_does_not_come_is_reported() {
        let listener = Listener::open().unwrap();
        let error = listener.hand_out(&Ok(vec![file()]), 1, Duration::from_millis(20)).unwrap_err();
        assert!(error.to_string().contains("SHMEM_START_TIMEOUT"), "{error}");
    }
}
