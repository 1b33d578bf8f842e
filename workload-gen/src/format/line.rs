//! Lines of events, made by hand: a trace is nearly all numbers, and formatting them the usual way takes most of the time
//! of writing one.

use super::fields::escape;
use super::write::pool_op_name;
use crate::trace::Event;
use allocator_core::PoolId;

/// `00` to `99`.
const PAIRS: [u8; 200] = {
    let mut pairs = [0; 200];
    let mut n = 0;
    while n < 100 {
        pairs[2 * n] = b'0' + (n / 10) as u8;
        pairs[2 * n + 1] = b'0' + (n % 10) as u8;
        n += 1;
    }
    pairs
};

/// Appends a blank, perhaps a prefix, and a number.
#[inline]
fn field(prefix: &[u8], mut number: u64, to: &mut Vec<u8>) {
    let mut digits = [0; 20];
    let mut at = digits.len();
    while number >= 10 {
        let pair = 2 * (number % 100) as usize;
        number /= 100;
        at -= 2;
        digits[at..at + 2].copy_from_slice(&PAIRS[pair..pair + 2]);
    }
    // After a pair that was the number's last, there is nothing more to write.
    if number > 0 || at == digits.len() {
        at -= 1;
        digits[at] = b'0' + number as u8;
    }
    to.extend_from_slice(prefix);
    to.extend_from_slice(&digits[at..]);
}

/// Appends the line of an event. `text` is what it refers to, if it refers to any; of others it is never asked.
#[inline]
pub(super) fn push<'t>(
    event: &Event,
    label: Option<u32>,
    text: impl FnOnce(u32) -> Option<&'t str>,
    to: &mut Vec<u8>,
) -> Result<(), String> {
    match *event {
        Event::Alloc { slot, size, stream, pool } => {
            field(b"a ", slot.into(), to);
            field(b" ", size, to);
            field(b" ", stream.0.into(), to);
            if pool != PoolId::DEFAULT {
                field(b" p", pool.0.into(), to);
            }
            if let Some(label) = label {
                field(b" @", label.into(), to);
            }
        }
        Event::Free { slot, ticket } => {
            field(b"f ", slot.into(), to);
            if let Some(ticket) = ticket {
                field(b" !", ticket.into(), to);
            }
        }
        Event::Use { slot, stream } => {
            field(b"u ", slot.into(), to);
            field(b" ", stream.0.into(), to);
        }
        Event::Done { ticket } => field(b"c ", ticket.into(), to),
        Event::Work { stream, ns } => {
            field(b"k ", stream.0.into(), to);
            field(b" ", ns, to);
        }
        Event::Wait { stream, on } => {
            field(b"w ", stream.0.into(), to);
            field(b" ", on.0.into(), to);
        }
        Event::Sync { stream: Some(stream) } => field(b"y ", stream.0.into(), to),
        Event::Sync { stream: None } => to.extend_from_slice(b"y *"),
        Event::Empty { pool: None } => to.extend_from_slice(b"e"),
        Event::Empty { pool: Some(pool) } => field(b"e p", pool.0.into(), to),
        Event::Pool { op, pool } => {
            to.extend_from_slice(b"p ");
            to.extend_from_slice(pool_op_name(op).as_bytes());
            field(b" ", pool.0.into(), to);
        }
        Event::Limit { bytes: Some(bytes) } => field(b"l ", bytes, to),
        Event::Limit { bytes: None } => to.extend_from_slice(b"l -"),
        Event::Host { ns } => field(b"t ", ns, to),
        Event::Settings { text: number } | Event::Mark { text: number } => {
            let letter = if matches!(event, Event::Mark { .. }) { b"m " } else { b"s " };
            let text = text(number).ok_or_else(|| format!("text {number} does not exist in the trace"))?;
            to.extend_from_slice(letter);
            to.extend_from_slice(escape(text).as_bytes());
        }
    }
    to.push(b'\n');
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_written_as_usual() {
        let edges = (0..20).map(|power| 10u64.pow(power)).flat_map(|n| [n - 1, n, n + 1, n / 10 * 9]);
        for number in edges.chain([0, 10, 99, 100, 101, 12_345, u64::MAX]) {
            let mut to = Vec::new();
            field(b"x", number, &mut to);
            assert_eq!(String::from_utf8(to).unwrap(), format!("x{number}"));
        }
    }
}
