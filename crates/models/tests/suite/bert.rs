//! BERT: masks, sentence embeddings and files.

use highwater::nn::Module;
use highwater::{Device, Rng, Tensor, no_grad};
use highwater_models::{Bert, BertConfig};

use crate::support::{BERT, Written, arrays, assert_close, cpu, scramble, tokens, values};

fn bert(device: &Device) -> Bert {
    let model = Bert::new(&BertConfig::from_json(BERT).unwrap(), device, &Rng::new(3)).unwrap();
    scramble(&model);
    model
}

#[test]
fn padding_does_not_change_a_sentence() {
    let device = cpu();
    let model = bert(&device);
    let short = tokens(&device, [1, 5], 40);
    let padding = Tensor::from_slice(&device, &[9i64, 9, 9], [1, 3]).unwrap();
    let long = Tensor::concat(&[&short, &padding], 1).unwrap();
    let batch = Tensor::concat(&[&long, &tokens(&device, [1, 8], 40)], 0).unwrap();
    let mask = [1i64, 1, 1, 1, 1, 0, 0, 0, 1, 1, 1, 1, 1, 1, 1, 1];
    let mask = Tensor::from_slice(&device, &mask, [2, 8]).unwrap();
    let alone = no_grad(|| model.forward(&short)).unwrap();
    let hidden = no_grad(|| model.forward_masked(&batch, Some(&mask), None)).unwrap();
    assert_close(&hidden.at((0..1, 0..5)).unwrap(), &alone, 1e-5);

    let embeddings = no_grad(|| model.sentence_embeddings(&batch, &mask)).unwrap();
    let ones = Tensor::ones(&device, [1, 5]).unwrap();
    let expected = no_grad(|| model.sentence_embeddings(&short, &ones)).unwrap();
    assert_close(&embeddings.narrow(0, 0, 1).unwrap(), &expected, 1e-5);
    let mean = values(&alone.mean(1).unwrap());
    let norm = mean.iter().map(|x| x * x).sum::<f64>().sqrt();
    for (x, mean) in values(&expected).into_iter().zip(mean) {
        assert!((x - mean / norm).abs() < 1e-5);
    }
}

#[test]
fn token_types_have_embeddings() {
    let device = cpu();
    let model = bert(&device);
    let text = tokens(&device, [1, 4], 40);
    let types = |value: i64| Tensor::from_slice(&device, &[value; 4], [1, 4]).unwrap();
    let run = |types: Option<&Tensor>| no_grad(|| model.forward_masked(&text, None, types)).unwrap();
    assert_close(&run(Some(&types(0))), &run(None), 1e-6);
    assert_ne!(values(&run(Some(&types(1)))), values(&run(None)));
    assert!(model.forward_masked(&text, None, Some(&types(2))).is_err());
    assert!(model.forward_masked(&text, Some(&Tensor::ones(&device, [4]).unwrap()), None).is_err());
    assert!(model.forward(&tokens(&device, [1, 17], 40)).is_err());
}

#[test]
fn files_with_and_without_the_prefix_and_a_pooler_are_read() {
    let device = cpu();
    let config = BertConfig::from_json(BERT).unwrap();
    let model = bert(&device);
    let own = arrays(&model);
    for name in [
        "embeddings.LayerNorm.weight",
        "encoder.layer.1.attention.self.query.bias",
        "encoder.layer.0.attention.output.LayerNorm.bias",
        "encoder.layer.0.intermediate.dense.weight",
        "encoder.layer.0.output.dense.weight",
    ] {
        assert!(own.contains_key(name), "{name}");
    }
    assert_eq!(own["encoder.layer.0.intermediate.dense.weight"].shape().dims(), [36, 24]);
    let text = tokens(&device, [1, 7], 40);
    let expected = no_grad(|| model.forward(&text)).unwrap();
    let mut prefixed: highwater::io::Arrays =
        own.iter().map(|(name, array)| (format!("bert.{name}"), array.clone())).collect();
    let square = own["encoder.layer.0.attention.self.query.weight"].clone();
    prefixed.insert("bert.pooler.dense.weight".to_owned(), square);
    prefixed.insert("bert.pooler.dense.bias".to_owned(), own["embeddings.LayerNorm.bias"].clone());
    prefixed.insert("cls.predictions.bias".to_owned(), own["embeddings.LayerNorm.bias"].clone());
    for (contents, has_pooler) in [(own, false), (prefixed, true)] {
        let file = Written::safetensors(contents);
        let read = Bert::from_weights(&config, &file.open(), &device).unwrap();
        let hidden = no_grad(|| read.forward(&text)).unwrap();
        assert_close(&hidden, &expected, 0.0);
        let pooled = read.pooled(&hidden).unwrap();
        assert_eq!(pooled.map(|pooled| pooled.dims().to_vec()), has_pooler.then(|| vec![1, 24]));
    }
}
