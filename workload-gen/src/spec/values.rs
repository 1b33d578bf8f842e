//! The values of a generator's parameters, given or by default.

use super::param::{Kind, Param, size};

/// A value for each parameter, in their order.
#[derive(Clone, Debug)]
pub struct Values {
    params: &'static [&'static [Param]],
    /// What was given, as it was written.
    given: Vec<Option<String>>,
}

impl Values {
    pub(super) fn new(params: &'static [&'static [Param]]) -> Values {
        let count = params.iter().map(|group| group.len()).sum();
        Values { params, given: vec![None; count] }
    }

    pub(super) fn all(&self) -> impl Iterator<Item = &'static Param> + use<> {
        self.params.iter().flat_map(|group| group.iter())
    }

    /// Sets a value; `false` if it has one.
    pub(super) fn set(&mut self, at: usize, value: String) -> bool {
        self.given[at].replace(value).is_none()
    }

    /// The parameters that were given a value, with the value.
    pub fn given(&self) -> impl Iterator<Item = (&'static Param, &str)> {
        self.all().zip(&self.given).filter_map(|(param, value)| value.as_deref().map(|value| (param, value)))
    }

    /// Every parameter with its value.
    pub fn each(&self) -> impl Iterator<Item = (&'static Param, &str)> {
        self.all().zip(&self.given).map(|(param, value)| (param, value.as_deref().unwrap_or(param.default)))
    }

    fn find(&self, key: &str) -> (&'static Param, Option<&str>) {
        let found = self.all().zip(&self.given).find(|(param, _)| param.key == key);
        let (param, value) = found.unwrap_or_else(|| panic!("a generator reads the parameter {key}, which it has not"));
        (param, value.as_deref())
    }

    /// Whether a value was given.
    pub fn is_given(&self, key: &str) -> bool {
        self.find(key).1.is_some()
    }

    /// Whether a value was given that is not the default.
    pub fn is_changed(&self, key: &str) -> bool {
        let (param, value) = self.find(key);
        value.is_some_and(|value| value != param.default)
    }

    /// The value as it is written; empty if none was given and the default depends.
    pub fn text(&self, key: &str) -> &str {
        let (param, value) = self.find(key);
        value.unwrap_or(param.default)
    }

    /// A number that was given, or that of the default.
    pub fn int(&self, key: &str) -> u64 {
        self.int_or(key, 0)
    }

    /// A number that was given, or `other` if none was and the default depends.
    pub fn int_or(&self, key: &str, other: u64) -> u64 {
        self.text(key).parse().unwrap_or(other)
    }

    /// A number.
    pub fn real(&self, key: &str) -> f64 {
        self.text(key).parse().unwrap_or(0.0)
    }

    /// A size in bytes.
    pub fn bytes(&self, key: &str) -> u64 {
        size(self.text(key)).unwrap_or(0)
    }

    /// A yes or no.
    pub fn flag(&self, key: &str) -> bool {
        self.text(key) == "yes"
    }

    /// Numbers.
    pub fn ints(&self, key: &str) -> Vec<u64> {
        self.text(key).split('+').filter_map(|number| number.parse().ok()).collect()
    }
}

impl Kind {
    /// The value as it is kept, or what is wrong with it.
    pub(super) fn check(&self, value: &str) -> Result<String, String> {
        let within = |inside: bool| if inside { Ok(value.to_string()) } else { Err("it is out of range".to_string()) };
        match self {
            Kind::Int { min, max } => match value.replace('_', "").parse::<u64>() {
                Ok(number) if (*min..=*max).contains(&number) => Ok(number.to_string()),
                Ok(_) => Err("it is out of range".to_string()),
                Err(_) => Err("it is no whole number".to_string()),
            },
            Kind::Real { min, max } => match value.parse::<f64>() {
                Ok(number) if number.is_finite() => within((*min..=*max).contains(&number)),
                _ => Err("it is no number".to_string()),
            },
            Kind::Bytes { min, max } => match size(value) {
                Some(bytes) => within((*min..=*max).contains(&bytes)),
                None => Err("it is no size, such as 64MiB".to_string()),
            },
            Kind::Choice(words) | Kind::Name(words) => match words.contains(&value) {
                true => Ok(value.to_string()),
                false => Err("it is none of them".to_string()),
            },
            Kind::Flag => match value {
                "yes" | "true" | "on" | "1" => Ok("yes".to_string()),
                "no" | "false" | "off" | "0" => Ok("no".to_string()),
                _ => Err("it is neither".to_string()),
            },
            Kind::Ints { min, max } => {
                let numbers: Result<Vec<u64>, _> = value.split('+').map(str::parse::<u64>).collect();
                match numbers {
                    Ok(numbers) => within(numbers.iter().all(|number| (*min..=*max).contains(number))),
                    Err(_) => Err("these are no whole numbers".to_string()),
                }
            }
            Kind::Text(_, check) => check(value).map(|()| value.to_string()),
        }
    }
}
