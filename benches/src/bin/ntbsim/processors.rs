// SPDX-License-Identifier: Apache-2.0
//! What it costs that packets, slots and lanes are chosen by the constants of one processor.

use tombolo_transports::ntb::ring::choose::Choice;
use tombolo_transports::ntb::sim::{HostModel, Writer};

use crate::tune::{Load, Setup, chosen, in_parallel, loads, name, reached, setups};

/// Processors that differ from the one of [`HostModel::desktop`]: how many times its rate a copy
/// has, and how many times its time the handling of a packet takes.
const PROCESSORS: [(f64, f64); 7] =
    [(0.5, 1.0), (3.0, 1.0), (1.0, 0.5), (1.0, 2.0), (2.0, 0.5), (0.5, 2.0), (3.0, 0.25)];

/// Simulates all rings and loads of `tune` on other processors, with the settings that the
/// constants give and with those that the processor's own costs give; prints how many times the
/// rate of the second the first reach.
pub fn compare() -> Result<(), String> {
    say!("rate with the settings that the constants give / with those that the true costs give");
    say!("alone: one transfer at a time; others: sixteen from each PE\n");
    say!("copies  handling            5th of 100   median     mean   least");
    for (copies, handling) in PROCESSORS {
        let mut rows = Vec::new();
        for setup in setups() {
            let host = processor(setup.writer, copies, handling);
            let by_constants = chosen(&setup, &HostModel::desktop(setup.writer))?;
            let by_costs = chosen(&setup, &host)?;
            let row = |load| (setup, load, host, [by_constants.clone(), by_costs.clone()]);
            rows.extend(loads(&setup).into_iter().map(row));
        }
        let ratios = in_parallel(&rows, |(setup, load, host, choices)| {
            let [constants, costs] = choices.each_ref().map(|it| rate(setup, load, *host, it));
            Ok((*load, constants? / costs?))
        })?;
        for is_alone in [true, false] {
            let mut some: Vec<(Load, f64)> =
                ratios.iter().filter(|(load, _)| (load.depth == 1) == is_alone).copied().collect();
            some.sort_by(|a, b| a.1.total_cmp(&b.1));
            let (worst, least) = some[0];
            let mean = some.iter().map(|it| it.1).sum::<f64>() / some.len() as f64;
            say!(
                "x {copies:<4}  x {handling:<5} {:<10} {:>8.3} {:>8.3} {mean:>8.3} {least:>7.3} {}",
                if is_alone { "alone" } else { "others" },
                some[some.len() / 20].1,
                some[some.len() / 2].1,
                shown(&worst)
            );
        }
    }
    Ok(())
}

/// A host of such a processor.
fn processor(writer: Writer, copies: f64, handling: f64) -> HostModel {
    let mut host = HostModel::desktop(writer);
    host.copy_rate *= copies;
    host.crc_rate *= copies;
    let HostModel { look_ps, detect_ps, store_ps, submit_ps, touch_ps, dma_submit_ps, .. } =
        &mut host;
    for time in [look_ps, detect_ps, store_ps, submit_ps, touch_ps, dma_submit_ps] {
        *time = (*time as f64 * handling) as u64;
    }
    host
}

fn rate(setup: &Setup, load: &Load, host: HostModel, choice: &Choice) -> Result<f64, String> {
    let Choice { geometry, lanes, handling_bytes, .. } = choice;
    reached(setup, load, host, (*geometry, *lanes as u16, *handling_bytes))
}

fn shown(load: &Load) -> String {
    format!("{:?} {} {}", load.operation, load.size, name(load.pattern, load.depth))
}
