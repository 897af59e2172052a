// SPDX-License-Identifier: Apache-2.0
//! What the PEs print.
//!
//! - A stream that goes to a terminal, and the streams of a job of one PE, are handed to the PEs
//!   as they are: no copy, `isatty` tells the truth, a prompt appears at once.
//! - A stream that goes to a file, pipe or socket is collected by `oshrun` line by line, because
//!   C's standard output is written in blocks there, which would tear the lines of several PEs
//!   apart. So is everything with `--label`. Without it the beginning of a line, which may be a
//!   prompt, is passed on in a moment.
//! - With `--label`, a line that is too long to be kept together becomes several lines, each with its label: text
//!   of other PEs never stands in it.
//! - All other bytes are passed on as they are. Of one PE nothing is reordered; when standard output and
//!   error are the same file, not even between the two.
//! - When nobody reads any more, the PEs learn it as any process does: by SIGPIPE.
//! - What cannot be written for another reason, such as a full disk, is lost. That is told at once, the PEs
//!   go on, and the job ends with an error.
//! - On another host all of it is collected by the agent, which passes on whole lines.
//!
//! A thread per destination does the copying: a reader that stalls then stalls neither signals
//! nor the PMI server.

use crate::report;
use crate::thread;
use nix::errno::Errno;
use nix::poll::{PollFd, PollFlags, PollTimeout, poll};
use std::io::{self, IsTerminal, PipeReader, PipeWriter, Read};
use std::os::fd::{AsFd, BorrowedFd};
use std::os::unix::fs::MetadataExt;
use std::process::{Command, Stdio};
use std::time::{Duration, Instant};
use tokio::sync::oneshot;

/// How long the beginning of a line may wait for its rest, when lines have no labels.
const PROMPT: Duration = Duration::from_millis(100);
/// C writes to pipes in blocks of so many bytes. The rest of a line that the end of a block cuts stands in the
/// next block, however long that takes.
const C_BLOCK: usize = 4096;
/// Longest line that is kept together.
const LINE_MAX: usize = 1 << 20;
const CHUNK: usize = 64 << 10;

/// Where the streams of the PEs go.
pub struct Outlets {
    label: bool,
    /// Standard output and standard error; `None` where the PEs inherit ours.
    forwarders: [Option<Vec<Stream>>; 2],
    /// Both are one file: a PE gets one pipe for both.
    joined: bool,
}

struct Stream {
    pe: usize,
    pipe: PipeReader,
    /// The beginning of a line.
    pending: Vec<u8>,
    /// When to pass it on without the rest of the line.
    due: Option<Instant>,
}

impl Outlets {
    pub fn new(pes: usize, label: bool) -> Outlets {
        let (out, err) = (io::stdout(), io::stderr());
        let forwarded = |fd: BorrowedFd<'_>| label || (pes > 1 && tears_lines(fd));
        let forwarders =
            [forwarded(out.as_fd()), forwarded(err.as_fd())].map(|wanted| wanted.then(Vec::new));
        let joined = forwarders.iter().all(Option::is_some) && same_file(out.as_fd(), err.as_fd());
        Outlets { label, forwarders, joined }
    }

    /// Collects both streams of all PEs, as one if `joined`.
    pub fn collected(label: bool, joined: bool) -> Outlets {
        Outlets { label, forwarders: [Some(vec![]), Some(vec![])], joined }
    }

    /// Descriptors that forwarding for `pes` PEs keeps open.
    pub fn files(&self, pes: usize) -> usize {
        pes * self.forwarders.iter().flatten().count()
    }

    /// Connects the output of the PE that `command` will start.
    pub fn attach(&mut self, pe: usize, command: &mut Command) -> io::Result<()> {
        let [out, err] = &mut self.forwarders;
        let writer = out.as_mut().map(|streams| new_stream(pe, streams)).transpose()?;
        if self.joined {
            command.stderr(
                writer
                    .as_ref()
                    .map_or_else(|| Ok(Stdio::inherit()), |w| w.try_clone().map(Stdio::from))?,
            );
        } else if let Some(streams) = err {
            command.stderr(new_stream(pe, streams)?);
        }
        if let Some(writer) = writer {
            command.stdout(writer);
        }
        Ok(())
    }

    /// Starts copying to our own standard output and error; see [`Outlets::forward_to`].
    pub fn forward(self) -> Vec<Copied> {
        self.forward_to(|stream| {
            move |bytes: &[u8]| match stream {
                0 => write_all(io::stdout().as_fd(), bytes),
                _ => write_all(io::stderr().as_fd(), bytes),
            }
        })
    }

    /// Starts copying to what `make` gives for standard output (0) and error (1). What is returned
    /// completes when every stream has ended and all of it is written, or told to be lost.
    pub fn forward_to<W>(self, make: impl Fn(u8) -> W) -> Vec<Copied>
    where
        W: FnMut(&[u8]) -> io::Result<()> + Send + 'static,
    {
        let label = self.label;
        let destinations = self.forwarders.into_iter().zip(0..);
        let jobs = destinations.filter_map(|(streams, at)| Some((at, streams?)));
        jobs.filter(|(_, streams)| !streams.is_empty())
            .map(|(at, streams)| {
                let (done, outcome) = oneshot::channel();
                let mut to = make(at);
                thread::start(move || {
                    // The receiver is gone when the job was ended by force.
                    let _ = done.send(copy(streams, &mut to, label));
                });
                outcome
            })
            .collect()
    }
}

/// The end of the copying of a stream.
pub type Copied = oneshot::Receiver<Loss>;

/// Whether some output could not be written, of which people have been told.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loss(pub bool);

impl Loss {
    /// Takes note of what became of a write; false if nobody reads any more.
    pub fn note(&mut self, written: io::Result<()>) -> bool {
        match written {
            Ok(()) => true,
            Err(error) if error.kind() == io::ErrorKind::BrokenPipe => false,
            Err(error) => {
                if !std::mem::replace(&mut self.0, true) {
                    report::line(format_args!("cannot write the output of the PEs: {error}"));
                }
                true
            }
        }
    }
}

/// Whether standard output is a pipe or socket that nobody reads any more.
pub fn reader_is_gone() -> bool {
    let out = io::stdout();
    let mut fds = [PollFd::new(out.as_fd(), PollFlags::empty())];
    let polled = poll(&mut fds, PollTimeout::ZERO);
    let gone = PollFlags::POLLERR | PollFlags::POLLHUP;
    polled.is_ok_and(|n| n > 0) && fds[0].revents().is_some_and(|found| found.intersects(gone))
}

fn new_stream(pe: usize, streams: &mut Vec<Stream>) -> io::Result<PipeWriter> {
    let (pipe, writer) = io::pipe()?;
    streams.push(Stream { pe, pipe, pending: vec![], due: None });
    Ok(writer)
}

/// Files, pipes and sockets get blocks from several PEs; terminals get lines, /dev/null nothing.
fn tears_lines(fd: BorrowedFd<'_>) -> bool {
    let null = std::fs::metadata("/dev/null").map(|null| null.rdev()).ok();
    let device = nix::sys::stat::fstat(fd).map(|found| found.st_rdev).ok();
    !fd.is_terminal() && device.is_some_and(|device| Some(device) != null)
}

pub fn same_file(a: BorrowedFd<'_>, b: BorrowedFd<'_>) -> bool {
    let identity = |fd| nix::sys::stat::fstat(fd).map(|s| (s.st_dev, s.st_ino)).ok();
    identity(a).is_some() && identity(a) == identity(b)
}

/// Copies all streams to `to` until the last one ends. When nobody reads `to` any more the streams are
/// closed, and the PEs that go on writing find out.
fn copy(
    mut streams: Vec<Stream>,
    to: &mut impl FnMut(&[u8]) -> io::Result<()>,
    label: bool,
) -> Loss {
    let mut loss = Loss::default();
    let mut chunk = vec![0; CHUNK];
    let mut ready = Vec::new();
    while !streams.is_empty() {
        let due = streams.iter().filter_map(|stream| stream.due).min();
        let timeout = due.map_or(PollTimeout::NONE, |due| {
            // Milliseconds, rounded up.
            let time = due.saturating_duration_since(Instant::now()) + Duration::from_millis(1);
            time.try_into().unwrap_or(PollTimeout::MAX)
        });
        let mut fds: Vec<PollFd<'_>> =
            streams.iter().map(|s| PollFd::new(s.pipe.as_fd(), PollFlags::POLLIN)).collect();
        match poll(&mut fds, timeout) {
            Err(Errno::EINTR) => continue,
            Err(error) => {
                loss.note(Err(error.into()));
                return loss;
            }
            Ok(_) => {}
        }
        let readable: Vec<bool> = fds.iter().map(|fd| fd.any().unwrap_or(false)).collect();
        let mut readable = readable.into_iter();
        streams.retain_mut(|stream| {
            !readable.next().unwrap_or(false) || stream.advance(&mut chunk, &mut ready, label)
        });
        let now = Instant::now();
        let late = streams.iter_mut().filter(|stream| stream.due.is_some_and(|due| due <= now));
        late.for_each(|stream| stream.flush(&mut ready, label));
        if !loss.note(to(&ready)) {
            break;
        }
        ready.clear();
    }
    loss
}

impl Stream {
    /// Reads once and moves complete lines to `ready`; false when the stream has ended.
    fn advance(&mut self, chunk: &mut [u8], ready: &mut Vec<u8>, label: bool) -> bool {
        let count = match self.pipe.read(chunk) {
            Ok(count) => count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => return true,
            Err(_) => 0,
        };
        if count == 0 {
            self.flush(ready, label);
            return false;
        }
        let new = &chunk[..count];
        match new.iter().rposition(|byte| *byte == b'\n') {
            Some(last) => {
                self.pending.extend_from_slice(&new[..=last]);
                self.flush(ready, label);
                self.pending.extend_from_slice(&new[last + 1..]);
            }
            None => self.pending.extend_from_slice(new),
        }
        if self.pending.len() > LINE_MAX {
            match label {
                true => self.flush_pieces(ready),
                false => self.flush(ready, label),
            }
        }
        let is_cut = !self.pending.is_empty() && !count.is_multiple_of(C_BLOCK);
        if is_cut && !label {
            self.due.get_or_insert_with(|| Instant::now() + PROMPT);
        }
        true
    }

    /// Moves all that is pending to `ready`. With labels, the last line is ended where the PE has not done so: or
    /// the label of the next one would stand in the middle of it.
    fn flush(&mut self, ready: &mut Vec<u8>, label: bool) {
        if label {
            for line in self.pending.split_inclusive(|byte| *byte == b'\n') {
                let text = line.strip_suffix(b"\n").unwrap_or(line);
                if text.is_empty() {
                    self.add(text, ready);
                }
                text.chunks(LINE_MAX).for_each(|piece| self.add(piece, ready));
            }
        } else {
            ready.extend_from_slice(&self.pending);
        }
        self.pending.clear();
        self.due = None;
    }

    /// Moves the beginning of a line that is too long to `ready`, as lines of their own, and keeps the last piece.
    fn flush_pieces(&mut self, ready: &mut Vec<u8>) {
        let whole = (self.pending.len() - 1) / LINE_MAX * LINE_MAX;
        self.pending[..whole].chunks(LINE_MAX).for_each(|piece| self.add(piece, ready));
        self.pending.drain(..whole);
    }

    /// A line with its label.
    fn add(&self, text: &[u8], ready: &mut Vec<u8>) {
        ready.extend_from_slice(format!("[{}] ", self.pe).as_bytes());
        ready.extend_from_slice(text);
        ready.push(b'\n');
    }
}

/// Writes everything, also to a descriptor that someone has made non-blocking.
pub fn write_all(to: BorrowedFd<'_>, mut bytes: &[u8]) -> io::Result<()> {
    while !bytes.is_empty() {
        match nix::unistd::write(to, bytes) {
            Ok(count) => bytes = &bytes[count..],
            Err(Errno::EINTR) => {}
            Err(Errno::EAGAIN) => {
                let mut fds = [PollFd::new(to, PollFlags::POLLOUT)];
                poll(&mut fds, PollTimeout::NONE)?;
            }
            Err(error) => return Err(error.into()),
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    fn copied(label: bool, inputs: &[&[u8]]) -> Vec<u8> {
        let mut streams = vec![];
        for (pe, input) in inputs.iter().enumerate() {
            new_stream(pe, &mut streams).unwrap().write_all(input).unwrap();
        }
        let (mut result, to) = io::pipe().unwrap();
        let loss = copy(streams, &mut |bytes| write_all(to.as_fd(), bytes), label);
        assert_eq!(loss, Loss(false));
        drop(to);
        let mut bytes = vec![];
        result.read_to_end(&mut bytes).unwrap();
        bytes
    }

    #[test]
    fn lines_are_labelled_and_unfinished_ones_completed() {
        assert_eq!(copied(true, &[b"a\n\nb", b""]), b"[0] a\n[0] \n[0] b\n");
        let both = copied(true, &[b"x\n", b"y\n"]);
        assert!(both == b"[0] x\n[1] y\n" || both == b"[1] y\n[0] x\n");
    }

    #[test]
    fn lines_that_are_too_long_become_lines_with_labels() {
        for (len, pieces) in
            [(LINE_MAX, 1), (LINE_MAX + 1, 2), (2 * LINE_MAX, 2), (2 * LINE_MAX + 9, 3)]
        {
            for end in [&b""[..], b"\n", b"\nlast"] {
                let mut streams = vec![];
                let mut writers = [0, 1].map(|pe| new_stream(pe, &mut streams).unwrap());
                let input = [vec![b'x'; len], end.to_vec()].concat();
                let mut copied = vec![];
                std::thread::scope(|scope| {
                    scope.spawn(move || {
                        // The other PE has its say in the middle of the line.
                        let (first, rest) = input.split_at(LINE_MAX + CHUNK.min(len - LINE_MAX));
                        writers[0].write_all(first).unwrap();
                        writers[1].write_all(b"y\n").unwrap();
                        writers[0].write_all(rest).unwrap();
                    });
                    let mut to = |bytes: &[u8]| {
                        copied.extend_from_slice(bytes);
                        Ok(())
                    };
                    copy(streams, &mut to, true);
                });
                let mut lines: Vec<&[u8]> = copied.split(|byte| *byte == b'\n').collect();
                assert_eq!(lines.pop(), Some(&b""[..]), "the last line is ended");
                lines.retain(|line| *line != b"[1] y");
                if end.ends_with(b"last") {
                    assert_eq!(lines.pop(), Some(&b"[0] last"[..]));
                }
                assert_eq!(lines.len(), pieces, "{len}");
                let (last, full) = lines.split_last().unwrap();
                assert!(full.iter().all(|piece| piece.len() == 4 + LINE_MAX));
                let text: usize = lines.iter().map(|piece| piece.len() - 4).sum();
                assert!(text == len && last.iter().skip(4).all(|byte| *byte == b'x'));
                assert!(lines.iter().all(|piece| piece.starts_with(b"[0] ")));
            }
        }
    }

    #[test]
    fn bytes_pass_unchanged_without_labels() {
        let bytes: Vec<u8> = (0..20_000u32).map(|i| (i * 7 + i / 256) as u8).collect();
        assert_eq!(copied(false, &[&bytes]), bytes);
    }

    /// What `copy` has made of the streams so far, and the writers of two PEs.
    fn copying() -> (std::thread::JoinHandle<()>, Arc<Mutex<Vec<u8>>>, [PipeWriter; 2]) {
        let mut streams = vec![];
        let pes = [0, 1].map(|pe| new_stream(pe, &mut streams).unwrap());
        let copied = Arc::new(Mutex::new(vec![]));
        let to = copied.clone();
        let thread = std::thread::spawn(move || {
            let mut write = |bytes: &[u8]| {
                to.lock().unwrap().extend_from_slice(bytes);
                Ok(())
            };
            copy(streams, &mut write, false);
        });
        (thread, copied, pes)
    }

    fn wait_for(copied: &Mutex<Vec<u8>>, text: &str, mut meanwhile: impl FnMut()) {
        let begun = Instant::now();
        while !String::from_utf8_lossy(&copied.lock().unwrap()).contains(text) {
            assert!(begun.elapsed() < Duration::from_secs(30), "no '{text}'");
            meanwhile();
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn a_prompt_appears_while_others_print() {
        let (thread, copied, mut pes) = copying();
        pes[0].write_all(b"name? ").unwrap();
        wait_for(&copied, "name? ", || pes[1].write_all(b"a line\n").unwrap());
        drop(pes);
        thread.join().unwrap();
    }

    #[test]
    fn lines_that_blocks_cut_are_put_together() {
        let (thread, copied, mut pes) = copying();
        let line = [b"x".repeat(99), b"\n".to_vec()].concat();
        let text = line.repeat(2 * C_BLOCK / line.len() + 1);
        let (first, rest) = text.split_at(C_BLOCK);
        pes[0].write_all(first).unwrap();
        wait_for(&copied, "\n", || {});
        pes[1].write_all(b"name? ").unwrap();
        wait_for(&copied, "name? ", || {});
        pes[1].write_all(b"\n").unwrap();
        wait_for(&copied, "name? \n", || {});
        pes[0].write_all(rest).unwrap();
        drop(pes);
        thread.join().unwrap();
        let copied = copied.lock().unwrap();
        let torn = copied.split_inclusive(|byte| *byte == b'\n').find(|it| *it != line);
        assert_eq!(torn, Some(&b"name? \n"[..]));
        assert_eq!(copied.len(), text.len() + "name? \n".len());
    }

    #[test]
    fn a_reader_that_left_is_no_error() {
        let mut streams = vec![];
        new_stream(0, &mut streams).unwrap().write_all(b"line\n").unwrap();
        let (reader, to) = io::pipe().unwrap();
        drop(reader);
        assert_eq!(copy(streams, &mut |bytes| write_all(to.as_fd(), bytes), false), Loss(false));
    }

    #[test]
    fn what_cannot_be_written_is_lost_and_no_more() {
        let mut streams = vec![];
        let mut pe = new_stream(0, &mut streams).unwrap();
        pe.write_all(b"first\n").unwrap();
        let mut written = vec![];
        let loss = copy(
            streams,
            &mut |bytes| match bytes {
                b"first\n" => {
                    // Who writes on is not ended by it.
                    pe.write_all(b"second\n")?;
                    pe = io::pipe()?.1;
                    Err(Errno::ENOSPC.into())
                }
                bytes => {
                    written.extend_from_slice(bytes);
                    Ok(())
                }
            },
            false,
        );
        assert_eq!((loss, &*written), (Loss(true), &b"second\n"[..]));
    }
}
