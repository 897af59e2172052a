// SPDX-License-Identifier: Apache-2.0
//! Messages that members of a team write into each other's memory: the team's own, in the control
//! area. Nothing is read across a link, and a message takes one one-way latency.
//!
//! # Why a message that is seen is whole, and is not overwritten before it was read
//!
//! A message has a number, and each member a line at every other: a flag, of which it is the only writer, and room
//! for a few bytes. Longer messages go to one of two halves of the memory, in which each member has a part too. The
//! reader waits until the flag shows the number, or a later one: numbers only grow.
//!
//! - Mapped memory: the flag is stored with release after the bytes.
//! - Otherwise `put_signal` changes the flag after its bytes are visible, which the contract of
//!   transports promises; a flag alone is a put of an aligned word, which appears whole.
//! - Puts and signals may arrive in any order, and more than once until they are complete. Messages
//!   with even and with odd numbers have lines, halves and contexts of their own, and a member sends all of
//!   one kind to the same member by the same context. Before the first one of a number is sent, a fence
//!   orders all of its kind sent before. So no smaller number follows a larger one in a line, and nothing
//!   of an older message is written later. Nobody waits for the end of what was sent.
//! - Bytes are not written again once their flag was seen: `put_signal` promises it, and so does a fence
//!   between the bytes and the flag. So the reader may write to them.
//! - A collective takes the next number, and in it no member sends to another twice. No member leaves
//!   a collective before all have entered it: either its result depends on all, or a sync ends it. Who
//!   sends in collective n + 2 has left n + 1, so all have entered n + 1 and left n: they have read
//!   what lies in the lines and the half of its kind.
//! - Broadcasts in pieces ([`crate::broadcast`]) are no such collectives: members may leave many of them
//!   before others have entered. They write to no line and no half, and pieces ([`crate::stream`]) take an
//!   even count of message numbers. So the other collectives have even and odd numbers in the same turns
//!   as if there were no broadcasts between them: the argument above holds for those others alone.
//! - Pieces of something long have flags of their own, [`SLOTS`] from each member, and each piece a place
//!   of its own at its receiver. Each half of the flags has contexts of its own, and before one of a half
//!   is used again, what was sent the same way with that half is complete: see [`crate::stream`].
//! - A collective may take many numbers, to send to the same member many times, if it uses flags
//!   alone: a flag that is overwritten by a later number says as much. A use of the halves by many
//!   messages says itself why each finds its part free.
//! - Messages that members pass on for each other ([`crate::both_ways`]) have flags of their own. In the line of the
//!   member that began one, a later number would not say that it has arrived: that member may have left the collective,
//!   and have sent the second message of the next one straight to another that still waits.

use crate::group::Group;
use crate::notes::Notes;
use std::cell::Cell;
use std::mem::MaybeUninit;
use std::sync::atomic::{AtomicU64, Ordering, fence};
use tombolo_core::control::{BLOCK_LEN, BLOCK_MEMBERS};
use tombolo_core::ops::Mode;
use tombolo_core::transport::{Distance, SignalOp};
use tombolo_core::wait::Reason;
use tombolo_core::{Context, Team, Waiting};

/// Flags that a member has at each other for pieces of something long, used in turn.
pub const SLOTS: usize = 16;
/// Bytes that are copied where they leave, so that nobody waits until they have arrived.
pub const COPIED_MAX: usize = 4 << 10;
/// The same over a network, where the wait takes longer than the copy.
const COPIED_FAR_MAX: usize = 64 << 10;
/// Longest message that a member puts together in a buffer of its own before it sends it.
pub const GATHERED_MAX: usize = 16 << 10;
/// Longest block that goes with its length in one message.
pub const WITH_LENGTH_MAX: usize = GATHERED_MAX;
/// Bytes that go into a line beside the flag.
pub const SHORT_MAX: usize = LINE - FLAG;

const LINE: usize = 64;
const FLAG: usize = 8;
const LINES: usize = BLOCK_MEMBERS * LINE;
/// Flags from the receiver of a stream to its sender, and of messages that are passed on.
const BACK: usize = 2 * LINES;
/// Flags of members of one host.
const MEET: usize = BACK + LINES;
/// Flags of hosts, in the first block.
const ROUNDS: usize = MEET + LINES;
/// Flags of pieces, by sender.
const PIECES: usize = ROUNDS + 32 * LINE;
const HALVES: usize = PIECES + BLOCK_MEMBERS * SLOTS * FLAG;
/// Bytes of a half in each block.
const HALF: usize = (BLOCK_LEN - HALVES) / 2 / LINE * LINE;
const _: () = assert!(HALVES + 2 * HALF <= BLOCK_LEN && tombolo_core::control::ROUNDS_MAX <= 32);

/// What goes which way round the ring of members has contexts of its own, so that several lanes of a
/// transport do the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Way {
    /// To members of higher numbers.
    Right,
    /// To members of lower ones.
    Left,
}

/// The flag of a piece of something long, among those that its sender has at each other member.
#[derive(Clone, Copy)]
pub struct Slot {
    index: usize,
    way: Way,
    /// Which of the two contexts of its way it goes by; none where its way is the side on which its receiver is.
    second: Option<bool>,
}

impl Slot {
    /// That of piece number `index`. Contexts change with each piece, or, as every second one may be left
    /// out, with every second one.
    pub fn of(index: usize, way: Way, by_turns: bool) -> Slot {
        let index = index % SLOTS;
        let second = Some(if by_turns { index } else { index / 2 } % 2 == 1);
        Slot { index, way, second }
    }

    /// That of what a member sends to all others by itself, and these to it: to a neighbour by a context of the way
    /// by which pieces with the same flag go to it.
    pub fn straight(index: usize) -> Slot {
        Slot { index, way: Way::Right, second: None }
    }
}

/// Which flag a message has.
#[derive(Clone, Copy)]
enum Flag {
    /// That of its line.
    Line,
    /// That of a message which members pass on.
    Passed,
    /// That of a piece.
    Piece(Slot),
}

/// A word in a team's memory, by its offset there.
#[derive(Clone, Copy)]
pub struct TeamWord(usize);

impl TeamWord {
    /// That of a member, in its block: `first` is that of the block's first member, and each has `len` bytes.
    #[inline(always)]
    fn of(member: usize, first: usize, len: usize) -> TeamWord {
        let (block, place) = (member / BLOCK_MEMBERS, member % BLOCK_MEMBERS);
        TeamWord(block * BLOCK_LEN + first + place * len)
    }

    /// Where `member` of this host tells another one of barrier number `epoch`.
    pub fn meet(member: usize, epoch: u64) -> TeamWord {
        TeamWord::of(member, MEET + (epoch & 1) as usize * FLAG, LINE)
    }

    /// Where a host tells another one of it in a round.
    pub fn round(round: usize, epoch: u64) -> TeamWord {
        TeamWord(ROUNDS + round * LINE + (epoch & 1) as usize * FLAG)
    }

    fn line(number: u64, member: usize) -> TeamWord {
        TeamWord::of(member, (number & 1) as usize * LINES, LINE)
    }

    fn piece(slot: usize, member: usize) -> TeamWord {
        TeamWord::of(member, PIECES + slot * FLAG, SLOTS * FLAG)
    }

    fn back(number: u64, member: usize) -> TeamWord {
        TeamWord::of(member, BACK + (number & 1) as usize * FLAG, LINE)
    }

    /// Of the messages that `member` begins and others pass on. The same neighbour writes it every time.
    fn passed(number: u64, member: usize) -> TeamWord {
        TeamWord(TeamWord::back(number, member).0 + 2 * FLAG)
    }

    /// Its offset.
    #[inline(always)]
    pub fn offset(self) -> usize {
        self.0
    }
}

/// Bytes of a long message in a group of `n` members.
pub const fn long_max(n: usize) -> usize {
    let in_block = if n < BLOCK_MEMBERS { n } else { BLOCK_MEMBERS };
    HALF / in_block / LINE * LINE
}

/// Bytes of the longest element of a reduction: one fits a message of the largest team.
pub const ELEMENT_MAX: usize = long_max(BLOCK_MEMBERS);

/// What is remembered of the team that a group is.
#[inline(always)]
fn notes<'a>(group: &Group<'a>) -> &'a Notes {
    match group.notes() {
        Some(notes) => notes,
        None => unreachable!("active sets write no messages"),
    }
}

/// A message from each member to some others.
pub struct Letters<'a> {
    group: &'a Group<'a>,
    team: &'a Team,
    notes: &'a Notes,
    number: u64,
    /// Whether bytes go to a half.
    long: bool,
    /// Which flag tells of it.
    kind: Flag,
    /// Whether what does not go beside the flag is taken from where it is, by the engines of a ring's links: the
    /// sender goes on meanwhile.
    lent_on_ring: bool,
    /// Whether older messages of this kind are known to come before those that are sent now.
    ready: Cell<bool>,
    /// Whether something was sent from where it is.
    lends: Cell<bool>,
}

impl<'a> Letters<'a> {
    /// The next message of a team with memory. All members begin it, with room for as many bytes.
    #[inline(always)]
    pub fn begin(group: &'a Group<'a>, team: &'a Team, len: usize) -> Letters<'a> {
        debug_assert!(len <= SHORT_MAX.max(long_max(group.n)));
        let number = notes(group).next_message();
        Letters { long: len > SHORT_MAX, ..Letters::numbered(group, team, number) }
    }

    /// Takes the numbers of `count` messages that have no bytes of their own; gives the first.
    pub fn reserve(group: &Group<'_>, count: usize) -> u64 {
        notes(group).next_messages(count)
    }

    /// A message whose number was taken.
    #[inline(always)]
    pub fn numbered(group: &'a Group<'a>, team: &'a Team, number: u64) -> Letters<'a> {
        let (ready, lends) = (Cell::new(false), Cell::new(false));
        let notes = notes(group);
        let (long, kind, lent_on_ring) = (false, Flag::Line, false);
        Letters { group, team, notes, number, long, kind, lent_on_ring, ready, lends }
    }

    /// A piece of something long, whose number was taken. Everything that was sent with its flag before
    /// is complete.
    #[inline(always)]
    pub fn piece(group: &'a Group<'a>, team: &'a Team, number: u64, slot: Slot) -> Letters<'a> {
        let ready = Cell::new(true);
        let letters = Letters::numbered(group, team, number);
        Letters { kind: Flag::Piece(slot), ready, ..letters }.lent()
    }

    /// The same for what stays as it is until all is complete.
    #[inline(always)]
    pub fn lent(self) -> Letters<'a> {
        let lent_on_ring = matches!(self.notes.hosts.step, Distance::Hops(_));
        Letters { lent_on_ring, ..self }
    }

    /// The same for what members pass on.
    pub fn passed(self) -> Letters<'a> {
        Letters { kind: Flag::Passed, ..self }
    }

    /// The same with this member's part of a half for its bytes. Who sends them sees itself that the
    /// part is free.
    pub fn in_half(self) -> Letters<'a> {
        Letters { long: true, ..self }
    }

    /// Those of messages with numbers of this kind: one for each way. Or those of pieces that go this way with
    /// this half of the flags: by turns. Or of what goes straight to all with this half: one for each way.
    ///
    /// Transports deal their lanes to contexts in turn, so that four lanes share what goes both ways
    /// with both kinds of numbers, or as pieces.
    fn contexts(&self) -> [&Context; 2] {
        let all = self.group.world.letter_contexts();
        let (first, next) = match self.kind {
            Flag::Line | Flag::Passed => ((self.number & 1) as usize * 5, 2),
            Flag::Piece(Slot { index, second: None, .. }) => (index * 2 / SLOTS * 4, 2),
            Flag::Piece(Slot { index, way, .. }) => (index * 2 / SLOTS * 4 + way as usize * 2, 1),
        };
        [&all[first], &all[first + next]]
    }

    /// That of what goes to a member: half of them are on either side.
    fn context(&self, member: usize) -> &Context {
        let Group { me, n, .. } = *self.group;
        let side = || (member + n - me) % n > n / 2;
        let second = match self.kind {
            Flag::Piece(Slot { second: Some(second), .. }) => second,
            _ => side(),
        };
        self.contexts()[usize::from(second)]
    }

    /// The flag of member `from`, at this PE and at every other.
    #[inline(always)]
    fn flag(&self, from: usize) -> TeamWord {
        match self.kind {
            Flag::Line => TeamWord::line(self.number, from),
            Flag::Passed => TeamWord::passed(self.number, from),
            // Of two members each has the other on both sides.
            Flag::Piece(Slot { index, way: Way::Left, .. }) if self.group.n == 2 => {
                TeamWord::piece(index, from + 2)
            }
            Flag::Piece(Slot { index, .. }) => TeamWord::piece(index, from),
        }
    }

    /// Where member `from` writes at this PE, and at every other.
    #[inline(always)]
    pub fn bytes(&self, from: usize) -> *mut u8 {
        let half = (self.number & 1) as usize * HALF;
        let place = match self.long {
            false => TeamWord(TeamWord::line(self.number, from).0 + FLAG),
            true => TeamWord::of(from, HALVES + half, long_max(self.group.n)),
        };
        self.notes.word(self.group.me, place).cast()
    }

    /// Sends `len` bytes, as many as was said or fewer. `source` must stay as it is until
    /// [`Letters::release`] unless `mode` is blocking.
    ///
    /// # Safety
    /// `source` is readable for that long.
    #[inline(always)]
    pub unsafe fn send(&self, member: usize, source: *const u8, len: usize, mode: Mode) {
        debug_assert!(len <= if self.long { long_max(self.group.n) } else { SHORT_MAX });
        if !self.long && matches!(self.kind, Flag::Line) {
            let theirs = self.notes.word(member, self.flag(self.group.me));
            if !theirs.is_null() {
                // SAFETY: the caller's promise; this member's line at the other, which is mapped as a whole.
                unsafe { copy_bytes(theirs.cast::<u8>().add(FLAG), source, len) };
                // SAFETY: the member's mapped flag, only ever accessed as a whole.
                unsafe { (*theirs).store(self.number, Ordering::Release) };
                return;
            }
        }
        let dest = self.bytes(self.group.me);
        // SAFETY: the caller's promise; this member's part at the other has room.
        unsafe { self.send_to(member, dest, source, len, mode) };
    }

    /// Sends a word and `len` bytes behind it, at most what the message was begun with room for, and at most
    /// [`WITH_LENGTH_MAX`]. `source` may change afterwards.
    ///
    /// # Safety
    /// `source` is readable for that long.
    #[inline(always)]
    pub unsafe fn send_with(&self, member: usize, word: u64, source: *const u8, len: usize) {
        debug_assert!(matches!(self.kind, Flag::Line));
        if self.long {
            // SAFETY: the caller's promise.
            return unsafe { self.send_long_with(member, word, source, len) };
        }
        debug_assert!(len <= SHORT_MAX - FLAG);
        let theirs = self.notes.word(member, self.flag(self.group.me));
        if !theirs.is_null() {
            // SAFETY: the caller's promise; this member's line at the other, which is mapped as a whole, and its
            // flag, only ever accessed as a whole.
            unsafe {
                theirs.add(1).cast::<u64>().write(word);
                copy_bytes(theirs.add(2).cast(), source, len);
                (*theirs).store(self.number, Ordering::Release);
            }
            return;
        }
        let mut letter = [0; SHORT_MAX];
        letter[..FLAG].copy_from_slice(&word.to_ne_bytes());
        // SAFETY: the caller's promise; the letter is read before a blocking call returns.
        unsafe {
            copy_bytes(letter[FLAG..].as_mut_ptr(), source, len);
            let dest = self.bytes(self.group.me);
            self.send_to(member, dest, letter.as_ptr(), FLAG + len, Mode::Blocking);
        }
    }

    /// The same through this member's part of a half.
    ///
    /// # Safety
    /// As [`Letters::send_with`].
    unsafe fn send_long_with(&self, member: usize, word: u64, source: *const u8, len: usize) {
        debug_assert!(FLAG + len <= (FLAG + WITH_LENGTH_MAX).min(long_max(self.group.n)));
        let mut joined = MaybeUninit::<[u8; FLAG + WITH_LENGTH_MAX]>::uninit();
        let joined = joined.as_mut_ptr().cast::<u8>();
        // SAFETY: the caller's promise; both fit, and are read before a blocking call returns.
        unsafe {
            joined.cast::<u64>().write_unaligned(word);
            copy_bytes(joined.add(FLAG), source, len);
            self.send(member, joined, FLAG + len, Mode::Blocking);
        }
    }

    /// Sends `len` bytes to symmetric `dest` of a member, and the flag after them.
    ///
    /// # Safety
    /// As [`Letters::send`]; the member's `dest` is ready.
    #[inline]
    pub unsafe fn send_to(
        &self,
        member: usize,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        mode: Mode,
    ) {
        // SAFETY: the caller's promise.
        unsafe { self.pass_to(member, self.group.me, dest, source, len, mode) };
    }

    /// [`Letters::send_to`] for member `from`, whose message is passed on: see [`crate::both_ways`] for
    /// when this is safe.
    ///
    /// # Safety
    /// As [`Letters::send_to`].
    #[inline]
    pub unsafe fn pass_to(
        &self,
        member: usize,
        from: usize,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        mode: Mode,
    ) {
        let Group { world, routine, .. } = *self.group;
        let mode = if self.copies(len) { Mode::Blocking } else { mode };
        if mode == Mode::NonBlocking {
            self.lends.set(true);
        }
        let pe = self.group.pe(member);
        let theirs = self.notes.word(member, self.flag(from));
        if theirs.is_null() {
            let flag = self.notes.word(self.group.me, self.flag(from));
            // SAFETY: the caller's promise.
            unsafe { self.send_far((member, pe), flag, dest, source, len, mode) };
            return;
        }
        if len <= SHORT_MAX {
            let dest = world.ptr(dest, pe);
            if !dest.is_null() {
                // SAFETY: the caller's promise; mapped memory.
                unsafe { copy_bytes(dest, source, len) };
                // SAFETY: the member's mapped flag, only ever accessed as a whole.
                unsafe { (*theirs).store(self.number, Ordering::Release) };
                return;
            }
        }
        // SAFETY: the caller's promise.
        unsafe { world.put(self.context(member), dest, source, len, pe, mode, routine) };
        // A long put to mapped memory may take another channel than a copy, which is complete.
        if !world.copies(dest, len, pe) {
            self.complete();
        }
        // SAFETY: as above.
        unsafe { (*theirs).store(self.number, Ordering::Release) };
    }

    /// Whether so many bytes are copied where they leave.
    fn copies(&self, len: usize) -> bool {
        if len <= SHORT_MAX {
            return true;
        }
        let costs = self.group.world.costs();
        match self.notes.hosts.step {
            _ if self.lent_on_ring => false,
            Distance::Network => {
                len <= COPIED_FAR_MAX
                    && costs.get_ns(Distance::Host, len) <= costs.network.completion.into()
            }
            _ => len <= COPIED_MAX,
        }
    }

    /// [`Letters::send_to`] a member whose memory is not mapped.
    ///
    /// Where puts are complete when they return, as through a window to a neighbour, the flag is one
    /// more of them: what is issued after another operation was complete follows it. Elsewhere one
    /// operation carries both, without waiting. Which of the two is seen at the first message.
    ///
    /// # Safety
    /// As [`Letters::send_to`].
    unsafe fn send_far(
        &self,
        (member, pe): (usize, usize),
        flag: *mut AtomicU64,
        dest: *mut u8,
        source: *const u8,
        len: usize,
        mode: Mode,
    ) {
        let Group { world, routine, .. } = *self.group;
        let (context, notes) = (self.context(member), self.notes);
        self.prepare();
        // What this PE stored before is visible with the flag.
        fence(Ordering::Release);
        // Whether one put is complete can be seen where nothing else is under way.
        if len > 0 && !(notes.arrives_at_once(member) && context.is_quiet()) {
            let (word, value, op) = (flag.cast(), self.number, SignalOp::Set);
            // SAFETY: the caller's promise.
            unsafe {
                world.put_signal(context, dest, source, len, word, value, op, pe, mode, routine);
            }
            return;
        }
        // SAFETY: the caller's promise.
        unsafe { world.put(context, dest, source, len, pe, mode, routine) };
        if len > 0 && !context.is_quiet() {
            notes.does_not_arrive_at_once(member);
            world.fence(context, routine);
        }
        self.put_flag(flag, member);
    }

    /// A message without bytes.
    pub fn send_nothing(&self, member: usize) {
        // SAFETY: nothing is read.
        unsafe { self.send_to(member, self.bytes(0), std::ptr::null(), 0, Mode::Blocking) };
    }

    fn put_flag(&self, flag: *mut AtomicU64, member: usize) {
        let Group { world, routine, .. } = *self.group;
        let (context, pe) = (self.context(member), self.group.pe(member));
        let source = (&raw const self.number).cast();
        fence(Ordering::Release);
        // SAFETY: a local word, reusable when a blocking put returns.
        unsafe { world.put(context, flag.cast(), source, 8, pe, Mode::Blocking, routine) };
    }

    /// Before the first put: everything put to flags of this kind before comes first.
    #[inline]
    fn prepare(&self) {
        if !self.ready.replace(true) {
            let Group { world, routine, .. } = *self.group;
            for context in self.contexts().into_iter().filter(|context| !context.is_quiet()) {
                world.fence(context, routine);
            }
        }
    }

    /// Before the first put, where others than this member write to its lines as well: everything put to
    /// flags of this kind before is complete.
    pub fn prepare_for_all(&self) {
        self.ready.set(true);
        self.complete();
    }

    /// Waits until what was sent with this message is complete, and of pieces what went the same way.
    #[inline]
    pub fn complete(&self) {
        for context in self.contexts().into_iter().filter(|context| !context.is_quiet()) {
            self.group.world.quiet(context, self.group.routine);
        }
    }

    /// Waits until what was sent with this message may be changed where it was sent from.
    #[inline]
    pub fn release(&self) {
        if self.lends.replace(false) {
            self.complete();
        }
    }

    /// Whether [`Letters::release`] has to wait for something.
    pub fn lends(&self) -> bool {
        self.lends.get()
    }

    /// Tells the sender of a message that it was read.
    pub fn tell_back(&self, member: usize) {
        let place = TeamWord::back(self.number, self.group.me);
        // SAFETY: null, or the member's mapped flag, only ever accessed as a whole.
        match unsafe { self.notes.word(member, place).as_ref() } {
            Some(theirs) => theirs.store(self.number, Ordering::Release),
            None => {
                self.prepare();
                self.put_flag(self.notes.word(self.group.me, place), member);
            }
        }
    }

    /// Waits for the message of a member; gives where its bytes are.
    #[inline(always)]
    pub fn receive(&self, member: usize) -> *const u8 {
        self.until(self.flag(member));
        self.bytes(member)
    }

    /// Waits until a member has told back, as receivers do that have read this message.
    pub fn read_by(&self, member: usize) {
        self.until(TeamWord::back(self.number, member));
    }

    /// Whether the message of a member is here.
    #[inline]
    pub fn has_come(&self, member: usize) -> bool {
        self.own(self.flag(member)).load(Ordering::Acquire) >= self.number
    }

    #[inline(always)]
    fn until(&self, place: TeamWord) {
        let flag = self.own(place);
        self.wait(|| flag.load(Ordering::Acquire) >= self.number);
    }

    #[inline(always)]
    fn own(&self, place: TeamWord) -> &'a AtomicU64 {
        // SAFETY: this PE's own flag, only ever accessed as a whole.
        unsafe { &*self.notes.word(self.group.me, place) }
    }

    /// Waits until `ready` says so: for what other members send.
    #[inline(always)]
    pub fn wait(&self, ready: impl FnMut() -> bool) {
        let waiting = Waiting {
            routine: self.group.routine,
            argument: self.team.slot as u64,
            reason: Reason::Members,
        };
        self.group.world.wait(waiting, ready);
    }
}

/// A copy of bytes that may overlap, most often of one word: without a call then.
///
/// # Safety
/// Both are valid for that long.
#[inline(always)]
pub unsafe fn copy_bytes(dest: *mut u8, source: *const u8, len: usize) {
    // SAFETY: the caller's promise; arrays of bytes need no alignment.
    unsafe {
        if len == 8 {
            dest.cast::<[u8; 8]>().write(source.cast::<[u8; 8]>().read());
        } else if len > 0 {
            std::ptr::copy(source, dest, len);
        }
    }
}
