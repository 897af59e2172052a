// SPDX-License-Identifier: Apache-2.0
//! How jobs end: the table of `oshrun(1)`, and what it says of a PE that ends or hurts itself as
//! `c/attacks/ends.c` does.

use super::Ran;
use std::sync::LazyLock;

/// A row: what it is called, and what is printed by default and where PEs go on.
pub struct Row {
    pub key: &'static str,
    pub what: &'static str,
    pub code: &'static str,
    pub messages: [&'static str; 2],
}

/// The table from which the manual is made.
pub static ROWS: LazyLock<Vec<Row>> = LazyLock::new(|| {
    let text = include_str!("../../../compat/share/ends.tsv");
    let rows = text.lines().filter(|line| !line.starts_with('#'));
    let parse = |line: &'static str| match line.split('\t').collect::<Vec<_>>()[..] {
        [key, what, code, message, going_on] => {
            Row { key, what, code, messages: [message, going_on] }
        }
        _ => panic!("not a row: '{line}'"),
    };
    rows.map(parse).collect()
});

/// The row called `key`.
pub fn row(key: &str) -> &'static Row {
    ROWS.iter().find(|row| row.key == key).unwrap_or_else(|| panic!("no row '{key}'"))
}

impl Row {
    /// Whether the row says that this line is printed.
    pub fn prints(&self, line: &str) -> bool {
        self.messages.iter().any(|message| matches(message, line))
    }

    /// Whether nothing has to be printed, by default or where PEs go on.
    pub fn is_silent(&self) -> bool {
        self.messages == ["-", "-"]
    }
}

/// Whether a line is `message`, in which words in < > stand for any text.
pub fn matches(message: &str, line: &str) -> bool {
    let mut literal = message.split('<').map(|part| part.split_once('>').map_or(part, |p| p.1));
    let Some(mut rest) = line.strip_prefix(literal.next().unwrap_or_default()) else {
        return false;
    };
    let parts: Vec<&str> = literal.collect();
    for (at, part) in parts.iter().enumerate() {
        // The last reaches to the end.
        let found = if at + 1 == parts.len() { rest.rfind(part) } else { rest.find(part) };
        let Some(place) = found.filter(|place| *place > 0) else { return false };
        rest = &rest[place + part.len()..];
    }
    rest.is_empty()
}

pub const SIGNALS: [(&str, i32); 8] = [
    ("SIGKILL", libc::SIGKILL),
    ("SIGTERM", libc::SIGTERM),
    ("SIGSEGV", libc::SIGSEGV),
    ("SIGABRT", libc::SIGABRT),
    ("SIGBUS", libc::SIGBUS),
    ("SIGFPE", libc::SIGFPE),
    ("SIGXCPU", libc::SIGXCPU),
    ("SIGSYS", libc::SIGSYS),
];
/// Other ways to end.
pub const ENDS: [&str; 5] = ["exit", "_exit", "quick_exit", "exec", "closefrom"];
/// What a PE survives.
pub const HURTS: [&str; 6] = ["fork", "descriptors", "space", "locked", "user", "root"];
/// Those that only root can do.
pub const OF_ROOT: [&str; 2] = ["user", "root"];
pub const PHASES: [&str; 9] =
    ["before", "init", "exchange", "computing", "rma", "collectives", "locks", "finalize", "after"];
/// Exchanges with the launcher at the start; there may be fewer.
pub const EXCHANGES: usize = 7;
/// Name of the variable by which the processes of a job are found.
pub const MARK: &str = "TOMBOLO_TEST_JOB";

/// Whether all that is said is in the table, but for warnings, which are the transports'.
pub fn all_known(ran: &Ran) -> bool {
    let known = |line: &str| {
        line.starts_with("tombolo: warning: ") || ROWS.iter().any(|row| row.prints(line))
    };
    ran.stderr.lines().all(known)
}

/// What happens to a PE of a job of three.
#[derive(Debug)]
pub struct Attack {
    pub victim: usize,
    pub way: &'static str,
    pub phase: &'static str,
    /// Microseconds, or the number of an exchange.
    pub delay: usize,
    pub going_on: bool,
}

impl Attack {
    /// Arguments of the program.
    pub fn arguments(&self) -> [String; 4] {
        [self.victim.to_string(), self.way.into(), self.phase.into(), self.delay.to_string()]
    }

    /// SHMEM_ON_LOSS.
    pub fn on_loss(&self) -> &'static str {
        if self.going_on { "continue" } else { "end" }
    }
}

/// All ways in a phase, PEs in turn, with others that go on and without.
pub fn all_in(phase: usize) -> impl Iterator<Item = Attack> {
    let signals = SIGNALS.iter().map(|(name, _)| *name);
    let ways = signals.chain(ENDS).chain(HURTS).enumerate();
    ways.flat_map(|(number, way)| [(number, way, false), (number, way, true)]).map(
        move |(number, way, going_on)| {
            let turn = 2 * number + usize::from(going_on) + phase;
            let delay = match PHASES[phase] {
                "exchange" => 1 + turn % EXCHANGES,
                _ => turn * 7_919 % 20_000,
            };
            Attack { victim: turn % 3, way, phase: PHASES[phase], delay, going_on }
        },
    )
}

/// The exit codes with which a job may end, each with the rows of the table of which one tells why.
fn expected(next: &Attack, over: &str) -> Vec<(i32, Vec<&'static str>)> {
    let signal = SIGNALS.iter().find(|(name, _)| *name == next.way);
    let own = match (signal, next.way) {
        (Some((_, number)), _) => (128 + number, vec!["signal"]),
        (_, "exit") => (3, vec!["exit"]),
        (_, "closefrom") => (1, vec!["closed", "error"]),
        // The program that the PE has become may not have ended when it is missed.
        (_, "exec") => (1, vec!["leave", "closed", "absent", "error"]),
        _ => (1, vec!["leave", "absent", "error"]),
    };
    let clean = (0, vec![]);
    // Where it may have left the job before, and where it has.
    let (leaving, left) = match next.way {
        "exit" => ((3, vec!["exit", "parting"]), (3, vec!["parting"])),
        _ => (own.clone(), own.clone()),
    };
    let lost = (125, vec!["lost"]);
    // An error that others find in the gap that the PE has left.
    let error = (1, vec!["error", "absent"]);
    let split = (125, vec!["split"]);
    let finalized = !matches!(own.1[0], "signal" | "exit");
    if HURTS.contains(&next.way) {
        return match (next.phase, next.way, over) {
            // What is missing may be needed to start.
            ("before" | "init" | "exchange", ..) => vec![clean, error],
            // The kernel takes orders for a device that is software from the user who has opened it: the PE
            // and the others lose each other. Connections are made when they are first used, which takes
            // address space.
            (_, "user" | "space", "over_verbs") if next.going_on => vec![clean, error, split],
            (_, "user" | "space", "over_verbs") => vec![clean, error],
            // The kernel copies between processes of one user.
            (_, "user", "over_cma") => vec![clean, error],
            _ => vec![clean],
        };
    }
    match next.phase {
        "before" => vec![own],
        // It may hit at any time, or so late that it hits the work.
        "init" | "exchange" if next.going_on => vec![own, lost, error],
        "init" | "exchange" => vec![own, error],
        "finalize" if next.going_on && finalized => vec![own, lost, clean],
        "finalize" if next.going_on => vec![leaving, lost],
        "finalize" if finalized => vec![own, clean],
        "after" if finalized => vec![clean],
        "finalize" => vec![leaving],
        "after" => vec![left],
        _ if next.going_on => vec![lost],
        _ => vec![own],
    }
}

/// Whether a job has ended as the table says; `over` names how its PEs reach each other.
pub fn judge(ran: &Ran, next: &Attack, over: &str) -> Result<(), String> {
    let all = expected(next, over);
    let Some(code) = ran.code else { return Err(ran.account("expected an exit code")) };
    let Some((_, rows)) = all.iter().find(|(expected, _)| *expected == code) else {
        return Err(ran.account(&format!("expected one of {all:?}")));
    };
    let told = |line: &str| rows.iter().any(|key| row(key).prints(line));
    if !rows.is_empty() && !ran.stderr.lines().any(told) {
        return Err(ran.account(&format!("expected a line as the table has for {rows:?}")));
    }
    if !all_known(ran) {
        return Err(ran.account("expected nothing but what is in the table"));
    }
    let went_on = |pe: usize| ran.stdout.contains(&format!("PE {pe} went on"));
    let ends = !HURTS.contains(&next.way);
    if matches!(code, 0 | 125) && (0..3).any(|pe| (pe != next.victim || !ends) && !went_on(pe)) {
        return Err(ran.account("expected all others to go on"));
    }
    Ok(())
}
