// SPDX-License-Identifier: Apache-2.0
//! `oshinfo` in a job: which transports reach which PEs, what for, and why others do not.

#[allow(dead_code, reason = "shared with tests that use other parts of it")]
mod support;

use libtest_mimic::{Failed, Trial};
use std::io;
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use support::program::run_trials;
use support::run;

type Case = fn(&Path) -> Result<(), Failed>;

const CASES: [(&str, Case); 6] = [
    ("pes_of_one_host_map_memory", pes_of_one_host_map_memory),
    ("hosts_are_tied_by_the_ring", hosts_are_tied_by_the_ring),
    ("hosts_reach_each_other_by_tcp", hosts_reach_each_other_by_tcp),
    ("what_another_pe_lacks_is_said_with_its_reason", what_another_pe_lacks_is_said),
    ("what_the_kernel_forbids_is_said", what_the_kernel_forbids_is_said),
    ("many_hosts_take_few_lines", many_hosts_take_few_lines),
];

fn main() {
    run_trials(|prefix| {
        let prefix: Arc<PathBuf> = Arc::new(prefix.to_owned());
        let trial = |(name, case): (&str, Case)| {
            let prefix = prefix.clone();
            Trial::test(name, move || case(&prefix))
        };
        CASES.into_iter().map(trial).collect()
    })
}

/// Sections on pairs of PEs: which ones, and the rows.
type Sections = Vec<(String, Vec<(String, String)>)>;

/// `oshrun LINE`, where PE stands for oshinfo.
fn command(prefix: &Path, line: &str) -> Command {
    let mut command = Command::new(prefix.join("bin/oshrun"));
    command.env("SHMEM_TUNE", "off");
    for name in ["SHMEM_TRANSPORTS", "SHMEM_ROUTE", "SHMEM_STATIC", "SHMEM_TCP_INTERFACE"] {
        command.env_remove(name);
    }
    let oshinfo = prefix.join("bin/oshinfo");
    command.args(line.split_whitespace().map(|word| match word {
        "PE" => oshinfo.as_os_str(),
        word => word.as_ref(),
    }));
    command
}

fn pairs(mut command: Command) -> Result<Sections, Failed> {
    let text = run(&mut command, Duration::from_secs(240))?.succeeded()?.stdout;
    let row = |line: &str| {
        let (names, what) = line.trim_start().split_once("  ")?;
        Some((names.to_owned(), what.trim_start().to_owned()))
    };
    let section = |text: &str| {
        let mut lines = text.lines();
        let title = lines.next()?.strip_prefix("Transports between PEs: ")?;
        Some((title.to_owned(), lines.filter_map(row).collect()))
    };
    Ok(text.split("\n\n").filter_map(section).collect())
}

/// The rows of the section with this title.
fn rows<'a>(sections: &'a Sections, title: &str) -> &'a [(String, String)] {
    let found = sections.iter().find(|(of, _)| of == title);
    &found.unwrap_or_else(|| panic!("{title}: {sections:#?}")).1
}

/// What is said of a transport.
fn said<'a>(rows: &'a [(String, String)], transport: &str) -> &'a str {
    let found = rows.iter().find(|(names, _)| names.split(", ").any(|name| name == transport));
    &found.unwrap_or_else(|| panic!("{transport}: {rows:#?}")).1
}

const USED: &str = "used for all puts, gets and AMOs";
const OFF: &str = "can reach them; not used: nothing was measured: SHMEM_TUNE is off";

fn pes_of_one_host_map_memory(prefix: &Path) -> Result<(), Failed> {
    let all = pairs(command(prefix, "-n 3 PE"))?;
    assert_eq!(all.len(), 1, "{all:#?}");
    let rows = rows(&all, "0-2 with each other (host 0)");
    assert_eq!(said(rows, "shm"), USED);
    assert!(said(rows, "cma").starts_with(OFF), "{rows:#?}");
    assert!(said(rows, "ntb").starts_with("cannot be used: no NTB port"), "{rows:#?}");
    assert!(said(rows, "tcp").starts_with("cannot be used: for several machines"), "{rows:#?}");
    // By cma alone the target carries out AMOs.
    let all = pairs(command(prefix, "-n 2 -x SHMEM_TRANSPORTS=cma PE"))?;
    let rows = self::rows(&all, "0-1 with each other (host 0)");
    let used = "used for all puts and gets, AMOs by request to the target";
    assert_eq!(said(rows, "cma"), used);
    assert_eq!(said(rows, "shm"), "left out by SHMEM_TRANSPORTS");
    // Alone there are no pairs.
    assert_eq!(pairs(command(prefix, "-n 1 PE"))?, vec![]);
    Ok(())
}

fn hosts_are_tied_by_the_ring(prefix: &Path) -> Result<(), Failed> {
    let all = pairs(command(prefix, "-n 4 --hosts 2 PE"))?;
    assert_eq!(all.len(), 2, "{all:#?}");
    let near = rows(&all, "0-1 with each other (host 0), 2-3 with each other (host 1)");
    assert_eq!(said(near, "shm"), USED);
    assert_eq!(said(near, "ntb"), "cannot reach them: the PEs are on the same host");
    let far = rows(&all, "0-1 with 2-3 (host 0 with 1)");
    assert_eq!(said(far, "ntb"), USED);
    for name in ["shm", "cma"] {
        assert_eq!(said(far, name), "cannot reach them: the PEs are on different hosts");
    }
    // Variables that are not mapped are copied by the kernel, to and from this host alone.
    let all = pairs(command(prefix, "-n 4 --hosts 2 -x SHMEM_STATIC=cma PE"))?;
    let near = rows(&all, "0-1 with each other (host 0), 2-3 with each other (host 1)");
    assert_eq!(said(near, "cma"), "used in static data for all puts and gets");
    let heap = "used in the symmetric heap for all puts, gets and AMOs";
    let requests = "in static data for AMOs by request to the target";
    assert_eq!(said(near, "shm"), format!("{heap}; {requests}"));
    let far = rows(&all, "0-1 with 2-3 (host 0 with 1)");
    assert_eq!(said(far, "ntb"), heap);
    // What is measured is compared.
    let mut measured = command(prefix, "-n 2 -x SHMEM_TRANSPORTS=shm,cma PE");
    measured.env("SHMEM_TUNE", "always").env("SHMEM_TUNE_BUDGET", "600");
    let all = pairs(measured)?;
    let near = rows(&all, "0-1 with each other (host 0)");
    assert!(said(near, "shm").starts_with("used "), "{near:#?}");
    assert!(!said(near, "cma").contains("SHMEM_TUNE"), "{near:#?}");
    Ok(())
}

fn hosts_reach_each_other_by_tcp(prefix: &Path) -> Result<(), Failed> {
    let line = "-n 4 --hosts 2 --placement cyclic -x SHMEM_TRANSPORTS=shm,tcp PE";
    let all = pairs(command(prefix, line))?;
    let near = rows(&all, "0,2 with each other (host 0), 1,3 with each other (host 1)");
    assert_eq!(said(near, "shm"), USED);
    assert!(said(near, "tcp").starts_with(OFF), "{near:#?}");
    let far = rows(
        &all,
        "0 with 1,3 (host 0 with 1), 1 with 2 (host 1 with 0), 2 with 3 (host 0 with 1)",
    );
    assert_eq!(said(far, "tcp"), USED);
    for name in ["cma", "ntb", "verbs", "ofi"] {
        assert_eq!(said(far, name), "left out by SHMEM_TRANSPORTS");
    }
    Ok(())
}

/// PE 0 has the transport, and says what PE 1 has told of why that has it not.
fn what_another_pe_lacks_is_said(prefix: &Path) -> Result<(), Failed> {
    let setting = "SHMEM_TCP_INTERFACE=nosuch0";
    let transports = "-x SHMEM_TRANSPORTS=shm,ntb,tcp";
    let lacks = format!("{setting}: there is no such interface");
    let line = format!(
        "--hosts 2 -n 2 {transports} PE : -n 1 {transports} -x {setting} PE : -n 1 {transports} PE"
    );
    let all = pairs(command(prefix, &line))?;
    let one = format!("cannot be used on PE 2: {lacks}");
    let starts = |title: &str, start: &str| {
        let rows = rows(&all, title);
        assert!(said(rows, "tcp").starts_with(start), "{start}: {rows:#?}");
    };
    starts("0-1 with each other (host 0)", OFF);
    starts("0-1 with 3 (host 0 with 1)", OFF);
    starts("0-1 with 2 (host 0 with 1)", &one);
    starts("2-3 with each other (host 1)", &one);
    let line = format!("--hosts 2 -n 2 {transports} PE : -n 2 {transports} -x {setting} PE");
    let all = pairs(command(prefix, &line))?;
    let rows = rows(&all, "0-1 with 2-3 (host 0 with 1)");
    assert_eq!(said(rows, "ntb"), USED);
    let host = format!("cannot be used on host 1: {lacks}");
    assert!(said(rows, "tcp").starts_with(&host), "{rows:#?}");
    Ok(())
}

/// Has system calls that copy from other processes fail, in this process and those that it starts.
fn forbid_copies() -> io::Result<()> {
    let step = |code: u32, jt, jf, k: u32| libc::sock_filter { code: code as u16, jt, jf, k };
    let equal = libc::BPF_JMP | libc::BPF_JEQ | libc::BPF_K;
    let answer = libc::BPF_RET | libc::BPF_K;
    let mut filter = [
        // The number of the system call is the first word.
        step(libc::BPF_LD | libc::BPF_W | libc::BPF_ABS, 0, 0, 0),
        step(equal, 0, 1, libc::SYS_process_vm_readv as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ERRNO | libc::EPERM as u32),
        step(answer, 0, 0, libc::SECCOMP_RET_ALLOW),
    ];
    let program = libc::sock_fprog { len: filter.len() as u16, filter: filter.as_mut_ptr() };
    // SAFETY: system calls on plain values, and on a program that is read during the call alone.
    let done = unsafe {
        libc::prctl(libc::PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) == 0
            && libc::prctl(libc::PR_SET_SECCOMP, libc::SECCOMP_MODE_FILTER, &raw const program) == 0
    };
    if done { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn what_the_kernel_forbids_is_said(prefix: &Path) -> Result<(), Failed> {
    let mut job = command(prefix, "-n 2 PE");
    // SAFETY: it makes two system calls, and allocates nothing.
    unsafe { job.pre_exec(forbid_copies) };
    let all = pairs(job)?;
    let rows = rows(&all, "0-1 with each other (host 0)");
    let why = "cannot be used: the kernel refuses process_vm_readv: Operation not permitted";
    assert!(said(rows, "cma").starts_with(why), "{rows:#?}");
    assert_eq!(said(rows, "shm"), USED);
    Ok(())
}

fn many_hosts_take_few_lines(prefix: &Path) -> Result<(), Failed> {
    let all = pairs(command(prefix, "-n 12 --hosts 6 -x SHMEM_SYMMETRIC_SIZE=16m PE"))?;
    let titles: Vec<&str> = all.iter().map(|(title, _)| &**title).collect();
    assert_eq!(titles, ["those of the same host", "those of different hosts"]);
    assert_eq!(said(&all[1].1, "ntb"), USED);
    Ok(())
}
