// SPDX-License-Identifier: Apache-2.0
//! Threads on simulated hosts, without a core above them.

use std::sync::atomic::{AtomicU64, Ordering};

use tombolo_core::Config as Settings;
use tombolo_core::config::Environment;
use tombolo_core::transport::{
    Job, Locality, Remote, Segment, SegmentKind, Signal, SignalOp, Status, Stream,
};

use super::{LiveRing, LiveSetup, spend_ns};
use crate::ntb::port::emulated::Profile;
use crate::ntb::ring::{Config, Geometry};
use crate::ntb::sim::{HostModel, Writer};

const HOSTS: u16 = 4;
const WORDS: usize = 4096;

fn ring() -> LiveRing {
    let geometry = Geometry::new(8192, [32, 32, 64]).expect("sound");
    let config = Config::simulated(geometry, false);
    let (link, host) = (Profile::Plx8749.link(), HostModel::desktop(Writer::Dma));
    let setup = LiveSetup { hosts: HOSTS, lanes: 1, config, link, host, seed: 1 };
    LiveRing::new(setup).expect("a ring")
}

fn localities() -> Vec<Locality> {
    (0..HOSTS.into()).map(Locality::alone_on).collect()
}

/// PE 0 puts `words` words to PE `to`, which waits for the flag behind them: its clock then.
fn one_way_ns(to: usize, words: usize) -> f64 {
    one_way_beside_ns(to, words, 0)
}

/// The same for a PE that first works for so many steps of a tenth of a microsecond, and looks at its clock
/// after each.
fn one_way_beside_ns(to: usize, words: usize, steps: usize) -> f64 {
    let (ring, localities) = (ring(), localities());
    let mut took = [0.0; HOSTS as usize];
    std::thread::scope(|scope| {
        for (pe, took) in took.iter_mut().enumerate() {
            let (ring, localities) = (&ring, &localities);
            scope.spawn(move || {
                let config = Settings::from_environment(Environment::default()).expect("sound");
                let job = Job { pe, localities, config: &config, meeting: None };
                let heap: Vec<AtomicU64> = (0..=WORDS).map(|_| AtomicU64::new(0)).collect();
                let segment = Segment {
                    kind: SegmentKind::Heap,
                    base: heap.as_ptr().cast_mut().cast(),
                    len: (WORDS + 1) * 8,
                    whole: heap.as_ptr().cast_mut().cast(),
                    file: None,
                    file_offset: 0,
                    layout: 0,
                };
                let mut transport = ring.transport(pe);
                transport.open(&job, &[segment]).expect("opens");
                let endpoints = transport.connect(&job, &[]).expect("connects");
                ring.enter(pe);
                ring.align(pe);
                let begun = ring.now_ns(pe);
                let stream = Stream::new(0, true);
                if pe == 0 {
                    let source = vec![7u64; words];
                    let at = |offset| Remote { segment: SegmentKind::Heap, offset };
                    let signal = Signal { word: at(WORDS * 8), value: 1, op: SignalOp::Set };
                    let endpoint = endpoints[to].as_ref().expect("reached");
                    // SAFETY: the source lives until the put is complete.
                    let put = unsafe {
                        let source = source.as_ptr().cast();
                        endpoint.put_signal(&stream, at(0), source, words * 8, signal, false)
                    };
                    assert_eq!(put, Status::Pending);
                    while !stream.is_quiet() {
                        transport.progress();
                    }
                    assert_eq!(stream.failed.load(Ordering::Relaxed), 0);
                }
                if pe == to {
                    for step in 1..=steps {
                        spend_ns(100.0);
                        let late = ring.now_ns(pe) - begun - 100.0 * step as f64;
                        assert!(late.abs() < 1.0, "held up for {late} ns by step {step}");
                    }
                    while heap[WORDS].load(Ordering::Acquire) == 0 {
                        transport.progress();
                    }
                }
                *took = ring.now_ns(pe) - begun;
                ring.align(pe);
                let arrived = heap.iter().filter(|word| word.load(Ordering::Relaxed) == 7).count();
                assert_eq!(arrived, if pe == to { words } else { 0 }, "at {pe}");
                ring.leave(pe);
            });
        }
    });
    // The sender knows it when the receiver has told.
    assert!(took[0] > took[to], "{took:?}");
    took[to]
}

#[test]
fn puts_take_the_time_of_their_links() {
    let [near, far] = [1, 2].map(|to| one_way_ns(to, 1));
    let propagation = Profile::Plx8749.link().propagation_ns as f64;
    assert!(near > propagation && near < 4.0 * propagation, "{near} ns");
    assert!(far > near + propagation && far < 3.0 * near, "{near} and {far} ns");
    // The model is the same for both ways round.
    assert!((one_way_ns(3, 1) - near).abs() < 0.2 * near);
    let wire = (WORDS * 8) as f64 / Profile::Plx8749.link().raw_rate(256);
    let long = one_way_ns(1, WORDS);
    assert!(long > wire && long < 2.0 * wire + 4.0 * propagation, "{long} ns, wire {wire} ns");
}

/// Most of the words are copied while the receiver works; it is not held up, nor gets them later.
#[test]
fn a_pe_works_while_a_lane_copies() {
    let long = one_way_ns(1, WORDS);
    let steps = (long / 100.0) as usize - 5;
    assert!(steps > 20, "{long} ns");
    assert!((one_way_beside_ns(1, WORDS, steps) - long).abs() < 100.0);
}

#[test]
fn the_same_program_takes_the_same_time() {
    assert_eq!(one_way_ns(2, 100).to_bits(), one_way_ns(2, 100).to_bits());
}

#[test]
fn clocks_go_on_by_what_programs_spend() {
    let ring = ring();
    std::thread::scope(|scope| {
        for pe in 0..usize::from(HOSTS) {
            let ring = &ring;
            scope.spawn(move || {
                ring.enter(pe);
                ring.align(pe);
                let begun = ring.now_ns(pe);
                spend_ns(1000.0 * pe as f64);
                assert!((ring.now_ns(pe) - begun - 1000.0 * pe as f64).abs() < 1.0);
                ring.align(pe);
                assert!((ring.now_ns(pe) - begun - 3000.0).abs() < 1.0, "the last one's time");
                ring.leave(pe);
            });
        }
    });
}
