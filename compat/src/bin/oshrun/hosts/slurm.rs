// SPDX-License-Identifier: Apache-2.0
//! The hosts of a Slurm allocation.

use super::Named;
use super::list::check_name;

/// More hosts than any allocation has: a list that asks for more is not believed.
const HOSTS_MAX: usize = 1 << 16;

/// Most digits of a number in a name.
const DIGITS_MAX: usize = 20;
/// Steps that are not made by the user's srun but hold a whole allocation: the script of sbatch, and the shell of salloc
/// where the site has it run on a node.
const WHOLE: [&str; 2] = ["4294967291", "4294967290"];

/// The hosts and counts of the allocation that the environment describes, if it describes one.
pub fn from_slurm(lookup: impl Fn(&str) -> Option<String>) -> Option<Result<Vec<Named>, String>> {
    lookup("SLURM_JOB_ID")?;
    // A step, made by srun, has its part of the allocation: what it starts stays on its node.
    if lookup("SLURM_STEP_ID").is_some_and(|step| !WHOLE.contains(&&*step)) {
        return None;
    }
    let list = lookup("SLURM_JOB_NODELIST").or_else(|| lookup("SLURM_NODELIST"))?;
    let tasks = lookup("SLURM_TASKS_PER_NODE");
    Some(allocation(&list, tasks.as_deref()))
}

fn allocation(list: &str, tasks: Option<&str>) -> Result<Vec<Named>, String> {
    let names = expand(list).map_err(|why| format!("SLURM_JOB_NODELIST='{list}': {why}"))?;
    if tasks.is_none() && names.len() > 1 {
        return Err(format!(
            "SLURM_TASKS_PER_NODE is not set: it has to say how many PEs run on each of the {} nodes of \
             '{list}'",
            names.len()
        ));
    }
    let tasks = tasks.unwrap_or("1");
    let counts = counts(tasks, names.len())
        .filter(|counts| counts.len() == names.len())
        .ok_or_else(|| {
            format!(
                "SLURM_TASKS_PER_NODE='{tasks}' does not fit the {} nodes of '{list}'",
                names.len()
            )
        })?;
    let named = |(name, count): (String, usize)| Named { name, slots: Some(count) };
    Ok(names.into_iter().zip(counts).map(named).collect())
}

/// `2(x3),1` is 2, 2, 2, 1.
fn counts(text: &str, hosts: usize) -> Option<Vec<usize>> {
    let mut counts = vec![];
    for word in text.split(',') {
        let (count, times) = match word.strip_suffix(')').and_then(|word| word.split_once("(x")) {
            Some((count, times)) => (count, times.parse().ok()?),
            None => (word, 1),
        };
        let count: usize = count.parse().ok().filter(|count| *count > 0)?;
        if times > hosts - counts.len() {
            return None;
        }
        counts.extend(std::iter::repeat_n(count, times));
    }
    Some(counts)
}

/// `n[1-2,05-06],m` is n1, n2, n05, n06, m.
fn expand(list: &str) -> Result<Vec<String>, String> {
    let mut names = vec![];
    let mut depth = 0;
    let words = list.split(|c| {
        depth += i32::from(c == '[') - i32::from(c == ']');
        c == ',' && depth == 0
    });
    for word in words {
        expand_word(word, &mut names)?;
    }
    names.iter().try_for_each(|name| check_name(name))?;
    Ok(names)
}

fn expand_word(word: &str, names: &mut Vec<String>) -> Result<(), String> {
    let Some((prefix, rest)) = word.split_once('[') else {
        names.push(word.into());
        return match names.len() {
            ..=HOSTS_MAX => Ok(()),
            _ => Err(format!("more than {HOSTS_MAX} hosts")),
        };
    };
    let (ranges, suffix) = rest.split_once(']').ok_or("a '[' without ']'")?;
    for range in ranges.split(',') {
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        let number = |text: &str| {
            text.parse::<usize>().map_err(|_| format!("'{range}' is not a range of numbers"))
        };
        let (from, to) = (number(first)?, number(last)?);
        if from > to || first.len() > DIGITS_MAX {
            return Err(format!("'{range}' is not a range of numbers"));
        }
        for value in from..=to {
            // Leading zeros belong to the name.
            let width = first.len();
            expand_word(&format!("{prefix}{value:0width$}{suffix}"), names)?;
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lists_of_nodes_are_expanded() {
        for (list, expected) in [
            ("n1", "n1"),
            ("n[1-3],m7", "n1 n2 n3 m7"),
            ("n[08-11,20]", "n08 n09 n10 n11 n20"),
            ("rack[0-1]n[1,3]", "rack0n1 rack0n3 rack1n1 rack1n3"),
            ("c[1-2]-ib.local,d", "c1-ib.local c2-ib.local d"),
        ] {
            assert_eq!(expand(list).unwrap().join(" "), expected, "{list}");
        }
        for wrong in ["n[1-", "n[a-b]", "", "n[1-99999999]", "n[1],-x", "n]1["] {
            assert!(expand(wrong).is_err(), "{wrong}");
        }
        let empty = "n[0-18446744073709551615][1-0]";
        let long = format!("n[{}1]", "0".repeat(70_000));
        assert!(expand(empty).is_err() && expand(&long).is_err());
    }

    #[test]
    fn nodes_have_their_numbers_of_tasks() {
        let shown = |list: &str, tasks| -> Result<String, String> {
            let hosts = allocation(list, tasks)?.into_iter();
            let show = |host: Named| format!("{}:{}", host.name, host.slots.unwrap_or(0));
            Ok(hosts.map(show).collect::<Vec<_>>().join(","))
        };
        assert_eq!(shown("n[1-4]", Some("2(x3),1")).unwrap(), "n1:2,n2:2,n3:2,n4:1");
        assert_eq!(
            shown("n[1-2]", Some("1")).unwrap_err(),
            "SLURM_TASKS_PER_NODE='1' does not fit the 2 nodes of 'n[1-2]'"
        );
        let unset = shown("n[1-2]", None).unwrap_err();
        assert!(unset.starts_with("SLURM_TASKS_PER_NODE is not set: "), "{unset}");
        assert_eq!(shown("n1", None).unwrap(), "n1:1");
        for wrong in
            ["2(x3)", "0(x2)", "x", "2(x99999999999)", "1", "", "1,1(x18446744073709551615)"]
        {
            assert!(shown("n[1-2]", Some(wrong)).is_err(), "{wrong}");
        }
    }

    #[test]
    fn without_an_allocation_there_is_nothing() {
        assert!(from_slurm(|_| None).is_none());
        assert!(from_slurm(|name| (name == "SLURM_JOB_NODELIST").then(|| "n1".into())).is_none());
        let hosts = |step: Option<&str>| {
            let found = from_slurm(|name| match name {
                "SLURM_JOB_ID" => Some("7".into()),
                "SLURM_JOB_NODELIST" => Some("n[1-2]".into()),
                "SLURM_TASKS_PER_NODE" => Some("4(x2)".into()),
                "SLURM_STEP_ID" => step.map(String::from),
                _ => None,
            });
            found.map(|hosts| hosts.unwrap().len())
        };
        assert_eq!([None, Some("0"), Some("12")].map(hosts), [Some(2), None, None]);
        // The script of sbatch and the shell of salloc have all of it.
        assert_eq!([Some("4294967291"), Some("4294967290")].map(hosts), [Some(2); 2]);
    }
}
