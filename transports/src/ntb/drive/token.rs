// SPDX-License-Identifier: Apache-2.0
//! How the engine of a ring names the operation whose end it tells: a stream and a PE in one word.

use tombolo_core::transport::Stream;

const PE_BITS: u32 = 23;
const ALIGN_BITS: u32 = align_of::<Stream>().trailing_zeros();
/// Bits of a user's address: 47 on x86-64, and 48 on aarch64 with pages of 4 KiB. Kernels with more give them only to
/// those who ask for such an address.
const ADDRESS_BITS: u32 = 48;

/// What an engine gives back when an operation to `pe` ends. The bits that the alignment of a stream leaves make room
/// for the PE.
pub fn token(stream: &Stream, pe: usize) -> u64 {
    token_of((&raw const *stream) as u64, pe)
}

fn token_of(address: u64, pe: usize) -> u64 {
    debug_assert!(pe < 1 << PE_BITS && address < 1 << ADDRESS_BITS);
    (address >> ALIGN_BITS) << PE_BITS | pe as u64
}

/// What a token was made of.
pub fn token_parts(token: u64) -> (*const Stream, u32) {
    let address = token >> PE_BITS << ALIGN_BITS;
    (address as *const Stream, (token & ((1 << PE_BITS) - 1)) as u32)
}

const _: () = assert!(ADDRESS_BITS - ALIGN_BITS + PE_BITS <= u64::BITS);

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

    #[test]
    fn tokens_hold_addresses_of_every_processor() {
        let align = align_of::<Stream>() as u64;
        for address in [align, (1 << 47) - align, 1 << 47, 0xaaaa_aaaa_a000, (1 << 48) - align] {
            let parts = token_parts(token_of(address, 5));
            assert_eq!(parts, (address as *const Stream, 5), "{address:#x}");
        }
    }
}
