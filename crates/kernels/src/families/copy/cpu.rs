//! Copies on the CPU.

use super::{Copy, CopyInto, Flip};
use crate::cpu::convert;
use crate::cpu::dispatch::{any, host, host_mut};
use crate::cpu::loop_nest::{LoopNest, Segment};
use crate::cpu::operands::Source;
use crate::cpu::parallel::{LIGHT, Workers};
use crate::error::Result;
use crate::families::RunCpu;
use crate::shape::{DType, RawElement};

impl RunCpu for Copy<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { input, ref mut out } = *self;
        let (from, to) = (input.dtype(), out.dtype());
        if from != to && to != DType::Bool {
            return convert::convert(workers, op, input, out);
        }
        any!(from, A => {
            let source = Source::<A>::new(op, input)?;
            if from == to {
                let out = host_mut::<A>(op, out)?;
                workers.chunks(out, LIGHT, &|start, part| source.load(start, part));
            } else {
                let out = host_mut::<u8>(op, out)?;
                source.map(workers, LIGHT, out, |value| u8::from(value != A::default()));
            }
        });
        Ok(())
    }
}

impl RunCpu for Flip<'_> {
    fn run_cpu(&mut self, workers: &Workers, op: &'static str) -> Result<()> {
        let Self { input, axes, ref mut out } = *self;
        any!(out.dtype(), T => {
            let source = Source::<T>::flipped(op, input, axes)?;
            workers.chunks(host_mut::<T>(op, out)?, LIGHT, &|start, part| source.load(start, part));
        });
        Ok(())
    }
}

impl RunCpu for CopyInto<'_> {
    /// Uses one thread: memory bandwidth limits it, and the written parts are not chunks of a slice.
    fn run_cpu(&mut self, _: &Workers, op: &'static str) -> Result<()> {
        let Self { input, axis, start, step, ref mut out } = *self;
        let part = out.layout().part(op, input.layout().shape(), axis, start, step)?;
        any!(out.dtype(), T => {
            let data = host::<T>(op, &input)?;
            let out = out.host_buffer::<T>().ok_or_else(|| crate::error::not_host(op))?;
            place(data, &LoopNest::new([input.layout(), &part]), out);
        });
        Ok(())
    }
}

/// Copies the elements that a loop nest visits.
fn place<T: RawElement>(data: &[T], nest: &LoopNest<2>, out: &mut [T]) {
    let [from_stride, to_stride] = nest.inner();
    for Segment { starts: [from, to], len } in nest.segments(0..nest.len()) {
        if from_stride == 1 && to_stride == 1 {
            out[to..to + len].copy_from_slice(&data[from..from + len]);
        } else {
            (0..len).for_each(|i| out[to + i * to_stride] = data[from + i * from_stride]);
        }
    }
}

#[cfg(test)]
mod tests;
