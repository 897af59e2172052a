// SPDX-License-Identifier: Apache-2.0
//! Sets of pairs of PEs, in few words.

use super::count;

/// Groups of PEs that are named for one set.
const NAMED: usize = 4;

/// Pairs of PEs: by the first, the second ones in rising order.
pub type Pairs = Vec<Vec<usize>>;

/// A set of pairs of PEs, and their hosts. A pair is from the first PE to the second.
pub fn in_words(pairs: &Pairs, hosts: &[u32]) -> String {
    let all = |same: bool| {
        let wanted = |from: usize| {
            (0..hosts.len()).filter(move |to| *to != from && (hosts[*to] == hosts[from]) == same)
        };
        pairs.iter().enumerate().all(|(from, to)| to.iter().copied().eq(wanted(from)))
    };
    let groups = groups(pairs);
    if groups.len() > NAMED && all(true) {
        return "those of the same host".into();
    }
    if groups.len() > NAMED && all(false) {
        return "those of different hosts".into();
    }
    let hosts_of = |pes: &[usize]| {
        let hosts = hosts_of(pes, hosts);
        (if hosts.len() == 1 { "host" } else { "hosts" }, ranges(&hosts))
    };
    let shown = groups.iter().take(NAMED).map(|Group { from, to, word }| {
        let (head, mine) = hosts_of(from);
        match to {
            None => format!("{} with each other ({head} {mine})", ranges(from)),
            Some(to) => {
                let (_, theirs) = hosts_of(to);
                let place = if mine == theirs { mine } else { format!("{mine} {word} {theirs}") };
                format!("{} {word} {} ({head} {place})", ranges(from), ranges(to))
            }
        }
    });
    let mut words = shown.collect::<Vec<String>>().join(", ");
    if groups.len() > NAMED {
        words += &format!(" and {}", count(groups.len() - NAMED, "more group"));
    }
    words
}

/// PEs of pairs, as many as can be named together.
#[derive(Debug, PartialEq, Eq)]
struct Group {
    from: Vec<usize>,
    /// None for those of `from`, with each other.
    to: Option<Vec<usize>>,
    /// Between the two: whether pairs the other way round belong to it too.
    word: &'static str,
}

/// Pairs, in groups each of which has all pairs of its PEs.
fn groups(pairs: &Pairs) -> Vec<Group> {
    let has = |from: usize, to: usize| pairs[from].binary_search(&to).is_ok();
    let mut alike = Vec::new();
    for (from, to) in pairs.iter().enumerate().filter(|(_, to)| !to.is_empty()) {
        let mut key = to.clone();
        key.insert(key.partition_point(|pe| *pe < from), from);
        add(&mut alike, key, from);
    }
    alike.retain(|(key, all)| key == all);
    let with_each_other: Vec<Vec<usize>> = alike.into_iter().map(|(_, all)| all).collect();
    let is_named = |pe: &usize| with_each_other.iter().any(|all| all.contains(pe));
    let rest = || (0..pairs.len()).filter(|pe| !is_named(pe));
    let both = rest().all(|from| pairs[from].iter().all(|to| has(*to, from)));
    let mut ways = Vec::new();
    for from in rest() {
        let to = pairs[from].iter().copied().filter(|to| !both || *to > from);
        let to: Vec<usize> = to.collect();
        if !to.is_empty() {
            add(&mut ways, to, from);
        }
    }
    let word = if both { "with" } else { "to" };
    let together = with_each_other.into_iter().map(|from| Group { from, to: None, word });
    together.chain(ways.into_iter().map(|(to, from)| Group { from, to: Some(to), word })).collect()
}

/// Adds a PE to those of the same key.
fn add(all: &mut Vec<(Vec<usize>, Vec<usize>)>, key: Vec<usize>, pe: usize) {
    match all.iter_mut().find(|(known, _)| *known == key) {
        Some((_, pes)) => pes.push(pe),
        None => all.push((key, vec![pe])),
    }
}

/// The hosts of PEs, rising.
pub fn hosts_of(pes: &[usize], hosts: &[u32]) -> Vec<usize> {
    let mut of_pes: Vec<usize> = pes.iter().map(|pe| hosts[*pe] as usize).collect();
    of_pes.sort_unstable();
    of_pes.dedup();
    of_pes
}

/// Rising numbers, as `0-3,5`.
pub fn ranges(numbers: &[usize]) -> String {
    let runs = numbers.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] => format!("{first}-{last}"),
        _ => run[0].to_string(),
    });
    runs.collect::<Vec<String>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The pairs among PEs on `hosts` of which `is_in` says so.
    fn pairs(hosts: &[u32], is_in: impl Fn(usize, usize) -> bool) -> Pairs {
        let of = |from| (0..hosts.len()).filter(|to| *to != from && is_in(from, *to)).collect();
        (0..hosts.len()).map(of).collect()
    }

    #[test]
    fn pairs_are_named_together() {
        let hosts = [0, 0, 0, 1, 1, 2];
        let words = |is_in: &dyn Fn(usize, usize) -> bool| in_words(&pairs(&hosts, is_in), &hosts);
        let same = |a: usize, b: usize| hosts[a] == hosts[b];
        assert_eq!(words(&same), "0-2 with each other (host 0), 3-4 with each other (host 1)");
        assert_eq!(
            words(&|a, b| !same(a, b)),
            "0-2 with 3-5 (host 0 with 1-2), 3-4 with 5 (host 1 with 2)"
        );
        assert_eq!(words(&|_, _| true), "0-5 with each other (hosts 0-2)");
        assert_eq!(words(&|a, b| (a, b) == (4, 0)), "4 to 0 (host 1 to 0)");
        assert_eq!(words(&|a, b| a == 1 && b != 1), "1 to 0,2-5 (host 0 to 0-2)");
        assert_eq!(
            words(&|a, b| (a == 1) != (b == 1)),
            "0 with 1 (host 0), 1 with 2-5 (host 0 with 0-2)"
        );
    }

    #[test]
    fn many_groups_are_not_all_named() {
        let hosts: Vec<u32> = (0..64).collect();
        let words = |is_in: &dyn Fn(usize, usize) -> bool| in_words(&pairs(&hosts, is_in), &hosts);
        assert_eq!(words(&|_, _| true), "0-63 with each other (hosts 0-63)");
        let near = words(&|a, b| a.abs_diff(b) == 1);
        assert!(near.ends_with("3 with 4 (host 3 with 4) and 59 more groups"), "{near}");
        let hosts: Vec<u32> = (0..64).map(|pe| pe / 4).collect();
        let words =
            |same: bool| in_words(&pairs(&hosts, |a, b| (hosts[a] == hosts[b]) == same), &hosts);
        assert_eq!(words(true), "those of the same host");
        assert_eq!(words(false), "those of different hosts");
    }
}
