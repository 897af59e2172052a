// SPDX-License-Identifier: Apache-2.0
//! `oshperf diff`: what became faster or slower between two reports, beyond noise.

use crate::catalogue::Axis;
use crate::compare::Report;
use crate::compare::report::{Point, Series};
use crate::compare::text::number;
use crate::sizes;
use crate::tool;
use clap::Args;
use std::path::{Path, PathBuf};

/// With fewer rounds nothing can be told from noise.
const ROUNDS_MIN: usize = 3;

/// See the parts of `oshperf(1)`.
#[derive(Args)]
pub struct Options {
    /// Report of `oshperf compare --json` to compare with
    old: PathBuf,

    /// The later report
    new: PathBuf,

    /// Per cent by which medians have to differ at least
    #[arg(long, value_name = "PERCENT", default_value = "5", value_parser = threshold)]
    threshold: f64,
}

fn threshold(text: &str) -> Result<f64, String> {
    let threshold = text.parse().ok().filter(|percent: &f64| (0.0..=1000.0).contains(percent));
    threshold.ok_or_else(|| "expected a number from 0 to 1000".to_owned())
}

/// What became of a point.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Change {
    /// So many times as fast: above 1.
    Faster(f64),
    /// So many times as slow: above 1.
    Slower(f64),
    /// Unchanged within noise.
    Same,
    /// Too few rounds.
    Unknown,
}

/// Prints the differences. True if nothing became slower.
pub fn diff(options: &Options) -> Result<bool, String> {
    let (old, new) = (read(&options.old)?, read(&options.new)?);
    let (text, slower) = compare(&old, &new, options.threshold / 100.0)?;
    tool::print(text);
    Ok(slower == 0)
}

fn read(path: &Path) -> Result<Report, String> {
    let text = std::fs::read_to_string(path).map_err(|why| format!("{}: {why}", path.display()))?;
    Report::read(&text).map_err(|why| format!("{}: {why}", path.display()))
}

/// The text, and how many points became slower. Errors: nothing can be compared.
fn compare(old: &Report, new: &Report, threshold: f64) -> Result<(String, usize), String> {
    let mut text = String::new();
    let (a, b) = (&old.machine, &new.machine);
    if (&a.cpu, a.cores, &a.kernel) != (&b.cpu, b.cores, &b.kernel) {
        text += &format!(
            "# Other machines: {}, {} cores, kernel {}; then {}, {} cores, kernel {}\n",
            a.cpu, a.cores, a.kernel, b.cpu, b.cores, b.kernel
        );
    }
    if old.pes != new.pes {
        text += &format!("# Other numbers of PEs: {}, then {}\n", old.pes, new.pes);
    }
    text += &format!(
        "{:<14} {:<14} {:>8} {:>12} {:>12} {:>9}\n",
        "# Test", "Way", "Size", "Old", "New", "Change"
    );
    let [mut faster, mut slower, mut same, mut unknown] = [0; 4];
    for series in &new.series {
        let matching = |other: &&Series| other.test == series.test && other.way == series.way;
        let Some(before) = old.series.iter().find(matching) else { continue };
        for point in &series.points {
            let Some(was) = before.points.iter().find(|was| was.x == point.x) else { continue };
            let change = change(series, was, point, threshold);
            let shown = match change {
                Change::Faster(times) => {
                    faster += 1;
                    format!("faster {times:.2}")
                }
                Change::Slower(times) => {
                    slower += 1;
                    format!("SLOWER {times:.2}")
                }
                Change::Same => {
                    same += 1;
                    continue;
                }
                Change::Unknown => {
                    unknown += 1;
                    continue;
                }
            };
            let size = if series.axis == Axis::None { "-".into() } else { sizes::show(point.x) };
            text += &format!(
                "{:<14} {:<14} {size:>8} {:>12} {:>12} {shown:>12}\n",
                series.test,
                series.way,
                number(was.summary.median),
                number(point.summary.median)
            );
        }
    }
    if faster + slower + same + unknown == 0 {
        return Err("the reports have no point in common".to_owned());
    }
    text += &format!("# {faster} faster, {slower} slower, {same} unchanged within noise\n");
    if unknown > 0 {
        text += &format!(
            "# {unknown} have fewer than {ROUNDS_MIN} rounds in one of the reports: nothing can be \
             told of them\n"
        );
    }
    Ok((text, slower))
}

/// A difference counts if it is large enough, if each round of one report is on the same side of each
/// round of the other, and if the middle halves of all values do not overlap.
fn change(series: &Series, old: &Point, new: &Point, threshold: f64) -> Change {
    if old.rounds.len().min(new.rounds.len()) < ROUNDS_MIN {
        return Change::Unknown;
    }
    let least = |rounds: &[f64]| rounds.iter().copied().fold(f64::INFINITY, f64::min);
    let most = |rounds: &[f64]| rounds.iter().copied().fold(f64::NEG_INFINITY, f64::max);
    let (a, b) = (old.summary, new.summary);
    let up = least(&new.rounds) > most(&old.rounds) && b.lower > a.upper;
    let down = most(&new.rounds) < least(&old.rounds) && b.upper < a.lower;
    let ratio = if up { b.median / a.median } else { a.median / b.median };
    if !(up || down) || ratio < 1.0 + threshold {
        return Change::Same;
    }
    match up == series.kind.less_is_better() {
        true => Change::Slower(ratio),
        false => Change::Faster(ratio),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::{report, series};

    /// The report of the tests with other values of one series.
    fn with(test: &str, way: &str, values: &[(u64, f64)]) -> Report {
        let mut report = report();
        let other = series(test, way, values);
        *report.series.iter_mut().find(|s| s.test == test && s.way == way).unwrap() = other;
        report
    }

    #[test]
    fn a_report_does_not_differ_from_itself() {
        let (text, slower) = compare(&report(), &report(), 0.0).unwrap();
        assert_eq!(slower, 0);
        assert!(text.contains("# 0 faster, 0 slower, 12 unchanged within noise"), "{text}");
    }

    #[test]
    fn latencies_and_bandwidths_become_slower_in_opposite_directions() {
        let longer = with("put", "b", &[(8, 4.0), (1024, 3.0), (65536, 20.0)]);
        let (text, slower) = compare(&report(), &longer, 0.05).unwrap();
        assert_eq!(slower, 1, "{text}");
        assert!(text.contains("SLOWER 2.00"), "{text}");
        assert_eq!(compare(&longer, &report(), 0.05).unwrap().1, 0);
        let less = with("rate", "a", &[(8, 100.0), (65536, 4000.0)]);
        assert_eq!(compare(&report(), &less, 0.05).unwrap().1, 1);
        assert!(compare(&less, &report(), 0.05).unwrap().0.contains("faster 2.00"));
    }

    #[test]
    fn small_overlapping_or_lone_differences_do_not_count() {
        // Quartiles lie 10 % to each side.
        let a_little = with("put", "b", &[(8, 2.1), (1024, 3.0), (65536, 20.0)]);
        assert_eq!(compare(&report(), &a_little, 0.0).unwrap().1, 0);
        let clear = with("put", "b", &[(8, 2.8), (1024, 3.0), (65536, 20.0)]);
        assert_eq!(compare(&report(), &clear, 0.05).unwrap().1, 1);
        assert_eq!(compare(&report(), &clear, 0.5).unwrap().1, 0);
        let mut lone = clear.clone();
        lone.series.iter_mut().flat_map(|s| &mut s.points).for_each(|p| p.rounds.truncate(2));
        let (text, slower) = compare(&report(), &lone, 0.05).unwrap();
        assert!(slower == 0 && text.contains("12 have fewer than 3 rounds"), "{text}");
        let mut other = report();
        other.series.clear();
        assert!(compare(&other, &report(), 0.05).is_err());
    }
}
