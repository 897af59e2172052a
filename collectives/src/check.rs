// SPDX-License-Identifier: Apache-2.0
//! Detection of members that call different collectives, or one with different arguments, when
//! `SHMEM_DEBUG` asks for it.

use crate::group::Group;
use std::fmt;
use tombolo_core::transport::SegmentKind;

/// Arguments that must be equal on all members.
#[derive(Default)]
pub struct Arguments {
    /// Names for people and values, up to [`VALUES_MAX`].
    pub values: Vec<(&'static str, i64)>,
    /// Symmetric addresses, likewise.
    pub addresses: Vec<(&'static str, *const u8)>,
}

/// Routines of the world team that the standard calls equivalent, but for what the caller itself completes before: some
/// PEs may call one of them, and others another.
const EQUIVALENT: [&str; 3] = ["shmem_barrier_all", "shmem_sync_all", "shmem_team_sync"];

const NAME_WORDS: usize = 8;
const VALUES_MAX: usize = 6;
const ADDRESSES_MAX: usize = 2;
const WORDS: usize = NAME_WORDS + VALUES_MAX + ADDRESSES_MAX;
/// Of addresses that are not symmetric.
const NOWHERE: u64 = u64::MAX;

/// Compares the routine and `arguments` with those of the group's first member; ends the job with a
/// message that has both values where they differ. Costs a sync, so nothing happens without
/// `SHMEM_DEBUG`.
#[inline(always)]
pub fn check(group: &Group<'_>, arguments: impl FnOnce() -> Arguments) {
    if group.world.config().debug.0 {
        compare(group, arguments);
    }
}

#[cold]
#[inline(never)]
fn compare(group: &Group<'_>, arguments: impl FnOnce() -> Arguments) {
    let arguments = &arguments();
    let mine = encode(group, arguments);
    group.publish(&mine);
    group.sync();
    let mut first = [0; WORDS];
    group.published(0, &mut first);
    if let Some(difference) = difference(&mine, &first, arguments) {
        group.world.stop_job(
            group.routine,
            format_args!(
                "{difference} on PE {}: all members of a team must make the same collective calls \
                 in the same order with the same arguments",
                group.pe(0)
            ),
        );
    }
}

fn encode(group: &Group<'_>, arguments: &Arguments) -> [u64; WORDS] {
    let mut words = [0; WORDS];
    let name = match group.is_world() && EQUIVALENT.contains(&group.routine) {
        true => EQUIVALENT[0],
        false => group.routine,
    };
    for (word, bytes) in words.iter_mut().zip(name.as_bytes().chunks(8)).take(NAME_WORDS) {
        let mut padded = [0; 8];
        padded[..bytes.len()].copy_from_slice(bytes);
        *word = u64::from_le_bytes(padded);
    }
    let values = arguments.values.iter().take(VALUES_MAX);
    for (word, (_, value)) in words[NAME_WORDS..].iter_mut().zip(values) {
        *word = *value as u64;
    }
    let addresses = arguments.addresses.iter().take(ADDRESSES_MAX);
    for (word, (_, address)) in words[NAME_WORDS + VALUES_MAX..].iter_mut().zip(addresses) {
        *word = group
            .world
            .locate(*address)
            .map_or(NOWHERE, |place| (place.segment as u64) << 63 | place.offset as u64);
    }
    words
}

/// What differs, as the beginning of a sentence that ends with the other PE.
fn difference(mine: &[u64], theirs: &[u64], arguments: &Arguments) -> Option<String> {
    if mine[..NAME_WORDS] != theirs[..NAME_WORDS] {
        return Some(format!("called here, but {}", name(&theirs[..NAME_WORDS])));
    }
    let (mine, theirs) = (&mine[NAME_WORDS..], &theirs[NAME_WORDS..]);
    let value = arguments.values.iter().enumerate().find(|(i, _)| mine[*i] != theirs[*i]);
    if let Some((i, (name, value))) = value {
        return Some(format!("{name} = {value} here, but {}", theirs[i] as i64));
    }
    let (mine, theirs) = (&mine[VALUES_MAX..], &theirs[VALUES_MAX..]);
    let address = arguments.addresses.iter().enumerate().find(|(i, _)| mine[*i] != theirs[*i]);
    let (i, (name, _)) = address?;
    Some(format!("{name} is at {} here, but at {}", Shown(mine[i]), Shown(theirs[i])))
}

fn name(words: &[u64]) -> String {
    let bytes: Vec<u8> = words.iter().flat_map(|word| word.to_le_bytes()).collect();
    let end = bytes.iter().position(|byte| *byte == 0).unwrap_or(bytes.len());
    String::from_utf8_lossy(&bytes[..end]).into_owned()
}

/// A place in symmetric memory, for people.
struct Shown(u64);

impl fmt::Display for Shown {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 == NOWHERE {
            return f.write_str("an address that is not symmetric");
        }
        let segment = match self.0 >> 63 {
            s if s == SegmentKind::Heap as u64 => "heap",
            _ => "static data",
        };
        write!(f, "{segment} + {:#x}", self.0 & (u64::MAX >> 1))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn words(name: &str, values: &[u64], addresses: &[u64]) -> [u64; WORDS] {
        let mut words = [0; WORDS];
        for (word, bytes) in words.iter_mut().zip(name.as_bytes().chunks(8)) {
            let mut padded = [0; 8];
            padded[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(padded);
        }
        words[NAME_WORDS..][..values.len()].copy_from_slice(values);
        words[NAME_WORDS + VALUES_MAX..][..addresses.len()].copy_from_slice(addresses);
        words
    }

    #[test]
    fn the_first_difference_is_told_with_both_values() {
        let arguments = Arguments {
            values: vec![("nelems", 4), ("PE_root", -1)],
            addresses: vec![("dest", std::ptr::null())],
        };
        let mine = words("shmem_int_broadcast", &[4, -1i64 as u64], &[0x40]);
        let tell = |theirs: &[u64]| difference(&mine, theirs, &arguments);
        assert_eq!(tell(&mine), None);
        let other = words("shmem_int_collect", &[4, 0], &[0x40]);
        assert_eq!(tell(&other).unwrap(), "called here, but shmem_int_collect");
        let other = words("shmem_int_broadcast", &[4, 2], &[0x40]);
        assert_eq!(tell(&other).unwrap(), "PE_root = -1 here, but 2");
        let other = words("shmem_int_broadcast", &[4, -1i64 as u64], &[1 << 63 | 0x10]);
        assert_eq!(tell(&other).unwrap(), "dest is at heap + 0x40 here, but at static data + 0x10");
        let other = words("shmem_int_broadcast", &[4, -1i64 as u64], &[NOWHERE]);
        assert!(tell(&other).unwrap().ends_with("at an address that is not symmetric"));
    }

    #[test]
    fn more_values_than_a_member_looks_at_do_not_confuse_it() {
        // The other member may have called with fewer arguments of another routine.
        let arguments = Arguments { values: vec![], addresses: vec![] };
        let mine = words("shmem_team_sync", &[], &[]);
        assert_eq!(difference(&mine, &words("shmem_team_sync", &[7], &[7]), &arguments), None);
    }
}
