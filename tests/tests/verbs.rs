// SPDX-License-Identifier: Apache-2.0
//! The transport over verbs with cards that keep the InfiniBand specification and nothing more: threads of the
//! processes, in a library that stands in for `libibverbs.so.1` (`tombolo-ibverbs`). Needs no RDMA device.

use libtest_mimic::{Failed, Trial};
use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tombolo_core::transport::Transport;
use tombolo_tests::conformance::{self, BackEnd, on_one_host};

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::losses::{GOING_ON, UNTUNED, WITHOUT_LOST, goes_on};
use support::program::{LIMIT, Program, run_trials};
use support::{crate_dir, prefix, run, scratch};

const VERBS: (&str, &str) = ("SHMEM_TRANSPORTS", "verbs");
const DEVICE: &str = "SHMEM_VERBS_DEVICE";
/// The devices that the library has, and whether they are software.
const DEVICES: [(&str, bool); 5] =
    [("card0", false), ("card1", false), ("global0", false), ("plain0", false), ("soft0", true)];

/// What the transport can be on them.
const BACK_ENDS: &[BackEnd] = &[
    on("card", &[VERBS, (DEVICE, "card0")]),
    on("two_cards", &[VERBS, (DEVICE, "card0,card1")]),
    on("card_target", &[VERBS, (DEVICE, "card0"), ("SHMEM_VERBS_AMO", "target")]),
    on("card_of_processors_domain", &[VERBS, (DEVICE, "global0")]),
    on("plain_card", &[VERBS, (DEVICE, "plain0")]),
    on("software", &[VERBS, (DEVICE, "soft0")]),
];

const fn on(name: &'static str, environment: &'static [(&'static str, &'static str)]) -> BackEnd {
    BackEnd { seeds: 3, ..on_one_host(name, transports, environment) }
}

fn transports() -> Vec<Box<dyn Transport>> {
    vec![tombolo_transports::create("verbs").expect("known")]
}

/// Where programs run: options of `oshrun`, and transports.
type Place = (&'static [&'static str], &'static str);
/// Two PEs, which share nothing that they map.
const ON_ONE: Place = (&["-n", "2"], "verbs");
/// Two PEs on one emulated host and one on another: those of a host map their memory.
const ON_HOSTS: Place = (&["-n", "3", "--hosts", "2"], "shm,verbs");

/// Programs that run with each of these devices as well.
const OTHERS: [&str; 4] = ["card0,card1", "global0", "plain0", "soft0"];
const BY_OTHERS: [&str; 5] = ["contexts", "locks", "mixed_amos", "signal", "wait"];

/// Makes so many short operations that it runs at one place alone.
const LONG: &str = "random";

/// PEs that are lost, as `special/survivors.c` is told of them.
const LOSSES: [(usize, &[&str], &str, &str); 3] = [
    (6, &["--hosts", "3", "-x", "SHMEM_TRANSPORTS=shm,verbs"], "", "aakkaa"),
    (4, &["--hosts", "4", "-x", "SHMEM_TRANSPORTS=verbs"], "", "akaa"),
    (4, &["--hosts", "4", "-x", "SHMEM_TRANSPORTS=verbs", "-x", TWO], "", "akka"),
];
const TWO: &str = "SHMEM_VERBS_DEVICE=card0,card1";

fn main() {
    if conformance::ran_as_asked(BACK_ENDS) {
        return;
    }
    // The loader looks at the variable when a process starts.
    let marker = "TOMBOLO_IBVERBS";
    if std::env::var_os(marker).is_none()
        && let Ok(folder) = stand_in()
    {
        let mut own = Command::new(std::env::current_exe().expect("a program"));
        let before = std::env::var_os("LD_LIBRARY_PATH").unwrap_or_default();
        let folders = [folder].into_iter().chain(std::env::split_paths(&before));
        let folders = std::env::join_paths(folders).expect("folders without colons");
        own.args(std::env::args_os().skip(1)).env("LD_LIBRARY_PATH", folders).env(marker, "1");
        panic!("{}", own.exec());
    }
    run_trials(trials)
}

/// A folder with the library under the name for which it stands, and beside it what there would be in `/sys`.
fn stand_in() -> Result<PathBuf, String> {
    let own = std::env::current_exe().map_err(|error| error.to_string())?;
    let mut places = own.ancestors().map(|dir| dir.join("libtombolo_ibverbs.so"));
    let built = places.find(|file| file.is_file());
    let built = built.ok_or("no libtombolo_ibverbs.so beside this test")?;
    let folder = scratch("ibverbs");
    let make = || {
        for (device, is_software) in DEVICES {
            let device = folder.join("sysfs").join(device);
            let types = device.join("ports/1/gid_attrs/types");
            fs::create_dir_all(&types)?;
            fs::write(types.join("0"), "RoCE v2\n")?;
            if !is_software {
                // A card has a place on a bus.
                fs::create_dir_all(device.join("device"))?;
            }
        }
        let link = folder.join("libibverbs.so.1");
        let _ = fs::remove_file(&link);
        symlink(&built, &link)
    };
    make().map_err(|error| format!("{}: {error}", folder.display()))?;
    Ok(folder)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    if let Err(why) = stand_in() {
        return vec![Trial::test("the_library_is_built", || Err(why.into()))];
    }
    let mut sources: Vec<_> = fs::read_dir(crate_dir().join("c"))
        .expect("the programs are there")
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    let mut trials = conformance::trials(BACK_ENDS);
    trials.push(Trial::test("the_suite_runs_between_processes", between_processes));
    for source in &sources {
        let program = Program::new(prefix, source, "", &["-O1", "-pthread"]);
        trials.push(runs(&program, ON_ONE, "card0"));
        if program.name != LONG {
            trials.push(runs(&program, ON_HOSTS, "card0"));
        }
        let by_others = BY_OTHERS.contains(&program.name.as_str());
        for device in OTHERS.into_iter().filter(|_| by_others) {
            trials.push(runs(&program, ON_HOSTS, device));
        }
    }
    let survivors = crate_dir().join("c/special/survivors.c");
    let survivors = Program::new(prefix, &survivors, "", &["-O1"]);
    trials.extend(LOSSES.map(|loss| goes_on(&survivors, loss)));
    let (own, awaited) = (prefix.to_owned(), crate_dir().join("c/special/awaited.c"));
    let awaited = Program::new(prefix, &awaited, "", &["-O1"]);
    trials.push(Trial::test("a_card_is_used_for_all_it_can_do", move || is_used(&own)));
    trials.push(Trial::test("the_card_tells_of_a_peer_whose_answer_is_awaited", move || {
        tells_of_loss(&awaited)
    }));
    trials
}

/// Before a card is used it is tried, with what it says of itself. What it may do late is no reason to do without.
fn is_used(prefix: &Path) -> Result<(), Failed> {
    for seed in 1..=6 {
        let mut oshrun = Command::new(prefix.join("bin/oshrun"));
        oshrun.args(["-n", "2"]).arg(prefix.join("bin/oshinfo"));
        oshrun.envs([VERBS, ("SHMEM_TUNE", "off"), ("SHMEM_SYMMETRIC_SIZE", "4m")]);
        oshrun.env("TOMBOLO_IBVERBS_SEED", seed.to_string());
        let ran = run(&mut oshrun, LIMIT)?.succeeded()?;
        let says = |what| ran.stdout.contains(what);
        if !says("device card0, port 1") || !says("the card carries out AMOs") || says("failed: ") {
            return Err(ran.account(&format!("seed {seed}: expected the card to be used")).into());
        }
    }
    Ok(())
}

/// Requests are sent without a completion, so that their failure is told by nothing else. Otherwise the peer would be lost
/// when it has been silent for seconds.
fn tells_of_loss(program: &Program) -> Result<(), Failed> {
    for seed in ["1", "2", "3"] {
        let env = [VERBS, GOING_ON, UNTUNED, ("TOMBOLO_IBVERBS_SEED", seed)];
        let ran = program.launch_with(&["--hosts", "2"], 2, &[], &env)?;
        let told = ran.stderr.contains("PE 1 on ")
            && ran.stderr.contains("cannot be reached any more: transport retry counter exceeded");
        if ran.code != Some(WITHOUT_LOST) || !told || ran.stdout != "went on\n" {
            return Err(ran.account(&format!("seed {seed}: expected the card's reason")).into());
        }
    }
    Ok(())
}

/// "rma on -n 2 over verbs by card0": succeeds, in time.
fn runs(program: &Arc<Program>, (places, transports): Place, device: &'static str) -> Trial {
    let program = program.clone();
    let name = format!("{} on {} over {transports} by {device}", program.name, places.join(" "));
    // Each run has other chances, which are the same every time.
    let seed = name.bytes().fold(1u64, |seed, byte| seed.wrapping_mul(31) + u64::from(byte));
    Trial::test(name, move || {
        let executable = program.executable()?;
        let mut oshrun = program.oshrun();
        oshrun.args(places).args(["-x", "CHECK_APART=1"]).arg(executable);
        oshrun.env("SHMEM_TRANSPORTS", transports).env(DEVICE, device).env("SHMEM_TUNE", "off");
        oshrun.env("TOMBOLO_IBVERBS_SEED", seed.to_string());
        let ran = run(&mut oshrun, 2 * LIMIT).map_err(|error| format!("{oshrun:?}: {error}"))?;
        ran.succeeded()?;
        Ok(())
    })
}

/// The suite of all transports, PEs being processes.
fn between_processes() -> Result<(), Failed> {
    for (back_end, n_pes) in [("card", 2), ("card", 3), ("two_cards", 4), ("software", 2)] {
        let mut oshrun = Command::new(prefix()?.join("bin/oshrun"));
        oshrun.args(["-n", &n_pes.to_string(), "-x", "SHMEM_SYMMETRIC_SIZE=16m"]);
        conformance::run_by(&mut oshrun, BACK_ENDS, back_end, false)?;
        let said = run(&mut oshrun, LIMIT)?.succeeded()?.stdout;
        conformance::all_ran(back_end, n_pes, false, &said)?;
    }
    Ok(())
}
