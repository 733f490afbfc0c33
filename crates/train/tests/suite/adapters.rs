//! Training of adapters: a checkpoint holds them and the optimizer's state, and a resumed run has the same bits.

use highwater::io::Checkpoint;
use highwater::nn::{Lora, lora};
use highwater::prelude::*;
use highwater::train::{Saves, Trainer};

use crate::support::{BATCH, cpu, model, points, values};

/// Trains adapters of a model until this epoch. Returns the values of the adapters and of the frozen parameters.
fn train(epochs: u64, saves: Saves) -> [Vec<f32>; 2] {
    let (device, data) = (cpu(), points());
    let model = model(&device);
    let options = Lora { rank: 2, dropout: 0.25, ..Lora::default() }.with_targets(["fc1", "fc2"]);
    let adapters = lora(&model, &options, &Rng::new(3)).unwrap();
    let mut optimizer = AdamW::new(adapters.parameters(), 0.01).unwrap();
    let outcome = Trainer::new(&adapters, &mut optimizer)
        .epochs(epochs)
        .saves(saves)
        .train(
            |epoch| Ok(data.batches(BATCH, &device)?.shuffled(3, epoch)),
            |(x, y)| adapters.forward(x)?.cross_entropy(y),
        )
        .unwrap();
    assert_eq!(outcome.epochs, epochs);
    let trained = values(&adapters);
    adapters.detach();
    [trained, values(&model)]
}

#[test]
fn a_resumed_run_of_adapters_has_the_same_bits_and_its_file_holds_no_frozen_weights() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let expected = train(2, Saves::default());
    let part = train(1, Saves::to(&path));
    assert_ne!(part[0], expected[0]);
    assert_eq!(train(2, Saves::default().resume(&path)), expected);
    assert_eq!(expected[1], values(&model(&cpu())), "frozen weights");

    let checkpoint = Checkpoint::load(&path).unwrap();
    let names: Vec<_> = checkpoint.parameters().keys().map(String::as_str).collect();
    let of = |layer, part| format!("{layer}.lora_{part}.weight");
    assert_eq!(names, [of("fc1", "A"), of("fc1", "B"), of("fc2", "A"), of("fc2", "B")]);
    let file = std::fs::read(&path).unwrap();
    let length = u64::from_le_bytes(file[..8].try_into().unwrap()) as usize;
    // A and B of 1 to 16 and of 16 to 2, each with two moments.
    let elements = 2 + 16 * 2 + 2 * 16 + 2 * 2;
    let header = String::from_utf8(file[8..8 + length].to_vec()).unwrap();
    assert!((3 * 4 * elements..3 * 4 * elements + 200).contains(&(file.len() - 8 - length)), "{header}");
    assert!(
        header.contains("highwater.rng/dropout.rng") && header.contains("highwater.rng/fc1.lora_dropout.rng")
    );
}
