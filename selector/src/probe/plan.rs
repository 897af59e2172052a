// SPDX-License-Identifier: Apache-2.0
//! What to measure: sizes by tier, and what the first look at the curves asks for besides.

use crate::class::Class;
use crate::data::{Buffer, Curve, Operation, Point};
use crate::either;
use crate::model::Interpolation;

/// Sizes measured for the model; denser where copies change their ways: a few words, a few lines,
/// the sizes of the inner caches.
pub const LADDER: &[u64] = &[
    8, 16, 32, 48, 64, 120, 128, 256, 512, 1024, 2048, 4096, 8192, 16384, 24576, 32768, 65536,
    131_072, 262_144, 524_288, 786_432, 1_048_576, 1_572_864, 2_097_152, 3_145_728, 4_194_304,
    8_388_608,
];

/// Sizes measured to judge the model.
pub const CHECKS: &[u64] =
    &[24, 96, 192, 640, 3072, 12_288, 49_152, 196_608, 655_360, 917_504, 2_621_440];

/// Sizes of the first, coarse tier.
const COARSE: &[u64] = &[8, 1024, 16384, 131_072, 1_048_576];

/// Sizes to judge the model of the coarse tier by; some of [`CHECKS`].
const COARSE_CHECKS: &[u64] = &[3072, 49_152, 655_360];

/// Sizes from here on are measured last, because they take longest.
const LARGE: u64 = 1_572_864;

/// A size at which the caches of a core no longer help: the copies on mapped memory have to prove
/// themselves here. Other channels are not measured at it, it takes long.
pub const HUGE: u64 = 8_388_608;

/// Stores that bypass the caches are measured from here on, where buffers are used again: the caches
/// of a core hold what is shorter.
pub const STREAMING_FROM: u64 = 1_048_576;

/// Sizes at which copies are timed together with reading what they wrote.
const READ: &[u64] = &[1_048_576, 2_097_152, 4_194_304];

/// Sizes for buffers that were not used a moment ago.
const COLD: &[u64] = &[64, 512, 1024, 2048, 4096, 8192, 32768, 131_072, 524_288, 2_097_152];

/// Sizes of transfers by two transports at the same time.
const STRIPED: &[u64] = &[262_144, 1_048_576, 4_194_304];

/// Sizes of blocking puts one after another. Shorter ones are never worth waiting for each.
const BLOCKING: &[u64] = &[32768, 131_072, 262_144, 524_288, 1_048_576];

/// Sizes at which the carriers of a transport are compared: shorter puts are left to stores, because a series of them
/// is complete together.
const CARRIED: &[u64] = &[65_536, 262_144, 1_048_576, 16_384, 4096];

/// A carrier that takes so many times as long as another one gets no second look.
const HOPELESS: f32 = 8.0;

/// A time so far above its neighbours', or batches so far apart, ask for another look.
const DISTURBED: f32 = 0.12;
/// Nanoseconds that are no disturbance, however short the operation.
const CLOCK_NS: f32 = 3.0;

/// Looks at disturbed points, at most.
pub const LOOKS_MAX: usize = 3;

/// Where the time of a size between two measured ones is so uncertain it is measured.
const UNCERTAIN: f64 = 0.08;

/// Bends that are looked at, the sharpest first.
const BENDS_MAX: usize = 24;

/// One thing to measure.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Task {
    /// Doing what.
    pub operation: Operation,
    /// On which buffers.
    pub buffer: Buffer,
    /// Payload.
    pub bytes: u64,
    /// To judge the model by, not to make it.
    pub check: bool,
    /// By this channel alone; by all if none.
    pub channel: Option<String>,
}

/// Tasks in the making; sizes that the scratch memory has no room for are left out.
struct Tasks {
    tasks: Vec<Task>,
    room: u64,
}

impl Tasks {
    fn add(&mut self, operations: &[Operation], buffer: Buffer, sizes: &[u64]) {
        for &bytes in sizes.iter().filter(|bytes| **bytes <= self.room) {
            let check = buffer == Buffer::Heap && CHECKS.contains(&bytes);
            let task = |&operation| Task { operation, buffer, bytes, check, channel: None };
            self.tasks.extend(operations.iter().map(task));
        }
    }

    fn add_cold(&mut self) {
        for bytes in COLD {
            self.add(BOTH, Buffer::Cold, &[*bytes]);
            self.add(BOTH, Buffer::ColdPrivate, &[*bytes]);
        }
    }
}

/// Sizes of puts that are under way together.
const PIPELINED: &[u64] = &[8, 1024, 16384, 131_072];

const BOTH: &[Operation] = &[Operation::Put, Operation::Get];

/// What decides, most telling first; `once`: the user says that the program uses buffers once, and it may do so here.
///
/// The coarse sizes come twice, and so does whether sources are copied; the better time counts: what is
/// measured first finds processors and the other side's threads half asleep. Sizes for the model and sizes to
/// judge it by come together, so that a machine that changes its pace does not pass for an error of the model.
pub fn decisive(class: Class, room: u64, coarse: bool, once: bool) -> Vec<Task> {
    let mut plan = Tasks { tasks: Vec::new(), room };
    plan.add(&[Operation::Amo], Buffer::Heap, &[8]);
    if class.hops() > 0 {
        // What collectives are chosen by: there it is very different from a put that is waited for.
        plan.add(&[Operation::Pipeline], Buffer::Heap, PIPELINED);
    }
    plan.add(BOTH, Buffer::Heap, COARSE);
    plan.add(BOTH, Buffer::Private, COARSE);
    plan.add(&[Operation::Get], Buffer::Static, COARSE);
    let sources = |plan: &mut Tasks| {
        if class.hops() > 0 {
            // One right after the other: a processor may change its pace between others.
            plan.add(&[Operation::Blocking, Operation::ZeroCopy], Buffer::Heap, BLOCKING);
        }
    };
    if coarse {
        if class != Class::Own {
            plan.add(BOTH, Buffer::Heap, COARSE_CHECKS);
        }
        return plan.tasks;
    }
    if once {
        plan.add_cold();
    }
    // A choice even where there is one channel only, so that it comes before more sizes do.
    sources(&mut plan);
    let mut sizes = LADDER.to_vec();
    if class != Class::Own {
        sizes.extend(CHECKS);
        sizes.sort_unstable();
    }
    let small: Vec<u64> = sizes.iter().copied().filter(|n| *n < LARGE).collect();
    let large: Vec<u64> = sizes.iter().copied().filter(|n| (LARGE..HUGE).contains(n)).collect();
    plan.add(BOTH, Buffer::Heap, &small);
    if class != Class::Own {
        plan.add(BOTH, Buffer::Heap, &[HUGE]);
        plan.add(&[Operation::PutRead, Operation::GetRead], Buffer::Heap, READ);
    }
    sources(&mut plan);
    plan.add(BOTH, Buffer::Heap, &large);
    if class != Class::Own {
        let more: Vec<u64> =
            LADDER.iter().copied().filter(|n| *n < LARGE && !COARSE.contains(n)).collect();
        plan.add(BOTH, Buffer::Private, &more);
    }
    plan.tasks
}

/// What a channel of two transports is judged by, twice: the better time counts.
pub fn striped(room: u64, channel: &str) -> Vec<Task> {
    let mut plan = Tasks { tasks: Vec::new(), room };
    plan.add(BOTH, Buffer::Heap, STRIPED);
    plan.add(BOTH, Buffer::Heap, STRIPED);
    plan.tasks.iter_mut().for_each(|task| task.channel = Some(channel.to_owned()));
    plan.tasks
}

/// What a channel of either of two transports is judged by, twice as well: series of puts by it and by each of them.
pub fn either(room: u64, channels: [&str; 3]) -> Vec<Task> {
    let mut plan = Tasks { tasks: Vec::new(), room };
    for channel in [channels, channels].concat() {
        let before = plan.tasks.len();
        plan.add(&[Operation::Pipeline], Buffer::Heap, &[either::SIZE]);
        plan.tasks[before..].iter_mut().for_each(|task| task.channel = Some(channel.to_owned()));
    }
    plan.tasks
}

/// What the carriers of a transport are chosen by, of puts of at most `most` bytes. `rivals` gives the channels that
/// compete for an operation.
pub fn carried(room: u64, most: u64, rivals: impl Fn(Operation) -> Vec<String>) -> Vec<Task> {
    let mut plan = Tasks { tasks: Vec::new(), room };
    let operations = [Operation::Carried, Operation::CarriedBlocking];
    for bytes in CARRIED.iter().filter(|bytes| **bytes <= most) {
        for (operation, channel) in
            operations.iter().flat_map(|op| rivals(*op).into_iter().map(move |name| (*op, name)))
        {
            let before = plan.tasks.len();
            plan.add(&[operation], Buffer::Heap, &[*bytes]);
            plan.tasks[before..].iter_mut().for_each(|task| task.channel = Some(channel.clone()));
        }
    }
    plan.tasks
}

/// Those of them that are worth another look, for which the better time counts: what is measured first finds threads half
/// asleep. The curves are in order.
pub fn carried_again(curves: &[Curve], tasks: Vec<Task>) -> Vec<Task> {
    let time = |task: &Task| {
        let of = |curve: &&Curve| {
            curve.key.operation == task.operation
                && Some(&curve.key.channel) == task.channel.as_ref()
        };
        let points = &curves.iter().find(of)?.points;
        points.iter().find(|point| point.bytes == task.bytes).map(|point| point.ns)
    };
    let is_close = |task: &Task| {
        let others = tasks
            .iter()
            .filter(|other| (other.operation, other.bytes) == (task.operation, task.bytes));
        let best = others.filter_map(time).fold(f32::INFINITY, f32::min);
        time(task).is_none_or(|ns| ns < best * HOPELESS)
    };
    tasks.iter().filter(|task| is_close(task)).cloned().collect()
}

/// What is measured again with other carriers of puts.
pub fn carried_otherwise(room: u64) -> Vec<Task> {
    let mut plan = Tasks { tasks: Vec::new(), room };
    plan.add(&[Operation::Blocking, Operation::ZeroCopy], Buffer::Heap, BLOCKING);
    plan.add(&[Operation::Pipeline], Buffer::Heap, PIPELINED);
    plan.add(&[Operation::Put], Buffer::Heap, COARSE);
    plan.add(&[Operation::Put], Buffer::Private, COARSE);
    plan.tasks
}

/// What is good to know besides.
pub fn besides(room: u64) -> Vec<Task> {
    let mut plan = Tasks { tasks: Vec::new(), room };
    plan.add(&[Operation::Pipeline], Buffer::Heap, PIPELINED);
    plan.add(BOTH, Buffer::Unaligned, COARSE);
    plan.add_cold();
    plan.tasks
}

/// Points that may have been disturbed: their batches disagree or were all interrupted, they took clearly
/// longer than larger sizes, or they stand out above their neighbours. They are measured once more, and the
/// better time counts. The curves are in order.
pub fn doubtful(curves: &[Curve]) -> Vec<Task> {
    let mut tasks = Vec::new();
    for Curve { key, points, checks } in curves {
        // By these the carriers have been chosen that are in force.
        if key.operation.compares_carriers() {
            continue;
        }
        let mut ask = |point: &Point, check| {
            tasks.push(Task {
                operation: key.operation,
                buffer: key.buffer,
                bytes: point.bytes,
                check,
                channel: Some(key.channel.clone()),
            });
        };
        let mut least = f32::INFINITY;
        for (i, point) in points.iter().enumerate().rev() {
            let stands_out = || {
                let (before, after) = (points.get(i.wrapping_sub(1))?, points.get(i + 1)?);
                let between = Interpolation::new(&[*before, *after])?.at(point.bytes) as f32;
                Some(is_above(point, between))
            };
            if is_unsettled(point) || is_above(point, least) || stands_out() == Some(true) {
                ask(point, false);
            }
            least = least.min(point.ns);
        }
        // Whether they stand out is for the model's error to say, not a reason to measure again.
        let disturbed = |check: &&Point| {
            let larger = points.iter().filter(|point| point.bytes > check.bytes);
            is_unsettled(check) || larger.into_iter().any(|point| is_above(check, point.ns))
        };
        checks.iter().filter(disturbed).for_each(|point| ask(point, true));
    }
    tasks
}

/// Whether the batches of a point disagree, or the processor was taken away during each of them.
fn is_unsettled(point: &Point) -> bool {
    point.spread > DISTURBED || point.batches == 0
}

/// Whether a point took clearly longer than a time.
fn is_above(point: &Point, ns: f32) -> bool {
    point.ns > ns * (1.0 + DISTURBED) + CLOCK_NS
}

/// Leaves out points that took clearly longer than a larger size: what disturbed them would pass for a
/// property of the channel, or for an error of the model. Where several looks agreed, by `looks`, on
/// the time of a size, it is a property of the channel.
pub fn drop_disturbed(curve: &mut Curve, looks: &[Curve]) {
    if curve.key.operation.compares_carriers() {
        return;
    }
    let settled = |bytes: u64| {
        let of_curve = looks.iter().filter(|look| look.key == curve.key);
        let points = of_curve.flat_map(|look| look.points.iter().chain(&look.checks));
        let mut times: Vec<f32> = points.filter(|p| p.bytes == bytes).map(|p| p.ns).collect();
        times.sort_unstable_by(f32::total_cmp);
        times.len() >= LOOKS_MAX && times[1] <= times[0] * (1.0 + DISTURBED)
    };
    let mut least = f32::INFINITY;
    let mut points = Vec::with_capacity(curve.points.len());
    for point in curve.points.iter().rev() {
        if !is_above(point, least) || settled(point.bytes) {
            points.push(*point);
        }
        least = least.min(point.ns);
    }
    points.reverse();
    let larger = |bytes| points.iter().filter(move |point| point.bytes > bytes);
    let sound = |check: &Point| larger(check.bytes).all(|point| !is_above(check, point.ns));
    let checks = curve.checks.iter().copied().filter(|c| sound(c) || settled(c.bytes)).collect();
    (curve.points, curve.checks) = (points, checks);
}

/// Sizes in the middle of stretches where the curves bend: the lines of the stretches on either side
/// disagree there. The sharpest bends come first. The curves are in order.
pub fn bends(curves: &[Curve]) -> Vec<Task> {
    let mut found: Vec<(f64, Task)> = Vec::new();
    let wanted = |c: &&Curve| {
        c.key.buffer == Buffer::Heap && matches!(c.key.operation, Operation::Put | Operation::Get)
    };
    for Curve { key, points, checks } in curves.iter().filter(wanted) {
        for i in 1..points.len() {
            let (low, high) = (points[i - 1], points[i]);
            let middle = (low.bytes + (high.bytes - low.bytes) / 2) & !7;
            let known = checks.iter().any(|check| check.bytes == middle);
            // Beside a size that the model is judged by, not at it.
            let middle = if known { middle - (high.bytes - low.bytes) / 16 } else { middle };
            let uncertain = uncertainty(points, i, middle);
            if middle <= low.bytes + 8 || uncertain < UNCERTAIN {
                continue;
            }
            let task = Task {
                operation: key.operation,
                buffer: key.buffer,
                bytes: middle,
                check: false,
                channel: Some(key.channel.clone()),
            };
            found.push((uncertain, task));
        }
    }
    found.sort_by(|a, b| b.0.total_cmp(&a.0));
    found.truncate(BENDS_MAX);
    found.into_iter().map(|(_, task)| task).collect()
}

/// How far apart the time of a size in the stretch that ends at point `i` may lie, relative to that
/// time: what the stretch itself and its two neighbours, prolonged, say of it. Time does not fall.
fn uncertainty(points: &[Point], i: usize, bytes: u64) -> f64 {
    let ns = |p: Point| f64::from(p.ns);
    let through = |a: Point, b: Point| {
        let slope = (ns(b) - ns(a)) / (b.bytes - a.bytes) as f64;
        ns(a) + slope * (bytes as f64 - a.bytes as f64)
    };
    let (low, high) = (points[i - 1], points[i]);
    let here = through(low, high);
    let (least, most) = (ns(low).min(ns(high)), ns(low).max(ns(high)));
    let mut range = (here, here);
    let neighbours = [
        (i >= 2).then(|| through(points[i - 2], low)),
        points.get(i + 1).map(|after| through(high, *after)),
    ];
    for said in neighbours.into_iter().flatten() {
        let said = said.clamp(least, most);
        range = (range.0.min(said), range.1.max(said));
    }
    (range.1 - range.0) / here.max(1.0)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::data::{CACHED, Key};

    fn point((bytes, ns, spread): (u64, f32, f32)) -> Point {
        Point { bytes, ns, spread, batches: 7 }
    }

    fn curve(points: &[(u64, f32, f32)]) -> Curve {
        let key = Key {
            class: Class::Cache,
            operation: Operation::Get,
            buffer: Buffer::Heap,
            channel: CACHED.into(),
        };
        Curve { key, points: points.iter().copied().map(point).collect(), checks: vec![] }
    }

    fn sizes(tasks: &[Task]) -> Vec<u64> {
        tasks.iter().map(|task| task.bytes).collect()
    }

    #[test]
    fn sizes_that_judge_the_model_do_not_make_it() {
        for class in [Class::Cache, Class::Hops(1)] {
            let tasks = decisive(class, u64::MAX, false, false);
            assert!(tasks.iter().all(|t| t.check == CHECKS.contains(&t.bytes)));
            assert!(CHECKS.iter().all(|n| tasks.iter().any(|t| t.bytes == *n)));
        }
        assert!(CHECKS.iter().all(|n| !LADDER.contains(n)));
    }

    #[test]
    fn only_channels_between_hosts_copy_the_sources_of_blocking_puts() {
        let asks = |class| {
            decisive(class, u64::MAX, false, false)
                .iter()
                .any(|t| t.operation == Operation::Blocking)
        };
        assert_eq!(
            [asks(Class::Own), asks(Class::Host), asks(Class::Hops(2))],
            [false, false, true]
        );
    }

    #[test]
    fn buffers_that_are_used_once_come_early_where_the_user_says_so() {
        let before = |once| {
            let tasks = decisive(Class::Cache, u64::MAX, false, once);
            tasks.iter().position(|task| task.buffer == Buffer::ColdPrivate)
        };
        assert_eq!(before(false), None);
        assert!(before(true).is_some_and(|at| at < 40));
    }

    #[test]
    fn carriers_are_compared_at_each_size_and_once_more_unless_they_are_hopeless() {
        let rivals = |operation| match operation {
            Operation::Carried => ["a", "b", "c"].map(str::to_owned).to_vec(),
            _ => vec![],
        };
        let names = |tasks: &[Task]| -> Vec<(u64, String)> {
            tasks.iter().map(|task| (task.bytes, task.channel.clone().unwrap())).collect()
        };
        let tasks = carried(u64::MAX, 65_536, rivals);
        let all = [65_536, 16_384, 4096].map(|n| ["a", "b", "c"].map(|it| (n, it.to_owned())));
        assert_eq!(names(&tasks), all.concat());
        assert_eq!(carried(u64::MAX, u64::MAX, |_| vec![]), []);
        let of = |channel: &str, ns: f32| {
            let mut curve = curve(&[(4096, ns, 0.0), (16_384, ns, 0.0)]);
            (curve.key.operation, curve.key.channel) = (Operation::Carried, channel.to_owned());
            curve
        };
        let curves = [of("a", 10.0), of("b", 70.0), of("c", 90.0)];
        let close = all.concat().into_iter().filter(|(n, name)| *n == 65_536 || name != "c");
        assert_eq!(names(&carried_again(&curves, tasks)), close.collect::<Vec<_>>());
    }

    #[test]
    fn with_other_carriers_puts_alone_are_measured_again() {
        let before = decisive(Class::Hops(1), u64::MAX, false, false);
        let again = carried_otherwise(u64::MAX);
        assert!(again.iter().all(|task| before.contains(task) && task.operation != Operation::Get));
        assert!(again.iter().any(|task| task.operation == Operation::ZeroCopy));
    }

    #[test]
    fn what_carriers_were_chosen_by_is_not_measured_again() {
        let mut apart = curve(&[(4096, 10.0, 0.5), (8192, 5.0, 0.5)]);
        assert_eq!(doubtful(&[apart.clone()]).len(), 2);
        apart.key.operation = Operation::Carried;
        assert_eq!(doubtful(&[apart.clone()]), []);
        let whole = apart.clone();
        drop_disturbed(&mut apart, &[]);
        assert_eq!(apart, whole);
    }

    #[test]
    fn nothing_is_planned_beyond_the_room() {
        let tasks = [decisive(Class::Cache, 4096, false, false), besides(4096)].concat();
        assert!(tasks.iter().all(|task| task.bytes <= 4096));
        assert!(tasks.iter().any(|task| task.bytes == 4096));
    }

    #[test]
    fn disturbed_points_are_looked_at_again() {
        let smooth = [(8, 10.0, 0.0), (100, 12.0, 0.0), (1000, 30.0, 0.0), (2000, 50.0, 0.0)];
        assert_eq!(doubtful(&[curve(&smooth)]), []);
        let mut slow = smooth;
        slow[1].1 = 40.0;
        assert_eq!(sizes(&doubtful(&[curve(&slow)])), [100]);
        let mut outstanding = smooth;
        outstanding[2].1 = 42.0;
        assert_eq!(sizes(&doubtful(&[curve(&outstanding)])), [1000]);
        let mut apart = smooth;
        apart[3].2 = 0.5;
        let again = doubtful(&[curve(&apart)]);
        assert_eq!((sizes(&again), again[0].channel.as_deref()), (vec![2000], Some(CACHED)));
        let mut interrupted = curve(&smooth);
        interrupted.points[0].batches = 0;
        assert_eq!(sizes(&doubtful(&[interrupted])), [8]);
    }

    #[test]
    fn what_stays_disturbed_is_left_out() {
        let mut measured = curve(&[(8, 10.0, 0.0), (100, 40.0, 0.0), (1000, 30.0, 0.0)]);
        measured.checks.extend([(50, 60.0, 0.0), (500, 31.0, 0.0)].map(point));
        let whole = measured.clone();
        drop_disturbed(&mut measured, &[whole.clone(), curve(&[(100, 70.0, 0.0)])]);
        assert_eq!(measured.points, curve(&[(8, 10.0, 0.0), (1000, 30.0, 0.0)]).points);
        assert_eq!(measured.checks, [point((500, 31.0, 0.0))]);
        // Three looks that agree are a property of the channel.
        let mut agreed = whole.clone();
        drop_disturbed(&mut agreed, &[whole.clone(), whole.clone(), whole.clone()]);
        assert_eq!(agreed, whole);
        // Times that differ by less are as good as equal.
        let mut level = curve(&[(8, 12.5, 0.0), (16, 10.0, 0.0), (32, 11.0, 0.0)]);
        drop_disturbed(&mut level, &[]);
        assert_eq!(level.points.len(), 3);
    }

    #[test]
    fn bends_are_looked_at_and_straight_lines_are_not() {
        let line: Vec<_> = LADDER.iter().map(|n| (*n, 100.0 + *n as f32 * 0.1, 0.0)).collect();
        assert_eq!(bends(&[curve(&line)]), []);
        let step: Vec<_> = LADDER
            .iter()
            .map(|n| (*n, if *n > 2048 { 200.0 } else { 100.0 } + *n as f32 * 0.01, 0.0))
            .collect();
        let tasks = bends(&[curve(&step)]);
        assert_eq!(tasks[0].bytes, 3072);
        let mut judged = curve(&step);
        judged.checks.push(Point { bytes: 3072, ns: 230.0, spread: 0.0, batches: 7 });
        let beside = bends(&[judged])[0].bytes;
        assert!(beside != 3072 && (2049..4096).contains(&beside), "{beside}");
    }
}
