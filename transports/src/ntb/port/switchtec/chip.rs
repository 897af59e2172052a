// SPDX-License-Identifier: Apache-2.0
//! Windows, doorbells and the state of a link on the switch.

use super::layout::*;
use crate::ntb::port::bridge::{
    Aperture, Bell, Chip, ChipLink, Device, Facts, News, broken, chip_link, gone,
};
use crate::ntb::port::{DoorbellDelivery, PortError, Result};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// Looks at doorbells that keep ringing, before others get their turn.
const LOOKS: u32 = 64;
/// How long a step of the firmware may take; and how long it may take to begin, while its status is
/// still that of before.
const STEP_LIMIT: Duration = Duration::from_secs(5);
const BEGIN_LIMIT: Duration = Duration::from_millis(50);
/// Between looks at it: as long as it has lasted, and never shorter or longer than this.
const PAUSES: [Duration; 2] = [Duration::from_micros(20), Duration::from_millis(1)];
/// How often a partition is configured: the other host may do it at the same time.
const ATTEMPTS: u32 = 8;

pub struct SwitchtecChip {
    device: Arc<dyn Device>,
    /// Partitions of this host and of the other.
    own: usize,
    peer: usize,
    vector: usize,
    apertures: Vec<Aperture>,
    /// By partition, this host's first: the firmware has taken what this process has set. Registers
    /// cannot tell: they hold what was set, whether it was taken, refused, or left by a process that
    /// was killed before it had asked.
    taken: [AtomicBool; 2],
    state: Mutex<State>,
}

struct State {
    enabled: bool,
    /// The link was up when it was last looked at.
    linked: bool,
    /// Where the windows lead.
    aims: Vec<Option<u64>>,
}

impl SwitchtecChip {
    pub fn new(device: Arc<dyn Device>) -> Result<SwitchtecChip> {
        let registers = device.bar_size(REGISTERS);
        if registers < doorbells(PARTITIONS) {
            return Err(broken(&*device, format!("{registers} bytes of registers")));
        }
        let partition = device.read32(REGISTERS, PARTITION);
        if partition == u32::MAX {
            return Err(gone(&*device));
        }
        let (count, own) = ((partition & 0xff) as usize, (partition >> 8 & 0xff) as usize);
        let peer = other_partition(&*device, count, own)?;
        if device.read32(REGISTERS, crosslink(peer)) & 0xff != 0 {
            let what = "a bridge to another switch (crosslink), which is not driven";
            return Err(broken(&*device, what.into()));
        }
        // Events of the switch have a vector of their own.
        let vector = usize::from(device.read16(REGISTERS, event_vector(own)) == 0);
        let vectors = device.interrupts().len();
        if vectors <= vector {
            return Err(broken(&*device, format!("{vectors} interrupt vectors")));
        }
        let apertures = WINDOWS.iter().filter_map(|&bar| {
            let kinds = [own, peer].map(|at| device.read32(REGISTERS, control(at) + window(bar)));
            let size = device.bar_size(bar) as u64;
            let there = size > 0 && kinds.iter().all(|kind| kind & VALID != 0);
            there.then_some(Aperture { bar, offset: 0, size, inbound: size })
        });
        let apertures: Vec<Aperture> = apertures.collect();
        let state = State { enabled: false, linked: false, aims: vec![None; apertures.len()] };
        let chip = SwitchtecChip {
            taken: Default::default(),
            state: Mutex::new(state),
            own,
            peer,
            vector,
            apertures,
            device,
        };
        chip.prepare()?;
        Ok(chip)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn read(&self, at: usize) -> u32 {
        self.device.read32(REGISTERS, at)
    }

    fn write(&self, at: usize, value: u32) {
        self.device.write32(REGISTERS, at, value);
    }

    /// Where the first doorbell of a side is among all.
    fn shift(&self, own: bool) -> u32 {
        if (self.own < self.peer) == own { 0 } else { HALF }
    }

    fn bells(&self, own: bool) -> u64 {
        ((1 << BELLS) - 1) << self.shift(own)
    }

    /// Everything of this host's own partition.
    fn prepare(&self) -> Result<()> {
        let at = doorbells(self.own);
        for first in (0..VECTOR_MAP_SIZE).step_by(4) {
            self.write(at + VECTOR_MAP + first, self.vector as u32 * 0x0101_0101);
        }
        self.device.write64(REGISTERS, at + RINGABLE, self.bells(false));
        self.device.write64(REGISTERS, at + INTERRUPTING, self.bells(true));
        // The processors of this host and the bridge before it may write; engines are not used.
        let requesters = [0, u32::from(self.device.read16(REGISTERS, REQUESTER))];
        let table = control(self.own) + REQUESTERS;
        let listed = || {
            let mut numbers = requesters.iter().enumerate();
            numbers.all(|(index, number)| {
                let entry = self.read(table + 4 * index);
                entry != u32::MAX && entry >> 16 == *number && entry & REQUESTER_USED != 0
            })
        };
        let room = self.device.read16(REGISTERS, control(self.own) + REQUESTERS_SIZE);
        if usize::from(room) < requesters.len() {
            return Err(broken(&*self.device, format!("room for {room} requesters")));
        }
        let list = || {
            for (index, number) in requesters.iter().enumerate() {
                self.write(table + 4 * index, number << 16 | REQUESTER_USED);
            }
        };
        match self.configure(self.own, listed, list) {
            // Not for the requesters, but for windows that the other side had set: they are shut now.
            Err(PortError::Invalid(_)) => self.configure(self.own, listed, list),
            result => result,
        }
    }

    fn taken(&self, partition: usize) -> &AtomicBool {
        &self.taken[usize::from(partition != self.own)]
    }

    /// What the firmware does with a partition, or has done last.
    fn status(&self, partition: usize) -> Result<u32> {
        match self.read(control(partition) + STATUS) {
            u32::MAX => Err(gone(&*self.device)),
            status => Ok(status & 0xffff),
        }
    }

    /// Has the firmware take what `set` sets of a partition, unless it has taken what `is` so already.
    /// What it refuses is taken back: a window must not look as if it led somewhere.
    fn configure(&self, partition: usize, is: impl Fn() -> bool, set: impl Fn()) -> Result<()> {
        let taken = self.taken(partition);
        let mut refused = Ok(());
        for _ in 0..ATTEMPTS {
            if taken.load(Ordering::Relaxed) && self.status(partition)? == CONFIGURE.done && is() {
                return Ok(());
            }
            taken.store(false, Ordering::Relaxed);
            refused = self.step(partition, &LOCK).and_then(|()| {
                set();
                self.step(partition, &CONFIGURE)
            });
            match &refused {
                Ok(()) => taken.store(true, Ordering::Relaxed),
                Err(PortError::Gone(_) | PortError::Busy(_)) => return refused,
                Err(_) => {}
            }
        }
        if refused.is_ok() && is() {
            return Ok(());
        }
        taken.store(false, Ordering::Relaxed);
        self.shut(partition);
        refused.and_then(|()| {
            Err(broken(&*self.device, format!("a partition {partition} that does not settle")))
        })
    }

    /// Shuts the windows of a partition after a refusal. Where that has unlocked the partition, it is
    /// locked again. Whether this is taken, too, the next attempt to configure it tells.
    fn shut(&self, partition: usize) {
        let other = if partition == self.own { self.peer } else { self.own };
        let shut = || {
            for &Aperture { bar, .. } in &self.apertures {
                self.set_window(partition, bar, (VALID, [0; 2], other as u64));
            }
            self.step(partition, &CONFIGURE)
        };
        let at = |bar| control(partition) + window(bar);
        let is_shut = || self.apertures.iter().all(|each| self.read(at(each.bar)) & WHOLE == 0);
        if shut().is_err() || !is_shut() {
            let again = self.step(partition, &LOCK).and_then(|()| shut());
            if let Err(error) = again {
                tracing::debug!(%error, "shutting windows that were refused");
            }
        }
    }

    fn set_window(&self, partition: usize, bar: usize, to: (u32, [u32; 2], u64)) {
        let at = control(partition) + window(bar);
        let (kind, sizes, address) = to;
        self.write(at, self.read(at) & !(WHOLE | SLOTS) | kind);
        self.write(at + WINDOW_SIZE, sizes[0]);
        self.write(control(partition) + size_high(bar), sizes[1]);
        self.device.write64(REGISTERS, at + WINDOW_LEADS, address);
    }

    fn step(&self, partition: usize, step: &Step) -> Result<()> {
        let at = control(partition);
        let before = self.status(partition)?;
        self.write(at + OPERATION, step.operation);
        let begun = Instant::now();
        loop {
            let now = self.status(partition)?;
            // It has not begun yet: what it says is of the step before.
            let waits = now == before && begun.elapsed() < BEGIN_LIMIT;
            if now == step.done && !waits {
                return Ok(());
            }
            if now != step.under_way && !waits {
                let why = self.read(at + BAR_ERROR);
                return Err(broken(
                    &*self.device,
                    format!(
                        "refused a window of partition {partition} (status {now:#x}, error \
                         {why:#x}): BARs of both partitions have to be as large"
                    ),
                ));
            }
            if begun.elapsed() > STEP_LIMIT {
                let device = self.device.describe();
                return Err(PortError::Busy(format!("{device}: its firmware does not answer")));
            }
            std::thread::sleep(begun.elapsed().clamp(PAUSES[0], PAUSES[1]));
        }
    }

    /// What a window's registers are to be: its kind, both halves of its size, and where it leads.
    fn leading(&self, window: usize, address: Option<u64>) -> (u32, [u32; 2], u64) {
        let size = self.apertures[window].size;
        match address {
            // As many of the lower bits of an address are the other side's.
            Some(address) => {
                let low = size as u32 & 0xffff_f000 | size.ilog2();
                (VALID | WHOLE, [low, (size >> 32) as u32], address | self.own as u64)
            }
            None => (VALID, [0; 2], self.own as u64),
        }
    }

    /// Whether a window of the other side is what it is to be; of its kind only what matters.
    fn leads(&self, window: usize, aim: Option<u64>) -> bool {
        let bar = self.apertures[window].bar;
        let at = control(self.peer) + super::layout::window(bar);
        let (kind, sizes, address) = self.leading(window, aim);
        let kinds = VALID | WHOLE | SLOTS;
        let high = self.read(control(self.peer) + size_high(bar));
        self.read(at) & kinds == kind
            && (aim.is_none() || [self.read(at + WINDOW_SIZE), high] == sizes)
            && (aim.is_none() || self.device.read64(REGISTERS, at + WINDOW_LEADS) == address)
    }

    /// Leads the windows of the other side where they are to lead; those of a side that is not enabled
    /// nowhere.
    fn lead(&self, state: &State) -> Result<()> {
        let aims: Vec<Option<u64>> =
            state.aims.iter().map(|aim| aim.filter(|_| state.enabled)).collect();
        let every = |is: &dyn Fn(usize, Option<u64>) -> bool| {
            aims.iter().enumerate().all(|(window, aim)| is(window, *aim))
        };
        self.configure(
            self.peer,
            || every(&|window, aim| self.leads(window, aim)),
            || {
                for (window, aim) in aims.iter().enumerate() {
                    let bar = self.apertures[window].bar;
                    self.set_window(self.peer, bar, self.leading(window, *aim));
                }
            },
        )
    }

    /// Has the other side look.
    fn tell(&self) {
        self.device.write64(
            REGISTERS,
            doorbells(self.own) + RING,
            1 << STATE_BELL << self.shift(false),
        );
    }

    /// Leads the windows again if a reset of the other side has cleared them.
    fn restore(&self) {
        let state = self.state();
        let is = |(window, aim): (usize, &Option<u64>)| self.leads(window, *aim);
        if state.enabled && !state.aims.iter().enumerate().all(is) && self.lead(&state).is_ok() {
            self.tell();
        }
    }
}

/// The partition at the other side of the bridge.
fn other_partition(device: &dyn Device, count: usize, own: usize) -> Result<usize> {
    let word = |at| {
        u64::from(device.read32(REGISTERS, at)) | u64::from(device.read32(REGISTERS, at + 4)) << 32
    };
    if own >= PARTITIONS || count > PARTITIONS {
        return Err(broken(device, format!("partition {own} of {count}")));
    }
    let bridges = word(BRIDGES) & ((1 << PARTITIONS) - 1) & !(1 << own);
    let targets = word(targets(own)) & bridges;
    let others = if targets == 0 && count == 2 { bridges } else { targets };
    match others.count_ones() {
        1 => Ok(others.trailing_zeros() as usize),
        several => Err(broken(
            device,
            format!(
                "{several} partitions with a bridge that its partition {own} leads to: the switch has to be \
                 configured with one"
            ),
        )),
    }
}

impl Chip for SwitchtecChip {
    fn facts(&self) -> Facts {
        Facts {
            name: "Switchtec NTB (switchtec)",
            apertures: self.apertures.clone(),
            doorbell_bits: STATE_BELL,
            doorbell_vectors: 1,
            // `take` looks until nothing is pending.
            doorbell_delivery: DoorbellDelivery::AggregateLevel,
            spads: 0,
            forgets: false,
            link_vectors: 1 << self.vector,
        }
    }

    fn enable(&self, on: bool) -> Result<()> {
        if self.read(PARTITION) == u32::MAX {
            return Err(gone(&*self.device));
        }
        let mut state = self.state();
        state.enabled = on;
        let done = self.prepare().and_then(|()| self.lead(&state));
        if done.is_err() {
            state.enabled = false;
        }
        self.tell();
        done
    }

    fn aim(&self, window: usize, address: Option<u64>) -> Result<()> {
        let mut state = self.state();
        state.aims[window] = address;
        // Others must not see one window without the rest: they are led when the side is enabled.
        if state.enabled { self.lead(&state) } else { Ok(()) }
    }

    fn link(&self) -> Option<ChipLink> {
        if self.read(PARTITION) == u32::MAX {
            return None;
        }
        let mut state = self.state();
        let led = self.apertures.first().is_some_and(|first| {
            let kind = self.read(control(self.own) + window(first.bar));
            kind != u32::MAX && kind & WHOLE != 0
        });
        let leads = || {
            let taken = self.taken(self.peer).load(Ordering::Relaxed);
            taken && state.aims.first().is_some_and(|aim| aim.is_some() && self.leads(0, *aim))
        };
        // What is set but not taken leads nowhere. A link that is up stays so while a partition is
        // locked: other hosts may lock it for what is theirs.
        let normal =
            || [self.own, self.peer].map(|at| self.status(at).ok()) == [Some(CONFIGURE.done); 2];
        let up = state.enabled && led && leads() && (state.linked || normal());
        state.linked = up;
        chip_link(up, self.device.trained())
    }

    fn take(&self, _raised: u64) -> News {
        let at = doorbells(self.own) + PENDING;
        let mut rung = 0;
        for _ in 0..LOOKS {
            let pending = self.device.read64(REGISTERS, at);
            let own = pending & self.bells(true);
            if own == 0 || pending == u64::MAX {
                break;
            }
            self.device.write64(REGISTERS, at, own);
            rung |= own >> self.shift(true);
        }
        let link = rung >> STATE_BELL & 1 == 1;
        if link {
            self.restore();
        }
        News { bells: rung & ((1 << STATE_BELL) - 1), link }
    }

    fn admit(&self, _requesters: &[u16]) -> Result<()> {
        Err(PortError::Unsupported(
            "way for DMA engines: it lists the processors of the host alone",
        ))
    }

    fn ring(&self, bits: u64) {
        self.device.write64(REGISTERS, doorbells(self.own) + RING, bits << self.shift(false));
    }

    fn bell(&self, bit: u32) -> Option<Bell> {
        let (offset, value) = (doorbells(self.own) + RING, 1 << bit << self.shift(false));
        Some(Bell { bar: REGISTERS, offset, bytes: 8, value })
    }
}

impl Drop for SwitchtecChip {
    fn drop(&mut self) {
        self.device.write64(REGISTERS, doorbells(self.own) + INTERRUPTING, 0);
    }
}
