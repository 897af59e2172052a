// SPDX-License-Identifier: Apache-2.0
//! The devices of this machine.

use super::card::{Card, text};
use super::choose::DeviceState;
use super::sys::{self, Library};
use std::ffi::c_int;
use std::io;
use std::path::Path;
use std::slice;

/// The devices there are.
pub struct Devices {
    library: &'static Library,
    list: *mut *mut sys::Device,
    count: usize,
}

// SAFETY: the list may be read from any thread.
unsafe impl Send for Devices {}

impl Devices {
    /// Asks the library.
    pub fn list(library: &'static Library) -> Result<Devices, String> {
        let mut count: c_int = 0;
        // SAFETY: `count` is a place for the result.
        let list = unsafe { (library.get_device_list)(&raw mut count) };
        match (list.is_null(), io::Error::last_os_error()) {
            // What the kernel says where no driver is loaded.
            (true, error) if error.raw_os_error() == Some(libc::ENOSYS) => {
                Ok(Devices { library, list, count: 0 })
            }
            (true, error) => Err(format!("ibv_get_device_list: {error}")),
            (false, _) => Ok(Devices { library, list, count: count.max(0) as usize }),
        }
    }

    fn all(&self) -> &[*mut sys::Device] {
        match self.count {
            0 => &[],
            // SAFETY: so many entries, until the list is freed.
            count => unsafe { slice::from_raw_parts(self.list, count) },
        }
    }

    /// What is to be known of each.
    pub fn states(&self) -> Vec<DeviceState> {
        let state = |device: &*mut sys::Device| {
            // SAFETY: an entry of the list.
            let (name, sysfs, transport) = unsafe {
                let transport = (**device).transport_type;
                (text(&(**device).name), text(&(**device).ibdev_path), transport)
            };
            let ports = Card::open(self.library, *device).and_then(|card| card.ports());
            let device = Path::new(&sysfs).join("device");
            // Cards have a place on a bus. Without sysfs less is relied on.
            let is_software = !device.exists();
            let is_copied = is_software || is_copied(&device);
            DeviceState { name, is_software, is_copied, transport, ports }
        };
        self.all().iter().map(state).collect()
    }

    /// Opens a device by its place in the list.
    pub fn open(&self, index: usize) -> Result<Card, String> {
        Card::open(self.library, self.all()[index])
    }
}

/// Whether the driver of a card leaves the copying of what arrives to the processor: Omni-Path and its predecessors.
fn is_copied(device: &Path) -> bool {
    const DRIVERS: [&str; 3] = ["hfi1", "ib_qib", "ib_ipath"];
    let driver = std::fs::read_link(device.join("driver"));
    driver.is_ok_and(|driver| DRIVERS.iter().any(|name| driver.ends_with(name)))
}

impl Drop for Devices {
    fn drop(&mut self) {
        if !self.list.is_null() {
            // SAFETY: open devices stay when the list goes.
            unsafe { (self.library.free_device_list)(self.list) };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::is_copied;
    use std::fs;
    use std::os::unix::fs::symlink;

    #[test]
    fn cards_are_told_apart_by_their_drivers() {
        let folder = std::env::temp_dir().join(format!("tombolo-drivers-{}", std::process::id()));
        for (driver, copied) in [("hfi1", true), ("ib_qib", true), ("mlx5_core", false)] {
            let device = folder.join(driver);
            fs::create_dir_all(&device).unwrap();
            symlink(format!("../../../bus/pci/drivers/{driver}"), device.join("driver")).unwrap();
            assert_eq!(is_copied(&device), copied, "{driver}");
        }
        assert!(!is_copied(&folder.join("none")));
        fs::remove_dir_all(folder).unwrap();
    }
}
