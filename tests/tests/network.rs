//! C programs on several hosts that share nothing but a network: name spaces with an `sshd` each, tied
//! by virtual cables, on which `oshrun --host` starts PEs.

use libtest_mimic::Trial;
use std::fs;
use std::path::Path;
use std::sync::{Arc, LazyLock};
use tombolo_tests::conformance::{BACK_ENDS, unavailable};
use tombolo_tests::nodes::{self, Nodes};

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use support::program::{LIMIT, Program, run_trials};
use support::{crate_dir, run};

/// Hosts and how many PEs each has.
const PLACES: [&str; 2] = ["n1:2,n2:2", "n1:1,n2:1,n3:1"];

/// Hosts for jobs that leave them as they are.
static NODES: LazyLock<Nodes> =
    LazyLock::new(|| Nodes::start(3).unwrap_or_else(|why| panic!("{why}")));

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let of_ofi = BACK_ENDS.iter().find(|back_end| back_end.name == "ofi_tcp").expect("a row");
    let missing = nodes::unavailable().map(str::to_owned).or_else(|| unavailable(of_ofi));
    let mut sources: Vec<_> = fs::read_dir(crate_dir().join("c"))
        .expect("the programs are there")
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "c"))
        .collect();
    sources.sort();
    let programs =
        sources.iter().map(|source| Program::new(prefix, source, "", &["-O1", "-pthread"]));
    let places = |program: Arc<Program>| PLACES.map(|places| runs(&program, places));
    let trials = programs.flat_map(places).map(|trial| match &missing {
        Some(why) => trial.with_kind(why.clone()).with_ignored_flag(true),
        None => trial,
    });
    trials.collect()
}

/// "rma on n1:2,n2:2": succeeds, in time.
fn runs(program: &Arc<Program>, places: &'static str) -> Trial {
    let program = program.clone();
    Trial::test(format!("{} on {places}", program.name), move || {
        let executable = program.executable()?;
        let mut oshrun = program.oshrun();
        oshrun.args(["--host", places, "-x", "CHECK_APART=1"]).arg(executable);
        NODES.enter(&mut oshrun);
        let ran = run(&mut oshrun, LIMIT).map_err(|error| format!("{oshrun:?}: {error}"))?;
        ran.succeeded()?;
        Ok(())
    })
}
