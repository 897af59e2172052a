// SPDX-License-Identifier: Apache-2.0
//! What the tests of every kind of engine have in common: ports on a model of a bridge, with engines on a
//! model beside it, and cases that each kind has to pass.

use super::{Beyond, Machinery, Manner};
use crate::ntb::drive::device_tests::Equipped;
use crate::ntb::port::bridge::testing::cases::{Driven, open, until};
use crate::ntb::port::bridge::testing::{Bench, Function};
use crate::ntb::port::bridge::{BridgePort, Device, Offer};
use crate::ntb::port::conformance;
use crate::ntb::port::{
    DmaChannel, DmaProgress, DmaRefusal, DmaTransfer, Event, InboundMemory, NtbPort, PortError,
};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A bridge and its engines, by side.
pub struct Bed<M, E> {
    pub bench: Arc<Bench<M>>,
    pub ports: [BridgePort; 2],
    pub engines: [Vec<Arc<Beyond<M, E>>>; 2],
}

/// The requester number of an engine.
fn requester(number: usize) -> u16 {
    0x0510 + 8 * number as u16
}

/// Takes over a bridge and so many engines beside it.
fn equipped<M: Driven, E: Machinery>(
    bench: &Arc<Bench<M>>,
    side: usize,
    count: usize,
) -> (BridgePort, Vec<Arc<Beyond<M, E>>>) {
    let function: Arc<Function<M>> = bench.function(side);
    let engines: Vec<_> =
        (0..count).map(|number| Beyond::new(function.clone(), requester(number))).collect();
    let offers = engines.iter().enumerate().map(|(number, engine)| {
        let chip = E::drive(engine.clone()).expect("an engine");
        Offer { chip, requester: requester(number) }
    });
    let port = M::port(function).expect("a port");
    (port.with_engines(offers.collect()), engines)
}

/// A link that is down, with so many engines on each side.
pub fn bed<M: Driven, E: Machinery>(shape: M::Shape, count: usize) -> Bed<M, E> {
    let bench = Bench::new(M::of(shape));
    let [(a, left), (b, right)] = [0, 1].map(|side| equipped(&bench, side, count));
    Bed { bench, ports: [a, b], engines: [left, right] }
}

/// The same, with a link that is up.
pub fn connected<M: Driven, E: Machinery>(shape: M::Shape) -> Bed<M, E> {
    let bed = bed::<M, E>(shape, 1);
    bed.ports.iter().for_each(|port| port.link_enable().unwrap());
    until("the link", || bed.ports.iter().all(|port| port.link_state().up));
    bed
}

/// Both ends of a link with engines, for tests of others.
pub fn link<M: Driven, E: Machinery>(shape: M::Shape) -> Equipped {
    let Bed { bench, ports: [a, b], engines: [engines, others] } = bed::<M, E>(shape, 2);
    let silent = Manner { silent_after: Some(0), ..Manner::default() };
    let stop = move || {
        // Those of the other end live as long.
        let _ = &others;
        engines.iter().for_each(|engine| engine.behave(silent));
    };
    (([Arc::new(a), Arc::new(b)], bench), Box::new(stop))
}

/// The suite of ports, from both sides.
pub fn conforms<M: Driven, E: Machinery>(shape: M::Shape) {
    for (name, case) in conformance::CASES {
        for (count, own) in [(1, 0), (1, 1), (3, 0)] {
            eprintln!("{name}, {count} engines, side {own}");
            let bed = bed::<M, E>(shape, count);
            let [a, b] = &bed.ports;
            match own {
                0 => case(a, b),
                _ => case(b, a),
            }
            if name.starts_with("dma_") {
                let done = bed.engines.iter().flatten().map(|engine| engine.done()).sum::<u64>();
                assert!(done > 0, "{name}: the engine was not asked");
            }
        }
    }
}

/// Memory of the peer behind the first slot of window 0, and memory of the port with bytes in it.
fn memories(bed: &[BridgePort; 2], len: usize) -> (InboundMemory, InboundMemory) {
    let target = crate::ntb::port::bridge::testing::opened(&bed[1], 0, len);
    let source = InboundMemory::new(len).unwrap();
    for at in (0..len).step_by(8) {
        source.store(at, (at as u64).wrapping_mul(0x0101_0101_0101_0101) | 1);
    }
    bed[0].register(&source.region()).unwrap();
    (target, source)
}

fn transfer(source: &InboundMemory, len: usize, flag: Option<(usize, u64)>) -> DmaTransfer {
    DmaTransfer { offset: 0, source: source.base(), len, flag }
}

/// Waits for a channel to have finished a transfer; how many have failed by then.
fn finished(channel: &mut dyn DmaChannel, number: u64) -> u64 {
    until("a transfer", || channel.poll().finished >= number);
    channel.poll().failed
}

/// Long transfers with flags, many of them under way, one after another over the same memory. Whoever sees
/// a flag sees its data, whatever order the engine takes.
pub fn keeps_order<M: Driven, E: Machinery>(shape: M::Shape) {
    let bed = connected::<M, E>(shape);
    let (target, source) = memories(&bed.ports, 8192);
    let mut channel = bed.ports[0].dma(0).unwrap();
    channel.open(0, 8192).unwrap();
    for round in 1..=300u64 {
        let len = 8 + (round as usize * 328) % 4000 / 8 * 8;
        source.store(len - 8, round);
        target.store(len - 8, 0);
        for part in 0..3 {
            let at = part * 1024 % len / 8 * 8;
            let part = DmaTransfer {
                offset: at,
                source: source.base().wrapping_add(at),
                len: len - at,
                flag: Some((4096 + 8 * part, round)),
            };
            // SAFETY: the source outlives the channel.
            unsafe { channel.submit(part) }.unwrap();
        }
        until("the flag", || {
            channel.poll();
            target.load(4096 + 16) == round
        });
        assert_eq!(target.copy_out(0, len), source.copy_out(0, len), "round {round}");
        assert_eq!((target.load(4096), target.load(4104)), (round, round));
    }
}

/// A machine whose root complex passes nothing on, or whose bridge does not know the engine.
pub fn is_tried<M: Driven, E: Machinery>(shape: M::Shape) {
    let bed = bed::<M, E>(shape, 1);
    let mut channel = bed.ports[0].dma(0).unwrap();
    assert!(matches!(channel.open(0, 4096), Err(PortError::NotConnected)));
    bed.bench.isolate(0);
    bed.ports.iter().for_each(|port| port.link_enable().unwrap());
    until("the link", || bed.ports.iter().all(|port| port.link_state().up));
    let (_target, _source) = memories(&bed.ports, 4096);
    let why = channel.open(0, 4096).unwrap_err();
    assert!(why.to_string().contains("does not arrive at the peer"), "{why}");
    assert_eq!(channel.open(0, 4096).unwrap_err().to_string(), why.to_string(), "tried once");
    assert!(bed.ports[0].describe().contains("not used: what it writes"));
    // The peer's engine is another one.
    let mut channel = bed.ports[1].dma(0).unwrap();
    let _memory = crate::ntb::port::bridge::testing::opened(&bed.ports[0], 0, 4096);
    until("the peer's", || channel.open(0, 4096).is_ok());
    assert!(bed.ports[1].describe().contains("reaches the peer"), "{}", bed.ports[1].describe());
}

/// An engine that stops without a word: its channel is closed, after which it reaches nothing.
pub fn may_stop<M: Driven, E: Machinery>(shape: M::Shape) {
    let bed = connected::<M, E>(shape);
    let (target, source) = memories(&bed.ports, 8192);
    let engine = &bed.engines[0][0];
    let mut other = bed.ports[0].dma(0).unwrap();
    let mut channel = bed.ports[0].dma(0).unwrap();
    channel.open(0, 8192).unwrap();
    other.open(0, 8192).unwrap();
    engine.behave(Manner { silent_after: Some(2), ..Manner::default() });
    for number in 1..=5 {
        // SAFETY: the source outlives the channel.
        let taken = unsafe { channel.submit(transfer(&source, 4096, Some((4096, number)))) };
        assert_eq!(taken, Ok(number));
    }
    until("what it does before", || engine.done() >= 2);
    std::thread::sleep(Duration::from_millis(5));
    let before = channel.poll().finished;
    assert_eq!(target.load(4096), before, "those that have finished, in their order");
    assert!(before < 5);
    let begun = Instant::now();
    drop(channel);
    assert!(begun.elapsed() < Duration::from_secs(5), "closing has an end");
    assert!(!engine.is_master(), "it reaches no memory any more");
    // SAFETY: nothing is read.
    let refused = unsafe { other.submit(transfer(&source, 8, None)) };
    assert_eq!(refused, Err(DmaRefusal::Gone));
    assert!(bed.ports[0].describe().contains("not used any more"));
    bed.ports[0].link_disable().unwrap();
}

/// Transfers that fail are told, the flags of such are not written, and an engine that only fails is not used
/// any more. What does not answer is noticed.
pub fn may_fail<M: Driven, E: Machinery>(shape: M::Shape) {
    for gone in [false, true] {
        let bed = connected::<M, E>(shape);
        let (target, source) = memories(&bed.ports, 8192);
        let mut channel = bed.ports[0].dma(0).unwrap();
        channel.open(0, 8192).unwrap();
        let mut number = 0;
        let mut next = |channel: &mut dyn DmaChannel, value: u64| {
            // SAFETY: the source outlives the channel.
            let taken = unsafe { channel.submit(transfer(&source, 4096, Some((4096, value)))) };
            number = taken.unwrap_or(number);
            taken.map(|number| finished(channel, number))
        };
        assert_eq!(next(&mut *channel, 1), Ok(0));
        bed.engines[0][0].behave(Manner { fails: !gone, gone, ..Manner::default() });
        assert_eq!(next(&mut *channel, 2), Ok(1));
        assert_eq!(target.load(4096), 1, "the flag of a transfer that failed");
        if !gone {
            bed.engines[0][0].behave(Manner::default());
            assert_eq!(next(&mut *channel, 3), Ok(1), "one failure is none of the engine's");
            assert_eq!(target.load(4096), 3);
            bed.engines[0][0].behave(Manner { fails: true, ..Manner::default() });
        }
        until("it to be given up", || next(&mut *channel, 4) == Err(DmaRefusal::Gone));
        assert!(bed.ports[0].counters()[Event::DmaErrors] > 0);
        assert_ne!(target.load(4096), 4);
    }
}

/// An engine that meets an error begins again.
pub fn may_halt<M: Driven, E: Machinery>(shape: M::Shape) {
    let bed = connected::<M, E>(shape);
    let (target, source) = memories(&bed.ports, 8192);
    let mut channel = bed.ports[0].dma(0).unwrap();
    channel.open(0, 8192).unwrap();
    for round in 0..5 {
        bed.engines[0][0].behave(Manner { halts: true, ..Manner::default() });
        for number in 1..=3 {
            // SAFETY: the source outlives the channel.
            let taken = unsafe { channel.submit(transfer(&source, 4096, Some((4096, 1)))) };
            assert_eq!(taken, Ok(4 * round + number));
        }
        assert_eq!(finished(&mut *channel, 4 * round + 3), 3 * round + 3);
        bed.engines[0][0].behave(Manner::default());
        // SAFETY: as above.
        unsafe { channel.submit(transfer(&source, 4096, Some((4096, 2)))) }.unwrap();
        assert_eq!(finished(&mut *channel, 4 * round + 4), 3 * round + 3);
        until("the flag", || target.load(4096) == 2);
    }
}

/// What is under way when a link is lost is not carried out when it has come back.
pub fn ends_with_its_link<M: Driven, E: Machinery>(shape: M::Shape) {
    let bed = connected::<M, E>(shape);
    let (target, source) = memories(&bed.ports, 8192);
    let mut channel = bed.ports[0].dma(0).unwrap();
    channel.open(0, 8192).unwrap();
    bed.engines[0][0].behave(Manner { holds: true, ..Manner::default() });
    // SAFETY: the source outlives the channel.
    unsafe { channel.submit(transfer(&source, 4096, Some((4096, 7)))) }.unwrap();
    std::thread::sleep(Duration::from_millis(5));
    assert_eq!(channel.poll(), DmaProgress::default(), "it takes its time while the link is up");
    bed.ports[1].link_disable().unwrap();
    until("the link to go down", || !bed.ports[0].link_state().up);
    assert_eq!(finished(&mut *channel, 1), 1, "it was not carried out");
    bed.engines[0][0].behave(Manner::default());
    bed.ports[1].link_enable().unwrap();
    until("the link", || bed.ports.iter().all(|port| port.link_state().up));
    let memory = crate::ntb::port::bridge::testing::opened(&bed.ports[1], 0, 8192);
    until("the range", || channel.open(0, 8192).is_ok());
    // SAFETY: as above.
    unsafe { channel.submit(transfer(&source, 8, Some((4096, 9)))) }.unwrap();
    assert_eq!(finished(&mut *channel, 2), 1);
    until("the flag", || memory.load(4096) == 9);
    assert_eq!((memory.load(8), target.load(4096)), (0, 0));
}

/// A process that is killed: the next one has an engine that works.
pub fn is_taken_over<M: Driven, E: Machinery>(shape: M::Shape) {
    let bed = connected::<M, E>(shape);
    let (target, source) = memories(&bed.ports, 1 << 13);
    let [a, b] = bed.ports;
    let mut channel = a.dma(0).unwrap();
    channel.open(0, 8192).unwrap();
    for number in 1..=20 {
        // SAFETY: the source outlives the channel.
        unsafe { channel.submit(transfer(&source, 4096, Some((4096, number)))) }.unwrap();
    }
    bed.bench.kill(0);
    // What the process had is gone with it, as far as others are concerned.
    std::mem::forget(channel);
    std::mem::forget(a);
    bed.engines[0][0].reset().unwrap();
    assert!(bed.bench.reachable(0).is_empty());
    let (next, engines) = equipped::<M, E>(&bed.bench, 0, 1);
    next.link_enable().unwrap();
    until("the link", || next.link_state().up && b.link_state().up);
    let ports = [next, b];
    let (again, bytes) = memories(&ports, 1 << 13);
    let mut channel = ports[0].dma(0).unwrap();
    until("the range", || channel.open(0, 8192).is_ok());
    // SAFETY: the source outlives the channel.
    unsafe { channel.submit(transfer(&bytes, 4096, Some((4096, 77)))) }.unwrap();
    until("the flag", || channel.poll().finished == 1 && again.load(4096) == 77);
    assert!(engines[0].done() > 0 && target.load(4096) != 77);
    assert!(open(&bed.bench, 0).is_ok());
}
