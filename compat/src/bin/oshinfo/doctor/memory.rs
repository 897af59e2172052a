// SPDX-License-Identifier: Apache-2.0
//! Memory: how much, in pages of which size.

use super::machine::bytes;
use super::variables::config;
use super::{Finding, Grade, Machine};
use tombolo_core::memory::Heap;

const MEMINFO: &str = "proc/meminfo";
const HUGE: &str = "sys/kernel/mm/transparent_hugepage";
/// The heap of a PE where `SHMEM_SYMMETRIC_SIZE` says nothing.
const HEAP: u64 = 1 << 30;

pub fn findings(machine: &Machine) -> Vec<Finding> {
    vec![memory(machine), huge_pages(machine), names(machine)]
}

/// The tightest limit of cgroups on memory, and the file that says so.
fn limit(machine: &Machine) -> Option<(u64, String)> {
    let files = [("", "memory.max"), ("memory", "memory.limit_in_bytes")];
    let all = files.into_iter().flat_map(|(controller, file)| {
        machine.cgroups(controller).into_iter().filter_map(move |group| {
            let path = group.join(file);
            Some((machine.number(&path)?, path.display().to_string()))
        })
    });
    all.min()
}

fn memory(machine: &Machine) -> Finding {
    let heap = match machine.is_live() {
        true => config().symmetric_size.0,
        false => HEAP,
    };
    let Some(total) = machine.kibibytes(MEMINFO, "MemTotal") else {
        return Finding::new("memory", Grade::Note, "the kernel does not tell", "", &[]);
    };
    let free = machine.kibibytes(MEMINFO, "MemAvailable").unwrap_or(total);
    let limit = limit(machine).filter(|(limit, _)| *limit < total);
    let mut state = format!("{}, {} of them free", bytes(total), bytes(free));
    if let Some((limit, _)) = &limit {
        state += &format!("; a cgroup allows {}", bytes(*limit));
    }
    let refused = machine.is_live().then(try_heap).and_then(Result::err);
    let there = limit.as_ref().map_or(total, |(limit, _)| *limit);
    let ask = "SHMEM_SYMMETRIC_SIZE=256m oshrun ...";
    if heap > there || refused.is_some() {
        let effect =
            refused.unwrap_or_else(|| format!("a heap of {} per PE does not start", bytes(heap)));
        let raise = limit.map_or_else(String::new, |(_, file)| format!("echo max > /{file}"));
        let change: Vec<&str> = [ask, &raise].into_iter().filter(|line| !line.is_empty()).collect();
        return Finding::new("memory", Grade::Fails, state, &effect, &change);
    }
    if machine.number("proc/sys/vm/overcommit_memory") == Some(2) {
        let effect =
            "the kernel counts memory that is reserved and never used: heaps may be refused";
        return Finding::new(
            "memory",
            Grade::Note,
            state + "; no overcommitment",
            effect,
            &["sysctl -w vm.overcommit_memory=0", ask],
        );
    }
    let swap = machine.kibibytes(MEMINFO, "SwapTotal").unwrap_or(0);
    let used = swap.saturating_sub(machine.kibibytes(MEMINFO, "SwapFree").unwrap_or(swap));
    if free < heap && used > 0 {
        let effect = "a heap that is used whole goes to the swap device";
        return Finding::new("memory", Grade::Slow, state + ", swapping", effect, &[ask]);
    }
    Finding::good("memory", state)
}

/// Reserves a heap as jobs do and writes to it.
fn try_heap() -> Result<(), String> {
    let heap = Heap::reserve(&config(), 1 << 21).map_err(|e| e.to_string())?;
    // SAFETY: the heap is at least as long as its control area, and nobody else has it.
    unsafe { heap.base().write_volatile(1) };
    Ok(())
}

fn huge_pages(machine: &Machine) -> Finding {
    let subject = "huge pages";
    let Some(shared) = machine.choice(format!("{HUGE}/shmem_enabled")) else {
        let state = "this kernel has none for memory files";
        return Finding::new(subject, Grade::Note, state, "pages of the heap have 4 KiB", &[]);
    };
    let general = machine.choice(format!("{HUGE}/enabled")).unwrap_or_else(|| "unknown".into());
    let state = format!("for memory files: {shared}; for other memory: {general}");
    let obtained = machine.is_live().then(try_huge);
    if obtained == Some(Some(true)) {
        return Finding::good(subject, state + "; a trial obtained one");
    }
    let allowed = ["always", "within_size", "advise", "force"].contains(&shared.as_str());
    if !allowed {
        let effect = "pages of the heap have 4 KiB: its first use takes several times as long, and \
                      scattered accesses to large heaps miss the TLB";
        let change = format!("echo advise > /{HUGE}/shmem_enabled");
        return Finding::new(subject, Grade::Slow, state, effect, &[&change]);
    }
    match obtained {
        Some(Some(false)) => {
            let effect = "memory is in too small pieces, so that a trial obtained small pages";
            let change = "echo 1 > /proc/sys/vm/compact_memory";
            Finding::new(subject, Grade::Slow, state, effect, &[change])
        }
        _ => Finding::good(subject, state),
    }
}

/// Whether a heap that is written to has huge pages; none where that cannot be found out.
fn try_huge() -> Option<bool> {
    let mut config = config();
    (config.symmetric_size.0, config.huge_pages.0) = (4 << 20, true);
    let heap = Heap::reserve(&config, 1 << 21).ok()?;
    for offset in (0..heap.len()).step_by(4096) {
        // SAFETY: inside the heap, which nobody else has.
        unsafe { heap.base().add(offset).write_volatile(1) };
    }
    let all = std::fs::read_to_string("/proc/self/smaps").ok()?;
    let own = format!("{:x}-", heap.base() as usize);
    let mine = all.lines().skip_while(|line| !line.starts_with(&own));
    let mapped = mine.skip(1).find_map(|line| line.strip_prefix("ShmemPmdMapped:"))?;
    Some(mapped.split_whitespace().next()? != "0")
}

fn names(machine: &Machine) -> Finding {
    let mounts = machine.text("proc/self/mounts").unwrap_or_default();
    let size = mounts.lines().rev().find_map(|line| {
        let mut fields = line.split_whitespace().skip(1);
        (fields.next()? == "/dev/shm").then_some(())?;
        let options = fields.nth(1)?;
        let size = options.split(',').find_map(|option| option.strip_prefix("size="));
        Some(size.map_or("half of the memory", |size| size).to_owned())
    });
    let state = size.unwrap_or_else(|| "none".to_owned());
    Finding::good("/dev/shm", state + "; Tombolo does not use it, other libraries do")
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::Copy;
    use super::*;

    fn memory_of(files: &[(&str, &str)]) -> Finding {
        let copy = Copy::of("memory", files);
        memory(&copy.machine())
    }

    #[test]
    fn less_memory_than_a_heap_is_told_with_what_limits_it() {
        let total = ("proc/meminfo", "MemTotal: 8388608 kB\nMemAvailable: 4194304 kB\n");
        assert_eq!(memory_of(&[total]).grade, Grade::Good);
        let small = memory_of(&[
            total,
            ("proc/self/cgroup", "0::/docker/a\n"),
            ("sys/fs/cgroup/docker/a/memory.max", "536870912\n"),
        ]);
        assert_eq!(small.grade, Grade::Fails);
        assert!(small.state.contains("a cgroup allows 512 MiB"), "{small:?}");
        assert!(small.change.contains(&"echo max > /sys/fs/cgroup/docker/a/memory.max".to_owned()));
        let strict = memory_of(&[total, ("proc/sys/vm/overcommit_memory", "2\n")]);
        assert_eq!((strict.grade, strict.change.len()), (Grade::Note, 2));
        let swapping = (
            "proc/meminfo",
            "MemTotal: 8388608 kB\nMemAvailable: 4096 kB\nSwapTotal: 9 kB\nSwapFree: 1 kB\n",
        );
        assert_eq!(memory_of(&[swapping]).grade, Grade::Slow);
    }

    #[test]
    fn huge_pages_that_the_kernel_refuses_are_told() {
        let copy = Copy::of(
            "huge",
            &[("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always advise [never] deny\n")],
        );
        let finding = huge_pages(&copy.machine());
        assert_eq!(finding.grade, Grade::Slow);
        assert_eq!(
            finding.change,
            ["echo advise > /sys/kernel/mm/transparent_hugepage/shmem_enabled"]
        );
        copy.write("sys/kernel/mm/transparent_hugepage/shmem_enabled", "always [advise] never\n");
        assert_eq!(huge_pages(&copy.machine()).grade, Grade::Good);
    }

    #[test]
    fn this_machine_is_tried() {
        try_heap().expect("tests have the memory of a heap");
        let finding = huge_pages(&Machine::this());
        // A trial decides, whatever the files say.
        assert_eq!(
            finding.grade == Grade::Good,
            try_huge() == Some(true) || finding.state.contains("none")
        );
    }

    #[test]
    fn the_last_mount_counts() {
        let mounts = "tmpfs /dev/shm tmpfs rw,size=9k 0 0\nshm /dev/shm tmpfs rw,size=65536k 0 0\n";
        let copy = Copy::of("mounts", &[("proc/self/mounts", mounts)]);
        assert!(names(&copy.machine()).state.starts_with("65536k; "));
    }
}
