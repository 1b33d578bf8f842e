//! Who does what when: the order of forward and backward passes of a stage (megatron/core/pipeline_parallel/schedules.py).

use super::stage::Stage;
use crate::models::megatron::Micro;
use crate::tensor::{Gpu, Parameter, Tensor};
use std::collections::VecDeque;
use std::rc::Rc;

type Input = Option<Parameter>;
type Gradient = Option<Tensor>;

/// Micro-batches in flight of a part of the model.
#[derive(Default)]
struct InFlight {
    inputs: VecDeque<Input>,
    outputs: VecDeque<Tensor>,
    gradients: VecDeque<Tensor>,
}

/// What the schedule's names stand for. They keep it until they mean something else: what was received last, and the gradient that was
/// sent last.
#[derive(Default)]
struct Names {
    input: Input,
    output_gradient: Gradient,
    input_gradient: Gradient,
}

/// A stage at work on the micro-batches of a step.
struct Run<'a> {
    stage: &'a Stage,
    gpu: &'a Gpu,
    micros: &'a [Micro],
    flight: Vec<InFlight>,
    names: Names,
    reports: Vec<Tensor>,
}

impl Stage {
    /// Runs the passes of a step. Returns what is kept for the log.
    pub(super) fn run(&self, gpu: &Gpu, micros: &[Micro]) -> Vec<Tensor> {
        let mut flight = Vec::new();
        flight.resize_with(self.chunks.len(), InFlight::default);
        let mut run = Run { stage: self, gpu, micros, flight, names: Names::default(), reports: Vec::new() };
        if self.chunks.len() > 1 {
            run.interleaved()
        } else {
            run.in_turn()
        }
        run.reports
    }
}

impl Run<'_> {
    /// Each stage runs as many forward passes as there are stages behind it, then one forward and one backward pass in turn, then the
    /// backward passes that are left.
    fn in_turn(&mut self) {
        let all = self.micros.len();
        let warm = (self.stages() - self.stage.stage as usize - 1).min(all);
        for at in 0..warm {
            if self.gpu.is_stopped() {
                return;
            }
            self.names.input = self.receive(at);
            self.sync();
            let output = self.forward(at, self.names.input.clone());
            self.sync();
            self.release(at, &output);
        }
        if warm < all {
            self.names.input = self.receive(warm);
            self.sync();
        }
        for at in warm..all {
            if self.gpu.is_stopped() {
                return;
            }
            let output = self.forward(at, self.names.input.clone());
            self.names.output_gradient = self.receive_gradient(at - warm);
            self.sync();
            self.release(at, &output);
            drop(output);
            self.backward_of_oldest(at - warm);
            self.names.input = self.receive(at + 1);
            self.sync();
        }
        for at in all - warm..all {
            if self.gpu.is_stopped() {
                return;
            }
            self.names.output_gradient = self.receive_gradient(at);
            self.sync();
            self.backward_of_oldest(at);
            self.sync();
        }
    }

    fn backward_of_oldest(&mut self, at: usize) {
        let chunk = self.backward_chunk(at);
        let flight = &mut self.flight[chunk];
        self.names.input = flight.inputs.pop_front().flatten();
        if let Some(output) = flight.outputs.pop_front() {
            let Names { input, output_gradient, .. } = &self.names;
            self.names.input_gradient =
                self.stage.backward(self.gpu, input.as_ref(), &output, output_gradient.as_ref());
        }
    }

    /// Stages with several parts of the model each, which micro-batches go through in groups as large as the pipeline is long.
    fn interleaved(&mut self) {
        let (stages, chunks) = (self.stages(), self.flight.len());
        let all = self.micros.len() * chunks;
        let warm = ((stages - self.stage.stage as usize - 1) * 2 + (chunks - 1) * stages).min(all);
        self.names.input = self.receive(0);
        self.sync();
        for at in 0..warm {
            if self.gpu.is_stopped() {
                return;
            }
            let output = self.forward(at, self.names.input.clone());
            let input = self.receive(at + 1);
            if at + 1 == warm {
                self.expect_gradient(0);
            }
            self.sync();
            self.names.input = input;
            self.release(at, &output);
        }
        for at in 0..all {
            if self.gpu.is_stopped() {
                return;
            }
            let ahead = at + warm;
            let output = (ahead < all).then(|| self.forward(ahead, self.names.input.clone()));
            self.backward(at);
            let input = if ahead < all { self.receive(ahead + 1) } else { None };
            self.expect_gradient(at + 1);
            self.sync();
            self.names.input = input;
            if let Some(output) = output {
                self.release(ahead, &output);
            }
        }
    }

    fn stages(&self) -> usize {
        self.stage.stages as usize
    }

    /// The part of the model that a forward pass is of.
    fn chunk(&self, at: usize) -> usize {
        at % (self.stages() * self.flight.len()) / self.stages()
    }

    fn backward_chunk(&self, at: usize) -> usize {
        self.flight.len() - 1 - self.chunk(at)
    }

    /// The micro-batch that a pass is of.
    fn micro(&self, at: usize) -> Option<Micro> {
        let chunks = self.flight.len();
        let number = match chunks {
            1 => at,
            _ => at / (self.stages() * chunks) * self.stages() + at % self.stages(),
        };
        self.micros.get(number).copied()
    }

    /// Memory for the input of a forward pass, if there is one and it comes from another stage.
    fn receive(&self, at: usize) -> Input {
        let micro = self.micro(at)?;
        (!self.stage.chunks[self.chunk(at)].is_first()).then(|| self.stage.receive(self.gpu, micro))
    }

    fn receive_gradient(&self, at: usize) -> Gradient {
        let micro = self.micro(at)?;
        (!self.stage.chunks[self.backward_chunk(at)].is_last()).then(|| self.stage.receive_gradient(self.gpu, micro))
    }

    fn expect_gradient(&mut self, at: usize) {
        let gradient = self.receive_gradient(at);
        if let Some(gradient) = &gradient {
            let chunk = self.backward_chunk(at);
            self.flight[chunk].gradients.push_back(gradient.clone());
        }
        self.names.output_gradient = gradient;
    }

    fn forward(&mut self, at: usize, input: Input) -> Tensor {
        let chunk = self.chunk(at);
        let micro = self.micro(at).unwrap_or(self.micros[0]);
        let (output, report) = self.stage.chunks[chunk].forward(self.gpu, micro, input.as_ref().map(Parameter::tensor));
        self.reports.extend(report);
        let flight = &mut self.flight[chunk];
        flight.inputs.push_back(input);
        flight.outputs.push_back(output.clone());
        output
    }

    fn backward(&mut self, at: usize) {
        let chunk = self.backward_chunk(at);
        let flight = &mut self.flight[chunk];
        let (input, gradient) = (flight.inputs.pop_front().flatten(), flight.gradients.pop_front());
        if let Some(output) = flight.outputs.pop_front() {
            self.names.input_gradient = self.stage.backward(self.gpu, input.as_ref(), &output, gradient.as_ref());
        }
    }

    /// What was sent is not needed here any more: the graph stays, and the memory of one element.
    fn release(&mut self, at: usize, output: &Tensor) {
        let chunk = self.chunk(at);
        if let Some(last) = self.flight[chunk].outputs.back_mut()
            && Rc::ptr_eq(last.storage(), output.storage())
            && !self.stage.chunks[chunk].is_last()
        {
            let released = self.stage.release(self.gpu, last);
            *last = released;
        }
    }

    /// What was sent or received is there when the device has done all that it was told.
    fn sync(&self) {
        if self.stages() > 1 {
            self.gpu.sync();
        }
    }
}
