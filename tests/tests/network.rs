// SPDX-License-Identifier: Apache-2.0
//! C programs on several hosts that share nothing but a network: namespaces with an `sshd` each, tied
//! by virtual cables, on which `oshrun --host` starts PEs.

use libtest_mimic::{Failed, Trial};
use serde_json::Value;
use std::fs;
use std::io::{BufRead, BufReader, Read};
use std::path::Path;
use std::process::{Child, Command, Stdio};
use std::sync::{Arc, LazyLock};
use std::time::{Duration, Instant};
use tombolo_tests::conformance::{self, BACK_ENDS, unavailable};
use tombolo_tests::nodes::{self, Nodes};
use tombolo_tests::unless;

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::job::Job;
use support::losses::{GOING_ON, WITHOUT_LOST};
use support::program::{LIMIT, Program, run_trials};
use support::{Ran, crate_dir, ends_with_this, run, scratch};

/// Hosts and how many PEs each has, and the network by which they reach each other.
const PLACES: [(&str, &str); 2] = [("n1:2,n2:2", "tcp"), ("n1:2,n2:1,n3:1", "ofi")];

/// Hosts for jobs that leave them as they are.
static NODES: LazyLock<Nodes> =
    LazyLock::new(|| Nodes::start(3).unwrap_or_else(|why| panic!("{why}")));

fn main() {
    if !conformance::ran_as_asked(BACK_ENDS) {
        run_trials(trials)
    }
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let of_ofi = BACK_ENDS.iter().find(|back_end| back_end.name == "ofi_tcp").expect("a row");
    let missing = nodes::unavailable().map(str::to_owned);
    let no_ofi = missing.clone().or_else(|| unavailable(of_ofi));
    let mut sources: Vec<_> = fs::read_dir(crate_dir().join("c"))
        .expect("the programs are there")
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    let programs =
        sources.iter().map(|source| Program::new(prefix, source, "", &["-O1", "-pthread"]));
    let places = |program: Arc<Program>| {
        PLACES.map(|(places, network)| {
            let missing = if network == "ofi" { &no_ofi } else { &missing };
            unless(missing.as_ref(), runs(&program, places, network))
        })
    };
    let counted = crate_dir().join("c/special/counted.c");
    let counted = Program::new(prefix, &counted, "", &["-pthread"]);
    let traced = counted.clone();
    let beating = Program::new(prefix, &crate_dir().join("c/special/beating.c"), "", &[]);
    let (cut, many) = (beating.clone(), beating);
    let faults = crate_dir().join("c/special/faults.c");
    let faults = Program::new(prefix, &faults, "", &["-O1", "-pthread"]);
    let tools = [
        Trial::test("a_cut_cable_ends_a_job_by_default", move || cable(&cut)),
        tool(prefix, "other_builds_on_other_hosts_are_refused", other_builds),
        Trial::test("many_pes_make_few_connections", move || connections(&many)),
        Trial::test("a_wait_for_a_pe_that_has_finalized_elsewhere_ends", move || {
            finalized(&faults)
        }),
        tool(prefix, "oshperf_compares_the_network_between_hosts", compares),
        tool(prefix, "oshinfo_examines_other_hosts", examines),
        tool(prefix, "tcp_needs_no_library_and_no_setting", tells),
        tool(prefix, "an_interface_that_is_not_there_is_told", refuses),
        tool(prefix, "pes_listen_at_the_ports_that_are_given", listens),
        Trial::test("profiles_come_from_all_hosts", move || profiles(&counted)),
        Trial::test("a_long_timeline_comes_over_a_slow_cable", move || timeline(&traced)),
    ];
    let long = crate_dir().join("c/special/long_transfers.c");
    let long = Program::new(prefix, &long, "", &["-O1"]);
    let slow = [("tcp", &missing), ("ofi", &no_ofi)].map(|(network, missing)| {
        let (long, name) =
            (long.clone(), format!("long_transfers_over_a_slow_cable_end_over_{network}"));
        unless(missing.as_ref(), Trial::test(name, move || slow(&long, network)))
    });
    let suites = [("tcp", &missing), ("ofi_tcp", &no_ofi)].map(|(back_end, missing)| {
        let name = format!("transports_do_what_they_must_between_hosts_over_{back_end}");
        let prefix = prefix.to_owned();
        unless(missing.as_ref(), Trial::test(name, move || suite(&prefix, back_end)))
    });
    let survivors = crate_dir().join("c/special/survivors.c");
    let survivors = Program::new(prefix, &survivors, "", &["-O1"]);
    let losses = [("tcp", &missing), ("ofi", &no_ofi)].map(|(network, missing)| {
        [Loss::Power, Loss::Cable].map(|loss| {
            let survivors = survivors.clone();
            let name =
                format!("a_job_goes_on_without_a_host_that_lost_its_{loss:?}_over_{network}");
            let trial = Trial::test(name, move || goes_on(&survivors, network, loss));
            unless(missing.as_ref(), trial)
        })
    });
    let losses = losses.into_iter().flatten();
    let tools = tools.map(|trial| unless(missing.as_ref(), trial));
    let without_tcp = tool(prefix, "libfabric_is_used_where_tcp_is_left_out", tells_of_ofi);
    let without_tcp = unless(no_ofi.as_ref(), without_tcp);
    let all = programs.flat_map(places).chain(tools).chain(slow).chain(suites);
    all.chain([without_tcp]).chain(losses).collect()
}

fn tool(prefix: &Path, name: &str, case: fn(&Path) -> Result<(), Failed>) -> Trial {
    let prefix = prefix.to_owned();
    Trial::test(name, move || case(&prefix))
}

fn on_login(mut command: Command) -> Result<Ran, Failed> {
    command.env("SHMEM_TUNE", "off");
    NODES.enter(&mut command);
    Ok(run(&mut command, LIMIT)?)
}

fn compares(prefix: &Path) -> Result<(), Failed> {
    let file = scratch("network").join("compare.json");
    let mut command = Command::new(prefix.join("bin/oshperf"));
    command.args(["compare", "--host", "n1,n2", "--ways", "shm,tcp", "--ops", "put,amo"]);
    command.args(["--sizes", "8,4K", "--rounds", "1", "--budget", "0.05", "--json"]).arg(&file);
    on_login(command)?.succeeded()?;
    let report: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    let ways = report["ways"].as_array().ok_or("no ways")?;
    assert!(ways[0]["unusable"].is_string() && ways[1]["unusable"].is_null(), "{ways:?}");
    let all = report["series"].as_array().ok_or("no series")?;
    assert!(all.iter().all(|series| series["way"] == "tcp"), "{all:?}");
    let put = all.iter().find(|series| series["test"] == "put").ok_or("no puts")?;
    assert_eq!(put["points"].as_array().map(Vec::len), Some(2), "{put}");
    Ok(())
}

/// On the second host lies a library that differs from the first's in what it says of its sources.
fn other_builds(prefix: &Path) -> Result<(), Failed> {
    let info = Command::new(prefix.join("bin/oshinfo")).output()?.stdout;
    let info = String::from_utf8(info)?;
    let row = info.lines().find_map(|line| line.trim_start().strip_prefix("build "));
    let build = row.and_then(|row| row.trim_start().split(',').next()).ok_or("no build")?;
    let other: String = build.chars().rev().collect();
    assert!(build.len() == 16 && other != build, "{info}");
    let library = prefix.join("lib/libtombolo.so.0").canonicalize()?;
    let mut bytes = fs::read(&library)?;
    let (old, new) = (build.as_bytes(), other.as_bytes());
    let places = bytes.windows(old.len()).enumerate().filter(|(_, window)| *window == old);
    let places: Vec<usize> = places.map(|(at, _)| at).collect();
    assert!(!places.is_empty(), "the library does not contain {build}");
    places.iter().for_each(|at| bytes[*at..*at + new.len()].copy_from_slice(new));
    let patched = scratch("network").join("libtombolo-other.so");
    fs::write(&patched, bytes)?;
    let nodes = Nodes::start(2)?;
    let mounted = nodes.on(2, "mount").arg("--bind").arg(&patched).arg(&library).status()?;
    assert!(mounted.success(), "{mounted}");
    let source = crate_dir().join("c/special/beating.c");
    let program = Program::new(prefix, &source, "", &[]);
    let mut oshrun = program.oshrun();
    oshrun.args(["--host", "n1,n2"]).arg(program.executable()?);
    nodes.enter(&mut oshrun);
    let ran = run(&mut oshrun, LIMIT)?;
    let said = |host: &str, build: &str| {
        let row = ran.stderr.lines().find(|line| line.contains("different builds"));
        let version = format!("version {}, build {build}", env!("CARGO_PKG_VERSION"));
        row.and_then(|row| row.split_once(host)).is_some_and(|(_, rest)| {
            let verb = rest.trim_start_matches(" runs").trim_start();
            verb.starts_with(&version)
        })
    };
    if ran.code == Some(0) || !said("PE 0 on host n1", build) || !said("PE 1 on host n2", &other) {
        return Err(ran.account("expected both builds and hosts to be named").into());
    }
    Ok(())
}

/// What a job of two hosts says of itself.
fn own(prefix: &Path, setting: &str) -> Result<String, Failed> {
    let mut command = Command::new(prefix.join("bin/oshrun"));
    command.args(["--host", "n1,n2", "-x", setting]).arg(prefix.join("bin/oshinfo"));
    Ok(on_login(command)?.succeeded()?.stdout)
}

/// TCP is used, and libfabric is not, which would do the same.
fn tells(prefix: &Path) -> Result<(), Failed> {
    let stdout = own(prefix, "SHMEM_TRANSPORTS=all")?;
    assert!(
        stdout.contains("tcp  TCP on eth0 (10.99.0.") && !stdout.contains("ofi  libfabric"),
        "{stdout}"
    );
    Ok(())
}

fn tells_of_ofi(prefix: &Path) -> Result<(), Failed> {
    let stdout = own(prefix, "SHMEM_TRANSPORTS=^tcp")?;
    assert!(stdout.contains("ofi  libfabric") && !stdout.contains("tcp  TCP"), "{stdout}");
    Ok(())
}

fn refuses(prefix: &Path) -> Result<(), Failed> {
    let mut command = Command::new(prefix.join("bin/oshrun"));
    command.args(["--host", "n1,n2", "-x", "SHMEM_TRANSPORTS=shm,tcp"]);
    command.args(["-x", "SHMEM_TCP_INTERFACE=eth7"]).arg(prefix.join("bin/oshinfo"));
    let ran = on_login(command)?;
    let why = "tcp: SHMEM_TCP_INTERFACE=eth7: there is no such interface; those that are up: ";
    assert!(ran.code == Some(1) && ran.stderr.contains(why), "{ran:?}");
    assert!(ran.stderr.contains("eth0 (10.99.0."), "{ran:?}");
    Ok(())
}

fn listens(prefix: &Path) -> Result<(), Failed> {
    let oshinfo = |ports: &str| {
        let mut command = Command::new(prefix.join("bin/oshrun"));
        command.args(["--host", "n1:2,n2:2", "-x", "SHMEM_TRANSPORTS=shm,tcp", "-x"]);
        command.arg(format!("SHMEM_TCP_PORTS={ports}")).arg(prefix.join("bin/oshinfo"));
        on_login(command)
    };
    oshinfo("50000-50001")?.succeeded()?;
    let ran = oshinfo("50000")?;
    let why = "tcp: no port is free at 10.99.0.";
    assert!(ran.code == Some(1) && ran.stderr.contains(why), "{ran:?}");
    assert!(ran.stderr.contains("(SHMEM_TCP_PORTS=50000)"), "{ran:?}");
    Ok(())
}

fn examines(prefix: &Path) -> Result<(), Failed> {
    let mut command = Command::new(prefix.join("bin/oshinfo"));
    command.args(["--doctor", "--host", "n1,n2,n9"]);
    let ran = on_login(command)?;
    for name in ["login", "n1", "n2", "n9"] {
        let heading = format!("What makes jobs slow or impossible on {name}\n");
        assert_eq!(ran.stdout.matches(&heading).count(), 1, "{ran:?}");
    }
    // There is no n9.
    assert!(
        ran.code == Some(4) && ran.stdout.matches("no job starts on this").count() == 1,
        "{ran:?}"
    );
    Ok(())
}

fn profiles(program: &Program) -> Result<(), Failed> {
    let [profile, trace] = ["profile", "trace"].map(|name| scratch("network").join(name));
    let mut oshrun = program.oshrun();
    oshrun.args(["--host", "n1,n2"]).arg(format!("--profile=json:{}", profile.display()));
    oshrun.arg(format!("--trace={}", trace.display())).arg(program.executable()?);
    on_login(oshrun)?.succeeded()?;
    let profile: Value = serde_json::from_str(&fs::read_to_string(&profile)?)?;
    let rows = profile["routines"].as_array().ok_or("no routines")?;
    let puts = rows.iter().find(|row| row["routine"] == "shmem_long_p").ok_or("no puts")?;
    assert!(puts["calls"] == 2000 && puts["way"] == "tcp", "{puts}");
    let machines: Vec<_> =
        profile["pes"].as_array().into_iter().flatten().map(|pe| pe["machine"].clone()).collect();
    assert_eq!(machines, ["n1", "n2"], "{profile:#}");
    let trace: Value = serde_json::from_str(&fs::read_to_string(&trace)?)?;
    let events = trace["traceEvents"].as_array().ok_or("no events")?;
    for pe in 0..2 {
        let own = |e: &&Value| e["pid"] == pe && e["name"] == "shmem_barrier_all" && e["ph"] == "X";
        assert_eq!(events.iter().filter(own).count(), 3, "{trace}");
    }
    Ok(())
}

/// Of a job that has ended well: telling what was traced takes a quarter of a minute, as long as one may be silent.
fn timeline(program: &Program) -> Result<(), Failed> {
    const EVENTS: usize = 100_000;
    let nodes = Nodes::start(1)?;
    nodes.limit(1, "2mbit")?;
    let trace = scratch("network").join("timeline");
    let mut oshrun = program.oshrun();
    oshrun.args(["--host", "n1:2", "--trace-events", &EVENTS.to_string()]);
    oshrun.arg(format!("--trace={}", trace.display())).arg(program.executable()?);
    oshrun.args(["barriers", &EVENTS.to_string()]).env("SHMEM_TUNE", "off");
    nodes.enter(&mut oshrun);
    let begun = Instant::now();
    let ran = run(&mut oshrun, LIMIT)?.succeeded()?;
    // What is lost is said, here and in the file.
    assert!(ran.stderr.contains("oldest events, for which there was no room"), "{ran:?}");
    let took = begun.elapsed();
    assert!(took > Duration::from_secs(5), "the cable is not slow: {took:?}");
    // One event a line: a value of all of them would take much memory.
    let text = fs::read_to_string(&trace)?;
    fs::remove_file(&trace)?;
    assert!(text.ends_with("\n]}\n"), "{}", &text[text.len() - 200..]);
    for pe in 0..2 {
        let own = format!("\"pid\":{pe},");
        let spans =
            text.lines().filter(|line| line.contains(&own) && line.contains("\"ph\":\"X\""));
        assert_eq!(spans.count(), EVENTS, "of PE {pe}");
    }
    Ok(())
}

/// A job whose PEs wait for each other again and again, once it has said that it does; it ends with this
/// value.
struct Beating(Child);

impl Beating {
    fn start(program: &Program, nodes: &Nodes, options: &str) -> Result<Beating, Failed> {
        let mut oshrun = program.oshrun();
        oshrun.args(options.split(' ')).arg(program.executable()?);
        oshrun.env("SHMEM_TUNE", "off").env_remove("SHMEM_ON_LOSS");
        nodes.enter(&mut oshrun);
        oshrun.stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut job = Beating(ends_with_this(&mut oshrun).spawn()?);
        let mut line = String::new();
        BufReader::new(job.0.stdout.as_mut().expect("piped")).read_line(&mut line)?;
        match line.as_str() {
            "ready\n" => Ok(job),
            _ => Err(format!("the job does not start: {line}{}", job.said()?).into()),
        }
    }

    fn said(&mut self) -> Result<String, Failed> {
        let mut said = String::new();
        self.0.stderr.as_mut().expect("piped").read_to_string(&mut said)?;
        Ok(said)
    }
}

impl Drop for Beating {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// TCP itself would go on sending for a quarter of an hour.
fn cable(program: &Program) -> Result<(), Failed> {
    let nodes = Nodes::start(2)?;
    let mut job = Beating::start(program, &nodes, "--host n1,n2")?;
    let begun = Instant::now();
    nodes.plug(2, false);
    let said = job.said()?;
    let took = begun.elapsed();
    assert_eq!(job.0.wait()?.code(), Some(1), "{said}");
    let lines: Vec<&str> = said.lines().collect();
    let expected = "tombolo: PE 0: shmem_barrier_all: PE 1 on n2 cannot be reached any more: nothing came from it for ";
    assert!(lines[0].starts_with(expected), "{said}");
    assert!(lines[1].starts_with("oshrun: host n2 does not answer"), "{said}");
    assert_eq!(lines.len(), 2, "{said}");
    // 10 seconds until it is noticed, and 5 for the agent that does not answer; more on a busy machine.
    assert!(took < Duration::from_secs(40), "{took:?}");
    Ok(())
}

/// What a host may lose, with which it is lost itself.
#[derive(Clone, Copy, Debug)]
enum Loss {
    Power,
    Cable,
}

/// The PEs of the other hosts are told, and go on, where the program asks for it.
fn goes_on(program: &Program, network: &str, loss: Loss) -> Result<(), Failed> {
    let mut nodes = Nodes::start(3)?;
    let mut oshrun = program.oshrun();
    oshrun.args(["--host", "n1,n2,n3", "--silence", "5"]);
    oshrun.args(["-x", "SHMEM_TUNE=off", "-x", &format!("SHMEM_TRANSPORTS=shm,{network}")]);
    oshrun.args(["-x", "CHECK_READY=1", "-x", "CHECK_ROUNDS=20"]).env(GOING_ON.0, GOING_ON.1);
    oshrun.arg(program.executable()?).arg("aax");
    nodes.enter(&mut oshrun);
    let mut job = Job::start(oshrun)?;
    match loss {
        Loss::Power => nodes.power_off(3),
        Loss::Cable => nodes.plug(3, false),
    }
    let (code, said) = job.ends()?;
    let went_on = |pe: usize| said.contains(&format!("PE {pe} went on"));
    let lines: Vec<&str> = said.lines().collect();
    let lost = "oshrun: host n3 is lost: ";
    let without = "; the others go on without PEs 2";
    let named = lines.iter().filter(|line| line.starts_with(lost) && line.ends_with(without));
    let warned = lines.iter().filter(|line| line.contains("PE 2 on n3 ")).count();
    let counted = "oshrun: 1 of 3 PEs lost (2); all others have ended well";
    if code == Some(WITHOUT_LOST)
        && (0..3).all(|pe| went_on(pe) == (pe < 2))
        && named.count() == 1
        && lines.contains(&counted)
        // Each host warns once.
        && (1..=2).contains(&warned)
    {
        return Ok(());
    }
    let why = format!("expected PEs 0 and 1 to go on; code {code:?}, {warned} warnings");
    Err(format!("{why}: {said}").into())
}

/// A peer that is busy with a transfer is not taken for lost, although each of the two takes longer than one may be
/// silent: what else it sends waits behind the data.
fn slow(program: &Program, network: &str) -> Result<(), Failed> {
    let nodes = Nodes::start(2)?;
    nodes.limit(1, "40mbit")?;
    let mut oshrun = program.oshrun();
    oshrun.args(["--host", "n1,n2", "-x", &format!("SHMEM_TRANSPORTS=shm,{network}")]);
    oshrun.args(["-x", "SHMEM_TUNE=off", "-x", "SHMEM_SYMMETRIC_SIZE=64m"]);
    oshrun.arg(program.executable()?).arg("40");
    nodes.enter(&mut oshrun);
    run(&mut oshrun, LIMIT)?.succeeded()?;
    Ok(())
}

/// The suite of all transports, on two hosts; most of its cases have two PEs.
fn suite(prefix: &Path, back_end: &str) -> Result<(), Failed> {
    // As many as cases need.
    for (places, n_pes) in [("n1:1,n2:1", 2), ("n1:2,n2:1", 3), ("n1:2,n2:2", 4)] {
        let mut oshrun = Command::new(prefix.join("bin/oshrun"));
        oshrun.args(["--host", places, "-x", "SHMEM_SYMMETRIC_SIZE=16m"]);
        conformance::run_by(&mut oshrun, BACK_ENDS, back_end, false)?;
        let said = on_login(oshrun)?.succeeded()?.stdout;
        conformance::all_ran(back_end, n_pes, false, &said)?;
    }
    Ok(())
}

/// Each host talks to few PEs of the other, although all have each other's addresses.
fn connections(program: &Program) -> Result<(), Failed> {
    let job = Beating::start(program, &NODES, "--host n1:32,n2:32 -x SHMEM_SYMMETRIC_SIZE=2m")?;
    let mut command = NODES.on(1, "cat");
    let output = command.arg("/proc/net/tcp").output()?;
    let table = String::from_utf8_lossy(&output.stdout).into_owned();
    // State 01: established. One is that of ssh.
    let open = table.lines().skip(1).filter(|line| line.split_whitespace().nth(3) == Some("01"));
    let count = open.count();
    drop(job);
    assert!((1..200).contains(&count), "{count} connections: {table}");
    Ok(())
}

/// A PE on the first host waits for one on the second that is past the barrier of `shmem_finalize`.
fn finalized(faults: &Arc<Program>) -> Result<(), Failed> {
    for (case, routine) in [("exit-early", "shmem_barrier_all"), ("exit-last", "shmem_finalize")] {
        let mut oshrun = faults.oshrun();
        oshrun.args(["--host", "n1,n2"]).arg(faults.executable()?).arg(case);
        let ran = on_login(oshrun)?;
        let says = |line: &str| {
            line.contains(&format!("PE 0: {routine}")) && line.contains("PE 1 has finalized")
        };
        if ran.code != Some(1) || !ran.stderr.lines().any(says) {
            return Err(ran.account(&format!("{case}: expected an error of {routine}")).into());
        }
    }
    Ok(())
}

/// "rma on n1:2,n2:2 over tcp": succeeds, in time.
fn runs(program: &Arc<Program>, places: &'static str, network: &'static str) -> Trial {
    let program = program.clone();
    Trial::test(format!("{} on {places} over {network}", program.name), move || {
        let executable = program.executable()?;
        let mut oshrun = program.oshrun();
        oshrun.args(["--host", places, "-x", "CHECK_APART=1"]);
        oshrun.args(["-x", &format!("SHMEM_TRANSPORTS=shm,{network}")]).arg(executable);
        NODES.enter(&mut oshrun);
        let ran = run(&mut oshrun, LIMIT).map_err(|error| format!("{oshrun:?}: {error}"))?;
        ran.succeeded()?;
        Ok(())
    })
}
