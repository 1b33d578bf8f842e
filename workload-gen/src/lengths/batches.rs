//! The batches that training steps see: lengths, shaped.

use super::{Lengths, Order, Rng, Sampler, Shaping};

/// The most sequences that are held at a time for a run: what is sorted together, and what one packed batch takes. A batch
/// of more rows than that holds its rows.
pub const WINDOW: u64 = 1 << 20;

/// The most lengths that are drawn before a run to know the longest.
const DRAWN: u64 = 1 << 24;

/// The shape of one step's batch.
#[derive(Clone, PartialEq, Eq, Debug)]
pub struct BatchShape {
    /// Rows of the rectangle.
    pub rows: u64,
    /// Columns, padding included.
    pub columns: u64,
    /// Tokens that are no padding.
    pub tokens: u64,
    /// Where the batch is a slice of a buffer that serves the whole run: how many elements that buffer has.
    pub sliced_from: Option<u64>,
    /// The sequences' lengths as they are in the batch, cut where they were cut. One for each row, unless rows are packed: then
    /// in the order in which they came.
    pub sequences: Vec<u64>,
}

/// The batches of a run, one for each step.
#[derive(Clone, Debug)]
pub struct Batches {
    sampler: Sampler,
    shaping: Shaping,
    batch: u64,
    steps: u64,
    /// Steps done.
    step: u64,
    /// `sort`: what is sorted and not dealt out, the next sequence at the end.
    sorted: Vec<u64>,
    /// `pack`: the sequence that had no room in the batch before.
    waiting: Option<u64>,
    /// `rising`: the columns of the step before.
    columns: u64,
    /// `buffer`: its elements.
    elements: u64,
}

impl Batches {
    /// `steps` batches of `batch` rows (at least one) of sequences from `lengths`.
    pub fn new(lengths: &Lengths, shaping: Shaping, batch: u64, steps: u64, rng: Rng) -> Batches {
        let (sampler, batch) = (lengths.sampler(rng), batch.max(1));
        let elements = match shaping {
            // Of a data set, the longest sequence is known before a run; here, the run has to be drawn in advance. One that would take
            // long to draw has the longest length there can be.
            Shaping::Buffer => {
                let draws = steps.saturating_mul(batch);
                let mut ahead = sampler.clone();
                let longest = match draws <= DRAWN {
                    true => (0..draws).map(|_| ahead.draw()).max().unwrap_or(0),
                    false => lengths.range().1,
                };
                longest.saturating_mul(batch)
            }
            _ => 0,
        };
        Batches { sampler, shaping, batch, steps, step: 0, sorted: Vec::new(), waiting: None, columns: 0, elements }
    }

    /// The next sequences as they come, one for each row.
    fn drawn(&mut self) -> Vec<u64> {
        (0..self.batch).map(|_| self.sampler.draw()).collect()
    }

    /// The next sequences of those that are sorted.
    fn dealt(&mut self, order: Order) -> Vec<u64> {
        if self.sorted.is_empty() {
            let steps = (WINDOW / self.batch).max(1).min(self.steps - self.step);
            self.sorted = (0..steps * self.batch).map(|_| self.sampler.draw()).collect();
            // The next one is at the end.
            self.sorted.sort_unstable();
            if order == Order::Ascending {
                self.sorted.reverse();
            }
        }
        let rest = self.sorted.len() - self.batch as usize;
        self.sorted.drain(rest..).rev().collect()
    }

    /// The next sequences packed in rows, and how full each row is.
    fn packed(&mut self, budget: u64) -> (Vec<u64>, Vec<u64>) {
        let (mut sequences, mut rows) = (Vec::new(), Vec::<u64>::new());
        while (sequences.len() as u64) < WINDOW.max(self.batch) {
            let length = self.waiting.take().unwrap_or_else(|| self.sampler.draw()).min(budget);
            match rows.iter().position(|row| row + length <= budget) {
                Some(row) => rows[row] += length,
                None if (rows.len() as u64) < self.batch => rows.push(length),
                None => {
                    self.waiting = Some(length);
                    break;
                }
            }
            sequences.push(length);
        }
        (sequences, rows)
    }

    /// The next sequences, of which the longest is longer than any before.
    fn raised(&mut self) -> Vec<u64> {
        let mut sequences = self.drawn();
        if let Some(longest) = sequences.iter_mut().max() {
            *longest = (*longest).max(self.columns + 1);
            self.columns = *longest;
        }
        sequences
    }

    /// What a curriculum allows at this step.
    fn cap(&self, from: u64, to: u64) -> u64 {
        let (done, all) = (u128::from(self.step), u128::from(self.steps.saturating_sub(1).max(1)));
        from + (u128::from(to - from) * done / all) as u64
    }
}

impl Iterator for Batches {
    type Item = BatchShape;

    fn next(&mut self) -> Option<BatchShape> {
        if self.step == self.steps {
            return None;
        }
        let mut packed = None;
        let sequences = match self.shaping {
            Shaping::Pad | Shaping::Bucket(_) | Shaping::Buffer => self.drawn(),
            Shaping::Alike => vec![self.sampler.draw(); self.batch as usize],
            Shaping::Sort(order) => self.dealt(order),
            Shaping::Rising => self.raised(),
            Shaping::Curriculum { from, to } => {
                let cap = self.cap(from, to);
                self.drawn().into_iter().map(|length| length.min(cap)).collect()
            }
            Shaping::Pack(budget) => {
                let (sequences, rows) = self.packed(budget);
                packed = Some(rows);
                sequences
            }
        };
        self.step += 1;
        let rows = packed.as_ref().unwrap_or(&sequences);
        let longest = rows.iter().copied().max().unwrap_or(0);
        Some(BatchShape {
            rows: rows.len() as u64,
            columns: if let Shaping::Bucket(multiple) = self.shaping {
                longest.next_multiple_of(multiple)
            } else {
                longest
            },
            tokens: rows.iter().sum(),
            sliced_from: (self.shaping == Shaping::Buffer).then_some(self.elements),
            sequences,
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(lengths: &str, shaping: &str, batch: u64, steps: u64) -> Vec<BatchShape> {
        let (lengths, shaping) = (Lengths::parse(lengths).unwrap(), Shaping::parse(shaping).unwrap());
        Batches::new(&lengths, shaping, batch, steps, Rng::new(11)).collect()
    }

    /// Rows, columns and tokens of each batch.
    fn shapes(lengths: &str, shaping: &str, batch: u64, steps: u64) -> Vec<(u64, u64, u64)> {
        run(lengths, shaping, batch, steps).iter().map(|shape| (shape.rows, shape.columns, shape.tokens)).collect()
    }

    #[test]
    fn an_alike_batch_has_one_length() {
        assert_eq!(shapes("list(5,7,3)", "alike", 4, 4), [(4, 5, 20), (4, 7, 28), (4, 3, 12), (4, 5, 20)]);
    }

    fn columns(lengths: &str, shaping: &str, batch: u64, steps: u64) -> Vec<u64> {
        run(lengths, shaping, batch, steps).iter().map(|shape| shape.columns).collect()
    }

    fn sequences(batches: &[BatchShape]) -> Vec<u64> {
        batches.iter().flat_map(|shape| shape.sequences.clone()).collect()
    }

    #[test]
    fn padding_reaches_to_the_longest() {
        assert_eq!(shapes("list(3,9,4,4,1,2)", "pad", 2, 3), [(2, 9, 12), (2, 4, 8), (2, 2, 3)]);
        assert_eq!(shapes("list(3,9)", "pad", 0, 2), [(1, 3, 3), (1, 9, 9)]);
        assert_eq!(shapes("5", "pad", 4, 0), []);
        assert_eq!(run("list(3,9)", "pad", 2, 1)[0].sequences, [3, 9]);
    }

    #[test]
    fn buckets_round_up_to_their_multiple() {
        assert_eq!(columns("list(1,63,64,65,128,129)", "bucket(64)", 1, 6), [64, 64, 64, 128, 128, 192]);
        assert_eq!(shapes("list(3,65)", "bucket(64)", 2, 1), [(2, 128, 68)]);
        for shape in run("lognormal(6,1)", "bucket(48)", 8, 200) {
            let longest = *shape.sequences.iter().max().unwrap();
            assert!(shape.columns % 48 == 0 && (longest..longest + 48).contains(&shape.columns));
        }
    }

    #[test]
    fn packing_fills_the_first_row_with_room() {
        // 4 goes beside the first 6; 5 has room in neither row and opens the second batch.
        let batches = run("list(6,6,4,5,3,2)", "pack(10)", 2, 2);
        assert_eq!((batches[0].rows, batches[0].columns, batches[0].tokens), (2, 10, 16));
        assert_eq!((&batches[0].sequences[..], &batches[1].sequences[..3]), (&[6, 6, 4][..], &[5, 3, 2][..]));
        // Rows are no fuller than the fullest, which is not always the budget.
        assert_eq!(shapes("list(6,5)", "pack(10)", 1, 2), [(1, 6, 6), (1, 5, 5)]);
        // A sequence longer than the budget is cut to it.
        assert_eq!(shapes("30", "pack(10)", 3, 1), [(3, 10, 30)]);
        let batches = run("lognormal(5,1)", "pack(1024)", 4, 300);
        for shape in &batches {
            assert!(shape.rows == 4 && shape.columns <= 1024 && shape.tokens > 4 * 512);
            assert_eq!(shape.tokens, shape.sequences.iter().sum::<u64>());
        }
        // None is lost between batches.
        let dealt = sequences(&batches);
        let drawn = Lengths::parse("lognormal(5,1)").unwrap().sampler(Rng::new(11));
        assert!(drawn.map(|length| length.min(1024)).take(dealt.len()).eq(dealt));
    }

    #[test]
    fn a_packed_batch_ends_at_the_window() {
        assert_eq!(shapes("1", "pack(1000000000)", 1, 2), [(1, WINDOW, WINDOW); 2]);
    }

    #[test]
    fn sorting_deals_out_the_same_sequences_in_order() {
        let padded = sequences(&run("lognormal(6,1)", "pad", 8, 50));
        for (shaping, ascending) in [("sort(asc)", true), ("sort(desc)", false)] {
            let batches = run("lognormal(6,1)", shaping, 8, 50);
            let mut expected = padded.clone();
            expected.sort_unstable_by(|a, b| if ascending { a.cmp(b) } else { b.cmp(a) });
            assert_eq!(sequences(&batches), expected, "{shaping}");
            assert!(batches.is_sorted_by_key(|shape| if ascending { shape.columns } else { u64::MAX - shape.columns }));
        }
    }

    #[test]
    fn what_exceeds_the_window_is_sorted_by_stretches() {
        // Two steps of a bit more than a third of the window are sorted together, the third is not.
        let batch = WINDOW / 3 + 10;
        let batches = run("uniform(1,1000000)", "sort(asc)", batch, 3);
        let all = sequences(&batches);
        let stretch = 2 * batch as usize;
        assert!(all[..stretch].is_sorted() && all[stretch..].is_sorted() && all[stretch] < all[stretch - 1]);
        // A batch that exceeds it is sorted in itself.
        let all = sequences(&run("uniform(1,1000000)", "sort(asc)", WINDOW + 1, 2));
        let stretch = WINDOW as usize + 1;
        assert!(all[..stretch].is_sorted() && all[stretch..].is_sorted() && all.len() == 2 * stretch);
    }

    #[test]
    fn a_curriculum_cuts_less_and_less() {
        assert_eq!(columns("1000", "curriculum(100,500)", 2, 5), [100, 200, 300, 400, 500]);
        assert_eq!(columns("250", "curriculum(100,500)", 2, 5), [100, 200, 250, 250, 250]);
        assert_eq!(columns("1000", "curriculum(100,500)", 2, 1), [100]);
        assert_eq!(shapes("list(9,150)", "curriculum(100,500)", 2, 1), [(2, 100, 109)]);
    }

    #[test]
    fn rising_never_repeats_a_maximum() {
        assert_eq!(shapes("list(3,9,4,4,1,20)", "rising", 2, 4), [(2, 9, 12), (2, 10, 14), (2, 20, 21), (2, 21, 24)]);
        assert!(columns("lognormal(6,1)", "rising", 8, 200).is_sorted_by(|a, b| a < b));
    }

    #[test]
    fn a_buffer_holds_the_longest_batch_of_the_run() {
        let batches = run("lognormal(6,1)", "buffer", 8, 50);
        let longest = batches.iter().map(|shape| shape.columns).max().unwrap();
        assert!(batches.iter().all(|shape| shape.sliced_from == Some(8 * longest)));
        assert!(batches.iter().any(|shape| shape.columns < longest));
        let padded = run("lognormal(6,1)", "pad", 8, 50);
        assert_eq!(sequences(&batches), sequences(&padded));
        assert!(padded.iter().all(|shape| shape.sliced_from.is_none()));
    }

    #[test]
    fn the_same_seed_gives_the_same_batches() {
        for shaping in ["pad", "bucket(8)", "pack(4096)", "sort(asc)", "curriculum(9,99)", "rising", "buffer"] {
            assert_eq!(run("azure-code", shaping, 4, 20), run("azure-code", shaping, 4, 20), "{shaping}");
        }
    }
}
