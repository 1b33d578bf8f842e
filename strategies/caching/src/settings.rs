//! Allocator settings in PyTorch's own grammar (`PYTORCH_CUDA_ALLOC_CONF`), with its laxness and its refusals.
//!
//! Each parse resets four options and keeps the others; options before a bad one stay applied. Separators are hardly
//! checked: where a `:` or `,` should stand, one token is skipped, whatever it is.

use allocator_core::ConfigError;

const MIB: u64 = 1 << 20;
/// Size intervals that can have divisions of their own.
const INTERVALS: usize = 16;

/// The settings that the allocator acts on.
#[derive(Clone, PartialEq, Debug)]
pub struct Settings {
    /// Blocks of this many bytes or more are never split, nor given to smaller requests; `u64::MAX` is unlimited.
    pub max_split_size: u64,
    /// A block that is not split may be larger than the request by less than this.
    pub max_non_split_rounding: u64,
    /// Share of the memory limit above which cached segments are collected; 0 is off.
    pub garbage_collection_threshold: f64,
    /// Divisions between powers of two to which sizes are rounded, by interval; 0 is off.
    pub roundup_power2_divisions: [u64; INTERVALS],
    /// Segment for requests between 1 and 10 MiB, and page of large expandable segments.
    pub large_segment_size: u64,
    /// Whether segments grow in place.
    pub expandable_segments: bool,
    /// The share of the device's memory that may be reserved when the allocator is made.
    pub per_process_memory_fraction: f64,
}

impl Default for Settings {
    fn default() -> Settings {
        Settings {
            max_split_size: u64::MAX,
            max_non_split_rounding: 20 * MIB,
            garbage_collection_threshold: 0.0,
            roundup_power2_divisions: [0; INTERVALS],
            large_segment_size: 20 * MIB,
            expandable_segments: false,
            per_process_memory_fraction: 1.0,
        }
    }
}

impl Settings {
    /// Applies a settings text.
    pub fn parse(&mut self, text: &str) -> Result<(), ConfigError> {
        self.max_split_size = u64::MAX;
        self.roundup_power2_divisions = [0; INTERVALS];
        self.garbage_collection_threshold = 0.0;
        let tokens = Tokens::new(text);
        // Two other options are bounded by this one, so it is read first wherever it stands.
        for at in (0..tokens.len()).filter(|&at| tokens.0[at] == "large_segment_size_mb") {
            let mib = tokens.number(at + 2)?;
            if mib <= 10 {
                return error("CachingAllocator option large_segment_size_mb must be > 10 MB");
            }
            self.large_segment_size = mib.min(u64::MAX / MIB) * MIB;
        }
        self.max_non_split_rounding = self.large_segment_size;
        // PyTorch has two parsers, one for all accelerators and one for CUDA; each skips the other's keys.
        let mut at = 0;
        while at < tokens.len() {
            at = self.accelerator_option(&tokens, at)?;
        }
        let mut at = 0;
        while at < tokens.len() {
            at = self.cuda_option(&tokens, at)?;
        }
        Ok(())
    }

    /// Applies the option at `at`; returns where the next one starts.
    fn accelerator_option(&mut self, tokens: &Tokens, at: usize) -> Result<usize, ConfigError> {
        let value = at + 2;
        match tokens.0[at].as_str() {
            "max_split_size_mb" => self.max_split_size = self.at_least_a_segment(tokens, value, "max_split_size_mb")?,
            "max_non_split_rounding_mb" => {
                self.max_non_split_rounding = self.at_least_a_segment(tokens, value, "max_non_split_rounding_mb")?;
            }
            "garbage_collection_threshold" => {
                let share = tokens.real(value)?;
                if !(share > 0.0 && share < 1.0) {
                    return error("garbage_collect_threshold is invalid, set it in (0.0, 1.0)");
                }
                self.garbage_collection_threshold = share;
            }
            "roundup_power2_divisions" => return self.divisions(tokens, at),
            "expandable_segments" => self.expandable_segments = tokens.boolean(value)?,
            "large_segment_size_mb" => {}
            "pinned_use_background_threads" => {
                tokens.boolean(value)?;
            }
            key if CUDA_KEYS.contains(&key) => return tokens.skip_value(at),
            key => return error(&format!("Unrecognized key '{key}' in Accelerator allocator config.")),
        }
        Ok(at + 4)
    }

    /// Applies or checks the option at `at`; returns where the next one starts.
    fn cuda_option(&mut self, tokens: &Tokens, at: usize) -> Result<usize, ConfigError> {
        let value = at + 2;
        match tokens.0[at].as_str() {
            "backend" => match tokens.at(value)? {
                "native" => {}
                "cudaMallocAsync" => return error("backend:cudaMallocAsync is another allocator than this one"),
                _ => return error("Unknown allocator backend, options are native and cudaMallocAsync"),
            },
            "release_lock_on_cudamalloc"
            | "release_lock_on_hipmalloc"
            | "graph_capture_record_stream_reuse"
            | "pinned_use_cuda_host_register"
            | "pinned_use_hip_host_register" => {
                tokens.boolean(value)?;
            }
            "pinned_num_register_threads" => {
                let threads = tokens.number(value)?;
                if !threads.is_power_of_two() {
                    return error(&format!("Number of register threads has to be power of 2, got {threads}"));
                }
                if threads > 128 {
                    return error(&format!(
                        "Number of register threads should be less than or equal to 128, got {threads}"
                    ));
                }
            }
            "pinned_reserve_segment_size_mb" => {
                if tokens.number(value)? == 0 {
                    return error("Pinned reserve segment size has to be greater than 0");
                }
            }
            "per_process_memory_fraction" => {
                let share = tokens.real(value)?;
                if !(0.0..=1.0).contains(&share) {
                    return error("per_process_memory_fraction is invalid, set it in [0.0, 1.0]");
                }
                self.per_process_memory_fraction = share;
            }
            _ => return tokens.skip_value(at),
        }
        Ok(at + 4)
    }

    fn at_least_a_segment(&self, tokens: &Tokens, at: usize, key: &str) -> Result<u64, ConfigError> {
        let smallest = self.large_segment_size / MIB;
        let mib = tokens.number(at)?;
        if mib < smallest {
            return error(&format!("CachingAllocator option {key} too small, must be >= {smallest}"));
        }
        Ok(mib.min(u64::MAX / MIB) * MIB)
    }

    /// One division for all intervals, or a list of `MB:divisions` with `>` for the rest.
    fn divisions(&mut self, tokens: &Tokens, at: usize) -> Result<usize, ConfigError> {
        if tokens.at(at + 2)? != "[" {
            let divisions = tokens.number(at + 2)?;
            if !divisions.is_power_of_two() {
                return error("For roundups, the divisions has to be power of 2 ");
            }
            self.roundup_power2_divisions = [divisions; INTERVALS];
            return Ok(at + 4);
        }
        let mut at = at + 3;
        let mut last = 0;
        let mut first = true;
        while tokens.at(at)? != "]" {
            let interval = tokens.at(at)?;
            let divisions = tokens.number(at + 2)?;
            if divisions != 0 && !divisions.is_power_of_two() {
                return error("For roundups, the divisions has to be power of 2 or 0 to disable roundup ");
            }
            if interval == ">" {
                self.roundup_power2_divisions[(last + 1).min(INTERVALS)..].fill(divisions);
            } else {
                let mib = tokens.number(at)?;
                if !mib.is_power_of_two() {
                    return error("For roundups, the intervals have to be power of 2 ");
                }
                let interval = (mib.ilog2() as usize).min(INTERVALS - 1);
                if first {
                    self.roundup_power2_divisions[..interval].fill(divisions);
                    first = false;
                }
                self.roundup_power2_divisions[interval] = divisions;
                last = interval;
            }
            at += 3;
            if tokens.at(at)? != "]" {
                at += 1;
            }
        }
        Ok(at + 2)
    }
}

/// Options of the CUDA parser.
const CUDA_KEYS: [&str; 9] = [
    "per_process_memory_fraction",
    "backend",
    "release_lock_on_cudamalloc",
    "release_lock_on_hipmalloc",
    "graph_capture_record_stream_reuse",
    "pinned_use_cuda_host_register",
    "pinned_use_hip_host_register",
    "pinned_num_register_threads",
    "pinned_reserve_segment_size_mb",
];

fn error<T>(text: &str) -> Result<T, ConfigError> {
    Err(ConfigError(text.to_owned()))
}

/// The words and marks of a settings text.
struct Tokens(Vec<String>);

impl Tokens {
    fn new(text: &str) -> Tokens {
        let mut tokens = Vec::new();
        let mut word = String::new();
        for c in text.chars() {
            if matches!(c, ',' | ':' | '[' | ']') {
                if !word.is_empty() {
                    tokens.push(std::mem::take(&mut word));
                }
                tokens.push(c.to_string());
            } else if !(c.is_ascii_whitespace() || c == '\x0b') {
                word.push(c);
            }
        }
        if !word.is_empty() {
            tokens.push(word);
        }
        Tokens(tokens)
    }

    fn len(&self) -> usize {
        self.0.len()
    }

    fn at(&self, at: usize) -> Result<&str, ConfigError> {
        match self.0.get(at) {
            Some(token) => Ok(token),
            None => error("Index out of bounds in ConfigTokenizer"),
        }
    }

    /// Where the next option starts, skipping a value of any form.
    fn skip_value(&self, at: usize) -> Result<usize, ConfigError> {
        let mut value = at + 2;
        if self.at(value)? == "[" {
            while self.at(value)? != "]" {
                value += 1;
            }
        }
        Ok(value + 2)
    }

    /// A number as C's `strtoull` reads it: leading digits count, a minus sign wraps around.
    fn number(&self, at: usize) -> Result<u64, ConfigError> {
        let token = self.at(at)?;
        let (negative, digits) = match token.as_bytes().first() {
            Some(b'-') => (true, &token[1..]),
            Some(b'+') => (false, &token[1..]),
            _ => (false, token),
        };
        let end = digits.find(|c: char| !c.is_ascii_digit()).unwrap_or(digits.len());
        if end == 0 {
            return error("stoull");
        }
        match digits[..end].parse::<u64>() {
            Ok(value) => Ok(if negative { value.wrapping_neg() } else { value }),
            Err(_) => error("stoull"),
        }
    }

    /// A number as C's `strtod` reads it: the longest prefix that is one.
    fn real(&self, at: usize) -> Result<f64, ConfigError> {
        let token = self.at(at)?;
        let ends = (1..=token.len()).rev().filter(|&end| token.is_char_boundary(end));
        match ends.into_iter().find_map(|end| token[..end].parse::<f64>().ok()) {
            Some(value) => Ok(value),
            None => error("stod"),
        }
    }

    fn boolean(&self, at: usize) -> Result<bool, ConfigError> {
        match self.at(at)? {
            "True" => Ok(true),
            "False" => Ok(false),
            token => error(&format!("Expected 'True' or 'False' at index {at} in ConfigTokenizer but got '{token}'")),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parsed(text: &str) -> Settings {
        let mut settings = Settings::default();
        settings.parse(text).unwrap();
        settings
    }

    fn refused(text: &str) -> String {
        Settings::default().parse(text).unwrap_err().0
    }

    #[test]
    fn both_forms_of_divisions() {
        let divisions = |text: &str| parsed(&format!("roundup_power2_divisions:{text}")).roundup_power2_divisions;
        assert_eq!(divisions("4"), [4; 16]);
        assert_eq!(divisions("[256:1,512:2,1024:4,>:8]"), [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 8, 8, 8, 8, 8]);
        assert_eq!(divisions("[256:1,512:2,>:4]"), [1, 1, 1, 1, 1, 1, 1, 1, 1, 2, 4, 4, 4, 4, 4, 4]);
        assert_eq!(divisions("[64:8]"), [8, 8, 8, 8, 8, 8, 8, 0, 0, 0, 0, 0, 0, 0, 0, 0]);
        assert_eq!(divisions("[>:4]"), [0, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4, 4]);
    }

    #[test]
    fn lax_separators_and_c_numbers() {
        assert_eq!(parsed("max_split_size_mb,40").max_split_size, 40 * MIB);
        assert_eq!(parsed(" max_split_size_mb : 40 , ").max_split_size, 40 * MIB);
        assert_eq!(parsed("max_split_size_mb:25abc").max_split_size, 25 * MIB);
        assert_eq!(parsed("max_split_size_mb:-1").max_split_size, u64::MAX / MIB * MIB);
        assert_eq!(parsed("garbage_collection_threshold:0.5x").garbage_collection_threshold, 0.5);
        assert!(refused("max_split_size_mb:abc").contains("stoull"));
        assert!(refused(",max_split_size_mb:40").contains("Unrecognized key ','"));
        assert!(refused("max_split_size_mb").contains("Index out of bounds"));
    }

    #[test]
    fn impossible_values_are_refused_by_pytorchs_words() {
        assert!(refused("max_split_size_mb:19").contains("too small, must be >= 20"));
        assert!(refused("large_segment_size_mb:40,max_split_size_mb:39").contains("must be >= 40"));
        assert!(refused("large_segment_size_mb:10").contains("must be > 10 MB"));
        assert!(refused("garbage_collection_threshold:1").contains("(0.0, 1.0)"));
        assert!(refused("roundup_power2_divisions:3").contains("power of 2"));
        assert!(refused("roundup_power2_divisions:[3:4]").contains("intervals have to be power of 2"));
        assert!(refused("expandable_segments:true").contains("Expected 'True' or 'False' at index 2"));
        assert!(refused("throw_on_cudamalloc_oom:True").contains("Unrecognized key"));
        assert!(refused("backend:cudaMallocAsync").contains("another allocator"));
    }

    #[test]
    fn a_parse_resets_four_options_and_keeps_the_rest() {
        let mut settings = parsed(
            "expandable_segments:True,large_segment_size_mb:40,max_split_size_mb:64,max_non_split_rounding_mb:80,\
             garbage_collection_threshold:0.5,roundup_power2_divisions:4",
        );
        settings.parse("").unwrap();
        let kept = Settings { expandable_segments: true, large_segment_size: 40 * MIB, ..Settings::default() };
        assert_eq!(settings, Settings { max_non_split_rounding: 40 * MIB, ..kept });
    }

    #[test]
    fn options_before_a_bad_one_stay_applied() {
        let mut settings = Settings::default();
        assert!(settings.parse("expandable_segments:True,nonsense:1").is_err());
        assert!(settings.expandable_segments);
    }
}
