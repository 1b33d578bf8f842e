//! One table in the forms that people put it to: on a terminal, in a Markdown page, in a LaTeX paper, in another program.
//!
//! Programs want exact numbers and people do not, so a page carries its figures twice.

use crate::exit::Error;
use crate::output::{BOLD, RED, RESET, YELLOW};
use crate::wrap::{folded, wrapped};
use std::fmt::Write;
use unicode_width::UnicodeWidthStr;

/// Between columns of text.
pub(crate) const GAP: &str = "  ";

/// What a table is made for.
#[derive(Clone, Copy, PartialEq, Eq, Debug, clap::ValueEnum)]
pub enum Form {
    /// A terminal
    Text,
    /// A page of GitHub's Markdown
    Markdown,
    /// A paper: a tabular in the style of booktabs
    Latex,
    /// Programs: exact numbers in base units
    Csv,
}

/// A table with what stands around it.
#[derive(Clone, Debug)]
pub struct Page {
    /// What the table shows, in lines.
    pub(crate) title: String,
    /// The table for people.
    pub(crate) table: Table,
    /// What a reader has to know beside it; each ends its line.
    pub(crate) notes: String,
    /// The table for programs, its head first.
    pub(crate) records: Vec<Vec<String>>,
}

/// The table for people. The first column names the rows and stands left, all others stand right.
#[derive(Clone, Debug, Default)]
pub struct Table {
    /// The lines of each column's head.
    pub(crate) head: Vec<Vec<String>>,
    /// The rows, each as long as the head.
    pub(crate) rows: Vec<Vec<Item>>,
}

/// What stands in a cell.
#[derive(Clone, Debug)]
pub(crate) struct Item {
    /// The text.
    pub(crate) text: String,
    /// How many times the reference it is, such as `1.59`.
    pub(crate) ratio: Option<String>,
    /// How it stands out.
    pub(crate) style: Style,
}

/// How an item stands out.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub(crate) enum Style {
    /// It does not.
    Plain,
    /// As the best: in bold print, and marked where there may be none.
    Best,
    /// As bad news.
    Warning,
    /// As worse news.
    Fault,
}

impl Item {
    /// A text that does not stand out.
    pub(crate) fn plain(text: impl Into<String>) -> Item {
        Item { text: text.into(), ratio: None, style: Style::Plain }
    }
}

impl Page {
    /// The page in one of its forms; text is for a terminal of `width` columns, or of any width.
    pub fn form(&self, form: Form, width: Option<usize>) -> Result<String, Error> {
        Ok(match form {
            Form::Text => {
                let prose =
                    |text: &str| text.split('\n').map(|line| wrapped(line, 0, width)).collect::<Vec<_>>().join("\n");
                let notes = if self.notes.is_empty() { String::new() } else { format!("\n{}", prose(&self.notes)) };
                format!("{}\n\n{}{notes}", prose(&self.title), self.table.text(width))
            }
            Form::Markdown => self.table.markdown(),
            Form::Latex => self.table.latex(&self.title),
            Form::Csv => csv_text(&self.records).map_err(|why| Error::Internal(format!("csv: {why}")))?,
        })
    }
}

fn csv_text(records: &[Vec<String>]) -> Result<String, csv::Error> {
    let mut text = Vec::new();
    let mut writer = csv::Writer::from_writer(&mut text);
    records.iter().try_for_each(|record| writer.write_record(record))?;
    writer.flush()?;
    drop(writer);
    Ok(String::from_utf8_lossy(&text).into_owned())
}

/// The width of a column of text, and of the ratios in it.
struct Widths {
    ratio: usize,
    all: usize,
}

impl Table {
    /// A table of texts that do not stand out, under heads of one line.
    pub fn plain<'h>(head: impl IntoIterator<Item = &'h str>, rows: impl IntoIterator<Item = Vec<String>>) -> Table {
        let head = head.into_iter().map(|name| vec![name.to_string()]).collect();
        let rows = rows.into_iter().map(|row| row.into_iter().map(self::Item::plain).collect()).collect();
        Table { head, rows }
    }

    /// As text for a terminal of `width` columns, or of any width. What does not fit beside the names follows below, under
    /// the names again.
    pub fn text(&self, width: Option<usize>) -> String {
        let is_marked = self.rows.iter().flatten().any(|item| item.style == Style::Best);
        let widths: Vec<Widths> = (0..self.head.len()).map(|column| self.widths(column, is_marked)).collect();
        let others: Vec<usize> = widths[1..].iter().map(|widths| GAP.len() + widths.all).collect();
        let blocks = folded(widths[0].all, &others, width).into_iter().map(|fold| {
            let columns: Vec<usize> = std::iter::once(0).chain(fold.map(|at| at + 1)).collect();
            self.block(&columns, &widths, is_marked)
        });
        blocks.collect::<Vec<_>>().join("\n")
    }

    fn widths(&self, column: usize, is_marked: bool) -> Widths {
        let widest = |texts: &mut dyn Iterator<Item = &str>| texts.map(UnicodeWidthStr::width).max().unwrap_or(0);
        let items = || self.rows.iter().map(|row| &row[column]);
        // The mark stands behind the value, and numbers keep their places with and without.
        let mark = usize::from(is_marked && column > 0);
        let value = widest(&mut items().map(|item| item.text.as_str())) + mark;
        let ratio = widest(&mut items().filter_map(|item| item.ratio.as_deref()));
        let ratio = if ratio == 0 { 0 } else { GAP.len() + ratio + 1 };
        let head = widest(&mut self.head[column].iter().map(String::as_str));
        Widths { ratio, all: head.max(value + ratio) }
    }

    fn block(&self, columns: &[usize], widths: &[Widths], is_marked: bool) -> String {
        let mut text = String::new();
        let lines = columns.iter().map(|column| self.head[*column].len()).max().unwrap_or(0);
        for line in 0..lines {
            let cells = columns.iter().map(|column| {
                let head = self.head[*column].get(line).map_or("", String::as_str);
                let pad = " ".repeat(widths[*column].all - head.width());
                if *column == 0 { format!("{head}{pad}") } else { format!("{pad}{head}") }
            });
            push_line(&mut text, cells.collect());
        }
        for row in &self.rows {
            let cells = columns.iter().map(|column| row[*column].in_text(&widths[*column], is_marked, *column == 0));
            push_line(&mut text, cells.collect());
        }
        text
    }

    fn markdown(&self) -> String {
        let head = self.head.iter().map(|lines| escaped_markdown(&lines.join(" ")));
        let mut text = format!("| {} |\n", head.collect::<Vec<_>>().join(" | "));
        let rules = (0..self.head.len()).map(|column| if column == 0 { "---" } else { "---:" });
        let _ = writeln!(text, "| {} |", rules.collect::<Vec<_>>().join(" | "));
        for row in &self.rows {
            let cells = row.iter().map(|item| {
                let value = escaped_markdown(&item.text);
                let value = if item.style == Style::Best { format!("**{value}**") } else { value };
                item.ratio.as_ref().map_or(value.clone(), |ratio| format!("{value} ({ratio}×)"))
            });
            let _ = writeln!(text, "| {} |", cells.collect::<Vec<_>>().join(" | "));
        }
        text
    }

    /// What the caption should say comes as a comment.
    fn latex(&self, caption: &str) -> String {
        let caption = caption.replace('\n', "\n% ");
        let head = self.head.iter().map(|lines| escaped_latex(&lines.join(" ")));
        let columns = "r".repeat(self.head.len().saturating_sub(1));
        let mut text =
            format!("% {caption}\n% \\usepackage{{booktabs}}\n\\begin{{tabular}}{{l{columns}}}\n\\toprule\n");
        let _ = writeln!(text, "{} \\\\\n\\midrule", head.collect::<Vec<_>>().join(" & "));
        for row in &self.rows {
            let cells = row.iter().map(|item| {
                let value = escaped_latex(&item.text);
                let value = if item.style == Style::Best { format!("\\textbf{{{value}}}") } else { value };
                item.ratio.as_ref().map_or(value.clone(), |ratio| format!("{value} (${ratio}\\times$)"))
            });
            let _ = writeln!(text, "{} \\\\", cells.collect::<Vec<_>>().join(" & "));
        }
        text.push_str("\\bottomrule\n\\end{tabular}\n");
        text
    }
}

impl Item {
    fn in_text(&self, widths: &Widths, is_marked: bool, is_name: bool) -> String {
        let pad = |width: usize, text: &str| " ".repeat(width.saturating_sub(text.width()));
        if is_name {
            return format!("{}{}", self.text, pad(widths.all, &self.text));
        }
        let mark = match self.style {
            _ if !is_marked => "",
            Style::Best => "*",
            _ => " ",
        };
        let ratio = self.ratio.as_ref().map_or(String::new(), |ratio| format!("{ratio}×"));
        let before = pad(widths.all - widths.ratio - mark.len(), &self.text);
        let after = format!("{mark}{}{ratio}", pad(widths.ratio, &ratio));
        let colour = match self.style {
            Style::Plain => return format!("{before}{}{after}", self.text),
            Style::Best => BOLD,
            Style::Warning => YELLOW,
            Style::Fault => RED,
        };
        format!("{before}{colour}{}{RESET}{after}", self.text)
    }
}

fn push_line(text: &mut String, cells: Vec<String>) {
    text.push_str(cells.join(GAP).trim_end());
    text.push('\n');
}

/// As Markdown prints it. An underscore inside a word has no meaning there, and stays readable.
fn escaped_markdown(text: &str) -> String {
    let letters: Vec<char> = text.chars().collect();
    let is_word = |at: Option<usize>| at.and_then(|at| letters.get(at)).is_some_and(|letter| letter.is_alphanumeric());
    let mut escaped = String::with_capacity(text.len());
    for (at, letter) in letters.iter().enumerate() {
        let is_special = match letter {
            '_' => !is_word(at.checked_sub(1)) || !is_word(Some(at + 1)),
            letter => r"\`*|<>[]&~".contains(*letter),
        };
        if is_special {
            escaped.push('\\');
        }
        escaped.push(*letter);
    }
    escaped
}

/// As LaTeX prints it, with any engine. A number and its unit stay on one line.
fn escaped_latex(text: &str) -> String {
    let is_figure = text.starts_with(|first: char| first.is_ascii_digit() || "+-".contains(first));
    let mut escaped = String::with_capacity(text.len());
    for (at, letter) in text.char_indices() {
        let follows_number = || text[..at].ends_with(|before: char| before.is_ascii_digit());
        match letter {
            '\\' => escaped.push_str("\\textbackslash{}"),
            '{' | '}' | '$' | '&' | '#' | '_' | '%' => escaped.extend(['\\', letter]),
            '^' => escaped.push_str("\\textasciicircum{}"),
            '~' => escaped.push_str("\\textasciitilde{}"),
            '<' => escaped.push_str("\\textless{}"),
            '>' => escaped.push_str("\\textgreater{}"),
            '|' => escaped.push_str("\\textbar{}"),
            'µ' => escaped.push_str("\\textmu{}"),
            '-' if text == "-" => escaped.push_str("--"),
            '-' if at == 0 => escaped.push_str("$-$"),
            ' ' if is_figure && follows_number() => escaped.push('~'),
            letter => escaped.push(letter),
        }
    }
    escaped
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn markdown_shows_names_as_they_are() {
        assert_eq!(escaped_markdown("fsdp_gpt2.default_1"), "fsdp_gpt2.default_1");
        assert_eq!(escaped_markdown("_a_ a|b *c* `d` <e>"), r"\_a\_ a\|b \*c\* \`d\` \<e\>");
    }

    #[test]
    fn latex_shows_names_as_they_are() {
        assert_eq!(
            escaped_latex("50%_odd & #1 {x} a\\b ~ ^ $"),
            "50\\%\\_odd \\& \\#1~\\{x\\} a\\textbackslash{}b \\textasciitilde{} \\textasciicircum{} \\$"
        );
        assert_eq!(escaped_latex("-18.9 %"), "$-$18.9~\\%");
        assert_eq!(escaped_latex("1.50 µs"), "1.50~\\textmu{}s");
        assert_eq!((escaped_latex("-"), escaped_latex("a-b")), ("--".to_string(), "a-b".to_string()));
    }

    fn table() -> Table {
        let item = |text: &str, ratio: &str, style| Item { text: text.into(), ratio: Some(ratio.into()), style };
        let oom = Item { style: Style::Warning, ..Item::plain("oom") };
        Table {
            head: [&["name"][..], &["one"], &["two", "a=1"]]
                .map(|lines| lines.iter().map(|line| line.to_string()).collect())
                .to_vec(),
            rows: vec![
                vec![Item::plain("ä"), item("5 B", "1.00", Style::Best), item("10 B", "2.00", Style::Plain)],
                vec![Item::plain("名前名前"), oom, item("7 B", "10.00", Style::Plain)],
            ],
        }
    }

    #[test]
    fn text_stands_in_columns_whatever_it_costs_on_the_terminal() {
        let expected = "\
name              one            two
                                 a=1
ä         \x1b[1m5 B\x1b[0m*  1.00×  10 B    2.00×
名前名前  \x1b[33moom\x1b[0m           7 B   10.00×
";
        assert_eq!(table().text(None), expected);
        assert_eq!(table().text(Some(36)), expected);
    }

    #[test]
    fn what_does_not_fit_follows_below() {
        let narrow = table().text(Some(35));
        assert_eq!(narrow.matches("name").count(), 2, "{narrow}");
        assert_eq!(narrow, table().text(Some(1)), "one column at least, however narrow");
    }
}
