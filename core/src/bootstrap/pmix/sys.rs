// SPDX-License-Identifier: Apache-2.0
//! The functions of `libpmix.so.2` that are used, and the layouts that they rely on.
//!
//! The layouts are part of the library's binary interface, whose version is in its name. They are
//! those of the header of PMIx 4.2.

use crate::foreign_functions;
use crate::library::{Loaded, Scope};
use crate::memory::statics;
use std::ffi::{CStr, c_char, c_int, c_void};
use std::ptr::{null, null_mut};
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, OnceLock};
use std::time::Duration;

const NAME: &str = "libpmix.so.2";
const NSPACE: usize = 256;
const KEY: usize = 512;

/// The rank that stands for all processes of a job.
const WILDCARD: u32 = u32::MAX - 1;
const SUCCESS: i32 = 0;
/// What is there is not of the type asked for.
const TYPE_MISMATCH: i32 = -18;
/// It was done at once, and no end will be told.
const OPERATION_SUCCEEDED: i32 = -157;
const EVENT_ACTION_COMPLETE: i32 = -334;
const LOST_CONNECTION: i32 = -61;
/// The same in versions before 4.
const LOST_CONNECTION_TO_SERVER: i32 = -101;
/// `PMIX_GLOBAL`: for processes of this host and of others.
const GLOBAL: u8 = 3;

const BOOL: u16 = 1;
const UINT32: u16 = 14;
const BYTE_OBJECT: u16 = 27;

/// A process: its job and its number.
#[repr(C)]
#[derive(Clone)]
pub struct Proc {
    nspace: [c_char; NSPACE],
    pub rank: u32,
}

impl Proc {
    /// Another process of the same job.
    pub fn peer(&self, rank: u32) -> Proc {
        Proc { nspace: self.nspace, rank }
    }

    /// All processes of the same job.
    pub fn everyone(&self) -> Proc {
        self.peer(WILDCARD)
    }
}

#[repr(C)]
#[derive(Clone, Copy)]
struct Bytes {
    at: *mut c_char,
    len: usize,
}

#[repr(C)]
union Data {
    flag: bool,
    number: u32,
    bytes: Bytes,
    space: [u64; 3],
}

#[repr(C)]
struct Value {
    kind: u16,
    data: Data,
}

#[repr(C)]
struct Info {
    key: [c_char; KEY],
    flags: u32,
    value: Value,
}

const _: () = {
    assert!(size_of::<Proc>() == 260 && std::mem::offset_of!(Proc, rank) == 256);
    assert!(size_of::<Value>() == 32 && std::mem::offset_of!(Value, data) == 8);
    assert!(size_of::<Info>() == 552 && std::mem::offset_of!(Info, flags) == 512);
    assert!(std::mem::offset_of!(Info, value) == 520 && size_of::<Bytes>() == 16);
};

impl Info {
    fn flag(name: &CStr) -> Info {
        let mut key = [0; KEY];
        for (place, byte) in key.iter_mut().zip(name.to_bytes()) {
            *place = *byte as c_char;
        }
        let mut data = Data { space: [0; 3] };
        data.flag = true;
        Info { key, flags: 0, value: Value { kind: BOOL, data } }
    }
}

type OnFence = extern "C" fn(c_int, *mut c_void);
type OnHandled =
    Option<extern "C" fn(c_int, *mut Info, usize, *mut c_void, *mut c_void, *mut c_void)>;
type OnEvent = extern "C" fn(
    usize,
    c_int,
    *const Proc,
    *mut Info,
    usize,
    *mut Info,
    usize,
    OnHandled,
    *mut c_void,
);

foreign_functions! {
    /// The functions.
    pub struct Library {
        init = c"PMIx_Init": fn(*mut Proc, *mut Info, usize) -> c_int;
        put = c"PMIx_Put": fn(u8, *const c_char, *mut Value) -> c_int;
        commit = c"PMIx_Commit": fn() -> c_int;
        fence_nb = c"PMIx_Fence_nb":
            fn(*const Proc, usize, *const Info, usize, OnFence, *mut c_void) -> c_int;
        get = c"PMIx_Get":
            fn(*const Proc, *const c_char, *const Info, usize, *mut *mut Value) -> c_int;
        abort = c"PMIx_Abort": fn(c_int, *const c_char, *mut Proc, usize) -> c_int;
        finalize = c"PMIx_Finalize": fn(*const Info, usize) -> c_int;
        error_string = c"PMIx_Error_string": fn(c_int) -> *const c_char;
        register = c"PMIx_Register_event_handler":
            fn(*mut c_int, usize, *mut Info, usize, OnEvent, *mut c_void, *mut c_void);
    }
}

/// The connection to the launcher is gone.
static LOST: AtomicBool = AtomicBool::new(false);

/// The end of a fence, for the one who waits for it.
#[derive(Default)]
struct Fence {
    status: Mutex<Option<c_int>>,
    ended: Condvar,
}

impl Library {
    /// Loads the library; it stays loaded. The error says why it cannot be.
    pub fn load() -> Result<&'static Library, String> {
        static LOADED: OnceLock<Result<Library, String>> = OnceLock::new();
        LOADED.get_or_init(Library::open).as_ref().map_err(String::clone)
    }

    fn open() -> Result<Library, String> {
        if statics::is_statically_linked() {
            return Err("a statically linked program cannot load libraries".into());
        }
        // Its own plug-ins look for its symbols, which is why they are global.
        // SAFETY: what a well-kept library does when it is loaded has no preconditions, and the types are the
        // prototypes in its header.
        unsafe {
            let library = Loaded::open(NAME, Scope::Global).map_err(|absent| absent.why)?;
            Library::of(&library)
        }
    }

    /// Connects to the launcher; gives this process.
    pub fn init(&self) -> Result<Proc, i32> {
        let mut me = Proc { nspace: [0; NSPACE], rank: 0 };
        // SAFETY: `me` is a place for the result; there is no further information.
        done(unsafe { (self.init)(&mut me, null_mut(), 0) })?;
        Ok(me)
    }

    /// Publishes bytes, which others find after the next fence.
    pub fn put(&self, key: &CStr, bytes: &[u8]) -> Result<(), i32> {
        let bytes = Bytes { at: bytes.as_ptr() as *mut c_char, len: bytes.len() };
        let mut data = Data { space: [0; 3] };
        data.bytes = bytes;
        let mut value = Value { kind: BYTE_OBJECT, data };
        // SAFETY: key and value are valid during the call, which copies and does not change them.
        done(unsafe { (self.put)(GLOBAL, key.as_ptr(), &mut value) })?;
        // SAFETY: no arguments.
        done(unsafe { (self.commit)() })
    }

    /// Waits for all processes, and for what they have published. The error is `None` when `limit`
    /// is over.
    pub fn fence(&self, everyone: &Proc, limit: Option<Duration>) -> Result<(), Option<i32>> {
        let fence = Arc::new(Fence::default());
        // Both outlive the call: after a time-out the library may still use them.
        let (info, procs) = (Box::new(Info::flag(c"pmix.collect")), Box::new(everyone.clone()));
        let (info, procs) = (Box::into_raw(info), Box::into_raw(procs));
        let told = Arc::into_raw(fence.clone()) as *mut c_void;
        // SAFETY: valid arrays of one element each; `ended` takes back the count in `told`.
        let status = unsafe { (self.fence_nb)(procs, 1, info, 1, ended, told) };
        let free = || {
            // SAFETY: both came from boxes, and the library is done with them.
            unsafe { drop((Box::from_raw(info), Box::from_raw(procs))) }
        };
        if status != SUCCESS {
            // SAFETY: a request that was not accepted is not answered.
            unsafe { drop(Arc::from_raw(told as *const Fence)) };
            free();
            return if status == OPERATION_SUCCEEDED { Ok(()) } else { Err(Some(status)) };
        }
        let mut ended = fence.status.lock().unwrap_or_else(|e| e.into_inner());
        let begin = std::time::Instant::now();
        while ended.is_none() && !self.server_is_lost() {
            let left = limit.map(|limit| limit.saturating_sub(begin.elapsed()));
            if left.is_some_and(|left| left.is_zero()) {
                return Err(None);
            }
            // The loss of the server does not wake this thread.
            let nap = left.unwrap_or(Duration::MAX).min(Duration::from_millis(200));
            ended = fence.ended.wait_timeout(ended, nap).unwrap_or_else(|e| e.into_inner()).0;
        }
        match *ended {
            Some(status) => {
                free();
                done(status).map_err(Some)
            }
            None => Err(Some(LOST_CONNECTION)),
        }
    }

    /// What a process has published under `key`.
    pub fn get_bytes(&self, of: &Proc, key: &CStr) -> Result<Vec<u8>, i32> {
        self.get(of, key, |value| {
            if value.kind != BYTE_OBJECT {
                return None;
            }
            // SAFETY: the kind says which member there is.
            let bytes = unsafe { value.data.bytes };
            if bytes.len == 0 {
                return Some(Vec::new());
            }
            // SAFETY: the library gives so many bytes, allocated by malloc for the caller.
            unsafe {
                let copy = std::slice::from_raw_parts(bytes.at as *const u8, bytes.len).to_vec();
                libc::free(bytes.at.cast());
                Some(copy)
            }
        })
    }

    /// A number that the launcher knows.
    pub fn get_number(&self, of: &Proc, key: &CStr) -> Result<u32, i32> {
        self.get(of, key, |value| match value.kind {
            // SAFETY: the kind says which member there is.
            UINT32 => Some(unsafe { value.data.number }),
            _ => None,
        })
    }

    fn get<T>(
        &self,
        of: &Proc,
        key: &CStr,
        take: impl FnOnce(&Value) -> Option<T>,
    ) -> Result<T, i32> {
        let mut value: *mut Value = null_mut();
        // What a fence has not brought is an error, nothing to wait for.
        let now = Info::flag(c"pmix.immediate");
        // SAFETY: all arguments are valid during the call; it sets `value` if it succeeds.
        done(unsafe { (self.get)(of, key.as_ptr(), &now, 1, &mut value) })?;
        if value.is_null() {
            return Err(TYPE_MISMATCH);
        }
        // SAFETY: the library allocated a value by malloc for the caller.
        unsafe {
            let taken = take(&*value);
            libc::free(value.cast());
            taken.ok_or(TYPE_MISMATCH)
        }
    }

    /// Asks the launcher to end the job.
    pub fn abort(&self, code: i32) {
        // SAFETY: no processes named: all of the job.
        unsafe { (self.abort)(code, c"a PE ends the job".as_ptr(), null_mut(), 0) };
    }

    /// Says goodbye.
    pub fn finalize(&self) {
        // SAFETY: there is no further information.
        unsafe { (self.finalize)(null(), 0) };
    }

    /// Notices from now on when the connection to the launcher is lost.
    pub fn watch_server(&self) {
        let mut codes = [LOST_CONNECTION, LOST_CONNECTION_TO_SERVER];
        let (at, count) = (codes.as_mut_ptr(), codes.len());
        // SAFETY: the codes are copied by the call; the handler lives as long as the program.
        unsafe {
            (self.register)(at, count, null_mut(), 0, lost, null_mut(), null_mut());
        }
    }

    pub fn server_is_lost(&self) -> bool {
        LOST.load(Ordering::Relaxed)
    }

    pub fn error_text(&self, status: i32) -> String {
        // SAFETY: gives a static text, or nothing.
        unsafe {
            match (self.error_string)(status) {
                text if text.is_null() => "unknown error".into(),
                text => CStr::from_ptr(text).to_string_lossy().into_owned(),
            }
        }
    }
}

extern "C" fn ended(status: c_int, told: *mut c_void) {
    // SAFETY: the count that `Library::fence` gave away, once per request.
    let fence = unsafe { Arc::from_raw(told as *const Fence) };
    *fence.status.lock().unwrap_or_else(|e| e.into_inner()) = Some(status);
    fence.ended.notify_all();
}

extern "C" fn lost(
    _: usize,
    _: c_int,
    _: *const Proc,
    _: *mut Info,
    _: usize,
    _: *mut Info,
    _: usize,
    handled: OnHandled,
    data: *mut c_void,
) {
    LOST.store(true, Ordering::Relaxed);
    if let Some(handled) = handled {
        handled(EVENT_ACTION_COMPLETE, null_mut(), 0, null_mut(), null_mut(), data);
    }
}

fn done(status: c_int) -> Result<(), i32> {
    if status == SUCCESS { Ok(()) } else { Err(status) }
}
