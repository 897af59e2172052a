// SPDX-License-Identifier: Apache-2.0
//! Types of environment variables: how each is read and shown.

use std::fmt;
use std::os::fd::RawFd;
use std::time::Duration;

/// Longer times would overflow clocks; about 30 years.
const TIME_MAX: Duration = Duration::from_secs(1_000_000_000);

/// A type that a variable can have.
pub trait Value: Sized {
    /// What a value looks like, for people.
    const FORM: &'static str;
    /// Whether empty text is a value, and not as if the variable were not set.
    const EMPTY_COUNTS: bool = false;
    /// Reads `text`; the error says what was expected.
    fn parse(text: &str) -> Result<Self, String>;
    /// The value of a variable that is not set, where that is not what its default would be read as.
    fn unset() -> Option<Self> {
        None
    }
    /// Writes the value the way a person would.
    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result;
    /// The part of the value that PEs must have alike, where they must.
    fn common(&self) -> String {
        Shown(self).to_string()
    }
}

/// A value, to be printed the way a person would write it.
pub struct Shown<'a, T: Value>(pub &'a T);

impl<T: Value> fmt::Display for Shown<'_, T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.show(f)
    }
}

/// No value is the empty text.
impl<T: Value> Value for Option<T> {
    const FORM: &'static str = T::FORM;

    fn parse(text: &str) -> Result<Self, String> {
        if text.trim().is_empty() { Ok(None) } else { T::parse(text).map(Some) }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.as_ref().map_or(Ok(()), |value| value.show(f))
    }
}

/// A number of bytes, read as `SHMEM_SYMMETRIC_SIZE` of the standard is: a non-negative integer or
/// floating point number, one optional suffix (k, m, g, t); what follows the suffix is ignored.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl Value for Bytes {
    const FORM: &'static str = "a number with an optional suffix k, m, g or t";

    fn parse(text: &str) -> Result<Self, String> {
        let expected = || format!("expected {}, such as 512m or 1.5G", Self::FORM);
        let text = text.trim();
        let (negative, unsigned) = match text.strip_prefix('-') {
            Some(rest) => (true, rest),
            None => (false, text.strip_prefix('+').unwrap_or(text)),
        };
        let (digits, rest) = unsigned.split_at(number_len(unsigned));
        // Words that C's strtod takes for numbers come here too.
        let number: f64 = digits.parse().map_err(|_| expected())?;
        let shift = match rest.chars().next().map(|c| c.to_ascii_lowercase()) {
            None => 0,
            Some('k') => 10,
            Some('m') => 20,
            Some('g') => 30,
            Some('t') => 40,
            Some(_) => return Err(expected()),
        };
        if negative && number != 0.0 {
            return Err(format!("{}; this one is negative", expected()));
        }
        // A whole number is taken exactly: a float would round it above 2^53.
        if let Ok(whole) = digits.parse::<u64>() {
            let bytes = whole.checked_mul(1 << shift).ok_or("larger than any address space")?;
            return Ok(Bytes(bytes));
        }
        let bytes = (number * (1u64 << shift) as f64).ceil();
        if bytes >= u64::MAX as f64 {
            return Err("larger than any address space".into());
        }
        Ok(Bytes(bytes as u64))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (mut number, mut suffix) = (self.0, "");
        for next in ["k", "m", "g", "t"] {
            if number == 0 || number % 1024 != 0 {
                break;
            }
            (number, suffix) = (number / 1024, next);
        }
        write!(f, "{number}{suffix}")
    }
}

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.show(f)
    }
}

/// Length of the decimal number without sign that `text` begins with, as C's strtod reads it: digits with or
/// without a point, and an exponent if it has digits.
fn number_len(text: &str) -> usize {
    let end_of_digits = |from: usize| {
        let digits = text[from..].bytes().take_while(u8::is_ascii_digit).count();
        from + digits
    };
    let mut end = end_of_digits(0);
    if text[end..].starts_with('.') {
        end = end_of_digits(end + 1);
    }
    if text[end..].starts_with(['e', 'E']) {
        let signed = usize::from(text[end + 1..].starts_with(['+', '-']));
        let exponent = end + 1 + signed;
        if end_of_digits(exponent) > exponent {
            end = end_of_digits(exponent);
        }
    }
    end
}

/// From which length on something is done.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Least {
    /// As long as it pays.
    Auto,
    /// Never.
    Never,
    /// With at least so many bytes.
    From(usize),
}

impl Value for Least {
    const FORM: &'static str = "auto, off, or a number of bytes such as 64k";

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "auto" => return Ok(Least::Auto),
            "off" => return Ok(Least::Never),
            _ => {}
        }
        let bytes = Bytes::parse(text).ok().and_then(|bytes| usize::try_from(bytes.0).ok());
        let bytes = bytes.filter(|bytes| *bytes > 0);
        bytes.map(Least::From).ok_or_else(|| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Least::Auto => f.write_str("auto"),
            Least::Never => f.write_str("off"),
            Least::From(bytes) => Bytes(*bytes as u64).show(f),
        }
    }
}

/// On (also 1, yes, true) or off (also 0, no, false and the empty text).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Switch(pub bool);

impl Value for Switch {
    const FORM: &'static str = "on, 1, yes or true; off, 0, no or false";

    fn parse(text: &str) -> Result<Self, String> {
        match text.trim().to_ascii_lowercase().as_str() {
            "on" | "1" | "yes" | "true" => Ok(Switch(true)),
            off if OFF.contains(&off) => Ok(Switch(false)),
            _ => Err(format!("expected {}", Self::FORM)),
        }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { "on" } else { "off" })
    }
}

/// What does not switch on.
const OFF: [&str; 5] = ["", "0", "off", "no", "false"];

/// What is asked for by any value, as OpenSHMEM 1.6 ("Environment Variables") has it for
/// `SHMEM_DEBUG`; but not by 0, off, no, false and the empty text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Asked(pub bool);

impl Value for Asked {
    const FORM: &'static str = "off, 0, no or false; any other value is on";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(Asked(!OFF.contains(&text.trim().to_ascii_lowercase().as_str())))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { "on" } else { "off" })
    }
}

/// What is asked for by any value at all, as OpenSHMEM 1.6 ("Environment Variables") has it for
/// `SHMEM_VERSION` and `SHMEM_INFO`: "off" is asking too.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Present(pub bool);

impl Value for Present {
    const FORM: &'static str = "any text, also none; off if it is not set";
    const EMPTY_COUNTS: bool = true;

    fn parse(_: &str) -> Result<Self, String> {
        Ok(Present(true))
    }

    fn unset() -> Option<Self> {
        Some(Present(false))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0 { "on" } else { "off" })
    }
}

/// Which transports may be used.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Transports {
    /// Every one that works, in built-in order, save those named.
    AllBut(Vec<String>),
    /// Those named, in that order.
    Only(Vec<String>),
}

impl Transports {
    /// Whether it was asked for by its name.
    pub fn asks_for(&self, name: &str) -> bool {
        matches!(self, Transports::Only(names) if names.iter().any(|one| one == name))
    }

    /// Whether it may be used.
    pub fn allows(&self, name: &str) -> bool {
        match self {
            Transports::AllBut(not) => !not.iter().any(|one| one == name),
            Transports::Only(_) => self.asks_for(name),
        }
    }

    /// The names of `known` that are wanted, in order of preference.
    pub fn choose<'a>(&self, known: &[&'a str]) -> Vec<&'a str> {
        match self {
            Transports::AllBut(_) => {
                known.iter().copied().filter(|name| self.allows(name)).collect()
            }
            Transports::Only(names) => {
                names.iter().filter_map(|n| known.iter().copied().find(|k| k == n)).collect()
            }
        }
    }

    /// Every transport named in the setting.
    pub fn named(&self) -> &[String] {
        match self {
            Transports::AllBut(names) | Transports::Only(names) => names,
        }
    }
}

impl Value for Transports {
    const FORM: &'static str = "names separated by commas, or ^name to leave some out";

    fn parse(text: &str) -> Result<Self, String> {
        let names: Vec<&str> = text.split(',').map(str::trim).filter(|n| !n.is_empty()).collect();
        if names.is_empty() || matches!(names[..], [name] if name.eq_ignore_ascii_case("all")) {
            return Ok(Transports::AllBut(vec![]));
        }
        if let Some(twice) = (1..names.len()).find(|at| names[..*at].contains(&names[*at])) {
            return Err(format!("'{}' is named twice", names[twice].trim_start_matches('^')));
        }
        let without: Vec<String> =
            names.iter().filter_map(|n| n.strip_prefix('^').map(str::to_owned)).collect();
        match without.len() {
            0 => Ok(Transports::Only(names.into_iter().map(str::to_owned).collect())),
            n if n == names.len() => Ok(Transports::AllBut(without)),
            _ => Err("names to use and names to leave out (^) cannot be mixed".into()),
        }
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Transports::AllBut(names) if names.is_empty() => f.write_str("all"),
            Transports::AllBut(names) => write!(f, "^{}", names.join(",^")),
            Transports::Only(names) => f.write_str(&names.join(",")),
        }
    }
}

/// `text` as a time in units of which a second has `units`.
fn seconds(text: &str, units: f64) -> Option<Duration> {
    let time = Duration::try_from_secs_f64(text.parse::<f64>().ok()? / units).ok()?;
    (time <= TIME_MAX).then_some(time)
}

impl Value for Duration {
    const FORM: &'static str = "a number of seconds, up to 1000000000";

    fn parse(text: &str) -> Result<Self, String> {
        seconds(text.trim(), 1.0).ok_or_else(|| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.as_secs_f64())
    }
}

impl Value for String {
    const FORM: &'static str = "text";

    fn parse(text: &str) -> Result<Self, String> {
        Ok(text.to_owned())
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self)
    }
}

impl Value for u32 {
    const FORM: &'static str = "a whole number";

    fn parse(text: &str) -> Result<Self, String> {
        text.trim().parse().map_err(|_| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{self}")
    }
}

/// A descriptor that a launcher has left open for this process.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Descriptor(pub RawFd);

impl Value for Descriptor {
    const FORM: &'static str = "the number of an open descriptor";

    fn parse(text: &str) -> Result<Self, String> {
        let number = text.trim().parse().ok().filter(|fd| *fd >= 0);
        number.map(Descriptor).ok_or_else(|| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0)
    }
}

/// Declares an enum whose values people write as words.
#[macro_export]
macro_rules! choice {
    ($(#[$doc:meta])* $name:ident { $( $(#[$vdoc:meta])* $variant:ident = $text:literal ),* $(,)? }) => {
        $crate::named! { $(#[$doc])* $name { $( $(#[$vdoc])* $variant = $text ),* } }

        impl $crate::config::Value for $name {
            const FORM: &'static str = concat!("one of:" $(, " ", $text)*);

            fn parse(text: &str) -> Result<Self, String> {
                let text = text.trim().to_ascii_lowercase();
                let named = $name::ALL.into_iter().find(|choice| choice.name() == text);
                named.ok_or_else(|| format!("expected {}", Self::FORM))
            }

            fn show(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(self.name())
            }
        }
    };
}

choice! {
    /// How static data is made reachable.
    Static {
        /// Remap, and CMA where that is refused.
        Auto = "auto",
        /// Shared mapping in place of the data segment.
        Remap = "remap",
        /// System calls on the data where it lies.
        Cma = "cma",
        /// Not reachable.
        Off = "off",
    }
}

choice! {
    /// What a PE that cannot be reached any more means for the job.
    OnLoss {
        /// The job ends.
        End = "end",
        /// The others go on.
        Continue = "continue",
    }
}

choice! {
    /// A protocol between a launcher and the processes it starts.
    Pmi {
        /// What the launcher offers.
        Auto = "auto",
        /// Version 1 over the descriptor in `PMI_FD`.
        Pmi1 = "pmi1",
        /// Version 2 over the same descriptor.
        Pmi2 = "pmi2",
        /// PMIx, through its library.
        Pmix = "pmix",
    }
}

/// A time in milliseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Millis(pub Duration);

impl Value for Millis {
    const FORM: &'static str = "a number of milliseconds, up to 1000000000000";

    fn parse(text: &str) -> Result<Self, String> {
        let text = text.trim();
        let number = text.strip_suffix("ms").unwrap_or(text);
        seconds(number.trim_end(), 1000.0)
            .map(Millis)
            .ok_or_else(|| format!("expected {}", Self::FORM))
    }

    fn show(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}", self.0.as_secs_f64() * 1000.0)
    }
}

choice! {
    /// What is logged: lines at least as grave as this.
    Log {
        /// What ends the job.
        Error = "error",
        /// What people should know.
        Warn = "warn",
        /// What the library decides.
        Info = "info",
        /// What it does.
        Debug = "debug",
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_standard() {
        for (text, bytes) in [
            ("20m", 20_971_520),
            ("3.1M", 3_250_586),
            (".5m", 524_288),
            ("0.5m", 524_288),
            ("20kk", 20 << 10),
            ("1T", 1 << 40),
            ("0", 0),
            ("4096", 4096),
            ("7.1", 8),
            ("1e3", 1000),
            ("1e6k", 1_024_000_000),
            ("1.5E+1m", 15 << 20),
            ("25e-1k", 2560),
            ("+5m", 5 << 20),
            ("-0", 0),
            ("1.k", 1024),
            ("18446744073709551615", u64::MAX),
        ] {
            assert_eq!(Bytes::parse(text), Ok(Bytes(bytes)), "{text}");
        }
        for text in
            ["", "x", "1q", ".", ".k", "1.2.3", "1e", "1e+k", "+-1", "nan", "inf", "-inf", "0x10"]
        {
            let why = Bytes::parse(text).unwrap_err();
            assert!(why.starts_with("expected a number"), "{text}: {why}");
        }
        for text in ["-1", "-0.5m", "-1e3"] {
            assert!(Bytes::parse(text).unwrap_err().ends_with("is negative"), "{text}");
        }
        for text in ["99999999999t", "1e400", "1e30"] {
            assert_eq!(Bytes::parse(text), Err("larger than any address space".into()), "{text}");
        }
    }

    #[test]
    fn switches_know_their_words_and_what_is_asked_for_takes_any() {
        for text in ["on", "1", "Yes", "TRUE", " on "] {
            assert_eq!(
                (Switch::parse(text), Asked::parse(text)),
                (Ok(Switch(true)), Ok(Asked(true)))
            );
        }
        for text in ["", " ", "0", "Off", "no", "false", "off\t"] {
            assert_eq!(
                (Switch::parse(text), Asked::parse(text)),
                (Ok(Switch(false)), Ok(Asked(false)))
            );
        }
        for text in ["none", "maybe", "of", "2", "auto"] {
            assert_eq!(Switch::parse(text), Err(format!("expected {}", Switch::FORM)), "{text}");
            assert_eq!(Asked::parse(text), Ok(Asked(true)), "{text}");
        }
    }

    #[test]
    fn transports_are_chosen_in_the_order_named() {
        let known = ["shm", "cma", "ntb"];
        let choose = |text: &str| Transports::parse(text).unwrap().choose(&known);
        assert_eq!((choose("all"), choose(" ALL ")), (known.to_vec(), known.to_vec()));
        assert_eq!(choose("ntb,shm"), ["ntb", "shm"]);
        assert_eq!(choose("^cma"), ["shm", "ntb"]);
        assert!(Transports::parse("shm,^cma").is_err());
        for twice in ["shm,shm", "shm,ntb, shm", "^ntb,^ntb"] {
            assert!(Transports::parse(twice).unwrap_err().ends_with("is named twice"), "{twice}");
        }
    }

    #[test]
    fn times_have_a_limit() {
        assert_eq!(Millis::parse("12.5ms"), Ok(Millis(Duration::from_micros(12_500))));
        for text in ["-1", "1e13", "1e19", "nan", "inf", "", "5msms", "ms"] {
            assert!(Duration::parse(text).is_err() && Millis::parse(text).is_err(), "{text}");
        }
    }
}
