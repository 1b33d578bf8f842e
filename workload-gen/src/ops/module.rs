//! Layers that own weights, as whoever shares a model between ranks sees them: weights are brought before a layer runs and taken away
//! when it has run.

use super::cast::Cx;
use crate::tensor::{Gpu, Parameter, Tensor};

/// What happens around each layer that owns weights.
pub trait Modules {
    /// The layer is about to run on `x`. Returns what it runs on.
    fn enter(&self, gpu: &Gpu, weights: &[&Parameter], x: &Tensor) -> Tensor;
    /// The layer has run.
    fn leave(&self, gpu: &Gpu, weights: &[&Parameter], output: Tensor) -> Tensor;
}

impl Cx {
    /// Runs `body`, a layer that owns `weights`, on `x`.
    pub fn module(&self, weights: &[&Parameter], x: &Tensor, body: impl FnOnce(&Tensor) -> Tensor) -> Tensor {
        let Some(modules) = self.modules() else {
            return body(x);
        };
        let output = {
            let x = modules.enter(&self.gpu, weights, x);
            body(&x)
        };
        modules.leave(&self.gpu, weights, output)
    }
}
