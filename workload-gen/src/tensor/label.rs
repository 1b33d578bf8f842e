//! Labels: what an allocation is for, as `ROLE NAME`.

use std::collections::HashMap;

/// The part a tensor plays in a job.
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub enum Role {
    /// A weight.
    Parameter,
    /// A gradient, of a weight or of what lies between.
    Gradient,
    /// The optimizer's state.
    Optimizer,
    /// What a layer returns or keeps for the backward pass.
    Activation,
    /// What dies before its operation or step is over.
    Temporary,
    /// A batch, or what is made of it for all layers.
    Input,
    /// Keys and values of earlier tokens.
    KvCache,
    /// What is sent to or received from other devices.
    Communication,
    /// A library's scratch memory.
    Workspace,
    /// Everything else: tables, statistics, pools of a program's own.
    Buffer,
}

impl Role {
    /// All roles.
    pub const ALL: [Role; 10] = [
        Role::Parameter,
        Role::Gradient,
        Role::Optimizer,
        Role::Activation,
        Role::Temporary,
        Role::Input,
        Role::KvCache,
        Role::Communication,
        Role::Workspace,
        Role::Buffer,
    ];

    /// The word for it, which is the first of a label.
    pub const fn word(self) -> &'static str {
        match self {
            Role::Parameter => "parameter",
            Role::Gradient => "gradient",
            Role::Optimizer => "optimizer",
            Role::Activation => "activation",
            Role::Temporary => "temporary",
            Role::Input => "input",
            Role::KvCache => "kv-cache",
            Role::Communication => "communication",
            Role::Workspace => "workspace",
            Role::Buffer => "buffer",
        }
    }
}

/// The name of a place in a model, such as `h.3.mlp.c_fc`. Cheap to copy; made by [`Gpu::name`](super::Gpu::name).
#[derive(Clone, Copy, PartialEq, Eq, Debug)]
pub struct Name(u32);

const UNUSED: u32 = u32::MAX;

/// Every label that a job has used, numbered in the order of first use.
#[derive(Debug, Default)]
pub(super) struct Labels {
    names: Vec<String>,
    known: HashMap<String, u32>,
    /// The label's number by name and role.
    numbers: Vec<[u32; Role::ALL.len()]>,
    used: u32,
}

impl Labels {
    pub(super) fn name(&mut self, text: &str) -> Name {
        if let Some(&number) = self.known.get(text) {
            return Name(number);
        }
        let number = self.names.len() as u32;
        self.names.push(text.to_string());
        self.known.insert(text.to_string(), number);
        self.numbers.push([UNUSED; Role::ALL.len()]);
        Name(number)
    }

    /// The label's number; a label that is new goes to `fresh`, too.
    #[inline]
    pub(super) fn number(&mut self, role: Role, name: Name, fresh: &mut Vec<String>) -> u32 {
        let number = &mut self.numbers[name.0 as usize][role as usize];
        if *number == UNUSED {
            *number = self.used;
            self.used += 1;
            fresh.push(format!("{} {}", role.word(), self.names[name.0 as usize]));
        }
        *number
    }

    pub(super) fn count(&self) -> u32 {
        self.used
    }
}
