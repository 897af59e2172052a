// SPDX-License-Identifier: Apache-2.0
//! Ports that are used beside the process that has them open: here by threads, over the same sockets.

use super::message::{BYTES_MAX, Op, Request, decode_reply, receive, send};
use super::server::name_of;
use super::*;
use crate::ntb::port::bridge::testing::cases::{PATIENCE, connected, pair, until};
use crate::ntb::port::bridge::testing::store;
use crate::ntb::port::epf::model::{Epf, Shape};
use nix::sys::memfd::{MFdFlags, memfd_create};
use nix::sys::socket::{AddressFamily, MsgFlags, SockFlag, SockType, UnixAddr, connect, socket};
use std::fs::File;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::AtomicU64;
use tombolo_core::transport::Meeting;

/// A port of which another process uses what is lent.
pub struct Beside {
    /// As the other process has it.
    pub port: Arc<dyn NtbPort>,
    /// As its owner has it.
    pub own: Arc<dyn NtbPort>,
    pub meeting: Meeting,
    pub server: Server,
}

/// One that no other test has.
fn meeting() -> Meeting {
    static NEXT: AtomicU64 = AtomicU64::new(0);
    let number = NEXT.fetch_add(1, Ordering::Relaxed) << 32 | u64::from(std::process::id());
    Meeting { name: number.to_ne_bytes(), token: (!number).to_ne_bytes() }
}

impl Beside {
    pub fn of(own: Arc<dyn NtbPort>) -> Beside {
        let meeting = meeting();
        let server = Server::open(&meeting, 1, PATIENCE).unwrap();
        server.lend(std::slice::from_ref(&own)).unwrap();
        let mut all = ports(&meeting, PATIENCE).unwrap();
        assert_eq!(all.len(), 1);
        Beside { port: all.remove(0), own, meeting, server }
    }

    /// Another process.
    fn another(&self) -> Arc<dyn NtbPort> {
        ports(&self.meeting, PATIENCE).unwrap().remove(0)
    }
}

/// The owner of a port ends, whose peer has enabled the link: whoever uses the port beside it sees the link go down.
pub fn is_lost_with_its_owner(beside: Beside, peer: &dyn NtbPort) {
    let Beside { port, own, server, .. } = beside;
    port.link_enable().unwrap();
    until("the link", || port.link_state().up && peer.link_state().up);
    let memory = peer.inbound_memory(0, 0, 4096).unwrap();
    let address = peer.register(&memory.region()).unwrap();
    peer.mw_set_trans(0, 0, address, 4096).unwrap();
    let mut window = port.outbound(0).unwrap();
    until("an open slot", || store(&mut *window, 0, 1).is_ok());
    until("a word", || memory.load(0) == 1);
    let mapping = window.map(0, 4096).expect("open");
    port.link_event();
    std::thread::scope(|scope| {
        let waits = scope.spawn(|| port.db_wait(1, PATIENCE).link_changed);
        drop((server, own));
        assert!(waits.join().unwrap());
    });
    until("the link to be lost", || !port.link_state().up);
    assert!(port.link_event() && mapping.is_cut());
    let word = 2u64;
    // SAFETY: eight bytes of a local.
    assert!(!unsafe { mapping.write(0, (&raw const word).cast(), 8) });
    assert!(matches!(store(&mut *window, 0, 2), Err(PortError::NotConnected)));
    port.peer_db_set(1);
    port.db_clear_mask(1);
    port.spad_write(0, 1);
    assert_eq!((port.spad_read(0), port.peer_spad_read(0)), (u32::MAX, u32::MAX));
    assert!(matches!(port.mw_set_trans(0, 0, BusAddress(0), 4096), Err(PortError::NotConnected)));
    port.mw_clear_trans(0, 0, 1).unwrap();
    let why = port.link_enable().unwrap_err().to_string();
    assert!(why.contains("has ended") && port.describe().contains("has ended"), "{why}");
    assert_ne!(memory.load(0), 2);
    peer.mw_clear_trans(0, 0, 1).unwrap();
}

#[test]
fn an_owner_that_ends_is_a_link_that_is_lost() {
    let (_bench, a, b) = pair::<Epf>(Shape::LINUX);
    b.link_enable().unwrap();
    is_lost_with_its_owner(Beside::of(Arc::new(a)), &b);
}

/// Opens a slot of window 0 to new memory.
fn opened(port: &dyn NtbPort, slot: usize) -> InboundMemory {
    let memory = port.inbound_memory(0, slot, 4096).unwrap();
    let address = port.register(&memory.region()).unwrap();
    port.mw_set_trans(0, slot, address, 4096).unwrap();
    memory
}

#[test]
fn processes_have_slots_and_doorbells_of_their_own() {
    let (bench, a, b) = connected::<Epf>(Shape::LINUX);
    let beside = Beside::of(Arc::new(a));
    let (one, two) = (beside.port.clone(), beside.another());
    let memory = [opened(&*one, 1), opened(&*two, 2), opened(&*beside.own, 3)];
    let mut window = b.outbound(0).unwrap();
    let slot_size = b.capabilities().windows[0].slot_size() as usize;
    for (index, memory) in memory.iter().enumerate() {
        let at = (index + 1) * slot_size;
        until("an open slot", || store(&mut *window, at, 7 + index as u64).is_ok());
        assert_eq!(memory.load(0), 7 + index as u64);
    }
    for (port, bit) in [(&one, 1), (&two, 2)] {
        port.db_clear_mask(bit);
        b.peer_db_set(bit);
        assert_eq!(port.db_wait(bit, PATIENCE).pending, bit);
        port.db_clear(bit);
        assert_eq!(port.db_read() & bit, 0);
    }
    // What one counts is seen by all.
    two.peer_db_set(1);
    until("a doorbell", || b.db_read() & 1 == 1);
    assert_eq!(one.counters(), two.counters());
    // One that ends, in whatever way, leaves nothing behind the windows.
    let before = bench.reachable(0).len();
    drop(two);
    until("its slot to be closed", || bench.reachable(0).len() == before - 1);
    assert!(matches!(window.open(2 * slot_size, 8), Err(PortError::Closed { .. })));
    store(&mut *window, slot_size, 9).unwrap();
    assert_eq!(memory[0].load(0), 9);
    drop(one);
    drop(beside);
    assert!(!b.link_state().up, "the owner takes the link along");
    assert_eq!(bench.reachable(0), []);
}

#[test]
fn who_comes_before_the_owner_waits_for_it_and_is_told_why_there_is_nothing() {
    let refused = meeting();
    std::thread::scope(|scope| {
        let early = scope.spawn(|| ports(&refused, PATIENCE));
        let server = Server::open(&refused, 3, PATIENCE).unwrap();
        let waiting = scope.spawn(|| ports(&refused, PATIENCE));
        server.refuse("the device is on fire");
        // Whoever has opened it goes on.
        drop(server);
        let late = scope.spawn(|| ports(&refused, PATIENCE));
        for told in [early, waiting, late] {
            let why = told.join().unwrap().err().expect("refused").to_string();
            assert!(why.contains("on fire"), "{why}");
        }
    });
    // Where all have been told, nobody listens any more, nor where nobody comes.
    let alone = meeting();
    let server = Server::open(&alone, 1, Duration::ZERO).unwrap();
    server.refuse("there is nobody");
    drop(server);
    for meeting in [refused, alone] {
        until("nobody to listen", || listener_of(&meeting).is_err());
    }
    let why = ports(&refused, Duration::from_millis(20)).err().expect("nobody").to_string();
    assert!(why.contains("SHMEM_START_TIMEOUT"), "{why}");
    // An owner that ends before it has decided anything, while somebody waits.
    let meeting = meeting();
    let server = Server::open(&meeting, 1, PATIENCE).unwrap();
    let waiting = raw(&meeting);
    send(waiting.as_fd(), &meeting.token, &[], MsgFlags::empty()).unwrap();
    drop(server);
    // The greeting may have been read or not.
    let heard = receive(waiting.as_fd(), &mut [0; 64], MsgFlags::empty());
    assert!(matches!(heard, Ok((0, _)) | Err(_)), "{heard:?}");
}

#[test]
fn ports_that_cannot_be_shared_are_refused_to_all() {
    let meeting = meeting();
    let server = Server::open(&meeting, 1, PATIENCE).unwrap();
    let beside = Beside::of(Arc::new(pair::<Epf>(Shape::LINUX).1));
    // One that is borrowed itself is nobody's to lend.
    let own = server.lend(std::slice::from_ref(&beside.port)).unwrap_err().to_string();
    drop(server);
    let told = ports(&meeting, PATIENCE).err().expect("refused").to_string();
    assert!(own.contains("several processes") && told.contains("several processes"), "{told}");
}

/// A connection to whoever listens.
fn listener_of(meeting: &Meeting) -> nix::Result<OwnedFd> {
    let flags = SockFlag::SOCK_CLOEXEC;
    let socket = socket(AddressFamily::Unix, SockType::SeqPacket, flags, None)?;
    connect(socket.as_raw_fd(), &UnixAddr::new_abstract(&name_of(meeting))?)?;
    Ok(socket)
}

#[test]
fn writes_of_a_process_count_until_they_end_or_it_does() {
    let (bench, a, _b) = connected::<Epf>(Shape::LINUX);
    let beside = Beside::of(Arc::new(a));
    let process = || owner::shared_ports(&beside.meeting, PATIENCE).unwrap().remove(0);
    let [disconnected, parts, ends] = [process(), process(), process()];
    let words = [&disconnected, &parts, &ends].map(|process| process.words.clone());
    words.iter().for_each(|words| words.writer(0).store(1, Ordering::SeqCst));
    // Of a port that there is not.
    disconnected.owner.tell(7, Op::Look);
    until("it to be disconnected", || disconnected.owner.is_gone());
    let slots = bench.reachable(0).len();
    opened(&parts, 1);
    parts.owner.part();
    until("its slot to be closed", || bench.reachable(0).len() == slots);
    drop(ends);
    until("the process to have left", || words[2].writer(0).load(Ordering::SeqCst) == 0);
    // Those who come later are served later, by the same thread.
    drop(process());
    assert_eq!([0, 1].map(|index| words[index].writer(0).load(Ordering::SeqCst)), [1, 1]);
}

#[test]
fn processes_for_which_there_is_no_place_are_told() {
    let beside = Beside::of(Arc::new(pair::<Epf>(Shape::LINUX).1));
    (2..PLACES).for_each(|_| drop(Raw::of(&beside.meeting)));
    let why = ports(&beside.meeting, PATIENCE).err().expect("no place").to_string();
    assert!(why.contains("too many processes"), "{why}");
}

fn raw(meeting: &Meeting) -> OwnedFd {
    listener_of(meeting).unwrap()
}

/// A process that speaks for itself.
struct Raw(OwnedFd);

impl Raw {
    /// One that has been told of all ports.
    fn of(meeting: &Meeting) -> Raw {
        let socket = Raw(raw(meeting));
        socket.send(&meeting.token, &[]);
        while decode_reply(&socket.hear().unwrap()).unwrap().unwrap().0 > 0 {}
        socket
    }

    fn send(&self, bytes: &[u8], files: &[BorrowedFd<'_>]) {
        send(self.0.as_fd(), bytes, files, MsgFlags::empty()).unwrap();
    }

    /// None: it was disconnected.
    fn hear(&self) -> Option<Vec<u8>> {
        let mut bytes = vec![0; BYTES_MAX];
        match receive(self.0.as_fd(), &mut bytes, MsgFlags::empty()) {
            Ok((len @ 1.., _)) => Some(bytes[..len].to_vec()),
            _ => None,
        }
    }

    fn ask(&self, op: Op, arguments: [u64; 4], files: &[BorrowedFd<'_>]) -> Result<(u64, String)> {
        self.send(&Request { op, port: 0, arguments }.encode(), files);
        decode_reply(&self.hear().expect("an answer")).expect("a reply")
    }
}

#[test]
fn strangers_and_garbage_are_disconnected() {
    let (bench, a, b) = connected::<Epf>(Shape::LINUX);
    let beside = Beside::of(Arc::new(a));
    for wrong in [&[0u8; 8][..], &[], &beside.meeting.token[..7], &[1; 4000]] {
        let stranger = Raw(raw(&beside.meeting));
        if !wrong.is_empty() {
            stranger.send(wrong, &[]);
            assert_eq!(stranger.hear(), None);
        }
    }
    let mut random = 5u64;
    // Each uses up a place.
    for round in 0..100 {
        let garbage: Vec<u8> = (0..48)
            .map(|_| {
                random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(11);
                (random >> 56) as u8
            })
            .collect();
        let process = Raw::of(&beside.meeting);
        process.send(&garbage[..round % 48 + 1], &[]);
        assert_eq!(process.hear(), None);
    }
    // Those who keep to the rules are served as before.
    let memory = opened(&*beside.port, 1);
    let mut window = b.outbound(0).unwrap();
    let at = b.capabilities().windows[0].slot_size() as usize;
    until("an open slot", || store(&mut *window, at, 3).is_ok());
    assert_eq!(memory.load(0), 3);
    drop(beside);
    assert_eq!(bench.reachable(0), []);
}

/// A process parts from an owner that lives: it alone has no link any more.
#[test]
fn who_parts_from_a_living_owner_takes_nothing_along() {
    let (bench, a, b) = connected::<Epf>(Shape::LINUX);
    let beside = Beside::of(Arc::new(a));
    let before = [&beside.port, &beside.own].map(|port| port.link_state());
    let memory = opened(&*beside.port, 1);
    let mut window = beside.port.outbound(0).unwrap();
    let there = opened(&b, 0);
    until("an open slot", || store(&mut *window, 0, 1).is_ok());
    let parts = owner::shared_ports(&beside.meeting, PATIENCE).unwrap().remove(0);
    let mut lost = parts.outbound(0).unwrap();
    until("an open slot", || store(&mut *lost, 0, 2).is_ok());
    let slots = bench.reachable(0).len();
    opened(&parts, 2);
    parts.link_event();
    // As when a reply is late.
    parts.owner.part();
    assert!(parts.db_wait(0, PATIENCE).link_changed);
    assert!(!parts.link_state().up && parts.link_event());
    assert!(matches!(store(&mut *lost, 0, 3), Err(PortError::NotConnected)));
    until("its slot to be closed", || bench.reachable(0).len() == slots);
    drop(parts);
    let after = [&beside.port, &beside.own].map(|port| port.link_state());
    assert!(after.iter().all(|state| state.up) && before == after, "{after:?}");
    store(&mut *window, 0, 4).unwrap();
    assert_eq!(there.load(0), 4);
    let mut back = b.outbound(0).unwrap();
    let at = b.capabilities().windows[0].slot_size() as usize;
    store(&mut *back, at, 5).unwrap();
    assert_eq!(memory.load(0), 5);
    // What all see is the owner's, who puts right what another spoils.
    let words = owner::shared_ports(&beside.meeting, PATIENCE).unwrap().remove(0);
    words.words.set_up(None);
    until("the link", || beside.own.link_state().up && beside.port.link_state().up);
    until("the window", || store(&mut *window, 0, 6).is_ok());
}

/// How many descriptors of this process, which plays all, are of a file.
fn descriptors_of(file: &OwnedFd) -> usize {
    let place = |about: std::fs::Metadata| (about.dev(), about.ino());
    let of = |path: &Path| std::fs::metadata(path).map(place).ok();
    let all = Path::new("/proc/self/fd");
    let own = of(&all.join(file.as_raw_fd().to_string()));
    // Those of other tests come and go.
    let opened = std::fs::read_dir(all).unwrap().filter_map(|fd| of(&fd.ok()?.path()));
    opened.filter(|other| Some(*other) == own).count()
}

#[test]
fn requests_that_cannot_be_are_errors_and_touch_nothing_of_others() {
    let (bench, a, b) = connected::<Epf>(Shape::LINUX);
    let beside = Beside::of(Arc::new(a));
    let memory = opened(&*beside.port, 1);
    let owners = opened(&*beside.own, 3);
    let reachable = bench.reachable(0);
    let hostile = Raw::of(&beside.meeting);
    let refused = |op, arguments, files: &[BorrowedFd<'_>]| {
        let why = hostile.ask(op, arguments, files);
        assert!(why.is_err(), "{op:?} {arguments:x?}: {why:?}");
    };
    let file = memfd_create("test", MFdFlags::MFD_CLOEXEC).unwrap();
    nix::unistd::ftruncate(&file, 8192).unwrap();
    let (folder, pipe) = (File::open("/").unwrap(), nix::unistd::pipe().unwrap().0);
    for (offset, len) in [
        (0, 0),
        (0, 8193),
        (4096, 8192),
        (1, 4096),
        (8192, 4096),
        (u64::MAX, 4096),
        (u64::MAX - 4095, 8192),
        (0, u64::MAX),
        (0, i64::MAX as u64),
    ] {
        refused(Op::Register, [offset, len, 0, 0], &[file.as_fd()]);
    }
    refused(Op::Register, [0, 4096, 0, 0], &[]);
    refused(Op::Register, [0, 4096, 0, 0], &[folder.as_fd()]);
    refused(Op::Register, [0, 4096, 0, 0], &[pipe.as_fd()]);
    // One that may only be read.
    let read_only = File::open(format!("/proc/self/fd/{}", file.as_raw_fd())).unwrap();
    refused(Op::Register, [0, 4096, 0, 0], &[read_only.as_fd()]);
    refused(Op::RegisterFixed, [0, 4096, 0, 0], &[]);
    // More than a message can have, as where the owner may not open more.
    let many = [file.as_fd(); 9];
    let why = hostile.ask(Op::Register, [0, 4096, 0, 0], &many).unwrap_err().to_string();
    assert!(why.contains("ulimit -n"), "{why}");
    let (address, _) = hostile.ask(Op::Register, [4096, 4096, 0, 0], &[file.as_fd()]).unwrap();
    assert_eq!(descriptors_of(&file), 2, "this test's; the owner has the memory mapped");
    for (window, slot, at, size) in [
        (2, 0, address, 4096),
        (u64::MAX, 0, address, 4096),
        (0, u64::MAX, address, 4096),
        (0, 127, address, 4096),
        (0, 0, address + 4096, 4096),
        (0, 0, 0, 4096),
        (0, 0, address, 0),
        (0, 0, address, u64::MAX),
        (0, 0, address + 1, 4096),
        // Those of another process, in whole and in part.
        (0, 1, address, 4096),
        (0, 0, address, 2 * b.capabilities().windows[0].slot_size()),
        // Those of the owner.
        (0, 3, address, 4096),
        (0, 2, address, 2 * b.capabilities().windows[0].slot_size()),
    ] {
        refused(Op::SetTrans, [window, slot, at, size], &[]);
    }
    for (window, slot, slots) in
        [(0, 1, 1), (0, 3, 1), (0, 2, 3), (0, 0, 127), (0, 0, u64::MAX), (7, 0, 1)]
    {
        refused(Op::ClearTrans, [window, slot, slots, 0], &[]);
    }
    refused(Op::Unregister, [address + 4096, 0, 0, 0], &[]);
    let (all_ones, _) = hostile.ask(Op::SpadRead, [u64::MAX, 0, 0, 0], &[]).unwrap();
    assert_eq!(all_ones, u32::MAX.into());
    assert_eq!(bench.reachable(0), reachable, "nothing was opened or closed");
    // What it may do it can.
    hostile.ask(Op::SetTrans, [0, 2, address, 4096], &[]).unwrap();
    refused(Op::Unregister, [address, 0, 0, 0], &[]);
    assert_eq!(bench.reachable(0).len(), reachable.len() + 1);
    drop(hostile);
    until("its slot to be closed", || bench.reachable(0) == reachable);
    drop((memory, owners));
}
