// SPDX-License-Identifier: Apache-2.0
//! `oshrun --agent`: the part of a job on a machine that `oshrun` has reached by a command such as
//! `ssh`. Orders come from standard input, news go to standard output. When either ends, so does
//! everything here.

use crate::fleet::{AGENT, Window, beat};
use crate::host::{self, Host, Parent, Started};
use crate::job::{Ending, LEFT_BEHIND};
use crate::keeper::Launcher;
use crate::output::{Copied, Outlets};
use crate::profile::counted::Unread;
use crate::profile::events;
use crate::report;
use crate::signals::{self, Signals};
use crate::spawn::Failure;
use crate::thread;
use crate::wire::{self, GREETING, News, Order, STALL, Sender, Share};
use nix::unistd::alarm;
use std::cell::RefCell;
use std::fs::File;
use std::io::{self, BufReader, PipeReader, Read, Write};
use std::os::fd::AsFd;
use std::process::ChildStdin;
use std::rc::Rc;
use std::sync::{Arc, mpsc};
use std::time::Duration;
use tokio::io::unix::AsyncFd;
use tokio::sync::Notify;
use tokio::sync::mpsc::{UnboundedReceiver, unbounded_channel};
use tokio::sync::oneshot;
use tokio::time::{Instant, sleep_until};

/// For the job to be described, while other machines are still being reached.
const DESCRIBE: u32 = 120;
/// How often to look whether the PEs have come further.
const LOOK: Duration = Duration::from_millis(500);
/// Bytes of output in a frame, as long as no line is longer.
const BLOCK: usize = 256 << 10;

/// Whether the command line asks for an agent.
pub fn is_wanted() -> bool {
    std::env::args_os().nth(1).is_some_and(|argument| argument == AGENT)
}

/// Does what `oshrun` orders, until the job has ended.
pub async fn run(launcher: Launcher) -> Ending {
    let (mut orders, news) = match connect() {
        Ok(streams) => streams,
        Err(why) => return refuse(&why),
    };
    // Who has called may be gone without a word.
    alarm::set(DESCRIBE);
    let share = match greet(&mut orders) {
        Ok(Some(share)) => share,
        // The job was called off.
        Ok(None) => return Ending::Code(0),
        Err(why) => return refuse(&why),
    };
    alarm::cancel();
    if let Err(error) = signals::adopt_orphans() {
        return refuse(&format!("adopting orphans: {error}"));
    }
    let started = share.setting.apply().map_err(|text| Failure { code: 1, text });
    let started = started.and_then(|()| {
        let outlets = Outlets::collected(share.label, share.joined);
        let (group, mask) = (launcher.group, launcher.mask_before);
        let parent = Parent { group, mask, emulated: &|_| (None, None), piped_input: true };
        Host::start(&share, &parent, outlets)
    });
    let news = Sender::start(news);
    match started {
        Ok(started) => {
            let tasks = tokio::task::LocalSet::new();
            let agent = Agent::new(&share, started, orders, news);
            tasks.run_until(agent.serve(launcher.keeper)).await
        }
        Err(Failure { code, text }) => {
            signals::sweep(Duration::ZERO);
            news.send(News::Failed { code, text });
            news.send(News::Done { withstood: vec![] });
            news.finish(STALL);
            Ending::Code(code)
        }
    }
}

/// Standard input and output, on which the greeting was written.
pub fn connect() -> Result<(File, File), String> {
    let stdin = io::stdin().as_fd().try_clone_to_owned();
    let stdout = io::stdout().as_fd().try_clone_to_owned();
    let (orders, mut news) = match (stdin, stdout) {
        (Ok(stdin), Ok(stdout)) => (File::from(stdin), File::from(stdout)),
        (Err(error), _) | (_, Err(error)) => return Err(error.to_string()),
    };
    news.write_all(format!("{GREETING}\n").as_bytes()).map_err(|e| e.to_string())?;
    Ok((orders, news))
}

/// Takes the greeting; false if there is to be no job.
pub fn is_greeted(orders: &mut File) -> Result<bool, String> {
    let mut line = vec![];
    let mut byte = [0];
    while line.len() <= GREETING.len() {
        match orders.read(&mut byte) {
            Ok(0) if line.is_empty() => return Ok(false),
            Ok(1) if byte[0] != b'\n' => line.push(byte[0]),
            Ok(_) => break,
            Err(error) => return Err(error.to_string()),
        }
    }
    if line != GREETING.as_bytes() {
        return Err(format!(
            "expected '{GREETING}' on standard input and found '{}'; this is for oshrun itself to call",
            line.escape_ascii()
        ));
    }
    Ok(true)
}

/// Takes the greeting and the description of the job; `None` if there is to be none.
fn greet(orders: &mut File) -> Result<Option<Box<Share>>, String> {
    if !is_greeted(orders)? {
        return Ok(None);
    }
    match wire::read::<Order>(orders)? {
        Some(Order::Start(share)) => check(&share).map(|()| Some(share)),
        Some(_) => Err("the first message is not the description of the job".into()),
        None => Ok(None),
    }
}

fn check(share: &Share) -> Result<(), String> {
    let known = |&(pe, appnum): &(usize, usize)| pe < share.size && appnum < share.programs.len();
    match share.pes.iter().all(known) && share.size <= 1 << 20 {
        true => Ok(()),
        false => {
            Err("the description of the job names a PE or a program that it does not have".into())
        }
    }
}

fn refuse(why: &str) -> Ending {
    report::line(format_args!("agent: {why}"));
    Ending::Code(2)
}

struct Agent {
    host: Rc<RefCell<Host>>,
    news: Sender<News>,
    orders: UnboundedReceiver<Result<Order, String>>,
    changed: Rc<Notify>,
    outputs: Vec<Copied>,
    windows: [Arc<Window>; 2],
    /// What PE 0 is to read.
    input: Option<mpsc::Sender<Vec<u8>>>,
    silence: Duration,
    /// When the other side counts as lost, unless it has announced to be silent.
    lost_at: Option<Instant>,
    beat_at: Instant,
    /// Blocks of news that were written, and when they were last found to be more than before.
    advanced: (u64, Instant),
    running: bool,
}

impl Agent {
    fn new(share: &Share, started: Started, orders: File, news: Sender<News>) -> Agent {
        let Started { host, outlets, input } = started;
        news.send(News::Started(host.pids()));
        let windows = [Window::new(), Window::new()];
        let outputs = outlets.forward_to(|stream| {
            let (news, window) = (news.clone(), windows[usize::from(stream)].clone());
            move |bytes: &[u8]| send_output(&news, &window, stream, bytes)
        });
        let silence = share.setting.silence;
        Agent {
            host: Rc::new(RefCell::new(host)),
            orders: listen(orders),
            input: input.map(|pipe| feed(pipe, news.clone())),
            news,
            changed: Rc::new(Notify::new()),
            outputs,
            windows,
            silence,
            lost_at: Some(Instant::now() + silence),
            beat_at: Instant::now() + beat(silence),
            advanced: (0, Instant::now()),
            running: false,
        }
    }

    async fn serve(mut self, keeper: PipeReader) -> Ending {
        let signals = match Signals::new() {
            Ok(signals) => signals,
            Err(error) => return self.give_up(&format!("cannot take signals: {error}")),
        };
        // SAFETY: the AsyncFd owns the pipe, which stays open until it is dropped.
        let Ok(keeper) = (unsafe { AsyncFd::register(keeper) }) else {
            unreachable!("a pipe can be polled");
        };
        host::serve_all(&self.host, &self.changed);
        // A child may have ended before its signal could be read.
        self.host.borrow_mut().collect();
        let mut told: Option<tokio::task::JoinHandle<()>> = None;
        let mut withstood = vec![];
        loop {
            self.tell();
            if told.is_none() && self.host.borrow().is_over() {
                withstood = signals::sweep(LEFT_BEHIND).iter().map(|pid| pid.as_raw()).collect();
                told = Some(self.tell_the_rest());
            }
            if let Some(told) = &told {
                if told.is_finished() {
                    self.news.send(News::Done { withstood });
                    self.news.finish(STALL);
                    return Ending::Code(0);
                }
                if self.stands_still() {
                    let seconds = STALL.as_secs();
                    return self.give_up(&format!("its agent could tell nothing for {seconds} s"));
                }
            }
            let look = Instant::now() + LOOK;
            let deadline = self.lost_at.map_or(look, |at| at.min(look));
            tokio::select! {
                event = signals.next() => match event {
                    Ok(event) if signals::is_interrupt(event.signal) => {
                        return self.give_up(&format!("its agent was told to end by {}", event.signal));
                    }
                    Ok(_) => _ = self.host.borrow_mut().collect(),
                    Err(error) => return self.give_up(&format!("cannot take signals: {error}")),
                },
                order = self.orders.recv() => match order {
                    Some(Ok(order)) => self.obey(order),
                    Some(Err(why)) => return self.give_up(&format!("its agent received {why}")),
                    // Nobody is left to be told.
                    None => return self.give_up("oshrun has ended"),
                },
                () = self.changed.notified() => {}
                _ = keeper.readable() => return self.give_up("the process that watches its agent was killed"),
                () = sleep_until(deadline) => {}
            }
            if self.lost_at.is_some_and(|at| at <= Instant::now()) {
                let seconds = self.silence.as_secs_f64();
                return self.give_up(&format!("heard nothing of oshrun for {seconds} s"));
            }
        }
    }

    /// Tells what the PEs, which have ended, have printed and counted. This may take minutes, during which the
    /// other side is told that this one is there.
    fn tell_the_rest(&mut self) -> tokio::task::JoinHandle<()> {
        let (outputs, unread) =
            (std::mem::take(&mut self.outputs), self.host.borrow_mut().counted());
        let (news, changed) = (self.news.clone(), self.changed.clone());
        self.advanced = (self.news.blocks_written(), Instant::now());
        tokio::task::spawn_local(async move {
            for output in outputs {
                let _ = output.await;
            }
            let (done, told) = oneshot::channel();
            thread::start(move || {
                tell_counted(&unread, &news);
                let _ = done.send(());
            });
            let _ = told.await;
            changed.notify_one();
        })
    }

    /// Whether nothing was written for [`STALL`], although something is told all the time. While the other side
    /// is stopped, that is no wonder.
    fn stands_still(&mut self) -> bool {
        let written = self.news.blocks_written();
        if written != self.advanced.0 || self.lost_at.is_none() {
            self.advanced = (written, Instant::now());
        }
        self.advanced.1 + STALL <= Instant::now()
    }

    /// Tells what has happened.
    fn tell(&mut self) {
        let (news, running) = {
            let mut host = self.host.borrow_mut();
            (host.take_news(), host.is_running())
        };
        if running != self.running {
            self.running = running;
            self.news.send(News::Running(running));
        }
        news.into_iter().for_each(|news| self.news.send(news));
        if self.beat_at <= Instant::now() {
            self.beat_at = Instant::now() + beat(self.silence);
            self.news.send(News::Beat);
        }
    }

    fn obey(&mut self, order: Order) {
        // Threads of an oshrun that is about to stop may send these after it has announced that.
        let tells_nothing =
            matches!(order, Order::Credit { .. } | Order::Close { .. } | Order::Input(_));
        if self.lost_at.is_some() || !tells_nothing {
            self.lost_at = Some(Instant::now() + self.silence);
        }
        match order {
            Order::Credit { stream, bytes } => self.window(stream).leave(bytes),
            Order::Close { stream } => self.window(stream).close(),
            Order::Input(bytes) if bytes.is_empty() => self.input = None,
            Order::Input(bytes) => {
                if let Some(input) = &self.input {
                    let _ = input.send(bytes);
                }
            }
            Order::Silence => self.lost_at = None,
            order => self.host.borrow_mut().obey(order),
        }
    }

    fn window(&self, stream: u8) -> &Window {
        &self.windows[usize::from(stream.min(1))]
    }

    /// Kills all PEs, because the job cannot go on.
    fn give_up(&self, why: &str) -> Ending {
        self.news.send(News::Failed { code: 1, text: why.into() });
        self.host.borrow_mut().obey(Order::Kill);
        signals::sweep(Duration::ZERO);
        self.news.flush(Duration::from_millis(200));
        Ending::Code(1)
    }
}

/// Tells what PEs have counted, of one PE after the other: memory holds what is left of one.
fn tell_counted(unread: &[Unread], news: &Sender<News>) {
    for mut counted in unread.iter().filter_map(Unread::read) {
        let pe = counted.pe;
        events::cut(&mut counted).for_each(|events| news.send(News::Events { pe, events }));
        news.send(News::Counted(Box::new(counted)));
        news.flush_all();
    }
}

/// Reads orders in a thread of its own, until they end or one is wrong.
fn listen(orders: File) -> UnboundedReceiver<Result<Order, String>> {
    let (sender, receiver) = unbounded_channel();
    thread::start(move || {
        let mut orders = BufReader::new(orders);
        while let Some(order) = wire::read(&mut orders).transpose() {
            let last = order.is_err();
            if sender.send(order).is_err() || last {
                return;
            }
        }
    });
    receiver
}

/// Bytes after which a line that does not end goes in several blocks.
const LONGEST: usize = 16 << 20;

/// Sends output in blocks of whole lines, as fast as it is printed.
fn send_output(
    news: &Sender<News>,
    window: &Window,
    stream: u8,
    mut bytes: &[u8],
) -> io::Result<()> {
    while !bytes.is_empty() {
        let whole = |part: &[u8]| part.iter().rposition(|byte| *byte == b'\n').map(|at| at + 1);
        let end = match bytes.len() {
            ..=BLOCK => bytes.len(),
            _ => whole(&bytes[..BLOCK])
                .or_else(|| bytes.iter().position(|byte| *byte == b'\n').map(|at| at + 1))
                .unwrap_or(bytes.len())
                .min(LONGEST),
        };
        let (block, rest) = bytes.split_at(end);
        if !window.enter(block.len()) {
            return Err(io::ErrorKind::BrokenPipe.into());
        }
        news.send(News::Output { stream, bytes: block.to_vec() });
        bytes = rest;
    }
    Ok(())
}

/// Writes what is received to the standard input of PE 0, and tells what was taken.
fn feed(mut pipe: ChildStdin, news: Sender<News>) -> mpsc::Sender<Vec<u8>> {
    let (sender, blocks) = mpsc::channel::<Vec<u8>>();
    thread::start(move || {
        for block in blocks {
            // A program that does not read its input is none of our business.
            if pipe.write_all(&block).is_err() {
                return;
            }
            news.send(News::InputTaken(block.len()));
        }
    });
    sender
}
