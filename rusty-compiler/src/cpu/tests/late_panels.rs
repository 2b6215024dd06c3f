//! Panels that are made at their first use.

use super::{Noise, blocks};
use crate::cpu::kind::Kind;
use crate::cpu::late_panels::LatePanels;
use crate::cpu::panel::PanelLayout;
use rusty_backend::UnifiedTensor;
use rusty_loader::{SharedBytes, formats};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};

#[test]
fn panels_are_made_once_and_only_where_they_are_used() {
    let (codec, k, n) = (&formats::Q8_0, 64, 40);
    let kind = Kind::of(codec).expect("kind");
    let layout = PanelLayout { codec, kind, k, n };
    let stored = blocks(codec, n * k / codec.block_len, &mut Noise(3));
    let size = layout.panel_bytes();
    let mut want = vec![0u8; layout.bytes()];
    for (i, panel) in want.chunks_exact_mut(size).enumerate() {
        layout.pack(&stored, i, panel);
    }
    let mut room = vec![0u8; layout.bytes()];
    let at = room.as_mut_ptr();
    let finished = Arc::new(AtomicUsize::new(0));
    let all = stored.len() as u64;
    let bytes = UnifiedTensor::from_shared(SharedBytes::from_vec(stored));
    let late = LatePanels::new(bytes, layout, at, finished.clone());
    assert_eq!(late.bytes(), (0, all));
    let panel = |i: usize| {
        // SAFETY: the room is there, and there is one thread.
        unsafe { std::slice::from_raw_parts(late.panel(i), size) }
    };
    assert_eq!(panel(1), &want[size..2 * size]);
    assert_eq!(late.bytes(), (size as u64, all * 2 / 3));
    // SAFETY: as above; the first panel's room is as it was.
    let untouched = unsafe { std::slice::from_raw_parts(at, size) };
    assert!(untouched.iter().all(|b| *b == 0));
    assert_eq!(panel(1), &want[size..2 * size]);
    assert!(!late.is_finished());
    assert_eq!(panel(0), &want[..size]);
    assert_eq!(panel(2), &want[2 * size..]);
    assert!(late.is_finished());
    assert_eq!(late.bytes(), (3 * size as u64, 0));
    assert_eq!(finished.load(Ordering::Relaxed), 1);
}
