// SPDX-License-Identifier: Apache-2.0
//! `oshperf limits`: what the machine can do without any library.

mod bench;

use crate::compare::text::number;
use crate::files;
use crate::interrupt;
use crate::machine::Machine;
use crate::pe::timing::Times;
use crate::progress::Progress;
use crate::sizes::{self, Sizes};
use crate::tool;
use bench::Bench;
use clap::Args;
use serde::Serialize;
use std::path::PathBuf;
use std::time::Duration;

/// See the parts of `oshperf(1)`.
#[derive(Args)]
pub struct Options {
    /// Sizes in bytes: 8..4M for the powers of two, or a list such as 8,1000,64K
    #[arg(long, value_name = "SIZES", default_value = "8..4M", value_parser = Sizes::read)]
    sizes: Sizes,

    /// Milliseconds for each point
    #[arg(long, value_name = "MS", default_value = "50", value_parser = sizes::budget)]
    budget: f64,

    /// Write everything as JSON
    #[arg(long, value_name = "FILE")]
    json: Option<PathBuf>,
}

/// What was measured.
#[derive(Serialize)]
struct Limits {
    machine: Machine,
    complete: bool,
    tables: Vec<Table>,
}

/// One thing that a machine does, by size.
#[derive(Serialize)]
struct Table {
    name: &'static str,
    /// Whether values are microseconds; MB/s otherwise.
    latency: bool,
    /// The network that was measured, where it is one of several that there may be.
    medium: Option<String>,
    /// Why there are no rows.
    unavailable: Option<String>,
    rows: Vec<Row>,
}

#[derive(Serialize)]
struct Row {
    size: u64,
    median: f64,
    p99: f64,
}

/// A thing to measure: the table's name, whether it takes single words only, how, and the transport whose network that
/// is.
struct Limit {
    name: &'static str,
    latency: bool,
    word: bool,
    measure: Measure,
    transport: Option<&'static str>,
}

impl Limit {
    /// The rate at which bytes move, by size.
    const fn rate(name: &'static str, measure: Measure) -> Limit {
        Limit { name, latency: false, word: false, measure, transport: None }
    }

    /// How long something takes, by size.
    const fn time(name: &'static str, measure: Measure) -> Limit {
        Limit { latency: true, ..Limit::rate(name, measure) }
    }

    /// How long something takes with a word.
    const fn word(name: &'static str, measure: Measure) -> Limit {
        Limit { word: true, ..Limit::time(name, measure) }
    }

    /// By the network of a transport.
    const fn of(self, transport: &'static str) -> Limit {
        Limit { transport: Some(transport), ..self }
    }
}

type Measure = fn(&mut Bench, usize) -> Result<Times, String>;

const LIMITS: [Limit; 14] = [
    Limit::rate("plain copy", bench::copy),
    Limit::rate("copy past the caches", bench::streaming),
    Limit::rate("kernel copy to another process (CMA)", bench::cma),
    Limit::time("TCP over loopback, one way", bench::tcp),
    Limit::rate("TCP over loopback, stream", bench::tcp_stream),
    Limit::time("libfabric's provider, put until it has arrived", bench::libfabric).of("ofi"),
    Limit::rate("libfabric's provider, many puts", bench::libfabric_stream).of("ofi"),
    Limit::time("RDMA card, put until it has arrived", bench::card).of("verbs"),
    Limit::rate("RDMA card, many puts", bench::card_stream).of("verbs"),
    Limit::word("lock xadd, alone", bench::xadd),
    Limit::word("lock xadd, contended by another thread", bench::contended),
    Limit::word("cache line to another core, one way", bench::line),
    Limit::word("store to a word", bench::store),
    Limit::word("load of a word", bench::load),
];

/// Measures and prints. True if all was measured.
pub fn limits(options: &Options) -> Result<bool, String> {
    interrupt::catch().map_err(|why| format!("cannot catch Ctrl-C: {why}"))?;
    files::check([&options.json])?;
    let machine = Machine::here();
    let sizes = &options.sizes.0;
    let room = sizes.last().copied().unwrap_or(8) as usize;
    let mut bench = Bench::new(Duration::from_secs_f64(options.budget / 1e3), room);
    let steps = LIMITS.iter().map(|limit| if limit.word { 1 } else { sizes.len() as u64 }).sum();
    let progress = Progress::new(steps);
    let mut tables = Vec::new();
    for limit in &LIMITS {
        let (medium, unavailable, rows) = (None, None, Vec::new());
        let mut table =
            Table { name: limit.name, latency: limit.latency, medium, unavailable, rows };
        for size in if limit.word { &[8][..] } else { sizes } {
            if interrupt::wanted() || table.unavailable.is_some() {
                break;
            }
            progress.now(format!("{}, {}", limit.name, sizes::show(*size)));
            match (limit.measure)(&mut bench, *size as usize) {
                Ok(times) => {
                    let value = |ns: f64| match limit.latency {
                        true => ns / 1e3,
                        false => *size as f64 / ns * 1e3,
                    };
                    let (median, p99) = (value(times.median()), value(times.p99()));
                    table.rows.push(Row { size: *size, median, p99 });
                }
                Err(why) => table.unavailable = Some(why),
            }
            progress.step();
        }
        table.medium = limit.transport.and_then(|transport| bench.medium(transport));
        tables.push(table);
    }
    drop(progress);
    let limits = Limits { machine, complete: !interrupt::wanted(), tables };
    let kept = keep(&options.json, &limits);
    tool::print(text(&limits));
    kept?;
    Ok(limits.complete)
}

/// Writes the file that is asked for. An earlier one stays where nothing was measured, or less.
fn keep(path: &Option<PathBuf>, limits: &Limits) -> Result<(), String> {
    if limits.tables.iter().all(|table| table.rows.is_empty()) {
        return Err("nothing could be measured".to_owned());
    }
    files::report(path, limits, limits.complete)
}

fn text(limits: &Limits) -> String {
    let machine = &limits.machine;
    let mut text = format!(
        "# Tombolo oshperf {}: limits of the machine, without any library\n\
         # {}, {} cores, kernel {}, load {:.1} before the start, {}\n",
        env!("CARGO_PKG_VERSION"),
        machine.cpu,
        machine.cores,
        machine.kernel,
        machine.load,
        machine.date
    );
    if !limits.complete {
        text += "# Not complete: what was measured before it ended\n";
    }
    for table in &limits.tables {
        text += &match &table.medium {
            Some(medium) => format!("\n# {}: {medium} (measured)\n", table.name),
            None => format!("\n# {} (measured)\n", table.name),
        };
        if let Some(why) = &table.unavailable {
            text += &format!("# not available: {why}\n");
        }
        if table.rows.is_empty() {
            continue;
        }
        let heading = if table.latency { "Latency (us)" } else { "Bandwidth (MB/s)" };
        let tail = if table.latency { "99 %" } else { "1 %" };
        text += &format!("{:<10} {heading:>18} {tail:>13}\n", "# Size");
        for Row { size, median, p99 } in &table.rows {
            text += &format!("{size:<10} {:>18} {:>13}\n", number(*median), number(*p99));
        }
    }
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_interrupted_run_costs_no_earlier_report() {
        let folder = files::passing_folder().unwrap();
        let path = Some(folder.path().join("limits.json"));
        let limits = |rows, complete| {
            let rows = (0..rows).map(|k| Row { size: 8 << k, median: 1.0, p99: 2.0 }).collect();
            let table =
                Table { name: "plain copy", latency: false, medium: None, unavailable: None, rows };
            Limits { machine: Machine::here(), complete, tables: vec![table] }
        };
        assert!(keep(&path, &limits(0, false)).unwrap_err().contains("nothing could be measured"));
        assert!(!path.as_ref().unwrap().exists());
        keep(&path, &limits(1, false)).unwrap();
        keep(&path, &limits(2, true)).unwrap();
        for rows in [0, 1] {
            assert!(keep(&path, &limits(rows, false)).is_err());
            assert!(files::is_complete(path.as_ref().unwrap()));
        }
        assert!(text(&limits(1, false)).contains("\n# Not complete: what was"));
        assert!(!text(&limits(1, true)).contains("complete"));
    }
}
