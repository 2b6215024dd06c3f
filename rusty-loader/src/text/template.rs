//! Chat templates: Jinja as Hugging Face checkpoints write it, rendered by minijinja.
//!
//! The environment is transformers': blocks are trimmed, `raise_exception`, `strftime_now` and loop controls
//! exist, `tojson` prints like Python's `json.dumps(ensure_ascii=False)`, strings have Python's methods.
//!
//! Templates come with models and are not trusted; `template_limits` bounds what they may use.

use super::python_syntax;
use super::template_limits::{self, Bounded};
use crate::{Error, Result};
use minijinja::syntax::SyntaxConfig;
use minijinja::{Environment, ErrorKind, Value, context};
use serde::Serialize;
use std::fmt::Write;
use std::path::PathBuf;

/// A compiled chat template.
pub struct ChatTemplate {
    environment: Environment<'static>,
    path: PathBuf,
}

/// What a template is rendered with.
#[derive(Clone, Debug, Default)]
pub struct Render {
    /// `[{"role": .., "content": ..}, ..]`, further fields as the template expects.
    pub messages: serde_json::Value,
    /// Tool descriptions; null: none.
    pub tools: serde_json::Value,
    /// Whether the text ends where the assistant's answer begins.
    pub add_generation_prompt: bool,
    /// The begin token's text.
    pub bos_token: String,
    /// The end token's text.
    pub eos_token: String,
    /// Further variables (`enable_thinking`, ...).
    pub extra: serde_json::Map<String, serde_json::Value>,
}

impl ChatTemplate {
    /// Compiles a template's source; `label` names its file in errors.
    ///
    /// # Errors
    /// The source is not valid Jinja.
    pub fn new(label: &str, source: &str) -> Result<Self> {
        let mut environment = Environment::new();
        let syntax = SyntaxConfig::builder()
            .trim_blocks(true)
            .lstrip_blocks(true)
            .build();
        environment
            .set_syntax(syntax.map_err(|e| Error::malformed(label.as_ref(), e.to_string()))?);
        template_limits::set(&mut environment);
        environment.add_function(
            "raise_exception",
            |message: String| -> Result<Value, minijinja::Error> {
                Err(minijinja::Error::new(ErrorKind::InvalidOperation, message))
            },
        );
        environment.add_function("strftime_now", strftime_now);
        environment.add_filter("tojson", tojson);
        let path = PathBuf::from(label);
        let plain = python_syntax::in_plain_jinja(source)
            .map_err(|e| Error::malformed(&path, format!("chat template: {e}")))?;
        environment
            .add_template_owned("chat", plain)
            .map_err(|e| Error::Malformed {
                path: path.clone(),
                reason: format!("chat template: {e}"),
            })?;
        Ok(Self { environment, path })
    }

    /// The text of a conversation.
    ///
    /// # Errors
    /// The template raised an exception (its words are in the message) or failed otherwise.
    pub fn render(&self, input: &Render) -> Result<String> {
        let template = self
            .environment
            .get_template("chat")
            .map_err(|e| self.failed(&e))?;
        let base = context! {
            messages => template_value(&input.messages),
            tools => template_value(&input.tools),
            add_generation_prompt => input.add_generation_prompt,
            bos_token => input.bos_token.as_str(),
            eos_token => input.eos_token.as_str(),
        };
        let extra = Value::from_pairs(
            input
                .extra
                .iter()
                .map(|(k, v)| (k.clone(), template_value(v))),
        );
        let mut text = Bounded::default();
        template
            .render_captured_to(context! { ..extra, ..base }, &mut text)
            .map_err(|e| self.failed(&e))?;
        String::from_utf8(text.into_bytes()).map_err(|e| Error::Malformed {
            path: self.path.clone(),
            reason: format!("chat template: {e}"),
        })
    }

    fn failed(&self, error: &minijinja::Error) -> Error {
        let mut reason = format!("chat template: {error}");
        let mut source = std::error::Error::source(error);
        while let Some(cause) = source {
            reason.push_str(&format!(": {cause}"));
            source = cause.source();
        }
        Error::Malformed {
            path: self.path.clone(),
            reason,
        }
    }
}

/// JSON as a template's value. Not through serde: with serde_json's `arbitrary_precision`, which any crate of a
/// program may turn on, numbers would arrive as maps.
fn template_value(json: &serde_json::Value) -> Value {
    match json {
        serde_json::Value::Null => Value::from(()),
        serde_json::Value::Bool(b) => Value::from(*b),
        serde_json::Value::Number(n) => match (n.as_i64(), n.as_u64(), n.as_f64()) {
            (Some(n), _, _) => Value::from(n),
            (_, Some(n), _) => Value::from(n),
            (_, _, n) => Value::from(n),
        },
        serde_json::Value::String(s) => Value::from(s.as_str()),
        serde_json::Value::Array(items) => items.iter().map(template_value).collect(),
        serde_json::Value::Object(fields) => {
            Value::from_pairs(fields.iter().map(|(k, v)| (k.clone(), template_value(v))))
        }
    }
}

/// The time by Python's `strftime` codes.
fn strftime_now(format: String) -> Result<String, minijinja::Error> {
    let mut text = String::new();
    write!(text, "{}", chrono::Local::now().format(&format)).map_err(|_| {
        let reason = format!("strftime_now: '{format}' is no format of a time");
        minijinja::Error::new(ErrorKind::InvalidOperation, reason)
    })?;
    Ok(text)
}

/// JSON as Python's `json.dumps(value, ensure_ascii=False, indent=indent)` writes it.
fn tojson(value: Value, options: minijinja::value::Kwargs) -> Result<String, minijinja::Error> {
    let indent: Option<usize> = options.get("indent")?;
    for ignored in ["ensure_ascii", "sort_keys", "separators"] {
        let _: Option<Value> = options.get(ignored)?;
    }
    options.assert_all_used()?;
    let mut bytes = Bounded::default();
    let failed =
        |e: serde_json::Error| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string());
    match indent {
        Some(width) => {
            let spaces = vec![b' '; template_limits::length(width)?];
            let formatter = serde_json::ser::PrettyFormatter::with_indent(&spaces);
            let mut serializer = serde_json::Serializer::with_formatter(&mut bytes, formatter);
            value.serialize(&mut serializer).map_err(failed)?;
        }
        None => {
            let mut serializer =
                serde_json::Serializer::with_formatter(&mut bytes, PythonFormatter);
            value.serialize(&mut serializer).map_err(failed)?;
        }
    }
    String::from_utf8(bytes.into_bytes())
        .map_err(|e| minijinja::Error::new(ErrorKind::BadSerialization, e.to_string()))
}

/// One line with a space behind commas and colons.
struct PythonFormatter;

impl serde_json::ser::Formatter for PythonFormatter {
    fn begin_array_value<W: ?Sized + std::io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_key<W: ?Sized + std::io::Write>(
        &mut self,
        w: &mut W,
        first: bool,
    ) -> std::io::Result<()> {
        if first { Ok(()) } else { w.write_all(b", ") }
    }

    fn begin_object_value<W: ?Sized + std::io::Write>(&mut self, w: &mut W) -> std::io::Result<()> {
        w.write_all(b": ")
    }
}
