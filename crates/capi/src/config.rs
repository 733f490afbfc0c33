//! The configuration of a pool, from a line of text or from JSON.
//!
//! ```text
//! bfc:memory=host,limit=2GiB,name=cpu
//! {"allocator": "bfc", "memory": "host", "limit": "2GiB", "name": "cpu"}
//! ```
//!
//! Both forms set the same options: `memory`, `name`, and those of [`PoolOptions::set`]. The text may begin with the
//! allocator and a colon.

use bfc_core::setting::ALLOC_CONF;
use bfc_core::{OptionError, PoolOptions};

use crate::error::ConfigurationError;

/// The longest name of a pool, in characters.
const MAX_POOL_NAME: usize = 64;

/// The memory of a pool.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum Memory {
    /// Memory of the system.
    #[default]
    Host,
    /// Addresses without memory.
    Dry,
    /// Memory of a CUDA device.
    Cuda(u32),
    /// Page-locked host memory of a CUDA device.
    Pinned(u32),
}

/// The configuration of a pool.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(crate) struct PoolSpec {
    pub(crate) memory: Memory,
    pub(crate) name: Option<String>,
    pub(crate) options: PoolOptions,
}

impl PoolSpec {
    /// Parses a line of text, or JSON if the text begins with a brace.
    pub(crate) fn parse(text: &str) -> Result<Self, ConfigurationError> {
        let text = text.trim();
        if text.starts_with('{') { Self::from_json(text) } else { Self::from_line(text) }
    }

    fn from_line(text: &str) -> Result<Self, ConfigurationError> {
        let mut reader = Reader::default();
        // A colon after a `=` belongs to a value.
        let (allocator, rest) = match text.split_once(':') {
            Some((allocator, rest)) if !allocator.contains('=') => (allocator, rest),
            _ if text.contains('=') => ("", text),
            _ => (text, ""),
        };
        if !allocator.is_empty() {
            reader.set("allocator", allocator)?;
        }
        let mut parts = rest.split(',').map(str::trim).filter(|part| !part.is_empty()).peekable();
        while let Some(part) = parts.next() {
            let not_a_pair = || ConfigurationError::NotAPair { part: start(part) };
            let (name, value) = part.split_once('=').ok_or_else(not_a_pair)?;
            let (name, mut value) = (name.trim(), value.trim().to_owned());
            // Settings of PyTorch's allocator have commas of their own, and no `=`.
            let is_of_value = |part: &&str| name == ALLOC_CONF.name && !part.contains('=');
            while let Some(more) = parts.next_if(is_of_value) {
                value = format!("{value},{more}");
            }
            reader.set(name, &value)?;
        }
        Ok(reader.spec)
    }

    fn from_json(text: &str) -> Result<Self, ConfigurationError> {
        let fields: serde_json::Map<String, serde_json::Value> = serde_json::from_str(text)?;
        let mut reader = Reader::default();
        for (name, value) in fields {
            let value = match value {
                serde_json::Value::String(text) => text,
                serde_json::Value::Number(number) => number.to_string(),
                serde_json::Value::Bool(on) => on.to_string(),
                _ => return Err(ConfigurationError::JsonValue { name: start(&name) }),
            };
            reader.set(&name, &value)?;
        }
        Ok(reader.spec)
    }
}

/// Collects the options, each at most once.
#[derive(Debug, Default)]
struct Reader {
    spec: PoolSpec,
    seen: Vec<String>,
}

impl Reader {
    fn set(&mut self, name: &str, value: &str) -> Result<(), ConfigurationError> {
        match name {
            "memory" => self.spec.memory = memory(value)?,
            "name" => self.spec.name = Some(pool_name(value)?),
            _ => self.spec.options.set(name, value).map_err(|error| match error {
                // A configuration has two options more than a pool.
                OptionError::Unknown { name } => ConfigurationError::Unknown { name },
                error => error.into(),
            })?,
        }
        if self.seen.iter().any(|seen| seen == name) {
            return Err(ConfigurationError::Twice { name: start(name) });
        }
        self.seen.push(name.to_owned());
        Ok(())
    }
}

fn memory(value: &str) -> Result<Memory, ConfigurationError> {
    let (kind, ordinal) = value.split_once(':').unwrap_or((value, "0"));
    let digits = ordinal.bytes().all(|byte| byte.is_ascii_digit());
    let ordinal = if digits { ordinal.parse().ok() } else { None };
    match (kind, ordinal) {
        ("host", Some(0)) => Ok(Memory::Host),
        ("dry", Some(0)) => Ok(Memory::Dry),
        ("cuda", Some(ordinal)) => Ok(Memory::Cuda(ordinal)),
        ("pinned", Some(ordinal)) => Ok(Memory::Pinned(ordinal)),
        _ => Err(ConfigurationError::Memory { value: start(value) }),
    }
}

fn pool_name(value: &str) -> Result<String, ConfigurationError> {
    let length = value.chars().count();
    if (1..=MAX_POOL_NAME).contains(&length) && !value.chars().any(char::is_control) {
        Ok(value.to_owned())
    } else {
        Err(ConfigurationError::Name { limit: MAX_POOL_NAME })
    }
}

/// Returns the start of a text of any length, for messages.
fn start(text: &str) -> String {
    text.chars().take(64).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use bfc_core::{AllocatorChoice, Bytes};

    #[test]
    fn a_line_and_json_set_the_same_options() {
        let line = PoolSpec::parse("guard:memory=host, limit=2GiB,name=cpu,retry_ms=0").unwrap();
        let json =
            r#"{"allocator": "guard", "memory": "host", "limit": 2147483648, "name": "cpu", "retry_ms": 0}"#;
        assert_eq!(line, PoolSpec::parse(json).unwrap());
        assert_eq!(line.options.allocator, Some(AllocatorChoice::Guard));
        assert_eq!(line.options.limit, Some(Bytes::gib(2).into()));
        assert_eq!(line.name.as_deref(), Some("cpu"));
        assert_eq!(PoolSpec::parse(r#"{"growth": true}"#).unwrap().options.allow_growth, Some(true));
    }

    #[test]
    fn the_allocator_and_all_options_may_be_left_out() {
        for text in ["", " ", "{}"] {
            assert_eq!(PoolSpec::parse(text).unwrap(), PoolSpec::default(), "{text:?}");
        }
        assert_eq!(PoolSpec::parse("buddy").unwrap().options.allocator, Some(AllocatorChoice::Buddy));
        for text in ["memory=cuda:1", "bfc:memory=cuda:1"] {
            assert_eq!(PoolSpec::parse(text).unwrap().memory, Memory::Cuda(1));
        }
    }

    #[test]
    fn settings_of_pytorch_have_commas() {
        let settings = "expandable_segments:True,roundup_power2_divisions:[256:1,>:4],max_split_size_mb:64";
        let spec = PoolSpec::parse(&format!("pytorch:memory=dry,alloc_conf={settings},limit=1GiB")).unwrap();
        let json = format!(
            "{{\"allocator\": \"pytorch\", \"memory\": \"dry\", \"alloc_conf\": \"{settings}\", \"limit\": \"1GiB\"}}"
        );
        assert_eq!(spec, PoolSpec::parse(&json).unwrap());
        assert_eq!(spec.options.alloc_conf, Some(settings.parse().unwrap()));
        let error =
            PoolSpec::parse("pytorch:alloc_conf=expandable_segments:True,max_split_size:64").unwrap_err();
        assert!(error.to_string().contains("did you mean max_split_size_mb?"), "{error}");
        assert!(PoolSpec::parse("limit=1,max_split_size_mb:64").is_err());
    }

    #[test]
    fn a_bad_configuration_is_refused_with_what_is_wrong() {
        let long = format!("name={}", "x".repeat(65));
        for (text, expected) in [
            ("slab", "is not valid: expected one of bfc,"),
            ("bfc:limit", "\"limit\" is not NAME=VALUE"),
            (
                "limt=1",
                "there is no pool option \"limt\" (did you mean limit?); the options are allocator, alloc_conf, limit,",
            ),
            ("limt=1", "thread_cache, memory, name"),
            ("{\"memroy\": \"host\"}", "no pool option \"memroy\" (did you mean memory?)"),
            ("gaurd", "\"gaurd\" is not valid: expected one of bfc,"),
            ("gaurd", "passthrough (did you mean guard?)"),
            ("growth=doublin", "(did you mean doubling?)"),
            ("limit=much", "\"much\" is not valid"),
            ("memory=gpu", "\"gpu\" is no memory: expected host"),
            ("memory=hots", "\"hots\" is no memory (did you mean host?): expected host"),
            ("memory=cuda:-1", "\"cuda:-1\" is no memory"),
            ("memory=host:1", "\"host:1\" is no memory"),
            ("limit=1,limit=2", "limit is set twice"),
            ("name=", "1 to 64 characters"),
            (&long, "1 to 64 characters"),
            ("{\"limit\": [1]}", "the value of limit must be text"),
            ("{\"limit\": 1", "EOF"),
        ] {
            let error = PoolSpec::parse(text).unwrap_err().to_string();
            assert!(error.contains(expected), "{text}: {error}");
        }
    }
}
