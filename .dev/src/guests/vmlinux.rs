// SPDX-License-Identifier: Apache-2.0
//! The kernel of guests, expanded. Its package has it compressed, in a file that expands itself when it is
//! booted, which takes a guest several seconds each time.

use super::succeed;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Fields of the header of such a file: how many sectors precede its second part, where in that part the
/// compressed kernel begins, and how long it is. See Linux's `x86/boot.rst`.
const SECTORS: usize = 0x1f1;
const OFFSET: usize = 0x248;
const LENGTH: usize = 0x24c;
const SECTOR: usize = 512;
/// The first bytes of everything that `xz` has compressed.
const XZ: &[u8] = b"\xfd7zXZ\0";
/// Bytes at the end of the compressed kernel that say how long the expanded one is.
const SIZE: usize = 4;

fn vmlinux(place: &Path) -> PathBuf {
    place.join("system/boot/vmlinux")
}

pub fn is_there(place: &Path) -> bool {
    vmlinux(place).is_file()
}

pub fn expand(place: &Path) -> io::Result<()> {
    let system = place.join("system");
    let image = fs::read(system.join("boot").join(format!("vmlinuz-{}", super::kernel(&system)?)))?;
    let unknown = || io::Error::other("the kernel is not compressed by xz");
    let program = compressed(&image).filter(|it| it.starts_with(XZ)).ok_or_else(unknown)?;
    let packed = place.join("vmlinux.xz");
    fs::write(&packed, program)?;
    succeed(Command::new("xz").arg("-df").arg(&packed))?;
    fs::rename(packed.with_extension(""), vmlinux(place))
}

fn compressed(image: &[u8]) -> Option<&[u8]> {
    let number = |at: usize| {
        let bytes = image.get(at..at + 4)?;
        usize::try_from(u32::from_le_bytes(bytes.try_into().ok()?)).ok()
    };
    let part = (usize::from(*image.get(SECTORS)?) + 1) * SECTOR;
    let begin = part + number(OFFSET)?;
    image.get(begin..begin + number(LENGTH)?.checked_sub(SIZE)?)
}
