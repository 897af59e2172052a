// SPDX-License-Identifier: Apache-2.0
//! Doorbell registers: latch, mask, and the waking of sleepers.

use super::layout::{DOORBELLS, Doorbell, Side};
use super::link::Link;
use super::pace::wait_until;
use super::sys::{self, monotonic_ns};
use crate::ntb::port::{DoorbellDelivery, Event, Wake};
use std::sync::atomic::Ordering;
use std::time::Duration;

const PENDING: u64 = 0xffff_ffff;
const MASK_SHIFT: u32 = 32;

/// Nothing pending, everything masked.
pub fn reset(doorbell: &Doorbell) {
    doorbell.register.store(PENDING << MASK_SHIFT, Ordering::SeqCst);
}

/// Wakes everyone who sleeps on the side: the link has changed, or a DMA channel has something to tell.
pub fn announce(doorbell: &Doorbell) {
    raise(doorbell, u32::MAX);
}

/// Sets pending bits, as a write that arrives at `arrival_ps`, and raises what events follow.
pub fn ring(side: &Side, delivery: DoorbellDelivery, bits: u64, arrival_ps: u64) {
    let doorbell = &side.doorbell;
    for bit in (0..DOORBELLS).filter(|bit| bits >> bit & 1 == 1) {
        doorbell.arrived_ps[bit].store(arrival_ps, Ordering::Relaxed);
    }
    let old = doorbell.register.fetch_or(bits & PENDING, Ordering::SeqCst);
    let (pending, mask) = (old & PENDING, old >> MASK_SHIFT);
    let (before, after) = (pending & !mask, (pending | bits) & !mask);
    side.count(Event::DoorbellsCoalesced, (pending & bits).count_ones().into());
    let fires = match delivery {
        DoorbellDelivery::PerBitVector | DoorbellDelivery::AggregateLevel => after & !before != 0,
        DoorbellDelivery::EdgeFromZero => before == 0 && after != 0,
    };
    if fires {
        fire(side, delivery, after & !before);
    } else {
        side.count(Event::DoorbellsSuppressed, 1);
    }
}

/// Pending bits, those still on their way left out.
pub fn read(link: &Link, side: usize) -> u64 {
    let doorbell = &link.side(side).doorbell;
    let pending = doorbell.register.load(Ordering::Acquire) & PENDING;
    if pending == 0 || !link.is_modelled() {
        return pending;
    }
    let now = link.now_ps();
    let arrived = |bit: &usize| doorbell.arrived_ps[*bit].load(Ordering::Relaxed) <= now;
    (0..DOORBELLS).filter(arrived).fold(0, |bits, bit| bits | 1 << bit) & pending
}

pub fn clear(side: &Side, bits: u64) {
    side.doorbell.register.fetch_and(!(bits & PENDING), Ordering::SeqCst);
}

pub fn read_mask(side: &Side) -> u64 {
    side.doorbell.register.load(Ordering::Acquire) >> MASK_SHIFT
}

pub fn set_mask(side: &Side, bits: u64) {
    side.doorbell.register.fetch_or(bits << MASK_SHIFT, Ordering::SeqCst);
}

/// Unmasks; bits that are pending raise their event whatever the delivery.
pub fn clear_mask(side: &Side, delivery: DoorbellDelivery, bits: u64) {
    let bits = bits & PENDING;
    let old = side.doorbell.register.fetch_and(!(bits << MASK_SHIFT), Ordering::SeqCst);
    let unmasked = old & PENDING & (old >> MASK_SHIFT) & bits;
    if unmasked != 0 {
        fire(side, delivery, unmasked);
    }
}

/// Sleeps until one of `bits` is pending and unmasked, `others` has something to tell, or time is over.
pub fn wait(
    link: &Link,
    side: usize,
    bits: u64,
    timeout: Duration,
    others: impl Fn() -> Wake,
) -> Wake {
    let doorbell = &link.side(side).doorbell;
    let deadline = monotonic_ns().saturating_add(timeout.as_nanos().min(1 << 62) as u64);
    let mut slept = false;
    loop {
        let events = doorbell.events.load(Ordering::SeqCst);
        let register = doorbell.register.load(Ordering::SeqCst);
        let pending = register & !(register >> MASK_SHIFT) & bits & PENDING;
        let wake = Wake { pending, ..others() };
        if pending != 0 {
            wait_for_arrival(link, doorbell, pending, slept);
        }
        let now = monotonic_ns();
        if wake != Wake::default() || now >= deadline {
            return wake;
        }
        doorbell.sleepers.fetch_add(1, Ordering::SeqCst);
        let vectors = if bits & PENDING == 0 { u32::MAX } else { (bits & PENDING) as u32 };
        sys::sleep_on(&doorbell.events, events, vectors, Duration::from_nanos(deadline - now));
        doorbell.sleepers.fetch_sub(1, Ordering::SeqCst);
        slept = true;
    }
}

/// In modelled time: until the first of the pending bits has arrived and, for one who slept, has
/// been handled.
fn wait_for_arrival(link: &Link, doorbell: &Doorbell, pending: u64, slept: bool) {
    if !link.is_modelled() {
        return;
    }
    let arrivals = (0..DOORBELLS).filter(|bit| pending >> bit & 1 == 1);
    let first = arrivals.map(|bit| doorbell.arrived_ps[bit].load(Ordering::Relaxed)).min();
    let handler = if slept { u64::from(link.config.timing.doorbell_ns) * 1000 } else { 0 };
    // A time further off than any ring can set is damage: do not follow it.
    let at = first.unwrap_or(0).min(link.now_ps() + 1_000_000_000) + handler;
    wait_until(link, at);
}

fn fire(side: &Side, delivery: DoorbellDelivery, bits: u64) {
    side.count(Event::DoorbellEvents, 1);
    let vectors = match delivery {
        DoorbellDelivery::PerBitVector => bits as u32,
        DoorbellDelivery::AggregateLevel | DoorbellDelivery::EdgeFromZero => u32::MAX,
    };
    raise(&side.doorbell, vectors);
}

fn raise(doorbell: &Doorbell, vectors: u32) {
    doorbell.events.fetch_add(1, Ordering::SeqCst);
    // A sleeper that was killed leaves the count too high, which costs a call and nothing else.
    if doorbell.sleepers.load(Ordering::SeqCst) != 0 {
        sys::wake(&doorbell.events, vectors);
    }
}
