// SPDX-License-Identifier: Apache-2.0
//! The commands that make a function usable.

use super::{DRIVER, Function, SYSTEM};
use nix::sys::resource::{RLIM_INFINITY, Resource, getrlimit};
use std::fs;
use std::path::Path;

impl Function {
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
        let mut lines = Vec::new();
        let address = &self.address;
        let unguarded = system.join("module/vfio/parameters/enable_unsafe_noiommu_mode");
        if self.group.is_none() {
            lines.push(
                "# no IOMMU: switch it on in the firmware (VT-d, AMD-Vi), and for Intel boot with intel_iommu=on \
                 (in a virtual machine, give it one: -device intel-iommu,intremap=on)"
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
