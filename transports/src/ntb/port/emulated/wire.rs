// SPDX-License-Identifier: Apache-2.0
//! What one process has under way on one direction of a link whose time is modelled, and whoever
//! places it when it is due: threads that poll the port, as they come by, and a thread of its own
//! for what nobody polls for.

use super::link::Link;
use super::posted::lock;
use super::words::LinkWord;
use super::writer::Writer;
use super::{doorbell, pace, sys};
use crate::ntb::port::{DoorbellDelivery, Event};
use std::collections::VecDeque;
use std::sync::atomic::{AtomicBool, AtomicU8, AtomicU64, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, TryLockError};
use std::thread::{JoinHandle, Thread};
use std::time::Duration;
use tombolo_core::threads::spawn_without_signals;

/// Between looks of the thread while something is, or was a short while ago, under way.
const NAP: Duration = Duration::from_micros(20);
/// The longest one. A fault may hold bytes up for a second.
const LONG_NAP: Duration = Duration::from_millis(1);
/// The one while others poll, who place what is due in time: where threads share a processor each look
/// of this one costs the others some 30 microseconds.
const POLLED_NAP: Duration = Duration::from_millis(2);
/// How long who rings stays to deliver it, picoseconds: several trips of a link with default timing.
const RINGING_PS: u64 = 5_000_000;
/// What is due so soon is waited for, picoseconds: the next poll of the same thread would come later, and
/// bytes would arrive that much after their time.
const NEAR_PS: u64 = 250_000;
/// Looks that find nothing before the thread sleeps until it is woken: few, or heartbeats would keep it
/// awake.
const IDLE_LOOKS: u32 = 4;
/// See [`Wire::due_ps`].
const NOTHING: u64 = u64::MAX;

/// It looks by itself before long.
const AWAKE: u8 = 0;
/// Others poll: it looks after [`POLLED_NAP`], or when it is woken because they do so no more.
const NAPPING: u8 = 1;
/// Nothing is under way: it looks when it is woken.
const ASLEEP: u8 = 2;

/// See the module.
pub struct Wire {
    link: Arc<Link>,
    side: usize,
    delivery: DoorbellDelivery,
    under_way: Mutex<UnderWay>,
    /// When something is due next, or 0 if that must be found out; [`NOTHING`] if nothing is under way.
    due_ps: AtomicU64,
    /// Changes whenever somebody polls.
    polls: AtomicU64,
    /// What it was when the thread last might have been woken.
    polls_at_wake: AtomicU64,
    /// Who has polled does so no more.
    rested: AtomicBool,
    /// How the thread sleeps: [`AWAKE`], [`NAPPING`] or [`ASLEEP`].
    sleep: AtomicU8,
    thread: Mutex<Option<Thread>>,
}

#[derive(Default)]
struct UnderWay {
    writers: Vec<Arc<Mutex<Writer>>>,
    doorbells: VecDeque<Doorbell>,
}

/// A doorbell write.
struct Doorbell {
    due_ps: u64,
    bits: u64,
    link: LinkWord,
}

/// The thread of a wire; ends when dropped.
pub struct Keeper {
    stop: Arc<AtomicBool>,
    handle: Option<JoinHandle<()>>,
}

impl Wire {
    /// The wire out of `side`, with nothing on it.
    pub fn new(link: Arc<Link>, side: usize, delivery: DoorbellDelivery) -> Arc<Wire> {
        Arc::new(Wire {
            link,
            side,
            delivery,
            under_way: Mutex::default(),
            due_ps: AtomicU64::new(NOTHING),
            polls: AtomicU64::new(0),
            polls_at_wake: AtomicU64::new(0),
            rested: AtomicBool::new(false),
            sleep: AtomicU8::new(AWAKE),
            thread: Mutex::default(),
        })
    }

    /// Starts the thread.
    pub fn keep(self: &Arc<Wire>) -> std::io::Result<Keeper> {
        let stop = Arc::new(AtomicBool::new(false));
        let (wire, stopped) = (Arc::clone(self), Arc::clone(&stop));
        let handle = spawn_without_signals("shmem-ntb-link", move || wire.run(&stopped))?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(handle.thread().clone());
        Ok(Keeper { stop, handle: Some(handle) })
    }

    /// The time of the link.
    pub fn now_ps(&self) -> u64 {
        self.link.now_ps()
    }

    pub fn add(&self, writer: Arc<Mutex<Writer>>) {
        self.lock().writers.push(writer);
    }

    pub fn remove(&self, writer: &Arc<Mutex<Writer>>) {
        self.lock().writers.retain(|other| !Arc::ptr_eq(other, writer));
    }

    /// Rings the peer when everything that was sent before has arrived, not before `due_ps`.
    pub fn ring(&self, bits: u64, due_ps: u64) {
        let link = self.link.word();
        self.lock().doorbells.push_back(Doorbell { due_ps, bits, link });
        self.wake();
        // Who rings for a sleeper may be about to sleep, and the thread would deliver it much later.
        let until = due_ps.min(self.link.now_ps() + RINGING_PS);
        while self.due_ps.load(Ordering::Relaxed) != NOTHING && self.link.now_ps() <= until {
            self.poll();
            std::hint::spin_loop();
        }
        self.poll();
    }

    /// Something is under way: the thread places it if nobody else does.
    #[inline]
    pub fn wake(&self) {
        self.due_ps.store(0, Ordering::Release);
        // What was put under way was so under a lock that the thread takes after it has said so.
        match self.sleep.load(Ordering::SeqCst) {
            AWAKE => {}
            NAPPING => {
                let polls = self.polls.load(Ordering::Relaxed);
                if self.polls_at_wake.swap(polls, Ordering::Relaxed) == polls {
                    self.wake_now();
                }
            }
            _ => self.wake_now(),
        }
    }

    /// Who has polled sleeps from now on: the thread places what is under way.
    pub fn rest(&self) {
        // Whoever is at it may have looked before the last was sent.
        let is_looked_at = self.under_way.try_lock().is_err();
        if is_looked_at || self.due_ps.load(Ordering::Acquire) != NOTHING {
            self.rested.store(true, Ordering::SeqCst);
            self.wake_now();
        }
    }

    #[cold]
    fn wake_now(&self) {
        if let Some(thread) = &*self.thread.lock().unwrap_or_else(PoisonError::into_inner) {
            thread.unpark();
        }
    }

    /// Places what is due, unless another thread is at it.
    #[inline]
    pub fn poll(&self) {
        // Polls at the same time may count as one.
        self.polls.store(self.polls.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
        let due_ps = self.due_ps.load(Ordering::Relaxed);
        if due_ps == NOTHING {
            return;
        }
        if due_ps > 0 {
            let now = self.link.now_ps();
            if due_ps.saturating_sub(now) > NEAR_PS {
                return;
            }
            pace::wait_until(&self.link, due_ps);
        }
        match self.under_way.try_lock() {
            Ok(mut under_way) => _ = self.advance(&mut under_way),
            Err(TryLockError::Poisoned(poisoned)) => _ = self.advance(&mut poisoned.into_inner()),
            Err(TryLockError::WouldBlock) => {}
        }
    }

    /// Places what is due. Time until more is, if anything is under way.
    fn advance(&self, under_way: &mut UnderWay) -> Option<u64> {
        // Whoever sends something while this looks says so again.
        self.due_ps.swap(NOTHING, Ordering::AcqRel);
        // Doorbells due by now follow all writes due by then, which are placed below.
        let now = self.link.now_ps();
        let mut next: Option<u64> = None;
        let mut sooner = |left_ps: u64| next = Some(next.unwrap_or(u64::MAX).min(left_ps));
        let mut all = true;
        for writer in &under_way.writers {
            match writer.try_lock() {
                Ok(mut writer) => writer.advance(now).into_iter().for_each(&mut sooner),
                // Its writer places what is due; who rings has to wait for that.
                Err(_) => (all, _) = (false, sooner(0)),
            }
        }
        while let Some(first) = under_way.doorbells.front() {
            if !all || first.due_ps > now {
                sooner(first.due_ps.saturating_sub(now));
                break;
            }
            self.deliver(first);
            under_way.doorbells.pop_front();
        }
        if let Some(left_ps) = next {
            self.due_ps.fetch_min(now.saturating_add(left_ps), Ordering::Relaxed);
        }
        next
    }

    fn deliver(&self, doorbell: &Doorbell) {
        let own = self.link.side(self.side);
        if self.link.word() != doorbell.link || !doorbell.link.is_up() {
            return own.count(Event::Lost, 1);
        }
        own.count(Event::DoorbellsRung, 1);
        let peer = self.link.side(1 - self.side);
        doorbell::ring(peer, self.delivery, doorbell.bits, doorbell.due_ps);
    }

    fn run(&self, stop: &AtomicBool) {
        sys::nap_precisely();
        let (mut idle, mut seen) = (0, 0);
        while !stop.load(Ordering::SeqCst) {
            let next = self.advance(&mut self.lock());
            let polls = self.polls.load(Ordering::Relaxed);
            let rested = self.rested.swap(false, Ordering::SeqCst);
            if polls != seen {
                (seen, idle) = (polls, 0);
                if !rested {
                    self.sleep(NAPPING, |_| std::thread::park_timeout(POLLED_NAP));
                    continue;
                }
            }
            idle = if next.is_some() { 0 } else { idle + 1 };
            if idle < IDLE_LOOKS {
                let left = Duration::from_nanos(next.unwrap_or(0) / 1000);
                std::thread::sleep(left.clamp(NAP, LONG_NAP));
                continue;
            }
            self.sleep(ASLEEP, |wire| {
                if !wire.is_anything_under_way() && !stop.load(Ordering::SeqCst) {
                    std::thread::park();
                }
            });
            idle = 0;
        }
    }

    fn sleep(&self, how: u8, sleep: impl FnOnce(&Wire)) {
        self.sleep.store(how, Ordering::SeqCst);
        sleep(self);
        self.sleep.store(AWAKE, Ordering::SeqCst);
    }

    fn is_anything_under_way(&self) -> bool {
        let under_way = self.lock();
        let mut writers = under_way.writers.iter();
        !under_way.doorbells.is_empty() || writers.any(|it| lock(it).is_under_way())
    }

    fn lock(&self) -> MutexGuard<'_, UnderWay> {
        self.under_way.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for Keeper {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::SeqCst);
        if let Some(handle) = self.handle.take() {
            handle.thread().unpark();
            // A panic of the thread has been printed already.
            let _ = handle.join();
        }
    }
}
