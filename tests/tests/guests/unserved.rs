// SPDX-License-Identifier: Apache-2.0
//! What is left when the program that serves the links, `oshivshmem`, is killed: guests that it has tied have the
//! memory and the doorbells of their links, and need it no more.

use crate::Stage;
use crate::losses::go_on_without;
use crate::ring::{LIMIT, Ring, Which};
use crate::support::job::{Job, longest};
use libtest_mimic::Failed;
use std::process::Command;
use std::time::{Duration, Instant};

/// For the error of guests that do not start.
const SOON: Duration = Duration::from_secs(60);

/// A job that is under way when the server is killed carries on, and so does one that starts later.
pub fn jobs_go_on(stage: &Stage) -> Result<(), Failed> {
    let mut held = stage.ring(Which::Three)?;
    let ring = held.as_mut().expect("just made");
    let mut oshrun = ring.everywhere();
    oshrun.args(["--timeout", &LIMIT.as_secs().to_string()]);
    let mut job = Job::start(with(oshrun, stage, "cables", &["15"])?)?;
    ring.end_server()?;
    let (code, said) = job.ends()?;
    println!("{said}");
    assert_eq!(code, Some(0), "{said}");
    // A round takes seconds, and none waited for something that does not come.
    assert!(longest(&said)? < 30.0, "{said}");
    ring.job(&mut with(ring.everywhere(), stage, "few", &[])?)?.succeeded()?;
    Ok(())
}

fn with(
    mut oshrun: Command,
    stage: &Stage,
    program: &str,
    args: &[&str],
) -> Result<Command, Failed> {
    oshrun.arg(stage.program(program).executable()?).args(args);
    Ok(oshrun)
}

/// Guests whose links nobody serves say so at once.
pub fn guests_do_not_start(stage: &Stage) -> Result<(), Failed> {
    // Its sockets are left.
    let mut held = stage.ring(Which::Three)?;
    held.as_mut().expect("just made").end_server()?;
    let begun = Instant::now();
    let booted = Ring::boot(Which::Three);
    let took = begun.elapsed();
    let told = booted.err().ok_or("guests have started without their links")?;
    for words in ["Failed to connect", "Connection refused"] {
        assert!(told.contains(words), "{words}: {told}");
    }
    assert!(took < SOON, "{took:?}: {told}");
    Ok(())
}

/// Nobody tells the neighbours of a guest that ends, and yet they find it out and go on.
pub fn the_others_go_on(stage: &Stage) -> Result<(), Failed> {
    let mut held = stage.ring(Which::Three)?;
    let ring = held.as_mut().expect("just made");
    ring.end_server()?;
    let ran = go_on_without(stage, ring, Which::Three);
    drop(held.take());
    ran
}
