// SPDX-License-Identifier: Apache-2.0
//! Tables as those of the OSU benchmarks: lines that begin with `#`, then size and value columns.

use super::overtakes;
use super::report::{Point, Report, Series, WayReport};
use crate::catalogue::{Axis, Kind};
use std::fmt::Write;

/// Heading of the last column.
const SHARE: &str = "Share of ceiling (%)";

/// The whole report.
pub fn text(report: &Report) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_all(&mut text, report);
    text
}

fn write_all(text: &mut String, report: &Report) -> std::fmt::Result {
    let machine = &report.machine;
    writeln!(text, "# Tombolo oshperf {}, {} PEs", report.version, report.pes)?;
    writeln!(
        text,
        "# {}, {} cores, kernel {}, load {:.1} before the start, {}",
        machine.cpu, machine.cores, machine.kernel, machine.load, machine.date
    )?;
    writeln!(
        text,
        "# Rounds: {}, the ways in turn; {} ms for each point; medians, quartiles over all rounds",
        report.rounds, report.budget_ms
    )?;
    if !report.complete {
        writeln!(text, "# Not complete: what was measured before it ended")?;
    }
    writeln!(text, "#")?;
    for way in &report.ways {
        write_way(text, way)?;
    }
    for (_, all) in report.by_test() {
        for series in &all {
            write_series(text, series)?;
        }
        write_ratios(text, &all)?;
    }
    Ok(())
}

fn write_way(text: &mut String, way: &WayReport) -> std::fmt::Result {
    let WayReport { name, mark, place, unusable, notes, remarks, .. } = way;
    match unusable {
        Some(why) => writeln!(text, "# {name}: not usable: {why}")?,
        None => writeln!(text, "# {name}: {mark}, {place}")?,
    }
    notes.iter().chain(remarks).try_for_each(|note| writeln!(text, "# {name}: {note}"))
}

fn write_series(text: &mut String, series: &Series) -> std::fmt::Result {
    writeln!(text, "\n# {} over {} ({}): {}", series.test, series.way, series.mark, series.about)?;
    let has_ceiling = series.points.iter().any(|point| point.ceiling.is_some());
    if let (Some(ceiling), Some(mark), true) = (&series.ceiling, series.ceiling_mark, has_ceiling) {
        writeln!(text, "# Ceiling: {ceiling} ({mark})")?;
    }
    let first = if series.axis == Axis::Threads { "# Threads" } else { "# Size" };
    let mut heads = vec![series.kind.heading(), "25 %", "75 %"];
    match series.kind {
        Kind::Latency => heads.extend(["99 %", "CPU (us)"]),
        Kind::Bandwidth => heads.extend(["Messages/s", "CPU (us)"]),
        Kind::Rate | Kind::Share => heads.push("CPU (us)"),
    }
    if has_ceiling {
        heads.extend(["Ceiling", SHARE]);
    }
    row(text, first, heads.into_iter().map(str::to_owned))?;
    for point in &series.points {
        row(text, &point.x.to_string(), columns(series, point, has_ceiling))?;
    }
    Ok(())
}

fn columns(series: &Series, point: &Point, has_ceiling: bool) -> impl Iterator<Item = String> {
    let some = |value: Option<f64>| value.map_or("-".to_owned(), number);
    let summary = point.summary;
    let mut columns = [summary.median, summary.lower, summary.upper].map(number).to_vec();
    match series.kind {
        Kind::Latency => columns.extend([some(point.p99), some(point.cpu_us)]),
        Kind::Bandwidth => {
            let messages = summary.median * 1e6 / point.x as f64;
            columns.extend([format!("{messages:.0}"), some(point.cpu_us)]);
        }
        Kind::Rate | Kind::Share => columns.push(some(point.cpu_us)),
    }
    if has_ceiling {
        let share = point.of_ceiling.map_or("-".to_owned(), |s| format!("{:.1}", 100.0 * s));
        columns.extend([some(point.ceiling), format!("{share:>0$}", SHARE.len())]);
    }
    columns.into_iter()
}

/// All ways beside each other: the first one's values, and how many times as much the others take or
/// reach.
fn write_ratios(text: &mut String, all: &[&Series]) -> std::fmt::Result {
    let [first, others @ ..] = all else { return Ok(()) };
    if others.is_empty() {
        return Ok(());
    }
    let better = if first.kind.less_is_better() { "below 1: faster" } else { "above 1: faster" };
    writeln!(text, "\n# {} of each way / that of {} ({better})", first.test, first.way)?;
    let name = if first.axis == Axis::Threads { "# Threads" } else { "# Size" };
    row(text, name, all.iter().map(|series| series.way.clone()))?;
    for point in &first.points {
        let of = |series: &&&Series| {
            let other = series.points.iter().find(|other| other.x == point.x);
            other.map_or("-".to_owned(), |o| number(o.summary.median / point.summary.median))
        };
        let ratios = others.iter().map(|series| of(&series));
        row(text, &point.x.to_string(), std::iter::once("1".to_owned()).chain(ratios))?;
    }
    overtakes::sentences(all).iter().try_for_each(|line| writeln!(text, "# {line}"))
}

/// The first column to the left, the others to the right, as those benchmarks have them.
fn row(text: &mut String, first: &str, rest: impl Iterator<Item = String>) -> std::fmt::Result {
    write!(text, "{first:<10}")?;
    for (index, column) in rest.enumerate() {
        let width = if index == 0 { 18 } else { 13 };
        write!(text, " {column:>width$}")?;
    }
    writeln!(text)
}

/// Four significant digits, in plain notation; a dash for what is no number, such as a multiple of 0.
pub fn number(value: f64) -> String {
    if !value.is_finite() {
        return "-".to_owned();
    }
    if value == 0.0 {
        return "0".to_owned();
    }
    let digits = 3 - value.abs().log10().floor() as i32;
    format!("{value:.*}", digits.clamp(0, 6) as usize)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::{report, series};

    #[test]
    fn the_report_is_as_it_was() {
        assert_eq!(text(&report()), include_str!("snapshot.txt"));
    }

    /// As scripts written for those benchmarks read it.
    #[test]
    fn lines_without_a_hash_are_sizes_and_numbers() {
        for line in text(&report()).lines().filter(|l| !l.starts_with('#') && !l.is_empty()) {
            let columns: Vec<&str> = line.split_whitespace().collect();
            assert!(columns[0].parse::<u64>().is_ok(), "{line}");
            assert!(columns[1].parse::<f64>().is_ok(), "{line}");
        }
    }

    #[test]
    fn numbers_have_four_digits() {
        let all = [0.0012345, 1.23456, 43.21, 123_456.7, 0.0].map(number);
        assert_eq!(all, ["0.001234", "1.235", "43.21", "123457", "0"]);
        assert_eq!([f64::NAN, f64::INFINITY].map(number), ["-", "-"]);
    }

    #[test]
    fn nothing_is_a_multiple_of_nothing() {
        let [none, some] = [0.0, 40.0].map(|share| series("overlap", "a", &[(8, share)]));
        let mut text = String::new();
        write_ratios(&mut text, &[&none, &some]).unwrap();
        let ratios = text.lines().find(|line| line.starts_with('8')).unwrap();
        assert_eq!(ratios.split_whitespace().collect::<Vec<_>>(), ["8", "1", "-"]);
    }
}
