// SPDX-License-Identifier: Apache-2.0
//! PEs that are lost while a program runs (`SHMEM_ON_LOSS`): killed, crashed, gone without
//! `shmem_finalize`, or out of reach. The others go on without them if the program asks for it, and
//! no wait for them lasts for ever.

use libtest_mimic::{Failed, Trial};
use std::path::Path;
use std::sync::Arc;
use tombolo_tests::unless;

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::losses::{GOING_ON, UNTUNED, WITHOUT_LOST, goes_on};
use support::program::{LIMIT, Program, run_trials};
use support::{Ran, crate_dir, run, scratch};
use tombolo_tests::conformance::{BACK_ENDS, unavailable};

const ENDING: (&str, &str) = ("SHMEM_ON_LOSS", "end");

/// What `special/survivors.c` goes on after: PEs, options, the faults, and which PEs can reach each
/// other to the end; see there. Faults come when even a busy machine has started the job: what takes all PEs does
/// not end without some of them.
const LOSSES: [(usize, &[&str], &str, &str); 8] = [
    (4, &["--hosts", "4"], "host 2 die at 2s", "aaxa"),
    (4, &["--hosts", "4", "-x", "SHMEM_NTB_DIRECT=off"], "host 2 die at 2s", "aaxa"),
    (6, &["--hosts", "3", "-x", "SHMEM_NTB_LANES=2"], "host 2 die at 2s", "aaaaxx"),
    (4, &["--hosts", "4"], "link 0 down at 2s; link 2 down at 2s", "abba"),
    (6, &["--hosts", "3"], "", "aakkaa"),
    (6, &["--hosts", "3"], "", "aakdaa"),
    (6, &["--hosts", "3", "-x", "SHMEM_NTB_DIRECT=off"], "", "dkaaaa"),
    (6, &["--hosts", "3", "--placement", "cyclic"], "", "adaaka"),
];

/// As two interfaces.
const TWICE: &str = "SHMEM_TCP_INTERFACE=lo,lo";
/// See `TWICE`.
const TWICE_BY_OFI: &str = "SHMEM_OFI_INTERFACE=lo,lo";

/// The same over TCP, where nothing but the death of processes can be made to happen.
const LOSSES_OVER_TCP: [(usize, &[&str], &str, &str); 3] = [
    (6, &["--hosts", "3", "-x", "SHMEM_TRANSPORTS=shm,tcp"], "", "aakkaa"),
    (4, &["--hosts", "4", "-x", "SHMEM_TRANSPORTS=tcp"], "", "akaa"),
    (6, &["--hosts", "3", "-x", "SHMEM_TRANSPORTS=shm,tcp", "-x", TWICE], "", "aakkaa"),
];
/// The same over libfabric.
const LOSSES_OVER_OFI: [(usize, &[&str], &str, &str); 3] = [
    (6, &["--hosts", "3", "-x", "SHMEM_TRANSPORTS=shm,ofi"], "", "aakkaa"),
    (4, &["--hosts", "4", "-x", "SHMEM_TRANSPORTS=ofi"], "", "akaa"),
    (6, &["--hosts", "3", "-x", "SHMEM_TRANSPORTS=shm,ofi", "-x", TWICE_BY_OFI], "", "aakkaa"),
];

/// How a PE of `special/deaths.c` dies, and what `oshrun` says of it.
const DEATHS: [(usize, &str, &str); 5] = [
    (1, "kill", "was killed by SIGKILL"),
    (0, "segv", "was killed by SIGSEGV"),
    (2, "abort", "was killed by SIGABRT"),
    (1, "exit", "exited with code 3"),
    (2, "leave", "exited without calling shmem_finalize"),
];
/// Dies while it finalizes, before others do.
const UNHEARD: (usize, &str, &str) = (1, "closed", "exited with code 1");
/// Other ways in which its PEs reach each other, with memory that they share and without.
const BY_CMA: [(&str, &str); 4] = [
    ("SHMEM_STATIC", "cma"),
    ("SHMEM_TRANSPORTS", "cma"),
    ("SHMEM_ROUTE", "put:*=cma"),
    ("SHMEM_ROUTE", "get:*=cma"),
];

/// What PEs of `special/deprived.c` lose after `shmem_init`, and which of them; see there.
const DEPRIVED: [(&str, &str); 5] =
    [("descriptors", "all"), ("closed", "1"), ("memory", "all"), ("user", "all"), ("files", "all")];
/// What only root can give up.
const OF_ROOT: [&str; 2] = ["user", "files"];
/// Ways in which its PEs reach each other: options of `oshrun`.
const WAYS: [&[&str]; 3] = [
    &[],
    &["-x", "SHMEM_NTB_DIRECT=off", "--fault", "link 1 down at 300ms; up at 500ms"],
    &["-x", "SHMEM_NTB_SPEED=modelled"],
];

/// How its PEs wait in vain, and the routine in which they do.
const WAITS: [(&str, &str); 4] = [
    ("barrier", "shmem_barrier_all"),
    ("flag", "shmem_long_wait_until"),
    ("lock", "shmem_set_lock"),
    ("reduce", "shmem_long_sum_reduce"),
];

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let special =
        |name: &str| Program::new(prefix, &crate_dir().join("c/special").join(name), "", &["-O1"]);
    let (survivors, deaths) = (special("survivors.c"), special("deaths.c"));
    let mut trials: Vec<Trial> = LOSSES.map(|loss| goes_on(&survivors, loss)).into();
    trials.extend(LOSSES_OVER_TCP.map(|loss| goes_on(&survivors, loss)));
    let no_ofi = unavailable(BACK_ENDS.iter().find(|one| one.name == "ofi_tcp").expect("a row"));
    trials.extend(LOSSES_OVER_OFI.map(|loss| unless(no_ofi.as_ref(), goes_on(&survivors, loss))));
    trials.extend(ends_with_losses(&survivors));
    for death in DEATHS {
        trials.push(goes_on_without(&deaths, death, None));
        trials.push(ends_by_default(&deaths, death));
    }
    for variable in BY_CMA {
        trials.extend([0, 1].map(|i| goes_on_without(&deaths, DEATHS[i], Some(variable))));
    }
    trials.push(goes_on_without(&deaths, UNHEARD, None));
    trials.push(waits_end(&deaths));
    trials.extend(scripts_and_programs_are_lost_together(&deaths));
    trials.push(a_crash_gives_its_code_over_a_network(&deaths));
    trials.push(the_last_pe_ends_the_job(&deaths));
    let deprived = special("deprived.c");
    for loss in DEPRIVED {
        trials.extend(WAYS.map(|options| data_arrive_without(&deprived, loss, options)));
    }
    trials.extend(nobody_is_lost(&special("stopped.c")));
    trials
}

/// Data arrive whatever a program has used up or given away after the start.
fn data_arrive_without(
    program: &Arc<Program>,
    (what, who): (&'static str, &'static str),
    options: &'static [&'static str],
) -> Trial {
    let program = program.clone();
    let is_refused = OF_ROOT.contains(&what) && !nix::unistd::geteuid().is_root();
    let name = format!("{}: {who} without {what} {}", program.name, options.join(" "));
    let test = move || {
        let folder = scratch("empty");
        let folder = folder.to_string_lossy();
        let options = [&["--hosts", "3"], options].concat();
        let ran = program.launch_with(&options, 3, &[what, who, &folder], &[GOING_ON])?;
        let killed = what == "closed";
        let code = if killed { WITHOUT_LOST } else { 0 };
        let went_on = |pe: usize| ran.stdout.contains(&format!("PE {pe} went on"));
        if ran.code == Some(code) && (0..3).all(|pe| went_on(pe) != (killed && pe == 1)) {
            return Ok(());
        }
        Err(ran.account(&format!("expected exit code {code}")).into())
    };
    unless(is_refused.then_some("needs root"), Trial::test(name, test))
}

/// Lost PEs end the job: at once if nobody asks to go on, if a wait would last for ever, and if a
/// lock would be free for everybody.
fn ends_with_losses(program: &Arc<Program>) -> [Trial; 4] {
    let cases: [(_, _, _, &[&str]); 4] = [
        ("by default", ENDING, "barrier", &["PE 2 on ", "cannot be reached any more"]),
        (
            "by default while the others test a variable",
            ENDING,
            "test",
            &["shmem_long_test", "PE 2 on ", "cannot be reached any more"],
        ),
        ("when a wait lasts too long", GOING_ON, "barrier", &["PE 2 on ", "lasted 10 s since"]),
        ("when a lock is lost", GOING_ON, "locks", &["shmem_set_lock", "is lost with PE 2"]),
    ];
    cases.map(|(when, on_loss, what, says)| {
        let program = program.clone();
        Trial::test(format!("{} ends {when}", program.name), move || {
            let options = ["--hosts", "4", "--fault", "host 2 die at 2s"];
            let ran = program.launch_with(&options, 4, &["aaxa", what], &[on_loss])?;
            let told = |line: &str| says.iter().all(|part| line.contains(part));
            let failed = matches!(ran.code, Some(code) if code != 0 && code != WITHOUT_LOST);
            if failed && ran.stderr.lines().any(told) && !ran.stdout.contains("went on") {
                return Ok(());
            }
            Err(ran.account(&format!("expected failure and a line with {says:?}")).into())
        })
    })
}

/// One PE of three on a host dies; the others are told, go on, and end well.
fn goes_on_without(
    program: &Arc<Program>,
    (pe, how, says): (usize, &'static str, &'static str),
    variable: Option<(&'static str, &'static str)>,
) -> Trial {
    let program = program.clone();
    let with = variable.map(|(name, value)| format!(", {name}={value}")).unwrap_or_default();
    let name = format!("{} goes on without PE {pe}, dead by {how}{with}", program.name);
    Trial::test(name, move || {
        let environment: Vec<_> = [GOING_ON].into_iter().chain(variable).collect();
        let ran = program.launch(3, &[&pe.to_string(), how, "go-on"], &environment)?;
        check_survivors(&ran, pe, says)
    })
}

fn check_survivors(ran: &Ran, pe: usize, says: &str) -> Result<(), Failed> {
    let went_on = |other: usize| ran.stdout.contains(&format!("PE {other} went on"));
    let named = |line: &str| {
        line.starts_with(&format!("oshrun: PE {pe} (pid "))
            && line.contains(says)
            && line.ends_with("; the others go on without it")
    };
    let counted = format!("oshrun: 1 of 3 PEs lost ({pe}); all others have ended well");
    let lines: Vec<&str> = ran.stderr.lines().collect();
    if ran.code == Some(WITHOUT_LOST)
        && (0..3).all(|other| went_on(other) == (other != pe))
        && lines.iter().filter(|line| named(line)).count() == 1
        && lines.contains(&counted.as_str())
    {
        return Ok(());
    }
    Err(ran.account(&format!("expected the others to go on without PE {pe}, which {says}")).into())
}

/// Without being asked to go on, `oshrun` ends the job and names the PE.
fn ends_by_default(
    program: &Arc<Program>,
    (pe, how, says): (usize, &'static str, &'static str),
) -> Trial {
    let program = program.clone();
    Trial::test(format!("{} ends when PE {pe} is dead by {how}", program.name), move || {
        let ran = program.launch(3, &[&pe.to_string(), how, "go-on"], &[ENDING])?;
        let named = |line: &str| {
            line.starts_with(&format!("oshrun: PE {pe} (pid "))
                && line.contains(says)
                && line.ends_with("; ending the job")
        };
        let failed = matches!(ran.code, Some(code) if code != 0 && code != WITHOUT_LOST);
        match failed && ran.stderr.lines().any(named) && !ran.stdout.contains("went on") {
            true => Ok(()),
            false => Err(ran.account(&format!("expected the end, because PE {pe} {says}")).into()),
        }
    })
}

/// Every kind of wait for a dead PE ends the job with an error that names it.
fn waits_end(program: &Arc<Program>) -> Trial {
    let program = program.clone();
    Trial::test(format!("{}: waits for a dead PE end", program.name), move || {
        // Each takes ten seconds, most of them asleep.
        let jobs = WAITS.map(|(what, routine)| {
            let program = program.clone();
            let job = move || program.launch(3, &["1", "kill", what], &[GOING_ON]);
            (routine, std::thread::spawn(job))
        });
        for (routine, job) in jobs {
            let ran = job.join().expect("no panic")?;
            let says = |line: &str| {
                ["PE 1 on ", routine, "cannot be reached any more", "has lasted 10 s since"]
                    .iter()
                    .all(|part| line.contains(part))
            };
            if ran.code != Some(1) || !ran.stderr.lines().any(says) {
                return Err(ran.account(&format!("expected an error of {routine}")).into());
            }
        }
        Ok(())
    })
}

/// A script that goes on after its program has died is no PE any more, and neither is a program
/// whose script has died.
fn scripts_and_programs_are_lost_together(program: &Arc<Program>) -> [Trial; 2] {
    let cases = [
        ("a script is lost with its program", "kill", "runs a script whose program (pid "),
        ("a program is lost with its script", "script", "was killed by SIGKILL"),
    ];
    cases.map(|(name, how, says)| {
        let program = program.clone();
        Trial::test(name, move || {
            let mut oshrun = program.oshrun();
            oshrun.args(["-n", "3", "sh", "-c", r#""$@" || exec sleep 1000"#, "sh"]);
            oshrun.arg(program.executable()?).args(["1", how, "go-on"]).envs([GOING_ON]);
            let ran = run(&mut oshrun, LIMIT).map_err(|error| format!("{oshrun:?}: {error}"))?;
            check_survivors(&ran, 1, says)
        })
    })
}

/// With nobody left to go on, the job has failed as it would by default.
fn the_last_pe_ends_the_job(program: &Arc<Program>) -> Trial {
    let program = program.clone();
    Trial::test("the last PE ends the job", move || {
        let mut oshrun = program.oshrun();
        oshrun.args(["-n", "3"]).arg(program.executable()?).args(["1", "kill", "die"]);
        oshrun.envs([GOING_ON]);
        let ran = run(&mut oshrun, LIMIT).map_err(|error| format!("{oshrun:?}: {error}"))?;
        let count = |text: &str| ran.stderr.lines().filter(|line| line.ends_with(text)).count();
        if ran.code == Some(128 + libc::SIGABRT)
            && count("; the others go on without it") == 2
            && count("; ending the job") == 1
        {
            return Ok(());
        }
        Err(ran.account("expected two PEs to be lost and the third to end the job").into())
    })
}

/// The others, which lose their connections to it at once, wait for the launcher to say why.
fn a_crash_gives_its_code_over_a_network(program: &Arc<Program>) -> Trial {
    let program = program.clone();
    Trial::test(format!("{}: a crash over TCP gives its exit code", program.name), move || {
        let options = ["--hosts", "3", "-x", "SHMEM_TRANSPORTS=shm,tcp"];
        for _ in 0..2 {
            let args = ["0", "segv", "go-on"];
            let ran = program.launch_with(&options, 3, &args, &[ENDING, UNTUNED])?;
            let named = |line: &str| {
                line.starts_with("oshrun: PE 0 ") && line.contains("was killed by SIGSEGV")
            };
            if ran.code != Some(128 + libc::SIGSEGV) || !ran.stderr.lines().any(named) {
                return Err(ran.account("expected the crash of PE 0 to be told").into());
            }
        }
        Ok(())
    })
}

/// A PE that is stopped for a while, and a link that damages or delays packets, end no job.
fn nobody_is_lost(program: &Arc<Program>) -> [Trial; 4] {
    let cases: [(_, &[&str], _, _, _); 4] = [
        (
            "a PE that is stopped is waited for over TCP as long as SHMEM_SILENCE says",
            &["-x", "SHMEM_TRANSPORTS=shm,tcp", "-x", "SHMEM_SILENCE=60"],
            "",
            ["1", "1", "7500"],
            "",
        ),
        (
            "a PE that is stopped for 3 s is waited for",
            &[],
            "",
            ["5", "1", "3200"],
            "does not answer",
        ),
        (
            "a link that damages packets is not used for a while",
            &["-x", "SHMEM_NTB_CRC=on", "-x", "SHMEM_NTB_DIRECT=off"],
            "link 1 corrupt 20000",
            ["4", "-1", "0"],
            "link 1 (hosts 1 and 2) is not used for a while: too many packets are damaged",
        ),
        (
            "a link that delays by a second is not used for a while",
            &[],
            "link 1 delay 1s at 1s",
            ["9", "-1", "0"],
            "link 1 (hosts 1 and 2) is not used for a while: too many packets are damaged",
        ),
    ];
    cases.map(|(name, options, plan, arguments, says)| {
        let program = program.clone();
        Trial::test(name, move || {
            let options = [&["--hosts", "3"], options, &["--fault", plan]].concat();
            let ran = program.launch_with(&options, 3, &arguments, &[])?;
            let all = (0..3).all(|pe| ran.stdout.contains(&format!("PE {pe}: 0 bad")));
            if ran.code == Some(0) && all && ran.stderr.contains(says) {
                return Ok(());
            }
            Err(ran.account(&format!("expected success and a line with '{says}'")).into())
        })
    })
}
