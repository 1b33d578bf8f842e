//! What the memory is for, by the roles that labels name.

use crate::trace::Trace;
use serde::Serialize;
use std::collections::HashMap;

/// What the allocations of a role do.
#[derive(Clone, PartialEq, Eq, Debug, Default, Serialize)]
pub struct RoleStats {
    /// The first word of the labels.
    pub role: String,
    /// Allocations.
    pub allocs: u64,
    /// Their bytes.
    pub bytes: u64,
    /// Each of these bytes times the events for which it is held, until the end at most.
    pub byte_events: u128,
    /// Bytes that are held at the peak of the trace.
    pub peak_bytes: u64,
}

/// Adds up by role. Without labels it adds up nothing.
pub(super) struct Roles<'t> {
    labels: std::slice::Iter<'t, u32>,
    /// The role of each label.
    role_of: Vec<usize>,
    all: Vec<RoleStats>,
    held: Vec<u64>,
}

impl<'t> Roles<'t> {
    pub(super) fn new(trace: &'t Trace) -> Roles<'t> {
        let mut known: HashMap<&str, usize> = HashMap::new();
        let mut all: Vec<RoleStats> = Vec::new();
        let role_of = trace.label_texts.iter().map(|label| {
            let role = label.split_once(' ').map_or(label.as_str(), |(role, _)| role);
            *known.entry(role).or_insert_with(|| {
                all.push(RoleStats { role: role.to_string(), ..RoleStats::default() });
                all.len() - 1
            })
        });
        let role_of = role_of.collect();
        let held = vec![0; all.len()];
        Roles { labels: trace.labels.iter(), role_of, all, held }
    }

    /// The next allocation; its role.
    pub(super) fn allocated(&mut self, size: u64) -> usize {
        let role = self.labels.next().and_then(|&label| self.role_of.get(label as usize).copied());
        let role = role.unwrap_or(usize::MAX);
        if let Some(stats) = self.all.get_mut(role) {
            stats.allocs += 1;
            stats.bytes = stats.bytes.saturating_add(size);
            self.held[role] = self.held[role].saturating_add(size);
        }
        role
    }

    /// A block of a role is there no more, or the trace is over.
    pub(super) fn ended(&mut self, role: usize, size: u64, events: u64) {
        if let Some(stats) = self.all.get_mut(role) {
            stats.byte_events += u128::from(size) * u128::from(events);
            self.held[role] = self.held[role].saturating_sub(size);
        }
    }

    /// What is held now is the most so far.
    pub(super) fn peak(&mut self) {
        for (stats, &held) in self.all.iter_mut().zip(&self.held) {
            stats.peak_bytes = held;
        }
    }

    /// The roles that allocate, those first that hold the most over time.
    pub(super) fn end(self) -> Vec<RoleStats> {
        let mut all = self.all;
        all.retain(|stats| stats.allocs > 0);
        all.sort_by(|a, b| b.byte_events.cmp(&a.byte_events).then_with(|| a.role.cmp(&b.role)));
        all
    }
}

#[cfg(test)]
mod tests {
    use crate::stats::{RoleStats, stats};

    #[test]
    fn labels_are_added_up_by_their_first_word() {
        let text = "gpu-alloc-trace 1\n# label = parameter a\n# label = activation x\n# label = parameter b\n\
                    # label = workspace z\na 0 100 0 @0\na 1 50 0 @1\na 2 10 0 @2\nf 1\na 1 20 0 @1\nf 0 !0\nf 1\nc 0\n";
        let roles = stats(&crate::format::read(text.as_bytes(), "x").unwrap()).roles;
        let role = |role: &str, allocs, bytes, byte_events, peak_bytes| RoleStats {
            role: role.to_string(),
            allocs,
            bytes,
            byte_events,
            peak_bytes,
        };
        // 100 from event 0 until its ticket is done in event 7; 10 from event 2 until the end after event 7.
        let parameter = role("parameter", 2, 110, 100 * 7 + 10 * 6, 110);
        assert_eq!(roles, [parameter, role("activation", 2, 70, 50 * 2 + 20 * 2, 50)]);
    }
}
