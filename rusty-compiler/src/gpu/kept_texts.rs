//! Kernels' texts that need not be made: out of a [package](rusty_backend::package), or kept by an earlier process whose build would
//! make the same. To expand a kernel takes CubeCL tens of milliseconds.

use super::text::KernelSpec;
use crate::Result;
use rusty_backend::{KernelText, Target, cache, package};

impl KernelSpec {
    /// [`KernelSpec::text`], where it is at hand; else made, and kept.
    ///
    /// # Errors
    /// As there.
    pub fn found_text(&self, target: &Target) -> Result<KernelText> {
        let key = self.key(target);
        if let Some(text) = package::text(&key) {
            return Ok(text);
        }
        let name = format!("texts/{key}.json");
        let kept = cache::load(&name);
        let kept: Option<KernelText> = kept.and_then(|data| serde_json::from_slice(&data).ok());
        if let Some(text) = kept.filter(|text| text.key == key) {
            return Ok(text);
        }
        let text = self.text(target)?;
        if let Ok(data) = serde_json::to_vec(&text) {
            cache::store(&name, &data);
        }
        Ok(text)
    }
}
