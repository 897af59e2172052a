// SPDX-License-Identifier: Apache-2.0
//! The library and the job in words: what `SHMEM_INFO` prints and `oshinfo` shows.

use crate::abi::{SHMEM_MAJOR_VERSION, SHMEM_MINOR_VERSION, SHMEM_VENDOR_STRING};
use crate::process::Session;
use crate::variables;
use std::fmt;
use tombolo_collectives as coll;
use tombolo_core::config::{Audience, Environment, Variable};
use tombolo_core::ops::Mode;
use tombolo_core::sizes;
use tombolo_core::transport::Locality;
use tombolo_core::{Error, Result, World};
use tombolo_selector::class::Class;
use tombolo_selector::report;

mod groups;
mod pairs;

const ROUTINE: &str = "oshinfo";

/// A heading, and rows of name and value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Section {
    /// The heading.
    pub title: String,
    /// Name, empty where it is that of the row before, and value.
    pub rows: Vec<(String, String)>,
}

impl Section {
    /// A heading without rows.
    pub fn new(title: impl Into<String>) -> Section {
        Section { title: title.into(), rows: Vec::new() }
    }

    /// Adds a row.
    pub fn row(&mut self, name: &str, value: impl Into<String>) {
        self.rows.push((name.to_owned(), value.into()));
    }

    /// Adds rows of one name.
    pub fn rows(&mut self, name: &str, values: impl IntoIterator<Item = String>) {
        let names = std::iter::once(name).chain(std::iter::repeat(""));
        self.rows.extend(names.map(str::to_owned).zip(values));
    }
}

impl fmt::Display for Section {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let width = self.rows.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
        writeln!(f, "{}", self.title)?;
        self.rows.iter().try_for_each(|(name, value)| writeln!(f, "  {name:width$}  {value}"))
    }
}

/// Stands for the sources from which the library was built: PEs of one job must have it alike.
pub const BUILD: &str = env!("TOMBOLO_BUILD");

/// Name and version of the library and of the standard.
pub fn version() -> String {
    format!("{SHMEM_VENDOR_STRING}, OpenSHMEM {SHMEM_MAJOR_VERSION}.{SHMEM_MINOR_VERSION}")
}

/// Variables for an audience with their values in `environment`, of which some may be wrong, where these come from, and
/// what they do.
pub fn variables(environment: &Environment, audience: Audience) -> String {
    let each = variables::each(environment).into_iter();
    each.filter(|(variable, _)| variable.audience == audience)
        .map(|(variable, row)| {
            describe(variable, row.ok().map(|row| row.value).as_deref(), environment)
        })
        .collect()
}

/// `value` is none where what the environment says is no value.
fn describe(variable: &Variable, value: Option<&str>, environment: &Environment) -> String {
    let found = variable.find(|name: &str| environment.text(name).map(str::to_owned));
    let mut origin = match &found {
        Some((name, _)) if *name == variable.name => "from the environment".to_owned(),
        Some((alias, _)) => format!("from {alias}"),
        None => "default".to_owned(),
    };
    if value.is_none() {
        origin += ", not valid";
    }
    let text = found.map(|(_, text)| text).unwrap_or_default();
    let value = value.unwrap_or(&text);
    let alias = match variable.aliases {
        [] => String::new(),
        aliases => format!(" (or {})", aliases.join(", ")),
    };
    let mut text = format!("  {}{alias} = {} [{origin}]\n", variable.name, shown(value));
    text += &wrapped(variable.help, 6, 94);
    text +=
        &wrapped(&format!("Form: {}. Default: {}.", variable.form, shown(variable.default)), 6, 94);
    text
}

fn shown(value: &str) -> &str {
    if value.is_empty() { "(unset)" } else { value }
}

/// `text` in lines of at most `width` characters, each after `indent` spaces.
fn wrapped(text: &str, indent: usize, width: usize) -> String {
    let mut result = String::new();
    let mut column = 0;
    for word in text.split_whitespace() {
        if column > 0 && indent + column + 1 + word.len() > width {
            result.push('\n');
            column = 0;
        }
        if column == 0 {
            result += &" ".repeat(indent);
        } else {
            result.push(' ');
            column += 1;
        }
        result += word;
        column += word.len();
    }
    result + "\n"
}

/// A number of things, for people.
pub fn count(number: usize, thing: &str) -> String {
    format!("{number} {thing}{}", if number == 1 { "" } else { "s" })
}

/// The algorithms of the collective operations.
pub fn collectives() -> Section {
    let mut section = Section::new("Collective operations and their algorithms (SHMEM_COLL)");
    let mut last = "";
    for row in coll::table::listing() {
        let operation = if row.operation == last { "" } else { row.operation };
        section.row(operation, format!("{}: {}{}", row.name, row.about, row.limits));
        last = row.operation;
    }
    section
}

/// What all PEs together choose among the algorithms of collective operations, with the time that is
/// expected of each. `measured` tells the nanoseconds that an operation takes for a size by each of some
/// algorithms, where it knows them; it is asked in the same order on all PEs.
pub fn choices(
    world: &World,
    measured: impl Fn(&'static str, usize, &[&'static str]) -> Option<Vec<f64>>,
) -> Section {
    let mut section = Section::new("Collective operations of all PEs: algorithms by size");
    for choice in coll::table::choices(world, world.team()) {
        let last = choice.steps.len().saturating_sub(1);
        let words = choice.steps.iter().enumerate().map(|(index, (limit, name))| match index {
            _ if last == 0 => format!("{name} at every size"),
            _ if index == last => format!("{name} above"),
            _ => format!("{name} {}", report::up_to(*limit as u64)),
        });
        section.row(choice.operation, words.collect::<Vec<String>>().join("; "));
        // Where there is nothing to choose from, nothing was compared.
        if choice.estimates.len() > 1 {
            section.rows.extend(times(&choice, &measured));
        }
    }
    section
}

/// A table of the times of an operation's algorithms.
fn times(
    choice: &coll::table::Choice,
    measured: impl Fn(&'static str, usize, &[&'static str]) -> Option<Vec<f64>>,
) -> Vec<(String, String)> {
    let us = |ns: f64| format!("{:.1}", ns / 1000.0);
    let mut columns: Vec<Vec<String>> = vec![Vec::new(); choice.sizes.len()];
    let mut factors = Vec::new();
    for (index, column) in columns.iter_mut().enumerate() {
        let able = |times: &&(&'static str, Vec<Option<u64>>)| times.1[index].is_some();
        let names: Vec<&str> = choice.estimates.iter().filter(able).map(|times| times.0).collect();
        let found = measured(choice.operation, choice.sizes[index], &names);
        let time = |name: &str| Some(found.as_ref()?[names.iter().position(|of| *of == name)?]);
        column.extend(choice.estimates.iter().map(|(name, times)| {
            // Members do not know the lengths of each other's blocks in a collect, so what is expected of it is for
            // short ones.
            let is_of_short = index > 0 && times.iter().all(|time| *time == times[0]);
            let unknown = |expected| expected == u64::MAX || is_of_short;
            match (times[index], time(name)) {
                (None, _) => String::new(),
                (Some(expected), None) if unknown(expected) => "-".to_owned(),
                (Some(expected), Some(ns)) if unknown(expected) => format!("- / {}", us(ns)),
                (Some(expected), None) => us(expected as f64),
                (Some(expected), Some(ns)) => format!("{} / {}", us(expected as f64), us(ns)),
            }
        }));
        let fastest = found.iter().flatten().copied().min_by(f64::total_cmp);
        let taken = choice.taken[index].and_then(time);
        factors.push(taken.zip(fastest).map(|(taken, fastest)| format!("{:.2}", taken / fastest)));
    }
    let any = factors.iter().any(Option::is_some);
    let unit = if any { "us expected / measured" } else { "us expected" };
    let sizes = choice.sizes.iter().map(|size| match size {
        0 => String::new(),
        size => sizes::size(*size as u64),
    });
    let wide = columns.iter().flatten().map(String::len).max().unwrap_or(0);
    let width = wide.max(8) + 2;
    let head = (unit, sizes.collect::<Vec<String>>());
    let of_row = |row: usize| columns.iter().map(|column| column[row].clone()).collect();
    let names = choice.estimates.iter().map(|(name, _)| *name).enumerate();
    let lines = names.map(|(row, name)| (name, of_row(row)));
    let factors = factors.into_iter().map(Option::unwrap_or_default).collect();
    let last = any.then_some(("taken / fastest", factors));
    let line = |(name, cells): (&str, Vec<String>)| {
        let cells: String = cells.iter().map(|cell| format!("{cell:>width$}")).collect();
        (String::new(), format!("  {name:<24}{cells}").trim_end().to_owned())
    };
    std::iter::once(head).chain(lines).chain(last).map(line).collect()
}

/// The job as every PE knows it: launcher, hosts and their PEs, memory.
pub fn job(world: &World) -> Section {
    let mut section = Section::new("Job");
    let places = world.localities();
    let hosts = world.hosts();
    section.row("launcher", world.bootstrap().launcher());
    section.row("PEs", format!("{} on {}", world.n_pes(), count(hosts as usize, "host")));
    for host in 0..hosts {
        let here = || places.iter().enumerate().filter(|(_, place)| place.host_index == host);
        let shown = |(pe, place): (usize, &Locality)| match place.pid {
            0 => pe.to_string(),
            pid => format!("{pe} (process {pid})"),
        };
        let pes: Vec<String> = here().map(shown).collect();
        let name = here().next().map_or("", |(_, place)| place.host_name.as_str());
        section.row(&format!("host {host}"), format!("{name}: PE {}", pes.join(", ")));
    }
    let heap = world.heap();
    let (free, _, capacity) = heap.free_bytes();
    section.row(
        "symmetric heap",
        format!(
            "{} of {} free on each PE, {}",
            sizes::size(free as u64),
            sizes::size(capacity as u64),
            if heap.huge_pages() { "huge pages where possible" } else { "small pages" }
        ),
    );
    let data = world.static_data().map_or("not reached by other PEs".into(), |data| {
        let how = if data.file().is_some() { "shared" } else { "copied by system calls" };
        let bytes: usize = data.ranges().map(|range| range.len()).sum();
        format!("{}, {how}", sizes::size(bytes as u64))
    });
    section.row("static data", data);
    section
}

/// What the transports of this PE say: about its host, then about the PE itself.
pub fn transports(world: &World) -> Vec<Section> {
    let place = &world.localities()[world.pe()];
    let mut host = Section::new(format!("Host {}", place.host_index));
    let mut own = Section::new(format!("PE {}", world.pe()));
    for transport in world.transports() {
        host.rows(transport.name(), transport.describe());
        own.rows(transport.name(), transport.describe_own());
    }
    [host, own].into_iter().filter(|section| !section.rows.is_empty()).collect()
}

/// Collective: everything there is to say about the job, on PE 0; the other PEs get nothing.
///
/// Errors: the symmetric heap has no room for what the PEs tell each other.
pub fn whole_job(session: &Session) -> Result<Option<Vec<Section>>> {
    let world: &World = session;
    let Some(told) = gather(world, Told::here(session).encode().as_bytes())? else {
        return Ok(None);
    };
    let mut ways: Vec<(Class, String, usize)> = Vec::new();
    let mut sections = Vec::new();
    let (mut said, mut classes) = (Vec::new(), Vec::new());
    for text in told {
        let Told { sections: theirs, ways: seen, said: of_pairs } = Told::decode(&text);
        sections.extend(theirs);
        said.push(of_pairs);
        classes.push(seen.iter().map(|way| way.0).collect());
        for (class, words) in seen {
            match ways.iter_mut().find(|way| way.0 == class && way.1 == words) {
                Some(way) => way.2 += 1,
                None => ways.push((class, words, 1)),
            }
        }
    }
    ways.sort_by_key(|way| way.0);
    let mut between = Section::new("Routes to and between PEs");
    for (class, words, pairs) in ways {
        between.row(&report::describe(class), format!("{words} ({})", count(pairs, "pair")));
    }
    let mut all = vec![job(world), between];
    all.extend(pairs::sections(session, &said, &classes));
    all.extend(sections);
    all.push(choices(world, |_, _, _| None));
    Ok(Some(all))
}

/// What one PE tells PE 0, as text with a line per item.
struct Told {
    sections: Vec<Section>,
    /// Class of each PE, this one included, and the routes to it.
    ways: Vec<(Class, String)>,
    /// What there is to say of its pairs with other PEs.
    said: Vec<pairs::Said>,
}

impl Told {
    fn here(session: &Session) -> Told {
        let world: &World = session;
        let mut sections = transports(world);
        if world.localities()[world.pe()].local_index != 0 {
            // Another PE speaks for the host.
            sections.drain(..sections.len().saturating_sub(1));
        }
        let tuning = session.tuning();
        let way = |pe| (tuning.class_of(pe), report::routes(world, pe));
        Told { sections, ways: (0..world.n_pes()).map(way).collect(), said: pairs::here(world) }
    }

    fn encode(&self) -> String {
        let mut text = String::new();
        for Section { title, rows } in &self.sections {
            text += &format!("section\t{title}\t\n");
            rows.iter().for_each(|(name, value)| text += &format!("row\t{name}\t{value}\n"));
        }
        self.ways.iter().for_each(|(class, words)| text += &format!("way\t{class}\t{words}\n"));
        self.said.iter().for_each(|said| text += &format!("said\t\t{}\n", said.encode()));
        text
    }

    /// Lines of another form are left out: they only were to be read by people.
    fn decode(text: &str) -> Told {
        let mut told = Told { sections: Vec::new(), ways: Vec::new(), said: Vec::new() };
        for line in text.lines() {
            let fields: Vec<&str> = line.splitn(3, '\t').collect();
            match (&fields[..], told.sections.last_mut()) {
                (["section", title, _], _) => told.sections.push(Section::new(*title)),
                (["row", name, value], Some(section)) => section.row(name, *value),
                (["way", class, words], _) => {
                    told.ways.extend(class.parse().ok().map(|class| (class, (*words).to_owned())));
                }
                (["said", _, words], _) => told.said.extend(pairs::Said::decode(words)),
                _ => {}
            }
        }
        told
    }
}

/// Collective: brings a text of each PE to PE 0, which gets them out of the others' symmetric
/// memory.
fn gather(world: &World, mine: &[u8]) -> Result<Option<Vec<String>>> {
    let n = world.n_pes();
    let lengths = Block::take(world, (n + 1) * 8)?;
    let all = lengths.start.cast::<u64>();
    // SAFETY: the block holds one word per PE and one more, all of them symmetric.
    let lengths_of: Vec<usize> = unsafe {
        let own = all.add(n);
        own.write(mine.len() as u64);
        coll::fcollect(world, world.team(), all.cast(), own.cast(), 8, ROUTINE);
        (0..n).map(|pe| all.add(pe).read() as usize).collect()
    };
    let longest = lengths_of.iter().copied().max().unwrap_or(0).max(1);
    let text = Block::take(world, longest)?;
    // SAFETY: no text is longer than the block.
    unsafe { std::ptr::copy_nonoverlapping(mine.as_ptr(), text.start, mine.len()) };
    coll::barrier_all(world, ROUTINE);
    let told = (world.pe() == 0).then(|| {
        let get = |(pe, len): (usize, &usize)| {
            let mut bytes = vec![0u8; *len];
            let (dest, context) = (bytes.as_mut_ptr(), world.context());
            // SAFETY: `dest` and the other PE's block both hold that many bytes.
            unsafe { world.get(context, dest, text.start, *len, pe, Mode::Blocking, ROUTINE) };
            String::from_utf8_lossy(&bytes).into_owned()
        };
        lengths_of.iter().enumerate().map(get).collect()
    });
    coll::barrier_all(world, ROUTINE);
    Ok(told)
}

/// Memory of the symmetric heap, the same on every PE, given back when it is dropped.
pub struct Block<'a> {
    world: &'a World,
    /// First byte, at a multiple of 64.
    pub start: *mut u8,
}

impl<'a> Block<'a> {
    /// Collective: takes `bytes` bytes, and returns when all PEs have them. Whoever was there before,
    /// such as the micro-benchmarks at start, is done with that memory on all PEs then.
    pub fn take(world: &'a World, bytes: usize) -> Result<Block<'a>> {
        let start = world.heap().allocate(bytes, 64);
        if start.is_null() {
            let (_, largest, _) = world.heap().free_bytes();
            return Err(Error::Memory(format!(
                "{bytes} bytes of symmetric memory are needed, the heap has {largest}: set \
                 SHMEM_SYMMETRIC_SIZE to more"
            )));
        }
        coll::barrier_all(world, ROUTINE);
        Ok(Block { world, start })
    }
}

impl Drop for Block<'_> {
    fn drop(&mut self) {
        self.world.heap().free(self.start);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_is_wrapped_at_the_width() {
        assert_eq!(wrapped("aa bb cc", 2, 7), "  aa bb\n  cc\n");
    }

    #[test]
    fn every_variable_is_shown_with_its_help() {
        let of = |audience| super::variables(&Environment::default(), audience);
        let text = of(Audience::User) + &of(Audience::Launcher);
        for variable in variables::all() {
            assert!(text.contains(&format!("  {}", variable.name)), "{}", variable.name);
            assert!(text.contains(variable.help.split_whitespace().next().unwrap()));
        }
    }

    #[test]
    fn what_a_pe_tells_is_understood_and_torn_text_is_survived() {
        let mut section = Section::new("PE 1");
        section.rows("ntb", ["a: b".to_owned(), "c\td".to_owned()]);
        let ways = vec![(Class::Hops(2), "put ntb".to_owned())];
        let said = Vec::new();
        let text = Told { sections: vec![section.clone()], ways: ways.clone(), said }.encode();
        let told = Told::decode(&text);
        assert_eq!((told.sections, told.ways), (vec![section], ways));
        for cut in 0..text.len() {
            Told::decode(&text[cut..]);
        }
    }
}
