// SPDX-License-Identifier: Apache-2.0
//! The library: found when it is needed, loaded once per process, never unloaded.

use super::types::{Fabric, FabricAttr, Info};
use crate::network::message::SHORT_MESSAGE;
use nix::sched::{CpuSet, sched_getaffinity, sched_setaffinity};
use nix::unistd::Pid;
use std::ffi::{c_char, c_int, c_void};
use std::sync::{Mutex, OnceLock};
use tombolo_core::foreign_functions;
use tombolo_core::library::{Loaded, Scope, text_of};
use tombolo_core::process::has_one_thread;

/// Name of the library; its first version that this interface fits is 1.0.
const NAME: &str = "libfabric.so.1";

/// Environment variable of the library: see [`Library::closes_connections`]. Without it, what a peer that was
/// given up has sent before may still arrive.
pub const CLOSE: &str = "FI_AV_REMOVE_CLEANUP";

/// Environment variables of the library that are set before it is loaded, unless the user has set them: it
/// reads them once.
const PRESETS: [(&str, &str); 3] = [
    (CLOSE, "1"),
    // The provider `ofi_rxm` makes 4096 receive buffers of 16 KiB in each endpoint and clears them: 70 MB
    // for each PE. No message of ours over it is longer than 4352 bytes, and a peer that finds no buffer waits.
    ("FI_OFI_RXM_BUFFER_SIZE", "4352"),
    ("FI_OFI_RXM_MSG_RX_SIZE", "1024"),
];
const _: () = assert!(SHORT_MESSAGE <= 4352);

/// The same, with the number of peers: `ofi_rxm` over verbs makes queues for so many, 256 unless told, which is more than
/// some cards have (RoCE in software: 32,767 entries).
const PEERS: &str = "FI_UNIVERSE_SIZE";
/// The least that is told.
const PEERS_MIN: usize = 8;

/// The library.
pub struct Library {
    pub functions: Functions,
    /// To remove the address of a peer closes the connection with it, where a provider makes one of its own.
    pub closes_connections: bool,
}

foreign_functions! {
    /// The functions that the library exports; all others are in the tables of its objects.
    pub struct Functions {
        getinfo = c"fi_getinfo":
            fn(u32, *const c_char, *const c_char, u64, *const Info, *mut *mut Info) -> c_int;
        pub freeinfo = c"fi_freeinfo": fn(*mut Info);
        pub dupinfo = c"fi_dupinfo": fn(*const Info) -> *mut Info;
        pub fabric = c"fi_fabric": fn(*mut FabricAttr, *mut *mut Fabric, *mut c_void) -> c_int;
        strerror = c"fi_strerror": fn(c_int) -> *const c_char;
        version = c"fi_version": fn() -> u32;
    }
}

/// Providers are initialised by the first `fi_getinfo`, not always in a thread-safe manner; and what [`Kept`]
/// finds must not be what one thread is about to restore.
static LOOKING: Mutex<()> = Mutex::new(());

impl Library {
    /// The library, loaded at the first call for so many peers; why it cannot be used if it cannot.
    pub fn get(peers: usize) -> Result<&'static Library, String> {
        static LIBRARY: OnceLock<Result<Library, String>> = OnceLock::new();
        LIBRARY.get_or_init(|| Library::load(peers)).as_ref().map_err(Clone::clone)
    }

    fn load(peers: usize) -> Result<Library, String> {
        if has_one_thread() {
            let peers = peers.max(PEERS_MIN).to_string();
            let presets = PRESETS.into_iter().chain([(PEERS, &*peers)]);
            for (name, value) in presets.filter(|(name, _)| std::env::var_os(name).is_none()) {
                // SAFETY: nobody else can be reading or changing the environment.
                unsafe { std::env::set_var(name, value) };
            }
        }
        let one_at_a_time = LOOKING.lock().unwrap_or_else(|e| e.into_inner());
        let kept = Kept::now();
        // SAFETY: the library's constructors are harmless but for what is restored below.
        let library = unsafe { Loaded::open(NAME, Scope::Local) };
        kept.restore();
        drop(one_at_a_time);
        let library = library.map_err(|why| why.with_remedy("libfabric1"))?;
        // SAFETY: the types are those of the headers.
        let functions = unsafe { Functions::of(&library) }?;
        let closes_connections = std::env::var_os(CLOSE).is_some_and(|value| value == "1");
        Ok(Library { functions, closes_connections })
    }

    /// Calls `fi_getinfo` without node and service.
    ///
    /// # Safety
    /// `hints` came from `dupinfo`; the result goes to `freeinfo`.
    pub unsafe fn getinfo(&self, version: u32, hints: *const Info) -> Result<*mut Info, String> {
        let _one_at_a_time = LOOKING.lock().unwrap_or_else(|e| e.into_inner());
        let mut found = std::ptr::null_mut();
        let kept = Kept::now();
        let none = std::ptr::null();
        // SAFETY: by the caller's word; `found` is a place for the result.
        let status =
            unsafe { (self.functions.getinfo)(version, none, none, 0, hints, &raw mut found) };
        kept.restore();
        match status {
            0 => Ok(found),
            error => Err(self.error(error)),
        }
    }

    /// What an error number, negative as functions return it or positive, means.
    pub fn error(&self, number: c_int) -> String {
        // SAFETY: gives a constant string for every number.
        unsafe { text_of((self.functions.strerror)(number.abs())) }
    }

    /// Version of the library.
    pub fn version(&self) -> (u32, u32) {
        // SAFETY: no arguments.
        let version = unsafe { (self.functions.version)() };
        (version >> 16, version & 0xffff)
    }
}

/// What libraries behind some providers change in the whole process when they are loaded or first
/// used: those for PSM install handlers for SIGINT, SIGTERM, SIGSEGV and others, and move the
/// thread between processors to measure their clock.
struct Kept {
    handlers: Vec<(c_int, libc::sigaction)>,
    processors: Option<CpuSet>,
}

impl Kept {
    fn now() -> Kept {
        let handler = |signal: c_int| {
            // SAFETY: all-zero is a valid value, and the call only fills it.
            unsafe {
                let mut action: libc::sigaction = std::mem::zeroed();
                let asked = libc::sigaction(signal, std::ptr::null(), &raw mut action);
                (asked == 0).then_some((signal, action))
            }
        };
        let processors = sched_getaffinity(Pid::from_raw(0)).ok();
        Kept { handlers: (1..32).filter_map(handler).collect(), processors }
    }

    fn restore(self) {
        for (signal, action) in &self.handlers {
            // SAFETY: sets what was in force before.
            unsafe { libc::sigaction(*signal, action, std::ptr::null_mut()) };
        }
        if let Some(processors) = self.processors {
            // Where it was allowed to ask it is allowed to set the same.
            let _ = sched_setaffinity(Pid::from_raw(0), &processors);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn loading_leaves_signal_handlers_as_they_were() {
        // Other tests load it at the same time.
        let now = || {
            let _one_at_a_time = LOOKING.lock().unwrap_or_else(|e| e.into_inner());
            Kept::now()
        };
        let before = now();
        let Some(library) = super::super::installed() else { return };
        // SAFETY: a fresh set of hints, and no result is kept.
        unsafe {
            let hints = (library.functions.dupinfo)(std::ptr::null());
            if let Ok(found) = library.getinfo(super::super::version(1, 5), hints) {
                (library.functions.freeinfo)(found);
            }
            (library.functions.freeinfo)(hints);
        }
        let after = now();
        for ((signal, old), (_, new)) in before.handlers.iter().zip(&after.handlers) {
            assert_eq!(old.sa_sigaction, new.sa_sigaction, "handler of signal {signal}");
        }
        assert_eq!(before.processors, after.processors);
    }
}
