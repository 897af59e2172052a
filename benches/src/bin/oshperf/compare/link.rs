// SPDX-License-Identifier: Apache-2.0
//! Ceilings of links by computation: what the model of the link alone allows, or the rate of a real one.

use crate::catalogue::Test;
use tombolo_transports::ntb::port::LinkTiming;

/// Bytes of the TLPs that a processor's stores become.
const TLP: u64 = 64;

/// In the unit of the test; None where nothing comparable is known. `hops` links lie between the PEs.
pub fn ceiling(link: &LinkTiming, hops: u32, test: &Test, x: u64) -> Option<f64> {
    let wire_ns = link.wire_ps(x, x.div_ceil(TLP)) as f64 / 1e3;
    let way_ns = f64::from(link.propagation_ns) * f64::from(hops);
    match test.name {
        // There and back: with the data, or the word that all has arrived.
        "put" | "get" => Some((wire_ns + 2.0 * way_ns) / 1e3),
        "fetch_add" | "add" | "compare_swap" => Some(2.0 * way_ns / 1e3),
        "signal" => Some((wire_ns + way_ns) / 1e3),
        "rate" => Some(x as f64 / wire_ns * 1e3),
        "bibw" => Some(2.0 * x as f64 / wire_ns * 1e3),
        _ => None,
    }
}

/// The same by the rate alone, for links of which nothing else is known. A DMA engine makes TLPs as large as they may
/// be.
pub fn rate(link: &LinkTiming, test: &Test, x: u64) -> Option<f64> {
    let wire_ns = link.wire_ps(x, x.div_ceil(link.max_payload.into())) as f64 / 1e3;
    match test.name {
        "rate" => Some(x as f64 / wire_ns * 1e3),
        "bibw" => Some(2.0 * x as f64 / wire_ns * 1e3),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn large_puts_run_at_the_rate_of_the_link() {
        let link = LinkTiming::default();
        let of = |name, x| ceiling(&link, 1, Test::find(name).unwrap(), x).unwrap();
        let rate = link.ceiling_bytes_per_s(64) / 1e6;
        assert!((of("rate", 1 << 20) / rate - 1.0).abs() < 1e-3);
        assert!((of("bibw", 1 << 20) / of("rate", 1 << 20) - 2.0).abs() < 1e-9);
        assert!(of("put", 8) > of("signal", 8));
        assert!(ceiling(&link, 1, Test::find("barrier").unwrap(), 8).is_none());
        // With the largest payloads there are fewer headers.
        let largest = super::rate(&link, Test::find("rate").unwrap(), 1 << 20).unwrap();
        assert!((largest / (link.ceiling_bytes_per_s(256) / 1e6) - 1.0).abs() < 1e-3);
        assert!(super::rate(&link, Test::find("put").unwrap(), 8).is_none());
    }
}
