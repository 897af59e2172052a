// SPDX-License-Identifier: Apache-2.0
//! The tools at a prompt: shells complete their options, and each tells the commit it was built from.

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use libtest_mimic::{Failed, Trial};
use std::fs;
use std::path::Path;
use std::process::Command;
use support::program::run_trials;
use support::{crate_dir, installed, tool};
use tombolo_tests::unless;

/// Programs, with what is typed after their names and one of the words that are then offered.
const OFFERED: [(&str, &str, &str); 10] = [
    ("oshrun", "--ho", "--hosts"),
    ("oshrun", "-n 4 --tim", "--timeout"),
    ("oshinfo", "--pre", "--predict"),
    ("oshperf", "com", "compare"),
    ("oshperf", "compare --wa", "--ways"),
    ("oshivshmem", "--vec", "--vectors"),
    ("oshcc", "--showme:l", "--showme:link"),
    ("oshc++", "--showme:c", "--showme:compile"),
    ("oshCC", "--showme:c", "--showme:compile"),
    ("oshcxx", "--showme:c", "--showme:compile"),
];

/// Completes the words that follow, of which the first is the program, as an interactive shell would.
const COMPLETE: &str = r#"
    source "$1"; shift
    how=$(complete -p -- "$1")
    function=${how#*-F }; function=${function%% *}
    COMP_WORDS=("$@") COMP_CWORD=$(($# - 1)) COMP_LINE="$*" COMP_POINT=${#COMP_LINE}
    "$function" "$1" "${!#}" "${@: -2:1}"
    printf '%s\n' "${COMPREPLY[@]}"
"#;

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let no_bash = (!installed("bash")).then_some("needs bash");
    let mut trials = vec![];
    for (program, typed, offered) in OFFERED {
        let prefix = prefix.to_owned();
        let name = format!("bash completes {program} {typed}");
        let trial = Trial::test(name, move || completes(&prefix, program, typed, offered));
        trials.push(unless(no_bash, trial));
    }
    let of = |test: fn(&Path) -> Result<(), Failed>| {
        let prefix = prefix.to_owned();
        move || test(&prefix)
    };
    trials.push(Trial::test("zsh_and_fish_have_the_same_options", of(others)));
    trials.push(Trial::test("each_tool_tells_its_version_and_commit", of(versions)));
    trials
}

fn completes(prefix: &Path, program: &str, typed: &str, offered: &str) -> Result<(), Failed> {
    let script = prefix.join("share/bash-completion/completions").join(program);
    let mut bash = vec!["--norc", "-c", COMPLETE, "bash"];
    let script = script.display().to_string();
    bash.extend([script.as_str(), program]);
    bash.extend(typed.split(' '));
    let words = tool("bash", &bash)?;
    match words.lines().any(|word| word == offered) {
        true => Ok(()),
        false => Err(format!("expected {offered} among {words:?}").into()),
    }
}

fn others(prefix: &Path) -> Result<(), Failed> {
    for (program, _, offered) in OFFERED {
        let fish = format!("share/fish/vendor_completions.d/{program}.fish");
        for file in [format!("share/zsh/site-functions/_{program}"), fish] {
            let text =
                fs::read_to_string(prefix.join(&file)).map_err(|e| format!("{file}: {e}"))?;
            // Fish writes an option without its dashes.
            assert!(text.contains(offered.trim_start_matches('-')), "{offered} is not in {file}");
        }
    }
    Ok(())
}

/// All the same, with the commit where the sources are a repository.
fn versions(prefix: &Path) -> Result<(), Failed> {
    let of = |program: &str| -> Result<String, String> {
        // Compiler wrappers hand `--version` on to the compiler.
        let option = if program.starts_with("oshc") { "--showme:version" } else { "--version" };
        let text = tool(prefix.join("bin").join(program), &[option])?;
        Ok(text.trim().trim_start_matches(&format!("{program} ")).to_owned())
    };
    let expected = of("oshrun")?;
    for program in ["oshcc", "oshc++", "oshinfo", "oshperf", "oshivshmem"] {
        assert_eq!(of(program)?, expected, "{program}");
    }
    let mut git = Command::new("git");
    git.arg("-C").arg(crate_dir()).args(["rev-parse", "--git-dir"]);
    if git.output().is_ok_and(|output| output.status.success()) {
        let (_, commit) = expected.split_once("commit ").ok_or(expected.clone())?;
        let digits = commit.chars().take_while(char::is_ascii_hexdigit).count();
        assert!(digits >= 12, "{expected}");
        let shown = tool(prefix.join("bin/oshinfo"), &[] as &[&str])?;
        assert!(shown.contains(&expected), "{shown}");
    }
    Ok(())
}
