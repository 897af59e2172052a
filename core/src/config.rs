// SPDX-License-Identifier: Apache-2.0
//! The environment variables of the core, and how transports declare theirs.
//!
//! A variable's name, type, default and help text are written once, in the [`settings!`] of its
//! owner: here for the core, in a transport's folder for that transport. Values are parsed into the
//! types that are used; `SHMEM_INFO`, `oshinfo` and the manual are printed from the
//! [`Table`]s. OpenSHMEM 1.6, "Environment Variables", names the first four.
//!
//! [`settings!`]: crate::settings

use crate::error::Result;
use std::ops::{Deref, DerefMut};
use std::time::Duration;

mod declare;
mod environment;
mod tuning;
mod value;
pub use declare::{Audience, Row, Table, Variable, parse, row};
pub use environment::Environment;
pub use tuning::{Algorithms, CacheDirectory, Forced, Hints, Report, ReportForm, Reuse, Tune};
pub use value::{
    Asked, Bytes, Descriptor, Least, Log, Millis, OnLoss, Pmi, Present, Shown, Static, Switch,
    Transports, Value,
};

crate::settings! {
    /// The core's part of the environment of one process.
    pub struct CoreSettings {
        /// Size of the symmetric heap of each PE: a number, whole or with a fraction, and one of
        /// the suffixes k, m, g, t (powers of 1024); the same on all PEs.
        User symmetric_size: Bytes = "1g", "SHMEM_SYMMETRIC_SIZE" or "SMA_SYMMETRIC_SIZE"
            or "SHMEM_SYMMETRIC_HEAP_SIZE", alike;
        /// Check PE numbers, addresses, lengths, contexts, teams and the agreement of collective calls, and
        /// stop with a message at the first mistake; the same on all PEs.
        User debug: Asked = "off", "SHMEM_DEBUG" or "SMA_DEBUG", alike;
        /// Print all variables and their values from PE 0 at start, if set to anything.
        User info: Present = "off", "SHMEM_INFO" or "SMA_INFO";
        /// Print the version of the library from PE 0 at start, if set to anything.
        User version: Present = "off", "SHMEM_VERSION" or "SMA_VERSION";
        /// Transports in order of preference, for example "shm,cma,ntb"; "^name" leaves one out of
        /// the default list. The same on all PEs.
        User transports: Transports = "all", "SHMEM_TRANSPORTS", alike;
        /// How static and global variables are made reachable: "remap" maps them shared, "cma" copies
        /// through system calls, "off" leaves them private, "auto" tries remap and then cma. The same
        /// on all PEs.
        User static_data: Static = "auto", "SHMEM_STATIC", alike;
        /// Use transparent huge pages for the symmetric heap where the kernel allows it.
        User huge_pages: Switch = "on", "SHMEM_HUGE_PAGES";
        /// Longest time to wait for the other PEs of the job during start, in seconds.
        User start_timeout: Duration = "60", "SHMEM_START_TIMEOUT";
        /// What to speak with the launcher: pmi1, pmi2 or pmix; "auto" takes what it offers.
        User pmi: Pmi = "auto", "SHMEM_PMI";
        /// What to do when a PE is killed or cannot be reached any more: "end" the job, or "continue"
        /// without it: operations on it are dropped, and a wait that lasts 10 s after the loss ends the
        /// job. The same on all PEs.
        User on_loss: OnLoss = "end", "SHMEM_ON_LOSS", alike;
        /// Time in seconds, at least 1, after which a PE of another host that is waited for and sends nothing by
        /// TCP, RDMA cards or libfabric is taken for lost. One that is stopped, for example by a debugger, sends
        /// nothing. The NTB ring has SHMEM_NTB_SILENCE.
        User silence: Duration = "6", "SHMEM_SILENCE";
        /// How operations are routed: "auto" measures the channels once per machine and keeps the
        /// result, "always" measures at every start, "adaptive" also corrects routes of copies in mapped
        /// memory and of gets while the program runs, "off" routes by fixed rules, the path of a saved table (a file tuning-*.json of the
        /// cache directory) takes that table. All PEs must measure, or take a table, or route by fixed rules.
        User tune: Tune = "auto", "SHMEM_TUNE", alike;
        /// Time that measuring may take at start, all PEs together, in milliseconds.
        User tune_budget: Millis = "150", "SHMEM_TUNE_BUDGET";
        /// How the PE uses its buffers: "hot", again soon, or "cold", once. Copies on mapped memory are
        /// chosen by it, until the program calls shmemx_tune_hint. "contexts:cold" or "contexts:hot" says
        /// so of the operations on contexts that the program creates; both with a comma between them.
        User tune_hint: Hints = "hot", "SHMEM_TUNE_HINT";
        /// Forces channels, for example "put:heap:>=64K=cma,get:*=cached". Each rule is
        /// OPERATION:BUFFER:CLASS:SIZES=CHANNEL; parts left out mean all; later rules win. OPERATION is put,
        /// get or amo; BUFFER, where the remote data lie, is heap or static; CLASS, how far the PEs are apart,
        /// is self, cache (they share a cache), node, far-node, host, ring-N (N links) or network; SIZES is
        /// such as >=64K, 8..4K or *. CHANNEL is cached or streaming (copies on mapped memory), a transport, or
        /// two transports with + or / between them. The same on all PEs.
        User route: String = "", "SHMEM_ROUTE", alike;
        /// Forces algorithms of collective operations, for example "reduce:ring,broadcast:tree". Of
        /// several for one operation, as in "reduce:publish+share", the first that can carry out a
        /// call is taken; if none can, the job ends with a message. oshinfo --collectives lists them.
        /// The same on all PEs.
        User coll: Algorithms = "", "SHMEM_COLL", alike;
        /// Non-blocking puts and gets within a host of at least this many bytes return at once, and a thread
        /// makes the copy; the program helps while it waits. "auto": 4 MiB, or 256 KiB shortly after another
        /// such transfer, if each PE has two processors.
        User overlap: Least = "auto", "SHMEM_OVERLAP";
        /// The cache directory, where measurements are kept as saved tables: a directory of your own, or "off". Empty is
        /// $XDG_CACHE_HOME/tombolo, or ~/.cache/tombolo.
        User tune_cache: CacheDirectory = "", "SHMEM_TUNE_CACHE";
        /// Writes from PE 0 at start what was measured and why each route was chosen: text, json or
        /// html, with ":PATH" to a file.
        User tune_report: Report = "off", "SHMEM_TUNE_REPORT";
        /// What to log on standard error.
        User log: Log = "warn", "SHMEM_LOG";
        /// Number of the socket behind PMI_FD. If it differs, the TOMBOLO_ variables were set for another PE and are
        /// ignored.
        Launcher connection: String = "", "TOMBOLO_CONNECTION";
        /// Number of the emulated host this process is on.
        Launcher host: Option<u32> = "", "TOMBOLO_HOST";
        /// Descriptor of the status board shared with oshrun.
        Launcher board_fd: Option<Descriptor> = "", "TOMBOLO_BOARD_FD";
        /// Descriptor of the memory in which the PE counts what it does, for oshrun --profile and --trace.
        Launcher profile_fd: Option<Descriptor> = "", "TOMBOLO_PROFILE_FD";
        /// Whether this PE was bound to processor cores of its own; oshrun sets it for its PEs.
        Launcher bound: Switch = "off", "TOMBOLO_BOUND";
        /// Whether the job is known to have no PE on another machine; oshrun sets it for its PEs.
        Launcher one_machine: Switch = "off", "TOMBOLO_ONE_MACHINE";
    }
}

/// The parsed environment of one process: the core's settings, and the text from which transports
/// read theirs.
#[derive(Clone, Debug)]
pub struct Config {
    settings: CoreSettings,
    environment: Environment,
    /// From which sources the library was built, which PEs must have alike; empty where nobody says.
    pub build: &'static str,
    /// What people should know about their environment, said once per job.
    pub notices: Vec<String>,
}

impl Config {
    /// Parses the environment of this process.
    pub fn from_env() -> Result<Config> {
        Config::from_environment(Environment::of_process())
    }

    /// Parses `environment`; the first value of the core's that cannot be parsed is an error naming
    /// the variable, its value and the form expected.
    pub fn from_environment(environment: Environment) -> Result<Config> {
        let settings = CoreSettings::read(&environment)?;
        Ok(Config { settings, environment, build: "", notices: Vec::new() })
    }

    /// What it was parsed from.
    pub fn environment(&self) -> &Environment {
        &self.environment
    }

    /// The core's variables with their values.
    pub fn rows(&self) -> Vec<Row> {
        self.settings.rows()
    }
}

impl Default for Config {
    fn default() -> Config {
        Config::from_environment(Environment::default()).expect("every default can be parsed")
    }
}

impl Deref for Config {
    type Target = CoreSettings;

    fn deref(&self) -> &CoreSettings {
        &self.settings
    }
}

impl DerefMut for Config {
    fn deref_mut(&mut self) -> &mut CoreSettings {
        &mut self.settings
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Result<Config> {
        Config::from_environment(pairs.iter().copied().collect())
    }

    #[test]
    fn defaults_parse_and_print_back() {
        let rows = Config::default().rows();
        assert_eq!(rows.len(), CoreSettings::VARIABLES.len());
        for Row { variable, value, common } in rows {
            assert_eq!(value, variable.default, "{}", variable.name);
            assert_eq!(common, None, "{}", variable.name);
        }
        assert_eq!(Config::default().symmetric_size.0, 1 << 30);
    }

    #[test]
    fn values_print_as_one_would_write_them_and_are_compared_by_what_they_mean() {
        let shown = |name: &str, text: &str| {
            let config = config(&[(name, text)]).unwrap();
            let row = config.rows().into_iter().find(|row| row.variable.name == name).unwrap();
            (row.value, row.common)
        };
        let owned = |value: &str, common: Option<&str>| (value.into(), common.map(String::from));
        assert_eq!(shown("SHMEM_SYMMETRIC_SIZE", "0.5G"), owned("512m", Some("512m")));
        assert_eq!(shown("SHMEM_DEBUG", "YES"), owned("on", Some("on")));
        assert_eq!(shown("SHMEM_TUNE", "Always"), owned("always", None));
        assert_eq!(shown("SHMEM_TUNE", "/a.json"), owned("/a.json", Some("a saved table")));
        let forced = "reduce:publish+share,sync:hosts";
        assert_eq!(
            shown("SHMEM_COLL", "Reduce:publish + share, sync:hosts"),
            owned(forced, Some(forced))
        );
        // Each PE may have its own.
        assert_eq!(shown("SHMEM_LOG", "debug"), owned("debug", None));
    }

    #[test]
    fn other_names_are_honoured_after_the_current_ones() {
        assert_eq!(config(&[("SMA_SYMMETRIC_SIZE", "2m")]).unwrap().symmetric_size.0, 2 << 20);
        let both = [("SMA_SYMMETRIC_SIZE", "2m"), ("SHMEM_SYMMETRIC_SIZE", "3m")];
        assert_eq!(config(&both).unwrap().symmetric_size.0, 3 << 20);
        let old = config(&[("SHMEM_SYMMETRIC_HEAP_SIZE", "4m")]).unwrap();
        assert_eq!(old.symmetric_size.0, 4 << 20);
    }

    #[test]
    fn an_empty_value_means_the_default() {
        for variable in CoreSettings::VARIABLES.iter().filter(|variable| !variable.empty_counts) {
            let empty = config(&[(variable.name, "")]).unwrap_or_else(|e| panic!("{e}"));
            assert!(empty.rows().iter().all(|row| row.value == row.variable.default));
        }
    }

    #[test]
    fn version_and_info_are_asked_for_by_any_value() {
        for text in ["", "0", "off", "no", "false", "1", "anything"] {
            for [info, version] in [["SHMEM_INFO", "SHMEM_VERSION"], ["SMA_INFO", "SMA_VERSION"]] {
                let asked = config(&[(info, text), (version, text)]).unwrap();
                assert!(asked.info.0 && asked.version.0, "{info}={text}");
            }
        }
        let other = config(&[("SHMEM_DEBUG", "0")]).unwrap();
        assert!(!other.info.0 && !other.version.0 && !other.debug.0);
    }

    #[test]
    fn a_wrong_value_names_the_variable_and_the_form() {
        let text = config(&[("SHMEM_SYMMETRIC_SIZE", "lots")]).unwrap_err().to_string();
        assert!(text.contains("SHMEM_SYMMETRIC_SIZE") && text.contains("lots"), "{text}");
        let text = config(&[("SMA_SYMMETRIC_SIZE", "lots")]).unwrap_err().to_string();
        assert!(text.starts_with("SMA_SYMMETRIC_SIZE"), "{text}");
        for (name, value) in [
            ("SHMEM_START_TIMEOUT", "1e13"),
            ("SHMEM_START_TIMEOUT", "-1"),
            ("SHMEM_TUNE_BUDGET", "1e300"),
            ("SHMEM_TUNE_CACHE", "relative/path"),
            ("SHMEM_OVERLAP", "0"),
            ("SHMEM_COLL", "ring"),
            ("SHMEM_COLL", "reduce:a++b"),
            ("SHMEM_LOG", "loud"),
            ("TOMBOLO_BOARD_FD", "-1"),
            ("TOMBOLO_HOST", "x"),
        ] {
            let text = config(&[(name, value)]).unwrap_err().to_string();
            assert!(text.starts_with(&format!("{name}='{value}': expected")), "{text}");
        }
    }
}
