// SPDX-License-Identifier: Apache-2.0
//! The agents of a job on several machines: one on each, started by a command such as `ssh`, whose
//! standard input and output are the only connection to it. Nothing listens anywhere.
//!
//! ```text
//! oshrun --- ssh n1 ~~~ sshd --- oshrun --agent --- PEs of n1
//!        --- ssh n2 ~~~ sshd --- oshrun --agent --- PEs of n2
//! ```
//!
//! From [`TREE`](relays::TREE) hosts on, `oshrun` reaches some of them only, on which relays reach the others
//! ([`crate::relay`]): each machine starts about as many commands as the square root of their number. All
//! agents are equal to `oshrun`, which talks to some through a relay. Two levels do: 1,024 hosts take 32
//! commands on each, one after the other. With a relay go the hosts behind it: jobs that go on when hosts
//! are lost do without. A host that a relay cannot reach, for want of a key as it may be, `oshrun` reaches
//! itself.
//!
//! - No PE is started before all agents have answered: a machine that cannot be reached leaves no
//!   part of a job on the others.
//! - Both sides tell now and then that they are there. Who hears nothing for too long takes the
//!   other for lost.
//! - An agent whose standard input ends kills its PEs and ends.

mod line;
mod relays;
mod setting;
mod start;
mod streams;

pub use relays::RELAY;
use start::last_signal;
pub use start::{AGENT, SRUN_NAME, start, tie_to_parent};
pub use streams::{Window, streams_are_one};

use crate::signals::{self, Ended};
use crate::wire::{self, GREETING, GREETING_START, News, Order, Sender, Share, ToRelay};
use line::Line;
use nix::unistd::Pid;
use start::Caller;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use streams::{Input, Printer};
use tokio::time::Instant;

/// For the answer of a machine, when the command that is to reach it does not give up itself.
const CONNECT: Duration = Duration::from_secs(30);
/// Between the end of an agent's output and that of the command that has started it, which may tell
/// why.
const EXPLAIN: Duration = Duration::from_secs(1);
/// Between the end of the command and that of its output, which others may hold open.
const DRAIN: Duration = Duration::from_secs(5);
/// After SIGKILL, for an agent of which nothing is heard.
pub const SILENT: Duration = Duration::from_secs(3);
/// For what is to be sent before this process is stopped.
const FLUSH: Duration = Duration::from_secs(1);

/// The agents of a job.
pub struct Fleet {
    caller: Caller,
    agents: Vec<Agent>,
    relays: Vec<Relay>,
    /// What is to be given to the agents once all have answered.
    shares: Vec<Share>,
    /// Longest silence of an agent.
    silence: Duration,
    beat_at: Instant,
    printer: Option<Printer>,
    input: Option<Input>,
    /// Process group of the job.
    group: Pid,
}

/// What reaches some of the hosts for us.
struct Relay {
    /// The host on which it runs, of which it has the agent as well.
    host: usize,
    orders: Sender<ToRelay>,
}

struct Agent {
    /// The command that has started it: "ssh".
    command: String,
    /// That command, or the one that has started its relay, where it is a child of ours.
    pid: Option<Pid>,
    /// The relay that has started it, if one has.
    relay: Option<usize>,
    phase: Phase,
    orders: Line,
    heard: Instant,
    /// It has started its PEs.
    has_pes: bool,
    /// All its PEs are between `shmem_init` and `shmem_finalize`.
    running: bool,
    /// All of its output was taken.
    drained: bool,
    /// How the command has ended.
    status: Option<ExitStatus>,
    /// What the command has said before the agent answered, once it has said all.
    said: Option<String>,
    /// When to find the agent lost, its output or the command having ended.
    ended_at: Option<Instant>,
    /// What is wrong with what it has sent.
    wrong: Option<String>,
    /// It has answered: what the command says from now on is printed at once.
    answered: Arc<AtomicBool>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// Has not answered.
    Called,
    /// Waits for its share of the job.
    Answered,
    Started,
    /// Has no PEs any more and has told everything.
    Done,
    /// Cannot be reached.
    Gone,
}

/// What arrives from an agent, or becomes of the command that has started it.
pub enum Event {
    Greeting(String),
    News(News),
    /// The agent sends something wrong.
    Wrong(String),
    /// Its output has ended.
    End,
    /// The command has said this before the agent answered, and will say no more.
    Said(String),
    /// The command, which a relay has run, has ended.
    Ended(ExitStatus),
}

/// A host that cannot be reached.
pub struct Loss {
    pub host: usize,
    /// "is lost: ...".
    pub why: String,
    /// It had PEs.
    pub started: bool,
    /// All of them were between `shmem_init` and `shmem_finalize`.
    pub running: bool,
}

impl Fleet {
    /// Whether no agent has anything left to do.
    pub fn is_over(&self) -> bool {
        self.agents.iter().all(|agent| matches!(agent.phase, Phase::Done | Phase::Gone))
    }

    /// Whether agents still have to answer.
    pub fn is_starting(&self) -> bool {
        !self.shares.is_empty()
    }

    /// Gives an order to all agents that have PEs.
    pub fn order(&mut self, order: &Order) {
        let mut behind = vec![vec![]; self.relays.len()];
        for (host, agent) in self.agents.iter().enumerate() {
            match agent.relay {
                _ if agent.phase != Phase::Started => {}
                Some(relay) => behind[relay].push(host),
                None => agent.orders.send(order.clone()),
            }
        }
        let addressed = self.relays.iter().zip(behind).filter(|(_, hosts)| !hosts.is_empty());
        for (relay, hosts) in addressed {
            relay.orders.send(match wire::encode(order) {
                Ok(bytes) => ToRelay::Data { hosts, bytes },
                // Its end is noticed.
                Err(_) => ToRelay::Drop { host: relay.host },
            });
        }
    }

    /// The job ends: agents that still have to answer are wanted no more.
    pub fn start_no_more(&mut self) {
        if self.is_starting() {
            self.shares.clear();
            for agent in &mut self.agents {
                agent.dismiss();
                // None of those behind a relay is wanted.
                agent.kill_command();
            }
        }
    }

    /// Takes an event; gives what it tells of PEs.
    pub fn take_event(&mut self, host: usize, event: Event) -> Option<News> {
        let agent = &mut self.agents[host];
        agent.heard = Instant::now();
        match event {
            Event::Greeting(line) => self.greet(host, &line),
            Event::Wrong(why) => agent.wrong = Some(why),
            Event::End => {
                agent.drained = true;
                agent.expect_end(EXPLAIN);
            }
            Event::Said(text) => agent.said = Some(text),
            Event::Ended(status) => {
                agent.status = Some(status);
                if agent.pid.is_some() {
                    // The command is that of the relay, which goes on and may say more.
                    agent.command = "its agent".into();
                    agent.said.get_or_insert_default();
                }
                agent.expect_end(DRAIN);
            }
            Event::News(News::Running(running)) => agent.running = running,
            Event::News(News::Output { stream, bytes }) => {
                if let Some(printer) = &self.printer {
                    printer.print(&agent.orders, stream, bytes);
                }
            }
            Event::News(News::InputTaken(bytes)) => {
                if let Some(input) = &self.input {
                    input.taken(bytes);
                }
            }
            // It kills them: the others may go on without.
            Event::News(News::Failed { text, .. }) if agent.has_pes => {
                agent.wrong = Some(format!("is lost: {text}"));
            }
            Event::News(news) => {
                match news {
                    News::Started(_) => agent.has_pes = true,
                    News::Done { .. } => {
                        agent.phase = Phase::Done;
                        agent.orders.close();
                    }
                    _ => {}
                }
                return Some(news);
            }
        }
        None
    }

    fn greet(&mut self, host: usize, line: &str) {
        let agent = &mut self.agents[host];
        if line != GREETING {
            let version = |line: &str| {
                let words = line.strip_prefix(GREETING_START).unwrap_or_default().split(' ');
                let told = words.zip(["", ", protocol ", ", build "]);
                told.map(|(word, what)| format!("{what}{word}")).collect::<String>()
            };
            agent.wrong = Some(format!(
                "has oshrun of version {}, and this is version {}; install the same on all hosts",
                version(line),
                version(GREETING)
            ));
            return;
        }
        agent.answered.store(true, Ordering::Relaxed);
        agent.phase = Phase::Answered;
        if self.agents.iter().all(|agent| agent.phase == Phase::Answered) {
            let now = Instant::now();
            let first =
                self.shares.iter().position(|share| share.pes.iter().any(|(pe, _)| *pe == 0));
            for (agent, share) in self.agents.iter_mut().zip(self.shares.drain(..)) {
                agent.orders.send(Order::Start(Box::new(share)));
                (agent.phase, agent.heard) = (Phase::Started, now);
            }
            let reader = first.map(|host| self.agents[host].orders.clone());
            self.input = reader.and_then(|orders| Input::start(orders, self.group));
        }
    }

    /// A child of ours has ended: a command that has started an agent?
    pub fn child_ended(&mut self, ended: &Ended) {
        if let Some(input) = &mut self.input {
            input.child_ended(ended.pid);
        }
        if let Some(agent) = self.agents.iter_mut().find(|agent| agent.pid == Some(ended.pid)) {
            agent.status = Some(ended.status);
            agent.expect_end(DRAIN);
        }
    }

    /// When to look after the agents next.
    pub fn next_deadline(&self) -> Option<Instant> {
        let now = Instant::now();
        let ends =
            (0..self.agents.len()).map(|host| self.agents[host].deadline(self.lost_at(host, now)));
        ends.flatten().chain([self.beat_at]).min()
    }

    /// When an agent with PEs counts as lost unless it is heard of before.
    fn lost_at(&self, host: usize, now: Instant) -> Instant {
        let agent = &self.agents[host];
        let relay = agent.relay.map(|relay| &self.agents[self.relays[relay].host]);
        let relay = relay.filter(|relay| relay.phase == Phase::Started);
        lost_at(agent.heard, relay.map(|relay| relay.heard), now, self.silence)
    }

    /// Tells the agents that this side is there, and finds out which of them are not.
    pub fn look(&mut self) -> Vec<Loss> {
        let now = Instant::now();
        if self.beat_at <= now {
            self.order(&Order::Beat);
            self.beat_at = now + beat(self.silence);
        }
        let mut losses = vec![];
        for host in 0..self.agents.len() {
            let lost_at = self.lost_at(host, now);
            let Some(why) = self.agents[host].loss(now, lost_at, self.silence) else { continue };
            if self.is_left_to_us(host)
                && let Ok(agent) = self.caller.call(host)
            {
                self.agents[host] = agent;
                continue;
            }
            let agent = &mut self.agents[host];
            let started = agent.phase == Phase::Started;
            losses.push(Loss { host, why, started, running: agent.running });
            agent.dismiss();
        }
        losses
    }

    /// Whether a relay that is well has failed to reach a host, and will tell no more of it.
    fn is_left_to_us(&self, host: usize) -> bool {
        let agent = &self.agents[host];
        let Some(relay) = agent.relay.map(|relay| self.relays[relay].host) else { return false };
        let has_failed = agent.phase == Phase::Called && agent.wrong.is_none();
        let is_well = self.agents[relay].ended_at.is_none();
        has_failed && is_well && agent.has_said_all() && relay != host && self.is_starting()
    }

    /// When to wait no longer for the agent of a host whose PEs were to be killed; never if it has ended.
    pub fn give_up_at(&self, host: usize, killing: Killing, has_pes: bool) -> Option<Instant> {
        let agent = &self.agents[host];
        let late = !matches!(agent.phase, Phase::Done | Phase::Gone);
        late.then(|| killing.give_up_at(agent.heard, self.silence, has_pes))
    }

    /// Waits no longer for an agent. Whether it still answers.
    pub fn give_up(&mut self, host: usize, now: Instant) -> bool {
        let agent = &mut self.agents[host];
        if !matches!(agent.phase, Phase::Done | Phase::Gone) {
            agent.dismiss();
        }
        quiet_at(agent.heard, self.silence) > now
    }

    /// This process is about to be stopped: waits until all orders are on their way.
    pub fn pause(&self) {
        self.input.iter().for_each(Input::pause);
        self.agents.iter().for_each(|agent| agent.orders.flush(FLUSH));
    }

    /// This process was stopped, and could not hear anything.
    pub fn wake(&mut self) {
        self.input.iter().for_each(Input::go_on);
        self.beat_at = Instant::now();
        self.agents.iter_mut().for_each(|agent| agent.heard = Instant::now());
    }

    /// Ends all connections; all output was handed over.
    pub fn close(&mut self) {
        self.input = None;
        self.printer = None;
        self.agents.iter().for_each(|agent| agent.orders.close());
        self.relays.iter().for_each(|relay| relay.orders.close());
    }
}

/// How often to say that one is there, so that being late once does no harm.
pub fn beat(silence: Duration) -> Duration {
    (silence / 4).min(Duration::from_secs(2))
}

/// PEs were to be killed.
#[derive(Clone, Copy)]
pub struct Killing {
    pub since: Instant,
    /// When PEs that still run then cannot be killed.
    pub until: Instant,
}

impl Killing {
    /// When to wait no longer for an agent that was `heard` of last. One that answers and has no PEs any more
    /// has output of theirs, which is taken as fast as it is read: there is no end to waiting for that.
    fn give_up_at(&self, heard: Instant, silence: Duration, has_pes: bool) -> Instant {
        let quiet_at = quiet_at(heard, silence).max(self.since + SILENT);
        if has_pes { quiet_at.min(self.until) } else { quiet_at }
    }
}

/// When an agent that was `heard` of last does not answer any more: it says now and then that it is there.
fn quiet_at(heard: Instant, silence: Duration) -> Instant {
    heard + (3 * beat(silence)).max(SILENT)
}

/// When an agent that was `heard` of last counts as lost. Behind a relay that is late itself it waits for
/// the verdict on that one: when a machine that reaches others fails, it is the one to name.
fn lost_at(heard: Instant, relay: Option<Instant>, now: Instant, silence: Duration) -> Instant {
    let late = relay.filter(|relay| *relay + 2 * beat(silence) <= now);
    late.map_or(heard, |relay| relay.max(heard)) + silence
}

impl Agent {
    fn expect_end(&mut self, within: Duration) {
        let at = Instant::now() + within;
        self.ended_at = Some(self.ended_at.map_or(at, |before| before.min(at)));
    }

    /// Ends the connection, and with it the agent.
    fn dismiss(&mut self) {
        self.phase = Phase::Gone;
        self.orders.close();
        match &self.orders {
            Line::Own(_) => self.kill_command(),
            Line::Behind { relay, host } => relay.send(ToRelay::Drop { host: *host }),
        }
    }

    fn kill_command(&self) {
        if let Some(pid) = self.pid.filter(|_| self.status.is_none()) {
            signals::send(pid, last_signal(&self.command));
        }
    }

    /// Whether nothing can be heard any more of the agent and the command that has started it.
    fn has_said_all(&self) -> bool {
        self.drained && self.status.is_some() && self.said.is_some()
    }

    fn deadline(&self, lost_at: Instant) -> Option<Instant> {
        let quiet = match self.phase {
            Phase::Called => Some(self.heard + CONNECT),
            Phase::Started => Some(lost_at),
            Phase::Answered => None,
            Phase::Done | Phase::Gone => return None,
        };
        quiet.into_iter().chain(self.ended_at).min()
    }

    /// Why the agent is lost, if it is.
    fn loss(&self, now: Instant, lost_at: Instant, silence: Duration) -> Option<String> {
        if matches!(self.phase, Phase::Done | Phase::Gone) {
            return None;
        }
        if let Some(wrong) = &self.wrong {
            return Some(wrong.clone());
        }
        if let Some(at) = self.ended_at {
            return (self.has_said_all() || at <= now).then(|| self.explain());
        }
        let what = &self.command;
        match self.phase {
            Phase::Called if self.heard + CONNECT <= now => {
                Some(format!("no answer from {what} within {} s", CONNECT.as_secs()))
            }
            Phase::Started if lost_at <= now => {
                Some(format!("is lost: nothing was heard of it for {} s", silence.as_secs_f64()))
            }
            _ => None,
        }
    }

    /// Why the connection has ended.
    fn explain(&self) -> String {
        let what = &self.command;
        let mut how = match self.status {
            None => format!("the connection through {what} has ended"),
            Some(status) => match (status.code(), status.signal()) {
                (Some(code), _) => format!("{what} ended with code {code}"),
                (_, signal) => {
                    format!("{what} was killed by {}", signals::describe(signal.unwrap_or(0)))
                }
            },
        };
        if let Some(said) = self.said.as_deref().filter(|said| !said.is_empty()) {
            how = format!("{how} and said: {said}");
        }
        match self.phase {
            Phase::Called => format!("cannot start oshrun there: {how}"),
            _ => format!("is lost: {how}"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_is_behind_a_silent_relay_is_not_lost_before_it() {
        let silence = Duration::from_secs(8);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        assert_eq!(lost_at(at(1), None, at(9), silence), at(9));
        // The relay was heard of later, and is silent since.
        assert_eq!(lost_at(at(1), Some(at(3)), at(9), silence), at(11));
        assert_eq!(lost_at(at(3), Some(at(1)), at(9), silence), at(11));
        // It is well: the agent alone is silent.
        assert_eq!(lost_at(at(1), Some(at(8)), at(9), silence), at(9));
    }

    #[test]
    fn agents_that_answer_are_waited_for() {
        let silence = Duration::from_secs(15);
        let begin = Instant::now();
        let at = |seconds| begin + Duration::from_secs(seconds);
        let killing = Killing { since: at(10), until: at(20) };
        let gives_up = |heard, has_pes| killing.give_up_at(at(heard), silence, has_pes);
        // Silent since before the kill, or since then.
        assert_eq!([gives_up(1, true), gives_up(1, false)], [at(13); 2]);
        assert_eq!([gives_up(12, true), gives_up(12, false)], [at(18); 2]);
        // It is well: PEs may take their time to die, and output may take any.
        assert_eq!([gives_up(19, true), gives_up(19, false)], [at(20), at(25)]);
        assert_eq!(gives_up(500, false), at(506));
    }
}
