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

/// A thing to measure: the table's name, whether it takes single words only, and how.
struct Limit {
    name: &'static str,
    latency: bool,
    word: bool,
    measure: fn(&mut Bench, usize) -> Result<Times, String>,
}

const LIMITS: [Limit; 10] = [
    Limit { name: "plain copy", latency: false, word: false, measure: bench::copy },
    Limit { name: "copy past the caches", latency: false, word: false, measure: bench::streaming },
    Limit {
        name: "kernel copy to another process (CMA)",
        latency: false,
        word: false,
        measure: bench::cma,
    },
    Limit { name: "TCP over loopback, one way", latency: true, word: false, measure: bench::tcp },
    Limit {
        name: "TCP over loopback, stream",
        latency: false,
        word: false,
        measure: bench::tcp_stream,
    },
    Limit { name: "lock xadd, alone", latency: true, word: true, measure: bench::xadd },
    Limit {
        name: "lock xadd, contended by another thread",
        latency: true,
        word: true,
        measure: bench::contended,
    },
    Limit {
        name: "cache line to another core, one way",
        latency: true,
        word: true,
        measure: bench::line,
    },
    Limit { name: "store to a word", latency: true, word: true, measure: bench::store },
    Limit { name: "load of a word", latency: true, word: true, measure: bench::load },
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
        let mut table =
            Table { name: limit.name, latency: limit.latency, unavailable: None, rows: Vec::new() };
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
        text += &format!("\n# {} (measured)\n", table.name);
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
            let table = Table { name: "plain copy", latency: false, unavailable: None, rows };
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
