// SPDX-License-Identifier: Apache-2.0
//! Another user of the machine: can neither read nor join, delay nor end a job.
//!
//! The test makes both users from nothing but numbers, which takes root.

use crate::support::program::{LIMIT, Program};
use crate::support::{crate_dir, run};
use crate::{Way, ways};
use libtest_mimic::{Failed, Trial};
use std::fs::{self, File, Permissions};
use std::io::{Read, Write};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::os::linux::net::SocketAddrExt;
use std::os::unix::fs::{MetadataExt, OpenOptionsExt, PermissionsExt, chown};
use std::os::unix::net::{SocketAddr, UnixStream};
use std::os::unix::process::CommandExt;
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tombolo_tests::{own_user, unless};

/// Has this program be the neighbour: for so many seconds at most, or until its input ends.
const ROLE: &str = "--be-the-neighbour";

pub fn trials(prefix: &Path) -> Vec<Trial> {
    let source = crate_dir().join("c/special/traffic.c");
    let program = Program::new(prefix, &source, "", &["-O1"]);
    let root = nix::unistd::geteuid().is_root();
    let trial = |way: Way| {
        let missing = if root { way.missing.clone() } else { Some("needs root".to_owned()) };
        let program = program.clone();
        let name = format!("neighbours_are_kept_out_{}", way.name);
        unless(missing, Trial::test(name, move || keep_out(&program, &way)))
    };
    // Whom the kernel lets at memory and descriptors does not depend on the order of puts.
    ways().into_iter().filter(|way| way.name != "over_unordered").map(trial).collect()
}

/// The neighbour's part, if this process is to play it.
pub fn is_one() -> bool {
    let wanted = std::env::args().nth(1).is_some_and(|argument| argument == ROLE);
    if wanted {
        attack();
    }
    wanted
}

fn keep_out(program: &Arc<Program>, way: &Way) -> Result<(), Failed> {
    // Whose jobs are attacked, and who attacks.
    let (owner, neighbour) = (own_user(0), own_user(1));
    let place = tempfile::Builder::new().prefix(&format!("tombolo-{}-", way.name)).tempdir()?;
    let folder = place.path();
    chown(folder, Some(owner), Some(owner))?;
    // Not the folder keeps the neighbour out of what lies in it.
    fs::set_permissions(folder, Permissions::from_mode(0o755))?;
    let own = folder.join("test");
    // By another process: one that this one starts meanwhile would hold the copy open for writing, and
    // then it cannot be run.
    let copied = Command::new("cp").arg(std::env::current_exe()?).arg(&own).status()?;
    assert!(copied.success(), "cp: {copied}");
    let mut command = Command::new(&own);
    command.arg(ROLE).arg(folder).arg(owner.to_string());
    command.uid(neighbour).gid(neighbour).current_dir("/");
    let mut neighbour = command.stdin(Stdio::piped()).stdout(Stdio::piped()).spawn()?;
    let outcome = (0..2).try_for_each(|_| {
        let mut oshrun = program.oshrun();
        oshrun.args(["-n", "3"]).args(way.options).arg(program.executable()?);
        oshrun.env("HOME", folder).env("TMPDIR", folder).current_dir(folder);
        oshrun.env_remove("SHMEM_TUNE_CACHE").env_remove("XDG_CACHE_HOME");
        oshrun.env("SECRET_OF_THE_JOB", "x").uid(owner).gid(owner);
        let begun = Instant::now();
        let ran = run(&mut oshrun, LIMIT).map_err(|e| format!("{oshrun:?}: {e}"))?.succeeded()?;
        // Waits for a stranger would last for as long as SHMEM_START_TIMEOUT allows, 60 s.
        match begun.elapsed() < LIMIT / 3 {
            true => Ok(()),
            false => Err(ran.account("delayed")),
        }
    });
    drop(neighbour.stdin.take());
    let mut said = String::new();
    neighbour.stdout.take().expect("piped").read_to_string(&mut said)?;
    neighbour.wait()?;
    place.close()?;
    outcome?;
    let (tried, achieved): (Vec<&str>, Vec<&str>) =
        said.lines().partition(|line| line.starts_with("tried "));
    assert!(achieved.is_empty(), "the neighbour could {achieved:?}");
    let tries: u32 = tried.iter().filter_map(|line| line[6..].parse::<u32>().ok()).sum();
    assert!(tries > 0, "the neighbour met no process of the job");
    Ok(())
}

/// Tries what can be tried, again and again, and says what could be done.
fn attack() {
    // The test ends its input.
    // SAFETY: sets a flag of a descriptor of this process.
    unsafe { libc::fcntl(0, libc::F_SETFL, libc::O_NONBLOCK) };
    let folder = std::env::args().nth(2).unwrap_or_default();
    let owner = std::env::args().nth(3).and_then(|user| user.parse().ok()).unwrap_or_default();
    let (begin, mut tried) = (Instant::now(), 0);
    // Silent guests.
    let (mut sockets, mut streams) = (vec![], vec![]);
    while begin.elapsed() < Duration::from_secs(120) && !is_over() {
        let processes = fs::read_dir("/proc").into_iter().flatten().flatten();
        for process in processes {
            let name = process.file_name();
            let Some(pid) = name.to_str().and_then(|name| name.parse().ok()) else { continue };
            if process.metadata().is_ok_and(|data| data.uid() == owner) {
                tried += 1;
                harm(pid);
            }
        }
        join_sockets(&mut sockets);
        join_streams(owner, &mut streams);
        read_files(Path::new(&folder));
        sockets.truncate(50);
        streams.truncate(50);
        std::thread::sleep(Duration::from_millis(1));
    }
    println!("tried {tried}");
}

fn is_over() -> bool {
    matches!(std::io::stdin().read(&mut [0; 16]), Ok(0))
}

/// Says so if `done`.
fn achieved(done: bool, what: std::fmt::Arguments<'_>) {
    if done {
        println!("{what}");
    }
}

fn harm(pid: i32) {
    for file in ["mem", "environ", "maps", "syscall", "stack", "io", "auxv"] {
        let path = format!("/proc/{pid}/{file}");
        let mut byte = [0];
        let read = File::open(&path).and_then(|mut file| file.read(&mut byte));
        achieved(read.is_ok_and(|count| count > 0), format_args!("read {path}"));
    }
    for folder in ["fd", "map_files", "cwd", "root"] {
        let path = format!("/proc/{pid}/{folder}");
        let open = fs::read_dir(&path).is_ok_and(|mut entries| entries.next().is_some());
        achieved(open, format_args!("list {path}"));
    }
    // SAFETY: system calls that are refused; if not, the other process is a job of this test.
    unsafe {
        for signal in [libc::SIGTERM, libc::SIGSTOP, libc::SIGQUIT] {
            achieved(libc::kill(pid, signal) == 0, format_args!("signal {pid}"));
        }
        let traced = libc::ptrace(libc::PTRACE_SEIZE, pid, 0, 0) == 0;
        achieved(traced, format_args!("trace {pid}"));
        let handle = libc::syscall(libc::SYS_pidfd_open, pid, 0) as i32;
        if handle >= 0 {
            for fd in 0..20 {
                let taken = libc::syscall(libc::SYS_pidfd_getfd, handle, fd, 0);
                achieved(taken >= 0, format_args!("take descriptor {fd} of {pid}"));
            }
            libc::close(handle);
        }
        let mut word = 0u64;
        let local = libc::iovec { iov_base: (&raw mut word).cast(), iov_len: 8 };
        let remote = libc::iovec { iov_base: 0x400000 as *mut _, iov_len: 8 };
        let read = libc::process_vm_readv(pid, &local, 1, &remote, 1, 0);
        // An address of nothing is another error.
        let refused = read < 0 && *libc::__errno_location() != libc::EFAULT;
        achieved(!refused, format_args!("read memory of {pid}"));
        let limit = libc::rlimit { rlim_cur: 1, rlim_max: 1 };
        let set = libc::prlimit(pid, libc::RLIMIT_CPU, &limit, std::ptr::null_mut());
        achieved(set == 0, format_args!("limit {pid}"));
    }
}

/// Connects to all sockets with names that files do not have, says nothing on some and nonsense on
/// others.
fn join_sockets(guests: &mut Vec<UnixStream>) {
    let list = fs::read_to_string("/proc/net/unix").unwrap_or_default();
    let names = list.lines().filter_map(|line| line.split_whitespace().nth(7)?.strip_prefix('@'));
    for name in names.filter(|name| name.contains("tombolo") || name.contains("shmem")) {
        let address = SocketAddr::from_abstract_name(name.replace('@', "\0"));
        let Ok(mut guest) = address.and_then(|address| UnixStream::connect_addr(&address)) else {
            continue;
        };
        let _ = guest.set_nonblocking(true);
        if guests.len().is_multiple_of(2) {
            let _ = guest.write_all(&[0xff; 300]);
        }
        let mut bytes = [0; 64];
        std::thread::sleep(Duration::from_millis(1));
        let heard = guest.read(&mut bytes).is_ok_and(|count| count > 0);
        achieved(heard, format_args!("hear what socket {name} says"));
        guests.insert(0, guest);
    }
}

/// Connects to what the owner's processes listen on, says nothing to some and nonsense to others.
fn join_streams(owner: u32, guests: &mut Vec<TcpStream>) {
    let list = fs::read_to_string("/proc/net/tcp").unwrap_or_default();
    for line in list.lines().skip(1) {
        let words: Vec<&str> = line.split_whitespace().collect();
        let [_, local, _, "0A", _, _, _, user, ..] = words[..] else { continue };
        let Some((host, port)) = local.split_once(':') else { continue };
        let host = u32::from_str_radix(host, 16).map(u32::swap_bytes).map(Ipv4Addr::from_bits);
        let (Ok(host), Ok(port)) = (host, u16::from_str_radix(port, 16)) else { continue };
        if user.parse() != Ok(owner) {
            continue;
        }
        let address = SocketAddrV4::new(host, port).into();
        let Ok(mut guest) = TcpStream::connect_timeout(&address, Duration::from_millis(50)) else {
            continue;
        };
        let _ = guest.set_nonblocking(true);
        if guests.len().is_multiple_of(2) {
            let _ = guest.write_all(&[0xff; 300]);
        }
        guests.insert(0, guest);
    }
}

/// Reads and changes what lies in a folder.
fn read_files(folder: &Path) {
    for entry in fs::read_dir(folder).into_iter().flatten().flatten() {
        let path = entry.path();
        // The program of the test itself.
        if path.file_name().is_some_and(|name| name == "test") {
            continue;
        }
        if path.is_dir() {
            read_files(&path);
        } else {
            achieved(File::open(&path).is_ok(), format_args!("read {}", path.display()));
        }
        let new = path.join("x");
        let made = File::options().write(true).create_new(true).mode(0o600).open(&new);
        achieved(made.is_ok(), format_args!("make {}", new.display()));
    }
}
