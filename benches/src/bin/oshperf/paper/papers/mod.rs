// SPDX-License-Identifier: Apache-2.0
//! The papers: jobs, published figures, and what of ours stands beside them.

mod contexts;
mod hybrid;
mod pair;
mod ring;
mod tuning;

use super::{Job, Jobs, Mark, Name, Paper, Row};
use tombolo_transports::ntb::port::LinkTiming;

fn plain() -> Job {
    Job {
        program: "",
        pes: 2,
        hosts: None,
        environment: vec![],
        arguments: String::new(),
        place: "",
    }
}

/// On one host.
fn here(program: &'static str, pes: u32, place: &'static str) -> Job {
    Job { program, pes, place, ..plain() }
}

/// One PE on each of some emulated hosts whose links take their time.
fn ring(program: &'static str, hosts: u32, place: &'static str) -> Job {
    Job { program, pes: hosts, hosts: Some((hosts, true)), place, ..plain() }
}

/// The jobs and figures of a paper.
pub fn of(name: Name) -> Paper {
    match name {
        Name::Ring => ring::PAPER,
        Name::Pair => pair::PAPER,
        Name::Hybrid => hybrid::PAPER,
        Name::Tuning => tuning::PAPER,
        Name::Contexts => contexts::PAPER,
    }
}

/// By how much what took `ratio` times as long is slower than 1, in per cent with its sign.
fn change(ratio: f64) -> String {
    format!("{:+.0} %", (ratio - 1.0) * 100.0)
}

fn row(experiment: impl Into<String>, published: &'static str, here: String, mark: Mark) -> Row {
    Row { experiment: experiment.into(), published, here, mark }
}

/// MB/s that a modelled link carries of what processors store.
fn raw() -> f64 {
    LinkTiming::default().ceiling_bytes_per_s(64) / 1e6
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::against::samples::Samples;
    use crate::paper::found::Found;

    #[test]
    fn figures_stand_beside_what_was_published() {
        let mut samples = Samples::default();
        samples.add("mandelbrot.no_context@2.1thread", "ms", [2.0, 2.2]);
        samples.add("mandelbrot.context@2.1thread", "ms", [1.0, 1.1]);
        let rows = (contexts::PAPER.rows)(&Found::new(&samples));
        assert_eq!((rows.len(), rows[0].here.as_str()), (1, "+100 %"));
        samples.add("ring.one_1048576@2x2m", "us", [200.0]);
        let share = 100.0 * 1_048_576.0 / 200.0 / raw();
        assert!(
            (ring::PAPER.rows)(&Found::new(&samples))[0]
                .here
                .starts_with(&format!("5243 MB/s, {share:.0} %"))
        );
    }
}
