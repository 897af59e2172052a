// SPDX-License-Identifier: Apache-2.0
//! Care for the links of a host: translations, handshake, news for the engines, direct windows.
//!
//! Everything here can be done again at any time. It is done again whenever a link has changed,
//! since chips lose translations and doorbell masks with the link.

use super::closing::Requests;
use super::direct::{DirectPeer, Opening};
use super::handshake::Greeting;
use super::lane::Lane;
use crate::ntb::port::{BusAddress, LinkEvent, NtbPort, Outbound, PortError};
use crate::ntb::ring::Side;
use std::sync::{Arc, Mutex, PoisonError};
use tombolo_core::board::monotonic_ns;

/// Between repetitions of the greeting, and between tries to map a neighbour's memory.
const REPEAT_NS: u64 = 3_000_000;
/// Time after a link came into use for which mapping is tried: the neighbour may not be as far.
const MAP_NS: u64 = 5_000_000_000;

/// A range of slots of an inbound window and the memory that belongs behind it.
#[derive(Clone, Copy, Debug)]
pub struct Translation {
    pub window: usize,
    pub slot: usize,
    pub slots: usize,
    pub address: BusAddress,
    pub size: u64,
}

impl Translation {
    /// A direct opening in `window`, whose slots have `slot_size` bytes, onto memory at `address`.
    pub fn of(
        opening: &Opening,
        window: usize,
        address: BusAddress,
        slot_size: u64,
    ) -> Translation {
        let Opening { size, offset, .. } = *opening;
        let (slot, slots) = (offset / slot_size, size.div_ceil(slot_size));
        Translation { window, slot: slot as usize, slots: slots as usize, address, size }
    }
}

/// What must be known of one side.
pub struct SidePlan {
    pub port: Arc<dyn NtbPort>,
    /// Everything that is to be behind this PE's slots.
    pub translations: Vec<Translation>,
    /// What this host says; none where another PE says it.
    pub greeting: Option<Greeting>,
    /// What the neighbour must say.
    pub expected: Greeting,
    /// The window for direct access, where the port has one and it is used.
    pub direct_window: Option<usize>,
}

/// The keeper of both links.
pub struct Links {
    plans: [SidePlan; 2],
    lanes: Vec<Arc<Lane>>,
    doorbells: u64,
    /// Neighbouring PEs.
    direct: Vec<Arc<DirectPeer>>,
    /// What they ask.
    requests: Requests,
    sides: Mutex<[SideState; 2]>,
}

#[derive(Default)]
struct SideState {
    /// The port's count of changes and its belief when last looked at.
    seen: Option<(u64, bool)>,
    looked_at: u64,
    phase: Phase,
    greeted_at: u64,
    ready_at: u64,
    /// Its translations were set before.
    prepared: bool,
    /// The window for direct access was closed since.
    closed: bool,
    /// All lanes can write through it.
    opened: bool,
    mapped: bool,
    tried_at: u64,
    window: Option<Box<dyn Outbound>>,
    /// Why the link is not used although it is up.
    trouble: Option<String>,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
enum Phase {
    #[default]
    Down,
    /// Up, translations not set.
    Up,
    /// Translations set, waiting to hear who is there.
    Greeting,
    /// The engines know.
    Ready,
}

impl Links {
    /// Enables both links. `plans` by [`Side`].
    pub fn new(
        plans: [SidePlan; 2],
        lanes: Vec<Arc<Lane>>,
        doorbells: u64,
        direct: Vec<Arc<DirectPeer>>,
        requests: Requests,
    ) -> Result<Links, PortError> {
        for plan in &plans {
            plan.port.link_enable()?;
        }
        Ok(Links { plans, lanes, doorbells, direct, requests, sides: Mutex::default() })
    }

    /// Looks after both links; cheap when nothing has changed. Somebody else at it is enough.
    pub fn tend(&self) {
        let Ok(mut sides) = self.sides.try_lock() else { return };
        let now = monotonic_ns();
        for side in Side::BOTH {
            self.tend_side(side, &mut sides[side as usize], now);
        }
        for asked in self.requests.open() {
            let side = asked.side();
            let state = &mut sides[side as usize];
            match self.close_direct(&self.plans[side as usize], state) {
                Ok(()) => asked.answer(),
                Err(error) => complain(state, side, error.to_string()),
            }
        }
    }

    /// Why a link is not used although it is up.
    pub fn trouble(&self, side: Side) -> Option<String> {
        let sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        sides[side as usize].trouble.clone()
    }

    /// Whether a link is not used although it is up, for a reason that is known.
    pub fn is_troubled(&self, side: Side) -> bool {
        let sides = self.sides.lock().unwrap_or_else(PoisonError::into_inner);
        sides[side as usize].trouble.is_some()
    }

    /// Whether all that can be mapped through a link is mapped.
    pub fn is_mapped(&self, side: Side) -> bool {
        self.sides.lock().unwrap_or_else(PoisonError::into_inner)[side as usize].mapped
    }

    /// Closes this PE's slots.
    pub fn close(&self) {
        for plan in &self.plans {
            plan.port.db_set_mask(self.doorbells);
            for Translation { window, slot, slots, .. } in &plan.translations {
                if let Err(error) = plan.port.mw_clear_trans(*window, *slot, *slots) {
                    tracing::info!(%error, "closing an NTB window");
                }
            }
        }
    }

    fn tend_side(&self, side: Side, state: &mut SideState, now: u64) {
        let plan = &self.plans[side as usize];
        if let LinkEvent::PollMs(interval) = plan.port.capabilities().link_event
            && state.seen.is_some()
            && now.saturating_sub(state.looked_at) < u64::from(interval) * 1_000_000
        {
            // Looking is not cheap where nothing tells of changes.
            return self.tend_link(side, state, now);
        }
        state.looked_at = now;
        // Consumed before the state is read: a later change raises it again.
        plan.port.link_event();
        let link = plan.port.link_state();
        let seen = (link.generation, link.up);
        if state.seen != Some(seen) {
            state.seen = Some(seen);
            state.phase = if link.up { Phase::Up } else { Phase::Down };
            self.lanes.iter().for_each(|lane| lane.link_event(side, false));
            self.direct.iter().for_each(|peer| peer.cut(side));
        }
        self.tend_link(side, state, now);
    }

    /// Brings a link that is up into use.
    fn tend_link(&self, side: Side, state: &mut SideState, now: u64) {
        let plan = &self.plans[side as usize];
        if state.phase == Phase::Up {
            match self.prepare(plan, state) {
                Ok(()) => {
                    (state.phase, state.prepared, state.closed) = (Phase::Greeting, true, false);
                    state.greeted_at = 0;
                    state.trouble = None;
                }
                // It went down again: there will be an event.
                Err(PortError::NotConnected) => {}
                Err(error) => complain(state, side, error.to_string()),
            }
        }
        if matches!(state.phase, Phase::Greeting) {
            match plan.expected.heard(&*plan.port) {
                Some(Ok(())) => {
                    state.phase = Phase::Ready;
                    (state.ready_at, state.tried_at) = (now, 0);
                    (state.opened, state.mapped, state.trouble) = (false, false, None);
                    self.lanes.iter().for_each(|lane| lane.link_event(side, true));
                }
                Some(Err(what)) => complain(state, side, what),
                None => {}
            }
        }
        let since = |then: u64| now.saturating_sub(then);
        let in_use = state.phase == Phase::Ready && self.lanes[0].link_in_use(side);
        if state.phase == Phase::Ready && !state.opened {
            state.opened = true;
            for error in self.lanes.iter().filter_map(|lane| lane.open_link(side).err()) {
                state.opened = false;
                // The neighbour's PEs may not be as far.
                if !matches!(error, PortError::NotConnected | PortError::Closed { .. }) {
                    complain(state, side, error.to_string());
                }
            }
        }
        let greets = matches!(state.phase, Phase::Greeting | Phase::Ready) && !in_use;
        // The neighbour may have missed it for as long as it has not answered.
        if greets && since(state.greeted_at) >= REPEAT_NS {
            state.greeted_at = now;
            // It may have set its translations only after this host looked at them.
            state.opened = false;
            if let Some(greeting) = &plan.greeting {
                greeting.send(&*plan.port);
            }
        }
        let maps = in_use && !state.mapped && since(state.ready_at) < MAP_NS;
        if maps && since(state.tried_at) >= REPEAT_NS {
            state.tried_at = now;
            self.map(side, state);
        }
    }

    /// Puts everything behind the inbound windows and unmasks the doorbells.
    ///
    /// Translations that survived a change of the link are left alone: the neighbour may be writing
    /// through them already, and to set them again would close them for what is under way.
    fn prepare(&self, plan: &SidePlan, state: &SideState) -> Result<(), PortError> {
        let all = !state.prepared || plan.port.capabilities().resets_on_link_down;
        for &Translation { window, slot, address, size, .. } in &plan.translations {
            if all || (state.closed && plan.direct_window == Some(window)) {
                plan.port.mw_set_trans(window, slot, address, size)?;
            }
        }
        plan.port.db_clear_mask(self.doorbells);
        Ok(())
    }

    /// Closes the window for direct access until the link changes. The heap comes first, and so do the words
    /// at its start that tell of arrival: they do not arrive where what was written before them is lost.
    fn close_direct(&self, plan: &SidePlan, state: &mut SideState) -> Result<(), PortError> {
        state.closed = true;
        for Translation { window, slot, slots, .. } in &plan.translations {
            if plan.direct_window == Some(*window) {
                plan.port.mw_clear_trans(*window, *slot, *slots)?;
            }
        }
        Ok(())
    }

    fn map(&self, side: Side, state: &mut SideState) {
        let plan = &self.plans[side as usize];
        let Some(window) = plan.direct_window else {
            state.mapped = true;
            return;
        };
        if state.window.is_none() {
            state.window = plan.port.outbound(window).ok();
        }
        if let Some(window) = &mut state.window {
            let missing = self.direct.iter().filter(|peer| !peer.map(side, &mut **window)).count();
            state.mapped = missing == 0;
        }
    }
}

/// Says once what is wrong.
fn complain(state: &mut SideState, side: Side, what: String) {
    if state.trouble.as_ref() != Some(&what) {
        tracing::warn!("the NTB link to the {} cannot be used: {what}", name(side));
        state.trouble = Some(what);
    }
}

/// A side for people.
pub fn name(side: Side) -> &'static str {
    match side {
        Side::Right => "right",
        Side::Left => "left",
    }
}
