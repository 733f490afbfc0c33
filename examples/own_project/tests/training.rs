//! Gradients, predictions, and a run that continues.

use std::error::Error;
use std::{env, fs, process};

use highwater::fit::Plan;
use highwater::prelude::*;
use highwater::train::Saves;
use highwater::{GradCheck, check_gradients, dry_run};
use own_project::data::Ratings;
use own_project::op::row_dot;
use own_project::{BATCH, TEST_ERROR, train};

type Outcome = Result<(), Box<dyn Error>>;

#[test]
fn the_gradient_of_row_dot_agrees_with_differences() -> Outcome {
    let (device, rng) = (Device::cpu()?, Rng::new(0));
    let inputs = [Tensor::randn(&device, [5, 3], &rng)?, Tensor::randn(&device, [5, 3], &rng)?];
    let dots = row_dot(&inputs[0], &inputs[1])?.to_vec::<f32>()?;
    let sums = inputs[0].mul(&inputs[1])?.sum(1)?.to_vec::<f32>()?;
    assert!(dots.iter().zip(&sums).all(|(dot, sum)| (dot - sum).abs() < 1e-5));
    check_gradients(|inputs| row_dot(&inputs[0], &inputs[1]), &inputs, GradCheck::for_dtype(DType::F32))?;
    assert!(row_dot(&inputs[0], &inputs[1].t()?).is_err());
    Ok(())
}

#[test]
fn a_run_in_two_parts_equals_one_at_once_and_needs_the_predicted_memory() -> Outcome {
    let (ratings, plan) = (Ratings::generate(0)?, Plan::new(BATCH));
    let file = env::temp_dir().join(format!("own_project-{}.safetensors", process::id()));
    let train_at_once = |device: &Device| train(&ratings, device, &plan, 2, Saves::default());

    let device = Runtime::builder().threads(1).build()?.cpu()?;
    let (whole, outcome) = train_at_once(&device)?;
    let predicted =
        dry_run(DeviceProfile::this_machine().with_threads(1), |device| train_at_once(device).map(drop))?;
    assert_eq!(device.max_memory_allocated()?.get(), predicted.peak.in_use);
    assert!(outcome.figures.get(TEST_ERROR) < Some(ratings[1].deviation().powi(2)));

    let (_, first) = train(&ratings, &device, &plan, 1, Saves::to(&file))?;
    assert_eq!(first.epochs, 1);
    let (continued, _) = train(&ratings, &device, &plan, 2, Saves::resumable(&file))?;
    fs::remove_file(&file)?;
    for ((path, one), (_, other)) in whole.parameters().into_iter().zip(continued.parameters()) {
        assert_eq!(one.tensor().to_vec::<f32>()?, other.tensor().to_vec::<f32>()?, "{path}");
    }
    Ok(())
}
