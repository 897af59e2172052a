// SPDX-License-Identifier: Apache-2.0
//! The process that has the devices open, as another one of its host reaches it.

use super::SharedPort;
use super::client::Client;
use super::introduction;
use super::message::{ARGUMENTS, BYTES_MAX, Op, REPLY_BYTES, Request, decode_reply, receive, send};
use super::server::name_of;
use crate::ntb::port::{NtbPort, PortError, Result};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, MsgFlags, Shutdown, SockFlag, SockType, UnixAddr, connect, getsockopt,
    setsockopt, shutdown, socket, sockopt,
};
use nix::sys::time::{TimeVal, TimeValLike};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tombolo_core::threads::spawn_without_signals;
use tombolo_core::transport::Meeting;

/// How long a reply may take: some chips take seconds to open a window, and several PEs may ask.
const REPLY: Duration = Duration::from_secs(60);
/// Between attempts to reach an owner that is not as far.
const PAUSE: Duration = Duration::from_millis(1);
/// Ports of a host.
const PORTS_MAX: usize = 2;

/// The connection.
pub struct Owner {
    socket: OwnedFd,
    /// One asks at a time.
    asking: Mutex<()>,
    gone: AtomicBool,
    /// It was too late with an answer.
    late: AtomicBool,
    /// This process does not ask it any more.
    parted: EventFd,
}

/// A thread that notices when the owner ends; it ends with the value.
pub struct Watch {
    stop: Arc<EventFd>,
    thread: Option<JoinHandle<()>>,
}

/// Uses the ports of the first PE of this host. It may come up to `limit` later, and be as long in opening them. The error
/// says why there are none.
pub fn ports(meeting: &Meeting, limit: Duration) -> Result<Vec<Arc<dyn NtbPort>>> {
    let ports = shared_ports(meeting, limit)?.into_iter();
    Ok(ports.map(|port| Arc::new(port) as Arc<dyn NtbPort>).collect())
}

/// The same, as what they are.
pub fn shared_ports(meeting: &Meeting, limit: Duration) -> Result<Vec<SharedPort>> {
    let deadline = Instant::now() + limit;
    let failed = |e: io::Error| match e.kind() {
        io::ErrorKind::WouldBlock => PortError::Exhausted(
            "the first PE of this host did not open its NTB devices within SHMEM_START_TIMEOUT"
                .into(),
        ),
        io::ErrorKind::ConnectionReset | io::ErrorKind::BrokenPipe => disconnected(),
        _ => PortError::system("asking the first PE of this host for its NTB devices", e),
    };
    let socket = reach(meeting, deadline).map_err(failed)?;
    set_timeout(&socket, deadline.saturating_duration_since(Instant::now())).map_err(failed)?;
    send(socket.as_fd(), &meeting.token, &[], MsgFlags::empty()).map_err(failed)?;
    let mut message = vec![0; BYTES_MAX];
    let mut next = || match receive(socket.as_fd(), &mut message, MsgFlags::empty()) {
        Ok((0, _)) => Err(disconnected()),
        Ok((len, files)) => Ok((message[..len].to_vec(), files)),
        Err(e) => Err(failed(e)),
    };
    let mut told = Vec::with_capacity(PORTS_MAX);
    loop {
        let (bytes, files) = next()?;
        let (more, _) = decode_reply(&bytes).ok_or_else(strange)??;
        told.push(introduction::accept(&bytes[REPLY_BYTES..], files)?);
        if more == 0 {
            break;
        }
        if told.len() == PORTS_MAX {
            return Err(strange());
        }
    }
    set_timeout(&socket, REPLY).map_err(failed)?;
    let (gone, late) = (AtomicBool::new(false), AtomicBool::new(false));
    let parted = EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC);
    let parted = parted.map_err(|e| PortError::system("watching the first PE of this host", e))?;
    let owner = Arc::new(Owner { socket, asking: Mutex::new(()), gone, late, parted });
    let clients = told.iter().map(|port| port.client.clone()).collect();
    let watch = Watch::start(owner.clone(), clients);
    let watch = watch.map_err(|e| PortError::system("starting the thread of NTB ports", e))?;
    let watch = Arc::new(watch);
    let port = |(index, accepted)| SharedPort::new(index, accepted, owner.clone(), watch.clone());
    Ok(told.into_iter().enumerate().map(port).collect())
}

/// Why there are no ports of an owner that is gone, or takes this process for none of its job.
fn disconnected() -> PortError {
    PortError::Busy(
        "the first PE of this host, which has the NTB devices open, has ended or has disconnected this PE"
            .into(),
    )
}

/// Why nothing is asked of an owner that was late once.
fn late() -> PortError {
    PortError::Busy(format!(
        "the first PE of this host, which has the NTB devices open, did not answer within {REPLY:?}"
    ))
}

fn strange() -> PortError {
    PortError::Invalid("a process that is not of this job answered for the NTB devices".into())
}

/// Connects to the owner when that listens.
fn reach(meeting: &Meeting, deadline: Instant) -> io::Result<OwnedFd> {
    let address = UnixAddr::new_abstract(&name_of(meeting))?;
    loop {
        let kind = SockType::SeqPacket;
        let socket = socket(AddressFamily::Unix, kind, SockFlag::SOCK_CLOEXEC, None)?;
        // A queue that is full is waited for.
        set_timeout(&socket, deadline.saturating_duration_since(Instant::now()))?;
        match connect(socket.as_raw_fd(), &address) {
            Ok(()) => {
                let user = getsockopt(&socket, sockopt::PeerCredentials)?.uid();
                // SAFETY: no arguments, cannot fail.
                let own = unsafe { libc::geteuid() };
                return match user == own {
                    true => Ok(socket),
                    false => Err(io::Error::other("another user's process listens there")),
                };
            }
            Err(Errno::ECONNREFUSED | Errno::EAGAIN | Errno::EINTR) => {}
            Err(e) => return Err(e.into()),
        }
        if Instant::now() >= deadline {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        std::thread::sleep(PAUSE);
    }
}

fn set_timeout(socket: &OwnedFd, left: Duration) -> io::Result<()> {
    let micros = left.as_micros().clamp(1000, i64::MAX as u128) as i64;
    let left = TimeVal::microseconds(micros);
    setsockopt(socket, sockopt::ReceiveTimeout, &left)?;
    Ok(setsockopt(socket, sockopt::SendTimeout, &left)?)
}

impl Owner {
    /// Has the owner do something for a port, and waits for what it says.
    pub fn ask(
        &self,
        port: usize,
        op: Op,
        arguments: [u64; ARGUMENTS],
        file: Option<BorrowedFd<'_>>,
    ) -> Result<(u64, String)> {
        let _one = self.asking.lock().unwrap_or_else(PoisonError::into_inner);
        if self.is_gone() {
            return Err(self.why());
        }
        let request = Request { op, port, arguments }.encode();
        let files = file.as_slice();
        let mut reply = [0; BYTES_MAX];
        let flags = MsgFlags::empty();
        let answered = send(self.socket.as_fd(), &request, files, flags)
            .and_then(|()| receive(self.socket.as_fd(), &mut reply, flags));
        match answered {
            Ok((len @ 1.., _)) => decode_reply(&reply[..len]).unwrap_or_else(|| Err(strange())),
            // An answer that is late would be taken for that to the next question.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                self.late.store(true, Ordering::SeqCst);
                self.part();
                Err(self.why())
            }
            Ok(_) | Err(_) => {
                self.part();
                Err(self.why())
            }
        }
    }

    /// Tells the owner something that it does not answer. One that has much to do is told less: it looks by itself.
    pub fn tell(&self, port: usize, op: Op) {
        let request = Request { op, port, arguments: [0; ARGUMENTS] }.encode();
        // Nothing is lost where it fails: what there is to do is in words that the owner reads with every message.
        let _ = send(self.socket.as_fd(), &request, &[], MsgFlags::MSG_DONTWAIT);
    }

    /// Why there is no owner any more.
    fn why(&self) -> PortError {
        if self.late.load(Ordering::SeqCst) { late() } else { disconnected() }
    }

    pub fn is_gone(&self) -> bool {
        self.gone.load(Ordering::SeqCst)
    }

    /// Asks nothing any more; the thread then notices, and the owner, which closes what is open for this process. The
    /// socket itself is not closed: that tells the owner that no write of this process is under way.
    pub fn part(&self) {
        self.gone.store(true, Ordering::SeqCst);
        // A full counter wakes the thread as well.
        let _ = self.parted.write(1);
        // One that is closed at the other end has been noticed.
        let _ = shutdown(self.socket.as_raw_fd(), Shutdown::Write);
    }
}

impl Watch {
    fn start(owner: Arc<Owner>, clients: Vec<Arc<dyn Client>>) -> io::Result<Watch> {
        let stop = Arc::new(EventFd::from_value_and_flags(0, EfdFlags::EFD_CLOEXEC)?);
        let own = stop.clone();
        let watch = move || {
            if has_ended(&owner, &own) {
                owner.gone.store(true, Ordering::SeqCst);
                clients.iter().for_each(|client| client.abandon());
            }
        };
        let thread = Some(spawn_without_signals("shmem-ntb-owner", watch)?);
        Ok(Watch { stop, thread })
    }
}

/// Waits until the owner has ended or is not asked any more, or the ports are not used any more.
fn has_ended(owner: &Owner, stop: &EventFd) -> bool {
    loop {
        // What the kernel tells unasked: that the other end is closed.
        let socket = PollFd::new(owner.socket.as_fd(), PollFlags::empty());
        let [parted, stop] =
            [&owner.parted, stop].map(|it| PollFd::new(it.as_fd(), PollFlags::POLLIN));
        let mut fds = [socket, parted, stop];
        if poll(&mut fds, PollTimeout::NONE).is_err() {
            continue;
        }
        let [ended, parted, stopped] = fds.each_ref().map(|fd| fd.any().unwrap_or(true));
        if ended || parted || stopped {
            return !stopped;
        }
    }
}

impl Drop for Watch {
    fn drop(&mut self) {
        // A full counter stops the thread as well.
        let _ = self.stop.write(1);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}
