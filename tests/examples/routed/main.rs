// SPDX-License-Identifier: Apache-2.0
//! Compares routed operations with every single channel, 8 B to 16 MiB.
//!
//! ```text
//! cargo run --release -p tombolo-tests --example routed -- [--hosts N] [WORD...]
//! oshrun -n 2 [--hosts N] target/release/examples/routed [WORD...]
//! ```
//!
//! By itself it runs a job whose PEs are threads: two on one host, or one on each of `N` emulated
//! hosts. As a program of a job its PEs are processes, and static data are symmetric too. PE 0
//! measures towards one PE of each locality class; the channels take turns, so that what else the
//! machine does hits all of them alike.
//!
//! Times are until the operation is complete at the target. `pipeline` are sixteen non-blocking puts
//! that complete together, `blocking` four blocking ones; times are of one. After `get-and-read` the
//! initiator has also read what it got, after `put-and-read` the target what was put there.
//!
//! Over a ring, `bounced` is a put whose source is first copied to the transport's memory, as that of a
//! blocking put may be, and `zero-copy` one from the source itself. `ring` are the same over a second
//! ring on which windows are not used directly, for puts; nothing else goes through windows. As a
//! program of a job there is no second ring, and `SHMEM_NTB_DIRECT` says which one is measured.
//!
//! Three kinds of misses are meant:
//! - A routed call to another host takes some nanoseconds to find its channel; a direct window takes
//!   no more for the whole put.
//! - Around the size of a core's cache, streaming copies win when nobody reads what they wrote. The
//!   `-and-read` groups show what happens when somebody does.
//! - On a ring without direct windows a single blocking put of medium size is copied first, though
//!   waiting for it would complete it earlier: several in a row (`blocking`) are faster that way, and
//!   each returns earlier.
//!
//! Only groups whose name has all `WORD`s are measured: a class, an operation, a buffer type.

#[path = "../../tests/tuning/common/mod.rs"]
mod common;
mod compare;
mod jobs;
mod reader;
mod timing;
mod way;

use compare::Comparison;
use tombolo_core::World;
use tombolo_selector::{Tuning, tune};

/// What the command line asks for.
struct Wanted {
    hosts: usize,
    words: Vec<String>,
}

fn main() {
    let wanted = arguments();
    if std::env::var_os("PMI_FD").is_some() {
        jobs::of_processes(|world| pe(world, None, &wanted));
    } else {
        jobs::of_threads(wanted.hosts, |world, ring| pe(world, ring, &wanted));
    }
}

fn arguments() -> Wanted {
    let mut wanted = Wanted { hosts: 1, words: Vec::new() };
    let mut arguments = std::env::args().skip(1);
    while let Some(argument) = arguments.next() {
        if argument == "--hosts" {
            let number = arguments.next().and_then(|text| text.parse().ok());
            wanted.hosts = number.filter(|n| (1..=16).contains(n)).unwrap_or_else(|| {
                eprintln!("routed: --hosts needs a number from 1 to 16");
                std::process::exit(2)
            });
        } else {
            wanted.words.push(argument);
        }
    }
    wanted
}

/// What every PE does; `ring` is the same PE's part of a job on a ring without direct windows.
fn pe(world: &World, ring: Option<&World>, wanted: &Wanted) {
    let tuning = tune(world).expect("tuning");
    tuning.apply(world);
    let comparison = Comparison::new(world, ring, &tuning);
    if world.pe() == 0 {
        describe(world, &tuning);
        comparison.run(&wanted.words);
    } else {
        comparison.attend();
    }
    world.bootstrap().barrier().expect("all PEs meet");
}

fn describe(world: &World, tuning: &Tuning) {
    println!("tuning took {:?}: {}", tuning.took(), tuning.origin());
    for transport in world.transports() {
        transport.describe().iter().for_each(|line| println!("{}: {line}", transport.name()));
    }
    for decision in tuning.decisions() {
        let steps: Vec<String> = decision
            .steps
            .iter()
            .map(|step| match step.limit {
                u64::MAX => step.channel.clone(),
                limit => format!("{} up to {limit}", step.channel),
            })
            .collect();
        let (class, operation) = (decision.class, decision.operation);
        println!("{class} {operation} {}: {}", decision.remote, steps.join(", "));
    }
    if let Some((error, count)) = tombolo_selector::model::error(&tuning.measured().curves) {
        println!("model error {:.1} % on average over {count} sizes", error * 100.0);
    }
}
