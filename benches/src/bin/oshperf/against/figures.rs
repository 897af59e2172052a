// SPDX-License-Identifier: Apache-2.0
//! The figures: which measurements are compared with which, and what was aimed at.

use super::samples::Samples;
use crate::stats::Summary;
use serde::Serialize;

/// What the copy program measures: operation, bytes, and how they are told to people.
const COPIES: [(&str, u32, &str); 16] = [
    ("put", 8, "8 B"),
    ("put", 64, "64 B"),
    ("put", 512, "512 B"),
    ("put", 4096, "4 KiB"),
    ("put", 32768, "32 KiB"),
    ("put", 262144, "256 KiB"),
    ("put", 1048576, "1 MiB"),
    ("put", 4194304, "4 MiB"),
    ("get", 8, "8 B"),
    ("get", 64, "64 B"),
    ("get", 512, "512 B"),
    ("get", 4096, "4 KiB"),
    ("get", 32768, "32 KiB"),
    ("get", 262144, "256 KiB"),
    ("get", 1048576, "1 MiB"),
    ("get", 4194304, "4 MiB"),
];

/// What a figure should be.
#[derive(Clone, Copy, Debug, PartialEq, Serialize)]
#[serde(rename_all = "snake_case")]
pub enum Goal {
    /// Not above.
    AtMost(f64),
    /// Not below.
    AtLeast(f64),
    /// Told, not judged.
    None,
}

impl Goal {
    /// Whether a value is as it should be; None where nothing was aimed at.
    pub fn met(self, value: f64) -> Option<bool> {
        match self {
            Goal::AtMost(limit) => Some(value <= limit),
            Goal::AtLeast(limit) => Some(value >= limit),
            Goal::None => None,
        }
    }
}

/// A figure of this library against a reference measured in the same run.
#[derive(Clone, Debug, Serialize)]
pub struct Figure {
    /// Heading under which it is shown.
    pub group: &'static str,
    /// What is compared with what.
    pub title: String,
    /// The ratio; milliseconds or microseconds where the title says so.
    pub value: Summary,
    /// What was aimed at.
    pub goal: Goal,
}

/// All figures that the samples allow.
pub fn figures(samples: &Samples) -> Vec<Figure> {
    let mut all = Collector { samples, figures: Vec::new() };
    all.start();
    all.words();
    all.copies();
    all.atomics();
    all.barriers();
    all.collectives();
    all.overlap();
    all.contexts();
    all.across_hosts();
    all.figures
}

struct Collector<'a> {
    samples: &'a Samples,
    figures: Vec<Figure>,
}

impl Collector<'_> {
    fn add(&mut self, group: &'static str, title: impl Into<String>, goal: Goal, value: Summary) {
        self.figures.push(Figure { group, title: title.into(), value, goal });
    }

    /// Product of `over` by product of `under`.
    fn ratio(
        &mut self,
        group: &'static str,
        title: impl Into<String>,
        goal: Goal,
        over: &[&str],
        under: &[&str],
    ) {
        let owned = |names: &[&str]| names.iter().map(|n| n.to_string()).collect::<Vec<_>>();
        if let Some(value) = self.samples.ratio(&owned(over), &owned(under)) {
            self.add(group, title, goal, value);
        }
    }

    fn absolute(&mut self, group: &'static str, title: &str, goal: Goal, name: &str, scale: f64) {
        let values = self.samples.get(name).map(|s| s.values.iter().map(|v| v * scale));
        if let Some(value) = values.and_then(Summary::of) {
            self.add(group, title, goal, value);
        }
    }

    fn start(&mut self) {
        let title = "4 PEs, start to end, milliseconds";
        self.absolute("Jobs", title, Goal::AtMost(60.0), "hello@4", 1.0);
        let title = "barrier of 16 PEs on 2 cores, microseconds";
        self.absolute("Jobs", title, Goal::None, "barrier_oversubscribed@16", 1e-3);
    }

    fn words(&mut self) {
        let group = "Words: time / time of a plain store or load through a function call";
        let goal = Goal::AtMost(2.0);
        for place in ["heap", "static"] {
            for (operation, call, reference) in [
                ("p", "shmem_long_p", "store"),
                ("g", "shmem_long_g", "load"),
                ("putmem8", "shmem_putmem of 8 bytes", "store"),
                ("getmem8", "shmem_getmem of 8 bytes", "load"),
                ("long_put1", "shmem_long_put of 1", "store"),
                ("long_get1", "shmem_long_get of 1", "load"),
            ] {
                let over = format!("{operation}.{place}@2");
                let under = format!("{reference}.{place}@2");
                self.ratio(group, format!("{call}, {place}"), goal, &[&over], &[&under]);
            }
            for (reference, plain, text) in
                [("move_to", "store", "to the peer"), ("move_from", "load", "from the peer")]
            {
                let (over, under) =
                    (format!("{reference}.{place}@2"), format!("{plain}.{place}@2"));
                let title = format!("a plain word moved {text} by a function, {place}");
                self.ratio(group, title, Goal::None, &[&over], &[&under]);
            }
        }
    }

    fn copies(&mut self) {
        let group = "Copies: bandwidth / that of the best plain copy";
        for (operation, size, text) in COPIES {
            let Some(best) = self.best_copy(size) else { continue };
            // The cost of smaller ones is that of the call.
            let judged = operation == "put" && size == 4194304;
            let goal = if judged { Goal::AtLeast(0.95) } else { Goal::None };
            for place in ["heap", "static"] {
                let under = format!("{operation}.{place}.{size}@2");
                let title = format!("{operation}, {place}, {text}");
                self.ratio(group, title, goal, &[&best], &[&under]);
            }
        }
        let group = "Copies: time static / time heap";
        for (operation, size, text) in COPIES {
            let over = format!("{operation}.static.{size}@2");
            let under = format!("{operation}.heap.{size}@2");
            let title = format!("{operation}, {text}");
            self.ratio(group, title, Goal::AtMost(1.05), &[&over], &[&under]);
        }
    }

    /// The faster one of the two plain copies.
    fn best_copy(&self, size: u32) -> Option<String> {
        let median = |name: &String| Summary::of(self.samples.get(name)?.values.iter().copied());
        let names = [format!("memcpy.{size}@2"), format!("streaming.{size}@2")];
        let (cached, streaming) = (median(&names[0])?, median(&names[1])?);
        let [cached_name, streaming_name] = names;
        Some(if cached.median <= streaming.median { cached_name } else { streaming_name })
    }

    fn atomics(&mut self) {
        let group = "Atomics: time / time of lock xadd on the same mapping";
        for (pes, how, text) in [
            (2, "alone", "by one PE alone"),
            (2, "together", "by 2 PEs at once"),
            (4, "together", "by 4 PEs at once"),
        ] {
            for (name, call, goal) in [
                ("fetch_add", "shmem_long_atomic_fetch_add", Goal::AtMost(1.3)),
                ("add", "shmem_long_atomic_add", Goal::None),
            ] {
                let over = format!("{name}.{how}@{pes}");
                let under = format!("xadd.{how}@{pes}");
                self.ratio(group, format!("{call} {text}"), goal, &[&over], &[&under]);
            }
            let over = format!("xadd_call.{how}@{pes}");
            let under = format!("xadd.{how}@{pes}");
            let title = format!("the instruction in a function of a shared library, {text}");
            self.ratio(group, title, Goal::None, &[&over], &[&under]);
        }
    }

    fn barriers(&mut self) {
        let group = "Barriers: time / log2(PEs) one-way trips of a cache line";
        for pes in [2, 4] {
            let under = format!("log2_trips@{pes}");
            for call in ["barrier_all", "sync_all"] {
                let over = format!("{call}@{pes}");
                let title = format!("shmem_{call}, {pes} PEs");
                self.ratio(group, title, Goal::AtMost(2.0), &[&over], &[&under]);
            }
        }
    }

    fn collectives(&mut self) {
        let group = "Collectives on one host: time / time of a plain program of the same algorithm";
        for pes in [2, 4] {
            for (size, text, limit) in
                [("8", "8 B", 1.3), ("4k", "4 KiB", 1.2), ("256k", "256 KiB", 1.2)]
            {
                for name in ["broadcast", "sum", "fcollect", "alltoall", "collect"] {
                    let over = format!("{name}_{size}@{pes}");
                    let under = format!("plain_{name}_{size}@{pes}");
                    let title = format!("{name}, {text}, {pes} PEs");
                    self.ratio(group, title, Goal::AtMost(limit), &[&over], &[&under]);
                }
            }
        }
    }

    fn overlap(&mut self) {
        let group = "Non-blocking operations within a host: time / time of the blocking one";
        for name in ["put", "get"] {
            for (size, text) in
                [("64k", "64 KiB"), ("256k", "256 KiB"), ("1m", "1 MiB"), ("16m", "16 MiB")]
            {
                let place = |kind: &str| format!("{kind}{name}_{size}@2");
                let title = format!("{name} of {text} beside a computation, what is left of it");
                let (over, under) = (place("left_"), place("blocking_"));
                self.ratio(group, title, Goal::None, &[&over], &[&under]);
                for (kind, pace) in [("", "call after call"), ("rare_", "after a pause")] {
                    let title = format!("{name} of {text} and quiet, {pace}");
                    let under = place(if kind.is_empty() { "blocking_" } else { "rare_blocking_" });
                    self.ratio(group, title, Goal::AtMost(1.05), &[&place(kind)], &[&under]);
                }
            }
        }
    }

    fn across_hosts(&mut self) {
        let group = "Emulated NTB links, as fast as memory allows";
        for (place, distance, text) in [
            ("2x2", "neighbour", "2 hosts"),
            ("4x4", "neighbour", "4 hosts, neighbour"),
            ("4x4", "far", "4 hosts, two links"),
        ] {
            let name = |what: &str| format!("{distance}.{what}@{place}");
            for (what, title) in [
                ("one_way", "8-byte put, one way, microseconds"),
                ("message", "8-byte puts, quiet after 64, microseconds each"),
            ] {
                self.absolute(group, &format!("{title}, {text}"), Goal::None, &name(what), 1e-3);
            }
            // Relayed transfers are copied at every host.
            let goal = if distance == "neighbour" { Goal::AtLeast(0.7) } else { Goal::None };
            for (what, title) in [("put_1m", "1 MiB put"), ("stream_1m", "8 puts of 1 MiB")] {
                let title = format!("{title}, bandwidth / that of a plain shared copy, {text}");
                self.ratio(group, title, goal, &[&name("copy_1m")], &[&name(what)]);
            }
        }
        let group = "Emulated NTB links, modelled: puts to the neighbour / ceiling of one link";
        // With fewer than 4 hosts a put of 1 MiB goes over two links.
        for (place, size, text, goal) in [
            ("2x2m", "64k", "64 puts of 64 KiB, 2 hosts", 0.95),
            ("4x4m", "64k", "64 puts of 64 KiB, 4 hosts", 0.95),
            ("4x4m", "1m", "8 puts of 1 MiB, 4 hosts", 0.97),
        ] {
            let over = format!("neighbour.ceiling_{size}@{place}");
            let under = format!("neighbour.stream_{size}@{place}");
            self.ratio(group, text, Goal::AtLeast(goal), &[&over], &[&under]);
        }
    }

    fn contexts(&mut self) {
        let group = "Contexts: speed-up";
        for threads in [2, 4] {
            for (kind, text) in
                [("private_context", "private contexts"), ("stores", "plain stores")]
            {
                let over = format!("{kind}.1@2");
                let under = format!("{kind}.{threads}@2");
                let title = format!("message rate of {threads} threads / of 1, {text}");
                self.ratio(group, title, Goal::None, &[&over], &[&under]);
            }
            let (a, b) = (format!("private_context.{threads}@2"), format!("stores.{threads}@2"));
            self.ratio(
                group,
                format!("scaling to {threads} threads / scaling of plain stores"),
                Goal::AtLeast(0.9),
                &["private_context.1@2", &b],
                &[&a, "stores.1@2"],
            );
        }
        let places =
            [("2", ""), ("2x2", ", over an NTB link"), ("2x2m", ", over an NTB link modelled")];
        for (place, text) in places {
            for kind in ["context", "non_blocking", "pipelined"] {
                let over = format!("mandelbrot.no_context@{place}");
                let under = format!("mandelbrot.{kind}@{place}");
                let title =
                    format!("Mandelbrot, {} / without contexts{text}", kind.replace('_', "-"));
                // Only latency can be hidden; on shared memory there is next to none.
                let judged = place == "2x2m" && kind == "pipelined";
                let goal = if judged { Goal::AtLeast(1.25) } else { Goal::None };
                self.ratio(group, title, goal, &[&over], &[&under]);
            }
        }
        let places =
            [("4", ""), ("4x4", ", over NTB links"), ("4x4m", ", over NTB links modelled")];
        for (place, text) in places {
            for kind in ["one_context", "two_contexts"] {
                let over = format!("key_exchange.blocking@{place}");
                let under = format!("key_exchange.{kind}@{place}");
                let kind = kind.replace('_', " ");
                let title = format!("key exchange, non-blocking, {kind} / blocking{text}");
                self.ratio(group, title, Goal::None, &[&over], &[&under]);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_best_copy_is_the_reference_and_missing_series_leave_no_figure() {
        let mut samples = Samples::default();
        let text = "sample put.heap.4194304 ns 10 10\nsample memcpy.4194304 ns 20 20\n\
                    sample streaming.4194304 ns 9 9\n";
        samples.read(text, "2").unwrap();
        let figures = figures(&samples);
        assert_eq!(figures.len(), 1);
        assert!((figures[0].value.median - 0.9).abs() < 1e-9);
        assert_eq!(figures[0].goal.met(figures[0].value.median), Some(false));
    }
}
