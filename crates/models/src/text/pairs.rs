//! Prompts with answers as tokens, of which the answers are targets.

use highwater_nn::data::{ChatTurn, MaskedTokens, PairText};

use super::chat::{ChatTemplate, Message, Role};
use super::error::TextError;
use super::tokenizer::{SpecialTokens, Tokenizer};

/// Encodes prompts with answers for [`Pairs`](highwater_nn::data::Pairs).
///
/// Without a template, the tokens are those of the prompt, of the answer, and the end token. With a template, a prompt is the
/// message of a user, and an answer that of the assistant. All messages of the assistant are targets, up to the token that
/// ends them. Prompts have the tokens that [`generate`](mod@crate::generate) gets.
///
/// ```
/// use highwater::data::{PairOptions, Pairs};
/// use highwater_models::{ChatTemplate, PairEncoder, Tokenizer};
/// # let json = r#"{"version": "1.0", "added_tokens": [{"id": 5, "special": true, "content": "<end>", "single_word": false,
/// #   "lstrip": false, "rstrip": false, "normalized": false}], "pre_tokenizer": {"type": "Whitespace"}, "model":
/// #   {"type": "WordLevel", "unk_token": "?", "vocab": {"?": 0, "2": 1, "and": 2, "4": 3, "bot": 4, "<end>": 5}}}"#;
/// # let tokenizer = Tokenizer::from_json(json.as_bytes())?;
/// let template = ChatTemplate::new(
///     "{% for message in messages %}{{ 'bot ' if message.role == 'assistant' }}{{ message.content }}<end>\n{% endfor %}\
///      {{ 'bot ' if add_generation_prompt }}",
/// )?;
/// let encoder = PairEncoder::new(&tokenizer).with_template(&template);
/// let lines = r#"{"messages": [{"role": "user", "content": "2 and 2"}, {"role": "assistant", "content": "4"}]}"#;
/// let pairs = Pairs::read_from(lines.as_bytes(), "chat.jsonl", &PairOptions::default(), |pair| encoder.encode(pair))?;
/// let sample = pairs.sample(0).unwrap();
/// assert_eq!(sample.tokens(), [1, 2, 1, 5, 4, /* answer */ 3, 5]);
/// assert_eq!(sample.is_target(), [false, false, false, false, false, true, true]);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// Special tokens in the text become these tokens, as in [`Tokenizer`].
#[derive(Clone, Copy, Debug)]
pub struct PairEncoder<'a> {
    tokenizer: &'a Tokenizer,
    template: Option<&'a ChatTemplate>,
    end: Option<u32>,
}

impl<'a> PairEncoder<'a> {
    /// Creates an encoder of plain text, whose end token is [`Tokenizer::eos`].
    #[must_use]
    pub fn new(tokenizer: &'a Tokenizer) -> Self {
        Self { tokenizer, template: None, end: tokenizer.eos() }
    }

    /// Returns the encoder with a chat template, which also ends the answers.
    #[must_use]
    pub fn with_template(self, template: impl Into<Option<&'a ChatTemplate>>) -> Self {
        Self { template: template.into(), ..self }
    }

    /// Returns the encoder with the token that ends an answer of plain text; `None` for no such token.
    #[must_use]
    pub fn with_end(self, token: impl Into<Option<u32>>) -> Self {
        Self { end: token.into(), ..self }
    }

    /// Encodes a sample.
    ///
    /// # Errors
    /// [`TextError::BadPair`] for a conversation without a template or with another role than `system`, `user` and
    /// `assistant`, and for a template that changes the text before an answer once the answer is there; errors of the template
    /// and of the tokenizer.
    pub fn encode(&self, pair: &PairText) -> Result<MaskedTokens, TextError> {
        match (pair, self.template) {
            (PairText::Completion { prompt, answer }, None) => self.plain(prompt, answer),
            (PairText::Completion { prompt, answer }, Some(template)) => {
                self.chat(template, &[Message::user(prompt), Message::assistant(answer)])
            }
            (PairText::Chat(turns), Some(template)) => {
                self.chat(template, &turns.iter().map(message).collect::<Result<Vec<_>, _>>()?)
            }
            (PairText::Chat(_), None) => {
                Err(bad("messages need a chat template, and the model has none".to_owned()))
            }
        }
    }

    fn plain(&self, prompt: &str, answer: &str) -> Result<MaskedTokens, TextError> {
        let prompt = self.tokenizer.encode(prompt, SpecialTokens::Include, None)?;
        let mut answer = self.tokenizer.encode(answer, SpecialTokens::Omit, None)?;
        answer.extend(self.end);
        Ok(MaskedTokens::default().with_context(&prompt).with_answer(&answer))
    }

    fn chat(&self, template: &ChatTemplate, messages: &[Message]) -> Result<MaskedTokens, TextError> {
        let tokens = |text: &str| self.tokenizer.encode(text, SpecialTokens::Omit, None);
        let (mut sample, mut done) = (MaskedTokens::default(), String::new());
        let answers = messages.iter().enumerate().filter(|(_, message)| message.role == Role::Assistant);
        for (number, _) in answers {
            let before = template.render(&messages[..number], true)?;
            let with_answer = template.render(&messages[..=number], false)?;
            let context = before.strip_prefix(&done).ok_or_else(|| changed(number))?;
            let answer = with_answer.strip_prefix(&before).ok_or_else(|| changed(number))?;
            let (context, answer) = (tokens(context)?, tokens(answer)?);
            // After the token that ends an answer, templates add a line end, which no model has to write.
            let is_special = |token: &u32| self.tokenizer.check_token(*token).is_ok_and(|special| special);
            let end = answer.iter().rposition(is_special).map_or(answer.len(), |last| last + 1);
            sample = sample.with_context(&context).with_answer(&answer[..end]).with_context(&answer[end..]);
            done = with_answer;
        }
        Ok(sample)
    }
}

fn message(turn: &ChatTurn) -> Result<Message, TextError> {
    let role = Role::named(&turn.role).ok_or_else(|| {
        let role: String = turn.role.chars().take(40).collect();
        bad(format!("the role {role:?} is not supported; supported: system, user, assistant"))
    })?;
    Ok(Message::new(role, turn.content.as_str()))
}

fn changed(message: usize) -> TextError {
    let number = message + 1;
    bad(format!(
        "message {number}: the chat template changes the text before an answer when the answer is added"
    ))
}

fn bad(problem: String) -> TextError {
    TextError::BadPair { problem }
}
