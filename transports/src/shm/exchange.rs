// SPDX-License-Identifier: Apache-2.0
//! Passing segment descriptors between the PEs of a host.
//!
//! One PE listens on a socket in the abstract name space under a random name. The others connect:
//! each sends one message with its descriptors and gets one message per PE back.
//!
//! Every user of the machine sees the name and can connect. Processes of other users are
//! disconnected at once. Others have to send a random token, published only through the launcher,
//! and hold up nobody as long as they send nothing.

use super::sys;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::socket::{
    AddressFamily, Backlog, ControlMessage, ControlMessageOwned, MsgFlags, SockFlag, SockType,
    UnixAddr, accept4, bind, connect, getsockopt, listen, recvmsg, sendmsg, setsockopt, socket,
    sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io::{self, IoSlice, IoSliceMut, Read};
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::time::{Duration, Instant};
use tombolo_core::transport::SegmentKind;

const TOKEN: usize = 16;
const NAME: usize = 16;
/// Bytes of a message: token, PE, number of segments, two segment descriptions.
const MESSAGE: usize = TOKEN + 8 + 2 * SEGMENT;
const SEGMENT: usize = 24;

/// What this PE offers.
pub struct Advert<'a> {
    /// Its number.
    pub pe: u32,
    /// Kind, length, layout and file of each segment.
    pub segments: Vec<(SegmentKind, usize, u64, &'a OwnedFd)>,
}

/// What another PE offers.
#[derive(Debug)]
pub struct Offer {
    /// Its number.
    pub pe: u32,
    /// Its segments and their files.
    pub segments: Vec<(Description, OwnedFd)>,
}

/// A segment of another PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Description {
    /// Which.
    pub kind: SegmentKind,
    /// Its length in bytes.
    pub len: usize,
    /// Its layout.
    pub layout: u64,
}

/// The listening end of a descriptor exchange.
pub struct Listener {
    socket: OwnedFd,
    token: [u8; TOKEN],
    name: [u8; NAME],
    /// User whose processes may take part.
    user: libc::uid_t,
}

impl Listener {
    /// Listens under a random name.
    pub fn open() -> io::Result<Listener> {
        let (token, name) = (random()?, random()?);
        let socket = stream_of_messages(SockFlag::SOCK_NONBLOCK)?;
        bind(socket.as_raw_fd(), &UnixAddr::new_abstract(&name)?)?;
        listen(&socket, Backlog::MAXALLOWABLE)?;
        // SAFETY: no arguments, cannot fail.
        let user = unsafe { libc::geteuid() };
        Ok(Listener { socket, token, name, user })
    }

    /// What the others need to connect.
    pub fn address(&self) -> Vec<u8> {
        [self.token.as_slice(), self.name.as_slice()].concat()
    }

    /// Collects the offers of `count - 1` other PEs, and gives each of them the offers of all
    /// `count`; returns those of the others.
    pub fn exchange(
        &self,
        own: &Advert<'_>,
        count: usize,
        limit: Duration,
    ) -> io::Result<Vec<Offer>> {
        let deadline = Instant::now() + limit;
        sys::allow_descriptors(3 * count);
        let (peers, offers) = self.collect(count - 1, deadline)?;
        for peer in &peers {
            set_timeout(peer, deadline)?;
            send(peer, &self.token, own, deadline)?;
            for offer in &offers {
                let segments =
                    offer.segments.iter().map(|(d, file)| (d.kind, d.len, d.layout, file));
                let advert = Advert { pe: offer.pe, segments: segments.collect() };
                send(peer, &self.token, &advert, deadline)?;
            }
        }
        Ok(offers)
    }

    /// The connections and offers of `count` other PEs, in the order in which they speak.
    fn collect(&self, count: usize, deadline: Instant) -> io::Result<(Vec<OwnedFd>, Vec<Offer>)> {
        let (mut peers, mut offers) = (Vec::new(), Vec::new());
        // Connected, and silent so far.
        let mut silent: Vec<OwnedFd> = Vec::new();
        while peers.len() < count {
            let mut polled: Vec<PollFd<'_>> = std::iter::once(&self.socket)
                .chain(&silent)
                .map(|socket| PollFd::new(socket.as_fd(), PollFlags::POLLIN))
                .collect();
            let left = deadline.saturating_duration_since(Instant::now());
            let left = PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX);
            match poll(&mut polled, left) {
                Ok(0) if Instant::now() >= deadline => {
                    return Err(absent(Errno::EAGAIN, count - peers.len()));
                }
                Ok(_) | Err(Errno::EINTR) => {}
                Err(e) => return Err(e.into()),
            }
            let ready: Vec<bool> = polled.iter().map(|fd| fd.any().unwrap_or(true)).collect();
            let mut speaks = ready[1..].iter();
            let (speaking, others) =
                silent.drain(..).partition(|_| *speaks.next().unwrap_or(&false));
            silent = others;
            let speaking: Vec<OwnedFd> = speaking;
            for peer in speaking {
                // Who says something else is disconnected; the exchange goes on.
                if let Ok(offer) = receive(&peer, &self.token, MsgFlags::MSG_DONTWAIT) {
                    peers.push(peer);
                    offers.push(offer);
                }
            }
            if ready[0] {
                silent.extend(self.accept()?);
            }
        }
        Ok((peers, offers))
    }

    /// The next connection; none if it is of another user, or gone again.
    fn accept(&self) -> io::Result<Option<OwnedFd>> {
        let peer = match accept4(self.socket.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
            // SAFETY: a new descriptor that nobody else owns.
            Ok(peer) => unsafe { OwnedFd::from_raw_fd(peer) },
            Err(Errno::EAGAIN | Errno::ECONNABORTED | Errno::EINTR) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let user = getsockopt(&peer, sockopt::PeerCredentials)?.uid();
        Ok((user == self.user).then_some(peer))
    }
}

/// Sends this PE's offer to the listener at `address` and gets those of all `count` PEs; returns
/// those of the others.
pub fn exchange(
    address: &[u8],
    own: &Advert<'_>,
    count: usize,
    limit: Duration,
) -> io::Result<Vec<Offer>> {
    let deadline = Instant::now() + limit;
    let (token, name) = address
        .split_first_chunk::<TOKEN>()
        .filter(|(_, name)| name.len() == NAME)
        .ok_or_else(|| io::Error::other("it has no shared memory to offer"))?;
    sys::allow_descriptors(2 * count);
    let socket = stream_of_messages(SockFlag::empty())?;
    set_timeout(&socket, deadline)?;
    connect(socket.as_raw_fd(), &UnixAddr::new_abstract(name)?)?;
    send(&socket, token, own, deadline)?;
    let mut offers = Vec::with_capacity(count);
    for received in 0..count {
        set_timeout(&socket, deadline)?;
        let offer = receive(&socket, token, MsgFlags::empty()).map_err(|e| match e.kind() {
            io::ErrorKind::WouldBlock => absent(Errno::EAGAIN, count - received),
            _ => e,
        })?;
        if offer.pe != own.pe {
            offers.push(offer);
        }
    }
    Ok(offers)
}

fn absent(e: Errno, missing: usize) -> io::Error {
    match e {
        Errno::EAGAIN => io::Error::new(
            io::ErrorKind::TimedOut,
            format!("{missing} PEs of this host did not come within SHMEM_START_TIMEOUT"),
        ),
        e => e.into(),
    }
}

fn stream_of_messages(flags: SockFlag) -> io::Result<OwnedFd> {
    let flags = flags | SockFlag::SOCK_CLOEXEC;
    Ok(socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?)
}

fn random<const N: usize>() -> io::Result<[u8; N]> {
    let mut bytes = [0; N];
    std::fs::File::open("/dev/urandom")?.read_exact(&mut bytes)?;
    Ok(bytes)
}

fn set_timeout(socket: &OwnedFd, deadline: Instant) -> io::Result<()> {
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(1));
    let left = TimeVal::microseconds(left.as_micros().min(i64::MAX as u128) as i64);
    setsockopt(socket, sockopt::ReceiveTimeout, &left)?;
    Ok(setsockopt(socket, sockopt::SendTimeout, &left)?)
}

fn send(
    socket: &OwnedFd,
    token: &[u8; TOKEN],
    advert: &Advert<'_>,
    deadline: Instant,
) -> io::Result<()> {
    let mut message = Vec::with_capacity(MESSAGE);
    message.extend_from_slice(token);
    message.extend_from_slice(&advert.pe.to_le_bytes());
    message.extend_from_slice(&(advert.segments.len() as u32).to_le_bytes());
    for (kind, len, layout, _) in &advert.segments {
        for field in [*kind as u64, *len as u64, *layout] {
            message.extend_from_slice(&field.to_le_bytes());
        }
    }
    message.resize(MESSAGE, 0);
    let files: Vec<i32> = advert.segments.iter().map(|(.., file)| file.as_raw_fd()).collect();
    let control = [ControlMessage::ScmRights(&files)];
    loop {
        let data = [IoSlice::new(&message)];
        let sent =
            sendmsg::<UnixAddr>(socket.as_raw_fd(), &data, &control, MsgFlags::MSG_NOSIGNAL, None);
        match sent {
            Ok(_) => return Ok(()),
            // Too many descriptors under way for this user: the receivers take them off.
            Err(Errno::ETOOMANYREFS | Errno::EINTR) if Instant::now() < deadline => {
                std::thread::sleep(Duration::from_micros(100));
            }
            Err(e) => return Err(e.into()),
        }
    }
}

fn receive(socket: &OwnedFd, token: &[u8; TOKEN], how: MsgFlags) -> io::Result<Offer> {
    let mut message = [0u8; MESSAGE];
    let mut space = nix::cmsg_space!([i32; 2]);
    let (bytes, files) = loop {
        let mut data = [IoSliceMut::new(&mut message)];
        let flags = MsgFlags::MSG_CMSG_CLOEXEC | how;
        match recvmsg::<UnixAddr>(socket.as_raw_fd(), &mut data, Some(&mut space), flags) {
            Ok(received) => {
                let mut files: Vec<OwnedFd> = Vec::new();
                for control in received.cmsgs()? {
                    if let ControlMessageOwned::ScmRights(fds) = control {
                        // SAFETY: descriptors the kernel has just made for this process.
                        files.extend(fds.iter().map(|fd| unsafe { OwnedFd::from_raw_fd(*fd) }));
                    }
                }
                break (received.bytes, files);
            }
            Err(Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
    };
    parse(&message[..bytes], token, files)
        .ok_or_else(|| io::Error::other("a process that is not of this job answered"))
}

fn parse(message: &[u8], token: &[u8; TOKEN], files: Vec<OwnedFd>) -> Option<Offer> {
    if message.len() != MESSAGE || message[..TOKEN] != token[..] {
        return None;
    }
    let word = |at: usize| Some(u32::from_le_bytes(message.get(at..at + 4)?.try_into().ok()?));
    let long = |at: usize| Some(u64::from_le_bytes(message.get(at..at + 8)?.try_into().ok()?));
    let (pe, count) = (word(TOKEN)?, word(TOKEN + 4)? as usize);
    if count != files.len() || count > 2 {
        return None;
    }
    let segments = files.into_iter().enumerate().map(|(index, file)| {
        let at = TOKEN + 8 + index * SEGMENT;
        let kind = SegmentKind::ALL.into_iter().find(|k| long(at) == Some(*k as u64))?;
        let len = usize::try_from(long(at + 8)?).ok()?;
        Some((Description { kind, len, layout: long(at + 16)? }, file))
    });
    Some(Offer { pe, segments: segments.collect::<Option<_>>()? })
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

    fn connected(address: &[u8]) -> OwnedFd {
        let socket = stream_of_messages(SockFlag::empty()).unwrap();
        let name = UnixAddr::new_abstract(&address[TOKEN..]).unwrap();
        connect(socket.as_raw_fd(), &name).unwrap();
        socket
    }

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(64))]

        /// Whatever a process of this user says, even with the token of the job: the exchange ends
        /// with what others have offered.
        #[test]
        fn garbage_from_guests_does_no_harm(
            bytes in prop::collection::vec(any::<u8>(), 0..2 * MESSAGE), small: bool, knows: bool,
            files in 0usize..4,
        ) {
            let mut message = bytes;
            if small {
                message.iter_mut().for_each(|byte| *byte &= 3);
            }
            let token = [7; TOKEN];
            if knows {
                message.resize(MESSAGE, 0);
                message[..TOKEN].copy_from_slice(&token);
            }
            let given = || (0..files).map(|_| file()).collect();
            if let Some(offer) = parse(&message, &token, given()) {
                prop_assert!(knows && offer.segments.len() == files && files <= 2);
            }
        }
    }

    #[test]
    fn another_user_is_disconnected_at_once() {
        let mut listener = Listener::open().unwrap();
        listener.user ^= 1;
        let address = listener.address();
        std::thread::scope(|scope| {
            let other = scope.spawn(|| {
                let file = file();
                let own = Advert { pe: 1, segments: vec![(SegmentKind::Heap, 4096, 7, &file)] };
                exchange(&address, &own, 2, LIMIT).unwrap_err()
            });
            let deadline = Instant::now() + LIMIT;
            let accepted = (0..).find_map(|_| match listener.accept().unwrap() {
                Some(_) => Some("accepted"),
                None if other.is_finished() => Some("disconnected"),
                None if Instant::now() > deadline => Some("neither"),
                None => None,
            });
            assert_eq!(accepted, Some("disconnected"));
        });
    }

    #[test]
    fn everyone_gets_everyones_offer_and_strangers_are_turned_away() {
        let listener = Listener::open().unwrap();
        let address = listener.address();
        // They connect first and say nothing.
        let _silent = [(); 3].map(|()| connected(&address));
        std::thread::scope(|scope| {
            for pe in 1..4u32 {
                let mut address = address.clone();
                scope.spawn(move || {
                    let file = file();
                    let own = Advert { pe, segments: vec![(SegmentKind::Heap, 4096, 7, &file)] };
                    let mut pes: Vec<u32> = exchange(&address, &own, 4, LIMIT)
                        .unwrap()
                        .iter()
                        .map(|offer| offer.pe)
                        .collect();
                    pes.sort_unstable();
                    let others: Vec<u32> = (0..4).filter(|p| *p != pe).collect();
                    assert_eq!(pes, others);
                    // With a wrong token there is no answer, but nothing breaks either.
                    address[0] ^= 1;
                    assert!(exchange(&address, &own, 4, Duration::from_millis(50)).is_err());
                });
            }
            let file = file();
            let own = Advert { pe: 0, segments: vec![(SegmentKind::Heap, 4096, 7, &file)] };
            let offers = listener.exchange(&own, 4, LIMIT).unwrap();
            assert_eq!(offers.len(), 3);
            let expected = Description { kind: SegmentKind::Heap, len: 4096, layout: 7 };
            assert!(offers.iter().all(|o| o.segments[0].0 == expected));
        });
    }

    #[test]
    fn a_pe_that_does_not_come_is_reported() {
        let listener = Listener::open().unwrap();
        let file = file();
        let own = Advert { pe: 0, segments: vec![(SegmentKind::Heap, 1, 1, &file)] };
        let error = listener.exchange(&own, 2, Duration::from_millis(20)).unwrap_err();
        assert!(error.to_string().contains("SHMEM_START_TIMEOUT"), "{error}");
    }
}
