//! WGSL of a kernel, and what CubeCL does not say in it.

use super::kernels::env::ARENA;
use super::text::plain;
use cubecl::prelude::*;
use cubecl_core::{Compiler, WgpuCompilationOptions};
use rusty_backend::{BindingAccess, KernelText, Language};

/// The text of a kernel.
pub(super) fn compiled(definition: KernelDefinition) -> Result<KernelText, String> {
    let entry = definition.settings.kernel_name.clone();
    let shader = cubecl_wgpu::WgslCompiler
        .compile(definition, &WgpuCompilationOptions::default())
        .map_err(|e| format!("{e:?}"))?;
    let mut text = plain(entry, shader.to_string(), Language::Wgsl);
    for (access, visibility) in text.bindings.iter_mut().zip(&shader.buffers) {
        if matches!(visibility, Visibility::Read) {
            *access = BindingAccess::Read;
        }
    }
    Ok(text)
}

/// WGSL whose cubes see each other's writes to the arena.
pub(super) fn coherent(source: &str) -> String {
    let arena = format!("@binding({ARENA})");
    source.replace(&arena, &format!("{arena} @coherent"))
}

/// WGSL in which `reverseBits` of a half's bits are those of its value in single precision. CubeCL has no name for the conversion, and
/// no kernel of ours reverses bits.
pub(super) fn with_halves(source: &str) -> String {
    if !source.contains("reverseBits(") {
        return source.to_owned();
    }
    format!(
        "{}\nfn half_value(bits: u32) -> u32 {{\n    return bitcast<u32>(unpack2x16float(bits).x);\n}}\n",
        source.replace("reverseBits(", "half_value(")
    )
}

/// WGSL in which `dot` of four words each is the product of their bytes. CubeCL writes that product out byte by byte, and has no
/// other kernel of ours use `dot`.
pub(super) fn bytewise(source: &str) -> String {
    let products = "xyzw"
        .chars()
        .map(|word| format!("dot4I8Packed(bitcast<u32>(a.{word}), bitcast<u32>(b.{word}))"));
    let sum = products.collect::<Vec<_>>().join(" + ");
    format!(
        "{}\nfn dot_bytes(a: vec4<i32>, b: vec4<i32>) -> i32 {{\n    return {sum};\n}}\n",
        source.replace("dot(", "dot_bytes(")
    )
}
