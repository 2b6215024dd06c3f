//! What a chat template may use: instructions, depth, length of its text and of what a number can ask for.
//!
//! Bounded elsewhere: ranges, repeated strings and lists, nested blocks (minijinja), the length of expressions
//! (`python_syntax`). Not bounded is
//! what a template builds step by step: one that doubles a string, or nests a list, in a loop can use up memory
//! or the stack.

use minijinja::value::{Kwargs, Rest, ValueKind};
use minijinja::{Environment, Error, ErrorKind, State, Value, filters};
use minijinja_contrib::pycompat;

/// Instructions that one rendering may execute; a conversation takes a few hundred per message.
const MAX_INSTRUCTIONS: u64 = 10_000_000;
/// Macros within macros count ten each; what is left of a thread's stack must do for them.
const MAX_RECURSION: usize = 200;
/// Bytes that one rendering may give.
const MAX_TEXT: usize = 64 << 20;
/// Characters of padding, and items of a batch.
const MAX_WIDTH: usize = 10_000;

/// Bounds what templates of an environment may use.
pub(super) fn set(environment: &mut Environment<'_>) {
    environment.set_fuel(Some(MAX_INSTRUCTIONS));
    environment.set_recursion_limit(MAX_RECURSION);
    environment.set_unknown_method_callback(|state, value, method, args| {
        if method == "format" && value.kind() == ValueKind::String {
            widths(value, args)?;
        }
        pycompat::unknown_method_callback(state, value, method, args)
    });
    let format = Value::from_function(filters::format);
    environment.add_filter(
        "format",
        move |state: &mut State, args: Rest<Value>, named: Kwargs| {
            let args = joined(args, named)?;
            if let Some((text, shown)) = args.split_first() {
                widths(text, shown)?;
            }
            format.call(state, &args)
        },
    );
    for (name, filter) in [
        ("indent", Value::from_function(filters::indent)),
        ("batch", Value::from_function(filters::batch)),
        ("slice", Value::from_function(filters::slice)),
    ] {
        environment.add_filter(
            name,
            move |state: &mut State, args: Rest<Value>, named: Kwargs| {
                let args = joined(args, named)?;
                args.iter().skip(1).try_for_each(number)?;
                filter.call(state, &args)
            },
        );
    }
}

/// A filter's arguments as one list, as calls take them: those given by name are its last item.
fn joined(args: Rest<Value>, named: Kwargs) -> Result<Vec<Value>, Error> {
    let mut all = args.0;
    let pairs: Result<Vec<(String, Value)>, Error> = named
        .args()
        .map(|name| Ok((name.to_string(), named.get(name)?)))
        .collect();
    let pairs = pairs?;
    if !pairs.is_empty() {
        all.push(Kwargs::from_iter(pairs).into());
    }
    Ok(all)
}

/// A length that a template asks for, where it is not absurd.
pub(super) fn length(asked: usize) -> Result<usize, Error> {
    let absurd = || {
        let reason = format!("a width of {asked} is more than {MAX_WIDTH}");
        Error::new(ErrorKind::InvalidOperation, reason)
    };
    (asked <= MAX_WIDTH).then_some(asked).ok_or_else(absurd)
}

/// Numbers among a filter's arguments (those given by name come as one map) are lengths.
fn number(argument: &Value) -> Result<(), Error> {
    if argument.is_kwargs() {
        let mut names = argument.try_iter()?;
        return names.try_for_each(|name| number(&argument.get_item(&name)?));
    }
    match argument.as_usize() {
        Some(asked) => length(asked).map(drop),
        None => Ok(()),
    }
}

/// Widths in a format, and among the arguments where it takes them from there.
fn widths(format: &Value, args: &[Value]) -> Result<(), Error> {
    let text = format.as_str().unwrap_or_default();
    for digits in text.split(|c: char| !c.is_ascii_digit()) {
        if !digits.is_empty() {
            length(digits.parse().unwrap_or(usize::MAX))?;
        }
    }
    // Such a format shows some numbers and obeys others; which is not told apart here.
    match text.contains('*') || nested_fields(text) {
        true => args.iter().try_for_each(number),
        false => Ok(()),
    }
}

/// Whether a field of `str.format` holds another.
fn nested_fields(text: &str) -> bool {
    let mut depth = 0usize;
    text.bytes().any(|b| {
        match b {
            b'{' => depth += 1,
            b'}' => depth = depth.saturating_sub(1),
            _ => {}
        }
        depth > 1
    })
}

/// Text of at most [`MAX_TEXT`] bytes.
#[derive(Default)]
pub(super) struct Bounded(Vec<u8>);

impl Bounded {
    pub fn into_bytes(self) -> Vec<u8> {
        self.0
    }
}

impl std::io::Write for Bounded {
    fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
        if self.0.len() + bytes.len() > MAX_TEXT {
            let reason = format!("the text is longer than {MAX_TEXT} bytes");
            return Err(std::io::Error::other(reason));
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> std::io::Result<()> {
        Ok(())
    }
}
