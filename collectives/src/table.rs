// SPDX-License-Identifier: Apache-2.0
//! How an algorithm is chosen: which there are is told in [`crate::algorithms`].
//!
//! All members choose for themselves and must choose alike: whether an algorithm applies and what
//! it costs may depend only on what all of them know to be equal: the number of members, the
//! lengths, the kind of group, the hosts and the extent of the group, and the costs of single
//! operations ([`tombolo_core::cost`]), which the selector measures. A team remembers its choices.

use crate::algorithms::{ALLTOALL, ALLTOALLS, BROADCAST, COLLECT, FCOLLECT, REDUCE, SCAN, SYNC};
use crate::group::Group;
use crate::notes::class;
use crate::reducer::Reducer;
use crate::strided::Alltoalls;
use tombolo_core::config::Algorithms;
use tombolo_core::{Team, World};

/// Number of operations.
pub const OPERATIONS: usize = 8;
/// Kinds of calls whose choices are remembered: operations, and reductions that are not exact.
pub const KINDS: usize = OPERATIONS + 1;

/// A collective operation with arguments `A`.
pub(crate) struct Operation<A: 'static> {
    /// Its number, below [`OPERATIONS`].
    pub number: usize,
    pub name: &'static str,
    /// The algorithm that the operation's routine enters by itself where it was chosen and bytes fit a line: in
    /// the shortest calls a look at this table takes as long as all else.
    pub short: Option<&'static str>,
    /// The first one that can carry out everything is there.
    pub algorithms: &'static [Algorithm<A>],
}

/// One way to carry out a collective call with arguments `A`.
pub(crate) struct Algorithm<A> {
    /// The name people use in `SHMEM_COLL`.
    pub name: &'static str,
    /// What it does, in a few words.
    pub about: &'static str,
    /// When it is taken without being asked for.
    pub taken: Taken,
    /// Whether it can carry out a call.
    pub applies: fn(&Group<'_>, &A) -> bool,
    /// What a call that moves so many bytes is expected to take, in nanoseconds; the largest number
    /// where it is not taken unless asked for.
    pub cost_ns: fn(&Group<'_>, usize) -> u64,
    pub run: unsafe fn(&Group<'_>, &A),
}

/// When an algorithm is taken without being asked for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub(crate) enum Taken {
    /// When it is expected to be the fastest.
    ByCost,
    /// The same, if the result does not depend on the order in which elements are combined: sums of
    /// floating-point numbers have the same bits however costs were measured.
    ByCostIfExact,
    /// Never: no measurement shows so far that it is faster than another one.
    OnRequest,
}

/// The arguments of a call.
pub(crate) trait Call {
    /// Bytes by which algorithms are compared, the same at all members.
    fn bytes(&self) -> usize;

    /// Whether the order in which elements are combined does not matter.
    fn is_exact(&self) -> bool {
        true
    }
}

impl<A: Call> Operation<A> {
    /// The kind of a call, below [`KINDS`].
    #[inline(always)]
    pub(crate) fn kind(&self, call: &A) -> usize {
        if call.is_exact() { self.number } else { OPERATIONS }
    }
}

/// By operation, the numbers of the algorithms that the user asks for; nothing asked is none.
pub struct Forced([Box<[usize]>; OPERATIONS]);

impl Forced {
    /// What `SHMEM_COLL` says. Names that are unknown are left out: [`check`] has refused them.
    pub fn new(asked: &Algorithms) -> Forced {
        let mut forced = Forced(Default::default());
        // Active sets have no place to remember it, and most jobs ask for nothing.
        if asked.0.is_empty() {
            return forced;
        }
        let all = listing();
        for Row { operation, operation_number, .. } in &all {
            let names = asked.of(operation).unwrap_or_default().iter();
            let of_name = |name: &String| {
                let row = all.iter().find(|row| row.operation == *operation && row.name == name)?;
                Some(row.number)
            };
            forced.0[*operation_number] = names.filter_map(of_name).collect();
        }
        forced
    }
}

/// An algorithm, for listings.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    /// Name of the operation.
    pub operation: &'static str,
    operation_number: usize,
    /// Name of the algorithm.
    pub name: &'static str,
    number: usize,
    /// What it does.
    pub about: &'static str,
    /// When it is taken, where that is not by its cost alone.
    pub limits: &'static str,
}

/// All algorithms, operation by operation.
pub fn listing() -> Vec<Row> {
    fn rows<A>(operation: &Operation<A>) -> impl Iterator<Item = Row> {
        let Operation { number: operation_number, name: operation, algorithms, .. } = *operation;
        algorithms.iter().enumerate().map(move |(number, algorithm)| Row {
            operation,
            operation_number,
            name: algorithm.name,
            number,
            about: algorithm.about,
            limits: match algorithm.taken {
                Taken::ByCost => "",
                Taken::ByCostIfExact => "; for floating-point numbers only if SHMEM_COLL names it",
                Taken::OnRequest => "; only if SHMEM_COLL names it",
            },
        })
    }
    rows(&SYNC)
        .chain(rows(&BROADCAST))
        .chain(rows(&COLLECT))
        .chain(rows(&FCOLLECT))
        .chain(rows(&ALLTOALL))
        .chain(rows(&ALLTOALLS))
        .chain(rows(&REDUCE))
        .chain(rows(&SCAN))
        .collect()
}

/// Whether there is everything that `SHMEM_COLL` names; the error lists what there is.
pub fn check(asked: &Algorithms) -> Result<(), String> {
    let all = listing();
    for forced in &asked.0 {
        let names: Vec<&str> = all
            .iter()
            .filter(|row| row.operation == forced.operation)
            .map(|row| row.name)
            .collect();
        if names.is_empty() {
            let mut operations: Vec<&str> = all.iter().map(|row| row.operation).collect();
            operations.dedup();
            return Err(format!(
                "'{}' is not a collective operation; expected one of {}",
                forced.operation,
                operations.join(", ")
            ));
        }
        let unknown = |name: &&String| !names.contains(&name.as_str());
        if let Some(unknown) = forced.algorithms.iter().find(unknown) {
            return Err(format!(
                "'{unknown}' is not an algorithm of {}; expected one of {}",
                forced.operation,
                names.join(", ")
            ));
        }
    }
    Ok(())
}

/// What a team chooses among the algorithms of an operation, and what it expects of each.
pub struct Choice {
    /// Name of the operation.
    pub operation: &'static str,
    /// Up to which size in bytes which algorithm is taken; the last has no limit.
    pub steps: Vec<(usize, &'static str)>,
    /// Sizes in bytes for which times are estimated; a single one where no data are moved.
    pub sizes: &'static [usize],
    /// The algorithm that is taken for each of the sizes, if there is one.
    pub taken: Vec<Option<&'static str>>,
    /// By algorithm that applies to some size: its name, and for each of the sizes the nanoseconds
    /// that are expected, if it applies; the largest number where it is not compared with others.
    pub estimates: Vec<(&'static str, Vec<Option<u64>>)>,
}

const SIZES: &[usize] = &[8, 256, 4 << 10, 64 << 10, 256 << 10, 4 << 20];

/// A call by an algorithm that is named, of `size` bytes per member.
pub struct Trial {
    /// Name of the operation.
    pub operation: &'static str,
    /// Name of the algorithm.
    pub algorithm: &'static str,
    /// Where the result goes.
    pub dest: *mut u8,
    /// What is sent.
    pub source: *const u8,
    /// Bytes.
    pub size: usize,
    /// How reductions and scans combine elements.
    pub reducer: Reducer,
}

/// Carries a call out, if its algorithm can: the same answer at all members, who all call this.
///
/// # Safety
/// The buffers are symmetric and hold `size` bytes for each member, for `alltoalls` twice as many, of which every second
/// element is sent; nobody else uses them.
pub unsafe fn carry_out(world: &World, team: &Team, trial: &Trial, routine: &'static str) -> bool {
    use crate::{barrier, broadcast, exchange, gather, reduce};
    let group = &Group::team(world, team, routine);
    let Trial { operation, algorithm, dest, source, size, reducer } = *trial;
    let gather = gather::Gather { dest, source, len: size };
    let nelems = size / reducer.size();
    let reduce = reduce::Reduce { dest, source, nelems, reducer };
    // SAFETY: by the caller's word.
    unsafe {
        match operation {
            _ if operation == SYNC.name => SYNC.by(algorithm, group, &barrier::Sync),
            _ if operation == BROADCAST.name => {
                let call = broadcast::Broadcast::new(group, dest, source, size, 0);
                BROADCAST.by(algorithm, group, &call)
            }
            _ if operation == COLLECT.name => {
                COLLECT.by(algorithm, group, &gather::Collect(gather))
            }
            _ if operation == FCOLLECT.name => FCOLLECT.by(algorithm, group, &gather),
            _ if operation == ALLTOALL.name => {
                ALLTOALL.by(algorithm, group, &exchange::Alltoall { dest, source, len: size })
            }
            _ if operation == ALLTOALLS.name => {
                let call = Alltoalls { dest, source, ..Alltoalls::of_size(size) };
                ALLTOALLS.by(algorithm, group, &call)
            }
            _ if operation == REDUCE.name => REDUCE.by(algorithm, group, &reduce),
            _ => SCAN.by(algorithm, group, &reduce::Scan { reduce, inclusive: true }),
        }
    }
}

/// The algorithm that a team takes for an operation of `size` bytes per member.
pub fn taken(world: &World, team: &Team, operation: &str, size: usize) -> Option<&'static str> {
    use crate::{barrier, broadcast, exchange, gather, reduce};
    let group = &Group::team(world, team, "");
    match operation {
        _ if operation == SYNC.name => SYNC.taken(group, &barrier::Sync),
        _ if operation == BROADCAST.name => {
            BROADCAST.taken(group, &broadcast::Broadcast::of_size(size))
        }
        _ if operation == COLLECT.name => COLLECT.taken(group, &gather::Collect::of_size(size)),
        _ if operation == FCOLLECT.name => FCOLLECT.taken(group, &gather::Gather::of_size(size)),
        _ if operation == ALLTOALL.name => {
            ALLTOALL.taken(group, &exchange::Alltoall::of_size(size))
        }
        _ if operation == ALLTOALLS.name => ALLTOALLS.taken(group, &Alltoalls::of_size(size)),
        _ if operation == REDUCE.name => REDUCE.taken(group, &reduce::Reduce::of_size(size)),
        _ => SCAN.taken(group, &reduce::Scan::of_size(size)),
    }
}

/// What a team chooses. Reductions are sums of 8-byte integers.
pub fn choices(world: &World, team: &Team) -> Vec<Choice> {
    use crate::{barrier, broadcast, exchange, gather, reduce};
    let group = &Group::team(world, team, "");
    vec![
        choice(&SYNC, group, |_| barrier::Sync),
        choice(&BROADCAST, group, broadcast::Broadcast::of_size),
        choice(&COLLECT, group, gather::Collect::of_size),
        choice(&FCOLLECT, group, gather::Gather::of_size),
        choice(&ALLTOALL, group, exchange::Alltoall::of_size),
        choice(&ALLTOALLS, group, Alltoalls::of_size),
        choice(&REDUCE, group, reduce::Reduce::of_size),
        choice(&SCAN, group, reduce::Scan::of_size),
    ]
}

fn choice<A: Call>(
    operation: &Operation<A>,
    group: &Group<'_>,
    call: impl Fn(usize) -> A,
) -> Choice {
    let mut steps: Vec<(usize, &str)> = Vec::new();
    for size in (3..=24).map(|shift| 1 << shift) {
        let Some(name) = operation.taken(group, &call(size)) else { continue };
        match steps.last_mut() {
            Some(last) if last.1 == name => last.0 = size,
            _ => steps.push((size, name)),
        }
    }
    let sizes = if operation.number == SYNC.number { &[0] } else { SIZES };
    let estimate = |algorithm: &Algorithm<A>| {
        let time = |size: &usize| {
            let time = || (algorithm.cost_ns)(group, *size);
            (algorithm.applies)(group, &call(*size)).then(time)
        };
        (algorithm.name, sizes.iter().map(time).collect::<Vec<_>>())
    };
    let estimates = operation.algorithms.iter().map(estimate);
    let estimates = estimates.filter(|(_, times)| times.iter().any(Option::is_some)).collect();
    let taken = sizes.iter().map(|size| operation.taken(group, &call(*size))).collect();
    Choice { operation: operation.name, steps, sizes, taken, estimates }
}

/// Carries out a call with the algorithm that was asked for, or else the cheapest one.
///
/// # Safety
/// The call's buffers are as its routine promises.
#[inline(never)]
pub(crate) unsafe fn run<A: Call>(operation: &Operation<A>, group: &Group<'_>, call: &A) {
    let (class, _) = class(call.bytes());
    let kind = operation.kind(call);
    let known = group.notes().and_then(|notes| notes.choice(group.world, kind, class));
    let known = known.map(|number| &operation.algorithms[number]);
    // Another call of this class may have other arguments.
    let fits = |algorithm: &&Algorithm<A>| (algorithm.applies)(group, call);
    let algorithm = known.filter(fits).unwrap_or_else(|| operation.choose(group, call));
    // SAFETY: the caller's promise.
    unsafe { (algorithm.run)(group, call) }
}

impl<A: Call> Operation<A> {
    /// Carries out a call by the algorithm of a name, if there is one that can.
    ///
    /// # Safety
    /// As [`run`].
    unsafe fn by(&self, name: &str, group: &Group<'_>, call: &A) -> bool {
        let of_name = |algorithm: &&Algorithm<A>| algorithm.name == name;
        let able = |algorithm: &&Algorithm<A>| (algorithm.applies)(group, call);
        let algorithm = self.algorithms.iter().find(of_name).filter(able);
        // SAFETY: the caller's promise.
        algorithm.map(|algorithm| unsafe { (algorithm.run)(group, call) }).is_some()
    }

    /// The name of the algorithm to take.
    fn taken(&self, group: &Group<'_>, call: &A) -> Option<&'static str> {
        self.find(group, call).map(|number| self.algorithms[number].name)
    }

    #[cold]
    #[inline(never)]
    fn choose(&self, group: &Group<'_>, call: &A) -> &'static Algorithm<A> {
        let Some(number) = self.find(group, call) else { self.none_applies(group, call) };
        if let Some(notes) = group.notes() {
            let enters = self.short == Some(self.algorithms[number].name);
            let (kind, class) = (self.kind(call), class(call.bytes()).0);
            notes.choose(group.world, kind, class, number, enters);
        }
        &self.algorithms[number]
    }

    /// The number of the algorithm to take; none if the user asks for some that do not apply.
    fn find(&self, group: &Group<'_>, call: &A) -> Option<usize> {
        let applies = |number: &usize| (self.algorithms[*number].applies)(group, call);
        let own;
        let forced = match group.notes() {
            Some(notes) => &notes.forced,
            None => {
                own = Forced::new(&group.world.config().coll);
                &own
            }
        };
        let forced = &forced.0[self.number];
        if !forced.is_empty() {
            return forced.iter().copied().find(applies);
        }
        let (_, most) = class(call.bytes());
        let taken = |number: &usize| match self.algorithms[*number].taken {
            Taken::ByCost => true,
            Taken::ByCostIfExact => call.is_exact(),
            Taken::OnRequest => false,
        };
        let candidates = (0..self.algorithms.len()).filter(taken).filter(applies);
        candidates.min_by_key(|number| (self.algorithms[*number].cost_ns)(group, most))
    }

    fn none_applies(&self, group: &Group<'_>, call: &A) -> ! {
        let all = self.algorithms.iter();
        let names: Vec<&str> = all.filter(|a| (a.applies)(group, call)).map(|a| a.name).collect();
        group.world.stop_job(
            group.routine,
            format_args!(
                "SHMEM_COLL asks for an algorithm of {} that cannot carry out this call on {} PEs \
                 and {} bytes; those that can are {} (name several with '+')",
                self.name,
                group.n,
                call.bytes(),
                names.join(", ")
            ),
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tombolo_core::config::Value;

    fn asked(text: &str) -> Algorithms {
        Algorithms::parse(text).expect("of the right form")
    }

    #[test]
    fn names_are_unique_and_operations_numbered() {
        let all = listing();
        for (index, row) in all.iter().enumerate() {
            let same = |other: &&Row| (other.operation, other.name) == (row.operation, row.name);
            assert_eq!(all.iter().filter(same).count(), 1, "{row:?} at {index}");
            assert!(row.operation_number < OPERATIONS);
            assert!(row.name.chars().all(|c| c.is_ascii_lowercase()), "{row:?}");
        }
    }

    #[test]
    fn what_routines_enter_by_themselves_is_an_algorithm_of_theirs() {
        fn is_known<A>(operation: &Operation<A>) -> bool {
            let known = |name| operation.algorithms.iter().any(|a| a.name == name);
            operation.short.is_none_or(known)
        }
        assert!(is_known(&SYNC) && is_known(&SCAN) && is_known(&BROADCAST) && is_known(&COLLECT));
        assert!(is_known(&FCOLLECT) && is_known(&ALLTOALL) && is_known(&REDUCE));
    }

    #[test]
    fn unknown_names_are_refused_with_a_list() {
        assert_eq!(check(&asked("reduce:publish+share,sync:hosts")), Ok(()));
        let why = check(&asked("redduce:ring")).unwrap_err();
        assert!(
            why.starts_with("'redduce' is not a collective operation; expected one of sync,"),
            "{why}"
        );
        let why = check(&asked("reduce:publish+rings")).unwrap_err();
        assert!(
            why.starts_with("'rings' is not an algorithm of reduce; expected one of publish,"),
            "{why}"
        );
    }

    #[test]
    fn algorithms_are_tried_in_the_order_of_the_user() {
        let number = |name| {
            let row =
                listing().into_iter().find(|row| row.operation == "reduce" && row.name == name);
            row.expect("an algorithm").number
        };
        let forced = Forced::new(&asked("reduce:share+publish"));
        assert_eq!(*forced.0[REDUCE.number], [number("share"), number("publish")]);
        assert!(forced.0[BROADCAST.number].is_empty());
    }
}
