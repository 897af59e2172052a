// SPDX-License-Identifier: Apache-2.0
//! Settings that would help, each with the measurement behind it.

use super::summary::{Summary, time};
use tombolo_core::sizes::size;
use tombolo_core::wait::Reason;

/// Shares of all threads' time below which nothing is said.
const SHARE: f64 = 0.05;
/// The same for PEs that others wait for.
const SKEW: f64 = 0.10;

/// The way of stores and loads on another PE's memory.
const MAPPED: &str = "mapped memory";

/// A setting, and why.
#[derive(Debug, PartialEq, Eq)]
pub struct Advice {
    pub setting: String,
    pub why: String,
}

/// What would help this job.
pub fn advice(summary: &Summary) -> Vec<Advice> {
    let [whole, ..] = summary.totals();
    if whole <= 0.0 {
        return Vec::new();
    }
    let all = [
        processors(summary),
        room(summary, whole),
        relayed(summary, whole),
        answers(summary, whole),
        static_data(summary, whole),
        cold(summary, whole),
        late(summary, whole),
    ];
    all.into_iter().flatten().collect()
}

fn percent(part: f64, whole: f64) -> String {
    format!("{:.0} %", 100.0 * part / whole)
}

/// More PEs on a host than processors.
fn processors(summary: &Summary) -> Option<Advice> {
    let crowded = summary.pes.iter().find(|pe| pe.local > pe.processors && pe.processors > 0)?;
    let ([whole, ..], blocked) = (summary.totals(), summary.waited_in_all());
    (blocked > SHARE * whole).then(|| Advice {
        setting: format!(
            "oshrun -n {} on {}, or more processors for the job",
            crowded.processors, crowded.machine
        ),
        why: format!(
            "{} PEs take turns on {} processors; {} of their time was spent waiting",
            crowded.local,
            crowded.processors,
            percent(blocked, whole)
        ),
    })
}

/// Transports that take no more, and receivers without room.
fn room(summary: &Summary, whole: f64) -> Option<Advice> {
    let [queue, credits] = [Reason::Room, Reason::Credit].map(|reason| summary.waited(reason));
    let waited = queue + credits;
    let ways = ["ntb", "tcp", "verbs", "ofi"].map(|name| {
        let lines = summary.lines.iter().filter(|line| line.way == name);
        (lines.map(|line| line.bytes).sum::<u64>(), name)
    });
    let setting = match ways.into_iter().max()? {
        (0, _) => return None,
        (_, "ntb") if credits > queue => {
            "SHMEM_NTB_WINDOW with larger windows, SHMEM_NTB_CHUNK with longer packets, or a processor for \
             the service threads of the next host"
        }
        (_, "ntb") => "SHMEM_NTB_LANES with more lanes, or SHMEM_NTB_CHUNK with longer packets",
        (_, "tcp") => "SHMEM_TCP_INTERFACE with a faster network, or several of them",
        (_, "verbs") => "SHMEM_VERBS_DEVICE with a faster card, or several of them",
        _ => "SHMEM_OFI_PROVIDER or SHMEM_OFI_INTERFACE with a faster network",
    };
    (waited > SHARE * whole).then(|| Advice {
        setting: setting.to_owned(),
        why: format!(
            "PEs waited {} ({} of their time) for transports to take operations: {} for room in a queue, \
             {} for credits of the next host; {} passed",
            time(waited),
            percent(waited, whole),
            time(queue),
            time(credits),
            size(ways.iter().map(|(bytes, _)| bytes).sum())
        ),
    })
}

/// Packets of others that go first.
fn relayed(summary: &Summary, whole: f64) -> Option<Advice> {
    let waited = summary.waited(Reason::Relay);
    (waited > SHARE * whole).then(|| Advice {
        setting: "PEs that exchange most on one host or on neighbouring ones: the order of --host"
            .to_owned(),
        why: format!(
            "PEs waited {} ({} of their time) while their hosts passed packets of others on",
            time(waited),
            percent(waited, whole)
        ),
    })
}

/// Operations that the target's processor carries out.
fn answers(summary: &Summary, whole: f64) -> Option<Advice> {
    let waited = summary.waited(Reason::Answer);
    (waited > SHARE * whole).then(|| Advice {
        setting: "fewer PEs than processors on each host, with oshrun --bind core: service threads then have a processor of their own".to_owned(),
        why: format!(
            "PEs waited {} ({} of their time) for the processors of other PEs to carry out operations",
            time(waited),
            percent(waited, whole)
        ),
    })
}

/// Small operations that are system calls: on static data, or on all where no memory is mapped.
fn static_data(summary: &Summary, whole: f64) -> Option<Advice> {
    let small = summary.lines.iter().filter(|line| line.way == "cma" && line.size <= 4096);
    let (count, seconds) =
        small.fold((0, 0.0), |sum, line| (sum.0 + line.count, sum.1 + line.seconds));
    // Where nothing was mapped, shm may be left out; or the program may use static data alone.
    let maps = summary.lines.iter().any(|line| line.way == MAPPED);
    let setting = match maps {
        true => "SHMEM_STATIC=remap, or buffers from shmem_malloc",
        false => "SHMEM_TRANSPORTS with shm in it; for static data also SHMEM_STATIC=remap",
    };
    (seconds > SHARE * whole && count > 0).then(|| Advice {
        setting: setting.to_owned(),
        why: format!(
            "{count} operations of 4 KiB or less were system calls, {} each; mapped memory needs none",
            time(seconds / count as f64)
        ),
    })
}

/// Large copies through the caches.
fn cold(summary: &Summary, whole: f64) -> Option<Advice> {
    let large = summary.lines.iter().filter(|line| line.way == MAPPED && line.size >= 1 << 20);
    let (moved, seconds) =
        large.fold((0, 0.0), |sum, line| (sum.0 + line.bytes, sum.1 + line.seconds));
    (seconds > SHARE * whole && moved > 0).then(|| Advice {
        setting: "SHMEM_TUNE_HINT=cold, if what is copied is not read soon".to_owned(),
        why: format!(
            "copies of 512 KiB and more took {} of the time, at {}/s through the caches",
            percent(seconds, whole),
            size((moved as f64 / seconds) as u64)
        ),
    })
}

/// A PE that all others wait for.
fn late(summary: &Summary, whole: f64) -> Option<Advice> {
    let waited = summary.waited(Reason::Members);
    if summary.pes.len() < 2 || waited < SKEW * whole {
        return None;
    }
    let last = summary.pes.iter().min_by(|a, b| a.skew.total_cmp(&b.skew))?;
    let mean = waited / summary.pes.len() as f64;
    (last.skew < mean / 2.0).then(|| Advice {
        setting: format!(
            "less work for PE {}, or oshrun --bind core if it shares its processor",
            last.pe
        ),
        why: format!(
            "it waited {} for others in collectives, all others {} on average: it comes last",
            time(last.skew),
            time((waited - last.skew) / (summary.pes.len() - 1) as f64)
        ),
    })
}

#[cfg(test)]
mod tests {
    use super::super::counted::Call;
    use super::super::summary::tests::two_pes;
    use super::*;
    use tombolo_core::profile::REASONS;

    fn settings(summary: &Summary) -> Vec<String> {
        advice(summary).into_iter().map(|advice| advice.setting).collect()
    }

    #[test]
    fn advice_follows_from_measurements_and_is_silent_without() {
        let mut counted = two_pes();
        let of = |counted: &[_]| Summary::new(2, counted, vec!["a".into(), "b".into()]);
        assert!(
            settings(&of(&counted))[0].starts_with("oshrun -n 1 on a"),
            "{:?}",
            settings(&of(&counted))
        );
        counted.iter_mut().for_each(|pe| pe.processors = 2);
        assert_eq!(settings(&of(&counted)), [""; 0]);
        counted[1].waits[Reason::Members as usize] = [1, 1000];
        assert!(settings(&of(&counted))[0].starts_with("less work for PE 1"));
        counted[0].waits[Reason::Room as usize] = [9, 300_000];
        assert_eq!(settings(&of(&counted)).len(), 1, "no transport was used");
        for (way, expected) in [
            ("verbs", "SHMEM_VERBS_DEVICE"),
            ("tcp", "SHMEM_TCP_INTERFACE"),
            ("ofi", "SHMEM_OFI_PROVIDER"),
            ("ntb", "SHMEM_NTB_LANES"),
        ] {
            counted[0].rows[0].way = way.into();
            assert!(settings(&of(&counted))[0].starts_with(expected), "{way}");
        }
        counted[1].waits[Reason::Credit as usize] = [9, 500_000];
        assert!(settings(&of(&counted))[0].starts_with("SHMEM_NTB_WINDOW"));
        counted[1].waits[Reason::Relay as usize] = [9, 500_000];
        assert!(settings(&of(&counted))[1].contains("neighbouring"));
        counted[1].waits[Reason::Credit as usize] = [0, 0];
        counted[1].waits[Reason::Relay as usize] = [0, 0];
        counted[0].waits[Reason::Answer as usize] = [9, 300_000];
        assert!(settings(&of(&counted))[1].contains("service threads"));
        // Nothing helps where all that was waited for never came.
        for pe in &mut counted {
            let mut waits = [0; REASONS];
            waits.iter_mut().zip(pe.waits).for_each(|(ns, wait)| *ns = wait[1]);
            pe.pending = vec![Call { routine: "shmem_quiet".into(), ns: 1_000_000, waits }];
            pe.processors = 1;
        }
        assert_eq!(settings(&of(&counted)), [""; 0]);
        counted.clear();
        assert_eq!(settings(&of(&counted)), [""; 0]);
    }

    #[test]
    fn advice_on_static_data_is_for_jobs_with_mapped_memory() {
        let mut counted = two_pes();
        counted.iter_mut().for_each(|pe| pe.processors = 2);
        let of = |counted: &[_]| settings(&Summary::new(2, counted, vec!["a".into(), "b".into()]));
        let mut copied = counted[0].rows[0].clone();
        (copied.way, copied.ns) = ("cma".into(), 300_000.0);
        counted[0].rows.push(copied);
        assert_eq!(of(&counted), ["SHMEM_STATIC=remap, or buffers from shmem_malloc"]);
        counted[0].rows.remove(0);
        assert!(of(&counted)[0].starts_with("SHMEM_TRANSPORTS with shm in it"));
    }
}
