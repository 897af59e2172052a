// SPDX-License-Identifier: Apache-2.0
//! Layout of the control area: the first bytes of every heap segment, where PEs keep the flags and
//! words through which they synchronise. It is symmetric memory like the rest of the heap, so every
//! transport reaches it the same way.

/// Teams alive at one time on one PE, predefined ones included.
pub const TEAMS_MAX: usize = 256;
/// Rounds of a dissemination barrier: enough for 2^20 PEs.
pub const ROUNDS_MAX: usize = 20;
/// 8-byte words per team through which members exchange small values.
pub const WORDS_MAX: usize = 64;

const LINE: usize = 64;
const WORDS: usize = ROUNDS_MAX * LINE;
const TEAM: usize = 2048;
const MEMORY: usize = TEAMS_MAX * TEAM;
const SERVICE: usize = MEMORY + BLOCKS * BLOCK_LEN;

/// Memory for the data of collectives comes in blocks. So many are for teams of one block, those in the first slots; in
/// jobs of more PEs as many again for larger teams, each of which has blocks for all PEs of the job.
const BLOCKS: usize = 16;
/// Bytes of a block.
pub const BLOCK_LEN: usize = 256 << 10;
/// Members of a team for which a block has places.
pub const BLOCK_MEMBERS: usize = 64;

/// Requests that a PE may have under way to each other PE at one time; see [`crate::service`].
pub const REQUESTS_MAX: usize = 2;

/// Length of the control area of a job of `n_pes` PEs, in bytes.
pub const fn len(n_pes: usize) -> usize {
    let large = if n_pes > BLOCK_MEMBERS { BLOCKS } else { 0 };
    left(n_pes, n_pes) + large * BLOCK_LEN
}

const _: () = assert!(WORDS + WORDS_MAX * 8 <= TEAM && BLOCKS <= TEAMS_MAX);

/// Offset of the flag of a round of barrier number `epoch`. Each round has a cache line, as each has
/// another writer; barriers with even and with odd numbers have flags of their own.
pub const fn flag(team: usize, round: usize, epoch: u64) -> usize {
    team * TEAM + round * LINE + (epoch & 1) as usize * 8
}

/// Offset of the counter of a round of a team's last barrier.
pub const fn counter(team: usize, round: usize) -> usize {
    team * TEAM + round * LINE + 16
}

/// Offset of a word of a team.
pub const fn word(team: usize, index: usize) -> usize {
    team * TEAM + WORDS + index * 8
}

/// Offset of the memory for the data of collectives of a team of so many members: a block, or if these are more than
/// [`BLOCK_MEMBERS`], one for as many of the `n_pes` PEs of the job each. None if it has none.
pub const fn memory(n_pes: usize, team: usize, members: usize) -> Option<usize> {
    if members <= BLOCK_MEMBERS {
        return if team < BLOCKS { Some(MEMORY + team * BLOCK_LEN) } else { None };
    }
    let blocks = n_pes.div_ceil(BLOCK_MEMBERS);
    let first = left(n_pes, n_pes);
    if team < BLOCKS / blocks { Some(first + team * blocks * BLOCK_LEN) } else { None }
}

/// Offset of the line through which a service thread is woken.
pub const fn service_bell() -> usize {
    SERVICE
}

/// Offset of the line in which PE `pe` places its request number `index`.
pub const fn request_line(pe: usize, index: usize) -> usize {
    SERVICE + (1 + pe * REQUESTS_MAX + index) * LINE
}

/// Offset of the line in which PE `pe` of `n_pes` places its reply to request number `index`.
pub const fn reply_line(n_pes: usize, pe: usize, index: usize) -> usize {
    request_line(n_pes + pe, index)
}

/// Offset of the words by which a transport of PE `pe` finds out that what it has written before has
/// arrived, or never will: some for each who writes, such as processors and DMA engines. Each PE has a
/// cache line.
pub const fn arrival(n_pes: usize, pe: usize) -> usize {
    reply_line(n_pes, n_pes, 0) + pe * LINE
}

/// Offset of the lines in which PEs compare the arguments of a call while arguments are checked: one for
/// what this PE passes, then one for each of `n_pes` PEs.
pub const fn compared(n_pes: usize, index: usize) -> usize {
    arrival(n_pes, n_pes) + index * LINE
}

/// Offset of the line in which PE `pe` of `n_pes` tells that it is about to leave, where no launcher does.
pub const fn left(n_pes: usize, pe: usize) -> usize {
    compared(n_pes, n_pes + 1) + pe * LINE
}
