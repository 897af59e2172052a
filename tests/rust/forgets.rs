// SPDX-License-Identifier: Apache-2.0
//! The guard of a lock is forgotten: who waits for the lock gets it when it is dropped, and one that takes its place in
//! memory is free.

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = tombolo::init()?;
    let (me, n_pes) = (world.my_pe(), world.n_pes());
    let count = world.alloc(0u64)?;
    for round in 0..3 {
        let lock = world.alloc_lock()?;
        if me == round % n_pes {
            std::mem::forget(lock.lock());
            world.sync_all();
        } else {
            world.sync_all();
            drop(lock.lock());
        }
    }
    let lock = world.alloc_lock()?;
    let held = lock.lock();
    let found = world.g(&count, 0);
    world.p(&count, found + 1, 0);
    drop(held);
    world.barrier_all();
    if me == 0 {
        println!("{}", count.read());
    }
    Ok(())
}
