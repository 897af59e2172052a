// SPDX-License-Identifier: Apache-2.0
//! PMIx: the library of launchers such as Open MPI's `mpirun`, PRRTE and `srun --mpi=pmix`.
//!
//! `libpmix.so.2` is loaded when a launcher has left its traces, and never unloaded: it has threads
//! of its own. Nothing of it is needed to build.

mod sys;

use super::Bootstrap;
use super::pmi::check;
use crate::error::{Error, Result};
use std::ffi::CStr;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use sys::{Library, Proc};

/// A process of a PMIx launcher.
pub struct Pmix {
    library: &'static Library,
    me: Proc,
    pe: usize,
    n_pes: usize,
    round: AtomicU32,
    timeout: Duration,
}

impl Pmix {
    /// Joins the job that `PMIX_NAMESPACE` and `PMIX_RANK` name.
    pub fn connect(timeout: Duration) -> Result<Pmix> {
        let library = Library::load().map_err(|why| {
            Error::Bootstrap(format!(
                "a PMIx launcher started this program (PMIX_RANK is set), and its library cannot \
                 be loaded ({why}): install libpmix2 (the package is called pmix elsewhere), or \
                 start the program with oshrun"
            ))
        })?;
        let failed = |what: &str, status: i32| {
            Error::Bootstrap(format!(
                "{what} of libpmix failed: {} ({status}); the PMIx launcher may be gone or of a \
                 version that does not fit",
                library.error_text(status)
            ))
        };
        let me = library.init().map_err(|status| failed("PMIx_Init", status))?;
        let size = library
            .get_number(&me.everyone(), c"pmix.job.size")
            .map_err(|status| failed("asking for the number of processes", status))?;
        let (pe, n_pes) = (me.rank as usize, size as usize);
        check(pe, n_pes)?;
        library.watch_server();
        Ok(Pmix { library, me, pe, n_pes, round: AtomicU32::new(0), timeout })
    }

    fn error(&self, what: &str, status: i32) -> Error {
        let text = self.library.error_text(status);
        Error::Bootstrap(format!("PMIx launcher: {what}: {text} ({status})"))
    }

    fn fence(&self, limit: Option<Duration>) -> Result<()> {
        match self.library.fence(&self.me.everyone(), limit) {
            Ok(()) => Ok(()),
            Err(None) => Err(Error::Bootstrap(format!(
                "some PEs did not call shmem_init, or did not get through it, within {} s \
                 (SHMEM_START_TIMEOUT)",
                limit.unwrap_or_default().as_secs_f64()
            ))),
            Err(Some(status)) => Err(self.error("waiting for all PEs", status)),
        }
    }
}

fn key(round: u32) -> [u8; 24] {
    let mut key = [0; 24];
    let text = format!("tombolo.{round}");
    key[..text.len()].copy_from_slice(text.as_bytes());
    key
}

impl Bootstrap for Pmix {
    fn pe(&self) -> usize {
        self.pe
    }

    fn n_pes(&self) -> usize {
        self.n_pes
    }

    fn allgather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let key = key(self.round.fetch_add(1, Ordering::Relaxed));
        let key = CStr::from_bytes_until_nul(&key).expect("a number is shorter than its place");
        self.library.put(key, mine).map_err(|status| self.error("publishing", status))?;
        self.fence(Some(self.timeout))?;
        // The fence has brought what others published to this host.
        let get = |pe: usize| match pe == self.pe {
            true => Ok(mine.to_vec()),
            false => self
                .library
                .get_bytes(&self.me.peer(pe as u32), key)
                .map_err(|status| self.error(&format!("what PE {pe} published"), status)),
        };
        (0..self.n_pes).map(get).collect()
    }

    fn barrier(&self) -> Result<()> {
        self.fence(Some(self.timeout))
    }

    fn barrier_at_end(&self) -> Result<()> {
        self.fence(None)
    }

    fn abort(&self, code: i32) {
        self.library.abort(code);
    }

    fn finalize(&self) {
        self.library.finalize();
    }

    fn is_alive(&self) -> bool {
        !self.library.server_is_lost()
    }

    fn launcher(&self) -> &str {
        "PMIx"
    }
}
