// SPDX-License-Identifier: Apache-2.0
//! libfabric: TCP between any hosts, and whatever else its providers drive.
//!
//! ```text
//! network (shared) -> rdm: libfabric's objects -> sys
//! choose: which provider on which interface
//! ```
//!
//! - The library is loaded at run time; without it the transport says so and is not used.
//! - A provider is taken when it has worked in a trial of puts, gets and messages, not because of
//!   what it lists.
//! - Long transfers are RMA; words, short puts and AMOs are carried out by the target's processor.
//! - Addresses of peers are entered at start; connections are made when they are first used.

mod choose;
mod rdm;
mod settings;
mod sys;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trials;

use crate::network::endpoint::SHORT;
use crate::network::engine::ENTRIES;
use crate::network::open::{Connected, Kind, Opened};
use crate::network::{Network, is_on_one_machine, is_wanted, trial};
use choose::{Candidate, Offers, Wish};
use rdm::Rdm;
use settings::OfiSettings;
use std::os::fd::RawFd;
use std::sync::Mutex;
use sys::Library;
use tombolo_core::config::Table;
use tombolo_core::error::{Error, Result};
use tombolo_core::transport::{Distance, Job, Progress, Segment, Status, Stream, Transport};

const NAME: &str = "ofi";

/// The libfabric transport.
#[derive(Default)]
pub struct Ofi {
    /// Set by `probe`.
    chosen: Mutex<Option<Chosen>>,
    opened: Option<Opened<Rdm>>,
    description: Vec<String>,
}

/// The provider that works.
struct Chosen {
    library: &'static Library,
    offers: Offers,
    candidate: Candidate,
    /// What was tried before and does not work, and why.
    failed: Vec<String>,
}

impl Ofi {
    /// A transport with nothing open.
    pub fn new() -> Ofi {
        Ofi::default()
    }
}

/// What the settings and the job ask for.
fn wish(job: &Job<'_>) -> Result<Wish> {
    let OfiSettings { provider, domain, interface } = OfiSettings::read(job.config.environment())?;
    Ok(Wish { provider, domain, interface, one_machine: is_on_one_machine(job) })
}

fn choose(wish: &Wish) -> std::result::Result<Chosen, String> {
    let library = Library::get()?;
    let offers = Offers::find(library, wish)?;
    let mut failed = Vec::new();
    for candidate in offers.candidates.clone() {
        match try_once(library, &offers, &candidate) {
            Ok(()) => return Ok(Chosen { library, offers, candidate, failed }),
            Err(why) => failed.push(format!("{}: {why}", candidate.describe())),
        }
    }
    Err(format!("no provider of libfabric works: {}", failed.join("; ")))
}

/// Tries a candidate, unless it has worked in this process before: programs may start the library again
/// and again.
fn try_once(
    library: &'static Library,
    offers: &Offers,
    candidate: &Candidate,
) -> std::result::Result<(), String> {
    static WORKING: Mutex<Vec<Candidate>> = Mutex::new(Vec::new());
    let working = || WORKING.lock().unwrap_or_else(|e| e.into_inner());
    if working().iter().any(|one| one.is_like(candidate)) {
        return Ok(());
    }
    try_out(library, offers, candidate)?;
    working().push(candidate.clone());
    Ok(())
}

/// Why a candidate cannot be used, if it cannot.
fn try_out(
    library: &'static Library,
    offers: &Offers,
    candidate: &Candidate,
) -> std::result::Result<(), String> {
    // SAFETY: of the offers, which are only read.
    let open = || unsafe { Rdm::open(library, offers.info(candidate), 2, 16) };
    trial::run(open()?, open()?)
}

impl Transport for Ofi {
    fn name(&self) -> &'static str {
        NAME
    }

    fn settings(&self) -> Table {
        OfiSettings::TABLE
    }

    fn probe(&self, job: &Job<'_>) -> std::result::Result<(), String> {
        let wish = wish(job).map_err(|e| e.to_string())?;
        is_wanted(job, NAME)?;
        *self.chosen.lock().unwrap_or_else(|e| e.into_inner()) = Some(choose(&wish)?);
        Ok(())
    }

    fn open(&mut self, job: &Job<'_>, segments: &[Segment<'_>]) -> Result<Vec<u8>> {
        let chosen = self.chosen.get_mut().unwrap_or_else(|e| e.into_inner()).take();
        let chosen = chosen.ok_or_else(|| failure("it was not probed"))?;
        let info = chosen.offers.info(&chosen.candidate);
        // SAFETY: of the offers, which are only read.
        let rdm = unsafe { Rdm::open(chosen.library, info, job.n_pes(), ENTRIES) };
        let rdm = rdm.map_err(failure)?;
        self.description = describe(&chosen, &rdm);
        let provider = chosen.candidate.provider.clone();
        let kind = Kind {
            // The target's processor does the provider's work: then it may as well do all of it, which
            // keeps words whole and gathers short operations.
            served_max: if choose::is_software(&provider) { SHORT } else { 0 },
            max_len: rdm.max_len,
            wait_fd: rdm.wait_fd(),
            name: provider,
        };
        let (opened, address) = Opened::new(rdm, kind, job, segments).map_err(failure)?;
        self.opened = Some(opened);
        Ok(address)
    }

    fn connect(&mut self, job: &Job<'_>, addresses: &[Vec<u8>]) -> Result<Connected> {
        let opened = self.opened.as_ref().ok_or_else(|| failure("it was not opened"))?;
        Ok(opened.meet(job, addresses, |theirs, mine| {
            format!("it uses provider {theirs} and this PE {mine}: set SHMEM_OFI_PROVIDER")
        }))
    }

    fn distance(&self, _a: usize, _b: usize) -> Option<Distance> {
        Some(Distance::Network)
    }

    fn fence(&self, stream: &Stream) -> Status {
        self.opened.as_ref().map_or(Status::Complete, |opened| opened.port.fence(stream))
    }

    fn progress(&self) -> bool {
        self.opened.as_ref().is_some_and(|opened| opened.port.progress())
    }

    fn progress_needed(&self) -> Progress {
        // Providers are asked to make none by themselves, and requests are carried out here.
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

    fn describe(&self) -> Vec<String> {
        self.description.clone()
    }

    fn describe_own(&self) -> Vec<String> {
        self.opened.as_ref().map_or_else(Vec::new, |opened| vec![opened.port.counters().describe()])
    }

    fn close(&mut self) {
        if let Some(opened) = &self.opened {
            opened.port.close();
            give_back();
        }
    }
}

/// Returns free memory to the system. Providers take some 100 MB from the allocator and free it all, but
/// as few bytes as somebody holds among them keep the next start from fitting into the same place.
fn give_back() {
    #[cfg(target_env = "gnu")]
    // SAFETY: the allocator gives back what nobody uses.
    unsafe {
        libc::malloc_trim(0);
    }
}

fn describe(chosen: &Chosen, rdm: &Rdm) -> Vec<String> {
    let (major, minor) = chosen.library.version();
    let mut lines = vec![format!(
        "libfabric {major}.{minor}, provider {}: the first that worked when tried",
        chosen.candidate.describe()
    )];
    lines.extend(chosen.failed.iter().map(|why| format!("failed: {why}")));
    lines.extend(chosen.offers.left_out.iter().map(|why| format!("left out, {why}")));
    let order = if rdm.ordered { "in the order issued" } else { "in any order" };
    let local = if rdm.needs_local_registration() { "must" } else { "need not" };
    lines.push(format!("puts arrive {order}; local buffers {local} be registered"));
    lines
}

fn failure(what: impl Into<String>) -> Error {
    Error::Transport { transport: NAME, what: what.into() }
}
