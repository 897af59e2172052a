//! A client of the PMI-1 wire protocol: one line of `key=value` words per message over the
//! descriptor in `PMI_FD`.

use super::Bootstrap;
use crate::error::{Error, Result};
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Write};
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd};
use std::os::unix::net::UnixStream;
use std::sync::Mutex;
use std::time::Duration;

/// A connection to a PMI-1 launcher.
pub struct Pmi1 {
    pe: usize,
    n_pes: usize,
    wire: Mutex<Wire>,
    socket: i32,
    /// Longest wait for an answer, but at the end.
    timeout: Duration,
}

struct Wire {
    stream: BufReader<UnixStream>,
    kvs: String,
    value_max: usize,
    round: u32,
    finalized: bool,
}

/// Largest job accepted; a launcher that says more is not believed.
const PES_MAX: usize = 1 << 20;

impl Pmi1 {
    /// Takes over the connection named by `PMI_FD`, `PMI_RANK` and `PMI_SIZE`. Waits for an answer
    /// no longer than `timeout`.
    pub fn connect(timeout: Duration) -> Result<Pmi1> {
        let number = |name: &str| -> Result<usize> {
            let text = std::env::var(name)
                .map_err(|_| Error::Bootstrap(format!("PMI_FD is set but {name} is not")))?;
            text.trim().parse().map_err(|_| {
                Error::Bootstrap(format!("{name}='{text}' is not a number a launcher would set"))
            })
        };
        let fd = number("PMI_FD")? as i32;
        let (pe, n_pes) = (number("PMI_RANK")?, number("PMI_SIZE")?);
        if pe >= n_pes || n_pes > PES_MAX {
            return Err(Error::Bootstrap(format!("launcher says PE {pe} of {n_pes}")));
        }
        // SAFETY: only asks about the descriptor. A program started by a PE inherits the variable
        // but not the descriptor, which is closed on exec below.
        let flags = unsafe { libc::fcntl(fd, libc::F_GETFD) };
        if flags < 0 {
            return Err(Error::Bootstrap(format!(
                "PMI_FD={fd} is not open: this program was started by a process of another job; \
                 start it with oshrun, or clear PMI_FD to run it as one PE"
            )));
        }
        // SAFETY: the descriptor is open, and the launcher passed it for this use alone.
        let stream = unsafe {
            libc::fcntl(fd, libc::F_SETFD, flags | libc::FD_CLOEXEC);
            UnixStream::from(OwnedFd::from_raw_fd(fd))
        };
        let timeout = timeout.max(Duration::from_secs(1));
        let socket = stream.as_raw_fd();
        let mut wire = Wire {
            stream: BufReader::new(stream),
            kvs: String::new(),
            value_max: 0,
            round: 0,
            finalized: false,
        };
        // A launcher that waits for other PEs answers late; only a dead one never does.
        wire.limit(Some(timeout))?;
        wire.ask("cmd=init pmi_version=1 pmi_subversion=1", "response_to_init")?;
        let maxes = wire.ask("cmd=get_maxes", "maxes")?;
        wire.value_max = maxes.get("vallen_max").and_then(|t| t.parse().ok()).unwrap_or(256);
        let name = wire.ask("cmd=get_my_kvsname", "my_kvsname")?;
        wire.kvs = name.get("kvsname").cloned().unwrap_or_default();
        Ok(Pmi1 { pe, n_pes, wire: Mutex::new(wire), socket, timeout })
    }

    fn wire(&self) -> std::sync::MutexGuard<'_, Wire> {
        self.wire.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
    }
}

impl Bootstrap for Pmi1 {
    fn pe(&self) -> usize {
        self.pe
    }

    fn n_pes(&self) -> usize {
        self.n_pes
    }

    fn allgather(&self, mine: &[u8]) -> Result<Vec<Vec<u8>>> {
        let mut wire = self.wire();
        wire.round += 1;
        let round = wire.round;
        wire.publish(round, self.pe, mine)?;
        wire.barrier()?;
        (0..self.n_pes)
            .map(|pe| if pe == self.pe { Ok(mine.to_vec()) } else { wire.fetch(round, pe) })
            .collect()
    }

    fn barrier(&self) -> Result<()> {
        self.wire().barrier()
    }

    fn barrier_at_end(&self) -> Result<()> {
        let mut wire = self.wire();
        wire.limit(None)?;
        // A launcher that dies closes the connection, which ends this as well.
        let opened = wire.barrier();
        wire.limit(Some(self.timeout))?;
        opened
    }

    fn abort(&self, code: i32) {
        let mut wire = self.wire();
        let _ = wire.send(&format!("cmd=abort exitcode={code}"));
    }

    fn finalize(&self) {
        let mut wire = self.wire();
        if !wire.finalized {
            wire.finalized = true;
            let _ = wire.ask("cmd=finalize", "finalize_ack");
        }
    }

    fn is_alive(&self) -> bool {
        let mut poll = libc::pollfd { fd: self.socket, events: 0, revents: 0 };
        // SAFETY: one valid pollfd; the descriptor belongs to `self.wire`, which lives.
        let n = unsafe { libc::poll(&mut poll, 1, 0) };
        n == 0 || poll.revents & (libc::POLLHUP | libc::POLLERR | libc::POLLNVAL) == 0
    }

    fn launcher(&self) -> &str {
        "PMI-1"
    }
}

impl Wire {
    /// Sets the longest wait for an answer.
    fn limit(&mut self, time: Option<Duration>) -> Result<()> {
        self.stream
            .get_ref()
            .set_read_timeout(time)
            .map_err(|e| Error::system("setting up the connection to the launcher", e))
    }

    fn send(&mut self, line: &str) -> Result<()> {
        // MSG_NOSIGNAL is what the standard library uses: a dead launcher is an error, not SIGPIPE.
        self.stream
            .get_mut()
            .write_all(format!("{line}\n").as_bytes())
            .map_err(|e| Error::system("writing to the launcher", e))
    }

    /// Sends a request and reads its answer, which must be called `expected` and have no error.
    fn ask(&mut self, request: &str, expected: &str) -> Result<HashMap<String, String>> {
        self.send(request)?;
        let mut line = String::new();
        let read = self.stream.read_line(&mut line).map_err(|e| match e.kind() {
            std::io::ErrorKind::WouldBlock => Error::Bootstrap(format!(
                "no answer to '{request}' within SHMEM_START_TIMEOUT: another PE may not have \
                 called shmem_init"
            )),
            _ => Error::system("reading from the launcher", e),
        })?;
        if read == 0 {
            return Err(Error::Bootstrap("the launcher closed the connection".into()));
        }
        let words = parse(&line);
        let word = |key: &str| words.get(key).map(String::as_str);
        if word("cmd") != Some(expected) || !matches!(word("rc"), None | Some("0")) {
            let line = line.trim();
            return Err(Error::Bootstrap(format!("launcher answered '{line}' to '{request}'")));
        }
        Ok(words)
    }

    fn barrier(&mut self) -> Result<()> {
        self.ask("cmd=barrier_in", "barrier_out").map(drop)
    }

    /// Bytes of payload per value: hexadecimal digits take two characters a byte.
    fn piece(&self) -> usize {
        (self.value_max.saturating_sub(16) / 2).max(16)
    }

    /// Puts `bytes` under keys of this round; the first piece begins with the number of pieces.
    fn publish(&mut self, round: u32, pe: usize, bytes: &[u8]) -> Result<()> {
        let pieces: Vec<&[u8]> = bytes.chunks(self.piece()).collect();
        let count = pieces.len().max(1);
        for index in 0..count {
            let digits: String = pieces
                .get(index)
                .into_iter()
                .flat_map(|piece| piece.iter())
                .map(|byte| format!("{byte:02x}"))
                .collect();
            let head = if index == 0 { format!("{count}:") } else { String::new() };
            let kvs = &self.kvs;
            let request =
                format!("cmd=put kvsname={kvs} key=t{round}-{pe}-{index} value={head}{digits}");
            self.ask(&request, "put_result")?;
        }
        Ok(())
    }

    fn fetch(&mut self, round: u32, pe: usize) -> Result<Vec<u8>> {
        let broken = || Error::Bootstrap(format!("PE {pe} published something unreadable"));
        let mut bytes = Vec::new();
        let (mut index, mut count) = (0, 1);
        while index < count {
            let kvs = &self.kvs;
            let request = format!("cmd=get kvsname={kvs} key=t{round}-{pe}-{index}");
            let answer = self.ask(&request, "get_result")?;
            let mut text = answer.get("value").map(String::as_str).unwrap_or_default();
            if index == 0 {
                let (head, rest) = text.split_once(':').ok_or_else(broken)?;
                count = head.parse().map_err(|_| broken())?;
                text = rest;
            }
            if !text.is_ascii() || text.len() % 2 != 0 {
                return Err(broken());
            }
            for at in (0..text.len()).step_by(2) {
                bytes.push(u8::from_str_radix(&text[at..at + 2], 16).map_err(|_| broken())?);
            }
            index += 1;
        }
        Ok(bytes)
    }
}

fn parse(line: &str) -> HashMap<String, String> {
    line.split_whitespace()
        .filter_map(|word| word.split_once('='))
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    /// A client whose launcher answers a barrier after each of `delays`; `None`: never.
    fn client(timeout: Duration, delays: [Option<Duration>; 2]) -> Pmi1 {
        let (stream, launcher) = UnixStream::pair().unwrap();
        std::thread::spawn(move || {
            let mut requests = BufReader::new(launcher.try_clone().unwrap()).lines();
            for delay in delays {
                assert_eq!(requests.next().unwrap().unwrap(), "cmd=barrier_in");
                match delay {
                    Some(delay) => std::thread::sleep(delay),
                    None => return assert!(requests.next().is_none()),
                }
                (&launcher).write_all(b"cmd=barrier_out rc=0\n").unwrap();
            }
        });
        let socket = stream.as_raw_fd();
        let (stream, kvs) = (BufReader::new(stream), String::new());
        let mut wire = Wire { stream, kvs, value_max: 256, round: 0, finalized: false };
        wire.limit(Some(timeout)).unwrap();
        Pmi1 { pe: 0, n_pes: 1, wire: Mutex::new(wire), socket, timeout }
    }

    #[test]
    fn the_end_waits_as_long_as_others_compute_and_the_start_does_not() {
        let (limit, longer) = (Duration::from_millis(20), Duration::from_millis(200));
        let client = client(limit, [Some(longer), None]);
        client.barrier_at_end().unwrap();
        let late = client.barrier().unwrap_err().to_string();
        assert!(late.contains("SHMEM_START_TIMEOUT"), "{late}");
    }

    #[test]
    fn the_end_does_not_wait_for_a_launcher_that_is_gone() {
        let client = client(Duration::from_secs(3600), [Some(Duration::ZERO); 2]);
        client.barrier().unwrap();
        client.barrier_at_end().unwrap();
        assert!(client.barrier_at_end().is_err());
    }
}
