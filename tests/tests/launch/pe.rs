// SPDX-License-Identifier: Apache-2.0
//! The program that runs as PEs: a PMI-1 client of a few lines, and ways to misbehave.

use nix::sys::signal::{SigHandler, SigSet, Signal, signal};
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use tombolo_core::board::{Board, State, monotonic_ns};

pub fn main(args: &[String]) {
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    match args.as_slice() {
        ["exchange"] => exchange(),
        ["exit", pe, code] => exit(pe, code),
        ["crash", pe, number] => crash(pe, number),
        ["abort", pe, code] => abort(pe, code),
        ["follow"] => follow(),
        ["send", line] => send(line),
        ["leave"] => drop(Client::join()),
        ["close"] => close(),
        ["skip", pe] => skip(pe),
        ["hang"] => hang(),
        ["pour", bytes] => pour(bytes.parse().expect("a number")),
        ["save"] => save(),
        ["ignore", name] => ignore(name),
        ["blocked"] => blocked(),
        ["outlive", pe] => outlive(pe),
        ["await", pe] => await_lost(pe),
        ["copy"] => copy(),
        ["orphan"] => orphan(),
        ["lines", count] => lines(count),
        other => panic!("unknown scenario {other:?}"),
    }
}

/// Every PE publishes a value and reads everybody's.
fn exchange() {
    let mut pmi = Client::join();
    let space = pmi.ask("cmd=get_my_kvsname").word("kvsname");
    let size: usize = pmi.ask("cmd=get_universe_size").word("size").parse().unwrap();
    assert_eq!(size.to_string(), std::env::var("PMI_SIZE").unwrap());
    assert!(pmi.ask("cmd=get_maxes").word("vallen_max").parse::<usize>().unwrap() >= 1024);
    let appnum = pmi.ask("cmd=get_appnum").word("appnum");
    pmi.ask(&format!("cmd=put kvsname={space} key=card-{} value=of {}", pmi.rank, pmi.rank));
    pmi.barrier();
    for pe in 0..size {
        let found = pmi.ask(&format!("cmd=get kvsname={space} key=card-{pe}"));
        assert!(found.0.ends_with(&format!("value=of {pe}")), "{}", found.0);
    }
    let mapping = pmi.ask(&format!("cmd=get kvsname={space} key=PMI_process_mapping"));
    let mapping = mapping.word("value");
    println!("PE {} of {size}, program {appnum}, {mapping}", pmi.rank);
    pmi.barrier();
    pmi.ask("cmd=finalize");
}

/// Joins and leaves properly; one PE then exits with a code.
fn exit(pe: &str, code: &str) {
    let mut pmi = Client::join();
    pmi.ask("cmd=finalize");
    if pmi.rank == pe {
        std::process::exit(code.parse().unwrap());
    }
}

/// One PE is killed by a signal, the others wait for it.
fn crash(pe: &str, number: &str) {
    let mut pmi = Client::join();
    pmi.barrier();
    if pmi.rank == pe {
        println!("{}", std::process::id());
        let number = number.parse().unwrap();
        // SAFETY: calls without memory; the numbers because nix has no real-time signals. Rust's
        // own handler would swallow a SIGSEGV that no access has caused.
        unsafe {
            libc::signal(number, libc::SIG_DFL);
            libc::raise(number);
        }
    }
    pmi.barrier();
}

fn abort(pe: &str, code: &str) {
    let mut pmi = Client::join();
    pmi.barrier();
    if pmi.rank == pe {
        pmi.send(&format!("cmd=abort exitcode={code}"));
        // What comes after the request still counts.
        println!("last words");
        std::process::exit(code.parse().unwrap());
    }
    pmi.barrier();
}

/// PE 0 asks for the end of the job once it reads a line.
fn follow() {
    let mut pmi = Client::join();
    println!("{} {}", pmi.rank, std::process::id());
    if pmi.rank == "0" {
        std::io::stdin().read_line(&mut String::new()).unwrap();
        pmi.send("cmd=abort exitcode=1");
        std::process::exit(1);
    }
    pause();
}

/// PE 0 sends a line of its own making, with `_` for spaces.
fn send(line: &str) {
    let mut pmi = Client::join();
    if pmi.rank == "0" {
        pmi.send(&line.replace('_', " "));
    }
    pmi.barrier();
}

/// Closes the connection and goes on.
fn close() {
    drop(Client::join());
    pause();
}

/// One PE ends without joining, the others wait for it.
fn skip(pe: &str) {
    if std::env::var("PMI_RANK").unwrap() == pe {
        return;
    }
    Client::join().barrier();
}

/// Writes so many bytes into a pipe that holds a mebibyte.
fn pour(bytes: usize) {
    // SAFETY: a system call on plain values.
    let size = unsafe { libc::fcntl(1, libc::F_SETPIPE_SZ, 1 << 20) };
    assert!(size > 0, "{}", std::io::Error::last_os_error());
    std::io::stdout().write_all(&vec![b'x'; bytes]).expect("somebody reads");
}

fn hang() {
    println!("{}", std::process::id());
    pause();
}

/// Takes longer for an end by SIGTERM than processes get that PEs leave behind.
fn save() {
    let mut pmi = Client::join();
    let term = SigSet::from(Signal::SIGTERM);
    term.thread_block().unwrap();
    println!("ready");
    assert_eq!(term.wait(), Ok(Signal::SIGTERM));
    std::thread::sleep(std::time::Duration::from_millis(600));
    println!("saved");
    pmi.ask("cmd=finalize");
}

fn ignore(name: &str) {
    // SAFETY: installs no handler.
    unsafe { signal(name.parse::<Signal>().unwrap(), SigHandler::SigIgn) }.unwrap();
    hang();
}

/// The status board and the number of this PE, which is between `shmem_init` and `shmem_finalize`.
fn board() -> (Board, usize) {
    let number = |name: &str| std::env::var(name).unwrap().parse::<i32>().unwrap();
    let (pe, size) = (number("PMI_RANK") as usize, number("PMI_SIZE") as usize);
    // SAFETY: the descriptor was inherited for this purpose and nobody else here uses it.
    let fd = unsafe { OwnedFd::from_raw_fd(number("TOMBOLO_BOARD_FD")) };
    let board = Board::open(fd, size).unwrap();
    board.announce(pe, State::Running);
    (board, pe)
}

/// Goes on when a PE is lost: that one once it reads a line, or by what happens to it.
fn outlive(lost: &str) {
    let mut pmi = Client::join();
    let (board, pe) = board();
    pmi.barrier();
    if pe.to_string() == lost {
        println!("ready");
        if lost == "0" {
            std::io::stdin().read_line(&mut String::new()).unwrap();
            // SAFETY: a call without memory.
            unsafe { libc::raise(libc::SIGKILL) };
        }
        pause();
    }
    while !board.is_lost(lost.parse().unwrap()) {
        std::thread::sleep(std::time::Duration::from_millis(1));
    }
    pmi.barrier();
    board.announce(pe, State::Finished);
    pmi.ask("cmd=finalize");
    println!("PE {pe} goes on");
}

/// Waits in a barrier for a PE that is lost meanwhile: once PE 0, which it is, reads a line.
fn await_lost(lost: &str) {
    let mut pmi = Client::join();
    let (board, pe) = board();
    pmi.barrier();
    println!("ready");
    if pe.to_string() == lost {
        std::io::stdin().read_line(&mut String::new()).unwrap();
        // SAFETY: a call without memory.
        unsafe { libc::raise(libc::SIGKILL) };
    }
    pmi.barrier();
    board.announce(pe, State::Finished);
    pmi.ask("cmd=finalize");
    println!("PE {pe} goes on");
}

/// PE 0 copies its input, all others have none.
fn copy() {
    let mut pmi = Client::join();
    let count = std::io::copy(&mut std::io::stdin(), &mut std::io::stdout()).unwrap();
    assert!(pmi.rank == "0" || count == 0);
    pmi.ask("cmd=finalize");
}

/// Says on the status board that it waits, as the library does, and never returns.
fn blocked() {
    let (board, pe) = board();
    if pe > 0 {
        board.enter(pe, "shmem_barrier_all", 0, monotonic_ns());
    }
    hang();
}

/// Leaves a process behind that nothing but a search can find.
fn orphan() {
    let mut command = Command::new("sleep");
    command.arg("1000").stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    // SAFETY: setsid may be called between fork and exec.
    unsafe {
        command.pre_exec(|| {
            nix::unistd::setsid()?;
            Ok(())
        });
    }
    #[expect(clippy::zombie_processes, reason = "left behind on purpose")]
    let child = command.spawn().unwrap();
    println!("{}", child.id());
}

/// Long lines in pieces that do not end where lines end.
fn lines(count: &str) {
    let rank = std::env::var("PMI_RANK").unwrap();
    let text: String = (0..count.parse::<usize>().unwrap())
        .map(|line| format!("{rank} {line} {}\n", rank.repeat(100 + line % 50)))
        .collect();
    let mut out = std::io::stdout().lock();
    for piece in text.as_bytes().chunks(1000) {
        out.write_all(piece).unwrap();
        out.flush().unwrap();
    }
}

fn pause() {
    loop {
        nix::unistd::pause();
    }
}

struct Client {
    rank: String,
    stream: BufReader<UnixStream>,
}

struct Reply(String);

impl Client {
    fn join() -> Client {
        let fd = std::env::var("PMI_FD").expect("under a launcher").parse().unwrap();
        // SAFETY: the descriptor was inherited for this purpose and nobody else here uses it.
        let stream = unsafe { UnixStream::from_raw_fd(fd) };
        let rank = std::env::var("PMI_RANK").unwrap();
        let mut client = Client { rank, stream: BufReader::new(stream) };
        assert_eq!(client.ask("cmd=init pmi_version=1 pmi_subversion=1").word("rc"), "0");
        client
    }

    fn send(&mut self, line: &str) {
        // A launcher that has hung up says itself why.
        if self.stream.get_mut().write_all(format!("{line}\n").as_bytes()).is_err() {
            std::process::exit(3);
        }
    }

    fn ask(&mut self, line: &str) -> Reply {
        self.send(line);
        let mut reply = String::new();
        // A launcher that has hung up says itself why.
        if self.stream.read_line(&mut reply).unwrap_or(0) == 0 {
            std::process::exit(3);
        }
        Reply(reply.trim_end().to_owned())
    }

    fn barrier(&mut self) {
        assert_eq!(self.ask("cmd=barrier_in").0, "cmd=barrier_out rc=0");
    }
}

impl Reply {
    fn word(&self, name: &str) -> String {
        let mut pairs = self.0.split_whitespace().filter_map(|word| word.split_once('='));
        pairs.find(|(found, _)| *found == name).expect(&self.0).1.to_owned()
    }
}
