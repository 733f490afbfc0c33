//! GPT-2: generation with a cache, and files of both kinds of names.

use highwater::nn::Module;
use highwater::{Rng, no_grad};
use highwater_models::{Gpt2, LanguageModel};

use crate::support::{Written, arrays, assert_close, cpu, gpt2_config, scramble, tokens};

#[test]
fn steps_with_a_cache_equal_the_whole_text() {
    let device = cpu();
    let model = Gpt2::new(&gpt2_config(), &device, &Rng::new(2)).unwrap();
    scramble(&model);
    let text = tokens(&device, [2, 80], 40);
    let whole = no_grad(|| model.forward(&text)).unwrap();
    let mut cache = model.new_cache(2, 80).unwrap();
    let mut at = 0;
    for new in [66, 1, 1, 12] {
        let part = text.narrow(1, at, new).unwrap();
        let logits = no_grad(|| model.forward_cached(&part, &mut cache)).unwrap();
        assert_close(&logits, &whole.narrow(1, at, new).unwrap(), 2e-5);
        at += new;
    }
    assert!(model.forward_cached(&text.narrow(1, 0, 1).unwrap(), &mut cache).is_err());
}

#[test]
fn files_with_and_without_the_prefix_are_read() {
    let device = cpu();
    let config = gpt2_config();
    let model = Gpt2::new(&config, &device, &Rng::new(2)).unwrap();
    scramble(&model);
    let text = tokens(&device, [1, 7], 40);
    let expected = no_grad(|| model.forward(&text)).unwrap();
    let own = arrays(&model);
    assert_eq!(own["transformer.h.1.attn.c_attn.weight"].shape().dims(), [24, 72]);
    assert_eq!(own["transformer.h.0.mlp.c_fc.bias"].shape().dims(), [96]);
    let mut short: highwater::io::Arrays = own
        .iter()
        .map(|(name, array)| (name.strip_prefix("transformer.").unwrap().to_owned(), array.clone()))
        .collect();
    // The causal mask, which old files contain.
    short.insert("h.0.attn.bias".to_owned(), own["transformer.ln_f.bias"].clone());
    for contents in [own, short] {
        let file = Written::safetensors(contents);
        let read = Gpt2::from_weights(&config, &file.open(), &device).unwrap();
        assert_close(&no_grad(|| read.forward(&text)).unwrap(), &expected, 0.0);
    }
}
