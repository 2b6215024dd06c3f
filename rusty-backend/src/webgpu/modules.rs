//! WGSL to modules of naga, which is what wgpu translates for each API. Of a start with all else at hand parsing is what takes long:
//! fifteen times what it takes to check a module and to write SPIR-V of it, more than in proportion to a text's length. So modules
//! are kept on disk; wgpu checks those that come from there as it checks all.

use crate::cache;
use crate::cuda::nvrtc::digest;

/// The version of naga, as the workspace pins it: modules of others may look otherwise.
const NAGA: &str = "30.0.1";

/// The module of a text, from the cache or parsed now and kept there.
///
/// # Errors
/// Where and why the text is no WGSL.
pub(super) fn module(source: &str) -> Result<naga::Module, String> {
    let name = name(source);
    if let Some(known) = cache::load(&name).and_then(|kept| postcard::from_bytes(&kept).ok()) {
        return Ok(known);
    }
    let module = naga::front::wgsl::parse_str(source).map_err(|e| e.emit_to_string(source))?;
    match postcard::to_stdvec(&module) {
        Ok(packed) => cache::store(&name, &packed),
        Err(error) => tracing::debug!("{name} is not kept: {error}"),
    }
    Ok(module)
}

/// What the cache has a text's module under.
fn name(source: &str) -> String {
    format!("naga-{NAGA}/{}.module", digest(source))
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "@group(0) @binding(0) var<storage, read_write> x: array<f32>;
        @compute @workgroup_size(64) fn main(@builtin(global_invocation_id) id: vec3<u32>) { x[id.x] *= 2.0; }";

    #[test]
    fn the_version_is_the_one_that_is_pinned() {
        let manifest = concat!(env!("CARGO_MANIFEST_DIR"), "/../Cargo.toml");
        let manifest = std::fs::read_to_string(manifest).expect("the workspace's manifest");
        let pin = format!("naga = {{ version = \"={NAGA}\"");
        assert!(manifest.contains(&pin), "{pin}");
    }

    #[test]
    fn modules_come_back_as_they_were() {
        let module = naga::front::wgsl::parse_str(TEXT).expect("WGSL");
        let kept = postcard::to_stdvec(&module).expect("packed");
        let back: naga::Module = postcard::from_bytes(&kept).expect("unpacked");
        // Places in the text are not kept.
        assert_eq!(postcard::to_stdvec(&back).expect("packed"), kept);
    }

    /// A text that no kernel has stands for another one's module.
    #[test]
    fn what_is_kept_is_not_parsed_again() {
        let text = "// only for a test";
        let other = naga::front::wgsl::parse_str(TEXT).expect("WGSL");
        cache::store(&name(text), &postcard::to_stdvec(&other).expect("packed"));
        assert_eq!(module(text).expect("kept").entry_points.len(), 1);
        cache::store(&name(text), b"something else");
        for _ in 0..2 {
            assert!(module(text).expect("parsed").entry_points.is_empty());
        }
    }

    #[test]
    fn what_is_no_wgsl_is_refused_where_it_is_wrong() {
        let refused = module("fn main() { let x = ; }").expect_err("no WGSL");
        assert!(refused.contains("wgsl:1:21"), "{refused}");
    }
}
