// SPDX-License-Identifier: Apache-2.0
//! The server's side of the PMI-1 wire protocol, without I/O: lines in, replies and effects out.
//!
//! A request is one line of `name=value` words, the first being `cmd=...`; each PE has its own
//! connection and waits for the reply before it asks again. One key-value space serves the job.
//! Where a job has several hosts, each has a server for its own PEs. What they put reaches the others
//! when the barrier opens, once for each host.
//! This is the protocol that MPICH's Hydra serves, so its clients run under `oshrun` as well.
//!
//! One request is added, and announced by `get_several=1` in the answer to `get_maxes`:
//! `cmd=get_several kvsname=K stem=S first=F` gives, joined by commas, the values of the keys `SF`,
//! `SF+1` and so on, as many as there are and fit into one answer. PEs that each ask for what all
//! others have put need far fewer requests then than one for each pair.

use serde::{Deserialize, Serialize};
use std::collections::HashMap;
use tombolo_core::bootstrap::ONE_USER;

/// Longest name of a key-value space, key and value, as announced to clients. Hydra's figures:
/// a client that relies on more would not run there.
const KVSNAME_MAX: usize = 256;
const KEY_MAX: usize = 64;
const VALUE_MAX: usize = 1024;

/// Bytes of values that one answer to `get_several` holds, unless the first is longer: answers must
/// fit into the buffer of a connection.
const SEVERAL_MAX: usize = 32 << 10;

/// Answers to `get_several` that are kept at most.
const ANSWERS_MAX: usize = 64;

/// No request is longer than this.
pub const LINE_MAX: usize = KVSNAME_MAX + KEY_MAX + VALUE_MAX + 256;

/// What a request asks of the launcher.
#[derive(Debug, PartialEq, Eq)]
pub enum Effect {
    /// Send this line to this PE.
    Reply(usize, String),
    /// End the whole job, as this PE asks, with this exit code.
    Abort { pe: usize, code: i32 },
    /// All PEs of this host wait for those of the others, and have put this since the last barrier.
    Fence(Vec<(String, String)>),
}

/// How far a PE has come, as its requests tell.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum Stage {
    /// Has not begun.
    Outside,
    /// Between init and finalize.
    Inside,
    /// After finalize.
    Left,
}

/// The server of the PEs of one host.
pub struct Server {
    kvsname: String,
    pairs: HashMap<String, String>,
    clients: Vec<Client>,
    /// Number of PEs of the whole job.
    size: usize,
    /// What the clients have put since the last barrier, if others have to be told.
    fresh: Vec<(String, String)>,
    /// The others have been told that all clients wait.
    fenced: bool,
    /// Answers to `get_several` since something was put last: all PEs ask for the same.
    answers: HashMap<(String, i32), String>,
}

#[derive(Clone)]
struct Client {
    stage: Stage,
    in_barrier: bool,
    /// It is gone, and the others do not wait for it.
    departed: bool,
    /// Index of its program on the command line.
    appnum: usize,
}

impl Server {
    /// A server for one PE per entry of `appnums`, which tells the program each PE runs, out of
    /// `size`. `mapping` is the value of `PMI_process_mapping`: which PEs share a host.
    pub fn new(kvsname: String, appnums: &[usize], size: usize, mapping: String) -> Server {
        let client =
            |appnum| Client { stage: Stage::Outside, in_barrier: false, departed: false, appnum };
        Server {
            kvsname,
            pairs: HashMap::from([("PMI_process_mapping".into(), mapping)]),
            clients: appnums.iter().map(|appnum| client(*appnum)).collect(),
            size,
            fresh: vec![],
            fenced: false,
            answers: HashMap::new(),
        }
    }

    /// Whether all PEs of the job are clients of this server.
    fn is_alone(&self) -> bool {
        self.clients.len() == self.size
    }

    pub fn stage(&self, pe: usize) -> Stage {
        self.clients[pe].stage
    }

    /// Whether some PE waits for all others to enter the barrier.
    pub fn barrier_is_waiting(&self) -> bool {
        self.clients.iter().any(|client| client.in_barrier)
    }

    /// Takes one line, without its newline, from PE `pe`; the error says what is wrong with it.
    pub fn receive(&mut self, pe: usize, line: &[u8]) -> Result<Vec<Effect>, String> {
        let shown = || line.escape_ascii().to_string();
        let text = std::str::from_utf8(line).map_err(|_| format!("not text: '{}'", shown()))?;
        let request =
            Request::parse(text).ok_or_else(|| format!("not a request: '{}'", shown()))?;
        let reply = |text: String| Ok(vec![Effect::Reply(pe, text)]);
        match request.command {
            "init" => reply(self.init(pe, &request)?),
            "abort" => {
                Ok(vec![Effect::Abort { pe, code: request.number("exitcode").unwrap_or(1) }])
            }
            _ if self.clients[pe].stage != Stage::Inside => {
                Err(format!("'{}' outside of init and finalize", request.command))
            }
            "get_maxes" => reply(format!(
                "cmd=maxes rc=0 kvsname_max={KVSNAME_MAX} keylen_max={KEY_MAX} vallen_max={VALUE_MAX} \
                 get_several=1"
            )),
            "get_appnum" => reply(format!("cmd=appnum rc=0 appnum={}", self.clients[pe].appnum)),
            "get_universe_size" => reply(format!("cmd=universe_size rc=0 size={}", self.size)),
            "get_my_kvsname" => reply(format!("cmd=my_kvsname rc=0 kvsname={}", self.kvsname)),
            "put" => reply(self.put(&request)?),
            "get" => reply(self.get(&request)?),
            "get_several" => reply(self.get_several(&request)?),
            "barrier_in" => self.enter_barrier(pe),
            "finalize" => {
                self.clients[pe].stage = Stage::Left;
                reply("cmd=finalize_ack rc=0".into())
            }
            other => Err(format!("unknown request '{other}'")),
        }
    }

    fn init(&mut self, pe: usize, request: &Request<'_>) -> Result<String, String> {
        let version = request.number("pmi_version").ok_or("init without pmi_version")?;
        match self.clients[pe].stage {
            Stage::Outside => {}
            Stage::Inside => return Err(format!("second init: {ONE_USER}")),
            Stage::Left => {
                return Err("init after finalize: a PE is one OpenSHMEM program, run once; scripts that run several \
                    start a job for each"
                    .into());
            }
        }
        let rc = if version == 1 { 0 } else { -1 };
        if rc == 0 {
            self.clients[pe].stage = Stage::Inside;
        }
        Ok(format!("cmd=response_to_init pmi_version=1 pmi_subversion=1 rc={rc}"))
    }

    fn put(&mut self, request: &Request<'_>) -> Result<String, String> {
        self.check_space(request)?;
        let key = request.word("key").ok_or("put without key")?;
        let value = request.value().ok_or("put without value")?;
        if key.len() > KEY_MAX || value.len() > VALUE_MAX {
            return Ok(format!("cmd=put_result rc=-1 msg=too_long_{}", key.len().max(value.len())));
        }
        self.pairs.insert(key.into(), value.into());
        self.answers.clear();
        if !self.is_alone() {
            self.fresh.push((key.into(), value.into()));
        }
        Ok("cmd=put_result rc=0 msg=success".into())
    }

    fn get(&self, request: &Request<'_>) -> Result<String, String> {
        self.check_space(request)?;
        let key = request.word("key").ok_or("get without key")?;
        Ok(match self.pairs.get(key) {
            Some(value) => format!("cmd=get_result rc=0 msg=success value={value}"),
            None => "cmd=get_result rc=-1 msg=key_not_found value=unknown".into(),
        })
    }

    fn get_several(&mut self, request: &Request<'_>) -> Result<String, String> {
        self.check_space(request)?;
        let stem = request.word("stem").ok_or("get_several without stem")?;
        let first = request.number("first").ok_or("get_several without first")?;
        // What is asked for at random is not kept.
        if self.answers.len() >= ANSWERS_MAX {
            self.answers.clear();
        }
        let asked = (stem.to_owned(), first);
        if !self.answers.contains_key(&asked) {
            let answer = self.several(stem, first);
            self.answers.insert(asked.clone(), answer);
        }
        Ok(self.answers[&asked].clone())
    }

    /// The answer to `get_several`.
    fn several(&self, stem: &str, first: i32) -> String {
        let mut values = String::new();
        for index in first.. {
            let Some(value) = self.pairs.get(&format!("{stem}{index}")) else { break };
            if index > first {
                if values.len() + value.len() > SEVERAL_MAX {
                    break;
                }
                values.push(',');
            }
            values.push_str(value);
        }
        match values.is_empty() {
            true => "cmd=get_several_result rc=-1 msg=key_not_found".into(),
            false => format!("cmd=get_several_result rc=0 values={values}"),
        }
    }

    fn check_space(&self, request: &Request<'_>) -> Result<(), String> {
        match request.word("kvsname") {
            Some(name) if name == self.kvsname => Ok(()),
            Some(name) => Err(format!("unknown key-value space '{name}'")),
            None => Err(format!("'{}' without kvsname", request.command)),
        }
    }

    fn enter_barrier(&mut self, pe: usize) -> Result<Vec<Effect>, String> {
        if self.clients[pe].in_barrier {
            return Err("second barrier_in before barrier_out".into());
        }
        // What a PE sent before it departed may be read after.
        self.clients[pe].in_barrier = !self.clients[pe].departed;
        Ok(self.check_barrier())
    }

    /// From now on barriers do not wait for PE `pe`.
    pub fn depart(&mut self, pe: usize) -> Vec<Effect> {
        let client = &mut self.clients[pe];
        (client.departed, client.in_barrier) = (true, false);
        self.check_barrier()
    }

    /// Lets those in the barrier out if they are all there are; tells the others if there are some.
    fn check_barrier(&mut self) -> Vec<Effect> {
        let complete = self.clients.iter().all(|client| client.in_barrier || client.departed);
        match complete && self.barrier_is_waiting() && !self.fenced {
            false => vec![],
            true if self.is_alone() => self.open_barrier(vec![]),
            true => {
                self.fenced = true;
                vec![Effect::Fence(std::mem::take(&mut self.fresh))]
            }
        }
    }

    /// Lets those in the barrier out, now that all PEs have entered it. `pairs` is what all of them
    /// have put.
    pub fn open_barrier(&mut self, pairs: Vec<(String, String)>) -> Vec<Effect> {
        self.pairs.extend(pairs);
        self.answers.clear();
        self.fenced = false;
        let out = || String::from("cmd=barrier_out rc=0");
        let clients = self.clients.iter_mut().enumerate();
        clients
            .filter_map(|(pe, client)| std::mem::take(&mut client.in_barrier).then_some(pe))
            .map(|pe| Effect::Reply(pe, out()))
            .collect()
    }
}

struct Request<'a> {
    command: &'a str,
    words: &'a str,
}

impl<'a> Request<'a> {
    fn parse(line: &'a str) -> Option<Request<'a>> {
        let rest = line.trim().strip_prefix("cmd=")?;
        let (command, words) = rest.split_once(' ').unwrap_or((rest, ""));
        (!command.is_empty()).then_some(Request { command, words })
    }

    fn word(&self, name: &str) -> Option<&'a str> {
        let pairs = self.words.split_whitespace().filter_map(|word| word.split_once('='));
        pairs.into_iter().find(|(found, _)| *found == name).map(|(_, value)| value)
    }

    fn number(&self, name: &str) -> Option<i32> {
        self.word(name)?.parse().ok()
    }

    /// The value of a put: the rest of the line, for it may hold spaces.
    fn value(&self) -> Option<&'a str> {
        let at = match self.words.strip_prefix("value=") {
            Some(value) => return Some(value),
            None => self.words.find(" value=")?,
        };
        Some(&self.words[at + " value=".len()..])
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn server(size: usize) -> Server {
        Server::new("job".into(), &vec![0; size], size, "(vector,(0,1,2))".into())
    }

    fn joined(size: usize) -> Server {
        let mut server = server(size);
        for pe in 0..size {
            server.receive(pe, b"cmd=init pmi_version=1 pmi_subversion=1").unwrap();
        }
        server
    }

    fn answer(server: &mut Server, pe: usize, line: &str) -> String {
        match server.receive(pe, line.as_bytes()).unwrap().as_slice() {
            [Effect::Reply(to, text)] if *to == pe => text.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn what_one_pe_puts_another_gets() {
        let mut server = joined(2);
        answer(&mut server, 0, "cmd=put kvsname=job key=card-0 value=a b=c");
        let found = answer(&mut server, 1, "cmd=get kvsname=job key=card-0");
        assert_eq!(found, "cmd=get_result rc=0 msg=success value=a b=c");
        assert!(answer(&mut server, 1, "cmd=get kvsname=job key=nothing").contains("rc=-1"));
    }

    #[test]
    fn several_values_come_in_one_answer_as_far_as_they_fit() {
        let mut server = joined(1);
        let value = |index: usize| format!("{index}:{}", "a".repeat(1000));
        for index in 0..100 {
            let put = format!("cmd=put kvsname=job key=t-{index} value={}", value(index));
            answer(&mut server, 0, &put);
        }
        let (mut all, mut answers): (Vec<String>, usize) = (vec![], 0);
        while all.len() < 100 {
            let line = format!("cmd=get_several kvsname=job stem=t- first={}", all.len());
            let found = answer(&mut server, 0, &line);
            assert!(found.len() < SEVERAL_MAX + 2000, "{} bytes", found.len());
            let values = found.strip_prefix("cmd=get_several_result rc=0 values=").unwrap();
            all.extend(values.split(',').map(str::to_owned));
            answers += 1;
        }
        assert_eq!(all, (0..100).map(value).collect::<Vec<_>>());
        assert_eq!(answers, 4);
        assert!(
            answer(&mut server, 0, "cmd=get_several kvsname=job stem=t- first=100")
                .contains("rc=-1")
        );
    }

    #[test]
    fn the_barrier_opens_when_the_last_pe_enters() {
        let mut server = joined(3);
        for _ in 0..2 {
            assert_eq!(server.receive(2, b"cmd=barrier_in"), Ok(vec![]));
            assert_eq!(server.receive(0, b"cmd=barrier_in"), Ok(vec![]));
            assert!(server.barrier_is_waiting());
            assert_eq!(server.receive(1, b"cmd=barrier_in").unwrap().len(), 3);
            assert!(!server.barrier_is_waiting());
        }
    }

    #[test]
    fn servers_of_several_hosts_exchange_what_was_put_once_a_barrier() {
        let mut server = Server::new("job".into(), &[0, 0], 4, "(vector,(0,2,2))".into());
        for pe in 0..2 {
            server.receive(pe, b"cmd=init pmi_version=1 pmi_subversion=1").unwrap();
        }
        assert!(answer(&mut server, 0, "cmd=get_universe_size").ends_with("size=4"));
        answer(&mut server, 0, "cmd=put kvsname=job key=k value=v");
        // Those of the same host need not wait.
        assert!(answer(&mut server, 1, "cmd=get kvsname=job key=k").ends_with("value=v"));
        assert_eq!(server.receive(1, b"cmd=barrier_in"), Ok(vec![]));
        let fence = Effect::Fence(vec![("k".into(), "v".into())]);
        assert_eq!(server.receive(0, b"cmd=barrier_in"), Ok(vec![fence]));
        assert!(server.barrier_is_waiting() && server.depart(1).is_empty());
        let effects = server.open_barrier(vec![("other".into(), "w".into())]);
        assert_eq!(effects, [Effect::Reply(0, "cmd=barrier_out rc=0".into())]);
        assert!(answer(&mut server, 0, "cmd=get kvsname=job key=other").ends_with("value=w"));
        assert_eq!(server.receive(0, b"cmd=barrier_in"), Ok(vec![Effect::Fence(vec![])]));
    }

    #[test]
    fn barriers_do_not_wait_for_pes_that_have_departed() {
        let mut server = joined(3);
        assert_eq!(server.receive(0, b"cmd=barrier_in"), Ok(vec![]));
        assert_eq!(server.receive(2, b"cmd=barrier_in"), Ok(vec![]));
        let out = |pe| Effect::Reply(pe, "cmd=barrier_out rc=0".into());
        assert_eq!(server.depart(1), [out(0), out(2)]);
        assert_eq!(server.depart(2), []);
        assert_eq!(server.receive(2, b"cmd=barrier_in"), Ok(vec![]));
        assert!(!server.barrier_is_waiting());
        assert_eq!(server.receive(0, b"cmd=barrier_in"), Ok(vec![out(0)]));
    }

    #[test]
    fn malformed_requests_are_errors() {
        let long = [b'x'; 5000];
        for line in [
            &b""[..],
            b"cmd=",
            b"hello",
            b"\xff\xfe",
            b"cmd=spawn",
            b"cmd=put",
            b"cmd=put kvsname=job",
            b"cmd=put kvsname=job key=k",
            b"cmd=get kvsname=other key=k",
            b"cmd=get kvsname=job",
            b"cmd=get_several kvsname=job first=0",
            b"cmd=get_several kvsname=job stem=t first=x",
            b"cmd=init pmi_version=1",
            b"    38cmd=fullinit;pmirank=0;",
            &long,
        ] {
            assert!(joined(1).receive(0, line).is_err(), "{}", line.escape_ascii());
        }
        assert!(server(1).receive(0, b"cmd=barrier_in").is_err());
        assert!(server(1).receive(0, b"cmd=init").is_err());
    }

    #[test]
    fn too_long_values_are_refused_to_the_client() {
        let line = format!("cmd=put kvsname=job key=k value={}", "v".repeat(VALUE_MAX + 1));
        assert!(answer(&mut joined(1), 0, &line).contains("rc=-1"));
    }

    #[test]
    fn other_versions_are_turned_down_and_stages_are_tracked() {
        let mut server = server(1);
        assert!(
            answer(&mut server, 0, "cmd=init pmi_version=2 pmi_subversion=0").ends_with("rc=-1")
        );
        assert_eq!(server.stage(0), Stage::Outside);
        answer(&mut server, 0, "cmd=init pmi_version=1 pmi_subversion=1");
        assert_eq!(server.stage(0), Stage::Inside);
        answer(&mut server, 0, "cmd=finalize");
        assert_eq!(server.stage(0), Stage::Left);
        let again = server.receive(0, b"cmd=init pmi_version=1 pmi_subversion=1");
        assert!(again.unwrap_err().contains("one OpenSHMEM program, run once"));
        assert_eq!(
            server.receive(0, b"cmd=abort exitcode=9"),
            Ok(vec![Effect::Abort { pe: 0, code: 9 }])
        );
    }

    mod garbage {
        use super::*;
        use proptest::prelude::*;

        /// Requests, and what looks much like some.
        fn line() -> impl Strategy<Value = Vec<u8>> {
            let word = prop_oneof![
                prop::sample::select(vec![
                    "cmd=init",
                    "cmd=put",
                    "cmd=get",
                    "cmd=get_several",
                    "cmd=barrier_in",
                    "cmd=abort",
                    "cmd=finalize",
                    "cmd=get_maxes",
                    "cmd=getbyidx",
                    "cmd=get_appnum",
                    "pmi_version=1",
                    "pmi_subversion=1",
                    "kvsname=job",
                    "key=k",
                    "stem=",
                    "first=0",
                    "first=18446744073709551615",
                    "exitcode=-2147483648",
                    "value=",
                    "cmd=",
                ])
                .prop_map(str::to_owned),
                "[a-z]{0,6}=[ -~]{0,20}",
            ];
            let request = prop::collection::vec(word, 0..6).prop_map(|w| w.join(" ").into_bytes());
            prop_oneof![4 => request, 1 => prop::collection::vec(any::<u8>(), 0..100)]
        }

        proptest! {
            /// Whatever PEs say, in whatever order: each gets one answer at most, all of them within
            /// their limits, and a PE that is told nothing has done something wrong or waits.
            #[test]
            fn garbage_from_pes_does_no_harm(
                lines in prop::collection::vec((0usize..3, line()), 0..40), alone: bool,
            ) {
                let size = if alone { 3 } else { 5 };
                let mut server = Server::new("job".into(), &[0; 3], size, String::new());
                for (pe, line) in lines {
                    let Ok(effects) = server.receive(pe, &line) else { continue };
                    for effect in effects {
                        match effect {
                            Effect::Reply(to, reply) => {
                                prop_assert!(to < 3 && !reply.contains('\n'));
                                prop_assert!(reply.len() <= SEVERAL_MAX + LINE_MAX);
                            }
                            Effect::Abort { pe: by, .. } => prop_assert_eq!(by, pe),
                            Effect::Fence(_) => prop_assert!(!alone),
                        }
                    }
                }
            }
        }
    }
}
