// SPDX-License-Identifier: Apache-2.0
//! Options of other launchers, out of habit, and what serves here in their place.

use super::{long_form, takes_value};
use std::ffi::OsString;

/// Names without dashes, the number of words that follow, and what to do. A name of one letter stands behind one
/// dash, others behind one or two.
const STRANGERS: &[(&[&str], usize, &str)] = &[
    (&["tag-output", "prepend-rank"], 0, "use --label"),
    (&["bind-to", "binding", "cpu-bind", "cpu_bind"], 1, "use --bind core, auto or none"),
    (&["bind-to-core"], 0, "use --bind core"),
    (&["bind-to-none"], 0, "leave it out, or use --bind none"),
    (&["map-by", "rank-by"], 1, "use --placement block or cyclic"),
    (&["map-by-node", "bynode"], 0, "use --placement cyclic"),
    (&["map-by-slot", "byslot"], 0, "use --placement block"),
    (&["H"], 1, "use --host"),
    (&["machinefile", "default-hostfile", "f"], 1, "use --hostfile"),
    (&["npernode", "perhost", "ntasks-per-node", "N"], 1, "use --ppn"),
    (&["ntasks"], 1, "use -n"),
    (&["genv", "env"], 2, "use -x NAME=VALUE"),
    (&["genvlist", "envlist"], 1, "use -x NAME, once for each"),
    (&["genvall", "envall"], 0, "leave it out, or use -x NAME for other machines"),
    (&["export"], 1, "use -x NAME=VALUE"),
    (&["wd", "chdir"], 1, "use --wdir"),
    (&["launcher", "launcher-exec", "bootstrap", "bootstrap-exec"], 1, "use --rsh"),
    (
        &["mca", "omca", "prtemca", "pmixmca"],
        2,
        "leave it out; oshinfo lists the variables that have an effect",
    ),
    (&["oversubscribe", "nooversubscribe", "allow-run-as-root"], 0, NOT_NEEDED),
    (&["use-hwthread-cpus", "report-bindings", "display-map"], 0, NOT_NEEDED),
];

const NOT_NEEDED: &str = "it is not needed, leave it out";

/// A list of machines to other launchers, behind one dash.
const HOSTS: &str = "-hosts";

/// A line for each option of another launcher that stands before the program.
pub fn advice(section: &[OsString], command: &clap::Command) -> Vec<String> {
    let mut lines = vec![];
    let mut words = section.iter();
    while let Some(word) = words.next() {
        let Some(text) = word.to_str().filter(|text| text.starts_with('-') && *text != "--") else {
            break;
        };
        let (option, value) = match text.split_once('=') {
            Some((option, value)) => (option, Some(value)),
            None => (text, None),
        };
        let taken = match find(option) {
            Some((count, what)) => {
                lines.push(format!("oshrun has no option '{option}': {what}"));
                if value.is_some() { 0 } else { count }
            }
            None => usize::from(takes_value(&long_form(word), command)),
        };
        words.by_ref().take(taken).for_each(drop);
    }
    lines
}

fn find(option: &str) -> Option<(usize, &'static str)> {
    if option == HOSTS {
        return Some((1, "use --host"));
    }
    let name = option.strip_prefix('-')?;
    let (name, is_long) = name.strip_prefix('-').map_or((name, false), |name| (name, true));
    let known = |(names, ..): &&(&[&str], usize, &str)| names.contains(&name);
    let (_, count, what) = STRANGERS.iter().find(known)?;
    (name.len() > 1 || !is_long).then_some((*count, *what))
}
