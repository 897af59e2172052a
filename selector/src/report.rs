//! Explanations: what was measured, what was chosen, what was rejected and why; as text, JSON or a
//! page with plots that needs no network.

use crate::class::Class;
use crate::data::{Buffer, Curve, Operation, Rejected};
use crate::model::{self, Line};
use crate::policy::{Decision, MARGIN};
use crate::tuning::Tuning;
use serde::Serialize;
use std::fmt::Write as _;
use std::io::{self, Write as _};
use tombolo_core::config::{Report, ReportForm};

mod html;
mod remarks;

/// A report, ready to be printed.
#[derive(Debug, Serialize)]
pub struct Explanation {
    /// Where the measurements come from.
    pub origin: String,
    /// How long tuning took on the PE that reports, in milliseconds.
    pub took_ms: f64,
    /// What was measured.
    pub machine: String,
    /// Mean relative distance of the model from the second set of measurements.
    pub model_error: Option<f64>,
    /// Measurements in the second set.
    pub model_checks: usize,
    /// `SHMEM_ROUTE`, rule by rule.
    pub forced: Vec<String>,
    /// What was decided beside channels by size, and what stands for what was not measured.
    pub remarks: Vec<String>,
    /// What was decided.
    pub sections: Vec<Section>,
    /// Channels that are no candidates.
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
            took_ms: tuning.took().as_secs_f64() * 1e3,
            machine: tuning.machine().to_owned(),
            model_error: error.map(|(error, _)| error),
            model_checks: error.map_or(0, |(_, count)| count),
            forced: tuning.rules().iter().map(|rule| rule.text.clone()).collect(),
            remarks: remarks::of(measured),
            sections: sections(tuning),
            rejected: measured.rejected.clone(),
            stages: stages.collect(),
        }
    }

    /// For a terminal.
    pub fn text(&self) -> String {
        let mut text = String::from("Routes of this job\n");
        let mut line = |line: String| {
            text.push_str(&line);
            text.push('\n');
        };
        line(format!("  {}, in {:.1} ms", self.origin, self.took_ms));
        if !self.machine.is_empty() {
            line(format!("  {}", self.machine));
        }
        if let Some(error) = self.model_error {
            let checks = self.model_checks;
            line(format!("  model error {:.1} % on average over {checks} sizes", error * 100.0));
        }
        for rule in &self.forced {
            line(format!("  forced by SHMEM_ROUTE: {rule}"));
        }
        for Rejected { class, channel, why } in &self.rejected {
            line(format!("  {channel} is no candidate for {}: {why}", describe(*class)));
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
        Some(path) => std::fs::write(path, text),
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
                    "  {size:>8} {mark} {:<10} {:>9} ±{:>2.0} %  {}{predicted}",
                    c.channel,
                    time(c.measured_ns),
                    c.spread * 100.0,
                    c.reason,
                );
            }
        }
        text
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
            let remote = if buffer == Buffer::Static { buffer } else { Buffer::Heap };
            let decision = tuning.decision(class, operation, remote);
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
        let chosen = decision.map_or("", |decision| decision.channel(*bytes));
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
    let predicted = Line::new(&curve.points).filter(|_| fresh).map(|line| line.at(bytes));
    Some(Candidate {
        channel: curve.key.channel.clone(),
        measured_ns: f64::from(point.ns),
        predicted_ns: predicted,
        spread: f64::from(point.spread),
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
        format!("{gain:.0} % faster, less than the margin")
    } else {
        format!("{gain:.0} % faster here, not over its neighbours, other buffers or the spread")
    }
}

/// The steps of a decision in words.
fn choice(decision: &Decision) -> String {
    let mut words = Vec::new();
    for step in &decision.steps {
        words.push(match step.limit {
            u64::MAX if words.is_empty() => format!("{} at every size", step.channel),
            u64::MAX => format!("{} above", step.channel),
            limit => format!("{} up to {}", step.channel, size(limit)),
        });
    }
    words.join(", ")
}

fn describe(class: Class) -> String {
    match class {
        Class::Own => "itself".into(),
        Class::Cache => "PEs that share a last-level cache".into(),
        Class::Node => "PEs of the same NUMA node".into(),
        Class::FarNode => "PEs of another NUMA node".into(),
        Class::Host => "PEs of the same host".into(),
        Class::Ring(1) => "PEs of a neighbouring host".into(),
        Class::Ring(hops) => format!("PEs {hops} hosts away"),
    }
}

/// Bytes for people.
pub fn size(bytes: u64) -> String {
    for (shift, unit) in [(30, "GiB"), (20, "MiB"), (10, "KiB")] {
        if bytes >= 1 << shift {
            let number = bytes as f64 / (1u64 << shift) as f64;
            return if number.fract() == 0.0 {
                format!("{number:.0} {unit}")
            } else {
                format!("{number:.1} {unit}")
            };
        }
    }
    format!("{bytes} B")
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
