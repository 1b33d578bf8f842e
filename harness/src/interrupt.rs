//! Ctrl-C while files are written. The first one ends the work where nothing is half done, the second ends it at once.
//!
//! Verbs that write no files need nothing of this: a signal ends them as it ends any program.

use crate::exit::Error;
use crate::replay::CHUNK;
use signal_hook::consts::{SIGINT, SIGTERM};
use signal_hook::{flag, low_level};
use std::fs;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use workload_gen::Event;

/// Signals that ask a program to end: Ctrl-C, `kill`, and a terminal that is closed.
#[cfg(unix)]
const SIGNALS: [i32; 3] = [SIGINT, SIGTERM, signal_hook::consts::SIGHUP];
#[cfg(not(unix))]
const SIGNALS: [i32; 2] = [SIGINT, SIGTERM];

/// Whether a signal came. Without [`Interrupt::awaited`] none ever does.
#[derive(Clone, Debug, Default)]
pub struct Interrupt {
    came: Arc<AtomicBool>,
    signal: Arc<AtomicUsize>,
}

impl Interrupt {
    /// From now on the first signal is noted here instead of ending the program. One that was ignored before, as by
    /// `nohup`, stays ignored; one that cannot be noted goes on ending the program.
    pub fn awaited() -> Interrupt {
        let interrupt = Interrupt::default();
        let ignored = ignored(&fs::read_to_string("/proc/self/status").unwrap_or_default());
        for signal in SIGNALS.into_iter().filter(|signal| ignored >> (signal - 1) & 1 == 0) {
            // In this order: the second signal finds the mark of the first, and whoever finds a mark finds its signal.
            let _ = flag::register_conditional_default(signal, interrupt.came.clone())
                .and_then(|_| flag::register_usize(signal, interrupt.signal.clone(), signal as usize))
                .and_then(|_| flag::register(signal, interrupt.came.clone()));
        }
        interrupt
    }

    /// Whether it is time to end.
    pub fn came(&self) -> bool {
        self.came.load(Ordering::SeqCst)
    }

    /// The events of a trace with their numbers, until there is an interrupt. What is made of them may lack some then, so
    /// it is worth nothing after one.
    pub(crate) fn events<'t>(&self, events: &'t [Event]) -> impl Iterator<Item = (usize, &'t Event)> {
        events.chunks(CHUNK).take_while(|_| !self.came()).flatten().enumerate()
    }

    /// What the program ends with. `kept` tells what became of the work.
    pub fn error(&self, kept: String) -> Error {
        Error::Interrupted { signal: self.signal.load(Ordering::SeqCst) as i32, kept }
    }

    /// As if a signal had come.
    #[cfg(test)]
    pub(crate) fn raise(&self) {
        self.signal.store(SIGINT as usize, Ordering::SeqCst);
        self.came.store(true, Ordering::SeqCst);
    }
}

/// Ends the program by this signal, so that a shell in a loop sees why and ends the loop. Returns if that cannot be.
pub fn end_by(signal: i32) {
    let _ = low_level::emulate_default_handler(signal);
}

/// The signals that a process ignores, a bit for each, as Linux tells it.
fn ignored(status: &str) -> u64 {
    let line = status.lines().find_map(|line| line.strip_prefix("SigIgn:"));
    line.and_then(|bits| u64::from_str_radix(bits.trim(), 16).ok()).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn ignored_signals_are_read_or_none() {
        assert_eq!(ignored("SigBlk:\t0000000000000000\nSigIgn:\t0000000000001001\n"), 0x1001);
        assert_eq!((ignored(""), ignored("SigIgn:\tmany\n")), (0, 0));
    }

    #[test]
    fn events_end_with_an_interrupt() {
        let events = vec![Event::Host { ns: 1 }; 2 * CHUNK + 1];
        let interrupt = Interrupt::default();
        assert_eq!(interrupt.events(&events).map(|(index, _)| index).last(), Some(2 * CHUNK));
        let seen = interrupt.events(&events).inspect(|(index, _)| {
            if *index == 7 {
                interrupt.raise();
            }
        });
        assert_eq!(seen.count(), CHUNK, "the chunk is played to its end");
        assert_eq!(interrupt.events(&events).count(), 0);
    }

    #[test]
    fn an_interrupt_ends_with_the_code_that_shells_show() {
        let interrupt = Interrupt::default();
        assert!(!interrupt.came());
        interrupt.raise();
        assert!(interrupt.clone().came());
        assert_eq!(interrupt.error(String::new()).code(), 130);
    }
}
