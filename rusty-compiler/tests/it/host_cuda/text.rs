//! From CUDA text to C++ for the [emulator](../emulator.cpp): instructions in assembly become calls, shared memory a pointer.

use rusty_backend::KernelText;

/// How instructions begin, and what they call.
const CALLS: &[(&str, &str)] = &[
    (
        "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32",
        "product<false>",
    ),
    (
        "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32",
        "product<true>",
    ),
    ("ldmatrix.sync.aligned.m8n8.x4.trans", "matrices<true>"),
    ("ldmatrix.sync.aligned.m8n8.x4", "matrices<false>"),
    ("cp.async.cg.shared::cta.global", "start_copy"),
    ("cp.async.commit_group", "close_copies"),
    ("cp.async.wait_group", "await_copies"),
    ("cvt.rn.bf16x2.f32", "pack_bf16"),
    ("cvt.rn.f16x2.f32", "pack_f16"),
    ("cvt.rn.satfinite.f16x2.f32", "pack_finite_f16"),
    (
        "{ .reg .b16 h; cvt.u16.u32 h, %1; cvt.f32.f16 %0, h; }",
        "half_to_float",
    ),
    ("ex2.approx.ftz.f32", "power_of_two"),
    ("atom.relaxed.add.u32", "add_atomic"),
    ("prefetch.global.L2", "prefetch"),
    ("ld.global", "load"),
    ("ld.volatile.global", "load"),
    ("nanosleep.u32", "nap"),
    ("griddepcontrol.wait", "await_earlier"),
];

/// The text as C++, with a function `rusty_run` that launches it.
pub(super) fn on_host(text: &KernelText) -> Result<String, String> {
    let mut source = String::from("namespace kernel {\n");
    let mut rest = &text.source[..];
    let mut site = 0;
    while let Some(at) = rest.find("asm ") {
        source += &rest[..at];
        let open = at + rest[at..].find('(').ok_or("assembly without operands")?;
        let end = open + closing(&rest[open..]).ok_or("assembly that does not end")?;
        // Barriers of planes have the numbers of lines.
        site -= 1;
        source += &call(&rest[open + 1..end], site)?;
        rest = &rest[end + 1..];
    }
    source += rest;
    source += "\n} // namespace kernel\n";
    let source = shared_memory(&source);
    let entry = &text.entry;
    Ok(format!(
        "{source}
static void *const *rusty_buffers;
static const void *rusty_info;
extern \"C\" __attribute__((visibility(\"default\"))) void rusty_run(void *const *buffers, const void *info, const unsigned *groups, const unsigned *units, unsigned bytes) {{
    rusty_buffers = buffers;
    rusty_info = info;
    host::launch([] {{ host::call(kernel::{entry}, rusty_buffers, rusty_info); }}, groups, units, bytes);
}}
"
    ))
}

/// The parenthesis that closes the one at the start, behind strings.
fn closing(text: &str) -> Option<usize> {
    let (mut depth, mut quoted, mut escaped) = (0, false, false);
    for (at, c) in text.char_indices() {
        match c {
            _ if escaped => escaped = false,
            '\\' => escaped = true,
            '"' => quoted = !quoted,
            '(' if !quoted => depth += 1,
            ')' if !quoted => depth -= 1,
            _ => {}
        }
        if depth == 0 && !quoted {
            return Some(at);
        }
    }
    None
}

/// The call that stands for an instruction with its operands, at a place of its own.
fn call(assembly: &str, site: i32) -> Result<String, String> {
    let mut pieces = assembly.split('"');
    let instruction = pieces.nth(1).ok_or("assembly without text")?;
    let known = CALLS
        .iter()
        .find(|(begins, _)| instruction.starts_with(begins));
    let (_, name) = known.ok_or_else(|| format!("the emulator does not know {instruction}"))?;
    let mut operands = vec![site.to_string()];
    if *name == "await_copies" {
        let count: String = instruction.chars().filter(char::is_ascii_digit).collect();
        operands.push(count);
    }
    // Behind each constraint its operand stands in parentheses.
    let behind = pieces.skip(1).filter(|piece| piece.starts_with('('));
    for piece in behind {
        let end = closing(piece).ok_or("an operand that does not end")?;
        operands.push(piece[1..end].into());
    }
    Ok(format!("host::{name}({})", operands.join(", ")))
}

/// The text with the cube's memory in place of what the launch would reserve.
fn shared_memory(source: &str) -> String {
    const BEGINS: &str = "extern __shared__ ";
    let mut out = String::new();
    let mut rest = source;
    while let Some(at) = rest.find(BEGINS) {
        let declared = &rest[at + BEGINS.len()..];
        let end = declared.find("[]").unwrap_or(declared.len());
        let name = declared[..end].rsplit(' ').next().unwrap_or_default();
        out += &rest[..at];
        out += &format!("char *const {name} = host::shared");
        rest = declared[end..].trim_start_matches("[]");
    }
    out + rest
}
