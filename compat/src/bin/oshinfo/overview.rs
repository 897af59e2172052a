// SPDX-License-Identifier: Apache-2.0
//! The overview: this installation, the machine, and the environment.

use nix::unistd::{User, getuid};
use std::path::Path;
use tombolo::describe::{self, Section};
use tombolo::variables;
use tombolo_core::config::{Audience, Environment};
use tombolo_transports::ntb::port::functions::Function;

/// Everything outside a job.
pub fn overview() -> String {
    let environment = Environment::of_process();
    let mut text = build().to_string() + "\n" + &mistakes(&environment);
    text += &format!("{}\n{}{}\n", transports(&environment), devices(), describe::collectives());
    text + &variables(&environment)
}

/// What has the same value for a whole job: the installation and the environment of PE 0.
pub fn of_job(sections: &[Section]) -> String {
    let mut text = build().to_string() + "\n";
    sections.iter().for_each(|section| text += &format!("{section}\n"));
    text + &variables(&Environment::of_process())
}

/// What is wrong with environment variables; nothing where all is well.
fn mistakes(environment: &Environment) -> String {
    let mistakes = variables::mistakes(environment);
    let mut section = Section::new("Mistakes in environment variables");
    section.rows("", mistakes.iter().cloned());
    if mistakes.is_empty() { String::new() } else { format!("{section}\n") }
}

fn variables(environment: &Environment) -> String {
    let of = |audience| describe::variables(environment, audience);
    let (user, launcher) = (of(Audience::User), of(Audience::Launcher));
    format!("Environment variables\n{user}\nSet by launchers\n{launcher}")
}

fn build() -> Section {
    let own = std::env::current_exe().unwrap_or_default();
    let prefix = own.parent().and_then(Path::parent).unwrap_or(Path::new(""));
    let profile = if cfg!(debug_assertions) { "debug (arguments are checked)" } else { "release" };
    let mut section = Section::new("Tombolo");
    section.row("version", crate::tool::VERSION);
    section.row("standard", "OpenSHMEM 1.6");
    let (machine, system) = (std::env::consts::ARCH, std::env::consts::OS);
    section.row("build", format!("{}, {profile}, {machine} {system}", describe::BUILD));
    section.row("installed in", prefix.display().to_string());
    section
}

/// NTB devices of this machine and DMA engines beside them, what they are bound to, and what would make
/// them usable; nothing where there are none.
fn devices() -> String {
    let mut functions = Function::all();
    functions.extend(Function::engines(&functions));
    let user = User::from_uid(getuid()).ok().flatten().map(|user| user.name);
    let user = user.unwrap_or_else(|| getuid().to_string());
    let mut section = Section::new("NTB devices");
    for function in &functions {
        section.row("device", function.describe());
        let remedies = function.remedies(&user);
        if !remedies.is_empty() {
            section.row("", "root makes it usable by:");
            section.rows("", remedies);
        }
    }
    if functions.is_empty() { String::new() } else { format!("{section}\n") }
}

/// Each transport, and whether it can be used here.
fn transports(environment: &Environment) -> Section {
    let mut section = Section::new("Transports");
    let config = variables::readable(environment.clone());
    for survey in tombolo::transports::survey(&config) {
        match survey.state {
            Ok(lines) => {
                section.rows(survey.name, std::iter::once("ready".to_owned()).chain(lines));
            }
            Err(why) => section.row(survey.name, format!("not used: {why}")),
        }
    }
    section
}
