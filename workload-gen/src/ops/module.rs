//! Modules (`torch.nn.Module`), as whoever shares a model between ranks sees them: weights are brought before a module runs and taken away
//! when it has run.

use super::cast::Cx;
use crate::tensor::{Gpu, Parameter, Tensor};

/// What happens around each module. Many own no weights themselves, but what is ahead is fetched at them, too.
pub trait Modules {
    /// The module is about to run on `x`. Returns what it runs on.
    fn enter(&self, gpu: &Gpu, weights: &[&Parameter], x: &Tensor) -> Tensor;
    /// The module has run.
    fn leave(&self, gpu: &Gpu, weights: &[&Parameter], output: Tensor) -> Tensor;
}

impl Cx {
    /// Runs `body`, a module that owns `weights`, on `x`.
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

    /// Runs `body`, a module that nobody computes a gradient of.
    pub fn aside<T>(&self, x: &Tensor, body: impl FnOnce() -> T) -> T {
        self.enter(1, x);
        let output = body();
        self.leave(1, x.clone());
        output
    }

    /// Modules around others begin, of which each is within the one before: nothing but what is around them is told.
    pub fn enter(&self, count: usize, x: &Tensor) {
        if let Some(modules) = self.modules() {
            (0..count).for_each(|_| drop(modules.enter(&self.gpu, &[], x)));
        }
    }

    /// So many of them end.
    pub fn leave(&self, count: usize, mut output: Tensor) -> Tensor {
        if let Some(modules) = self.modules() {
            for _ in 0..count {
                output = modules.leave(&self.gpu, &[], output);
            }
        }
        output
    }
}
