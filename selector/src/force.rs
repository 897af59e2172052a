// SPDX-License-Identifier: Apache-2.0
//! `SHMEM_ROUTE`: channels that the user insists on.
//!
//! ```text
//! rules  = rule { "," rule }
//! rule   = { part ":" } "=" channel        parts in any order, each at most once
//! part   = put | get | amo                 operation, all if left out
//!        | heap | static                   where the remote buffer lies
//!        | self | cache | node | far-node | host | ring-N      locality class
//!        | <N | <=N | >N | >=N | N..M | *  sizes, with suffixes K, M, G
//! channel = cached | streaming | the name of a transport
//!        | TRANSPORT+TRANSPORT             each carries a part of every transfer
//!        | TRANSPORT/TRANSPORT             a non-blocking transfer takes that which is expected to be done first,
//!                                          others the first one
//! ```

use crate::class::Class;
use crate::data::{Buffer, CACHED, Operation, STREAMING};
use crate::policy::{Decision, Step};
use crate::{either, stripes};
use tombolo_core::config::{Bytes, Value};
use tombolo_core::route::STEPS_MAX;

/// One rule.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Rule {
    /// Which operation; all if none.
    pub operation: Option<Operation>,
    /// Where the remote buffer lies; anywhere if none.
    pub remote: Option<Buffer>,
    /// Between which PEs; all if none.
    pub class: Option<Class>,
    /// Smallest and largest size in bytes.
    pub sizes: (u64, u64),
    /// The channel.
    pub channel: String,
    /// The rule as it was written.
    pub text: String,
}

impl Rule {
    /// Whether the rule speaks of an operation, remote buffer and class.
    pub fn concerns(&self, class: Class, operation: Operation, remote: Buffer) -> bool {
        self.operation.is_none_or(|o| o == operation)
            && self.remote.is_none_or(|r| r == remote)
            && self.class.is_none_or(|c| c == class)
    }
}

/// Reads rules. `transports` are the names of all transports, to which a rule may route, besides the two
/// copies. The error names the part that is not understood.
pub fn parse(text: &str, transports: &[&str]) -> Result<Vec<Rule>, String> {
    parse_all(text, transports, "does not exist; the channels are")
}

/// As [`parse`], with `transports` those of a job.
pub fn parse_in_job(text: &str, transports: &[&str]) -> Result<Vec<Rule>, String> {
    parse_all(text, transports, "cannot be used in this job; its channels are")
}

fn parse_all(text: &str, transports: &[&str], missing: &str) -> Result<Vec<Rule>, String> {
    let rules = text.split(',').map(str::trim).filter(|rule| !rule.is_empty());
    rules.map(|rule| parse_rule(rule, transports, missing)).collect()
}

/// `missing` says of a channel that there is none, and introduces those that there are.
fn parse_rule(text: &str, transports: &[&str], missing: &str) -> Result<Rule, String> {
    // The sizes may hold an equal sign of their own: the channel follows the last one.
    let (parts, channel) =
        text.rsplit_once('=').filter(|(parts, _)| !parts.ends_with(['<', '>'])).ok_or_else(
            || format!("'{text}' has no channel; expected OPERATION:BUFFER:CLASS:SIZES=CHANNEL"),
        )?;
    let channel = channel.trim();
    let both = stripes::transports(channel).or_else(|| either::transports(channel));
    let pair =
        both.is_some_and(|[a, b]| a != b && [a, b].iter().all(|name| transports.contains(name)));
    if ![CACHED, STREAMING].contains(&channel) && !transports.contains(&channel) && !pair {
        return Err(format!(
            "channel '{channel}' in '{text}' {missing} {}, and two of these transports with '+' or '/' between \
             them",
            [CACHED, STREAMING].iter().chain(transports).copied().collect::<Vec<_>>().join(", ")
        ));
    }
    let mut rule = Rule {
        operation: None,
        remote: None,
        class: None,
        sizes: (0, u64::MAX),
        channel: channel.to_owned(),
        text: text.to_owned(),
    };
    let mut sized = false;
    for part in parts.split(':').map(str::trim) {
        let twice = || format!("'{part}' in '{text}': this was already given");
        let operation = match part {
            "put" => Some(Operation::Put),
            "get" => Some(Operation::Get),
            "amo" => Some(Operation::Amo),
            _ => None,
        };
        let remote = match part {
            "heap" => Some(Buffer::Heap),
            "static" => Some(Buffer::Static),
            _ => None,
        };
        if let Some(operation) = operation {
            rule.operation.replace(operation).map_or(Ok(()), |_| Err(twice()))?;
        } else if let Some(remote) = remote {
            rule.remote.replace(remote).map_or(Ok(()), |_| Err(twice()))?;
        } else if let Ok(class) = part.parse() {
            rule.class.replace(class).map_or(Ok(()), |_| Err(twice()))?;
        } else {
            let sizes = parse_sizes(part).ok_or_else(|| {
                format!(
                    "'{part}' in '{text}' is not understood; expected put, get or amo, heap or \
                     static, a locality class such as cache or ring-1, or sizes such as >=64K, \
                     8..4K or *"
                )
            })?;
            if std::mem::replace(&mut sized, true) {
                return Err(twice());
            }
            rule.sizes = sizes;
        }
    }
    let moves_data = pair || [CACHED, STREAMING].contains(&channel);
    if rule.operation == Some(Operation::Amo) && moves_data {
        return Err(format!(
            "'{channel}' in '{text}': atomics of a variable all go one way, and mapped memory is \
             taken by itself where there is some"
        ));
    }
    Ok(rule)
}

fn parse_sizes(text: &str) -> Option<(u64, u64)> {
    let number = |text: &str| {
        let text = text.trim();
        // `Bytes` ignores what follows its suffix, as the standard has it for the heap size.
        let unit = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.');
        (unit.len() <= 1).then(|| Bytes::parse(text).ok()).flatten().map(|bytes| bytes.0)
    };
    if text == "*" {
        return Some((0, u64::MAX));
    }
    if let Some((low, high)) = text.split_once("..") {
        let (low, high) = (number(low)?, number(high)?);
        return (low <= high).then_some((low, high));
    }
    if let Some(text) = text.strip_prefix(">=") {
        return Some((number(text)?, u64::MAX));
    }
    if let Some(text) = text.strip_prefix("<=") {
        return Some((0, number(text)?));
    }
    if let Some(text) = text.strip_prefix('>') {
        return Some((number(text)?.checked_add(1)?, u64::MAX));
    }
    if let Some(text) = text.strip_prefix('<') {
        return Some((0, number(text)?.checked_sub(1)?));
    }
    number(text).map(|size| (size, size))
}

/// What a rule does to the routes of a PE.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Effect {
    /// It concerns nothing that its channel can carry.
    Nothing,
    /// Its sizes take its channel, all others what they took before.
    AsAsked,
    /// Its sizes take its channel, and so that the table holds them some others are routed like their neighbours.
    Crowded,
}

/// Lays a rule over a decision. Of more steps than the data path holds, some that are not the rule's go, from the
/// top: their sizes take the channel of the next larger ones.
pub fn overlay(decision: &mut Decision, rule: &Rule) -> Effect {
    let (low, high) = rule.sizes;
    let mut steps = Vec::new();
    let mut push = |limit: u64, channel: &str| match steps.last_mut() {
        Some(Step { limit: last, channel: same }) if same == channel => *last = limit,
        _ => steps.push(Step { limit, channel: channel.to_owned() }),
    };
    for step in decision.steps.iter().take_while(|step| low > 0 && step.limit < low - 1) {
        push(step.limit, &step.channel);
    }
    if low > 0 {
        push(low - 1, decision.channel(low - 1));
    }
    push(high, &rule.channel);
    for step in decision.steps.iter().filter(|step| step.limit > high) {
        push(step.limit, &step.channel);
    }
    let effect = if steps.len() > STEPS_MAX { Effect::Crowded } else { Effect::AsAsked };
    while steps.len() > STEPS_MAX {
        let spare = (0..steps.len())
            .rev()
            .find(|i| steps[*i].channel != rule.channel && *i + 1 < steps.len())
            .unwrap_or(0);
        steps.remove(spare);
        if spare > 0 && steps[spare - 1].channel == steps[spare].channel {
            steps.remove(spare - 1);
        }
    }
    if let Some(last) = steps.last_mut() {
        last.limit = u64::MAX;
    }
    decision.steps = steps;
    effect
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const KNOWN: &[&str] = &["shm", "cma"];

    #[test]
    fn the_documented_forms_are_read() {
        let rules = parse("put:heap:>=64K=cma, get:*=cached,ring-2:8..4k=shm", KNOWN).unwrap();
        assert_eq!(rules[0].operation, Some(Operation::Put));
        assert_eq!(rules[0].remote, Some(Buffer::Heap));
        assert_eq!(rules[0].sizes, (65536, u64::MAX));
        assert_eq!((rules[0].channel.as_str(), rules[1].channel.as_str()), ("cma", CACHED));
        assert_eq!((rules[2].class, rules[2].sizes), (Some(Class::Hops(2)), (8, 4096)));
        assert_eq!(parse("<4K=cma", KNOWN).unwrap()[0].sizes, (0, 4095));
        assert_eq!(parse("put:<=4K=cma", KNOWN).unwrap()[0].sizes, (0, 4096));
        let above = &parse("get:>64K=cma+shm", KNOWN).unwrap()[0];
        assert_eq!((above.sizes, above.channel.as_str()), ((65537, u64::MAX), "cma+shm"));
        assert_eq!(parse("put:>64K=cma/shm", KNOWN).unwrap()[0].channel, "cma/shm");
        assert_eq!(parse("", KNOWN), Ok(vec![]));
    }

    #[test]
    fn an_error_names_what_is_wrong() {
        for (text, token) in [
            ("put:heep=cma", "'heep'"),
            ("put=udp", "'udp'"),
            ("put=cma+cma", "'cma+cma'"),
            ("put=cma+udp", "'cma+udp'"),
            ("put=cma/cma", "'cma/cma'"),
            ("put=udp/cma", "'udp/cma'"),
            ("put=cma/shm+cma", "'cma/shm+cma'"),
            ("amo=cma/shm", "'cma/shm'"),
            ("amo=cma+shm", "'cma+shm'"),
            ("put:get=cma", "'get'"),
            ("put:8:9=cma", "'9'"),
            ("put:>=64KB=cma", "'>=64KB'"),
            ("put:9..8=cma", "'9..8'"),
            ("put", "'put'"),
            ("put:>=", "'put:>='"),
            ("put:<0=cma", "'<0'"),
            ("amo=streaming", "'streaming'"),
            ("ring-0=cma", "'ring-0'"),
        ] {
            let why = parse(text, KNOWN).unwrap_err();
            assert!(why.contains(token), "{text}: {why}");
        }
        let why = |parsed: Result<Vec<Rule>, String>| parsed.unwrap_err();
        assert!(why(parse("put=tcp", KNOWN)).contains("does not exist; the channels are cached,"));
        let of_job = why(parse_in_job("put=tcp", KNOWN));
        assert!(
            of_job.contains("cannot be used in this job; its channels are cached,"),
            "{of_job}"
        );
    }

    fn decision(steps: &[(u64, &str)]) -> Decision {
        let step =
            |(limit, channel): &(u64, &str)| Step { limit: *limit, channel: (*channel).to_owned() };
        Decision {
            class: Class::Cache,
            operation: Operation::Put,
            remote: Buffer::Heap,
            default: CACHED.into(),
            steps: steps.iter().map(step).collect(),
        }
    }

    #[test]
    fn rules_for_more_ranges_than_a_route_holds_are_told_apart() {
        let rules = parse("put:8..16=cma,put:100..200=shm,put:300..400=cma", KNOWN).unwrap();
        let mut routed = decision(&[(u64::MAX, CACHED)]);
        let effects: Vec<Effect> = rules.iter().map(|rule| overlay(&mut routed, rule)).collect();
        assert_eq!(effects, [Effect::AsAsked, Effect::Crowded, Effect::Crowded]);
        assert!(routed.steps.len() <= STEPS_MAX);
        assert_eq!(routed.channel(350), "cma");
        // Neighbours of one channel are one step.
        let mut routed = decision(&[(u64::MAX, CACHED)]);
        let rules = parse("put:8..16=cma,put:100..200=cma", KNOWN).unwrap();
        rules.iter().for_each(|rule| _ = overlay(&mut routed, rule));
        assert_eq!(routed.steps.len(), 3, "{routed:?}");
    }

    proptest! {
        /// A rule holds for all its sizes; other sizes keep their channel while the table has room.
        #[test]
        fn a_rule_changes_its_sizes_and_no_others(
            low in 0u64..5000, span in prop_oneof![Just(0u64), 0u64..5000], limit in 1u64..9000,
            any in 0u64..12_000,
        ) {
            let before = decision(&[(limit, CACHED), (u64::MAX, STREAMING)]);
            let mut after = before.clone();
            let text = format!("{low}..{}=cma", low + span);
            let effect = overlay(&mut after, &parse(&text, KNOWN).unwrap()[0]);
            prop_assert_eq!(effect, Effect::AsAsked);
            prop_assert!(after.steps.len() <= STEPS_MAX);
            prop_assert!(after.steps.windows(2).all(|w| w[0].limit < w[1].limit));
            let high = low + span;
            for at in [any, low.saturating_sub(1), low, high, high + 1, limit, limit + 1] {
                let expected =
                    if (low..=high).contains(&at) { "cma" } else { before.channel(at) };
                prop_assert_eq!(after.channel(at), expected, "of {} bytes", at);
            }
        }
    }
}
