// SPDX-License-Identifier: Apache-2.0
//! Declaring variables: [`settings!`](crate::settings) and what it makes.

use super::environment::Environment;
use super::value::{Shown, Value};
use crate::error::{Error, Result};

/// What a variable is for, used to group listings.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Audience {
    /// For people who run programs.
    User,
    /// Set by a launcher for the processes it starts; not meant to be set by hand.
    Launcher,
}

/// One environment variable: a row of a table.
#[derive(Debug)]
pub struct Variable {
    /// Name in the environment.
    pub name: &'static str,
    /// Deprecated or foreign names, honoured in this order when `name` is not set.
    pub aliases: &'static [&'static str],
    /// Who sets it.
    pub audience: Audience,
    /// Whether all PEs of a job must have it alike.
    pub alike: bool,
    /// Whether empty text is a value.
    pub empty_counts: bool,
    /// What a value looks like, for people.
    pub form: &'static str,
    /// Default, as one would write it.
    pub default: &'static str,
    /// What it does, for people.
    pub help: &'static str,
}

impl Variable {
    /// The name under which it is set, and its value. Empty text nearly always counts as not set.
    pub fn find(&self, lookup: impl Fn(&str) -> Option<String>) -> Option<(&'static str, String)> {
        std::iter::once(self.name).chain(self.aliases.iter().copied()).find_map(|name| {
            let text = lookup(name).filter(|text| self.empty_counts || !text.is_empty())?;
            Some((name, text))
        })
    }
}

/// A variable with its value.
#[derive(Clone, Debug)]
pub struct Row {
    /// The variable.
    pub variable: &'static Variable,
    /// Its value, as one would write it.
    pub value: String,
    /// What other PEs must have alike, if that is not what the default is.
    pub common: Option<String>,
}

/// The variables of one owner: the core, or a transport.
#[derive(Clone, Copy, Debug)]
pub struct Table {
    /// In the order in which they are listed to people.
    pub variables: &'static [Variable],
    /// Parses an environment; the first value that cannot be parsed is an error.
    pub rows: fn(&Environment) -> Result<Vec<Row>>,
    /// Parses an environment as far as that goes: a row or an error for each variable.
    pub each: fn(&Environment) -> Vec<Result<Row>>,
}

impl Table {
    /// Of who has no variables.
    pub const EMPTY: Table =
        Table { variables: &[], rows: |_| Ok(Vec::new()), each: |_| Vec::new() };
}

/// The value of `variable`, or its default.
pub fn parse<T: Value>(
    variable: &'static Variable,
    lookup: impl Fn(&str) -> Option<String>,
) -> Result<T> {
    let found = variable.find(lookup);
    if let Some(unset) = T::unset().filter(|_| found.is_none()) {
        return Ok(unset);
    }
    let (name, text) = found.unwrap_or_else(|| (variable.name, variable.default.to_owned()));
    T::parse(&text).map_err(|why| Error::Config { name: name.to_owned(), value: text, why })
}

/// `variable` with `value`.
pub fn row<T: Value>(variable: &'static Variable, value: &T) -> Row {
    let common = value.common();
    let usual = T::parse(variable.default).map(|default| default.common());
    Row {
        variable,
        value: Shown(value).to_string(),
        common: (variable.alike && usual.as_ref() != Ok(&common)).then_some(common),
    }
}

/// Declares environment variables, and the struct that holds their parsed values.
///
/// ```
/// use tombolo_core::config::{Bytes, Environment, Switch};
///
/// tombolo_core::settings! {
///     /// The settings of a transport.
///     pub struct Settings {
///         /// Bytes of a packet; the same on all PEs.
///         User packet: Option<Bytes> = "", "SHMEM_X_PACKET" or "SHMEM_X_OLD_NAME", alike;
///         /// Whether to hurry.
///         User hurry: Switch = "on", "SHMEM_X_HURRY";
///     }
/// }
///
/// let environment = Environment::from_iter([("SHMEM_X_PACKET", "4k")]);
/// assert_eq!(Settings::read(&environment)?.packet, Some(Bytes(4096)));
/// assert_eq!(Settings::TABLE.variables[1].help, "Whether to hurry.");
/// # Ok::<(), tombolo_core::Error>(())
/// ```
///
/// The documentation of a field is the help text that people read. A name may have other names
/// (`or`), and is `alike` if all PEs of a job must have the same value: PEs compare these at start.
/// The struct has `VARIABLES`, `TABLE`, `read`, `from_lookup` and `rows`.
#[macro_export]
macro_rules! settings {
    ($(#[doc = $about:literal])+ $vis:vis struct $Settings:ident { $(
        $(#[doc = $help:literal])+ $audience:ident $field:ident : $ty:ty = $default:literal,
        $name:literal $(or $alias:literal)* $(, $alike:ident)? ;
    )* }) => {
        $(#[doc = $about])+
        #[derive(Clone, Debug)]
        $vis struct $Settings { $( $(#[doc = $help])+ pub $field: $ty, )* }

        impl $Settings {
            /// In the order in which they are listed to people.
            pub const VARIABLES: &'static [$crate::config::Variable] = &[$(
                $crate::config::Variable {
                    name: $name,
                    aliases: &[$($alias),*],
                    audience: $crate::config::Audience::$audience,
                    alike: $crate::settings!(@alike $($alike)?),
                    empty_counts: <$ty as $crate::config::Value>::EMPTY_COUNTS,
                    form: <$ty as $crate::config::Value>::FORM,
                    default: $default,
                    help: concat!($($help),+).trim_ascii_start(),
                }
            ),*];

            /// The variables and how to print their values.
            pub const TABLE: $crate::config::Table = $crate::config::Table {
                variables: Self::VARIABLES,
                rows: |environment| Ok(Self::read(environment)?.rows()),
                each: |environment| {
                    let lookup = |name: &str| environment.text(name).map(str::to_owned);
                    let mut variables = Self::VARIABLES.iter();
                    let mut next = || variables.next().expect("a variable for each field");
                    vec![$({
                        let variable = next();
                        let value = $crate::config::parse::<$ty>(variable, &lookup);
                        value.map(|value| $crate::config::row(variable, &value))
                    }),*]
                },
            };

            /// Parses an environment; the first value that cannot be parsed is an error naming the
            /// variable, its value and the form expected.
            pub fn read(environment: &$crate::config::Environment) -> $crate::error::Result<Self> {
                Self::from_lookup(|name| environment.text(name).map(str::to_owned))
            }

            /// As `read`, with the variables that `lookup` finds.
            pub fn from_lookup(
                lookup: impl Fn(&str) -> Option<String>,
            ) -> $crate::error::Result<Self> {
                let mut variables = Self::VARIABLES.iter();
                let mut next = || variables.next().expect("a variable for each field");
                Ok(Self { $( $field: $crate::config::parse(next(), &lookup)?, )* })
            }

            /// The variables with their values.
            pub fn rows(&self) -> Vec<$crate::config::Row> {
                let mut variables = Self::VARIABLES.iter();
                let mut next = || variables.next().expect("a variable for each field");
                vec![$( $crate::config::row(next(), &self.$field) ),*]
            }
        }
    };
    (@alike) => { false };
    (@alike alike) => { true };
}
