//! Runs the conformance suite on every back end.

use libtest_mimic::{Arguments, Trial};
use tombolo_tests::conformance::{BACK_ENDS, CASES, run, unavailable};

fn main() {
    let arguments = Arguments::from_args();
    let trials = BACK_ENDS
        .iter()
        .flat_map(|back_end| {
            let unavailable = unavailable(back_end);
            CASES.iter().map(move |case| {
                let name = format!("{}::{}", back_end.name, case.name);
                match &unavailable {
                    Some(why) => Trial::test(format!("{name} ... ignored, {why}"), || Ok(()))
                        .with_ignored_flag(true),
                    None => Trial::test(name, move || {
                        run(back_end, case);
                        Ok(())
                    }),
                }
            })
        })
        .collect();
    libtest_mimic::run(&arguments, trials).exit();
}
