// SPDX-License-Identifier: Apache-2.0
//! Processors: how many, how much of them, how fast, and where.

use super::{Finding, Grade, Machine};
use std::path::PathBuf;
use tombolo_selector::class::parse_cpu_list;

/// Share of the processors that others may use before it is said.
const BUSY: f64 = 0.25;

pub fn findings(machine: &Machine) -> Vec<Finding> {
    let usable = usable(machine);
    let mut all = vec![count(machine, usable)];
    all.extend(quota(machine, usable));
    all.extend(load(machine, usable));
    all.push(numa(machine));
    all.extend(frequency(machine));
    all.extend(clock(machine));
    all
}

/// Processors that this process may run on.
fn usable(machine: &Machine) -> usize {
    let list = machine.line("proc/self/status", "Cpus_allowed_list").unwrap_or_default();
    parse_cpu_list(&list).len()
}

fn count(machine: &Machine, usable: usize) -> Finding {
    let online = machine.text("sys/devices/system/cpu/online").unwrap_or_default();
    let online = parse_cpu_list(&online).len();
    if usable == 0 {
        return Finding::new("processors", Grade::Note, "the kernel does not tell", "", &[]);
    }
    let threads = machine.number("sys/devices/system/cpu/smt/active") == Some(1);
    let threads = if threads { "; several of them share a core" } else { "" };
    let state = format!("{usable} of {} may be used{threads}", online.max(usable));
    let grade = if usable < online { Grade::Note } else { Grade::Good };
    let effect = match usable < online {
        true => {
            format!("jobs of more than {usable} PEs take turns; a mask or cpuset keeps the others")
        }
        false => {
            format!("jobs of more than {usable} PEs take turns, which costs many times the latency")
        }
    };
    let change =
        "taskset -a -p -c 0-$(($(nproc --all)-1)) $$   # where it is a mask and not a cpuset";
    let change: &[&str] = if usable < online { &[change] } else { &[] };
    Finding::new("processors", grade, state, &effect, change)
}

/// Processors' worth of time that cgroups leave, and the file that says so.
fn tightest(machine: &Machine) -> Option<(f64, PathBuf)> {
    let unified = machine.cgroups("").into_iter().filter_map(|group| {
        let path = group.join("cpu.max");
        let text = machine.text(&path)?;
        let (quota, period) = text.split_once(' ')?;
        Some((quota.parse::<f64>().ok()? / period.trim().parse::<f64>().ok()?, path))
    });
    let first = machine.cgroups("cpu").into_iter().filter_map(|group| {
        let path = group.join("cpu.cfs_quota_us");
        let quota: f64 = machine.text(&path)?.parse().ok().filter(|quota| *quota > 0.0)?;
        let period = machine.number(group.join("cpu.cfs_period_us"))? as f64;
        Some((quota / period, path))
    });
    unified.chain(first).min_by(|a, b| a.0.total_cmp(&b.0))
}

fn quota(machine: &Machine, usable: usize) -> Option<Finding> {
    let (share, path) = tightest(machine)?;
    if share >= usable as f64 {
        return None;
    }
    let unlimited = if path.ends_with("cpu.max") { "max" } else { "-1" };
    let state = format!("a cgroup leaves the time of {share:.2} processors of {usable}");
    let effect = format!(
        "when PEs together use more, all of them stop for the rest of each period, up to 100 ms: more \
         than {} PEs stutter",
        (share as usize).max(1)
    );
    let change = format!(
        "echo {unlimited} > /{}   # or start the container with more: --cpus",
        path.display()
    );
    Some(Finding::new("quota", Grade::Slow, state, &effect, &[&change]))
}

fn load(machine: &Machine, usable: usize) -> Option<Finding> {
    let text = machine.text("proc/loadavg")?;
    let load: f64 = text.split_whitespace().next()?.parse().ok()?;
    (usable > 0 && load > BUSY * usable as f64).then(|| {
        let state = format!("{load:.1} processes wanted to run in the last minute");
        let effect = "on a busy machine, times depend on how the operating system shares processors; PEs that wait yield and sleep";
        Finding::new(
            "load",
            Grade::Note,
            state,
            effect,
            &["ps -eo pcpu,pid,user,args --sort=-pcpu | head"],
        )
    })
}

fn numa(machine: &Machine) -> Finding {
    let nodes = machine.names("sys/devices/system/node").into_iter().filter(|name| {
        name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok())
    });
    let place = |node: &String| format!("sys/devices/system/node/{node}/cpulist");
    let nodes: Vec<String> = nodes
        .map(|node| (machine.text(place(&node)).unwrap_or_default(), node))
        .map(|(list, node)| format!("{node}: processors {list}"))
        .collect();
    if nodes.len() < 2 {
        return Finding::good("NUMA", "one node: all memory is equally near");
    }
    let state = format!("{} nodes ({})", nodes.len(), nodes.join("; "));
    if machine.number("proc/sys/kernel/numa_balancing").is_some_and(|mode| mode > 0) {
        let effect = "the kernel unmaps pages to learn who uses them and moves them: PEs fault in the \
                      middle of a copy";
        return Finding::new(
            "NUMA",
            Grade::Slow,
            state + ", balanced by the kernel",
            effect,
            &["sysctl -w kernel.numa_balancing=0"],
        );
    }
    let effect = "memory of another node is up to twice as far; PEs that move leave theirs behind";
    Finding::new("NUMA", Grade::Note, state, effect, &["oshrun --bind core ..."])
}

fn frequency(machine: &Machine) -> Option<Finding> {
    let governor = machine.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor")?;
    if governor != "powersave" && governor != "conservative" {
        return Some(Finding::good("frequency", format!("governor {governor}")));
    }
    // Drivers that leave it to the processor have it choose under this name. "intel_cpufreq" and "amd-pstate" do
    // not: under them it is the lowest frequency.
    let driver = machine.text("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver");
    let itself = matches!(driver.as_deref(), Some("intel_pstate" | "amd-pstate-epp"));
    let grade = if itself { Grade::Note } else { Grade::Slow };
    let effect = "processors that wait slow down, and what arrives is seen later";
    Some(Finding::new(
        "frequency",
        grade,
        format!("governor {governor}"),
        effect,
        &["cpupower frequency-set -g performance   # Debian: apt install linux-cpupower"],
    ))
}

fn clock(machine: &Machine) -> Option<Finding> {
    let place = "sys/devices/system/clocksource/clocksource0";
    let clock = machine.text(format!("{place}/current_clocksource"))?;
    if ["tsc", "kvm-clock", "hyperv_clocksource_tsc_page", "arch_sys_counter"]
        .contains(&clock.as_str())
    {
        return Some(Finding::good("clock", clock));
    }
    let effect = "each reading is a system call and an access to a device, a microsecond or more: timed \
                  waits and measurements suffer";
    let change = format!(
        "echo tsc > /{place}/current_clocksource   # if it is in available_clocksource there"
    );
    Some(Finding::new("clock", Grade::Slow, clock, effect, &[&change]))
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::Copy;
    use super::*;

    fn found(machine: &Machine, subject: &str) -> Option<Finding> {
        findings(machine).into_iter().find(|finding| finding.subject == subject)
    }

    #[test]
    fn a_quota_of_either_version_is_found_wherever_it_is_set() {
        let copy = Copy::of(
            "quota",
            &[
                ("proc/self/status", "Cpus_allowed_list:\t0-7\n"),
                ("sys/devices/system/cpu/online", "0-7\n"),
                ("proc/self/cgroup", "0::/pod/one\n"),
                ("sys/fs/cgroup/pod/one/cpu.max", "max 100000\n"),
                ("sys/fs/cgroup/pod/cpu.max", "250000 100000\n"),
            ],
        );
        let quota = found(&copy.machine(), "quota").unwrap();
        assert!(quota.state.contains("2.50 processors of 8"), "{quota:?}");
        assert!(quota.change[0].starts_with("echo max > /sys/fs/cgroup/pod/cpu.max"), "{quota:?}");
        assert_eq!(quota.grade, Grade::Slow);
        copy.write("sys/fs/cgroup/pod/cpu.max", "900000 100000\n");
        assert_eq!(found(&copy.machine(), "quota"), None);
        copy.write("proc/self/cgroup", "3:cpu,cpuacct:/a\n");
        copy.write("sys/fs/cgroup/cpu/a/cpu.cfs_quota_us", "100000\n");
        copy.write("sys/fs/cgroup/cpu/a/cpu.cfs_period_us", "100000\n");
        let quota = found(&copy.machine(), "quota").unwrap();
        assert!(quota.change[0].starts_with("echo -1 > /sys/fs/cgroup/cpu/a/"), "{quota:?}");
    }

    #[test]
    fn what_slows_processors_is_told() {
        let copy = Copy::of(
            "slow",
            &[
                ("proc/self/status", "Cpus_allowed_list:\t0-1\n"),
                ("sys/devices/system/cpu/online", "0-3\n"),
                ("proc/loadavg", "3.20 1.00 0.50 1/100 7\n"),
                ("sys/devices/system/node/node0/cpulist", "0-1\n"),
                ("sys/devices/system/node/node1/cpulist", "2-3\n"),
                ("proc/sys/kernel/numa_balancing", "1\n"),
                ("sys/devices/system/cpu/cpu0/cpufreq/scaling_governor", "powersave\n"),
                ("sys/devices/system/clocksource/clocksource0/current_clocksource", "hpet\n"),
            ],
        );
        let machine = copy.machine();
        let grade = |subject| found(&machine, subject).unwrap().grade;
        assert_eq!((grade("processors"), grade("load")), (Grade::Note, Grade::Note));
        assert_eq!([grade("NUMA"), grade("frequency"), grade("clock")], [Grade::Slow; 3]);
        copy.write("proc/sys/kernel/numa_balancing", "0\n");
        copy.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "intel_pstate\n");
        assert_eq!((grade("NUMA"), grade("frequency")), (Grade::Note, Grade::Note));
        copy.write("sys/devices/system/cpu/cpu0/cpufreq/scaling_driver", "amd-pstate\n");
        assert_eq!(grade("frequency"), Grade::Slow);
        copy.write("sys/devices/system/clocksource/clocksource0/current_clocksource", "tsc\n");
        copy.write("proc/loadavg", "0.10 1.00 0.50 1/100 7\n");
        assert_eq!((grade("clock"), found(&machine, "load")), (Grade::Good, None));
    }
}
