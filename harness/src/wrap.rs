//! Lines for terminals that are narrower than what there is to say.

use std::ops::Range;
use unicode_width::UnicodeWidthStr;

/// Below this, words stand one below the other and nothing is read more easily.
const NARROWEST: usize = 20;

/// `text` in lines of at most `width` columns, broken between words. It begins in column `indent`, and so do the lines
/// that follow. In a file, where the width is unknown, a line stays one.
pub fn wrapped(text: &str, indent: usize, width: Option<usize>) -> String {
    let room = width.map_or(usize::MAX, |width| width.saturating_sub(indent).max(NARROWEST));
    let mut lines = String::new();
    let mut used = 0;
    for word in text.split(' ') {
        if used > 0 && used + 1 + word.width() > room {
            lines.push('\n');
            lines.push_str(&" ".repeat(indent));
            used = 0;
        } else if used > 0 {
            lines.push(' ');
            used += 1;
        }
        lines.push_str(word);
        used += word.width();
    }
    lines
}

/// Which columns of a table stand side by side: as many as fit into `width` beside the `fixed` ones, and one at least.
pub fn folded(fixed: usize, columns: &[usize], width: Option<usize>) -> Vec<Range<usize>> {
    let width = width.unwrap_or(usize::MAX);
    let mut folds = Vec::new();
    let mut begin = 0;
    loop {
        let mut used = fixed;
        let fits = |column: &&usize| {
            used += **column;
            used <= width
        };
        let fitting = columns[begin..].iter().take_while(fits).count();
        let end = columns.len().min(begin + fitting.max(1));
        folds.push(begin..end);
        begin = end;
        if begin == columns.len() {
            return folds;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_break_between_words_and_nowhere_else() {
        let text = "four blocks under graphs, 名前名前 for a-very-long-word-that-fits-nowhere";
        assert_eq!(wrapped(text, 4, None), text);
        assert_eq!(wrapped(text, 4, Some(1000)), text);
        let narrow = wrapped(text, 4, Some(30));
        assert_eq!(narrow, "four blocks under graphs,\n    名前名前 for\n    a-very-long-word-that-fits-nowhere");
        assert_eq!(wrapped("one two three four five six", 90, Some(3)).lines().count(), 2, "some room is always taken");
        assert_eq!(wrapped("", 4, Some(30)), "");
    }

    #[test]
    fn columns_stand_side_by_side_while_they_fit() {
        assert_eq!(folded(10, &[5, 5, 5], Some(25)).len(), 1);
        assert_eq!(folded(10, &[5, 5, 5], None).len(), 1);
        assert_eq!(folded(10, &[5, 5, 5], Some(24)), [0..2, 2..3]);
        assert_eq!(folded(10, &[5, 50, 5], Some(20)), [0..1, 1..2, 2..3], "one at least");
        assert_eq!(folded(10, &[], Some(5)).len(), 1, "the fixed ones alone");
    }
}
