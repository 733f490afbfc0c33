//! The example `scale_out`: its rehearsals of ranks, and its model of a step's time.

use std::process::Command;

use highwater::distributed::Shard;
use serde_json::Value;

#[path = "../../examples/predict_gpt/model.rs"]
#[allow(dead_code, reason = "the examples use the rest")]
pub(crate) mod model;
#[path = "../../examples/scale_out/ranks.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod ranks;
#[path = "../../examples/scale_out/time.rs"]
#[allow(dead_code, reason = "the example uses the rest")]
mod time;

use model::{Size, VOCABULARY};
use ranks::Training;
use time::{Algorithm, Link, Step, broadcast};

/// Each tensor is a multiple of 512 bytes, to which a GPU's pool rounds.
fn small() -> Training {
    let size = Size { name: "small", layers: 1, width: 128, heads: 2 };
    let device = "h100-80g".parse().unwrap();
    Training { size, batch: 1, context: 8, bf16: false, device }
}

fn close(value: f64, expected: f64) {
    assert!((value - expected).abs() < 1e-12 * expected.abs().max(1.0), "{value} is not {expected}");
}

#[test]
fn two_ranks_save_the_state_that_the_other_one_has() {
    let none = small().peaks(2, Shard::None).unwrap();
    let divided = small().peaks(2, Shard::Optimizer).unwrap();
    // Rank 0 updates the token table, and rank 1 everything else. AdamW keeps two f32 values for each element.
    let table = VOCABULARY * 128;
    let saved: Vec<u64> = divided.ranks.iter().map(|peak| none.ranks[0] - peak).collect();
    assert_eq!(saved, [8 * (none.elements - table), 8 * table].map(|bytes| bytes as u64));
}

#[test]
fn ranks_that_are_not_rehearsed_equal_one_that_is() {
    let peaks = |size, shard| -> Vec<u64> {
        let ranks = small().rehearse_all(0..size, size, shard).unwrap();
        ranks.iter().map(|rank| rank.peak).collect()
    };
    for size in [2, 4, 8] {
        assert_eq!(peaks(size, Shard::None), vec![small().peaks(size, Shard::None).unwrap().ranks[0]; size]);
    }
    for shard in [Shard::Optimizer, Shard::Gradients] {
        let all = peaks(32, shard);
        let found = small().peaks(32, shard).unwrap();
        let (rehearsed, rest) = all.split_at(found.ranks.len());
        assert_eq!(rehearsed, found.ranks);
        assert!(rest.len() > 4);
        assert_eq!(rest, vec![*rehearsed.last().unwrap(); rest.len()]);
        assert_eq!(Some(found.worst().1), all.iter().copied().max());
        assert_eq!(Some(found.smallest()), all.iter().copied().min());
    }
}

#[test]
fn dividing_gradients_needs_no_more_than_keeping_them() {
    // On CPUs, a rank needs memory for the values of the others while it sums. The owner of the token table sums a part of it.
    let training = Training { device: "cpu,memory=16GiB".parse().unwrap(), ..small() };
    for size in [4, 16] {
        let worst = |shard| training.peaks(size, shard).unwrap().worst().1;
        let (divided, kept) = (worst(Shard::Gradients), worst(Shard::None));
        assert!(divided <= kept, "{size} ranks: {divided} > {kept}");
    }
}

#[test]
fn times_of_operations_equal_those_by_hand() {
    let link = Link { latency: 0.001, bandwidth: 1000.0 };
    // Three quarters of 800 bytes, and three messages in a row or one.
    close(Algorithm::Ring.all_gather(link, 800.0, 4), 0.6 + 0.003);
    close(Algorithm::Ordered.all_gather(link, 800.0, 4), 0.6 + 0.001);
    close(Algorithm::Ring.all_reduce(link, 800.0, 4), 1.206);
    close(Algorithm::Ordered.all_reduce(link, 800.0, 4), 1.202);
    // Four ranks have the array after two rounds, five after three.
    close(broadcast(link, 800.0, 4), 2.0 * 0.801);
    close(broadcast(link, 800.0, 5), 3.0 * 0.801);
    for alone in [Algorithm::Ring.all_reduce(link, 800.0, 1), Algorithm::Ordered.all_reduce(link, 800.0, 1)] {
        close(alone, 0.0);
    }
    close(broadcast(link, 800.0, 1), 0.0);
}

#[test]
fn the_multiply_adds_of_a_gpt_equal_those_by_hand() {
    // 12 layers of 12 × 768² + 2 × 1024 × 768, and 50,257 scores from 768 values; three times for each token.
    let token = 12 * (7_077_888 + 1_572_864) + 38_597_376_u64;
    close(time::multiply_adds(model::SIZES[0], 2, 1024), (3 * token * 2048) as f64);
}

#[test]
fn backward_hides_all_buckets_but_the_last() {
    let link = Link { latency: 0.001, bandwidth: 1000.0 };
    let step = |compute| Step { compute, early: vec![800.0, 800.0], last: vec![400.0] };
    // The early buckets take 2.412 s, and the last one 0.606 s.
    close(step(6.0).seconds(link, Algorithm::Ring, 4), 6.0 + 0.606);
    close(step(3.0).seconds(link, Algorithm::Ring, 4), 3.0 + (2.412 - 2.0) + 0.606);
    close(step(3.0).efficiency(link, Algorithm::Ring, 4), 3.0 / 4.018);
}

#[test]
fn scaling_stops_where_latency_exceeds_compute() {
    let link = Link { latency: 0.125, bandwidth: f64::INFINITY };
    let step = Step { compute: 1.0, early: Vec::new(), last: vec![4.0] };
    // A ring of N ranks takes (N - 1) / 4 seconds: as long as compute with 5 ranks.
    assert_eq!(step.scales_to(link, Algorithm::Ring, 0.5, 1024), 5);
    assert_eq!(step.scales_to(link, Algorithm::Ring, 0.9, 1024), 1);
    assert_eq!(step.scales_to(link, Algorithm::Ordered, 0.8, 1024), 1024);
    assert_eq!(step.work_for(link, Algorithm::Ring, 0.5, 9, 100), Some(2));
    assert_eq!(step.work_for(link, Algorithm::Ring, 0.5, 1024, 100), None);
}

#[test]
fn the_example_writes_its_figures_and_rejects_unknown_names() {
    let folder = tempfile::tempdir().unwrap();
    let json = folder.path().join("figures.json");
    let run = |model: &str| {
        let mut command = Command::new(crate::built::example("scale_out"));
        command
            .args(["--model", model, "--world-size", "1,2", "--json", json.to_str().unwrap()])
            .output()
            .unwrap()
    };
    let output = run("13B");
    assert!(String::from_utf8_lossy(&output.stderr).contains("there is no 13B; expected 124M, 1.5B or 7B"));
    assert!(run("124M").status.success());
    let figures: Value = serde_json::from_slice(&std::fs::read(&json).unwrap()).unwrap();
    let worst: Vec<_> =
        figures["memory"].as_array().unwrap().iter().map(|row| row["worst"].as_u64().unwrap()).collect();
    // One rank, then two, with each division. This peak has few gradients, so dividing them saves nothing more.
    assert_eq!(
        worst,
        [2_559_833_088, 2_559_833_088, 2_559_833_088, 2_717_377_280, 2_219_621_120, 2_219_621_120]
    );
    assert_eq!(figures["time"][0]["steps"][0]["seconds"][0], figures["time"][0]["compute_seconds"]);
}
