// SPDX-License-Identifier: Apache-2.0
//! Clients against servers made of the messages that launchers were seen to send.

use super::*;
use proptest::prelude::*;
use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::os::unix::net::UnixStream;
use std::sync::{Arc, Barrier};
use std::thread::JoinHandle;

const SOON: Duration = Duration::from_millis(50);
const LONG: Duration = Duration::from_secs(30);

fn place(pe: usize, n_pes: usize) -> PmiEnvironment {
    PmiEnvironment { fd: -1, pe, n_pes, job: "5.0".into() }
}

fn join(
    stream: UnixStream,
    place: &PmiEnvironment,
    native: Wanted,
    timeout: Duration,
) -> Result<Pmi> {
    Pmi::connect(place, Wire::over(stream, timeout), Wanted::Auto, native, timeout)
}

/// A launcher of one process, which sends `answers`, one for each line it gets, and then keeps the
/// connection open until the process closes it. Gives the lines.
fn script(answers: &'static [&'static str]) -> (UnixStream, JoinHandle<Vec<String>>) {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = std::thread::spawn(move || {
        let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
        let mut heard = vec![];
        for answer in answers {
            match lines.next() {
                Some(Ok(line)) => heard.push(line),
                _ => return heard,
            }
            (&theirs).write_all(answer.as_bytes()).unwrap();
        }
        heard.extend(lines.map_while(|line| line.ok()));
        heard
    });
    (ours, server)
}

const INIT: &str = "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=0\n";
const MAXES: &str = "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024\n";
const NAME: &str = "cmd=my_kvsname rc=0 kvsname=kvs_1\n";

/// One PMI-2 server for all processes, as Slurm's plugin: the length to the left of its place, and
/// `rc` first; or as Hydra: to the right, and `rc` last.
struct Version2 {
    like_hydra: bool,
    pairs: Mutex<HashMap<String, String>>,
    fence: Barrier,
    n_pes: usize,
}

impl Version2 {
    fn serve(self: Arc<Self>, stream: UnixStream) {
        let mut reader = BufReader::new(stream.try_clone().unwrap());
        let mut line = String::new();
        reader.read_line(&mut line).unwrap();
        assert_eq!(line, "cmd=init pmi_version=2 pmi_subversion=0\n");
        let agreed = b"cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n";
        (&stream).write_all(agreed).unwrap();
        let mut pe = String::new();
        loop {
            let mut head = [0; 6];
            if reader.read_exact(&mut head).is_err() {
                return;
            }
            let length = std::str::from_utf8(&head).unwrap().trim().parse().unwrap();
            let mut body = vec![0; length];
            reader.read_exact(&mut body).unwrap();
            let body = String::from_utf8(body).unwrap();
            let get = |key: &str| {
                let mut pairs = body.split(';').filter_map(|pair| pair.split_once('='));
                pairs.find(|(found, _)| *found == key).map(|(_, value)| value.to_owned())
            };
            let (name, more) = match get("cmd").unwrap().as_str() {
                "fullinit" => {
                    pe = get("pmirank").unwrap();
                    ("fullinit", format!("pmi-version=2;rank={pe};size={};appnum=-1;", self.n_pes))
                }
                "job-getid" => ("job-getid", "jobid=5.0;".into()),
                "kvs-put" => {
                    let (key, value) = (get("key").unwrap(), get("value").unwrap());
                    assert!(key.len() < 64 && value.len() < 1024, "{key} {}", value.len());
                    self.pairs.lock().unwrap().insert(format!("{pe} {key}"), value);
                    ("kvs-put", String::new())
                }
                "kvs-fence" => {
                    self.fence.wait();
                    ("kvs-fence", String::new())
                }
                "kvs-get" => {
                    assert_eq!(get("jobid").unwrap(), "5.0");
                    let key = format!("{} {}", get("srcid").unwrap(), get("key").unwrap());
                    let found = self.pairs.lock().unwrap().get(&key).cloned();
                    let found = found.map(|value| format!("found=TRUE;value={value};"));
                    ("kvs-get", found.unwrap_or("found=FALSE;".into()))
                }
                "finalize" => ("finalize", String::new()),
                other => panic!("{other}"),
            };
            let answer = match self.like_hydra {
                true => format!("cmd={name}-response;{more}rc=0;"),
                false => format!("cmd={name}-response;rc=0;{more}"),
            };
            let framed = match self.like_hydra {
                true => format!("{:6}{answer}", answer.len()),
                false => format!("{:<6}{answer}", answer.len()),
            };
            (&stream).write_all(framed.as_bytes()).unwrap();
        }
    }
}

#[test]
fn pmi2_jobs_exchange_contributions_of_any_size() {
    for like_hydra in [false, true] {
        let n_pes = 3;
        let (pairs, fence) = (Mutex::default(), Barrier::new(n_pes));
        let server = Arc::new(Version2 { like_hydra, pairs, fence, n_pes });
        std::thread::scope(|scope| {
            for pe in 0..n_pes {
                let (ours, theirs) = UnixStream::pair().unwrap();
                let server = server.clone();
                scope.spawn(move || server.serve(theirs));
                scope.spawn(move || {
                    let pmi = join(ours, &place(pe, n_pes), Wanted::Pmi2, LONG).unwrap();
                    assert_eq!((pmi.launcher(), pmi.pe(), pmi.n_pes()), ("PMI-2", pe, n_pes));
                    for len in [0, 1, 5000] {
                        let of = |pe: usize| vec![pe as u8 ^ 0x3b; len * pe];
                        let all = pmi.allgather(&of(pe)).unwrap();
                        assert_eq!(all, (0..n_pes).map(of).collect::<Vec<_>>());
                    }
                    pmi.barrier_at_end().unwrap();
                    assert!(pmi.is_alive());
                    pmi.finalize();
                });
            }
        });
    }
}

#[test]
fn a_launcher_that_turns_a_version_down_is_asked_for_the_other() {
    let (stream, server) = script(&[
        "cmd=response_to_init pmi_version=1 pmi_subversion=1 rc=-1\n",
        INIT,
        MAXES,
        NAME,
        "cmd=barrier_out rc=0\n",
    ]);
    let pmi = join(stream, &place(0, 1), Wanted::Pmi2, LONG).unwrap();
    assert_eq!(pmi.launcher(), "PMI-1");
    pmi.barrier().unwrap();
    drop(pmi);
    let heard = server.join().unwrap();
    assert_eq!(heard[0], "cmd=init pmi_version=2 pmi_subversion=0");
    assert_eq!(heard[1], "cmd=init pmi_version=1 pmi_subversion=1");
    assert_eq!(heard[4], "cmd=barrier_in");
}

#[test]
fn a_launcher_of_neither_version_is_refused() {
    const NO: &str = "cmd=response_to_init pmi_version=3 pmi_subversion=0 rc=-1\n";
    for (wanted, says) in [(Wanted::Auto, "PMI-1 or PMI-2"), (Wanted::Pmi2, "SHMEM_PMI")] {
        let (stream, _server) = script(&[NO, NO]);
        let wire = Wire::over(stream, LONG);
        let refused = Pmi::connect(&place(0, 1), wire, wanted, Wanted::Pmi1, LONG);
        let error = refused.err().unwrap().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn values_come_together_where_the_launcher_says_so() {
    let (stream, server) = script(&[
        INIT,
        "cmd=maxes rc=0 kvsname_max=256 keylen_max=64 vallen_max=1024 get_several=1\n",
        NAME,
        "cmd=put_result rc=0 msg=success\n",
        "cmd=barrier_out rc=0\n",
        "cmd=get_several_result rc=0 values=1:0a,1:0b0c\n",
        "cmd=get_several_result rc=0 values=1:\n",
    ]);
    let pmi = join(stream, &place(0, 4), Wanted::Pmi1, LONG).unwrap();
    assert_eq!(pmi.allgather(&[9]).unwrap(), [vec![9], vec![10], vec![11, 12], vec![]]);
    drop(pmi);
    let heard = server.join().unwrap();
    assert_eq!(heard[5], "cmd=get_several kvsname=kvs_1 stem=t1-0- first=1");
    assert_eq!(heard[6], "cmd=get_several kvsname=kvs_1 stem=t1-0- first=3");
}

#[test]
fn the_end_waits_as_long_as_others_compute_and_the_start_does_not() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = std::thread::spawn(move || {
        let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
        for (answer, delay) in [(INIT, false), (MAXES, false), (NAME, false), ("out\n", true)] {
            lines.next().unwrap().unwrap();
            if delay {
                // Longer than the limit: what is tested is that it is not one here.
                std::thread::sleep(4 * SOON);
            }
            let answer = answer.replace("out\n", "cmd=barrier_out rc=0\n");
            (&theirs).write_all(answer.as_bytes()).unwrap();
        }
        lines.map_while(|line| line.ok()).count()
    });
    let mut pmi = join(ours, &place(0, 1), Wanted::Pmi1, LONG).unwrap();
    pmi.timeout = SOON;
    pmi.state().protocol.wire().limit(Some(SOON));
    pmi.barrier_at_end().unwrap();
    let late = pmi.barrier().unwrap_err().to_string();
    assert!(
        late.contains("some PEs did not call shmem_init") && late.contains("(SHMEM_START_TIMEOUT)"),
        "{late}"
    );
    drop(pmi);
    assert_eq!(server.join().unwrap(), 1);
}

/// As from a signal handler in `shmem_finalize`, or from another thread.
#[test]
fn a_job_is_ended_while_this_process_waits_for_pes_that_never_come() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let writer = theirs.try_clone().unwrap();
    let server = std::thread::spawn(move || {
        let mut lines = BufReader::new(writer.try_clone().unwrap()).lines();
        for answer in [INIT, MAXES, NAME] {
            lines.next().unwrap().unwrap();
            (&writer).write_all(answer.as_bytes()).unwrap();
        }
        lines
    });
    let pmi = join(ours, &place(0, 2), Wanted::Pmi1, LONG).unwrap();
    let mut lines = server.join().unwrap();
    std::thread::scope(|scope| {
        scope.spawn(|| assert!(pmi.barrier_at_end().is_err()));
        assert_eq!(lines.next().unwrap().unwrap(), "cmd=barrier_in");
        pmi.abort(9);
        assert_eq!(lines.next().unwrap().unwrap(), "cmd=abort exitcode=9");
        theirs.shutdown(std::net::Shutdown::Both).unwrap();
    });
}

#[test]
fn a_launcher_that_closes_the_connection_is_noticed_wherever_it_does() {
    const ANSWERS: [&str; 5] = [INIT, MAXES, NAME, "cmd=barrier_out rc=0\n", "cmd=barri"];
    for count in 0..=ANSWERS.len() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let server = std::thread::spawn(move || {
            let mut lines = BufReader::new(theirs.try_clone().unwrap()).lines();
            for answer in &ANSWERS[..count] {
                lines.next().unwrap().unwrap();
                (&theirs).write_all(answer.as_bytes()).unwrap();
            }
        });
        let error = match join(ours, &place(0, 1), Wanted::Pmi1, LONG) {
            Err(error) => error,
            Ok(pmi) => {
                let error = pmi.barrier().and_then(|()| pmi.barrier_at_end()).unwrap_err();
                assert!(!pmi.is_alive());
                error
            }
        };
        server.join().unwrap();
        assert!(error.to_string().contains("closed the connection"), "{count}: {error}");
    }
}

#[test]
fn a_launcher_that_dribbles_does_not_gain_time() {
    let (ours, theirs) = UnixStream::pair().unwrap();
    let server = std::thread::spawn(move || {
        while (&theirs).write_all(b"c").is_ok() {
            std::thread::sleep(SOON / 10);
        }
    });
    let late = join(ours, &place(0, 1), Wanted::Pmi1, SOON).err().unwrap().to_string();
    assert!(
        late.contains("the launcher did not answer") && late.contains("START_TIMEOUT"),
        "{late}"
    );
    server.join().unwrap();
}

#[test]
fn places_that_cannot_be_are_refused() {
    let parse = |fd: &str, rank: &str, size: &str| {
        PmiEnvironment::parse(&|name| match name {
            "PMI_FD" => Some(fd.to_owned()),
            "PMI_RANK" => Some(rank.to_owned()),
            "PMI_SIZE" => Some(size.to_owned()).filter(|size| !size.is_empty()),
            _ => None,
        })
    };
    assert_eq!(
        parse("7", "1", "2").unwrap(),
        PmiEnvironment { fd: 7, pe: 1, n_pes: 2, job: "".into() }
    );
    for (fd, rank, size, says) in [
        ("7", "2", "2", "PE 2 of 2"),
        ("7", "0", "0", "PE 0 of 0"),
        ("7", "0", "99999999", "99999999"),
        ("7", "-1", "2", "PMI_RANK='-1'"),
        ("7", "0", "", "PMI_SIZE is not"),
        ("x", "0", "1", "PMI_FD='x'"),
    ] {
        let error = parse(fd, rank, size).unwrap_err().to_string();
        assert!(error.contains(says), "{error}");
    }
}

#[test]
fn sizes_that_do_not_agree_are_refused() {
    const AGREED: &str = "cmd=response_to_init rc=0 pmi_version=2 pmi_subversion=0\n";
    const WELCOME: &str = "54    cmd=fullinit-response;rc=0;pmi-version=2;rank=1;size=3;";
    let (ours, theirs) = UnixStream::pair().unwrap();
    (&theirs).write_all(format!("{AGREED}{WELCOME}").as_bytes()).unwrap();
    let error = join(ours, &place(1, 4), Wanted::Pmi2, LONG).err().unwrap().to_string();
    assert!(error.contains("PMI_SIZE=4") && error.contains("says 3"), "{error}");
}

proptest! {
    /// Bytes of any kind, cut off anywhere, are an error in words, at once.
    #[test]
    fn garbage_is_an_error(
        right in 0usize..4,
        garbage in proptest::collection::vec(prop_oneof![any::<u8>(), Just(b'\n'), Just(b'=')], 0..80),
        version in 1u32..3,
    ) {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let agreed = format!("cmd=response_to_init rc=0 pmi_version={version} pmi_subversion=0\n");
        let rest = if version == 1 { [MAXES, NAME] } else { [
            "59    cmd=fullinit-response;rc=0;pmi-version=2;rank=0;size=1;    ",
            "38    cmd=job-getid-response;rc=0;jobid=5.0;",
        ] };
        for answer in [agreed.as_str(), rest[0], rest[1]].iter().take(right) {
            (&theirs).write_all(answer.as_bytes()).unwrap();
        }
        (&theirs).write_all(&garbage).unwrap();
        theirs.shutdown(std::net::Shutdown::Write).unwrap();
        let native = if version == 1 { Wanted::Pmi1 } else { Wanted::Pmi2 };
        let joined = join(ours, &place(0, 1), native, LONG);
        let result = joined.and_then(|pmi| pmi.allgather(b"x"));
        let error = result.expect_err("nobody answered well").to_string();
        prop_assert!(error.contains("launcher"), "{}", error);
    }
}
