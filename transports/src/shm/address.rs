// SPDX-License-Identifier: Apache-2.0
//! What PEs tell each other of their segments: which file they lie in, and where.

use std::io;
use std::os::fd::OwnedFd;
use tombolo_core::transport::SegmentKind;

/// Bytes of a segment's description, after its kind.
const EXTENT: usize = 32;
const KINDS: usize = SegmentKind::ALL.len();

/// A segment in a memory file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Extent {
    /// Equal for two processes of a host if they mean the same file.
    pub file: u64,
    /// Where it begins.
    pub offset: u64,
    /// Its length in bytes.
    pub len: u64,
    /// Its layout.
    pub layout: u64,
}

impl Extent {
    /// Where it ends. To be asked of those that lie within their file.
    pub fn end(&self) -> usize {
        (self.offset + self.len) as usize
    }

    /// Whether it can be mapped from a file of `size` bytes.
    pub fn lies_within(&self, size: u64) -> bool {
        let end = self.offset.checked_add(self.len);
        self.offset.is_multiple_of(4096) && end.is_some_and(|end| end <= size)
    }
}

/// What tells a memory file from all others of this machine, and its size.
pub fn look_at(file: &OwnedFd) -> io::Result<(u64, u64)> {
    let found = nix::sys::stat::fstat(file)?;
    // Memory files are all on one device.
    Ok((found.st_ino, found.st_size as u64))
}

/// The address of a PE with these segments, by kind.
pub fn bytes(extents: &[Option<Extent>; KINDS]) -> Vec<u8> {
    let mut bytes = Vec::new();
    for (kind, extent) in SegmentKind::ALL.into_iter().zip(extents) {
        let Some(Extent { file, offset, len, layout }) = extent else { continue };
        bytes.push(kind as u8);
        for field in [file, offset, len, layout] {
            bytes.extend_from_slice(&field.to_le_bytes());
        }
    }
    bytes
}

/// Reads an address; none if it is no such thing.
pub fn parse(mut bytes: &[u8]) -> Option<[Option<Extent>; KINDS]> {
    let mut extents = [None; KINDS];
    while let Some((kind, rest)) = bytes.split_first() {
        let (fields, rest) = rest.split_first_chunk::<EXTENT>()?;
        let field = |at: usize| {
            let (words, _) = fields.as_chunks::<8>();
            u64::from_le_bytes(words[at])
        };
        let extent = Extent { file: field(0), offset: field(1), len: field(2), layout: field(3) };
        *extents.get_mut(usize::from(*kind))? = Some(extent);
        bytes = rest;
    }
    Some(extents)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn addresses_are_read_back(fields: [u64; 4], heap: bool, statics: bool) {
            let [file, offset, len, layout] = fields;
            let extent = Extent { file, offset, len, layout };
            let told = [heap.then_some(extent), statics.then_some(extent)];
            prop_assert_eq!(parse(&bytes(&told)), Some(told));
        }

        /// Whatever a PE tells: it is refused, or lies within the file.
        #[test]
        fn garbage_in_addresses_does_no_harm(bytes in prop::collection::vec(any::<u8>(), 0..90)) {
            for extent in parse(&bytes).into_iter().flatten().flatten() {
                prop_assert!(!extent.lies_within(8192) || extent.end() <= 8192);
            }
        }
    }

    #[test]
    fn what_lies_beyond_the_end_of_its_file_is_not_mapped() {
        let at = |offset, len| Extent { file: 0, offset, len, layout: 0 }.lies_within(12288);
        assert!(at(4096, 8192) && at(0, 12288) && at(8192, 1));
        assert!(!at(4096, 8193) && !at(12288, 1) && !at(u64::MAX - 4095, 4096) && !at(1, 1));
    }
}
