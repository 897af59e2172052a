// SPDX-License-Identifier: Apache-2.0
//! A link as one process has it mapped, and its going up and down.

use super::config::LinkConfig;
use super::layout::{LinkMemory, MAGIC, Side};
use super::profile::Speed;
use super::sys::{self, SharedMapping, monotonic_ns};
use super::words::{LinkWord, Need};
use super::{doorbell, translation};
use crate::ntb::port::{Event, PortError, Result};
use std::os::fd::AsFd;
use std::sync::atomic::Ordering;
use std::time::Duration;
use tombolo_core::memory::check_file_size;

/// How long a barrier waits for writers before it gives up.
const BARRIER: Duration = Duration::from_secs(1);

/// A mapped link.
#[derive(Debug)]
pub struct Link {
    mapping: SharedMapping,
    pub config: LinkConfig,
}

impl Link {
    /// Lays out a new link in `file`, which is empty.
    pub fn create(file: impl AsFd, config: LinkConfig) -> Result<Link> {
        check_file_size("a link between emulated hosts", size_of::<LinkMemory>())
            .map_err(|e| PortError::Exhausted(e.to_string()))?;
        nix::unistd::ftruncate(file.as_fd(), size_of::<LinkMemory>() as i64)
            .map_err(|e| PortError::system("sizing NTB link memory", e))?;
        let mapping = SharedMapping::new(file, 0, size_of::<LinkMemory>())?;
        let link = Link { mapping, config };
        let memory = link.memory();
        for (word, value) in memory.config.iter().zip(link.config.to_words()) {
            word.store(value, Ordering::Relaxed);
        }
        for side in &memory.sides {
            doorbell::reset(&side.doorbell);
        }
        for need in [Need::Cable, Need::Host0, Need::Host1] {
            memory.status.change(need, true);
        }
        memory.magic.store(MAGIC, Ordering::Release);
        Ok(link)
    }

    /// Maps a link that another process has laid out.
    pub fn open(file: impl AsFd) -> Result<Link> {
        let stat = nix::sys::stat::fstat(file.as_fd())
            .map_err(|e| PortError::system("looking at NTB link memory", e))?;
        if (stat.st_size as u64) < size_of::<LinkMemory>() as u64 {
            return Err(PortError::Invalid(format!(
                "NTB link memory has {} bytes, expected {}",
                stat.st_size,
                size_of::<LinkMemory>()
            )));
        }
        let mapping = SharedMapping::new(file, 0, size_of::<LinkMemory>())?;
        // SAFETY: as in `memory`; the magic is looked at before anything else is believed.
        let memory = unsafe { &*mapping.base().cast::<LinkMemory>() };
        if memory.magic.load(Ordering::Acquire) != MAGIC {
            return Err(PortError::Invalid(
                "the file is no NTB link, or one of another version of Tombolo".into(),
            ));
        }
        let words = std::array::from_fn(|index| memory.config[index].load(Ordering::Relaxed));
        let config = LinkConfig::from_words(&words)?;
        Ok(Link { mapping, config })
    }

    pub fn memory(&self) -> &LinkMemory {
        // SAFETY: the mapping is page aligned, at least as long as the type (checked when it was
        // made) and lives as long as `self`. All fields are atomic: others may write them.
        unsafe { &*self.mapping.base().cast::<LinkMemory>() }
    }

    pub fn side(&self, side: usize) -> &Side {
        &self.memory().sides[side]
    }

    pub fn word(&self) -> LinkWord {
        self.memory().status.read()
    }

    pub fn is_modelled(&self) -> bool {
        self.config.speed == Speed::Modelled
    }

    /// Picoseconds since the fabric was made.
    pub fn now_ps(&self) -> u64 {
        monotonic_ns().saturating_sub(self.config.started_ns).saturating_mul(1000)
    }

    /// Fulfils or takes away a need of the link, with all that follows when it goes up or down by
    /// it: lost registers, events on both sides.
    pub fn change(&self, need: Need, fulfilled: bool) {
        let (word, edge) = self.memory().status.change(need, fulfilled);
        if !edge {
            return;
        }
        if !word.is_up() && self.config.profile.resets_on_link_down() {
            for side in &self.memory().sides {
                translation::reset(side, self.config.windows.len());
                doorbell::reset(&side.doorbell);
            }
        }
        for side in &self.memory().sides {
            side.count(Event::LinkChanges, 1);
            doorbell::announce(&side.doorbell);
        }
    }

    /// Waits until every write that `side` was placing when this was called has been placed.
    pub fn drain(&self, side: usize) -> Result<()> {
        for requester in self.side(side).requesters() {
            let Some(placing) = requester.placing.current() else { continue };
            let deadline = monotonic_ns() + BARRIER.as_nanos() as u64;
            while requester.placing.is_at(placing) {
                let pid = requester.pid.load(Ordering::Acquire);
                if pid == 0 || !sys::is_alive(pid) {
                    break;
                }
                if monotonic_ns() > deadline {
                    return Err(PortError::Busy(format!(
                        "process {pid} has been writing through the window for {BARRIER:?}: is \
                         it stopped?"
                    )));
                }
                std::thread::yield_now();
            }
        }
        Ok(())
    }
}
