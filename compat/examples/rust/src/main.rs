// SPDX-License-Identifier: Apache-2.0
//! A five-point stencil on a square grid, the same in C, C++, Python and Rust.
//!
//!     cargo build --release && oshrun -n 4 target/release/stencil [points [steps]]
//!
//! Each PE owns a band of rows, in memory of its own. After every step it puts its first and last row
//! into the neighbours' halo rows together with a signal, and waits for theirs. Halo rows of even and
//! odd steps differ, so a neighbour never overwrites one that is still to be read. Whatever the number
//! of PEs, the result is the same to the last bit.

use tombolo::{Cmp, SignalOp};

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let world = tombolo::init()?;
    let (me, n_pes) = (world.my_pe(), world.n_pes());
    let points = argument(1, 64);
    let steps = argument(2, 100);
    assert!(points >= n_pes && points > 1, "{points} points per side do for as many PEs at most");

    // Rows first to end are ours; those at the rim of the grid never change.
    let first = points * me / n_pes;
    let end = points * (me + 1) / n_pes;
    let rows = end - first;
    // With a halo row above and one below.
    let mut now = vec![0.0f64; (rows + 2) * points];
    if me == 0 {
        now[points..2 * points].fill(1.0);
    }
    let mut next = now.clone();

    // Two halo rows, from above and from below, for even and for odd steps.
    let halo = world.alloc_slice(4 * points, 0.0f64)?;
    let arrived = world.alloc_atomics(2, 0u64)?;
    let row_sums = world.alloc_slice(points, 0.0f64)?;

    for step in 1..=steps {
        let half = step % 2 * 2;
        let slot = |from_below: usize| (half + from_below) * points..(half + from_below + 1) * points;
        let signal = (SignalOp::Set, step as u64);
        if me > 0 {
            world.put_signal(&halo[slot(1)], &now[points..2 * points], &arrived[1], signal, me - 1);
        }
        if me + 1 < n_pes {
            let last = &now[rows * points..(rows + 1) * points];
            world.put_signal(&halo[slot(0)], last, &arrived[0], signal, me + 1);
        }
        if me > 0 {
            world.wait_until(&arrived[0], Cmp::Ge, step as u64);
            world.get(&mut now[..points], &halo[slot(0)], me);
        }
        if me + 1 < n_pes {
            world.wait_until(&arrived[1], Cmp::Ge, step as u64);
            world.get(&mut now[(rows + 1) * points..], &halo[slot(1)], me);
        }
        for row in 1..=rows {
            if first + row == 1 || first + row == points {
                continue;
            }
            for column in 1..points - 1 {
                let at = row * points + column;
                next[at] = 0.25 * (now[at - points] + now[at - 1] + now[at + 1] + now[at + points]);
            }
        }
        std::mem::swap(&mut now, &mut next);
    }

    for row in 1..=rows {
        let mut sum = 0.0;
        for value in &now[row * points..(row + 1) * points] {
            sum += value;
        }
        world.p(&row_sums[first + row - 1], sum, 0);
    }
    world.barrier_all();
    if me == 0 {
        let mut sum = 0.0;
        for row in row_sums.iter() {
            sum += row.read();
        }
        println!("stencil: {points} points, {steps} steps, sum {sum:.9}");
    }
    Ok(())
}

/// A number from the command line.
fn argument(number: usize, default: usize) -> usize {
    match std::env::args().nth(number) {
        Some(text) => text.parse().unwrap_or_else(|why| panic!("'{text}': {why}")),
        None => default,
    }
}
