// SPDX-License-Identifier: Apache-2.0
//! Somebody on the network of a job over verbs who does not belong to it. See `c/attacks/datagrams.c`.

use crate::Stage;
use crate::rdma::Trio;
use crate::ring::LIMIT;
use crate::support::job::Job;
use crate::support::run;
use libtest_mimic::Failed;
use std::path::Path;

/// Numbers of queue pairs that are written to, from the next one on: those of one job.
const NUMBERS: u32 = 60;
/// What the program needs; without a library it is not compiled.
pub const FLAGS: [&str; 3] = ["-O1", "-Wl,--no-as-needed", "-libverbs"];

/// Why it cannot be compiled.
pub fn unavailable() -> Option<&'static str> {
    match Path::new("/usr/include/infiniband/verbs.h").is_file() {
        true => None,
        false => Some("the headers of libibverbs are not installed (Debian: libibverbs-dev)"),
    }
}

/// Datagrams to where PEs agree on connections, while they do and afterwards.
pub fn datagrams_do_no_harm(stage: &Stage) -> Result<(), Failed> {
    let trio = stage.trio()?;
    let trio = trio.as_ref().expect("just made");
    let program = stage.program("datagrams").executable()?;
    let program = program.display();
    let mut first = [0; 2];
    for (guest, first) in (1..).zip(&mut first) {
        let ran = run(&mut trio.guests.on(guest, &program.to_string()), LIMIT)?.succeeded()?;
        *first = ran.stdout.trim().parse::<u32>()?;
    }
    let [one, other] = first;
    let command = format!("{program} 40 {NUMBERS} 10.9.0.1 {one} 10.9.0.2 {other}");
    let mut stranger = trio.guests.on(3, &command);
    let mut oshrun = trio.oshrun("g1:1,g2:1", "verbs");
    oshrun.args(["-x", "SHMEM_VERBS_DEVICE=rxe0", "--timeout", &LIMIT.as_secs().to_string()]);
    oshrun.arg(stage.program("cables").executable()?).arg("15");
    let (sent, ended) = std::thread::scope(|scope| {
        let stranger = scope.spawn(move || run(&mut stranger, LIMIT));
        let ended = Job::start(oshrun).and_then(|mut job| {
            let hit = is_hit(trio, one)?;
            Ok((hit, job.ends()?))
        });
        (stranger.join().expect("no panic"), ended)
    });
    let sent: u32 = sent?.succeeded()?.stdout.trim().parse()?;
    let (hit, (code, said)) = ended?;
    println!("{sent} datagrams");
    assert_eq!(code, Some(0), "{said}");
    assert!(hit && sent > 1000, "{sent} datagrams, not all elsewhere: {hit}");
    Ok(())
}

/// Whether a PE in the first guest listens at one of the numbers.
fn is_hit(trio: &Trio, first: u32) -> Result<bool, Failed> {
    let listed = run(&mut trio.guests.on(1, "rdma resource show qp link rxe0/1"), LIMIT)?;
    let listed = listed.succeeded()?.stdout;
    let mut own = listed.lines().filter(|line| line.contains("type UD") && line.contains("cables"));
    let number = |line: &str| {
        let number = line.split("lqpn ").nth(1)?.split(' ').next()?;
        number.parse::<u32>().ok()
    };
    Ok(own.any(|line| number(line).is_some_and(|one| (first..first + NUMBERS).contains(&one))))
}
