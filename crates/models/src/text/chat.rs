//! Chat templates.

use std::fmt;
use std::path::Path;
use std::slice;

use minijinja::syntax::SyntaxConfig;
use minijinja::value::ValueKind;
use minijinja::{AutoEscape, Environment, ErrorKind, State, Value, context};

use super::error::TextError;
use super::file;

/// Maximum size of a `tokenizer_config.json`. Files with many added tokens have a few megabytes.
const MAX_FILE_BYTES: u64 = 16 << 20;

/// Maximum length of a template, in bytes. The longest ones in use have 20 kB.
const MAX_TEMPLATE: usize = 1 << 20;

/// The budget of a template: about this many instructions, or 64 bytes of text each.
const FUEL: u64 = 1 << 20;

/// The name of the template in its environment.
const NAME: &str = "chat_template";

/// The author of a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[non_exhaustive]
pub enum Role {
    /// Instructions for the model.
    System,
    /// A question or a task.
    User,
    /// An answer of the model.
    Assistant,
}

impl Role {
    /// Returns the role with this name; `None` for another name.
    #[must_use]
    pub fn named(name: &str) -> Option<Self> {
        [Self::System, Self::User, Self::Assistant].into_iter().find(|role| role.name() == name)
    }

    /// Returns the name in templates: `system`, `user` or `assistant`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Self::System => "system",
            Self::User => "user",
            Self::Assistant => "assistant",
        }
    }
}

/// A message of a conversation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    /// The author.
    pub role: Role,
    /// The text.
    pub content: String,
}

impl Message {
    /// Returns a message.
    #[must_use]
    pub fn new(role: Role, content: impl Into<String>) -> Self {
        Self { role, content: content.into() }
    }

    /// Returns instructions for the model.
    #[must_use]
    pub fn system(content: impl Into<String>) -> Self {
        Self::new(Role::System, content)
    }

    /// Returns a question or a task.
    #[must_use]
    pub fn user(content: impl Into<String>) -> Self {
        Self::new(Role::User, content)
    }

    /// Returns an answer of the model.
    #[must_use]
    pub fn assistant(content: impl Into<String>) -> Self {
        Self::new(Role::Assistant, content)
    }
}

/// The rule by which an instruction-tuned model expects a conversation as text: a Jinja template of a GGUF file or of a
/// `tokenizer_config.json`. Templates run with a limit on work and memory.
///
/// ```
/// use highwater_models::{ChatTemplate, Message};
/// let template = ChatTemplate::new(
///     "{% for message in messages %}<|{{ message.role }}|>{{ message.content | trim }}\n{% endfor %}\
///      {% if add_generation_prompt %}<|assistant|>{% endif %}",
/// )?;
/// let messages = [Message::system("Be brief."), Message::user(" Why is the sky blue? ")];
/// let text = template.render(&messages, true)?;
/// assert_eq!(text, "<|system|>Be brief.\n<|user|>Why is the sky blue?\n<|assistant|>");
/// # Ok::<(), highwater_models::TextError>(())
/// ```
///
/// Encode the text with [`SpecialTokens::Omit`](super::SpecialTokens::Omit) if the template writes the special tokens
/// itself, as most do. The messages' contents are not escaped: a special token in a message becomes this token.
pub struct ChatTemplate {
    environment: Environment<'static>,
    bos: String,
    eos: String,
}

impl ChatTemplate {
    /// Compiles a template.
    ///
    /// # Errors
    /// [`TextError::Template`] with the line if the template is invalid; [`TextError::TooLarge`] above 1 MiB.
    pub fn new(source: &str) -> Result<Self, TextError> {
        if source.len() > MAX_TEMPLATE {
            return Err(TextError::TooLarge {
                what: "bytes of chat template",
                found: source.len(),
                limit: MAX_TEMPLATE,
            });
        }
        // The settings of `transformers`.
        let syntax = SyntaxConfig::builder().trim_blocks(true).lstrip_blocks(true).build();
        let mut environment = Environment::new();
        environment.set_syntax(syntax.map_err(|error| template_error(&error))?);
        environment.set_auto_escape_callback(|_| AutoEscape::None);
        environment.set_fuel(Some(FUEL));
        environment.set_unknown_method_callback(python_method);
        environment.add_function("raise_exception", raise_exception);
        let added = environment.add_template_owned(NAME, source.to_owned());
        added.map_err(|error| template_error(&error))?;
        Ok(Self { environment, bos: String::new(), eos: String::new() })
    }

    /// Reads the template of a `tokenizer_config.json` of at most 16 MiB, with its `bos_token` and `eos_token`. Of several
    /// templates, the one named `default` is used.
    ///
    /// # Errors
    /// [`TextError::Io`], [`TextError::TooLong`] and [`TextError::Malformed`] for the file; [`TextError::NoTemplate`]
    /// without a template; as [`new`](Self::new).
    pub fn from_config(path: impl AsRef<Path>) -> Result<Self, TextError> {
        let path = path.as_ref();
        let json = file::read(path, MAX_FILE_BYTES)?;
        let config: serde_json::Value = serde_json::from_slice(&json).map_err(|error| {
            TextError::Malformed { path: path.to_owned(), problem: format!("invalid JSON: {error}") }
        })?;
        let templates = &config["chat_template"];
        let named =
            templates.as_array().and_then(|list| list.iter().find(|entry| entry["name"] == "default"));
        let template = templates.as_str().or_else(|| named?["template"].as_str());
        let template = template.ok_or_else(|| TextError::NoTemplate { path: path.to_owned() })?;
        // A token is a text, or an object with the text and its settings.
        let token = |name: &str| {
            let token = &config[name];
            token.as_str().or_else(|| token["content"].as_str()).unwrap_or_default()
        };
        Ok(Self::new(template)?.with_tokens(token("bos_token"), token("eos_token")))
    }

    /// Returns the template with the texts of `bos_token` and `eos_token`, which are empty otherwise.
    #[must_use]
    pub fn with_tokens(mut self, bos: &str, eos: &str) -> Self {
        (self.bos, self.eos) = (bos.to_owned(), eos.to_owned());
        self
    }

    /// Returns the conversation as text. With `add_generation_prompt`, the text ends where the answer of the model begins.
    ///
    /// # Errors
    /// [`TextError::Template`] if the template fails, rejects the messages (`raise_exception`), or exceeds the limit on
    /// work and memory.
    pub fn render(&self, messages: &[Message], add_generation_prompt: bool) -> Result<String, TextError> {
        let messages: Vec<Value> = messages
            .iter()
            .map(|message| context! { role => message.role.name(), content => message.content.as_str() })
            .collect();
        let variables = context! {
            messages, add_generation_prompt, bos_token => self.bos.as_str(), eos_token => self.eos.as_str(),
        };
        let rendered = self.environment.get_template(NAME).and_then(|template| template.render(variables));
        rendered.map_err(|error| template_error(&error))
    }
}

impl fmt::Debug for ChatTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { bos, eos, .. } = self;
        f.debug_struct("ChatTemplate").field("bos", bos).field("eos", eos).finish_non_exhaustive()
    }
}

fn template_error(error: &minijinja::Error) -> TextError {
    let message = match error.detail() {
        Some(detail) => format!("{}: {detail}", error.kind()),
        None => error.kind().to_string(),
    };
    TextError::Template { line: error.line().unwrap_or(0), message }
}

/// A function of templates: rejects the messages.
fn raise_exception(message: &str) -> Result<Value, minijinja::Error> {
    Err(minijinja::Error::new(ErrorKind::InvalidOperation, message.to_owned()))
}

/// Methods of Python that templates call on strings and maps.
fn python_method(
    state: &mut State<'_, '_>,
    value: &Value,
    method: &str,
    arguments: &[Value],
) -> Result<Value, minijinja::Error> {
    let unknown = || minijinja::Error::from(ErrorKind::UnknownMethod);
    if value.kind() == ValueKind::Map && matches!(method, "items" | "keys") && arguments.is_empty() {
        let filter = if method == "items" { "items" } else { "list" };
        return state.apply_filter(filter, slice::from_ref(value));
    }
    let text = value.as_str().ok_or_else(unknown)?;
    let arguments: Option<Vec<&str>> = arguments.iter().map(Value::as_str).collect();
    let arguments = arguments.ok_or_else(unknown)?;
    let strips = |c: char| arguments.first().map_or(c.is_whitespace(), |set| set.contains(c));
    Ok(match (method, &arguments[..]) {
        ("strip", [] | [_]) => Value::from(text.trim_matches(strips)),
        ("lstrip", [] | [_]) => Value::from(text.trim_start_matches(strips)),
        ("rstrip", [] | [_]) => Value::from(text.trim_end_matches(strips)),
        ("startswith", [prefix]) => Value::from(text.starts_with(prefix)),
        ("endswith", [suffix]) => Value::from(text.ends_with(suffix)),
        ("split", []) => text.split_whitespace().collect(),
        ("split", [separator]) if !separator.is_empty() => text.split(separator).collect(),
        ("upper" | "lower" | "title", []) => return state.apply_filter(method, slice::from_ref(value)),
        ("replace", [from, to]) => {
            return state.apply_filter(method, &[value.clone(), Value::from(*from), Value::from(*to)]);
        }
        _ => return Err(unknown()),
    })
}
