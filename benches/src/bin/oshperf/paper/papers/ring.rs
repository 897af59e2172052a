// SPDX-License-Identifier: Apache-2.0
//! The ring of hosts.

use super::*;

pub const PAPER: Paper = Paper {
    title: "OpenSHMEM over a switchless ring of NTB links (Lim & Cha), figures 4 to 7",
    set_up: "Published: 3 to 5 hosts (i7-8700K), PEX8749/PEX8733, Gen3 x8, DMA, interrupts. Here: hosts and \
             links are emulated on one machine, links take the time of Gen3 x8, processors copy and poll; a ring \
             of h hosts has both directions in use, so that the farthest host is h/2 links away and not h-1. \
             Each host needs two processors, one for its PE and one for its links: with fewer, times depend \
             on how the operating system shares processors.",
    jobs: || {
        let lanes = |variable, hosts, place| Job {
            environment: vec![variable],
            ..ring("paper_ring", hosts, place)
        };
        Jobs::all(vec![
            ring("paper_ring", 2, "2x2m"),
            ring("paper_ring", 3, "3x3m"),
            ring("paper_ring", 4, "4x4m"),
            ring("paper_ring", 5, "5x5m"),
            lanes("SHMEM_NTB_LANES=1", 2, "2x2m.1lane"),
            lanes("SHMEM_NTB_LANES=2", 2, "2x2m.2lanes"),
            lanes("SHMEM_NTB_LANES=4", 2, "2x2m.4lanes"),
            lanes("SHMEM_NTB_LANES=1", 3, "3x3m.1lane"),
            lanes("SHMEM_NTB_LANES=2", 3, "3x3m.2lanes"),
            lanes("SHMEM_NTB_LANES=4", 3, "3x3m.4lanes"),
        ])
    },
    rows: |found| {
        let mut rows = Vec::new();
        let rate = |name: &str, bytes: u32| {
            found.median(name).map(|us| {
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
        for (place, hosts) in [("3x3m", 3), ("4x4m", 4), ("5x5m", 5)] {
            for bytes in [4096, 65536, 1 << 20] {
                let all = rate(&format!("ring.all_{bytes}@{place}"), bytes);
                let what =
                    format!("figure 4b: the same of {bytes} B, all of {hosts} hosts sending");
                let published =
                    if bytes == 1 << 20 { "near figure 4's (both directions)" } else { "-" };
                rows.extend(all.map(|here| row(what, published, here, Mark::Modelled)));
            }
        }
        let threads = [
            ("2lanes", "1lane", "-38 to -45 % (1 to 2 threads)"),
            ("4lanes", "2lanes", "-12 to -25 % (2 to 4 threads)"),
        ];
        for (more, fewer, published) in threads {
            let places = [
                ("figure 5: time of an acknowledged put of 1 MiB, 3 hosts", "far_1048576", "3x3m"),
                ("figure 5: the same, all hosts sending", "far_all_1048576", "3x3m"),
                ("figure 6: time of a put of 64 KiB in a series", "one_65536", "2x2m"),
            ];
            for (what, sample, place) in places {
                let name = |lanes: &str| format!("ring.{sample}@{place}.{lanes}");
                let here = found.ratio(&name(more), &name(fewer));
                let what = format!("{what}, {fewer} to {more}");
                rows.extend(here.map(|ratio| row(what, published, change(ratio), Mark::Modelled)));
            }
        }
        for (sample, who) in [("far", ""), ("far_all", ", all hosts sending")] {
            for bytes in [4096, 65536, 1 << 20] {
                let name = |place: &str| format!("ring.{sample}_{bytes}@{place}");
                // The farthest host is one link away in rings of 2 and 3, two in rings of 4 and 5.
                let here = found.ratio(&name("4x4m"), &name("3x3m"));
                let what = format!("figure 7: acknowledged put of {bytes} B, one link more{who}");
                rows.extend(here.map(|ratio| {
                    row(what, "+22 to +36 % for each host", change(ratio), Mark::Modelled)
                }));
            }
        }
        rows
    },
};
