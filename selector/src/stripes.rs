// SPDX-License-Identifier: Apache-2.0
//! Channels of two transports that carry a transfer at the same time: their names, such as `ofi+ntb`, and which
//! part of a transfer each carries.

use crate::class::Class;
use crate::data::{Buffer, Measurements, Operation};
use crate::model::Interpolation;

/// The size by whose times transfers are divided.
const LARGE: u64 = 1 << 20;

/// A channel is not worth measuring where one of its transports would carry less than this part.
const LEAST: f64 = 1.0 / 8.0;

/// The name of the channel whose first part goes by `first`.
pub fn name(first: &str, second: &str) -> String {
    format!("{first}+{second}")
}

/// The transports of a channel, if it is one of two of them.
pub fn transports(channel: &str) -> Option<[&str; 2]> {
    channel.split_once('+').map(|(first, second)| [first, second])
}

/// Of 256 bytes of a transfer, those that the first of two transports carries: so many that both take as long for
/// their parts as each takes alone. Half of them where that was not measured.
pub fn first(measured: &Measurements, class: Class, operation: Operation, both: [&str; 2]) -> u8 {
    let part = part(measured, class, operation, both).unwrap_or(0.5);
    (part * 256.0).round().clamp(1.0, 255.0) as u8
}

/// Whether measurements of both transports leave it open that they are faster together.
pub fn is_open(
    measured: &Measurements,
    class: Class,
    operation: Operation,
    both: [&str; 2],
) -> bool {
    let part = part(measured, class, operation, both);
    part.is_some_and(|part| part.min(1.0 - part) >= LEAST)
}

/// The part of the first transport.
fn part(
    measured: &Measurements,
    class: Class,
    operation: Operation,
    both: [&str; 2],
) -> Option<f64> {
    let time = |name| {
        let curve = measured.curve(class, operation, Buffer::Heap, name)?;
        Some(Interpolation::new(&curve.points)?.at(LARGE))
    };
    let (mine, other) = (time(both[0])?, time(both[1])?);
    (mine > 0.0 && other > 0.0).then(|| other / (mine + other))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Curve, Key, Point};

    #[test]
    fn the_faster_transport_carries_more_and_a_much_slower_one_is_left_alone() {
        let curve = |channel: &str, per_byte: f32| {
            let class = Class::Network;
            let (operation, buffer) = (Operation::Put, Buffer::Heap);
            let key = Key { class, operation, buffer, channel: channel.to_owned() };
            let point = |bytes: u64| {
                let ns = bytes as f32 * per_byte;
                Point { bytes, ns, spread: 0.0, batches: 7 }
            };
            Curve { key, points: [1 << 18, 1 << 20].map(point).to_vec(), checks: vec![] }
        };
        let curves = vec![curve("fast", 1.0), curve("slow", 3.0), curve("slower", 9.0)];
        let mut measured = Measurements { curves, ..Measurements::default() };
        measured.put_in_order();
        let first = |both| first(&measured, Class::Network, Operation::Put, both);
        assert_eq!([first(["slow", "fast"]), first(["fast", "slow"])], [64, 192]);
        assert_eq!(first(["fast", "unknown"]), 128);
        let open = |both| is_open(&measured, Class::Network, Operation::Put, both);
        assert!(open(["slow", "fast"]) && !open(["slower", "fast"]));
        assert_eq!(transports(&name("a", "b")), Some(["a", "b"]));
    }
}
