// SPDX-License-Identifier: Apache-2.0
//! PCI functions driven from this process, through Linux's VFIO.
//!
//! A function that is bound to `vfio-pci` belongs to whoever may open `/dev/vfio/GROUP`: no root is
//! needed once the owner of that file is set. Behind an IOMMU the device reaches only memory that was
//! mapped for it; without one (groups called `noiommu-N`) it must not be trusted with any.
//!
//! Everything here belongs to descriptors of this process. However the process ends, the kernel
//! unmaps, disables interrupts, resets the function where it can be reset, and gives it back.
//!
//! The crate `vfio-ioctls` is made for virtual machine monitors: it knows no group without an IOMMU,
//! opens a container for itself, and brings the memory model of its users. What is needed here is
//! a few calls over the definitions of `vfio-bindings`.

mod addresses;
mod device;
pub mod order;
#[cfg(feature = "testing")]
pub mod trial;

#[cfg(test)]
pub use device::lead_nowhere;
pub use device::{Bar, Device, Trained, express};

use super::functions::Function;
use super::{PortError, Result};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::fd::{AsRawFd, RawFd};
use std::path::{Path, PathBuf};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use vfio_bindings::bindings::vfio::*;

use addresses::{Addresses, Ranges, ranges_in};

/// `VFIO_API_VERSION` of the kernel's header.
const API_VERSION: i32 = 0;

const GET_API_VERSION: u32 = 0;
const CHECK_EXTENSION: u32 = 1;
const SET_IOMMU: u32 = 2;
const GROUP_GET_STATUS: u32 = 3;
const GROUP_SET_CONTAINER: u32 = 4;
const GROUP_GET_DEVICE_FD: u32 = 6;
const IOMMU_GET_INFO: u32 = 12;
const MAP_DMA: u32 = 13;
const UNMAP_DMA: u32 = 14;

/// Bytes of the longest answer about an IOMMU that is asked for: some thousand ranges of addresses.
const INFO_LIMIT: usize = 64 << 10;

/// The address space that some functions share, and the groups they are in.
#[derive(Debug)]
struct Container {
    /// The descriptors keep the functions ours.
    file: File,
    groups: Mutex<Vec<(u32, File)>>,
    /// Whether an IOMMU guards memory from the functions.
    guarded: bool,
    addresses: Mutex<Addresses>,
}

/// Opens functions for this process alone. They share one address space.
///
/// Errors say in words what keeps a function from being used.
pub fn open(functions: &[&Function]) -> Result<Vec<Device>> {
    let container = open_file(Path::new("/dev/vfio/vfio"))?;
    let version = call(container.as_raw_fd(), GET_API_VERSION, 0);
    if !matches!(version, Ok(API_VERSION)) {
        return Err(PortError::Invalid(format!(
            "VFIO speaks version {version:?}, not {API_VERSION}"
        )));
    }
    let mut groups: Vec<(u32, File)> = Vec::new();
    let mut iommu = true;
    for function in functions {
        let number = group_of(function)?;
        if groups.iter().any(|(known, _)| *known == number) {
            continue;
        }
        let (group, behind_iommu) = open_group(&container, number, function)?;
        iommu &= behind_iommu;
        groups.push((number, group));
    }
    let kind = kind_of_iommu(&container, iommu)?;
    call(container.as_raw_fd(), SET_IOMMU, kind.into())
        .map_err(|e| PortError::system("setting the kind of IOMMU", e))?;
    let ranges = if iommu { ranges_of(&container) } else { None };
    let container = Arc::new(Container {
        file: container,
        groups: Mutex::new(groups),
        guarded: iommu,
        addresses: Mutex::new(Addresses::new(ranges)),
    });
    functions.iter().map(|function| container.device(function)).collect()
}

/// Opens another function in the address space of `device`: both see the same memory there.
pub fn join(device: &Device, function: &Function) -> Result<Device> {
    let container = device.container()?;
    let number = group_of(function)?;
    let mut groups = container.groups();
    if !groups.iter().any(|(known, _)| *known == number) {
        let (group, behind_iommu) = open_group(&container.file, number, function)?;
        if behind_iommu != container.guarded {
            return Err(PortError::Unsupported("IOMMU before all functions"));
        }
        groups.push((number, group));
    }
    drop(groups);
    container.device(function)
}

/// Opens a group and puts it into a container; says whether an IOMMU guards it.
fn open_group(container: &File, number: u32, function: &Function) -> Result<(File, bool)> {
    let (path, behind_iommu) = path_of(number);
    let group = open_file(&path)?;
    check_viable(&group, function)?;
    let fd = container.as_raw_fd();
    call(group.as_raw_fd(), GROUP_SET_CONTAINER, (&raw const fd) as libc::c_ulong)
        .map_err(|e| refused(&path, "joining its address space", e))?;
    Ok((group, behind_iommu))
}

impl Container {
    fn groups(&self) -> MutexGuard<'_, Vec<(u32, File)>> {
        self.groups.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn reserve(&self, len: u64, align: u64) -> Result<u64> {
        let mut addresses = self.addresses.lock().unwrap_or_else(PoisonError::into_inner);
        addresses.reserve(len, align).ok_or_else(|| {
            PortError::Exhausted(format!(
                "no {len} addresses for devices are left that the IOMMU has: smaller windows need fewer"
            ))
        })
    }

    /// # Safety
    /// The memory stays mapped until `unmap`; the functions may write it at any time.
    unsafe fn map(&self, address: u64, base: *mut u8, len: usize) -> Result<()> {
        if !self.guarded {
            return Err(PortError::Unsupported(
                "IOMMU before it: memory of a program cannot be put behind its windows",
            ));
        }
        let mut map = vfio_iommu_type1_dma_map {
            argsz: size_of::<vfio_iommu_type1_dma_map>() as u32,
            flags: VFIO_DMA_MAP_FLAG_READ | VFIO_DMA_MAP_FLAG_WRITE,
            vaddr: base.addr() as u64,
            iova: address,
            size: len as u64,
        };
        let done = call(self.file.as_raw_fd(), MAP_DMA, (&raw mut map) as libc::c_ulong);
        done.map(|_| ()).map_err(|error| {
            let hint = match error.raw_os_error() {
                Some(libc::ENOMEM) => {
                    ": the limit of locked memory is too low (ulimit -l unlimited, or memlock in \
                     /etc/security/limits.conf); the first PE of a host locks the memory of all"
                }
                Some(libc::EINVAL) => ": the IOMMU has no such addresses",
                Some(libc::EFAULT) => ": this kernel maps no such memory for devices",
                _ => "",
            };
            PortError::system(format!("opening {len} bytes of memory to a device{hint}"), error)
        })
    }

    fn unmap(&self, address: u64, len: usize) -> Result<()> {
        let mut unmap = vfio_iommu_type1_dma_unmap {
            argsz: size_of::<vfio_iommu_type1_dma_unmap>() as u32,
            flags: 0,
            iova: address,
            size: len as u64,
            data: Default::default(),
        };
        call(self.file.as_raw_fd(), UNMAP_DMA, (&raw mut unmap) as libc::c_ulong)
            .map(|_| ())
            .map_err(|e| PortError::system("closing memory to a device", e))
    }

    fn device(self: &Arc<Container>, function: &Function) -> Result<Device> {
        let number = group_of(function)?;
        let groups = self.groups();
        let group = groups.iter().find(|(known, _)| *known == number);
        let (_, group) = group.ok_or(PortError::Unsupported("group that was opened"))?;
        let name = std::ffi::CString::new(function.address.as_str())
            .map_err(|_| PortError::Invalid("a PCI address with a zero byte".into()))?;
        let fd = call(group.as_raw_fd(), GROUP_GET_DEVICE_FD, name.as_ptr() as libc::c_ulong)
            .map_err(|e| PortError::system(format!("opening {}", function.address), e))?;
        // SAFETY: a descriptor that the kernel has just made for this process.
        unsafe { Device::new(fd, function.address.clone(), self.clone()) }
    }
}

fn group_of(function: &Function) -> Result<u32> {
    function.group.ok_or_else(|| {
        PortError::Invalid(format!("{} is in no IOMMU group: see oshinfo", function.address))
    })
}

/// The file of a group, and whether an IOMMU guards it.
fn path_of(group: u32) -> (PathBuf, bool) {
    let without = PathBuf::from(format!("/dev/vfio/noiommu-{group}"));
    match without.exists() {
        true => (without, false),
        false => (PathBuf::from(format!("/dev/vfio/{group}")), true),
    }
}

fn kind_of_iommu(container: &File, iommu: bool) -> Result<u32> {
    let kinds: &[u32] = match iommu {
        true => &[VFIO_TYPE1v2_IOMMU, VFIO_TYPE1_IOMMU],
        false => &[VFIO_NOIOMMU_IOMMU],
    };
    let has =
        |kind: &u32| matches!(call(container.as_raw_fd(), CHECK_EXTENSION, (*kind).into()), Ok(1));
    kinds.iter().copied().find(has).ok_or_else(|| {
        PortError::Invalid("VFIO has no driver for this IOMMU: load vfio_iommu_type1".into())
    })
}

/// Asks which addresses the IOMMU has. Kernels before 5.4 do not tell.
fn ranges_of(container: &File) -> Ranges {
    // Of 8 bytes each, as the kernel's structures are aligned.
    let mut answer = vec![0u64; size_of::<vfio_iommu_type1_info>() / 8];
    loop {
        let bytes = size_of_val(&*answer);
        let info = answer.as_mut_ptr().cast::<vfio_iommu_type1_info>();
        // SAFETY: the answer is at least as large, and aligned; any bits are such a structure. The kernel
        // writes as much as `argsz` says, and then says there how much there is.
        let there = unsafe {
            (*info).argsz = bytes as u32;
            call(container.as_raw_fd(), IOMMU_GET_INFO, info as libc::c_ulong).ok()?;
            (*info).argsz as usize
        };
        if there <= bytes || there > INFO_LIMIT {
            let bytes: Vec<u8> = answer.iter().flat_map(|word| word.to_ne_bytes()).collect();
            return ranges_in(&bytes);
        }
        answer = vec![0; there.div_ceil(8)];
    }
}

fn check_viable(group: &File, function: &Function) -> Result<()> {
    let mut status = vfio_group_status { argsz: size_of::<vfio_group_status>() as u32, flags: 0 };
    call(group.as_raw_fd(), GROUP_GET_STATUS, (&raw mut status) as libc::c_ulong)
        .map_err(|e| PortError::system("asking for the state of a VFIO group", e))?;
    match status.flags & VFIO_GROUP_FLAGS_VIABLE {
        0 => Err(PortError::Invalid(format!(
            "the IOMMU group of {} holds functions that other drivers use: see oshinfo",
            function.address
        ))),
        _ => Ok(()),
    }
}

fn open_file(path: &Path) -> Result<File> {
    let file = OpenOptions::new().read(true).write(true).open(path);
    file.map_err(|error| refused(path, "opening it", error))
}

fn refused(path: &Path, what: &str, error: io::Error) -> PortError {
    let hint = match error.raw_os_error() {
        Some(libc::EBUSY) => "another process uses it: ",
        Some(libc::EACCES | libc::EPERM) => "this user may not: ",
        _ => "",
    };
    PortError::system(format!("{hint}{}: {what}", path.display()), error)
}

/// A call of VFIO. `argument` is a number or the address of what the call takes.
fn call(fd: RawFd, number: u32, argument: libc::c_ulong) -> io::Result<i32> {
    // As the kernel's `_IO` makes it.
    let request = libc::c_ulong::from(VFIO_TYPE) << 8 | libc::c_ulong::from(VFIO_BASE + number);
    // SAFETY: callers pass what `number` expects; the kernel checks descriptors, numbers and, by
    // their `argsz`, structures.
    match unsafe { libc::ioctl(fd, request, argument) } {
        -1 => Err(io::Error::last_os_error()),
        answer => Ok(answer),
    }
}
