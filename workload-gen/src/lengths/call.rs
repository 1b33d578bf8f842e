//! The syntax that lengths, shapings and arrivals share: a name, and arguments in parentheses.

use std::fmt::Display;
use std::ops::RangeInclusive;

/// One way to write something, for help and for errors.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Form {
    /// How it is written: `uniform(LOW,HIGH)`.
    pub written: &'static str,
    /// What it means.
    pub about: &'static str,
}

impl Form {
    /// The word before the parenthesis.
    fn name(&self) -> &'static str {
        self.written.split('(').next().unwrap_or_default()
    }

    /// A problem with something of this form, and how it is written right.
    pub(super) fn error(&self, problem: impl Display) -> String {
        format!("{problem}; write {}: {}", self.written, self.about)
    }
}

/// A name and its arguments.
#[derive(Clone, PartialEq, Eq, Debug)]
pub(super) struct Call<'a> {
    pub name: &'a str,
    pub arguments: Vec<&'a str>,
}

impl<'a> Call<'a> {
    /// Takes a text apart: `mix(0.7*uniform(1,9),0.3*40)` is `mix` of two arguments. Blanks around each part are not
    /// part of it.
    pub fn parse(text: &'a str) -> Result<Call<'a>, String> {
        let text = text.trim();
        let unbalanced = || format!("`{text}` has a parenthesis without its other half");
        let Some((name, rest)) = text.split_once('(') else {
            return if text.contains(')') { Err(unbalanced()) } else { Ok(Call { name: text, arguments: Vec::new() }) };
        };
        let (mut depth, mut start, mut arguments) = (0u32, 0, Vec::new());
        for (at, letter) in rest.char_indices() {
            match letter {
                '(' => depth += 1,
                ')' if depth > 0 => depth -= 1,
                ')' if at + 1 == rest.len() => {
                    arguments.push(rest[start..at].trim());
                    return Ok(Call { name: name.trim(), arguments });
                }
                ')' => return Err(unbalanced()),
                ',' if depth == 0 => {
                    arguments.push(rest[start..at].trim());
                    start = at + 1;
                }
                _ => {}
            }
        }
        Err(unbalanced())
    }

    /// The form that has this name.
    pub fn form(&self, forms: &'static [Form]) -> Option<&'static Form> {
        forms.iter().find(|form| form.name() == self.name)
    }

    /// The arguments, if there are `N`.
    pub fn exactly<const N: usize>(&self) -> Result<[&'a str; N], String> {
        <[&str; N]>::try_from(self.arguments.as_slice()).map_err(|_| {
            let (name, given) = (self.name, self.arguments.len());
            let s = if N == 1 { "" } else { "s" };
            format!("`{name}` takes {N} argument{s}, not {given}")
        })
    }
}

/// A whole number.
pub(super) fn whole(what: &str, text: &str, range: RangeInclusive<u64>, unit: &str) -> Result<u64, String> {
    text.parse().ok().filter(|number| range.contains(number)).ok_or_else(|| {
        let (from, to) = range.into_inner();
        format!("{what} is `{text}`, where a whole number from {from} to {to} {unit} is needed")
    })
}

/// A real number.
pub(super) fn real(what: &str, text: &str, range: RangeInclusive<f64>, unit: &str) -> Result<f64, String> {
    // Zero is added so that a negative zero becomes a positive one: they are equal but not written alike.
    text.parse().ok().filter(|number| range.contains(number)).map(|number| number + 0.0).ok_or_else(|| {
        let (from, to) = range.into_inner();
        let unit = if unit.is_empty() { String::new() } else { format!(" {unit}") };
        format!("{what} is `{text}`, where a number from {from} to {to}{unit} is needed")
    })
}

/// The whole numbers of a list, at least one.
pub(super) fn list(what: &str, texts: &[&str], range: RangeInclusive<u64>, unit: &str) -> Result<Vec<u64>, String> {
    let number = |(at, text): (usize, &&str)| whole(&format!("{what} {}", at + 1), text, range.clone(), unit);
    texts.iter().enumerate().map(number).collect()
}

/// That a range is not the wrong way round.
pub(super) fn ordered(low: (&str, u64), high: (&str, u64)) -> Result<(), String> {
    if low.1 <= high.1 {
        return Ok(());
    }
    Err(format!("{} is {}, more than {}, which is {}", low.0, low.1, high.0, high.1))
}

/// Names of forms, for an error that lists what there is.
pub(super) fn choices(forms: &[Form]) -> String {
    forms.iter().map(|form| form.written).collect::<Vec<_>>().join(", ")
}

/// Numbers with commas between.
pub(super) fn joined(numbers: &[u64]) -> String {
    numbers.iter().map(u64::to_string).collect::<Vec<_>>().join(",")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parts(text: &str) -> Option<(&str, Vec<&str>)> {
        Call::parse(text).ok().map(|call| (call.name, call.arguments))
    }

    #[test]
    fn arguments_end_at_commas_of_their_own_level() {
        assert_eq!(parts("512"), Some(("512", vec![])));
        assert_eq!(parts(" f ( a , g(b,c) ) "), Some(("f", vec!["a", "g(b,c)"])));
        assert_eq!(parts("f()"), Some(("f", vec![""])));
        assert_eq!(parts("f(é,)"), Some(("f", vec!["é", ""])));
        for text in ["f(", "f(a", "f)", ")", "f(a)b", "f(a))", "f((a)", "f(a)(b)"] {
            assert_eq!(parts(text), None, "{text}");
        }
    }

    #[test]
    fn numbers_outside_of_their_range_are_refused() {
        assert_eq!(whole("N", "3", 3..=4, "tokens"), Ok(3));
        for text in ["2", "5", "", "x", "-3", "3.0", "99999999999999999999"] {
            let error = whole("N", text, 3..=4, "tokens").unwrap_err();
            assert_eq!(error, format!("N is `{text}`, where a whole number from 3 to 4 tokens is needed"));
        }
        assert_eq!(real("X", "2.5e0", 0.0..=4.0, "").map(f64::to_bits), Ok(2.5f64.to_bits()));
        assert_eq!(real("X", "-0", 0.0..=4.0, "").map(f64::to_bits), Ok(0));
        for text in ["nan", "inf", "4.001", "-1", ""] {
            assert!(real("X", text, 0.0..=4.0, "").is_err(), "{text}");
        }
    }
}
