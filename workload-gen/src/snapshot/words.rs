//! The strings that mean something in a snapshot: its keys, actions and states.

use super::Action;

/// Makes [`Word`] and what is true of all words, so that each is named in one place.
macro_rules! words {
    ($($word:ident $(= $text:literal $(| $other:literal)?)?,)+) => {
        /// A string with a meaning. Everything else in a snapshot is [`Word::Unknown`] and only skipped.
        #[derive(Clone, Copy, PartialEq, Eq, Debug)]
        #[repr(u8)]
        pub(super) enum Word {
            $($word,)+
        }

        impl Word {
            const ALL: &[Word] = &[$(Word::$word,)+];

            /// The longest string that is a word.
            pub(super) const MAX_LEN: usize = longest(&[$($($text, $($other,)?)?)+]);

            /// The word that a string is.
            pub(super) fn of(text: &[u8]) -> Word {
                match text {
                    $($($text $(| $other)? => Word::$word,)?)+
                    _ => Word::Unknown,
                }
            }
        }
    };
}

const fn longest(texts: &[&[u8]]) -> usize {
    let (mut at, mut longest) = (0, 0);
    while at < texts.len() {
        if texts[at].len() > longest {
            longest = texts[at].len();
        }
        at += 1;
    }
    longest
}

words! {
    Unknown,
    // Keys of the outermost dictionary.
    Segments = b"segments",
    DeviceTraces = b"device_traces",
    AllocatorSettings = b"allocator_settings",
    // Keys of trace entries.
    Action = b"action",
    Addr = b"addr",
    DeviceFree = b"device_free",
    Size = b"size",
    Stream = b"stream",
    TimeUs = b"time_us",
    // Keys of segments and blocks.
    Device = b"device",
    Address = b"address",
    TotalSize = b"total_size",
    SegmentType = b"segment_type",
    SegmentPoolId = b"segment_pool_id",
    IsExpandable = b"is_expandable",
    Blocks = b"blocks",
    RequestedSize = b"requested_size",
    State = b"state",
    // Keys of the settings.
    Conf = b"PYTORCH_CUDA_ALLOC_CONF" | b"PYTORCH_ALLOC_CONF",
    MaxSplitSize = b"max_split_size",
    GcThreshold = b"garbage_collection_threshold",
    ExpandableSegments = b"expandable_segments",
    // Actions.
    Alloc = b"alloc",
    FreeRequested = b"free_requested",
    FreeCompleted = b"free_completed",
    SegmentAlloc = b"segment_alloc",
    SegmentFree = b"segment_free",
    SegmentMap = b"segment_map",
    SegmentUnmap = b"segment_unmap",
    Oom = b"oom",
    Snapshot = b"snapshot",
    // Other values.
    Small = b"small",
    Large = b"large",
    ActiveAllocated = b"active_allocated",
    // The second spelling is that of the documentation and of some old files.
    ActivePendingFree = b"active_pending_free" | b"active_awaiting_free",
    Inactive = b"inactive",
    Empty = b"",
}

impl Word {
    /// The word with this number; [`Word::Unknown`] for a number that is none.
    #[inline]
    pub(super) fn from_number(number: u8) -> Word {
        Word::ALL.get(usize::from(number)).copied().unwrap_or(Word::Unknown)
    }

    /// The action that this word names; unknown words name the unknown action.
    #[inline]
    pub(super) fn action(self) -> Action {
        match self {
            Word::Alloc => Action::Alloc,
            Word::FreeRequested => Action::FreeRequested,
            Word::FreeCompleted => Action::FreeCompleted,
            Word::SegmentAlloc => Action::SegmentAlloc,
            Word::SegmentFree => Action::SegmentFree,
            Word::SegmentMap => Action::SegmentMap,
            Word::SegmentUnmap => Action::SegmentUnmap,
            Word::Oom => Action::Oom,
            Word::Snapshot => Action::Snapshot,
            _ => Action::Unknown,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_number_is_its_words_and_no_other_is_one() {
        for number in 0..=u8::MAX {
            let word = Word::from_number(number);
            let expected = if usize::from(number) < Word::ALL.len() { number } else { Word::Unknown as u8 };
            assert_eq!(word as u8, expected);
        }
    }

    #[test]
    fn the_longest_word_is_found() {
        assert_eq!(Word::MAX_LEN, "garbage_collection_threshold".len());
    }
}
