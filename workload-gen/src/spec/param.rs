//! What a parameter may be.

use std::fmt;

/// A parameter of a generator.
#[derive(Clone, Copy, Debug)]
pub struct Param {
    /// Its key.
    pub key: &'static str,
    /// What it does, in a line.
    pub about: &'static str,
    /// What values it has.
    pub kind: Kind,
    /// The value it has if none is given, as it would be written. Empty if it depends on other parameters; `about` says how.
    pub default: &'static str,
    /// What a number counts: `sequences`, `layers`, `bytes`. Empty if it counts nothing.
    pub unit: &'static str,
}

/// The values of a parameter.
#[derive(Clone, Copy, Debug)]
pub enum Kind {
    /// A whole number.
    Int {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// A number.
    Real {
        /// The least.
        min: f64,
        /// The greatest.
        max: f64,
    },
    /// A size, written as `64MiB` or in bytes.
    Bytes {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// One of some words.
    Choice(&'static [&'static str]),
    /// The same, and written without the key.
    Name(&'static [&'static str]),
    /// `yes` or `no`; the key alone means `yes`.
    Flag,
    /// Whole numbers with `+` between them.
    Ints {
        /// The least.
        min: u64,
        /// The greatest.
        max: u64,
    },
    /// A text of a form of its own: what is said about it, and what checks it.
    Text(&'static str, fn(&str) -> Result<(), String>),
}

impl Param {
    /// What it may be, and what it counts: `1 to 64 layers`, `1B to 16GiB`, `a distribution such as uniform(1,9), in tokens`.
    pub fn range(&self) -> String {
        let Param { kind, unit, .. } = self;
        match kind {
            // They have their unit.
            Kind::Bytes { .. } => kind.to_string(),
            _ if unit.is_empty() => kind.to_string(),
            Kind::Text(..) => format!("{kind}, in {unit}"),
            _ => format!("{kind} {unit}"),
        }
    }

    /// Whether the value may be written without the key.
    pub fn is_positional(&self) -> bool {
        matches!(self.kind, Kind::Name(_))
    }
}

impl fmt::Display for Kind {
    /// The range in words, as help and errors have it.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Kind::Int { min, max } => write!(f, "{min} to {max}"),
            Kind::Real { min, max } => write!(f, "{min} to {max}"),
            Kind::Bytes { min, max } => write!(f, "{} to {}", Size(*min), Size(*max)),
            Kind::Choice(words) | Kind::Name(words) => write!(f, "{}", words.join(", ")),
            Kind::Flag => f.write_str("yes, no"),
            Kind::Ints { min, max } => write!(f, "numbers from {min} to {max} with + between"),
            Kind::Text(form, _) => f.write_str(form),
        }
    }
}

/// Bytes in the largest unit that divides them.
pub(super) struct Size(pub(super) u64);

impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let units = ["B", "KiB", "MiB", "GiB", "TiB"];
        let (mut value, mut unit) = (self.0, 0);
        while value >= 1024 && value.is_multiple_of(1024) && unit + 1 < units.len() {
            (value, unit) = (value / 1024, unit + 1);
        }
        write!(f, "{value}{}", units[unit])
    }
}

/// Reads a size: a number and a binary unit (`64MiB`, `64M`), or bytes.
pub(super) fn size(text: &str) -> Option<u64> {
    let digits = text.bytes().take_while(|byte| byte.is_ascii_digit() || *byte == b'.').count();
    let (number, unit) = text.split_at(digits);
    let shift = match unit.trim().to_ascii_lowercase().as_str() {
        "" | "b" => 0,
        "k" | "kb" | "kib" => 10,
        "m" | "mb" | "mib" => 20,
        "g" | "gb" | "gib" => 30,
        "t" | "tb" | "tib" => 40,
        _ => return None,
    };
    if let Ok(whole) = number.parse::<u64>() {
        return whole.checked_mul(1 << shift);
    }
    let scaled = number.parse::<f64>().ok()? * (1u64 << shift) as f64;
    (scaled.fract() == 0.0 && scaled < (1u64 << 53) as f64).then_some(scaled as u64)
}
