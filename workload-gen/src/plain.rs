//! Names and texts from outside, fit to be shown: a file's name may hold a line feed, a trace an escape sequence.

use std::borrow::Cow;
use std::path::Path;

/// `text` with its control characters written out (`\n`, `\u{1b}`).
pub fn plain(text: &str) -> Cow<'_, str> {
    if !text.contains(char::is_control) {
        return Cow::Borrowed(text);
    }
    let mut shown = String::with_capacity(text.len() + 8);
    for c in text.chars() {
        match c.is_control() {
            true => shown.extend(c.escape_debug()),
            false => shown.push(c),
        }
    }
    Cow::Owned(shown)
}

/// A path for people.
pub fn plain_path(path: &Path) -> String {
    plain(&path.to_string_lossy()).into_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_control_characters_are_written_out() {
        assert_eq!(plain("a \\ 'b' \u{e4}"), "a \\ 'b' \u{e4}");
        assert_eq!(plain("a\nb\x1b[31m\u{9b}\0"), r"a\nb\u{1b}[31m\u{9b}\0");
        assert_eq!(plain_path(Path::new("x\ty")), r"x\ty");
    }
}
