// SPDX-License-Identifier: Apache-2.0
//! The variables of an environment that may concern the library.

use std::collections::BTreeMap;

/// Names with these beginnings are kept: those of the standard, its deprecated ones, and those that
/// launchers set for the library.
const PREFIXES: [&str; 3] = ["SHMEM_", "SMA_", "TOMBOLO_"];

/// Names and values as they were when it was made.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Environment(BTreeMap<String, String>);

impl Environment {
    /// Those of this process. Bytes that are no UTF-8 are replaced.
    pub fn of_process() -> Environment {
        let text = |os: std::ffi::OsString| os.to_string_lossy().into_owned();
        std::env::vars_os().map(|(name, value)| (text(name), text(value))).collect()
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
}
