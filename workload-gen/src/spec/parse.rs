//! Reading a line, and saying what is wrong with it.

use super::param::{Kind, Param};
use super::values::Values;
use crate::jobs::{Generator, generators};

/// Why a line is no workload.
#[derive(Clone, PartialEq, Eq, Debug, thiserror::Error)]
pub enum SpecError {
    /// There is no such generator.
    #[error("'{name}' is no generator of workloads; there are {known}{hint}")]
    Generator {
        /// What was written.
        name: String,
        /// The generators there are.
        known: String,
        /// What may have been meant.
        hint: String,
    },
    /// The generator has no such parameter.
    #[error("{generator} has no parameter '{key}'{hint}; it has {known}")]
    Key {
        /// The generator.
        generator: &'static str,
        /// What was written.
        key: String,
        /// The parameters there are.
        known: String,
        /// What may have been meant.
        hint: String,
    },
    /// A value that a parameter cannot have.
    #[error("{generator}: {key}={value}: {why}; {key} is {range}")]
    Range {
        /// The generator.
        generator: &'static str,
        /// The parameter.
        key: &'static str,
        /// What was written.
        value: String,
        /// What is wrong with it.
        why: String,
        /// What it may be, and what it counts.
        range: String,
    },
    /// A parameter that was given twice.
    #[error("{generator}: {key} is given twice")]
    Twice {
        /// The generator.
        generator: &'static str,
        /// The parameter.
        key: &'static str,
    },
    /// Brackets that do not match.
    #[error("'{text}': a bracket is open at the end, or closed too often")]
    Brackets {
        /// The line.
        text: String,
    },
    /// Values that do not go together.
    #[error("{generator}: {why}")]
    Value {
        /// The generator.
        generator: &'static str,
        /// What is wrong.
        why: String,
    },
}

pub(super) fn parse(text: &str) -> Result<(&'static Generator, Values), SpecError> {
    // Blanks mean nothing, and a row is named after its line.
    let text = &text.split_whitespace().collect::<String>();
    let (name, rest) = text.split_once(':').unwrap_or((text, ""));
    let generator = generators().iter().find(|one| one.name == name).ok_or_else(|| SpecError::Generator {
        name: name.to_string(),
        known: generators().iter().map(|one| one.name).collect::<Vec<_>>().join(", "),
        hint: meant(name, generators().iter().map(|one| one.name)),
    })?;
    let mut values = Values::new(generator.params);
    for item in items(rest).ok_or_else(|| SpecError::Brackets { text: text.to_string() })? {
        set(generator, &mut values, item)?;
    }
    Ok((generator, values))
}

fn set(generator: &'static Generator, values: &mut Values, item: &str) -> Result<(), SpecError> {
    let mut params = values.all().enumerate();
    let (key, value) = match key_and_value(item) {
        Some((key, value)) => (key, Some(value)),
        None => (item, None),
    };
    let named = params.find(|(_, param)| param.key == key);
    let positional = || values.all().enumerate().find(|(_, param)| param.is_positional());
    let (at, param, value) = match (named, value) {
        (Some((at, param)), Some(value)) => (at, param, value),
        // A flag is set by its name, and the one parameter without a key by its value.
        (Some((at, param)), None) if matches!(param.kind, Kind::Flag) => (at, param, "yes"),
        (None, None) if positional().is_some() => {
            let (at, param) = positional().expect("it was there");
            (at, param, item)
        }
        (Some((_, param)), None) => return Err(range(generator, param, "", "it has no value".to_string())),
        (None, _) => {
            return Err(SpecError::Key {
                generator: generator.name,
                key: key.to_string(),
                known: values.all().map(|param| param.key).collect::<Vec<_>>().join(", "),
                hint: meant(key, values.all().map(|param| param.key)),
            });
        }
    };
    let value = param.kind.check(value).map_err(|why| range(generator, param, value, why))?;
    if !values.set(at, value) {
        return Err(SpecError::Twice { generator: generator.name, key: param.key });
    }
    Ok(())
}

/// The part before the first `=` that stands outside brackets.
fn key_and_value(item: &str) -> Option<(&str, &str)> {
    let (key, value) = item.split_once('=')?;
    (!key.contains('(')).then_some((key.trim(), value.trim()))
}

fn range(generator: &'static Generator, param: &'static Param, value: &str, why: String) -> SpecError {
    SpecError::Range { generator: generator.name, key: param.key, value: value.to_string(), why, range: param.range() }
}

/// What stands between commas outside brackets. `None` if the brackets do not match.
fn items(text: &str) -> Option<Vec<&str>> {
    let (mut items, mut from, mut depth) = (Vec::new(), 0, 0usize);
    for (at, byte) in text.bytes().enumerate() {
        match byte {
            b'(' => depth += 1,
            b')' => depth = depth.checked_sub(1)?,
            b',' if depth == 0 => {
                items.push(text[from..at].trim());
                from = at + 1;
            }
            _ => {}
        }
    }
    items.push(text[from..].trim());
    (depth == 0).then(|| items.into_iter().filter(|item| !item.is_empty()).collect())
}

/// `; did you mean X?`, if a name is near enough.
fn meant(text: &str, known: impl Iterator<Item = &'static str>) -> String {
    let near = known.map(|name| (distance(text, name), name)).min();
    match near {
        Some((steps, name)) if steps <= 2 && steps < name.len() => format!(" (did you mean '{name}'?)"),
        _ => String::new(),
    }
}

/// How many letters must be put in, left out or changed.
fn distance(a: &str, b: &str) -> usize {
    let b: Vec<char> = b.chars().collect();
    let mut row: Vec<usize> = (0..=b.len()).collect();
    for (i, one) in a.chars().take(64).enumerate() {
        let mut before = i;
        row[0] = i + 1;
        for (j, &other) in b.iter().enumerate() {
            let changed = before + usize::from(one != other);
            before = row[j + 1];
            row[j + 1] = changed.min(before + 1).min(row[j] + 1);
        }
    }
    row[b.len()]
}
