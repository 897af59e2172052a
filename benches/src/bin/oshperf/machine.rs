// SPDX-License-Identifier: Apache-2.0
//! The machine the figures belong to: nothing that says whose it is.

use serde::{Deserialize, Serialize};
use std::fs;
use std::time::{SystemTime, UNIX_EPOCH};

/// What figures depend on.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Machine {
    /// Model name of the CPU.
    pub cpu: String,
    /// Cores this process may use.
    pub cores: usize,
    /// Release of the kernel.
    pub kernel: String,
    /// Runnable tasks, average of the last minute before measuring.
    pub load: f64,
    /// Day of measurement, UTC.
    pub date: String,
}

impl Machine {
    /// The machine this runs on, now.
    pub fn here() -> Machine {
        let read = |path: &str| fs::read_to_string(path).unwrap_or_default();
        let cpuinfo = read("/proc/cpuinfo");
        let cpu = cpuinfo
            .lines()
            .find_map(|line| line.strip_prefix("model name")?.split_once(':'))
            .map_or_else(
                || std::env::consts::ARCH.to_string(),
                |(_, name)| name.trim().to_string(),
            );
        let load = read("/proc/loadavg");
        let seconds = SystemTime::now().duration_since(UNIX_EPOCH).map_or(0, |d| d.as_secs());
        Machine {
            cpu,
            cores: std::thread::available_parallelism().map_or(1, usize::from),
            kernel: read("/proc/sys/kernel/osrelease").trim().to_string(),
            load: load.split(' ').next().and_then(|word| word.parse().ok()).unwrap_or(0.0),
            date: date(seconds),
        }
    }

    /// For file names: letters, digits and dashes.
    pub fn slug(&self) -> String {
        let text = format!("{} {} cores", self.cpu, self.cores).to_lowercase();
        let words = text.split(|c: char| !c.is_ascii_alphanumeric());
        let words = words.filter(|word| !["", "r", "tm", "cpu", "processor"].contains(word));
        words.collect::<Vec<_>>().join("-")
    }
}

/// A processor that this process may use, and where it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Processor {
    pub number: usize,
    /// First processor of its core.
    pub core: usize,
    /// First processor that shares its last-level cache.
    pub cache: usize,
    pub package: usize,
}

impl Processor {
    /// All of them; none where the system does not tell.
    pub fn usable() -> Vec<Processor> {
        use nix::sched::{CpuSet, sched_getaffinity};
        let Ok(mask) = sched_getaffinity(nix::unistd::Pid::from_raw(0)) else { return Vec::new() };
        let usable = (0..CpuSet::count()).filter(|cpu| mask.is_set(*cpu).unwrap_or(false));
        usable.filter_map(Processor::read).collect()
    }

    fn read(number: usize) -> Option<Processor> {
        let place = format!("/sys/devices/system/cpu/cpu{number}");
        let first = |file: String| {
            let text = fs::read_to_string(format!("{place}/{file}")).ok()?;
            text.trim().split([',', '-']).next()?.parse::<usize>().ok()
        };
        // Caches are listed by level: the last one is the last level.
        let caches = (0..8).map_while(|index| first(format!("cache/index{index}/shared_cpu_list")));
        let core = first("topology/thread_siblings_list".into())?;
        Some(Processor {
            number,
            core,
            cache: caches.last().unwrap_or(core),
            package: first("topology/physical_package_id".into()).unwrap_or(0),
        })
    }
}

/// Year-month-day of seconds since 1970, in UTC (Hinnant's civil_from_days).
fn date(seconds: u64) -> String {
    let days = (seconds / 86400) as i64 + 719_468;
    let era = days / 146_097;
    let day_of_era = days % 146_097;
    let year_of_era =
        (day_of_era - day_of_era / 1460 + day_of_era / 36524 - day_of_era / 146_096) / 365;
    let day_of_year = day_of_era - (365 * year_of_era + year_of_era / 4 - year_of_era / 100);
    let shifted = (5 * day_of_year + 2) / 153;
    let day = day_of_year - (153 * shifted + 2) / 5 + 1;
    let month = if shifted < 10 { shifted + 3 } else { shifted - 9 };
    let year = year_of_era + era * 400 + i64::from(month <= 2);
    format!("{year:04}-{month:02}-{day:02}")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        assert_eq!(date(0), "1970-01-01");
        assert_eq!(date(951_782_400), "2000-02-29");
        assert_eq!(date(1_767_225_599), "2025-12-31");
    }

    #[test]
    fn slugs_are_plain() {
        let machine = Machine {
            cpu: "Intel(R) Xeon(R) CPU E5 @ 2.6GHz".into(),
            cores: 4,
            kernel: String::new(),
            load: 0.0,
            date: String::new(),
        };
        assert_eq!(machine.slug(), "intel-xeon-e5-2-6ghz-4-cores");
    }
}
