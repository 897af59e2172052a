// SPDX-License-Identifier: Apache-2.0
//! The kernel of guests as the program that it is. Its package has it compressed, in a file that
//! expands itself when it is booted: that takes a guest twice as long as all that the kernel does
//! then until it runs a shell.

use super::succeed;
use std::fs;
use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Where the header of such a file says how many sectors precede the part with the program, where in
/// that part the compressed program begins, and how long it is. See Linux's `x86/boot.rst`.
const SECTORS: usize = 0x1f1;
const OFFSET: usize = 0x248;
const LENGTH: usize = 0x24c;
const SECTOR: usize = 512;
/// How what is compressed by `xz` begins.
const XZ: &[u8] = b"\xfd7zXZ\0";
/// After it is the size of the program.
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
