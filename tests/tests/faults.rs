// SPDX-License-Identifier: Apache-2.0
//! What programs, users and other people on the machine do wrong, or only just right: the library
//! and `oshrun` say what is wrong, in time, and what is right works.

use libtest_mimic::{Arguments, Failed, Trial};
use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::process::Command;
use std::sync::Arc;
use std::time::{Duration, Instant};
use tombolo_tests::unless;

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::program::{LIMIT, Program};
use support::{Ran, crate_dir, installed, prefix, run, scratch, tool};

type Case = fn(&Programs) -> Result<(), Failed>;

const CASES: [(&str, Case); 27] = [
    ("small_operations_take_the_route_that_is_set", small_operations_take_their_route),
    ("small_operations_store_where_nothing_is_set", small_operations_store),
    ("a_wait_for_a_pe_that_has_finalized_ends", a_wait_for_a_finalized_pe_ends),
    ("a_death_that_others_see_first_is_told_by_the_launcher", a_death_is_told),
    ("a_second_finalize_is_ignored", a_second_finalize_is_ignored),
    ("a_second_finalize_is_an_error_while_arguments_are_checked", a_second_finalize_is_checked),
    ("a_pe_that_gets_no_memory_ends_the_start_at_once", a_pe_without_memory_ends_the_start),
    ("an_error_ends_a_job_that_reads_its_input", an_error_ends_a_reader),
    ("any_end_after_finalize_is_clean", any_end_after_finalize_is_clean),
    ("no_end_before_finalize_is_clean", no_end_before_finalize_is_clean),
    ("a_state_can_be_saved_after_an_interrupt", a_state_can_be_saved),
    ("a_timeout_shows_who_waits_in_finalize", a_timeout_shows_who_waits_in_finalize),
    ("a_full_heap_names_the_size_that_suffices", a_full_heap_names_the_size),
    ("a_pe_past_the_end_is_noticed", a_pe_past_the_end_is_noticed),
    ("a_broadcast_in_place_is_warned_of_once", a_broadcast_in_place_is_warned_of),
    ("a_short_dest_of_collect_is_named", a_short_dest_of_collect_is_named),
    ("a_pe_outside_of_an_active_set_does_nothing", a_pe_outside_of_an_active_set_does_nothing),
    ("a_context_destroyed_twice_is_an_error", a_context_destroyed_twice_is_an_error),
    ("a_lock_that_a_pe_does_not_hold_is_not_cleared", a_lock_that_is_not_held_is_not_cleared),
    ("the_main_thread_may_end_first", the_main_thread_may_end_first),
    ("a_limit_on_file_sizes_is_named", a_limit_on_file_sizes_is_named),
    ("a_compiler_wrapper_does_not_call_itself", a_wrapper_does_not_call_itself),
    ("memory_files_cannot_be_shrunk", memory_files_cannot_be_shrunk),
    ("a_global_exit_over_cma_says_nothing", a_global_exit_over_cma_says_nothing),
    ("tracing_is_allowed_only_where_it_has_to_be", tracing_is_allowed_only_where_it_has_to_be),
    ("the_library_names_no_folder_of_its_builder", the_library_names_no_folder),
    ("what_is_no_file_of_measurements_is_warned_of_and_replaced", no_file_is_warned_of),
];

/// For jobs that are to say nothing: a busy machine may give reason to warn of what was measured.
const UNTUNED: (&str, &str) = ("SHMEM_TUNE", "off");

/// Compiled when first needed.
struct Programs {
    prefix: std::path::PathBuf,
    faults: Arc<Program>,
}

fn main() {
    let mut arguments = Arguments::from_args();
    // Jobs have several processes each: more at a time would measure the scheduler.
    arguments.test_threads.get_or_insert(2);
    let trials = match prefix() {
        Ok(prefix) => trials(&prefix),
        Err(missing) => vec![Trial::test("the_library_is_installed", || Err(missing.into()))],
    };
    libtest_mimic::run(&arguments, trials).exit();
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let special = |name: &str| crate_dir().join("c/special").join(name);
    let flags = ["-O1", "-pthread"];
    let programs = Arc::new(Programs {
        prefix: prefix.to_owned(),
        faults: Program::new(prefix, &special("faults.c"), "", &flags),
    });
    let mut trials: Vec<Trial> = CASES
        .into_iter()
        .map(|(name, case)| {
            let programs = programs.clone();
            Trial::test(name, move || case(&programs))
        })
        .collect();
    trials.push(works_under_address_sanitizer(prefix));
    trials.push(works_under_valgrind(prefix));
    trials.extend(work_under_debuggers(prefix));
    trials
}

/// An error unless `holds`.
fn expect(holds: bool, ran: &Ran, what: &str) -> Result<(), Failed> {
    if holds { Ok(()) } else { Err(ran.account(&format!("expected {what}")).into()) }
}

fn small_operations_take_their_route(programs: &Programs) -> Result<(), Failed> {
    let route = |route| [("SHMEM_ROUTE", route), ("SHMEM_TUNE", "off")];
    let all = route("put:*=cma,get:*=cma");
    let ran = programs.faults.launch(2, &["small-operations"], &all)?.succeeded()?;
    // Two gets each on the heap; AMOs keep to the processor.
    let said = ran.stdout.contains("heap: p 1 put 1 g 2 get 1 amo 0\nstatic: p 1 g 1\n");
    expect(said, &ran, "every operation by the kernel")?;
    let heap = route("get:heap:*=cma");
    let ran = programs.faults.launch(2, &["small-operations"], &heap)?.succeeded()?;
    let said = ran.stdout.contains("heap: p 0 put 0 g 2 get 1 amo 0\nstatic: p 0 g 0\n");
    expect(said, &ran, "gets of the heap by the kernel, and nothing else")
}

/// A FIFO would make the job wait for ever, a link would have it write elsewhere.
fn no_file_is_warned_of(programs: &Programs) -> Result<(), Failed> {
    let folder = scratch(&format!("measurements-{}", std::process::id()));
    let tuned = [("SHMEM_TUNE_CACHE", &*folder.to_string_lossy()), ("SHMEM_TUNE_BUDGET", "50")];
    let job = || programs.faults.launch(2, &["small-operations"], &tuned)?.succeeded();
    job()?;
    let mut files = fs::read_dir(&folder)?;
    let file = files.next().ok_or("nothing is kept")??.path();
    let elsewhere = folder.join("elsewhere");
    fs::write(&elsewhere, "mine")?;
    for link in [false, true] {
        fs::remove_file(&file)?;
        if link {
            symlink(&elsewhere, &file)?;
        } else {
            tool("mkfifo", &[&file])?;
        }
        let ran = job()?;
        let warned = ran.stderr.matches("is ignored and will be replaced: it is ").count();
        expect(warned == 1, &ran, "one warning")?;
        expect(file.symlink_metadata()?.is_file(), &ran, "a file in its place")?;
    }
    let kept = fs::read_to_string(&elsewhere)? == "mine";
    fs::remove_dir_all(&folder)?;
    if kept { Ok(()) } else { Err("the file that a link led to was written".into()) }
}

fn small_operations_store(programs: &Programs) -> Result<(), Failed> {
    let off = [("SHMEM_TUNE", "off")];
    let ran = programs.faults.launch(2, &["small-operations"], &off)?.succeeded()?;
    let said = ran.stdout.contains("heap: p 0 put 0 g 0 get 0 amo 0\nstatic: p 0 g 0\n");
    expect(said, &ran, "no copy by the kernel")
}

fn a_wait_for_a_finalized_pe_ends(programs: &Programs) -> Result<(), Failed> {
    // The last barrier is the one that meets the other's shmem_finalize.
    let cases = [
        ("exit-early", "shmem_barrier_all"),
        ("exit-last", "shmem_finalize"),
        ("finalize-early", "shmem_barrier_all"),
    ];
    for (case, routine) in cases {
        for options in [&[][..], &["--hosts", "2"]] {
            let begun = Instant::now();
            let ran = programs.faults.launch_with(options, 2, &[case], &[])?;
            let says = |line: &str| {
                line.contains(&format!("PE 0: {routine}")) && line.contains("PE 1 has finalized")
            };
            expect(ran.code == Some(1) && ran.stderr.lines().any(says), &ran, "an error")?;
            // The promise is a second; starting on a busy machine takes some too.
            expect(begun.elapsed() < LIMIT / 4, &ran, "an end in time")?;
        }
    }
    Ok(())
}

fn a_second_finalize_is_ignored(programs: &Programs) -> Result<(), Failed> {
    let unchecked = [("SHMEM_DEBUG", "0"), UNTUNED];
    let ran = programs.faults.launch(2, &["finalize-twice"], &unchecked)?.succeeded()?;
    expect(ran.stderr.is_empty(), &ran, "no word")
}

fn a_second_finalize_is_checked(programs: &Programs) -> Result<(), Failed> {
    let ran = programs.faults.launch(2, &["finalize-twice"], &[("SHMEM_DEBUG", "1")])?;
    expect(ran.code == Some(1) && ran.stderr.contains("shmem_finalize"), &ran, "an error")
}

fn any_end_after_finalize_is_clean(programs: &Programs) -> Result<(), Failed> {
    for how in ["_exit", "quick_exit", "exec"] {
        let ran = programs.faults.launch(2, &["leave", how], &[UNTUNED])?.succeeded()?;
        expect(ran.stderr.is_empty(), &ran, "no word")?;
    }
    let ran = programs.faults.launch(2, &["leave", "_exit-3"], &[])?;
    expect(ran.code == Some(3), &ran, "the program's code")
}

/// The first PE of the host waits for all others to ask for their memory: none that cannot keeps it waiting.
fn a_pe_without_memory_ends_the_start(programs: &Programs) -> Result<(), Failed> {
    let little = scratch("memory").join("meminfo");
    fs::write(&little, "MemTotal: 2048 kB\n")?;
    let little = little.to_string_lossy();
    let cases = [
        ("FAULTS_MEMORY", &*little, "per PE, but the memory of this machine is 2 MiB"),
        ("FAULTS_CONNECT", "refused", "sharing memory with the PEs of this host"),
    ];
    for (name, value, says) in cases {
        let limit = LIMIT / 2;
        let ran = programs.faults.launch_within(limit, &[], 3, &[], &[(name, value), UNTUNED])?;
        expect(ran.code == Some(1) && ran.stderr.contains(says), &ran, says)?;
    }
    Ok(())
}

/// A thread that waits for a line keeps a lock that whoever flushes all streams takes.
fn an_error_ends_a_reader(programs: &Programs) -> Result<(), Failed> {
    let limit = LIMIT / 3;
    let ran = programs.faults.launch_within(limit, &[], 2, &["reading"], &[UNTUNED])?;
    expect(ran.code == Some(1) && ran.stderr.contains("cmp = -1"), &ran, "an error")?;
    expect(ran.stdout.contains("before the end"), &ran, "what was printed")
}

fn a_death_is_told(programs: &Programs) -> Result<(), Failed> {
    let settings = [UNTUNED, ("SHMEM_TRANSPORTS", "shm,tcp")];
    let ran = programs.faults.launch_with(&["--hosts", "2"], 2, &["die-unseen"], &settings)?;
    let says =
        ran.stderr.contains("was killed by SIGKILL") && !ran.stderr.contains("tombolo: PE 0");
    expect(ran.code == Some(128 + libc::SIGKILL) && says, &ran, "the signal, by the launcher")
}

fn no_end_before_finalize_is_clean(programs: &Programs) -> Result<(), Failed> {
    for how in ["_exit", "quick_exit", "exec"] {
        let ran = programs.faults.launch(2, &["leave-second", how], &[])?;
        let says = ran.stderr.contains("shmem_finalize");
        expect(ran.code == Some(1) && says, &ran, "an error")?;
    }
    Ok(())
}

fn a_state_can_be_saved(programs: &Programs) -> Result<(), Failed> {
    for options in [&[][..], &["--hosts", "3"]] {
        let ran = programs.faults.launch_with(options, 3, &["save-state"], &[])?;
        let saved = ran.stdout == "saved\n" && !ran.stderr.contains("oshrun:");
        expect(ran.signal == Some(libc::SIGINT) && saved, &ran, "SIGINT after the state is saved")?;
    }
    Ok(())
}

fn a_timeout_shows_who_waits_in_finalize(programs: &Programs) -> Result<(), Failed> {
    let timeout = ["--timeout", "3"];
    let ran = programs.faults.launch_with(&timeout, 2, &["finalize-late"], &[UNTUNED])?;
    let shows = |pe: &str, what: &str| {
        ran.stderr.lines().any(|line| line.contains(pe) && line.contains(what))
    };
    let told = shows("PE 0 ", "in shmem_barrier_all") && shows("PE 1 ", "not in a blocking");
    expect(ran.code == Some(124) && told, &ran, "PE 0 waiting, PE 1 computing")?;
    let going_on = [("SHMEM_ON_LOSS", "continue"), UNTUNED];
    let ran = programs.faults.launch_with(&timeout, 2, &["finalize-alone"], &going_on)?;
    let shows = |pe: &str, what: &str| {
        ran.stderr.lines().any(|line| line.contains(pe) && line.contains(what))
    };
    let told = shows("PE 0 ", "in shmem_finalize") && shows("PE 1 ", "not in a blocking");
    expect(ran.code == Some(124) && told, &ran, "PE 0 waiting, PE 1 computing")
}

fn a_full_heap_names_the_size(programs: &Programs) -> Result<(), Failed> {
    let launch = |heap: &str, size: u64, checks| {
        let env = [("SHMEM_SYMMETRIC_SIZE", heap), ("SHMEM_DEBUG", checks)];
        programs.faults.launch(2, &["malloc", &size.to_string()], &env)
    };
    for (size, checks) in [(40 << 20, "0"), ((12 << 20) + 1, "0"), (40 << 20, "1")] {
        // The first may fit; the second does not.
        let mut heap = "16m".to_owned();
        for attempt in 0..3 {
            let ran = launch(&heap, size, checks)?.succeeded()?;
            let lines: Vec<&str> =
                ran.stderr.lines().filter(|line| line.contains("SHMEM_SYMMETRIC_SIZE=")).collect();
            let all = ran.stdout.matches("block block").count() == 2;
            if all {
                expect(attempt > 0 && lines.is_empty(), &ran, "no hint where nothing is short")?;
                break;
            }
            expect(attempt < 2 && lines.len() == 1, &ran, "one hint")?;
            let value = lines[0].split("SHMEM_SYMMETRIC_SIZE=").nth(1).unwrap_or_default();
            heap = value.chars().take_while(char::is_ascii_alphanumeric).collect();
        }
    }
    Ok(())
}

fn a_pe_past_the_end_is_noticed(programs: &Programs) -> Result<(), Failed> {
    for distance in ["0", "1", "400"] {
        let unchecked = [("SHMEM_DEBUG", "0")];
        let ran = programs.faults.launch(2, &["pe-past-end", distance], &unchecked)?;
        let hint = |line: &str| line.contains("SIGSEGV") && line.contains("SHMEM_DEBUG=1");
        expect(ran.code == Some(139) && ran.stderr.lines().any(hint), &ran, "SIGSEGV and a hint")?;
    }
    Ok(())
}

fn a_broadcast_in_place_is_warned_of(programs: &Programs) -> Result<(), Failed> {
    let checked = [("SHMEM_DEBUG", "1")];
    let ran = programs.faults.launch(3, &["broadcast-in-place"], &checked)?.succeeded()?;
    let warnings = ran.stderr.lines().filter(|line| line.contains("shmem_long_broadcast")).count();
    expect(warnings == 1, &ran, "one warning")
}

fn a_short_dest_of_collect_is_named(programs: &Programs) -> Result<(), Failed> {
    let ran = programs.faults.launch(2, &["collect-too-small"], &[("SHMEM_DEBUG", "1")])?;
    let named = (0..2).any(|pe| {
        let begin = format!("PE {pe}: dest ");
        let dest = ran.stdout.lines().find_map(|line| line.strip_prefix(&begin)).unwrap_or("?");
        let says = format!("dest = {dest} with 32 bytes goes past the end");
        ran.stderr.lines().any(|line| line.contains(&format!("PE {pe}:")) && line.contains(&says))
    });
    expect(ran.code == Some(1) && named, &ran, "the program's own address")
}

fn a_pe_outside_of_an_active_set_does_nothing(programs: &Programs) -> Result<(), Failed> {
    let said = |ran: &Ran, pe: &str| {
        let says = |line: &&str| line.contains("not in the active set") && line.contains(pe);
        ran.stderr.lines().filter(says).count()
    };
    let unchecked = [("SHMEM_DEBUG", "0")];
    let ran = programs.faults.launch(4, &["outside-of-set"], &unchecked)?.succeeded()?;
    expect(
        ["PE 0", "PE 1", "PE 2", "PE 3"].map(|pe| said(&ran, pe)) == [0, 1, 0, 1],
        &ran,
        "two warnings",
    )?;
    let ran = programs.faults.launch(4, &["outside-of-set"], &[("SHMEM_DEBUG", "1")])?;
    expect(ran.code == Some(1) && said(&ran, "PE") > 0, &ran, "an error")
}

fn a_context_destroyed_twice_is_an_error(programs: &Programs) -> Result<(), Failed> {
    let ran = programs.faults.launch(1, &["destroy-twice"], &[("SHMEM_DEBUG", "0")])?;
    let says = |line: &str| line.contains("shmem_ctx_destroy") && line.contains("destroyed");
    expect(ran.code == Some(1) && ran.stderr.lines().any(says), &ran, "an error")
}

/// Nobody holds the lock, this PE did before, or the other one does.
fn a_lock_that_is_not_held_is_not_cleared(programs: &Programs) -> Result<(), Failed> {
    for case in ["clear-free", "clear-twice", "clear-other"] {
        let ran = programs.faults.launch(2, &[case], &[])?;
        let says = |line: &str| line.contains("shmem_clear_lock") && line.contains("is not held");
        expect(ran.code == Some(1) && ran.stderr.lines().any(says), &ran, case)?;
    }
    Ok(())
}

fn the_main_thread_may_end_first(programs: &Programs) -> Result<(), Failed> {
    for options in [&[][..], &["--hosts", "2"]] {
        let arguments = ["pthread-exit"];
        let ran = programs.faults.launch_with(options, 2, &arguments, &[UNTUNED])?.succeeded()?;
        let ended = ran.stdout.matches("the thread has ended").count();
        expect(ended == 2 && ran.stderr.is_empty(), &ran, "both threads to end")?;
    }
    Ok(())
}

fn a_limit_on_file_sizes_is_named(programs: &Programs) -> Result<(), Failed> {
    let executable = programs.faults.executable()?;
    let oshrun = programs.prefix.join("bin/oshrun");
    // Blocks of 512 bytes: 4 MiB, which the heap is longer than, and 20 KiB, which a link is.
    for (blocks, options, who) in [(8192, "", "shmem_init"), (40, "--hosts 2", "oshrun")] {
        let mut shell = Command::new("sh");
        let job = format!("exec \"$0\" -n 2 {options} \"$1\" finalize-twice");
        shell.args(["-c", &format!("ulimit -f {blocks}; {job}")]);
        shell.arg(&oshrun).arg(&executable).env("SHMEM_SYMMETRIC_SIZE", "16m");
        shell.env("SHMEM_TUNE_CACHE", scratch("tuning"));
        let ran = run(&mut shell, LIMIT)?;
        let says = |line: &str| line.contains(who) && line.contains("ulimit -f");
        expect(ran.code == Some(1) && ran.stderr.lines().any(says), &ran, "an error")?;
    }
    Ok(())
}

fn a_wrapper_does_not_call_itself(programs: &Programs) -> Result<(), Failed> {
    let folder = scratch("wrapper");
    let other = folder.join("another-name");
    let oshcc = programs.prefix.join("bin/oshcc");
    let _ = fs::remove_file(&other);
    symlink(&oshcc, &other)?;
    let script = folder.join("script");
    fs::write(&script, format!("#!/bin/sh\nexec {} \"$@\"\n", oshcc.display()))?;
    tool("chmod", &["+x".as_ref(), script.as_os_str()])?;
    for compiler in [&oshcc, &other, &script] {
        let mut command = Command::new(&oshcc);
        command.env("OSHCC_CC", compiler).arg("--version");
        let ran = run(&mut command, Duration::from_secs(10))?;
        let says = ran.stderr.contains("OSHCC_CC") && ran.stderr.contains("itself");
        expect(ran.code == Some(1) && says, &ran, "an error")?;
    }
    Ok(())
}

fn memory_files_cannot_be_shrunk(programs: &Programs) -> Result<(), Failed> {
    for file in ["heap", "static", "board", "ntb-link"] {
        let (options, file) = (["--hosts", "2"], format!("tombolo-{file}"));
        programs.faults.launch_with(&options, 2, &["shrink", &file], &[])?.succeeded()?;
    }
    Ok(())
}

fn a_global_exit_over_cma_says_nothing(programs: &Programs) -> Result<(), Failed> {
    for _ in 0..20 {
        let cma = [("SHMEM_TRANSPORTS", "cma"), UNTUNED];
        let ran = programs.faults.launch(3, &["global-exit"], &cma)?;
        expect(ran.code == Some(7) && ran.stderr.is_empty(), &ran, "code 7 and no word")?;
    }
    Ok(())
}

fn tracing_is_allowed_only_where_it_has_to_be(programs: &Programs) -> Result<(), Failed> {
    let scope = fs::read_to_string("/proc/sys/kernel/yama/ptrace_scope").unwrap_or_default();
    let wanted = if scope.trim() == "1" { 1 } else { 0 };
    let ran = programs.faults.launch(2, &["tracers"], &[])?.succeeded()?;
    let all = (0..2).all(|pe| ran.stdout.contains(&format!("PE {pe}: {wanted}\n")));
    expect(all, &ran, &format!("{wanted} permissions"))
}

fn the_library_names_no_folder(programs: &Programs) -> Result<(), Failed> {
    let home = std::env::var("CARGO_HOME")
        .or_else(|_| std::env::var("HOME").map(|home| format!("{home}/.cargo")))?;
    let checkout = crate_dir().parent().expect("a folder of the checkout").display().to_string();
    for file in ["lib/libtombolo.so", "bin/oshrun", "bin/oshcc", "bin/oshinfo"] {
        let bytes = fs::read(programs.prefix.join(file))?;
        for folder in [&home, &checkout] {
            let found = bytes.windows(folder.len()).any(|bytes| bytes == folder.as_bytes());
            if found {
                return Err(format!("{file} contains {folder}").into());
            }
        }
    }
    Ok(())
}

/// Programs of this folder that are run with tools, on two PEs.
const WITH_TOOLS: [&str; 3] = ["static_data.c", "pointers.c", "processes.c"];

/// Programs of this folder that are built with sanitizers as well: those that compile fast.
const SANITIZED: [&str; 8] = [
    "static_data.c",
    "pointers.c",
    "processes.c",
    "contexts.c",
    "locks.c",
    "memory.c",
    "reinit.c",
    "random.c",
];

fn works_under_address_sanitizer(prefix: &Path) -> Trial {
    let probe = scratch("sanitizer");
    let source = probe.join("empty.c");
    fs::write(&source, "int main(void) { return 0; }\n").expect("the folder is writable");
    let linked = tool(
        "cc",
        &[
            "-fsanitize=address,undefined".as_ref(),
            source.as_os_str(),
            "-o".as_ref(),
            probe.join("empty").as_os_str(),
        ],
    );
    let sanitizers = "-fsanitize=address,undefined";
    let flags = ["-g", "-O1", "-pthread", sanitizers, "-fno-sanitize-recover=undefined"];
    let programs = SANITIZED.map(|name| {
        Program::new(prefix, &crate_dir().join("c").join(name), "with sanitizers", &flags)
    });
    let missing = linked.is_err().then_some("needs libasan and libubsan of the C compiler");
    let trial = Trial::test("programs_with_address_sanitizer_work", move || {
        for program in &programs {
            // What programs never free is theirs.
            // Measuring takes long, and is the same for all.
            let ways =
                if program.name == "static_data" { &["always", "off"][..] } else { &["off"] };
            for &tune in ways {
                let env = [("ASAN_OPTIONS", "detect_leaks=0"), ("SHMEM_TUNE", tune)];
                let ran = program.launch(2, &[], &env)?.succeeded()?;
                expect(
                    !ran.stderr.contains("Sanitizer") && !ran.stderr.contains("runtime error"),
                    &ran,
                    "no report",
                )?;
            }
        }
        Ok(())
    });
    unless(missing, trial)
}

fn works_under_valgrind(prefix: &Path) -> Trial {
    let flags = ["-g", "-O1", "-pthread"];
    let programs = WITH_TOOLS.map(|name| {
        Program::new(prefix, &crate_dir().join("c").join(name), "for valgrind", &flags)
    });
    let missing = (!installed("valgrind")).then_some("needs valgrind");
    let trial = Trial::test("programs_work_under_valgrind", move || {
        for program in &programs {
            let mut oshrun = program.oshrun();
            oshrun.args(["-n", "2", "valgrind", "-q", "--error-exitcode=9"]);
            let ran = run(oshrun.arg(program.executable()?), 2 * LIMIT)?.succeeded()?;
            // The library may warn that what it measured under valgrind is doubtful.
            let reported = ran.stderr.lines().any(|line| line.starts_with("=="));
            expect(!reported, &ran, "no report")?;
        }
        Ok(())
    });
    unless(missing, trial)
}

/// As the manual says that PEs are run under other programs.
fn work_under_debuggers(prefix: &Path) -> [Trial; 2] {
    let flags = ["-g", "-O1", "-pthread"];
    let source = crate_dir().join("c/static_data.c");
    let program = Program::new(prefix, &source, "for debuggers", &flags);
    let tools = [
        ("gdb", r#"exec gdb -q -batch -return-child-result -ex run "$0""#),
        ("perf", r#"exec perf record -q -o "$TMPDIR/perf.$PMI_RANK" "$0""#),
    ];
    tools.map(|(tool, script)| {
        let program = program.clone();
        let missing = why_not(tool);
        let trial = Trial::test(format!("programs_work_under_{tool}"), move || {
            let folder = scratch(tool);
            for hosts in ["1", "2"] {
                let mut oshrun = program.oshrun();
                oshrun.args(["-n", "2", "--hosts", hosts, "sh", "-c", script]);
                // What is measured at the start tells nothing under them.
                oshrun.arg(program.executable()?).env("SHMEM_TUNE", "off").env("TMPDIR", &folder);
                let ran = run(&mut oshrun, 2 * LIMIT)?.succeeded()?;
                let crashed = ran.stdout.contains("received signal");
                expect(!crashed && !ran.stderr.contains("tombolo:"), &ran, "no report")?;
            }
            Ok(())
        });
        unless(missing, trial)
    })
}

/// Why a tool cannot be used on this machine.
fn why_not(tool: &str) -> Option<String> {
    if !installed(tool) {
        return Some(format!("needs {tool}"));
    }
    let folder = scratch(tool);
    let data = folder.join("try").display().to_string();
    let args: &[&str] = match tool {
        "perf" => &["record", "-q", "-o", &data, "true"],
        _ => &["-q", "-batch", "-return-child-result", "-ex", "run", "true"],
    };
    let tried = run(Command::new(tool).args(args), LIMIT).map_err(|e| e.to_string());
    match tried.map(|ran| ran.code) {
        Ok(Some(0)) => None,
        _ => Some(format!("{tool} cannot run programs here")),
    }
}
