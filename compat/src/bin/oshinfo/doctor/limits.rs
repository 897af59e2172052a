// SPDX-License-Identifier: Apache-2.0
//! Limits on what processes may have.

use super::machine::bytes;
use super::{Finding, Grade, Machine};

/// Files of a PE in `oshrun`, and some more.
const PER_PE: u64 = 3;
const OWN: u64 = 64;

pub fn findings(machine: &Machine) -> Vec<Finding> {
    let all = [Some(locked(machine)), files(machine), processes(machine), file_size(machine)];
    all.into_iter().flatten().collect()
}

/// Whether anything here is given memory that must not move.
fn pins(machine: &Machine) -> bool {
    let verbs = !machine.names("sys/class/infiniband").is_empty();
    verbs || !super::devices::functions(machine).is_empty()
}

fn locked(machine: &Machine) -> Finding {
    let subject = "locked memory";
    let Some((soft, hard)) = machine.limit("Max locked memory") else {
        return Finding::new(subject, Grade::Note, "the kernel does not tell", "", &[]);
    };
    let state = match soft == hard {
        true => bytes(soft),
        false => format!("{}, may be raised to {}", bytes(soft), bytes(hard)),
    };
    if soft >= 1 << 30 {
        return Finding::good(subject, state);
    }
    if !pins(machine) {
        return Finding::good(
            subject,
            state + "; only NTB devices and verbs need it, and there are none",
        );
    }
    let effect = "devices get memory that must not move; what is beyond the limit cannot be registered \
                  with them";
    let raise = match hard == u64::MAX {
        true => "ulimit -l unlimited",
        false => {
            "echo '* - memlock unlimited' > /etc/security/limits.d/memlock.conf   # then log in again"
        }
    };
    let container = "# in a container: docker run --ulimit memlock=-1";
    Finding::new(subject, Grade::Slow, state, effect, &[raise, container])
}

fn files(machine: &Machine) -> Option<Finding> {
    let (_, hard) = machine.limit("Max open files")?;
    let pes = hard.saturating_sub(OWN) / PER_PE;
    let state = match hard {
        u64::MAX => "unlimited".to_owned(),
        _ => format!("{hard}, enough for {pes} PEs of a host"),
    };
    if pes >= 1000 {
        return Some(Finding::good("open files", state));
    }
    let effect = "oshrun does not start more PEs on this host";
    let change =
        "echo '* - nofile 65536' > /etc/security/limits.d/nofile.conf   # then log in again";
    let container = "# in a container: docker run --ulimit nofile=65536";
    let grade = if pes == 0 { Grade::Fails } else { Grade::Note };
    Some(Finding::new("open files", grade, state, effect, &[change, container]))
}

fn processes(machine: &Machine) -> Option<Finding> {
    let (soft, _) = machine.limit("Max processes")?;
    let groups = machine.cgroups("").into_iter().chain(machine.cgroups("pids"));
    let tightest = groups.filter_map(|group| machine.number(group.join("pids.max"))).min();
    let all = tightest.unwrap_or(u64::MAX).min(soft);
    if all >= 4096 {
        return None;
    }
    let state = format!("{all} of this user or container");
    let effect = "a PE is a process and may have some threads; start fails when none is left";
    let change = "ulimit -u 65536   # a container: --pids-limit -1";
    let grade = if all < 16 { Grade::Fails } else { Grade::Note };
    Some(Finding::new("processes", grade, state, effect, &[change]))
}

fn file_size(machine: &Machine) -> Option<Finding> {
    let (soft, _) = machine.limit("Max file size")?;
    (soft < 1 << 30).then(|| {
        let effect = "the heap is a memory file and no longer than that";
        Finding::new("file size", Grade::Fails, bytes(soft), effect, &["ulimit -f unlimited"])
    })
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::Copy;
    use super::*;

    const LIMITS: &str = "Max locked memory  65536 65536 bytes\nMax open files  256 256 files\n\
                          Max processes  100 200 processes\nMax file size  4096 unlimited bytes\n";

    #[test]
    fn locked_memory_matters_where_devices_need_it() {
        let copy = Copy::of("locked", &[("proc/self/limits", LIMITS)]);
        assert_eq!(locked(&copy.machine()).grade, Grade::Good);
        copy.write("sys/class/infiniband/mlx5_0/node_type", "1: CA\n");
        let finding = locked(&copy.machine());
        assert_eq!(finding.grade, Grade::Slow);
        assert!(finding.change[0].contains("/etc/security/limits.d/"), "{finding:?}");
        copy.write("proc/self/limits", "Max locked memory  65536 unlimited bytes\n");
        assert_eq!(locked(&copy.machine()).change[0], "ulimit -l unlimited");
        assert!(locked(&copy.machine()).change[1].contains("--ulimit memlock"));
    }

    #[test]
    fn limits_that_jobs_meet_are_told() {
        let copy = Copy::of("limits", &[("proc/self/limits", LIMITS)]);
        let grades: Vec<(&str, Grade)> =
            findings(&copy.machine()).iter().map(|f| (f.subject, f.grade)).collect();
        assert_eq!(
            grades[1..],
            [("open files", Grade::Note), ("processes", Grade::Note), ("file size", Grade::Fails)]
        );
        copy.write("proc/self/cgroup", "0::/a\n");
        copy.write("sys/fs/cgroup/a/pids.max", "8\n");
        assert_eq!(processes(&copy.machine()).unwrap().grade, Grade::Fails);
    }
}
