// SPDX-License-Identifier: Apache-2.0
//! What `oshrun` and its agents tell each other, over the standard input and output of the command
//! that has started the agent.
//!
//! Each side begins with the line [`GREETING`]; whatever a remote shell prints before is skipped.
//! Frames follow: a length of 4 bytes, little endian, and an [`Order`] or [`News`] in postcard's format.
//!
//! A relay, which runs the commands that reach other agents, begins with the same line; its frames are
//! [`ToRelay`] and [`FromRelay`]. What an agent behind it says and hears are bytes in these.

use crate::options::{Bind, Program};
use crate::profile::{Counting, counted::Counted, events::Event};
use crate::report;
use crate::thread;
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use std::ffi::OsString;
use std::io::{self, Read, Write};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, mpsc};
use std::time::Duration;

/// The first line of each side: the version, a number that changes with what frames look like, and the build of the
/// library, so that hosts with another one are refused before a program starts.
pub const GREETING: &str =
    concat!("tombolo-agent ", env!("CARGO_PKG_VERSION"), " 5 ", env!("TOMBOLO_BUILD"));
/// How all of them begin, of whatever version.
pub const GREETING_START: &str = "tombolo-agent ";

/// Bytes of output of each stream, and of input, that may be under way.
pub const WINDOW: usize = 1 << 20;
/// No frame is longer: the largest hold a line of output, or what the PEs of a large job put before a barrier.
/// Where text comes in the place of a frame, its first bytes stand for a greater length.
const FRAME_MAX: usize = 160 << 20;
/// What is written at a time: its end is what tells a slow connection from one that stands still.
const BLOCK: usize = 16 << 10;
/// A connection on which not one block was written for so long stands still.
pub const STALL: Duration = Duration::from_secs(60);

/// What an agent needs to know of the job.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Share {
    /// Name of the key-value space.
    pub job: String,
    /// Number of PEs of the whole job.
    pub size: usize,
    /// Value of `PMI_process_mapping`.
    pub mapping: String,
    /// Programs of the whole job.
    pub programs: Vec<Program>,
    /// The PEs that this host gets: number, and index of the program.
    pub pes: Vec<(usize, usize)>,
    pub bind: Bind,
    pub label: bool,
    /// Standard output and error go to one file.
    pub joined: bool,
    pub setting: Setting,
    /// What PEs are to count, if anything.
    pub counting: Option<Counting>,
}

/// What all processes of a job inherit on one host, and are given on others.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Setting {
    pub environment: Vec<(OsString, OsString)>,
    pub directory: OsString,
    pub umask: u32,
    /// Soft limits by the kernel's numbers.
    pub limits: Vec<(u32, u64)>,
    /// Seconds of silence after which the other side counts as lost.
    pub silence: Duration,
}

/// What is told to the processes of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum Order {
    Start(Box<Share>),
    /// Send a signal to all PEs but one.
    Signal {
        signal: i32,
        but: Option<usize>,
    },
    /// Kill all PEs.
    Kill,
    /// These PEs are lost. If the others go on, mark them on the board and wait for them no more.
    Lose {
        pes: Vec<usize>,
        going_on: bool,
    },
    /// A PE of another host has left after so many barriers of all PEs. Tell those who look at the
    /// board, until the barrier opens.
    Leaving {
        pe: usize,
        barriers: u64,
    },
    /// The barrier is open, and this was put by all PEs before.
    Open(Vec<(String, String)>),
    /// Tell what each PE is doing.
    Report,
    /// This many bytes of standard output (0) or error (1) were written.
    Credit {
        stream: u8,
        bytes: usize,
    },
    /// Nobody reads this stream any more.
    Close {
        stream: u8,
    },
    /// Standard input of PE 0; empty at its end.
    Input(Vec<u8>),
    /// The other side is still there.
    Beat,
    /// There will be nothing to be heard until the next order.
    Silence,
}

/// What is told by the processes of a host.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum News {
    /// All PEs run, in the order of the share, under these process ids.
    Started(Vec<i32>),
    /// Not all PEs could be started: exit code and reason.
    Failed {
        code: u8,
        text: String,
    },
    /// These have ended, those that crashed first.
    Ended(Vec<End>),
    /// A PE can ask for nothing more, although it has not called `shmem_finalize`.
    NoContact {
        pe: usize,
        how: String,
        running: bool,
        /// Its process is ending, so there will be news of that.
        ending: bool,
    },
    /// A PE asks for the end of the job with this exit code.
    Abort {
        pe: usize,
        code: i32,
    },
    /// A PE has sent something wrong.
    Broken {
        pe: usize,
        why: String,
    },
    /// The first PE of this host has left, past the barrier of `shmem_finalize`, as the board tells.
    Leaving {
        pe: usize,
        barriers: u64,
    },
    /// All PEs of this host wait for the barrier to open, and have put this since the last one.
    Fence(Vec<(String, String)>),
    /// A PE waits for the barrier while another one of this host has ended.
    Stuck,
    /// Whether all PEs are between `shmem_init` and `shmem_finalize`, when this changes.
    Running(bool),
    /// What each PE is doing: number, process id, description.
    Report(Vec<(usize, i32, String)>),
    Output {
        stream: u8,
        bytes: Vec<u8>,
    },
    /// This much of the standard input was taken.
    InputTaken(usize),
    Beat,
    /// Events of a PE that has ended, of which the rest is still to come.
    Events {
        pe: usize,
        events: Vec<Event>,
    },
    /// What a PE that has ended has counted, but for events that were told before.
    Counted(Box<Counted>),
    /// Everything has ended and was told, but for processes that cannot be killed.
    Done {
        withstood: Vec<i32>,
    },
}

/// A command that a relay is to run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Errand {
    /// The host that it is for, as `oshrun` numbers them.
    pub host: usize,
    pub command: Vec<OsString>,
    /// It reaches another machine.
    pub is_remote: bool,
}

/// What is told to a relay.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum ToRelay {
    /// Run these; comes first, and once.
    Start(Vec<Errand>),
    /// This is for the standard input of the commands for these hosts.
    Data { hosts: Vec<usize>, bytes: Vec<u8> },
    /// That is all for the standard input of a command.
    Close { host: usize },
    /// A command is wanted no more.
    Drop { host: usize },
}

/// What a relay tells.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub enum FromRelay {
    /// A command has written this to its standard output or error; empty at the end.
    Data { host: usize, is_error: bool, bytes: Vec<u8> },
    /// A command has ended, as `waitpid` tells it.
    Ended { host: usize, status: i32 },
}

/// The end of a PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct End {
    pub pe: usize,
    /// As `waitpid` gives it.
    pub status: i32,
    /// Its last stage as a client of PMI.
    pub stage: crate::pmi::Stage,
    /// It was between the ends of `shmem_init` and `shmem_finalize`.
    pub running: bool,
    /// The first PE that it went on without because it could not reach it.
    pub missed: Option<usize>,
}

/// Reads the next frame; `None` at the end.
pub fn read<T: DeserializeOwned>(from: &mut impl Read) -> Result<Option<T>, String> {
    let mut length = [0; 4];
    let mut have = 0;
    while have < length.len() {
        match from.read(&mut length[have..]) {
            Ok(0) if have == 0 => return Ok(None),
            Ok(0) => return Err("a message that was cut off".into()),
            Ok(count) => have += count,
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => return Err(error.to_string()),
        }
    }
    let length = u32::from_le_bytes(length) as usize;
    if length > FRAME_MAX {
        return Err(format!("a message of {length} bytes, which is too long"));
    }
    // Memory grows with what arrives, not with what is announced.
    let mut bytes = vec![];
    match from.take(length as u64).read_to_end(&mut bytes) {
        Ok(count) if count == length => {}
        Ok(_) => return Err("a message that was cut off".into()),
        Err(error) => return Err(error.to_string()),
    }
    postcard::from_bytes(&bytes)
        .map(Some)
        .map_err(|e| format!("a message that cannot be read: {e}"))
}

/// A frame as bytes.
pub fn encode<T: Serialize>(frame: &T) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; 4];
    bytes = postcard::to_extend(frame, bytes).map_err(io::Error::other)?;
    let length = bytes.len() - 4;
    if length > FRAME_MAX {
        return Err(io::Error::other(format!("a message of {length} bytes is too long")));
    }
    bytes[..4].copy_from_slice(&(length as u32).to_le_bytes());
    Ok(bytes)
}

#[cfg(test)]
fn write<T: Serialize>(to: &mut impl Write, frame: &T) -> io::Result<()> {
    to.write_all(&encode(frame)?)
}

/// Sends frames, in order, from a thread of its own: the other side may stall.
pub struct Sender<T> {
    items: mpsc::Sender<Item<T>>,
    /// Blocks that were written.
    written: Arc<AtomicU64>,
}

enum Item<T> {
    Frame(T),
    Close,
    Flush(mpsc::Sender<()>),
}

impl<T> Clone for Sender<T> {
    fn clone(&self) -> Self {
        Sender { items: self.items.clone(), written: self.written.clone() }
    }
}

impl<T: Serialize + Send + 'static> Sender<T> {
    /// A thread that writes to `to` until told to close it, or the last sender is dropped.
    pub fn start(mut to: impl Write + Send + 'static) -> Sender<T> {
        let (sender, frames) = mpsc::channel();
        let written = Arc::new(AtomicU64::new(0));
        let count = written.clone();
        thread::start(move || {
            for item in frames {
                match item {
                    Item::Frame(frame) => {
                        let bytes = match encode(&frame) {
                            Ok(bytes) => bytes,
                            Err(why) => {
                                report::line(format_args!("cannot tell the other side: {why}"));
                                return;
                            }
                        };
                        for block in bytes.chunks(BLOCK) {
                            // The thread that reads from the other side notices its end.
                            if to.write_all(block).is_err() {
                                return;
                            }
                            count.fetch_add(1, Ordering::Relaxed);
                        }
                    }
                    Item::Close => return,
                    Item::Flush(done) => _ = done.send(()),
                }
            }
        });
        Sender { items: sender, written }
    }

    pub fn send(&self, frame: T) {
        // As above.
        let _ = self.items.send(Item::Frame(frame));
    }

    /// Closes the connection after all that was sent.
    pub fn close(&self) {
        let _ = self.items.send(Item::Close);
    }

    /// Waits until everything sent so far is written, but not for longer than `patience`.
    pub fn flush(&self, patience: Duration) {
        let _ = self.flushed().recv_timeout(patience);
    }

    /// Waits until everything sent so far is written, or cannot be any more.
    pub fn flush_all(&self) {
        let _ = self.flushed().recv();
    }

    /// The same, as long as bytes go: not once none was written for as long as `stall`.
    pub fn finish(&self, stall: Duration) {
        let flushed = self.flushed();
        let mut before = self.blocks_written();
        while let Err(mpsc::RecvTimeoutError::Timeout) = flushed.recv_timeout(stall) {
            let now = self.blocks_written();
            if now == before {
                return;
            }
            before = now;
        }
    }

    /// Grows as long as what is sent is written.
    pub fn blocks_written(&self) -> u64 {
        self.written.load(Ordering::Relaxed)
    }

    /// Where is told that everything sent so far is written; closed if that cannot be.
    fn flushed(&self) -> mpsc::Receiver<()> {
        let (done, written) = mpsc::channel();
        let _ = self.items.send(Item::Flush(done));
        written
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn frames_are_read_as_they_were_written() {
        let orders = [
            Order::Signal { signal: 15, but: Some(3) },
            Order::Input(vec![0, 255, 10]),
            Order::Open(vec![("key".into(), "value".into())]),
        ];
        let mut bytes = vec![];
        orders.iter().for_each(|order| write(&mut bytes, order).unwrap());
        let mut from = bytes.as_slice();
        for order in orders {
            assert_eq!(read::<Order>(&mut from), Ok(Some(order)));
        }
        assert_eq!(read::<Order>(&mut from), Ok(None));
    }

    #[test]
    fn what_is_no_frame_is_an_error() {
        let mut whole = vec![];
        write(&mut whole, &Order::Input(vec![7; 100])).unwrap();
        for cut in 1..whole.len() {
            assert!(read::<Order>(&mut &whole[..cut]).is_err(), "{cut}");
        }
        assert!(
            read::<Order>(&mut &b"hello, is this a shell?"[..]).unwrap_err().contains("too long")
        );
        let unknown = [1, 0, 0, 0, 200];
        assert!(read::<Order>(&mut &unknown[..]).unwrap_err().contains("cannot be read"));
    }

    /// A reader that takes little at a time is waited for, one that takes nothing is not.
    #[test]
    fn slow_readers_are_waited_for() {
        let (mut reader, writer) = io::pipe().unwrap();
        let sender = Sender::start(writer);
        sender.send(Order::Input(vec![7; 40 * BLOCK]));
        // A pipe holds a part of it.
        sender.finish(Duration::from_millis(10));
        assert!(sender.blocks_written() < 40);
        let reads = std::thread::spawn(move || {
            let mut taken = vec![0; BLOCK];
            let mut all = 0;
            while let Ok(count @ 1..) = reader.read(&mut taken) {
                all += count;
                std::thread::sleep(Duration::from_millis(20));
            }
            all
        });
        sender.finish(STALL);
        assert!(sender.blocks_written() >= 40);
        // It is gone: nothing is waited for.
        sender.close();
        assert!(reads.join().unwrap() > 40 * BLOCK);
        sender.send(Order::Beat);
        sender.flush_all();
        sender.finish(STALL);
    }

    mod garbage {
        use super::*;
        use proptest::prelude::*;

        /// Reads to the end or to the first error; what was read can be written.
        fn read_all<T: DeserializeOwned + Serialize>(mut from: &[u8]) {
            while let Ok(Some(frame)) = read::<T>(&mut from) {
                let _ = write(&mut io::sink(), &frame);
            }
        }

        proptest! {
            /// Whatever an agent, or what stands between, writes: no panic, and no more memory than
            /// came in bytes.
            #[test]
            fn garbage_from_agents_does_no_harm(
                bytes in prop::collection::vec(any::<u8>(), 0..300), framed: bool,
            ) {
                let mut whole = bytes;
                if framed {
                    let length = (whole.len() as u32).to_le_bytes();
                    whole.splice(..0, length);
                }
                read_all::<News>(&whole);
                read_all::<Order>(&whole);
                read_all::<FromRelay>(&whole);
                read_all::<ToRelay>(&whole);
            }

            /// Sound frames of which some bytes are others.
            #[test]
            fn garbage_in_frames_does_no_harm(
                input in prop::collection::vec(any::<u8>(), 0..50), signal: i32, count: usize,
                at in prop::collection::vec((any::<prop::sample::Index>(), any::<u8>()), 0..4),
            ) {
                let mut bytes = vec![];
                let pairs = vec![("key".to_owned(), "value".to_owned()); input.len()];
                for order in [Order::Input(input), Order::Signal { signal, but: Some(count) },
                    Order::Open(pairs), Order::Lose { pes: vec![count; 3], going_on: true }]
                {
                    write(&mut bytes, &order).unwrap();
                }
                for (index, byte) in at {
                    *index.get_mut(&mut bytes) = byte;
                }
                read_all::<Order>(&bytes);
                read_all::<News>(&bytes);
            }
        }
    }
}
