// SPDX-License-Identifier: Apache-2.0
//! What `oshrun --profile` and `oshrun --trace` show of programs whose calls are known.

#[path = "../support/mod.rs"]
#[allow(dead_code, reason = "shared with tests that use other parts of it")]
mod support;

use libtest_mimic::{Failed, Trial};
use serde_json::{Value, json};
use std::fs;
use std::path::Path;
use std::sync::Arc;
use support::program::{Program, run_trials};
use support::{Ran, crate_dir, scratch};

type Case = fn(&Program) -> Result<(), Failed>;

const CASES: [(&str, Case); 12] = [
    ("a_profile_counts_what_a_program_does", counts),
    ("a_profile_over_links_names_the_way_and_who_exchanged_what", over_links),
    ("all_threads_count", threads),
    ("nobody_is_in_the_library_for_longer_than_there_is_time", shares),
    ("teams_and_contexts_are_counted_by_call_and_not_by_wait", teams),
    ("the_end_of_a_child_is_not_that_of_a_thread", forks),
    ("what_a_killed_pe_has_counted_is_shown", killed),
    ("a_profile_is_text_on_standard_error_or_a_page", forms),
    ("a_timeline_has_the_spans_of_a_program", timeline),
    ("a_timeline_has_links_and_service_threads", links_and_threads),
    ("a_profile_tells_credits_from_relaying", held_up),
    ("what_a_timeline_has_no_room_for_is_said", bounded),
];

/// Of PEs that end without `shmem_finalize`, and of polling.
const ENDS: [(&str, Case); 7] = [
    ("a_barrier_that_hangs_counts_until_the_job_is_ended", hangs),
    ("a_barrier_counts_until_another_pe_has_ended_the_job", ended_by_another),
    ("a_pe_that_calls_nothing_lives_until_its_end", sleeps),
    ("a_wait_of_another_thread_counts_until_the_end", thread_waits),
    ("of_a_pe_that_never_initialises_nothing_is_counted", never),
    ("a_timeline_shows_the_call_in_which_a_pe_ended", timeline_of_ends),
    ("tests_that_find_nothing_take_time", polls),
];

fn main() {
    run_trials(|prefix| {
        let source = crate_dir().join("c/special/counted.c");
        let program = Program::new(prefix, &source, "", &["-pthread"]);
        let trial = |(name, case): &(&str, Case)| {
            let (program, case): (Arc<Program>, Case) = (program.clone(), *case);
            Trial::test(*name, move || case(&program))
        };
        let source = crate_dir().join("c/special/hinted.c");
        let hinted = Program::new(prefix, &source, "", &[]);
        let hints = Trial::test("contexts_go_by_their_own_hints", move || hints(&hinted));
        let source = crate_dir().join("c/special/unreturned.c");
        let unreturned = Program::new(prefix, &source, "", &["-pthread"]);
        let ends = ENDS.iter().map(|(name, case)| {
            let (program, case): (Arc<Program>, Case) = (unreturned.clone(), *case);
            Trial::test(*name, move || case(&program))
        });
        CASES.iter().map(trial).chain([hints]).chain(ends).collect()
    })
}

fn read(path: &Path) -> Result<Value, Failed> {
    Ok(serde_json::from_str(&fs::read_to_string(path)?)?)
}

/// Runs the program with a profile as JSON.
fn profiled(
    program: &Program,
    name: &str,
    options: &[&str],
    pes: usize,
    how: &str,
) -> Result<(Ran, Value), Failed> {
    let path = scratch("seen").join(format!("{name}.json"));
    let option = format!("--profile=json:{}", path.display());
    let options = [options, &[option.as_str()]].concat();
    let ran = program.launch_with(&options, pes, &[how], &[("SHMEM_TUNE", "off")])?;
    let profile = read(&path)?;
    check_shares(&profile);
    Ok((ran, profile))
}

/// Nobody is in the library for longer than its threads live, or blocked for longer than in the library.
fn check_shares(profile: &Value) {
    for pe in profile["pes"].as_array().into_iter().flatten() {
        let [threads, library, blocked] = seconds_of(pe);
        let within = |part: f64, whole: f64| part <= whole * (1.0 + 1e-9) + 1e-9;
        assert!(within(library, threads) && within(blocked, library), "{pe}: {profile:#}");
    }
}

/// Seconds of a PE's threads, in the library, and blocked.
fn seconds_of(pe: &Value) -> [f64; 3] {
    ["threads_seconds", "library_seconds", "blocked_seconds"]
        .map(|name| pe[name].as_f64().unwrap_or(-1.0))
}

/// Calls and bytes of a routine, by all ways, in a class of sizes.
fn calls(profile: &Value, routine: &str, size_max: u64) -> (u64, u64) {
    let all = profile["routines"].as_array().into_iter().flatten();
    let own = all.filter(|row| row["routine"] == routine && row["size_max"] == size_max);
    own.fold((0, 0), |sum, row| {
        let word = |name: &str| row[name].as_u64().unwrap_or(0);
        (sum.0 + word("calls"), sum.1 + word("bytes"))
    })
}

/// What every PE does, whatever else it does.
const KNOWN: [(&str, u64, u64, u64); 12] = [
    ("shmem_long_p", 8, 1000, 8),
    ("shmem_long_g", 8, 300, 8),
    ("shmem_putmem", 128, 40, 100),
    ("shmem_putmem", 1 << 20, 7, 1 << 20),
    ("shmem_getmem_nbi", 4096, 5, 4096),
    ("shmem_quiet", 0, 1, 0),
    ("shmem_fence", 0, 1, 0),
    ("shmem_long_iput", 128, 1, 80),
    ("shmem_putmem_signal", 64, 1, 64),
    ("shmem_signal_wait_until", 0, 1, 0),
    ("shmem_int_sum_reduce", 64, 1, 64),
    ("shmem_broadcastmem", 0, 1, 0),
];

fn check(profile: &Value, pes: u64, barriers: u64) {
    for (routine, size, count, bytes) in KNOWN {
        let found = calls(profile, routine, size);
        assert_eq!(
            found,
            (pes * count, pes * count * bytes),
            "{routine} up to {size}: {profile:#}"
        );
    }
    assert_eq!(calls(profile, "shmem_barrier_all", 0).0, barriers, "{profile:#}");
}

fn counts(program: &Program) -> Result<(), Failed> {
    let (ran, profile) = profiled(program, "counts", &[], 2, "")?;
    let ran = ran.succeeded()?;
    assert!(ran.stderr.is_empty() && ran.stdout.is_empty(), "{ran:?}");
    check(&profile, 2, 6);
    assert_eq!(calls(&profile, "shmem_long_atomic_add", 8), (400, 3200));
    assert_eq!(calls(&profile, "shmem_long_atomic_fetch_inc", 8), (40, 320));
    for row in profile["routines"].as_array().into_iter().flatten() {
        let (seconds, longest) = (row["seconds"].as_f64(), row["longest_seconds"].as_f64());
        assert!(seconds.is_some_and(|s| s >= 0.0) && longest.is_some_and(|s| s >= 0.0), "{row}");
        let local = row["way"] == "";
        assert!(
            local || row["way"].as_str().is_some_and(|way| way.starts_with("mapped memory")),
            "{row}"
        );
    }
    // PE 1 waits for PE 0, which sleeps half a second before a barrier.
    let barrier = profile["routines"].as_array().into_iter().flatten();
    let blocked = barrier.filter(|row| row["routine"] == "shmem_barrier_all");
    let blocked: f64 = blocked.filter_map(|row| row["blocked_seconds"].as_f64()).sum();
    assert!(blocked > 0.04, "{profile:#}");
    let waits = profile["waits"].as_array().into_iter().flatten();
    let members = waits.filter(|wait| wait["waiting_for"] == "other PEs to arrive");
    assert!(members.filter_map(|w| w["seconds"].as_f64()).sum::<f64>() > 0.04, "{profile:#}");
    assert!(
        profile["pes"].as_array().is_some_and(|pes| pes.iter().all(|pe| pe["finalized"] == true))
    );
    Ok(())
}

fn over_links(program: &Program) -> Result<(), Failed> {
    let (ran, profile) = profiled(program, "links", &["--hosts", "3"], 3, "")?;
    ran.succeeded()?;
    check(&profile, 3, 9);
    let ways: Vec<&Value> = profile["routines"]
        .as_array()
        .into_iter()
        .flatten()
        .filter(|row| row["routine"] == "shmem_long_p")
        .collect();
    assert!(ways.iter().all(|row| row["way"] == "ntb" && row["distance"] != ""), "{ways:?}");
    let pair = |pe: u64, other: u64| {
        let mut all = profile["pairs"].as_array().into_iter().flatten();
        all.find(|pair| pair["pe"] == pe && pair["other"] == other).cloned()
    };
    let put = 1000 * 8 + 40 * 100 + 7 * (1u64 << 20) + 80 + 64;
    for pe in 0..3u64 {
        let pair = pair(pe, (pe + 1) % 3).ok_or("no such pair")?;
        assert_eq!(
            (pair["puts"].as_u64(), pair["put_bytes"].as_u64()),
            (Some(1049), Some(put)),
            "{pair}"
        );
        assert_eq!(
            (pair["gets"].as_u64(), pair["get_bytes"].as_u64()),
            (Some(305), Some(2400 + 5 * 4096)),
            "{pair}"
        );
    }
    assert!(pair(0, 2).is_none(), "{profile:#}");
    let told = |pe: &Value| {
        pe["transports"].as_str().is_some_and(|text| text.contains("ntb: ring: packets injected"))
    };
    assert!(profile["pes"].as_array().is_some_and(|pes| pes.iter().all(told)), "{profile:#}");
    Ok(())
}

fn threads(program: &Program) -> Result<(), Failed> {
    let (ran, profile) = profiled(program, "threads", &[], 2, "threads")?;
    ran.succeeded()?;
    check(&profile, 2, 6);
    // More threads than have counters of their own.
    assert_eq!(calls(&profile, "shmem_long_atomic_add", 8), (40_000, 320_000), "{profile:#}");
    Ok(())
}

fn shares(program: &Program) -> Result<(), Failed> {
    let (ran, profile) = profiled(program, "waiters", &[], 2, "waiters")?;
    ran.succeeded()?;
    let pes = profile["pes"].as_array().ok_or("no PEs")?;
    let [threads, library, blocked] = seconds_of(&pes[1]);
    let whole = pes[1]["seconds"].as_f64().unwrap_or(0.0);
    // Four threads wait for 100 ms while the first one waits for them outside of the library.
    assert!(whole >= 0.1 && blocked > 0.36 && threads > whole + 0.36, "{profile:#}");
    assert!(library < threads - 0.09, "{profile:#}");
    assert_eq!(calls(&profile, "shmem_long_wait_until", 0).0, 4, "{profile:#}");
    assert_eq!(calls(&profile, "shmem_long_atomic_add", 8).0, 40_000, "{profile:#}");
    // Where threads outnumber processors, short calls lose theirs again and again.
    for hosts in ["1", "2", "3"] {
        let name = format!("uneven{hosts}");
        let (ran, profile) = profiled(program, &name, &["--hosts", hosts], 3, "uneven")?;
        ran.succeeded()?;
        for (routine, size, count) in [
            ("shmem_putmem", 64, 40 * 64),
            ("shmem_calloc", 4096, 1),
            ("shmem_realloc", 8192, 1),
            ("shmem_free", 0, 1),
            ("shmem_finalize", 0, 1),
        ] {
            assert_eq!(calls(&profile, routine, size).0, 3 * count, "{routine}: {profile:#}");
        }
    }
    Ok(())
}

fn teams(program: &Program) -> Result<(), Failed> {
    for (hosts, ways) in [("1", "on"), ("3", "off")] {
        let options = ["--hosts", hosts, "-x", &format!("SHMEM_NTB_DIRECT={ways}")];
        let (ran, profile) = profiled(program, &format!("teams{hosts}"), &options, 3, "teams")?;
        ran.succeeded()?;
        for (routine, count) in [
            ("shmem_team_split_strided", 5),
            ("shmem_team_split_2d", 5),
            ("shmem_ctx_destroy", 5),
            ("shmem_team_destroy", 15),
        ] {
            assert_eq!(calls(&profile, routine, 0).0, 3 * count, "{routine}: {profile:#}");
        }
    }
    Ok(())
}

fn forks(program: &Program) -> Result<(), Failed> {
    let (ran, profile) = profiled(program, "forks", &[], 2, "forks")?;
    ran.succeeded()?;
    for pe in profile["pes"].as_array().ok_or("no PEs")? {
        let [threads, ..] = seconds_of(pe);
        let whole = pe["seconds"].as_f64().unwrap_or(0.0);
        // The first thread lives all the time, and the other one for 200 ms.
        assert!(threads > whole + 0.199, "{profile:#}");
    }
    assert_eq!(calls(&profile, "shmem_long_p", 8).0, 4, "{profile:#}");
    Ok(())
}

fn killed(program: &Program) -> Result<(), Failed> {
    let (ran, profile) = profiled(program, "killed", &[], 2, "die")?;
    assert_eq!(ran.code, Some(128 + 9), "{ran:?}");
    let pes = profile["pes"].as_array().ok_or("no PEs")?;
    assert!(pes.len() == 2 && pes[1]["finalized"] == false, "{profile:#}");
    for (routine, size, count, bytes) in KNOWN {
        let (calls, sum) = calls(&profile, routine, size);
        // The other PE may have been ended in the last of them.
        assert!(calls == 2 * count && sum == 2 * count * bytes, "{routine}: {profile:#}");
    }
    Ok(())
}

/// Runs a program that does not finalise, with a profile as JSON and one as text.
fn ended(
    program: &Program,
    options: &[&str],
    pes: usize,
    how: &str,
    code: i32,
) -> Result<(Value, String), Failed> {
    let (ran, profile) = profiled(program, &format!("ended-{how}"), options, pes, how)?;
    assert_eq!(ran.code, Some(code), "{ran:?}");
    let options = [options, &["--profile"]].concat();
    let ran = program.launch_with(&options, pes, &[how], &[("SHMEM_TUNE", "off")])?;
    Ok((profile, ran.stderr))
}

/// Sums of a routine's calls, and their seconds: all of them, those of the longest call, and those blocked.
fn times(profile: &Value, routine: &str) -> (u64, [f64; 3]) {
    let all = profile["routines"].as_array().into_iter().flatten();
    let mut own = all.filter(|row| row["routine"] == routine);
    let row = own.next().cloned().unwrap_or_default();
    assert!(own.next().is_none(), "{profile:#}");
    let seconds = ["seconds", "longest_seconds", "blocked_seconds"];
    (row["calls"].as_u64().unwrap_or(0), seconds.map(|name| row[name].as_f64().unwrap_or(-1.0)))
}

fn waited_for(profile: &Value, words: &str) -> f64 {
    let waits = profile["waits"].as_array().into_iter().flatten();
    waits.filter(|wait| wait["waiting_for"] == words).filter_map(|w| w["seconds"].as_f64()).sum()
}

/// Checks a job in which all PEs but the last were in a barrier, each for at least so long.
fn check_barrier(profile: &Value, text: &str, others: usize, least: f64) {
    let (calls, [seconds, longest, blocked]) = times(profile, "shmem_barrier_all");
    let all = least * others as f64;
    assert_eq!(calls, others as u64, "{profile:#}");
    assert!(longest >= least && seconds >= all && blocked >= all, "{profile:#}");
    assert!(waited_for(profile, "other PEs to arrive") >= all, "{profile:#}");
    let pes: Vec<usize> = (0..others).collect();
    let pending = &profile["not_returned"][0];
    assert_eq!((&pending["routine"], &pending["pes"]), (&json!("shmem_barrier_all"), &json!(pes)));
    assert!(pending["longest_seconds"].as_f64() >= Some(least), "{profile:#}");
    for pe in profile["pes"].as_array().into_iter().flatten() {
        let seconds = pe["seconds"].as_f64().unwrap_or(0.0);
        assert!(pe["finalized"] == false && seconds >= least, "{profile:#}");
    }
    // What PEs waited for in vain is no reason for a setting.
    assert_eq!(profile["advice"], json!([]), "{profile:#}");
    let first = text.lines().find(|line| line.starts_with("Profile of ")).unwrap_or_default();
    assert!(first.contains(" s between shmem_init and shmem_finalize or the end of "), "{text}");
    assert!(!text.contains("What may help"), "{text}");
}

fn hangs(program: &Program) -> Result<(), Failed> {
    let (profile, text) = ended(program, &["--timeout", "4"], 3, "hang", 124)?;
    check_barrier(&profile, &text, 2, 1.0);
    assert!(
        text.contains("\nWithout shmem_finalize, counted to their end: PE 0, 1, 2\n"),
        "{text}"
    );
    let pending = "\nIn a routine when they ended: PE 0, 1 in shmem_barrier_all for up to ";
    assert!(text.contains(pending), "{text}");
    Ok(())
}

fn ended_by_another(program: &Program) -> Result<(), Failed> {
    for (how, code) in [("die", 128 + 9), ("exit", 3)] {
        for hosts in ["1", "2"] {
            let (profile, text) = ended(program, &["--hosts", hosts], 2, how, code)?;
            check_barrier(&profile, &text, 1, 0.9);
            assert_eq!(profile["pes"][1]["global_exit"], how == "exit", "{profile:#}");
            assert_eq!(profile["pes"][0]["global_exit"], false, "{profile:#}");
            let exits = "\nEnded by calling shmem_global_exit: PE 1\n";
            assert_eq!(text.contains(exits), how == "exit", "{text}");
        }
    }
    Ok(())
}

fn sleeps(program: &Program) -> Result<(), Failed> {
    let (profile, text) = ended(program, &["--timeout", "3"], 1, "sleep", 124)?;
    let [threads, library, blocked] = seconds_of(&profile["pes"][0]);
    assert!(threads >= 1.0 && library == 0.0 && blocked == 0.0, "{profile:#}");
    assert!(text.contains("; 0.0 % of the threads' time in the library, 0.0 % blocked"), "{text}");
    assert!(!text.contains("In a routine when"), "{text}");
    Ok(())
}

fn thread_waits(program: &Program) -> Result<(), Failed> {
    let (profile, text) = ended(program, &[], 1, "thread", 128 + 9)?;
    let (calls, [seconds, longest, blocked]) = times(&profile, "shmem_long_wait_until");
    assert!(calls == 1 && seconds >= 0.9 && longest >= 0.9 && blocked >= 0.9, "{profile:#}");
    let [threads, ..] = seconds_of(&profile["pes"][0]);
    assert!(threads >= 1.9, "{profile:#}");
    assert!(text.contains("PE 0 in shmem_long_wait_until for "), "{text}");
    Ok(())
}

fn never(program: &Program) -> Result<(), Failed> {
    let (profile, text) = ended(program, &[], 2, "early", 1)?;
    for pe in profile["pes"].as_array().into_iter().flatten() {
        assert!(pe["initialized"] == false && pe["seconds"] == 0.0, "{profile:#}");
    }
    assert!(text.contains("\nWithout the end of shmem_init, nothing counted: PE 0, 1\n"), "{text}");
    Ok(())
}

fn timeline_of_ends(program: &Program) -> Result<(), Failed> {
    let path = scratch("seen").join("timeline-of-ends.json");
    let trace = format!("--trace={}", path.display());
    let ran = program.launch_with(&[&trace], 2, &["die"], &[("SHMEM_TUNE", "off")])?;
    assert_eq!(ran.code, Some(128 + 9), "{ran:?}");
    let trace = read(&path)?;
    let events = trace["traceEvents"].as_array().ok_or("no events")?;
    let span = |name: &str| {
        let mut own = events.iter().filter(|event| event["pid"] == 0 && event["name"] == name);
        let span = own.next_back().ok_or(format!("no {name}: {trace}"))?;
        let number = |name: &str| span[name].as_f64().unwrap_or(-1.0);
        assert!(span["args"]["returned"] == false && number("dur") > 900_000.0, "{span}");
        Ok::<_, Failed>((number("ts"), number("ts") + number("dur")))
    };
    let (call, wait) = (span("shmem_barrier_all")?, span("waiting for other PEs to arrive")?);
    assert!(call.0 <= wait.0 && (call.1 - wait.1).abs() < 0.01, "{call:?} {wait:?}");
    Ok(())
}

fn polls(program: &Program) -> Result<(), Failed> {
    let (ran, profile) = profiled(program, "polls", &[], 2, "poll")?;
    let tests: u64 = ran.succeeded()?.stdout.trim().parse()?;
    let (calls, [seconds, _, blocked]) = times(&profile, "shmem_long_test");
    // For a second nothing else was done, but for counting.
    assert!(calls == tests && seconds >= 0.3 && blocked >= 0.2, "{profile:#}");
    assert!(waited_for(&profile, "a variable") >= blocked, "{profile:#}");
    let (calls, [seconds, ..]) = times(&profile, "shmem_signal_fetch");
    assert!(calls == 100_000 && seconds > 0.0, "{profile:#}");
    let (calls, [_, _, blocked]) = times(&profile, "shmem_long_wait_until");
    assert!(calls == 1000 && blocked == 0.0, "{profile:#}");
    // Sets of nothing are calls as well.
    for routine in ["test_any", "wait_until_any", "wait_until_some"] {
        assert_eq!(times(&profile, &format!("shmem_long_{routine}")).0, 1, "{profile:#}");
    }
    Ok(())
}

fn forms(program: &Program) -> Result<(), Failed> {
    let quiet = [("SHMEM_TUNE", "off")];
    let ran = program.launch_with(&["--profile"], 2, &[], &quiet)?.succeeded()?;
    assert!(ran.stderr.starts_with("Profile of 2 PEs: ") && ran.stdout.is_empty(), "{ran:?}");
    for part in ["shmem_long_p ", "\nBlocked", "waiting for other PEs to arrive", "\nPE by PE"] {
        assert!(ran.stderr.contains(part), "{part}: {ran:?}");
    }
    let page = scratch("seen").join("page.html");
    let option = format!("--profile=html:{}", page.display());
    program.launch_with(&[&option], 2, &[], &quiet)?.succeeded()?;
    let text = fs::read_to_string(&page)?;
    for part in ["<!doctype html>", "shmem_long_p", "<svg", "PE 0 and PE 1: 1049 puts", "</html>"] {
        assert!(text.contains(part), "{part}");
    }
    for wrong in ["--profile=xml:a", "--profile=html", "--trace="] {
        let ran = program.launch_with(&[wrong], 1, &[], &quiet)?;
        assert_eq!(ran.code, Some(2), "{ran:?}");
    }
    let nowhere = program.launch_with(&["--trace=/no/such/place/x.json"], 1, &[], &quiet)?;
    assert!(nowhere.code == Some(2) && nowhere.stderr.contains("cannot write"), "{nowhere:?}");
    // Nothing of this is inherited by accident.
    let stray =
        program.launch_with(&[], 1, &[], &[("TOMBOLO_PROFILE_FD", "77"), ("SHMEM_TUNE", "off")])?;
    stray.succeeded()?;
    Ok(())
}

fn traced(
    program: &Program,
    name: &str,
    options: &[&str],
    pes: usize,
) -> Result<(Ran, Value), Failed> {
    let path = scratch("seen").join(format!("{name}.json"));
    let option = format!("--trace={}", path.display());
    let options = [options, &[option.as_str()]].concat();
    let ran = program.launch_with(&options, pes, &[], &[("SHMEM_TUNE", "off")])?.succeeded()?;
    Ok((ran, read(&path)?))
}

fn timeline(program: &Program) -> Result<(), Failed> {
    let fault = ["--hosts", "2", "--fault", "link 0 down at 1ms; up at 2ms"];
    let (_, trace) = traced(program, "timeline", &fault, 2)?;
    let events = trace["traceEvents"].as_array().ok_or("no events")?;
    let spans = |pe: u64, name: &str| {
        let own = events.iter().filter(move |event| event["ph"] == "X" && event["pid"] == pe);
        own.filter(|event| event["name"] == name).cloned().collect::<Vec<_>>()
    };
    let number = |event: &Value, name: &str| event[name].as_f64().unwrap_or(-1.0);
    for pe in 0..2 {
        let barriers = spans(pe, "shmem_barrier_all");
        assert_eq!(barriers.len(), 3, "{barriers:?}");
        assert!(
            barriers
                .iter()
                .all(|b| b["cat"] == "call" && number(b, "ts") >= 0.0 && number(b, "dur") >= 0.0)
        );
        let puts = spans(pe, "shmem_putmem");
        let large = puts.iter().filter(|put| put["args"]["bytes"] == 1 << 20);
        assert_eq!(large.clone().count(), 7, "{puts:?}");
        assert!(
            large.clone().all(|put| put["cat"] == "transfer" && put["args"]["pe"] == 1 - pe),
            "{puts:?}"
        );
    }
    // PE 0 sleeps half a second in front of the second barrier: PE 1 waits in it.
    let second = spans(1, "shmem_barrier_all").remove(1);
    assert!(number(&second, "dur") > 40_000.0, "{second}");
    let inside = |wait: &Value| {
        number(wait, "ts") >= number(&second, "ts") - 0.001
            && number(wait, "ts") + number(wait, "dur")
                <= number(&second, "ts") + number(&second, "dur") + 0.001
    };
    let waits = spans(1, "waiting for other PEs to arrive");
    assert!(waits.iter().any(|wait| inside(wait) && number(wait, "dur") > 40_000.0), "{waits:?}");
    let faults = events.iter().filter(|event| event["cat"] == "fault").count();
    assert!(faults >= 2, "{faults} of 2 faults: {trace}");
    assert_eq!(trace["otherData"]["events_lost"], 0);
    Ok(())
}

/// PEs send for longer than the link is down.
fn links_and_threads(program: &Program) -> Result<(), Failed> {
    let path = scratch("seen").join("links-and-threads.json");
    let trace = format!("--trace={}", path.display());
    let fault = "link 0 down at 1s; up at 1500ms";
    let options = ["--hosts", "3", "--fault", fault, &trace, "-x", "SHMEM_NTB_DIRECT=off"];
    let quiet = [("SHMEM_TUNE", "off")];
    program.launch_with(&options, 3, &["stream", "3"], &quiet)?.succeeded()?;
    let trace = read(&path)?;
    let events = trace["traceEvents"].as_array().ok_or("no events")?;
    let named = |pe: u64, name: &str| {
        let own = events.iter().filter(move |event| event["pid"] == pe && event["name"] == name);
        own.cloned().collect::<Vec<_>>()
    };
    for pe in [0, 1] {
        let (down, up) = (named(pe, "link down"), named(pe, "link in use"));
        // One of two links may come into use when counting has begun.
        let (down, up) = (down.first().ok_or("never down")?, up.last().ok_or("never up again")?);
        assert!(down["cat"] == "link" && down["ph"] == "i" && down["args"]["link"] == 0, "{down}");
        assert!(down["ts"].as_f64() < up["ts"].as_f64(), "{down} {up}");
    }
    assert!(named(2, "link down").is_empty(), "the link is between two other hosts");
    // Packets that are under way when the link goes down change direction: there may be none just then.
    let mut turned = events.iter().filter(|event| event["cat"] == "failover");
    assert!(turned.all(|event| event["args"]["flows"].as_u64() > Some(0)), "{trace}");
    for pe in 0..3 {
        let work = named(pe, "service thread of a lane");
        assert!(!work.is_empty(), "PE {pe}");
        let sound =
            |span: &Value| span["cat"] == "service" && span["args"]["turns"].as_u64() > Some(0);
        assert!(work.iter().all(sound), "PE {pe}");
        let threads = events.iter().filter(|e| e["pid"] == pe && e["name"] == "thread_name");
        let names: Vec<_> = threads.filter_map(|e| e["args"]["name"].as_str()).collect();
        assert!(names.iter().any(|name| name.starts_with("service thread ")), "{names:?}");
        assert!(names.iter().any(|name| name.starts_with("thread ")), "{names:?}");
    }
    Ok(())
}

/// Over links that take their time PEs wait for credits. In a ring of two hosts nothing is relayed, and in
/// one of five where all send two hosts away, they wait for what others send.
fn held_up(program: &Program) -> Result<(), Failed> {
    let waited = |name: &str, hosts: usize| -> Result<[f64; 2], Failed> {
        let path = scratch("seen").join(format!("{name}.json"));
        let profile = format!("--profile=json:{}", path.display());
        let count = hosts.to_string();
        let slow = ["-x", "SHMEM_NTB_SPEED=modelled", "-x", "SHMEM_NTB_DIRECT=off"];
        let options = [&["--hosts", &count, &profile], &slow[..]].concat();
        let quiet = [("SHMEM_TUNE", "off")];
        program.launch_with(&options, hosts, &["stream", "1"], &quiet)?.succeeded()?;
        let profile = read(&path)?;
        let waits = profile["waits"].as_array().ok_or("no waits")?;
        let seconds = |words: &str| {
            let wait = waits.iter().find(|wait| wait["waiting_for"] == words);
            wait.and_then(|wait| wait["seconds"].as_f64()).unwrap_or(0.0)
        };
        Ok([seconds("credits of the next host"), seconds("packets being relayed")])
    };
    let [credits, relayed] = waited("neighbours", 2)?;
    assert!(credits > 0.0 && relayed == 0.0, "{credits} {relayed}");
    let [_, relayed] = waited("far", 5)?;
    assert!(relayed > 0.0, "{relayed}");
    Ok(())
}

fn bounded(program: &Program) -> Result<(), Failed> {
    let (ran, trace) = traced(program, "bounded", &["--trace-events", "4"], 2)?;
    let events = trace["traceEvents"].as_array().ok_or("no events")?;
    let spans = |pe: u64| events.iter().filter(|e| e["ph"] == "X" && e["pid"] == pe).count();
    assert_eq!([spans(0), spans(1)], [4, 4], "{trace:#}");
    let lost = trace["otherData"]["events_lost"].as_u64().unwrap_or(0);
    assert!(
        lost > 0 && ran.stderr.contains(&format!("without the {lost} oldest events")),
        "{ran:?}"
    );
    Ok(())
}

/// A table in which copies past the caches take half as long on buffers that are used once, and twice as long on
/// others, wherever the PEs of a host may run.
fn table_of_hints() -> Value {
    let curves = ["cache", "node", "far-node", "host"].into_iter().flat_map(|class| {
        [
            ("heap", "cached", 1),
            ("heap", "streaming", 2),
            ("cold", "cached", 2),
            ("cold", "streaming", 1),
        ]
        .map(|(buffer, channel, factor)| {
            let point = |bytes: u64| json!([bytes, factor * bytes, 0, 7]);
            let points: Vec<Value> = [2048, 65536, 8_388_608].map(point).to_vec();
            json!({"class": class, "operation": "put", "buffer": buffer, "channel": channel,
                       "points": points})
        })
    });
    let curves: Vec<Value> = curves.collect();
    json!({"format": 4, "machine": "made up", "digest": "", "curves": curves})
}

/// Copies on a context with a hint go by it; all others, and words on any context, as before.
fn hints(program: &Program) -> Result<(), Failed> {
    let folder = scratch("seen");
    let table = folder.join("hints.json");
    fs::write(&table, table_of_hints().to_string())?;
    let table = table.to_string_lossy().into_owned();
    const THROUGH: &str = "mapped memory";
    const PAST: &str = "mapped memory past the caches";
    let counted = |how: &str, hint: &str| -> Result<[u64; 4], Failed> {
        let path = folder.join(format!("hinted-{how}-{}.json", hint.len()));
        let profile = format!("--profile=json:{}", path.display());
        let environment = [("SHMEM_TUNE", table.as_str()), ("SHMEM_TUNE_HINT", hint)];
        program.launch_with(&[&profile], 2, &[how], &environment)?.succeeded()?;
        let profile = read(&path)?;
        let by = |routine: &str, way: &str, size: u64| {
            let rows = profile["routines"].as_array().into_iter().flatten();
            let own = rows.filter(|row| {
                row["routine"] == routine && row["way"] == way && row["size_max"] == size
            });
            own.filter_map(|row| row["calls"].as_u64()).sum::<u64>()
        };
        let words = if how == "call" { 2 * 148 } else { 2 * 28 };
        for (routine, size) in [("shmem_ctx_long_p", 8), ("shmem_ctx_putmem_nbi", 32)] {
            assert_eq!(by(routine, THROUGH, size), words, "{routine}: {profile:#}");
        }
        let routines = ["shmem_putmem", "shmem_ctx_putmem"];
        let of = |way| routines.map(|routine| by(routine, way, 65536) / 2);
        Ok([of(THROUGH), of(PAST)].concat().try_into().expect("two of each"))
    };
    for (how, hint, expected) in [
        ("", "hot", [20, 8, 0, 0]),
        ("", "cold", [0, 0, 20, 8]),
        ("", "contexts:cold", [20, 0, 0, 8]),
        ("", "contexts:hot,cold", [0, 8, 20, 0]),
        ("call", "hot", [20, 45, 80, 3]),
    ] {
        assert_eq!(counted(how, hint)?, expected, "{how} {hint}");
    }
    let wrong = program.launch(2, &[""], &[("SHMEM_TUNE_HINT", "contexts:warm")])?;
    assert!(wrong.code != Some(0), "{wrong:?}");
    let told = "SHMEM_TUNE_HINT='contexts:warm': expected hot or cold, contexts:hot";
    assert!(wrong.stderr.contains(told), "{wrong:?}");
    Ok(())
}
