// SPDX-License-Identifier: Apache-2.0
//! What is measured: the tests, their units, and the points at which each is taken.

use clap::ValueEnum;
use serde::{Deserialize, Serialize};

/// A group of tests, as `--ops` names it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, ValueEnum)]
pub enum Op {
    /// Puts, each waited for
    Put,
    /// Gets
    Get,
    /// Strided puts and gets of words
    Strided,
    /// Atomic operations on a word
    Amo,
    /// Puts in series
    Rate,
    /// Puts in series, in both directions at once
    Bibw,
    /// Computing while a put is under way
    Overlap,
    /// Puts with a signal that the target waits for
    Signal,
    /// Barrier, broadcast, collect, all-to-all, reduction
    Collectives,
    /// Puts of several threads, each with a context of its own
    Contexts,
}

/// What the values of a test are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Kind {
    /// Microseconds of one operation; less is better.
    Latency,
    /// Megabytes (10^6) per second; more is better.
    Bandwidth,
    /// Million operations per second; more is better.
    Rate,
    /// Per cent; more is better.
    Share,
}

impl Kind {
    /// For the heads of tables.
    pub fn heading(self) -> &'static str {
        match self {
            Kind::Latency => "Latency (us)",
            Kind::Bandwidth => "Bandwidth (MB/s)",
            Kind::Rate => "Rate (Mop/s)",
            Kind::Share => "Overlap (%)",
        }
    }

    /// Whether a smaller value is the better one.
    pub fn less_is_better(self) -> bool {
        self == Kind::Latency
    }
}

/// Over what a test is taken.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Axis {
    /// Bytes of an operation.
    Size,
    /// Threads of a PE.
    Threads,
    /// There is one point.
    None,
}

/// One test.
#[derive(Clone, Copy, Debug)]
pub struct Test {
    /// Its name in files: letters and underscores.
    pub name: &'static str,
    /// Its group.
    pub op: Op,
    /// What one value is, for people.
    pub about: &'static str,
    /// What the values are.
    pub kind: Kind,
    /// Over what it is taken.
    pub axis: Axis,
}

const fn test(name: &'static str, op: Op, kind: Kind, axis: Axis, about: &'static str) -> Test {
    Test { name, op, about, kind, axis }
}

/// All tests, in the order in which they are measured.
pub const TESTS: [Test; 18] = [
    test("put", Op::Put, Kind::Latency, Axis::Size, "shmem_putmem and shmem_quiet"),
    test("get", Op::Get, Kind::Latency, Axis::Size, "shmem_getmem"),
    test(
        "iput",
        Op::Strided,
        Kind::Latency,
        Axis::Size,
        "shmem_long_iput to every second word and shmem_quiet",
    ),
    test("iget", Op::Strided, Kind::Latency, Axis::Size, "shmem_long_iget of every second word"),
    test("fetch_add", Op::Amo, Kind::Latency, Axis::None, "shmem_long_atomic_fetch_add"),
    test("add", Op::Amo, Kind::Latency, Axis::None, "shmem_long_atomic_add and shmem_quiet"),
    test("compare_swap", Op::Amo, Kind::Latency, Axis::None, "shmem_long_atomic_compare_swap"),
    test(
        "rate",
        Op::Rate,
        Kind::Bandwidth,
        Axis::Size,
        "series of shmem_putmem_nbi, up to 64, and shmem_quiet",
    ),
    test("bibw", Op::Bibw, Kind::Bandwidth, Axis::Size, "the same from both PEs at once"),
    test(
        "overlap",
        Op::Overlap,
        Kind::Share,
        Axis::Size,
        "share of shmem_putmem_nbi and shmem_quiet that computing in between hides",
    ),
    test(
        "signal",
        Op::Signal,
        Kind::Latency,
        Axis::Size,
        "shmem_putmem_signal until the target has seen the signal, one way",
    ),
    test("barrier", Op::Collectives, Kind::Latency, Axis::None, "shmem_barrier_all"),
    test("sync", Op::Collectives, Kind::Latency, Axis::None, "shmem_sync_all"),
    test("broadcast", Op::Collectives, Kind::Latency, Axis::Size, "shmem_broadcastmem"),
    test(
        "fcollect",
        Op::Collectives,
        Kind::Latency,
        Axis::Size,
        "shmem_fcollectmem, bytes of a PE",
    ),
    test(
        "alltoall",
        Op::Collectives,
        Kind::Latency,
        Axis::Size,
        "shmem_alltoallmem, bytes of a pair",
    ),
    test("sum_reduce", Op::Collectives, Kind::Latency, Axis::Size, "shmem_long_sum_reduce"),
    test(
        "contexts",
        Op::Contexts,
        Kind::Rate,
        Axis::Threads,
        "8-byte shmem_ctx_putmem_nbi of threads with private contexts",
    ),
];

/// Threads that the test of contexts is taken with.
const THREADS: [u64; 3] = [1, 2, 4];

impl Test {
    /// The test of a name.
    pub fn find(name: &str) -> Option<&'static Test> {
        TESTS.iter().find(|test| test.name == name)
    }

    /// Where it is taken; `sizes` are those asked for.
    pub fn points(&self, sizes: &[u64]) -> Vec<u64> {
        match self.axis {
            // Words are whole.
            Axis::Size if matches!(self.name, "sum_reduce" | "iput" | "iget") => {
                sizes.iter().copied().filter(|size| size.is_multiple_of(8)).collect()
            }
            Axis::Size => sizes.to_vec(),
            Axis::Threads => THREADS.to_vec(),
            Axis::None => vec![8],
        }
    }
}

/// The tests of these groups, in their own order.
pub fn of(ops: &[Op]) -> Vec<&'static Test> {
    TESTS.iter().filter(|test| ops.contains(&test.op)).collect()
}
