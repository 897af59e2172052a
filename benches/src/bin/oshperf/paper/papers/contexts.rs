// SPDX-License-Identifier: Apache-2.0
//! Contexts.

use super::*;
use tombolo_core::config::{Environment, Transports};

/// Where the programs run: names of the jobs, and what is said of them.
#[derive(Clone, Copy)]
struct Places {
    words: &'static str,
    mark: Mark,
    threads: [&'static str; 3],
    classes: [&'static str; 2],
}

/// Hosts, environment and places.
type SetUp = (Option<(u32, bool)>, &'static [&'static str], Places);

const SET_UPS: [SetUp; 4] = [
    (
        None,
        &[],
        Places {
            words: "one host",
            mark: Mark::Measured,
            threads: ["2.1thread", "2.2threads", "2.4threads"],
            classes: ["4.S", "4.W"],
        },
    ),
    (
        Some((2, true)),
        &[],
        Places {
            words: "modelled links",
            mark: Mark::Modelled,
            threads: ["2x2m.1thread", "2x2m.2threads", "2x2m.4threads"],
            classes: ["4x4m.S", "4x4m.W"],
        },
    ),
    (
        Some((2, false)),
        &["SHMEM_TRANSPORTS=shm,tcp"],
        Places {
            words: "TCP within the machine",
            mark: Mark::Measured,
            threads: ["2x2.tcp.1thread", "2x2.tcp.2threads", "2x2.tcp.4threads"],
            classes: ["4x4.tcp.S", "4x4.tcp.W"],
        },
    ),
    (
        Some((2, false)),
        &[LIBFABRIC],
        Places {
            words: "libfabric within the machine",
            mark: Mark::Measured,
            threads: ["2x2.ofi.1thread", "2x2.ofi.2threads", "2x2.ofi.4threads"],
            classes: ["4x4.ofi.S", "4x4.ofi.W"],
        },
    ),
];

/// What makes jobs use libfabric, which not every machine has.
const LIBFABRIC: &str = "SHMEM_TRANSPORTS=shm,ofi";

/// Why libfabric cannot be used here, if so.
fn no_libfabric() -> Option<String> {
    let mut config = tombolo::variables::readable(Environment::of_process());
    config.transports = Transports::Only(vec!["ofi".into()]);
    let mut survey = tombolo::transports::survey(&config).into_iter();
    survey.find(|survey| survey.name == "ofi")?.state.err()
}

/// The jobs, without those over libfabric where there is a reason.
fn jobs(no_libfabric: Option<String>) -> Jobs {
    let mut jobs = Jobs::all(Vec::new());
    for (hosts, environment, places) in SET_UPS {
        if let Some(why) = no_libfabric.as_ref().filter(|_| environment.contains(&LIBFABRIC)) {
            jobs.not_here.push(format!("all over libfabric: {why}"));
            continue;
        }
        for (threads, place) in ["1", "2", "4"].into_iter().zip(places.threads) {
            jobs.run.push(Job {
                hosts,
                environment: environment.to_vec(),
                arguments: threads.into(),
                ..here("mandelbrot", 2, place)
            });
        }
        let hosts = hosts.map(|(_, modelled)| (4, modelled));
        for (class, place) in ["S", "W"].into_iter().zip(places.classes) {
            jobs.run.push(Job {
                hosts,
                environment: environment.to_vec(),
                arguments: class.into(),
                ..here("integer_sort", 4, place)
            });
        }
    }
    jobs
}

pub const PAPER: Paper = Paper {
    title: "Contexts (Dinan & Flajslik): Mandelbrot with work stealing, the integer sort of NPB",
    set_up: "Published: 16 nodes, InfiniBand, 11 threads each. Here: 2 PEs with 1, 2 and 4 threads, 4 PEs for the \
             sort, on one host, over emulated links that take the time of Gen3 x8, and over TCP and libfabric \
             between emulated hosts of this machine; gains need latency to hide, and a processor for each thread and each \
             service thread. The sort is class S and W of NPB, whose verification it passes.",
    jobs: || jobs(no_libfabric()),
    rows: |found| {
        let mut rows = Vec::new();
        for (_, _, Places { words, mark, threads, classes }) in SET_UPS {
            for (place, count) in threads.into_iter().zip(["1 thread", "2 threads", "4 threads"]) {
                for (kind, about, published) in [
                    ("context", "a context per thread", "+13 % (11 threads)"),
                    ("non_blocking", "and non-blocking puts", "+18 %"),
                    ("pipelined", "and two contexts per thread", "above +25 %"),
                    ("ahead", "and rows taken ahead by a non-blocking fetch", "-"),
                ] {
                    let name = |kind: &str| format!("mandelbrot.{kind}@{place}");
                    let here = found.ratio(&name("no_context"), &name(kind));
                    let what = format!("Mandelbrot, {about}, {words}, {count}");
                    rows.extend(here.map(|ratio| row(what, published, change(ratio), mark)));
                }
            }
            for (place, class) in classes.into_iter().zip(["S", "W"]) {
                for (part, about) in [("exchange_", "exchange of keys"), ("", "whole ranking")] {
                    let name = |kind: &str| format!("integer_sort.{part}{kind}@{place}");
                    let here = found.ratio(&name("one_context"), &name("two_contexts"));
                    let what = format!(
                        "integer sort {class}, {about}, contexts for gets and puts, {words}"
                    );
                    let published = if part.is_empty() { "-" } else { "+35 % (16 PEs)" };
                    rows.extend(here.map(|ratio| row(what, published, change(ratio), mark)));
                }
            }
        }
        rows
    },
};

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_needs_libfabric_is_left_out_where_there_is_none() {
        let (with, without) = (jobs(None), jobs(Some("no library".into())));
        assert_eq!((with.run.len(), with.not_here.len()), (20, 0));
        assert_eq!(without.not_here, ["all over libfabric: no library"]);
        assert_eq!(without.run.len(), 15);
        assert!(without.run.iter().all(|job| !job.environment.contains(&LIBFABRIC)));
    }
}
