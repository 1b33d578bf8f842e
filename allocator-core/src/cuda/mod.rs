//! A real card.
//!
//! The driver is loaded when the first [`Card`] is opened, so that a program with this device builds without any CUDA
//! toolkit and runs where there is no driver; there, opening a card is an error like any other. What a device took is
//! given back when it is dropped; when the process is killed, the driver gives it back.

mod card;
mod device;
mod driver;
mod streams;

pub use card::{Card, NoCard};
pub use device::{CudaDevice, Mismatched};

/// The driver's own name and text of an error code.
pub(crate) fn describe(code: i32) -> Option<String> {
    card::describe(code)
}
