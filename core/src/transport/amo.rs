// SPDX-License-Identifier: Apache-2.0
//! What atomic operations and signals are, in the form in which they reach a transport.

use super::Remote;

/// The operation of an AMO. Integer operations wrap; values travel as bits in a `u64`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum AmoOp {
    /// Replace by the operand; the fetching form is a swap.
    Set = 0,
    /// Add the operand.
    Add = 1,
    /// Bitwise and.
    And = 2,
    /// Bitwise or.
    Or = 3,
    /// Bitwise exclusive or.
    Xor = 4,
    /// Read only; fetching form only.
    Fetch = 5,
    /// Replace by the operand if equal to `compare`; fetching form only.
    CompareSwap = 6,
}

impl AmoOp {
    /// All operations, in the order of their numbers.
    pub const ALL: [AmoOp; 7] = [
        AmoOp::Set,
        AmoOp::Add,
        AmoOp::And,
        AmoOp::Or,
        AmoOp::Xor,
        AmoOp::Fetch,
        AmoOp::CompareSwap,
    ];

    /// The operation with this number, as it comes from another process.
    pub fn from_bits(bits: u64) -> Option<AmoOp> {
        AmoOp::ALL.get(usize::try_from(bits).ok()?).copied()
    }
}

/// An atomic memory operation on one naturally aligned variable of 4 or 8 bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Amo {
    /// What to do.
    pub op: AmoOp,
    /// Bytes of the variable: 4 or 8.
    pub size: u8,
    /// Operand, zero-extended.
    pub operand: u64,
    /// Comparand of `CompareSwap`, zero-extended.
    pub compare: u64,
}

impl Amo {
    /// The variable's new value where its old one is `old`, both zero-extended.
    pub fn applied_to(&self, old: u64) -> u64 {
        let new = match self.op {
            AmoOp::Set => self.operand,
            AmoOp::Add => old.wrapping_add(self.operand),
            AmoOp::And => old & self.operand,
            AmoOp::Or => old | self.operand,
            AmoOp::Xor => old ^ self.operand,
            AmoOp::CompareSwap if old == self.compare => self.operand,
            AmoOp::Fetch | AmoOp::CompareSwap => old,
        };
        if self.size == 4 { new & u64::from(u32::MAX) } else { new }
    }
}

/// How `put_signal` changes the signal word.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[repr(u8)]
pub enum SignalOp {
    /// Replace.
    Set = 0,
    /// Add.
    Add = 1,
}

impl From<SignalOp> for AmoOp {
    fn from(op: SignalOp) -> AmoOp {
        match op {
            SignalOp::Set => AmoOp::Set,
            SignalOp::Add => AmoOp::Add,
        }
    }
}

/// A signal that follows a put.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Signal {
    /// The 8-byte signal word at the target.
    pub word: Remote,
    /// How it is changed.
    pub op: SignalOp,
    /// By what.
    pub value: u64,
}

impl Signal {
    /// The AMO that changes the signal word.
    pub fn amo(&self) -> Amo {
        Amo { op: self.op.into(), size: 8, operand: self.value, compare: 0 }
    }
}

/// The AMO operations that an endpoint carries out by itself, on variables of 4 and of 8 bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AmoSet {
    /// Bit n: operation number n on variables of 4 bytes, then of 8 bytes.
    bits: [u8; 2],
}

impl AmoSet {
    /// None.
    pub const NONE: AmoSet = AmoSet { bits: [0; 2] };
    /// All operations on both sizes.
    pub const ALL: AmoSet = AmoSet { bits: [0x7f; 2] };

    /// Both changes of a signal word.
    pub const SIGNALS: AmoSet = AmoSet::NONE.with(AmoOp::Set, 8).with(AmoOp::Add, 8);

    /// The set with `op` on variables of `size` bytes (4 or 8) added.
    pub const fn with(mut self, op: AmoOp, size: u8) -> AmoSet {
        self.bits[(size == 8) as usize] |= 1 << op as u8;
        self
    }

    /// Whether `op` on variables of `size` bytes is in the set.
    #[inline]
    pub const fn has(self, op: AmoOp, size: u8) -> bool {
        self.bits[(size == 8) as usize] & 1 << op as u8 != 0
    }

    /// Whether nothing is in the set.
    pub const fn is_empty(self) -> bool {
        self.bits[0] == 0 && self.bits[1] == 0
    }

    /// Whether every operation on variables of `size` bytes can be made from what is in the set: either
    /// it is there or a loop of compare-and-swap does it.
    pub const fn is_sufficient(self, size: u8) -> bool {
        self.has(AmoOp::CompareSwap, size)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn operations_are_found_by_their_numbers() {
        for op in AmoOp::ALL {
            assert_eq!(AmoOp::from_bits(op as u64), Some(op));
        }
        assert_eq!([7, 8, u64::MAX].map(AmoOp::from_bits), [None; 3]);
    }

    #[test]
    fn a_set_has_what_was_added_for_that_size_alone() {
        let set = AmoSet::NONE.with(AmoOp::Add, 8).with(AmoOp::CompareSwap, 8);
        assert!(set.has(AmoOp::Add, 8) && !set.has(AmoOp::Add, 4) && !set.has(AmoOp::Or, 8));
        assert!(set.is_sufficient(8) && !set.is_sufficient(4));
        for op in AmoOp::ALL {
            assert!(AmoSet::ALL.has(op, 4) && AmoSet::ALL.has(op, 8) && !AmoSet::NONE.has(op, 4));
        }
        assert!(AmoSet::NONE.is_empty() && !set.is_empty());
    }
}
