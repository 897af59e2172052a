// SPDX-License-Identifier: Apache-2.0
//! All PEs together.

use super::counted::Counted;
use std::collections::BTreeMap;
use tombolo_core::profile::{Cell, Exchanged, class_max};
use tombolo_core::wait::Reason;
use tombolo_selector::report::size;

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
}

/// One PE.
pub struct Pe {
    pub pe: usize,
    pub machine: String,
    /// Seconds from begin to end of counting, or to what is known of it.
    pub seconds: f64,
    /// Seconds of all its threads together, of each from its first call on.
    pub lived: f64,
    /// It has called `shmem_finalize`.
    pub finished: bool,
    /// Seconds in calls, and of these blocked.
    pub inside: f64,
    pub blocked: f64,
    /// Of the latter, seconds in which other PEs were waited for in a collective.
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
            (reason.words(), number, ns / 1e9)
        };
        let mut waits: Vec<_> =
            Reason::ALL.map(wait).into_iter().filter(|wait| wait.1 > 0).collect();
        waits.sort_by(|a, b| b.2.total_cmp(&a.2));
        Summary { size, pes, lines, waits, matrix }
    }

    /// Seconds of all threads, in all calls, and blocked.
    pub fn totals(&self) -> [f64; 3] {
        let sum = |of: fn(&Pe) -> f64| self.pes.iter().map(of).sum();
        [sum(|pe| pe.lived), sum(|pe| pe.inside), sum(|pe| pe.blocked)]
    }

    /// Seconds blocked for a reason.
    pub fn waited(&self, reason: Reason) -> f64 {
        self.waits.iter().find(|wait| wait.0 == reason.words()).map_or(0.0, |wait| wait.2)
    }

    /// The first sentence of a profile, without its end.
    pub fn head(&self) -> String {
        let [whole, inside, blocked] = self.totals();
        let share = |part: f64| if whole > 0.0 { 100.0 * part / whole } else { 0.0 };
        format!(
            "{} between shmem_init and shmem_finalize; {:.1} % of the threads' time in the library, \
             {:.1} % blocked",
            time(self.seconds()),
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
    let last = counted.events.iter().map(|event| event.end).max().unwrap_or(0);
    let finished = counted.ended >= counted.began && counted.ended > 0;
    let ended = if finished { counted.ended } else { last };
    let inside: f64 = counted.rows.iter().map(|row| row.ns).sum::<f64>() / 1e9;
    let seconds = ended.saturating_sub(counted.began) as f64 / 1e9;
    let seconds = seconds.max(if finished { 0.0 } else { inside });
    let ns = |[_, ns]: [u64; 2]| ns as f64 / 1e9;
    Pe {
        pe: counted.pe,
        machine,
        seconds,
        lived: seconds.max(counted.lived as f64 / 1e9),
        finished,
        inside,
        blocked: counted.waits.iter().map(|wait| ns(*wait)).sum(),
        skew: ns(counted.waits[Reason::Members as usize]),
        processors: counted.processors,
        local: counted.local,
        text: counted.text.clone(),
    }
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
    use super::super::counted::Row;
    use super::*;
    use tombolo_core::profile::{CELL, PEER};

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
        assert_eq!((summary.seconds(), summary.pes[0].finished), (1e-3, true));
        assert_eq!([time(2.5e-6), time(3e-8)], ["2.50 us", "30 ns"]);
    }
}
