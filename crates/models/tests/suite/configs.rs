//! Configurations: defaults, and errors that name the field.

use highwater::Activation;
use highwater::nn::Llama3Scaling;
use highwater_models::{BertConfig, Gpt2Config, LlamaConfig, ModelConfig, ModelError};

use crate::support::{BERT, GPT2, LLAMA};

#[test]
fn fields_have_the_names_and_defaults_of_hugging_face() {
    let ModelConfig::Llama(llama) = ModelConfig::from_json(LLAMA).unwrap() else { panic!() };
    assert_eq!((llama.heads, llama.key_heads, llama.head_width, llama.theta), (6, 2, 4, 100.0));
    assert!(llama.tied && !llama.attention_bias && llama.scaling.is_none());
    let ModelConfig::Gpt2(gpt2) = ModelConfig::from_json(GPT2).unwrap() else { panic!() };
    assert_eq!((gpt2.inside, gpt2.epsilon), (96, 1e-5));
    let ModelConfig::Bert(bert) = ModelConfig::from_json(BERT).unwrap() else { panic!() };
    assert_eq!((bert.types, bert.epsilon, bert.activation), (2, 1e-12, Activation::Gelu));
}

/// Replaces the text `rms_norm_eps": 1e-5` by other fields.
fn llama_with(fields: &str) -> Result<LlamaConfig, ModelError> {
    LlamaConfig::from_json(&LLAMA.replace(r#""rms_norm_eps": 1e-5"#, fields))
}

#[test]
fn scalings_of_old_and_new_files_are_read() {
    let expected = Llama3Scaling {
        factor: 8.0,
        low_frequency_factor: 1.0,
        high_frequency_factor: 4.0,
        original_positions: 8192,
    };
    let factors = r#""factor": 8.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
        "original_max_position_embeddings": 8192"#;
    let old = llama_with(&format!(r#""rope_scaling": {{"rope_type": "llama3", {factors}}}"#)).unwrap();
    assert_eq!((old.scaling, old.theta, old.epsilon), (Some(expected), 100.0, 1e-6));
    let new = format!(r#""rope_parameters": {{"rope_type": "llama3", "rope_theta": 7.5, {factors}}}"#);
    let new = llama_with(&new).unwrap();
    assert_eq!((new.scaling, new.theta), (Some(expected), 7.5));
    let none =
        llama_with(r#""rope_parameters": {"rope_type": "default", "rope_theta": 3}, "rope_scaling": null"#);
    assert_eq!(none.unwrap().scaling, None);
}

#[test]
fn tokens_are_one_or_a_list() {
    let config = llama_with(r#""bos_token_id": 1, "eos_token_id": [2, 3]"#).unwrap();
    assert_eq!((config.start_tokens, config.stop_tokens), (vec![1], vec![2, 3]));
    assert!(llama_with(r#""eos_token_id": "two""#).is_err());
}

#[test]
fn errors_name_the_field() {
    let message = |result: Result<LlamaConfig, ModelError>| result.unwrap_err().to_string();
    let cases = [
        (
            llama_with(r#""hidden_act": "gelu""#),
            "the option `hidden_act` = gelu is not supported; supported is silu",
        ),
        (
            llama_with(r#""rope_scaling": {"type": "yarn", "factor": 2}"#),
            "the option `rope_scaling.type` = yarn is not supported; supported is default and llama3",
        ),
        (
            llama_with(r#""rope_scaling": {"rope_type": "llama3", "factor": 8}"#),
            "the configuration has no field `rope_scaling.low_freq_factor`",
        ),
        (
            llama_with(r#""quantization_config": {"bits": 4}"#),
            "the option `quantization_config` = an object is not supported; supported is no such field",
        ),
        (
            LlamaConfig::from_json(&LLAMA.replace("36", "0")),
            "the field `intermediate_size` of the configuration must be a number from 1 to 2^31, got 0",
        ),
        (
            LlamaConfig::from_json(&LLAMA.replace("\"num_hidden_layers\": 2", "\"num_hidden_layers\": 1e9")),
            "the field `num_hidden_layers` of the configuration must be a number from 1 to 4096, got 1000000000.0",
        ),
        (
            LlamaConfig::from_json(
                &LLAMA.replace("\"num_key_value_heads\": 2", "\"num_key_value_heads\": 4"),
            ),
            "the field `num_key_value_heads` of the configuration must be a divisor of num_attention_heads, got 4 for 6",
        ),
        (LlamaConfig::from_json(GPT2), "unknown architecture gpt2; supported are llama"),
        (LlamaConfig::from_json("{}"), "the configuration has no field `model_type`"),
        (
            LlamaConfig::from_json("[1]"),
            "the configuration is no valid JSON: expected an object, got an array",
        ),
    ];
    for (result, expected) in cases {
        assert_eq!(message(result), expected);
    }
    assert!(matches!(LlamaConfig::from_json("{"), Err(ModelError::Json { .. })));
    let gpt2 = Gpt2Config::from_json(&GPT2.replace("\"n_head\": 3", "\"n_head\": 5"));
    assert!(matches!(gpt2, Err(ModelError::BadField { field, .. }) if field == "n_head"));
    let relative =
        BERT.replace("\"vocab_size\"", "\"position_embedding_type\": \"relative_key\", \"vocab_size\"");
    assert!(matches!(BertConfig::from_json(&relative), Err(ModelError::Unsupported { .. })));
}
