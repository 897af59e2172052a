// SPDX-License-Identifier: Apache-2.0
//! The papers: jobs, published figures, and what of ours stands beside them.

use super::{Job, Mark, Name, Paper, Row};
use crate::against::samples::Samples;
use tombolo_transports::ntb::port::LinkTiming;

const PLAIN: Job =
    Job { program: "", pes: 2, hosts: None, environment: &[], argument: None, place: "" };

/// On one host.
const fn here(program: &'static str, pes: u32, place: &'static str) -> Job {
    Job { program, pes, place, ..PLAIN }
}

/// One PE on each of some emulated hosts whose links take their time.
const fn ring(program: &'static str, hosts: u32, place: &'static str) -> Job {
    Job { program, pes: hosts, hosts: Some((hosts, true)), place, ..PLAIN }
}

/// The jobs and figures of a paper.
pub fn of(name: Name) -> Paper {
    match name {
        Name::Ring => RING,
        Name::Pair => PAIR,
        Name::Hybrid => HYBRID,
        Name::Tuning => TUNING,
        Name::Contexts => CONTEXTS,
    }
}

/// The median of a series.
fn median(samples: &Samples, name: &str) -> Option<f64> {
    crate::stats::median(samples.get(name)?.values.iter().copied())
}

/// The median of one series over another, batch by batch.
fn ratio(samples: &Samples, over: &str, under: &str) -> Option<f64> {
    Some(samples.ratio(&[over.to_owned()], &[under.to_owned()])?.median)
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

const RING: Paper = Paper {
    title: "OpenSHMEM over a switchless ring of NTB links (Lim & Cha), figures 4 to 7",
    set_up: "Published: 3 to 5 hosts (i7-8700K), PEX8749/PEX8733, Gen3 x8, DMA, interrupts. Here: hosts and \
             links are emulated on one machine, links take the time of Gen3 x8, processors copy and poll; a ring \
             of h hosts has both directions in use, so that the farthest host is h/2 links away and not h-1. \
             Each host needs two processors, one for its PE and one for its links: with fewer, figures \
             are those of the scheduler.",
    jobs: &[
        ring("paper_ring", 2, "2x2m"),
        ring("paper_ring", 3, "3x3m"),
        ring("paper_ring", 5, "5x5m"),
        Job { environment: &["SHMEM_NTB_LANES=1"], ..ring("paper_ring", 2, "2x2m.1lane") },
        Job { environment: &["SHMEM_NTB_LANES=2"], ..ring("paper_ring", 2, "2x2m.2lanes") },
        Job { environment: &["SHMEM_NTB_LANES=4"], ..ring("paper_ring", 2, "2x2m.4lanes") },
    ],
    rows: |samples| {
        let mut rows = Vec::new();
        let rate = |name: &str, bytes: u32| {
            median(samples, name).map(|us| {
                let rate = f64::from(bytes) / us;
                let raw = raw();
                format!("{rate:.0} MB/s, {:.0} % of {raw:.0}", 100.0 * rate / raw)
            })
        };
        for (bytes, published) in
            [(4096, "-"), (65536, "-"), (1 << 20, "4500-5000 MB/s, 80-85 % of 6000")]
        {
            let one = rate(&format!("ring.one_{bytes}@2x2m"), bytes);
            rows.extend(one.map(|here| {
                row(
                    format!("figure 4: put of {bytes} B to the neighbour"),
                    published,
                    here,
                    Mark::Modelled,
                )
            }));
        }
        for (place, hosts) in [("3x3m", 3), ("5x5m", 5)] {
            let all = rate(&format!("ring.all_{}@{place}", 1 << 20), 1 << 20);
            let what = format!("figure 4b: the same of 1 MiB, all of {hosts} hosts sending");
            rows.extend(
                all.map(|here| {
                    row(what, "near figure 4's (both directions)", here, Mark::Modelled)
                }),
            );
        }
        for (more, fewer, published) in [
            ("2lanes", "1lane", "-38 to -45 % (1 to 2 threads)"),
            ("4lanes", "2lanes", "-12 to -25 % (2 to 4 threads)"),
        ] {
            let name = |lanes: &str| format!("ring.one_65536@2x2m.{lanes}");
            let here = ratio(samples, &name(more), &name(fewer));
            let what = format!("figures 5, 6: time of a 64 KiB put, {fewer} to {more}");
            rows.extend(here.map(|ratio| row(what, published, change(ratio), Mark::Modelled)));
        }
        for bytes in [65536, 1 << 20] {
            let name = |place: &str| format!("ring.far_{bytes}@{place}");
            let here = ratio(samples, &name("5x5m"), &name("3x3m"));
            let what = format!("figure 7: acknowledged put of {bytes} B, one link more");
            rows.extend(here.map(|ratio| {
                row(what, "+22 to +36 % for each host", change(ratio), Mark::Modelled)
            }));
        }
        rows
    },
};

const PAIR: Paper = Paper {
    title: "OpenSHMEM between two PCs (Joo & Choi, 2016), the programs of the paper",
    set_up: "Published: two PCs, PEX8749 switch, DMA engines; the programs are told to give right results, \
             without times. Here: two PEs on one host, and on two emulated hosts whose link takes the time \
             of Gen3 x8; every result is checked, and a wrong one ends the job.",
    jobs: &[here("paper_pair", 2, "2"), ring("paper_pair", 2, "2x2m")],
    rows: |samples| {
        let mut rows = Vec::new();
        for (program, about) in [
            ("rotget", "rotget: 65536 doubles from the next PE"),
            ("dip", "dip: 130000 times shmem_double_p"),
            ("randput", "randput: 20000 puts of random length to random places"),
            ("matmul", "matmul: 20 x 20, split by columns"),
        ] {
            for (place, where_, mark) in
                [("2", "one host", Mark::Measured), ("2x2m", "two hosts", Mark::Modelled)]
            {
                let ms = median(samples, &format!("pair.{program}@{place}"));
                let here = ms.map(|ms| format!("right result, {ms:.3} ms"));
                rows.extend(
                    here.map(|here| row(format!("{about}, {where_}"), "right result", here, mark)),
                );
            }
        }
        rows
    },
};

const HYBRID: Paper = Paper {
    title: "Designs for several cores on a host (MVAPICH2-X), 4 PEs",
    set_up: "Published: against the GASNet reference on clusters with 16 cores a node, up to 96 cores for \
             barriers and 64 PEs for collectives. Here: 4 PEs on one host, against the same done in the \
             program by one PE at a time; sockets, caches and PEs are those of this machine.",
    jobs: &[here("paper_hybrid", 4, "4")],
    rows: |samples| {
        let mut rows = Vec::new();
        let mut compare = |what: String, ours: String, other: String, published| {
            let here = ratio(samples, &format!("{ours}@4"), &format!("{other}@4"));
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
        let pairs = median(samples, "hybrid.pairs_8@4");
        rows.extend(pairs.map(|ns| {
            row(
                "rate of 2 pairs, 8 B",
                "-",
                format!("{:.1} million puts/s", 1e3 / ns),
                Mark::Measured,
            )
        }));
        let search = median(samples, "hybrid.bfs@4");
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

const TUNING: Paper = Paper {
    title: "A multilevel model and self-tuning (SHMEM+): table 6, gather, image retrieval",
    set_up: "Published: FPGA and CPU clusters, packet sizes tuned at shmem_init. Here: 4 PEs on one host, and on \
             two emulated hosts; tuned is SHMEM_TUNE=auto after measuring, untuned SHMEM_TUNE=off; images are \
             made by a formula, and what is found is checked.",
    jobs: &[
        Job { environment: &["SHMEM_TUNE=always"], ..here("paper_tuning", 4, "4") },
        Job { environment: &["SHMEM_TUNE=off"], ..here("paper_tuning", 4, "4.untuned") },
        Job {
            hosts: Some((2, false)),
            environment: &["SHMEM_TUNE=always"],
            ..here("paper_tuning", 4, "4x2")
        },
        Job {
            hosts: Some((2, false)),
            environment: &["SHMEM_TUNE=off"],
            ..here("paper_tuning", 4, "4x2.untuned")
        },
    ],
    rows: |samples| {
        let mut rows = Vec::new();
        let places = [("4", "one host", Mark::Measured), ("4x2", "two hosts", Mark::Emulated)];
        for (place, where_, mark) in places {
            for bytes in [64, 1024, 16384, 262_144] {
                let name = |tuned: &str| format!("tuned.put_{bytes}@{place}{tuned}");
                let (tuned, plain) =
                    (median(samples, &name("")), median(samples, &name(".untuned")));
                let here = tuned.zip(plain).map(|(tuned, plain)| change(plain / tuned));
                let what = format!("table 6: bandwidth of puts of {bytes} B, tuned, {where_}");
                rows.extend(here.map(|here| row(what, "+5 to +104 %", here, mark)));
            }
            for bytes in [64, 16384, 262_144] {
                let all = ["get", "put", "tree"]
                    .map(|way| (way, median(samples, &format!("gather.{way}_{bytes}@{place}"))));
                rows.extend(best(&all, "us").map(|here| {
                    row(
                        format!("gather of {bytes} B, {where_}"),
                        "the best by model, within 9.4 %",
                        here,
                        mark,
                    )
                }));
            }
            let all = ["get", "put", "tree"]
                .map(|way| (way, median(samples, &format!("images.{way}@{place}"))));
            rows.extend(best(&all, "ms").map(|here| {
                row(format!("image retrieval, {where_}"), "42 % faster by the pattern", here, mark)
            }));
        }
        rows
    },
};

/// The fastest of several ways, and how much faster than the slowest it is.
fn best(all: &[(&str, Option<f64>)], unit: &str) -> Option<String> {
    let mut known: Vec<(&str, f64)> =
        all.iter().filter_map(|(way, time)| Some((*way, (*time)?))).collect();
    known.sort_by(|a, b| a.1.total_cmp(&b.1));
    let (first, last) = (known.first()?, known.last()?);
    let gain = (1.0 - first.1 / last.1) * 100.0;
    Some(format!("{} {:.4} {unit}, {gain:.0} % below {}", first.0, first.1, last.0))
}

const fn mandelbrot(
    hosts: Option<(u32, bool)>,
    argument: &'static str,
    place: &'static str,
) -> Job {
    Job { program: "mandelbrot", pes: 2, hosts, environment: &[], argument: Some(argument), place }
}

const CONTEXTS: Paper = Paper {
    title: "Contexts (Dinan & Flajslik): Mandelbrot with work stealing, key exchange of NAS IS",
    set_up: "Published: 16 nodes, InfiniBand, 11 threads each. Here: 2 PEs with 1, 2 and 4 threads, 4 PEs for the \
             keys, on one host and over emulated links that take the time of Gen3 x8; gains need latency to \
             hide, and a processor for each thread and each service thread.",
    jobs: &[
        mandelbrot(None, "1", "2, 1 thread"),
        mandelbrot(None, "2", "2, 2 threads"),
        mandelbrot(None, "4", "2, 4 threads"),
        mandelbrot(Some((2, true)), "1", "2x2m, 1 thread"),
        mandelbrot(Some((2, true)), "2", "2x2m, 2 threads"),
        mandelbrot(Some((2, true)), "4", "2x2m, 4 threads"),
        here("key_exchange", 4, "4"),
        Job { hosts: Some((4, true)), ..here("key_exchange", 4, "4x4m") },
    ],
    rows: |samples| {
        let mut rows = Vec::new();
        let places = [
            ("2, 1 thread", "one host, 1 thread", Mark::Measured),
            ("2, 2 threads", "one host, 2 threads", Mark::Measured),
            ("2, 4 threads", "one host, 4 threads", Mark::Measured),
            ("2x2m, 1 thread", "two hosts, 1 thread", Mark::Modelled),
            ("2x2m, 2 threads", "two hosts, 2 threads", Mark::Modelled),
            ("2x2m, 4 threads", "two hosts, 4 threads", Mark::Modelled),
        ];
        for (place, words, mark) in places {
            for (kind, about, published) in [
                ("context", "a context per thread", "+13 % (11 threads)"),
                ("non_blocking", "and non-blocking puts", "+18 %"),
                ("pipelined", "and two contexts per thread", "+25 %"),
            ] {
                let name = |kind: &str| format!("mandelbrot.{kind}@{place}");
                let here = ratio(samples, &name("no_context"), &name(kind));
                let what = format!("Mandelbrot, {about}, {words}");
                rows.extend(here.map(|ratio| row(what, published, change(ratio), mark)));
            }
        }
        for (place, words, mark) in
            [("4", "one host", Mark::Measured), ("4x4m", "four hosts", Mark::Modelled)]
        {
            let name = |kind: &str| format!("key_exchange.{kind}@{place}");
            let here = ratio(samples, &name("one_context"), &name("two_contexts"));
            let what = format!("key exchange, separate contexts for gets and puts, {words}");
            rows.extend(here.map(|ratio| row(what, "+35 % (16 PEs)", change(ratio), mark)));
        }
        rows
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn figures_stand_beside_what_was_published() {
        let mut samples = Samples::default();
        samples.add("mandelbrot.no_context@2, 1 thread", "ms", [2.0, 2.2]);
        samples.add("mandelbrot.context@2, 1 thread", "ms", [1.0, 1.1]);
        let rows = (CONTEXTS.rows)(&samples);
        assert_eq!((rows.len(), rows[0].here.as_str()), (1, "+100 %"));
        samples.add("ring.one_1048576@2x2m", "us", [200.0]);
        let share = 100.0 * 1_048_576.0 / 200.0 / raw();
        assert!((RING.rows)(&samples)[0].here.starts_with(&format!("5243 MB/s, {share:.0} %")));
        assert_eq!(
            best(&[("get", Some(4.0)), ("put", Some(2.0)), ("tree", None)], "us").unwrap(),
            "put 2.0000 us, 50 % below get"
        );
        assert_eq!(best(&[("get", None)], "us"), None);
    }
}
