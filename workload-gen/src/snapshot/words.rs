//! The strings that mean something in a snapshot: its keys, actions and states.

use super::Action;

/// A string with a meaning. Everything else in a snapshot is [`Word::Unknown`] and only skipped.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
#[repr(u8)]
pub(super) enum Word {
    Unknown,
    // Keys of the outermost dictionary.
    Segments,
    DeviceTraces,
    AllocatorSettings,
    // Keys of trace entries.
    Action,
    Addr,
    DeviceFree,
    Size,
    Stream,
    TimeUs,
    // Keys of segments and blocks.
    Device,
    Address,
    TotalSize,
    SegmentType,
    SegmentPoolId,
    IsExpandable,
    Blocks,
    RequestedSize,
    State,
    // Keys of the settings.
    Conf,
    MaxSplitSize,
    GcThreshold,
    ExpandableSegments,
    // Actions, in the order of `Action`.
    Alloc,
    FreeRequested,
    FreeCompleted,
    SegmentAlloc,
    SegmentFree,
    SegmentMap,
    SegmentUnmap,
    Oom,
    Snapshot,
    // Other values.
    Small,
    Large,
    ActiveAllocated,
    ActivePendingFree,
    Inactive,
    Empty,
}

impl Word {
    const ALL: [Word; 38] = {
        use Word::*;
        [
            Unknown,
            Segments,
            DeviceTraces,
            AllocatorSettings,
            Action,
            Addr,
            DeviceFree,
            Size,
            Stream,
            TimeUs,
            Device,
            Address,
            TotalSize,
            SegmentType,
            SegmentPoolId,
            IsExpandable,
            Blocks,
            RequestedSize,
            State,
            Conf,
            MaxSplitSize,
            GcThreshold,
            ExpandableSegments,
            Alloc,
            FreeRequested,
            FreeCompleted,
            SegmentAlloc,
            SegmentFree,
            SegmentMap,
            SegmentUnmap,
            Oom,
            Snapshot,
            Small,
            Large,
            ActiveAllocated,
            ActivePendingFree,
            Inactive,
            Empty,
        ]
    };

    /// The longest string that is a word.
    pub(super) const MAX_LEN: usize = 28;

    /// The word that a string is.
    pub(super) fn of(text: &[u8]) -> Word {
        match text {
            b"segments" => Word::Segments,
            b"device_traces" => Word::DeviceTraces,
            b"allocator_settings" => Word::AllocatorSettings,
            b"action" => Word::Action,
            b"addr" => Word::Addr,
            b"device_free" => Word::DeviceFree,
            b"size" => Word::Size,
            b"stream" => Word::Stream,
            b"time_us" => Word::TimeUs,
            b"device" => Word::Device,
            b"address" => Word::Address,
            b"total_size" => Word::TotalSize,
            b"segment_type" => Word::SegmentType,
            b"segment_pool_id" => Word::SegmentPoolId,
            b"is_expandable" => Word::IsExpandable,
            b"blocks" => Word::Blocks,
            b"requested_size" => Word::RequestedSize,
            b"state" => Word::State,
            b"PYTORCH_CUDA_ALLOC_CONF" | b"PYTORCH_ALLOC_CONF" => Word::Conf,
            b"max_split_size" => Word::MaxSplitSize,
            b"garbage_collection_threshold" => Word::GcThreshold,
            b"expandable_segments" => Word::ExpandableSegments,
            b"alloc" => Word::Alloc,
            b"free_requested" => Word::FreeRequested,
            b"free_completed" => Word::FreeCompleted,
            b"segment_alloc" => Word::SegmentAlloc,
            b"segment_free" => Word::SegmentFree,
            b"segment_map" => Word::SegmentMap,
            b"segment_unmap" => Word::SegmentUnmap,
            b"oom" => Word::Oom,
            b"snapshot" => Word::Snapshot,
            b"small" => Word::Small,
            b"large" => Word::Large,
            b"active_allocated" => Word::ActiveAllocated,
            // The second spelling is that of the documentation and of some old files.
            b"active_pending_free" | b"active_awaiting_free" => Word::ActivePendingFree,
            b"inactive" => Word::Inactive,
            b"" => Word::Empty,
            _ => Word::Unknown,
        }
    }

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
    fn numbers_and_words_agree() {
        for (number, word) in Word::ALL.into_iter().enumerate() {
            assert_eq!(word as usize, number);
            assert_eq!(Word::from_number(number as u8), word);
        }
        assert_eq!(Word::from_number(200), Word::Unknown);
    }

    #[test]
    fn no_word_is_longer_than_the_limit() {
        let longest = "garbage_collection_threshold";
        assert_eq!(longest.len(), Word::MAX_LEN);
        assert_eq!(Word::of(longest.as_bytes()), Word::GcThreshold);
    }
}
