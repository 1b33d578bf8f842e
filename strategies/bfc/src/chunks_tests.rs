use super::*;

const UNIT: u64 = 512;

/// A table with one region of 64 units for two streams' lanes.
fn table() -> Chunks {
    let mut chunks = Chunks::new();
    chunks.open_lane(2);
    chunks.add_region(1 << 20, 64 * UNIT);
    chunks
}

fn take(chunks: &mut Chunks, lane: u32, units: u64) -> u32 {
    let found = chunks.best_fit(lane, units * UNIT).unwrap();
    chunks.take(found, lane, units * UNIT);
    found.slot
}

/// The region as units and states, with the lane of free chunks.
fn picture(chunks: &Chunks) -> String {
    let mut parts = Vec::new();
    chunks.visit(&mut |_, chunk| {
        let units = chunk.size / UNIT;
        parts.push(if chunk.state == State::Free { format!("{units}@{}", chunk.lane) } else { units.to_string() });
    });
    parts.join(" ")
}

#[test]
fn the_low_part_is_handed_out_and_free_neighbours_merge() {
    let mut chunks = table();
    let [a, b, c] = [10, 20, 30].map(|units| take(&mut chunks, 1, units));
    assert_eq!(picture(&chunks), "10 20 30 4@0");
    chunks.release(a);
    chunks.release(c);
    assert_eq!(picture(&chunks), "10@1 20 34@1");
    chunks.release(b);
    assert_eq!(picture(&chunks), "64@1");
}

#[test]
fn memory_of_two_streams_merges_when_it_is_common() {
    let mut chunks = table();
    let [a, b, c, d] = [(1, 8), (2, 8), (1, 8), (2, 40)].map(|(lane, units)| take(&mut chunks, lane, units));
    [a, b, c].into_iter().for_each(|slot| chunks.release(slot));
    assert_eq!(picture(&chunks), "8@1 8@2 8@1 40");
    assert_eq!(chunks.best_fit(1, 9 * UNIT), None);
    chunks.make_common(&[1], 2);
    assert_eq!(picture(&chunks), "24@2 40", "what was stream 2's stays between, so all of it is");
    chunks.release(d);
    chunks.make_all_common();
    assert_eq!(picture(&chunks), "64@0");
    assert_eq!(chunks.unused_regions().len(), 1);
    chunks.remove_region(0);
    assert!(chunks.largest_free() == 0 && chunks.best_fit(1, 1).is_none());
}

#[test]
fn random_programs_tile_the_region_and_leave_no_free_neighbours() {
    let mut chunks = table();
    let mut live: Vec<u32> = Vec::new();
    let mut state = 7u64;
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6364136223846793005).wrapping_add(1442695040888963407);
        (state >> 33) % below
    };
    let mut served = 0;
    for _ in 0..20_000 {
        let (lane, units) = (1 + random(2) as u32, 1 + random(12));
        if random(20) == 0 {
            chunks.make_common(&[lane], 3 - lane);
        }
        if random(2) == 0 && !live.is_empty() {
            let slot = live.swap_remove(random(live.len() as u64) as usize);
            chunks.release(slot);
        } else if chunks.best_fit(lane, units * UNIT).is_some() {
            live.push(take(&mut chunks, lane, units));
            served += 1;
        }
        let (mut end, mut below, mut used) = (1 << 20, None, 0);
        chunks.visit(&mut |_, chunk| {
            assert_eq!(chunk.ptr, end);
            end += chunk.size;
            let free = (chunk.state == State::Free).then_some(chunk.lane);
            assert!(free.is_none() || free != below, "free neighbours of one lane");
            below = free;
            used += usize::from(chunk.state == State::Live);
        });
        assert_eq!((end, used), ((1 << 20) + 64 * UNIT, live.len()));
    }
    assert!(served > 5_000, "{served}");
}
