//! `adapter_config.json`, the options of adapters in PEFT's format.
//!
//! PEFT writes all of its options, most of them switched off. The reader knows the options of plain LoRA, ignores those that
//! do not change the update, and requires that all others are off. So an option of a later version is an error instead of
//! a wrong result.

use std::path::Path;

use serde_json::{Map, Value, json};

use super::error::LoraError;
use super::options::Lora;

/// Options that do not change the update of a layer.
const IGNORED: &[&str] = &[
    "auto_mapping",
    "ensure_weight_tying",
    "exclude_modules",
    "fan_in_fan_out",
    "inference_mode",
    "layers_pattern",
    "layers_to_transform",
    "megatron_core",
    "peft_version",
    "qalora_group_size",
    "revision",
    "runtime_config",
    "target_modules",
    "task_type",
];

/// Initializations of A and B that leave the weights of the model unchanged.
const INITIALIZATIONS: [&str; 3] = ["gaussian", "orthogonal", "eva"];

/// The largest rank that a file may name. Larger ones are damaged files.
const MAX_RANK: u64 = 1 << 20;

/// The largest number of characters of a value in an error.
const SHOWN: usize = 80;

/// Reads the options, without patterns of layers: the tensors beside the configuration name the layers.
pub(crate) fn parse(text: &[u8], path: &Path) -> Result<Lora, LoraError> {
    let json_error = |reason: String| LoraError::Json { path: path.to_owned(), reason };
    let fields: Map<String, Value> = match serde_json::from_slice(text) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => return Err(json_error("expected an object".to_owned())),
        Err(error) => return Err(json_error(error.to_string())),
    };
    let bad = |field, expected, value: Option<&Value>| {
        let got = value.map_or_else(|| "nothing".to_owned(), shown);
        LoraError::BadField { path: path.to_owned(), field, expected, got }
    };
    let unsupported = |option: &str, value: &Value, supported| {
        let (path, option, got) = (path.to_owned(), option.to_owned(), shown(value));
        Err(LoraError::Unsupported { path, option, got, supported })
    };
    let mut options = Lora { rslora: false, dropout: 0.0, targets: Vec::new(), ..Lora::default() };
    let rank = fields.get("r");
    let (mut has_rank, mut has_alpha, mut has_type) = (false, false, false);
    for (option, value) in &fields {
        match option.as_str() {
            "peft_type" => {
                has_type = value.as_str() == Some("LORA");
                if !has_type {
                    return unsupported(option, value, "\"LORA\"");
                }
            }
            "r" => {
                let rank = value.as_u64().filter(|rank| (1..=MAX_RANK).contains(rank));
                options.rank =
                    rank.ok_or_else(|| bad("r", "a whole number from 1 to 1048576", Some(value)))? as usize;
                has_rank = true;
            }
            "lora_alpha" => {
                let alpha = value.as_f64().filter(|alpha| alpha.is_finite());
                options.alpha = alpha.ok_or_else(|| bad("lora_alpha", "a number", Some(value)))?;
                has_alpha = true;
            }
            "lora_dropout" => {
                let dropout = value.as_f64().filter(|dropout| (0.0..1.0).contains(dropout));
                options.dropout =
                    dropout.ok_or_else(|| bad("lora_dropout", "at least 0 and below 1", Some(value)))?;
            }
            "use_rslora" => {
                let rslora = value.as_bool();
                options.rslora = rslora.ok_or_else(|| bad("use_rslora", "true or false", Some(value)))?;
            }
            "base_model_name_or_path" => match value {
                Value::Null => {}
                Value::String(name) => options.base_model = Some(name.clone()),
                other => return Err(bad("base_model_name_or_path", "a text or null", Some(other))),
            },
            "bias" => {
                if value.as_str().is_none_or(|bias| bias != "none") {
                    return unsupported(option, value, "\"none\"");
                }
            }
            "init_lora_weights" => {
                let is_supported = match value {
                    Value::Null | Value::Bool(_) => true,
                    Value::String(name) => INITIALIZATIONS.contains(&name.as_str()),
                    _ => false,
                };
                if !is_supported {
                    let supported = "true, false, \"gaussian\", \"orthogonal\" and \"eva\", which keep the model's weights";
                    return unsupported(option, value, supported);
                }
            }
            other if IGNORED.contains(&other) || is_off(value) => {}
            _ => return unsupported(option, value, "null, false or an empty list"),
        }
    }
    if !has_type {
        return Err(bad("peft_type", "\"LORA\"", None));
    }
    if !has_rank {
        return Err(bad("r", "a whole number from 1 to 1048576", rank));
    }
    if !has_alpha {
        return Err(bad("lora_alpha", "a number", None));
    }
    Ok(options)
}

/// Returns the configuration that PEFT reads. `names` selects the adapted layers.
pub(crate) fn text(options: &Lora, names: &[String]) -> String {
    let alpha = options.alpha;
    // PEFT's type is an integer.
    let is_whole = alpha.fract() == 0.0 && alpha.abs() < 1e9;
    let alpha = if is_whole { json!(alpha as i64) } else { json!(alpha) };
    let config = json!({
        "base_model_name_or_path": options.base_model,
        "bias": "none",
        "fan_in_fan_out": false,
        "inference_mode": true,
        "init_lora_weights": true,
        "lora_alpha": alpha,
        "lora_dropout": options.dropout,
        "modules_to_save": null,
        "peft_type": "LORA",
        "r": options.rank,
        "target_modules": names,
        "task_type": null,
        "use_dora": false,
        "use_rslora": options.rslora,
    });
    format!("{config:#}\n")
}

/// Whether a value switches an option off.
fn is_off(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(value) => !value,
        Value::Array(items) => items.is_empty(),
        Value::Object(items) => items.is_empty(),
        Value::Number(_) | Value::String(_) => false,
    }
}

/// Returns the beginning of a value for an error.
fn shown(value: &Value) -> String {
    let text = value.to_string();
    let mut characters = text.chars();
    let beginning: String = characters.by_ref().take(SHOWN).collect();
    if characters.next().is_some() { format!("{beginning}…") } else { beginning }
}
