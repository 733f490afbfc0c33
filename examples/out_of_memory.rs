//! Runs out of memory. `main` returns the error, so Rust prints its message and the complete report.
//!
//! cargo run --example out_of_memory

use highwater::prelude::*;

fn main() -> highwater::Result<()> {
    // The limit is one region: the pool can use all of it.
    let device = Runtime::builder().pool(Bytes::mib(24)).build()?.cpu()?;
    let mut x = Tensor::ones(&device, [1024, 1024])?;
    let mut kept = Vec::new();
    for layer in 0..8 {
        let _scope = module(&format!("layer{layer}"));
        // Each result needs 4 MiB, so the pool holds six.
        x = x.relu()?;
        kept.push(x.clone());
    }
    println!("{} results", kept.len());
    Ok(())
}
