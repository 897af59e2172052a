// SPDX-License-Identifier: Apache-2.0
//! Whether a thread keeps sharing its processor with another one while it waits.
//!
//! Two threads that give way to each other on one processor look to the operating system like two that compute. It
//! may leave them there for seconds while another processor has nothing to do, and each wait takes two turns of the
//! processor instead of the way of a cache line. A thread that sleeps, however short, is given a free processor when
//! it wakes up, if there is one; but where processors are those of a hypervisor, idle ones pass for taken, and nothing
//! but a change of the processors that it may use moves it.

use nix::sched::{CpuSet, sched_getaffinity, sched_getcpu, sched_setaffinity};
use nix::unistd::{Pid, SysconfVar, sysconf};
use std::fs;
use std::time::Duration;

/// Giving way for longer than this means that another thread ran.
pub const ANOTHER_RAN_NS: u64 = 3_000;
/// So many waits in a row in which another thread ran are no coincidence. For each attempt of each thread there is a
/// number of its own, below twice as many: two threads that share a processor have come to the same, and if both
/// moved at the same time they would share the next one.
const ROW: u32 = 8;
/// Between two attempts to get a processor alone, at first and where they do not help.
const PAUSE_NS: u64 = 1_000_000;
const PAUSE_MAX_NS: u64 = 32_000_000;
/// A row that comes back within so many pauses has not been helped.
const SOON: u64 = 16;

/// What the waits of a thread have come to.
#[derive(Clone, Copy, Debug)]
pub struct Turns {
    /// Waits in a row in which another thread ran.
    row: u32,
    /// When the thread tried to get a processor alone.
    tried: u64,
    /// How long it is not to try again; none if it never has.
    pause: u64,
    /// By what it tries next.
    next: Attempt,
    /// How often it has tried.
    attempts: u32,
}

/// How a thread tries to get a processor alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Attempt {
    /// It sleeps as short as it can.
    Sleep,
    /// It goes to another processor of its node.
    Move,
}

impl Turns {
    /// Nothing waited for yet.
    pub const NONE: Turns = Turns { row: 0, tried: 0, pause: 0, next: Attempt::Sleep, attempts: 0 };

    /// A wait has ended, in which another thread ran or not.
    pub fn ended(&mut self, another_ran: bool) {
        self.row = if another_ran { self.row.saturating_add(1) } else { 0 };
    }

    /// What thread `me` should try at this time: the caller does it then.
    pub fn due(&mut self, now: u64, me: u32) -> Option<Attempt> {
        let since = now.saturating_sub(self.tried);
        let own = me.wrapping_add(self.attempts).wrapping_mul(0x9e37_79b9) >> 29;
        if self.row < ROW + own || since < self.pause {
            return None;
        }
        if self.pause > 0 && since < SOON * self.pause {
            self.pause = (2 * self.pause).min(PAUSE_MAX_NS);
            self.next = match self.next {
                Attempt::Sleep => Attempt::Move,
                Attempt::Move => Attempt::Sleep,
            };
        } else {
            (self.pause, self.next) = (PAUSE_NS, Attempt::Sleep);
        }
        (self.row, self.tried, self.attempts) = (0, now, self.attempts.wrapping_add(1));
        Some(self.next)
    }
}

impl Attempt {
    /// Carries it out.
    pub fn make(self) {
        match self {
            Attempt::Sleep => std::thread::sleep(Duration::from_nanos(1)),
            Attempt::Move => move_on(),
        }
    }
}

/// Goes to another processor of this node, if the thread may use one. It may use the same ones afterwards.
fn move_on() {
    let me = Pid::from_raw(0);
    let (Ok(here), Ok(all)) = (sched_getcpu(), sched_getaffinity(me)) else { return };
    let mut others = CpuSet::new();
    let others_of_node = neighbours(here).into_iter().filter(|cpu| *cpu != here);
    others_of_node.filter(|cpu| all.is_set(*cpu) == Ok(true)).for_each(|cpu| {
        let _ = others.set(cpu);
    });
    // Where there is none, this fails and changes nothing.
    if sched_setaffinity(me, &others).is_ok() {
        let _ = sched_setaffinity(me, &all);
    }
}

/// Whether at most one thread more wants to run on this machine than it has processors: one that shares its processor may
/// then find another one idle, or with a single thread that only waits.
pub fn may_find_room() -> bool {
    let loads = fs::read_to_string("/proc/loadavg").unwrap_or_default();
    let online = sysconf(SysconfVar::_NPROCESSORS_ONLN).ok().flatten();
    match runnable(&loads).zip(online) {
        Some((threads, processors)) => threads <= processors + 1,
        None => true,
    }
}

/// Threads that run or want to, of what `/proc/loadavg` says.
fn runnable(loads: &str) -> Option<i64> {
    loads.split_whitespace().nth(3)?.split_once('/')?.0.parse().ok()
}

/// The processors of a processor's node.
fn neighbours(cpu: usize) -> Vec<usize> {
    let place = format!("/sys/devices/system/cpu/cpu{cpu}");
    let node = fs::read_dir(place).into_iter().flatten().flatten().find(|entry| {
        entry.file_name().to_str().is_some_and(|name| {
            name.strip_prefix("node").is_some_and(|number| number.parse::<u32>().is_ok())
        })
    });
    match node.and_then(|node| fs::read_to_string(node.path().join("cpulist")).ok()) {
        Some(list) => listed(&list),
        // Without nodes all memory is equally near.
        None => (0..CpuSet::count()).collect(),
    }
}

/// The processors of a list such as `0-3,8`; what cannot be read is left out.
fn listed(text: &str) -> Vec<usize> {
    let range = |part: &str| {
        let (low, high) = part.split_once('-').unwrap_or((part, part));
        Some(low.parse().ok()?..=high.parse::<usize>().ok()?.min(CpuSet::count() - 1))
    };
    text.trim().split(',').filter_map(range).flatten().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_thread_tries_after_a_row_of_shared_waits_and_only_then() {
        let mut turns = Turns::NONE;
        let start = 10 * PAUSE_NS;
        for _ in 0..ROW - 1 {
            turns.ended(true);
        }
        assert_eq!(turns.due(start, 0), None);
        turns.ended(false);
        turns.ended(true);
        assert_eq!(turns.due(start, 0), None);
        for _ in 0..2 * ROW {
            turns.ended(true);
        }
        assert_eq!([turns.due(start, 0), turns.due(start, 0)], [Some(Attempt::Sleep), None]);
    }

    /// All attempts of a second in which every wait is shared.
    fn attempts(turns: &mut Turns, from: u64) -> Vec<(u64, Attempt)> {
        let mut made = Vec::new();
        for now in (from..from + 1_000_000_000).step_by(20_000) {
            turns.ended(true);
            made.extend(turns.due(now, 7).map(|attempt| (now, attempt)));
        }
        made
    }

    #[test]
    fn threads_with_neighbouring_numbers_do_not_try_at_the_same_time() {
        let waits = |me| {
            let mut turns = Turns::NONE;
            let mut waits = 0;
            while turns.due(10 * PAUSE_NS, me).is_none() {
                turns.ended(true);
                waits += 1;
            }
            waits
        };
        for me in 1..1_000 {
            assert!((ROW..2 * ROW).contains(&waits(me)));
            assert_ne!(waits(me), waits(me + 1), "{me}");
        }
    }

    #[test]
    fn what_does_not_help_gets_rare_and_is_not_repeated() {
        let mut turns = Turns::NONE;
        let first = attempts(&mut turns, 1_000_000_000);
        assert!(first.windows(2).all(|pair| pair[0].1 != pair[1].1), "{first:?}");
        let gaps: Vec<u64> = first.windows(2).map(|pair| pair[1].0 - pair[0].0).collect();
        let rarer = |pair: &[u64]| pair[1] >= 2 * pair[0] || pair[1] >= PAUSE_MAX_NS;
        assert!(gaps.windows(2).all(rarer), "{gaps:?}");
        assert!(attempts(&mut turns, 2_000_000_000).len() <= 32);
        // After a long time it is tried again as at first.
        let later = attempts(&mut turns, 20_000_000_000);
        assert_eq!((later.len(), later[0].1), (first.len(), Attempt::Sleep));
    }

    #[test]
    fn a_thread_moves_where_it_may_and_may_use_the_same_processors_afterwards() {
        let me = Pid::from_raw(0);
        let before = sched_getaffinity(me).unwrap();
        let allowed = neighbours(sched_getcpu().unwrap());
        assert!(allowed.iter().any(|cpu| before.is_set(*cpu) == Ok(true)));
        move_on();
        assert_eq!(sched_getaffinity(me).unwrap(), before);
        // With one processor there is nowhere to go.
        let mut one = CpuSet::new();
        one.set(sched_getcpu().unwrap()).unwrap();
        sched_setaffinity(me, &one).unwrap();
        move_on();
        assert_eq!(sched_getaffinity(me).unwrap(), one);
        sched_setaffinity(me, &before).unwrap();
    }

    #[test]
    fn threads_that_want_to_run_are_counted() {
        assert_eq!(runnable("0.20 0.18 0.12 3/80 11206\n"), Some(3));
        assert_eq!([runnable(""), runnable("0.20 0.18 0.12 3")], [None, None]);
        assert!(runnable(&fs::read_to_string("/proc/loadavg").unwrap()).is_some());
    }

    #[test]
    fn lists_of_processors_are_read() {
        assert_eq!(listed("0-2,5\n"), [0, 1, 2, 5]);
        assert_eq!(listed("\n"), [0; 0]);
        assert_eq!(listed("0-99999999999").len(), CpuSet::count());
    }
}
