// SPDX-License-Identifier: Apache-2.0
//! What operations over verbs take in a guest, beside those of perftest, in turn.

use crate::Stage;
use crate::ring::LIMIT;
use crate::support::run;
use libtest_mimic::Failed;
use std::collections::BTreeMap;
use tombolo_tests::guests::system;

const ROUNDS: usize = 3;
/// Of perftest: a name, the program with its options, and the column of its result.
const TOOLS: [(&str, &str, usize); 6] = [
    ("one way 8 B, us", "ib_write_lat -s 8 -n 1000", 4),
    ("one way 16 B, us", "ib_write_lat -s 16 -n 1000", 4),
    ("a write of 8 B after the other, million/s", "ib_write_bw -s 8 -n 1000 -t 1 -Q 1", 4),
    ("read of 8 B, us", "ib_read_lat -s 8 -n 1000", 4),
    ("fetch-add, us", "ib_atomic_lat -A FETCH_AND_ADD -n 1000", 4),
    ("64 KiB, 16 at a time, MiB/s", "ib_write_bw -s 65536 -n 200 -t 16 -Q 1", 3),
];

/// Prints medians and what was measured.
pub fn compare(stage: &Stage) -> Result<(), Failed> {
    let trio = stage.trio()?;
    let trio = trio.as_ref().expect("just made");
    let program = stage.program("put_amo").executable()?;
    let mut all: BTreeMap<String, Vec<f64>> = BTreeMap::new();
    for _ in 0..ROUNDS {
        for (name, tool, column) in TOOLS {
            let ran = run(&mut trio.guests.on(1, &both_ends(tool)), LIMIT)?.succeeded()?;
            let values: Vec<&str> = ran.stdout.split_whitespace().collect();
            let value = values.get(column).ok_or_else(|| ran.account("expected a result"))?;
            all.entry(format!("perftest: {name}")).or_default().push(value.parse()?);
        }
        let job = format!(
            "SHMEM_TRANSPORTS=verbs SHMEM_TUNE=off SHMEM_SYMMETRIC_SIZE=16m {} -n 2 {}",
            trio.prefix.join("bin/oshrun").display(),
            program.display()
        );
        let ran = run(&mut trio.guests.on(1, &job), LIMIT)?.succeeded()?;
        for line in ran.stdout.lines() {
            let mut words = line.split(' ').skip(1);
            let name =
                format!("{}, {}", words.next().ok_or("no name")?, words.next().unwrap_or(""));
            let values = words.map(str::parse).collect::<Result<Vec<f64>, _>>()?;
            all.entry(name).or_default().extend(values);
        }
    }
    for (name, mut values) in all {
        values.sort_by(f64::total_cmp);
        println!("{name}: {} of {values:?}", values[values.len() / 2]);
    }
    Ok(())
}

/// A script that runs a program of perftest against itself and prints its line of results. Now and then one
/// does not trust the processor's clock, and has none.
fn both_ends(tool: &str) -> String {
    let place = system();
    let libraries = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu"]
        .map(|folder| place.join(folder).display().to_string());
    format!(
        "export LD_LIBRARY_PATH={}
         tool='{}/usr/bin/{tool} -d rxe0 -F'
         for attempt in 1 2 3 4 5; do
             $tool > /tmp/server 2>&1 &
             until grep -q ':4853 0*:0000 0A' /proc/net/tcp /proc/net/tcp6 ||
                 ! kill -0 $! 2> /dev/null; do sleep 0.02; done
             $tool 127.0.0.1 > /tmp/client 2>&1
             wait $!
             grep -E '^ *[0-9]+ +[0-9]+ +[0-9.]+ ' /tmp/client && exit
         done
         cat /tmp/server /tmp/client >&2; exit 1",
        libraries.join(":"),
        place.display()
    )
}
