// SPDX-License-Identifier: Apache-2.0
//! Several cores on a host.

use super::*;

use crate::machine::Processor;

/// Jobs that measure the rate of pairs, and what is said of them.
const PAIRS: [(&str, &str); 4] =
    [("2", "1 pair"), ("4.pairs", "2 pairs"), ("8", "4 pairs"), ("16", "8 pairs")];

/// Where two PEs are, in words, and whether two processors are so placed.
type Placed = fn(&Processor, &Processor) -> bool;

const PLACES: [(&str, &str, Placed); 3] = [
    ("near", "a last-level cache shared", |a, b| a.package == b.package && a.cache == b.cache),
    ("far", "off cache: caches of their own, one socket", |a, b| {
        a.package == b.package && a.cache != b.cache
    }),
    ("sockets", "between sockets", |a, b| a.package != b.package),
];

fn jobs() -> Jobs {
    let pairs = |pes, place| Job { arguments: "pairs".into(), ..here("paper_hybrid", pes, place) };
    let mut jobs = Jobs::all(vec![
        here("paper_hybrid", 4, "4"),
        pairs(2, "2"),
        pairs(4, "4.pairs"),
        pairs(8, "8"),
        pairs(16, "16"),
    ]);
    let processors = Processor::usable();
    for (place, words, placed) in PLACES {
        let pair = |a: &Processor| {
            let b = processors.iter().find(|b| b.core != a.core && placed(a, b))?;
            Some(format!("between {} {}", a.number, b.number))
        };
        match processors.iter().find_map(pair) {
            Some(arguments) => jobs.run.push(Job { arguments, ..here("paper_hybrid", 2, place) }),
            None => jobs.not_here.push(format!(
                "puts, {words}: none of the {} processors that may be used are two such cores",
                processors.len()
            )),
        }
    }
    jobs
}

pub const PAPER: Paper = Paper {
    title: "Designs for several cores on a host (MVAPICH2-X), 4 PEs",
    set_up: "Published: against the GASNet reference on clusters with 16 cores a node, up to 96 cores for \
             barriers and 64 PEs for collectives. Here: 4 PEs on one host, against the same done in the \
             program by one PE at a time; sockets, caches and PEs are those of this machine.",
    jobs,
    rows: |found| {
        let mut rows = Vec::new();
        let mut compare = |what: String, ours: String, other: String, published| {
            let here = found.ratio(&format!("{ours}@4"), &format!("{other}@4"));
            rows.extend(here.map(|ratio| row(what, published, change(ratio), Mark::Measured)));
        };
        let named = |name: &str| format!("hybrid.{name}");
        compare(
            "put of 4 MiB, global data against heap".into(),
            named("global_4M"),
            named("heap_4M"),
            "80 and 49 % below the reference",
        );
        compare(
            "put of 64 B, global data against heap".into(),
            named("global_64"),
            named("heap_64"),
            "70 % below the reference",
        );
        compare(
            "barrier by flags against atomic operations".into(),
            named("barrier_flags"),
            named("barrier_atomics"),
            "-54 % (16 cores)",
        );
        for (kind, published) in [("broadcast", "-58 %"), ("collect", "-58 %"), ("reduce", "-76 %")]
        {
            for bytes in [64, 2048, 65536] {
                let what = format!("{kind} of {bytes} B against one PE at a time");
                compare(
                    what,
                    named(&format!("{kind}_{bytes}")),
                    named(&format!("plain_{kind}_{bytes}")),
                    published,
                );
            }
        }
        for (place, pairs) in PAIRS {
            let ns = found.median(&format!("hybrid.pairs_8@{place}"));
            let here = ns.map(|ns| format!("{:.1} million puts/s", 1e3 / ns));
            let what = format!("rate of 8-byte puts, PEs in {pairs}");
            rows.extend(here.map(|here| row(what, "-", here, Mark::Measured)));
        }
        for (place, words, _) in PLACES {
            for bytes in [8, 4096, 262_144, 2 << 20] {
                let us = found.median(&format!("hybrid.between_{bytes}@{place}"));
                let here = us.map(|us| format!("{us:.3} us"));
                let what = format!("put of {bytes} B, {words}");
                rows.extend(here.map(|here| row(what, "-", here, Mark::Measured)));
            }
        }
        let search = found.median("hybrid.bfs@4");
        rows.extend(search.map(|ms| {
            let rate = f64::from(16u32 << 11) / ms / 1e3;
            let here = format!("{ms:.2} ms, {rate:.2} million edges/s, tree verified");
            row(
                "Graph500-like search, scale 11",
                "47 and 57 % faster than the reference",
                here,
                Mark::Measured,
            )
        }));
        rows
    },
};
