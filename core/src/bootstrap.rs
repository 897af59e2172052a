//! How a process finds out which PE it is and talks to the others before transports exist.
//!
//! A launcher is recognised by what it leaves in the environment. When its traces are there but
//! cannot be used, starting fails: N processes that each believe to be the only one are never right.

use crate::error::{Error, Result};
use std::time::Duration;

mod pmi1;
mod threads;

pub use pmi1::Pmi1;
pub use threads::Threads;

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

/// Joins the job this process was started in.
///
/// - `PMI_FD`: a PMI-1 launcher (oshrun, Hydra, Slurm's pmi2 plugin).
/// - Traces of a launcher whose protocol is not spoken: an error that says what to use.
/// - Nothing: one PE.
pub fn from_env(timeout: Duration) -> Result<Box<dyn Bootstrap>> {
    let number = |name: &str| std::env::var(name).ok().and_then(|text| text.parse::<i64>().ok());
    if is_launched() {
        return Ok(Box::new(Pmi1::connect(timeout)?));
    }
    for (name, launcher, instead) in FOREIGN {
        if number(name).is_some_and(|count| count > 1) {
            return Err(Error::Bootstrap(format!(
                "started by {launcher} ({name} is set), which offers no PMI-1 connection here; \
                 {instead}"
            )));
        }
    }
    Ok(Box::new(Single))
}

/// Whether a launcher started this process as a PE and offers it a connection.
pub fn is_launched() -> bool {
    std::env::var_os("PMI_FD").is_some()
}

/// Variables that give the number of processes of launchers which may offer no PMI-1.
const FOREIGN: [(&str, &str, &str); 5] = [
    ("PMI_SIZE", "a PMI launcher", "let it pass PMI_FD, or start the program with oshrun"),
    ("SLURM_STEP_NUM_TASKS", "srun", "use srun --mpi=pmi2, or oshrun"),
    ("OMPI_COMM_WORLD_SIZE", "Open MPI's mpirun", "use oshrun, or MPICH's mpiexec"),
    ("PALS_LOCAL_SIZE", "PALS", "use a launcher with PMI-1"),
    ("JSM_NAMESPACE_SIZE", "jsrun", "use a launcher with PMI-1"),
];
