// SPDX-License-Identifier: Apache-2.0
//! Trials of providers, good and bad.

use super::choose::{Offers, Wish};
use super::rdm::Rdm;
use super::sys;
use crate::network::trial;

/// Both ends of a trial of a provider, if it is there.
fn ends(provider: &str, atomics: bool) -> Option<(Rdm, Rdm)> {
    let library = sys::installed()?;
    let wish = Wish { provider: provider.into(), one_machine: true, atomics, ..Wish::default() };
    let offers = Offers::find(library, &wish).ok()?;
    // SAFETY: of the offers, which are only read.
    let open = || unsafe { Rdm::open(library, offers.info(&offers.candidates[0]), 3, 16, atomics) };
    let open = || open().unwrap_or_else(|why| panic!("{provider}: {why}"));
    Some((open(), open()))
}

#[test]
fn providers_that_deliver_pass() {
    for provider in ["net", "tcp;ofi_rxm", "udp;ofi_rxd", "sockets", "shm"] {
        if let Some((near, far)) = ends(provider, false) {
            assert_eq!(trial::run(near, far), Ok(()), "{provider}");
        }
    }
}

#[test]
fn completions_that_are_not_delivery_are_found_out() {
    if let Some((mut near, far)) = ends("tcp;ofi_rxm", false) {
        // What a provider does that takes "has left" for "has arrived".
        near.write_flags = sys::COMPLETION;
        let why = trial::run(near, far).unwrap_err();
        assert!(why.contains("before its data have arrived"), "{why}");
    }
}

fn carries_out_amos(provider: &str) {
    if let Some((near, far)) = ends(provider, true) {
        assert!([4, 8].iter().all(|size| near.amos.is_sufficient(*size)));
        assert_eq!(trial::run(near, far), Ok(()));
    }
}

#[test]
fn tcp_carries_out_amos() {
    carries_out_amos("tcp;ofi_rxm");
}

#[test]
fn shared_memory_carries_out_amos() {
    carries_out_amos("shm");
}
