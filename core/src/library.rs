// SPDX-License-Identifier: Apache-2.0
//! Libraries that a machine may not have: loaded when they are needed, never unloaded.

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_LAZY, RTLD_LOCAL};
use std::ffi::{CStr, OsStr, c_char, c_int};
use std::fmt;

/// A library that is loaded, to the end of the process: its threads and exit handlers may run until then.
pub struct Loaded {
    name: String,
    library: &'static Library,
}

/// Who finds the functions of a library besides the one who loads it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Nobody.
    Local,
    /// Libraries that are loaded later.
    Global,
}

/// Why a library cannot be loaded.
#[derive(Clone, Debug)]
pub struct Unusable {
    name: String,
    /// In the loader's words.
    pub why: String,
}

impl Unusable {
    /// For people who could install it by Debian's packages `packages`.
    pub fn with_remedy(&self, packages: &str) -> String {
        match self.is_absent() {
            true => format!("{self} (Debian: apt install {packages})"),
            false => self.to_string(),
        }
    }

    fn is_absent(&self) -> bool {
        self.why.contains("No such file")
    }
}

impl fmt::Display for Unusable {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.is_absent() {
            true => write!(f, "{} is not installed", self.name),
            false => write!(f, "{} cannot be loaded: {}", self.name, self.why),
        }
    }
}

impl Loaded {
    /// Loads the library called `name`.
    ///
    /// # Safety
    /// What the library does when it is loaded is safe.
    pub unsafe fn open(name: &str, scope: Scope) -> Result<Loaded, Unusable> {
        let scope: c_int = match scope {
            Scope::Local => RTLD_LOCAL,
            Scope::Global => RTLD_GLOBAL,
        };
        // SAFETY: by the caller's word.
        match unsafe { Library::open(Some(OsStr::new(name)), RTLD_LAZY | scope) } {
            Ok(library) => {
                Ok(Loaded { name: name.to_owned(), library: Box::leak(Box::new(library)) })
            }
            Err(why) => Err(Unusable { name: name.to_owned(), why: why.to_string() }),
        }
    }

    /// A function of it.
    ///
    /// # Safety
    /// `T` is the function's type.
    pub unsafe fn function<T: Copy>(&self, name: &CStr) -> Result<T, String> {
        // SAFETY: by the caller's word.
        let found = unsafe { self.library.get::<T>(name.to_bytes_with_nul()) };
        found
            .map(|symbol| *symbol)
            .map_err(|_| format!("{} has no function {}", self.name, name.to_string_lossy()))
    }
}

/// Declares functions of a library, as the fields of a type that finds them.
#[macro_export]
macro_rules! foreign_functions {
    (
        $(#[$about:meta])*
        $of_type:vis struct $Functions:ident {
            $($of_field:vis $name:ident = $symbol:literal:
                fn($($argument:ty),* $(,)?) $(-> $result:ty)?;)*
        }
    ) => {
        $(#[$about])*
        $of_type struct $Functions {
            $($of_field $name: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl $Functions {
            /// # Safety
            /// These are the types of the functions in this library.
            unsafe fn of(library: &$crate::library::Loaded) -> Result<$Functions, String> {
                $(
                    let name: &std::ffi::CStr = $symbol;
                    // SAFETY: by the caller's word.
                    let $name = unsafe { library.function(name)? };
                )*
                Ok($Functions { $($name,)* })
            }
        }
    };
}

/// A copy of a C string; empty for null.
///
/// # Safety
/// `text` is null, or ends with a zero.
pub unsafe fn text_of(text: *const c_char) -> String {
    if text.is_null() {
        return String::new();
    }
    // SAFETY: by the caller's word.
    unsafe { CStr::from_ptr(text) }.to_string_lossy().into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    foreign_functions! {
        struct Few {
            length = c"strlen": fn(*const c_char) -> usize;
        }
    }

    foreign_functions! {
        struct Many {
            _length = c"strlen": fn(*const c_char) -> usize;
            _none = c"no_such_function": fn();
        }
    }

    #[test]
    fn functions_are_found_or_missed_by_name() {
        // SAFETY: the C library, and types as in its headers.
        unsafe {
            let c = Loaded::open("libc.so.6", Scope::Local).expect("the C library");
            assert_eq!((Few::of(&c).expect("it has strlen").length)(c"four".as_ptr()), 4);
            let why = Many::of(&c).err();
            assert_eq!(why.as_deref(), Some("libc.so.6 has no function no_such_function"));
        }
    }

    #[test]
    fn what_is_absent_can_be_installed() {
        // SAFETY: there is no such library.
        let why = unsafe { Loaded::open("libnone.so.1", Scope::Global) }.err().expect("none");
        assert_eq!(why.to_string(), "libnone.so.1 is not installed");
        assert_eq!(
            why.with_remedy("none1"),
            "libnone.so.1 is not installed (Debian: apt install none1)"
        );
        let broken = Unusable { name: "libx.so".into(), why: "file too short".into() };
        assert_eq!(broken.with_remedy("x"), "libx.so cannot be loaded: file too short");
    }
}
