// SPDX-License-Identifier: Apache-2.0
//! The manual: the example of every page is compiled, run, and prints what the page says; the pages
//! are installed, under the name of every routine.

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use libtest_mimic::{Failed, Trial};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;
use support::program::{Program, run_trials};
use support::{crate_dir, installed, routines, run, scratch};
use tombolo_tests::unless;

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let mut trials: Vec<Trial> = pages().into_iter().map(|page| example(prefix, page)).collect();
    let place = prefix.join("share/man/man3");
    trials.push(Trial::test("every_routine_has_a_manual_page", {
        let place = place.clone();
        move || every_routine_has_a_page(&place)
    }));
    let no_groff = (!installed("groff")).then_some("needs groff");
    let formatted =
        Trial::test("manual_pages_of_routines_are_well_formed", move || formats(&place));
    trials.push(unless(no_groff, formatted));
    trials
}

/// The sources of all pages.
fn pages() -> Vec<PathBuf> {
    let folder = crate_dir().with_file_name("compat").join("man");
    let entries = fs::read_dir(folder).expect("the pages are there");
    let mut pages: Vec<PathBuf> = entries
        .map(|entry| entry.expect("a folder entry").path())
        .filter(|path| path.extension().is_some_and(|extension| extension == "txt"))
        .collect();
    pages.sort();
    pages
}

fn example(prefix: &Path, page: PathBuf) -> Trial {
    let name = page.file_stem().expect("a file").to_string_lossy().into_owned();
    let text = fs::read_to_string(&page).expect("a readable page");
    let section = |title: &str| {
        let (_, rest) = text.split_once(&format!("\n== {title}\n")).expect("a section");
        rest.split("\n== ").next().unwrap_or_default().trim().to_owned()
    };
    let (source, output) = (section("Example"), section("Output"));
    let file = scratch("manual").join(format!("example-{name}.c"));
    fs::write(&file, source + "\n").expect("the folder is writable");
    let program = Program::new(prefix, &file, "", &["-O1", "-std=c11"]);
    Trial::test(format!("the example of {name} does what the page says"), move || {
        let ran = program.launch(2, &[], &[])?.succeeded()?;
        match ran.stdout.trim() == output {
            true => Ok(()),
            false => Err(ran.account(&format!("expected {output:?}")).into()),
        }
    })
}

/// As a page, or as a name of one that is there.
fn every_routine_has_a_page(place: &Path) -> Result<(), Failed> {
    let extensions =
        ["shmemx_pe_is_lost", "shmemx_tune", "shmemx_tune_hint", "shmemx_ctx_tune_hint"];
    let extensions = extensions.map(str::to_owned);
    for name in routines().into_iter().map(|routine| routine.name).chain(extensions) {
        let text = fs::read_to_string(place.join(format!("{name}.3")))
            .map_err(|error| format!("{name}: {error}"))?;
        if let Some(target) = text.strip_prefix(".so man3/") {
            let page = fs::read_to_string(place.join(target.trim()))
                .map_err(|error| format!("{name} leads to {target}: {error}"))?;
            assert!(page.contains(".Sh SYNOPSIS"), "{name} leads to {target}, which is no page");
        } else {
            assert!(text.contains(".Sh SYNOPSIS"), "{name}");
        }
    }
    Ok(())
}

fn formats(place: &Path) -> Result<(), Failed> {
    let mut command = Command::new("groff");
    command.args(["-mdoc", "-Tascii", "-ww", "-z"]);
    for page in pages() {
        let name = page.file_stem().expect("a file").to_string_lossy().into_owned();
        command.arg(place.join(format!("{name}.3")));
    }
    let ran = run(&mut command, Duration::from_secs(60))?.succeeded()?;
    match ran.stderr.is_empty() {
        true => Ok(()),
        false => Err(ran.account("expected no warning").into()),
    }
}
