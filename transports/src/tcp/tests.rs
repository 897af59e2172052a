// SPDX-License-Identifier: Apache-2.0
//! Ends of TCP in one thread, and strangers.

use super::frame::{GREETING, Head, greeting};
use super::net::Net;
use super::ports::Ports;
use crate::network::rails::Rail;
use crate::network::{Completion, Event, Failure, Local, Network, RemoteAddress, trial};
use std::ffi::c_void;
use std::io::{ErrorKind, Read, Write};
use std::net::{IpAddr, Ipv4Addr, SocketAddr, TcpListener, TcpStream};
use std::ptr::without_provenance_mut;
use std::time::{Duration, Instant};
use tombolo_core::config::Value;

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);
const KEY: u64 = 77;
const LEN: usize = 4 << 20;

fn open() -> Net {
    Net::open(HERE, &Ports::default(), None).unwrap()
}

/// A network, memory that it shares, and what came of its operations, by their contexts.
struct End {
    net: Net,
    memory: Vec<u8>,
    done: Vec<(usize, usize)>,
    failed: Vec<(usize, bool)>,
}

impl End {
    fn new() -> End {
        End::of(open())
    }

    fn of(mut net: Net) -> End {
        let mut memory = vec![0; LEN];
        // SAFETY: the memory goes after the network, by the order of the fields.
        unsafe { net.share(memory.as_mut_ptr(), LEN, KEY) }.unwrap();
        End { net, memory, done: vec![], failed: vec![] }
    }

    /// Two that know each other: each is number 0 for the other one.
    fn pair() -> [End; 2] {
        End::pair_of([End::new(), End::new()])
    }

    fn pair_of(mut ends: [End; 2]) -> [End; 2] {
        let [near, far] = &mut ends;
        assert_eq!(near.net.insert(&far.net.name().unwrap()), Ok(0));
        assert_eq!(far.net.insert(&near.net.name().unwrap()), Ok(0));
        ends
    }

    fn poll(&mut self) {
        let mut taken = [Completion::NONE; 4];
        match self.net.poll(&mut taken) {
            Ok(count) => {
                self.done.extend(taken[..count].iter().map(|one| (one.context as usize, one.len)))
            }
            Err(Failure { context, is_refusal, .. }) => {
                self.failed.push((context as usize, is_refusal));
            }
        }
    }

    fn has_done(&self, context: usize) -> bool {
        self.done.iter().any(|(one, _)| *one == context)
    }

    /// Writes a source that stays.
    fn write(&mut self, source: &[u8], offset: usize, key: u64, context: usize) -> isize {
        let local = Local { at: source.as_ptr().cast_mut(), len: source.len(), key: () };
        let remote = RemoteAddress { address: offset as u64, key };
        // SAFETY: tests keep sources until the ends are gone.
        unsafe { self.net.write(0, local, remote, named(context)) }
    }

    fn read(&mut self, dest: &mut [u8], offset: usize, key: u64, context: usize) -> isize {
        let local = Local { at: dest.as_mut_ptr(), len: dest.len(), key: () };
        let remote = RemoteAddress { address: offset as u64, key };
        // SAFETY: tests keep destinations until the ends are gone.
        unsafe { self.net.read(0, local, remote, named(context)) }
    }

    fn receive(&mut self, buffer: &mut [u8], context: usize) {
        // SAFETY: tests keep buffers until the ends are gone.
        let posted =
            unsafe { self.net.receive(buffer.as_mut_ptr(), buffer.len(), (), named(context)) };
        assert_eq!(posted, 0);
    }
}

/// A context that is nothing but a number.
fn named(context: usize) -> *mut c_void {
    without_provenance_mut(context)
}

/// Polls all until `ready`.
fn until(ends: &mut [&mut End], mut ready: impl FnMut(&mut [&mut End]) -> bool) {
    let begun = Instant::now();
    while !ready(ends) {
        ends.iter_mut().for_each(|end| end.poll());
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing more happens");
    }
}

/// The same, with looks now and then.
fn until_seen(ends: &mut [&mut End], mut ready: impl FnMut(&mut [&mut End]) -> bool) {
    let mut polls = 0;
    until(ends, |ends| {
        polls += 1;
        if polls % 100 == 0 {
            ends.iter_mut().for_each(|end| end.net.look());
        }
        ready(ends)
    });
}

/// The address and the token in a name.
fn reached_at(net: &Net) -> (SocketAddr, u64) {
    let name = net.name().unwrap();
    let port = u16::from_le_bytes([name[16], name[17]]);
    (SocketAddr::new(HERE, port), u64::from_le_bytes(name[18..].try_into().unwrap()))
}

/// Whether the other end has closed a connection that has nothing to read.
fn is_closed(stream: &mut TcpStream) -> bool {
    stream.set_nonblocking(true).unwrap();
    match stream.read(&mut [0; 64]) {
        Ok(0) => true,
        Ok(_) => panic!("an answer"),
        Err(error) => error.kind() != ErrorKind::WouldBlock,
    }
}

#[test]
fn two_ends_put_get_and_send() {
    trial::run(open(), open()).unwrap();
}

#[test]
fn two_that_begin_at_the_same_time_make_one_connection() {
    for _ in 0..50 {
        let (mut first, mut second) = ([0u8; 8], [0u8; 8]);
        let [mut near, mut far] = End::pair();
        near.receive(&mut first, 1);
        far.receive(&mut second, 1);
        assert_eq!((near.net.inject(0, b"one"), far.net.inject(0, b"two")), (0, 0));
        until(&mut [&mut near, &mut far], |ends| ends.iter().all(|end| end.has_done(1)));
        assert_eq!((&first[..3], &second[..3]), (&b"two"[..], &b"one"[..]));
        // Connections that were given up go when they are seen to be closed.
        until(&mut [&mut near, &mut far], |ends| {
            ends.iter().all(|end| end.net.connections() == (1, 0))
        });
    }
}

/// Two of which the first has a smaller token, by which its own connection would be used, and is told that the other one
/// is at `told`.
fn pair_with_one_direction(told: SocketAddr) -> [End; 2] {
    let mut ends = [End::new(), End::new()];
    ends.sort_by_key(|end| reached_at(&end.net).1);
    let [near, far] = &mut ends;
    let mut name = far.net.name().unwrap();
    name[16..18].copy_from_slice(&told.port().to_le_bytes());
    assert_eq!(near.net.insert(&name), Ok(0));
    assert_eq!(far.net.insert(&near.net.name().unwrap()), Ok(0));
    ends
}

/// Both begin to connect, and all that they send arrives.
fn both_put(mut ends: [End; 2]) {
    let [near, far] = &mut ends;
    let (one, two) = ([1; 100], [2; 100]);
    assert_eq!(near.write(&one, 0, KEY, 1), 0);
    assert_eq!(far.write(&two, 0, KEY, 2), 0);
    until_seen(&mut [near, far], |ends| ends[0].has_done(1) && ends[1].has_done(2));
    assert!(far.memory[..100] == one && near.memory[..100] == two);
    assert_eq!((near.net.connections().1, far.net.connections().1), (0, 0));
}

#[test]
fn where_one_direction_is_refused_the_other_one_is_used() {
    let nobody = TcpListener::bind((HERE, 0)).unwrap().local_addr().unwrap();
    both_put(pair_with_one_direction(nobody));
}

#[test]
fn where_one_direction_is_without_an_answer_the_other_one_is_used() {
    // A listener that accepts nothing, with as many as may wait for it: those that come after get no answer.
    let silent = TcpListener::bind((HERE, 0)).unwrap();
    nix::sys::socket::listen(&silent, nix::sys::socket::Backlog::new(0).unwrap()).unwrap();
    let at = silent.local_addr().unwrap();
    let _waits = TcpStream::connect(at).unwrap();
    both_put(pair_with_one_direction(at));
}

#[test]
fn who_is_not_known_yet_waits() {
    let mut buffer = [0u8; 8];
    let (mut near, mut far) = (End::new(), End::new());
    near.net.insert(&far.net.name().unwrap()).unwrap();
    far.receive(&mut buffer, 1);
    assert_eq!(near.net.inject(0, b"early"), 0);
    until(&mut [&mut near, &mut far], |ends| ends[1].net.connections().1 == 1);
    far.net.insert(&near.net.name().unwrap()).unwrap();
    until(&mut [&mut near, &mut far], |ends| ends[1].has_done(1));
    assert_eq!(&buffer[..5], b"early");
}

#[test]
fn strangers_are_closed_and_harm_nobody() {
    let [mut near, mut far] = End::pair();
    let mut buffer = [0u8; 8];
    far.receive(&mut buffer, 1);
    let (address, token) = reached_at(&far.net);
    // Many say nothing, one the wrong thing, one half of the right thing, one is somebody whom nobody knows.
    let mut silent: Vec<_> = (0..200).map(|_| TcpStream::connect(address).unwrap()).collect();
    let mut wrong = TcpStream::connect(address).unwrap();
    wrong.write_all(&greeting(token ^ 1, 5)).unwrap();
    let mut half = TcpStream::connect(address).unwrap();
    half.write_all(&greeting(token, 5)[..GREETING / 2]).unwrap();
    until(&mut [&mut near, &mut far], |_| is_closed(&mut wrong));
    until(&mut [&mut near, &mut far], |_| is_closed(&mut silent[0]));
    // One for its peer besides.
    assert!(far.net.connections().1 <= 65, "{:?}", far.net.connections());
    assert_eq!(near.net.inject(0, b"right"), 0);
    until(&mut [&mut near, &mut far], |ends| ends[1].has_done(1));
    assert_eq!(&buffer[..5], b"right");
    // Those who say nothing are closed after a while.
    for _ in 0..30 {
        far.net.look();
    }
    assert_eq!(far.net.connections(), (1, 0));
    assert!(is_closed(&mut half) && silent.iter_mut().all(is_closed));
}

/// Whichever of the two has the smaller token.
#[test]
fn one_whose_connection_makes_room_for_strangers_connects_again() {
    for is_smaller in [true, false] {
        let mut ends = End::pair();
        let token = |end: &End| reached_at(&end.net).1;
        if (token(&ends[0]) < token(&ends[1])) != is_smaller {
            ends.swap(0, 1);
        }
        let [mut near, mut far] = ends;
        let mut buffer = [0u8; 8];
        far.receive(&mut buffer, 1);
        assert_eq!(near.net.inject(0, b"right"), 0);
        until(&mut [&mut far], |ends| ends[0].net.connections().1 == 1);
        // It has not greeted yet.
        let (address, _) = reached_at(&far.net);
        let strangers: Vec<_> = (0..70).map(|_| TcpStream::connect(address).unwrap()).collect();
        let mut polls = 0;
        until(&mut [&mut far], |_| {
            polls += 1;
            polls > 100
        });
        until_seen(&mut [&mut near, &mut far], |ends| {
            assert_eq!(ends[0].net.event(), None);
            ends[1].has_done(1)
        });
        assert_eq!(&buffer[..5], b"right");
        drop(strangers);
    }
}

#[test]
fn malformed_frames_close_the_connection() {
    let nobody = Head::Written { count: 1 }.encode();
    let data = Head::Data { len: 8 }.encode();
    let long = Head::Message { len: 1 << 30 }.encode();
    for wrong in [&[0xee; 64][..], &nobody, &data, &long, &Head::ReadRefused.encode()] {
        let mut buffer = [0u8; 64];
        let [mut near, mut far] = End::pair();
        far.receive(&mut buffer, 1);
        let (address, to) = reached_at(&far.net);
        let (_, from) = reached_at(&near.net);
        let mut stream = TcpStream::connect(address).unwrap();
        stream.write_all(&greeting(to, from)).unwrap();
        until(&mut [&mut far], |ends| ends[0].net.connections().0 == 1);
        let mut answer = [0; GREETING];
        stream.read_exact(&mut answer).unwrap();
        assert_eq!(answer, greeting(from, to));
        stream.write_all(wrong).unwrap();
        until(&mut [&mut far], |_| is_closed(&mut stream));
        assert!(far.net.inject(0, b"more") < 0);
        assert!(far.done.is_empty() && far.memory.iter().all(|byte| *byte == 0));
        // Nothing goes to a peer whose connection was closed, and it can tell.
        assert_eq!(near.net.inject(0, b"late"), 0);
        until(&mut [&mut near, &mut far], |ends| ends[0].net.inject(0, b"late") < 0);
    }
}

#[test]
fn what_a_peer_may_not_name_is_refused_and_the_rest_goes_on() {
    let [mut near, mut far] = End::pair();
    let source = vec![5u8; 300_000];
    let mut dest = [0u8; 100];
    assert_eq!(near.write(&source, 0, KEY, 1), 0);
    assert_eq!(near.write(&source, 0, KEY + 1, 2), 0);
    assert_eq!(near.write(&source, LEN - 299_999, KEY, 3), 0);
    assert_eq!(near.write(&source, 400_000, KEY, 4), 0);
    assert_eq!(near.read(&mut dest, 0, KEY + 1, 5), 0);
    assert_eq!(near.read(&mut dest, usize::MAX, KEY, 6), 0);
    assert_eq!(near.read(&mut dest, 400_000, KEY, 7), 0);
    until(&mut [&mut near, &mut far], |ends| ends[0].done.len() + ends[0].failed.len() == 7);
    assert_eq!(near.failed, [(2, true), (3, true), (5, true), (6, true)]);
    assert!([1, 4, 7].iter().all(|context| near.has_done(*context)));
    let written = |range: std::ops::Range<usize>| far.memory[range].iter().all(|byte| *byte == 5);
    assert!(written(0..300_000) && written(400_000..700_000) && dest == [5; 100]);
    assert!(far.memory[700_000..].iter().all(|byte| *byte == 0));
}

/// More than sockets take at a time, in both directions: data are there when the message behind them is.
#[test]
fn long_transfers_keep_their_order() {
    let [mut near, mut far] = End::pair();
    let sources: Vec<Vec<u8>> = (1..=8u8).map(|round| vec![round; LEN]).collect();
    let mut dests = vec![vec![0u8; LEN]; 8];
    let mut buffers = [[0u8; 16]; 2];
    for (round, source) in sources.iter().enumerate() {
        far.receive(&mut buffers[0], 100);
        let ends = &mut [&mut near, &mut far];
        until(ends, |ends| ends[0].write(source, 0, KEY, round) == 0);
        until(ends, |ends| ends[0].net.inject(0, &[round as u8; 9]) == 0);
        until(ends, |ends| ends[0].read(&mut dests[round], 0, KEY, 10 + round) == 0);
        until(ends, |ends| ends[1].has_done(100));
        assert!(ends[1].memory == *source && buffers[0][..9] == [round as u8; 9]);
        ends[1].done.clear();
        // The other way at the same time as the answer to the read.
        near.receive(&mut buffers[1], 200);
        let ends = &mut [&mut near, &mut far];
        until(ends, |ends| ends[1].write(&sources[7 - round], 0, KEY, 300) == 0);
        // SAFETY: the buffer stays until the ends are gone.
        let sent = unsafe { ends[1].net.send(0, buffers[0].as_ptr(), 9, (), named(400)) };
        assert_eq!(sent, 0);
        until(ends, |ends| ends[0].has_done(200) && ends[0].has_done(10 + round));
        until(ends, |ends| ends[1].has_done(300) && ends[1].has_done(400));
        assert!(ends[0].memory == sources[7 - round] && dests[round] == *source);
        assert!(ends[0].has_done(round));
        ends.iter_mut().for_each(|end| end.done.clear());
    }
    assert!(near.failed.is_empty() && far.failed.is_empty());
}

/// The peers that run, by what a look has found.
fn alive(end: &mut End) -> Vec<u64> {
    end.net.look();
    let peer = |event| match event {
        Event::Alive(peer) => peer,
        other => panic!("{other:?}"),
    };
    std::iter::from_fn(|| end.net.event()).map(peer).collect()
}

#[test]
fn bytes_that_move_are_a_sign_of_life_and_those_that_do_not_are_none() {
    let [mut near, mut far] = End::pair();
    let source = vec![7; LEN];
    assert_eq!(near.write(&source[..8], 0, KEY, 0), 0);
    until(&mut [&mut near, &mut far], |ends| ends[0].has_done(0));
    // What waited for the connection has left.
    alive(&mut near);
    assert_eq!(near.write(&source[..8], 0, KEY, 0), 0);
    until(&mut [&mut near, &mut far], |ends| ends[0].done.len() == 2);
    assert_eq!([alive(&mut near), alive(&mut far)], [vec![], vec![]], "after a short one");
    // The peer does not run: the socket takes what it can, which may go on for a while, and then nothing more.
    for context in 1..=16 {
        assert_eq!(near.write(&source, 0, KEY, context), 0);
    }
    until(&mut [&mut near], |ends| {
        (0..1000).for_each(|_| ends[0].poll());
        alive(ends[0]).is_empty()
    });
    // It runs again, and nothing has ended yet.
    let mut seen = [false; 2];
    until(&mut [&mut near, &mut far], |ends| {
        for (seen, end) in seen.iter_mut().zip(ends) {
            *seen |= alive(end) == [0];
        }
        seen == [true; 2]
    });
    assert!(!near.has_done(16));
    until(&mut [&mut near, &mut far], |ends| ends[0].has_done(16));
}

/// A forked process keeps the sockets of its parent.
#[test]
fn a_connection_that_is_given_up_ends_although_another_process_has_its_socket() {
    let [mut near, mut far] = End::pair();
    let source = [7; 8];
    assert_eq!(near.write(&source, 0, KEY, 0), 0);
    until(&mut [&mut near, &mut far], |ends| ends[0].has_done(0));
    let copies = near.net.copies_of_sockets();
    assert_eq!(copies.len(), 1);
    assert_eq!(near.write(&source, 0, KEY, 1), 0);
    near.net.remove(0);
    until(&mut [&mut near, &mut far], |ends| ends[0].failed.contains(&(1, false)));
    while let Some(Event::Lost(..)) = near.net.event() {}
    assert!(near.net.may_sleep() && !wakes(&near.net, 50), "nothing is left to tell of");
    let mut buffer = [0; 64];
    far.receive(&mut buffer, 2);
    let begun = Instant::now();
    while far.net.connections().0 > 0 {
        far.poll();
        assert!(begun.elapsed() < Duration::from_secs(30), "the other end sees no end");
    }
}

#[test]
fn messages_wait_for_buffers_and_keep_their_order() {
    let [mut near, mut far] = End::pair();
    let mut buffers = vec![[0u8; 300]; 40];
    for number in 0..40u8 {
        assert_eq!(near.net.inject(0, &vec![number; 10 + usize::from(number)]), 0);
    }
    let mut polls = 0;
    until(&mut [&mut near, &mut far], |_| {
        polls += 1;
        polls > 1000
    });
    assert!(far.done.is_empty() && far.failed.is_empty());
    for number in 0..40usize {
        far.receive(&mut buffers[number], number);
        until(&mut [&mut near, &mut far], |ends| ends[1].has_done(number));
        assert_eq!(far.done.last(), Some(&(number, 10 + number)));
        assert!(buffers[number][..10 + number].iter().all(|byte| *byte == number as u8));
    }
}

#[test]
fn what_is_under_way_to_a_peer_that_goes_fails() {
    let source = vec![1u8; LEN];
    let mut dest = vec![0u8; 8];
    let [mut near, mut far] = End::pair();
    assert_eq!(near.read(&mut dest, 0, KEY, 1), 0);
    until(&mut [&mut near, &mut far], |ends| ends[0].has_done(1));
    assert_eq!((near.write(&source, 0, KEY, 2), near.read(&mut dest, 0, KEY, 3)), (0, 0));
    // SAFETY: the source stays.
    let sent = unsafe { near.net.send(0, source.as_ptr(), 1000, (), named(4)) };
    assert_eq!(sent, 0);
    drop(far);
    until(&mut [&mut near], |ends| ends[0].failed.len() == 3);
    near.failed.sort_unstable();
    assert_eq!(near.failed, [(2, false), (3, false), (4, false)]);
    assert!(near.write(&source, 0, KEY, 5) < 0 && near.net.inject(0, b"late") < 0);
}

/// Short messages leave without a completion that could fail.
#[test]
fn a_peer_that_goes_is_told_of_after_what_it_has_sent() {
    let (mut question, mut answers) = ([0u8; 8], [[0u8; 8]; 8]);
    let [mut near, mut far] = End::pair();
    far.receive(&mut question, 1);
    assert_eq!(near.net.inject(0, b"question"), 0);
    until(&mut [&mut near, &mut far], |ends| ends[1].has_done(1));
    for (context, answer) in answers.iter_mut().enumerate() {
        near.receive(answer, context);
        assert_eq!(far.net.inject(0, b"answer"), 0);
    }
    drop(far);
    let mut event = None;
    until(&mut [&mut near], |ends| {
        event = ends[0].net.event();
        event.is_some()
    });
    assert!(matches!(event, Some(Event::Lost(0, why)) if why.contains("is gone")));
    assert_eq!(near.done.len(), 8);
}

#[test]
fn a_peer_that_is_removed_writes_nowhere_afterwards() {
    let source = vec![1u8; LEN];
    let [mut near, mut far] = End::pair();
    assert_eq!(far.write(&source, 0, KEY, 1), 0);
    until(&mut [&mut near, &mut far], |ends| ends[0].memory[0] == 1);
    near.net.remove(0);
    near.memory.fill(9);
    until(&mut [&mut near, &mut far], |ends| !ends[1].failed.is_empty());
    assert!(near.memory.iter().all(|byte| *byte == 9) && near.net.connections() == (0, 0));
    // It does not come back.
    assert!(far.net.inject(0, b"again") < 0);
}

#[test]
fn where_nobody_listens_somebody_is_told() {
    let [mut near, far] = End::pair();
    drop(far);
    let source = [1u8; 100];
    // It may be told at once.
    let posted = near.write(&source, 0, KEY, 1);
    let mut event = None;
    until_seen(&mut [&mut near], |ends| {
        event = event.take().or_else(|| ends[0].net.event());
        event.is_some()
    });
    assert!(matches!(&event, Some(Event::Lost(0, why)) if why.contains("SHMEM_TCP_INTERFACE")));
    until(&mut [&mut near], |ends| posted != 0 || ends[0].failed == [(1, false)]);
}

#[test]
fn ports_that_are_given_are_taken_again_and_it_is_told_when_none_is_free() {
    // An address of this process alone: others may use these ports at theirs.
    let [.., high, low] = std::process::id().to_be_bytes();
    let here = IpAddr::V4(Ipv4Addr::new(127, 77, high, low));
    let ports = Ports::parse("20000-20001").unwrap();
    let open = || Net::open(here, &ports, None);
    let port = |net: &Net| reached_at(net).0.port();
    let [mut one, mut other] = End::pair_of([open(), open()].map(|net| End::of(net.unwrap())));
    let mut taken = [&one, &other].map(|end| port(&end.net));
    taken.sort();
    assert_eq!(taken, [20000, 20001]);
    let why = open().err().unwrap();
    assert_eq!(why, format!("no port is free at {here} (SHMEM_TCP_PORTS=20000-20001)"));

    // A connection keeps the port of whoever closes it first, unless something was not read.
    let (mut buffer, mut is_sent) = ([0; 64], false);
    other.receive(&mut buffer, 1);
    until(&mut [&mut one, &mut other], |ends| {
        is_sent = is_sent || ends[0].net.inject(0, b"hello") >= 0;
        ends[1].has_done(1)
    });
    let freed = port(&other.net);
    drop(other);
    assert_eq!(open().map(|again| port(&again)), Ok(freed));
}

#[test]
fn why_a_connection_cannot_be_made_is_told_in_words() {
    let [mut near, far] = End::pair();
    let mut name = far.net.name().unwrap();
    // No socket connects from one version of IP to the other. The token is that of another peer.
    name[..16].copy_from_slice(&std::net::Ipv6Addr::LOCALHOST.octets());
    name[18] ^= 1;
    assert_eq!(near.net.insert(&name), Ok(1));
    // Whoever is told to come again finds the reason, and may come before.
    assert_eq!([0, 1].map(|_| near.net.inject(1, b"a")), [-(libc::EAGAIN as isize); 2]);
    let event = near.net.event();
    assert!(
        matches!(&event, Some(Event::Lost(1, why)) if why.starts_with("no connection to [::1]"))
    );
    assert_eq!(near.net.inject(1, b"a"), -(libc::EAFNOSUPPORT as isize));
}

/// Whether the descriptor to sleep on tells of something within so many milliseconds.
fn wakes(net: &Net, timeout: i32) -> bool {
    let fd = net.wait_fd().expect("a descriptor");
    let mut polled = libc::pollfd { fd, events: libc::POLLIN, revents: 0 };
    // SAFETY: one entry.
    unsafe { libc::poll(&raw mut polled, 1, timeout) > 0 }
}

#[test]
fn the_descriptor_tells_when_there_is_something_to_do() {
    let source = vec![1u8; LEN];
    let mut buffer = [0u8; 8];
    let [mut near, mut far] = End::pair();
    near.receive(&mut buffer, 1);
    assert_eq!(far.net.inject(0, b"wake"), 0);
    until(&mut [&mut near, &mut far], |ends| ends[0].has_done(1));
    for _ in 0..3 {
        near.poll();
    }
    assert!(near.net.may_sleep() && !wakes(&near.net, 0));
    // The socket does not take all of it: there is something to do when the peer has taken some.
    assert_eq!(near.write(&source, 0, KEY, 2), 0);
    assert!(near.net.may_sleep() && !wakes(&near.net, 50));
    let begun = Instant::now();
    while !wakes(&near.net, 0) {
        far.poll();
        assert!(begun.elapsed() < Duration::from_secs(30), "it does not wake");
    }
    until(&mut [&mut near, &mut far], |ends| ends[0].has_done(2));
    for _ in 0..3 {
        near.poll();
    }
    assert!(near.net.may_sleep() && !wakes(&near.net, 0));
}
