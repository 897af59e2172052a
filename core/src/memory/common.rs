// SPDX-License-Identifier: Apache-2.0
//! The memory files of a host: one holds the symmetric heaps of all its PEs, another their static data.
//!
//! Each PE has a range of its own in either. One mapping reaches all of them then, and one descriptor:
//! with a file for each PE, descriptors and mappings of a job would grow with the square of its PEs.
//!
//! The first PE of each host makes the files, fixes their sizes and hands them out. All PEs have told
//! before how much they need, so everyone knows where its range is. Where processes cannot pass
//! descriptors to each other, each PE makes files for itself alone, which nobody else can map.

use super::handout::{self, Files, Listener};
use super::{limits, page_size, seal, sealable};
use crate::bootstrap::slots::Slots;
use crate::error::{Error, Result};
use crate::transport::Meeting;
use std::os::fd::OwnedFd;
use std::time::Duration;

/// Ranges of heaps start at a multiple of this, so that huge pages fit.
const HUGE_PAGE: usize = 2 << 20;

/// How much memory a PE needs in the files of its host, and where it listens.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Need {
    /// Bytes of the heap, with its control area.
    pub heap: usize,
    /// Bytes of static data.
    pub statics: usize,
    /// Where to get the files if this PE makes them; empty if it can neither make nor get any.
    pub address: Vec<u8>,
}

/// By what PEs of a host meet once more that have met by what they need; none where they cannot meet, or one is alone.
pub fn meeting(needs: &[&Need]) -> Option<Meeting> {
    let together = needs.len() > 1 && needs.iter().all(|need| !need.address.is_empty());
    let (token, name) = handout::token_and_name(&needs.first()?.address)?;
    together.then_some(Meeting { name, token })
}

/// A range of a memory file.
#[derive(Debug)]
pub struct Part {
    /// The file, which may hold parts of other PEs too.
    pub file: OwnedFd,
    /// Where the range begins.
    pub offset: usize,
}

/// The ranges of one PE.
pub struct Parts {
    /// For the symmetric heap.
    pub heap: Part,
    /// For static data; none where none was needed.
    pub statics: Option<Part>,
    /// For what PEs tell each other, behind all heaps; none where each PE has files for itself alone.
    pub slots: Option<Slots>,
}

/// Why a PE has no part in the memory of its host.
#[derive(Debug)]
pub enum Failure {
    /// The others have none either, or the first one of the host says why.
    OfAll(Error),
    /// The others may go on, or wait for this PE.
    Own(Error),
}

/// How the files of a host are divided.
struct Layout {
    /// Where the parts of this PE begin, heap first.
    own: [usize; 2],
    /// Lengths of the files.
    lens: [usize; 2],
    /// Where the slots begin, if there are several PEs, and how many PEs have them.
    slots: Option<(usize, usize)>,
}

impl Layout {
    /// Of the PEs of a host, which have these needs; none if the files would be too long.
    fn of(needs: &[&Need], me: usize) -> Option<Layout> {
        let mut layout = Layout { own: [0; 2], lens: [0; 2], slots: None };
        for (pe, need) in needs.iter().enumerate() {
            if pe == me {
                layout.own = layout.lens;
            }
            let [heaps, statics] = layout.lens;
            let heaps = heaps.checked_add(need.heap.checked_next_multiple_of(HUGE_PAGE)?)?;
            let statics =
                statics.checked_add(need.statics.checked_next_multiple_of(page_size())?)?;
            layout.lens = [heaps, statics];
        }
        if needs.len() > 1 {
            layout.slots = Some((layout.lens[0], needs.len()));
            layout.lens[0] = layout.lens[0].checked_add(Slots::len(needs.len())?)?;
        }
        layout.lens.iter().all(|len| i64::try_from(*len).is_ok()).then_some(layout)
    }

    /// Makes the files.
    fn make(&self) -> Result<Vec<OwnedFd>> {
        let [heaps, statics] = self.lens;
        let mut files =
            vec![make("tombolo-heap", "the symmetric heap (SHMEM_SYMMETRIC_SIZE)", heaps)?];
        if statics > 0 {
            files.push(make("tombolo-static", "static data", statics)?);
        }
        Ok(files)
    }

    /// The parts of this PE in `files`, which somebody else may have made.
    fn parts(&self, files: Vec<OwnedFd>) -> Result<Parts> {
        for (file, len) in files.iter().zip(self.lens) {
            let size = nix::sys::stat::fstat(file)
                .map_err(|e| Error::system("looking at a memory file", e))?
                .st_size;
            if u64::try_from(size).ok() < Some(len as u64) {
                let what = format!("a memory file has {size} bytes instead of {len}");
                return Err(Error::Memory(what));
            }
        }
        let [heap, statics] = self.own;
        let mut files = files.into_iter();
        let missing = || Error::Memory("a memory file is missing".to_owned());
        let heap = Part { file: files.next().ok_or_else(missing)?, offset: heap };
        let statics = match self.lens[1] {
            0 => None,
            _ => Some(Part { file: files.next().ok_or_else(missing)?, offset: statics }),
        };
        let slots = self.slots.map(|(at, pes)| Slots::map(&heap.file, at, pes)).transpose()?;
        Ok(Parts { heap, statics, slots })
    }
}

/// Makes a memory file for `purpose`, whose size stays as it is.
fn make(name: &str, purpose: &str, len: usize) -> Result<OwnedFd> {
    limits::check_file_size(purpose, len)?;
    let refused = |e: nix::Error| {
        Error::Memory(format!("a memory file of {len} bytes for {purpose} cannot be made: {e}"))
    };
    let file = sealable(name).map_err(refused)?;
    nix::unistd::ftruncate(&file, len as i64).map_err(refused)?;
    seal(&file);
    Ok(file)
}

impl Part {
    /// A range of `len` bytes in a file for itself.
    pub fn alone(name: &str, purpose: &str, len: usize) -> Result<Part> {
        Ok(Part { file: make(name, purpose, len)?, offset: 0 })
    }
}

/// How this PE gets the files of its host.
pub struct Host {
    listener: Option<Listener>,
}

impl Host {
    /// Prepares for handing out files, if this PE should be the first of its host.
    pub fn meet() -> Host {
        let listener = Listener::open().map_err(|why| {
            tracing::warn!("memory is not shared with other PEs: no Unix sockets: {why}")
        });
        Host { listener: listener.ok() }
    }

    /// What the others have to know to get files from this PE.
    pub fn address(&self) -> Vec<u8> {
        self.listener.as_ref().map(Listener::address).unwrap_or_default()
    }

    /// Collective among the PEs of a host: the parts of the one at index `me`. `needs` are those of
    /// all, by index.
    pub fn parts(self, needs: &[&Need], me: usize, limit: Duration) -> Result<Parts, Failure> {
        let too_long = || {
            let what = "the symmetric heaps (SHMEM_SYMMETRIC_SIZE) are too large";
            Failure::OfAll(Error::Memory(what.into()))
        };
        let together = needs.iter().all(|need| !need.address.is_empty());
        if !together || needs.len() == 1 {
            let layout = Layout::of(&needs[me..=me], 0).ok_or_else(too_long)?;
            return layout.make().and_then(|files| layout.parts(files)).map_err(Failure::OfAll);
        }
        if let Some(why) = handout::two_users(needs.iter().map(|need| &*need.address)) {
            return Err(Failure::OfAll(Error::Memory(why)));
        }
        let layout = Layout::of(needs, me).ok_or_else(too_long)?;
        let exchanging = |e| Error::system("sharing memory with the PEs of this host", e);
        let listener = self.listener.filter(|_| me == 0);
        let Some(listener) = listener else {
            return match handout::fetch(&needs[0].address, limit) {
                Ok(Ok(files)) => layout.parts(files).map_err(Failure::Own),
                Ok(Err(why)) => Err(Failure::OfAll(Error::Memory(why))),
                Err(e) if handout::is_of_first(&e) => Err(Failure::OfAll(exchanging(e))),
                Err(e) => Err(Failure::Own(exchanging(e))),
            };
        };
        let made = layout.make();
        let files: Files = made.map_err(|why| why.to_string());
        let handed_out = listener.hand_out(&files, needs.len() - 1, limit);
        handed_out.map_err(|e| Failure::Own(exchanging(e)))?;
        let files = files.map_err(|why| Failure::OfAll(Error::Memory(why)))?;
        layout.parts(files).map_err(Failure::Own)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn need(heap: usize, statics: usize) -> Need {
        Need { heap, statics, address: vec![] }
    }

    #[test]
    fn parts_of_a_file_do_not_overlap_and_lie_within() {
        let needs = [need(5 << 20, 4096), need(1, 0), need(4 << 20, 100), need(2 << 20, 1)];
        let refs: Vec<&Need> = needs.iter().collect();
        let mut ends = [0; 2];
        for (me, need) in needs.iter().enumerate() {
            let layout = Layout::of(&refs, me).unwrap();
            assert_eq!(layout.own[0] % HUGE_PAGE + layout.own[1] % page_size(), 0);
            for (kind, len) in [need.heap, need.statics].into_iter().enumerate() {
                assert!(layout.own[kind] >= ends[kind]);
                ends[kind] = layout.own[kind] + len;
                assert!(ends[kind] <= layout.lens[kind]);
            }
        }
        assert!(Layout::of(&[&need(usize::MAX, 0)], 0).is_none());
        assert!(Layout::of(&[&need(1 << 62, 0), &need(1 << 62, 0)], 0).is_none());
    }

    #[test]
    fn a_file_that_is_too_short_is_refused() {
        let (small, large) = (need(1, 1), need(9 << 20, 1));
        let files = Layout::of(&[&small], 0).unwrap().make().unwrap();
        assert!(Layout::of(&[&small, &large], 1).unwrap().parts(files).is_err());
    }

    #[test]
    fn pes_of_a_host_have_parts_of_the_same_files() {
        let limit = Duration::from_secs(20);
        let hosts = [(); 3].map(|()| Host::meet());
        let needs = hosts.each_ref().map(|host| Need { address: host.address(), ..need(1, 9) });
        let needs: Vec<&Need> = needs.iter().collect();
        let of = |file: &OwnedFd| nix::sys::stat::fstat(file).unwrap().st_ino;
        let mut seen: Vec<_> = std::thread::scope(|scope| {
            let threads: Vec<_> = hosts
                .into_iter()
                .enumerate()
                .map(|(me, host)| {
                    let needs = &needs;
                    scope.spawn(move || {
                        let Parts { heap, statics, .. } = host.parts(needs, me, limit).unwrap();
                        let statics = statics.unwrap();
                        (heap.offset, statics.offset, of(&heap.file), of(&statics.file))
                    })
                })
                .collect();
            threads.into_iter().map(|thread| thread.join().unwrap()).collect()
        });
        seen.sort_unstable();
        let (.., heaps, statics) = seen[0];
        let page = page_size();
        let expected = [0, 1, 2].map(|at| (at * HUGE_PAGE, at * page, heaps, statics));
        assert_eq!(seen, expected);
    }

    #[test]
    fn without_sockets_everyone_has_files_for_itself() {
        let alone = Host { listener: None };
        let needs = [need(1, 0), need(1, 0)];
        let parts = alone.parts(&needs.iter().collect::<Vec<_>>(), 1, Duration::ZERO).unwrap();
        assert!(parts.heap.offset == 0 && parts.statics.is_none());
    }
}
