// SPDX-License-Identifier: Apache-2.0
//! A profile as text.

use super::advice::advice;
use super::counted::End;
use super::summary::{Pair, Summary, time};
use std::fmt::Write;
use tombolo_core::sizes::size;

/// PEs up to which the whole matrix is shown.
const MATRIX: usize = 12;
/// Pairs that are shown of a larger one.
const PAIRS: usize = 24;

pub fn render(summary: &Summary) -> String {
    let mut text = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut text, summary);
    text
}

fn write(to: &mut String, summary: &Summary) -> std::fmt::Result {
    let [whole, ..] = summary.totals();
    let share = |part: f64| if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
    writeln!(to, "Profile of {} PEs: {}", summary.size, summary.head())?;
    for (end, words) in [
        (End::GlobalExit, "Ended by calling shmem_global_exit"),
        (End::Process, "Without shmem_finalize, counted to their end"),
        (End::Never, "Without the end of shmem_init, nothing counted"),
    ] {
        if let Some(pes) = summary.ended_by(end) {
            writeln!(to, "{words}: {pes}")?;
        }
    }
    if let Some(pending) = summary.pending_words() {
        writeln!(to, "In a routine when they ended: {pending}")?;
    }
    let routine = summary.lines.iter().map(|line| line.routine.len()).max().unwrap_or(0).max(7);
    let way = summary.lines.iter().map(|line| line.way_words().len()).max().unwrap_or(0).max(7);
    writeln!(
        to,
        "\nRoutines, the longest time first (one short call in 64 is timed)\n  \
         {:routine$}  {:>10}  {:way$}  {:>12}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}",
        "routine", "size", "channel", "calls", "bytes", "time", "mean", "longest", "blocked"
    )?;
    for line in &summary.lines {
        let mean = line.seconds / line.count.max(1) as f64;
        writeln!(
            to,
            "  {:routine$}  {:>10}  {:way$}  {:>12}  {:>10}  {:>10}  {:>10}  {:>10}  {:>10}",
            line.routine,
            line.size_words(),
            line.way_words(),
            line.count,
            size(line.bytes),
            time(line.seconds),
            time(mean),
            time(line.longest),
            time(line.blocked)
        )?;
    }
    if !summary.waits.is_empty() {
        writeln!(to, "\nBlocked: waits that were longer than the spinning at their beginning")?;
        for (words, number, seconds) in &summary.waits {
            let share = share(*seconds);
            writeln!(
                to,
                "  waiting for {words:24} {number:>10} times {:>10}  {share:5.1} %",
                time(*seconds)
            )?;
        }
    }
    matrix(to, summary)?;
    let advice = advice(summary);
    if !advice.is_empty() {
        writeln!(to, "\nWhat may help")?;
        for advice in advice {
            writeln!(to, "  {}\n    because {}", advice.setting, advice.why)?;
        }
    }
    if summary.pes.iter().any(|pe| !pe.text.is_empty()) {
        writeln!(to, "\nWhat transports counted")?;
        for pe in &summary.pes {
            pe.text.lines().try_for_each(|line| writeln!(to, "  PE {}: {line}", pe.pe))?;
        }
    }
    Ok(())
}

fn matrix(to: &mut String, summary: &Summary) -> std::fmt::Result {
    let mut pairs: Vec<(usize, usize, Pair)> = Vec::new();
    for (pe, row) in summary.matrix.iter().enumerate() {
        let used = row.iter().enumerate().filter(|(_, pair)| **pair != Pair::default());
        pairs.extend(used.map(|(other, pair)| (pe, other, *pair)));
    }
    if pairs.is_empty() {
        return Ok(());
    }
    writeln!(to, "\nPE by PE: bytes that a PE (line) put to and got from another (column)")?;
    if summary.size <= MATRIX {
        write!(to, "  {:>6}", "")?;
        (0..summary.size).try_for_each(|pe| write!(to, " {pe:>10}"))?;
        writeln!(to)?;
        for (pe, row) in summary.matrix.iter().enumerate() {
            write!(to, "  {pe:>6}")?;
            for pair in row {
                let shown = if *pair == Pair::default() { "-".into() } else { size(pair.bytes()) };
                write!(to, " {shown:>10}")?;
            }
            writeln!(to)?;
        }
        return Ok(());
    }
    pairs.sort_by_key(|(.., pair)| std::cmp::Reverse(pair.bytes()));
    for (pe, other, pair) in pairs.iter().take(PAIRS) {
        writeln!(
            to,
            "  {pe:>6} -> {other:<6} {:>10}  puts {}, gets {}, atomic operations {}",
            size(pair.bytes()),
            pair.puts,
            pair.gets,
            pair.amos
        )?;
    }
    if pairs.len() > PAIRS {
        writeln!(to, "  and {} pairs with less", pairs.len() - PAIRS)?;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::two_pes;
    use super::*;

    #[test]
    fn a_profile_shows_routines_waits_pairs_and_what_may_help() {
        let text = render(&Summary::new(2, &two_pes(), vec!["a".into(), "b".into()]));
        let line = |word: &str| text.lines().find(|line| line.contains(word)).unwrap_or_default();
        assert!(text.starts_with("Profile of 2 PEs: 1.00 ms"), "{text}");
        let put: Vec<&str> = line("shmem_putmem").split_whitespace().collect();
        assert_eq!(put[..4], ["shmem_putmem", "<=", "64", "B"], "{text}");
        assert!(
            line("shmem_putmem")
                .contains("mapped memory, PEs of the same host            10       640 B"),
            "{text}"
        );
        assert!(line("waiting for other PEs").contains("2 times"), "{text}");
        assert!(
            text.contains("      0          -      640 B\n") && text.contains("What may help"),
            "{text}"
        );
    }

    #[test]
    fn of_many_pes_the_pairs_that_exchange_most_are_shown() {
        let mut counted = two_pes();
        counted[0].peers.resize(40, [1, 8, 0, 0, 0, 0, 0, 0]);
        let text = render(&Summary::new(40, &counted, Vec::new()));
        let first = text.lines().skip_while(|line| !line.starts_with("PE by PE")).nth(1).unwrap();
        assert!(first.contains("0 -> 1") && first.contains("puts 10"), "{text}");
        assert!(text.contains("pairs with less"), "{text}");
    }
}
