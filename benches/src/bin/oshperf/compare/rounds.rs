// SPDX-License-Identifier: Apache-2.0
//! The rounds: which jobs are started, and what they measured.

use super::basis::Basis;
use super::options::Options;
use super::report::{FORMAT, Point, Report, Series, WayReport};
use super::ways::{Mark, Way};
use crate::catalogue::{self, Test};
use crate::interrupt;
use crate::job::{self, End};
use crate::machine::Machine;
use crate::pe::{self, Facts, MARK, Output};
use crate::progress::Progress;
use crate::sizes;
use std::path::PathBuf;
use std::process::Command;
use std::time::Duration;
use tombolo::describe::count;

/// A job that measures nothing for so long, and for what a point may take, is ended.
const SILENCE: Duration = Duration::from_secs(60);
/// Bytes per second of the slowest network for which jobs are not ended.
const SLOW: u64 = 10_000_000;

/// A way, and what was measured of it so far.
struct Candidate<'a> {
    way: &'a Way,
    place: String,
    facts: Option<Facts>,
    unusable: Option<String>,
    /// What is still measured.
    tests: Vec<&'static Test>,
    /// What is not, and why.
    notes: Vec<String>,
    /// The test that the job is at; none once it has measured all.
    under_way: Option<&'static Test>,
    points: Vec<pe::Point>,
}

/// Everything that a comparison is made from.
struct Comparison<'a> {
    options: &'a Options,
    tests: Vec<&'static Test>,
    own: PathBuf,
    oshrun: PathBuf,
}

/// Measures. Errors: this program does not know where it is.
pub fn measure(options: &Options) -> Result<Report, String> {
    let own = std::env::current_exe().map_err(|why| format!("where is oshperf? {why}"))?;
    let tests = catalogue::of(&options.ops);
    let comparison = Comparison { options, tests, own, oshrun: job::oshrun() };
    let machine = Machine::here();
    let ways = options.ways();
    let mut candidates: Vec<Candidate> = ways.iter().map(|way| comparison.candidate(way)).collect();
    let complete = comparison.rounds(&mut candidates);
    let ways = candidates.iter().map(Candidate::report).collect();
    let of_test = |test: &'static Test| {
        let (comparison, candidates) = (&comparison, &candidates);
        candidates.iter().filter_map(move |candidate| comparison.series(test, candidate))
    };
    Ok(Report {
        format: FORMAT,
        version: env!("CARGO_PKG_VERSION").to_owned(),
        machine,
        pes: options.pes,
        rounds: options.rounds,
        budget_ms: options.budget,
        complete,
        tests: comparison.tests.iter().map(|test| test.name.to_owned()).collect(),
        sizes: options.sizes.0.clone(),
        ways,
        series: comparison.tests.iter().copied().flat_map(of_test).collect(),
    })
}

impl<'a> Comparison<'a> {
    fn candidate(&self, way: &'a Way) -> Candidate<'a> {
        let place = match (&self.options.host, self.hosts(way)) {
            (Some(list), _) => format!("{} on {list}", count(self.options.pes as usize, "PE")),
            (None, None) => "1 host".to_owned(),
            (None, Some(hosts)) => count(hosts as usize, "emulated host"),
        };
        Candidate {
            way,
            place,
            facts: None,
            unusable: None,
            tests: self.tests.clone(),
            notes: Vec::new(),
            under_way: None,
            points: Vec::new(),
        }
    }

    /// Emulated hosts for the jobs of a way.
    fn hosts(&self, way: &Way) -> Option<u32> {
        match self.options.hosts {
            None if self.options.host.is_some() => None,
            None => way.across.then_some(2),
            some => some,
        }
    }

    /// Whether all PEs are on this machine.
    fn one_machine(&self) -> bool {
        self.options.host.is_none()
    }

    /// Points of one job.
    fn steps(&self) -> u64 {
        let sizes = &self.options.sizes.0;
        self.tests.iter().map(|test| test.points(sizes).len() as u64).sum()
    }

    /// True if all rounds were done.
    fn rounds(&self, candidates: &mut [Candidate<'_>]) -> bool {
        let (ways, steps) = (candidates.len() as u64, self.steps());
        let progress = Progress::new(u64::from(self.options.rounds) * ways * steps);
        for round in 0..self.options.rounds {
            for turn in 0..candidates.len() {
                // Each round begins with another way.
                let at = (turn + round as usize) % candidates.len();
                let candidate = &mut candidates[at];
                let done = (u64::from(round) * ways + turn as u64 + 1) * steps;
                if candidate.unusable.is_none() {
                    let what = format!("round {} of {}", round + 1, self.options.rounds);
                    let end = self.turn(candidate, &what, &progress);
                    if end == End::Interrupted {
                        return false;
                    }
                    if let End::Badly(why) = end {
                        candidate.fail(&why);
                    }
                }
                progress.reach(done);
            }
        }
        !interrupt::wanted()
    }

    /// One job.
    fn turn(&self, candidate: &mut Candidate<'_>, what: &str, progress: &Progress) -> End {
        progress.now(format!("{what}: {}", candidate.way.name));
        candidate.under_way = candidate.tests.first().copied();
        job::run(self.job(candidate), self.silence(), |line| {
            let line = line.strip_prefix(MARK).map(serde_json::from_str);
            match line {
                Some(Ok(Output::Facts(facts))) => candidate.facts = Some(facts),
                Some(Ok(Output::Point(point))) => {
                    let size = sizes::show(point.x);
                    let name = &candidate.way.name;
                    progress.now(format!("{what}: {name}, {} {size}", point.test));
                    progress.step();
                    candidate.under_way = self.after(candidate, &point);
                    candidate.points.push(point);
                }
                // Whatever else PEs print.
                Some(Err(_)) | None => {}
            }
        })
    }

    /// How long a job may measure nothing. A point takes its time, and half as long for each of two ceilings; but each
    /// is tried a few times at least, however long that takes.
    fn silence(&self) -> Duration {
        let Options { pes, sizes, budget, .. } = self.options;
        let largest = sizes.0.last().copied().unwrap_or(8);
        // Some fifteen series of puts of four times the largest size, or eight collectives of all PEs.
        let bytes = (60 + 8 * u64::from(*pes)) * largest;
        SILENCE + Duration::from_secs_f64(4e-3 * budget) + Duration::from_secs(bytes / SLOW)
    }

    /// The test that is measured after a point; None if it was the last one.
    fn after(&self, candidate: &Candidate<'_>, point: &pe::Point) -> Option<&'static Test> {
        let tests = &candidate.tests;
        let at = tests.iter().position(|test| test.name == point.test)?;
        let last = tests[at].points(&self.options.sizes.0).last() == Some(&point.x);
        tests.get(at + usize::from(last)).copied()
    }

    fn job(&self, candidate: &Candidate<'_>) -> Command {
        let way = candidate.way;
        let Options { pes, host, rsh, sizes, budget, .. } = self.options;
        let mut job = Command::new(&self.oshrun);
        job.arg("-n").arg(pes.to_string());
        if let Some(hosts) = self.hosts(way) {
            job.arg("--hosts").arg(hosts.to_string());
        }
        if let Some(host) = host {
            job.arg("--host").arg(host);
        }
        if let Some(rsh) = rsh {
            job.arg("--rsh").arg(rsh);
        }
        for (name, value) in &way.environment {
            job.arg("-x").arg(format!("{name}={value}"));
        }
        job.arg("-x").arg(format!("SHMEM_SYMMETRIC_SIZE={}", self.heap()));
        job.arg(&self.own).arg("pe");
        let names: Vec<&str> = candidate.tests.iter().map(|test| test.name).collect();
        let sizes: Vec<String> = sizes.0.iter().map(u64::to_string).collect();
        job.arg("--tests").arg(names.join(",")).arg("--sizes").arg(sizes.join(","));
        job.arg("--budget").arg(((budget * 1e3) as u64).to_string());
        job.arg("--ceiling").arg(way.ceiling().option());
        if way.mark == Mark::Modelled {
            job.arg("--modelled");
        }
        if way.transport == "ofi" && !way.is_named {
            job.arg("--devices");
        }
        job
    }

    /// Bytes of the symmetric heap: no more than needed, since windows to it are limited.
    fn heap(&self) -> u64 {
        let largest = self.options.sizes.0.last().copied().unwrap_or(8);
        let buffers = 2 * u64::from(self.options.pes) * largest;
        (buffers + (8 << 20)).next_power_of_two()
    }

    /// What was measured of a test over a way; None if nothing was.
    fn series(&self, test: &'static Test, candidate: &Candidate<'_>) -> Option<Series> {
        let Candidate { way, points, .. } = candidate;
        let basis = candidate.basis();
        let point = |x: u64| {
            let of_point = points.iter().filter(|point| point.test == test.name && point.x == x);
            let mut rounds: Vec<pe::Point> = of_point.cloned().collect();
            if let Some(ceiling) = basis.computed(test, x) {
                rounds.iter_mut().for_each(|round| round.ceiling = ceiling);
            }
            Point::of(test, x, &rounds)
        };
        let points: Vec<Point> =
            test.points(&self.options.sizes.0).into_iter().filter_map(point).collect();
        let ceiling = basis.ceiling(test.op, self.one_machine());
        let ceiling = ceiling.filter(|_| points.iter().any(|point| point.ceiling.is_some()));
        (!points.is_empty()).then(|| Series {
            test: test.name.to_owned(),
            about: test.about.to_owned(),
            kind: test.kind,
            axis: test.axis,
            way: way.name.clone(),
            mark: basis.mark(),
            ceiling_mark: ceiling.as_ref().map(|(_, mark)| *mark),
            ceiling: ceiling.map(|(words, _)| words),
            points,
        })
    }
}

impl Candidate<'_> {
    fn basis(&self) -> Basis<'_> {
        Basis::new(self.way, self.facts.as_ref())
    }

    /// Draws the conclusion from a job that did not end well: a way that does not start is not
    /// usable; a test in which one ended is left out from then on. One that ended after all tests
    /// costs none.
    fn fail(&mut self, stderr: &str) {
        if self.facts.is_none() {
            self.unusable = Some(self.way.refusal(stderr));
            return;
        }
        let line = stderr.lines().find(|line| !line.trim().is_empty()).unwrap_or("").trim();
        let Some(test) = self.under_way else {
            let note = format!("a job failed after its last test: {line}");
            if !self.notes.contains(&note) {
                self.notes.push(note);
            }
            return;
        };
        self.notes.push(WayReport::left_out(test.name, line));
        self.tests.retain(|other| other.name != test.name);
        if self.tests.is_empty() {
            self.unusable = Some(format!("no test came to its end; the last: {line}"));
        }
    }

    fn report(&self) -> WayReport {
        let facts = self.facts.as_ref();
        WayReport {
            name: self.way.name.clone(),
            mark: self.basis().mark(),
            place: self.place.clone(),
            unusable: self.unusable.clone(),
            notes: self.notes.clone(),
            remarks: self.basis().remark().into_iter().collect(),
            routes: facts.map(|facts| facts.routes.clone()).unwrap_or_default(),
            transports: facts.map(|facts| facts.transports.clone()).unwrap_or_default(),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use clap::Parser;

    #[derive(Parser)]
    struct Line {
        #[command(flatten)]
        options: Options,
    }

    fn point(test: &Test, x: u64) -> pe::Point {
        let (values, tail) = (vec![1.0], Vec::new());
        pe::Point { test: test.name.to_owned(), x, values, tail, cpu_us: None, ceiling: None }
    }

    #[test]
    fn jobs_have_time_for_what_is_asked_for() {
        let silence = |more: &str| {
            let words = "oshperf --ops put".split(' ').chain(more.split_whitespace());
            let options = Line::parse_from(words).options;
            let (own, oshrun) = ("oshperf".into(), "oshrun".into());
            Comparison { options: &options, tests: vec![], own, oshrun }.silence().as_secs()
        };
        // One that hangs is found within two minutes.
        assert!((60..120).contains(&silence("")), "{}", silence(""));
        assert!(silence("--budget 60000") >= 60 + 2 * 60);
        // A few puts of a GiB over 100 Mbit/s.
        assert!(silence("--sizes 1G") >= 60 + 10 * 86);
        assert!(silence("-n 64 --sizes 64M") > silence("--sizes 64M"));
    }

    #[test]
    fn the_test_that_a_job_failed_in_is_left_out() {
        let words = ["oshperf", "--ways", "shm", "--ops", "put,amo", "--sizes", "8,64"];
        let options = Line::parse_from(words).options;
        let ways = options.ways();
        let tests = catalogue::of(&options.ops);
        let (own, oshrun) = ("oshperf".into(), "oshrun".into());
        let comparison = Comparison { options: &options, tests: tests.clone(), own, oshrun };
        let failed_after = |under_way: Option<(&Test, u64)>| {
            let mut candidate = comparison.candidate(&ways[0]);
            let (routes, transports) = (String::new(), Vec::new());
            let facts = Facts { hosts: 1, peer: 1, hops: 0, routes, transports, ports: None };
            candidate.facts = Some(facts);
            candidate.under_way = match under_way {
                Some((test, x)) => comparison.after(&candidate, &point(test, x)),
                None => tests.first().copied(),
            };
            candidate.fail("\n it breaks\n");
            candidate.fail("\n it breaks\n");
            let left: Vec<&str> = candidate.tests.iter().map(|test| test.name).collect();
            (left, candidate.notes)
        };
        let all: Vec<&str> = tests.iter().map(|test| test.name).collect();
        assert_eq!(all, ["put", "fetch_add", "add", "compare_swap"]);
        let (left, notes) = failed_after(None);
        assert!(
            left == all[1..] && notes[0] == WayReport::left_out("put", "it breaks"),
            "{notes:?}"
        );
        let (left, _) = failed_after(Some((tests[0], 64)));
        assert_eq!(left, ["put", "add", "compare_swap"]);
        let (left, notes) = failed_after(Some((tests[3], 8)));
        assert_eq!(left, all, "all was measured");
        assert_eq!(notes, ["a job failed after its last test: it breaks"]);
    }
}
