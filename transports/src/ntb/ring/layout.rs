// SPDX-License-Identifier: Apache-2.0
//! Where the rings of one link direction lie inside a window region.
//!
//! A region belongs to one lane of one port. Its owner reads it; only the neighbour behind the port
//! writes it:
//!
//! ```text
//! 0     hello line    incarnation, echo, geometry, whether a mark follows: changes at link events only
//! 64    credit line   consumer and producer indices, heartbeat, sleeping flag
//! 128   mark          a word that a DMA engine writes: what it has written before has arrived or is lost
//! 4096  header lines  request, reply, control: 64 bytes a slot, dense for cheap polling
//! ...   payload       request, reply: a chunk a slot (the control class has none)
//! ```
//!
//! - A slot is a header line and the chunk at the same position: one resource, one credit. Two
//!   separate resources would allow a cycle of waits that the bubble rule does not break.
//! - The last word of a payload is its seal, which is like the last word of the packet's header:
//!   without it the data have not arrived, whatever the header says. The data that belong there, the
//!   tail, travel in the header. So the seal costs no TLP of its own.
//! - Header positions only ever hold headers, so that stale payload can never pass for one.
//! - Both ends compute every offset from the geometry. No offset is ever read from the wire.

use super::packet::Class;

/// Bytes of a line: what a write-combining buffer and a cache hold.
pub const LINE: usize = 64;
/// Offset of the hello line.
pub const HELLO_OFFSET: usize = 0;
/// Offset of the credit line.
pub const CREDIT_OFFSET: usize = LINE;
/// Offset of the mark.
pub(super) const MARK_OFFSET: usize = 2 * LINE;

const HEADERS_OFFSET: usize = 4096;
const PAGE: usize = 4096;
/// Bytes that a packet carries at most.
pub const CHUNK_BYTES_MAX: usize = 64 << 10;
const SLOTS_MAX: u32 = 1 << 16;

/// Bytes of a payload of `len` bytes that lie in the chunk, in whole words: all but the tail, which
/// has 1 to 8 bytes. The seal follows them.
pub fn body_bytes(len: usize) -> usize {
    len.saturating_sub(1) / 8 * 8
}

/// Sizes of the rings of a region; the same on all hosts of a job.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Geometry {
    chunk_bytes: u32,
    slots: [u32; Class::COUNT],
}

/// Why a geometry cannot be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GeometryError {
    /// The chunk is not a multiple of a line, or out of range.
    #[error("chunk of {0} bytes: expected a multiple of 64 from 64 to 65536")]
    Chunk(usize),
    /// A ring is too short, too long, or not a power of two.
    #[error("ring of {0} slots: expected a power of two from 2 to 65536")]
    Slots(u32),
    /// The window is too small for even the smallest rings.
    #[error("window region of {0} bytes is too small for a lane: at least {1} bytes are needed")]
    Region(usize, usize),
}

impl Geometry {
    /// Rings of the given slots by class (request, reply, control).
    pub fn new(chunk_bytes: usize, slots: [u32; Class::COUNT]) -> Result<Geometry, GeometryError> {
        if chunk_bytes == 0 || !chunk_bytes.is_multiple_of(LINE) || chunk_bytes > CHUNK_BYTES_MAX {
            return Err(GeometryError::Chunk(chunk_bytes));
        }
        match slots.into_iter().find(|&n| !(2..=SLOTS_MAX).contains(&n) || !n.is_power_of_two()) {
            Some(bad) => Err(GeometryError::Slots(bad)),
            None => Ok(Geometry { chunk_bytes: chunk_bytes as u32, slots }),
        }
    }

    /// Payload bytes of a slot.
    pub fn chunk_bytes(&self) -> usize {
        self.chunk_bytes as usize
    }

    /// Slots of a class's ring.
    pub fn slots(&self, class: Class) -> u32 {
        self.slots[class as usize]
    }

    /// Bytes of a region, whole pages.
    pub fn region_bytes(&self) -> usize {
        let end = self.payload_base(Class::Control);
        end.next_multiple_of(PAGE)
    }

    /// Offset of the header line of a ring position (any count; it wraps).
    pub fn header_offset(&self, class: Class, position: u32) -> usize {
        let before: u32 = self.slots[..class as usize].iter().sum();
        let index = position & (self.slots[class as usize] - 1);
        HEADERS_OFFSET + (before + index) as usize * LINE
    }

    /// Offset of the payload of a ring position. The control class has none.
    pub fn payload_offset(&self, class: Class, position: u32) -> usize {
        debug_assert!(class != Class::Control);
        let index = position & (self.slots[class as usize] - 1);
        self.payload_base(class) + index as usize * self.chunk_bytes()
    }

    /// A number that differs between geometries, for the handshake.
    pub fn digest(&self) -> u64 {
        let log = |class: usize| u64::from(self.slots[class].trailing_zeros());
        u64::from(self.chunk_bytes) << 32 | log(0) << 16 | log(1) << 8 | log(2)
    }

    fn payload_base(&self, class: Class) -> usize {
        let headers: u32 = self.slots.iter().sum();
        let before: u32 = self.slots[..class as usize].iter().sum();
        let base = (HEADERS_OFFSET + headers as usize * LINE).next_multiple_of(PAGE);
        base + before as usize * self.chunk_bytes()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slots_never_overlap_and_stay_inside_the_region(
            chunk in 1usize..=64, logs in prop::array::uniform3(1u32..=7),
        ) {
            let geometry = Geometry::new(chunk * LINE, logs.map(|log| 1 << log)).unwrap();
            let mut spans = vec![(HELLO_OFFSET, LINE), (CREDIT_OFFSET, LINE), (MARK_OFFSET, 8)];
            for class in Class::ALL {
                for position in 0..geometry.slots(class) {
                    spans.push((geometry.header_offset(class, position), LINE));
                    if class != Class::Control {
                        let at = geometry.payload_offset(class, position);
                        spans.push((at, body_bytes(geometry.chunk_bytes()) + 8));
                    }
                }
            }
            spans.sort();
            for pair in spans.windows(2) {
                prop_assert!(pair[0].0 + pair[0].1 <= pair[1].0);
            }
            let last = spans[spans.len() - 1];
            prop_assert!(last.0 + last.1 <= geometry.region_bytes());
        }
    }

    #[test]
    fn impossible_sizes_are_refused() {
        assert_eq!(Geometry::new(100, [2, 2, 2]), Err(GeometryError::Chunk(100)));
        assert_eq!(Geometry::new(64, [2, 3, 2]), Err(GeometryError::Slots(3)));
        assert_eq!(Geometry::new(64, [1, 2, 2]), Err(GeometryError::Slots(1)));
    }
}
