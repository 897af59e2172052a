// SPDX-License-Identifier: Apache-2.0
//! NTB functions, and what has to be there for PEs to drive them: IOMMU and VFIO.

use super::{Finding, Grade, Machine};
use nix::sys::resource::{Resource, getrlimit};
use nix::unistd::{User, getuid};
use std::fs::OpenOptions;
use tombolo_transports::ntb::port::functions::Function;

const GROUPS: &str = "sys/kernel/iommu_groups";
const VFIO: &str = "dev/vfio/vfio";
const UNGUARDED: &str = "sys/module/vfio/parameters/enable_unsafe_noiommu_mode";

pub fn functions(machine: &Machine) -> Vec<Function> {
    let system = machine.path("sys");
    let mut functions = Function::below(&system);
    functions.extend(Function::engines_below(&system, &functions));
    functions
}

pub fn findings(machine: &Machine) -> Vec<Finding> {
    let functions = functions(machine);
    let needed = functions.iter().any(|function| function.kind.is_port());
    let mut all = ntb(machine, &functions);
    let guarded = functions.iter().any(|function| function.kind.opens_memory());
    all.extend([iommu(machine, needed, guarded), vfio(machine, needed)]);
    all
}

fn ntb(machine: &Machine, functions: &[Function]) -> Vec<Finding> {
    if functions.is_empty() {
        let state = "no device; oshrun --hosts emulates hosts and their links";
        return vec![Finding::good("NTB", state)];
    }
    let user = User::from_uid(getuid()).ok().flatten().map(|user| user.name);
    let user = user.unwrap_or_else(|| getuid().to_string());
    let lockable = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(limit, _)| limit);
    let finding = |function: &Function| {
        let (nodes, system) = (machine.path("dev/vfio"), machine.path("sys"));
        let change = function.remedies_at(&user, &nodes, &system, lockable);
        let change: Vec<&str> = change.iter().map(String::as_str).collect();
        match (change.is_empty(), function.kind.is_port()) {
            (true, _) => Finding::good("NTB", function.describe()),
            (false, true) => {
                let effect = "PEs cannot drive it: the ring has no link through it";
                Finding::new("NTB", Grade::Slow, function.describe(), effect, &change)
            }
            (false, false) => {
                let effect = "the processor makes long puts to neighbours";
                Finding::new("NTB", Grade::Note, function.describe(), effect, &change)
            }
        }
    };
    functions.iter().map(finding).collect()
}

/// `guarded`: some device can be used behind an IOMMU alone.
fn iommu(machine: &Machine, needed: bool, guarded: bool) -> Finding {
    let groups = machine.names(GROUPS).len();
    if groups > 0 {
        return Finding::good("IOMMU", format!("on, {groups} groups of devices"));
    }
    if !needed {
        return Finding::good("IOMMU", "none in use; only NTB devices need it");
    }
    if !guarded && machine.text(UNGUARDED).as_deref() == Some("Y") {
        let effect = "devices reach all memory: for machines whose users are trusted";
        return Finding::new(
            "IOMMU",
            Grade::Note,
            "none in use, done without (noiommu)",
            effect,
            &[],
        );
    }
    let effect = "the kernel does not let a program drive a device";
    let change = [
        "sed -i 's/^GRUB_CMDLINE_LINUX=\"/&intel_iommu=on iommu=pt /' /etc/default/grub && update-grub && reboot   # AMD: on, unless the firmware switches it off",
        "modprobe vfio enable_unsafe_noiommu_mode=1   # or do without",
    ];
    let change = if guarded { &change[..1] } else { &change };
    Finding::new("IOMMU", Grade::Slow, "none in use", effect, change)
}

fn vfio(machine: &Machine, needed: bool) -> Finding {
    let there = machine.path(VFIO).exists();
    if !needed {
        let state = if there { "available" } else { "not loaded" };
        return Finding::good("vfio", format!("{state}; only NTB devices need it"));
    }
    if !there {
        let effect = "PEs cannot drive NTB devices";
        return Finding::new("vfio", Grade::Slow, "not loaded", effect, &["modprobe vfio-pci"]);
    }
    let opened = OpenOptions::new().read(true).write(true).open(machine.path(VFIO));
    match opened {
        Err(why) if machine.is_live() => {
            let effect = "PEs cannot drive NTB devices";
            let change = ["chmod 666 /dev/vfio/vfio   # the groups beside it stay guarded"];
            Finding::new("vfio", Grade::Slow, format!("cannot be opened: {why}"), effect, &change)
        }
        _ => Finding::good("vfio", "available"),
    }
}

#[cfg(test)]
mod tests {
    use super::super::machine::tests::Copy;
    use super::*;

    const AT: &str = "sys/bus/pci/devices/0000:00:10.0";

    fn grades(machine: &Machine) -> Vec<(&'static str, Grade)> {
        findings(machine).iter().map(|finding| (finding.subject, finding.grade)).collect()
    }

    #[test]
    fn a_machine_without_devices_misses_nothing() {
        let copy = Copy::of("without", &[("proc/version", "")]);
        assert!(grades(&copy.machine()).iter().all(|(_, grade)| *grade == Grade::Good));
    }

    #[test]
    fn an_engine_beside_a_bridge_is_told() {
        let engine = "sys/bus/pci/devices/0000:00:11.0";
        let copy = Copy::of(
            "engine",
            &[
                (&format!("{AT}/vendor"), "0x10b5\n"),
                (&format!("{AT}/device"), "0x87b0\n"),
                (&format!("{AT}/numa_node"), "0\n"),
                (&format!("{engine}/vendor"), "0x10b5\n"),
                (&format!("{engine}/device"), "0x87d0\n"),
                (&format!("{engine}/class"), "0x088000\n"),
                (&format!("{engine}/numa_node"), "0\n"),
            ],
        );
        let all = findings(&copy.machine());
        assert_eq!((all[0].grade, all[1].grade), (Grade::Slow, Grade::Note), "{all:?}");
        assert!(all[1].state.contains("DMA channel of a PLX switch"), "{all:?}");
        assert!(all[1].change.iter().any(|line| line == "modprobe vfio-pci"), "{all:?}");
        // Without a bridge nobody needs it.
        copy.write(&format!("{AT}/device"), "0x87d1\n");
        assert!(findings(&copy.machine())[0].state.contains("no device"));
    }

    #[test]
    fn what_a_device_lacks_is_told_with_the_commands() {
        let copy = Copy::of(
            "device",
            &[(&format!("{AT}/vendor"), "0x1af4\n"), (&format!("{AT}/device"), "0x1110\n")],
        );
        let all = findings(&copy.machine());
        assert_eq!(
            grades(&copy.machine()),
            ["NTB", "IOMMU", "vfio"].map(|subject| (subject, Grade::Slow))
        );
        assert!(all[0].change.iter().any(|line| line == "modprobe vfio-pci"), "{all:?}");
        assert!(all[1].change[0].contains("intel_iommu=on"), "{all:?}");
        copy.write(UNGUARDED, "Y\n");
        copy.write(VFIO, "");
        assert_eq!(grades(&copy.machine())[1..], [("IOMMU", Grade::Note), ("vfio", Grade::Good)]);
        copy.write(&format!("{GROUPS}/0/type"), "DMA\n");
        assert_eq!(grades(&copy.machine())[1], ("IOMMU", Grade::Good));
        copy.write(&format!("{AT}/vendor"), "0x1022\n");
        copy.write(&format!("{AT}/device"), "0x145b\n");
        let all = findings(&copy.machine());
        assert!(all[0].grade == Grade::Slow && all[0].state.contains("AMD NTB"), "{all:?}");
        assert!(all[0].change.iter().any(|line| line == "modprobe vfio-pci"), "{all:?}");
    }
}
