// SPDX-License-Identifier: Apache-2.0
//! Random histories: whatever hosts do, and in whatever order writes arrive, nothing is lost.

use super::*;
use proptest::prelude::*;

/// Something a host may do in a random history.
#[derive(Clone, Debug)]
enum Action {
    Put { len: usize, offset: usize, retain: bool, signal: bool },
    Get { len: usize, offset: usize },
    Add { fetch: bool },
    Poll(usize),
    Deliver(usize, bool),
    Move(usize, bool),
}

fn actions() -> impl Strategy<Value = Vec<(usize, usize, Action)>> {
    let action = prop_oneof![
        1 => (1usize..300, 64usize..512, any::<bool>(), any::<bool>()).prop_map(
            |(len, offset, retain, signal)| Action::Put { len, offset, retain, signal }),
        1 => (1usize..300, 64usize..512).prop_map(|(len, offset)| Action::Get { len, offset }),
        1 => any::<bool>().prop_map(|fetch| Action::Add { fetch }),
        12 => (0usize..5).prop_map(Action::Poll),
        24 => (0usize..5, any::<bool>()).prop_map(|(host, right)| Action::Deliver(host, right)),
        16 => (0usize..5, any::<bool>()).prop_map(|(host, right)| Action::Move(host, right)),
    ];
    prop::collection::vec((0usize..5, 1usize..5, action), 1..400)
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    /// Any history of operations under any interleaving completes, and every addition and signal
    /// counts once.
    #[test]
    fn random_histories_complete_and_count(
        hosts in 2usize..=5, slots in prop::sample::select(vec![2u32, 4, 8]),
        crc in any::<bool>(), mover in prop::sample::select(vec![Mover::Cpu, Mover::CpuInSteps, Mover::Dma]),
        actions in actions(),
    ) {
        let mut config = config(64, slots);
        config.crc = crc;
        let mut world = World::moved_by(hosts as u16, config, if crc && mover == Mover::Dma { Mover::Cpu } else { mover });
        let mut accepted = vec![0usize; hosts];
        let mut counts = vec![[0u64; 2]; hosts];
        for (token, (from, steps, action)) in actions.into_iter().enumerate() {
            let token = token as u64;
            let from = from % hosts;
            let to = (from + 1 + steps % (hosts - 1)) % hosts;
            let at = |offset| target(to as u16, offset);
            let status = match action {
                Action::Poll(host) => { world.poll(host % hosts); continue }
                Action::Deliver(host, right) => {
                    let side = if right { Side::Right } else { Side::Left };
                    world.deliver(host % hosts, side);
                    continue
                }
                Action::Move(host, right) => {
                    let side = if right { Side::Right } else { Side::Left };
                    world.move_on(host % hosts, side);
                    continue
                }
                Action::Put { len, offset, retain, signal } => {
                    let word = at(8).remote;
                    let signal = signal.then_some(Signal { word, op: SignalOp::Add, value: 1 });
                    let request = PutRequest {
                        retain, signal, ..put(token, at(offset), 0, len)
                    };
                    let status = world.put(from, request);
                    counts[to][1] += u64::from(status == Status::Pending && signal.is_some());
                    status
                }
                Action::Get { len, offset } => {
                    let get = GetRequest { stream: 0, token, target: at(offset), dest: 512, len };
                    world.engines[from].get(&get)
                }
                Action::Add { fetch } => {
                    let mut request = fetch_add(token, at(0), 1000);
                    request.result = request.result.filter(|_| fetch);
                    let status = world.engines[from].amo(&request);
                    counts[to][0] += u64::from(status == Status::Pending);
                    status
                }
            };
            accepted[from] += usize::from(status == Status::Pending);
        }
        world.settle();
        for host in 0..hosts {
            prop_assert_eq!(world.sides[host].done.len(), accepted[host]);
            prop_assert!(world.sides[host].done.iter().all(|&(_, ended)| ended == Ended::Done));
            prop_assert_eq!([world.word(host, 0), world.word(host, 8)], counts[host]);
            prop_assert_eq!(world.engines[host].outstanding(), 0);
            prop_assert_eq!(world.engines[host].stats().replayed, 0);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 4))]

    /// Relays read the slots of the ring long after they have taken them, where engines move payload:
    /// what arrives is what was sent, in every order, and also when a link comes and goes.
    #[test]
    fn what_is_relayed_stays_whole_until_an_engine_has_read_it(
        slots in prop::sample::select(vec![2u32, 4]), flaps in any::<bool>(),
        slow in 0u8..40, steps in prop::collection::vec((0usize..3, 0u8..40), 300..900),
    ) {
        let mut world = World::moved_by(4, config(64, slots), Mover::Dma);
        for at in 0..LOCAL_BYTES {
            world.sides[0].memory.local[at] = (at * 7 + at / 64) as u8;
        }
        let out = world.engines[0].way(2).unwrap().0;
        let next = |host: usize| (host + if out == Side::Right { 1 } else { 3 }) % 4;
        let way = [0, next(0), next(next(0))];
        let mut sent = 0;
        let puts = SEGMENT_BYTES / 64;
        let offer = |world: &mut World, sent: &mut usize| {
            let at = *sent * 64;
            let request = put(*sent as u64, target(2, at), at as u64, 64);
            *sent += usize::from(world.put(0, request) == Status::Pending);
        };
        for (step, (host, what)) in steps.into_iter().enumerate() {
            let host = way[host];
            match what {
                0..3 if sent < puts => offer(&mut world, &mut sent),
                0..16 => _ = world.poll(host),
                16..28 => _ = world.deliver(host, out),
                28..38 => _ = world.deliver(host, out.opposite()),
                // Seldom, so that queues grow.
                _ if host != way[1] || what + slow >= 60 => _ = world.move_on(host, out),
                _ => {}
            }
            // The link from the source to who relays: what is on it is lost.
            if flaps && step % 97 == 96 {
                for (host, side) in [(way[0], out), (way[1], out.opposite())] {
                    // What its own engine has queued comes late.
                    world.sides[host].wires[side as usize].clear();
                    let engines = world.sides[host].engines.as_mut().unwrap();
                    engines[side as usize].posted.clear();
                    let now = world.now;
                    world.with(host, |engine, parts| {
                        engine.link_event(side, false, now, parts);
                        engine.link_event(side, true, now, parts);
                    });
                }
            }
        }
        while sent < puts {
            offer(&mut world, &mut sent);
            world.pass(200_000);
        }
        world.pass(50_000_000);
        prop_assert_eq!(world.sides[0].done.len(), puts);
        prop_assert!(world.segment(2) == &world.sides[0].memory.local[..SEGMENT_BYTES]);
    }
}
