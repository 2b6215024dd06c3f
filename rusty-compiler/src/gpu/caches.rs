//! A layer's keys and values on a device: all of its heads in one buffer, or, where no binding takes them, as many of them in each
//! of several.

use super::kernels::page_words::PageWords;
use super::pages::{page_bytes, page_words, token_lanes};
use crate::plan::Plan;
use crate::{Error, PAGE_TOKENS, Result};
use rusty_backend::{DeviceBuffer, GpuDevice, Owner, Target};
use rusty_graph::KvLayer;

/// One layer's pages.
pub(super) struct Cache {
    /// By their heads, in order.
    pieces: Vec<DeviceBuffer>,
    /// What one of them has.
    heads: KvLayer,
    words: PageWords,
}

impl Cache {
    /// Room for `pages` pages of a layer.
    fn new(
        (plan, layer): (&Plan, usize),
        device: &dyn GpuDevice,
        words: PageWords,
        pages: u32,
    ) -> Result<Self> {
        let (count, heads) = cut(device.target(), (layer, &plan.kv[layer]), words, pages)?;
        let bytes = page_bytes(&heads, words) * u64::from(pages.max(1));
        let piece = |number: u32| {
            let label = match count {
                1 => format!("kv.{layer}"),
                _ => format!("kv.{layer}.{number}"),
            };
            device.alloc(bytes, Owner::Kv, &label)
        };
        let pieces: Result<_, _> = (0..count).map(piece).collect();
        Ok(Self {
            pieces: pieces?,
            heads,
            words,
        })
    }

    /// In how many buffers the heads lie.
    pub fn pieces(&self) -> u32 {
        self.pieces.len() as u32
    }

    /// One of the buffers.
    pub fn buffer(&self, piece: u32) -> &DeviceBuffer {
        &self.pieces[piece as usize]
    }

    /// Bytes of all of them.
    pub fn bytes(&self) -> u64 {
        self.pieces.iter().map(DeviceBuffer::bytes).sum()
    }

    /// Bytes of a page in each of them.
    fn page_bytes(&self) -> u64 {
        page_bytes(&self.heads, self.words)
    }

    /// Byte at which a page starts in each of them.
    fn at(&self, page: u32) -> u64 {
        u64::from(page) * self.page_bytes()
    }

    /// Makes page `to` what page `from` is.
    pub fn copy(&self, device: &dyn GpuDevice, from: u32, to: u32) -> Result<()> {
        for piece in &self.pieces {
            let bytes = self.page_bytes();
            device.copy(piece, self.at(from), piece, self.at(to), bytes)?;
        }
        Ok(())
    }

    /// Writes the keys and values of up to sixteen tokens from `first` on into a page, and zeros behind them.
    pub fn write(
        &self,
        device: &dyn GpuDevice,
        page: u32,
        rows: (&[f32], &[f32]),
        first: usize,
    ) -> Result<()> {
        for (number, piece) in (0..).zip(&self.pieces) {
            let of = (number, self.pieces());
            let words = page_words(rows, first, (&self.heads, of), self.words);
            debug_assert_eq!(words.len() as u64 * 4, self.page_bytes());
            device.write(piece, self.at(page), bytemuck::cast_slice(&words))?;
        }
        Ok(())
    }

    /// Fills a page with zeros.
    pub fn clear(&self, device: &dyn GpuDevice, page: u32) -> Result<()> {
        let zeros = vec![0u8; self.page_bytes() as usize];
        for piece in &self.pieces {
            device.write(piece, self.at(page), &zeros)?;
        }
        Ok(())
    }

    /// Keys (`half` 0) or values of the token at `place` of a page, as they are read back.
    pub fn token(
        &self,
        device: &dyn GpuDevice,
        page: u32,
        half: u32,
        place: usize,
    ) -> Result<Vec<f32>> {
        let token = u64::from(self.words.token_words(self.heads.key_lanes())) * 4;
        let before = u64::from(half) * PAGE_TOKENS as u64 + place as u64;
        let mut lanes = Vec::new();
        for piece in &self.pieces {
            let bytes = device.read(piece, self.at(page) + before * token, token)?;
            let words: Vec<u32> = bytemuck::pod_collect_to_vec(&bytes);
            lanes.extend(token_lanes(&words, self.words));
        }
        Ok(lanes)
    }
}

/// Room for the pages of each layer.
pub(super) fn caches(
    plan: &Plan,
    device: &dyn GpuDevice,
    words: PageWords,
    pages: u32,
) -> Result<Vec<Cache>> {
    let layers = 0..plan.kv.len();
    let caches = layers.map(|layer| Cache::new((plan, layer), device, words, pages));
    let caches: Vec<Cache> = caches.collect::<Result<_>>()?;
    let cut = caches.iter().filter(|c| c.pieces() > 1).count();
    if cut > 0 {
        tracing::info!(
            "keys and values of {cut} layers lie in several buffers each, as no binding takes them: each has launches of its own"
        );
    }
    Ok(caches)
}

/// Into how many buffers a layer's heads are cut, the fewest of equally many heads that can be bound, and what each has.
fn cut(
    target: &Target,
    (layer, whole): (usize, &KvLayer),
    words: PageWords,
    pages: u32,
) -> Result<(u32, KvLayer)> {
    // Kernels count words.
    let limit = target.max_binding_bytes.min(u64::from(u32::MAX) * 4);
    let bytes = |heads: &KvLayer| page_bytes(heads, words) * u64::from(pages.max(1));
    let of = |count: u32| KvLayer {
        kv_heads: whole.kv_heads / count,
        ..*whole
    };
    let counts = (1..=whole.kv_heads).filter(|count| whole.kv_heads.is_multiple_of(*count));
    let mut cuts = counts.map(|count| (count, of(count)));
    cuts.find(|(_, heads)| bytes(heads) <= limit)
        .ok_or_else(|| Error::Target {
            target: target.name.clone(),
            kernel: format!("keys and values of layer {layer}"),
            reason: format!(
                "{} tokens take {} bytes for each key/value head, and {limit} fit a binding (a shorter context, fewer sequences \
                 at a time or a format of fewer bits take less)",
                u64::from(pages) * PAGE_TOKENS as u64,
                bytes(&of(whole.kv_heads.max(1))),
            ),
        })
}

#[cfg(test)]
mod tests {
    use super::*;
    use rusty_graph::AttentionValues;

    /// Heads are cut only where no binding takes all of them, into as few equal pieces as can be bound.
    #[test]
    fn heads_are_cut_into_the_fewest_pieces() {
        let mut target = Target::named("llvmpipe").expect("llvmpipe");
        let layer = |kv_heads, values| KvLayer {
            kv_heads,
            head_dim: 32,
            values,
        };
        let (own, latent) = (AttentionValues::Own, AttentionValues::OfKeys(16));
        // A page of a head takes 4096 bytes in single precision, of keys alone half of it.
        for (kv_heads, values, limit, want) in [
            (6, own, 6 * 40960, Some(1)),
            (6, own, 6 * 40960 - 1, Some(2)),
            (6, own, 2 * 40960, Some(3)),
            (6, own, 2 * 40960 - 1, Some(6)),
            (6, own, 40960, Some(6)),
            (6, own, 40959, None),
            (1, latent, 20480, Some(1)),
            (1, latent, 20479, None),
        ] {
            target.max_binding_bytes = limit;
            let made = cut(&target, (0, &layer(kv_heads, values)), PageWords::F32, 10);
            let count = made.as_ref().ok().map(|(count, _)| *count);
            assert_eq!(count, want, "{kv_heads} heads, {limit} bytes");
            if let Ok((count, heads)) = made {
                assert_eq!(heads.kv_heads * count, kv_heads);
            }
        }
    }
}
