//! The kernels compiled for the host, in place of a GPU: see [`bfc_cuda::emulator`].

use std::path::PathBuf;

use bfc_cuda::ComputeError;
use bfc_cuda::emulator::{Emulator, kernel_library, product_library};

use crate::cuda::Family;

/// Returns an emulated device that runs the kernels of this crate.
///
/// # Errors
/// [`ComputeError::Compile`] if there is no C++ compiler (`CXX`, else `c++`), or it refuses a source.
pub fn emulator() -> Result<Emulator, ComputeError> {
    Emulator::new(&kernels()?)
}

/// The files of the kernels and of the library for products, for a driver that runs them in place of a GPU.
///
/// # Errors
/// As [`emulator`].
pub fn libraries() -> Result<[PathBuf; 2], ComputeError> {
    Ok([kernels()?, product_library()?])
}

fn kernels() -> Result<PathBuf, ComputeError> {
    kernel_library(
        Family::ALL.iter().flat_map(|family| family.elements().map(|element| (family.source(), element))),
    )
}

#[cfg(test)]
mod tests {
    use bfc_cuda::Compute;
    use bfc_cuda::emulator::compiled;
    use bfc_cuda::kernels::{BLOCK, ElementType, Job, JobInput, KernelId, named};
    use libloading::Library;

    use super::*;

    fn all() -> impl Iterator<Item = KernelId> {
        Family::ALL.iter().flat_map(|family| {
            let kernels =
                move |element| family.source().kernels().map(move |name| family.kernel(name, element));
            family.elements().flat_map(kernels)
        })
    }

    #[test]
    fn every_kernel_is_there_under_its_name() {
        let [kernels, _] = libraries().unwrap();
        // SAFETY: the library was compiled from kernels, which have no initializers.
        let library = unsafe { Library::new(kernels) }.unwrap();
        for kernel in all() {
            // SAFETY: the symbol is looked up, not called.
            let symbol = unsafe { library.get::<*const ()>(kernel.to_string().as_bytes()) };
            assert!(symbol.is_ok(), "{kernel}");
        }
        let names: std::collections::BTreeSet<_> = all().map(|kernel| kernel.to_string()).collect();
        assert_eq!(names.len(), all().count());
        assert!(Family::ALL.iter().all(|family| all().any(|kernel| kernel.source == family.source())));
    }

    /// Calls the kernels' element loops without a kernel.
    const WAYS: &str = r#"
        static u64 walk(const Job& job, u32 way, u64* to) {
            u64 count = 0;
            auto pass = [&](u64 i) { to[count++] = i; };
            if (way == 0) EACH(i) { pass(i); }
            if (way == 1) each(job, [](u64 i) { return i; }, [&](u64 i, u64 loaded) { pass(i == loaded ? i : ~0ULL); });
            if (way == 2) {
                handfuls<8>(job, [&](const Handful& few) {
                    for (u32 n = 0; n < 8; ++n) if (few.has(n)) pass(few.at(n));
                });
            }
            return count;
        }
        extern "C" u64 elements_of(const Job* job, u32 blocks, u64 thread, u32 way, u64* to) {
            gridDim.x = blocks, blockIdx.x = (u32)(thread / BLOCK), threadIdx.x = (u32)(thread % BLOCK);
            return walk(*job, way, to);
        }
        extern "C" u64 offset_of(u64 rank, const u64* dims, const u64* strides, u64 i) {
            return offset_in(rank, dims, strides, i);
        }
    "#;

    fn ways() -> Library {
        let path = compiled("ways", &format!("{}\n{WAYS}", Family::Elementwise.source().headers())).unwrap();
        // SAFETY: the library was just compiled and has no initializers.
        unsafe { Library::new(path) }.unwrap()
    }

    #[test]
    fn places_beyond_4_gibi_elements_are_where_the_strides_say() {
        type Function = unsafe extern "C" fn(u64, *const u64, *const u64, u64) -> u64;
        let library = ways();
        // SAFETY: the function has this type.
        let offset_of = unsafe { library.get::<Function>(b"offset_of") }.unwrap();
        const TERA: u64 = 1 << 40;
        for (dims, strides) in [
            (&[TERA][..], &[3][..]),
            (&[1 << 20, 1 << 20], &[1, 1 << 21]),
            (&[5, (1 << 33) + 9, 3], &[1, 5, 1 << 36]),
            (&[(1 << 33) + 9, 7], &[0, 1]),
            (&[3, 1 << 31, 1, 100], &[7, 1 << 10, 0, 1 << 33]),
            (&[1 << 16, 1 << 8, 1 << 8, 1 << 8], &[1 << 24, 1 << 16, 1 << 8, 1]),
        ] {
            let elements: u64 = dims.iter().product();
            let near = [0, 1 << 31, 1 << 32, (1 << 33) + 9, 3 << 33, elements / 2, elements];
            let numbers = near.into_iter().flat_map(|at: u64| at.saturating_sub(3)..at + 3);
            for i in numbers.filter(|&i| i < elements) {
                let axes = dims.iter().zip(strides).rev();
                let (_, expected) = axes
                    .fold((i, 0), |(rest, sum), (size, stride)| (rest / size, sum + rest % size * stride));
                // SAFETY: both arrays have one number per axis.
                let offset = unsafe { offset_of(dims.len() as u64, dims.as_ptr(), strides.as_ptr(), i) };
                assert_eq!(offset, expected, "{i} of {dims:?}");
            }
        }
    }

    #[test]
    fn elements_beyond_4_gibi_are_gone_through_once() {
        type Function = unsafe extern "C" fn(*const Job, u32, u64, u32, *mut u64) -> u64;
        const BLOCKS: u32 = 1 << 22;
        const END: u64 = (1 << 33) + 13;
        let library = ways();
        // SAFETY: the function has this type.
        let elements_of = unsafe { library.get::<Function>(b"elements_of") }.unwrap();
        let threads = u64::from(BLOCKS) * BLOCK;
        for (way, packed) in [(0, 0), (1, 0), (2, 0), (2, 1)] {
            let job = Job { packed, ..Job::over(END, &[END as usize]) };
            let mut all = Vec::new();
            // The first and the last threads reach the last elements.
            for thread in (0..16).chain(threads - 16..threads) {
                let mut own = [0; 64];
                // SAFETY: with so many threads none has more than 24 elements.
                let count = unsafe { elements_of(&raw const job, BLOCKS, thread, way, own.as_mut_ptr()) };
                assert!((8..=17).contains(&count), "{way}, {packed}: {count}");
                all.extend_from_slice(&own[..count as usize]);
            }
            all.retain(|&i| i >= END - 29);
            all.sort_unstable();
            assert_eq!(all, (END - 29..END).collect::<Vec<_>>(), "{way}, {packed}");
        }
    }

    #[test]
    fn a_kernel_computes_on_strided_operands() {
        let emulator = emulator().unwrap();
        // The columns of a 2×3 matrix, plus 10.
        let (from, mut to) = ([1.0_f32, 2.0, 3.0, 4.0, 5.0, 6.0], [0.0_f32; 6]);
        let job = Job { function: named("add_scalar"), ..Job::over(6, &[3, 2]) }.with_constant(10.0);
        let job = job.with_input(JobInput::strided(from.as_ptr() as u64, &[1, 3]));
        let job = job.with_output(to.as_mut_ptr() as u64);
        let kernel = Family::Elementwise.kernel("arithmetic", ElementType::F32);
        // SAFETY: operands and output are the arrays above.
        unsafe { emulator.launch(kernel, 1, &job) }.unwrap();
        assert_eq!(to, [11.0, 14.0, 12.0, 15.0, 13.0, 16.0]);
    }
}
