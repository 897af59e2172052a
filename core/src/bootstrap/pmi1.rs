// SPDX-License-Identifier: Apache-2.0
//! PMI-1: one line of `key=value` words per message.

use super::pmi::Protocol;
use super::wire::Wire;
use crate::error::Result;

/// The protocol over a connection on which it has been agreed.
pub struct Pmi1 {
    wire: Wire,
    kvs: String,
    value_max: usize,
    /// The launcher gives several values at a time, as `oshrun` does.
    gives_several: bool,
}

impl Pmi1 {
    /// Asks the launcher for what is needed first.
    pub fn join(wire: Wire) -> Result<Pmi1> {
        let (kvs, value_max) = (String::new(), 0);
        let mut pmi = Pmi1 { wire, kvs, value_max, gives_several: false };
        let maxes = pmi.ask("cmd=get_maxes", "maxes")?;
        let max = word(&maxes, "vallen_max").and_then(|text| text.parse().ok());
        // Launchers count the end of the text as well.
        pmi.value_max = max.unwrap_or(256usize).saturating_sub(1);
        pmi.gives_several = word(&maxes, "get_several") == Some("1");
        let name = pmi.ask("cmd=get_my_kvsname", "my_kvsname")?;
        pmi.kvs = word(&name, "kvsname").unwrap_or_default().to_owned();
        Ok(pmi)
    }

    /// Sends a request and reads its answer, which must be called `expected` and have no error.
    fn ask(&mut self, request: &str, expected: &str) -> Result<String> {
        self.wire.send(&format!("{request}\n"))?;
        let line = self.wire.line()?;
        let fits =
            word(&line, "cmd") == Some(expected) && matches!(word(&line, "rc"), None | Some("0"));
        if fits { Ok(line) } else { Err(self.wire.nonsense(line.as_bytes())) }
    }
}

/// The value of a key in a line of words.
pub fn word<'a>(line: &'a str, key: &str) -> Option<&'a str> {
    let pairs = line.split_ascii_whitespace().filter_map(|word| word.split_once('='));
    pairs.into_iter().find(|(found, _)| *found == key).map(|(_, value)| value)
}

impl Protocol for Pmi1 {
    fn name(&self) -> &'static str {
        "PMI-1"
    }

    fn value_max(&self) -> usize {
        self.value_max
    }

    fn put(&mut self, key: &str, value: &str) -> Result<()> {
        let kvs = &self.kvs;
        let request = format!("cmd=put kvsname={kvs} key={key} value={value}");
        self.ask(&request, "put_result").map(drop)
    }

    fn fence(&mut self) -> Result<()> {
        self.ask("cmd=barrier_in", "barrier_out").map(drop)
    }

    fn get(&mut self, key: &str, _pe: usize) -> Result<String> {
        let kvs = &self.kvs;
        let answer = self.ask(&format!("cmd=get kvsname={kvs} key={key}"), "get_result")?;
        Ok(word(&answer, "value").unwrap_or_default().to_owned())
    }

    fn get_several(&mut self, stem: &str, first: usize) -> Result<Vec<String>> {
        if !self.gives_several {
            return Ok(vec![self.get(&format!("{stem}{first}"), first)?]);
        }
        let kvs = &self.kvs;
        let request = format!("cmd=get_several kvsname={kvs} stem={stem} first={first}");
        let answer = self.ask(&request, "get_several_result")?;
        let values = word(&answer, "values").unwrap_or_default();
        Ok(values.split(',').map(str::to_owned).collect())
    }

    fn abort_request(&self) -> fn(i32) -> String {
        |code| format!("cmd=abort exitcode={code}\n")
    }

    fn finalize(&mut self) {
        let _ = self.ask("cmd=finalize", "finalize_ack");
    }

    fn wire(&mut self) -> &mut Wire {
        &mut self.wire
    }
}
