// SPDX-License-Identifier: Apache-2.0
//! OpenSHMEM and MPI in one process: works where the launcher speaks PMIx, of which a process may have
//! several users; elsewhere an error says why it does not.

use super::{Programs, fails, launch, mpirun, no_mpirun, trial};
use libtest_mimic::{Failed, Trial};
use std::path::Path;
use std::process::Command;

const OPEN_MPI: &str = "libmpi.so.40";
const MPICH: &str = "libmpich.so.12";
/// Who begins, and so who ends last.
const ORDERS: [&str; 2] = ["mpi", "shmem"];

/// `srun` gives the command for options and variables; `no_pmix` says why it cannot offer PMIx.
pub fn with_mpi<S>(programs: &Programs, srun: &S, no_pmix: Option<&str>) -> Vec<Trial>
where
    S: Fn(&[&str], &[(&str, &str)]) -> Result<Command, String> + Clone + Send + 'static,
{
    let program = super::program(&programs.prefix, "special/with_mpi");
    let (open_mpi, mpich) = (
        missing(OPEN_MPI, "libopenmpi3 is not installed"),
        missing(MPICH, "libmpich12 is not installed"),
    );
    let mut trials = vec![];
    for order in ORDERS {
        let executable = program.clone();
        let name = format!("MPI in one process under Open MPI's mpirun, {order} first");
        trials.push(trial(name, open_mpi.or(no_mpirun()), move || {
            let mut mpirun = mpirun("2");
            let program = executable.executable()?;
            agrees(mpirun.arg(program).args([OPEN_MPI, order]))
        }));
        let (executable, srun) = (program.clone(), srun.clone());
        let name = format!("MPI in one process under srun --mpi=pmix, {order} first");
        trials.push(trial(name, open_mpi.or(no_pmix), move || {
            let mut srun = srun(&["-N1", "-n2", "--mpi=pmix"], &[])?;
            agrees(srun.arg(executable.executable()?).args([OPEN_MPI, order]))
        }));
        let executable = program.clone();
        let oshrun = programs.tool("oshrun");
        let name = format!("MPICH in one process is told why it cannot be, {order} first");
        trials.push(trial(name, mpich, move || {
            let mut job = Command::new(oshrun);
            job.args(["-n", "2"]).arg(executable.executable()?).args([MPICH, order]);
            let ran = fails(launch(&mut job)?)?;
            match ran.stderr.contains("such as MPI") {
                true => Ok(()),
                false => Err(ran.account("expected the reason and a way").into()),
            }
        }));
    }
    trials
}

fn agrees(job: &mut Command) -> Result<(), Failed> {
    let ran = launch(job.env("SHMEM_TRANSPORTS", "shm"))?.succeeded()?;
    match ran.stdout.contains("both agree: 3") {
        true => Ok(()),
        false => Err(ran.account("expected both to have the same processes").into()),
    }
}

/// Why a library of MPI cannot be used; none if it is there.
fn missing(library: &str, why: &'static str) -> Option<&'static str> {
    let own = format!("/usr/lib/{}-linux-gnu", std::env::consts::ARCH);
    let folders = [own.as_str(), "/usr/lib64", "/usr/lib", "/usr/local/lib"];
    let found = folders.iter().any(|folder| Path::new(folder).join(library).exists());
    (!found).then_some(why)
}
