// SPDX-License-Identifier: Apache-2.0
//! The page with plots.

use super::{Explanation, Section, time};
use plotters::prelude::*;
use std::fmt::Write as _;
use tombolo_core::sizes::size;

const STYLE: &str = "body{font:15px/1.5 system-ui,sans-serif;max-width:62em;margin:2em auto;padding:0 1em;\
color:#222}h1{font-size:1.5em}h2{font-size:1.1em;margin:2em 0 0}table{border-collapse:collapse;\
font-size:13px}td,th{padding:.15em .8em;text-align:right;border-bottom:1px solid #ddd}\
td:last-child,th:last-child{text-align:left}.taken{font-weight:600}svg{max-width:100%;height:auto}\
summary{cursor:pointer;color:#555}";

/// Colours that people with any colour vision tell apart, by order of channels.
const COLOURS: [RGBColor; 6] = [
    RGBColor(0, 114, 178),
    RGBColor(213, 94, 0),
    RGBColor(0, 158, 115),
    RGBColor(204, 121, 167),
    RGBColor(120, 120, 40),
    RGBColor(86, 180, 233),
];

/// The whole page.
pub fn page(explanation: &Explanation) -> String {
    let mut page = format!(
        "<!DOCTYPE html>\n<html lang=\"en\"><head><meta charset=\"utf-8\"><title>Tombolo: routes</title>\
         <style>{STYLE}</style></head><body>\n<h1>Routes</h1>\n<p>{}.<br>{}</p>\n",
        escape(&explanation.source()),
        escape(&explanation.machine)
    );
    if let Some(error) = explanation.model_error {
        let _ = writeln!(
            page,
            "<p>Model error {:.1} % on average over {} sizes that were not used to make the model.</p>",
            error * 100.0,
            explanation.model_checks
        );
    }
    if let Some(grade) = &explanation.grade {
        let _ = writeln!(page, "<p>Grade: {}.</p>", escape(grade));
    }
    for rule in &explanation.forced {
        let _ = writeln!(page, "<p>Forced by SHMEM_ROUTE: <code>{}</code></p>", escape(rule));
    }
    for rejected in &explanation.rejected {
        let _ = writeln!(
            page,
            "<p>{} is not used from a PE to {}: {}</p>",
            escape(&rejected.channel),
            super::target(rejected.class),
            escape(&rejected.why)
        );
    }
    for remark in &explanation.remarks {
        let _ = writeln!(page, "<p>{}</p>", escape(remark));
    }
    for section in &explanation.sections {
        page.push_str(&chapter(section));
    }
    page.push_str("</body></html>\n");
    page
}

fn chapter(section: &Section) -> String {
    let mut text = format!(
        "<h2>{} to {}, {} buffers</h2>\n<p>{}</p>\n",
        section.operation,
        escape(&section.class),
        section.buffer,
        escape(&section.choice)
    );
    if section.rows.len() > 1 {
        // A plot that cannot be drawn leaves the table below it.
        text.push_str(&plot(section).unwrap_or_default());
    }
    text.push_str(
        "<details><summary>Numbers</summary><table><tr><th>Size<th>Channel<th>Measured\
                   <th>Model<th>Spread<th>Why</tr>\n",
    );
    for row in &section.rows {
        for candidate in &row.candidates {
            let class = if candidate.channel == row.chosen { " class=taken" } else { "" };
            let _ = writeln!(
                text,
                "<tr{class}><td>{}<td>{}<td>{}<td>{}<td>{}<td>{}</tr>",
                size(row.bytes),
                escape(&candidate.channel),
                time(candidate.measured_ns),
                candidate.predicted_ns.map(time).unwrap_or_default(),
                candidate.certainty(),
                escape(&candidate.reason)
            );
        }
    }
    text + "</table></details>\n"
}

/// Time by size of every channel, both logarithmic; the channel taken is marked at each size.
fn plot(section: &Section) -> Option<String> {
    let all = || section.rows.iter().flat_map(|row| row.candidates.iter().map(move |c| (row, c)));
    let least = all().map(|(_, c)| c.measured_ns).fold(f64::INFINITY, f64::min);
    let most = all().map(|(_, c)| c.measured_ns).fold(0.0, f64::max);
    let (first, last) = (section.rows.first()?.bytes as f64, section.rows.last()?.bytes as f64);
    let mut channels: Vec<&str> = all().map(|(_, c)| c.channel.as_str()).collect();
    channels.sort_unstable_by_key(|name| (crate::data::rank(name), *name));
    channels.dedup();
    let mut svg = String::new();
    {
        let root = SVGBackend::with_string(&mut svg, (820, 360)).into_drawing_area();
        let mut chart = ChartBuilder::on(&root)
            .margin(8)
            .x_label_area_size(34)
            .y_label_area_size(70)
            .build_cartesian_2d(
                (first..last * 1.2).log_scale().base(2.0),
                (least * 0.7..most * 1.5).log_scale(),
            )
            .ok()?;
        chart
            .configure_mesh()
            .light_line_style(TRANSPARENT)
            .x_label_formatter(&|bytes| size(*bytes as u64))
            .y_label_formatter(&|ns| time(*ns))
            .draw()
            .ok()?;
        for (index, channel) in channels.iter().enumerate() {
            let colour = COLOURS[index % COLOURS.len()];
            let points = || all().filter(|(_, c)| c.channel == *channel);
            let at = |bytes: u64, ns: f64| (bytes as f64, ns);
            chart
                .draw_series(LineSeries::new(
                    points().map(|(row, c)| at(row.bytes, c.measured_ns)),
                    colour.stroke_width(2),
                ))
                .ok()?
                .label(*channel)
                .legend(move |(x, y)| PathElement::new([(x, y), (x + 18, y)], colour));
            let taken = points().filter(|(row, c)| row.chosen == c.channel);
            let dots =
                taken.map(|(row, c)| Circle::new(at(row.bytes, c.measured_ns), 4, colour.filled()));
            chart.draw_series(dots).ok()?;
        }
        chart
            .configure_series_labels()
            .position(SeriesLabelPosition::UpperLeft)
            .background_style(WHITE.mix(0.8))
            .draw()
            .ok()?;
        root.present().ok()?;
    }
    Some(svg)
}

/// Text as HTML.
pub fn escape(text: &str) -> String {
    text.replace('&', "&amp;").replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;")
}
