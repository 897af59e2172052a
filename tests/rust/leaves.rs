// SPDX-License-Identifier: Apache-2.0
//! The main thread ends while others, which nobody waits for, still work with symmetric memory. Safe code may do so: what
//! such threads use has to be there until the process is gone.

use tombolo::{SymmetricAtomic, World};

/// More than processors: some of them run while the process ends.
const THREADS: usize = 8;

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world: &'static World = Box::leak(Box::new(tombolo::init()?));
    let (me, n_pes) = (world.my_pe(), world.n_pes());
    let counter: &'static SymmetricAtomic<u64> = Box::leak(Box::new(world.alloc_atomic(0)?));
    let team = Box::leak(Box::new(world.team()));
    let (tell, told) = std::sync::mpsc::channel();
    for _ in 0..THREADS {
        let (context, tell) = (team.context(), tell.clone());
        std::thread::spawn(move || {
            for round in 0u64.. {
                context.atomic_add(counter, 1, (me + round as usize) % n_pes);
                std::hint::black_box(counter.load());
                if round == 1000 {
                    tell.send(()).expect("the main thread waits");
                }
            }
        });
    }
    for _ in 0..THREADS {
        told.recv()?;
    }
    println!("PE {me} leaves");
    Ok(())
}
