//! Errors of attention, norms and embeddings: they name the op that the caller called.

use std::sync::Arc;

use crate::ops_table::device;
use highwater_nn::modules::{Embedding, GroupNorm, Module};
use highwater_tensor::{AttentionOptions, DType, Error, Rng, Tensor};

#[test]
fn a_mask_that_does_not_fit_the_scores_is_named_as_that() {
    let device = device();
    let ones = |dims: &[usize]| Tensor::ones(&device, dims).unwrap();
    let (query, key) = (ones(&[2, 3, 4]), ones(&[2, 5, 4]));
    let attend = |mask: &[usize]| query.attention(&key, &key, Some(&ones(mask)), AttentionOptions::default());
    assert_eq!(attend(&[3, 5]).unwrap().dims(), [2, 3, 4]);
    assert_eq!(
        attend(&[2, 3, 6]).unwrap_err().to_string(),
        "attention: mask must be of a shape that broadcasts to the scores, got [2, 3, 6] for scores of shape [2, 3, 5]"
    );
    for groups in [0, 3] {
        let message = GroupNorm::new(&device, groups, 4).unwrap_err().to_string();
        assert_eq!(
            message,
            format!(
                "group_norm: groups must be a divisor of the number of channels, got {groups} for 4 channels"
            )
        );
    }
}

#[test]
fn attention_with_dropout_is_named_in_its_errors() {
    let device = device();
    let ones = |dims: &[usize]| Tensor::ones(&device, dims).unwrap();
    let (query, key, rng) = (ones(&[2, 3, 4]), ones(&[2, 5, 4]), Rng::new(0));
    let attend = |key: &Tensor, mask: Option<&Tensor>, p| {
        let options = AttentionOptions::default();
        query.attention_with_dropout(key, key, mask, options, p, &rng).unwrap_err().to_string()
    };
    for p in [0.0, 0.5] {
        for (error, message) in [
            (
                attend(&ones(&[2, 5, 3]), None, p),
                "shapes [2, 3, 4] and [2, 5, 3] do not match: queries must be [.., queries, width], keys [.., keys, width], and values [.., keys, _]",
            ),
            (
                attend(&key.to_dtype(DType::F64).unwrap(), None, p),
                "element types f32 and f64 differ (shapes [2, 3, 4] and [2, 5, 4]); convert one of them with `to_dtype`",
            ),
            (
                attend(&key, Some(&ones(&[2, 3, 6])), p),
                "mask must be of a shape that broadcasts to the scores, got [2, 3, 6] for scores of shape [2, 3, 5]",
            ),
        ] {
            assert_eq!(error, format!("attention_with_dropout: {message}"));
        }
    }
    assert_eq!(rng.state(), Rng::new(0).state(), "nothing was drawn");
}

#[test]
fn an_embedding_is_named_in_its_errors_and_in_the_accounts() {
    let device = device();
    let table = Embedding::new(&device, 4, 3, &Rng::new(0)).unwrap();
    let tokens = |values: &[i64]| Tensor::from_slice(&device, values, [1, values.len()]).unwrap();
    for bad in [4, -1] {
        let refused = table.forward(&tokens(&[0, bad])).unwrap_err();
        assert_eq!(refused, Error::IndexOutOfRange { op: "embedding", index: bad, len: 4 });
    }
    assert_eq!(
        table.forward(&Tensor::ones(&device, [2]).unwrap()).unwrap_err().to_string(),
        "embedding: indices must be of type u8, i32, u32 or i64, got f32 of shape [2] for a tensor of shape [4, 3]"
    );
    let many = table.forward(&Tensor::full_of(&device, [1; 8], 0, DType::I64).unwrap()).unwrap_err();
    assert_eq!(many, Error::RankTooLarge { op: "embedding", rank: 9 });
    let _rows = table.forward(&tokens(&[0, 3])).unwrap();
    let pools = [Arc::clone(device.default_allocator().unwrap())];
    let report = highwater_tracking::Report::new(device.tracker(), &pools);
    assert!(report.ops.iter().any(|row| row.op == "embedding" && row.live_bytes > 0));
}
