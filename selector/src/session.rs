// SPDX-License-Identifier: Apache-2.0
//! The collective part: PEs agree on what is known, measure what is not, and share it.

use crate::cache::{self, Saved};
use crate::class::{self, Binding, Class};
use crate::costs::costs;
use crate::data::Measurements;
use crate::force::{self, Effect};
use crate::probe::{self, Effort, Scratch};
use crate::report;
use crate::tuning::{Origin, Tuning};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};
use tombolo_core::config::{Reuse, Tune};
use tombolo_core::cost::Costs;
use tombolo_core::error::{Error, Result};
use tombolo_core::route::STEPS_MAX;
use tombolo_core::threads::{of_library, without_signals};
use tombolo_core::transport::{Progress, Transport};
use tombolo_core::wait::{Look, Patience};
use tombolo_core::{Config, World};

mod meetings;

/// Part of the budget that goes to the micro-benchmarks; the rest is for talking about them.
const MEASURING: f64 = 0.8;

/// Longer than anything is measured.
const LONGEST_NS: u64 = 1 << 60;

/// What every PE says of itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Hello {
    /// Key of the PE's machine.
    fingerprint: u64,
    /// Digest of the measurements it found in its cache, 0 if none.
    known: u64,
    place: Binding,
    /// How many PEs share a processor there.
    crowd: u8,
    /// How many processors the PE has.
    processors: u8,
    /// PEs of a host outnumber its processors, as far as this PE can tell.
    crowded: bool,
    /// Its environment speaks of buffers that are used once.
    once: bool,
}

impl Hello {
    fn bytes(self) -> Vec<u8> {
        let mut bytes = self.fingerprint.to_le_bytes().to_vec();
        bytes.extend(self.known.to_le_bytes());
        bytes.extend(self.place.cache.to_le_bytes());
        bytes.extend(self.place.node.to_le_bytes());
        bytes.extend([self.crowd, self.processors, self.crowded.into(), self.once.into()]);
        bytes
    }

    fn parse(bytes: &[u8]) -> Option<Hello> {
        let (fingerprint, rest) = bytes.split_first_chunk()?;
        let (known, rest) = rest.split_first_chunk()?;
        let (cache, rest) = rest.split_first_chunk()?;
        let (node, rest) = rest.split_first_chunk()?;
        let [crowd, processors, crowded, once] = rest else { return None };
        Some(Hello {
            fingerprint: u64::from_le_bytes(*fingerprint),
            known: u64::from_le_bytes(*known),
            place: Binding { cache: i32::from_le_bytes(*cache), node: i32::from_le_bytes(*node) },
            crowd: *crowd,
            processors: *processors,
            crowded: *crowded != 0,
            once: *once != 0,
        })
    }
}

/// What a PE that measured tells the others.
#[derive(Debug, Serialize, Deserialize)]
struct Told {
    stuck: bool,
    written: usize,
    measured: Measurements,
}

pub fn tune(world: &World, mode: &Tune) -> Result<Tuning> {
    let begun = Instant::now();
    let names: Vec<&str> = world.transports().iter().map(|t| t.name()).collect();
    let forced = &world.config().route;
    let rules =
        force::parse_in_job(forced, &names).map_err(|why| invalid("SHMEM_ROUTE", forced, why))?;
    let mut session = TuningSession {
        world,
        places: vec![class::here(); world.n_pes()],
        machine: String::new(),
        crowd: 1,
        processors: 1,
        crowded: false,
        once: false,
    };
    let (origin, measured) = match mode {
        Tune::Off => (Origin::Off, Measurements::default()),
        Tune::File(path) => {
            let measured = session.replay(path)?;
            (Origin::File(path.into()), measured)
        }
        Tune::Auto | Tune::Adaptive if world.n_pes() == 1 => {
            (Origin::Alone, Measurements::default())
        }
        Tune::Auto | Tune::Adaptive => session.remember_or_measure(false)?,
        Tune::Always => session.remember_or_measure(true)?,
    };
    let TuningSession { places, machine, crowd, processors, .. } = session;
    let costs = Costs { crowd, processors, ..costs(&measured) };
    let places = (places, costs);
    let tuning = Tuning::new(world, origin, machine, measured, rules, places, begun.elapsed());
    judge_rules(world, &tuning)?;
    Ok(tuning)
}

/// Warns of rules that do nothing on any PE, and of those that move sizes that they do not name. All PEs have
/// the same rules.
fn judge_rules(world: &World, tuning: &Tuning) -> Result<()> {
    if tuning.rules().is_empty() {
        return Ok(());
    }
    let mine: Vec<u8> = tuning.effects().iter().map(|effect| *effect as u8).collect();
    let all = world.bootstrap().allgather(&mine)?;
    if world.pe() != 0 {
        return Ok(());
    }
    for (index, rule) in tuning.rules().iter().enumerate() {
        let most = all.iter().filter_map(|told| told.get(index)).max().copied().unwrap_or(0);
        let rule = &rule.text;
        if most == Effect::Nothing as u8 {
            tracing::warn!("SHMEM_ROUTE: '{rule}' is not used: its channel reaches no such buffer");
        }
        if most == Effect::Crowded as u8 {
            tracing::warn!(
                "SHMEM_ROUTE: with '{rule}' a route has more than {STEPS_MAX} ranges of sizes, which is all that \
                 it holds: some other sizes go like their neighbours; oshinfo as a job shows which"
            );
        }
    }
    Ok(())
}

fn invalid(name: &str, value: &str, why: String) -> Error {
    Error::Config { name: name.to_owned(), value: value.to_owned(), why }
}

struct TuningSession<'a> {
    world: &'a World,
    places: Vec<Binding>,
    machine: String,
    /// The largest number of PEs that share a processor.
    crowd: u32,
    /// The smallest number of processors of a PE.
    processors: u32,
    /// PEs of some host outnumber its processors.
    crowded: bool,
    /// The environment of some PE speaks of buffers that are used once.
    once: bool,
}

impl TuningSession<'_> {
    fn config(&self) -> &Config {
        self.world.config()
    }

    /// All PEs say hello; the places become known.
    fn greet(&mut self, fingerprint: u64, known: u64) -> Result<Vec<Hello>> {
        let me = self.places[self.world.pe()];
        let crowd = self.world.crowd().clamp(1, 255) as u8;
        let processors = self.world.processors().clamp(1, 255) as u8;
        let once = self.config().tune_hint.mention(Reuse::Cold);
        let crowded = cache::is_crowded(self.world);
        let hello = Hello { fingerprint, known, place: me, crowd, processors, crowded, once };
        let all = self.world.bootstrap().allgather(&hello.bytes())?;
        let parse = |(pe, bytes): (usize, &Vec<u8>)| {
            Hello::parse(bytes).ok_or_else(|| {
                Error::Bootstrap(format!(
                    "PE {pe} sent a first message for tuning that cannot be read"
                ))
            })
        };
        let all = all.iter().enumerate().map(parse).collect::<Result<Vec<Hello>>>()?;
        self.places = all.iter().map(|hello| hello.place).collect();
        self.crowd = all.iter().map(|hello| hello.crowd.into()).max().unwrap_or(1);
        self.crowded = all.iter().any(|hello| hello.crowded);
        self.once = all.iter().any(|hello| hello.once);
        self.processors = all.iter().map(|hello| hello.processors.into()).min().unwrap_or(1);
        Ok(all)
    }

    /// Reads a saved table on PE 0 for everybody; a file need not be visible everywhere.
    fn replay(&mut self, path: &str) -> Result<Measurements> {
        let here = cache::machine(self.world)?;
        let hellos = self.greet(cache::fingerprint(&here), 0)?;
        let here = unlike(&hellos).unwrap_or(here);
        let mut mine = Vec::new();
        if self.world.pe() == 0 {
            let read = cache::read(path.as_ref(), cache::Owner::Any)
                .map_err(|e| format!("the saved table cannot be read: {e}"));
            mine = match read.and_then(|text| replayable(&text).map(|_| text)) {
                Ok(text) => text.into_bytes(),
                // Everybody learns why, so that everybody fails alike.
                Err(why) => format!("!{why}").into_bytes(),
            };
        }
        let all = self.world.bootstrap().allgather(&mine)?;
        let text = String::from_utf8_lossy(&all[0]);
        let saved = match text.strip_prefix('!') {
            Some(why) => Err(why.to_owned()),
            None => replayable(&text),
        };
        let saved = saved.map_err(|why| {
            let what = invalid("SHMEM_TUNE", path, why).to_string();
            Error::Common { speaker: 0, what }
        })?;
        if self.world.pe() == 0 {
            if let Some(why) = saved.measured.doubt() {
                tracing::warn!("the transport speeds in {path} are unreliable: {why}");
            }
            misfits(&saved, &here, &self.pairs()).iter().for_each(|why| {
                tracing::warn!("the transport speeds in {path} {why}");
            });
        }
        self.machine = saved.machine;
        Ok(saved.measured)
    }

    fn remember_or_measure(&mut self, anew: bool) -> Result<(Origin, Measurements)> {
        self.machine = cache::machine(self.world)?;
        let mut fingerprint = cache::fingerprint(&self.machine);
        let directory = cache::directory(&self.config().tune_cache).unwrap_or_else(|why| {
            match self.world.pe() {
                0 => tracing::warn!("{why}"),
                _ => tracing::info!("{why}"),
            }
            None
        });
        let path = |fingerprint| directory.as_ref().map(|d| cache::file(d, fingerprint));
        let load = |path: Option<PathBuf>, machine: &str| {
            let warns = self.world.pe() == 0;
            let found = path.filter(|_| !anew).and_then(|path| cache::load(&path, machine, warns));
            found.unwrap_or_default()
        };
        let digest =
            |known: &Measurements| if known.curves.is_empty() { 0 } else { known.digest() };

        let mut known = load(path(fingerprint), &self.machine);
        let mut hellos = self.greet(fingerprint, digest(&known))?;
        if let Some(machine) = unlike(&hellos) {
            self.machine = machine;
            fingerprint = cache::fingerprint(&self.machine);
            known = load(path(fingerprint), &self.machine);
            hellos = self.greet(fingerprint, digest(&known))?;
        }
        let mine = digest(&known);
        if hellos.iter().any(|hello| hello.known != mine) {
            known = self.share(&hellos, known)?;
        }

        let world = self.world;
        let (missing, anew) = missing(self.pairs(), &known);
        let path = path(fingerprint);
        let origin = if missing.is_empty() {
            Origin::Cache(path.clone().unwrap_or_default())
        } else {
            match self.measure(&missing)? {
                Some(measured) if anew => known = measured,
                Some(measured) => known.merge(measured),
                None => return Ok((Origin::NoRoom, known)),
            }
            Origin::Measured
        };
        let leader = self.world.localities()[self.world.pe()].local_index == 0;
        let is_new = leader && digest(&known) != mine && is_kept(&origin, &known);
        if let Some(path) = path.filter(|_| is_new)
            && let Err(e) = cache::store(&path, &Saved::new(&self.machine, known.clone()))
        {
            tracing::info!("measurements are not kept in {}: {e}", path.display());
        }
        if world.pe() == 0
            && let Some(why) = known.doubt()
        {
            tracing::warn!(
                "the measured transport speeds are unreliable: {why}. They are used for {} minutes, then \
                 measured again; SHMEM_TUNE=always measures now",
                cache::DOUBTFUL_FOR.as_secs() / 60
            );
        }
        Ok((origin, known))
    }

    /// Pairs of PEs that stand for the classes of this job.
    fn pairs(&self) -> Vec<(Class, usize, usize)> {
        let (world, places) = (self.world, &self.places);
        let class = |a, b| Class::of(world.distance(a, b), places[a], places[b]);
        let alike = |pe: usize| (world.localities()[pe].host_index, places[pe]);
        class::representatives(world.n_pes(), alike, class)
    }

    /// PEs found different things in their caches: what the first of them found counts.
    fn share(&self, hellos: &[Hello], known: Measurements) -> Result<Measurements> {
        let Some(giver) = hellos.iter().position(|hello| hello.known != 0) else {
            return Ok(known);
        };
        let mut mine = Vec::new();
        if giver == self.world.pe() {
            mine = Saved::new("", known).text().into_bytes();
        }
        let all = self.world.bootstrap().allgather(&mine)?;
        let text = String::from_utf8_lossy(&all[giver]);
        let saved = Saved::parse(&text).map_err(|why| {
            Error::Bootstrap(format!("PE {giver} sent measurements that cannot be read: {why}"))
        })?;
        Ok(saved.measured)
    }

    /// Measures one pair per class. PEs of a host take turns, hosts do not wait for each other.
    /// None if the heap has no room to measure in.
    fn measure(&self, pairs: &[(Class, usize, usize)]) -> Result<Option<Measurements>> {
        let world = self.world;
        let Some(mut scratch) = Scratch::take(world, self.once) else { return Ok(None) };
        let turns = turns(pairs, |pe| world.localities()[pe].host_index);
        let last = turns.iter().map(|(_, turn)| *turn).max().unwrap_or(0);
        let alone = MEASURING - self.part_of_meetings(pairs);
        let budget = self.config().tune_budget.0.mul_f64(alone) / (last + 1);
        let mine = turns.iter().find(|(pe, _)| *pe == world.pe());
        let target = pairs.iter().any(|(_, from, to)| from != to && *to == world.pe());
        let mut told = Vec::new();
        for turn in 0..=last {
            if mine.is_some_and(|(_, my_turn)| *my_turn == turn) {
                let result = self.measure_mine(pairs, &mut scratch, budget);
                told = serde_json::to_vec(&result)
                    .map_err(|e| Error::Bootstrap(format!("measurements cannot be sent: {e}")))?;
            }
            if turn < last {
                attended(world, target, || world.bootstrap().barrier())?;
            }
        }
        let all = attended(world, target, || world.bootstrap().allgather(&told))?;
        let mut measured = Measurements::default();
        let (mut stuck, mut written) = (false, 0);
        for (pe, _) in &turns {
            let told: Told = serde_json::from_slice(&all[*pe]).map_err(|e| {
                Error::Bootstrap(format!("PE {pe} sent measurements that cannot be read: {e}"))
            })?;
            stuck |= told.stuck;
            if pairs.iter().any(|(_, from, to)| from == pe && *to == world.pe()) {
                written = written.max(told.written);
            }
            measured.merge(told.measured);
        }
        if stuck {
            scratch.abandon();
        } else {
            self.measure_meetings(pairs, &mut scratch, &mut measured)?;
            // What this PE has put between meetings, the other one has put here.
            let written = written.max(scratch.touched());
            scratch.give_back(world, written);
        }
        measured.check().map_err(Error::Bootstrap)?;
        Ok(Some(measured))
    }

    /// Measures the pairs that start here. A PE and itself need little time.
    fn measure_mine(
        &self,
        pairs: &[(Class, usize, usize)],
        scratch: &mut Scratch,
        budget: Duration,
    ) -> Told {
        let pe = self.world.pe();
        let coarse = cache::is_crowded(self.world);
        let weight = |class: Class| if class == Class::Own { 1 } else { 4 };
        let mine = || pairs.iter().filter(|(_, from, _)| *from == pe);
        let whole: u32 = mine().map(|(class, ..)| weight(*class)).sum();
        let (mut begun, mut done) = (Instant::now(), 0);
        let mut told = Told { stuck: false, written: 0, measured: Measurements::default() };
        for (class, _, target) in mine() {
            done += weight(*class);
            let effort = Effort { deadline: begun + budget * done / whole.max(1), coarse };
            let outcome = probe::run(self.world, *class, *target, scratch, effort);
            begun += outcome.warming;
            told.stuck |= outcome.stuck;
            told.measured.merge(outcome.measured);
            if told.stuck {
                break;
            }
        }
        told.measured.cache_share = class::cache_share();
        told.written = scratch.touched();
        told
    }
}

/// What stands for the machine where hosts differ: what was measured between them belongs to all of them together.
fn unlike(hellos: &[Hello]) -> Option<String> {
    let mut prints: Vec<u64> = hellos.iter().map(|hello| hello.fingerprint).collect();
    prints.sort_unstable();
    prints.dedup();
    let text = || format!("hosts that are not alike; digests of what they are: {prints:016x?}");
    (prints.len() > 1).then(text)
}

/// Reads a table that a person has named; the error says what is wrong with it.
fn replayable(text: &str) -> Result<Saved, String> {
    let saved = Saved::parse(text)?;
    match saved.measured.curves.is_empty() {
        true => Err("it holds no measurements".to_owned()),
        false => Ok(saved),
    }
}

/// What speaks against a table in a job on the machine `here` with these pairs, for people: what to say of its speeds.
fn misfits(saved: &Saved, here: &str, pairs: &[(Class, usize, usize)]) -> Vec<String> {
    let other = (saved.machine != here).then(|| {
        format!("were measured elsewhere or otherwise: on {}. This job: {here}", saved.machine)
    });
    let classes = saved.measured.classes();
    // A PE reaches itself by its own memory, whatever was measured.
    let missing = pairs.iter().map(|(class, ..)| *class);
    let missing: Vec<String> = missing
        .filter(|class| *class != Class::Own && !classes.contains(class))
        .map(report::describe)
        .collect();
    let none = (!missing.is_empty()).then(|| {
        let peers = missing.join(", ");
        format!("say nothing of {peers}: operations on them take the routes of jobs without measurements")
    });
    other.into_iter().chain(none).collect()
}

/// Those of the pairs that are to be measured, and whether what is known is dropped then. A doubtful table is not added
/// to: its file would count as new, and good times beside the doubtful ones could hide these for ever.
fn missing(
    mut pairs: Vec<(Class, usize, usize)>,
    known: &Measurements,
) -> (Vec<(Class, usize, usize)>, bool) {
    let classes = known.classes();
    let is_missing = |(class, ..): &(Class, usize, usize)| !classes.contains(class);
    let anew = pairs.iter().any(is_missing) && known.doubt().is_some();
    if !anew {
        pairs.retain(is_missing);
    }
    (pairs, anew)
}

/// Whether a table is kept that was not in the cache of this host. A doubtful one that other hosts have told would live
/// anew here, and tell them in turn.
fn is_kept(origin: &Origin, known: &Measurements) -> bool {
    *origin == Origin::Measured || known.doubt().is_none()
}

/// PEs that measure, each with its turn: those of one host have different turns.
fn turns(pairs: &[(Class, usize, usize)], host: impl Fn(usize) -> u32) -> Vec<(usize, u32)> {
    let mut turns: Vec<(usize, u32)> = Vec::new();
    let mut initiators: Vec<usize> = pairs.iter().map(|(_, from, _)| *from).collect();
    initiators.sort_unstable();
    initiators.dedup();
    for pe in initiators {
        let before = turns.iter().filter(|(other, _)| host(*other) == host(pe)).count();
        turns.push((pe, before as u32));
    }
    turns
}

/// Runs `wait`, which blocks without making progress. On a PE that others measure with, transports
/// that need progress get it meanwhile from a thread, as they would from a waiting program.
fn attended<T>(world: &World, target: bool, wait: impl FnOnce() -> Result<T>) -> Result<T> {
    let needed = |t: &dyn Transport| t.progress_needed() != Progress::None;
    if !target || !world.transports().iter().any(|t| needed(&**t)) {
        return wait();
    }
    let done = AtomicBool::new(false);
    let mut look = || match world.progress() {
        _ if done.load(Ordering::Acquire) => Look::Ready,
        true => Look::Moved,
        false => Look::Nothing,
    };
    // As in a wait that is not long.
    let patience = Patience { yield_ns: LONGEST_NS, ..*world.patience() };
    std::thread::scope(|scope| {
        let attend = || of_library(|| _ = patience.look(&mut look, &mut || world.nap()));
        let builder = std::thread::Builder::new().name("shmem-attendant".into());
        without_signals(|| builder.spawn_scoped(scope, attend))
            .map_err(|e| Error::system("starting a thread that serves while others measure", e))?;
        let result = wait();
        done.store(true, Ordering::Release);
        result
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{Buffer, Curve, Key, Operation, Point};

    #[test]
    fn greetings_survive_the_way() {
        let hello = Hello {
            fingerprint: 1 << 60,
            known: 7,
            place: Binding { cache: -1, node: 3 },
            crowd: 9,
            processors: 3,
            crowded: true,
            once: true,
        };
        assert_eq!(Hello::parse(&hello.bytes()), Some(hello));
        assert_eq!(Hello::parse(&hello.bytes()[1..]), None);
    }

    /// What is known of these classes; measured once only where it is doubtful.
    fn known(classes: &[Class], doubtful: bool) -> Measurements {
        let batches = if doubtful { 1 } else { 7 };
        let point = |bytes| Point { bytes, ns: 100.0, spread: 0.0, batches };
        let curve = |class: &Class| {
            let (operation, buffer, channel) = (Operation::Put, Buffer::Heap, "cached".to_owned());
            let key = Key { class: *class, operation, buffer, channel };
            Curve { key, points: vec![point(8), point(24)], checks: vec![point(16)] }
        };
        Measurements { curves: classes.iter().map(curve).collect(), ..Measurements::default() }
    }

    #[test]
    fn doubtful_measurements_are_not_added_to() {
        let pairs = || vec![(Class::Own, 0, 0), (Class::Cache, 0, 1)];
        let of = |classes: &[Class], doubtful| missing(pairs(), &known(classes, doubtful));
        assert_eq!(of(&[Class::Own], false), (vec![(Class::Cache, 0, 1)], false));
        assert_eq!(of(&[Class::Own], true), (pairs(), true));
        // They are used as they are, for a while, where they are enough.
        assert_eq!(of(&[Class::Own, Class::Cache], true), (vec![], false));
        assert_eq!(of(&[], false), (pairs(), false));
    }

    #[test]
    fn doubtful_measurements_of_others_are_not_kept() {
        let found = Origin::Cache("tuning-7.json".into());
        assert!(is_kept(&found, &known(&[Class::Cache], false)));
        assert!(!is_kept(&found, &known(&[Class::Cache], true)));
        assert!(is_kept(&Origin::Measured, &known(&[Class::Cache], true)));
    }

    #[test]
    fn a_table_without_measurements_is_not_replayed() {
        let of = |measured| replayable(&Saved::new("m", measured).text());
        assert!(of(known(&[Class::Cache], false)).is_ok());
        assert_eq!(of(Measurements::default()).unwrap_err(), "it holds no measurements");
    }

    #[test]
    fn a_table_that_does_not_fit_the_job_is_told_of() {
        let saved = Saved::new("a machine", known(&[Class::Cache], false));
        let pairs = [(Class::Own, 0, 0), (Class::Cache, 0, 1), (Class::Hops(1), 0, 2)];
        assert_eq!(misfits(&saved, "a machine", &pairs[..2]), [""; 0]);
        let all = misfits(&saved, "another one", &pairs);
        assert_eq!(all.len(), 2, "{all:?}");
        assert!(all[0].ends_with("on a machine. This job: another one"), "{all:?}");
        assert!(all[1].starts_with("say nothing of PEs of a neighbouring host: "), "{all:?}");
    }

    #[test]
    fn hosts_that_differ_have_a_name_together() {
        let hello = |fingerprint| Hello {
            fingerprint,
            known: 0,
            place: Binding { cache: 0, node: 0 },
            crowd: 1,
            processors: 1,
            crowded: false,
            once: false,
        };
        assert_eq!(unlike(&[hello(7), hello(7)]), None);
        let name = unlike(&[hello(8), hello(7), hello(8)]);
        assert!(name.as_ref().is_some_and(|name| name.matches("00000000000000").count() == 2));
        assert_eq!(name, unlike(&[hello(7), hello(8)]));
    }

    #[test]
    fn pes_of_a_host_take_turns_and_hosts_do_not_wait() {
        let pairs =
            [(Class::Own, 0, 0), (Class::Cache, 0, 1), (Class::Node, 2, 3), (Class::Host, 5, 6)];
        let host = |pe: usize| if pe < 4 { 0 } else { 1 };
        assert_eq!(turns(&pairs, host), [(0, 0), (2, 1), (5, 0)]);
    }
}
