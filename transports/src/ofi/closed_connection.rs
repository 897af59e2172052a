// SPDX-License-Identifier: Apache-2.0
//! Tests of [`super::sockets`] with the library itself: a connection is closed amidst an answer.

use super::choose::{Offers, Wish};
use super::rdm::Rdm;
use super::sys::{self, CLOSE, Library};
use crate::network::{Completion, Failure, Local, Network, RemoteAddress};
use std::env;
use std::ffi::c_void;
use std::process::Command;
use std::ptr::from_mut;
use std::time::{Duration, Instant};
use tombolo_core::registration::Device;

/// More than the system keeps between two sockets: the rest stays until the receiver looks again.
const LEN: usize = 64 << 20;
const NAME: &str = "ofi::closed_connection::a_connection_is_closed_amidst_an_answer";

type Key = <Rdm as Device>::Key;

/// One that fails ends the process by a signal, or lets a read fail twice.
#[test]
fn a_connection_is_closed_amidst_an_answer() {
    let Some(library) = sys::installed() else { return };
    if !library.closes_connections {
        // It is told that before it is loaded: in a process that does nothing else.
        let mut again = Command::new(env::current_exe().expect("a name"));
        let again = again.args([NAME, "--exact"]).env(CLOSE, "1").output().expect("a process");
        let said = String::from_utf8_lossy(&again.stdout);
        assert!(again.status.success() && said.contains("1 passed"), "{}\n{said}", again.status);
        return;
    }
    for provider in ["tcp;ofi_rxm", "net;ofi_rxm"] {
        let wish = Wish { provider: provider.into(), one_machine: true, ..Wish::default() };
        if let Ok(offers) = Offers::find(library, &wish) {
            close_amidst(library, &offers);
        }
    }
}

fn close_amidst(library: &'static Library, offers: &Offers) {
    let open = || {
        // SAFETY: of the offers, which are only read.
        let rdm = unsafe { Rdm::open(library, offers.info(&offers.candidates[0]), 3, 16, false) };
        rdm.expect("an endpoint of TCP")
    };
    let (mut theirs, mut answer, mut context) = (vec![1u8; LEN], vec![0u8; LEN], [0u64; 8]);
    let (mut near, mut far) = (open(), open());
    // SAFETY: the memory is freed after the endpoints, which were opened later.
    let shared = unsafe { far.share(theirs.as_mut_ptr(), LEN, 1) }.expect("a registration");
    let peer = near.insert(&far.name().expect("a name")).expect("an address");
    far.insert(&near.name().expect("a name")).expect("an address");

    let local = Local { at: answer.as_mut_ptr(), len: LEN, key: Key::default() };
    let remote = RemoteAddress { address: shared.base, key: shared.key };
    let context: *mut c_void = from_mut(&mut context).cast();
    until(|| {
        // SAFETY: answer and context stay until the endpoints are closed.
        let posted = unsafe { near.read(peer, local, remote, context) };
        assert!(posted == 0 || posted == -(libc::EAGAIN as isize), "{}", near.meaning(posted));
        assert!(ended(&mut near).is_none() && ended(&mut far).is_none());
        posted == 0
    });
    until(|| {
        assert!(ended(&mut far).is_none());
        assert!(ended(&mut near).is_none(), "the whole answer has come");
        // SAFETY: inside the buffer, to which the library writes.
        unsafe { local.at.read_volatile() != 0 }
    });

    near.remove(peer);
    let mut failed = None;
    until(|| {
        failed = ended(&mut near);
        failed.is_some()
    });
    assert_eq!(failed, Some(Err(context)), "it fails");
    for _ in 0..1000 {
        assert_eq!(ended(&mut near), None, "and does not fail again");
    }
}

/// What has ended at an endpoint: the context of an operation that completed, or of one that failed.
fn ended(rdm: &mut Rdm) -> Option<Result<*mut c_void, *mut c_void>> {
    let mut taken = [Completion::NONE];
    match rdm.poll(&mut taken) {
        Ok(0) => None,
        Ok(_) => Some(Ok(taken[0].context)),
        Err(Failure { context, .. }) => Some(Err(context)),
    }
}

fn until(mut ready: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !ready() {
        assert!(begun.elapsed() < Duration::from_secs(30), "nothing more happens");
    }
}
