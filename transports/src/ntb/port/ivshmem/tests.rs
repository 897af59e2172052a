// SPDX-License-Identifier: Apache-2.0
//! The port without virtual machines: its devices are clients of the server, as QEMU's are.

use super::device::Device;
use super::server::{Change, Server};
use super::*;
use crate::ntb::port::conformance::CASES;
use crate::ntb::port::shared::DeviceShare;
use crate::ntb::port::shared::tests::{self as shared_tests, Beside};
use crate::ntb::port::vfio::lead_nowhere;
use nix::sys::eventfd::EventFd;
use nix::sys::mman::{MapFlags, ProtFlags, mmap, munmap};
use nix::sys::socket::{ControlMessageOwned, MsgFlags, recvmsg};
use std::ffi::c_void;
use std::io::IoSliceMut;
use std::num::NonZeroUsize;
use std::os::fd::{AsFd, AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::{UnixListener, UnixStream};
use std::path::{Path, PathBuf};

const SIZE: usize = 4 << 20;
const VECTORS: [usize; 2] = [1, 4];

/// What QEMU is to the server.
#[derive(Debug)]
struct Client {
    position: u32,
    base: NonNull<c_void>,
    memory: OwnedFd,
    own: Vec<EventFd>,
    peer: Mutex<Vec<EventFd>>,
    /// None of another process beside.
    stream: Option<UnixStream>,
    vectors: usize,
}

// SAFETY: the mapping is memory that others share anyway.
unsafe impl Send for Client {}
// SAFETY: as above.
unsafe impl Sync for Client {}

fn hear(stream: &UnixStream) -> (i64, Option<OwnedFd>) {
    let mut bytes = [0; 8];
    let mut space = nix::cmsg_space!([i32; 1]);
    let mut words = [IoSliceMut::new(&mut bytes)];
    let fd = stream.as_raw_fd();
    let message = recvmsg::<()>(fd, &mut words, Some(&mut space), MsgFlags::empty()).unwrap();
    let mut given = message.cmsgs().unwrap().filter_map(|control| match control {
        ControlMessageOwned::ScmRights(fds) => fds.first().copied(),
        _ => None,
    });
    // SAFETY: the kernel has just made it for this process.
    let fd = given.next().map(|fd| unsafe { OwnedFd::from_raw_fd(fd) });
    (i64::from_le_bytes(bytes), fd)
}

impl Client {
    fn connect(path: &Path, vectors: usize) -> Client {
        let stream = UnixStream::connect(path).unwrap();
        assert_eq!(hear(&stream).0, 0, "the version");
        let position = hear(&stream).0 as u32;
        let (what, memory) = hear(&stream);
        assert_eq!(what, -1);
        let memory = memory.unwrap();
        let base = mapped(&memory);
        let (mut own, mut peer) = (Vec::new(), Vec::new());
        while own.len() < vectors {
            let (number, fd) = hear(&stream);
            let event = unsafe_event(fd.unwrap());
            if number as u32 == position { own.push(event) } else { peer.push(event) }
        }
        let (peer, stream) = (Mutex::new(peer), Some(stream));
        Client { position, base, memory, own, peer, stream, vectors }
    }

    /// Takes the doorbells of a peer that has come later.
    fn meet(&self) {
        let mut peer = self.peer.lock().unwrap();
        while peer.len() < self.vectors {
            let stream = self.stream.as_ref().unwrap();
            peer.push(unsafe_event(hear(stream).1.unwrap()));
        }
    }
}

/// A mapping of its own.
fn mapped(memory: &OwnedFd) -> NonNull<c_void> {
    let size = NonZeroUsize::new(SIZE).unwrap();
    let access = ProtFlags::PROT_READ | ProtFlags::PROT_WRITE;
    // SAFETY: a fresh mapping.
    unsafe { mmap(None, size, access, MapFlags::MAP_SHARED, memory, 0) }.unwrap()
}

fn unsafe_event(fd: OwnedFd) -> EventFd {
    // SAFETY: the server sends descriptors of events.
    unsafe { EventFd::from_owned_fd(fd) }
}

impl Device for Client {
    fn memory(&self) -> (*mut u8, usize) {
        (self.base.as_ptr().cast(), SIZE)
    }

    fn position(&self) -> u32 {
        self.position
    }

    fn ring(&self, peer: u16, vector: u16) {
        assert_eq!(u32::from(peer), 1 - self.position);
        let bells = self.peer.lock().unwrap();
        bells.get(usize::from(vector)).into_iter().for_each(|bell| _ = bell.write(1));
    }

    fn interrupts(&self) -> &[EventFd] {
        &self.own
    }

    fn share(&self) -> Result<DeviceShare> {
        let memory = self.memory.try_clone().unwrap();
        let dup = |bell: &EventFd| unsafe_event(bell.as_fd().try_clone_to_owned().unwrap());
        let twin: Arc<dyn Device> = Arc::new(Client {
            position: self.position,
            base: mapped(&memory),
            memory,
            own: vec![],
            peer: Mutex::new(self.peer.lock().unwrap().iter().map(dup).collect()),
            stream: None,
            vectors: self.vectors,
        });
        Ok(DeviceShare::Here(Arc::new(twin)))
    }

    fn abandon(&self) {
        // SAFETY: the mapping made by `mapped`, which is used by raw pointers and atomics.
        unsafe { lead_nowhere(self.base.cast(), SIZE) }.unwrap();
    }

    fn describe(&self) -> String {
        "a client of the server".into()
    }
}

impl Drop for Client {
    fn drop(&mut self) {
        // SAFETY: the mapping made by `connect`.
        let _ = unsafe { munmap(self.base, SIZE) };
    }
}

fn socket(name: &str) -> PathBuf {
    std::env::temp_dir().join(format!("tombolo-ivshmem-{}-{name}", std::process::id()))
}

/// A server that serves until its thread is told that the test is over by two clients going.
fn server(name: &str, vectors: usize) -> (PathBuf, std::thread::JoinHandle<Vec<Change>>) {
    let path = socket(name);
    let mut server = Server::bind(&path, SIZE, vectors).unwrap();
    let thread = std::thread::spawn(move || {
        let mut changes = Vec::new();
        while changes.iter().filter(|change| matches!(change, Change::Went(_))).count() < 2 {
            changes.push(server.wait().unwrap());
        }
        changes
    });
    (path, thread)
}

#[test]
fn a_link_between_two_clients_is_a_port() {
    for vectors in VECTORS {
        for (name, case) in CASES {
            eprintln!("{name}, {vectors} vectors");
            let (path, thread) = server(&format!("{name}-{vectors}"), vectors);
            let first = Arc::new(Client::connect(&path, vectors));
            let second = Arc::new(Client::connect(&path, vectors));
            first.meet();
            {
                let (a, b) = (IvshmemPort::new(first), IvshmemPort::new(second));
                case(&a.unwrap(), &b.unwrap());
            }
            let changes = thread.join().unwrap();
            assert_eq!(changes[..2], [Change::Came(0), Change::Came(1)]);
            assert!(!path.exists());
        }
    }
}

/// Both sides are used by processes beside those which have the devices open.
#[test]
fn a_link_is_a_port_for_several_processes() {
    for (name, case) in CASES {
        eprintln!("{name}");
        let (path, thread) = server(&format!("beside-{name}"), 2);
        let first = Arc::new(Client::connect(&path, 2));
        let second = Arc::new(Client::connect(&path, 2));
        first.meet();
        {
            let ports = [first, second].map(|client| IvshmemPort::new(client).unwrap());
            let [a, b] = ports.map(|port| Beside::of(Arc::new(port)));
            case(&*a.port, &*b.port);
        }
        thread.join().unwrap();
    }
}

#[test]
fn an_owner_that_ends_is_a_link_that_is_lost() {
    let (path, thread) = server("owner-ends", 2);
    let first = Arc::new(Client::connect(&path, 2));
    let second = Arc::new(Client::connect(&path, 2));
    first.meet();
    let a = Beside::of(Arc::new(IvshmemPort::new(first).unwrap()));
    let b = IvshmemPort::new(second).unwrap();
    b.link_enable().unwrap();
    shared_tests::is_lost_with_its_owner(a, &b);
    drop(b);
    thread.join().unwrap();
}

#[test]
fn a_machine_that_ends_takes_its_side_down() {
    let (path, thread) = server("ends", 2);
    let first = Arc::new(Client::connect(&path, 2));
    let second = Arc::new(Client::connect(&path, 2));
    first.meet();
    let third = UnixStream::connect(&path).unwrap();
    assert_eq!(std::io::Read::read(&mut &third, &mut [0; 8]).unwrap(), 0, "there are two already");
    let a = IvshmemPort::new(first).unwrap();
    let b = IvshmemPort::new(second.clone()).unwrap();
    a.link_enable().unwrap();
    b.link_enable().unwrap();
    assert!(a.link_state().up);
    a.link_event();
    drop(b);
    assert!(a.link_state().up, "a process is not the machine");
    drop(second);
    let begun = Instant::now();
    while !a.db_wait(0, Duration::from_secs(1)).link_changed {
        assert!(begun.elapsed() < Duration::from_secs(20));
    }
    assert!(!a.link_state().up);
    drop(a);
    let changes = thread.join().unwrap();
    assert_eq!(changes[2..], [Change::Refused, Change::Went(1), Change::Went(0)]);
}

#[test]
fn what_a_peer_writes_is_not_believed() {
    let (path, thread) = server("hostile", 1);
    let first = Arc::new(Client::connect(&path, 1));
    let second = Arc::new(Client::connect(&path, 1));
    first.meet();
    let (base, _) = first.memory();
    let port = IvshmemPort::new(first).unwrap();
    port.link_enable().unwrap();
    let mut window = port.outbound(0).unwrap();
    let mut random = 7u64;
    for round in 0..200 {
        // All of the other side's section, and of this one's: only registers live there.
        for word in 0..2 * (64 << 10) / 8 {
            random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
            let value = if round == 0 { u64::MAX } else { random };
            // SAFETY: a word of the shared memory.
            unsafe { AtomicU64::from_ptr(base.cast::<u64>().add(word)) }
                .store(value, Ordering::Relaxed);
        }
        port.peer_db_set(u64::MAX);
        port.db_wait(1, Duration::ZERO);
        let _ = window.open(0, usize::MAX);
        window.write_line(0, &crate::ntb::port::Line([1; 8]));
        window.read(64, &mut [0; 64]);
        let _ = window.map(0, 1 << 20);
        port.link_state();
    }
    drop((window, port, second));
    thread.join().unwrap();
}

#[test]
fn a_socket_that_is_left_is_used_again_and_no_other() {
    let path = socket("left");
    // As a server that was killed leaves it.
    drop(UnixListener::bind(&path).unwrap());
    let running = Server::bind(&path, SIZE, 1).unwrap();
    let told = |path: &Path| Server::bind(path, SIZE, 1).unwrap_err().to_string();
    assert_eq!(told(&path), "another program listens there");
    // Still at its place.
    UnixStream::connect(&path).unwrap();
    drop(running);
    std::fs::write(&path, "a file of somebody").unwrap();
    assert!(told(&path).contains("in use"));
    assert_eq!(std::fs::read(&path).unwrap(), b"a file of somebody");
    std::fs::remove_file(&path).unwrap();
}
