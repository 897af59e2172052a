// SPDX-License-Identifier: Apache-2.0
//! The outcome of a comparison, as it is kept in files.

use super::ways::Mark;
use crate::catalogue::{Axis, Kind, Test};
use crate::machine::Machine;
use crate::pe;
use crate::stats::{Summary, median};
use serde::{Deserialize, Serialize};

/// Changes when old files can no longer be read.
pub const FORMAT: u32 = 1;

/// Everything that is reported.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Report {
    /// Form of this file.
    pub format: u32,
    /// Version of Tombolo.
    pub version: String,
    /// Where and when.
    pub machine: Machine,
    /// PEs of each job.
    pub pes: u32,
    /// Rounds that were asked for.
    pub rounds: u32,
    /// Time for each point and round, milliseconds.
    pub budget_ms: f64,
    /// False if the run was ended before its end.
    pub complete: bool,
    /// The tests that were asked for; empty in files that do not say.
    #[serde(default)]
    pub tests: Vec<String>,
    /// The sizes that were asked for, likewise.
    #[serde(default)]
    pub sizes: Vec<u64>,
    /// The ways, in the order asked for.
    pub ways: Vec<WayReport>,
    /// What was measured, by test and way.
    pub series: Vec<Series>,
}

/// One way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct WayReport {
    /// Its name.
    pub name: String,
    /// What its figures are.
    pub mark: Mark,
    /// Where the PEs were, in words.
    pub place: String,
    /// Why it could not be used.
    pub unusable: Option<String>,
    /// What was left out, and why.
    pub notes: Vec<String>,
    /// What there is to know of its figures besides.
    #[serde(default)]
    pub remarks: Vec<String>,
    /// Routes from PE 0 to the PE that it measures against.
    pub routes: String,
    /// What the transports say.
    pub transports: Vec<String>,
}

/// Between a test and the reason in the notes of a way.
const LEFT_OUT: &str = " left out after a job failed in it: ";

impl WayReport {
    /// The note that a test was left out.
    pub fn left_out(test: &str, why: &str) -> String {
        format!("{test}{LEFT_OUT}{why}")
    }

    /// Why a test that was asked for could not be measured to its end, if that is so.
    pub fn failure(&self, test: &str) -> Option<&str> {
        let of_test =
            |note: &&String| note.strip_prefix(test).is_some_and(|rest| rest.starts_with(LEFT_OUT));
        self.unusable.as_ref().or_else(|| self.notes.iter().find(of_test)).map(String::as_str)
    }
}

/// A test over one way.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Series {
    /// Name of the test.
    pub test: String,
    /// What one value is.
    pub about: String,
    /// What the values are.
    pub kind: Kind,
    /// Over what it was taken.
    pub axis: Axis,
    /// The way.
    pub way: String,
    /// What its figures are.
    pub mark: Mark,
    /// The ceiling in words.
    pub ceiling: Option<String>,
    /// What the ceilings are.
    pub ceiling_mark: Option<Mark>,
    /// In the order of sizes.
    pub points: Vec<Point>,
}

/// What was measured at a point.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Point {
    /// Size, or number of threads.
    pub x: u64,
    /// Over all rounds.
    #[serde(flatten)]
    pub summary: Summary,
    /// Median of each round, in their order.
    pub rounds: Vec<f64>,
    /// What 99 of 100 values of all rounds are below, of latencies.
    pub p99: Option<f64>,
    /// Processor time of the process of PE 0 for one operation, microseconds.
    pub cpu_us: Option<f64>,
    /// What is possible without the library.
    pub ceiling: Option<f64>,
    /// Share of the ceiling that is reached, by what was measured in the same rounds.
    pub of_ceiling: Option<f64>,
}

impl Point {
    /// From what the rounds measured; None if there was none.
    pub fn of(test: &Test, x: u64, rounds: &[pe::Point]) -> Option<Point> {
        let summary = Summary::of(rounds.iter().flat_map(|round| round.values.iter().copied()))?;
        let middle = |round: &pe::Point| median(round.values.iter().copied());
        let share = |round: &pe::Point| {
            let (value, ceiling) = (middle(round)?, round.ceiling?);
            let share = if test.kind.less_is_better() { ceiling / value } else { value / ceiling };
            share.is_finite().then_some(share)
        };
        Some(Point {
            x,
            summary,
            rounds: rounds.iter().filter_map(middle).collect(),
            p99: (test.kind == Kind::Latency).then(|| p99(rounds)).flatten(),
            cpu_us: median(rounds.iter().filter_map(|round| round.cpu_us)),
            ceiling: median(rounds.iter().filter_map(|round| round.ceiling)),
            of_ceiling: median(rounds.iter().filter_map(share)),
        })
    }
}

/// What 99 of 100 values of all rounds are below.
fn p99(rounds: &[pe::Point]) -> Option<f64> {
    let mut weighted: Vec<(f64, f64)> = vec![];
    for pe::Point { values, tail, .. } in rounds {
        let whole = if tail.is_empty() { values.len() } else { values.len().saturating_sub(1) };
        weighted.extend(values[..whole].iter().map(|value| (*value, 1.0)));
        weighted.extend(tail.iter().map(|value| (*value, 1.0 / tail.len() as f64)));
    }
    weighted.sort_unstable_by(|a, b| b.0.total_cmp(&a.0));
    let mut left = 0.01 * weighted.iter().map(|(_, weight)| weight).sum::<f64>();
    let last = weighted.iter().find(|(_, weight)| {
        left -= weight;
        left < 0.0
    });
    last.map(|(value, _)| *value)
}

impl Report {
    /// Reads a file that [`Report`] was written to.
    pub fn read(text: &str) -> Result<Report, String> {
        #[derive(Deserialize)]
        struct Form {
            format: u32,
        }
        let wrong = |why: serde_json::Error| format!("not a report of oshperf: {why}");
        match serde_json::from_str::<Form>(text).map_err(wrong)?.format {
            FORMAT => serde_json::from_str(text).map_err(wrong),
            other => Err(format!("a report of form {other}; this oshperf reads form {FORMAT}")),
        }
    }

    /// Whether a test was to be taken at a point; also where the file does not say.
    pub fn asks(&self, test: &str, x: u64) -> bool {
        let at = |test: &Test| test.points(&self.sizes).contains(&x);
        let named = self.tests.iter().any(|name| name == test);
        self.tests.is_empty() || named && Test::find(test).is_none_or(at)
    }

    /// Tests that something was measured of, in their order, with their series in that of the ways.
    pub fn by_test(&self) -> Vec<(&str, Vec<&Series>)> {
        let mut tests: Vec<(&str, Vec<&Series>)> = Vec::new();
        for series in self.series.iter().filter(|series| !series.points.is_empty()) {
            match tests.iter_mut().find(|(name, _)| *name == series.test) {
                Some((_, all)) => all.push(series),
                None => tests.push((&series.test, vec![series])),
            }
        }
        tests
    }
}

/// One row for each point, for spreadsheets.
pub fn csv(report: &Report) -> Result<String, String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let heads = [
        "test",
        "way",
        "figure",
        "mark",
        "x",
        "median",
        "lower_quartile",
        "upper_quartile",
        "p99",
        "cpu_us",
        "ceiling",
        "ceiling_mark",
        "of_ceiling",
        "rounds",
    ];
    let text = |why: csv::Error| why.to_string();
    writer.write_record(heads).map_err(text)?;
    for series in &report.series {
        for point in &series.points {
            let number =
                |value: Option<f64>| value.map(|value| value.to_string()).unwrap_or_default();
            let Summary { lower, median, upper, .. } = point.summary;
            let mark = series.ceiling_mark.filter(|_| point.ceiling.is_some());
            writer
                .write_record([
                    series.test.clone(),
                    series.way.clone(),
                    series.kind.heading().to_owned(),
                    series.mark.to_string(),
                    point.x.to_string(),
                    median.to_string(),
                    lower.to_string(),
                    upper.to_string(),
                    number(point.p99),
                    number(point.cpu_us),
                    number(point.ceiling),
                    mark.map(|mark| mark.to_string()).unwrap_or_default(),
                    number(point.of_ceiling),
                    point.rounds.len().to_string(),
                ])
                .map_err(text)?;
        }
    }
    let bytes = writer.into_inner().map_err(|why| why.to_string())?;
    String::from_utf8(bytes).map_err(|why| why.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pe::timing::Times;

    fn round(values: impl Iterator<Item = f64>) -> pe::Point {
        let times = Times::new(values.collect(), None);
        let (test, cpu_us, ceiling) = ("get".to_owned(), None, None);
        pe::Point { test, x: 8, values: times.kept(), tail: times.tail(), cpu_us, ceiling }
    }

    #[test]
    fn all_rounds_count_for_99_percent() {
        let test = Test::find("get").unwrap();
        let of = |rounds: &[pe::Point]| Point::of(test, 8, rounds).unwrap();
        // One round of four was slower throughout.
        let fast = || round((0..1000).map(|k| 1.0 + f64::from(k) / 1e6));
        let slow = round((0..1000).map(|k| 5.0 + f64::from(k) / 1e3));
        let point = of(&[fast(), slow, fast(), fast()]);
        assert!(point.summary.upper < 5.0 && point.summary.median < 1.1);
        // The slowest hundredth of all is the slowest of 25 of the slow round.
        assert!((point.p99.unwrap() - 5.96).abs() < 0.01, "{:?}", point.p99);
        // Within a round it lies where it lies among all values.
        let point = of(&[round((0..1000).map(f64::from)), round((0..1000).map(f64::from))]);
        assert!((point.p99.unwrap() - 989.0).abs() < 3.0, "{:?}", point.p99);
        // Few values: the largest.
        assert_eq!(of(&[round([3.0, 1.0].into_iter())]).p99, Some(3.0));
    }
}
