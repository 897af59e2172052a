// SPDX-License-Identifier: Apache-2.0
//! Carriers of puts to neighbouring hosts, by what was measured of them.

use super::directory::Directory;
use std::sync::Mutex;
use tombolo_core::World;
use tombolo_core::ops::Mode;
use tombolo_core::transport::{CarrierChoice, Transport};
use tombolo_selector::class::Class;
use tombolo_selector::data::Operation;
use tombolo_selector::{Origin, Tuning, tune};
use tombolo_tests::ring::{DIRECT, MODELLED, Ring};
use tombolo_transports::ntb::port::Event;
use tombolo_transports::ntb::port::emulated::Fabric;

const ROUTINE: &str = "carriers";

/// A table in which blocking puts are faster in packets from 64 KiB on, and others are not at any size.
const TABLE: &str = r#"{"format":4,"machine":"made up","digest":"","curves":[
{"class":"ring-1","operation":"put","buffer":"heap","channel":"ntb",
 "points":[[8,600,0,7],[65536,6000,0,7],[1048576,60000,0,7]]},
{"class":"ring-1","operation":"carried","buffer":"heap","channel":"ntb packets",
 "points":[[4096,6000,0,7],[65536,70000,0,7]]},
{"class":"ring-1","operation":"carried","buffer":"heap","channel":"ntb stores",
 "points":[[4096,600,0,7],[65536,6000,0,7]]},
{"class":"ring-1","operation":"carried-blocking","buffer":"heap","channel":"ntb packets",
 "points":[[4096,600,0,7],[65536,2000,0,7]]},
{"class":"ring-1","operation":"carried-blocking","buffer":"heap","channel":"ntb stores",
 "points":[[4096,500,0,7],[65536,6000,0,7]]}]}"#;

/// Time for all that there is to measure, however busy the machine is: it is not used up.
const ALL: [(&str, &str); 2] = [("SHMEM_TUNE", "always"), ("SHMEM_TUNE_BUDGET", "120000")];

fn ntb() -> Vec<Box<dyn Transport>> {
    vec![tombolo_transports::create("ntb").expect("known")]
}

fn tlps(fabric: &Fabric) -> u64 {
    let sides = (0..fabric.hosts()).flat_map(|link| fabric.counters(link).expect("a link"));
    sides.map(|side| side[Event::Tlps]).sum()
}

/// Waits until stores reach the other PE.
fn await_window(world: &World) {
    let waiting = tombolo_core::Waiting {
        routine: ROUTINE,
        argument: 0,
        reason: tombolo_core::wait::Reason::Variable,
    };
    let open = |line: &String| line.contains("direct windows: 1 of 1");
    world.wait(waiting, || world.transports()[0].describe_own().iter().any(open));
}

/// TLPs of a put of so many bytes by PE 0, by a table.
fn put_by_table(setting: (&'static str, &'static str), len: usize, mode: Mode) -> u64 {
    let directory = Directory::new();
    let path = directory.0.join("table.json");
    std::fs::write(&path, TABLE).unwrap();
    let table: &'static str = String::leak(path.to_str().unwrap().to_owned());
    let environment = Box::leak(Box::new([("SHMEM_TUNE", table), setting]));
    let ring = Ring { environment, ..DIRECT };
    let fabric = ring.fabric(2);
    let during = Mutex::new(0);
    ring.run(&fabric, 2, &ntb, |world| {
        let [from, to] = [(); 2].map(|()| world.heap().allocate(len, 64));
        await_window(world);
        tune(world).unwrap().apply(world);
        world.bootstrap().barrier().unwrap();
        if world.pe() == 0 {
            let before = tlps(&fabric);
            // SAFETY: the source is as long, and stays until the put has completed.
            unsafe { world.put(world.context(), to, from, len, 1, mode, ROUTINE) };
            world.quiet(world.context(), ROUTINE);
            *during.lock().unwrap() = tlps(&fabric) - before;
        }
        world.bootstrap().barrier().unwrap();
    });
    during.into_inner().unwrap()
}

#[test]
fn puts_go_in_packets_where_a_table_says_so_and_the_user_does_not_speak_against_it() {
    const LEN: usize = 64 << 10;
    let payload = LEN as u64 / 64;
    let nothing = ("SHMEM_NTB_DIRECT", "");
    assert!(put_by_table(nothing, LEN, Mode::Blocking) >= payload);
    assert!(put_by_table(nothing, LEN - 64, Mode::Blocking) < payload / 2);
    assert!(put_by_table(nothing, LEN, Mode::NonBlocking) < payload / 2);
    assert!(put_by_table(("SHMEM_NTB_DIRECT", "on"), LEN, Mode::Blocking) < payload / 2);
}

/// What a job of two hosts measured, and what there was to choose.
fn measured(ring: Ring, settings: &[(&str, &str)]) -> (Tuning, CarrierChoice) {
    let fabric = ring.fabric(2);
    let seen = Mutex::new(Vec::new());
    ring.run_with(&fabric, 2, settings, &ntb, |world| {
        await_window(world);
        world.bootstrap().barrier().unwrap();
        let tuning = tune(world).unwrap();
        tuning.apply(world);
        let choice = world.endpoint(0, 1 - world.pe()).unwrap().carrier_choice();
        seen.lock().unwrap().push((tuning, choice));
        world.bootstrap().barrier().unwrap();
    });
    let mut seen = seen.into_inner().unwrap();
    let (tuning, choice) = seen.pop().unwrap();
    let (other, _) = seen.pop().unwrap();
    assert_eq!(tuning.measured(), other.measured(), "both PEs choose by the same");
    (tuning, choice)
}

/// The operations by which carriers were compared.
fn compared(tuning: &Tuning) -> Vec<(Class, Operation, String)> {
    let curves = tuning.measured().curves.iter().map(|curve| curve.key.clone());
    let compared = curves.filter(|key| key.operation.compares_carriers());
    compared.map(|key| (key.class, key.operation, key.channel)).collect()
}

#[test]
fn what_is_left_to_measure_is_measured() {
    let (tuning, choice) = measured(DIRECT, &ALL);
    assert_eq!(tuning.origin(), &Origin::Measured);
    assert!(choice.blocking && choice.non_blocking && choice.engine.is_none());
    let of = |operation, channel: &str| (Class::Hops(1), operation, channel.to_owned());
    let all = [Operation::Carried, Operation::CarriedBlocking]
        .map(|operation| ["ntb packets", "ntb stores"].map(|channel| of(operation, channel)));
    assert_eq!(compared(&tuning), all.concat());
    // Stores to links with the pace of hardware cannot carry puts that block.
    let (tuning, choice) = measured(MODELLED, &ALL);
    assert!(!choice.blocking && choice.engine.is_some());
    let engine = "ntb engine";
    let all = [engine, "ntb packets", "ntb stores"].map(|it| of(Operation::Carried, it));
    assert_eq!(compared(&tuning), all);
    assert_eq!(tuning.measured().engines.len(), 1);
}

#[test]
fn what_the_user_has_chosen_is_not_measured() {
    let none: &[&str] = &[];
    for (ring, settings, expected) in [
        (DIRECT, &[("SHMEM_NTB_DIRECT", "on")][..], none),
        (DIRECT, &[("SHMEM_NTB_DIRECT", "off")], none),
        (MODELLED, &[("SHMEM_NTB_DMA", "off")], &["ntb packets", "ntb stores"]),
        (MODELLED, &[("SHMEM_NTB_DMA", "64k"), ("SHMEM_NTB_DIRECT", "on")], none),
        (MODELLED, &[("SHMEM_NTB_DIRECT", "on")], &["ntb engine", "ntb stores"]),
    ] {
        let off = settings.contains(&("SHMEM_NTB_DIRECT", "off"));
        let all = [&ALL[..], settings].concat();
        let fabric = ring.fabric(2);
        ring.run_with(&fabric, 2, &all, &ntb, |world| {
            if !off {
                await_window(world);
            }
            world.bootstrap().barrier().unwrap();
            let tuning = tune(world).unwrap();
            let seen: Vec<String> =
                compared(&tuning).into_iter().map(|(_, _, channel)| channel).collect();
            assert_eq!(seen, expected, "{settings:?}");
            world.bootstrap().barrier().unwrap();
        });
    }
}
