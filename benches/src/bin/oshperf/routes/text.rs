// SPDX-License-Identifier: Apache-2.0
//! Tables: lines that begin with `#`, then a line per size.

use super::judge::{GOAL, Size};
use super::{Group, Local, Op};
use crate::sizes::show;
use tombolo::describe::count;
use tombolo_core::World;
use tombolo_selector::report::time;

/// Where the job is.
pub fn place(world: &World) -> String {
    format!("{} on {}", count(world.n_pes(), "PE"), count(world.hosts() as usize, "host"))
}

fn name(group: &Group) -> String {
    let op = match group.op {
        Op::Put => "put",
        Op::Get => "get",
        Op::Puts => "one of four puts",
        Op::Nbi => "one of sixteen non-blocking puts",
    };
    let local = match group.local {
        Local::Heap => "from and to the heap",
        Local::Private => "with a private buffer",
    };
    format!("{op}, {}, {local}", group.to)
}

/// Before the sizes of a group, which has times by these routes.
pub fn head(group: &Group, ways: &[String]) -> String {
    let ways: String = ways.iter().map(|name| format!("  {name:>15}")).collect();
    format!("\n# {}\n# {:>6}  {:>6}  {:15}{ways}\n", name(group), "size", "ratio", "taken")
}

/// One size, with a column for each of the routes; some are not usable at every size.
pub fn line(size: &Size, ways: &[String]) -> String {
    let column = |way: &String| {
        let found = size.ns.iter().find(|(name, _)| name == way);
        format!("  {:>15}", found.map_or_else(|| "-".to_owned(), |(_, ns)| time(*ns)))
    };
    let times: String = ways.iter().map(column).collect();
    let read = size
        .read
        .map_or(String::new(), |read| format!("  past the caches and read: {read:.2} times"));
    let mark = if size.ratio > GOAL { " *" } else { "" };
    let Size { taken, ratio, .. } = size;
    format!("{:>8}  {ratio:>6.3}  {taken:15}{times}{read}{mark}\n", size.bytes)
}

/// After the sizes of a group.
pub fn foot(group: &Group) -> String {
    format!("# {}\n", judged(std::slice::from_ref(group)))
}

/// After all groups.
pub fn end(groups: &[Group]) -> String {
    match groups.is_empty() {
        true => "\n# Nothing was measured\n".to_owned(),
        false => format!("\n# In all: {}\n", judged(groups)),
    }
}

fn judged(groups: &[Group]) -> String {
    let sizes = || groups.iter().flat_map(|group| group.sizes.iter().map(move |s| (group, s)));
    let beyond = sizes().filter(|(_, size)| size.ratio > GOAL).count();
    let worst = sizes().max_by(|a, b| a.1.ratio.total_cmp(&b.1.ratio));
    let worst = worst.map_or(String::new(), |(group, size)| {
        let whose = if groups.len() > 1 { format!("{}, ", name(group)) } else { String::new() };
        format!("; the worst {:.3} ({whose}{}, {})", size.ratio, show(size.bytes), size.taken)
    });
    format!(
        "{beyond} of {} sizes take more than {GOAL} times the fastest route{worst}",
        sizes().count()
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn group(op: Op, ratios: &[f64]) -> Group {
        let size = |(index, ratio): (usize, &f64)| Size {
            bytes: 1024 << index,
            taken: "cached".to_owned(),
            ns: vec![("cached".to_owned(), 100.0 * ratio), ("cma".to_owned(), 100.0)],
            read: None,
            ratio: *ratio,
        };
        let sizes = ratios.iter().enumerate().map(size).collect();
        Group { to: "PEs".to_owned(), op, local: Local::Heap, sizes }
    }

    #[test]
    fn misses_are_counted_and_the_worst_is_named() {
        let groups = [group(Op::Put, &[1.0, 1.04]), group(Op::Get, &[1.06, 1.3])];
        let text = end(&groups);
        assert!(text.contains("In all: 2 of 4 sizes"), "{text}");
        assert!(
            text.contains("worst 1.300 (get, PEs, from and to the heap, 2K, cached)"),
            "{text}"
        );
        assert!(foot(&groups[0]).contains("0 of 2 sizes"));
        let ways = ["cached", "shm", "cma"].map(str::to_owned);
        let miss = line(&groups[1].sizes[0], &ways);
        let cells: Vec<&str> = miss.split_whitespace().collect();
        assert_eq!(cells, ["1024", "1.060", "cached", "106.0", "ns", "-", "100.0", "ns", "*"]);
        assert!(line(&groups[0].sizes[1], &ways).ends_with(" ns\n"));
        assert!(end(&[]).contains("Nothing"));
    }
}
