// SPDX-License-Identifier: Apache-2.0
//! The installed `oshperf`, with budgets so small that its figures mean nothing: what it prints and
//! writes is sound, never how fast anything is.

#[allow(dead_code, reason = "shared with tests that use other parts of it")]
mod support;

use libtest_mimic::{Arguments, Failed, Trial};
use serde_json::Value;
use std::fs;
use std::os::unix::fs::PermissionsExt;
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use support::{Ran, installed, prefix, run, scratch};
use tombolo_tests::unless;

/// No run of these tests takes longer unless something is wrong, however busy the machine is.
const LIMIT: Duration = Duration::from_secs(120);

type Case = fn(&Path) -> Result<(), Failed>;

/// Name, programs one of which the case needs, and the case.
const CASES: [(&str, &[&str], Case); 17] = [
    ("ways_of_one_host_are_compared", &["sh"], ways_of_one_host_are_compared),
    ("ways_across_hosts_are_compared", &["sh"], ways_across_hosts_are_compared),
    ("networks_have_ceilings", &["sh"], networks_have_ceilings),
    ("ways_that_cannot_be_used_say_why", &["sh"], ways_that_cannot_be_used_say_why),
    ("all_ways_are_tried_unless_some_are_named", &["sh"], all_ways_are_tried_unless_some_are_named),
    ("an_interrupted_run_keeps_what_it_has", &["sh"], an_interrupted_run_keeps_what_it_has),
    ("an_interruption_is_no_success", &["cc"], an_interruption_is_no_success),
    ("what_is_left_by_a_kill_has_a_name", &["cc"], what_is_left_by_a_kill_has_a_name),
    ("jobs_end_with_oshperf", &["sh"], jobs_end_with_oshperf),
    ("reports_are_compared", &["sh"], reports_are_compared),
    ("wrong_arguments_are_named", &["sh"], wrong_arguments_are_named),
    ("files_that_cannot_be_written_are_named", &["sh"], files_that_cannot_be_written_are_named),
    ("limits_are_measured", &["sh"], limits_are_measured),
    ("routes_are_compared_in_one_job", &["sh"], routes_are_compared_in_one_job),
    ("programs_run_against_another_library", &["cc"], programs_run_against_another_library),
    ("published_experiments_stand_beside_ours", &["cc"], published_experiments_stand_beside_ours),
    ("a_browser_shows_the_page", BROWSERS, a_browser_shows_the_page),
];

const BROWSERS: &[&str] = &["chromium", "chromium-browser", "google-chrome"];

fn main() {
    let mut arguments = Arguments::from_args();
    // Jobs have several processes each.
    arguments.test_threads.get_or_insert(1);
    let trials = match prefix() {
        Ok(prefix) => {
            let prefix: Arc<Path> = prefix.into();
            CASES.iter().map(|case| trial(case, prefix.clone())).collect()
        }
        Err(missing) => vec![Trial::test("the_library_is_installed", || Err(missing.into()))],
    };
    libtest_mimic::run(&arguments, trials).exit();
}

fn trial((name, needs, case): &'static (&str, &[&str], Case), prefix: Arc<Path>) -> Trial {
    let is_there = needs.iter().any(|program| installed(program));
    let missing = (!is_there).then(|| format!("needs {}", needs[0]));
    unless(missing, Trial::test(*name, move || case(&prefix)))
}

fn oshperf(prefix: &Path, arguments: &str) -> Command {
    let mut command = Command::new(prefix.join("bin/oshperf"));
    command.args(arguments.split_whitespace());
    command.env("SHMEM_TUNE", "off");
    for name in ["SHMEM_TRANSPORTS", "SHMEM_NTB_PROFILE", "SHMEM_ROUTE", "SHMEM_DEBUG"] {
        command.env_remove(name);
    }
    command
}

/// Runs `oshperf compare` and reads the report that it wrote.
fn compare(prefix: &Path, name: &str, arguments: &str) -> Result<(Ran, Value), Failed> {
    let file = file(name, "json");
    let mut command = oshperf(prefix, "compare --budget 0.05 --json");
    command.arg(&file).args(arguments.split_whitespace());
    let ran = run(&mut command, LIMIT)?.succeeded()?;
    let report: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    assert_eq!(report["complete"], true);
    check_table(&ran.stdout);
    check_report(&report);
    Ok((ran, report))
}

fn file(name: &str, kind: &str) -> PathBuf {
    let file = scratch("oshperf").join(format!("{name}.{kind}"));
    let _ = fs::remove_file(&file);
    file
}

/// As scripts read tables of the OSU benchmarks.
fn check_table(text: &str) {
    let lines = text.lines().filter(|line| !line.starts_with('#') && !line.is_empty());
    let mut count = 0;
    for line in lines {
        let columns: Vec<&str> = line.split_whitespace().collect();
        assert!(columns.len() >= 2 && columns[0].parse::<u64>().is_ok(), "{line}");
        assert!(columns[1].parse::<f64>().is_ok_and(|value| value >= 0.0), "{line}");
        count += 1;
    }
    assert!(count > 0, "{text}");
}

/// What holds for all points, whatever they were.
fn check_report(report: &Value) {
    let rounds = report["rounds"].as_u64().unwrap();
    for series in report["series"].as_array().unwrap() {
        let points = series["points"].as_array().unwrap();
        assert!(!points.is_empty(), "{series}");
        for point in points {
            let number = |name: &str| point[name].as_f64();
            let value = |name: &str| number(name).unwrap_or_else(|| panic!("no {name}: {point}"));
            assert!(
                value("lower") <= value("median") && value("median") <= value("upper"),
                "{point}"
            );
            assert!(value("lower") >= 0.0, "{point}");
            assert_eq!(point["rounds"].as_array().unwrap().len() as u64, rounds, "{point}");
            if series["kind"] == "latency" {
                assert!(value("median") > 0.0 && value("p99") > 0.0, "{point}");
            }
            let (ceiling, share) = (number("ceiling"), number("of_ceiling"));
            assert_eq!(ceiling.is_some(), share.is_some(), "{point}");
            assert!(ceiling.is_none_or(|ceiling| ceiling > 0.0), "{point}");
        }
    }
}

/// Sizes of a test over a way.
fn sizes(report: &Value, test: &str, way: &str) -> Vec<u64> {
    let all = report["series"].as_array().unwrap();
    let series = all.iter().find(|series| series["test"] == test && series["way"] == way);
    let points = series.map(|series| series["points"].as_array().unwrap().iter());
    points.into_iter().flatten().map(|point| point["x"].as_u64().unwrap()).collect()
}

fn has_ceilings(report: &Value, test: &str, way: &str, mark: &str) -> bool {
    report["series"].as_array().unwrap().iter().any(|series| {
        let first = &series["points"][0];
        series["test"] == test
            && series["way"] == way
            && series["ceiling_mark"] == mark
            && first["ceiling"].is_number()
    })
}

fn ways_of_one_host_are_compared(prefix: &Path) -> Result<(), Failed> {
    let ops = "--ops put,get,strided,amo,rate,bibw,overlap,signal,collectives";
    let arguments = &format!("-n 3 --ways shm,cma {ops} --sizes 8,100,8K --rounds 2");
    let (ran, report) = compare(prefix, "one-host", arguments)?;
    for way in ["shm", "cma"] {
        for test in ["put", "get", "rate", "bibw", "overlap", "signal", "broadcast", "fcollect"] {
            assert_eq!(sizes(&report, test, way), [8, 100, 8192], "{test} {way}");
        }
        // Of words alone.
        for test in ["iput", "iget", "sum_reduce"] {
            assert_eq!(sizes(&report, test, way), [8, 8192], "{test} {way}");
        }
        assert_eq!(sizes(&report, "barrier", way).len(), 1);
    }
    let (_, contexts) = compare(prefix, "contexts", "--ways shm --ops contexts --rounds 2")?;
    assert_eq!(sizes(&contexts, "contexts", "shm"), [1, 2, 4]);
    for test in ["put", "get", "fetch_add", "signal", "rate"] {
        assert!(has_ceilings(&report, test, "shm", "measured"), "{test}");
    }
    for line in ["# put over shm (measured)", "# put of each way / that of shm", "# Best: "] {
        assert!(ran.stdout.contains(line), "{line}: {}", ran.stdout);
    }
    // Not on a terminal: nothing but the result.
    assert_eq!(ran.stderr, "");
    Ok(())
}

fn ways_across_hosts_are_compared(prefix: &Path) -> Result<(), Failed> {
    let ways = "--ways ntb:direct,ntb:packets,ntb:modelled";
    let arguments = format!("{ways} --ops put,get,rate,amo --sizes 8,64K --rounds 1");
    let (ran, report) = compare(prefix, "hosts", &arguments)?;
    for way in ["ntb:direct", "ntb:packets", "ntb:modelled"] {
        assert_eq!(sizes(&report, "put", way), [8, 65536], "{way}: {}", ran.stdout);
    }
    assert!(has_ceilings(&report, "rate", "ntb:packets", "emulated"), "{report}");
    assert!(has_ceilings(&report, "rate", "ntb:modelled", "modelled"), "{report}");
    assert!(ran.stdout.contains("# ntb:direct: emulated, 2 emulated hosts"), "{}", ran.stdout);
    Ok(())
}

/// TCP by itself, and libfabric's provider by itself where libfabric is installed.
fn networks_have_ceilings(prefix: &Path) -> Result<(), Failed> {
    let ops = "--ops put,get,amo,rate,signal --sizes 8,64K --rounds 1";
    let (ran, report) = compare(prefix, "networks", &format!("--ways tcp,ofi {ops}"))?;
    let ofi = report["ways"][1]["unusable"].as_str();
    for way in ["tcp"].into_iter().chain(ofi.is_none().then_some("ofi")) {
        for test in ["put", "get", "fetch_add", "add", "compare_swap", "rate", "signal"] {
            assert!(has_ceilings(&report, test, way, "measured"), "{test} {way}: {}", ran.stdout);
        }
    }
    assert!(ofi.is_none_or(|why| why.contains("libfabric")), "{ofi:?}");
    Ok(())
}

fn ways_that_cannot_be_used_say_why(prefix: &Path) -> Result<(), Failed> {
    let arguments = "--hosts 2 --ways shm,ntb:packets,ofi:nothing --ops amo --rounds 1";
    let (ran, report) = compare(prefix, "unusable", arguments)?;
    assert!(
        ran.stdout.contains("# shm: not usable: the PEs are on different hosts\n"),
        "{}",
        ran.stdout
    );
    let why = |k: usize| report["ways"][k]["unusable"].as_str();
    assert!(why(0).is_some() && why(1).is_none(), "{report}");
    // Without libfabric there is another reason.
    assert!(why(2).is_some_and(|why| !why.is_empty()), "{report}");
    assert!(sizes(&report, "fetch_add", "shm").is_empty());
    let mut command = oshperf(prefix, "compare --hosts 2 --ways shm --ops amo --rounds 1");
    let ran = run(&mut command, LIMIT)?;
    assert!(ran.code == Some(1) && ran.stderr.contains("nothing could be measured"), "{ran:?}");
    Ok(())
}

/// Those that cannot be used have a reason, which is no failure. Nothing but atomic operations: one point of each.
fn all_ways_are_tried_unless_some_are_named(prefix: &Path) -> Result<(), Failed> {
    let (ran, report) = compare(prefix, "all", "--ops amo --rounds 1")?;
    let ways = report["ways"].as_array().ok_or("no ways")?;
    let names: Vec<&str> = ways.iter().filter_map(|way| way["name"].as_str()).collect();
    let all = ["shm", "cma", "ntb:direct", "ntb:packets", "ntb:modelled", "verbs", "tcp", "ofi"];
    assert_eq!(names, all);
    for way in ways {
        let name = way["name"].as_str().unwrap_or_default();
        let measured = !sizes(&report, "fetch_add", name).is_empty();
        let reason = way["unusable"].as_str().unwrap_or_default();
        assert!(measured == reason.is_empty(), "{way}: {}", ran.stdout);
    }
    assert_eq!(sizes(&report, "fetch_add", "tcp"), [8], "{}", ran.stdout);
    // Where it has no device of its own, it is not measured beside tcp, whether it is installed or not.
    let has_cards = fs::read_dir("/sys/class/infiniband").is_ok_and(|all| all.count() > 0);
    let ofi = ways[7]["unusable"].as_str();
    assert!(
        has_cards || ofi.is_some_and(|why| why.contains("tcp") || why.contains("libfabric")),
        "{ofi:?}"
    );
    Ok(())
}

/// How a command ends that gets a signal as soon as its children are as they should be: told by those seen first
/// and those there are now.
fn ended_by(
    signals: &[&str],
    command: &mut Command,
    due: impl Fn(&str, &str) -> bool,
) -> Result<Option<ExitStatus>, Failed> {
    let mut child = heeding(command).spawn()?;
    let children = format!("/proc/{0}/task/{0}/children", child.id());
    let begun = Instant::now();
    let mut seen = String::new();
    while begun.elapsed() < LIMIT {
        let now = fs::read_to_string(&children).unwrap_or_default();
        if due(&seen, &now) {
            break;
        }
        if seen.is_empty() {
            seen = now;
        }
        std::thread::sleep(Duration::from_millis(1));
    }
    for signal in signals {
        // Of several the first may have ended it.
        Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).output()?;
    }
    let mut status = None;
    while begun.elapsed() < LIMIT && status.is_none() {
        std::thread::sleep(Duration::from_millis(10));
        status = child.try_wait()?;
    }
    if status.is_none() {
        let _ = child.kill();
        let _ = child.wait();
    }
    Ok(status)
}

/// A command that signals end, whatever started these tests: with `nohup` some would be ignored.
fn heeding(command: &mut Command) -> &mut Command {
    let setup = || {
        for signal in [libc::SIGHUP, libc::SIGINT, libc::SIGTERM] {
            // SAFETY: the default action runs no code of ours.
            unsafe { libc::signal(signal, libc::SIG_DFL) };
        }
        Ok(())
    };
    // SAFETY: `setup` makes system calls only, which is all that may be done after a fork.
    unsafe { command.pre_exec(setup) }
}

/// A shell and the kernel may both tell that a terminal has hung up.
const INTERRUPTIONS: [&[&str]; 3] = [&["INT"], &["TERM"], &["HUP", "HUP"]];

/// `oshperf against` that goes on until it is told to end, in an empty folder for passing files.
fn endless(prefix: &Path, records: &Path, passing: &Path) -> Result<Command, Failed> {
    for folder in [records, passing] {
        let _ = fs::remove_dir_all(folder);
    }
    fs::create_dir_all(passing)?;
    let mut command = oshperf(prefix, "against --peer none --only hello --repeat 100000 --record");
    command.arg(records).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.env("TMPDIR", passing);
    Ok(command)
}

/// While it compiles or measures.
fn an_interruption_is_no_success(prefix: &Path) -> Result<(), Failed> {
    let [records, passing] = ["interrupted", "passing"].map(|name| scratch("oshperf").join(name));
    for signals in INTERRUPTIONS {
        let mut command = endless(prefix, &records, &passing)?;
        if signals.contains(&"HUP") {
            // Where it cannot print any more, it cleans up all the same.
            command.stdout(fs::OpenOptions::new().write(true).open("/dev/full")?);
        }
        let status = ended_by(signals, &mut command, |_, now| !now.is_empty())?;
        assert_eq!(status.and_then(|status| status.code()), Some(1), "{signals:?}");
        assert_eq!(fs::read_dir(&records)?.count(), 0, "a record of a part");
        assert_eq!(fs::read_dir(&passing)?.count(), 0, "{signals:?}: something is left");
    }
    Ok(())
}

fn what_is_left_by_a_kill_has_a_name(prefix: &Path) -> Result<(), Failed> {
    let [records, passing] = ["killed", "left"].map(|name| scratch("oshperf").join(name));
    let mut command = endless(prefix, &records, &passing)?;
    let status = ended_by(&["KILL"], &mut command, |_, now| !now.is_empty())?;
    assert_eq!(status.and_then(|status| status.signal()), Some(libc::SIGKILL));
    let names = fs::read_dir(&passing)?.flatten().map(|entry| entry.file_name());
    let names: Vec<String> = names.map(|name| name.to_string_lossy().into_owned()).collect();
    // A compiler may have files beside it.
    let of_oshperf = names.iter().filter(|name| name.starts_with("tombolo-oshperf-")).count();
    assert!(of_oshperf == 1 && !names.iter().any(|name| name.starts_with(".tmp")), "{names:?}");
    // A compiler that still runs may write there.
    let _ = fs::remove_dir_all(&passing);
    Ok(())
}

/// Interrupted as soon as the first job has ended.
fn an_interrupted_run_keeps_what_it_has(prefix: &Path) -> Result<(), Failed> {
    for signals in INTERRUPTIONS {
        let file = file("interrupted", "json");
        let mut command = oshperf(prefix, "compare --ways shm --ops amo --budget 1 --rounds 1000");
        command.arg("--json").arg(&file).stdin(Stdio::null()).stdout(Stdio::null());
        let next = |seen: &str, now: &str| !seen.is_empty() && !now.is_empty() && now != seen;
        let status = ended_by(signals, &mut command, next)?;
        assert_eq!(status.and_then(|status| status.code()), Some(1), "{signals:?}");
        let report: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
        assert_eq!(report["complete"], false);
        assert_eq!(sizes(&report, "fetch_add", "shm"), [8]);
    }
    Ok(())
}

/// A process and all that it has started.
fn tree(root: u32) -> Vec<u32> {
    let mut all = vec![root];
    let mut at = 0;
    while let Some(pid) = all.get(at).copied() {
        let threads = fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
        let listed =
            threads.filter_map(|thread| fs::read_to_string(thread.path().join("children")).ok());
        let children: Vec<u32> = listed
            .flat_map(|l| l.split_whitespace().filter_map(|w| w.parse().ok()).collect::<Vec<_>>())
            .collect();
        all.extend(children);
        at += 1;
    }
    all
}

/// Whether a process has not ended, but for its exit code.
fn runs(pid: u32) -> bool {
    let stat = fs::read_to_string(format!("/proc/{pid}/stat")).unwrap_or_default();
    let state = stat.rsplit_once(") ").and_then(|(_, rest)| rest.chars().next());
    state.is_some_and(|state| !"ZX".contains(state))
}

/// Once the job of `oshperf routes` measures, which would take hours.
fn jobs_end_with_oshperf(prefix: &Path) -> Result<(), Failed> {
    let file = file("ended", "json");
    let report = scratch("oshperf").join("ended.out");
    for signals in INTERRUPTIONS.into_iter().chain([&["KILL"][..]]) {
        let mut command = oshperf(prefix, "routes -n 2 --budget 60000 --sizes 8..4M --json");
        command.arg(&file).stdin(Stdio::null()).stdout(fs::File::create(&report)?);
        command.stderr(Stdio::null());
        let mut child = heeding(&mut command).spawn()?;
        let begun = Instant::now();
        while !fs::read_to_string(&report)?.contains("# Routes taken") && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(1));
        }
        let all = tree(child.id());
        for signal in signals {
            Command::new("kill").args([&format!("-{signal}"), &child.id().to_string()]).output()?;
        }
        while all.iter().any(|pid| runs(*pid)) && begun.elapsed() < LIMIT {
            std::thread::sleep(Duration::from_millis(10));
            // Or else it stays a child without an end.
            child.try_wait()?;
        }
        let left: Vec<&u32> = all.iter().filter(|pid| runs(**pid)).collect();
        left.iter()
            .for_each(|pid| drop(Command::new("kill").args(["-KILL", &pid.to_string()]).output()));
        assert!(left.is_empty(), "{signals:?}: {left:?} go on");
        // The launcher's two processes, and the PEs.
        assert!(all.len() >= 5, "{signals:?}: {all:?}");
        let status = child.wait()?;
        let killed = (signals == ["KILL"]).then_some(libc::SIGKILL);
        assert_eq!((status.code(), status.signal()), (killed.is_none().then_some(1), killed));
        assert!(!file.exists(), "{signals:?}: a file of nothing");
    }
    Ok(())
}

fn reports_are_compared(prefix: &Path) -> Result<(), Failed> {
    compare(prefix, "same", "--ways shm --ops put,amo --sizes 8..64 --rounds 3")?;
    let same = scratch("oshperf").join("same.json");
    let diff = |old: &Path, new: &Path| run(oshperf(prefix, "diff").args([old, new]), LIMIT);
    let ran = diff(&same, &same)?.succeeded()?;
    assert!(
        ran.stdout.contains("# 0 faster, 0 slower, 7 unchanged within noise"),
        "{}",
        ran.stdout
    );
    // The same with all values ten times as large.
    let mut report: Value = serde_json::from_str(&fs::read_to_string(&same)?)?;
    for series in report["series"].as_array_mut().unwrap() {
        for point in series["points"].as_array_mut().unwrap() {
            for name in ["lower", "median", "upper"] {
                point[name] = (1000.0 * point[name].as_f64().unwrap()).into();
            }
            for round in point["rounds"].as_array_mut().unwrap() {
                *round = (1000.0 * round.as_f64().unwrap()).into();
            }
        }
    }
    let slow = file("slow", "json");
    fs::write(&slow, report.to_string())?;
    let ran = diff(&same, &slow)?;
    assert!(ran.code == Some(1) && ran.stdout.contains("# 0 faster, 7 slower"), "{ran:?}");
    let ran = diff(&slow, &same)?.succeeded()?;
    assert!(ran.stdout.contains("# 7 faster, 0 slower"), "{}", ran.stdout);
    fs::write(&slow, "{\"format\": 7}")?;
    let ran = diff(&same, &slow)?;
    assert!(ran.code == Some(1) && ran.stderr.contains("slow.json: a report of form 7"), "{ran:?}");
    Ok(())
}

fn wrong_arguments_are_named(prefix: &Path) -> Result<(), Failed> {
    for (arguments, named) in [
        ("compare --ways smoke", "there is no way 'smoke'; expected one of shm"),
        ("compare --sizes 8..x", "'x' is not a size"),
        ("compare --sizes 64..8", "begins with the larger size"),
        ("compare --ops swim", "possible values: put"),
        ("compare --rounds 0", "expected a whole number from 1 to 1000"),
        ("compare -n 1", "expected a whole number from 2 to 1024"),
        ("routes --hosts 0", "expected a whole number, at least 1"),
        ("compare --budget 0", "expected milliseconds"),
        ("compare --budget -1", "expected milliseconds"),
        ("diff --threshold -5 a b", "expected a number from 0 to 1000"),
        ("diff a b --threshold -0.5", "expected a number from 0 to 1000"),
        ("compare --speed 3", "unexpected argument '--speed' found\n\nUsage"),
        ("compare --hosts 2 --host a,b", "cannot be used with"),
        ("compare --ways shm,cma,shm", "--ways names shm twice"),
        ("compare --host a --rsh 'ssh", "a quote is not closed"),
        ("against nonsense", "expected NAME: CC="),
        ("against --only foo", "there is no program 'foo'; there are across_hosts,"),
        ("against --peer foo", "expected auto, none, or OSHCC,OSHRUN"),
        ("against --repeat 0", "expected a whole number, at least 1"),
        ("paper ring --only foo", "there is no part 'foo'; there are paper_ring@2x2m,"),
        ("diff one", "<NEW>"),
        ("", "Usage: oshperf"),
    ] {
        let ran = run(&mut oshperf(prefix, arguments), LIMIT)?;
        assert!(ran.code == Some(2) && ran.stderr.contains(named), "{arguments}: {ran:?}");
    }
    Ok(())
}

/// Before anything is measured; what can be written is, and what an earlier run wrote stays.
fn files_that_cannot_be_written_are_named(prefix: &Path) -> Result<(), Failed> {
    for arguments in ["compare --csv", "limits --json", "routes --json", "paper pair --json"] {
        let mut command = oshperf(prefix, arguments);
        let ran = run(command.arg("/nowhere/x"), LIMIT)?;
        assert!(ran.code == Some(1) && ran.stderr.contains("/nowhere/x: "), "{ran:?}");
        assert_eq!(ran.stdout, "", "{arguments}");
    }
    let ran = run(&mut oshperf(prefix, "against --record /proc/nowhere"), LIMIT)?;
    assert!(ran.code == Some(1) && ran.stderr.contains("/proc/nowhere: "), "{ran:?}");
    assert_eq!(ran.stdout, "");
    let file = file("beside", "json");
    let small = "--ops amo --rounds 1 --budget 0.05";
    let compare = |more: &str| {
        let mut command = oshperf(prefix, &format!("compare {small} {more} --json"));
        run(command.arg(&file), LIMIT)
    };
    let ran = compare("--ways shm --csv /dev/full")?;
    assert!(ran.code == Some(1) && ran.stderr.contains("/dev/full: "), "{ran:?}");
    let kept = fs::read_to_string(&file)?;
    let report: Value = serde_json::from_str(&kept)?;
    assert_eq!(sizes(&report, "fetch_add", "shm"), [8]);
    let ran = compare("--ways shm --hosts 2")?;
    assert!(ran.code == Some(1) && ran.stderr.contains("nothing could be measured"), "{ran:?}");
    assert_eq!(fs::read_to_string(&file)?, kept);
    Ok(())
}

fn limits_are_measured(prefix: &Path) -> Result<(), Failed> {
    let file = file("limits", "json");
    let mut command = oshperf(prefix, "limits --sizes 8,4K --budget 0.05 --json");
    let ran = run(command.arg(&file), LIMIT)?.succeeded()?;
    check_table(&ran.stdout);
    let limits: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    let tables = limits["tables"].as_array().unwrap();
    for name in ["plain copy", "lock xadd, alone", "TCP over loopback, stream"] {
        let table = tables.iter().find(|table| table["name"] == name).expect(name);
        let rows = table["rows"].as_array().unwrap();
        assert!(rows.iter().all(|row| row["median"].as_f64().unwrap() > 0.0), "{table}");
        assert!(!rows.is_empty(), "{table}");
    }
    // Where the two threads do not run at the same time, it says so.
    let contended = tables
        .iter()
        .find(|table| table["name"].as_str().is_some_and(|name| name.contains("contended")));
    let contended = contended.ok_or("nothing of contention")?;
    let measured = contended["rows"].as_array().is_some_and(|rows| rows.len() == 1);
    assert!(measured != contended["unavailable"].is_string(), "{contended}");
    Ok(())
}

/// By `SHMEM_ROUTE` it is known which route is taken.
fn routes_are_compared_in_one_job(prefix: &Path) -> Result<(), Failed> {
    let file = file("routes", "json");
    let groups = |arguments: &str, route: &str| -> Result<(Ran, Vec<Value>), Failed> {
        let mut command = oshperf(prefix, "routes --budget 0.05 --sizes 8,4K,100K --json");
        command.arg(&file).args(arguments.split_whitespace()).env("SHMEM_ROUTE", route);
        let ran = run(&mut command, LIMIT)?.succeeded()?;
        check_table(&ran.stdout);
        let read: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
        assert!(read["complete"] == true && read["machine"]["cpu"].is_string(), "{read}");
        Ok((ran, read["groups"].as_array().ok_or("no groups")?.clone()))
    };
    let taken = |group: &Value| -> Vec<String> {
        let sizes = group["sizes"].as_array().unwrap().iter();
        sizes.map(|size| size["taken"].as_str().unwrap().to_owned()).collect()
    };
    let (ran, all) = groups("", "put:>=4K=streaming")?;
    assert_eq!(all.len(), 6, "put, get and nbi, heap and private: {}", ran.stdout);
    for group in &all {
        let expected = match group["op"].as_str().unwrap() {
            "put" | "nbi" => ["cached", "streaming", "streaming"],
            _ => ["cached"; 3],
        };
        assert_eq!(taken(group), expected, "{group}");
        for size in group["sizes"].as_array().unwrap() {
            let times = size["ns"].as_array().unwrap().iter();
            let times: Vec<(&str, f64)> =
                times.map(|t| (t[0].as_str().unwrap(), t[1].as_f64().unwrap())).collect();
            let of = |name: &str| times.iter().find(|(known, _)| *known == name).unwrap().1;
            assert!(of("cached") > 0.0 && of("streaming") > 0.0, "{size}");
            let ratio = size["ratio"].as_f64().unwrap();
            if size["read"].is_null() {
                let least = times.iter().map(|(_, ns)| *ns).fold(f64::INFINITY, f64::min);
                let own = of(size["taken"].as_str().unwrap()) / least;
                assert!((ratio - own).abs() < 1e-6, "{size}");
            }
        }
    }
    // 4 KiB past the caches take several times as long, whatever the machine does meanwhile.
    let (ran, all) = groups("--ops put", "put:*=streaming")?;
    assert!(all[0]["sizes"][1]["ratio"].as_f64().unwrap() > 1.05, "{}", ran.stdout);
    assert!(!ran.stdout.contains("In all: 0 of"), "{}", ran.stdout);
    // A single PE has no route to measure.
    let mut alone = Command::new(prefix.join("bin/oshrun"));
    alone.args(["-n", "1"]).arg(prefix.join("bin/oshperf")).args(["routes", "--sizes", "8"]);
    let ran = run(&mut alone, LIMIT)?;
    assert!(ran.code == Some(1) && ran.stderr.contains("nothing could be measured"), "{ran:?}");
    let mut other = Command::new(prefix.join("bin/oshrun"));
    other.args(["-n", "2"]).arg(prefix.join("bin/oshperf")).args(["routes", "-n", "8"]);
    let ran = run(&mut other, LIMIT)?;
    assert!(ran.code == Some(1) && ran.stderr.contains("started with 2 PEs on 1 host"), "{ran:?}");
    let (ran, all) = groups("-n 3 --hosts 3", "")?;
    let puts: Vec<&Value> = all.iter().filter(|group| group["op"] == "puts").collect();
    assert!(puts.len() == 2 && taken(puts[0])[0] == "ntb copied", "{}", ran.stdout);
    Ok(())
}

/// Against itself, under another name.
fn programs_run_against_another_library(prefix: &Path) -> Result<(), Failed> {
    let bin = prefix.join("bin");
    let other = format!("other: CC={0}/oshcc RUN='{0}/oshrun --bind none'", bin.display());
    let mut command = oshperf(prefix, "against --repeat 1 --only hello");
    let ran = run(command.arg(other), LIMIT)?.succeeded()?;
    assert!(ran.stdout.contains(" and other\n") && ran.stdout.contains("| hello@4 |"), "{ran:?}");
    assert!(
        ran.stderr.is_empty(),
        "nothing is said of progress where there is no terminal: {ran:?}"
    );
    // One that says much beside what the programs say, and one that fails.
    let folder = scratch("oshperf-against");
    let launcher = |name: &str, last: &str| -> Result<String, Failed> {
        let path = folder.join(name);
        let text = format!(
            "#!/bin/sh\necho ----\necho WARNING: no fabric\necho WARNING: no fabric >&2\n{last}\n"
        );
        fs::write(&path, text)?;
        fs::set_permissions(&path, fs::Permissions::from_mode(0o700))?;
        Ok(path.display().to_string())
    };
    let loud = launcher("loud", &format!("exec {}/oshrun \"$@\"", bin.display()))?;
    let mut command = oshperf(prefix, "against --repeat 1 --only hello");
    let ran = run(command.arg(format!("loud: CC={}/oshcc RUN={loud}", bin.display())), LIMIT)?;
    let ran = ran.succeeded()?;
    assert!(ran.stdout.contains("| hello@4 |") && !ran.stdout.contains("WARNING"), "{ran:?}");
    let broken = launcher("broken", "echo it breaks >&2; exit 1")?;
    let mut command = oshperf(prefix, "against --repeat 2 --only hello");
    let ran = run(command.arg(format!("bad: CC={}/oshcc RUN={broken}", bin.display())), LIMIT)?;
    let ran = ran.succeeded()?;
    let note = "## Not measured\n\n- hello@4, bad: it breaks\n\n";
    assert!(ran.stdout.contains(note) && !ran.stdout.contains(" and bad"), "{ran:?}");
    Ok(())
}

fn published_experiments_stand_beside_ours(prefix: &Path) -> Result<(), Failed> {
    let file = file("paper", "json");
    let ran = run(oshperf(prefix, "paper pair --json").arg(&file), LIMIT)?.succeeded()?;
    let report: Value = serde_json::from_str(&fs::read_to_string(&file)?)?;
    let rows = report["rows"].as_array().ok_or("no rows")?;
    assert!(rows.len() == 8 && report["complete"] == true, "{report:#}");
    for row in rows {
        let here = row["here"].as_str().unwrap_or_default();
        assert!(here.starts_with("right result, ") && here.ends_with(" ms"), "{row}");
        assert!(ran.stdout.contains(here) && row["published"] == "right result", "{ran:?}");
    }
    assert!(ran.stdout.contains("# Published: two PCs"), "{ran:?}");
    let ran = run(&mut oshperf(prefix, "paper tuning --only list"), LIMIT)?.succeeded()?;
    let parts = ["paper_tuning@4", "paper_tuning@4.untuned", "paper_tuning@4x2"];
    assert!(ran.stdout.lines().take(3).eq(parts), "{}", ran.stdout);
    let wrong = run(&mut oshperf(prefix, "paper tuning --only paper_tuning@9"), LIMIT)?;
    assert!(
        wrong.code == Some(2) && wrong.stderr.contains("no part 'paper_tuning@9'"),
        "{wrong:?}"
    );
    let wrong = run(&mut oshperf(prefix, "paper none"), LIMIT)?;
    assert!(wrong.code == Some(2) && wrong.stderr.contains("contexts"), "{wrong:?}");
    Ok(())
}

/// What the page tells of itself: appended to it, and run after its own script.
const ASK: &str = "<script>
const svg = document.querySelector('#put svg'), box = svg.getBoundingClientRect();
svg.dispatchEvent(new PointerEvent('pointermove', { clientX: box.right - 20, clientY: box.top + 40 }));
const root = document.documentElement;
root.dataset.tip = document.querySelector('#put .tip').innerText.replaceAll(/\\s+/g, ' ');
root.dataset.wide = Math.max(0, root.scrollWidth - window.innerWidth);
document.querySelector('#ways input').click();
root.dataset.left = document.querySelectorAll('#put .curve').length;
document.querySelector('#ways input').click();
for (let k = 0; k < 2; k++) {
  document.querySelector('#put svg').dispatchEvent(new KeyboardEvent('keydown', { key: 'ArrowRight' }));
}
root.dataset.keyed = document.querySelector('#put .tip strong').innerText;
root.dataset.strips = document.querySelectorAll('#best .strip').length;
// The least contrast of what is written and drawn with what is behind it.
const style = getComputedStyle(root);
const light = (name) => {
  const probe = document.body.appendChild(document.createElement('i'));
  probe.style.color = style.getPropertyValue(name);
  const parts = getComputedStyle(probe).color.match(/[0-9.]+/g).slice(0, 3).map((part) => part / 255);
  probe.remove();
  const [r, g, b] = parts.map((c) => c <= 0.03928 ? c / 12.92 : ((c + 0.055) / 1.055) ** 2.4);
  return 0.2126 * r + 0.7152 * g + 0.0722 * b;
};
const contrast = (a, b) => {
  const [low, high] = [light(a), light(b)].sort((x, y) => x - y);
  return (high + 0.05) / (low + 0.05);
};
const curves = [0, 1, 2, 3, 4, 5, 6, 7].map((k) => `--c${k}`);
const behind = ['--back', '--panel', '--on'];
root.dataset.contrast = Math.min(contrast('--text', '--panel'), contrast('--dim', '--panel'),
  contrast('--warn', '--back'), ...curves.flatMap((c) => behind.map((b) => contrast(c, b))));
root.dataset.dark = light('--back') < 0.2;
</script>";

fn a_browser_shows_the_page(prefix: &Path) -> Result<(), Failed> {
    let page = file("page", "html");
    let mut command = oshperf(prefix, "compare --ways shm,cma --ops put,get,amo,rate,contexts");
    command.args(["--sizes", "8..64K", "--rounds", "1", "--budget", "0.05", "--html"]).arg(&page);
    run(&mut command, LIMIT)?.succeeded()?;
    fs::write(&page, fs::read_to_string(&page)? + ASK)?;
    let browser = BROWSERS.iter().find(|browser| installed(browser)).expect("one is installed");
    // Widths, and whether the user prefers dark pages.
    for (width, dark) in [(1280, false), (500, false), (1280, true), (500, true)] {
        let mut command = Command::new(browser);
        command.args(["--headless", "--no-sandbox", "--disable-gpu", "--disable-dev-shm-usage"]);
        command.args(["--no-first-run", "--disable-extensions", "--enable-logging=stderr"]);
        command.arg(format!("--user-data-dir={}", scratch("oshperf-browser").display()));
        command.arg(format!("--window-size={width},900")).arg("--dump-dom");
        command.arg(format!("--blink-settings=preferredColorScheme={}", u8::from(!dark)));
        let ran = run(command.arg(format!("file://{}", page.display())), LIMIT)?.succeeded()?;
        let messages = ran.stderr.lines().filter(|line| line.contains("CONSOLE"));
        assert_eq!(messages.collect::<Vec<_>>().join("\n"), "", "width {width}");
        let dom = &ran.stdout;
        // Two ways in each of put, get, rate and contexts, and a dot each for the three atomics.
        assert_eq!(dom.matches("class=\"curve\"").count(), 8, "width {width}: {dom}");
        assert_eq!(dom.matches("<section id=").count(), 7, "width {width}");
        assert_eq!(dom.matches("class=\"dot\"").count(), 6, "width {width}");
        let told = |name: &str| {
            let rest = dom.split(&format!("data-{name}=\"")).nth(1)?;
            rest.split('"').next()
        };
        assert_eq!(told("strips"), Some("7"), "width {width}");
        assert_eq!(told("keyed"), Some("16 B"), "width {width}");
        assert_eq!(told("dark"), Some(if dark { "true" } else { "false" }), "width {width}");
        let contrast = told("contrast").and_then(|text| text.parse::<f64>().ok());
        assert!(contrast.is_some_and(|least| least >= 4.0), "{contrast:?}, width {width}");
        assert!(dom.contains("class=\"ceiling\""), "width {width}");
        assert!(dom.contains("data-left=\"1\""), "one way was switched off, width {width}");
        assert!(dom.contains("data-wide=\"0\""), "the page is wider than {width}: {dom}");
        let tip = told("tip").ok_or("no values beside the pointer")?;
        assert!(tip.starts_with("64 KiB") && tip.contains("shm") && tip.contains("µs"), "{tip}");
    }
    Ok(())
}
