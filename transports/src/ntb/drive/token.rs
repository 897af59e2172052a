// SPDX-License-Identifier: Apache-2.0
//! How the engine of a ring names the operation whose end it tells: a stream and a PE in one word.

use tombolo_core::transport::Stream;

const PE_BITS: u32 = 24;
const ALIGN_BITS: u32 = align_of::<Stream>().trailing_zeros();

/// What an engine gives back when an operation to `pe` ends. User addresses have 47 bits; those a
/// stream's alignment leaves make room for the PE.
pub fn token(stream: &Stream, pe: usize) -> u64 {
    debug_assert!(pe < 1 << PE_BITS);
    ((&raw const *stream) as u64 >> ALIGN_BITS) << PE_BITS | pe as u64
}

/// What a token was made of.
pub fn token_parts(token: u64) -> (*const Stream, u32) {
    let address = token >> PE_BITS << ALIGN_BITS;
    (address as *const Stream, (token & ((1 << PE_BITS) - 1)) as u32)
}

const _: () = assert!(47 - ALIGN_BITS + PE_BITS <= 64);

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokens_lead_back_to_stream_and_pe() {
        let streams = [Stream::new(1, true), Stream::new(2, true)];
        for stream in &streams {
            for pe in [0, 1, 65_535, (1 << PE_BITS) - 1] {
                let parts = token_parts(token(stream, pe));
                assert_eq!(parts, (&raw const *stream, pe as u32));
            }
        }
    }
}
