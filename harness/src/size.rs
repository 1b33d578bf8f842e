//! Numbers as people write and read them. Files hold plain integers; only flags and tables use these forms.

/// Reads a size such as `512`, `64MiB` or `24G`. All units are powers of two, as PyTorch's users mean them.
pub fn parse(text: &str) -> Result<u64, String> {
    parse_size::Config::new()
        .with_binary()
        .parse_size(text)
        .map_err(|why| format!("'{text}' is not a size ({why}); write bytes or a unit, such as 512, 64MiB or 24GiB"))
}

/// `1.50 GiB`.
pub fn bytes(n: u64) -> String {
    const UNITS: [&str; 7] = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    scaled(n, 1024.0, &UNITS)
}

/// `1536KiB`: in the largest unit in which it is a whole number, as [`parse`] reads it.
pub fn exact(n: u64) -> String {
    match n.trailing_zeros() {
        30.. if n > 0 => format!("{}GiB", n >> 30),
        20..30 => format!("{}MiB", n >> 20),
        10..20 => format!("{}KiB", n >> 10),
        _ => n.to_string(),
    }
}

/// `1.50 ms`.
pub(crate) fn nanoseconds(n: u64) -> String {
    const UNITS: [&str; 4] = ["ns", "µs", "ms", "s"];
    scaled(n, 1000.0, &UNITS)
}

fn scaled(n: u64, step: f64, units: &[&str]) -> String {
    let (mut value, mut unit) = (n as f64, 0);
    // 0.005 below the step would be printed as the step itself.
    while value >= step - 0.005 && unit + 1 < units.len() {
        value /= step;
        unit += 1;
    }
    if unit == 0 { format!("{n} {}", units[0]) } else { format!("{value:.2} {}", units[unit]) }
}

/// `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut text = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, digit) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i).is_multiple_of(3) {
            text.push(',');
        }
        text.push(digit);
    }
    text
}

/// A fraction in percent: `92.7 %`.
pub(crate) fn percent(fraction: f64) -> String {
    format!("{:.1} %", fraction * 100.0)
}

/// How far a ratio is above 1: `+10.6 %`.
pub(crate) fn excess(ratio: f64) -> String {
    let percent = (ratio - 1.0) * 100.0;
    // Nobody wants to read "-0.0".
    format!("{:+.1} %", if percent.abs() < 0.05 { 0.0 } else { percent })
}

/// `1 stream`, `2 streams`.
pub fn counted(n: usize, one: &str, many: &str) -> String {
    format!("{} {}", grouped(n as u64), if n == 1 { one } else { many })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exact_sizes_read_back() {
        for (n, text) in [(0, "0"), (1023, "1023"), (1536 << 10, "1536KiB"), (64 << 20, "64MiB"), (5 << 40, "5120GiB")]
        {
            assert_eq!(exact(n), text);
        }
        for n in [u64::MAX, 1 << 63, 1025 << 10, (1 << 20) - 512] {
            assert_eq!(parse(&exact(n)), Ok(n));
        }
    }

    #[test]
    fn sizes_are_binary_and_overflow_is_refused() {
        assert_eq!(parse("24G"), Ok(24 << 30));
        assert_eq!(parse("1.5 MiB"), Ok(3 << 19));
        assert_eq!(parse("0"), Ok(0));
        assert!(parse("99999999999GiB").is_err());
        assert!(parse("").unwrap_err().contains("''"));
        assert!(parse("12 apples").unwrap_err().contains("64MiB"));
    }

    #[test]
    fn people_read_three_digits() {
        assert_eq!(bytes(0), "0 B");
        assert_eq!(bytes(1023), "1023 B");
        assert_eq!(bytes(3 << 29), "1.50 GiB");
        assert_eq!(bytes((1 << 30) - 1), "1.00 GiB");
        assert_eq!(bytes(u64::MAX), "16.00 EiB");
        assert_eq!(nanoseconds(999), "999 ns");
        assert_eq!(nanoseconds(1_500_000), "1.50 ms");
        assert_eq!(nanoseconds(90_000_000_000), "90.00 s");
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_234_567), "1,234,567");
        assert_eq!(percent(2.0 / 3.0), "66.7 %");
        assert_eq!(
            (excess(2.573), excess(0.811), excess(0.99999)),
            ("+157.3 %".into(), "-18.9 %".into(), "+0.0 %".into())
        );
        assert_eq!(counted(1, "strategy", "strategies"), "1 strategy");
        assert_eq!(counted(0, "strategy", "strategies"), "0 strategies");
    }
}
