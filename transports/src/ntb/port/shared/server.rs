// SPDX-License-Identifier: Apache-2.0
//! Where the first PE of a host serves the others, which use its devices.
//!
//! It listens at a socket in the abstract namespace. Every user of the machine sees its name; who is of another user is
//! disconnected, and who does not know the token is told nothing. A thread serves all; it sleeps when nobody asks.

use super::introduction;
use super::message::{BYTES_MAX, FILES_MAX, NO_ROOM, Request, encode_reply, send};
use super::sharer::{Lent, Sharer};
use crate::ntb::port::{NtbPort, PortError};
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use nix::sys::eventfd::{EfdFlags, EventFd};
use nix::sys::socket::{
    AddressFamily, Backlog, MsgFlags, SockFlag, SockType, UnixAddr, accept4, bind, getsockopt,
    listen, socket, sockopt,
};
use std::hash::{DefaultHasher, Hasher};
use std::io;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, FromRawFd, OwnedFd};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};
use tombolo_core::passing;
use tombolo_core::threads::spawn_without_signals;
use tombolo_core::transport::Meeting;

/// How long the end waits for processes that still use the devices.
const LINGER: Duration = Duration::from_secs(2);
/// Before another look where no connection can be taken.
const PAUSE: Duration = Duration::from_millis(10);
/// Before more is told to a process for which too much is under way.
const RETRY_MS: u8 = 1;
/// Processes that may be connected.
const CONNECTIONS_MAX: usize = 256;

/// The name of the socket. Nobody who does not know the token finds it out, and could listen there first.
pub fn name_of(meeting: &Meeting) -> Vec<u8> {
    let mut hasher = DefaultHasher::new();
    hasher.write(&meeting.token);
    hasher.write(&meeting.name);
    [b"tombolo-ntb-".as_slice(), &hasher.finish().to_ne_bytes()].concat()
}

/// What those who come are told.
enum Decision {
    /// Nothing yet.
    Open,
    /// Why there are no ports, and when the last has had time to come.
    Refused { why: String, until: Instant },
    /// Of these ports.
    Lent(Vec<Arc<Lent>>),
    /// All are disconnected.
    Closed,
}

/// What the thread and the owner share.
struct Common {
    decision: Mutex<Decision>,
    /// Something has been decided.
    turn: EventFd,
    /// Processes that use the ports.
    users: Mutex<usize>,
    left: Condvar,
}

/// The server. It closes with this value, unless there are others to be told that there are no ports: then its thread
/// stays until all have been.
pub struct Server {
    common: Arc<Common>,
    thread: Option<JoinHandle<()>>,
    /// How much later than this process others may come.
    limit: Duration,
}

impl Server {
    /// Opens it for so many others, which may come up to `limit` later. Who comes waits until something is decided.
    pub fn open(meeting: &Meeting, others: usize, limit: Duration) -> io::Result<Server> {
        let flags = SockFlag::SOCK_NONBLOCK | SockFlag::SOCK_CLOEXEC;
        let listener = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
        bind(listener.as_raw_fd(), &UnixAddr::new_abstract(&name_of(meeting))?)?;
        listen(&listener, Backlog::MAXALLOWABLE)?;
        let common = Arc::new(Common::new()?);
        let (token, own) = (meeting.token, common.clone());
        let serve = move || {
            Serving { listener, token, connections: vec![], common: own, untold: others }.serve();
        };
        let thread = Some(spawn_without_signals("shmem-ntb-server", serve)?);
        Ok(Server { common, thread, limit })
    }

    /// Tells all why there are no ports.
    pub fn refuse(&self, why: &str) {
        // A limit that no clock reaches is as good as any.
        let until = Instant::now().checked_add(self.limit);
        let until = until.unwrap_or_else(|| Instant::now() + Duration::from_secs(u32::MAX.into()));
        self.common.decide(Decision::Refused { why: why.to_owned(), until });
    }

    /// Lends ports to all. The error says why they cannot be lent; all are told the same.
    pub fn lend(&self, ports: &[Arc<dyn NtbPort>]) -> Result<(), PortError> {
        let lent = ports.iter().map(|port| Lent::new(port.clone()).map(Arc::new));
        let lent = lent.collect::<Result<Vec<_>, _>>();
        match lent {
            Ok(lent) => self.common.decide(Decision::Lent(lent)),
            Err(error) => {
                self.refuse(&error.to_string());
                return Err(error);
            }
        }
        Ok(())
    }

    /// Waits for a while until nobody uses the ports any more.
    pub fn await_end(&self) {
        let users = self.common.users.lock().unwrap_or_else(PoisonError::into_inner);
        let in_use = |users: &mut usize| *users > 0;
        drop(self.common.left.wait_timeout_while(users, LINGER, in_use));
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        if matches!(*self.common.decision(), Decision::Refused { .. }) {
            // Whoever opened the server goes on without ports at once, and others have not come yet.
            return;
        }
        self.common.decide(Decision::Closed);
        if let Some(thread) = self.thread.take() {
            // A panic of the thread has been printed already.
            let _ = thread.join();
        }
    }
}

impl Common {
    fn new() -> io::Result<Common> {
        let flags = EfdFlags::EFD_CLOEXEC | EfdFlags::EFD_NONBLOCK;
        Ok(Common {
            decision: Mutex::new(Decision::Open),
            turn: EventFd::from_value_and_flags(0, flags)?,
            users: Mutex::default(),
            left: Condvar::new(),
        })
    }

    fn decision(&self) -> MutexGuard<'_, Decision> {
        self.decision.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn decide(&self, decision: Decision) {
        *self.decision() = decision;
        // A full counter wakes the thread as well.
        let _ = self.turn.write(1);
    }

    /// How long the thread may sleep.
    fn patience(&self) -> PollTimeout {
        let Decision::Refused { until, .. } = &*self.decision() else { return PollTimeout::NONE };
        // Rounded up, and in steps where it is more than a poll can wait.
        let left = until.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
        PollTimeout::try_from(left).unwrap_or(PollTimeout::MAX)
    }

    fn count(&self, more: bool) {
        let mut users = self.users.lock().unwrap_or_else(PoisonError::into_inner);
        *users = if more { *users + 1 } else { users.saturating_sub(1) };
        self.left.notify_all();
    }
}

/// What the thread has.
struct Serving {
    listener: OwnedFd,
    token: [u8; 8],
    connections: Vec<Connection>,
    common: Arc<Common>,
    /// Others that have not been told that there are no ports.
    untold: usize,
}

struct Connection {
    socket: OwnedFd,
    state: State,
}

enum State {
    /// Has not said who it is.
    Silent,
    /// Waits to be told.
    Waiting,
    /// Has been told of so many ports, and is still to be told of the others.
    Told(User, usize),
    /// Uses the ports.
    User(User),
}

/// Takes all back when it goes.
struct User {
    ports: Vec<Sharer>,
    common: Arc<Common>,
}

impl Drop for User {
    fn drop(&mut self) {
        self.ports.clear();
        self.common.count(false);
    }
}

impl Serving {
    fn serve(mut self) {
        let mut message = vec![0; BYTES_MAX];
        loop {
            let sockets = self.connections.iter().map(|connection| connection.socket.as_fd());
            let watched = [self.common.turn.as_fd(), self.listener.as_fd()];
            let mut polled: Vec<PollFd<'_>> = watched
                .into_iter()
                .chain(sockets)
                .map(|fd| PollFd::new(fd, PollFlags::POLLIN))
                .collect();
            let halfway = self.connections.iter().any(|it| matches!(it.state, State::Told(..)));
            let patience = if halfway { RETRY_MS.into() } else { self.common.patience() };
            if poll(&mut polled, patience).is_err() {
                continue;
            }
            let ready: Vec<bool> = polled.iter().map(|fd| fd.any().unwrap_or(true)).collect();
            if ready[0] {
                let _ = self.common.turn.read();
            }
            let mut ready_ones = ready[2..].iter();
            self.connections.retain_mut(|connection| {
                if !ready_ones.next().unwrap_or(&false)
                    || connection.hear(&self.token, &mut message)
                {
                    return true;
                }
                // One that only says no more may still write.
                if is_closed(connection.socket.as_fd()) {
                    connection.leave();
                }
                false
            });
            if ready[1] {
                self.admit();
            }
            if !self.tell() {
                return;
            }
        }
    }

    /// Takes the next connection. Where there are too many, whoever has said nothing so far makes room.
    fn admit(&mut self) {
        match accept(&self.listener) {
            Ok(connection) => self.connections.extend(connection),
            // There are no descriptors, which others may give back: the listener is ready until then.
            Err(_) => std::thread::sleep(PAUSE),
        }
        if self.connections.len() > CONNECTIONS_MAX {
            let last = self.connections.pop();
            self.connections.retain(|it| !matches!(it.state, State::Silent));
            self.connections.extend(last.filter(|_| self.connections.len() < CONNECTIONS_MAX));
        }
    }

    /// Tells those who wait what has been decided. False: it is closed, or all know that there are no ports.
    fn tell(&mut self) -> bool {
        let common = self.common.clone();
        let decision = common.decision();
        match &*decision {
            Decision::Open => true,
            Decision::Closed => false,
            Decision::Refused { why, until } => {
                let refusal = encode_reply(&Err(PortError::Exhausted(why.clone())));
                let untold = &mut self.untold;
                self.connections.retain(|connection| {
                    let waits = matches!(connection.state, State::Waiting);
                    if waits {
                        // Who is gone need not know.
                        let flags = MsgFlags::MSG_DONTWAIT;
                        let _ = send(connection.socket.as_fd(), &refusal, &[], flags);
                        *untold = untold.saturating_sub(1);
                    }
                    !waits
                });
                *untold > 0 && Instant::now() < *until
            }
            Decision::Lent(lent) => {
                self.connections.retain_mut(|connection| {
                    let send = |bytes: &[u8], files: &[BorrowedFd<'_>], socket: BorrowedFd<'_>| {
                        send(socket, bytes, files, MsgFlags::MSG_DONTWAIT)
                    };
                    let told = connection.introduce(lent, &common, send);
                    if let Err(error) = &told {
                        tracing::warn!(%error, "a process of this host gets no NTB ports");
                        // Who is gone need not know.
                        let _ = send(&encode_reply(&told), &[], connection.socket.as_fd());
                    }
                    told.is_ok()
                });
                true
            }
        }
    }
}

/// The next connection; none if it is gone again, or of another user.
fn accept(listener: &OwnedFd) -> io::Result<Option<Connection>> {
    let socket = match accept4(listener.as_raw_fd(), SockFlag::SOCK_CLOEXEC) {
        // SAFETY: a new descriptor that nobody else owns.
        Ok(socket) => unsafe { OwnedFd::from_raw_fd(socket) },
        Err(Errno::EAGAIN | Errno::ECONNABORTED | Errno::EINTR) => return Ok(None),
        Err(e) => return Err(e.into()),
    };
    let user = getsockopt(&socket, sockopt::PeerCredentials)?.uid();
    // SAFETY: no arguments, cannot fail.
    let own = unsafe { libc::geteuid() };
    Ok((user == own).then_some(Connection { socket, state: State::Silent }))
}

/// Whether the other end of a connection is closed altogether.
fn is_closed(socket: BorrowedFd<'_>) -> bool {
    // What the kernel tells unasked.
    let mut polled = [PollFd::new(socket, PollFlags::empty())];
    poll(&mut polled, PollTimeout::ZERO).is_ok_and(|ready| ready > 0)
}

/// Whether sending is to be tried again: what is under way, descriptors for all processes of this user among it, is too
/// much until its receivers take it off.
fn is_passing(error: &io::Error) -> bool {
    let passing = [Errno::ETOOMANYREFS, Errno::EAGAIN, Errno::ENOBUFS].map(|errno| errno as i32);
    error.raw_os_error().is_some_and(|number| passing.contains(&number))
}

impl Connection {
    /// Makes ports known to a process that waits for them: as many as can be now, and the others when asked again. The
    /// error is for the process.
    fn introduce(
        &mut self,
        lent: &[Arc<Lent>],
        common: &Arc<Common>,
        mut send: impl FnMut(&[u8], &[BorrowedFd<'_>], BorrowedFd<'_>) -> io::Result<()>,
    ) -> Result<(u64, String), PortError> {
        if let State::Waiting = self.state {
            let ports = lent.iter().map(Sharer::new).collect::<Result<_, _>>()?;
            common.count(true);
            self.state = State::Told(User { ports, common: common.clone() }, 0);
        }
        let State::Told(user, told) = &mut self.state else { return Ok(Default::default()) };
        while let Some((port, sharer)) = lent.get(*told).zip(user.ports.get(*told)) {
            let more = (lent.len() - *told - 1) as u64;
            let facts = introduction::bytes(port.port.capabilities(), &port.share, sharer.place());
            let bytes = [encode_reply(&Ok((more, String::new()))), facts].concat();
            match send(&bytes, &introduction::files(&port.share), self.socket.as_fd()) {
                Ok(()) => *told += 1,
                Err(error) if is_passing(&error) => return Ok(Default::default()),
                Err(error) => return Err(PortError::system("telling of a port", error)),
            }
        }
        if let State::Told(user, _) = std::mem::replace(&mut self.state, State::Waiting) {
            self.state = State::User(user);
        }
        Ok(Default::default())
    }

    /// The other end was closed by the process itself.
    fn leave(&mut self) {
        if let State::User(user) | State::Told(user, _) = &mut self.state {
            user.ports.iter_mut().for_each(Sharer::leave);
        }
    }

    /// Takes a message. False: the other end is closed, or is not one of this job.
    fn hear(&mut self, token: &[u8; 8], message: &mut [u8]) -> bool {
        let flags = MsgFlags::MSG_DONTWAIT;
        // Whoever has not said who it is passes no descriptors.
        let files_max = if matches!(self.state, State::User(_)) { FILES_MAX } else { 0 };
        let mut received = match passing::receive(self.socket.as_fd(), message, files_max, flags) {
            Ok(received) if received.len == 0 || received.is_cut => return false,
            Ok(received) => received,
            Err(error) => {
                let again = [Errno::EAGAIN as i32, Errno::EINTR as i32];
                return error.raw_os_error().is_some_and(|number| again.contains(&number));
            }
        };
        let message = &message[..received.len];
        match &mut self.state {
            State::Silent => {
                let knows = message == token;
                self.state = State::Waiting;
                knows
            }
            // Nothing is asked for before there is an answer.
            State::Waiting | State::Told(..) => false,
            State::User(user) => {
                let Some(request) = Request::decode(message) else { return false };
                // Of all ports: a message that told of doorbells may not have found room behind this one.
                user.ports.iter().for_each(Sharer::ring);
                let Some(port) = user.ports.get_mut(request.port) else { return false };
                let reply = match received.files_lost {
                    true => Err(PortError::Exhausted(NO_ROOM.into())),
                    false => port.serve(&request, received.files.pop()),
                };
                if !request.op.is_answered() {
                    return true;
                }
                let reply = encode_reply(&reply);
                send(self.socket.as_fd(), &reply, &[], flags).is_ok()
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ntb::port::bridge::testing::cases::pair;
    use crate::ntb::port::epf::model::{Epf, Shape};
    use nix::sys::socket::socketpair;

    fn waiting() -> Connection {
        let (kind, flags) = (SockType::SeqPacket, SockFlag::SOCK_CLOEXEC);
        let (socket, _) = socketpair(AddressFamily::Unix, kind, None, flags).unwrap();
        Connection { socket, state: State::Waiting }
    }

    #[test]
    fn a_process_is_told_the_rest_when_less_is_under_way() {
        let (_bench, a, b) = pair::<Epf>(Shape::LINUX);
        let ports: [Arc<dyn NtbPort>; 2] = [Arc::new(a), Arc::new(b)];
        let lent = ports.map(|port| Arc::new(Lent::new(port).unwrap()));
        let common = Arc::new(Common::new().unwrap());
        let fails = |errno: Errno| Err(io::Error::from(errno));
        let mut answers =
            [fails(Errno::ETOOMANYREFS), Ok(()), fails(Errno::EAGAIN), Ok(())].into_iter();
        let mut process = waiting();
        let mut introduce = || {
            let told = process.introduce(&lent, &common, |_, _, _| answers.next().unwrap());
            told.unwrap();
            match &process.state {
                State::Told(_, told) => Some(*told),
                State::User(_) => None,
                _ => panic!("it waits"),
            }
        };
        assert_eq!([introduce(), introduce(), introduce()], [Some(0), Some(1), None]);
        let places = || lent.each_ref().map(|lent| lent.share.words.places());
        assert_eq!((*common.users.lock().unwrap(), places()), (1, [2, 2]));
        // An error that lasts is the process's, which is one no more.
        let mut process = waiting();
        let told = process.introduce(&lent, &common, |_, _, _| fails(Errno::EPERM));
        assert!(told.unwrap_err().to_string().contains("telling of a port"));
        drop(process);
        assert_eq!(*common.users.lock().unwrap(), 1);
    }
}
