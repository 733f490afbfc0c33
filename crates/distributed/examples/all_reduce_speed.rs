//! Measures all-reduces between ranks, next to `MPI_Allreduce` as the crate `mpi` calls it.
//!
//!     cargo build --release -p highwater-distributed --features mpi --example all_reduce_speed
//!     mpiexec -n 2 target/release/examples/all_reduce_speed ordered    # or: library, plain

use std::hint::black_box;
use std::time::{Duration, Instant};

use highwater_distributed::{SumOrder, World};
use highwater_tensor::DType;
use mpi::collective::SystemOperation;
use mpi::traits::{Communicator, CommunicatorCollectives};

const SIZES: [usize; 3] = [4 << 10, 1 << 20, 16 << 20];

fn main() -> Result<(), Box<dyn std::error::Error>> {
    let mode = std::env::args().nth(1).unwrap_or_default();
    if mode == "plain" {
        let universe = mpi::initialize().ok_or("MPI is already initialized")?;
        let world = universe.world();
        for bytes in SIZES {
            let (from, mut to) = (vec![1.0_f32; bytes / 4], vec![0.0_f32; bytes / 4]);
            measure(&mode, bytes, world.rank() == 0, || {
                world.all_reduce_into(&from[..], &mut to[..], SystemOperation::sum());
                Ok(())
            })?;
        }
        return Ok(());
    }
    let reduce = if mode == "library" { SumOrder::Library } else { SumOrder::Ordered };
    let world = World::from_env()?;
    for bytes in SIZES {
        let mut data = vec![0.0_f32; bytes / 4];
        let mut workspace = vec![0.0_f32; reduce.workspace_bytes(data.len(), DType::F32, world.size()) / 4];
        let workspace: &mut [u8] = bytemuck::cast_slice_mut(&mut workspace);
        measure(&mode, bytes, world.is_main(), || {
            Ok(world.collective().all_reduce((&mut data[..]).into(), reduce, workspace)?)
        })?;
    }
    Ok(())
}

/// Prints the median and the best time of single runs. All ranks run equally often.
fn measure(
    mode: &str,
    bytes: usize,
    is_main: bool,
    mut run: impl FnMut() -> Result<(), Box<dyn std::error::Error>>,
) -> Result<(), Box<dyn std::error::Error>> {
    let count = (256 << 20) / bytes.max(1 << 18);
    let mut times: Vec<Duration> = Vec::with_capacity(count);
    for _ in 0..count {
        let start = Instant::now();
        black_box(run())?;
        times.push(start.elapsed());
    }
    times.sort_unstable();
    if is_main {
        let [best, median] = [times[0], times[count / 2]].map(|time| time.as_secs_f64());
        let speed = bytes as f64 / median / 1e9;
        println!(
            "{mode:8} {:6} KiB: median {:8.1} us, {speed:5.2} GB/s; best {:8.1} us",
            bytes >> 10,
            median * 1e6,
            best * 1e6
        );
    }
    Ok(())
}
