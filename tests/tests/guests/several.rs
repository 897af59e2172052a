// SPDX-License-Identifier: Apache-2.0
//! Several PEs on each guest: the first opens the devices of the ring, and the others use them beside it.

use crate::Stage;
use crate::losses::{FEW_ROUNDS, FEWER_ROUNDS, WITHOUT_LOST};
use crate::ring::{LIMIT, LONG, Ring, Which};
use crate::support::{Ran, run};
use libtest_mimic::Failed;
use tombolo_tests::conformance;

/// Two PEs on each of two guests.
const PLACES: &str = "g1:2,g2:2";
const PES: usize = 4;
/// The suite of transports with PEs that share a host.
const BACK_END: &str = "ntb_two_hosts";
/// A PE of the second guest kills itself (k), after which the other one is ended (d): the first of them, which has the
/// devices open, or the one beside it.
const KILLED: [&str; 2] = ["aakd", "aadk"];
/// Both do.
const ALL_KILLED: &str = "aakk";

/// Programs that put, get, add, lock and reduce, and check every byte.
pub fn run_programs(stage: &Stage, which: Which, programs: &[&str]) -> Result<(), Failed> {
    let ring = stage.ring(which)?;
    let ring = ring.as_ref().expect("just made");
    programs.iter().try_for_each(|program| runs(stage, ring, program))
}

fn runs(stage: &Stage, ring: &Ring, program: &str) -> Result<(), Failed> {
    let mut oshrun = ring.oshrun(PLACES);
    ring.job(oshrun.arg(stage.program(program).executable()?))?.succeeded()?;
    Ok(())
}

/// The suite of all transports.
pub fn conforms(stage: &Stage, which: Which) -> Result<(), Failed> {
    let ring = stage.ring(which)?;
    let ring = ring.as_ref().expect("just made");
    let mut oshrun = ring.oshrun(PLACES);
    conformance::run_by(&mut oshrun, conformance::BACK_ENDS, BACK_END, true)?;
    let ran: Ran = run(&mut oshrun, LONG)?;
    let said = ran.succeeded()?.stdout;
    println!("{said}");
    Ok(conformance::all_ran(BACK_END, PES, true, &said)?)
}

/// `oshinfo` says who has the devices open.
pub fn oshinfo_tells(stage: &Stage, which: Which) -> Result<(), Failed> {
    let ring = stage.ring(which)?;
    let ring = ring.as_ref().expect("just made");
    let told = ring.job(ring.oshrun(PLACES).arg(ring.tool("oshinfo")))?.succeeded()?.stdout;
    for words in ["host 0 of a ring of 2", "host 1 of a ring of 2", "0000:00:10.0"] {
        assert!(told.contains(words), "{words}\n{told}");
    }
    Ok(())
}

/// A PE that is killed ends the job, and the others go on without a guest whose PEs are killed; either way the next job
/// has the devices.
pub fn are_killed(stage: &Stage, which: Which) -> Result<(), Failed> {
    let ring = stage.ring(which)?;
    let ring = ring.as_ref().expect("just made");
    let survivors = stage.program("survivors").executable()?;
    for letters in KILLED {
        let killed = letters.find('k').expect("one is killed");
        let mut oshrun = ring.oshrun(PLACES);
        let ran = run(oshrun.arg(&survivors).arg(letters), LIMIT)?;
        let told = ran.stderr.contains(&format!("PE {killed} ")) && ran.stderr.contains("SIGKILL");
        if ran.code.is_none_or(|code| code == 0 || code == WITHOUT_LOST) || !told {
            return Err(ran.account("expected the job to end for a killed PE").into());
        }
        runs(stage, ring, "few")?;
    }
    let mut oshrun = ring.oshrun(PLACES);
    oshrun.args(["-x", "SHMEM_ON_LOSS=continue"]);
    oshrun.args(if which.is_served() { FEWER_ROUNDS } else { FEW_ROUNDS });
    let ran = run(oshrun.arg(&survivors).arg(ALL_KILLED), LIMIT)?;
    if ran.code != Some(WITHOUT_LOST) {
        return Err(ran.account("expected the others to go on").into());
    }
    runs(stage, ring, "few")
}
