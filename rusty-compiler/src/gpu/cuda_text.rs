//! CUDA C++ of a kernel, and what CubeCL does not say in it: kernels of a graph that begin while the one before them ends (CUDA
//! Programming Guide, "Programmatic Dependent Launch").
//!
//! Such a kernel (all but those on matrix units, see `text.rs`) waits until the one before it is done with memory, and then lets the next begin. So a launch costs no start of its
//! own: its cubes are there when what they need is. A kernel that [says itself where](super::kernels::gemv_ahead::await_earlier) may do
//! before what needs nothing of others. Devices before `sm_90` have no such instructions, and there none is made.

use super::kernels::env::{ARENA, BINDINGS};
use super::text::plain;
use cubecl::prelude::*;
use cubecl_core::Compiler;
use cubecl_cpp::shared::{CompilationOptions, CppCompiler, CppSupportedFeatures};
use rusty_backend::cuda_overlap::AWAIT;
use rusty_backend::{KernelText, Language, Target};

/// Buffers that kernels of a graph write, by their places: the arena, pages and counters.
const WRITTEN: [usize; 3] = [ARENA, BINDINGS - 2, BINDINGS - 1];

/// The text of a kernel.
pub(super) fn compiled(
    definition: KernelDefinition,
    target: &Target,
) -> Result<KernelText, String> {
    let entry = definition.settings.kernel_name.clone();
    let options = CompilationOptions {
        warp_size: target.plane_size as usize,
        supports_features: CppSupportedFeatures {
            grid_constants: true,
            clusters: false,
            fast_math: false,
            fast_tanh: false,
            elect_sync: false,
            dp4a: true,
        },
        amd_wmma: None,
    };
    let kernel = CppCompiler::<cubecl_cpp::target::Cuda>::default()
        .compile(definition, &options)
        .map_err(|e| format!("{e:?}"))?;
    let mut text = plain(entry, kernel.to_string(), Language::CudaC);
    // Shared memory is declared `extern`: its size is an argument of the launch.
    text.shared_bytes = kernel.shared_memory_size as u32;
    Ok(text)
}

/// The text of `entry` with its waits. Pointers to what others write come out of the wait, so that no compiler reads through them
/// before, which it may where it takes memory for constant as long as a kernel runs.
pub(super) fn overlapping(source: &str, entry: &str) -> Result<String, String> {
    let lacks = |what: &str| format!("the text of {entry} has no {what}");
    let open = source
        .find(&format!(" {entry}("))
        .ok_or_else(|| lacks("entry"))?;
    let open = open + entry.len() + 2;
    let close = open + source[open..].find(") {").ok_or_else(|| lacks("body"))?;
    let mut parameters: Vec<String> = source[open..close].split(',').map(String::from).collect();
    let mut names = Vec::new();
    for place in WRITTEN {
        let parameter = parameters.get_mut(place).ok_or_else(|| lacks("buffers"))?;
        *parameter = parameter.replace("* const ", "* ");
        names.push(parameter.rsplit(' ').next().unwrap_or_default().to_owned());
    }
    let wait = wait(&names);
    let body = &source[close + 3..];
    let line = format!("\n{AWAIT}\n");
    let body = match body.contains(MARK) {
        true => body.replace(MARK, &line),
        false => format!("{line}{body}"),
    };
    let (before, parameters) = (&source[..open], parameters.join(","));
    Ok(format!(
        "#if __CUDA_ARCH__ >= 900\n#define {AWAIT} {wait}\n#else\n#define {AWAIT}\n#endif\n{before}{parameters}) {{{body}"
    ))
}

/// The wait, and pointers that come out of it. They go in and out as addresses of global memory: of others compilers would not know
/// that they are.
fn wait(names: &[String]) -> String {
    let each = |made: fn(&str) -> String| names.iter().map(|n| made(n)).collect::<String>();
    let addresses = each(|n| format!("size_t of_{n} = __cvta_generic_to_global({n}); "));
    let back =
        each(|n| format!("{n} = static_cast<decltype({n})>(__cvta_global_to_generic(of_{n})); "));
    let operands: Vec<String> = names.iter().map(|n| format!("\"+l\"(of_{n})")).collect();
    format!(
        "{{ {addresses}asm volatile(\"griddepcontrol.wait;\\n\\tgriddepcontrol.launch_dependents;\" : {} : : \"memory\"); {back}}}",
        operands.join(", ")
    )
}

/// How a kernel's own wait is written.
const MARK: &str = "asm volatile(\"// await earlier launches\" :  :  : \"memory\");";
