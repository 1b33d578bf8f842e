//! What a data loader makes of lengths: how it is written. [`Batches`](super::Batches) does it.

use super::call::{Call, Form, choices, ordered, whole};
use super::distribution::LONGEST;
use std::fmt;

/// How sequences become batches. A batch is a rectangle, rows by columns, with padding where a sequence ends before the
/// last column.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Shaping {
    /// The columns are the longest sequence.
    Pad,
    /// The longest sequence, rounded up to a multiple of so many tokens.
    Bucket(u64),
    /// Each row takes sequences, one after the other, up to a budget of so many tokens. A sequence goes in the first row
    /// that has room; where none has, the batch is closed and the sequence opens the next. One longer than the budget
    /// is cut to it. The columns are the fullest row.
    Pack(u64),
    /// The sequences are sorted before they are dealt out, then padded to the longest. Sorted is the whole run, if it has
    /// no more than [`WINDOW`](super::WINDOW) sequences, otherwise one stretch of so many after the other.
    Sort(Order),
    /// Sequences are cut to a cap that grows evenly from the first step to the last, then padded to the longest.
    Curriculum {
        /// The cap of the first step, in tokens.
        from: u64,
        /// The cap of the last step.
        to: u64,
    },
    /// Every step has more columns than any before: where the longest sequence of a batch is none longer than what was,
    /// it is made one token longer than that.
    Rising,
    /// As [`Pad`](Self::Pad), but every batch is a slice of one buffer, allocated before for the longest sequence
    /// of the run.
    Buffer,
    /// One length is drawn for the whole batch: no padding. So a list of lengths is a list of batches.
    Alike,
}

/// Which sequences come first.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Order {
    /// The shortest.
    Ascending,
    /// The longest.
    Descending,
}

const FORMS: &[Form] = &[
    Form { written: "pad", about: "padded to the longest sequence of the batch; none is the same" },
    Form { written: "bucket(N)", about: "padded to the next multiple of N tokens" },
    Form {
        written: "pack(BUDGET)",
        about: "as many sequences to a row as have room in BUDGET tokens, longer ones cut",
    },
    Form { written: "sort(asc)", about: "sorted, the shortest sequences first, and padded" },
    Form { written: "sort(desc)", about: "sorted, the longest sequences first, and padded" },
    Form { written: "curriculum(FROM,TO)", about: "cut to a cap that grows from FROM to TO tokens, and padded" },
    Form { written: "rising", about: "each batch longer than all before, if need be by one token" },
    Form { written: "alike", about: "one length for the whole batch" },
    Form { written: "buffer", about: "padded, as slices of one buffer for the longest batch of the run" },
];

impl Shaping {
    /// Reads a shaping. The error says what is wrong with which number, what it may be, and how it is written right.
    pub fn parse(text: &str) -> Result<Shaping, String> {
        let call = Call::parse(text)?;
        let Some(form) = call.form(FORMS) else {
            return match (call.name, call.arguments.len()) {
                ("none", 0) => Ok(Shaping::Pad),
                (name, _) => {
                    Err(format!("`{name}` is no shaping of lengths into batches; there are {}", choices(FORMS)))
                }
            };
        };
        let tokens = |what, text| whole(what, text, 1..=LONGEST, "tokens");
        let shaping = match call.name {
            "bucket" => call.exactly().and_then(|[multiple]| tokens("N", multiple)).map(Shaping::Bucket),
            "pack" => call.exactly().and_then(|[budget]| tokens("BUDGET", budget)).map(Shaping::Pack),
            "sort" => call.exactly().and_then(|[order]| Order::parse(order)).map(Shaping::Sort),
            "curriculum" => call.exactly().and_then(|[from, to]| {
                let (from, to) = (tokens("FROM", from)?, tokens("TO", to)?);
                ordered(("FROM", from), ("TO", to))?;
                Ok(Shaping::Curriculum { from, to })
            }),
            "rising" => call.exactly().map(|[]| Shaping::Rising),
            "buffer" => call.exactly().map(|[]| Shaping::Buffer),
            "alike" => call.exactly().map(|[]| Shaping::Alike),
            _ => call.exactly().map(|[]| Shaping::Pad),
        };
        shaping.map_err(|problem| form.error(problem))
    }

    /// All ways to write a shaping, for help.
    pub fn forms() -> &'static [Form] {
        FORMS
    }
}

impl Order {
    fn parse(text: &str) -> Result<Order, String> {
        match text {
            "asc" => Ok(Order::Ascending),
            "desc" => Ok(Order::Descending),
            _ => Err(format!("the order is `{text}`, where asc or desc is needed")),
        }
    }
}

impl fmt::Display for Shaping {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Shaping::Pad => f.write_str("pad"),
            Shaping::Bucket(multiple) => write!(f, "bucket({multiple})"),
            Shaping::Pack(budget) => write!(f, "pack({budget})"),
            Shaping::Sort(Order::Ascending) => f.write_str("sort(asc)"),
            Shaping::Sort(Order::Descending) => f.write_str("sort(desc)"),
            Shaping::Curriculum { from, to } => write!(f, "curriculum({from},{to})"),
            Shaping::Rising => f.write_str("rising"),
            Shaping::Buffer => f.write_str("buffer"),
            Shaping::Alike => f.write_str("alike"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_written_is_read_back() {
        for text in [
            "pad",
            "bucket(64)",
            "pack(8192)",
            "sort(asc)",
            "sort(desc)",
            "curriculum(64,2048)",
            "rising",
            "alike",
            "buffer",
        ] {
            assert_eq!(Shaping::parse(text).map(|shaping| shaping.to_string()).as_deref(), Ok(text));
        }
        assert_eq!(Shaping::parse("none"), Ok(Shaping::Pad));
        assert_eq!(Shaping::parse(" sort( desc ) "), Ok(Shaping::Sort(Order::Descending)));
        for form in Shaping::forms() {
            let text = form.written.replace("BUDGET", "9").replace("FROM", "1").replace("TO", "2").replace('N', "8");
            assert!(Shaping::parse(&text).is_ok(), "{text}");
        }
    }

    #[test]
    fn errors_say_what_to_write() {
        for (text, parts) in [
            ("bucket(0)", &["N is `0`", "from 1 to 1000000000 tokens", "write bucket(N): padded"][..]),
            ("bucket", &["`bucket` takes 1 argument, not 0", "bucket(N)"]),
            ("pack(x)", &["BUDGET is `x`", "pack(BUDGET)"]),
            ("sort(up)", &["the order is `up`, where asc or desc is needed", "sort(asc)"]),
            ("curriculum(9,8)", &["FROM is 9, more than TO, which is 8", "curriculum(FROM,TO)"]),
            ("pad(3)", &["`pad` takes 0 arguments, not 1"]),
            ("none(3)", &["`none` is no shaping"]),
            (
                "buckets(3)",
                &["`buckets` is no shaping of lengths into batches; there are pad, bucket(N), pack(BUDGET)"],
            ),
        ] {
            let error = Shaping::parse(text).expect_err(text);
            assert!(parts.iter().all(|part| error.contains(part)), "{text}: {error}");
        }
    }
}
