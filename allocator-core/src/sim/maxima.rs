//! "The first, or the last, index whose value is at least v", in logarithmic time.

/// Values by index, zero unless set, in a tree of maxima.
///
/// `tree[1]` is the root, the children of `i` are `2i` and `2i + 1`, and the second half of the array holds the
/// values themselves. It doubles when an index beyond its end is set.
#[derive(Clone, Debug, Default)]
pub(super) struct Maxima {
    tree: Vec<u32>,
}

impl Maxima {
    fn leaves(&self) -> usize {
        self.tree.len() / 2
    }

    pub(super) fn get(&self, index: u32) -> u32 {
        self.tree.get(self.leaves() + index as usize).copied().unwrap_or(0)
    }

    pub(super) fn set(&mut self, index: u32, value: u32) {
        let index = index as usize;
        if index >= self.leaves() {
            if value == 0 {
                return;
            }
            self.grow(index + 1);
        }
        let mut at = self.leaves() + index;
        self.tree[at] = value;
        while at > 1 {
            at /= 2;
            let highest = self.tree[2 * at].max(self.tree[2 * at + 1]);
            if self.tree[at] == highest {
                break;
            }
            self.tree[at] = highest;
        }
    }

    /// The lowest index with a value of at least `value` (> 0).
    pub(super) fn first_at_least(&self, value: u32) -> Option<u32> {
        self.descend(value, 0)
    }

    /// The highest index with a value of at least `value` (> 0).
    pub(super) fn last_at_least(&self, value: u32) -> Option<u32> {
        self.descend(value, 1)
    }

    /// Goes to the child on the `preferred` side wherever it reaches `value`.
    fn descend(&self, value: u32, preferred: usize) -> Option<u32> {
        if self.tree.get(1).is_none_or(|&highest| highest < value) {
            return None;
        }
        let mut at = 1;
        while at < self.leaves() {
            at = 2 * at + preferred;
            if self.tree[at] < value {
                at ^= 1;
            }
        }
        u32::try_from(at - self.leaves()).ok()
    }

    fn grow(&mut self, needed: usize) {
        let leaves = needed.next_power_of_two().max(64);
        let mut tree = vec![0; 2 * leaves];
        let old = &self.tree[self.leaves()..];
        tree[leaves..leaves + old.len()].copy_from_slice(old);
        for at in (1..leaves).rev() {
            tree[at] = tree[2 * at].max(tree[2 * at + 1]);
        }
        self.tree = tree;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn agrees_with_a_scan() {
        let mut fit = Maxima::default();
        let mut values = vec![0u32; 1000];
        let mut state = 1u32;
        for _ in 0..5000 {
            state = state.wrapping_mul(1_664_525).wrapping_add(1_013_904_223);
            let (index, value) = ((state >> 8) % 1000, (state >> 20) % 50);
            fit.set(index, value);
            values[index as usize] = value;
            let wanted = state % 60 + 1;
            let scanned = values.iter().position(|&v| v >= wanted).map(|i| i as u32);
            assert_eq!(fit.first_at_least(wanted), scanned);
            let scanned = values.iter().rposition(|&v| v >= wanted).map(|i| i as u32);
            assert_eq!(fit.last_at_least(wanted), scanned);
            assert_eq!(fit.get(index), value);
        }
    }

    #[test]
    fn empty_has_nothing() {
        let mut fit = Maxima::default();
        assert_eq!(fit.first_at_least(1), None);
        assert_eq!(fit.get(7), 0);
        fit.set(7, 0);
        assert_eq!(fit.first_at_least(1), None);
    }
}
