// SPDX-License-Identifier: Apache-2.0

use super::*;
use nix::sys::resource::RLIM_INFINITY;
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
    assert_eq!(all[0].kind.role, Role::Port(PortName::Ivshmem));
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
    assert!(told("ada").contains(&format!("echo {AT} > /sys/bus/pci/devices/{AT}/driver/unbind")));
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
        assert_eq!(function.kind.role, Role::Port(PortName::Epf));
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
    assert_eq!(Function::below(&machine.0)[0].kind.role, Role::Port(PortName::Switchtec));
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
        assert!(remedies.contains("driver/unbind") && remedies.contains("memlock"), "{remedies}");
        machine.bind(AT, DRIVER);
        let driven = format!("driven by port {port}");
        assert!(told().describe().ends_with(&driven), "{}", told().describe());
    }
}
