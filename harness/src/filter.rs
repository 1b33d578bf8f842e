//! Which of many are meant: patterns that take in, and patterns that leave out.

use regex_lite::Regex;

/// A pair of pattern lists. Patterns match anywhere in a name, as in `grep`.
#[derive(Clone, Debug, Default)]
pub struct Filter {
    /// A name has to match one of these, if there are any of these or of `names`.
    pub include: Vec<Regex>,
    /// Or it has to be one of these.
    pub names: Vec<String>,
    /// A name must match none of these.
    pub exclude: Vec<Regex>,
}

impl Filter {
    /// Whether a name is meant.
    pub fn keeps(&self, name: &str) -> bool {
        let is_any = self.include.is_empty() && self.names.is_empty();
        let is_in = is_any
            || self.include.iter().any(|pattern| pattern.is_match(name))
            || self.names.iter().any(|known| known == name);
        is_in && !self.exclude.iter().any(|pattern| pattern.is_match(name))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn filter(include: &[&str], exclude: &[&str]) -> Filter {
        let patterns = |texts: &[&str]| texts.iter().map(|text| Regex::new(text).unwrap()).collect();
        Filter { include: patterns(include), exclude: patterns(exclude), ..Filter::default() }
    }

    #[test]
    fn exclusion_wins_and_nothing_means_all() {
        assert!(filter(&[], &[]).keeps("caching"));
        assert!(filter(&["^cach", "direct"], &[]).keeps("caching"));
        assert!(!filter(&["^ach"], &[]).keeps("caching"));
        assert!(!filter(&["caching"], &["g$"]).keeps("caching"));
        assert!(filter(&[], &["g$"]).keeps("direct"));
    }

    #[test]
    fn a_name_is_no_pattern() {
        let named = |include: &[&str], exclude: &[&str]| Filter {
            names: vec!["churn:size=uniform(1,9)".to_string()],
            ..filter(include, exclude)
        };
        assert!(named(&[], &[]).keeps("churn:size=uniform(1,9)"));
        assert!(!named(&[], &[]).keeps("churn:size=uniform(1,9),seed=1") && !named(&[], &[]).keeps("gnn.default"));
        assert!(named(&["gnn"], &[]).keeps("gnn.default") && named(&["gnn"], &[]).keeps("churn:size=uniform(1,9)"));
        assert!(!named(&[], &["^churn"]).keeps("churn:size=uniform(1,9)"));
    }
}
