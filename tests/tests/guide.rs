// SPDX-License-Identifier: Apache-2.0
//! The samples in C and Python and the commands in the README and in the guide, and the program of `intro_shmem(3)`:
//! programs run on 2 PEs, parts of programs in C are compiled, commands are run. Samples in Rust are in the test `rust`.

#[allow(dead_code, reason = "each test uses its part")]
mod support;

use libtest_mimic::{Failed, Trial};
use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;
use support::program::{LIMIT, Program, run_trials};
use support::samples::{Sample, samples};
use support::{installed, run, scratch, tool};
use tombolo_tests::unless;

/// Whose options are looked up.
const TOOLS: [&str; 5] = ["oshrun", "oshinfo", "oshperf", "oshcc", "oshivshmem"];
/// Several jobs one after the other.
const COMMANDS_LIMIT: Duration = Duration::from_secs(180);

fn main() {
    run_trials(trials)
}

fn trials(prefix: &Path) -> Vec<Trial> {
    let samples = Arc::new(samples());
    let tools = prefix.to_owned();
    let mut trials =
        vec![Trial::test("intro_shmem(3): the program runs", move || of_the_manual(&tools))];
    for sample in samples.iter().cloned() {
        let (prefix, place) = (prefix.to_owned(), sample.place.clone());
        let mut add = |what: &str, test: Box<dyn FnOnce() -> Result<(), Failed> + Send>| {
            trials.push(Trial::test(format!("{place}: {what}"), test));
        };
        match sample.language.as_str() {
            "c" if sample.is_whole() => {
                add("the program runs", Box::new(move || program(&prefix, &sample)));
            }
            "c" => add("the part compiles", Box::new(move || part(&prefix, &sample))),
            "sh" => {
                let (tools, own) = (prefix.clone(), sample.clone());
                add("options exist", Box::new(move || options_exist(&tools, &own)));
                if sample.note("not run: ").is_none() {
                    let samples = samples.clone();
                    add("commands run", Box::new(move || commands(&prefix, &sample, &samples)));
                }
            }
            "python" => {
                let missing = (!installed("python3")).then_some("needs python3");
                let run = move || python(&prefix, &sample);
                let trial = Trial::test(format!("{place}: the program runs"), run);
                trials.push(unless(missing, trial));
            }
            "rust" | "toml" | "text" => {}
            other => {
                let other = other.to_owned();
                add("a language", Box::new(move || Err(format!("{other:?} is none").into())));
            }
        }
    }
    trials
}

/// The file of a sample, in a folder of its own.
fn written(sample: &Sample, text: &str) -> Result<PathBuf, String> {
    let folder = scratch(&sample.name);
    let file = folder.join(sample.file.as_deref().unwrap_or("part.c"));
    fs::write(&file, text).map_err(|error| format!("{}: {error}", file.display()))?;
    Ok(file)
}

fn program(prefix: &Path, sample: &Sample) -> Result<(), Failed> {
    let file = written(sample, &sample.text)?;
    Program::new(prefix, &file, "", &["-O1"]).launch(2, &[], &[])?.succeeded()?;
    Ok(())
}

fn python(prefix: &Path, sample: &Sample) -> Result<(), Failed> {
    let mut oshrun = Command::new(prefix.join("bin/oshrun"));
    oshrun.env("LD_LIBRARY_PATH", prefix.join("lib")).env("SHMEM_TUNE_CACHE", scratch("tuning"));
    oshrun.args(["-n", "2", "python3"]).arg(written(sample, &sample.text)?);
    run(&mut oshrun, LIMIT)?.succeeded()?;
    Ok(())
}

fn of_the_manual(prefix: &Path) -> Result<(), Failed> {
    let page = fs::read_to_string(prefix.join("share/man/man3/intro_shmem.3"))?;
    let (_, rest) = page.split_once(".Bd -literal -offset indent\n").ok_or("no program")?;
    let (text, _) = rest.split_once(".Ed\n").ok_or("no end of the program")?;
    let file = scratch("intro_shmem").join("intro_shmem.c");
    fs::write(&file, text.replace("\\e", "\\"))?;
    let ran = Program::new(prefix, &file, "", &["-O1"]).launch(2, &[], &[])?.succeeded()?;
    match ran.stdout == "2 of 2 PEs\n" {
        true => Ok(()),
        false => Err(ran.account("expected 2 of 2 PEs").into()),
    }
}

/// As the body of a function.
fn part(prefix: &Path, sample: &Sample) -> Result<(), Failed> {
    let parameters = sample.note("with: ").ok_or("no comment tells with what it compiles")?;
    let head = format!("void part({parameters})");
    let text = format!("#include <shmem.h>\n{head};\n{head}\n{{\n{}}}\n", sample.text);
    let file = written(sample, &text)?.display().to_string();
    // What a part computes, another part uses.
    let flags = ["-c", "-Wall", "-Wextra", "-Werror", "-Wno-unused-variable", "-o", "/dev/null"];
    tool(prefix.join("bin/oshcc"), &[&flags[..], &[&file]].concat())?;
    Ok(())
}

/// Commands, and what they print. A line with a prompt is a command; where there is none, all are.
fn split(text: &str) -> (Vec<&str>, Vec<&str>) {
    let prompts = text.lines().any(|line| line.starts_with("$ "));
    let (commands, printed): (Vec<_>, Vec<_>) =
        text.lines().partition(|line| !prompts || line.starts_with("$ "));
    let commands = commands.into_iter().map(|line| line.strip_prefix("$ ").unwrap_or(line));
    (commands.collect(), printed)
}

/// In a folder with the programs of the same chapter, and with the first program of the guide as `app`.
fn commands(prefix: &Path, sample: &Sample, samples: &[Sample]) -> Result<(), Failed> {
    let (commands, printed) = split(&sample.text);
    let folder = scratch(&sample.name);
    let file_of = |sample: &Sample| sample.place.split(',').next().map(str::to_owned);
    let first = samples.iter().find(|sample| sample.is_whole()).ok_or("no program")?;
    let beside = samples.iter().filter(|other| file_of(other) == file_of(sample));
    for program in beside.filter(|other| other.language == "c") {
        fs::write(folder.join(program.file.as_deref().unwrap_or("part.c")), &program.text)?;
    }
    let app = Program::new(prefix, &written(first, &first.text)?, "as app", &["-O1"]);
    fs::copy(app.executable()?, folder.join("app"))?;
    let mut shell = Command::new("bash");
    let path = std::env::var("PATH").unwrap_or_default();
    shell.env("PATH", format!("{}:{path}", prefix.join("bin").display()));
    shell.env("SHMEM_SYMMETRIC_SIZE", "64m").env("SHMEM_TUNE_CACHE", scratch("tuning"));
    // Some show what an earlier job has measured.
    let script = format!("oshrun -n 2 ./app > earlier\n{}", commands.join("\n"));
    shell.args(["-ec", &script]).current_dir(&folder);
    let ran = run(&mut shell, COMMANDS_LIMIT)?.succeeded()?;
    match printed.is_empty() || ran.stdout.lines().eq(printed.iter().copied()) {
        true => Ok(()),
        false => Err(ran.account(&format!("expected {printed:?}")).into()),
    }
}

/// The help of each tool knows the long options that a sample gives it.
fn options_exist(prefix: &Path, sample: &Sample) -> Result<(), Failed> {
    for command in split(&sample.text).0 {
        let mut words = command.split_whitespace().take_while(|word| *word != "#").peekable();
        let mut help = String::new();
        while let Some(word) = words.next() {
            if TOOLS.contains(&word) {
                let part = words.next_if(|next| word == "oshperf" && !next.starts_with('-'));
                let args: Vec<&str> = part.into_iter().chain(["--help"]).collect();
                help = tool(prefix.join("bin").join(word), &args)?;
            } else if word.starts_with("--") && !help.is_empty() {
                let option = word.split('=').next().unwrap_or_default();
                let mut known = help.split(|c: char| !c.is_ascii_alphanumeric() && c != '-');
                if !known.any(|known| known == option) {
                    return Err(format!("{command}: no option {option}").into());
                }
            }
        }
    }
    Ok(())
}
