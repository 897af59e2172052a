// SPDX-License-Identifier: Apache-2.0
//! The variables of an environment that may concern the library.

use crate::bootstrap;
use std::collections::BTreeMap;

/// What the variables begin with that `oshrun` sets for the library.
const OF_OSHRUN: &str = "TOMBOLO_";

/// Names with these beginnings are kept: those of the standard, its deprecated ones, and those that
/// launchers set for the library.
const PREFIXES: [&str; 3] = ["SHMEM_", "SMA_", OF_OSHRUN];

/// Names and values as they were when it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Those of this process. Bytes that are no UTF-8 are replaced.
    pub fn of_process() -> Environment {
        let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
        let all = std::env::vars_os().map(|(name, value)| (text(name), text(value)));
        Environment::for_connection(all, bootstrap::connection())
    }

    /// `all` without what `oshrun` has set for a PE of another job: one that has started the launcher of this
    /// one, by whose connection to `oshrun` it is known.
    fn for_connection(
        all: impl IntoIterator<Item = (String, String)>,
        connection: Option<u64>,
    ) -> Environment {
        let mut environment: Environment = all.into_iter().collect();
        let meant = environment.get("TOMBOLO_CONNECTION");
        if meant.is_some_and(|meant| Some(meant) != connection.map(|it| it.to_string()).as_deref())
        {
            environment.0.retain(|name, _| !name.starts_with(OF_OSHRUN));
        }
        environment
    }

    /// The value of a variable. Empty text counts as not set.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str).filter(|text| !text.is_empty())
    }

    /// The text of a variable that is set, be it empty.
    pub fn text(&self, name: &str) -> Option<&str> {
        self.0.get(name).map(String::as_str)
    }

    /// Takes a variable out; says whether it was there.
    pub fn remove(&mut self, name: &str) -> bool {
        self.0.remove(name).is_some()
    }

    /// Names of all variables that are set, also to empty text.
    pub fn names(&self) -> impl Iterator<Item = &str> {
        self.0.keys().map(String::as_str)
    }
}

/// Of equal names the last one counts.
impl<N: Into<String>, V: Into<String>> FromIterator<(N, V)> for Environment {
    fn from_iter<T: IntoIterator<Item = (N, V)>>(pairs: T) -> Environment {
        let pairs = pairs.into_iter().map(|(name, value)| (name.into(), value.into()));
        let concerns = |name: &str| PREFIXES.iter().any(|prefix| name.starts_with(prefix));
        Environment(pairs.filter(|(name, _): &(String, _)| concerns(name)).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_concerns_the_library_is_kept() {
        let pairs = [("SHMEM_A", "1"), ("PATH", "/bin"), ("SMA_B", ""), ("SHMEM_A", "2")];
        let environment = Environment::from_iter(pairs);
        assert_eq!(environment.names().collect::<Vec<_>>(), ["SHMEM_A", "SMA_B"]);
        assert_eq!((environment.get("SHMEM_A"), environment.get("SMA_B")), (Some("2"), None));
    }

    #[test]
    fn what_is_for_a_pe_of_another_job_is_left_out() {
        let names = |connection: Option<u64>| {
            let all = [("SHMEM_A", "1"), ("TOMBOLO_HOST", "3"), ("TOMBOLO_CONNECTION", "77")];
            let all = all.map(|(name, value)| (name.to_owned(), value.to_owned()));
            let environment = Environment::for_connection(all, connection);
            environment.names().map(str::to_owned).collect::<Vec<_>>()
        };
        assert_eq!(names(Some(77)), ["SHMEM_A", "TOMBOLO_CONNECTION", "TOMBOLO_HOST"]);
        assert_eq!(names(Some(78)), ["SHMEM_A"]);
        assert_eq!(names(None), ["SHMEM_A"]);
    }
}
