//! The fields of a line.

/// What is left of a line.
pub(super) struct Fields<'a> {
    rest: &'a [u8],
}

impl<'a> Fields<'a> {
    pub(super) fn new(line: &'a [u8]) -> Fields<'a> {
        Fields { rest: line }
    }

    #[inline]
    fn skip_blanks(&mut self) {
        while let [b' ' | b'\t', rest @ ..] = self.rest {
            self.rest = rest;
        }
    }

    /// The next field; empty at the end of the line.
    #[inline]
    pub(super) fn word(&mut self) -> &'a [u8] {
        self.skip_blanks();
        let end = self.rest.iter().position(|byte| matches!(byte, b' ' | b'\t')).unwrap_or(self.rest.len());
        let (word, rest) = self.rest.split_at(end);
        self.rest = rest;
        word
    }

    /// Everything that is left, without the blank before it.
    pub(super) fn text(&mut self) -> &'a [u8] {
        let rest = std::mem::take(&mut self.rest);
        rest.strip_prefix(b" ").unwrap_or(rest)
    }

    /// The next field as a number.
    #[inline]
    pub(super) fn number(&mut self, what: &str) -> Result<u64, String> {
        parse(self.word(), what)
    }

    /// The next field as a number below 2³².
    #[inline]
    pub(super) fn small(&mut self, what: &str) -> Result<u32, String> {
        let number = self.number(what)?;
        u32::try_from(number).map_err(|_| format!("{what} {number} is beyond 4,294,967,295"))
    }

    /// The next field as a number below 2³² after a prefix, if there is a field.
    pub(super) fn prefixed(&mut self, prefix: u8, what: &str) -> Result<Option<u32>, String> {
        match self.word() {
            [] => Ok(None),
            [first, digits @ ..] if *first == prefix => {
                let number = parse(digits, what)?;
                u32::try_from(number).map(Some).map_err(|_| format!("{what} {number} is beyond 4,294,967,295"))
            }
            other => Err(format!("`{}`, where `{}` and the {what} can stand", show(other), prefix as char)),
        }
    }

    /// The same, if the next field has the prefix.
    pub(super) fn prefixed_if(&mut self, prefix: u8, what: &str) -> Result<Option<u32>, String> {
        self.skip_blanks();
        if self.rest.first() == Some(&prefix) { self.prefixed(prefix, what) } else { Ok(None) }
    }

    /// Nothing may be left where something else could stand.
    #[inline]
    pub(super) fn end_or(&mut self, else_what: &str) -> Result<(), String> {
        match self.word() {
            [] => Ok(()),
            other => Err(format!("`{}`, where {else_what} can stand", show(other))),
        }
    }

    /// Nothing may be left.
    #[inline]
    pub(super) fn end(&mut self) -> Result<(), String> {
        match self.word() {
            [] => Ok(()),
            more => Err(format!("`{}` is one field too many", show(more))),
        }
    }
}

/// A decimal number.
#[inline]
pub(super) fn parse(word: &[u8], what: &str) -> Result<u64, String> {
    let mut number = 0u64;
    for &byte in word {
        let digit = byte.wrapping_sub(b'0');
        let next = number.checked_mul(10).and_then(|n| n.checked_add(u64::from(digit)));
        match next {
            Some(next) if digit < 10 => number = next,
            _ => return Err(no_number(word, what)),
        }
    }
    if word.is_empty() { Err(no_number(word, what)) } else { Ok(number) }
}

#[cold]
fn no_number(word: &[u8], what: &str) -> String {
    match word {
        [] => format!("the {what} is missing"),
        _ if word.iter().all(u8::is_ascii_digit) => format!("the {what} {} is beyond 2^64 - 1", show(word)),
        _ => format!("the {what} `{}` is no number", show(word)),
    }
}

/// Bytes as text for an error, cut after 80 characters.
pub(super) fn show(bytes: &[u8]) -> String {
    let text = String::from_utf8_lossy(&bytes[..bytes.len().min(400)]);
    let mut shown: String = text.chars().take(80).flat_map(char::escape_debug).collect();
    if text.chars().count() > 80 || bytes.len() > 400 {
        shown.push('…');
    }
    shown
}

/// Puts a text on one line.
pub(super) fn escape(text: &str) -> String {
    text.replace('\\', "\\\\").replace('\n', "\\n").replace('\r', "\\r")
}

/// Undoes [`escape`].
pub(super) fn unescape(bytes: &[u8]) -> Result<String, String> {
    let text = std::str::from_utf8(bytes).map_err(|_| "text that is not UTF-8".to_string())?;
    let mut plain = String::with_capacity(text.len());
    let mut chars = text.chars();
    while let Some(c) = chars.next() {
        match c {
            '\\' => match chars.next() {
                Some('n') => plain.push('\n'),
                Some('r') => plain.push('\r'),
                Some('\\') => plain.push('\\'),
                _ => return Err("a `\\` that is not `\\\\`, `\\n` or `\\r`".into()),
            },
            c => plain.push(c),
        }
    }
    Ok(plain)
}
