// SPDX-License-Identifier: Apache-2.0
//! Tuning by a model.

use super::*;

pub const PAPER: Paper = Paper {
    title: "A multilevel model and self-tuning (SHMEM+): table 6, gather, image retrieval",
    set_up: "Published: FPGA and CPU clusters, packet sizes tuned at shmem_init. Here: 4 PEs on one host, and on \
             two emulated hosts; tuned is SHMEM_TUNE=auto after measuring, untuned SHMEM_TUNE=off; images are \
             made by a formula, and what is found is checked.",
    jobs: || {
        let job = |hosts, tune, place| Job {
            hosts,
            environment: vec![tune],
            ..here("paper_tuning", 4, place)
        };
        let two = Some((2, false));
        Jobs::all(vec![
            job(None, "SHMEM_TUNE=always", "4"),
            job(None, "SHMEM_TUNE=off", "4.untuned"),
            job(two, "SHMEM_TUNE=always", "4x2"),
            job(two, "SHMEM_TUNE=off", "4x2.untuned"),
        ])
    },
    rows: |found| {
        let mut rows = Vec::new();
        let places = [("4", "one host", Mark::Measured), ("4x2", "two hosts", Mark::Emulated)];
        for (place, where_, mark) in places {
            for bytes in [64, 1024, 16384, 262_144] {
                let name = |tuned: &str| format!("tuned.put_{bytes}@{place}{tuned}");
                let (tuned, plain) = (found.median(&name("")), found.median(&name(".untuned")));
                let here = tuned.zip(plain).map(|(tuned, plain)| change(plain / tuned));
                let what = format!("table 6: bandwidth of puts of {bytes} B, tuned, {where_}");
                rows.extend(here.map(|here| row(what, "+5 to +104 %", here, mark)));
            }
            for bytes in [64, 16384, 262_144] {
                let all = ["get", "put", "tree"]
                    .map(|way| (way, found.median(&format!("gather.{way}_{bytes}@{place}"))));
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
                .map(|way| (way, found.median(&format!("images.{way}@{place}"))));
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fastest_way_is_put_beside_the_slowest() {
        assert_eq!(
            best(&[("get", Some(4.0)), ("put", Some(2.0)), ("tree", None)], "us").unwrap(),
            "put 2.0000 us, 50 % below get"
        );
        assert_eq!(best(&[("get", None)], "us"), None);
    }
}
