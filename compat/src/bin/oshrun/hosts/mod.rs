// SPDX-License-Identifier: Apache-2.0
//! The machines of a job: which ones the user or Slurm names, and which PEs each of them gets.

mod list;
mod slurm;

pub use list::{Named, from_file, from_list};
pub use slurm::from_slurm;

use crate::options::Placement;

/// The machines of a job, and the PEs of each.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Machines {
    pub names: Vec<String>,
    /// Index of the machine of each PE.
    pub of_pe: Vec<usize>,
}

/// How many PEs all machines take together, where that was said: of one that was named without a
/// number, one.
pub fn capacity(named: &[Named], per_host: Option<usize>) -> usize {
    named.iter().map(|host| per_host.or(host.slots).unwrap_or(1)).sum()
}

/// Deals `count` PEs to machines. The error says why they do not fit.
pub fn deal(
    named: &[Named],
    per_host: Option<usize>,
    count: usize,
    placement: Placement,
) -> Result<Machines, String> {
    let spread = per_host.is_none() && named.iter().all(|host| host.slots.is_none());
    let capacity = if spread { count } else { capacity(named, per_host) };
    if count > capacity {
        return Err(format!(
            "{count} PEs do not fit: the hosts take {capacity}; give them more with --host \
             NAME:COUNT, slots=COUNT in the host file, or --ppn COUNT"
        ));
    }
    // The first count % hosts hold one PE more than the others.
    let even = |at: usize| count / named.len() + usize::from(at < count % named.len());
    let room = |(at, host): (usize, &Named)| match spread {
        true => even(at),
        false => per_host.or(host.slots).unwrap_or(1),
    };
    let rooms: Vec<usize> = named.iter().enumerate().map(room).collect();
    let block = || (0..rooms.len()).flat_map(|host| std::iter::repeat_n(host, rooms[host]));
    let turns = rooms.iter().copied().max().unwrap_or(0);
    let of_turn = |turn: usize| {
        let with_room = rooms.iter().enumerate().filter(move |(_, room)| **room > turn);
        with_room.map(|(host, _)| host)
    };
    let dealt: Vec<usize> = match placement {
        Placement::Block => block().take(count).collect(),
        Placement::Cyclic => (0..turns).flat_map(of_turn).take(count).collect(),
    };
    // Hosts that are left without a PE have no part in the job.
    let used: Vec<usize> = (0..named.len()).filter(|host| dealt.contains(host)).collect();
    let index = |host: &usize| used.binary_search(host).expect("a host with a PE is used");
    Ok(Machines {
        names: used.iter().map(|host| named[*host].name.clone()).collect(),
        of_pe: dealt.iter().map(index).collect(),
    })
}

/// Whether a program of that name is found in PATH.
pub fn is_program(name: &str) -> bool {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path).any(|folder| folder.join(name).is_file())
}

/// Whether a name stands for the machine that this process runs on.
pub fn is_this_machine(name: &str) -> bool {
    // Slurm's name of the node may be another than the machine's own.
    if std::env::var("SLURMD_NODENAME").is_ok_and(|node| node == name) {
        return true;
    }
    let own = nix::unistd::gethostname()
        .map_or_else(|_| String::new(), |name| name.to_string_lossy().into_owned());
    let short = |name: &str| name.split('.').next().unwrap_or_default().to_owned();
    ["localhost", "127.0.0.1", "::1"].contains(&name)
        || name == own
        || (!name.contains('.') || !own.contains('.')) && short(name) == short(&own)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn dealt(hosts: &str, per_host: Option<usize>, count: usize) -> Result<String, String> {
        let machines = deal(&from_list(hosts)?, per_host, count, Placement::Block)?;
        let of_pe: Vec<&str> = machines.of_pe.iter().map(|at| &*machines.names[*at]).collect();
        Ok(of_pe.concat())
    }

    #[test]
    fn blocks_fill_the_hosts_in_their_order() {
        assert_eq!(dealt("a:2,b:3", None, 5).unwrap(), "aabbb");
        assert_eq!(dealt("a:2,b:3", None, 3).unwrap(), "aab");
        assert_eq!(dealt("a:2,b:3", Some(1), 2).unwrap(), "ab");
        assert_eq!(dealt("a,b,c", None, 5).unwrap(), "aabbc");
        assert_eq!(dealt("a,b:2", None, 3).unwrap(), "abb");
        assert!(dealt("a:2,b:3", None, 6).unwrap_err().contains("the hosts take 5"));
        assert!(dealt("a,b", Some(2), 5).unwrap_err().contains("the hosts take 4"));
    }

    #[test]
    fn hosts_without_a_pe_are_left_out() {
        let machines = deal(&from_list("a:2,b:2,c:2").unwrap(), None, 2, Placement::Block).unwrap();
        assert_eq!((machines.names, machines.of_pe), (vec!["a".to_owned()], vec![0, 0]));
    }

    #[test]
    fn pes_are_dealt_in_turn_as_long_as_there_is_room() {
        let machines =
            deal(&from_list("a:1,b:3,c:2").unwrap(), None, 6, Placement::Cyclic).unwrap();
        assert_eq!(machines.of_pe, [0, 1, 2, 1, 2, 1]);
    }

    #[test]
    fn this_machine_is_known_by_its_names() {
        let own = nix::unistd::gethostname().unwrap().to_string_lossy().into_owned();
        assert!(is_this_machine("localhost") && is_this_machine(&own));
        assert!(!is_this_machine("some-other-machine") && !is_this_machine(""));
    }
}
