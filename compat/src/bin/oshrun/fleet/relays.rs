// SPDX-License-Identifier: Apache-2.0
//! Reaching many machines through some of them; see [`crate::relay`].

use super::line::Line;
use super::start::{AGENT, Caller, greeting, here, name_of};
use super::{Agent, Event, Relay};
use crate::spawn::Failure;
use crate::thread;
use crate::wire::{self, Errand, FromRelay, GREETING, Sender, ToRelay};
use nix::unistd::Pid;
use std::collections::{HashMap, HashSet};
use std::io::{self, BufReader, Read};
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::mpsc;

/// Has an agent be a relay instead.
pub const RELAY: &str = "--relay";

/// From so many machines on, relays reach some of them.
pub const TREE: usize = 16;

/// Divides machines into groups, of which the first member is reached from here and reaches the others; each is one
/// of its own where all are to be reached `directly`.
pub fn groups(hosts: &[usize], directly: bool) -> std::slice::Chunks<'_, usize> {
    let is_tree = hosts.len() >= TREE && !directly;
    let size = if is_tree { (hosts.len() as f64).sqrt().ceil() as usize } else { 1 };
    hosts.chunks(size)
}

impl Caller {
    /// Starts relay number `number` on the first of several machines, and the agents on all of them.
    pub fn call_relay(
        &self,
        group: &[usize],
        number: usize,
    ) -> Result<(Relay, Vec<Agent>), Failure> {
        let first = group[0];
        let mut command = self.there(first, &format!("{AGENT} {RELAY}"))?;
        let (child, stdin) = self.launch(&mut command, first)?;
        let pid = Pid::from_raw(child.id() as i32);
        let (what, mut stderr) = (name_of(&command), child.stderr);
        let relay = Relay { host: first, orders: Sender::start(stdin) };
        let errand = |host: &usize| {
            let is_remote = *host != first;
            let command = if is_remote { self.there(*host, AGENT)? } else { here(&self.own) };
            let words = std::iter::once(command.get_program()).chain(command.get_args());
            Ok(Errand { host: *host, command: words.map(Into::into).collect(), is_remote })
        };
        let errands = group.iter().map(errand).collect::<Result<_, Failure>>()?;
        relay.orders.send(ToRelay::Start(errands));
        let bytes = format!("{GREETING}\n").into_bytes();
        relay.orders.send(ToRelay::Data { hosts: group.to_vec(), bytes });
        let mut streams = HashMap::new();
        let mut stream = |host: usize, is_error: bool| {
            let (sender, blocks) = mpsc::channel();
            streams.insert((host, is_error), sender);
            Stream { blocks, block: io::Cursor::default() }
        };
        let agents = group.iter().map(|host| {
            let is_first = *host == first;
            let (command, pid) = match is_first {
                true => (what.clone(), Some(pid)),
                false => (format!("{what} on host {}", self.name(first)), None),
            };
            let line = Line::Behind { relay: relay.orders.clone(), host: *host };
            let agent = Agent::new(command, line, pid, Some(number));
            self.listen(*host, stream(*host, false));
            match stderr.take_if(|_| is_first) {
                Some(stderr) => self.hear(*host, stderr, &agent.answered),
                None => self.hear(*host, stream(*host, true), &agent.answered),
            }
            agent
        });
        let agents = agents.collect();
        let (stdout, tell) = (child.stdout.expect("piped"), self.tell());
        thread::start(move || {
            distribute(stdout, streams, |host, event| tell(host.unwrap_or(first), event));
        });
        Ok((relay, agents))
    }
}

/// What a command behind a relay writes to one of its streams.
struct Stream {
    blocks: mpsc::Receiver<Vec<u8>>,
    block: io::Cursor<Vec<u8>>,
}

impl Read for Stream {
    fn read(&mut self, to: &mut [u8]) -> io::Result<usize> {
        loop {
            match self.block.read(to)? {
                0 if !to.is_empty() => match self.blocks.recv() {
                    Ok(block) => self.block = io::Cursor::new(block),
                    Err(_) => return Ok(0),
                },
                count => return Ok(count),
            }
        }
    }
}

/// Takes what a relay sends until it ends or sends something wrong; streams that are left end then.
/// `tell` is told of hosts, or of that of the relay.
fn distribute(
    from: impl Read,
    mut streams: HashMap<(usize, bool), mpsc::Sender<Vec<u8>>>,
    tell: impl Fn(Option<usize>, Event),
) {
    let hosts: HashSet<usize> = streams.keys().map(|(host, _)| *host).collect();
    let mut from = BufReader::with_capacity(64 << 10, from);
    match greeting(&mut from) {
        Some(line) if line == GREETING => {}
        Some(line) => return tell(None, Event::Greeting(line)),
        None => return,
    }
    loop {
        match wire::read::<FromRelay>(&mut from) {
            Ok(Some(FromRelay::Data { host, is_error, bytes })) if bytes.is_empty() => {
                streams.remove(&(host, is_error));
            }
            Ok(Some(FromRelay::Data { host, is_error, bytes })) => {
                if let Some(stream) = streams.get(&(host, is_error)) {
                    let _ = stream.send(bytes);
                }
            }
            Ok(Some(FromRelay::Ended { host, status })) if hosts.contains(&host) => {
                tell(Some(host), Event::Ended(ExitStatus::from_raw(status)));
            }
            Ok(Some(FromRelay::Ended { .. })) => {}
            Ok(None) => return,
            Err(why) => {
                return tell(None, Event::Wrong(format!("is lost: its relay sends {why}")));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hosts_are_reached_in_two_levels() {
        let sizes = |count: usize, goes_on| -> Vec<usize> {
            let hosts: Vec<usize> = (0..count).collect();
            let groups = groups(&hosts, goes_on);
            assert_eq!(groups.clone().flatten().copied().collect::<Vec<_>>(), hosts);
            groups.map(<[usize]>::len).collect()
        };
        assert_eq!(sizes(15, false), [1; 15]);
        assert_eq!(sizes(16, false), [4; 4]);
        assert_eq!(sizes(17, false), [5, 5, 5, 2]);
        assert_eq!(sizes(1024, false), [32; 32]);
        assert_eq!(sizes(100, true), [1; 100]);
        assert!(sizes(0, false).is_empty());
    }

    #[test]
    fn what_a_relay_sends_reaches_those_it_is_from() {
        let ((out, from_out), (err, from_err)) = (mpsc::channel(), mpsc::channel());
        let streams = HashMap::from([((7, false), out), ((7, true), err)]);
        let data =
            |host, is_error, text: &str| FromRelay::Data { host, is_error, bytes: text.into() };
        let mut bytes = format!("noise\n{GREETING}\n").into_bytes();
        for frame in [
            data(7, false, "ab"),
            data(8, false, "of another host"),
            data(7, true, "error"),
            data(7, true, ""),
            FromRelay::Ended { host: 7, status: 3 << 8 },
            FromRelay::Ended { host: 8, status: 0 },
            data(7, false, "c"),
        ] {
            bytes.extend(wire::encode(&frame).unwrap());
        }
        bytes.extend([0xff; 8]);
        let told = std::cell::RefCell::new(vec![]);
        distribute(bytes.as_slice(), streams, |host, event| {
            told.borrow_mut().push(match event {
                Event::Ended(status) => format!("{host:?} {:?}", status.code()),
                Event::Wrong(why) => format!("{host:?} {why}"),
                _ => unreachable!("nothing else"),
            });
        });
        let text = |blocks| {
            let mut text = String::new();
            let mut stream = Stream { blocks, block: io::Cursor::default() };
            stream.read_to_string(&mut text).unwrap();
            text
        };
        assert_eq!((text(from_out), text(from_err)), ("abc".into(), "error".into()));
        let told = told.into_inner();
        assert_eq!(told[0], "Some(7) Some(3)");
        assert!(told[1].starts_with("None is lost: its relay sends a message of"), "{told:?}");
        assert_eq!(told.len(), 2);
    }
}
