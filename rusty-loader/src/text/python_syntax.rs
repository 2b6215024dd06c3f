//! What Python's Jinja has and minijinja has not, stated in what it has.
//!
//! * `'%s: %d' % (a, b)` becomes `'%s: %d'|format(a, b)`. Only behind a string in quotes: what a variable
//!   holds cannot be seen here, and numbers have a `%` too.
//! * `{% generation %}`, which marks an assistant's text for training masks and prints nothing, becomes
//!   `{% if true %}`.
//!
//! The source is otherwise passed on as it is, comments and raw blocks included.

/// Formats within the operands of formats. What is nested deeper, or longer, is left to fail: nobody writes it,
/// and hostile templates must not cost more than their length.
const MAX_NESTED: usize = 8;
/// Bytes of an operand.
const MAX_OPERAND: usize = 1024;

/// Words and signs in one block or expression, and conditions that follow one another. minijinja parses each
/// within the one before, on the thread's stack.
const MAX_PARTS: usize = 1000;

/// A template's source for minijinja.
///
/// # Errors
/// Says what is more than the parser can take.
pub(super) fn in_plain_jinja(source: &str) -> Result<String, String> {
    let mut conditions = 0;
    let mut text = String::with_capacity(source.len());
    let mut rest = source;
    while let Some(at) = rest.find('{') {
        text.push_str(&rest[..at]);
        rest = &rest[at..];
        let close = match rest.as_bytes().get(1) {
            Some(b'#') => {
                let end = rest.find("#}").map_or(rest.len(), |n| n + 2);
                text.push_str(&rest[..end]);
                rest = &rest[end..];
                continue;
            }
            Some(b'{') => "}}",
            Some(b'%') => "%}",
            _ => {
                text.push('{');
                rest = &rest[1..];
                continue;
            }
        };
        let Some(end) = end_of_code(&rest[2..], close)? else {
            break;
        };
        let code = &rest[2..2 + end];
        text.push_str(&rest[..2]);
        if word(code).starts_with("elif") {
            conditions += 1;
            if conditions > MAX_PARTS / 2 {
                return Err(format!("more than {} elif blocks", MAX_PARTS / 2));
            }
        }
        match word(code) {
            "generation" if close == "%}" => {
                text.push_str(&code.replace("generation", " if true "))
            }
            "endgeneration" if close == "%}" => {
                text.push_str(&code.replace("endgeneration", " endif "));
            }
            _ => formats(code, MAX_NESTED, &mut text),
        }
        text.push_str(close);
        rest = &rest[2 + end + 2..];
        if close == "%}" && word(code) == "raw" {
            let raw = end_of_raw(rest);
            text.push_str(&rest[..raw]);
            rest = &rest[raw..];
        }
    }
    text.push_str(rest);
    Ok(text)
}

/// A block's text without its signs of trimming.
fn word(code: &str) -> &str {
    code.trim_start_matches(['-', '+'])
        .trim_end_matches(['-', '+'])
        .trim()
}

/// Where the code of a block or expression ends: at `close` outside strings.
fn end_of_code(code: &str, close: &str) -> Result<Option<usize>, String> {
    let mut at = space(code);
    for _ in 0..=MAX_PARTS {
        if at >= code.len() {
            return Ok(None);
        }
        if code[at..].starts_with(close) {
            return Ok(Some(at));
        }
        at += token(&code[at..]);
        at += space(&code[at..]);
    }
    Err(format!(
        "a block or expression has more than {MAX_PARTS} parts"
    ))
}

/// Where the tag that ends a raw block begins.
fn end_of_raw(source: &str) -> usize {
    let mut from = 0;
    while let Some(open) = source[from..].find("{%").map(|n| from + n) {
        let end = source[open..].find("%}").map_or(source.len(), |n| open + n);
        if word(&source[(open + 2).min(end)..end]) == "endraw" {
            return open;
        }
        from = open + 2;
    }
    source.len()
}

/// Bytes of the string in quotes, the word or number, or the character that code begins with.
fn token(code: &str) -> usize {
    let mut chars = code.char_indices();
    let Some((_, first)) = chars.next() else {
        return 0;
    };
    if first == '\'' || first == '"' {
        while let Some((at, c)) = chars.next() {
            if c == '\\' {
                chars.next();
            } else if c == first {
                return at + 1;
            }
        }
        return code.len();
    }
    let of_word = |c: char| c.is_alphanumeric() || c == '_';
    if of_word(first) {
        return code.find(|c| !of_word(c)).unwrap_or(code.len());
    }
    first.len_utf8()
}

/// Bytes of the space that code begins with.
fn space(code: &str) -> usize {
    code.len() - code.trim_start().len()
}

/// Bytes of the bracket that code begins with and all within, where it is closed.
fn brackets(code: &str) -> Option<usize> {
    let (mut at, mut depth) = (0, 0usize);
    while at < code.len() {
        match code.as_bytes()[at] {
            b'(' | b'[' | b'{' => depth += 1,
            b')' | b']' | b'}' => depth -= 1,
            _ => {}
        }
        at += token(&code[at..]);
        if depth == 0 {
            return Some(at);
        }
    }
    None
}

/// Appends code with its formats restated, those within others to a depth.
fn formats(code: &str, depth: usize, text: &mut String) {
    let mut at = 0;
    while at < code.len() {
        let len = token(&code[at..]);
        text.push_str(&code[at..at + len]);
        let quoted = matches!(code.as_bytes()[at], b'\'' | b'"');
        at += len;
        if quoted
            && depth > 0
            && let Some((operand, end)) = operand(&code[at..])
        {
            text.push_str("|format(");
            formats(operand, depth - 1, text);
            text.push(')');
            at += end;
        }
    }
}

/// The arguments behind a `%` that code begins with, and where they end: the inside of a tuple, or one value
/// with its attributes, indices, calls and filters.
fn operand(code: &str) -> Option<(&str, usize)> {
    let code = &code[..code.floor_char_boundary(MAX_OPERAND)];
    let mut start = space(code);
    start += code[start..].strip_prefix('%').map(|_| 1)?;
    start += space(&code[start..]);
    let mut end = start;
    let first = code[end..].chars().next()?;
    end += match first {
        '(' | '[' | '{' => brackets(&code[end..])?,
        '\'' | '"' => token(&code[end..]),
        c if c.is_alphanumeric() || c == '_' => token(&code[end..]),
        _ => return None,
    };
    let value = end;
    loop {
        let next = end + space(&code[end..]);
        end = match code[next..].chars().next() {
            Some('(' | '[') => next + brackets(&code[next..])?,
            Some('.' | '|') => {
                let name = next + 1 + space(&code[next + 1..]);
                name + token(&code[name..])
            }
            _ => break,
        };
    }
    let inside = match first {
        // A comma at the end makes a tuple of one.
        '(' if end == value => code[start + 1..end - 1].trim().trim_end_matches(','),
        _ => &code[start..end],
    };
    Some((inside, end))
}

#[cfg(test)]
mod tests {
    use super::in_plain_jinja;

    #[test]
    fn formats_become_filters() {
        for (python, plain) in [
            ("{{ '%s' % x }}", "{{ '%s'|format(x) }}"),
            (
                "{{ \"%d%%\" % (a, 'b)') }}",
                "{{ \"%d%%\"|format(a, 'b)') }}",
            ),
            ("{{ '%s'%(x,) ~ y }}", "{{ '%s'|format(x) ~ y }}"),
            (
                "{%- set t = '%s' % m.a['%}'](1)|upper -%}",
                "{%- set t = '%s'|format(m.a['%}'](1)|upper) -%}",
            ),
            (
                "{{ '%s' % ('%d' % 1, 2) }}",
                "{{ '%s'|format('%d'|format(1), 2) }}",
            ),
            ("{{ '%(k)s' % {'k': 1} }}", "{{ '%(k)s'|format({'k': 1}) }}"),
        ] {
            assert_eq!(in_plain_jinja(python).as_deref(), Ok(plain));
        }
    }

    #[test]
    fn all_else_stays() {
        for source in [
            "100 % {{ 7 % 3 }} {% if i % 2 == 0 %}'a' % b{% endif %}",
            "{# '%s' % x #}{% raw %}{{ '%s' % x }}{% endraw %}{{ 'a' }}",
            "{{ x['k'] % 2 }} {{ 'it\\'s' }} { %",
            "{{ 'open",
            "{{ '%s' % ( }}",
            "{% raw %}{%",
            "{{ ']' % ] }}",
            "é{{ 'é' ~ é }}",
        ] {
            assert_eq!(in_plain_jinja(source).as_deref(), Ok(source));
        }
    }

    #[test]
    fn training_marks_print_nothing() {
        let source = "{%- generation -%}x{%endgeneration%}";
        let plain = "{%-  if true  -%}x{% endif %}";
        assert_eq!(in_plain_jinja(source).as_deref(), Ok(plain));
    }
}
