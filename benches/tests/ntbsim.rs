// SPDX-License-Identifier: Apache-2.0
//! The simulator as a program.

#![cfg(feature = "simulator")]

use std::fs::OpenOptions;
use std::process::Command;

/// What could not be written is missing: that is no success, and no crash.
#[test]
fn the_simulator_tells_of_a_full_disk() {
    for line in ["--count 2 --size 8", "--count 2 --size 8 --json", "soak --seeds 1 --hosts-max 3"]
    {
        let full = OpenOptions::new().write(true).open("/dev/full").unwrap();
        let mut command = Command::new(env!("CARGO_BIN_EXE_ntbsim"));
        let output = command.args(line.split(' ')).stdout(full).output().unwrap();
        let said = String::from_utf8_lossy(&output.stderr);
        let begins = said.starts_with("ntbsim: cannot write to standard output: ");
        assert!(output.status.code() == Some(1) && begins, "{line}: {output:?}");
    }
}
