// SPDX-License-Identifier: Apache-2.0
//! How a process finds out which PE it is and talks to the others before transports exist.
//!
//! A launcher is recognised by what it leaves in the environment. When its traces are there but
//! cannot be used, starting fails: N processes that each believe to be the only one are never right.

use crate::config::Config;
use crate::error::Result;
use environment::Offer;
use pmi::{Pmi, PmiEnvironment};
use pmix::Pmix;
use std::time::Duration;
use wire::Wire;

mod environment;
mod pieces;
mod pmi;
mod pmi1;
mod pmi2;
mod pmix;
pub(crate) mod slots;
mod threads;
mod wire;

/// Why a process and its launcher do not understand each other any more.
pub const ONE_USER: &str = "in a process one library alone can speak to a launcher by PMI, and another, \
    such as MPI, does so too; start such programs with Open MPI's mpirun or srun --mpi=pmix";

pub use environment::{connection, is_launched, number_of_this_process};
pub use threads::Threads;
pub use wire::number_of_socket;

/// Out-of-band communication of a job.
pub trait Bootstrap: Send + Sync {
    /// Number of this PE.
    fn pe(&self) -> usize;

    /// Number of PEs of the job.
    fn n_pes(&self) -> usize;

    /// Collective: every PE contributes some bytes, every PE gets all contributions in PE order.
    fn allgather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>>;

    /// Collective: returns when every PE has called it.
    fn barrier(&self) -> Result<()>;

    /// As `barrier`, for however long it takes: other PEs may still be computing.
    fn barrier_at_end(&self) -> Result<()> {
        self.barrier()
    }

    /// Asks the launcher to end the whole job with exit code `code`. May return.
    fn abort(&self, code: i32);

    /// Says goodbye to the launcher: leaving is no longer a failure. At most once.
    fn finalize(&self);

    /// False once the launcher is known to be gone.
    fn is_alive(&self) -> bool {
        true
    }

    /// What started the job, for people.
    fn launcher(&self) -> &str;
}

/// A job of one PE, for programs started without a launcher.
pub struct Single;

impl Bootstrap for Single {
    fn pe(&self) -> usize {
        0
    }

    fn n_pes(&self) -> usize {
        1
    }

    fn allgather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        Ok(vec![mine.to_vec()])
    }

    fn barrier(&self) -> Result<()> {
        Ok(())
    }

    fn abort(&self, _code: i32) {}

    fn finalize(&self) {}

    fn launcher(&self) -> &str {
        "none (one PE)"
    }
}

/// Joins the job this process was started in; alone where no launcher has left a trace.
pub fn from_env(config: &Config) -> Result<Box<dyn Bootstrap>> {
    let lookup = |name: &str| std::env::var(name).ok();
    let timeout = config.start_timeout.max(Duration::from_secs(1));
    Ok(match environment::offered(&lookup, &wire::is_socket, config.pmi)? {
        Offer::Descriptor { native } => {
            let place = PmiEnvironment::parse(&lookup)?;
            let wire = Wire::take_over(place.fd, timeout)?;
            Box::new(Pmi::connect(&place, wire, config.pmi, native, timeout)?)
        }
        Offer::Pmix => Box::new(Pmix::connect(timeout)?),
        Offer::Nothing => Box::new(Single),
    })
}
