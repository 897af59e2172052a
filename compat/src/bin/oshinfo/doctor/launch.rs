// SPDX-License-Identifier: Apache-2.0
//! What starts jobs: PMIx for other launchers, ssh for other machines.

use super::{Finding, Grade, Machine};

pub fn findings(machine: &Machine) -> Vec<Finding> {
    vec![pmix(machine), ssh(machine)]
}

fn pmix(machine: &Machine) -> Finding {
    match machine.library("libpmix.so.2") {
        Ok(()) => Finding::good("PMIx", "libpmix.so.2 is installed"),
        Err(why) => {
            let effect = "srun --mpi=pmix and Open MPI's mpirun start no jobs; oshrun and PMI-2 do not need it";
            Finding::new("PMIx", Grade::Note, why, effect, &["apt install libpmix2"])
        }
    }
}

fn ssh(machine: &Machine) -> Finding {
    match machine.program("ssh") {
        Some(path) => {
            let state = format!("{}; --host LIST tries it", path.display());
            Finding::good("ssh", state)
        }
        None => {
            let effect = "oshrun --host starts nothing on other machines, unless --rsh names another command";
            Finding::new("ssh", Grade::Note, "not found", effect, &["apt install openssh-client"])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::Copy;
    use super::*;

    #[test]
    fn what_is_missing_is_named_with_the_package() {
        let copy = Copy::of("launch", &[("proc/version", "")]);
        let changes: Vec<Vec<String>> =
            findings(&copy.machine()).into_iter().map(|f| f.change).collect();
        assert_eq!(changes, [["apt install libpmix2"], ["apt install openssh-client"]]);
        copy.write("usr/bin/ssh", "");
        copy.write("usr/lib64/libpmix.so.2", "");
        assert!(findings(&copy.machine()).iter().all(|finding| finding.grade == Grade::Good));
    }
}
