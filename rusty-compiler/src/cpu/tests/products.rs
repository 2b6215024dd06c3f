//! Inputs, integer tiles and float tiles.

use super::{Noise, blocks, decoded_input, filled, levels, scaled, with_sums};
use crate::cpu::float::{self, FloatRows, RowKind};
use crate::cpu::forms;
use crate::cpu::kind::{Kind, Start};
use crate::cpu::panel::{GROUP, PanelLayout};
use crate::cpu::prefetch::{Ahead, Ask};
use crate::cpu::quantize::{InputForms, InputRows};
use crate::cpu::row_panels::RowPanels;
use crate::cpu::row_tiles::Extent;
use crate::cpu::simd::{LANES, Level};
use crate::cpu::tile::{Panel, TileRegisters};
use rusty_loader::Format;
use rusty_loader::formats::{ALL, OF_CHECKPOINTS, Q4_0, Q4_K, Q8_0};

#[test]
fn inputs_are_rounded_within_half_a_step() {
    let (rows, k) = (5, 96);
    let mut noise = Noise(7);
    let mut x = noise.floats(rows * k);
    x[k..2 * k].fill(0.0);
    x[2 * k + 3] = 900.0;
    for level in levels() {
        let (_inputs, view) = filled(level, &x, rows, k, with_sums(k));
        check_scales(level, &view, &x, (rows, k), GROUP);
    }
}

/// Weights with scales of blocks let their inputs share one, others beside them, too.
#[test]
fn inputs_of_a_block_share_a_scale() {
    let (rows, k) = (3, 768);
    let mut x = Noise(7).floats(rows * k);
    x[k + 300] = 900.0;
    let kind = |codec| Kind::of(codec).expect("a kernel");
    let mut forms = InputForms::default();
    for codec in [&Q4_0, &Q4_K, &Q8_0] {
        forms.add_panels(&kind(codec)).expect("few starts");
    }
    for level in levels() {
        let (_inputs, view) = filled(level, &x, rows, k, forms);
        check_scales(level, &view, &x, (rows, k), Q4_K.block_len);
    }
}

/// The inputs of each `span` have a scale that their largest makes 127 of, and are rounded to the nearest.
fn check_scales(level: Level, view: &InputRows, x: &[f32], (rows, k): (usize, usize), span: usize) {
    for row in 0..rows {
        let (decoded, x) = (decoded_input(view, row, k), &x[row * k..][..k]);
        let spans = decoded.chunks(span).zip(x.chunks(span));
        for (of_span, (decoded, x)) in spans.enumerate() {
            let largest = x.iter().fold(0f32, |most, x| most.max(x.abs()));
            for (i, (d, x)) in decoded.iter().zip(x).enumerate() {
                let lane = of_span * span + i;
                // SAFETY: the row was filled.
                let scale = unsafe { *view.scales.add(row * view.groups + lane / GROUP) };
                assert_eq!(scale, largest / 127.0, "{level:?} row {row} lane {lane}");
                let error = (d - f64::from(*x)).abs();
                assert!(
                    error <= f64::from(scale) * 0.5001,
                    "{level:?} row {row} lane {lane}: {error}"
                );
            }
        }
    }
}

#[test]
fn integer_tiles_match_decoded_weights() {
    let of_checkpoints = OF_CHECKPOINTS.iter().copied();
    let of_bytes = of_checkpoints.filter(|c| RowKind::of(Format::Blocks(c)).is_err());
    for codec in ALL.iter().copied().chain(of_bytes) {
        let kind = Kind::of(codec).unwrap_or_else(|| panic!("no kernel for {}", codec.name));
        for (n, k) in [(1, 256), (16, 512), (37, 768), (133, 512), (5, 1280)] {
            let mut noise = Noise(11 + n as u64);
            let stored = blocks(codec, n * k / codec.block_len, &mut noise);
            let layout = PanelLayout { codec, kind, k, n };
            let (panels, weights) = packed(&layout, &stored);
            let mut row = vec![0.0; k];
            for (i, want) in weights.chunks_exact(k).enumerate() {
                layout.unpack_row(&panels, i, &mut row);
                assert_eq!(row, want, "{} row {i}", codec.name);
            }
            let rows = 40;
            let x = noise.floats(rows * k);
            for level in levels() {
                check_tiles(level, &layout, &panels, &weights, &x, rows);
            }
        }
    }
}

/// All panels of stored blocks, and what the blocks stand for.
fn packed(layout: &PanelLayout, stored: &[u8]) -> (Vec<u8>, Vec<f32>) {
    let mut weights = vec![0.0; layout.n * layout.k];
    Format::Blocks(layout.codec).decode_row(stored, &mut weights);
    let mut panels = vec![0u8; layout.bytes()];
    for (i, panel) in panels.chunks_exact_mut(layout.panel_bytes()).enumerate() {
        layout.pack(stored, i, panel);
    }
    (panels, weights)
}

/// Sums of bytes may be carried in words: no codes and inputs are too large for them.
#[test]
fn the_largest_bytes_are_summed_whole() {
    let (rows, n, k) = (9, 16, 512);
    for codec in ALL.iter().copied() {
        let kind = Kind::of(codec).unwrap_or_else(|| panic!("no kernel for {}", codec.name));
        let layout = PanelLayout { codec, kind, k, n };
        for byte in [0xff, 0x80, 0x7f] {
            let bytes = vec![byte; n * k / codec.block_len * codec.block_bytes];
            let stored = scaled(codec, bytes, &mut Noise(5));
            let (panels, weights) = packed(&layout, &stored);
            for x in [1.0, -1.0] {
                let x = vec![x; rows * k];
                for level in levels() {
                    check_tiles(level, &layout, &panels, &weights, &x, rows);
                }
            }
        }
    }
}

fn check_tiles(
    level: Level,
    layout: &PanelLayout,
    panels: &[u8],
    weights: &[f32],
    x: &[f32],
    rows: usize,
) {
    let (k, n, name) = (layout.k, layout.n, layout.codec.name);
    // Another kind's start lies before that of the panel.
    let mut forms = InputForms::default();
    forms.add((Start::Zero(77), true)).expect("few starts");
    forms.add_panels(&layout.kind).expect("few starts");
    let (_inputs, view) = filled(level, x, rows, k, forms);
    let run = |panel: usize, first: usize, count: usize| {
        let mut out = vec![f32::NAN; count * LANES];
        let at = panels[panel * layout.panel_bytes()..].as_ptr();
        // SAFETY: panel, rows and results are whole.
        unsafe {
            let registers = TileRegisters::set_up(level, &layout.kind, count);
            let panel = Panel::new(layout, at, 1, std::ptr::null(), registers.as_ref());
            let ahead = &mut Ahead::default();
            let place = (first, count);
            forms::multiply(level, panel, view, place, out.as_mut_ptr(), LANES, ahead);
        }
        out
    };
    for panel in 0..layout.panels() {
        let out = run(panel, 0, rows);
        for row in 0..rows {
            let input = decoded_input(&view, row, k);
            for lane in 0..(n - panel * LANES).min(LANES) {
                let w = &weights[(panel * LANES + lane) * k..][..k];
                let products = w.iter().zip(&input).map(|(w, x)| f64::from(*w) * x);
                let size: f64 = products.clone().map(f64::abs).sum();
                let (want, have) = (products.sum::<f64>(), f64::from(out[row * LANES + lane]));
                assert!(
                    (want - have).abs() <= 2e-6 * size + 1e-6,
                    "{name} {level:?} [{n}, {k}] row {row} lane {lane}: {have}, not {want}"
                );
            }
            let alone = run(panel, row, 1);
            assert_eq!(
                alone[..],
                out[row * LANES..][..LANES],
                "{name} {level:?} row {row} alone"
            );
        }
        // One tile where the machine has sixteen rows in one, and some more.
        let (first, some) = (3, 20.min(rows - 3));
        assert_eq!(
            run(panel, first, some)[..],
            out[first * LANES..][..some * LANES],
            "{name} {level:?} {some} rows"
        );
    }
    // One row with all panels in one stream, in two, in as many as may be side by side, and with the last of each apart.
    let (at, row) = (panels.as_ptr(), rows - 1);
    let alone: Vec<f32> = (0..layout.panels()).flat_map(|i| run(i, row, 1)).collect();
    let first = Panel::new(layout, at, 1, std::ptr::null(), None);
    let side = level.row_panels();
    let some = layout.panels() / side.max(2) * side.max(2);
    let mut ways = vec![vec![RowPanels::new(first, layout.panels(), 1)]];
    if some > 0 {
        let beside = RowPanels::new(first, some, side);
        let (others, last) = beside.split();
        ways.extend([vec![beside], vec![others, last]]);
        let half = some / 2;
        let two = match side {
            2.. => RowPanels::pair(first, half, (half * first.bytes, half * LANES)),
            _ => RowPanels::new(first, some, 1),
        };
        ways.extend([vec![RowPanels::new(first, some, side.min(2))], vec![two]]);
    }
    if side > 1 && some > 0 {
        // The other stream may lie before the first one, as weights lie in any order.
        let half = some / 2;
        let before = (half * first.bytes).wrapping_neg();
        let pair = RowPanels::pair(
            first.moved(half * first.bytes, 0),
            half,
            (before, half * LANES),
        );
        let mut out = vec![f32::NAN; some * LANES];
        // SAFETY: panels, row and results are whole.
        unsafe {
            forms::multiply_row(
                level,
                pair,
                (view, row),
                out.as_mut_ptr(),
                &mut Ahead::default(),
            );
        }
        out.rotate_left(half * LANES);
        assert_eq!(out, alone[..some * LANES], "{name} {level:?} backwards");
    }
    for (i, way) in ways.into_iter().enumerate() {
        let mut out = vec![f32::NAN; layout.n.next_multiple_of(LANES)];
        let mut column = 0;
        for panels in way {
            let to = out[column..].as_mut_ptr();
            // SAFETY: panels, row and results are whole.
            unsafe { forms::multiply_row(level, panels, (view, row), to, &mut Ahead::default()) };
            column += panels.columns();
        }
        let count = if i == 0 { out.len() } else { some * LANES };
        assert_eq!(out[..count], alone[..count], "{name} {level:?} way {i}");
    }
}

#[test]
fn float_tiles_match_double_precision() {
    for (n, k) in [(1, 16), (9, 40), (33, 129)] {
        let mut noise = Noise(3 + k as u64);
        let weights = noise.floats(n * k);
        for format in [Format::F32, Format::F16, Format::Bf16] {
            let mut bytes = vec![0; format.row_bytes(weights.len())];
            let encoder = format.encoder().expect("floats have one");
            encoder.rows(&weights, &mut bytes);
            check_floats(format, &bytes, (15, n, k));
        }
    }
}

/// Every format that is not multiplied as bytes.
#[test]
fn tiles_of_small_floats_match_double_precision() {
    let mut formats = 0;
    for codec in OF_CHECKPOINTS {
        let format = Format::Blocks(codec);
        if RowKind::of(format).is_err() {
            continue;
        }
        for (n, k) in [(1, 128), (9, 384)] {
            let mut noise = Noise(5 + n as u64);
            let stored = blocks(codec, n * k / codec.block_len, &mut noise);
            check_floats(format, &stored, (15, n, k));
        }
        formats += 1;
    }
    assert_eq!(formats, 4);
}

/// A matrix `[n, k]` with `rows` inputs, on every level.
fn check_floats(format: Format, bytes: &[u8], extents: (usize, usize, usize)) {
    let (rows, n, k) = extents;
    let mut exact = vec![0.0; n * k];
    format.decode_row(bytes, &mut exact);
    let x = Noise(17).floats(rows * k);
    let kind = RowKind::of(format).expect("floats");
    assert_eq!(kind.row_bytes(k) * n, bytes.len());
    for level in levels() {
        check_rows(level, kind, bytes, &exact, &x, extents);
    }
}

fn check_rows(
    level: Level,
    kind: RowKind,
    bytes: &[u8],
    exact: &[f32],
    x: &[f32],
    (rows, n, k): (usize, usize, usize),
) {
    let (_inputs, view) = filled(level, x, rows, k, InputForms::default());
    let run = |first: usize, count: usize, ask: Ask| {
        let mut out = vec![f32::NAN; count * n];
        let w = FloatRows {
            kind,
            at: bytes.as_ptr(),
            k,
            ask,
        };
        let extent = Extent {
            first,
            rows: count,
            columns: n,
            out: out.as_mut_ptr(),
            stride: n,
        };
        // SAFETY: weights, rows and results are whole.
        unsafe { float::multiply(level, w, view, extent, &mut Ahead::default()) };
        out
    };
    let out = run(0, rows, Ask::Along);
    for row in 0..rows {
        for c in 0..n {
            let products = (0..k).map(|i| f64::from(x[row * k + i]) * f64::from(exact[c * k + i]));
            let want: f64 = products.sum();
            let have = f64::from(out[row * n + c]);
            assert!(
                (want - have).abs() < 1e-5,
                "{kind:?} {level:?} {row} {c}: {have}, not {want}"
            );
        }
        for ask in [Ask::Nothing, Ask::LeftToCores] {
            assert_eq!(
                run(row, 1, ask),
                out[row * n..][..n],
                "{kind:?} {level:?} row {row} alone"
            );
        }
    }
}
