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
const SERVICE: usize = TEAMS_MAX * TEAM;

/// Length of the control area of a job of `n_pes` PEs, in bytes.
pub const fn len(n_pes: usize) -> usize {
    SERVICE + (n_pes + 1) * LINE
}

const _: () = assert!(WORDS + WORDS_MAX * 8 <= TEAM);

/// Offset of the flag of a barrier's round; each has a cache line, as each has another writer.
pub const fn flag(team: usize, round: usize) -> usize {
    team * TEAM + round * LINE
}

/// Offset of a word of a team.
pub const fn word(team: usize, index: usize) -> usize {
    team * TEAM + WORDS + index * 8
}

/// Offset of the line through which a service thread is woken.
pub const fn service_bell() -> usize {
    SERVICE
}

/// Offset of the line in which PE `pe` places its requests.
pub const fn service_slot(pe: usize) -> usize {
    SERVICE + (pe + 1) * LINE
}
