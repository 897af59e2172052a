// SPDX-License-Identifier: Apache-2.0
//! What launchers leave in the environment, and what that means.

use super::wire::number_of_socket;
use crate::config::Pmi;
use crate::error::{Error, Result};

/// A way to join a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Offer {
    /// The descriptor in `PMI_FD`, and the protocol that is the launcher's own.
    Descriptor { native: Pmi },
    /// The library of PMIx.
    Pmix,
    /// No launcher has started this process.
    Nothing,
}

/// Finds out which launcher has started this process.
///
/// Launchers may be nested, and each leaves its variables to all below. What decides:
///
/// - A descriptor is of the innermost launcher if it is open: launchers close those of others.
///   `oshrun` and Hydra within a Slurm step or under Open MPI are found by it.
/// - PMIx next: `oshrun` removes its variables.
/// - A descriptor that is not open, with nothing else, is left over from another job.
/// - Then traces of launchers that offered nothing which can be used: an error that says what to
///   do. The variables are those of a *step* of several processes: a program that a batch script
///   runs by itself is one PE, however many tasks the job may have.
pub fn offered(
    lookup: &dyn Fn(&str) -> Option<String>,
    is_open: &dyn Fn(i32) -> bool,
    wanted: Pmi,
) -> Result<Offer> {
    let descriptor = lookup("PMI_FD");
    let open = descriptor.as_ref().and_then(|fd| fd.trim().parse().ok()).is_some_and(is_open);
    let pmix = lookup("PMIX_RANK").is_some() && lookup("PMIX_NAMESPACE").is_some();
    if wanted == Pmi::Pmix {
        return if pmix { Ok(Offer::Pmix) } else { Err(not_offered("PMIX_RANK", wanted)) };
    }
    if pmix && !open && wanted == Pmi::Auto {
        return Ok(Offer::Pmix);
    }
    if descriptor.is_some() {
        // Slurm alone names the job there; under `oshrun` and Hydra the name is left over.
        let slurm = lookup("PMI_JOBID").is_some() && lookup("SLURM_STEP_ID").is_some();
        return Ok(Offer::Descriptor { native: if slurm { Pmi::Pmi2 } else { Pmi::Pmi1 } });
    }
    if wanted != Pmi::Auto {
        return Err(not_offered("PMI_FD", wanted));
    }
    // How many processes there are is told over the port alone.
    if lookup("PMI_PORT").is_some() && lookup("PMI_ID").is_some() {
        return Err(Error::Bootstrap(
            "started by a PMI launcher that offers a port (PMI_PORT is set), not a descriptor, to speak to it: start \
             it without -pmi-port, or with oshrun"
                .into(),
        ));
    }
    let count = |name: &str| lookup(name).and_then(|text| text.trim().parse::<i64>().ok());
    match UNUSABLE.iter().find(|(name, ..)| count(name).is_some_and(|count| count > 1)) {
        Some((name, launcher, instead)) => Err(Error::Bootstrap(format!(
            "started by {launcher} ({name} is set), which offers no connection to the other PEs: \
             {instead}"
        ))),
        None => Ok(Offer::Nothing),
    }
}

fn not_offered(variable: &str, wanted: Pmi) -> Error {
    Error::Bootstrap(format!(
        "SHMEM_PMI={} asks for a launcher that did not start this program: {variable} is not set",
        if wanted == Pmi::Pmix { "pmix" } else { "pmi1 or pmi2" }
    ))
}

/// Variables that give the number of processes, the launchers they are of, and what to do when they
/// come without a connection.
const UNUSABLE: [(&str, &str, &str); 6] = [
    (
        "SLURM_STEP_NUM_TASKS",
        "srun",
        "start it with srun --mpi=pmi2 or srun --mpi=pmix (srun --mpi=list shows which there are), \
         or with oshrun",
    ),
    ("PMI_SIZE", "a PMI launcher", "let it pass PMI_FD, or start the program with oshrun"),
    (
        "OMPI_COMM_WORLD_SIZE",
        "Open MPI's mpirun",
        "use one that has PMIx (version 2 or later), or oshrun",
    ),
    ("FLUX_JOB_SIZE", "flux run", "start it with flux run -o pmi=simple, or with oshrun"),
    ("PALS_LOCAL_SIZE", "PALS", "use a launcher with PMI-1, PMI-2 or PMIx, such as oshrun"),
    ("JSM_NAMESPACE_SIZE", "jsrun", "use a launcher with PMI-1, PMI-2 or PMIx, such as oshrun"),
];

/// Whether a launcher started this process as a PE and offers it a connection.
pub fn is_launched() -> bool {
    let is_set = |name: &str| std::env::var_os(name).is_some();
    is_set("PMI_FD") || (is_set("PMIX_RANK") && is_set("PMIX_NAMESPACE"))
}

/// Number of the socket that the launcher passed, if it is open.
pub fn connection() -> Option<u64> {
    let fd = std::env::var("PMI_FD").ok().and_then(|fd| fd.trim().parse().ok());
    fd.and_then(number_of_socket)
}

/// The number that a launcher gave this process, for messages before it has joined the job.
pub fn number_of_this_process() -> Option<String> {
    ["PMI_RANK", "PMIX_RANK"].iter().find_map(|name| std::env::var(name).ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BATCH: &[(&str, &str)] = &[("SLURM_NTASKS", "4"), ("SLURM_PROCID", "0")];
    const STEP: &[(&str, &str)] =
        &[("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "4"), ("SLURM_PROCID", "1")];
    const SLURM_PMI2: &[(&str, &str)] =
        &[("PMI_FD", "13"), ("PMI_RANK", "1"), ("PMI_SIZE", "4"), ("PMI_JOBID", "2.0")];
    const OSHRUN: &[(&str, &str)] = &[("PMI_FD", "7"), ("PMI_RANK", "1"), ("PMI_SIZE", "2")];
    const PMIX: &[(&str, &str)] = &[("PMIX_RANK", "1"), ("PMIX_NAMESPACE", "slurm.pmix.3.0")];

    /// What is found with these variables, later ones replacing earlier, and these descriptors.
    fn found(variables: &[&[(&str, &str)]], open: &[i32], wanted: Pmi) -> Result<Offer> {
        let all: Vec<_> = variables.concat();
        let lookup = |name: &str| {
            all.iter().rev().find(|(n, _)| *n == name).map(|(_, value)| value.to_string())
        };
        offered(&lookup, &|fd| open.contains(&fd), wanted)
    }

    fn refused(variables: &[&[(&str, &str)]], open: &[i32], wanted: Pmi) -> String {
        found(variables, open, wanted).unwrap_err().to_string()
    }

    #[test]
    fn each_launcher_is_recognised() {
        let auto = |variables: &[&[(&str, &str)]]| found(variables, &[7, 13], Pmi::Auto).unwrap();
        assert_eq!(auto(&[]), Offer::Nothing);
        assert_eq!(auto(&[OSHRUN]), Offer::Descriptor { native: Pmi::Pmi1 });
        assert_eq!(auto(&[STEP, SLURM_PMI2]), Offer::Descriptor { native: Pmi::Pmi2 });
        assert_eq!(auto(&[STEP, PMIX]), Offer::Pmix);
        assert_eq!(auto(&[PMIX, &[("OMPI_COMM_WORLD_SIZE", "4")]]), Offer::Pmix);
    }

    #[test]
    fn the_innermost_launcher_counts() {
        let auto = |variables: &[&[(&str, &str)]], open: &[i32]| {
            found(variables, open, Pmi::Auto).unwrap()
        };
        let pmi1 = Offer::Descriptor { native: Pmi::Pmi1 };
        assert_eq!(auto(&[STEP, OSHRUN], &[7]), pmi1);
        assert_eq!(auto(&[BATCH, OSHRUN], &[7]), pmi1);
        // Hydra leaves the variables of the launcher around it.
        assert_eq!(auto(&[STEP, PMIX, OSHRUN], &[7]), pmi1);
        // mpirun within a step, or started by a PE, closes the descriptor and not the variable.
        assert_eq!(auto(&[STEP, SLURM_PMI2, PMIX], &[]), Offer::Pmix);
    }

    #[test]
    fn a_program_that_a_batch_script_runs_is_one_pe() {
        assert_eq!(found(&[BATCH], &[], Pmi::Auto).unwrap(), Offer::Nothing);
        let one = [("SLURM_STEP_ID", "0"), ("SLURM_STEP_NUM_TASKS", "1")];
        assert_eq!(found(&[BATCH, &one], &[], Pmi::Auto).unwrap(), Offer::Nothing);
    }

    #[test]
    fn a_launcher_without_a_connection_is_named_with_what_helps() {
        let error = refused(&[BATCH, STEP], &[], Pmi::Auto);
        for words in ["srun", "--mpi=pmi2", "--mpi=pmix"] {
            assert!(error.contains(words), "{error}");
        }
        let error = refused(&[&[("OMPI_COMM_WORLD_SIZE", "4")]], &[], Pmi::Auto);
        assert!(error.contains("mpirun") && error.contains("oshrun"), "{error}");
        assert!(refused(&[&[("PMI_SIZE", "2")]], &[], Pmi::Auto).contains("PMI_FD"));
        let port = [("PMI_PORT", "n1:5000"), ("PMI_ID", "1")];
        assert!(refused(&[&port], &[], Pmi::Auto).contains("without -pmi-port"));
        assert_eq!(found(&[&port, PMIX], &[], Pmi::Auto).unwrap(), Offer::Pmix);
    }

    #[test]
    fn a_protocol_can_be_asked_for() {
        let both: &[&[(&str, &str)]] = &[STEP, PMIX, OSHRUN];
        assert_eq!(found(both, &[7], Pmi::Pmix).unwrap(), Offer::Pmix);
        let descriptor = Offer::Descriptor { native: Pmi::Pmi1 };
        assert_eq!(found(both, &[], Pmi::Pmi1).unwrap(), descriptor);
        assert!(refused(&[OSHRUN], &[7], Pmi::Pmix).contains("PMIX_RANK"));
        assert!(refused(&[PMIX], &[7], Pmi::Pmi2).contains("PMI_FD"));
    }

    proptest! {
        #[test]
        fn whatever_the_variables_hold_there_is_an_answer(
            values in proptest::collection::vec(proptest::option::of("\\PC{0,12}"), 11),
        ) {
            let names = ["PMI_FD", "PMI_RANK", "PMI_SIZE", "PMI_JOBID", "PMIX_RANK",
                "PMIX_NAMESPACE", "SLURM_STEP_ID", "SLURM_STEP_NUM_TASKS", "OMPI_COMM_WORLD_SIZE",
                "PMI_PORT", "PMI_ID"];
            let lookup = |name: &str| {
                names.iter().position(|n| *n == name).and_then(|at| values[at].clone())
            };
            for wanted in [Pmi::Auto, Pmi::Pmi1, Pmi::Pmi2, Pmi::Pmix] {
                let _ = offered(&lookup, &|fd| fd == 0, wanted);
            }
            if let Ok(place) = super::super::pmi::PmiEnvironment::parse(&lookup) {
                prop_assert!(place.pe < place.n_pes);
            }
        }
    }
}
