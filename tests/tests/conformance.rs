// SPDX-License-Identifier: Apache-2.0
//! Runs the conformance suite on every back end.

use tombolo_tests::conformance;

fn main() {
    conformance::main(conformance::BACK_ENDS);
}
