//! Changes of type, and `torch.autocast`, which makes them.

use super::module::Modules;
use crate::tensor::{Dtype, Gpu, Name, Parameter, Role, Tensor};
use std::cell::RefCell;
use std::rc::Rc;

/// The tensor in another type. The same tensor if it has that type.
pub fn to(gpu: &Gpu, x: &Tensor, dtype: Dtype, role: Role, name: Name) -> Tensor {
    if x.dtype() == dtype {
        return x.clone();
    }
    let tape = gpu.tape(name, &[x]);
    let (from, elements) = (x.dtype(), x.elements());
    let out = gpu.tensor(elements, dtype, role, name);
    tape.record(out, move |gpu, _grad| vec![Some(gpu.tensor(elements, from, Role::Gradient, name))])
}

/// A region of `torch.autocast`: matrix products run in a smaller type, and the copies of the weights in it are kept until the region
/// is left.
pub struct Autocast {
    dtype: Dtype,
    cast: RefCell<Vec<Parameter>>,
}

/// Where operations run: the device, and the autocast region if there is one.
#[derive(Clone)]
pub struct Cx {
    /// The device.
    pub gpu: Gpu,
    /// Whether layers drop out what they are made to: the model is in training mode.
    pub has_dropout: bool,
    autocast: Option<Rc<Autocast>>,
    modules: Option<Rc<dyn Modules>>,
}

impl Cx {
    /// Operations run in the types of their inputs.
    pub fn plain(gpu: &Gpu) -> Cx {
        Cx { gpu: gpu.clone(), has_dropout: true, autocast: None, modules: None }
    }

    /// Matrix products run in `dtype`.
    pub fn autocast(gpu: &Gpu, dtype: Dtype) -> Cx {
        Cx { autocast: Some(Rc::new(Autocast { dtype, cast: RefCell::default() })), ..Cx::plain(gpu) }
    }

    /// The same, with or without dropout.
    pub fn with_dropout(self, has_dropout: bool) -> Cx {
        Cx { has_dropout, ..self }
    }

    /// The same, with something to do around layers.
    pub fn with_modules(self, modules: Option<Rc<dyn Modules>>) -> Cx {
        Cx { modules, ..self }
    }

    /// What is to do around layers.
    pub fn modules(&self) -> Option<&Rc<dyn Modules>> {
        self.modules.as_ref()
    }

    /// The type of a region of autocast.
    pub fn autocast_dtype(&self) -> Option<Dtype> {
        self.autocast.as_ref().map(|region| region.dtype)
    }

    /// Whether this is a region of autocast.
    pub fn is_autocast(&self) -> bool {
        self.autocast.is_some()
    }

    /// What a matrix product makes of its input.
    pub fn input(&self, x: &Tensor, name: Name) -> Tensor {
        match &self.autocast {
            Some(region) => to(&self.gpu, x, region.dtype, Role::Activation, name),
            None => x.clone(),
        }
    }

    /// What a matrix product makes of a weight: a copy for the whole region.
    pub fn weight(&self, weight: &Parameter, name: Name) -> Tensor {
        let tensor = weight.tensor();
        let Some(region) = self.autocast.as_ref().filter(|region| region.dtype != tensor.dtype()) else {
            return tensor;
        };
        if !weight.is_trained() {
            return to(&self.gpu, &tensor, region.dtype, Role::Parameter, name);
        }
        if let Some(cast) = weight.cast() {
            return cast;
        }
        let cast = to(&self.gpu, &tensor, region.dtype, Role::Parameter, name);
        weight.set_cast(Some(cast.clone()));
        region.cast.borrow_mut().push(weight.clone());
        cast
    }

    /// What an operation that needs the range of 32 bits makes of its input.
    pub fn float(&self, x: &Tensor, name: Name) -> Tensor {
        match self.autocast {
            Some(_) => to(&self.gpu, x, Dtype::F32, Role::Activation, name),
            None => x.clone(),
        }
    }
}

impl Drop for Autocast {
    /// The region is left: copies that no graph keeps die.
    fn drop(&mut self) {
        for weight in self.cast.get_mut().drain(..) {
            weight.set_cast(None);
        }
    }
}
