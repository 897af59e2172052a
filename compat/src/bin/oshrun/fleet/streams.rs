// SPDX-License-Identifier: Apache-2.0
//! What the PEs of other hosts print, and what PE 0 reads there.

use super::line::Line;
use super::start::tie_to_parent;
use crate::output::{Copied, Loss, same_file, write_all};
use crate::report;
use crate::thread;
use crate::wire::{Order, WINDOW};
use nix::sys::signal::Signal;
use nix::unistd::Pid;
use std::io::{self, Read};
use std::os::fd::AsFd;
use std::os::unix::process::CommandExt;
use std::process::{Command, Stdio};
use std::sync::{Arc, Condvar, Mutex, PoisonError, mpsc};
use tokio::sync::oneshot;

/// Whether our standard output and standard error are one file.
pub fn streams_are_one() -> bool {
    same_file(io::stdout().as_fd(), io::stderr().as_fd())
}

/// Prints what agents send, with a thread for each stream: a reader that stalls stalls nothing else.
/// Agents send no more than a window of output before they hear that it was printed.
pub struct Printer {
    streams: [mpsc::Sender<(Line, Vec<u8>)>; 2],
}

impl Printer {
    pub fn start() -> (Printer, Vec<Copied>) {
        let mut outcomes = vec![];
        let streams = [0, 1].map(|stream| {
            let (sender, blocks) = mpsc::channel();
            let (done, outcome) = oneshot::channel();
            outcomes.push(outcome);
            thread::start(move || _ = done.send(print(stream, &blocks)));
            sender
        });
        (Printer { streams }, outcomes)
    }

    /// Prints what an agent has sent, which is told when that is done.
    pub fn print(&self, agent: &Line, stream: u8, bytes: Vec<u8>) {
        // The thread ends with this value.
        let _ = self.streams[usize::from(stream.min(1))].send((agent.clone(), bytes));
    }
}

fn print(stream: u8, blocks: &mpsc::Receiver<(Line, Vec<u8>)>) -> Loss {
    let mut loss = Loss::default();
    let mut is_open = true;
    for (agent, bytes) in blocks {
        if is_open {
            let written = match stream {
                0 => write_all(io::stdout().as_fd(), &bytes),
                _ => write_all(io::stderr().as_fd(), &bytes),
            };
            is_open = loss.note(written);
        }
        match is_open {
            true => agent.send(Order::Credit { stream, bytes: bytes.len() }),
            // The PEs that go on writing find out.
            false => agent.send(Order::Close { stream }),
        }
    }
    loss
}

/// Bytes that may be sent before the other side has taken some.
pub struct Window {
    state: Mutex<State>,
    changed: Condvar,
}

struct State {
    under_way: usize,
    closed: bool,
}

impl Window {
    pub fn new() -> Arc<Window> {
        let state = Mutex::new(State { under_way: 0, closed: false });
        Arc::new(Window { state, changed: Condvar::new() })
    }

    /// Waits until `bytes` may be sent; false if they are not wanted any more.
    pub fn enter(&self, bytes: usize) -> bool {
        let state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        let full = |state: &mut State| !state.closed && state.under_way >= WINDOW;
        let mut state =
            self.changed.wait_while(state, full).unwrap_or_else(PoisonError::into_inner);
        state.under_way += bytes;
        !state.closed
    }

    /// The other side has taken some.
    pub fn leave(&self, bytes: usize) {
        let mut state = self.state.lock().unwrap_or_else(PoisonError::into_inner);
        state.under_way = state.under_way.saturating_sub(bytes);
        self.changed.notify_all();
    }

    /// Nothing is wanted any more.
    pub fn close(&self) {
        self.state.lock().unwrap_or_else(PoisonError::into_inner).closed = true;
        self.changed.notify_all();
    }
}

/// Our standard input, on its way to PE 0. It is read by a process in the job's group, because a
/// terminal lets no other group read.
pub struct Input {
    /// None once it has ended: its number may then be another process's.
    reader: Option<Pid>,
    window: Arc<Window>,
}

impl Input {
    /// Starts reading; `None` if that is not possible, which PE 0 takes for the end of its input.
    pub fn start(orders: Line, group: Pid) -> Option<Input> {
        let mut command = Command::new("cat");
        command.stdin(Stdio::inherit()).stdout(Stdio::piped()).stderr(Stdio::null());
        let setup = move || Ok(nix::unistd::setpgid(Pid::from_raw(0), group)?);
        // SAFETY: `setup` makes system calls only, which is all that may be done after a fork.
        unsafe { command.pre_exec(setup) };
        tie_to_parent(&mut command, Signal::SIGKILL);
        let mut child = match command.spawn() {
            Ok(child) => child,
            Err(error) => {
                let why = thread::reason(&error);
                report::line(format_args!(
                    "PE 0 gets no input: cannot run 'cat' to read it: {why}"
                ));
                orders.send(Order::Input(vec![]));
                return None;
            }
        };
        let reader = Some(Pid::from_raw(child.id() as i32));
        let mut from = child.stdout.take().expect("piped");
        let window = Window::new();
        let room = window.clone();
        thread::start(move || {
            let mut chunk = vec![0; 64 << 10];
            loop {
                let count = from.read(&mut chunk).unwrap_or(0);
                if !room.enter(count) {
                    return;
                }
                orders.send(Order::Input(chunk[..count].to_vec()));
                if count == 0 {
                    return;
                }
            }
        });
        Some(Input { reader, window })
    }

    /// Reads no more from a terminal that is the shell's now: a read that has begun would take the next line
    /// from it.
    pub fn pause(&self) {
        self.signal(Signal::SIGSTOP);
    }

    /// Reads on, if the terminal is the job's again.
    pub fn go_on(&self) {
        self.signal(Signal::SIGCONT);
    }

    fn signal(&self, signal: Signal) {
        self.reader.into_iter().for_each(|reader| crate::signals::send(reader, signal));
    }

    /// A child has ended, which may be the one that reads.
    pub fn child_ended(&mut self, child: Pid) {
        self.reader = self.reader.filter(|reader| *reader != child);
    }

    /// PE 0 has taken some.
    pub fn taken(&self, bytes: usize) {
        self.window.leave(bytes);
    }
}

impl Drop for Input {
    fn drop(&mut self) {
        self.window.close();
        self.signal(Signal::SIGKILL);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_window_holds_back_until_there_is_room_or_no_interest() {
        let window = Window::new();
        assert!(window.enter(WINDOW));
        let other = window.clone();
        let waiting = std::thread::spawn(move || [other.enter(WINDOW), other.enter(1)]);
        window.leave(WINDOW);
        window.close();
        assert!(!waiting.join().unwrap()[1]);
    }
}
