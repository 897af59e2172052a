// SPDX-License-Identifier: Apache-2.0
//! `oshrun --agent --relay`: runs commands for an `oshrun` on another machine and passes their standard
//! streams on, so that one machine need not reach all others of a large job itself.
//!
//! ```text
//! oshrun --- ssh n1 ~~~ sshd --- relay --- oshrun --agent --- PEs of n1
//!                                      --- ssh n2 ~~~ sshd --- oshrun --agent --- PEs of n2
//! ```
//!
//! A relay knows nothing of jobs. It ends when all its commands have; when its standard input ends it
//! closes theirs, which ends the agents, and whatever happens to it, the kernel kills its commands.

use crate::agent;
use crate::fleet::{RELAY, tie_to_parent};
use crate::job::Ending;
use crate::report;
use crate::thread;
use crate::wire::{self, Errand, FromRelay, STALL, Sender, ToRelay};
use nix::errno::Errno;
use nix::sys::signal::Signal;
use nix::sys::wait::{Id, WaitPidFlag, waitid};
use nix::unistd::Pid;
use std::collections::HashMap;
use std::io::{BufReader, Read, Write};
use std::os::unix::process::{CommandExt, ExitStatusExt};
use std::process::{Child, ChildStdin, Command, Stdio};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, mpsc};
use std::time::Duration;

/// For commands to end when their standard input has.
const END: Duration = Duration::from_secs(5);
/// What is passed on at a time.
const BLOCK: usize = 64 << 10;

/// Whether the command line asks for a relay.
pub fn is_wanted() -> bool {
    agent::is_wanted() && std::env::args_os().nth(2).is_some_and(|argument| argument == RELAY)
}

/// Runs what `oshrun` orders, until all of it has ended.
///
/// To be called in the first thread, and while there is no other: when it ends, the kernel kills the
/// commands.
pub fn run() -> Ending {
    match serve() {
        Ok(()) => Ending::Code(0),
        Err(why) => {
            report::line(format_args!("relay: {why}"));
            Ending::Code(2)
        }
    }
}

/// A command.
struct Running {
    child: Arc<Mutex<Child>>,
    /// Writes to its standard input; closed when this is dropped.
    input: Option<mpsc::Sender<Vec<u8>>>,
    /// It is another machine's, which a shell command such as `ssh` reaches.
    is_remote: bool,
}

impl Running {
    fn child(&self) -> MutexGuard<'_, Child> {
        self.child.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

fn serve() -> Result<(), String> {
    let (mut orders, news) = agent::connect()?;
    if !agent::is_greeted(&mut orders)? {
        return Ok(());
    }
    let mut orders = BufReader::new(orders);
    let errands = match wire::read::<ToRelay>(&mut orders)? {
        Some(ToRelay::Start(errands)) => errands,
        Some(_) => return Err("the first message does not say what to start".into()),
        None => return Ok(()),
    };
    let news = Sender::start(news);
    // Everybody who still has something to tell holds the sender.
    let (busy, ended) = mpsc::channel::<()>();
    let mut all: HashMap<usize, Running> = HashMap::new();
    for errand in &errands {
        match start(errand, &news, &busy) {
            Ok(running) => _ = all.insert(errand.host, running),
            Err(why) => refuse(errand, &why, &news),
        }
    }
    drop(busy);
    let events = watch(orders, ended);
    while let Ok(event) = events.recv() {
        match event {
            Event::Order(order) => obey(order, &mut all),
            Event::NoMoreOrders => {
                all.values_mut().for_each(|running| running.input = None);
                let _ = events.recv_timeout(END);
                break;
            }
            Event::AllHaveEnded => break,
        }
    }
    news.finish(STALL);
    Ok(())
}

enum Event {
    Order(ToRelay),
    NoMoreOrders,
    AllHaveEnded,
}

/// Waits in threads of their own: the first one must be there as long as the commands are.
fn watch(
    mut orders: impl Read + Send + 'static,
    ended: mpsc::Receiver<()>,
) -> mpsc::Receiver<Event> {
    let (sender, events) = mpsc::channel();
    let other = sender.clone();
    thread::start(move || {
        while let Ok(Some(order)) = wire::read::<ToRelay>(&mut orders) {
            let _ = sender.send(Event::Order(order));
        }
        let _ = sender.send(Event::NoMoreOrders);
    });
    thread::start(move || {
        // Nobody ever sends anything.
        let _ = ended.recv();
        let _ = other.send(Event::AllHaveEnded);
    });
    events
}

fn obey(order: ToRelay, all: &mut HashMap<usize, Running>) {
    match order {
        // They are all there from the beginning.
        ToRelay::Start(_) => {}
        ToRelay::Data { hosts, bytes } => {
            for running in hosts.iter().filter_map(|host| all.get(host)) {
                if let Some(input) = &running.input {
                    let _ = input.send(bytes.clone());
                }
            }
        }
        ToRelay::Close { host } => {
            if let Some(running) = all.get_mut(&host) {
                running.input = None;
            }
        }
        ToRelay::Drop { host } => {
            if let Some(running) = all.get_mut(&host) {
                running.input = None;
                // An agent of this machine ends with its input, and its PEs with it.
                if running.is_remote {
                    // Fails if it has ended.
                    let _ = running.child().kill();
                }
            }
        }
    }
}

/// Runs a command whose streams are passed on.
fn start(
    errand: &Errand,
    news: &Sender<FromRelay>,
    busy: &mpsc::Sender<()>,
) -> std::io::Result<Running> {
    let Some((program, arguments)) = errand.command.split_first() else {
        return Err(std::io::Error::other("there is no command"));
    };
    let mut command = Command::new(program);
    command.args(arguments).stdin(Stdio::piped()).stdout(Stdio::piped()).process_group(0);
    // What an agent of this machine says leaves as what is said here.
    command.stderr(if errand.is_remote { Stdio::piped() } else { Stdio::inherit() });
    tie_to_parent(&mut command, Signal::SIGKILL);
    let mut child = command.spawn()?;
    let (stdout, stderr) = (child.stdout.take().expect("piped"), child.stderr.take());
    let host = errand.host;
    pass_on(stdout, news.clone(), busy.clone(), host, false);
    if let Some(stderr) = stderr {
        pass_on(stderr, news.clone(), busy.clone(), host, true);
    }
    let input = write_to(child.stdin.take().expect("piped"));
    let running = Running {
        child: Arc::new(Mutex::new(child)),
        input: Some(input),
        is_remote: errand.is_remote,
    };
    let (child, news, busy) = (running.child.clone(), news.clone(), busy.clone());
    thread::start(move || {
        await_end(&child, host, &news);
        drop(busy);
    });
    Ok(running)
}

/// Tells of a command that cannot be run as if it had run and failed.
fn refuse(errand: &Errand, why: &std::io::Error, news: &Sender<FromRelay>) {
    let host = errand.host;
    let program = errand.command.first().map(|program| program.to_string_lossy());
    let text = format!("cannot run '{}': {why}\n", program.unwrap_or_default());
    for (is_error, bytes) in [(true, text.into_bytes()), (true, vec![]), (false, vec![])] {
        news.send(FromRelay::Data { host, is_error, bytes });
    }
    news.send(FromRelay::Ended { host, status: 127 << 8 });
}

fn await_end(child: &Mutex<Child>, host: usize, news: &Sender<FromRelay>) {
    let lock = || child.lock().unwrap_or_else(PoisonError::into_inner);
    let pid = Pid::from_raw(lock().id() as i32);
    // Its number stays its own until the status is taken, under the lock: nobody else is killed.
    while let Err(Errno::EINTR) = waitid(Id::Pid(pid), WaitPidFlag::WEXITED | WaitPidFlag::WNOWAIT)
    {
    }
    if let Ok(status) = lock().wait() {
        news.send(FromRelay::Ended { host, status: status.into_raw() });
    }
}

/// Passes on what a command writes, and then that there will be no more.
fn pass_on(
    mut from: impl Read + Send + 'static,
    news: Sender<FromRelay>,
    busy: mpsc::Sender<()>,
    host: usize,
    is_error: bool,
) {
    thread::start(move || {
        let mut block = vec![0; BLOCK];
        loop {
            let count = match from.read(&mut block) {
                Ok(count) => count,
                Err(error) if error.kind() == std::io::ErrorKind::Interrupted => continue,
                Err(_) => 0,
            };
            let bytes = block[..count].to_vec();
            news.send(FromRelay::Data { host, is_error, bytes });
            if count == 0 {
                return drop(busy);
            }
            // What cannot leave yet stays with who writes it: a timeline may be longer than memory has room for.
            news.flush_all();
        }
    });
}

/// Writes in a thread of its own: a command may stall.
fn write_to(mut to: ChildStdin) -> mpsc::Sender<Vec<u8>> {
    let (sender, blocks) = mpsc::channel::<Vec<u8>>();
    thread::start(move || {
        for block in blocks {
            if to.write_all(&block).is_err() {
                return;
            }
        }
    });
    sender
}

#[cfg(test)]
mod tests {
    use super::*;

    fn errand(host: usize, line: &str) -> Errand {
        let command = line.split(' ').map(Into::into).collect();
        Errand { host, command, is_remote: true }
    }

    #[test]
    fn streams_and_ends_of_commands_are_passed_on() {
        let (reader, writer) = std::io::pipe().unwrap();
        let (news, (busy, ended)) = (Sender::start(writer), mpsc::channel());
        let mut all = HashMap::new();
        for errand in [errand(3, "cat"), errand(4, "ls /no/such/place")] {
            all.insert(errand.host, start(&errand, &news, &busy).unwrap());
        }
        let none = errand(5, "/no/such/program");
        refuse(&none, &start(&none, &news, &busy).err().unwrap(), &news);
        drop(busy);
        obey(ToRelay::Data { hosts: vec![3, 4, 9], bytes: b"words".to_vec() }, &mut all);
        obey(ToRelay::Close { host: 3 }, &mut all);
        ended.recv_timeout(Duration::from_secs(20)).unwrap_err();
        drop(news);
        let mut from = std::fs::File::from(std::os::fd::OwnedFd::from(reader));
        let (mut said, mut codes) = (HashMap::<_, Vec<u8>>::new(), HashMap::new());
        while let Some(news) = wire::read::<FromRelay>(&mut from).unwrap() {
            match news {
                FromRelay::Data { host, is_error, bytes } => {
                    said.entry((host, is_error)).or_default().extend(bytes);
                }
                FromRelay::Ended { host, status } => _ = codes.insert(host, status >> 8),
            }
        }
        assert_eq!(said[&(3, false)], b"words");
        assert!(String::from_utf8_lossy(&said[&(4, true)]).contains("/no/such/place"));
        assert!(said[&(5, true)].starts_with(b"cannot run '/no/such/program': No such file"));
        assert_eq!((codes[&3], codes[&4], codes[&5]), (0, 2, 127));
    }
}
