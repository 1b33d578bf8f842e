//! How long a card works on what a training step asks of it, about. It matters where memory waits for work: a block that another stream
//! uses is only free when that stream has come so far.

use std::collections::VecDeque;

/// Floating-point operations in a microsecond: 400 teraflops, what a Hopper card reaches in 16 bits.
const FLOPS: u64 = 400_000_000;
/// Bytes in a microsecond between cards: 250 GB/s of NVLink.
const LINK: u64 = 250_000;
/// Bytes in a microsecond between a card and its host: 50 GB/s of PCIe.
const HOST: u64 = 50_000;
/// Weights that the host updates in a nanosecond.
const UPDATES: u64 = 1;
/// What starting a kernel takes, in nanoseconds.
const START: u64 = 5_000;

/// Nanoseconds for passing `tokens` through `weights` weights once.
pub(super) fn pass(weights: u64, tokens: u64) -> u64 {
    START + (2 * weights).saturating_mul(tokens) / (FLOPS / 1000)
}

/// How far the host is ahead of the device. It goes on as soon as it has launched something, until so much waits to be run that it has to
/// wait itself.
#[derive(Debug, Default)]
pub(super) struct Lead {
    host: u64,
    /// When what was launched will have run, for what is not known to have run.
    launched: VecDeque<u64>,
}

impl Lead {
    /// Layers that wait to be run at most: a queue holds about a thousand kernels, of which a layer with its hooks launches twenty.
    const MOST: usize = 50;

    /// A layer is launched that runs for `work` nanoseconds, which takes the host `launching`. Returns how long the host is busy or waits.
    pub(super) fn launch(&mut self, work: u64, launching: u64) -> u64 {
        let before = self.host;
        if self.launched.len() >= Lead::MOST
            && let Some(done) = self.launched.pop_front()
        {
            self.host = self.host.max(done);
        }
        self.host += launching;
        let begins = self.launched.back().copied().unwrap_or(0).max(self.host);
        self.launched.push_back(begins + work);
        self.host - before
    }

    /// The host has waited for the device.
    pub(super) fn sync(&mut self) {
        *self = Lead::default();
    }
}

/// Nanoseconds for `bytes` to come from other cards.
pub(super) fn link(bytes: u64) -> u64 {
    START + bytes.saturating_mul(1000) / LINK
}

/// Nanoseconds for `bytes` to go to the host or come from it.
pub(super) fn host(bytes: u64) -> u64 {
    bytes.saturating_mul(1000) / HOST
}

/// Nanoseconds for the host to update so many weights.
pub(super) fn update(weights: u64) -> u64 {
    weights / UPDATES
}

#[cfg(test)]
mod tests {
    use super::Lead;

    #[test]
    fn the_host_waits_when_a_queue_is_full() {
        let mut lead = Lead::default();
        let free: Vec<u64> = (0..Lead::MOST).map(|_| lead.launch(1000, 10)).collect();
        assert!(free.iter().all(|&busy| busy == 10));
        // The first runs from 10 to 1010, when the host is at 500.
        assert_eq!(lead.launch(1000, 10), 510 + 10);
        assert_eq!(lead.launch(1000, 10), 1000);
        lead.sync();
        assert_eq!(lead.launch(1000, 10), 10);
    }
}
