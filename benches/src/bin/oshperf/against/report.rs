// SPDX-License-Identifier: Apache-2.0
//! The outcome as text that is read in a terminal and kept as markdown.

use super::figures::{Figure, Goal};
use super::record::{Comparison, Measured, Times};
use crate::stats::Summary;
use std::fmt::Write;

/// Tables of figures against their goals, then of times against the other implementation.
pub fn markdown(outcome: &Comparison) -> String {
    let mut text = String::new();
    // Writing to a string cannot fail.
    let _ = write_all(&mut text, outcome);
    text
}

fn write_all(text: &mut String, outcome: &Comparison) -> std::fmt::Result {
    let machine = &outcome.machine;
    writeln!(text, "# Figures of {}\n", machine.date)?;
    writeln!(
        text,
        "{}, {} cores, kernel {}, load {:.1} before the start. Programs ran {} times; values are \
         medians over all batches, in brackets the quartiles.",
        machine.cpu, machine.cores, machine.kernel, machine.load, outcome.repetitions
    )?;
    let mut group = "";
    for figure in &outcome.figures {
        if figure.group != group {
            group = figure.group;
            writeln!(text, "\n## {group}\n\n| | value | goal | |\n|---|---|---|---|")?;
        }
        write_figure(text, figure)?;
    }
    if let [own, peer] = &outcome.implementations[..]
        && own.series.iter().any(|times| peer.get(&times.name).is_some())
    {
        write_comparison(text, own, peer)?;
    }
    if !outcome.notes.is_empty() {
        writeln!(text, "\n## Not measured\n")?;
        for note in &outcome.notes {
            writeln!(text, "- {note}")?;
        }
    }
    let (met, judged) = tally(&outcome.figures);
    writeln!(text, "\n{met} of {judged} goals met.")
}

fn write_figure(text: &mut String, figure: &Figure) -> std::fmt::Result {
    let value = figure.value;
    let goal = match figure.goal {
        Goal::AtMost(limit) => format!("<= {limit}"),
        Goal::AtLeast(limit) => format!(">= {limit}"),
        Goal::None => String::new(),
    };
    let verdict = match figure.goal.met(value.median) {
        Some(true) => "met",
        Some(false) => "**missed**",
        None => "",
    };
    writeln!(
        text,
        "| {} | {} ({} to {}) | {goal} | {verdict} |",
        figure.title,
        short(value.median),
        short(value.lower),
        short(value.upper)
    )
}

fn write_comparison(text: &mut String, own: &Measured, peer: &Measured) -> std::fmt::Result {
    writeln!(text, "\n## {} and {}\n", own.title, peer.title)?;
    writeln!(
        text,
        "References are left out; `@N` is the number of PEs, `xM` that of emulated hosts.\n"
    )?;
    writeln!(text, "| | {} | {} | times faster |\n|---|---|---|---|", own.title, peer.title)?;
    for times in own.series.iter().filter(|times| !is_reference(&times.name)) {
        let Some(other) = peer.get(&times.name) else { continue };
        let ratio = short(other.summary.median / times.summary.median);
        writeln!(text, "| {} | {} | {} | {ratio} |", times.name, shown(times), shown(other))?;
    }
    Ok(())
}

/// Median and quartiles in a unit that leaves few digits before the point.
fn shown(times: &Times) -> String {
    let Summary { lower, median, upper, .. } = times.summary;
    let (unit, scale) = match times.unit.as_str() {
        "ns" if median >= 1e6 => ("ms", 1e-6),
        "ns" if median >= 1e3 => ("µs", 1e-3),
        unit => (unit, 1.0),
    };
    let [lower, median, upper] = [lower, median, upper].map(|value| short(value * scale));
    format!("{median} {unit} ({lower} to {upper})")
}

/// Plain code: the same under every implementation.
fn is_reference(name: &str) -> bool {
    [
        "store.",
        "load.",
        "move_",
        "memcpy.",
        "streaming.",
        "xadd",
        "one_way",
        "log2_trips",
        "stores.",
        "plain_",
    ]
    .iter()
    .any(|reference| name.starts_with(reference))
}

fn tally(figures: &[Figure]) -> (usize, usize) {
    let judged: Vec<bool> = figures.iter().filter_map(|f| f.goal.met(f.value.median)).collect();
    (judged.iter().filter(|met| **met).count(), judged.len())
}

/// Three significant digits.
fn short(value: f64) -> String {
    let digits = 2 - (value.abs().log10().floor() as i32).clamp(-3, 2);
    format!("{value:.*}", digits as usize)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn plain_programs_are_references() {
        assert!(is_reference("plain_sum_8@2") && is_reference("store.heap@2"));
        assert!(!is_reference("sum_8@2"));
    }

    #[test]
    fn numbers_have_three_digits() {
        assert_eq!(short(1.234), "1.23");
        assert_eq!(short(0.5678), "0.568");
        assert_eq!(short(43.21), "43.2");
        assert_eq!(short(123_456.7), "123457");
    }
}
