// SPDX-License-Identifier: Apache-2.0
//! Lines that no engine would write: refused and counted, never followed.

use super::*;
use crate::ntb::sim::line_bytes;
use proptest::prelude::*;

/// What is damaged, and how.
type Damage = (&'static str, fn(&mut Vec<u8>));

/// Replaces the next header line of host 0's right port by what `forge` makes of it.
fn forge(world: &mut World, forge: impl FnOnce(&mut Vec<u8>)) {
    let wire = &mut world.sides[0].wires[Side::Right as usize];
    let headers = 4096..4096 + 3 * 8 * LINE;
    let (_, bytes) = wire
        .iter_mut()
        .find(|(offset, bytes)| headers.contains(offset) && bytes.len() == LINE)
        .expect("a header is under way");
    forge(bytes);
}

fn world_with_a_packet_under_way() -> World {
    let mut world = World::new(3, config(64, 8));
    world.sides[0].memory.local[..40].fill(5);
    assert_eq!(world.put(0, put(1, target(1, 64), 0, 40)), Status::Pending);
    world.poll(0);
    world
}

/// After the damage is noticed the repetition brings the real packet.
fn recovers(world: &mut World) {
    world.pass(20_000_000);
    assert_eq!(world.sides[0].done, [(1, Ended::Done)]);
    assert_eq!(world.segment(1)[64..104], [5; 40]);
    assert!(world.segment(1)[..64].iter().chain(&world.segment(1)[104..]).all(|&byte| byte == 0));
}

#[test]
fn bad_headers_are_counted_and_repaired() {
    let cases: [Damage; 6] = [
        ("kind", |line| line[0] = 99),
        ("flags", |line| line[1] = 0xc0),
        ("source", |line| line[2] = 200),
        ("destination", |line| line[4] = 77),
        ("lane", |line| line[6] = 3),
        ("length", |line| line[20..24].copy_from_slice(&65u32.to_le_bytes())),
    ];
    for (what, damage) in cases {
        let mut world = world_with_a_packet_under_way();
        forge(&mut world, damage);
        world.settle();
        assert_eq!(world.engines[1].stats().malformed, 1, "{what}");
        assert!(world.segment(1).iter().all(|&byte| byte == 0), "{what}");
        recovers(&mut world);
    }
}

/// Loses the payload that is under way from a host to its right; its header arrives.
fn lose_payload(world: &mut World, host: usize) {
    let wire = &mut world.sides[host].wires[Side::Right as usize];
    let before = wire.len();
    // Behind the headers of three rings.
    wire.retain(|(offset, _)| *offset < 8192);
    assert_eq!(wire.len() + 1, before, "a payload was under way");
}

#[test]
fn a_payload_that_is_lost_is_noticed_without_crc_and_sent_again() {
    let mut world = world_with_a_packet_under_way();
    lose_payload(&mut world, 0);
    world.settle();
    assert_eq!(world.engines[1].stats().unsealed, 1);
    assert!(world.segment(1).iter().all(|&byte| byte == 0));
    recovers(&mut world);
}

#[test]
fn a_relay_passes_on_no_packet_whose_payload_was_lost() {
    let mut world = World::new(5, config(64, 8));
    world.sides[0].memory.local[..40].fill(5);
    assert_eq!(world.put(0, put(1, target(2, 64), 0, 40)), Status::Pending);
    world.poll(0);
    lose_payload(&mut world, 0);
    world.settle();
    assert_eq!(world.engines[1].stats().unsealed, 1);
    assert_eq!(world.engines[1].stats().relayed, 0, "of this packet and of answers to it");
    world.pass(20_000_000);
    assert_eq!(world.sides[0].done, [(1, Ended::Done)]);
    assert_eq!(world.segment(2)[64..104], [5; 40]);
}

#[test]
fn another_epoch_or_position_is_not_seen_at_all() {
    for at in [56, 60] {
        let mut world = world_with_a_packet_under_way();
        forge(&mut world, |line| line[at] ^= 0x40);
        world.settle();
        assert_eq!(
            world.engines[1].stats().delivered,
            World::new(3, config(64, 8)).engines[1].stats().delivered
        );
        recovers(&mut world);
        assert_eq!(world.engines[1].stats().slots_lost, 1);
    }
}

#[test]
fn places_outside_the_segments_are_refused() {
    let cases: [Damage; 3] = [
        ("PE", |line| line[7] = 9),
        ("segment", |line| line[30] = 1),
        ("offset", |line| line[24..30].fill(0xff)),
    ];
    for (what, damage) in cases {
        let mut world = world_with_a_packet_under_way();
        forge(&mut world, damage);
        world.settle();
        assert_eq!(world.engines[1].stats().refused, 1, "{what}");
        assert!(world.segment(1).iter().all(|&byte| byte == 0), "{what}");
        assert_eq!(world.sides[0].done, [(1, Ended::Refused)]);
    }
}

#[test]
fn credits_for_packets_never_written_are_not_believed() {
    let mut world = World::new(2, config(64, 2));
    let region = &mut world.sides[0].memory.inbound[Side::Right as usize];
    region[CREDIT_OFFSET..CREDIT_OFFSET + 4].copy_from_slice(&50u32.to_le_bytes());
    region[CREDIT_OFFSET + 16..CREDIT_OFFSET + 20].copy_from_slice(&99u32.to_le_bytes());
    // A new count makes the line worth reading.
    region[CREDIT_OFFSET + 60] ^= 0x55;
    // Host 0 has no credit line of this epoch before the first heartbeat: take the epoch from the
    // hello line.
    let epoch: [u8; 4] = region[HELLO_OFFSET + 8..HELLO_OFFSET + 12].try_into().unwrap();
    region[CREDIT_OFFSET + 56..CREDIT_OFFSET + 60].copy_from_slice(&epoch);
    let before = world.engines[0].stats().malformed;
    world.poll(0);
    assert_eq!(world.engines[0].stats().malformed, before + 2);
    world.sides[0].memory.local.fill(3);
    assert_eq!(world.put(0, put(1, target(1, 0), 0, 640)), Status::Pending);
    world.settle();
    assert_eq!(world.sides[0].done, [(1, Ended::Done)]);
    assert_eq!(world.segment(1)[..640], [3; 640]);
}

/// No CRC covers the word that says where in its ring a header belongs. One that says another place is passed over
/// as lost, and is later taken for the one that belongs there.
#[test]
fn a_link_whose_ends_count_differently_begins_anew() {
    // Both are taken before a credit is given back.
    let mut world = World::new(2, Config { burst: 4, ..config(64, 2) });
    world.sides[0].memory.local.fill(3);
    assert_eq!(world.put(0, put(1, target(1, 0), 0, 40)), Status::Pending);
    world.poll(0);
    assert_eq!(world.engines[0].way(1).unwrap().0, Side::Right);
    while world.deliver(0, Side::Right) {}
    let geometry = world.engines[1].config.geometry;
    let region = &mut world.sides[1].memory.inbound[Side::Left as usize];
    let [first, second] = [0, 1].map(|at| geometry.header_offset(Class::Request, at));
    region.copy_within(first..first + LINE, second);
    region[second + 60..second + 64].copy_from_slice(&2u32.to_le_bytes());
    let epochs = world.engines[0].link_epochs(Side::Right);
    world.pass(20_000_000);
    for number in 2..20 {
        assert_eq!(world.put(0, put(number, target(1, 0), 0, 40)), Status::Pending);
        world.pass(20_000_000);
    }
    assert_eq!(world.sides[0].done.len(), 19, "credits are missing");
    assert!(world.engines[0].link_epochs(Side::Right) > epochs);
    assert_eq!(world.segment(1)[..40], [3; 40]);
}

/// One line may arrive while another one is read. Only what stays damaged is.
#[test]
fn credit_lines_that_are_read_half_are_not_taken_for_damaged() {
    let mut world = World::new(2, Config { crc: true, ..config(64, 4) });
    let place = CREDIT_OFFSET..CREDIT_OFFSET + LINE;
    let line = |world: &mut World| {
        world.pass(5_000_000);
        world.sides[0].memory.inbound[Side::Right as usize][place.clone()].to_vec()
    };
    let [before, after] = [line(&mut world), line(&mut world)];
    assert!(before[56..] != after[56..] && before[..56] != after[..56]);
    let mut show = |line: &[u8], polls: usize| {
        world.sides[0].memory.inbound[Side::Right as usize][place.clone()].copy_from_slice(line);
        (0..polls).for_each(|_| _ = world.poll(0));
        world.engines[0].stats().corrupt
    };
    // Another number, so that it is worth reading.
    let numbered = |line: &[u8], number: u8| {
        let mut line: LineWords = std::array::from_fn(|at| {
            u64::from_le_bytes(line[at * 8..at * 8 + 8].try_into().unwrap())
        });
        line[7] ^= u64::from(number) << 56;
        line[6] = 0;
        let mut bare = line;
        bare[6] = line[7];
        line[6] = u64::from(packet::line_crc(&bare));
        line_bytes(&line).to_vec()
    };
    let (first, second) = (numbered(&after, 1), numbered(&after, 2));
    let half = [&before[..48], &first[48..]].concat();
    assert_eq!(show(&half, 1), 0, "the rest may be on its way");
    assert_eq!(show(&first, 5), 0, "it was");
    let half = [&before[..48], &second[48..]].concat();
    assert_eq!(show(&half, 5), 1, "it stays, and counts once");
    assert_eq!(show(&second, 5), 1);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(ProptestConfig::default().cases / 5))]

    /// Whatever a neighbour writes anywhere in the region, the engine neither panics nor touches
    /// memory outside the segments (the memory of the tests would panic).
    #[test]
    fn random_bytes_in_the_region_do_no_harm(
        seed in any::<u64>(), crc in any::<bool>(), plausible in any::<bool>(),
    ) {
        let mut config = config(64, 4);
        config.crc = crc;
        let mut world = World::new(3, config);
        let mut random = crate::ntb::sim::Random::new(seed);
        for _ in 0..300 {
            let host = random.below(3) as usize;
            let side = Side::BOTH[random.below(2) as usize];
            let region = &mut world.sides[host].memory.inbound[side as usize];
            let at = random.below(4096 / 64 + 12) as usize * 64;
            let epoch: [u8; 4] = region[8..12].try_into().unwrap();
            for byte in &mut region[at..at + 56] {
                *byte = if plausible { random.below(9) as u8 } else { random.bits() as u8 };
            }
            // Passes for a line of this epoch at an early position.
            region[at + 56..at + 60].copy_from_slice(&epoch);
            region[at + 60..at + 64].copy_from_slice(&(random.below(9) as u32).to_le_bytes());
            world.now += 10_000;
            for host in 0..3 {
                world.poll(host);
                Side::BOTH.into_iter().for_each(|side| while world.deliver(host, side) {});
            }
        }
    }

    /// A line that is sound but for one field, whichever value that has: no panic, nothing outside
    /// the segments, and real traffic goes on afterwards.
    #[test]
    fn any_value_of_any_field_does_no_harm(
        kind in 0u8..10, flags in any::<u8>(), hosts in any::<[u16; 2]>(), small in any::<bool>(),
        lane in 0u8..2, pe in any::<u8>(), tag in any::<u32>(), seq in any::<u32>(),
        len in prop_oneof![0u32..80, any::<u32>()], offset in any::<u64>(), op in any::<u8>(),
        segment in any::<u8>(), words in any::<[u64; 3]>(), class in 0usize..3,
        slot in 0u32..8, side in 0usize..2, near in any::<bool>(),
    ) {
        let mut world = World::new(3, config(64, 8));
        world.sides[0].memory.local.fill(6);
        let get = GetRequest { token: 7, stream: 0, target: target(1, 512), dest: 512, len: 300 };
        prop_assert_eq!(world.engines[0].get(&get), Status::Pending);
        prop_assert_eq!(world.engines[0].amo(&fetch_add(8, target(1, 1016), 1016)), Status::Pending);
        let [src, dst] = if small { hosts.map(|host| host % 4) } else { hosts };
        let seq = if near { seq % 8 } else { seq };
        let tag = if near { tag & 0x1_0007 } else { tag };
        let mut line = [
            u64::from(kind) | u64::from(flags) << 8 | u64::from(src) << 16 | u64::from(dst) << 32
                | u64::from(lane) << 48 | u64::from(pe) << 56,
            u64::from(tag),
            u64::from(seq) | u64::from(len) << 32,
            offset & ((1 << 48) - 1) | u64::from(segment) << 48 | u64::from(op) << 56,
            words[0], words[1], words[2], 0,
        ];
        let side = Side::BOTH[side];
        for host in 0..3 {
            let region = &mut world.sides[host].memory.inbound[side as usize];
            let epoch: [u8; 4] = region[8..12].try_into().unwrap();
            let geometry = world.engines[host].config.geometry;
            let at = geometry.header_offset(Class::ALL[class], slot);
            line[7] = u64::from(u32::from_le_bytes(epoch)) | u64::from(slot + 1) << 32;
            region[at..at + LINE].copy_from_slice(&line_bytes(&line));
        }
        for _ in 0..400 {
            world.now += 50_000;
            for host in 0..3 {
                world.poll(host);
                Side::BOTH.into_iter().for_each(|side| while world.deliver(host, side) {});
            }
        }
    }

    /// The same for what stands in a hello or credit line of the right epoch.
    #[test]
    fn any_hello_or_credit_line_does_no_harm(
        words in any::<[u64; 7]>(), count in any::<u32>(), credit in any::<bool>(),
        near in any::<bool>(), crc in any::<bool>(),
    ) {
        let mut config = config(64, 8);
        config.crc = crc;
        let mut world = World::new(3, config);
        let region = &mut world.sides[0].memory.inbound[Side::Right as usize];
        let epoch: [u8; 4] = region[8..12].try_into().unwrap();
        let mask = if near { 0xf_0000_000f } else { u64::MAX };
        let mut line: LineWords = std::array::from_fn(|at| words.get(at).map_or(0, |word| word & mask));
        line[7] = u64::from(u32::from_le_bytes(epoch)) | u64::from(count) << 32;
        let at = if credit { CREDIT_OFFSET } else { HELLO_OFFSET };
        region[at..at + LINE].copy_from_slice(&line_bytes(&line));
        for _ in 0..400 {
            world.now += 50_000;
            for host in 0..3 {
                world.poll(host);
                Side::BOTH.into_iter().for_each(|side| while world.deliver(host, side) {});
            }
        }
    }
}
