// SPDX-License-Identifier: Apache-2.0
//! What every NTB port must do, as cases over the trait.
//!
//! A case gets the two ends of a fresh link that nobody has enabled, uses them from threads of one
//! process, and panics where a port falls short. Cases ask [`Capabilities`](super::Capabilities)
//! for rules and for what is optional; a part that a port does not have is checked to be refused.
//! They wait for what was posted by looking at memory and registers, and believe that something never
//! arrives when what was sent behind it has: no counter is asked, and no port need have any. A port may
//! be told of its link, and of what the peer has opened, later than the peer's end has returned.
//!
//! ```text
//! for (name, case) in conformance::CASES {
//!     let (a, b) = fresh_link();
//!     case(&a, &b);
//! }
//! ```

mod dma;
mod doorbells;
mod links;
mod windows;

use super::{BusAddress, InboundMemory, NtbPort, Outbound};
use std::time::{Duration, Instant};

/// A case, given both ends of a link.
pub type Case = fn(&dyn NtbPort, &dyn NtbPort);

/// All cases with their names.
pub const CASES: &[(&str, Case)] = &[
    ("link_is_up_when_both_sides_enable", links::up_when_both_enable),
    ("link_changes_are_events", links::changes_are_events),
    ("link_change_ends_a_wait", links::change_ends_a_wait),
    ("link_down_loses_everything_posted", links::down_loses_everything),
    ("link_down_keeps_or_resets_registers_as_stated", links::down_keeps_or_resets),
    ("link_comes_back_and_is_used_again", links::comes_back),
    ("link_disable_is_a_barrier", links::disable_is_a_barrier),
    ("scratchpads_belong_to_their_side", links::scratchpads),
    ("window_leads_to_registered_memory_alone", windows::leads_to_memory_alone),
    ("window_writes_of_any_shape_arrive", windows::any_shape),
    ("window_spans_slots", windows::spans_slots),
    ("window_rules_are_enforced", windows::rules_are_enforced),
    ("window_cannot_be_set_while_the_link_is_down", windows::not_connected),
    ("window_faults_where_nothing_is_behind", windows::faults),
    ("window_limit_cuts_at_a_tlp", windows::limit),
    ("window_cleared_faults_though_in_use", windows::cleared),
    ("window_clear_is_a_barrier", windows::clear_is_a_barrier),
    ("window_set_again_leads_to_new_memory", windows::set_again),
    ("window_reads_are_counted", windows::reads),
    ("window_flag_follows_flushed_data", windows::flag_follows_data),
    ("window_line_is_whole", windows::line_is_whole),
    ("window_handles_are_independent", windows::handles),
    ("window_mapping_is_memory_until_closed", windows::mapping),
    ("doorbell_latches_until_cleared", doorbells::latches),
    ("doorbell_masks_are_set_at_first", doorbells::masked_at_first),
    ("doorbell_unmasked_while_pending_raises", doorbells::unmask_raises),
    ("doorbell_ends_a_wait", doorbells::ends_a_wait),
    ("doorbell_wait_has_an_end", doorbells::wait_has_an_end),
    ("doorbell_wakes_are_not_lost", doorbells::no_lost_wakes),
    ("doorbell_bits_outside_the_mask_do_nothing", doorbells::invalid_bits),
    ("dma_delivers_data_before_its_flag", dma::data_before_flag),
    ("dma_transfers_are_in_order", dma::in_order),
    ("dma_goes_on_without_polls", dma::without_polls),
    ("dma_wakes_who_waits", dma::wakes),
    ("dma_is_bounded", dma::bounded),
    ("dma_is_lost_with_the_link", dma::lost_with_the_link),
    ("dma_flag_is_lost_with_its_data", dma::flag_lost_with_data),
];

/// How long anything may take that is bound to happen. Only a failing case waits so long.
const PATIENCE: Duration = Duration::from_secs(20);

/// Enables both sides.
fn connect(a: &dyn NtbPort, b: &dyn NtbPort) {
    a.link_enable().unwrap();
    b.link_enable().unwrap();
    until("the link to come up", || a.link_state().up && b.link_state().up);
}

/// Waits for something another thread or the hardware is bound to do.
fn until(what: &str, mut happened: impl FnMut() -> bool) {
    let start = Instant::now();
    while !happened() {
        assert!(start.elapsed() < PATIENCE, "waited {PATIENCE:?} in vain for {what}");
        std::thread::yield_now();
    }
}

/// Memory of this side behind some slots of window 0.
struct Opened<'a> {
    port: &'a dyn NtbPort,
    memory: InboundMemory,
    address: BusAddress,
    /// Bytes of the window that lead to it.
    size: u64,
    /// Where they start in the window.
    start: usize,
}

/// Opens one slot of window 0 as a whole.
fn open(port: &dyn NtbPort, slot: usize) -> Opened<'_> {
    let size = port.capabilities().windows[0].slot_size();
    open_size(port, slot, size)
}

/// Opens `size` bytes of window 0 from the start of a slot.
fn open_size(port: &dyn NtbPort, slot: usize, size: u64) -> Opened<'_> {
    let window = port.capabilities().windows[0];
    let memory = port.inbound_memory(0, slot, size as usize).unwrap();
    let address = port.register(&memory.region()).unwrap();
    port.mw_set_trans(0, slot, address, size).unwrap();
    Opened { port, memory, address, size, start: slot * window.slot_size() as usize }
}

impl Drop for Opened<'_> {
    /// Memory is closed before it goes away, as a driver must do.
    fn drop(&mut self) {
        let slot_size = self.port.capabilities().windows[0].slot_size();
        let slot = self.start / slot_size as usize;
        let slots = self.size.div_ceil(slot_size) as usize;
        self.port.mw_clear_trans(0, slot, slots).unwrap();
    }
}

/// Repeats `act` until it gives something during which the link of `port` has not changed: a port may be
/// told late of a change, and everything that was open ends with that.
fn steadily<T>(port: &dyn NtbPort, mut act: impl FnMut() -> Option<T>) -> T {
    let mut given = None;
    until("the link to be used", || {
        let before = port.link_state().generation;
        given = act();
        given.is_some() && port.link_state().generation == before
    });
    given.expect("waited for")
}

/// A window of the peer of a port.
struct Sender<'a> {
    port: &'a dyn NtbPort,
    window: Box<dyn Outbound>,
}

/// Window 0.
fn sender(port: &dyn NtbPort) -> Sender<'_> {
    Sender { port, window: port.outbound(0).unwrap() }
}

impl Sender<'_> {
    /// Writes bytes that have to arrive, and flushes: the peer has opened the range, but this side may
    /// hear of it later.
    fn write(&mut self, offset: usize, bytes: &[u8]) {
        let window = &mut *self.window;
        steadily(self.port, || {
            window.open(offset, bytes.len()).ok()?;
            // SAFETY: a slice is readable for its length.
            unsafe { window.write(offset, bytes.as_ptr(), bytes.len()) };
            window.flush();
            Some(())
        });
    }

    /// The same with an aligned word.
    fn write_word(&mut self, offset: usize, value: u64) {
        self.write(offset, &value.to_ne_bytes());
    }

    /// Opens what can be opened, writes bytes that may vanish, and flushes.
    fn try_write(&mut self, offset: usize, bytes: &[u8]) {
        let _ = self.window.open(offset, bytes.len());
        // SAFETY: a slice is readable for its length.
        unsafe { self.window.write(offset, bytes.as_ptr(), bytes.len()) };
        self.window.flush();
    }

    /// The same with an aligned word.
    fn try_word(&mut self, offset: usize, value: u64) {
        self.try_write(offset, &value.to_ne_bytes());
    }
}

/// Bytes that differ from their neighbours and from those of other seeds.
fn pattern(seed: u64, len: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut bytes = Vec::with_capacity(len);
    for _ in 0..len {
        state = state.wrapping_mul(0x5851_f42d_4c95_7f2d).wrapping_add(1);
        bytes.push((state >> 56) as u8);
    }
    bytes
}
