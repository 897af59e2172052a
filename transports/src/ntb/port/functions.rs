// SPDX-License-Identifier: Apache-2.0
//! PCI functions of NTB devices on this machine: which there are, who has them, and what would make
//! them usable.

mod kinds;
mod remedies;
#[cfg(test)]
mod tests;

pub use kinds::{EngineName, Kind, PortName, Role};

use super::engine::nearest::Place;
use kinds::{ENGINES, PORTS};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The driver of the kernel through which this process can use a function.
pub const DRIVER: &str = "vfio-pci";
const SYSTEM: &str = "/sys";
/// Where the kernel lists all functions in one file: "0008 1af41110 ...", tabs between.
const LIST: &str = "/proc/bus/pci/devices";

/// Whether the kernel's list of functions has one of an NTB device, or a line that cannot be read.
fn lists_any(list: &str) -> bool {
    list.lines().any(|line| {
        let number = line.split_whitespace().nth(1).and_then(|id| u32::from_str_radix(id, 16).ok());
        number.is_none_or(|id| Kind::of(PORTS, (id >> 16) as u16, id as u16).is_some())
    })
}

/// A function of an NTB device, or of an engine beside one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Function {
    /// Where it is: domain, bus, device, function.
    pub address: String,
    /// What it is.
    pub kind: Kind,
    /// The driver that has it.
    pub driver: Option<String>,
    /// The functions that an IOMMU cannot tell from it.
    pub group: Option<u32>,
    /// Those of them that a driver has which keeps the group from being used.
    pub in_the_way: Vec<String>,
}

impl Function {
    /// All of this machine, in the order of their addresses.
    pub fn all() -> Vec<Function> {
        // Every PE asks when it starts, and a server has hundreds of functions with a folder each.
        match fs::read_to_string(LIST) {
            Ok(list) if !lists_any(&list) => vec![],
            _ => Function::below(Path::new(SYSTEM)),
        }
    }

    /// All of a machine whose `/sys` is `system`.
    pub fn below(system: &Path) -> Vec<Function> {
        Function::of_kinds(PORTS, system)
    }

    /// The DMA engines of this machine that could serve one of `ports`, in the order of their addresses.
    pub fn engines(ports: &[Function]) -> Vec<Function> {
        Function::engines_below(Path::new(SYSTEM), ports)
    }

    /// The same for a machine whose `/sys` is `system`.
    pub fn engines_below(system: &Path, ports: &[Function]) -> Vec<Function> {
        let served: Vec<Place> = ports
            .iter()
            .filter(|port| port.kind.uses_engines())
            .filter_map(|port| Place::of(system, &port.address))
            .collect();
        if served.is_empty() {
            return vec![];
        }
        let mut all = Function::of_kinds(ENGINES, system);
        all.retain(|engine| {
            let place = Place::of(system, &engine.address);
            place.is_some_and(|place| served.iter().any(|port| place.nearness(port).is_some()))
        });
        all
    }

    fn of_kinds(kinds: &[Kind], system: &Path) -> Vec<Function> {
        let devices = system.join("bus/pci/devices");
        let entries = fs::read_dir(&devices).into_iter().flatten().flatten();
        let mut all: Vec<Function> = entries
            .filter_map(|entry| Function::at(kinds, system, &entry.file_name().into_string().ok()?))
            .collect();
        all.sort_by(|a, b| a.address.cmp(&b.address));
        all
    }

    /// Where it is on this machine.
    pub(super) fn place(&self) -> Option<Place> {
        Place::of(Path::new(SYSTEM), &self.address)
    }

    /// The number under which it sends requests: bus, device and function of its address.
    pub fn requester(&self) -> Option<u16> {
        let (_, place) = self.address.split_once(':')?;
        let (bus, place) = place.split_once(':')?;
        let (device, function) = place.split_once('.')?;
        let number = |text: &str, limit: u16| {
            u16::from_str_radix(text, 16).ok().filter(|number| *number < limit)
        };
        Some(number(bus, 256)? << 8 | number(device, 32)? << 3 | number(function, 8)?)
    }

    fn at(kinds: &[Kind], system: &Path, address: &str) -> Option<Function> {
        let place = system.join("bus/pci/devices").join(address);
        let number = |name: &str| {
            let text = fs::read_to_string(place.join(name)).ok()?;
            u32::from_str_radix(text.trim().trim_start_matches("0x"), 16).ok()
        };
        let id = |name: &str| u16::try_from(number(name)?).ok();
        let kind = Kind::of(kinds, id("vendor")?, id("device")?)?;
        if kind.class.is_some() && kind.class != number("class") {
            return None;
        }
        let target = |place: &Path| {
            let target = fs::read_link(place).ok()?;
            Some(target.file_name()?.to_string_lossy().into_owned())
        };
        let group = target(&place.join("iommu_group")).and_then(|number| number.parse().ok());
        let others =
            fs::read_dir(place.join("iommu_group/devices")).into_iter().flatten().flatten();
        let in_the_way = others.filter_map(|other| {
            let driver = target(&other.path().join("driver"))?;
            let name = other.file_name().into_string().ok()?;
            // Bridges are let pass.
            let passes = [DRIVER, "pcieport", "pci-stub"].contains(&driver.as_str());
            (!passes && name != address).then(|| format!("{name} ({driver})"))
        });
        Some(Function {
            address: address.to_owned(),
            kind,
            driver: target(&place.join("driver")),
            group,
            in_the_way: in_the_way.collect(),
        })
    }

    /// Whether the driver has it through which this process can use it.
    pub fn is_bound(&self) -> bool {
        self.driver.as_deref() == Some(DRIVER)
    }

    /// What it is, and who has it.
    pub fn describe(&self) -> String {
        let mut text = format!("{} {}", self.address, self.kind.name);
        let _ = match &self.driver {
            Some(driver) if driver == DRIVER => {
                let by = self.kind.role.describe();
                write!(text, ": bound to {DRIVER}, driven {by}")
            }
            Some(driver) => write!(text, ": bound to {driver}"),
            None => write!(text, ": no driver"),
        };
        text
    }
}
