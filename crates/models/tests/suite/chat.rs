//! Chat templates.

use std::{fs, slice};

use highwater_models::{ChatTemplate, Message, TextError};

/// The template of SmolLM2-Instruct.
const SMOLLM2: &str = "{% for message in messages %}{% if loop.first and messages[0]['role'] != 'system' %}{{ \
    '<|im_start|>system\\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\\n' \
    }}{% endif %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + '<|im_end|>' + '\\n'}}{% endfor %}{% \
    if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

const SYSTEM: &str =
    "<|im_start|>system\nYou are a helpful AI assistant named SmolLM, trained by Hugging Face<|im_end|>\n";

#[test]
fn smollm2_renders_conversations() {
    let template = ChatTemplate::new(SMOLLM2).unwrap();
    let question = Message::user("What is <b>2 & 2</b>?\n");
    let asked = "<|im_start|>user\nWhat is <b>2 & 2</b>?\n<|im_end|>\n";
    let rendered = template.render(slice::from_ref(&question), true).unwrap();
    assert_eq!(rendered, format!("{SYSTEM}{asked}<|im_start|>assistant\n"));
    let rendered = template.render(&[question.clone(), Message::assistant("4")], false).unwrap();
    assert_eq!(rendered, format!("{SYSTEM}{asked}<|im_start|>assistant\n4<|im_end|>\n"));
    let rendered = template.render(&[Message::system("Be brief."), question], true).unwrap();
    assert_eq!(rendered, format!("<|im_start|>system\nBe brief.<|im_end|>\n{asked}<|im_start|>assistant\n"));
    assert_eq!(template.render(&[], false).unwrap(), "");
}

/// Templates of other models use methods of Python, `raise_exception`, and blocks on lines of their own.
#[test]
fn other_templates_render() {
    let source = "{{ bos_token }}
{%- for message in messages %}
    {%- if (message['role'] == 'user') != (loop.index0 % 2 == 0) %}
        {{ raise_exception('Roles must alternate') }}
    {%- endif %}
    {%- set content = message.content.strip() %}
    {%- if content.startswith('<think>') %}{% set content = content.split('</think>')[-1].lstrip('\\n') %}{% endif %}
    {{- '[' + message['role'].upper() + '] ' + content + eos_token }}
{%- endfor %}
{% if add_generation_prompt is defined and add_generation_prompt %}
[ASSISTANT]
{% endif %}
{{ messages[0].role | tojson }}{% for key, value in {'b': 1}.items() %}{{ key }}{{ value }}{% endfor %}
";
    let template = ChatTemplate::new(source).unwrap().with_tokens("<s>", "</s>");
    let messages = [Message::user("  Hi "), Message::assistant("<think>…</think>\nHello")];
    let rendered = template.render(&messages, true).unwrap();
    assert_eq!(rendered, "<s>[USER] Hi</s>[ASSISTANT] Hello</s>[ASSISTANT]\n\"user\"b1");
    let error = template.render(&messages[1..], true).unwrap_err();
    let TextError::Template { line: 4, message } = &error else { panic!("{error}") };
    assert!(message.ends_with("Roles must alternate"), "{error}");
}

#[test]
fn configurations_name_templates_and_tokens() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("tokenizer_config.json");
    let render = |json: &str| {
        fs::write(&path, json).unwrap();
        ChatTemplate::from_config(&path).and_then(|template| template.render(&[Message::user("x")], false))
    };
    let one = r#"{"bos_token": "<s>", "eos_token": {"content": "</s>", "lstrip": false},
        "chat_template": "{{ bos_token }}{{ messages[0].content }}{{ eos_token }}"}"#;
    assert_eq!(render(one).unwrap(), "<s>x</s>");
    let several = r#"{"bos_token": null, "chat_template": [{"name": "tool_use", "template": "tools"},
        {"name": "default", "template": "{{ bos_token }}plain"}]}"#;
    assert_eq!(render(several).unwrap(), "plain");
    for json in ["{}", "[]", r#"{"chat_template": []}"#, r#"{"chat_template": 3}"#] {
        assert_eq!(render(json), Err(TextError::NoTemplate { path: path.clone() }));
    }
    assert!(matches!(render("{"), Err(TextError::Malformed { .. })));
    fs::remove_file(&path).unwrap();
    assert!(matches!(ChatTemplate::from_config(&path), Err(TextError::Io { .. })));
}

#[test]
fn invalid_templates_name_the_line() {
    let error = ChatTemplate::new("a\n{% if %}").unwrap_err();
    assert!(matches!(error, TextError::Template { line: 2, .. }), "{error}");
    assert!(matches!(ChatTemplate::new(&" ".repeat(2 << 20)), Err(TextError::TooLarge { .. })));
    assert!(
        ChatTemplate::new("{{ messages[0].content.no_method() }}")
            .unwrap()
            .render(&[Message::user("")], true)
            .is_err()
    );
}

#[test]
fn hostile_templates_run_out_of_fuel() {
    let nested = "{% for a in range(100000) %}".repeat(5) + &"{% endfor %}".repeat(5);
    let growing = "{% set ns = namespace(x='aaaaaaaa') %}{% for a in range(100) %}{% set ns.x = ns.x ~ ns.x %}{% endfor %}";
    let recursive = "{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}";
    let method =
        "{% set x = 'a' * 100000 %}{% for a in range(100000) %}{% set y = x.split('a') %}{% endfor %}";
    for source in [
        &nested,
        growing,
        recursive,
        method,
        "{{ 'a' * 100000000000 }}",
        "{{ 'a' * 9000000000 * 9000000000 }}",
    ] {
        let error = ChatTemplate::new(source).and_then(|template| template.render(&[], true)).unwrap_err();
        assert!(matches!(error, TextError::Template { .. }), "{error}");
    }
}
