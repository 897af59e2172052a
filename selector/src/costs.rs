// SPDX-License-Identifier: Apache-2.0
//! What algorithms of collective operations are chosen by, from the model.

use crate::class::Class;
use crate::data::{Measurements, Operation};
use crate::tuning::{Origin, Tuning};
use tombolo_core::cost::{Costs, SIZES, Times};

/// Times of puts and gets that everybody who has these measurements expects alike, whatever
/// transports it has and whatever it was told about its buffers. Built-in values stand where nothing
/// was measured.
pub(crate) fn costs(measured: &Measurements) -> Costs {
    let mut costs = Costs::default();
    let classes = measured.classes();
    if classes.is_empty() {
        return costs;
    }
    let tuning = Tuning::without_job(Origin::Off, String::new(), measured.clone(), &[]);
    let here = classes.iter().copied().filter(|c| c.hops() == 0 && *c != Class::Own);
    let known: Vec<Times> = here.map(|class| times(&tuning, class, costs.host)).collect();
    // A group on one host is as fast as its slowest pair.
    if let Some(slowest) = known.iter().max_by_key(|known| known.put) {
        costs.host = *slowest;
    }
    for (index, known) in costs.hops.iter_mut().enumerate() {
        *known = times(&tuning, Class::Hops(index as u32 + 1), *known);
    }
    costs.network = times(&tuning, Class::Network, costs.network);
    costs
}

fn times(tuning: &Tuning, class: Class, otherwise: Times) -> Times {
    let mut times = otherwise;
    for (index, bytes) in SIZES.into_iter().enumerate() {
        let bytes = bytes as u64;
        let put = tuning
            .predict_pipelined(class, bytes)
            .or_else(|| tuning.predict(class, Operation::Put, bytes));
        set(&mut times.put[index], put);
        set(&mut times.get[index], tuning.predict(class, Operation::Get, bytes));
    }
    if class.hops() > 0 {
        // A short get goes there and back. On one host it is a load, of which nobody takes notice.
        set(&mut times.latency, tuning.predict(class, Operation::Get, 8).map(|ns| ns / 2.0));
        // The time of a put alone includes the wait for its arrival; that of one of several does not.
        let alone = tuning.predict(class, Operation::Put, 8);
        let waited = alone.zip(tuning.predict_pipelined(class, 8)).map(|(all, one)| all - one);
        set(&mut times.completion, waited);
    }
    if class == Class::Network {
        // Short puts to one PE that are under way together share messages, and were measured so. Those to
        // several PEs do not: each takes the processors at both ends, which is most of its latency.
        let alone = times.latency / 4 * 3;
        let more = alone.saturating_sub(times.put[0]);
        times.put.iter_mut().for_each(|put| *put = put.saturating_add(more));
    }
    times
}

fn set(time: &mut u32, ns: Option<f64>) {
    if let Some(ns) = ns.filter(|ns| ns.is_finite()) {
        *time = ns.ceil().clamp(1.0, f64::from(u32::MAX)) as u32;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Buffer, CACHED, Curve, Key, Point};
    use tombolo_core::transport::Distance::{Hops, Host, Network};

    fn curve(class: Class, operation: Operation, channel: &str, start: f32, per_kib: f32) -> Curve {
        let key = Key { class, operation, buffer: Buffer::Heap, channel: channel.into() };
        let points = SIZES.map(|bytes| {
            let ns = start + per_kib * bytes as f32 / 1024.0;
            Point { bytes: bytes as u64, ns, spread: 0.0, batches: 7 }
        });
        Curve { key, points: points.to_vec(), checks: Vec::new() }
    }

    #[test]
    fn nothing_measured_leaves_the_built_in_values() {
        assert_eq!(costs(&Measurements::default()), Costs::default());
    }

    #[test]
    fn measured_times_replace_the_built_in_ones_where_there_are_some() {
        let mut measured = Measurements::default();
        for (class, channel, start) in
            [(Class::Own, CACHED, 1.0), (Class::Cache, CACHED, 5.0), (Class::Host, CACHED, 9.0)]
        {
            measured.curves.push(curve(class, Operation::Put, channel, start, 20.0));
            measured.curves.push(curve(class, Operation::Get, channel, start, 30.0));
        }
        measured.curves.push(curve(Class::Hops(1), Operation::Get, "ntb", 2000.0, 200.0));
        measured.curves.push(curve(Class::Hops(2), Operation::Put, "ntb", 3000.0, 200.0));
        measured.curves.push(curve(Class::Hops(2), Operation::Pipeline, "ntb", 500.0, 200.0));
        measured.curves.push(curve(Class::Network, Operation::Get, "ofi", 20_000.0, 100.0));
        measured.curves.push(curve(Class::Network, Operation::Put, "ofi", 25_000.0, 100.0));
        measured.curves.push(curve(Class::Network, Operation::Pipeline, "ofi", 1000.0, 100.0));
        measured.put_in_order();
        let costs = costs(&measured);
        // The slowest pairs of the host, not a PE with itself.
        assert_eq!((costs.put_ns(Host, 8), costs.get_ns(Host, 8)), (10, 10));
        assert_eq!(costs.get_ns(Host, 32 << 10), 9 + 30 * 32);
        // A message takes three quarters of half of a get.
        let short = costs.put_ns(Network, 8);
        assert!((7500..7510).contains(&short), "{short}");
        assert!((1595..=1600).contains(&(costs.put_ns(Network, 16 << 10) - short)));
        // There and back takes 2 us.
        assert!((990..=1010).contains(&costs.latency_ns(Hops(1))), "{}", costs.latency_ns(Hops(1)));
        assert_eq!(costs.put_ns(Hops(1), 8), Costs::default().put_ns(Hops(1), 8));
        // A put alone takes 3 us, one of several 0.5 us: the rest is the wait for the last one.
        assert_eq!((costs.arrival_ns(Hops(1)), costs.arrival_ns(Hops(2))), (0, 1250));
    }
}
