// SPDX-License-Identifier: Apache-2.0
//! A transport over a network that a back end chooses and opens.

use super::open::{Connected, Kind, Opened};
use super::{Network, is_wanted};
use nix::sys::resource::{Resource, getrlimit};
use std::os::fd::RawFd;
use std::sync::{Mutex, PoisonError};
use tombolo_core::config::Table;
use tombolo_core::error::{Error, Result};
use tombolo_core::transport::{Distance, Job, Progress, Segment, Status, Stream, Transport};

/// What makes a network of its own kind.
pub trait BackEnd: Send + Sync + 'static {
    /// The name people use in `SHMEM_TRANSPORTS`.
    const NAME: &'static str;
    /// Its environment variables.
    const SETTINGS: Table;
    /// The network.
    type Net: Network + 'static;
    /// What was found to work.
    type Chosen: Send;

    /// Finds what works by trying it; the error says why nothing does.
    fn choose(job: &Job<'_>) -> std::result::Result<Self::Chosen, String>;

    /// Opens it, and says in lines for people what it is.
    fn open(
        chosen: Self::Chosen,
        job: &Job<'_>,
    ) -> std::result::Result<(Self::Net, Kind, Vec<String>), String>;

    /// Why networks of two kinds do not reach each other.
    fn unlike(theirs: &str, mine: &str) -> String;

    /// The network was closed.
    fn closed() {}
}

/// See the module.
pub struct Over<B: BackEnd> {
    /// Set by `probe`.
    chosen: Mutex<Option<B::Chosen>>,
    opened: Option<Opened<B::Net>>,
    medium: String,
    description: Vec<String>,
}

impl<B: BackEnd> Over<B> {
    /// A transport with nothing open.
    pub fn new() -> Over<B> {
        Over { chosen: Mutex::new(None), opened: None, medium: String::new(), description: vec![] }
    }
}

impl<B: BackEnd> Default for Over<B> {
    fn default() -> Over<B> {
        Over::new()
    }
}

/// Files that a process must still be able to open. A library of networks opens up to 26 of them at start; it
/// may crash or hang if one of them cannot be opened.
const DESCRIPTORS: u64 = 64;

pub(super) fn check_descriptors() -> std::result::Result<(), String> {
    let limit = getrlimit(Resource::RLIMIT_NOFILE).map_or(u64::MAX, |(soft, _)| soft);
    // Where that cannot be read, what happens then shows whether they suffice.
    let open = std::fs::read_dir("/proc/self/fd").map_or(0, |entries| entries.count() as u64);
    match limit.saturating_sub(open) >= DESCRIPTORS {
        true => Ok(()),
        false => Err(format!(
            "this process has {open} files open and may have {limit} (ulimit -n): it needs {DESCRIPTORS} more"
        )),
    }
}

fn failure<B: BackEnd>(what: impl Into<String>) -> Error {
    Error::Transport { transport: B::NAME, what: what.into() }
}

impl<B: BackEnd> Transport for Over<B> {
    fn name(&self) -> &'static str {
        B::NAME
    }

    fn settings(&self) -> Table {
        B::SETTINGS
    }

    fn probe(&self, job: &Job<'_>) -> std::result::Result<(), String> {
        is_wanted(job, B::NAME)?;
        check_descriptors()?;
        let chosen = B::choose(job)?;
        *self.chosen.lock().unwrap_or_else(PoisonError::into_inner) = Some(chosen);
        Ok(())
    }

    fn open(&mut self, job: &Job<'_>, segments: &[Segment<'_>]) -> Result<Vec<u8>> {
        let chosen = self.chosen.get_mut().unwrap_or_else(PoisonError::into_inner).take();
        let chosen = chosen.ok_or_else(|| failure::<B>("it was not probed"))?;
        let (net, kind, description) = B::open(chosen, job).map_err(failure::<B>)?;
        self.description = description;
        self.medium.clone_from(&kind.medium);
        let (opened, address) = Opened::new(net, kind, job, segments).map_err(failure::<B>)?;
        self.opened = Some(opened);
        Ok(address)
    }

    fn connect(&mut self, job: &Job<'_>, addresses: &[Vec<u8>]) -> Result<Connected> {
        let opened = self.opened.as_ref().ok_or_else(|| failure::<B>("it was not opened"))?;
        Ok(opened.meet(job, addresses, B::unlike))
    }

    fn amos_settled(&self, by_device: &[bool]) {
        if let Some(opened) = &self.opened {
            opened.amos_settled(by_device);
        }
    }

    fn distance(&self, _a: usize, _b: usize) -> Option<Distance> {
        Some(Distance::Network)
    }

    fn fence(&self, stream: &Stream) -> Status {
        self.opened.as_ref().map_or(Status::Complete, |opened| opened.port.fence(stream))
    }

    fn quiet(&self, stream: &Stream) -> Status {
        self.opened.as_ref().map_or(Status::Complete, |opened| opened.port.quiet(stream))
    }

    fn progress(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.port.progress())
    }

    fn is_taken(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.port.is_taken())
    }

    fn progress_needed(&self) -> Progress {
        // Networks are asked to make none by themselves, and requests are carried out here.
        Progress::Always
    }

    fn event_fd(&self) -> Option<RawFd> {
        self.opened.as_ref()?.port.wait_fd()
    }

    fn arm(&self) -> bool {
        self.opened.as_ref().is_none_or(|opened| opened.port.arm())
    }

    fn first_unreachable(&self) -> Option<usize> {
        self.opened.as_ref()?.port.lost().first()
    }

    fn has_given_up(&self, pe: usize) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.port.lost().has(pe))
    }

    fn give_up(&self, pe: usize, why: &str) {
        if let Some(opened) = &self.opened {
            opened.port.give_up(pe, why);
        }
    }

    fn has_ended(&self, pe: usize) {
        if let Some(opened) = &self.opened {
            opened.port.has_ended(pe);
        }
    }

    fn why_given_up(&self, pe: usize) -> Option<String> {
        self.opened.as_ref()?.port.lost().why(pe)
    }

    fn medium(&self) -> Option<&str> {
        Some(&self.medium)
    }

    fn describe(&self) -> Vec<String> {
        self.description.clone()
    }

    fn describe_own(&self) -> Vec<String> {
        self.opened.as_ref().map_or_else(Vec::new, Opened::describe)
    }

    fn close(&mut self) {
        if let Some(opened) = &self.opened {
            opened.port.close();
            B::closed();
        }
    }
}
