// SPDX-License-Identifier: Apache-2.0
//! `oshinfo --predict`: what communication patterns cost by the model, and in a job what they take.

use crate::Options;
use crate::measure::{measure, settle};
use tombolo::describe::count;
use tombolo::tools::Session;
use tombolo_core::World;
use tombolo_core::sizes;
use tombolo_core::wait::usable_cpus;
use tombolo_selector::cache;
use tombolo_selector::class::Class;
use tombolo_selector::data::Operation;
use tombolo_selector::pattern::{self, By, Estimate, Layout, Pattern, Topology};
use tombolo_selector::{Tuning, model, report};
use tombolo_transports::ntb::NtbSettings;
use tombolo_transports::ntb::port::emulated::Speed;

/// Sizes shown unless one is asked for.
const SIZES: [u64; 4] = [8, 1024, 65536, 1 << 20];

/// PEs that an estimate goes into.
const PES_MAX: usize = 1024;

const UNKNOWN: &str = "PEs so far apart were never measured: start a job with PEs like these first";

fn ways(options: &Options) -> Vec<By> {
    options.by.map_or(By::ALL.to_vec(), |by| vec![by])
}

fn sizes(options: &Options) -> Vec<u64> {
    options.size.map_or(SIZES.to_vec(), |size| vec![size])
}

/// Estimates without a job, a line per size.
pub fn estimates(tuning: &Tuning, pattern: Pattern, options: &Options) -> Result<String, String> {
    let (hosts, pes) = (options.hosts.unwrap_or(1) as usize, options.pes.unwrap_or(4) as usize);
    if hosts.saturating_mul(pes) > PES_MAX {
        return Err(format!("{hosts} hosts with {pes} PEs each: estimates are for {PES_MAX} PEs"));
    }
    // Links, where there are any: what leads over several of them is estimated from one.
    let linked = tuning.predict(Class::Hops(1), Operation::Put, 8).is_some();
    let likely = if linked { Topology::Ring } else { Topology::Network };
    let topology = options.topology.unwrap_or(likely);
    let layout = Layout::regular(hosts, pes, usable_cpus(), topology);
    let ways = ways(options);
    let mut text = format!(
        "{pattern} with {} on each of {}{}; for the estimates: {}, measured over {}\n  {:>10}",
        count(pes, "PE"),
        count(hosts, "host"),
        if hosts > 1 { format!(" on a {topology}") } else { String::new() },
        tuning.origin(),
        cache::transports(tuning.machine()),
        "per pair"
    );
    ways.iter().for_each(|by| text += &format!("  {:>10}  {:20}", by.to_string(), "90 % range"));
    for bytes in sizes(options) {
        text += &format!("\n  {:>10}", sizes::size(bytes));
        for by in &ways {
            let estimate = pattern::predict(tuning, &layout, pattern, *by, bytes).ok_or(UNKNOWN)?;
            text += &format!("  {:>10}  {:20}", report::time(estimate.ns), within(&estimate));
        }
        text.truncate(text.trim_end().len());
    }
    if let Some((error, _)) = model::error(&tuning.measured().curves) {
        text += &format!("\nSingle operations are off by {:.1} % on average.", error * 100.0);
    }
    Ok(text + "\n" + &sources(tuning) + crowded(&layout))
}

/// What estimates rest on: they hold for that machine, as far as what was measured there can be relied on.
fn sources(tuning: &Tuning) -> String {
    let mut text = match tuning.machine() {
        "" => String::new(),
        machine => format!("Measured on: {machine}\n"),
    };
    if let Some(why) = tuning.measured().doubt() {
        text += &format!("What was measured is unreliable: {why}\n");
    }
    text
}

fn within(estimate: &Estimate) -> String {
    match estimate.within {
        Some([low, high]) => format!("{} to {}", report::time(low), report::time(high)),
        None => "not known".to_owned(),
    }
}

/// What to think of estimates for more PEs than there are processors.
fn crowded(layout: &Layout) -> &'static str {
    match () {
        () if layout.is_crowded() => {
            "PEs outnumber processors; waiting for a processor is not estimated.\n"
        }
        () if layout.lacks_processors_for_links() => {
            "There are fewer processors than PEs and threads that serve their links; waiting for a processor is \
             not estimated.\n"
        }
        () => "",
    }
}

/// Collective: measures the pattern in this job and compares with the estimate. The text is for
/// PE 0 to print; errors are the same on all PEs.
pub fn compared(session: &Session, pattern: Pattern, options: &Options) -> Result<String, String> {
    let world: &World = session;
    if world.n_pes() == 1 {
        return Err("a pattern needs several PEs, and this job has one: oshrun -n 4 ...".into());
    }
    let tuning = session.tuning();
    let places = world.localities().iter().map(|place| place.host_index as usize);
    // A PE that is bound has a processor of its own and sees no other.
    let cpus = if world.config().bound.0 { world.n_pes() } else { usable_cpus() };
    let emulated = world.config().host.is_some();
    let mut layout = Layout::new(places, cpus, emulated, |a, b| world.distance(a, b));
    let ring = NtbSettings::read(world.config().environment()).map_err(|e| e.to_string())?;
    if ring.speed == Speed::Modelled {
        layout = layout.with_slow_links();
    }
    settle(world, &layout)?;
    let (mut rows, mut errors, mut held) = (String::new(), Vec::new(), Vec::new());
    for bytes in sizes(options) {
        for by in ways(options) {
            let measured = measure(world, &layout, pattern, by, bytes as usize)?;
            let predicted = pattern::predict(&tuning, &layout, pattern, by, bytes);
            let error = predicted.map(|estimate| estimate.ns / measured - 1.0);
            errors.extend(error.map(f64::abs));
            held.extend(predicted.and_then(|estimate| estimate.holds(measured)));
            rows += &row(
                &sizes::size(bytes),
                &by.to_string(),
                &report::time(measured),
                &predicted.map_or("unknown".into(), |estimate| report::time(estimate.ns)),
                &error.map_or(String::new(), |error| format!("{:+.0} %", error * 100.0)),
                &predicted.map_or(String::new(), |estimate| within(&estimate)),
            );
        }
    }
    let mean = match errors.len() {
        0 => "Nothing is known to estimate from: ".to_owned() + UNKNOWN,
        count => {
            let mean = errors.iter().sum::<f64>() / count as f64;
            let (stated, held) = (held.len(), held.iter().filter(|held| **held).count());
            let ranges = match stated {
                0 => String::new(),
                _ => format!("; {held} of {stated} measurements were in the stated range"),
            };
            format!("Mean error {:.0} % over {count} estimates{ranges}", mean * 100.0)
        }
    };
    let (pes, hosts) = (layout.pes(), count(layout.hosts(), "host"));
    let origin = tuning.origin();
    let head = row("per pair", "by", "measured", "predicted", "error", "90 % range");
    Ok(format!(
        "{pattern} with {pes} PEs on {hosts}; for the estimates: {origin}\n\
         {head}{rows}{mean}. All received bytes were checked.\n{}",
        crowded(&layout)
    ))
}

fn row(
    bytes: &str,
    by: &str,
    measured: &str,
    predicted: &str,
    error: &str,
    within: &str,
) -> String {
    let line =
        format!("  {bytes:>10}  {by:>7}  {measured:>10}  {predicted:>10}  {error:>7}  {within}");
    line.trim_end().to_owned() + "\n"
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_selector::Origin;
    use tombolo_selector::data::{Buffer, CACHED, Curve, Key, Measurements, Point};

    #[test]
    fn estimates_say_what_they_rest_on() {
        let of = |batches| {
            let (operation, buffer, channel) = (Operation::Put, Buffer::Heap, CACHED.to_owned());
            let key = Key { class: Class::Cache, operation, buffer, channel };
            let point = |bytes| Point { bytes, ns: 100.0, spread: 0.0, batches };
            let curves = vec![Curve { key, points: vec![point(8)], checks: vec![point(16)] }];
            let measured = Measurements { curves, ..Measurements::default() };
            Tuning::without_job(Origin::Measured, "a machine".into(), measured, &["shm"])
        };
        assert_eq!(sources(&of(7)), "Measured on: a machine\n");
        let doubtful = sources(&of(0));
        assert!(doubtful.contains("\nWhat was measured is unreliable: other proc"), "{doubtful}");
    }
}
