// SPDX-License-Identifier: Apache-2.0
//! PCI functions of NTB devices on this machine: which there are, who has them, and what would make
//! them usable.

use super::engine::nearest::Place;
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use std::fmt::Write;
use std::fs;
use std::path::Path;

/// The driver of the kernel through which this process can use a function.
pub const DRIVER: &str = "vfio-pci";
const SYSTEM: &str = "/sys";
/// Where the kernel lists all functions in one file: "0008 1af41110 ...", tabs between.
const LIST: &str = "/proc/bus/pci/devices";

/// A kind of NTB device.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Kind {
    /// What people call it.
    pub name: &'static str,
    vendor: u16,
    devices: &'static [u16],
    /// The class, where functions of other classes have the same numbers.
    class: Option<u32>,
    /// The name of the port that drives it, if this build has one.
    pub port: Option<&'static str>,
    /// The name of what drives it as a DMA engine, which serves the ports beside it. It is no port then.
    pub engine: Option<&'static str>,
}

impl Kind {
    /// The device of QEMU.
    pub const IVSHMEM: Kind = Kind {
        name: "shared memory of virtual machines (ivshmem)",
        vendor: 0x1af4,
        devices: &[0x1110],
        class: None,
        port: Some("ivshmem"),
        engine: None,
    };

    fn of(kinds: &[Kind], vendor: u16, device: u16) -> Option<Kind> {
        let is = |kind: &&Kind| kind.vendor == vendor && kind.devices.contains(&device);
        kinds.iter().find(is).copied()
    }

    /// Whether it reaches memory of the program: that takes an IOMMU, and memory that the kernel locks.
    pub fn opens_memory(&self) -> bool {
        self.port.is_some_and(|port| port != "ivshmem") || self.engine.is_some()
    }

    /// Whether its port can have DMA engines beside it.
    pub fn uses_engines(&self) -> bool {
        self.port.is_some_and(|port| ["plx", "intel", "amd", "epf"].contains(&port))
    }

    /// Whether this build drives it.
    pub fn is_driven(&self) -> bool {
        self.port.is_some() || self.engine.is_some()
    }
}

/// All kinds that are told apart, driven or not.
const KINDS: &[Kind] = &[
    Kind::IVSHMEM,
    Kind {
        name: "Intel Xeon NTB, generation 1",
        vendor: 0x8086,
        devices: &[0x3725, 0x3c0d, 0x0e0d, 0x2f0d, 0x6f0d],
        class: None,
        port: Some("intel"),
        engine: None,
    },
    Kind {
        name: "Intel Xeon NTB, generation 3",
        vendor: 0x8086,
        devices: &[0x201c],
        class: None,
        port: Some("intel"),
        engine: None,
    },
    Kind {
        name: "Intel Xeon NTB, generation 4",
        vendor: 0x8086,
        devices: &[0x347e],
        class: None,
        port: Some("intel"),
        engine: None,
    },
    Kind {
        name: "PLX PEX87xx NTB",
        vendor: 0x10b5,
        devices: &[0x87a0, 0x87a1, 0x87b0, 0x87b1],
        class: None,
        port: Some("plx"),
        engine: None,
    },
    Kind {
        name: "AMD NTB",
        vendor: 0x1022,
        devices: &[0x145b, 0x148b, 0x14c0, 0x14c3, 0x155a],
        class: None,
        port: Some("amd"),
        engine: None,
    },
    Kind {
        name: "Switchtec NTB",
        vendor: 0x11f8,
        devices: &[
            0x8531, 0x8532, 0x8533, 0x8534, 0x8535, 0x8536, 0x8541, 0x8542, 0x8543, 0x8544, 0x8545,
            0x8546, 0x8551, 0x8552, 0x8553, 0x8554, 0x8555, 0x8556, 0x8561, 0x8562, 0x8563, 0x8564,
            0x8565, 0x8566, 0x8571, 0x8572, 0x8573, 0x8574, 0x8575, 0x8576,
        ],
        // Those that manage a switch are another one.
        class: Some(0x06_8000),
        port: Some("switchtec"),
        engine: None,
    },
    Kind {
        name: "PCI endpoint function as NTB",
        vendor: 0x1957,
        devices: &[0x0809],
        class: None,
        port: Some("epf"),
        engine: None,
    },
];

/// DMA engines that write through bridges.
const ENGINES: &[Kind] = &[
    Kind {
        name: "DMA channel of a PLX switch",
        vendor: 0x10b5,
        devices: &[0x87d0],
        // As the kernel's driver has it.
        class: Some(0x08_8000),
        port: None,
        engine: Some("plx"),
    },
    Kind {
        name: "DMA channel of an Intel Xeon (I/OAT)",
        vendor: 0x8086,
        devices: &[
            0x3710, 0x3711, 0x3712, 0x3713, 0x3714, 0x3715, 0x3716, 0x3717, 0x3718, 0x3719, 0x3c20,
            0x3c21, 0x3c22, 0x3c23, 0x3c24, 0x3c25, 0x3c26, 0x3c27, 0x3c2e, 0x3c2f, 0x0e20, 0x0e21,
            0x0e22, 0x0e23, 0x0e24, 0x0e25, 0x0e26, 0x0e27, 0x0e2e, 0x0e2f, 0x2f20, 0x2f21, 0x2f22,
            0x2f23, 0x2f24, 0x2f25, 0x2f26, 0x2f27, 0x2f2e, 0x2f2f, 0x6f20, 0x6f21, 0x6f22, 0x6f23,
            0x6f24, 0x6f25, 0x6f26, 0x6f27, 0x6f2e, 0x6f2f, 0x2021, 0x0b00,
        ],
        class: None,
        port: None,
        engine: Some("ioat"),
    },
];

/// Whether the kernel's list of functions has one of an NTB device, or a line that cannot be read.
fn lists_any(list: &str) -> bool {
    list.lines().any(|line| {
        let number = line.split_whitespace().nth(1).and_then(|id| u32::from_str_radix(id, 16).ok());
        number.is_none_or(|id| Kind::of(KINDS, (id >> 16) as u16, id as u16).is_some())
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
        Function::of_kinds(KINDS, system)
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

    /// Whether this build can drive it and the kernel's driver for that has it.
    pub fn is_bound(&self) -> bool {
        self.kind.is_driven() && self.driver.as_deref() == Some(DRIVER)
    }

    /// What it is, and who has it.
    pub fn describe(&self) -> String {
        let mut text = format!("{} {}", self.address, self.kind.name);
        let driven = match self.kind {
            Kind { port: Some(port), .. } => Some(format!("driven by port {port}")),
            Kind { engine: Some(engine), .. } => Some(format!("driven as DMA engine {engine}")),
            _ => None,
        };
        match (&self.driver, driven) {
            (_, None) => text += ": this build has no driver for it",
            (Some(driver), Some(driven)) if driver == DRIVER => {
                let _ = write!(text, ": bound to {DRIVER}, {driven}");
            }
            (Some(driver), _) => {
                let _ = write!(text, ": bound to {driver}");
            }
            (None, _) => text += ": no driver",
        }
        text
    }

    /// Commands that make it usable for the user `user`, with the reason of each as a comment;
    /// nothing when it can be used as it is.
    pub fn remedies(&self, user: &str) -> Vec<String> {
        let lockable = getrlimit(Resource::RLIMIT_MEMLOCK).map_or(0, |(limit, _)| limit);
        self.remedies_at(user, Path::new("/dev/vfio"), Path::new(SYSTEM), lockable)
    }

    /// The same for a machine whose `/dev/vfio` and `/sys` are these, and whose user may lock so many
    /// bytes of memory.
    pub fn remedies_at(
        &self,
        user: &str,
        nodes: &Path,
        system: &Path,
        lockable: u64,
    ) -> Vec<String> {
        if !self.kind.is_driven() {
            return vec![];
        }
        let mut lines = Vec::new();
        let address = &self.address;
        let unguarded = system.join("module/vfio/parameters/enable_unsafe_noiommu_mode");
        if self.group.is_none() {
            lines.push(
                "# no IOMMU: boot with intel_iommu=on or amd_iommu=on (in a virtual machine, give it \
                 one: -device intel-iommu,intremap=on)"
                    .to_owned(),
            );
            if unguarded.exists() && !self.kind.opens_memory() {
                lines.push(format!(
                    "echo 1 > {}   # or do without, where the device is trusted",
                    unguarded.display()
                ));
            }
        }
        for other in &self.in_the_way {
            lines.push(format!("# {other} is in the same IOMMU group: unbind it as well"));
        }
        if self.driver.as_deref() != Some(DRIVER) {
            lines.push(format!("modprobe {DRIVER}"));
            let place = format!("/sys/bus/pci/devices/{address}");
            lines.push(format!("echo {DRIVER} > {place}/driver_override"));
            if self.driver.is_some() {
                lines.push(format!("echo {address} > {place}/driver/unbind"));
            }
            lines.push(format!("echo {address} > /sys/bus/pci/drivers_probe"));
        }
        if let Some(group) = self.group {
            let node = [format!("noiommu-{group}"), group.to_string()]
                .map(|name| nodes.join(name))
                .into_iter()
                .find(|node| node.exists())
                .unwrap_or_else(|| nodes.join(group.to_string()));
            let opened = fs::OpenOptions::new().read(true).write(true).open(&node);
            let refused = opened.is_err_and(|e| e.kind() == std::io::ErrorKind::PermissionDenied);
            if refused || (!node.exists() && user != "root") {
                lines.push(format!("chown {user} {}", node.display()));
            }
        }
        if self.kind.opens_memory() && user != "root" && lockable != RLIM_INFINITY {
            lines.push(format!(
                "echo '{user} - memlock unlimited' >> /etc/security/limits.conf   # log in again: heap \
                 and static data are locked for the device; {} KiB may be",
                lockable >> 10
            ));
        }
        lines
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;
    use std::path::PathBuf;

    /// A machine with one function, in a directory that goes away with the value.
    struct Machine(PathBuf);

    impl Machine {
        fn new(name: &str, address: &str, ids: [&str; 2]) -> Machine {
            let own = format!("tombolo-functions-{}-{name}", std::process::id());
            let machine = Machine(std::env::temp_dir().join(own));
            let place = machine.place(address);
            fs::create_dir_all(&place).unwrap();
            fs::write(place.join("vendor"), ids[0]).unwrap();
            fs::write(place.join("device"), ids[1]).unwrap();
            machine
        }

        fn place(&self, address: &str) -> PathBuf {
            self.0.join("bus/pci/devices").join(address)
        }

        fn bind(&self, address: &str, driver: &str) {
            let _ = fs::remove_file(self.place(address).join("driver"));
            symlink(format!("../drivers/{driver}"), self.place(address).join("driver")).unwrap();
        }

        fn group(&self, addresses: &[&str]) {
            let group = self.0.join("kernel/iommu_groups/7");
            fs::create_dir_all(group.join("devices")).unwrap();
            for address in addresses {
                fs::create_dir_all(self.place(address)).unwrap();
                symlink(&group, self.place(address).join("iommu_group")).unwrap();
                symlink(self.place(address), group.join("devices").join(address)).unwrap();
            }
        }
    }

    impl Drop for Machine {
        fn drop(&mut self) {
            let _ = fs::remove_dir_all(&self.0);
        }
    }

    const AT: &str = "0000:00:10.0";

    #[test]
    fn the_kernels_list_tells_whether_there_is_any() {
        assert!(!lists_any("0000\t80860d57\t0\n0008\t1af41045\tb\t4000000004\n"));
        assert!(lists_any("0000\t80860d57\t0\n0a08\t10b587b0\tb\t4000000004\n"));
        assert!(lists_any("0000\t80860d57\t0\nwhat is this\n"), "then the folders are read");
    }

    #[test]
    fn functions_are_known_by_vendor_and_device() {
        let machine = Machine::new("known", AT, ["0x1af4\n", "0x1110\n"]);
        let all = Function::below(&machine.0);
        assert_eq!((all.len(), all[0].address.as_str()), (1, AT));
        assert_eq!(all[0].kind.port, Some("ivshmem"));
        assert!(!all[0].is_bound());
        fs::write(machine.place(AT).join("device"), "0x1041\n").unwrap();
        assert_eq!(Function::below(&machine.0), []);
        assert_eq!(Function::below(&machine.0.join("nowhere")), []);
    }

    #[test]
    fn remedies_end_when_nothing_is_in_the_way() {
        let machine = Machine::new("remedies", AT, ["0x1af4\n", "0x1110\n"]);
        let nodes = machine.0.join("nodes");
        let told = |user: &str| {
            let function = Function::below(&machine.0).remove(0);
            function.remedies_at(user, &nodes, &machine.0, 0).join("\n")
        };
        assert!(told("ada").contains("intel_iommu=on"), "{}", told("ada"));
        machine.group(&[AT, "0000:00:10.1"]);
        machine.bind("0000:00:10.1", "e1000e");
        let said = told("ada");
        assert!(said.contains("0000:00:10.1 (e1000e)") && !said.contains("intel_iommu"), "{said}");
        assert!(said.contains("modprobe vfio-pci\n") && said.contains("drivers_probe"), "{said}");
        assert!(said.contains("chown ada") && !said.contains("unbind\n"), "{said}");
        machine.bind(AT, "uio");
        assert!(
            told("ada").contains(&format!("echo {AT} > /sys/bus/pci/devices/{AT}/driver/unbind"))
        );
        machine.bind(AT, DRIVER);
        machine.bind("0000:00:10.1", DRIVER);
        fs::create_dir_all(&nodes).unwrap();
        fs::write(nodes.join("7"), "").unwrap();
        assert_eq!(told("ada"), "");
        assert!(Function::below(&machine.0)[0].is_bound());
    }

    #[test]
    fn a_bridge_needs_an_iommu_and_locked_memory() {
        let machine = Machine::new("bridge", AT, ["0x1957\n", "0x0809\n"]);
        let unguarded = machine.0.join("module/vfio/parameters");
        fs::create_dir_all(&unguarded).unwrap();
        fs::write(unguarded.join("enable_unsafe_noiommu_mode"), "N").unwrap();
        let told = |user: &str, lockable: u64| {
            let function = Function::below(&machine.0).remove(0);
            assert_eq!(function.kind.port, Some("epf"));
            function.remedies_at(user, &machine.0, &machine.0, lockable).join("\n")
        };
        let said = told("ada", 64 << 10);
        assert!(said.contains("intel_iommu=on") && !said.contains("do without"), "{said}");
        assert!(said.contains("'ada - memlock unlimited'") && said.contains("64 KiB"), "{said}");
        assert!(!told("ada", RLIM_INFINITY).contains("memlock"));
        assert!(!told("root", 0).contains("memlock"), "it may lock all that there is");
    }

    #[test]
    fn functions_that_manage_a_switch_are_none_of_its_bridges() {
        let machine = Machine::new("switch", AT, ["0x11f8\n", "0x8533\n"]);
        let class = machine.place(AT).join("class");
        assert_eq!(Function::below(&machine.0), []);
        fs::write(&class, "0x058000\n").unwrap();
        assert_eq!(Function::below(&machine.0), []);
        fs::write(&class, "0x068000\n").unwrap();
        assert_eq!(Function::below(&machine.0)[0].kind.port, Some("switchtec"));
    }

    #[test]
    fn engines_are_found_beside_ports_that_use_them() {
        let at = "0000:00:11.0";
        let machine = Machine::new("engines", AT, ["0x10b5\n", "0x87b0\n"]);
        fs::create_dir_all(machine.place(at)).unwrap();
        let ids = [("vendor", "0x10b5\n"), ("device", "0x87d0\n"), ("class", "0x088000\n")];
        ids.iter().for_each(|(name, id)| fs::write(machine.place(at).join(name), id).unwrap());
        let ports = Function::below(&machine.0);
        assert_eq!(ports.len(), 1, "an engine is no port");
        let engines = || Function::engines_below(&machine.0, &ports);
        assert_eq!(engines(), [], "nothing says that it is near");
        for address in [AT, at] {
            fs::write(machine.place(address).join("numa_node"), "1\n").unwrap();
        }
        assert_eq!(engines()[0].address, at);
        assert_eq!(engines()[0].requester(), Some(0x0088));
        assert!(!engines()[0].is_bound());
        let told = engines()[0].remedies_at("ada", &machine.0, &machine.0, 0).join("\n");
        assert!(told.contains("modprobe vfio-pci") && told.contains("memlock"), "{told}");
        machine.bind(at, DRIVER);
        assert!(engines()[0].is_bound());
        let told = engines()[0].describe();
        assert!(told.ends_with("driven as DMA engine plx"), "{told}");
        fs::write(machine.place(at).join("class"), "0x060400\n").unwrap();
        assert_eq!(engines(), [], "another function of the chip");
        let mut ports = Function::below(&machine.0);
        ports[0].kind = Kind::IVSHMEM;
        assert_eq!(Function::engines_below(&machine.0, &ports), []);
    }

    #[test]
    fn the_number_of_a_requester_is_in_its_address() {
        let number = |address: &str| {
            let function = Function {
                address: address.into(),
                kind: Kind::IVSHMEM,
                driver: None,
                group: None,
                in_the_way: vec![],
            };
            function.requester()
        };
        assert_eq!(number("0000:3b:1f.7"), Some(0x3bff));
        for address in ["3b:1f.7", "0000:3b:20.0", "0000:3b:00.8", "0000:100:00.0", "0000:00"] {
            assert_eq!(number(address), None, "{address}");
        }
    }

    #[test]
    fn a_kind_without_a_driver_is_told_and_left_alone() {
        let machine = Machine::new("others", AT, ["0x8086\n", "0x201c\n"]);
        let mut function = Function::below(&machine.0).remove(0);
        function.kind.port = None;
        assert!(function.describe().ends_with("no driver for it"), "{}", function.describe());
        assert_eq!(function.remedies_at("ada", Path::new("/"), &machine.0, 0), [""; 0]);
    }

    #[test]
    fn bridges_of_processors_are_told_and_made_usable() {
        let amd = [0x145b, 0x148b, 0x14c0, 0x14c3, 0x155a].map(|id| ("amd", 0x1022, id));
        let intel = [0x3725, 0x3c0d, 0x0e0d, 0x2f0d, 0x6f0d, 0x201c, 0x347e];
        for (port, vendor, device) in amd.into_iter().chain(intel.map(|id| ("intel", 0x8086, id))) {
            let ids = [format!("{vendor:#06x}\n"), format!("{device:#06x}\n")];
            let machine = Machine::new("processors", AT, ids.each_ref().map(String::as_str));
            machine.group(&[AT]);
            machine.bind(AT, "ntb_hw");
            let told = || Function::below(&machine.0).remove(0);
            let remedies = told().remedies_at("ada", Path::new("/"), &machine.0, 0).join("\n");
            assert!(
                remedies.contains("driver/unbind") && remedies.contains("memlock"),
                "{remedies}"
            );
            machine.bind(AT, DRIVER);
            let driven = format!("driven by port {port}");
            assert!(told().describe().ends_with(&driven), "{}", told().describe());
        }
    }
}
