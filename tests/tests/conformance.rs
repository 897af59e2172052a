//! Runs the conformance suite on every back end.

use libtest_mimic::{Arguments, Trial};
use tombolo_tests::conformance::{BACK_ENDS, CASES, run};

fn main() {
    let arguments = Arguments::from_args();
    let trials = BACK_ENDS
        .iter()
        .flat_map(|back_end| {
            CASES.iter().map(move |case| {
                Trial::test(format!("{}::{}", back_end.name, case.name), move || {
                    run(back_end, case);
                    Ok(())
                })
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}
