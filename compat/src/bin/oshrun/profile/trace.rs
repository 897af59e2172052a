// SPDX-License-Identifier: Apache-2.0
//! A timeline in Chrome's trace format, which Perfetto opens.

use super::Incident;
use super::counted::Counted;
use super::events::Event;
use serde_json::{Value, json};
use std::collections::BTreeMap;
use std::io::{self, Write};
use std::time::SystemTime;
use tombolo_core::board::monotonic_ns;
use tombolo_core::profile::{SLOTS, event};

/// What is to be shown.
pub struct Trace<'a> {
    pub size: usize,
    pub pes: &'a [Counted],
    pub incidents: &'a [Incident],
    /// Machine of each PE.
    pub places: &'a [String],
}

impl Trace<'_> {
    /// Writes one event a line.
    pub fn write(&self, to: &mut dyn Write) -> io::Result<()> {
        // Hosts have clocks of their own; times since 1970 are what they have in common.
        let starts =
            self.pes.iter().filter(|pe| pe.began > 0).map(|pe| pe.began.wrapping_add(pe.offset));
        let zero = starts.min().unwrap_or(0);
        let since = |ns: u64| ns.wrapping_sub(zero) as i64 as f64 / 1e3;
        let lost: u64 = self.pes.iter().map(|pe| pe.lost_events).sum();
        write!(
            to,
            "{{\"displayTimeUnit\":\"ns\",\"otherData\":{},\"traceEvents\":[",
            json!({
                "pes": self.size, "events_lost": lost,
            })
        )?;
        let mut first = true;
        let mut line = |value: Value| {
            let comma = if std::mem::take(&mut first) { "" } else { "," };
            write!(to, "{comma}\n{value}")
        };
        for pe in self.pes {
            // Perfetto takes a thread 0 for the process's main thread, whose number is the process's, as in Linux:
            // with numbers from 0 on, PE 1 would have two threads 1.
            let tid = |thread: u32| pe.pe + thread as usize;
            let place = self.places.get(pe.pe).map_or("", String::as_str);
            line(json!({"ph": "M", "name": "process_name", "pid": pe.pe, "tid": tid(0),
                "args": {"name": format!("PE {} ({place})", pe.pe)}}))?;
            line(json!({"ph": "M", "name": "process_sort_index", "pid": pe.pe, "tid": tid(0),
                "args": {"sort_index": pe.pe}}))?;
            let shown = |event| Shown::new(pe, event);
            let mut threads: BTreeMap<u32, bool> = BTreeMap::new();
            for event in &pe.events {
                *threads.entry(event.thread).or_default() |= shown(event).is_call();
            }
            for (thread, calls) in threads {
                let kind = if calls { "thread" } else { "service thread" };
                let name = if is_shared(thread) {
                    "other threads".to_owned()
                } else {
                    format!("{kind} {thread}")
                };
                line(json!({"ph": "M", "name": "thread_name", "pid": pe.pe, "tid": tid(thread),
                    "args": {"name": name}}))?;
            }
            if pe.lost_events > 0
                && let Some(oldest) = pe.events.first()
            {
                line(
                    json!({"ph": "i", "s": "p", "name": format!("{} older events are lost", pe.lost_events),
                    "cat": "lost", "pid": pe.pe, "tid": tid(0), "ts": since(oldest.begin.wrapping_add(pe.offset))}),
                )?;
            }
            for (index, event) in pe.events.iter().enumerate() {
                let ts = since(event.begin.wrapping_add(pe.offset));
                let shown = shown(event);
                if [event::LINK, event::FAILOVER].contains(&shown.distance) {
                    line(
                        json!({"ph": "i", "s": "p", "name": shown.routine, "cat": shown.category(),
                        "pid": pe.pe, "tid": tid(event.thread), "ts": ts, "args": shown.arguments()}),
                    )?;
                    continue;
                }
                if is_shared(event.thread) {
                    // Spans of several threads overlap without one being part of the other.
                    let end = since(event.end.wrapping_add(pe.offset));
                    for (phase, at) in [("b", ts), ("e", end)] {
                        line(json!({"ph": phase, "id": format!("{}.{index}", pe.pe),
                            "name": shown.name(), "cat": shown.category(), "pid": pe.pe,
                            "tid": tid(event.thread), "ts": at, "args": shown.arguments()}))?;
                    }
                    continue;
                }
                line(
                    json!({"ph": "X", "name": shown.name(), "cat": shown.category(), "pid": pe.pe,
                    "tid": tid(event.thread), "ts": ts, "dur": (event.end - event.begin) as f64 / 1e3,
                    "args": shown.arguments()}),
                )?;
            }
        }
        let now = SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).unwrap_or_default();
        let offset = (now.as_nanos() as u64).wrapping_sub(monotonic_ns());
        for incident in self.incidents {
            let scope = if incident.pe.is_some() { "p" } else { "g" };
            line(json!({"ph": "i", "s": scope, "name": incident.text, "cat": "fault",
                "pid": incident.pe.unwrap_or(0), "tid": incident.pe.unwrap_or(0),
                "ts": since(incident.at.wrapping_add(offset))}))?;
        }
        writeln!(to, "\n]}}")
    }
}

/// Whether it stands for all threads that found no counters of their own.
fn is_shared(thread: u32) -> bool {
    thread as usize == SLOTS - 1
}

/// An event, and what its PE calls it.
struct Shown<'a> {
    event: &'a Event,
    routine: &'a str,
    way: &'a str,
    distance: &'a str,
}

impl Shown<'_> {
    fn new<'a>(pe: &'a Counted, event: &'a Event) -> Shown<'a> {
        let names = pe.names.get(usize::from(event.name));
        let [routine, way, distance] =
            names.map_or([""; 3], |names| names.each_ref().map(String::as_str));
        Shown { event, routine, way, distance }
    }

    /// Waits have what they are for in place of a way, and no distance.
    fn is_wait(&self) -> bool {
        self.distance.is_empty() && !self.way.is_empty()
    }

    fn name(&self) -> String {
        if self.is_wait() { format!("waiting for {}", self.way) } else { self.routine.to_owned() }
    }

    /// Whether it is of the program, and not of a link or a service thread.
    fn is_call(&self) -> bool {
        !self.way.is_empty() || self.distance.is_empty()
    }

    fn category(&self) -> &str {
        match (self.is_wait(), self.way.is_empty()) {
            (true, _) => "wait",
            (_, true) if self.is_call() => "call",
            (_, true) => self.distance,
            _ => "transfer",
        }
    }

    fn arguments(&self) -> Value {
        let Shown { event, routine, way, distance } = self;
        let mut all = serde_json::Map::new();
        match *distance {
            event::LINK => return json!({"link": event.bytes}),
            event::FAILOVER => return json!({"flows": event.bytes}),
            event::WORK => return json!({"turns": event.bytes}),
            _ => {}
        }
        if self.is_wait() {
            all.insert("routine".into(), json!(routine));
        } else if !way.is_empty() {
            all.insert("way".into(), json!(way));
            all.insert("distance".into(), json!(distance));
        }
        if event.pending {
            all.insert("returned".into(), json!(false));
        }
        if event.bytes > 0 {
            all.insert("bytes".into(), json!(event.bytes));
        }
        if let Some(peer) = event.peer {
            all.insert("pe".into(), json!(peer));
        }
        Value::Object(all)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_timeline_has_spans_of_calls_waits_and_transfers() {
        let kinds =
            [("", ""), ("a variable", ""), ("ntb", "neighbours"), ("", "service"), ("", "link")];
        let event = |begin, end, way: &str, distance: &str, peer| {
            let name = kinds.iter().position(|kind| *kind == (way, distance)).unwrap() as u16;
            Event { begin, end, bytes: 64, peer, thread: 0, name, pending: false }
        };
        let pe = Counted {
            pe: 1,
            began: 1_000,
            offset: 10,
            names: kinds
                .map(|(way, distance)| ["shmem_x", way, distance].map(str::to_owned))
                .into(),
            events: vec![
                event(1_500, 4_500, "", "", None),
                event(2_000, 4_000, "a variable", "", None),
                event(5_000, 6_000, "ntb", "neighbours", Some(3)),
                Event { thread: 1, ..event(6_000, 7_000, "", "service", None) },
                Event { thread: 1, bytes: 1, ..event(7_000, 7_000, "", "link", None) },
                Event { thread: 15, ..event(9_000, 11_000, "", "", None) },
                Event { thread: 15, ..event(10_000, 12_000, "", "", None) },
                Event { pending: true, ..event(13_000, 14_000, "", "", None) },
            ],
            lost_events: 7,
            ..Counted::default()
        };
        let incidents = [Incident { at: monotonic_ns(), pe: None, text: "link 1 down".into() }];
        let places = ["n0", "n1"].map(str::to_owned);
        let mut text = Vec::new();
        Trace { size: 2, pes: &[pe], incidents: &incidents, places: &places }
            .write(&mut text)
            .unwrap();
        let value: Value = serde_json::from_slice(&text).unwrap();
        let events = value["traceEvents"].as_array().unwrap();
        let spans: Vec<_> = events.iter().filter(|e| e["ph"] == "X").collect();
        let cats: Vec<_> = spans.iter().map(|e| e["cat"].as_str().unwrap()).collect();
        assert_eq!(cats, ["call", "wait", "transfer", "service", "call"]);
        let returned: Vec<_> = spans.iter().map(|e| &e["args"]["returned"]).collect();
        assert_eq!(returned[3..], [&Value::Null, &json!(false)]);
        let link = events.iter().find(|e| e["cat"] == "link").unwrap();
        assert_eq!((&link["ph"], &link["args"]["link"]), (&json!("i"), &json!(1)));
        let names = events.iter().filter(|e| e["name"] == "thread_name");
        let names: Vec<_> = names.map(|e| e["args"]["name"].as_str().unwrap()).collect();
        assert_eq!(names, ["thread 0", "service thread 1", "other threads"]);
        let tids: Vec<_> = spans.iter().map(|e| e["tid"].as_u64()).collect();
        assert!(spans.iter().all(|e| e["pid"] == 1));
        assert_eq!(tids, [1, 1, 1, 2, 1].map(Some));
        assert_eq!((spans[0]["ts"].as_f64(), spans[0]["dur"].as_f64()), (Some(0.5), Some(3.0)));
        assert_eq!(spans[1]["name"], "waiting for a variable");
        assert_eq!((&spans[2]["args"]["pe"], &spans[2]["args"]["way"]), (&json!(3), &json!("ntb")));
        let spans_of_others: Vec<_> = events
            .iter()
            .filter(|e| e["ph"] == "b" || e["ph"] == "e")
            .map(|e| (e["ph"].as_str().unwrap(), e["id"].as_str().unwrap(), e["ts"].as_f64()))
            .collect();
        assert_eq!(
            spans_of_others,
            [
                ("b", "1.5", Some(8.0)),
                ("e", "1.5", Some(10.0)),
                ("b", "1.6", Some(9.0)),
                ("e", "1.6", Some(11.0))
            ]
        );
        assert_eq!(value["otherData"]["events_lost"], 7);
        assert!(events.iter().any(|e| e["name"] == "link 1 down" && e["s"] == "g"));
        assert!(events.iter().any(|e| e["args"]["name"] == "PE 1 (n1)"));
    }
}
