//! Parameters as the command line and results know them.

use crate::settings::Settings;
use allocator_core::ConfigError;
use serde::{Deserialize, Serialize};

/// Options of [`crate::Caching`]: PyTorch's, one by one or as PyTorch writes them. An option given by itself comes
/// after `conf` and wins.
#[derive(Clone, PartialEq, Debug, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Params {
    /// Settings as PyTorch writes them (`expandable_segments:True,max_split_size_mb:128`).
    pub conf: String,
    /// MiB from which on blocks are never split; none is unlimited.
    pub max_split_size_mb: Option<u64>,
    /// MiB by which a block that is not split may exceed the request; none is the large segment's size.
    pub max_non_split_rounding_mb: Option<u64>,
    /// Divisions between powers of two to which sizes are rounded: a power of two, or a list `[256:1,512:2,>:4]`.
    pub roundup_power2_divisions: Option<String>,
    /// Share of the memory limit above which cached segments are collected; 0 is off.
    pub garbage_collection_threshold: f64,
    /// MiB of the segments for requests between 1 and 10 MiB.
    pub large_segment_size_mb: u64,
    /// Whether segments grow in place.
    pub expandable_segments: bool,
    /// Share of the device's memory that may be reserved; 1 is no limit.
    pub per_process_memory_fraction: f64,
}

impl Default for Params {
    fn default() -> Params {
        Params {
            conf: String::new(),
            max_split_size_mb: None,
            max_non_split_rounding_mb: None,
            roundup_power2_divisions: None,
            garbage_collection_threshold: 0.0,
            large_segment_size_mb: 20,
            expandable_segments: false,
            per_process_memory_fraction: 1.0,
        }
    }
}

impl Params {
    /// The settings that these parameters mean. There is one grammar: options given one by one are written as
    /// PyTorch would write them, behind `conf`.
    pub(crate) fn settings(&self) -> Result<Settings, ConfigError> {
        let default = Params::default();
        let mut text = self.conf.clone();
        let mut add = |key: &str, value: String| {
            if !text.is_empty() {
                text.push(',');
            }
            text.push_str(&format!("{key}:{value}"));
        };
        if self.large_segment_size_mb != default.large_segment_size_mb {
            add("large_segment_size_mb", self.large_segment_size_mb.to_string());
        }
        if let Some(mib) = self.max_split_size_mb {
            add("max_split_size_mb", mib.to_string());
        }
        if let Some(mib) = self.max_non_split_rounding_mb {
            add("max_non_split_rounding_mb", mib.to_string());
        }
        if let Some(divisions) = &self.roundup_power2_divisions {
            let is_list = divisions.starts_with('[') && divisions.find(']') == Some(divisions.len() - 1);
            if !is_list && divisions.contains(|c: char| !c.is_ascii_digit()) {
                return Err(ConfigError(format!(
                    "roundup_power2_divisions is '{divisions}'; it takes a power of two or a list like [256:1,512:2,>:4]"
                )));
            }
            add("roundup_power2_divisions", divisions.clone());
        }
        if self.garbage_collection_threshold != 0.0 {
            add("garbage_collection_threshold", self.garbage_collection_threshold.to_string());
        }
        if self.expandable_segments {
            add("expandable_segments", "True".to_owned());
        }
        if self.per_process_memory_fraction != 1.0 {
            add("per_process_memory_fraction", self.per_process_memory_fraction.to_string());
        }
        let mut settings = Settings::default();
        settings.parse(&text)?;
        Ok(settings)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn options_one_by_one_win_over_conf() {
        let params = Params {
            conf: "max_split_size_mb:64,garbage_collection_threshold:0.5".to_owned(),
            max_split_size_mb: Some(128),
            roundup_power2_divisions: Some("[64:8,>:4]".to_owned()),
            ..Params::default()
        };
        let settings = params.settings().unwrap();
        assert_eq!(settings.max_split_size, 128 << 20);
        assert_eq!(settings.garbage_collection_threshold, 0.5);
        assert_eq!(settings.roundup_power2_divisions[6..8], [8, 4]);
    }

    #[test]
    fn one_option_cannot_set_another() {
        for divisions in ["4,expandable_segments:True", "[4:2],expandable_segments:True", "[4:2],x:[1]", "-1"] {
            let params = Params { roundup_power2_divisions: Some(divisions.to_owned()), ..Params::default() };
            assert!(params.settings().unwrap_err().0.contains("power of two or a list"), "{divisions}");
        }
    }

    #[test]
    fn the_defaults_are_pytorchs() {
        assert_eq!(Params::default().settings(), Ok(Settings::default()));
    }
}
