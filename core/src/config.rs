//! Every environment variable of Tombolo, declared once.
//!
//! The table below is the only place where a variable's name, type, default and help text are
//! written. [`Config::from_env`] parses it, `SHMEM_INFO`, `oshinfo` and the manual are printed
//! from [`VARIABLES`]. OpenSHMEM 1.6, "Environment Variables", names the first four.

use crate::error::{Error, Result};
use std::fmt;
use std::time::Duration;

mod value;
pub use value::{
    Bytes, Millis, OnLoss, Report, ReportForm, Static, Switch, Transports, Tune, Value,
};

/// What a variable is for, used to group listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// For people who run programs.
    User,
    /// Set by a launcher for the processes it starts; not meant to be set by hand.
    Launcher,
}

/// One environment variable: a row of the table.
#[derive(Debug)]
pub struct Variable {
    /// Name in the environment.
    pub name: &'static str,
    /// Deprecated or foreign name that is honoured when `name` is not set.
    pub alias: Option<&'static str>,
    /// Who sets it.
    pub audience: Audience,
    /// What a value looks like, for people.
    pub form: &'static str,
    /// Default, as one would write it.
    pub default: &'static str,
    /// What it does, for people.
    pub help: &'static str,
}

macro_rules! variables {
    ($( $(#[doc = $help:literal])+ $audience:ident $field:ident : $ty:ty = $default:literal,
        $name:literal $(or $alias:literal)? ; )*) => {
        /// All variables, in the order in which they are listed to people.
        pub const VARIABLES: &[Variable] = &[$(Variable {
            name: $name,
            alias: variables!(@alias $($alias)?),
            audience: Audience::$audience,
            form: <$ty as Value>::FORM,
            default: $default,
            help: concat!($($help),+).trim_ascii_start(),
        }),*];

        /// The parsed environment of one process.
        #[derive(Clone, Debug)]
        pub struct Config { $( $(#[doc = $help])+ pub $field: $ty, )* }

        impl Config {
            /// Parses the variables that `lookup` finds; the first value that cannot be parsed is
            /// an error naming the variable, its value and the form expected.
            pub fn from_lookup(lookup: impl Fn(&str) -> Option<String>) -> Result<Config> {
                Ok(Config { $( $field: {
                    let (name, text) = find(&lookup, $name, variables!(@alias $($alias)?))
                        .unwrap_or(($name, $default.to_owned()));
                    <$ty as Value>::parse(&text).map_err(|why| Error::Config {
                        name: name.to_owned(),
                        value: text,
                        why,
                    })?
                }, )* })
            }

            /// Current values in the order of [`VARIABLES`], as one would write them.
            pub fn values(&self) -> Vec<String> {
                vec![$( Shown(&self.$field).to_string() ),*]
            }
        }
    };
    (@alias) => { None };
    (@alias $alias:literal) => { Some($alias) };
}

variables! {
    /// Size of the symmetric heap of each PE: a number, whole or with a fraction, and one of
    /// the suffixes k, m, g, t (powers of 1024).
    User symmetric_size: Bytes = "1G", "SHMEM_SYMMETRIC_SIZE" or "SMA_SYMMETRIC_SIZE";
    /// Check the arguments of every call and stop with a clear message at the first wrong one.
    User debug: Switch = "off", "SHMEM_DEBUG" or "SMA_DEBUG";
    /// Print all variables and their values from PE 0 at start.
    User info: Switch = "off", "SHMEM_INFO" or "SMA_INFO";
    /// Print the version of the library from PE 0 at start.
    User version: Switch = "off", "SHMEM_VERSION" or "SMA_VERSION";
    /// Transports in order of preference, for example "shm,cma,ntb"; "^name" leaves one out of
    /// the default list.
    User transports: Transports = "all", "SHMEM_TRANSPORTS";
    /// How static and global variables are made reachable: "remap" maps them shared, "cma" copies
    /// through system calls, "off" leaves them private, "auto" tries remap and then cma.
    User static_data: Static = "auto", "SHMEM_STATIC";
    /// Use transparent huge pages for the symmetric heap where the kernel allows it.
    User huge_pages: Switch = "on", "SHMEM_HUGE_PAGES";
    /// Longest time to wait for the other PEs of the job during start, in seconds.
    User start_timeout: Duration = "60", "SHMEM_START_TIMEOUT";
    /// What to do when a PE is killed or cannot be reached any more: "end" the job, or "continue"
    /// without it: operations on it are dropped, and a wait that lasts 10 s after the loss ends the
    /// job.
    User on_loss: OnLoss = "end", "SHMEM_ON_LOSS";
    /// How operations are routed: "auto" measures the channels once per machine and keeps the
    /// result, "always" measures at every start, "adaptive" also corrects routes while the
    /// program runs, "off" routes by fixed rules, a path replays a saved table.
    User tune: Tune = "auto", "SHMEM_TUNE";
    /// Time that measuring may take at start, all PEs together, in milliseconds.
    User tune_budget: Millis = "150", "SHMEM_TUNE_BUDGET";
    /// Forces channels, for example "put:heap:>=64K=cma,get:*=cached". Each rule is
    /// OPERATION:BUFFER:SIZES=CHANNEL; parts left out mean all; later rules win.
    User route: String = "", "SHMEM_ROUTE";
    /// Where measurements are kept: a directory, or "off". Empty is $XDG_CACHE_HOME/tombolo, or
    /// ~/.cache/tombolo.
    User tune_cache: String = "", "SHMEM_TUNE_CACHE";
    /// Writes from PE 0 at start what was measured and why each route was chosen: text, json or
    /// html, with ":PATH" to a file.
    User tune_report: Report = "off", "SHMEM_TUNE_REPORT";
    /// What to log on standard error: error, warn, info or debug.
    User log: String = "warn", "SHMEM_LOG";
    /// Hardware that emulated NTB ports take after: plx8749, intel-gen3 or switchtec.
    User ntb_profile: String = "plx8749", "SHMEM_NTB_PROFILE";
    /// Pace of emulated NTB links: "direct" is as fast as memory allows, "modelled" keeps the
    /// time of the hardware.
    User ntb_speed: String = "direct", "SHMEM_NTB_SPEED";
    /// Size of each window of emulated NTB ports, a power of two from 1m; empty for the sizes
    /// usual with the hardware.
    User ntb_window: Option<Bytes> = "", "SHMEM_NTB_WINDOW";
    /// Protect all that crosses an NTB link by CRC32C; the same on all PEs.
    User ntb_crc: Switch = "off", "SHMEM_NTB_CRC";
    /// Store directly into the memory of PEs on neighbouring hosts where NTB windows are large
    /// enough for it.
    User ntb_direct: Switch = "on", "SHMEM_NTB_DIRECT";
    /// Lanes of each PE on the NTB ring, each with service threads of its own; the same on all
    /// PEs. Empty for as many as links and processors can use.
    User ntb_threads: Option<u32> = "", "SHMEM_NTB_THREADS";
    /// Bytes that a packet on the NTB ring carries at most, a multiple of 64 up to 64k; the same on
    /// all PEs. Empty for what suits the links.
    User ntb_chunk: Option<Bytes> = "", "SHMEM_NTB_CHUNK";
    /// Time in seconds after which another host is given up that does not answer although its link is
    /// up: it may be stopped, for example by a debugger. A host whose links are down is given up
    /// after 2 seconds.
    User ntb_silence: Duration = "30", "SHMEM_NTB_SILENCE";
    /// Number of the emulated host this process is on.
    Launcher host: Option<u32> = "", "SHMEM_HOST";
    /// Descriptors of the emulated NTB links to the left and to the right of this host.
    Launcher ntb_fd: String = "", "SHMEM_NTB_FD";
    /// Descriptor of the status board shared with oshrun.
    Launcher board_fd: Option<i32> = "", "SHMEM_BOARD_FD";
    /// Number of processor cores this PE was bound to; oshrun sets it for its PEs.
    Launcher bound: Switch = "off", "SHMEM_BOUND";
}

impl Config {
    /// Parses the environment of this process. Foreign names that old scripts use are taken with
    /// a notice on standard error.
    pub fn from_env() -> Result<Config> {
        Config::from_lookup(|name| match std::env::var_os(name) {
            Some(value) => Some(value.to_string_lossy().into_owned()),
            None if name == "SHMEM_SYMMETRIC_SIZE" => old_heap_size(),
            None => None,
        })
    }
}

/// Open MPI's help text names this variable; scripts written for it should go on working.
fn old_heap_size() -> Option<String> {
    let value = std::env::var("SHMEM_SYMMETRIC_HEAP_SIZE").ok()?;
    tracing::warn!(
        "SHMEM_SYMMETRIC_HEAP_SIZE is taken for SHMEM_SYMMETRIC_SIZE, its standard name"
    );
    Some(value)
}

fn find(
    lookup: &impl Fn(&str) -> Option<String>,
    name: &'static str,
    alias: Option<&'static str>,
) -> Option<(&'static str, String)> {
    lookup(name)
        .map(|text| (name, text))
        .or_else(|| alias.and_then(|alias| lookup(alias).map(|text| (alias, text))))
}

pub(crate) struct Shown<'a, T: Value>(pub(crate) &'a T);

impl<T: Value> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn config(pairs: &[(&str, &str)]) -> Result<Config> {
        Config::from_lookup(|name| {
            pairs.iter().find(|(n, _)| *n == name).map(|(_, value)| value.to_string())
        })
    }

    #[test]
    fn defaults_parse_and_print_back() {
        let config = config(&[]).unwrap();
        assert_eq!(config.symmetric_size.0, 1 << 30);
        assert_eq!(config.values().len(), VARIABLES.len());
    }

    #[test]
    fn deprecated_names_are_honoured_after_the_current_ones() {
        assert_eq!(config(&[("SMA_SYMMETRIC_SIZE", "2m")]).unwrap().symmetric_size.0, 2 << 20);
        let both = [("SMA_SYMMETRIC_SIZE", "2m"), ("SHMEM_SYMMETRIC_SIZE", "3m")];
        assert_eq!(config(&both).unwrap().symmetric_size.0, 3 << 20);
    }

    #[test]
    fn a_wrong_value_names_the_variable_and_the_form() {
        let text = config(&[("SHMEM_SYMMETRIC_SIZE", "lots")]).unwrap_err().to_string();
        assert!(text.contains("SHMEM_SYMMETRIC_SIZE") && text.contains("lots"), "{text}");
    }
}
