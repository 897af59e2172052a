// SPDX-License-Identifier: Apache-2.0
//! `--host` and host files. `oshinfo` includes this file, so that it takes the lists that `oshrun` takes.

/// Most PEs of a machine.
const SLOTS_MAX: usize = 1 << 16;

/// A machine as it was named.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Named {
    pub name: String,
    /// How many PEs it is to get at most, if that was said.
    pub slots: Option<usize>,
}

/// `a:4,b,c:2`. Hosts that are named more than once are one.
pub fn from_list(text: &str) -> Result<Vec<Named>, String> {
    let mut hosts = vec![];
    for word in text.split(',').map(str::trim) {
        match word {
            "" => return Err("the list has an empty entry".into()),
            word => add(&mut hosts, parse(word)?),
        }
    }
    Ok(hosts)
}

/// One host a line: `name`, `name:4`, `name 4` or `name slots=4`, and comments after `#`. Files for Open MPI may
/// also say `max-slots=8`, up to which its launcher may go on dealing: without `slots` that number counts.
#[allow(dead_code, reason = "oshinfo reads no such files")]
pub fn from_file(text: &str) -> Result<Vec<Named>, String> {
    let mut hosts = vec![];
    // Some editors begin files with a mark of the order of bytes.
    let text = text.strip_prefix('\u{feff}').unwrap_or(text);
    for (index, line) in text.lines().enumerate() {
        let line = line.split('#').next().unwrap_or_default();
        let mut words = line.split_whitespace();
        let Some(name) = words.next() else { continue };
        let wrong = |why: String| format!("line {}: {why}", index + 1);
        let mut host = parse(name).map_err(wrong)?;
        let mut most = None;
        for word in words {
            let of_most = ["max-slots=", "max_slots="].iter().find_map(|it| word.strip_prefix(it));
            let (place, count) = match of_most {
                Some(count) => (&mut most, count),
                None => (&mut host.slots, word.strip_prefix("slots=").unwrap_or(word)),
            };
            let count = parse_count(count).map_err(|_| {
                wrong(format!("'{word}' is not understood; write '{name} slots=COUNT'"))
            })?;
            if place.replace(count).is_some() {
                return Err(wrong(format!("'{name}' has two numbers of PEs")));
            }
        }
        if let (Some(slots), Some(most)) = (host.slots, most)
            && slots > most
        {
            return Err(wrong(format!("'{name}' has more slots than max-slots={most}")));
        }
        host.slots = host.slots.or(most);
        add(&mut hosts, host);
    }
    match hosts.is_empty() {
        true => Err("it names no host".into()),
        false => Ok(hosts),
    }
}

fn add(hosts: &mut Vec<Named>, new: Named) {
    match hosts.iter_mut().find(|host| host.name == new.name) {
        Some(host) => host.slots = Some(host.slots.unwrap_or(1) + new.slots.unwrap_or(1)),
        None => hosts.push(new),
    }
}

/// `name` or `name:count`, perhaps behind `user@`; an IPv6 address with a count is written in brackets.
fn parse(word: &str) -> Result<Named, String> {
    let (user, host) = word.split_at(word.find('@').map_or(0, |at| at + 1));
    let (name, slots) = match host.strip_prefix('[').and_then(|rest| rest.split_once(']')) {
        Some((address, "")) => (address, None),
        Some((address, rest)) => (address, Some(rest.strip_prefix(':').unwrap_or(rest))),
        None if host.matches(':').count() == 1 => {
            host.split_once(':').map_or((host, None), |(name, count)| (name, Some(count)))
        }
        None => (host, None),
    };
    if name.is_empty() {
        return Err("the name of a host is missing".into());
    }
    let name = format!("{user}{name}");
    check_name(&name)?;
    let slots = slots.map(parse_count).transpose().map_err(|why| format!("'{word}': {why}"))?;
    Ok(Named { name, slots })
}

/// A name is an argument of the command that starts the agent: it must not look like an option, nor
/// like anything that a shell would change.
pub(super) fn check_name(name: &str) -> Result<(), String> {
    let allowed = |c: char| c.is_alphanumeric() || "-._@:%".contains(c);
    match name {
        "" => Err("the name of a host is missing".into()),
        _ if name.starts_with('-') || !name.chars().all(allowed) => {
            Err(format!("'{name}' is not a name of a host"))
        }
        _ if name.bytes().all(|byte| byte.is_ascii_digit()) => Err(format!(
            "'{name}' is not a name of a host; emulated hosts are asked for with --hosts COUNT"
        )),
        _ => Ok(()),
    }
}

fn parse_count(text: &str) -> Result<usize, String> {
    match text.parse() {
        Ok(count @ 1..=SLOTS_MAX) => Ok(count),
        _ => Err(format!("expected a number of PEs from 1 to {SLOTS_MAX}")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn shown(hosts: Result<Vec<Named>, String>) -> String {
        let show = |host: Named| format!("{} {}", host.name, host.slots.unwrap_or(0));
        hosts.unwrap().into_iter().map(show).collect::<Vec<_>>().join(", ")
    }

    #[test]
    fn lists_have_names_and_counts() {
        assert_eq!(shown(from_list("a:4,b,me@c.d-e:2")), "a 4, b 0, me@c.d-e 2");
        assert_eq!(shown(from_list("a,b:2,a")), "a 2, b 2");
        assert_eq!(
            shown(from_list("10.0.0.1:3,fe80::1,[fe80::2]:2,[::1]")),
            "10.0.0.1 3, fe80::1 0, fe80::2 2, ::1 0"
        );
        assert_eq!(shown(from_list("me@[fe80::2]:2,me@fe80::3")), "me@fe80::2 2, me@fe80::3 0");
        assert!(from_list("me@:2").is_err() && from_list("[]:2").is_err());
    }

    #[test]
    fn files_have_a_host_a_line() {
        let text = "# the cluster\nn1 slots=4\n\n n2:3 # slow\nn3 2\nn4\n";
        assert_eq!(shown(from_file(text)), "n1 4, n2 3, n3 2, n4 0");
        let text = "\u{feff}n1 slots=2 max-slots=4\r\nn2 max_slots=3\r\n\r\nn3\r\n";
        assert_eq!(shown(from_file(text)), "n1 2, n2 3, n3 0");
        for (text, why) in [
            ("n1 slot=4", "line 1: 'slot=4' is not understood"),
            ("n1 slots=4 max-slots=3", "line 1: 'n1' has more slots than max-slots=3"),
            ("n1 max-slots=4 max-slots=5", "line 1: 'n1' has two numbers"),
            ("n1\nn2 0", "line 2: '0' is not understood"),
            ("n1:2 3", "line 1: 'n1:2' has two numbers"),
            ("# nothing\n", "names no host"),
        ] {
            assert!(from_file(text).unwrap_err().contains(why), "{text}");
        }
    }

    #[test]
    fn nothing_but_names_is_given_to_the_remote_shell() {
        for wrong in
            ["-oProxyCommand=x", "a b", "a;b", "$(a)", "", "a,,b", "3", "a:0", "a:x", "'a'"]
        {
            assert!(from_list(wrong).is_err(), "{wrong}");
        }
        assert!(from_list("3").unwrap_err().contains("--hosts COUNT"));
        assert_eq!(from_list("a,,b").unwrap_err(), "the list has an empty entry");
        assert_eq!(
            from_list("a:0").unwrap_err(),
            "'a:0': expected a number of PEs from 1 to 65536"
        );
    }
}
