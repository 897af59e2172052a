// SPDX-License-Identifier: Apache-2.0
//! libfabric: TCP between any hosts, and whatever else its providers drive.
//!
//! ```text
//! network (shared) -> rails (shared): several interfaces -> rdm: libfabric's objects -> sys
//! choose: which provider on which interface
//! ```
//!
//! - The library is loaded at run time; without it the transport says so and is not used.
//! - A provider is taken when it has worked in a trial of puts, gets and messages, not because of
//!   what it lists.
//! - Long transfers are RMA; words, short puts and AMOs are carried out by the target's processor. With
//!   `SHMEM_OFI_ATOMICS` the provider carries out AMOs, where all PEs reach each other by it alone.
//! - Addresses of peers are entered at start; connections are made when they are first used.

mod choose;
#[cfg(test)]
mod closed_connection;
mod promises;
mod queue;
mod rdm;
mod settings;
mod sockets;
mod sys;
#[cfg(test)]
mod tests;
#[cfg(test)]
mod trials;

use crate::network::endpoint::Served;
use crate::network::engine::ENTRIES;
use crate::network::open::Kind;
use crate::network::rails::Rails;
use crate::network::transport::{BackEnd, Over};
use crate::network::{Network, is_on_one_machine, trial};
pub use choose::is_software;
use choose::{Candidate, Offers, Wish};
use rdm::Rdm;
use settings::{Atomics, OfiSettings};
use std::path::Path;
use std::sync::Mutex;
use sys::Library;
use tombolo_core::config::{OnLoss, Table};
use tombolo_core::interfaces::shared_by_all;
use tombolo_core::transport::Job;

/// The libfabric transport.
pub type Ofi = Over<Libfabric>;

/// The back end.
pub struct Libfabric;

/// The providers that work, all of one kind, each on an interface of its own.
pub struct Chosen {
    library: &'static Library,
    rails: Vec<Rail>,
    /// What was tried before and does not work, and why.
    failed: Vec<String>,
}

/// One of them.
struct Rail {
    offers: Offers,
    candidate: Candidate,
}

/// What the settings and the job ask for, for each interface or domain that they name.
fn wishes(job: &Job<'_>) -> Result<Vec<Wish>, String> {
    let settings = OfiSettings::read(job.config.environment()).map_err(|e| e.to_string())?;
    let OfiSettings { provider, domain, interface, atomics } = settings;
    let split = |list: &str| list.split(',').map(|one| one.trim().to_owned()).collect();
    let (domains, interfaces): (Vec<String>, Vec<String>) = (split(&domain), split(&interface));
    let count = domains.len().max(interfaces.len());
    if [&domains, &interfaces].iter().any(|list| list.len() > 1 && list.len() < count) {
        return Err(
            "SHMEM_OFI_DOMAIN and SHMEM_OFI_INTERFACE are lists of different lengths".into()
        );
    }
    let of =
        |list: &[String], at: usize| list.get(at).or(list.first()).cloned().unwrap_or_default();
    let shared = shared_by_all(job);
    let wish = |at: usize| Wish {
        provider: provider.clone(),
        domain: of(&domains, at),
        interface: of(&interfaces, at),
        one_machine: is_on_one_machine(job),
        shared: shared.clone(),
        only_devices: false,
        atomics: atomics == Atomics::Provider,
        closes: count > 1 || job.config.on_loss == OnLoss::Continue,
    };
    Ok((0..count).map(wish).collect())
}

/// The best that works; adds to `failed` what does not.
fn choose(
    library: &'static Library,
    wish: &Wish,
    failed: &mut Vec<String>,
) -> Result<Rail, String> {
    let offers = Offers::find(library, wish)?;
    for candidate in offers.candidates.clone() {
        match try_once(library, &offers, &candidate, wish.atomics) {
            Ok(()) => return Ok(Rail { offers, candidate }),
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
    atomics: bool,
) -> Result<(), String> {
    static WORKING: Mutex<Vec<(Candidate, bool)>> = Mutex::new(Vec::new());
    let working = || WORKING.lock().unwrap_or_else(|e| e.into_inner());
    if working().iter().any(|(one, with)| one.is_like(candidate) && *with == atomics) {
        return Ok(());
    }
    try_out(library, offers, candidate, atomics)?;
    working().push((candidate.clone(), atomics));
    Ok(())
}

/// Why a candidate cannot be used, if it cannot.
fn try_out(
    library: &'static Library,
    offers: &Offers,
    candidate: &Candidate,
    atomics: bool,
) -> Result<(), String> {
    // SAFETY: of the offers, which are only read.
    let open = || unsafe { Rdm::open(library, offers.info(candidate), 3, 16, atomics) };
    trial::run(open()?, open()?)
}

impl BackEnd for Libfabric {
    const NAME: &'static str = "ofi";
    const SETTINGS: Table = OfiSettings::TABLE;
    type Net = Rails<Rdm>;
    type Chosen = Chosen;

    fn choose(job: &Job<'_>) -> Result<Chosen, String> {
        let wishes = wishes(job)?;
        let is_asked_for = job.config.transports.asks_for(Self::NAME)
            || wishes.iter().any(Wish::names_something)
            || !job.config.transports.allows("tcp");
        if !is_asked_for && !choose::has_fast_devices(Path::new("/")) {
            return Err("there is no network device here but those of IP, for which the transport tcp needs no \
                        libfabric: it is used if it is named in SHMEM_TRANSPORTS"
                .into());
        }
        let library = Library::get(job.n_pes())?;
        let (mut rails, mut failed): (Vec<Rail>, _) = (vec![], vec![]);
        for mut wish in wishes {
            wish.only_devices = !is_asked_for;
            if let Some(first) = rails.first() {
                wish.provider = first.candidate.provider.clone();
            }
            rails.push(choose(library, &wish, &mut failed)?);
        }
        Ok(Chosen { library, rails, failed })
    }

    fn open(chosen: Chosen, job: &Job<'_>) -> Result<(Rails<Rdm>, Kind, Vec<String>), String> {
        // A PE may enter itself, for AMOs of the provider.
        let peers = job.n_pes() + 1;
        let atomics = wishes(job)?.iter().any(|wish| wish.atomics);
        let open = |rail: &Rail| {
            // SAFETY: of the offers, which are only read.
            unsafe {
                Rdm::open(
                    chosen.library,
                    rail.offers.info(&rail.candidate),
                    peers,
                    ENTRIES,
                    atomics,
                )
            }
        };
        let rails = chosen.rails.iter().map(open).collect::<Result<Vec<_>, _>>()?;
        let mut description = describe(&chosen, &rails[0]);
        let labels = chosen.rails.iter().map(|rail| rail.candidate.describe()).collect();
        let rails = Rails::new(rails, labels)?;
        description.extend(rails.describe());
        let domains: Vec<&str> = chosen.rails.iter().map(|rail| &*rail.candidate.domain).collect();
        let name = chosen.rails[0].candidate.provider.clone();
        let medium = format!("{name} on {}", domains.join(" and "));
        if choose::is_early(&name) {
            tracing::warn!(
                "ofi: provider {name} may call a put complete before its data can be read at the target; the \
                 transport verbs does not"
            );
        }
        let kind = Kind {
            medium,
            // The target's processor does the provider's work: then it may as well do all of it, which
            // keeps words whole and gathers short operations.
            served: match choose::is_software(&name) {
                true => Served::by_processor(rails.message_max()),
                false => Served::BY_DEVICE,
            },
            max_len: rails.max_len(),
            wait_fd: rails.wait_fd(),
            amos_asked_for: atomics.then_some("SHMEM_OFI_ATOMICS=provider"),
            name,
        };
        Ok((rails, kind, description))
    }

    fn unlike(theirs: &str, mine: &str) -> String {
        format!("it uses provider {theirs} and this PE {mine}: set SHMEM_OFI_PROVIDER")
    }

    fn closed() {
        give_back();
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
    let used: Vec<String> = chosen.rails.iter().map(|rail| rail.candidate.describe()).collect();
    let mut lines = vec![format!(
        "libfabric {major}.{minor}, provider {}: the first that worked when tried",
        used[0]
    )];
    lines.extend(used[1..].iter().map(|other| format!("long transfers also by {other}")));
    lines.extend(chosen.failed.iter().map(|why| format!("failed: {why}")));
    lines.extend(chosen.rails[0].offers.left_out.iter().map(|why| format!("left out, {why}")));
    let order = if rdm.ordered { "in the order issued" } else { "in any order" };
    let local = if rdm.needs_local_registration() { "must" } else { "need not" };
    lines.push(format!("puts arrive {order}; local buffers {local} be registered"));
    if !rdm.amos.is_empty() {
        lines.push(
            "the provider carries out AMOs where all PEs reach each other by it alone".into(),
        );
    }
    lines
}
