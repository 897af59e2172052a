// SPDX-License-Identifier: Apache-2.0
//! Environment variables: jobs do not start with values that cannot be understood.

use super::{Finding, Grade, Machine};
use tombolo::variables;
use tombolo_core::config::{Config, Environment};

pub fn findings(machine: &Machine) -> Vec<Finding> {
    if machine.is_live() {
        judged(&Environment::of_process()).into_iter().collect()
    } else {
        Vec::new()
    }
}

/// The environment of this process, without values that cannot be understood: what is tried here is another matter.
pub fn config() -> Config {
    variables::readable(Environment::of_process())
}

fn judged(environment: &Environment) -> Option<Finding> {
    let ignored = variables::notices(environment);
    let mut wrong = variables::mistakes(environment);
    wrong.retain(|mistake| !ignored.contains(mistake));
    let (grade, effect, all) = match (wrong.is_empty(), ignored.is_empty()) {
        (true, true) => return None,
        (true, false) => (Grade::Note, "", ignored),
        (false, _) => (Grade::Fails, "no job starts with this environment", wrong),
    };
    let names = "oshinfo   # its list has the form of each variable";
    Some(Finding::new("variables", grade, all.join("; "), effect, &[names]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn values_that_no_job_starts_with_are_told_and_names_that_are_ignored_noted() {
        let of = |pairs: &[(&str, &str)]| judged(&pairs.iter().copied().collect());
        assert_eq!(of(&[("SHMEM_LOG", "info")]), None);
        let noted = of(&[("SHMEM_LOGS", "info")]).unwrap();
        assert!(noted.grade == Grade::Note && noted.state.contains("SHMEM_LOGS"), "{noted:?}");
        let wrong = of(&[("SHMEM_LOG", "loud"), ("SHMEM_LOGS", "info")]).unwrap();
        assert!(wrong.grade == Grade::Fails && wrong.state.contains("'loud'"), "{wrong:?}");
    }
}
