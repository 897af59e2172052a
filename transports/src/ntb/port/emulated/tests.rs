// SPDX-License-Identifier: Apache-2.0
use super::*;
use crate::ntb::port::conformance::CASES;
use crate::ntb::port::{
    DmaProgress, DmaTransfer, DoorbellDelivery, Event, InboundMemory, Line, LinkTiming, NtbPort,
    Outbound, PcieGen,
};
use std::time::{Duration, Instant};
use sys::SharedMapping;

mod garbage;
mod processes;

fn spec(profile: Profile, speed: Speed) -> FabricSpec {
    FabricSpec { profile, speed, window_size: Some(1 << 20), ..FabricSpec::new(3) }
}

/// Both ends of link 0: host 0 on its right, host 1 on its left.
fn link(fabric: &Fabric) -> (Arc<EmulatedPort>, Arc<EmulatedPort>) {
    (fabric.ports(0).unwrap().right, fabric.ports(1).unwrap().left)
}

/// Runs the conformance suite on a fresh link for every case.
fn conform(spec: &FabricSpec) {
    for (name, case) in CASES {
        let fabric = Fabric::create(spec).unwrap();
        let (a, b) = link(&fabric);
        println!("{} {:?} {name}", spec.profile, spec.speed);
        case(&*a, &*b);
    }
}

#[test]
fn every_profile_conforms_in_direct_speed() {
    for profile in Profile::ALL {
        conform(&spec(profile, Speed::Direct));
    }
}

#[test]
fn every_profile_conforms_in_modelled_speed() {
    for profile in Profile::ALL {
        conform(&spec(profile, Speed::Modelled));
    }
}

#[test]
fn every_profile_conforms_with_adversarial_write_combining() {
    for profile in Profile::ALL {
        let write_combining = WriteCombining::Adversarial;
        conform(&FabricSpec { write_combining, ..spec(profile, Speed::Direct) });
    }
}

#[test]
fn every_profile_conforms_with_its_own_windows() {
    for profile in Profile::ALL {
        conform(&FabricSpec { window_size: None, ..spec(profile, Speed::Direct) });
    }
}

/// Link 0 of a fabric, up, with memory of host 1 behind slot 0 of window 0.
struct Tied {
    fabric: Fabric,
    a: Arc<EmulatedPort>,
    b: Arc<EmulatedPort>,
    memory: InboundMemory,
    slot_size: usize,
}

fn tied(spec: &FabricSpec) -> Tied {
    let fabric = Fabric::create(spec).unwrap();
    let (a, b) = link(&fabric);
    a.link_enable().unwrap();
    b.link_enable().unwrap();
    let slot_size = b.capabilities().windows[0].slot_size();
    let memory = InboundMemory::new(slot_size as usize).unwrap();
    let address = b.register(&memory.region()).unwrap();
    b.mw_set_trans(0, 0, address, slot_size).unwrap();
    Tied { fabric, a, b, memory, slot_size: slot_size as usize }
}

/// What of a write arrives has arrived when this returns: as fast as memory at once, in modelled time
/// when its handle is closed.
fn send(window: &mut dyn Outbound, offset: usize, bytes: &[u8]) {
    let _ = window.open(offset, bytes.len());
    // SAFETY: a slice is readable for its length.
    unsafe { window.write(offset, bytes.as_ptr(), bytes.len()) };
    window.flush();
}

#[test]
fn a_link_is_opened_only_by_its_own_hosts() {
    let fabric = Fabric::create(&FabricSpec::new(4)).unwrap();
    let fds = fabric.fds();
    assert!(EmulatedPort::open(fds[1], 0).is_err());
    assert_eq!(EmulatedPort::open(fds[1], 1).unwrap().peer_host(), 2);
    assert_eq!(EmulatedPort::open(fds[3], 0).unwrap().peer_host(), 3);
    let other = nix::sys::memfd::memfd_create("other", nix::sys::memfd::MFdFlags::empty()).unwrap();
    assert!(EmulatedPort::open(&other, 0).is_err(), "an empty file");
    nix::unistd::ftruncate(&other, 64 << 20).unwrap();
    assert!(EmulatedPort::open(&other, 0).is_err(), "a file of zeros");
    assert!(fabric.ports(4).is_err());
    assert!(Fabric::create(&FabricSpec::new(1)).is_err());
    assert!(Fabric::create(&FabricSpec::new(HOSTS + 1)).is_err());
}

#[test]
fn a_fabric_is_opened_by_another_launcher() {
    let fabric = Fabric::create(&FabricSpec::new(3)).unwrap();
    let fds = || fabric.fds().into_iter().map(|fd| fd.try_clone_to_owned().unwrap());
    let again = Fabric::open(fds().collect()).unwrap();
    again.inject(Fault::LinkDown { link: 2 }).unwrap();
    let port = fabric.ports(2).unwrap().right;
    port.link_enable().unwrap();
    fabric.ports(0).unwrap().left.link_enable().unwrap();
    assert!(!port.link_state().up, "the cable is out");
    again.inject(Fault::LinkUp { link: 2 }).unwrap();
    assert!(port.link_state().up && fabric.link_state(2).unwrap().up);
    assert!(Fabric::open(fds().rev().collect()).is_err(), "in the wrong order");
    assert!(Fabric::open(fds().take(2).collect()).is_err(), "one is missing");
    assert!(again.inject(Fault::LinkDown { link: 3 }).is_err());
}

#[test]
fn two_hosts_have_two_links() {
    let fabric = Fabric::create(&FabricSpec::new(2)).unwrap();
    let (zero, one) = (fabric.ports(0).unwrap(), fabric.ports(1).unwrap());
    zero.right.link_enable().unwrap();
    one.left.link_enable().unwrap();
    assert!(zero.right.link_state().up && one.left.link_state().up);
    assert!(!zero.left.link_state().up && !one.right.link_state().up);
    zero.right.peer_spad_write(3, 9);
    assert_eq!((one.left.spad_read(3), one.right.spad_read(3)), (9, 0));
}

#[test]
fn a_dead_host_takes_both_links_with_it() {
    let fabric = Fabric::create(&FabricSpec::new(3)).unwrap();
    let ports: Vec<HostPorts> = (0..3).map(|host| fabric.ports(host).unwrap()).collect();
    for host in &ports {
        host.left.link_enable().unwrap();
        host.right.link_enable().unwrap();
    }
    ports[1].left.spad_write(0, 5);
    fabric.inject(Fault::HostDie { host: 1 }).unwrap();
    let up = [0, 1, 2].map(|link| fabric.link_state(link).unwrap().up);
    assert_eq!(up, [false, false, true]);
    assert_eq!(ports[0].right.peer_spad_read(0), u32::MAX);
    assert!(ports[0].right.link_event() && ports[2].left.link_event());
}

#[test]
fn one_side_may_believe_a_dead_link_up() {
    let tied = tied(&spec(Profile::IntelGen3, Speed::Direct));
    tied.fabric.inject(Fault::StuckBelief { link: 0, host: 0, stuck: true }).unwrap();
    tied.b.link_disable().unwrap();
    assert!(tied.a.link_state().up, "host 0 is wrong");
    assert!(!tied.b.link_state().up && !tied.fabric.link_state(0).unwrap().up);
    let mut window = tied.a.outbound(0).unwrap();
    send(&mut *window, 0, &[1; 64]);
    assert_eq!(tied.a.counters()[Event::Lost], 1);
    assert_eq!(tied.memory.load(0), 0);
    tied.fabric.inject(Fault::StuckBelief { link: 0, host: 0, stuck: false }).unwrap();
    assert!(!tied.a.link_state().up);
    assert!(tied.fabric.inject(Fault::StuckBelief { link: 0, host: 2, stuck: true }).is_err());
}

/// Offsets at which bytes arrive damaged.
fn damage(seed: u64) -> Vec<usize> {
    let tied = tied(&FabricSpec { seed, ..spec(Profile::Plx8749, Speed::Direct) });
    tied.fabric.inject(Fault::Corrupt { link: 0, ppm: 20_000 }).unwrap();
    let mut window = tied.a.outbound(0).unwrap();
    let sent = vec![0x5a; tied.slot_size];
    send(&mut *window, 0, &sent);
    let got = tied.memory.copy_out(0, sent.len());
    let damaged: Vec<usize> = (0..sent.len()).filter(|at| got[*at] != sent[*at]).collect();
    assert_eq!(damaged.len() as u64, tied.a.counters()[Event::Corrupted]);
    tied.fabric.inject(Fault::Corrupt { link: 0, ppm: 0 }).unwrap();
    send(&mut *window, 0, &sent);
    assert_eq!(tied.memory.copy_out(0, sent.len()), sent, "no more damage");
    damaged
}

#[test]
fn damage_follows_the_seed() {
    let first = damage(1);
    assert!(!first.is_empty());
    assert_eq!(first, damage(1));
    assert_ne!(first, damage(2));
}

#[test]
fn dma_transfers_fail_when_asked_to() {
    let tied = tied(&spec(Profile::Plx8749, Speed::Direct));
    tied.fabric.inject(Fault::DmaErrors { link: 0, ppm: 1_000_000 }).unwrap();
    let source = InboundMemory::new(64).unwrap();
    tied.a.register(&source.region()).unwrap();
    let transfer = DmaTransfer { offset: 0, source: source.base(), len: 64, flag: Some((64, 1)) };
    let mut channel = tied.a.dma(0).unwrap();
    channel.open(0, 128).unwrap();
    // SAFETY: `source` outlives the transfer.
    unsafe { channel.submit(transfer) }.unwrap();
    let start = Instant::now();
    while channel.poll().finished == 0 {
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(channel.poll(), DmaProgress { finished: 1, failed: 1 });
    assert_eq!((tied.memory.load(0), tied.memory.load(64)), (0, 0));
    assert_eq!(tied.a.counters()[Event::DmaErrors], 1);
}

#[test]
fn a_delay_is_added_to_the_trip() {
    let tied = tied(&spec(Profile::Plx8749, Speed::Direct));
    let by = Duration::from_millis(3);
    tied.fabric.inject(Fault::Delay { link: 0, by }).unwrap();
    let mut window = tied.a.outbound(0).unwrap();
    let start = Instant::now();
    send(&mut *window, 0, &[1; 8]);
    assert!(start.elapsed() >= by);
    assert_eq!(tied.memory.load(0), 0x0101_0101_0101_0101);
}

#[test]
fn a_cut_link_truncates_at_a_tlp() {
    // Where processors are short the cut may come when all has arrived.
    assert!((0..200).any(|_| cut_while_writing()), "no cut came in the middle");
}

/// Cuts a link while somebody writes; says whether the cut came in the middle.
fn cut_while_writing() -> bool {
    // A slow link.
    let timing = LinkTiming { speed: PcieGen::Gen1, width: 1, ..LinkTiming::default() };
    let slow = FabricSpec { timing, slots: Some(1), ..spec(Profile::IntelGen3, Speed::Modelled) };
    let tied = tied(&slow);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            let mut window = tied.a.outbound(0).unwrap();
            send(&mut *window, 0, &vec![0xee; tied.slot_size]);
        });
        while tied.memory.load(64 << 10) == 0 {
            std::thread::yield_now();
        }
        tied.fabric.inject(Fault::LinkDown { link: 0 }).unwrap();
    });
    let got = tied.memory.copy_out(0, tied.slot_size);
    let arrived = got.iter().take_while(|byte| **byte == 0xee).count();
    assert!(got[arrived..].iter().all(|byte| *byte == 0), "nothing behind the cut");
    assert!(arrived > 64 << 10 && arrived.is_multiple_of(64), "{arrived}");
    let counters = tied.a.counters();
    assert_eq!(counters[Event::Bytes], arrived as u64);
    assert_eq!(counters[Event::Tlps] + counters[Event::Lost], tied.slot_size as u64 / 64);
    arrived < tied.slot_size
}

#[test]
fn modelled_bytes_are_never_faster_than_the_wire() {
    let timing = LinkTiming { speed: PcieGen::Gen1, width: 1, ..LinkTiming::default() };
    let modelled = FabricSpec { timing, ..spec(Profile::Plx8749, Speed::Modelled) };
    let tied = tied(&modelled);
    let bytes = vec![1; tied.slot_size];
    let start = Instant::now();
    std::thread::scope(|scope| {
        for _ in 0..2 {
            // Two requesters share the one wire.
            scope.spawn(|| send(&mut *tied.a.outbound(0).unwrap(), 0, &bytes));
        }
        // The other direction has a wire of its own, whose clock does not move.
        assert_eq!(tied.b.local().wire_free_ps.0.load(Ordering::Relaxed), 0);
    });
    let tlps = 2 * bytes.len() as u64 / 64;
    let least = Duration::from_nanos(timing.wire_ps(tlps * 64, tlps) / 1000);
    assert!(start.elapsed() >= least, "{:?} for {least:?}", start.elapsed());
    assert_eq!(tied.b.local().wire_free_ps.0.load(Ordering::Relaxed), 0);
}

/// A link so long that a test can do things while a write is under way.
fn long_link() -> FabricSpec {
    let timing = LinkTiming { propagation_ns: 20_000_000, ..LinkTiming::default() };
    FabricSpec { timing, ..spec(Profile::IntelGen3, Speed::Modelled) }
}

/// Writes a word without waiting for its arrival.
fn post(window: &mut dyn Outbound, value: u64) {
    window.open(0, 8).unwrap();
    // SAFETY: eight bytes of a local.
    unsafe { window.write(0, (&raw const value).cast(), 8) };
}

#[test]
fn a_modelled_writer_goes_on_and_its_bytes_follow_when_they_are_due() {
    let tied = tied(&long_link());
    let mut window = tied.a.outbound(0).unwrap();
    let latency = Duration::from_millis(20);
    let start = Instant::now();
    post(&mut *window, 1);
    window.flush();
    assert!(start.elapsed() < latency, "a flush does not wait for arrival");
    // Nobody polls the port: its own thread sees to it.
    while tied.memory.load(0) == 0 {
        assert!(start.elapsed() < Duration::from_secs(20));
        std::thread::yield_now();
    }
    assert!(start.elapsed() >= latency, "there after {:?}", start.elapsed());
    assert_eq!(tied.memory.load(0), 1);
}

#[test]
fn modelled_bytes_arrive_though_those_who_polled_have_stopped() {
    let tied = tied(&spec(Profile::IntelGen3, Speed::Modelled));
    let mut window = tied.a.outbound(0).unwrap();
    for value in 1..=40 {
        // The thread that would place the bytes finds others polling, or has not looked yet.
        let begun = Instant::now();
        while begun.elapsed() < Duration::from_micros(100 * (value % 40)) {
            tied.a.poll();
        }
        post(&mut *window, value);
        window.flush();
        while tied.memory.load(0) != value {
            assert!(begun.elapsed() < Duration::from_secs(20));
            std::thread::yield_now();
        }
    }
}

#[test]
fn a_modelled_doorbell_follows_what_was_written_before() {
    let tied = tied(&long_link());
    tied.fabric.inject(Fault::Delay { link: 0, by: Duration::from_millis(5) }).unwrap();
    let mut window = tied.a.outbound(0).unwrap();
    post(&mut *window, 1);
    window.flush();
    tied.a.peer_db_set(1);
    let start = Instant::now();
    while tied.b.db_read() == 0 {
        tied.a.poll();
        assert!(start.elapsed() < Duration::from_secs(20));
    }
    assert_eq!(tied.memory.load(0), 1);
}

#[test]
fn what_is_under_way_when_the_link_goes_down_is_lost_even_if_it_comes_back() {
    let tied = tied(&long_link());
    let mut window = tied.a.outbound(0).unwrap();
    post(&mut *window, 1);
    tied.fabric.inject(Fault::LinkDown { link: 0 }).unwrap();
    tied.fabric.inject(Fault::LinkUp { link: 0 }).unwrap();
    drop(window);
    assert_eq!((tied.memory.load(0), tied.a.counters()[Event::Lost]), (0, 1));
}

#[test]
fn what_is_written_after_the_link_was_down_is_lost_until_the_range_is_opened_again() {
    let tied = tied(&spec(Profile::IntelGen3, Speed::Direct));
    let mut window = tied.a.outbound(0).unwrap();
    window.open(0, 64).unwrap();
    tied.fabric.inject(Fault::LinkDown { link: 0 }).unwrap();
    window.write_line(0, &Line([1; 8]));
    tied.fabric.inject(Fault::LinkUp { link: 0 }).unwrap();
    window.write_line(0, &Line([2; 8]));
    assert_eq!((tied.memory.load(0), tied.a.counters()[Event::Lost]), (0, 2));
    window.open(0, 64).unwrap();
    window.write_line(0, &Line([3; 8]));
    assert_eq!(tied.memory.load(0), 3);
}

#[test]
fn opening_says_why_not() {
    let tied = tied(&spec(Profile::IntelGen3, Speed::Direct));
    let mut window = tied.a.outbound(0).unwrap();
    let two_slots = window.open(0, 2 * tied.slot_size);
    assert!(matches!(two_slots, Err(PortError::Closed { window: 0, slot: 1 })), "{two_slots:?}");
    assert!(matches!(window.open(0, window.size() + 1), Err(PortError::Invalid(_))));
    tied.fabric.inject(Fault::LinkDown { link: 0 }).unwrap();
    assert!(matches!(window.open(0, 64), Err(PortError::NotConnected)));
}

#[test]
fn what_is_under_way_to_memory_that_is_replaced_reaches_neither() {
    let tied = tied(&long_link());
    let mut window = tied.a.outbound(0).unwrap();
    post(&mut *window, 1);
    let other = InboundMemory::new(tied.slot_size).unwrap();
    let address = tied.b.register(&other.region()).unwrap();
    tied.b.mw_set_trans(0, 0, address, tied.slot_size as u64).unwrap();
    drop(window);
    assert_eq!((tied.memory.load(0), other.load(0)), (0, 0));
    assert_eq!(tied.a.counters()[Event::WindowFaults], 1);
    let mut window = tied.a.outbound(0).unwrap();
    post(&mut *window, 2);
    drop(window);
    assert_eq!(other.load(0), 2, "a handle that is closed has sent everything");
}

#[test]
fn what_is_sent_dropped_and_read_is_counted() {
    let tied = tied(&spec(Profile::Plx8749, Speed::Direct));
    let mut window = tied.a.outbound(0).unwrap();
    let counters = || tied.a.counters();
    send(&mut *window, 0, &[1; 16]);
    send(&mut *window, tied.slot_size - 8, &[1; 8]);
    assert_eq!((counters()[Event::Bytes], counters()[Event::Tlps]), (24, 2));
    assert_eq!(tied.b.counters()[Event::Bytes], 0, "the other direction has carried nothing");
    let size = window.size();
    let faults = [
        (tied.slot_size, 8, "a closed slot"),
        (tied.slot_size - 64, 128, "the half in a closed slot"),
        (size, 8, "the end of the window"),
        (usize::MAX - 3, 8, "an offset that wraps around"),
    ];
    for (count, (offset, len, what)) in faults.into_iter().enumerate() {
        send(&mut *window, offset, &vec![1; len]);
        assert_eq!(counters()[Event::WindowFaults], count as u64 + 1, "{what}");
    }
    window.write_line(8, &Line([9; 8]));
    assert_eq!(counters()[Event::WindowFaults], 5, "a line that is not aligned");
    assert_eq!(counters()[Event::Reads], 0, "writing reads nothing");
    window.read(0, &mut [0; 16]);
    tied.a.peer_spad_read(0);
    assert_eq!(counters()[Event::Reads], 3);
    assert_eq!(tied.b.counters()[Event::TranslationsSet], 1);
}

#[test]
fn doorbell_events_are_delivered_as_stated() {
    for profile in Profile::ALL {
        let tied = tied(&spec(profile, Speed::Direct));
        delivery(&*tied.a, &*tied.b);
    }
}

fn delivery(a: &dyn NtbPort, b: &dyn NtbPort) {
    b.db_clear_mask(0b111);
    let events = || b.counters()[Event::DoorbellEvents];
    a.peer_db_set(0b001);
    assert_eq!(events(), 1);
    a.peer_db_set(0b010);
    match b.capabilities().doorbell_delivery {
        DoorbellDelivery::PerBitVector | DoorbellDelivery::AggregateLevel => {
            assert_eq!(events(), 2, "another bit, another event");
            a.peer_db_set(0b010);
            assert_eq!(events(), 2, "a pending bit raises nothing new");
        }
        DoorbellDelivery::EdgeFromZero => {
            assert_eq!(events(), 1, "another bit was pending");
            b.db_clear(0b001);
            a.peer_db_set(0b100);
            assert_eq!(events(), 1, "cleared in part only");
            b.db_clear(0b110);
            a.peer_db_set(0b100);
            assert_eq!(events(), 2, "cleared to zero");
            b.db_set_mask(0b100);
            a.peer_db_set(0b001);
            assert_eq!(events(), 3, "what is masked does not count as pending");
        }
    }
}

#[test]
fn modelled_registers_and_trips_cost_what_the_model_says() {
    let timing = LinkTiming {
        propagation_ns: 300_000,
        read_ns: 700_000,
        doorbell_ns: 500_000,
        ..LinkTiming::default()
    };
    let tied = tied(&FabricSpec { timing, ..spec(Profile::IntelGen3, Speed::Modelled) });
    let at_least = |micros, what: &str, run: &mut dyn FnMut()| {
        let start = Instant::now();
        run();
        assert!(start.elapsed() >= Duration::from_micros(micros), "{what}: {:?}", start.elapsed());
    };
    let mut window = tied.a.outbound(0).unwrap();
    at_least(300, "a write's latency", &mut || {
        send(&mut *window, 0, &[1; 8]);
        while tied.memory.load(0) == 0 {
            tied.a.poll();
        }
    });
    at_least(700, "a read", &mut || window.read(0, &mut [0; 8]));
    at_least(700, "a scratchpad read", &mut || assert_eq!(tied.a.peer_spad_read(0), 0));
    at_least(300, "a scratchpad's latency", &mut || tied.a.peer_spad_write(0, 1));
    at_least(300, "a doorbell's latency", &mut || {
        tied.a.peer_db_set(1);
        while tied.b.db_read() == 0 {
            tied.a.poll();
        }
    });
}

#[test]
fn a_sleeper_pays_for_its_handler_and_a_poller_does_not() {
    let timing = LinkTiming { doorbell_ns: 3_000_000, ..LinkTiming::default() };
    let tied = tied(&FabricSpec { timing, ..spec(Profile::IntelGen3, Speed::Modelled) });
    tied.b.db_clear_mask(1);
    tied.b.link_event();
    let wait = || while tied.b.db_wait(1, Duration::from_secs(5)).pending == 0 {};
    std::thread::scope(|scope| {
        let sleeper = scope.spawn(|| {
            wait();
            Instant::now()
        });
        while tied.b.local().doorbell.sleepers.load(Ordering::SeqCst) == 0 {
            std::thread::yield_now();
        }
        let rung = Instant::now();
        tied.a.peer_db_set(1);
        let handler = Duration::from_nanos(timing.doorbell_ns.into());
        assert!(sleeper.join().unwrap() - rung >= handler);
    });
    // Pending already: the shortest of some tries is far below a handler's time.
    let polls = (0..20).map(|_| {
        let start = Instant::now();
        wait();
        start.elapsed()
    });
    assert!(polls.min().unwrap() < Duration::from_millis(1));
}
