// SPDX-License-Identifier: Apache-2.0
//! Explanations: what was measured, what was chosen, what was rejected and why; as text, JSON or a
//! page with plots that needs no network.

use crate::class::Class;
use crate::data::{Batches, Buffer, CACHED, Curve, Operation, Rejected, SERVICE, STREAMING};
use crate::model::{self, Interpolation};
use crate::policy::{Decision, MARGIN};
use crate::tuning::Tuning;
use crate::{carriers, either, files, stripes};
use serde::Serialize;
use std::borrow::Cow;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use std::path::Path;
use tombolo_core::World;
use tombolo_core::config::{Report, ReportForm};
use tombolo_core::route::{Channel, Either, STEPS_MAX, Steps, Stripes};
use tombolo_core::sizes::{exact, size};
use tombolo_core::transport::SegmentKind;

pub mod difference;
mod html;
mod remarks;

pub use html::escape;

/// A report, ready to be printed.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// Where the measurements come from.
    pub origin: String,
    /// How long tuning took on the PE that reports, in milliseconds; none where there is no job.
    pub took_ms: Option<f64>,
    /// What was measured.
    pub machine: String,
    /// Mean relative distance of the model from the second set of measurements.
    pub model_error: Option<f64>,
    /// Measurements in the second set.
    pub model_checks: usize,
    /// How far the measurements can be relied on, in words; none where there are none.
    pub grade: Option<String>,
    /// Batches of operations that were timed, and those of them that were discarded.
    pub batches: Batches,
    /// `SHMEM_ROUTE`, rule by rule.
    pub forced: Vec<String>,
    /// What was decided beside channels by size, and what stands for what was not measured.
    pub remarks: Vec<String>,
    /// What was decided.
    pub sections: Vec<Section>,
    /// Channels that are not used between PEs of a class.
    pub rejected: Vec<Rejected>,
    /// Terms of the multilevel model: what it is about, and each term in nanoseconds.
    pub stages: Vec<(String, model::stages::Stages)>,
}

/// One decision, on one kind of buffer.
#[derive(Debug, Serialize)]
pub struct Section {
    /// Between which PEs.
    pub class: String,
    /// Doing what.
    pub operation: Operation,
    /// On which buffers.
    pub buffer: Buffer,
    /// Channels by size, in words.
    pub choice: String,
    /// Mean model error of these curves.
    pub model_error: Option<f64>,
    /// By size.
    pub rows: Vec<Row>,
}

/// One size.
#[derive(Debug, Serialize)]
pub struct Row {
    /// Payload in bytes.
    pub bytes: u64,
    /// The channel taken.
    pub chosen: String,
    /// All that were measured, the chosen one included.
    pub candidates: Vec<Candidate>,
}

/// A channel at one size.
#[derive(Debug, Serialize)]
pub struct Candidate {
    /// Its name.
    pub channel: String,
    /// Nanoseconds measured.
    pub measured_ns: f64,
    /// Nanoseconds the model says, where the size was not used to make it.
    pub predicted_ns: Option<f64>,
    /// Spread of the batches, as a fraction.
    pub spread: f64,
    /// Batches that nothing interrupted.
    pub batches: u16,
    /// Why it was taken or not.
    pub reason: String,
}

impl Explanation {
    /// Explains a tuning.
    pub fn of(tuning: &Tuning) -> Explanation {
        let measured = tuning.measured();
        let error = model::error(&measured.curves);
        let stages = tuning.model().all_stages().map(|(key, stages)| {
            (format!("{} {} {}, any distance", key.operation, key.buffer, key.channel), *stages)
        });
        Explanation {
            origin: tuning.origin().to_string(),
            took_ms: tuning.took().map(|took| took.as_secs_f64() * 1e3),
            machine: tuning.machine().to_owned(),
            model_error: error.map(|(error, _)| error),
            model_checks: error.map_or(0, |(_, count)| count),
            grade: (!measured.curves.is_empty()).then(|| measured.grade().to_string()),
            batches: measured.batches,
            forced: tuning.rules().iter().map(|rule| rule.text.clone()).collect(),
            remarks: remarks::of(tuning),
            sections: sections(tuning),
            rejected: measured.rejected.clone(),
            stages: stages.collect(),
        }
    }

    /// Where the measurements come from, and how long that took.
    fn source(&self) -> String {
        let took = self.took_ms.map_or(String::new(), |ms| format!(", in {ms:.1} ms"));
        format!("{}{took}", self.origin)
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut text = String::from("Routes\n");
        let mut line = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        line(format!("  {}", self.source()));
        if !self.machine.is_empty() {
            line(format!("  {}", self.machine));
        }
        let checks = self.model_checks;
        match self.model_error {
            Some(error) => {
                line(format!("  model error {:.1} % on average over {checks} sizes", error * 100.0))
            }
            None if self.sections.is_empty() => {}
            None => line("  model error unknown: there was no time to measure a second set".into()),
        }
        if let Some(grade) = &self.grade {
            line(format!("  grade: {grade}"));
        }
        let Batches { taken, discarded } = self.batches;
        if taken > 0 {
            line(format!(
                "  {taken} batches were timed, {discarded} of them in vain: the processor was taken away or \
                 the clock jumped"
            ));
        }
        for rule in &self.forced {
            line(format!("  forced by SHMEM_ROUTE: {rule}"));
        }
        for Rejected { class, channel, why, .. } in &self.rejected {
            line(format!("  {channel} is not used from a PE to {}: {why}", target(*class)));
        }
        for remark in &self.remarks {
            line(format!("  {remark}"));
        }
        for (what, s) in &self.stages {
            line(format!(
                "  {what}: start {:.0} ns, hop {:.0} ns, packet {:.0} ns, first stage {:.3} ns/B, \
                 each further {:.3} ns/B",
                s.startup, s.hop, s.per_packet, s.send, s.forward
            ));
        }
        for section in &self.sections {
            text.push_str(&section.text());
        }
        text
    }

    /// For programs.
    pub fn json(&self) -> String {
        // Only maps with keys that are not text could fail.
        serde_json::to_string_pretty(self).unwrap_or_default() + "\n"
    }

    /// For a browser: one page with everything in it.
    pub fn html(&self) -> String {
        html::page(self)
    }

    /// In a form of the user's choice.
    pub fn render(&self, form: ReportForm) -> String {
        match form {
            ReportForm::Text => self.text(),
            ReportForm::Json => self.json(),
            ReportForm::Html => self.html(),
        }
    }
}

/// Writes what `SHMEM_TUNE_REPORT` asks for.
pub fn write(tuning: &Tuning, wanted: &Report) -> io::Result<()> {
    let Report::To(form, path) = wanted else { return Ok(()) };
    let text = Explanation::of(tuning).render(*form);
    match path {
        Some(path) => files::write(Path::new(path), |to| to.write_all(text.as_bytes())),
        None => io::stdout().lock().write_all(text.as_bytes()),
    }
}

impl Section {
    fn text(&self) -> String {
        let mut text = format!(
            "\n{} to {}, {} buffers: {}\n",
            self.operation, self.class, self.buffer, self.choice
        );
        for row in &self.rows {
            for (i, c) in row.candidates.iter().enumerate() {
                let size = if i == 0 { size(row.bytes) } else { String::new() };
                let mark = if c.channel == row.chosen { '*' } else { ' ' };
                let predicted =
                    c.predicted_ns.map_or(String::new(), |ns| format!(", model {}", time(ns)));
                let _ = writeln!(
                    text,
                    "  {size:>8} {mark} {:<10} {:>9} {:<6} {}{predicted}",
                    c.channel,
                    time(c.measured_ns),
                    c.certainty(),
                    c.reason,
                );
            }
        }
        text
    }
}

impl Candidate {
    /// How certain the time is: the spread, or what stands in the way of knowing it.
    fn certainty(&self) -> String {
        match self.batches {
            0 => "busy".into(),
            1 => "once".into(),
            // Nothing is exact.
            _ if self.spread < 0.005 => "±<1 %".into(),
            _ => format!("±{:>2.0} %", self.spread * 100.0),
        }
    }
}

fn sections(tuning: &Tuning) -> Vec<Section> {
    let measured = tuning.measured();
    let mut groups: Vec<(Class, Operation, Buffer)> =
        measured.curves.iter().map(|c| (c.key.class, c.key.operation, c.key.buffer)).collect();
    groups.dedup();
    groups
        .into_iter()
        .map(|(class, operation, buffer)| {
            let curves: Vec<&Curve> = measured
                .channels(class, operation)
                .into_iter()
                .filter_map(|channel| measured.curve(class, operation, buffer, channel))
                .collect();
            let carried = carriers::decision(measured, class, operation);
            let decision = tuning.decision_on(class, operation, buffer).or(carried.as_ref());
            let error = model::error(curves.iter().copied());
            Section {
                class: describe(class),
                operation,
                buffer,
                choice: decision.map_or_else(|| "measured only".into(), choice),
                model_error: error.map(|(error, _)| error),
                rows: rows(&curves, decision),
            }
        })
        .collect()
}

fn rows(curves: &[&Curve], decision: Option<&Decision>) -> Vec<Row> {
    let points = |c: &&Curve| c.points.iter().chain(&c.checks).map(|p| p.bytes).collect::<Vec<_>>();
    let mut sizes: Vec<u64> = curves.iter().flat_map(points).collect();
    sizes.sort_unstable();
    sizes.dedup();
    let row = |bytes: &u64| {
        // What was measured is single transfers.
        let chosen = decision.map_or("", |decision| either::waited(decision.channel(*bytes)));
        let mut candidates: Vec<Candidate> =
            curves.iter().filter_map(|curve| candidate(curve, *bytes)).collect();
        let taken = candidates.iter().find(|c| c.channel == chosen).map(|c| c.measured_ns);
        let default = decision.map_or("", |decision| decision.default.as_str());
        for candidate in &mut candidates {
            candidate.reason = reason(candidate, chosen, taken, default);
        }
        Row { bytes: *bytes, chosen: chosen.to_owned(), candidates }
    };
    sizes.iter().map(row).collect()
}

fn candidate(curve: &Curve, bytes: u64) -> Option<Candidate> {
    let find = |points: &[crate::data::Point]| points.iter().find(|p| p.bytes == bytes).copied();
    let (point, fresh) = match find(&curve.points) {
        Some(point) => (point, false),
        None => (find(&curve.checks)?, true),
    };
    let predicted = Interpolation::new(&curve.points).filter(|_| fresh).map(|line| line.at(bytes));
    Some(Candidate {
        channel: curve.key.channel.clone(),
        measured_ns: f64::from(point.ns),
        predicted_ns: predicted,
        spread: f64::from(point.spread),
        batches: point.batches,
        reason: String::new(),
    })
}

fn reason(candidate: &Candidate, chosen: &str, taken: Option<f64>, default: &str) -> String {
    let Some(taken) = taken.filter(|_| !chosen.is_empty()) else { return "measured only".into() };
    let ratio = candidate.measured_ns / taken;
    if candidate.channel == chosen {
        let why = if chosen == default { "taken (default)" } else { "taken" };
        return why.into();
    }
    if ratio >= 1.0 {
        return format!("{ratio:.2} times the time");
    }
    let gain = (1.0 - ratio) * 100.0;
    if ratio > 1.0 - MARGIN {
        format!("{gain:.0} % faster, too little to change the route")
    } else {
        format!(
            "{gain:.0} % faster at this size, but not at the sizes beside it or for other buffers, or by less \
             than the measurements vary"
        )
    }
}

/// The steps of a decision in words.
fn choice(decision: &Decision) -> String {
    in_words(decision.steps.iter().map(|step| (step.limit, step.channel.as_str())))
}

/// Channels by rising largest size, the last one without limit.
fn in_words<'a>(steps: impl Iterator<Item = (u64, &'a str)>) -> String {
    let mut words = Vec::new();
    for (limit, channel) in steps {
        words.push(match limit {
            u64::MAX if words.is_empty() => format!("{channel} at every size"),
            u64::MAX => format!("{channel} above"),
            limit => format!("{channel} {}", up_to(limit)),
        });
    }
    words.join(", ")
}

/// The name of a channel, as `SHMEM_ROUTE` has it; `transport` gives that of a transport by its index.
pub fn name<'a>(channel: Channel, transport: impl Fn(usize) -> &'a str) -> Cow<'a, str> {
    let transport = |index: u8| transport(index.into());
    match channel {
        Channel::Cached => CACHED.into(),
        Channel::Streaming => STREAMING.into(),
        Channel::Service => SERVICE.into(),
        Channel::Unreachable => "unreachable".into(),
        Channel::Endpoint(index) => transport(index).into(),
        Channel::Striped(Stripes { transports: [first, second], .. }) => {
            stripes::name(transport(first), transport(second)).into()
        }
        Channel::Either(Either { transports: [first, second], .. }) => {
            either::name(transport(first), transport(second)).into()
        }
    }
}

/// The routes in force from this PE to the heap of another, in words.
pub fn routes(world: &World, pe: usize) -> String {
    let name = |channel| name(channel, |index| world.transports()[index].name());
    let steps = |steps: &Steps| {
        let last = steps.limits.iter().position(|limit| *limit == usize::MAX);
        let all = steps.limits.iter().zip(steps.channels).take(last.unwrap_or(STEPS_MAX) + 1);
        let limit = |limit: usize| if limit == usize::MAX { u64::MAX } else { limit as u64 };
        let named: Vec<(u64, Cow<str>)> =
            all.map(|(bytes, channel)| (limit(*bytes), name(channel))).collect();
        in_words(named.iter().map(|(bytes, name)| (*bytes, name.as_ref())))
    };
    let peer = &world.routes().peers[pe];
    let heap = SegmentKind::Heap as usize;
    let (put, get) = (steps(&peer.put[heap]), steps(&peer.get[heap]));
    format!("put {put}; get {get}; amo {}", name(peer.amo[heap]))
}

/// A class for people, as a noun.
pub fn describe(class: Class) -> String {
    match class {
        Class::Own => "itself".into(),
        Class::Cache => "PEs that share a last-level cache".into(),
        Class::Node => "PEs of the same NUMA node".into(),
        Class::FarNode => "PEs of another NUMA node".into(),
        Class::Host => "PEs of the same host".into(),
        Class::Hops(1) => "PEs of a neighbouring host".into(),
        Class::Hops(hops) => format!("PEs {hops} hosts away"),
        Class::Network => "PEs of other hosts in the network".into(),
    }
}

/// The same, as what is reached from a PE.
fn target(class: Class) -> String {
    match class {
        Class::Own => "the same PE".into(),
        _ => describe(class),
    }
}

/// The sizes that end with `limit`, exactly: "up to 1945 B", or "below 256 KiB" where one byte more has the
/// shorter name.
pub fn up_to(limit: u64) -> String {
    edge(limit, ["below", "up to"])
}

/// The sizes that begin behind `limit`: "above 1945 B", or "from 256 KiB" where `limit` is one byte less.
pub fn beyond(limit: u64) -> String {
    edge(limit, ["from", "above"])
}

/// `limit` behind the second word, or what is one byte more behind the first.
fn edge(limit: u64, [of_next, of_limit]: [&str; 2]) -> String {
    match limit.checked_add(1) {
        Some(next) if next.is_multiple_of(1 << 10) => format!("{of_next} {}", exact(next)),
        _ => format!("{of_limit} {}", exact(limit)),
    }
}

/// Nanoseconds for people.
pub fn time(ns: f64) -> String {
    match ns {
        ns if ns >= 1e6 => format!("{:.2} ms", ns / 1e6),
        ns if ns >= 1e3 => format!("{:.2} us", ns / 1e3),
        ns => format!("{ns:.1} ns"),
    }
}

#[cfg(test)]
mod tests;
