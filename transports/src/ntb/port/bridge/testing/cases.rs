// SPDX-License-Identifier: Apache-2.0
//! What the tests of every kind of bridge have in common: two ports on a model, and cases that each kind
//! has to pass.

use super::{Bench, Function, Model, opened, store};
use crate::ntb::drive::device_tests::Link;
use crate::ntb::port::bridge::{BridgePort, Device, layout};
use crate::ntb::port::conformance;
use crate::ntb::port::shared::tests::Beside;
use crate::ntb::port::{Line, NtbPort, PortError, Result};
use std::fmt::Debug;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Only a failing test waits so long.
pub const PATIENCE: Duration = Duration::from_secs(20);

/// A model, and the port that drives it.
pub trait Driven: Model + Sized {
    /// What there can be.
    type Shape: Copy + Debug;

    /// A link that is down.
    fn of(shape: Self::Shape) -> Self;

    /// Takes over a function.
    fn port(device: Arc<Function<Self>>) -> Result<BridgePort>;
}

/// A model with the ports of both sides.
pub type Pair<M> = (Arc<Bench<M>>, BridgePort, BridgePort);

/// Takes over the function of a side.
pub fn open<M: Driven>(bench: &Arc<Bench<M>>, side: usize) -> Result<BridgePort> {
    M::port(bench.function(side))
}

/// Why the first function of a link cannot be taken over.
pub fn refusal<M: Driven>(shape: M::Shape) -> String {
    open(&Bench::new(M::of(shape)), 0).err().expect("refused").to_string()
}

/// A link that nobody has enabled, with both its ports.
pub fn pair<M: Driven>(shape: M::Shape) -> Pair<M> {
    let bench = Bench::new(M::of(shape));
    let (a, b) = (open(&bench, 0).unwrap(), open(&bench, 1).unwrap());
    (bench, a, b)
}

/// A pair whose link is up.
pub fn connected<M: Driven>(shape: M::Shape) -> Pair<M> {
    let (bench, a, b) = pair(shape);
    a.link_enable().unwrap();
    b.link_enable().unwrap();
    until("the link", || a.link_state().up && b.link_state().up);
    (bench, a, b)
}

/// Both ends of a link, for tests of others.
pub fn link<M: Driven>(shape: M::Shape) -> Link {
    let (bench, a, b) = pair::<M>(shape);
    ([Arc::new(a), Arc::new(b)], bench)
}

/// Waits for what is bound to happen.
pub fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !happened() {
        assert!(begun.elapsed() < PATIENCE, "{what}");
        std::thread::yield_now();
    }
}

/// The suite of ports, from both sides.
pub fn conforms<M: Driven>(shapes: &[M::Shape]) {
    for shape in shapes {
        for (name, case) in conformance::CASES {
            eprintln!("{name}, {shape:?}");
            let (_bench, a, b) = pair::<M>(*shape);
            case(&a, &b);
            let (_bench, a, b) = pair::<M>(*shape);
            case(&b, &a);
        }
    }
}

/// The same with processes on both sides that use the ports beside those which have the functions open.
pub fn conforms_beside<M: Driven>(shapes: &[M::Shape]) {
    for shape in shapes {
        for (name, case) in conformance::CASES {
            eprintln!("{name}, {shape:?}");
            let (_bench, a, b) = pair::<M>(*shape);
            let [a, b] = [a, b].map(|port| Beside::of(Arc::new(port)));
            case(&*a.port, &*b.port);
            let (_bench, a, b) = pair::<M>(*shape);
            let a = Beside::of(Arc::new(a));
            case(&*a.port, &b);
        }
    }
}

/// A device that is gone is a link that is lost, on either side.
pub fn is_lost_when_gone<M: Driven>(shapes: &[M::Shape]) {
    for (shape, side) in shapes.iter().flat_map(|shape| [(shape, 0), (shape, 1)]) {
        let (bench, a, b) = connected::<M>(*shape);
        let (port, peer) = if side == 0 { (a, b) } else { (b, a) };
        let _memory = opened(&peer, 0, 8192);
        let mut window = port.outbound(0).unwrap();
        store(&mut *window, 0, 1).unwrap();
        port.link_event();
        bench.lose(side);
        // Nothing interrupts: whoever looks finds it.
        until("somebody to look", || !port.link_state().up);
        assert!(port.db_wait(0, PATIENCE).link_changed);
        assert!(port.link_event() && !port.link_event());
        assert!(matches!(port.link_enable(), Err(PortError::Gone(_))));
        let memory = port.inbound_memory(0, 0, 4096).unwrap();
        let address = port.register(&memory.region()).unwrap();
        let result = port.mw_set_trans(0, 0, address, 4096);
        assert!(matches!(result, Err(PortError::Gone(_))), "{result:?}");
        assert!(matches!(store(&mut *window, 0, 2), Err(PortError::NotConnected)));
        window.write_line(0, &Line([3; 8]));
        port.peer_db_set(1);
        port.peer_spad_write(0, 1);
        assert_eq!((port.peer_spad_read(0), port.db_read()), (u32::MAX, 0));
        assert!(port.describe().contains("does not answer"), "{}", port.describe());
        assert!(matches!(open(&bench, side).err(), Some(PortError::Gone(_))));
    }
}

/// A process that is killed leaves a link that the next one uses. `tells` whether its end interrupts
/// the peer, which hears of it from the next process otherwise.
pub fn is_taken_over<M: Driven>(shapes: &[M::Shape], tells: impl Fn(&M::Shape) -> bool) {
    for (shape, killed) in shapes.iter().flat_map(|shape| [(shape, 0), (shape, 1)]) {
        let (bench, a, b) = connected::<M>(*shape);
        let (left, lost) = if killed == 1 { (a, b) } else { (b, a) };
        let _memory = opened(&lost, 0, 8192);
        let mut window = left.outbound(0).unwrap();
        store(&mut *window, 0, 1).unwrap();
        left.peer_db_set(1);
        let before = left.link_state().generation;
        left.link_event();
        bench.kill(killed);
        std::mem::forget(lost);
        if tells(shape) {
            assert!(left.db_wait(0, PATIENCE).link_changed);
            until("the link to go down", || !left.link_state().up);
        } else if store(&mut *window, 0, 2).is_ok() {
            assert!(bench.faults(killed) > 0, "the IOMMU lets nothing pass");
        }
        assert!(bench.reachable(killed).is_empty());
        let next = open(&bench, killed).unwrap();
        until("the link to go down", || !left.link_state().up);
        next.link_enable().unwrap();
        until("the link", || left.link_state().up && next.link_state().up);
        assert_ne!(left.link_state().generation, before);
        assert_eq!(next.db_read(), 0, "what rang before was not for this process");
        let closed = store(&mut *window, 0, 2);
        assert!(matches!(closed, Err(PortError::Closed { .. })), "open before: {closed:?}");
        let memory = opened(&next, 0, 8192);
        store(&mut *window, 0, 3).unwrap();
        assert_eq!(memory.load(0), 3);
        let memory = opened(&left, 0, 8192);
        store(&mut *next.outbound(0).unwrap(), 0, 4).unwrap();
        assert_eq!(memory.load(0), 4);
    }
}

/// A port is used while its peer fills the page in which it says what is open, behind BAR `bar`, and
/// whatever `registers` it reaches, with words of any content. No peer gets into more memory by that.
pub fn does_not_believe<M: Driven>(
    (shape, own): (M::Shape, usize),
    bar: usize,
    mut registers: impl FnMut(&Function<M>, &mut dyn FnMut() -> u64),
) -> Arc<Bench<M>> {
    let (bench, a, b) = connected::<M>(shape);
    let port = if own == 0 { &a } else { &b };
    let hostile = bench.function(1 - own);
    let sizes: Vec<u64> = port.core.apertures.iter().map(layout::size_of).collect();
    let mut window = port.outbound(0).unwrap();
    let mut random = 7u64;
    let mut next = || {
        random = random.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        random >> 16 ^ random << 48
    };
    for round in 0..100 {
        for offset in (0..4096).step_by(8) {
            let word = if round == 0 { u64::MAX } else { next() };
            hostile.store_words(bar, offset, &[word]);
        }
        if round % 2 == 1 {
            // Windows that are opened in spite of what is said of their slots.
            hostile.store_words(bar, 0, &sizes);
        }
        registers(&hostile, &mut next);
        port.db_wait(1, Duration::ZERO);
        assert_eq!(port.db_read() & !port.db_valid_mask(), 0);
        let _ = window.open(0, usize::MAX);
        window.write_line(64 * (next() as usize % 4096), &Line([1; 8]));
        window.read(64, &mut [0; 64]);
        let (mapping, word) = (window.map(0, 8192), next());
        // SAFETY: eight bytes of a local.
        mapping.map(|mapping| unsafe { mapping.write(0, (&raw const word).cast(), 8) });
        for index in 0..port.capabilities().spads {
            port.spad_read(index);
        }
        port.link_state();
    }
    assert_eq!(bench.reachable(own).len(), 1, "the page of the port");
    bench.clone()
}
