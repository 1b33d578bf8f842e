use super::*;

const UNIT: u64 = 512;
const PAGE: u64 = 8 * UNIT;
const BASE: u64 = 1 << 20;
const PAGES: u64 = 16;

/// A range of 16 pages for two streams' lanes, of which the first `pages` have memory.
fn range(pages: u64) -> Parts {
    let mut parts = Parts::default();
    parts.start(BASE, PAGES * PAGE);
    parts.open_lane(2);
    if pages > 0 {
        let (slot, _) = parts.hole_in(BASE, BASE + 1).unwrap();
        parts.fill(slot, BASE, BASE + pages * PAGE, COMMON);
    }
    parts
}

fn take(parts: &mut Parts, lane: u32, units: u64) -> u32 {
    let found = parts.best_fit(lane, units * UNIT).unwrap();
    parts.take(found, lane, units * UNIT);
    found.slot
}

/// The range as units and states, with the lane of free parts.
fn picture(parts: &Parts) -> String {
    let mut words = Vec::new();
    parts.visit(&mut |part| {
        let units = part.size / UNIT;
        words.push(match part.state {
            State::Free => format!("{units}@{}", part.lane),
            State::Hole => format!("{units}-"),
            _ => units.to_string(),
        });
    });
    words.join(" ")
}

#[test]
fn free_neighbours_merge() {
    let mut parts = range(2);
    let [a, b, c] = [4, 6, 4].map(|units| take(&mut parts, 1, units));
    assert_eq!(picture(&parts), "4 6 4 2@0 112-");
    assert_eq!(parts.release(a, 1), 4 * UNIT);
    assert_eq!(parts.release(c, 2), 6 * UNIT, "with what nobody had used");
    assert_eq!(picture(&parts), "4@1 6 6@1 112-");
    assert_eq!(parts.release(b, 3), 16 * UNIT);
    assert_eq!(picture(&parts), "16@1 112-");
}

#[test]
fn common_memory_joins_a_row() {
    let mut parts = range(2);
    let [a, b, c] = [(1, 4), (2, 4), (1, 8)].map(|(lane, units)| take(&mut parts, lane, units));
    parts.release(c, 1);
    parts.release(b, 2);
    parts.make_common(2, 2, COMMON);
    assert_eq!(picture(&parts), "4 4@0 8@1 112-");
    parts.release(a, 3);
    assert_eq!(picture(&parts), "16@1 112-");
}

#[test]
fn a_row_joins_for_the_lane_that_needs_it() {
    let mut parts = range(3);
    let lanes = [1, 2, 1, 2, 1, 2, 1, 1, 2];
    let [a, b, c, d, e, _f, g, _h, i] = lanes.map(|lane| take(&mut parts, lane, 2));
    for (seq, slot) in [a, c, e, g, b, d, i].into_iter().enumerate() {
        parts.release(slot, seq as u64 + 1);
    }
    parts.make_common(2, 7, COMMON);
    assert_eq!(picture(&parts), "2@1 2@0 2@1 2@0 2@1 2 2@1 2 8@0 104-");
    assert_eq!((parts.best_fit(1, 9 * UNIT), parts.join_row(1, 11 * UNIT)), (None, None), "a live part ends the row");
    assert_eq!(parts.join_row(2, 3 * UNIT).map(|key| (key.ptr, key.size)), Some((BASE + 16 * UNIT, 8 * UNIT)));
    assert_eq!(picture(&parts), "2@1 2@0 2@1 2@0 2@1 2 2@1 2 8@0 104-", "what is no other lane's stays common");
    let row = parts.join_row(1, 9 * UNIT);
    assert_eq!(row.map(|key| (key.ptr, key.size)), Some((BASE, 10 * UNIT)));
    assert_eq!((picture(&parts).as_str(), parts.best_fit(1, 9 * UNIT)), ("10@1 2 2@1 2 8@0 104-", row));
}

#[test]
fn pages_go_and_come() {
    let mut parts = range(4);
    let (a, b) = (take(&mut parts, 1, 24), take(&mut parts, 2, 6));
    parts.release(a, 1);
    parts.drain(a, BASE + PAGE, BASE + 2 * PAGE);
    assert_eq!(picture(&parts), "8@1 8- 8@1 6 2@0 96-");
    parts.drain(a, BASE, BASE + PAGE);
    assert_eq!(picture(&parts), "16- 8@1 6 2@0 96-");
    let (slot, hole) = parts.hole_in(BASE + PAGE, BASE + 3 * PAGE).unwrap();
    assert_eq!((hole.ptr, hole.size), (BASE, 2 * PAGE));
    parts.fill(slot, BASE + PAGE, BASE + 2 * PAGE, 1);
    assert_eq!(picture(&parts), "8- 16@1 6 2@0 96-");
    parts.release(b, 2);
    parts.make_common(1, 1, 2);
    assert_eq!(picture(&parts), "8- 24@2 96-");
    assert_eq!(parts.best_fit(1, 1), None);
    parts.make_common(2, 1, COMMON);
    assert_eq!(picture(&parts), "8- 24@2 96-", "the last free in it is the second");
    parts.make_common(2, 2, COMMON);
    let (slot, _) = parts.hole_in(BASE + 4 * PAGE, BASE + 5 * PAGE).unwrap();
    parts.fill(slot, BASE + 5 * PAGE, BASE + 6 * PAGE, COMMON);
    assert_eq!(picture(&parts), "8- 24@0 8- 8@0 80-");
    assert_eq!(parts.holes().map(|(ptr, _)| (ptr - BASE) / PAGE).collect::<Vec<_>>(), [0, 4, 6]);
}

#[test]
fn what_was_freed_late_is_passed_over() {
    let mut parts = range(2);
    let [a, _gap, b, _end] = [2, 1, 3, 10].map(|units| take(&mut parts, 1, units));
    parts.release(b, 1);
    parts.release(a, 2);
    let early = parts.best_fit_until(1, UNIT, 1).map(|key| key.slot);
    assert_eq!((early, parts.best_fit_until(1, UNIT, 2).map(|key| key.slot)), (Some(b), Some(a)));
    assert_eq!(parts.best_fit_until(1, UNIT, 0), None);
}

/// What a unit of the range is: its state and, if it is free, its lane and the number of its free.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
struct Unit {
    state: State,
    lane: u32,
    seq: u64,
}

const HOLE: Unit = Unit { state: State::Hole, lane: COMMON, seq: 0 };

/// Rows of units that make one part.
fn rows(units: &[Unit]) -> Vec<(usize, usize, Unit)> {
    let mut rows: Vec<(usize, usize, Unit)> = Vec::new();
    for (at, &unit) in units.iter().enumerate() {
        match rows.last_mut() {
            Some((_, len, last)) if last.state == unit.state && last.lane == unit.lane && last.state != State::Live => {
                *len += 1;
                last.seq = last.seq.max(unit.seq);
            }
            _ => rows.push((at, 1, unit)),
        }
    }
    rows
}

/// One stream's lane only, so that what merges is what touches. Compared with an array of units.
#[test]
fn random_programs_keep_to_a_plain_array() {
    let mut parts = range(0);
    let mut units = vec![HOLE; (PAGES * PAGE / UNIT) as usize];
    let mut live: Vec<u32> = Vec::new();
    let (mut state, mut served, mut seq) = (11u64, 0, 0);
    let mut random = move |below: u64| {
        state = state.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
        (state >> 33) % below
    };
    for _ in 0..20_000 {
        let page = random(PAGES);
        let (from, to) = ((page * PAGE / UNIT) as usize, ((page + 1) * PAGE / UNIT) as usize);
        let (start, end) = (BASE + page * PAGE, BASE + (page + 1) * PAGE);
        match random(5) {
            0 => {
                if let Some((slot, _)) = parts.hole_in(start, end) {
                    parts.fill(slot, start, end, COMMON);
                    units[from..to].fill(Unit { state: State::Free, ..HOLE });
                }
            }
            1 if units[from..to].iter().all(|unit| unit.state == State::Free) => {
                let mut over = None;
                parts.visit_free(COMMON, PAGE, &mut |slot, part| {
                    if part.ptr <= start && end <= part.end() {
                        over = Some(slot);
                    }
                });
                parts.drain(over.unwrap(), start, end);
                units[from..to].fill(HOLE);
            }
            2 | 3 if !live.is_empty() => {
                seq += 1;
                let slot = live.swap_remove(random(live.len() as u64) as usize);
                let &Part { ptr, size, .. } = parts.get(slot).unwrap();
                parts.release(slot, seq);
                let at = ((ptr - BASE) / UNIT) as usize;
                units[at..at + (size / UNIT) as usize].fill(Unit { state: State::Free, lane: COMMON, seq });
            }
            _ => {
                let size = 1 + random(12) as usize;
                let fits = rows(&units).into_iter().filter(|row| row.2.state == State::Free && row.1 >= size);
                let best = fits.map(|(at, len, _)| (len, at)).min();
                let found = parts.best_fit(COMMON, size as u64 * UNIT);
                let place = found.map(|key| ((key.size / UNIT) as usize, ((key.ptr - BASE) / UNIT) as usize));
                assert_eq!(place, best);
                if let (Some(found), Some((_, at))) = (found, best) {
                    parts.take(found, COMMON, size as u64 * UNIT);
                    units[at..at + size].fill(Unit { state: State::Live, lane: COMMON, seq: 0 });
                    live.push(found.slot);
                    served += 1;
                }
            }
        }
        let mut shown = Vec::new();
        parts.visit(&mut |part| shown.push((part.ptr, part.size, part.state)));
        let wanted: Vec<(u64, u64, State)> = rows(&units)
            .into_iter()
            .filter(|row| row.2.state != State::Live)
            .map(|(at, len, unit)| (BASE + at as u64 * UNIT, len as u64 * UNIT, unit.state))
            .collect();
        let held: Vec<_> = shown.iter().copied().filter(|part| part.2 != State::Live).collect();
        assert_eq!(held, wanted);
        assert!(shown.windows(2).all(|pair| pair[0].0 + pair[0].1 == pair[1].0), "a row without gaps");
        assert_eq!(shown.len() - held.len(), live.len());
    }
    assert!(served > 3_000, "{served}");
}
