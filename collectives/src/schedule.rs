// SPDX-License-Identifier: Apache-2.0
//! Who does what with whom and when: index arithmetic without communication.

use std::ops::Range;

/// Rounds of a dissemination over `n` members: the binary logarithm, rounded up.
pub const fn rounds(n: usize) -> usize {
    n.next_power_of_two().trailing_zeros() as usize
}

/// Whom member `me` tells in round `round` that it, and all it has heard of, have arrived.
pub const fn tells(me: usize, round: usize, n: usize) -> usize {
    (me + (1 << round)) % n
}

/// All members in turn, the one after `me` first and `me` last: when all write to all, no member is
/// written to by everyone at once.
pub fn others_then_self(me: usize, n: usize) -> impl Iterator<Item = usize> {
    (me + 1..n).chain(0..=me)
}

/// The same without `me`.
#[inline(always)]
pub fn others(me: usize, n: usize) -> impl Iterator<Item = usize> {
    // Not a chain of two ranges, for which a loop's body is compiled twice.
    (me + 1..me + n).map(move |member| if member < n { member } else { member - n })
}

/// Member `part`'s share of `count` elements among `parts` members: contiguous, and cut only at
/// multiples of `grain` elements, so that neighbours do not write to the same cache line.
pub fn share(part: usize, parts: usize, count: usize, grain: usize) -> Range<usize> {
    let grains = count.div_ceil(grain);
    let cut = |part: usize| {
        // In two steps because `part * grains` may overflow.
        let grains = grains / parts * part + grains % parts * part / parts;
        (grains * grain).min(count)
    };
    cut(part)..cut(part + 1)
}

/// `range` in pieces of at most `step` elements.
pub fn blocks(range: Range<usize>, step: usize) -> impl Iterator<Item = Range<usize>> {
    let end = range.end;
    range.step_by(step).map(move |at| at..end.min(at + step))
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The reference for a barrier: who has heard of whom after all rounds.
    #[test]
    fn after_all_rounds_everybody_has_heard_of_everybody() {
        for n in 1..=40 {
            let mut heard: Vec<Vec<bool>> =
                (0..n).map(|me| (0..n).map(|other| me == other).collect()).collect();
            for round in 0..rounds(n) {
                let before = heard.clone();
                for (me, knows) in before.iter().enumerate() {
                    let to = &mut heard[tells(me, round, n)];
                    to.iter_mut().zip(knows).for_each(|(to, knows)| *to |= knows);
                }
            }
            assert!(heard.iter().flatten().all(|heard| *heard), "{n} members");
        }
    }

    #[test]
    fn one_round_fewer_is_not_enough() {
        for n in 2..=40 {
            assert!(1 << (rounds(n) - 1) < n, "{n} members");
        }
        assert_eq!(rounds(1), 0);
    }

    #[test]
    fn shares_cover_everything_once_and_differ_by_at_most_a_grain() {
        for parts in 1..=9 {
            for count in (0..100).chain([1000, 1001, 12345]) {
                for grain in [1, 4, 8, 64] {
                    let shares: Vec<_> =
                        (0..parts).map(|p| share(p, parts, count, grain)).collect();
                    assert_eq!(shares[0].start, 0);
                    assert_eq!(shares[parts - 1].end, count);
                    assert!(shares.windows(2).all(|w| w[0].end == w[1].start));
                    assert!(shares[1..].iter().all(|s| s.start % grain == 0 || s.start == count));
                    let lengths = || shares.iter().map(Range::len);
                    // The last share may lack up to a grain where the end is not a multiple.
                    assert!(lengths().max().unwrap() - lengths().min().unwrap() < 2 * grain);
                }
            }
        }
        assert_eq!(share(6, 7, usize::MAX / 2, 8).end, usize::MAX / 2);
    }

    #[test]
    fn blocks_cover_a_range_once() {
        let all: Vec<_> = blocks(3..20, 7).collect();
        assert_eq!(all, [3..10, 10..17, 17..20]);
        assert_eq!(blocks(5..5, 7).count(), 0);
    }

    #[test]
    fn everybody_is_visited_once_and_oneself_last() {
        assert_eq!(others_then_self(2, 5).collect::<Vec<_>>(), [3, 4, 0, 1, 2]);
        assert_eq!(others_then_self(0, 1).collect::<Vec<_>>(), [0]);
    }
}
