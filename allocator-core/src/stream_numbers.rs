//! Streams in the order in which they come, for strategies that keep something for each and go through it in that order.

use crate::request::StreamId;

/// Numbers streams of requests from 0, in the order of [`StreamNumbers::add`]. To find one takes no search.
#[derive(Clone, Debug, Default)]
pub struct StreamNumbers {
    /// By stream: its number, or `u32::MAX`.
    numbers: Vec<u32>,
    count: u32,
}

impl StreamNumbers {
    /// The number of a stream that was added.
    #[inline]
    pub fn get(&self, stream: StreamId) -> Option<u32> {
        self.numbers.get(stream.index()).copied().filter(|&number| number != u32::MAX)
    }

    /// The next number, for a stream that has none yet.
    pub fn add(&mut self, stream: StreamId) -> u32 {
        if self.numbers.len() <= stream.index() {
            self.numbers.resize(stream.index() + 1, u32::MAX);
        }
        let number = self.count;
        self.numbers[stream.index()] = number;
        self.count += 1;
        number
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn streams_are_numbered_as_they_come() {
        let mut numbers = StreamNumbers::default();
        assert_eq!(numbers.get(StreamId(7)), None);
        for (number, stream) in [(0, 7), (1, 0), (2, 3)] {
            assert_eq!(numbers.add(StreamId(stream)), number);
        }
        let got: Vec<Option<u32>> = [0, 3, 7, 1, 100].map(|stream| numbers.get(StreamId(stream))).to_vec();
        assert_eq!(got, [Some(1), Some(2), Some(0), None, None]);
    }
}
