// SPDX-License-Identifier: Apache-2.0
//! `oshperf diff`: what became faster or slower between two reports, beyond noise.

use crate::catalogue::{Axis, Kind};
use crate::compare::Report;
use crate::compare::report::{Point, Series, WayReport};
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

    /// Per cent by which medians have to differ at least, or points where they are per cent
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
    /// So many times as fast, above 1; of shares, so many points more.
    Faster(f64),
    /// So many times as slow, above 1; of shares, so many points less.
    Slower(f64),
    /// Unchanged within noise.
    Same,
    /// Too few rounds.
    Unknown,
}

/// Prints the differences. True if nothing became slower, fails now or is missing.
pub fn diff(options: &Options) -> Result<bool, String> {
    let (old, new) = (read(&options.old)?, read(&options.new)?);
    let (text, worse) = compare(&old, &new, options.threshold / 100.0)?;
    tool::print(text);
    Ok(worse == 0)
}

fn read(path: &Path) -> Result<Report, String> {
    let text = std::fs::read_to_string(path)
        .map_err(|why| format!("cannot read {}: {why}", path.display()))?;
    Report::read(&text).map_err(|why| format!("{}: {why}", path.display()))
}

/// What the new report was to have like the old one, and has not: test, way, and why.
fn failures<'a>(old: &'a Report, new: &'a Report) -> Vec<(&'a str, &'a str, &'a str)> {
    let of = |report: &'a Report, series: &Series| {
        let way = report.ways.iter().find(|way| way.name == series.way);
        way.and_then(|way| way.failure(&series.test))
    };
    let failed = |series: &'a Series| {
        let why = of(new, series).filter(|_| of(old, series).is_none())?;
        Some((series.test.as_str(), series.way.as_str(), why))
    };
    old.series.iter().filter_map(failed).collect()
}

/// Points of a report that the other one has not.
fn alone<'a>(
    report: &'a Report,
    other: &'a Report,
) -> impl Iterator<Item = (&'a Series, &'a Point)> {
    let has = |series: &Series, x: u64| {
        let all = other.series.iter().filter(|o| o.test == series.test && o.way == series.way);
        all.flat_map(|other| &other.points).any(|point| point.x == x)
    };
    let points = |series: &'a Series| series.points.iter().map(move |point| (series, point));
    report.series.iter().flat_map(points).filter(move |(series, point)| !has(series, point.x))
}

/// How many points of the old report the new one was to have as well, and has not because it ended before. What failed
/// is told apart.
fn missing(old: &Report, new: &Report, failures: &[(&str, &str, &str)]) -> usize {
    if new.complete {
        return 0;
    }
    let failed = |series: &Series| {
        failures.iter().any(|(test, way, _)| *test == series.test && *way == series.way)
    };
    let asked = |series: &Series, x| {
        new.ways.iter().any(|way| way.name == series.way) && new.asks(&series.test, x)
    };
    alone(old, new).filter(|(series, point)| !failed(series) && asked(series, point.x)).count()
}

/// The networks that a way was measured over, of all that its transports say.
fn networks(way: &WayReport) -> String {
    // What each was opened with comes first, and then what was counted.
    let first = |name: &str| way.transports.iter().find(|line| line.starts_with(name));
    let mut all: Vec<&str> =
        ["ofi: ", "tcp: ", "verbs: "].into_iter().filter_map(first).map(String::as_str).collect();
    let more = way.transports.iter().filter(|line| line.contains(": long transfers also by "));
    all.extend(more.map(String::as_str));
    if all.is_empty() { "none".to_owned() } else { all.join("; ") }
}

/// What was not alike in the two runs: lines of comments.
fn circumstances(old: &Report, new: &Report) -> String {
    let mut text = String::new();
    let (a, b) = (&old.machine, &new.machine);
    if (&a.cpu, a.cores, &a.kernel) != (&b.cpu, b.cores, &b.kernel) {
        text += &format!(
            "# Other machines: {}, {} cores, kernel {}; then {}, {} cores, kernel {}\n",
            a.cpu, a.cores, a.kernel, b.cpu, b.cores, b.kernel
        );
    }
    let mut other = |what: &str, before: String, now: String| {
        if before != now {
            text += &format!("# Other {what}: {before}, then {now}\n");
        }
    };
    let ms = |report: &Report| format!("{} ms", report.budget_ms);
    other("versions of Tombolo", old.version.clone(), new.version.clone());
    other("numbers of PEs", old.pes.to_string(), new.pes.to_string());
    other("numbers of rounds", old.rounds.to_string(), new.rounds.to_string());
    other("times for each point", ms(old), ms(new));
    for way in &new.ways {
        let Some(before) = old.ways.iter().find(|before| before.name == way.name) else { continue };
        let name = &way.name;
        other(&format!("places of {name}"), before.place.clone(), way.place.clone());
        other(
            &format!("kinds of figures of {name}"),
            before.mark.to_string(),
            way.mark.to_string(),
        );
        // Of one that could not be used nothing else is known.
        if [before, way].iter().any(|way| way.routes.is_empty()) {
            continue;
        }
        other(&format!("routes of {name}"), before.routes.clone(), way.routes.clone());
        other(&format!("networks of {name}"), networks(before), networks(way));
    }
    for (which, report) in [("old", old), ("new", new)] {
        if !report.complete {
            text += &format!("# The {which} report is not complete\n");
        }
    }
    text
}

/// The text, and how many points became slower, fail now or are missing. Errors: nothing can be compared.
fn compare(old: &Report, new: &Report, threshold: f64) -> Result<(String, usize), String> {
    let mut text = circumstances(old, new);
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
                Change::Faster(by) => {
                    faster += 1;
                    format!("faster {}", amount(series, by))
                }
                Change::Slower(by) => {
                    slower += 1;
                    format!("SLOWER {}", amount(series, by))
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
    let failures = failures(old, new);
    for (test, way, why) in &failures {
        text += &format!("# {test} over {way} FAILS now: {why}\n");
    }
    let missing = missing(old, new, &failures);
    if missing > 0 {
        text += &format!(
            "# {missing} points of the old report are MISSING in the new one, which is not complete\n"
        );
    }
    if faster + slower + same + unknown + failures.len() + missing == 0 {
        return Err("the reports have no point in common".to_owned());
    }
    let lone = [alone(old, new).count(), alone(new, old).count()];
    if lone != [0, 0] {
        text += &format!(
            "# Points in one report only: {} in the old one, {} in the new one\n",
            lone[0], lone[1]
        );
    }
    text += &format!("# {faster} faster, {slower} slower, {same} unchanged within noise\n");
    if unknown > 0 {
        text += &format!(
            "# {unknown} have fewer than {ROUNDS_MIN} rounds in one of the reports: nothing can be \
             told of them\n"
        );
    }
    Ok((text, slower + failures.len() + missing))
}

fn amount(series: &Series, by: f64) -> String {
    if series.kind == Kind::Share { format!("{by:.0} points") } else { format!("{by:.2}") }
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
    let (less, more) = if up { (a.median, b.median) } else { (b.median, a.median) };
    // A share may be 0, or next to it: how many times as much another one is tells nothing.
    let (by, enough) = match series.kind {
        Kind::Share => (more - less, more - less >= 100.0 * threshold),
        _ => (more / less, more / less >= 1.0 + threshold),
    };
    if !(up || down) || !enough {
        return Change::Same;
    }
    match up == series.kind.less_is_better() {
        true => Change::Slower(by),
        false => Change::Faster(by),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::compare::tests::{report, series};
    use crate::compare::ways::Mark;

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
    fn shares_differ_by_points() {
        let share = |percent| {
            let mut report = report();
            report.series = vec![series("overlap", "a", &[(8, percent)])];
            report
        };
        let less = compare(&share(50.0), &share(0.0), 0.05).unwrap();
        assert!(less.1 == 1 && less.0.contains("SLOWER 50 points"), "{}", less.0);
        // Ten times as much, and next to nothing.
        assert_eq!(compare(&share(2.0), &share(0.2), 0.05).unwrap().1, 0);
    }

    #[test]
    fn what_fails_now_or_is_elsewhere_is_told() {
        let mut now = report();
        now.ways[1].unusable = Some("no cable".to_owned());
        now.series.retain(|series| series.way != "b");
        let (text, worse) = compare(&report(), &now, 0.05).unwrap();
        assert_eq!(worse, 3, "{text}");
        assert!(text.contains("# put over b FAILS now: no cable\n"), "{text}");
        assert!(
            text.contains("# Points in one report only: 6 in the old one, 0 in the new one\n"),
            "{text}"
        );
        assert_eq!(compare(&now, &report(), 0.05).unwrap().1, 0);
        // Failed before, or not asked for.
        assert_eq!(compare(&now, &now, 0.05).unwrap().1, 0);
        now.ways.remove(1);
        assert_eq!(compare(&report(), &now, 0.05).unwrap().1, 0);

        let mut crashed = report();
        crashed.ways[0].notes = vec![WayReport::left_out("rate", "why")];
        let (text, worse) = compare(&report(), &crashed, 0.05).unwrap();
        assert!(worse == 1 && text.contains("# rate over a FAILS now: rate left out"), "{text}");

        let mut elsewhere = report();
        elsewhere.ways[0].place = "2 emulated hosts".to_owned();
        let (text, _) = compare(&report(), &elsewhere, 0.05).unwrap();
        assert!(text.contains("# Other places of a: 1 host, then 2 emulated hosts\n"), "{text}");
    }

    #[test]
    fn what_a_report_that_is_not_complete_lacks_counts_as_worse() {
        let mut cut = report();
        cut.complete = false;
        cut.series.retain(|series| series.test != "put");
        let (text, worse) = compare(&report(), &cut, 0.05).unwrap();
        assert_eq!(worse, 6, "{text}");
        assert!(text.contains("# The new report is not complete\n"), "{text}");
        assert!(text.contains("# 6 points of the old report are MISSING in the new one"), "{text}");
        let (text, worse) = compare(&cut, &report(), 0.05).unwrap();
        assert!(worse == 0 && text.contains("# The old report is not complete\n"), "{text}");
        // What failed is not counted twice.
        cut.ways[1].unusable = Some("no cable".to_owned());
        assert_eq!(compare(&report(), &cut, 0.05).unwrap().1, 3 + 3);
        // Nor what was not asked for.
        cut.ways[1].unusable = None;
        (cut.tests, cut.sizes) = (vec!["put".to_owned(), "rate".to_owned()], vec![8, 1024]);
        assert_eq!(compare(&report(), &cut, 0.05).unwrap().1, 4);
        cut.tests.remove(0);
        assert_eq!(compare(&report(), &cut, 0.05).unwrap().1, 0);
    }

    #[test]
    fn what_else_differs_is_told() {
        let mut other = report();
        (other.version, other.budget_ms, other.rounds) = ("0.2.0".to_owned(), 2.0, 5);
        let way = &mut other.ways[0];
        (way.mark, way.routes) = (Mark::Emulated, "put cma".to_owned());
        way.transports =
            ["tcp: TCP on eth1 (10.0.0.1)", "tcp: 7 RMA operations"].map(str::to_owned).to_vec();
        let text = compare(&report(), &other, 0.05).unwrap().0;
        for line in [
            "# Other versions of Tombolo: 0.1.0, then 0.2.0\n",
            "# Other times for each point: 4 ms, then 2 ms\n",
            "# Other numbers of rounds: 3, then 5\n",
            "# Other kinds of figures of a: measured, then emulated\n",
            "# Other routes of a: put cached, then put cma\n",
            "# Other networks of a: none, then tcp: TCP on eth1 (10.0.0.1)\n",
        ] {
            assert!(text.contains(line), "{line}{text}");
        }
        let text = compare(&report(), &report(), 0.05).unwrap().0;
        assert!(!text.contains("Other") && !text.contains("complete"), "{text}");
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
