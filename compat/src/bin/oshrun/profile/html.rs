// SPDX-License-Identifier: Apache-2.0
//! A profile as one page that needs nothing else.

use super::advice::advice;
use super::counted::End;
use super::summary::{Pair, Summary, Usage, time};
use std::fmt::Write;
use tombolo_core::sizes::size;
use tombolo_selector::report::escape;

const STYLE: &str = "\
:root{color-scheme:light dark;--line:#8884;--bar:#3b7dd8;--cell:59,125,216}\
body{font:15px/1.45 system-ui,sans-serif;margin:2em auto;max-width:75em;padding:0 1em}\
table{border-collapse:collapse;margin:.5em 0;font-variant-numeric:tabular-nums}\
th,td{padding:.2em .7em;border-bottom:1px solid var(--line);text-align:right;white-space:nowrap}\
th{font-weight:600}th.t,td.t{text-align:left}.wide{overflow-x:auto}\
.bar{display:inline-block;height:.7em;background:var(--bar);vertical-align:baseline;min-width:1px}\
svg{max-width:100%;height:auto}svg text{fill:currentColor;font:11px system-ui,sans-serif}\
h2{margin-top:1.6em}dt{font-weight:600}pre{overflow-x:auto}\
@media print{body{margin:0;max-width:none}.wide{overflow:visible}}";

/// Lines shown; more are said to be left out.
const LINES: usize = 400;

pub fn render(summary: &Summary) -> String {
    let mut page = String::new();
    // Writing to a string does not fail.
    let _ = write(&mut page, summary);
    page
}

fn write(to: &mut String, summary: &Summary) -> std::fmt::Result {
    let [whole, ..] = summary.totals();
    let share = |part: f64| if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
    write!(
        to,
        "<!doctype html><html lang=\"en\"><head><meta charset=\"utf-8\"><meta name=\"viewport\" \
         content=\"width=device-width\"><title>Profile of {0} PEs</title><link rel=\"icon\" \
         href=\"data:,\"><style>{STYLE}</style></head><body><h1>Profile of {0} PEs</h1>\
         <p>{1}.</p>",
        summary.size,
        summary.head()
    )?;
    if let Some(pending) = summary.pending_words() {
        write!(to, "<p>In a routine when they ended: {}.</p>", escape(&pending))?;
    }
    let advice = advice(summary);
    if !advice.is_empty() {
        write!(to, "<h2>What may help</h2><dl>")?;
        for advice in advice {
            write!(
                to,
                "<dt>{}</dt><dd>because {}</dd>",
                escape(&advice.setting),
                escape(&advice.why)
            )?;
        }
        write!(to, "</dl>")?;
    }
    routines(to, summary)?;
    if !summary.waits.is_empty() {
        write!(
            to,
            "<h2>Blocked</h2><table><tr><th class=t>waiting for<th>times<th>time<th class=t>share of all threads' time</tr>"
        )?;
        for (words, number, seconds) in &summary.waits {
            let share = share(*seconds);
            write!(
                to,
                "<tr><td class=t>{words}<td>{number}<td>{}<td class=t>{} {share:.1} %</tr>",
                time(*seconds),
                bar(share)
            )?;
        }
        write!(to, "</table>")?;
    }
    matrix(to, summary)?;
    write!(
        to,
        "<h2>PEs</h2><div class=wide><table><tr><th>PE<th class=t>host<th>time<th>in the library<th>blocked<th class=t>end</tr>"
    )?;
    for pe in &summary.pes {
        let end = match pe.end {
            End::Never => "without the end of shmem_init",
            End::Finalize => "shmem_finalize",
            End::GlobalExit => "shmem_global_exit",
            End::Process => "without shmem_finalize",
        };
        write!(
            to,
            "<tr><td>{}<td class=t>{}<td>{}<td>{}<td>{}<td class=t>{end}</tr>",
            pe.pe,
            escape(&pe.machine),
            time(pe.seconds),
            time(pe.inside),
            time(pe.blocked)
        )?;
    }
    write!(to, "</table></div>")?;
    if summary.pes.iter().any(|pe| !pe.text.is_empty()) {
        write!(to, "<h2>What transports counted</h2><pre>")?;
        for pe in &summary.pes {
            pe.text.lines().try_for_each(|line| writeln!(to, "PE {}: {}", pe.pe, escape(line)))?;
        }
        write!(to, "</pre>")?;
    }
    writeln!(to, "</body></html>")
}

fn routines(to: &mut String, summary: &Summary) -> std::fmt::Result {
    write!(
        to,
        "<h2>Routines</h2><p>The longest time first. All calls and bytes are counted; one short call in \
         64 is timed.</p><div class=wide><table><tr><th class=t>routine<th>size<th class=t>channel\
         <th>calls<th>bytes<th>time<th class=t><th>mean<th>longest<th>blocked</tr>"
    )?;
    let most = summary.lines.first().map_or(0.0, |line| line.seconds);
    for line in summary.lines.iter().take(LINES) {
        let Usage { count, seconds, longest, blocked, .. } = line;
        write!(
            to,
            "<tr><td class=t>{}<td>{}<td class=t>{}<td>{count}<td>{}<td>{}<td class=t>{}<td>{}<td>{}<td>{}</tr>",
            escape(&line.routine),
            escape(&line.size_words()),
            escape(&line.way_words()),
            size(line.bytes),
            time(*seconds),
            bar(if most > 0.0 { 100.0 * seconds / most } else { 0.0 }),
            time(seconds / (*count).max(1) as f64),
            time(*longest),
            time(*blocked)
        )?;
    }
    write!(to, "</table></div>")?;
    match summary.lines.len().saturating_sub(LINES) {
        0 => Ok(()),
        more => write!(to, "<p>And {more} lines that took less time.</p>"),
    }
}

fn bar(percent: f64) -> String {
    format!("<span class=bar style=\"width:{:.2}em\"></span>", percent.clamp(0.0, 100.0) / 10.0)
}

/// The picture of who exchanges how much with whom.
fn matrix(to: &mut String, summary: &Summary) -> std::fmt::Result {
    let all = summary.matrix.iter().flatten().map(Pair::bytes);
    let most = all.max().unwrap_or(0);
    if most == 0 {
        return Ok(());
    }
    let side = (560.0 / summary.size as f64).clamp(2.0, 40.0);
    let whole = 40.0 + side * summary.size as f64;
    write!(
        to,
        "<h2>PE by PE</h2><p>Bytes that a PE (row) put to and got from another (column); the darkest square \
         stands for {}. A square that is a tenth lighter stands for a quarter of that, and so on. Point at a \
         square for its numbers.</p><svg viewBox=\"0 0 {whole:.0} {whole:.0}\" width=\"{whole:.0}\" role=\"img\" \
         aria-label=\"bytes between PEs\">",
        size(most)
    )?;
    let every = (summary.size / 16).max(1);
    for pe in (0..summary.size).step_by(every) {
        let at = 40.0 + side * (pe as f64 + 0.5);
        write!(to, "<text x=\"34\" y=\"{:.1}\" text-anchor=\"end\">{pe}</text>", at + 4.0)?;
        write!(to, "<text x=\"{at:.1}\" y=\"34\" text-anchor=\"middle\">{pe}</text>")?;
    }
    for (pe, row) in summary.matrix.iter().enumerate() {
        for (other, pair) in row.iter().enumerate().filter(|(_, pair)| **pair != Pair::default()) {
            // By orders of magnitude: pairs differ by far more than eyes can tell.
            let steps = (most as f64 / pair.bytes().max(1) as f64).log(4.0);
            let shade = (1.0 - steps / 10.0).clamp(0.08, 1.0);
            let (x, y) = (40.0 + side * other as f64, 40.0 + side * pe as f64);
            write!(
                to,
                "<rect x=\"{x:.1}\" y=\"{y:.1}\" width=\"{side:.1}\" height=\"{side:.1}\" \
                 style=\"fill:rgba(var(--cell),{shade:.2})\"><title>PE {pe} and PE {other}: {} puts ({}), \
                 {} gets ({}), {} atomic operations</title></rect>",
                pair.puts,
                size(pair.put_bytes),
                pair.gets,
                size(pair.get_bytes),
                pair.amos
            )?;
        }
    }
    write!(
        to,
        "<rect x=\"40\" y=\"40\" width=\"{0:.1}\" height=\"{0:.1}\" fill=\"none\" \
         stroke=\"currentColor\" stroke-opacity=\".4\"/></svg>",
        whole - 40.0
    )
}

#[cfg(test)]
mod tests {
    use super::super::summary::tests::two_pes;
    use super::*;

    #[test]
    fn a_page_holds_the_tables_and_the_picture_and_no_markup_of_others() {
        let mut counted = two_pes();
        counted[0].text = "ntb: <b>".into();
        let page = render(&Summary::new(2, &counted, vec!["a<i>".into(), "b".into()]));
        assert!(page.contains("<title>PE 0 and PE 1: 10 puts (640 B), 0 gets"), "{page}");
        assert_eq!(page.matches("<rect ").count(), 2, "{page}");
        assert!(page.contains("PE 0: ntb: &lt;b&gt;") && page.contains("a&lt;i&gt;"), "{page}");
        assert!(!page.contains("<b>") && !page.contains("http"), "{page}");
    }
}
