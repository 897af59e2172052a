// SPDX-License-Identifier: Apache-2.0
//! What cards send each other.

/// Bytes before the data.
pub const HEADER: usize = 56;
/// Most data bytes of a frame.
pub const DATA: usize = 32 << 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum Kind {
    /// A part of an operation.
    Request = 1,
    /// A part of its answer.
    Response = 2,
    /// Asks whether a queue pair is there still.
    Probe = 3,
    /// It is.
    Here = 4,
    /// It is not.
    Gone = 5,
    Datagram = 6,
}

/// The header of a frame.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Frame {
    pub kind: Kind,
    /// Of a request: what it is, as the interface numbers it.
    pub op: u8,
    /// The network of the device.
    pub network: u8,
    /// Of an answer: the status of the completion.
    pub status: u8,
    /// Queue pairs.
    pub to: u32,
    pub from: u32,
    /// Number of the operation on its connection.
    pub number: u32,
    /// Of remote memory, or of datagrams.
    pub key: u32,
    /// Bytes of the operation.
    pub len: u32,
    /// Where the data of this frame begin among them.
    pub offset: u32,
    pub address: u64,
    pub operands: [u64; 2],
}

impl Frame {
    /// One of a kind, with nothing else in it.
    pub fn new(kind: Kind, network: u8, to: u32, from: u32) -> Frame {
        Frame {
            kind,
            op: 0,
            network,
            status: 0,
            to,
            from,
            number: 0,
            key: 0,
            len: 0,
            offset: 0,
            address: 0,
            operands: [0; 2],
        }
    }

    /// The frame as bytes, `data` included.
    pub fn encode(&self, data: &[u8]) -> Vec<u8> {
        let mut bytes = vec![self.kind as u8, self.op, self.network, self.status];
        for word in [self.to, self.from, self.number, self.key, self.len, self.offset, 0] {
            bytes.extend(word.to_le_bytes());
        }
        for long in [self.address, self.operands[0], self.operands[1]] {
            bytes.extend(long.to_le_bytes());
        }
        bytes.extend(data);
        bytes
    }

    /// All frames of an operation with these data; one at least.
    pub fn split(self, data: &[u8]) -> Vec<Vec<u8>> {
        let len = data.len() as u32;
        let part = |offset: usize| {
            let end = data.len().min(offset + DATA);
            Frame { len, offset: offset as u32, ..self }.encode(&data[offset..end])
        };
        (0..data.len().max(1)).step_by(DATA).map(part).collect()
    }

    /// A frame and its data; none if it is not one.
    pub fn decode(bytes: &[u8]) -> Option<(Frame, &[u8])> {
        let (header, data) = bytes.split_at_checked(HEADER)?;
        let word = |at: usize| u32::from_le_bytes([0, 1, 2, 3].map(|i| header[at + i]));
        let long = |at: usize| u64::from(word(at)) | u64::from(word(at + 4)) << 32;
        let kinds =
            [Kind::Request, Kind::Response, Kind::Probe, Kind::Here, Kind::Gone, Kind::Datagram];
        let frame = Frame {
            kind: kinds.into_iter().find(|kind| *kind as u8 == header[0])?,
            op: header[1],
            network: header[2],
            status: header[3],
            to: word(4),
            from: word(8),
            number: word(12),
            key: word(16),
            len: word(20),
            offset: word(24),
            address: long(32),
            operands: [long(40), long(48)],
        };
        Some((frame, data))
    }
}
