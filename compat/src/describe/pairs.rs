// SPDX-License-Identifier: Apache-2.0
//! Which transports reach which PEs, what each is used for, and why the others are not: for each set of pairs
//! of PEs of which the same is to be said, once.

use super::Section;
use super::groups::{Pairs, hosts_of, in_words, ranges};
use crate::process::Session;
use std::collections::HashMap;
use tombolo_core::config::Value;
use tombolo_core::route::{Channel, STEPS_MAX, Steps};
use tombolo_core::transport::SegmentKind;
use tombolo_core::{World, choice};
use tombolo_selector::class::{Class, parse_cpu_list};
use tombolo_selector::data::{Buffer, Operation};
use tombolo_selector::report::{self, Explanation};
use tombolo_selector::{Origin, Tuning};
use tombolo_transports::NAMES;

/// Sets of pairs that are shown; there are more only where hosts lack something for many different reasons.
const SETS: usize = 12;
/// What is said of a transport that works, but neither reaches a PE nor tells why.
const NO_REASON: &str = "no reason is known";
const LEFT_OUT: &str = "left out by SHMEM_TRANSPORTS";

choice! {
    /// What a PE knows of a transport, as words between PEs.
    How {
        /// Routes use it.
        Used = "used",
        /// It could be used.
        Idle = "idle",
        /// It works, but not towards these PEs.
        Unreached = "unreached",
        /// It does not work.
        Refused = "refused",
    }
}

/// What one PE says of a transport towards some PEs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Said {
    transport: String,
    how: How,
    /// In words for people; nothing where the word says it all.
    what: String,
    pes: Vec<usize>,
}

impl Said {
    /// A line to PE 0, without its end.
    pub fn encode(&self) -> String {
        let Said { transport, how, what, pes } = self;
        let what = what.replace(char::is_control, " ");
        let how = how.name();
        format!("{transport}\t{how}\t{}\t{what}", ranges(pes))
    }

    /// None where the line is of another form.
    pub fn decode(line: &str) -> Option<Said> {
        let mut fields = line.splitn(4, '\t');
        let mut next = || fields.next().map(str::to_owned);
        let (transport, how, pes, what) = (next()?, next()?, next()?, next()?);
        Some(Said { transport, how: How::parse(&how).ok()?, what, pes: parse_cpu_list(&pes) })
    }
}

/// What this PE says of all transports towards all others.
pub fn here(world: &World) -> Vec<Said> {
    let mut all: Vec<Said> = Vec::new();
    for name in names(world) {
        let index = world.transports().iter().position(|transport| transport.name() == name);
        for pe in (0..world.n_pes()).filter(|pe| *pe != world.pe()) {
            let why = world.why_unreachable(pe).of(name);
            let (how, what) = match index.map(|index| reached(world, index, pe)) {
                Some(Some(uses)) if uses.is_empty() => (How::Idle, uses),
                Some(Some(uses)) => (How::Used, uses),
                Some(None) => (How::Unreached, why.unwrap_or(NO_REASON).to_owned()),
                None => match why {
                    Some(why) => (How::Refused, why.to_owned()),
                    None => (How::Refused, LEFT_OUT.to_owned()),
                },
            };
            let is_same =
                |said: &&mut Said| (&*said.transport, said.how, &said.what) == (name, how, &what);
            match all.iter_mut().find(is_same) {
                Some(said) => said.pes.push(pe),
                None => all.push(Said { transport: name.to_owned(), how, what, pes: vec![pe] }),
            }
        }
    }
    all
}

/// All transports: those in use in their order, then the others.
fn names(world: &World) -> Vec<&'static str> {
    let mut names: Vec<&str> =
        world.transports().iter().map(|transport| transport.name()).collect();
    names
        .extend(NAMES.iter().filter(|name| !world.transports().iter().any(|t| t.name() == **name)));
    names
}

/// What the routes in force use a transport for towards a PE, nothing if for nothing; none where it does not reach
/// the PE.
fn reached(world: &World, transport: usize, pe: usize) -> Option<String> {
    let peer = world.peer(transport, pe)?;
    let present = || SegmentKind::ALL.into_iter().filter(|kind| !world.base(*kind).is_null());
    if !present().any(|kind| peer.can(kind).reach()) {
        return None;
    }
    // Where static data are not reached, requests for them may still go by way of the heap.
    let uses: Vec<(SegmentKind, String)> =
        present().map(|kind| (kind, uses(world, transport, pe, kind))).collect();
    let place = |kind| match kind {
        SegmentKind::Heap => "in the symmetric heap",
        SegmentKind::Static => "in static data",
    };
    let [(_, first), others @ ..] = &uses[..] else { return None };
    if others.iter().all(|(_, words)| words == first) {
        return Some(if first.is_empty() { String::new() } else { format!("for {first}") });
    }
    let some = uses.iter().filter(|(_, words)| !words.is_empty());
    let some: Vec<String> =
        some.map(|(kind, words)| format!("{} for {words}", place(*kind))).collect();
    Some(some.join("; "))
}

/// The operations on a segment of a PE that go by a transport.
fn uses(world: &World, transport: usize, pe: usize, kind: SegmentKind) -> String {
    let routes = &world.routes().peers[pe];
    let at = kind as usize;
    let maps = carrier_of_copies(world, pe, kind) == Some(transport);
    let part = |channel: Channel| part(world, transport, maps, channel);
    let mut words = sizes("puts", &routes.put[at], part);
    words.extend(sizes("gets", &routes.get[at], part));
    words.extend(match routes.amo[at] {
        Channel::Service if carrier_of_requests(world, pe) == Some(transport) => {
            Some("AMOs by request to the target".to_owned())
        }
        channel => part(channel).map(|_| "all AMOs".to_owned()),
    });
    let (whole, parts): (Vec<String>, Vec<String>) = words
        .into_iter()
        .partition(|words| ["all puts", "all gets", "all AMOs"].contains(&&**words));
    let whole: Vec<&str> = whole.iter().map(|words| &words["all ".len()..]).collect();
    let whole = match &whole[..] {
        [] => None,
        [one] => Some(format!("all {one}")),
        [some @ .., last] => Some(format!("all {} and {last}", some.join(", "))),
    };
    whole.into_iter().chain(parts).collect::<Vec<String>>().join(", ")
}

/// The transport by which memory of a PE is mapped.
fn carrier_of_copies(world: &World, pe: usize, kind: SegmentKind) -> Option<usize> {
    let is_mapped = !world.ptr(world.base(kind), pe).is_null();
    let maps = |transport: &usize| {
        let mapping = world.endpoint(*transport, pe).and_then(|endpoint| endpoint.mapped(kind));
        mapping.is_some_and(|mapping| mapping.load && mapping.atomic)
    };
    (0..world.transports().len()).find(maps).filter(|_| is_mapped)
}

/// The transport that brings requests to a PE.
fn carrier_of_requests(world: &World, pe: usize) -> Option<usize> {
    let puts = |transport: &usize| {
        world.peer(*transport, pe).is_some_and(|peer| peer.can(SegmentKind::Heap).put)
    };
    let copies = carrier_of_copies(world, pe, SegmentKind::Heap);
    copies.or_else(|| (0..world.transports().len()).find(puts))
}

/// Which part of an operation by `channel` is a transport's, in words that follow the sizes; none if it has no part.
/// The transport may map the memory.
fn part(world: &World, transport: usize, maps: bool, channel: Channel) -> Option<String> {
    let other = |both: [u8; 2]| {
        let other = both.into_iter().find(|index| usize::from(*index) != transport);
        other.map_or("", |index| world.transports()[usize::from(index)].name())
    };
    match channel {
        Channel::Cached | Channel::Streaming => maps.then(String::new),
        channel if !channel.takes(transport as u8) => None,
        Channel::Striped(stripes) => Some(format!(" together with {}", other(stripes.transports))),
        Channel::Either(either) => {
            Some(format!(" by turns with {}, whichever is sooner", other(either.transports)))
        }
        _ => Some(String::new()),
    }
}

/// The sizes of which a transport has a part.
fn sizes(what: &str, steps: &Steps, part: impl Fn(Channel) -> Option<String>) -> Vec<String> {
    let last = steps.limits.iter().position(|limit| *limit == usize::MAX).unwrap_or(STEPS_MAX - 1);
    let mut parts: Vec<(usize, Option<String>)> = Vec::new();
    for (limit, channel) in steps.limits.iter().zip(steps.channels).take(last + 1) {
        let part = part(channel);
        match parts.last_mut() {
            Some(before) if before.1 == part => before.0 = *limit,
            _ => parts.push((*limit, part)),
        }
    }
    let starts = std::iter::once(None).chain(parts.iter().map(|(limit, _)| Some(*limit as u64)));
    let ranges = starts.zip(&parts).filter_map(|(start, (limit, part))| {
        let part = part.as_ref()?;
        let end = (*limit != usize::MAX).then_some(*limit as u64);
        Some(match (start, end) {
            (None, None) => format!("all {what}{part}"),
            (None, Some(end)) => format!("{what} {}{part}", report::up_to(end)),
            (Some(start), None) => format!("{what} {}{part}", report::beyond(start)),
            (Some(start), Some(end)) => {
                format!("{what} {} and {}{part}", report::beyond(start), report::up_to(end))
            }
        })
    });
    ranges.collect()
}

/// All that is said of pairs of PEs, in words: on PE 0. By PE, `said` is what it says, `classes` how far it is from
/// each.
pub fn sections(session: &Session, said: &[Vec<Said>], classes: &[Vec<Class>]) -> Vec<Section> {
    let world: &World = session;
    let hosts: Vec<u32> = world.localities().iter().map(|place| place.host_index).collect();
    let about = About::new(&session.tuning(), names(world), said, classes, &hosts);
    let mut sets: Vec<(Vec<(String, String)>, Pairs)> = Vec::new();
    let mut known: HashMap<Vec<(String, String)>, usize> = HashMap::new();
    for (from, classes) in classes.iter().enumerate() {
        for (to, class) in classes.iter().copied().enumerate().filter(|(to, _)| *to != from) {
            let rows = about.rows(from, to, class);
            let set = *known.entry(rows).or_insert_with_key(|rows| {
                sets.push((rows.clone(), vec![Vec::new(); said.len()]));
                sets.len() - 1
            });
            sets[set].1[from].push(to);
        }
    }
    let shown = sets.iter().take(SETS).map(|(rows, pairs)| {
        let title = format!("Transports between PEs: {}", in_words(pairs, &hosts));
        Section { title, rows: rows.clone() }
    });
    let mut sections: Vec<Section> = shown.collect();
    let others: usize = sets.iter().skip(SETS).flat_map(|set| &set.1).map(Vec::len).sum();
    if others > 0 {
        let mut section = Section::new("Transports between other PEs");
        section
            .row("not shown", format!("{others} pairs, each direction counted: too many differ"));
        sections.push(section);
    }
    sections
}

/// What PE 0 knows of transports, from all PEs.
struct About<'a> {
    /// In order of preference.
    names: Vec<&'static str>,
    /// By PE and transport, what it says of each PE.
    said: Vec<Vec<HashMap<usize, &'a Said>>>,
    /// By PE and transport, that it cannot be used there, and why.
    refused: Vec<Vec<Option<String>>>,
    /// By name and distance, why it is not used although it reaches the PEs.
    idle: HashMap<(&'static str, Class), String>,
}

impl<'a> About<'a> {
    fn new(
        tuning: &Tuning,
        names: Vec<&'static str>,
        said: &'a [Vec<Said>],
        classes: &[Vec<Class>],
        hosts: &[u32],
    ) -> About<'a> {
        let explanation = Explanation::of(tuning);
        let mut idle = HashMap::new();
        for class in classes.iter().flatten() {
            for name in &names {
                let why = || why_idle(tuning, &explanation, name, *class);
                idle.entry((*name, *class)).or_insert_with(why);
            }
        }
        let of = |said: &'a Vec<Said>, name: &str| {
            let of = said.iter().filter(|said| said.transport == name);
            of.flat_map(|said| said.pes.iter().map(move |pe| (*pe, said))).collect()
        };
        let said: Vec<Vec<HashMap<usize, &Said>>> =
            said.iter().map(|said| names.iter().map(|name| of(said, name)).collect()).collect();
        let why = |pe: usize, name: usize| {
            let any = said[pe][name].values().next();
            any.filter(|said| said.how == How::Refused).map(|said| &*said.what)
        };
        // Where it is so: nothing need be said of that if it is so everywhere. All PEs of which it is so say the same,
        // so that their pairs make one set.
        let mut refused = vec![vec![None; names.len()]; said.len()];
        for (name, _) in names.iter().enumerate() {
            let mut by_text: HashMap<&str, Vec<usize>> = HashMap::new();
            for pe in 0..said.len() {
                if let Some(text) = why(pe, name) {
                    by_text.entry(text).or_default().push(pe);
                }
            }
            for (text, pes) in by_text {
                let on = hosts_of(&pes, hosts);
                let on_these = hosts.iter().filter(|host| on.contains(&(**host as usize))).count();
                let s = |all: &[usize]| if all.len() == 1 { "" } else { "s" };
                let place = match () {
                    () if pes.len() == said.len() => String::new(),
                    () if pes.len() == on_these => format!(" on host{} {}", s(&on), ranges(&on)),
                    () => format!(" on PE{} {}", s(&pes), ranges(&pes)),
                };
                let whole = match text {
                    LEFT_OUT => format!("{text}{place}"),
                    _ => format!("cannot be used{place}: {text}"),
                };
                pes.into_iter().for_each(|pe| refused[pe][name] = Some(whole.clone()));
            }
        }
        About { names, said, refused, idle }
    }

    /// What is to be said of the way from a PE to another: transports, and what there is to each, those in use
    /// first.
    fn rows(&self, from: usize, to: usize, class: Class) -> Vec<(String, String)> {
        let mut rows: Vec<(u8, String, String)> = Vec::new();
        for (at, name) in self.names.iter().enumerate() {
            let said = self.said[from][at].get(&to);
            let (order, text) = match (&self.refused[from][at], &self.refused[to][at], said) {
                (Some(one), Some(other), _) if one < other => (3, format!("{one}; {other}")),
                (Some(one), Some(other), _) if one > other => (3, format!("{other}; {one}")),
                (Some(why), ..) | (_, Some(why), _) => (3, why.clone()),
                (.., Some(said)) if said.how == How::Used => (0, format!("used {}", said.what)),
                (.., Some(said)) if said.how == How::Idle => {
                    (1, self.idle[&(*name, class)].clone())
                }
                (.., said) => {
                    let why = said.map_or(NO_REASON, |said| &said.what);
                    (2, format!("cannot reach them: {why}"))
                }
            };
            match rows.iter_mut().find(|row| (row.0, &row.2) == (order, &text)) {
                Some((_, names, _)) => *names += &format!(", {name}"),
                None => rows.push((order, (*name).to_owned(), text)),
            }
        }
        rows.sort_by_key(|row| row.0);
        rows.into_iter().map(|(_, names, text)| (names, text)).collect()
    }
}

/// Why routes do not use a transport that reaches the PEs.
fn why_idle(tuning: &Tuning, explanation: &Explanation, name: &str, class: Class) -> String {
    const REACHES: &str = "can reach them; not used:";
    let failed = explanation.rejected.iter();
    let mut failed = failed.filter(|it| it.failed && it.channel == name);
    if let Some(failed) = failed.find(|it| [class, class.modelled()].contains(&it.class)) {
        return format!("{REACHES} when it was measured, {}", failed.why);
    }
    let forced = if !tuning.rules().is_empty() { "; SHMEM_ROUTE forces some routes" } else { "" };
    let ratios = [class, class.modelled()].map(|class| ratios(explanation, name, class));
    let ratios = ratios.into_iter().flatten().next();
    match (ratios, tuning.origin()) {
        (Some((least, most)), _) if least >= 1.05 => {
            let times = |ratio: f64| match ratio {
                ratio if ratio < 10.0 => format!("{ratio:.1}"),
                ratio => format!("{ratio:.0}"),
            };
            let (least, most) = (times(least), times(most));
            let times = if least == most { least } else { format!("{least} to {most}") };
            format!(
                "{REACHES} by measurement it takes {times} times as long as what is used{forced}"
            )
        }
        (Some(_), _) => format!(
            "{REACHES} by measurement it is not faster by enough, or not at enough sizes{forced}"
        ),
        (None, Origin::Off | Origin::NoRoom) => format!(
            "{REACHES} {}; without measurements routes take the first transport that can, in the order of \
             SHMEM_TRANSPORTS{forced}",
            tuning.origin()
        ),
        (None, _) => format!("{REACHES} it was not measured between such PEs{forced}"),
    }
}

/// How many times as long as by the channel taken a put or get takes: at the best size and at the worst.
fn ratios(explanation: &Explanation, name: &str, class: Class) -> Option<(f64, f64)> {
    let is_asked = |section: &&report::Section| {
        let operations = [Operation::Put, Operation::Get];
        section.class == report::describe(class)
            && operations.contains(&section.operation)
            && section.buffer == Buffer::Heap
    };
    let rows = explanation.sections.iter().filter(is_asked).flat_map(|it| &it.rows);
    let ratio = |row: &report::Row| {
        let time = |name: &str| {
            let found = row.candidates.iter().find(|it| it.channel == name);
            found.map(|it| it.measured_ns)
        };
        Some(time(name)? / time(&row.chosen)?)
    };
    rows.filter_map(ratio).fold(None, |so_far: Option<(f64, f64)>, ratio| {
        let (least, most) = so_far.unwrap_or((ratio, ratio));
        Some((least.min(ratio), most.max(ratio)))
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_are_said_from_both_ends() {
        let part = |channel: Channel| (channel == Channel::Cached).then(String::new);
        let said = |steps: &Steps| sizes("puts", steps, part).join(", ");
        let (mine, other) = (Channel::Cached, Channel::Streaming);
        assert_eq!(said(&Steps::always(mine)), "all puts");
        assert_eq!(said(&Steps::always(other)), "");
        assert_eq!(said(&Steps::split(mine, 100, other)), "puts up to 100 B");
        assert_eq!(said(&Steps::split(other, 1023, mine)), "puts from 1 KiB");
        let limits = [64, 1 << 20, usize::MAX, usize::MAX];
        let middle = Steps { limits, channels: [other, mine, other, other] };
        assert_eq!(said(&middle), "puts above 64 B and up to 1 MiB");
        let same = Steps { limits, channels: [mine, mine, mine, mine] };
        assert_eq!(said(&same), "all puts");
    }

    #[test]
    fn what_is_said_is_read_back_and_torn_text_is_survived() {
        let said = Said {
            transport: "tcp".into(),
            how: How::Unreached,
            what: "no\tway".into(),
            pes: vec![0, 1, 2, 7],
        };
        let line = said.encode();
        assert_eq!(line, "tcp\tunreached\t0-2,7\tno way");
        assert_eq!(Said::decode(&line), Some(Said { what: "no way".into(), ..said }));
        for cut in 0..line.len() {
            Said::decode(&line[..cut]);
        }
    }
}
