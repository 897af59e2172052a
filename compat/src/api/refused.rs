// SPDX-License-Identifier: Apache-2.0
//! Programs that the compiler has to refuse, because they would break what the safe methods rely on. Nobody but the tests
//! of documentation compiles this.

/// The job is left when nothing of it is used any more.
///
/// ```compile_fail,E0505
/// let world = tombolo::init().unwrap();
/// let field = world.alloc_slice(4, 0u32).unwrap();
/// drop(world);
/// field[0].read();
/// ```
///
/// ```compile_fail,E0505
/// let world = tombolo::init().unwrap();
/// let team = world.team();
/// let context = team.context();
/// drop(team);
/// context.quiet();
/// ```
///
/// ```compile_fail,E0505
/// let world = tombolo::init().unwrap();
/// let lock = world.alloc_lock().unwrap();
/// let held = lock.lock();
/// drop(lock);
/// drop(held);
/// ```
pub struct Lifetimes;

/// One thread makes collective calls and has plain data; one thread at a time uses a context.
///
/// ```compile_fail,E0277
/// let world = tombolo::init().unwrap();
/// std::thread::scope(|threads| {
///     threads.spawn(|| world.barrier_all());
/// });
/// ```
///
/// ```compile_fail,E0277
/// let world = tombolo::init().unwrap();
/// let field = world.alloc_slice(4, 0u32).unwrap();
/// let first = &field[0];
/// std::thread::scope(|threads| {
///     threads.spawn(|| first.write(1));
/// });
/// ```
///
/// ```compile_fail,E0277
/// let world = tombolo::init().unwrap();
/// let field = world.alloc_slice(4, 0u32).unwrap();
/// std::thread::scope(|threads| {
///     threads.spawn(move || drop(field));
/// });
/// ```
///
/// ```compile_fail,E0277
/// let world = tombolo::init().unwrap();
/// let team = world.team();
/// let context = team.context();
/// std::thread::scope(|threads| {
///     threads.spawn(|| context.quiet());
/// });
/// ```
pub struct Threads;

/// Symmetric memory holds plain data: any bits may be written there.
///
/// ```compile_fail,E0277
/// let world = tombolo::init().unwrap();
/// let flag = world.alloc(true).unwrap();
/// ```
///
/// ```compile_fail,E0277
/// let world = tombolo::init().unwrap();
/// let name = world.alloc("a name").unwrap();
/// ```
///
/// ```compile_fail,E0277
/// let world = tombolo::init().unwrap();
/// let short = world.alloc_atomic(1u16).unwrap();
/// ```
pub struct Data;

/// Buffers of operations that are under way are not used, and not freed.
///
/// ```compile_fail,E0502
/// let world = tombolo::init().unwrap();
/// let field = world.alloc_slice(4, 7u32).unwrap();
/// let mut buffer = [0; 4];
/// world.nonblocking(|ops| {
///     ops.get(&mut buffer, &field, 0);
///     println!("{}", buffer[0]);
/// });
/// ```
///
/// ```compile_fail,E0505
/// let world = tombolo::init().unwrap();
/// let field = world.alloc_slice(4, 7u32).unwrap();
/// let buffer = vec![1; 4];
/// world.nonblocking(|ops| {
///     ops.put(&field, &buffer, 0);
///     drop(buffer);
/// });
/// ```
///
/// ```compile_fail,E0521
/// let world = tombolo::init().unwrap();
/// let mut kept = None;
/// world.nonblocking(|ops| kept = Some(ops));
/// ```
pub struct Buffers;

/// Algorithms of reductions have buffers for elements of some length.
///
/// ```compile_fail,E0080
/// struct Add;
/// impl tombolo::Operator<[u64; 256]> for Add {
///     fn apply(left: [u64; 256], _: [u64; 256]) -> [u64; 256] {
///         left
///     }
/// }
/// let world = tombolo::init().unwrap();
/// let field = world.alloc_slice(4, [0u64; 256]).unwrap();
/// world.team().reduce(Add, &field, &field);
/// ```
///
/// ```compile_fail,E0080
/// struct Add;
/// impl tombolo::Operator<()> for Add {
///     fn apply(_: (), _: ()) {}
/// }
/// let world = tombolo::init().unwrap();
/// let field = world.alloc_slice(4, ()).unwrap();
/// world.team().reduce(Add, &field, &field);
/// ```
pub struct Elements;
