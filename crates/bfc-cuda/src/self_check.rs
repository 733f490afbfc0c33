//! Whether a device computes at all, and the right numbers: what an automatic choice asks before it takes one.

use std::sync::Arc;

use bfc_core::{DeviceSource, Driver, SourceError};

use crate::compute::{Compute, ComputeError};
use crate::compute::{Factor, Product};
use crate::driver::CudaDriver;
use crate::kernels::{BLOCK, ElementType, Family, Job, Kernel, Operand, Output};

/// A device that is not to be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SelfCheckError {
    /// There is no memory for the check.
    #[error("self-check: {0}")]
    Memory(SourceError),
    /// It does not compute.
    #[error("self-check: {0}")]
    Compute(ComputeError),
    /// It computes something else.
    #[error("self-check: {what} {place} is {got}, which must be {expected}")]
    WrongNumber {
        /// Of which results.
        what: &'static str,
        /// Which of them, from 0.
        place: usize,
        /// What the device gave.
        got: f32,
        /// What it is.
        expected: f32,
    },
}

impl From<ComputeError> for SelfCheckError {
    fn from(error: ComputeError) -> Self {
        Self::Compute(error)
    }
}

/// Numbers of the check: more than a block has threads.
const COUNT: usize = 1000;
const ROWS: usize = 12;
const DEPTH: usize = 20;
const COLUMNS: usize = 17;

// Where things lie, in bytes.
const SCALED: u64 = 4096;
const SUM: u64 = 8192;
const PRODUCT: u64 = 12_288;
const RESULTS_END: u64 = 16_384;
const WORKSPACE: u64 = 16_384;
const WORKSPACE_BYTES: u64 = 65_536;
/// What addresses are multiples of.
const ALIGNMENT: u64 = 256;

/// Has a device copy numbers, scale them, sum them and multiply them as matrices, and compares the results with the host's. All are
/// whole and small, so that they are the same to the bit in whatever order they are summed. The product is that of the library, where
/// there is one, else that of a kernel. Memory comes as it does for a pool of the device's, and all of it is given back.
///
/// # Errors
/// See [`SelfCheckError`].
pub fn self_check(driver: &Arc<CudaDriver>, compute: &dyn Compute) -> Result<(), SelfCheckError> {
    let driver: Arc<dyn Driver> = driver.clone();
    let source = DeviceSource::default().open(&driver).map_err(SelfCheckError::Memory)?;
    let memory = source.allocate(ALIGNMENT, WORKSPACE + WORKSPACE_BYTES).map_err(SelfCheckError::Memory)?;
    // SAFETY: the memory was taken just now, of that size, and nobody else knows of it.
    let checked = unsafe { check_at(compute, memory.address) };
    // SAFETY: as above; the source waits for what was given to the device.
    unsafe { source.free(memory) };
    checked
}

/// # Safety
/// The address begins so much live memory of the device, which nothing else uses.
unsafe fn check_at(compute: &dyn Compute, memory: u64) -> Result<(), SelfCheckError> {
    let numbers: Vec<f32> = (0..COUNT).map(|n| (n % 13) as f32 - 6.0).collect();
    let scaled: Vec<f32> = numbers.iter().map(|x| x * 3.0).collect();
    // Where results come, there are none before.
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_ne_bytes()).collect();
    bytes.extend(std::iter::repeat_n(f32::NAN.to_ne_bytes(), RESULTS_END as usize / 4 - COUNT).flatten());
    // SAFETY: as the caller says.
    unsafe { compute.upload(&bytes, memory) }?;

    let launch = |family, name, job: Job| {
        let kernel = Kernel::new(family, name, ElementType::F32);
        let blocks = job.count.div_ceil(BLOCK) as u32;
        // SAFETY: operands and outputs lie within the memory, as the caller says.
        unsafe { compute.launch(kernel, blocks, &job) }
    };
    let outputs = |at: u64| [Output::new(memory + at), Output::default(), Output::default()];
    let mut job = Job { function: 5, outputs: outputs(SCALED), ..Job::over(COUNT as u64, &[COUNT]) };
    job.inputs[0] = Operand::contiguous(memory);
    job.constants[0] = 3.0;
    launch(Family::Elementwise, "arithmetic", job)?;

    let mut job = Job { outputs: outputs(SUM), ..Job::over(1, &[]).with_inner(&[COUNT]) };
    job.inputs[0] = Operand::strided(memory + SCALED, &[]);
    job.inputs[1] = Operand::strided(0, &[1]);
    (job.counts[0], job.counts[1], job.counts[2]) = (COUNT as u64, 1, COUNT as u64);
    launch(Family::Reduce, "reduce_rows", job)?;

    // SAFETY: factors, product and workspace lie within the memory, as the caller says.
    if !unsafe { multiply(compute, memory) }? {
        let mut job = Job { outputs: outputs(PRODUCT), ..Job::over(1, &[]) };
        job.inputs[0] = Operand::strided(memory, &[]);
        job.inputs[1] = Operand::strided(memory + SCALED, &[]);
        job.counts = [ROWS, COLUMNS, DEPTH, DEPTH, 1, COLUMNS].map(|size| size as u64);
        job.integers[0] = 1;
        launch(Family::Matmul, "matmul", job)?;
    }

    let product: Vec<f32> = (0..ROWS * COLUMNS)
        .map(|n| {
            let term = |k| numbers[n / COLUMNS * DEPTH + k] * scaled[k * COLUMNS + n % COLUMNS];
            (0..DEPTH).map(term).sum()
        })
        .collect();
    let compare = |what, at: u64, expected: &[f32]| {
        let mut bytes = vec![0; expected.len() * 4];
        // SAFETY: so many bytes are there, as the caller says.
        unsafe { compute.download(memory + at, &mut bytes) }?;
        let got = bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_ne_bytes(bytes));
        let wrong = got.zip(expected).enumerate().find(|(_, (got, expected))| got != *expected);
        wrong.map_or(Ok(()), |(place, (got, &expected))| {
            Err(SelfCheckError::WrongNumber { what, place, got, expected })
        })
    };
    compare("number", 0, &numbers)?;
    compare("scaled number", SCALED, &scaled)?;
    compare("sum", SUM, &[scaled.iter().sum()])?;
    compare("element of a product", PRODUCT, &product)
}

/// The product by the library; false if there is none.
///
/// # Safety
/// As [`check_at`].
unsafe fn multiply(compute: &dyn Compute, memory: u64) -> Result<bool, ComputeError> {
    let factor = |address, rows, columns| Factor::new(address, [rows, columns], [columns, 1], 0);
    let factors = (factor(memory, ROWS, DEPTH), factor(memory + SCALED, DEPTH, COLUMNS));
    let (true, (Some(lhs), Some(rhs))) = (compute.has_products(), factors) else { return Ok(false) };
    let product = Product {
        element: ElementType::F32,
        rows: ROWS as i32,
        columns: COLUMNS as i32,
        depth: DEPTH as i32,
        batch: 1,
        lhs,
        rhs,
        out: memory + PRODUCT,
        accumulate: false,
        workspace: (memory + WORKSPACE, WORKSPACE_BYTES),
    };
    // SAFETY: as the caller says.
    unsafe { compute.multiply(&product) }
}

#[cfg(all(test, feature = "emulator"))]
mod tests {
    use super::*;
    use crate::emulator::Emulator;

    /// Memory of the host's in a device's place.
    fn memory() -> (Vec<u64>, u64) {
        let words = vec![0_u64; (WORKSPACE + WORKSPACE_BYTES + 256) as usize / 8];
        let address = (words.as_ptr() as u64).next_multiple_of(256);
        (words, address)
    }

    #[test]
    fn the_kernels_and_a_library_for_products_pass() {
        for emulator in [Emulator::new().unwrap(), Emulator::new().unwrap().with_products().unwrap()] {
            let (_words, address) = memory();
            // SAFETY: the emulator computes on memory of the host's, which is there.
            assert_eq!(unsafe { check_at(&emulator, address) }, Ok(()));
        }
    }

    #[test]
    fn a_device_that_computes_nothing_is_found_out() {
        let (_words, address) = memory();
        // SAFETY: as above.
        let error = unsafe { check_at(&Emulator::new().unwrap().silent(), address) }.unwrap_err();
        let SelfCheckError::WrongNumber { what: "scaled number", place: 0, got, expected } = error else {
            panic!("{error}")
        };
        assert!(got.is_nan() && expected == -18.0);
    }
}
