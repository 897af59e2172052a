// SPDX-License-Identifier: Apache-2.0
//! All PEs together.

use super::counted::{Counted, End};
use std::collections::BTreeMap;
use tombolo_core::profile::{Cell, Exchanged, class_max};
use tombolo_core::sizes::size;
use tombolo_core::wait::Reason;

/// What a job has counted.
pub struct Summary {
    /// PEs of the job.
    pub size: usize,
    pub pes: Vec<Pe>,
    /// The longest time first.
    pub lines: Vec<Usage>,
    /// By reason: words, number of waits, seconds.
    pub waits: Vec<(&'static str, u64, f64)>,
    /// By PE and other PE.
    pub matrix: Vec<Vec<Pair>>,
    /// Routines in which PEs ended.
    pub pending: Vec<Unreturned>,
    /// Seconds of the waits in them, by reason.
    endless: [f64; Reason::COUNT],
}

/// A routine in which PEs ended.
#[derive(Clone, Debug, PartialEq)]
pub struct Unreturned {
    pub routine: String,
    /// In order; once for each PE, whichever number of threads.
    pub pes: Vec<usize>,
    /// Seconds of the longest call.
    pub longest: f64,
}

/// One PE.
pub struct Pe {
    pub pe: usize,
    pub machine: String,
    /// Seconds from begin to end of counting.
    pub seconds: f64,
    /// Seconds of all its threads together, of each from its first call on.
    pub lived: f64,
    pub end: End,
    /// Seconds in calls, and of these blocked.
    pub inside: f64,
    pub blocked: f64,
    /// Of the latter, seconds in which other PEs were waited for in a collective, and came.
    pub skew: f64,
    pub processors: u64,
    pub local: u64,
    pub text: String,
}

/// A routine in a class of sizes by a way.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Usage {
    pub routine: String,
    pub way: String,
    pub distance: String,
    /// Largest size of the class, 0 for calls without data.
    pub size: u64,
    pub pes: u64,
    pub count: u64,
    pub bytes: u64,
    pub seconds: f64,
    pub longest: f64,
    pub blocked: f64,
}

/// What one PE has exchanged with another.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Pair {
    pub puts: u64,
    pub put_bytes: u64,
    pub gets: u64,
    pub get_bytes: u64,
    pub amos: u64,
}

impl Pair {
    /// Bytes both ways; 8 for an atomic operation.
    pub fn bytes(&self) -> u64 {
        self.put_bytes.saturating_add(self.get_bytes).saturating_add(self.amos.saturating_mul(8))
    }
}

impl Usage {
    /// The size in words.
    pub fn size_words(&self) -> String {
        match self.size {
            0 => "-".to_owned(),
            largest => format!("<= {}", size(largest)),
        }
    }

    /// The way in words.
    pub fn way_words(&self) -> String {
        match (self.way.as_str(), self.distance.as_str()) {
            ("", _) => "-".to_owned(),
            (way, "") => way.to_owned(),
            (way, distance) => format!("{way}, {distance}"),
        }
    }
}

impl Summary {
    pub fn new(size: usize, counted: &[Counted], machines: Vec<String>) -> Summary {
        let mut lines: BTreeMap<(String, u64, String, String), Usage> = BTreeMap::new();
        for row in counted.iter().flat_map(|counted| &counted.rows) {
            let bytes = row.word(Cell::Bytes);
            let class = if bytes == 0 { 0 } else { class_max(usize::from(row.class)) };
            let key = (row.routine.clone(), class, row.way.clone(), row.distance.clone());
            let line = lines.entry(key).or_insert_with(|| Usage {
                routine: row.routine.clone(),
                way: row.way.clone(),
                distance: row.distance.clone(),
                size: class,
                ..Usage::default()
            });
            line.pes += 1;
            line.count += row.word(Cell::Count);
            line.bytes += bytes;
            line.seconds += row.ns / 1e9;
            line.longest = line.longest.max(row.word(Cell::LongestNs) as f64 / 1e9);
            line.blocked += row.word(Cell::BlockedNs) as f64 / 1e9;
        }
        let mut lines: Vec<Usage> = lines.into_values().collect();
        lines.sort_by(|a, b| b.seconds.total_cmp(&a.seconds));
        let machine = |pe: usize| machines.get(pe).cloned().unwrap_or_default();
        let pes = counted.iter().map(|counted| pe(counted, machine(counted.pe))).collect();
        let mut matrix = vec![vec![Pair::default(); size]; size];
        for counted in counted.iter().filter(|counted| counted.pe < size) {
            for (words, pair) in counted.peers.iter().zip(&mut matrix[counted.pe]) {
                let word = |word: Exchanged| words[word as usize];
                *pair = Pair {
                    puts: word(Exchanged::Puts),
                    put_bytes: word(Exchanged::PutBytes),
                    gets: word(Exchanged::Gets),
                    get_bytes: word(Exchanged::GetBytes),
                    amos: word(Exchanged::Amos),
                };
            }
        }
        let wait = |reason: Reason| {
            let all = counted.iter().map(|counted| counted.waits[reason as usize]);
            let (number, ns) = all.fold((0, 0.0), |sum, [n, ns]| (sum.0 + n, sum.1 + ns as f64));
            (reason.name(), number, ns / 1e9)
        };
        let mut waits: Vec<_> =
            Reason::ALL.map(wait).into_iter().filter(|wait| wait.1 > 0).collect();
        waits.sort_by(|a, b| b.2.total_cmp(&a.2));
        let (mut pending, mut endless) = (Vec::<Unreturned>::new(), [0.0; Reason::COUNT]);
        for (pe, call) in counted.iter().flat_map(|it| it.pending.iter().map(|call| (it.pe, call)))
        {
            let at = pending.iter().position(|other| other.routine == call.routine);
            let at = at.unwrap_or_else(|| {
                let routine = call.routine.clone();
                pending.push(Unreturned { routine, pes: Vec::new(), longest: 0.0 });
                pending.len() - 1
            });
            let Unreturned { pes, longest, .. } = &mut pending[at];
            if pes.last() != Some(&pe) {
                pes.push(pe);
            }
            *longest = longest.max(call.ns as f64 / 1e9);
            endless.iter_mut().zip(call.waits).for_each(|(sum, ns)| *sum += ns as f64 / 1e9);
        }
        Summary { size, pes, lines, waits, matrix, pending, endless }
    }

    /// Seconds of all threads, in all calls, and blocked.
    pub fn totals(&self) -> [f64; 3] {
        let sum = |of: fn(&Pe) -> f64| self.pes.iter().map(of).sum();
        [sum(|pe| pe.lived), sum(|pe| pe.inside), sum(|pe| pe.blocked)]
    }

    /// Seconds blocked for a reason in waits that came to an end. Of those that did not, nothing tells whether they
    /// would have.
    pub fn waited(&self, reason: Reason) -> f64 {
        let wait = self.waits.iter().find(|wait| wait.0 == reason.name());
        wait.map_or(0.0, |wait| (wait.2 - self.endless[reason as usize]).max(0.0))
    }

    /// Seconds blocked in such waits, for any reason.
    pub fn waited_in_all(&self) -> f64 {
        Reason::ALL.into_iter().map(|reason| self.waited(reason)).sum()
    }

    /// PEs whose counting ended in this way, if there are any.
    pub fn ended_by(&self, end: End) -> Option<String> {
        list(self.pes.iter().filter(|pe| pe.end == end).map(|pe| pe.pe))
    }

    /// Routines in which PEs ended, in words.
    pub fn pending_words(&self) -> Option<String> {
        let words = |call: &Unreturned| {
            let pes = list(call.pes.iter().copied()).unwrap_or_default();
            let (routine, longest) = (&call.routine, time(call.longest));
            match call.pes.len() {
                1 => format!("{pes} in {routine} for {longest}"),
                _ => format!("{pes} in {routine} for up to {longest}"),
            }
        };
        let all: Vec<String> = self.pending.iter().map(words).collect();
        (!all.is_empty()).then(|| all.join("; "))
    }

    /// The first sentence of a profile, without its end.
    pub fn head(&self) -> String {
        let [whole, inside, blocked] = self.totals();
        let share = |part: f64| if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
        let finalized = self.pes.iter().all(|pe| pe.end == End::Finalize);
        format!(
            "{} between shmem_init and shmem_finalize{}; {:.1} % of the threads' time in the library, \
             {:.1} % blocked",
            time(self.seconds()),
            if finalized { "" } else { " or the end of the PE" },
            share(inside),
            share(blocked)
        )
    }

    /// The longest time of a PE.
    pub fn seconds(&self) -> f64 {
        self.pes.iter().map(|pe| pe.seconds).fold(0.0, f64::max)
    }
}

fn pe(counted: &Counted, machine: String) -> Pe {
    // Not a sum, which of nothing is -0.
    let inside = counted.rows.iter().fold(0.0, |sum, row| sum + row.ns) / 1e9;
    let seconds = match counted.end {
        End::Never => 0.0,
        _ => counted.ended.saturating_sub(counted.began) as f64 / 1e9,
    };
    let ns = |[_, ns]: [u64; 2]| ns as f64 / 1e9;
    let members = Reason::Members as usize;
    let in_vain: u64 = counted.pending.iter().map(|call| call.waits[members]).sum();
    Pe {
        pe: counted.pe,
        machine,
        seconds,
        lived: seconds.max(counted.lived as f64 / 1e9),
        end: counted.end,
        inside,
        blocked: counted.waits.iter().map(|wait| ns(*wait)).sum(),
        skew: (ns(counted.waits[members]) - in_vain as f64 / 1e9).max(0.0),
        processors: counted.processors,
        local: counted.local,
        text: counted.text.clone(),
    }
}

/// Numbers in words, if there are any.
fn list(pes: impl Iterator<Item = usize>) -> Option<String> {
    let pes: Vec<String> = pes.map(|pe| pe.to_string()).collect();
    (!pes.is_empty()).then(|| format!("PE {}", pes.join(", ")))
}

/// Seconds for people.
pub fn time(seconds: f64) -> String {
    match seconds {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        s if s >= 1e-6 => format!("{:.2} us", s * 1e6),
        s => format!("{:.0} ns", s * 1e9),
    }
}

#[cfg(test)]
pub mod tests {
    use super::super::counted::{Call, Row};
    use super::*;
    use tombolo_core::profile::{CELL, PEER, REASONS};

    /// Two PEs: 0 has put 10 times 64 bytes to 1, and both have met in a barrier.
    pub fn two_pes() -> Vec<Counted> {
        let row = |routine: &str, way: &str, class, words: [u64; CELL]| Row {
            routine: routine.into(),
            way: way.into(),
            distance: if way.is_empty() { "" } else { "PEs of the same host" }.into(),
            class,
            words,
            ns: (words[Cell::ExactNs as usize] + words[Cell::BlockedNs as usize]) as f64
                + (words[Cell::Count as usize] - words[Cell::Exact as usize]) as f64 * 100.0,
        };
        let pe = |pe, rows, peers| Counted {
            pe,
            began: 1_000,
            ended: 1_001_000,
            end: End::Finalize,
            processors: 1,
            local: 2,
            rows,
            peers,
            ..Counted::default()
        };
        let pe = |number, rows, peers| {
            let mut counted: Counted = pe(number, rows, peers);
            counted.waits[Reason::Members as usize] = [1, 400_000];
            counted
        };
        let put = row("shmem_putmem", "mapped memory", 3, [10, 640, 8, 800, 0, 0, 100, 0]);
        let barrier = row("shmem_barrier_all", "", 0, [1, 0, 1, 50_000, 0, 0, 450_000, 400_000]);
        let mut exchanged = [0u64; PEER];
        (exchanged[0], exchanged[1]) = (10, 640);
        vec![
            pe(0, vec![put, barrier.clone()], vec![[0; PEER], exchanged]),
            pe(1, vec![barrier], vec![[0; PEER]; 2]),
        ]
    }

    #[test]
    fn what_pes_have_counted_adds_up() {
        let summary = Summary::new(2, &two_pes(), vec!["a".into(), "b".into()]);
        let barrier = &summary.lines[0];
        assert_eq!(
            (barrier.routine.as_str(), barrier.count, barrier.pes),
            ("shmem_barrier_all", 2, 2)
        );
        assert_eq!((barrier.size_words().as_str(), barrier.way_words().as_str()), ("-", "-"));
        let put = &summary.lines[1];
        assert_eq!((put.count, put.bytes, put.size_words().as_str()), (10, 640, "<= 64 B"));
        assert!((put.seconds - 1e-6).abs() < 1e-12, "{put:?}");
        assert_eq!(summary.matrix[0][1], Pair { puts: 10, put_bytes: 640, ..Pair::default() });
        assert_eq!(summary.matrix[1][0], Pair::default());
        assert_eq!(summary.waits, [("other PEs to arrive", 2, 8e-4)]);
        assert_eq!((summary.seconds(), summary.pes[0].end), (1e-3, End::Finalize));
        assert!(summary.head().starts_with("1.00 ms between shmem_init and shmem_finalize; "));
        assert_eq!([time(2.5e-6), time(3e-8)], ["2.50 us", "30 ns"]);
    }

    #[test]
    fn waits_that_never_ended_are_apart() {
        let mut counted = two_pes();
        let mut waits = [0; REASONS];
        waits[Reason::Members as usize] = 300_000;
        let call = Call { routine: "shmem_barrier_all".into(), ns: 350_000, waits };
        counted[1].pending = vec![call.clone(), call];
        counted[1].waits[Reason::Members as usize] = [3, 1_000_000];
        counted[1].end = End::GlobalExit;
        let summary = Summary::new(2, &counted, vec!["a".into(), "b".into()]);
        assert_eq!(
            summary.pending_words().unwrap(),
            "PE 1 in shmem_barrier_all for 350.00 us",
            "two threads"
        );
        assert!((summary.waited(Reason::Members) - 8e-4).abs() < 1e-12);
        assert!((summary.pes[1].skew - 4e-4).abs() < 1e-12);
        assert!((summary.totals()[2] - 1.4e-3).abs() < 1e-12);
        assert_eq!(summary.ended_by(End::GlobalExit).unwrap(), "PE 1");
        assert_eq!(summary.ended_by(End::Process), None);
        assert!(summary.head().contains("shmem_finalize or the end of the PE; "));
    }
}
