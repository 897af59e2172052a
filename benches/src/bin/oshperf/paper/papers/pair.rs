// SPDX-License-Identifier: Apache-2.0
//! Two PCs.

use super::*;

pub const PAPER: Paper = Paper {
    title: "OpenSHMEM between two PCs (Joo & Choi, 2016), the programs of the paper",
    set_up: "Published: two PCs, PEX8749 switch, DMA engines; the programs are told to give right results, \
             without times. Here: two PEs on one host, and on two emulated hosts whose link takes the time \
             of Gen3 x8; every result is checked, and a wrong one ends the job.",
    jobs: || Jobs::all(vec![here("paper_pair", 2, "2"), ring("paper_pair", 2, "2x2m")]),
    rows: |found| {
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
                let ms = found.median(&format!("pair.{program}@{place}"));
                let here = ms.map(|ms| format!("right result, {ms:.3} ms"));
                rows.extend(
                    here.map(|here| row(format!("{about}, {where_}"), "right result", here, mark)),
                );
            }
        }
        rows
    },
};
