// SPDX-License-Identifier: Apache-2.0
//! `oshperf compare`: the ways between PEs against each other.
//!
//! Every way is a job of its own: `oshrun` with the settings that make it take that way, and this
//! program as the PEs. The jobs take turns, round after round, so that what changes on the machine
//! meanwhile concerns all ways alike.

mod basis;
mod html;
mod link;
mod options;
mod overtakes;
pub mod report;
mod rounds;
pub mod text;
pub mod ways;

pub use options::Options;
pub use report::Report;

use crate::files;
use crate::interrupt;
use crate::tool;

/// Measures and prints. True if all was measured.
pub fn compare(options: &Options) -> Result<bool, String> {
    interrupt::catch().map_err(|why| format!("cannot catch Ctrl-C: {why}"))?;
    files::check([&options.csv, &options.json, &options.html])?;
    let report = rounds::measure(options)?;
    let kept = keep(options, &report);
    tool::print(text::text(&report));
    kept?;
    // A way that cannot be used is an answer; a job that fails on one that can is not.
    Ok(report.complete && report.ways.iter().all(|way| way.notes.is_empty()))
}

/// Writes the files that are asked for, each even if another one cannot be written. An earlier file stays
/// where nothing was measured, and an earlier report where less was.
fn keep(options: &Options, report: &Report) -> Result<(), String> {
    if report.series.is_empty() {
        return Err("nothing could be measured".to_owned());
    }
    let csv = files::write(&options.csv, || report::csv(report));
    let json = files::report(&options.json, report, report.complete);
    let html = files::write(&options.html, || html::page(report));
    let failures: Vec<String> = [csv, json, html].into_iter().filter_map(Result::err).collect();
    if failures.is_empty() { Ok(()) } else { Err(failures.join("; ")) }
}

#[cfg(test)]
pub mod tests {
    use super::report::{FORMAT, Point, Report, Series, WayReport};
    use super::ways::Mark;
    use crate::catalogue::Test;
    use crate::files;
    use crate::machine::Machine;
    use crate::pe;
    use std::ffi::OsStr;

    /// A series of a test over a way, with the same values in three rounds.
    pub fn series(test: &str, way: &str, values: &[(u64, f64)]) -> Series {
        let test = Test::find(test).unwrap();
        let point = |(x, value): &(u64, f64)| {
            let round = pe::Point {
                test: test.name.to_owned(),
                x: *x,
                values: vec![0.9 * value, *value, 1.1 * value],
                tail: vec![2.0 * value],
                cpu_us: Some(0.5 * value),
                ceiling: (way == "a").then_some(0.5 * value),
            };
            Point::of(test, *x, &[round.clone(), round.clone(), round]).unwrap()
        };
        Series {
            test: test.name.to_owned(),
            about: test.about.to_owned(),
            kind: test.kind,
            axis: test.axis,
            way: way.to_owned(),
            mark: Mark::Measured,
            ceiling: Some("plain copy".to_owned()),
            ceiling_mark: Some(Mark::Measured),
            points: values.iter().map(point).collect(),
        }
    }

    /// A report of two ways and a third that could not be used.
    pub fn report() -> Report {
        let way = |name: &str, unusable: Option<&str>| WayReport {
            name: name.to_owned(),
            mark: Mark::Measured,
            place: "1 host".to_owned(),
            unusable: unusable.map(str::to_owned),
            notes: Vec::new(),
            remarks: Vec::new(),
            routes: "put cached".to_owned(),
            transports: Vec::new(),
        };
        let machine = Machine {
            cpu: "A processor".to_owned(),
            cores: 2,
            kernel: "6.1".to_owned(),
            load: 0.25,
            date: "2026-11-22".to_owned(),
        };
        Report {
            format: FORMAT,
            version: "0.1.0".to_owned(),
            machine,
            pes: 2,
            rounds: 3,
            budget_ms: 4.0,
            complete: true,
            tests: Vec::new(),
            sizes: Vec::new(),
            ways: vec![way("a", None), way("b", None), way("c", Some("not on this <host>"))],
            series: vec![
                series("put", "a", &[(8, 0.5), (1024, 1.0), (65536, 40.0)]),
                series("put", "b", &[(8, 2.0), (1024, 3.0), (65536, 20.0)]),
                series("rate", "a", &[(8, 100.0), (65536, 8000.0)]),
                series("barrier", "a", &[(8, 1.5)]),
                series("barrier", "b", &[(8, 4.5)]),
                series("contexts", "b", &[(1, 10.0), (2, 19.0)]),
            ],
        }
    }

    #[test]
    fn reports_are_read_as_they_were_written() {
        let text = serde_json::to_string(&report()).unwrap();
        // As far as figures are shown: the last bit of a number may change on its way.
        let read = Report::read(&text).unwrap();
        assert_eq!(super::text::text(&read), super::text::text(&report()));
        assert_eq!(read.ways, report().ways);
        assert!(Report::read("{}").unwrap_err().contains("not a report of oshperf"));
        let later = text.replacen("\"format\":1", "\"format\":99", 1);
        assert!(Report::read(&later).unwrap_err().contains("form 99"));
    }

    #[test]
    fn an_interrupted_comparison_costs_no_earlier_report() {
        #[derive(clap::Parser)]
        struct Line {
            #[command(flatten)]
            options: super::Options,
        }
        let folder = files::passing_folder().unwrap();
        let path = folder.path().join("report.json");
        let line = [OsStr::new("oshperf"), OsStr::new("--json"), path.as_os_str()];
        let options = <Line as clap::Parser>::parse_from(line).options;
        let keep = |complete| super::keep(&options, &Report { complete, ..report() });
        for complete in [false, true] {
            keep(complete).unwrap();
            assert_eq!(files::is_complete(&path), complete);
        }
        assert!(keep(false).unwrap_err().ends_with("complete and stays"));
        assert!(files::is_complete(&path));
    }

    #[test]
    fn the_share_of_the_ceiling_is_below_one_for_both_kinds() {
        let of = |test| series(test, "a", &[(64, 10.0)]).points[0].of_ceiling.unwrap();
        assert!((of("put") - 0.5).abs() < 1e-9);
        assert!((of("rate") - 2.0).abs() < 1e-9);
    }

    #[test]
    fn the_table_for_spreadsheets_has_a_row_per_point() {
        let text = super::report::csv(&report()).unwrap();
        let lines: Vec<&str> = text.lines().collect();
        let points: usize = report().series.iter().map(|series| series.points.len()).sum();
        assert_eq!(lines.len(), points + 1);
        let columns = lines[0].split(',').count();
        assert!(lines.iter().all(|line| line.split(',').count() == columns), "{text}");
        let first = "put,a,Latency (us),measured,8,0.5,0.45,0.55,1,0.25,0.25,measured,0.5,3";
        assert_eq!(lines[1], first);
    }
}
