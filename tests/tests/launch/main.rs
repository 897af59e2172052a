// SPDX-License-Identifier: Apache-2.0
//! `oshrun` from the outside: what it starts, prints, passes on, kills and returns.
//!
//! The PEs are this very program (see [`pe`]) or programs of the system, so that nothing but the
//! launcher is tested. MPICH's client library serves as an independent check of the PMI server.

macro_rules! cases {
    ($($name:ident),* $(,)?) => {
        /// Every case with its name.
        pub const CASES: &[(&str, fn())] = &[$((stringify!($name), $name)),*];
    };
}

mod cases;
mod harness;
mod mpich;
mod pe;
mod signals;

use libtest_mimic::{Arguments, Trial};

fn main() {
    let args: Vec<String> = std::env::args().collect();
    if args.get(1).is_some_and(|arg| arg == "pe") {
        return pe::main(&args[2..]);
    }
    signals::heed();
    let arguments = Arguments::from_args();
    let cases = cases::CASES.iter().chain(signals::CASES);
    let mut trials: Vec<Trial> = cases
        .map(|(name, case)| {
            Trial::test(*name, || {
                case();
                Ok(())
            })
        })
        .collect();
    trials.extend(cases::with_needs());
    trials.extend(mpich::trials());
    libtest_mimic::run(&arguments, trials).exit();
}
