// SPDX-License-Identifier: Apache-2.0
//! Which engine serves which port: the nearest.

use std::fs;
use std::path::Path;

/// Engines of a port at most.
pub const ENGINES_MAX: usize = 4;

/// Where a function is in the machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Place {
    /// The bridges between its root complex and it, from the root on, and the function itself.
    path: Vec<String>,
    node: Option<u32>,
}

impl Place {
    /// As `/sys`, here `system`, has it.
    pub fn of(system: &Path, address: &str) -> Option<Place> {
        let device = fs::canonicalize(system.join("bus/pci/devices").join(address)).ok()?;
        let parts = device.iter().map(|part| part.to_string_lossy().into_owned());
        let path: Vec<String> = parts
            .skip_while(|part| part.strip_prefix("pci").is_none_or(|bus| !bus.contains(':')))
            .collect();
        // -1 where the machine has none.
        let node = fs::read_to_string(device.join("numa_node")).ok();
        let node = node.and_then(|text| text.trim().parse().ok());
        Some(Place { path, node })
    }

    /// How near two functions are: so many bridges above both of them, and one for the root complex. None: they
    /// are in different parts of the machine.
    pub fn nearness(&self, other: &Place) -> Option<usize> {
        let shared = self.path.iter().zip(&other.path).take_while(|(a, b)| a == b).count();
        let same_node = self.node.is_some() && self.node == other.node;
        (shared > 0 || same_node).then_some(shared)
    }
}

/// Gives each engine to the port that it is nearest to, or among several to that which has fewest: by port,
/// the numbers of its engines, the nearest first.
pub fn assign(ports: &[Option<Place>], engines: &[Option<Place>]) -> Vec<Vec<usize>> {
    let near =
        |port: usize, engine: usize| ports[port].as_ref()?.nearness(engines[engine].as_ref()?);
    let mut given = vec![Vec::new(); ports.len()];
    for engine in 0..engines.len() {
        let nearest = (0..ports.len())
            .filter(|port| given[*port].len() < ENGINES_MAX)
            .filter_map(|port| Some((near(port, engine)?, port)))
            .max_by_key(|(nearness, port)| (*nearness, usize::MAX - given[*port].len()));
        if let Some((_, port)) = nearest {
            given[port].push(engine);
        }
    }
    for (port, given) in given.iter_mut().enumerate() {
        given.sort_by_key(|engine| std::cmp::Reverse(near(port, *engine)));
    }
    given
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    fn place(path: &str, node: u32) -> Option<Place> {
        let path = path.split('/').map(str::to_owned).collect();
        Some(Place { path, node: Some(node) })
    }

    #[test]
    fn an_engine_serves_the_port_behind_the_same_switch() {
        let ports =
            [place("pci0000:00/01.0/switch-a/port", 0), place("pci0000:80/01.0/switch-b/port", 1)];
        let engines = [
            place("pci0000:80/01.0/switch-b/dma", 1),
            place("pci0000:00/01.0/switch-a/dma", 0),
            place("pci0000:40/02.0/dma", 2),
            None,
        ];
        assert_eq!(assign(&ports, &engines), [vec![1], vec![0]]);
    }

    #[test]
    fn engines_of_a_processor_are_shared_out_among_its_ports() {
        let ports = [place("pci0000:16/00.0/port", 0), place("pci0000:16/01.0/port", 0)];
        let engines: Vec<_> =
            (0..10).map(|channel| place(&format!("pci0000:00/04.{channel}"), 0)).collect();
        let given = assign(&ports, &engines);
        assert_eq!(given.iter().map(Vec::len).collect::<Vec<_>>(), [ENGINES_MAX; 2]);
        let elsewhere = [place("pci0000:00/04.0", 1)];
        assert_eq!(assign(&ports, &elsewhere), [vec![], vec![]]);
    }

    #[test]
    fn places_are_read_from_the_kernel() {
        let root = std::env::temp_dir().join(format!("tombolo-places-{}", std::process::id()));
        let device = root.join("devices/pci0000:00/0000:00:01.0/0000:01:00.0");
        fs::create_dir_all(&device).unwrap();
        fs::create_dir_all(root.join("bus/pci/devices")).unwrap();
        fs::write(device.join("numa_node"), "-1\n").unwrap();
        symlink(&device, root.join("bus/pci/devices/0000:01:00.0")).unwrap();
        let found = Place::of(&root, "0000:01:00.0").unwrap();
        assert_eq!(found.path, ["pci0000:00", "0000:00:01.0", "0000:01:00.0"]);
        assert_eq!(found.node, None);
        assert_eq!(Place::of(&root, "0000:02:00.0"), None);
        fs::remove_dir_all(&root).unwrap();
    }
}
