// SPDX-License-Identifier: Apache-2.0
//! `oshinfo --doctor`: what makes jobs slow or impossible on this machine, and how to change it.
//!
//! Each check looks at files of the kernel through a [`Machine`], and on the machine itself tries the
//! real thing where that can be done: files tell what is meant to work, a trial tells what does.

mod access;
mod devices;
mod launch;
mod limits;
mod machine;
mod memory;
mod network;
mod processors;
mod remote;
mod variables;

pub use machine::Machine;
pub use remote::examine as others;

use std::fmt;

/// What a finding means for jobs, the worst last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Grade {
    /// Nothing to change.
    Good,
    /// Concerns some kinds of jobs, or only tells what there is.
    Note,
    /// Jobs run, and slower than they could.
    Slow,
    /// Jobs do not run.
    Fails,
}

impl Grade {
    fn word(self) -> &'static str {
        match self {
            Grade::Good => "good",
            Grade::Note => "note",
            Grade::Slow => "slow",
            Grade::Fails => "fails",
        }
    }

    /// The exit code of a machine whose worst finding this is.
    pub fn code(self) -> u8 {
        match self {
            Grade::Good | Grade::Note => 0,
            Grade::Slow => 3,
            Grade::Fails => 4,
        }
    }
}

/// The result of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Finding {
    /// What was looked at.
    pub subject: &'static str,
    /// How bad it is.
    pub grade: Grade,
    /// What is the case.
    pub state: String,
    /// What that does to jobs; empty where there is nothing to say.
    pub effect: String,
    /// Commands that change it, with comments; nothing where nothing has to change.
    pub change: Vec<String>,
}

impl Finding {
    fn good(subject: &'static str, state: impl Into<String>) -> Finding {
        Finding::new(subject, Grade::Good, state, "", &[])
    }

    fn new(
        subject: &'static str,
        grade: Grade,
        state: impl Into<String>,
        effect: &str,
        change: &[&str],
    ) -> Finding {
        Finding {
            subject,
            grade,
            state: state.into(),
            effect: effect.to_owned(),
            change: change.iter().map(|line| (*line).to_owned()).collect(),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        writeln!(f, "  {:<5}  {:<14}  {}", self.grade.word(), self.subject, self.state)?;
        if !self.effect.is_empty() {
            writeln!(f, "         effect: {}", self.effect)?;
        }
        let mut label = "change: ";
        for line in &self.change {
            writeln!(f, "         {label}{line}")?;
            label = "        ";
        }
        Ok(())
    }
}

/// All findings of a machine, in an order that goes from what every job needs to what few do.
pub fn examine(machine: &Machine) -> Vec<Finding> {
    [
        processors::findings(machine),
        memory::findings(machine),
        limits::findings(machine),
        access::findings(machine),
        devices::findings(machine),
        network::findings(machine),
        launch::findings(machine),
        variables::findings(machine),
    ]
    .concat()
}

/// The worst of findings.
pub fn worst(findings: &[Finding]) -> Grade {
    findings.iter().map(|finding| finding.grade).max().unwrap_or(Grade::Good)
}

/// The findings for people.
pub fn render(machine: &Machine, findings: &[Finding]) -> String {
    let mut text = format!("What makes jobs slow or impossible on {}\n", machine.name());
    findings.iter().for_each(|finding| text += &finding.to_string());
    let number = |grade| findings.iter().filter(|finding| finding.grade == grade).count();
    text += &match (number(Grade::Fails), number(Grade::Slow)) {
        (0, 0) => "Nothing found that makes jobs slow or impossible.\n".to_owned(),
        (fails, slow) => {
            let verbs =
                |count| if count == 1 { ["prevents", "slows"] } else { ["prevent", "slow"] };
            let (prevent, slows) = (verbs(fails)[0], verbs(slow)[1]);
            format!("Problems: {fails} that {prevent} jobs, {slow} that {slows} them.\n")
        }
    };
    text
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn findings_show_their_effect_and_how_to_change_them() {
        let all = [
            Finding::good("ssh", "OpenSSH"),
            Finding::new("clock", Grade::Slow, "hpet", "reading it takes long", &["a", "b"]),
        ];
        let text = render(&Machine::below("/nowhere"), &all);
        let lines: Vec<&str> = text.lines().map(str::trim_end).collect();
        assert_eq!(lines[1], "  good   ssh             OpenSSH");
        assert_eq!(lines[2], "  slow   clock           hpet");
        assert_eq!(lines[3], "         effect: reading it takes long");
        assert_eq!(lines[4..6], ["         change: a", "                 b"]);
        assert_eq!(lines[6], "Problems: 0 that prevent jobs, 1 that slows them.");
        assert_eq!((worst(&all), worst(&all).code()), (Grade::Slow, 3));
        assert_eq!(worst(&[]).code(), 0);
        assert!(render(&Machine::below("/nowhere"), &all[..1]).contains("Nothing found"));
    }

    #[test]
    fn an_empty_directory_is_a_machine_that_tells_nothing() {
        // Each check has to say something of a machine that tells nothing.
        let all = examine(&Machine::below("/nowhere"));
        let said = |subject: &str| all.iter().any(|finding| finding.subject == subject);
        for subject in [
            "processors",
            "memory",
            "huge pages",
            "CMA",
            "locked memory",
            "/dev/shm",
            "NTB",
            "IOMMU",
            "libfabric",
            "verbs",
            "PMIx",
            "ssh",
        ] {
            assert!(said(subject), "{subject}: {all:#?}");
        }
    }
}
