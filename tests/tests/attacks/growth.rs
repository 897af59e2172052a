// SPDX-License-Identifier: Apache-2.0
//! Programs that use much of everything, one after the other: nothing grows. See
//! `c/attacks/growth.c`.

use crate::ends::leaves_nothing;
use crate::support::ends::MARK;
use crate::support::program::{LIMIT, Program};
use crate::support::{crate_dir, run, scratch};
use crate::{Cases, Way, ways};
use libtest_mimic::{Failed, Trial};
use std::path::Path;
use std::sync::Arc;
use tombolo_tests::unless;

/// What is used, and how often on one host, over CMA and the ring, and over other networks. A use takes longer over
/// networks. It does so over CMA too, when other programs compute: PEs cannot wake each other there, and one that waits
/// gives its turn away.
const USES: [(&str, [u32; 3]); 4] = [
    ("blocks", [10_000, 1000, 40]),
    ("contexts", [1000, 1000, 40]),
    ("teams", [1000, 300, 20]),
    ("cycles", [200, 24, 12]),
];
/// libfabric asks for five cleared blocks of up to 17 MB and touches a part of them. While blocks so large
/// are mappings of their own, nobody needs to clear them; but the C library ceases to map them when the first one
/// was freed, clears those that have been used before, and 12 MB more are touched. This keeps it from that.
const MAPPED: (&str, &str) = ("GLIBC_TUNABLES", "glibc.malloc.mmap_threshold=1048576");
/// Jobs one after the other.
const JOBS: usize = 100;

pub fn trials(prefix: &Path) -> Vec<Trial> {
    let source = crate_dir().join("c/attacks/growth.c");
    let program = Program::new(prefix, &source, "", &["-O1"]);
    let trial = |way: Way| {
        let program = program.clone();
        let missing = way.missing.clone();
        let name = format!("nothing_grows_{}", way.name);
        unless(missing, Trial::test(name, move || grow(&program, &way)))
    };
    let mut trials: Vec<Trial> = ways().into_iter().map(trial).collect();
    trials.push(Trial::test("nothing_is_left_of_many_jobs", move || many_jobs(&program)));
    trials
}

fn grow(program: &Arc<Program>, way: &Way) -> Result<(), Failed> {
    let near = !way.options.contains(&"--hosts");
    // No more than the smallest machine has processors: this is not about sharing them.
    let pes = if near { 2 } else { 3 };
    for (what, [on_one_host, over_the_ring, over_networks]) in USES {
        let rounds = match way.name {
            "over_tcp" | "over_ofi" | "over_verbs" | "over_unordered" => over_networks,
            "on_one_host" => on_one_host,
            _ => over_the_ring,
        };
        let arguments = [what, &rounds.to_string()];
        let env = [("SHMEM_TUNE", "off"), MAPPED];
        let ran = program.launch_with(way.options, pes, &arguments, &env)?.succeeded()?;
        let flat = ran.stdout.matches("is flat").count();
        if flat != pes || !ran.stderr.is_empty() {
            return Err(ran.account("expected no growth and no word").into());
        }
    }
    Ok(())
}

fn many_jobs(program: &Arc<Program>) -> Result<(), Failed> {
    let folder = scratch("attacks").join(format!("jobs-{}", std::process::id()));
    std::fs::create_dir_all(&folder)?;
    let mark = format!("jobs-{}", std::process::id());
    let mut cases = Cases::new(JOBS + 1, 0);
    while cases.next() {
        let hosts = if cases.below(4) == 0 { "2" } else { "1" };
        let mut oshrun = program.oshrun();
        oshrun.args(["-n", "2", "--hosts", hosts]).arg(program.executable()?);
        oshrun.args(["teams", "1"]).env("TMPDIR", &folder).env("HOME", &folder);
        oshrun.env("SHMEM_TUNE", "off").env(MARK, &mark).current_dir(&folder);
        run(&mut oshrun, LIMIT)?.succeeded()?;
    }
    leaves_nothing(&mark)?;
    assert_eq!(std::fs::read_dir(&folder)?.count(), 0, "files of jobs");
    std::fs::remove_dir(&folder)?;
    Ok(())
}
