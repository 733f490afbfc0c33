//! Checks that a device computes correct results, before an automatic choice uses it.

use std::sync::Arc;

use bfc_core::{Driver, SourceError, device_source};

use crate::compute::{Compute, ComputeError, Factor, Product};
use crate::driver::CudaDriver;
use crate::kernels::{BLOCK, CHECK, ElementType, Job, JobInput, KernelId};

/// The reason why a device must not be used.
#[derive(Clone, Debug, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum SelfCheckError {
    /// There is no memory for the check.
    #[error("self-check: {0}")]
    Memory(SourceError),
    /// A call failed.
    #[error("self-check: {0}")]
    Compute(ComputeError),
    /// A result is wrong.
    #[error("self-check: {what} {index} is {actual}, expected {expected}")]
    WrongResult {
        /// The kind of result.
        what: &'static str,
        /// Its index.
        index: usize,
        /// The device's value.
        actual: f32,
        /// The correct value.
        expected: f32,
    },
}

impl From<ComputeError> for SelfCheckError {
    fn from(error: ComputeError) -> Self {
        Self::Compute(error)
    }
}

/// Elements of the check: more than the threads of a block.
const COUNT: usize = 1000;
const ROWS: usize = 12;
const DEPTH: usize = 20;
const COLUMNS: usize = 17;

// Offsets, in bytes.
const SCALED: u64 = 4096;
const SUM: u64 = 8192;
const PRODUCT: u64 = 12_288;
const RESULTS_END: u64 = 16_384;
const WORKSPACE: u64 = 16_384;
const WORKSPACE_BYTES: u64 = 65_536;
/// The alignment of addresses.
const ALIGNMENT: u64 = 256;

/// Copies, scales, sums and multiplies numbers on the device and compares the results with the host's. All values are
/// small integers, so that every order of summation gives the same bits. The product uses the library if there is one,
/// else a kernel. All memory is freed.
///
/// # Errors
/// See [`SelfCheckError`].
pub fn self_check(driver: &Arc<CudaDriver>, compute: &dyn Compute) -> Result<(), SelfCheckError> {
    let driver: Arc<dyn Driver> = driver.clone();
    let source = device_source(&driver).map_err(SelfCheckError::Memory)?;
    let memory = source.allocate(ALIGNMENT, WORKSPACE + WORKSPACE_BYTES).map_err(SelfCheckError::Memory)?;
    // SAFETY: the memory was just allocated with that size, and nothing else uses it.
    let checked = unsafe { check_at(compute, memory.address) };
    // SAFETY: as above; the source waits for the device.
    unsafe { source.free(memory) };
    checked
}

/// # Safety
/// The address starts enough live device memory, which nothing else uses.
unsafe fn check_at(compute: &dyn Compute, memory: u64) -> Result<(), SelfCheckError> {
    let numbers: Vec<f32> = (0..COUNT).map(|n| (n % 13) as f32 - 6.0).collect();
    let scaled: Vec<f32> = numbers.iter().map(|x| x * 3.0).collect();
    // NaN marks results that were not written.
    let mut bytes: Vec<u8> = numbers.iter().flat_map(|x| x.to_ne_bytes()).collect();
    bytes.extend(std::iter::repeat_n(f32::NAN.to_ne_bytes(), RESULTS_END as usize / 4 - COUNT).flatten());
    // SAFETY: as the caller says.
    unsafe { compute.upload(&bytes, memory) }?;

    let launch = |name, job: Job| {
        let kernel = KernelId::new(&CHECK, name, ElementType::F32);
        let blocks = job.count.div_ceil(BLOCK) as u32;
        // SAFETY: operands and outputs lie within the memory, as the caller says.
        unsafe { compute.launch(kernel, blocks, &job) }
    };
    let job = Job::over(COUNT as u64, &[COUNT]).with_input(JobInput::contiguous(memory));
    launch("check_scale", job.with_constant(3.0).with_output(memory + SCALED))?;

    let mut job = Job::over(1, &[]).with_input(JobInput::contiguous(memory + SCALED));
    job.counts[0] = COUNT as u64;
    launch("check_sum", job.with_output(memory + SUM))?;

    // SAFETY: factors, product and workspace lie within the memory, as the caller says.
    if !unsafe { multiply(compute, memory) }? {
        let job = Job::over((ROWS * COLUMNS) as u64, &[ROWS, COLUMNS]).with_output(memory + PRODUCT);
        let mut job = job.with_input(JobInput::contiguous(memory));
        job.inputs[1] = JobInput::contiguous(memory + SCALED);
        (job.counts[0], job.counts[1], job.counts[2]) = (ROWS as u64, COLUMNS as u64, DEPTH as u64);
        launch("check_product", job)?;
    }

    let product: Vec<f32> = (0..ROWS * COLUMNS)
        .map(|n| {
            let term = |k| numbers[n / COLUMNS * DEPTH + k] * scaled[k * COLUMNS + n % COLUMNS];
            (0..DEPTH).map(term).sum()
        })
        .collect();
    let compare = |what, at: u64, expected: &[f32]| {
        let mut bytes = vec![0; expected.len() * 4];
        // SAFETY: the memory is large enough, as the caller says.
        unsafe { compute.download(memory + at, &mut bytes) }?;
        let actual = bytes.as_chunks::<4>().0.iter().map(|&bytes| f32::from_ne_bytes(bytes));
        let wrong = actual.zip(expected).enumerate().find(|(_, (actual, expected))| actual != *expected);
        wrong.map_or(Ok(()), |(index, (actual, &expected))| {
            Err(SelfCheckError::WrongResult { what, index, actual, expected })
        })
    };
    compare("number", 0, &numbers)?;
    compare("scaled number", SCALED, &scaled)?;
    compare("sum", SUM, &[scaled.iter().sum()])?;
    compare("product element", PRODUCT, &product)
}

/// Multiplies with the library; returns false if there is none.
///
/// # Safety
/// As [`check_at`].
unsafe fn multiply(compute: &dyn Compute, memory: u64) -> Result<bool, ComputeError> {
    let factor = |address, rows, columns| Factor::new(address, [rows, columns], [columns, 1], 0);
    let factors = (factor(memory, ROWS, DEPTH), factor(memory + SCALED, DEPTH, COLUMNS));
    let (true, (Some(lhs), Some(rhs))) = (compute.supports_products(), factors) else { return Ok(false) };
    let product = Product {
        element: ElementType::F32,
        out_element: ElementType::F32,
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

    fn emulator() -> Emulator {
        let [kernels, _] = crate::emulator::libraries().expect("a C++ compiler");
        Emulator::new(&kernels).expect("the kernels of the self-check")
    }

    /// Host memory that takes the place of device memory.
    fn memory() -> (Vec<u64>, u64) {
        let words = vec![0_u64; (WORKSPACE + WORKSPACE_BYTES + 256) as usize / 8];
        let address = (words.as_ptr() as u64).next_multiple_of(256);
        (words, address)
    }

    #[test]
    fn the_kernels_and_a_library_for_products_pass() {
        for emulator in [emulator(), emulator().with_products().unwrap()] {
            let (_words, address) = memory();
            // SAFETY: the emulator computes on live host memory.
            assert_eq!(unsafe { check_at(&emulator, address) }, Ok(()));
        }
    }

    #[test]
    fn a_device_that_computes_nothing_is_found_out() {
        let (_words, address) = memory();
        // SAFETY: as above.
        let error = unsafe { check_at(&emulator().silent(), address) }.unwrap_err();
        let SelfCheckError::WrongResult { what: "scaled number", index: 0, actual, expected } = error else {
            panic!("{error}")
        };
        assert!(actual.is_nan() && expected == -18.0);
    }
}
