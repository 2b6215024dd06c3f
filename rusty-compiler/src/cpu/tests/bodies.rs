//! Elementwise functions and the registers of bodies.

use super::{Noise, levels};
use crate::cpu::body::{self, Lanes};
use crate::cpu::registers::Registers;
use crate::cpu::simd::{LANES, Level, Vector, math, per_isa};
use crate::plan::{Body, Inst};
use rusty_graph::{BinaryOp, UnaryOp};

per_isa! {
    fn apply(op: UnaryOp, x: *const f32, out: *mut f32) = apply_with
}

#[inline(always)]
unsafe fn apply_with<V: Vector>(op: UnaryOp, x: *const f32, out: *mut f32) {
    // SAFETY: both hold a vector.
    unsafe { V::store(out, math::unary::<V>(op, V::load(x))) }
}

#[test]
fn elementary_functions_are_close() {
    let sigmoid = |x: f64| 1.0 / (1.0 + (-x).exp());
    let cases: [(UnaryOp, &dyn Fn(f64) -> f64); 6] = [
        (UnaryOp::Silu, &|x| x * sigmoid(x)),
        (UnaryOp::Sigmoid, &sigmoid),
        (UnaryOp::Tanh, &f64::tanh),
        (UnaryOp::Relu, &|x| x.max(0.0)),
        (UnaryOp::Neg, &|x| -x),
        (UnaryOp::GeluTanh, &|x| {
            0.5 * x * (1.0 + (0.797_884_560_8 * (x + 0.044_715 * x * x * x)).tanh())
        }),
    ];
    for level in levels() {
        for (op, exact) in &cases {
            for i in -1600..1600 {
                let x = i as f32 * 0.0625;
                let (xs, mut out) = ([x; LANES], [0f32; LANES]);
                // SAFETY: both hold a vector.
                unsafe { apply(level, *op, xs.as_ptr(), out.as_mut_ptr()) };
                let want = exact(f64::from(x));
                let error = (f64::from(out[3]) - want).abs();
                assert!(
                    error <= 1e-6 * want.abs() + 1e-6,
                    "{level:?} {op:?}({x}): {error}"
                );
            }
        }
        for (x, want) in [
            (-3.0, -0.004_049_694),
            (-0.5, -0.154_268_77),
            (0.0, 0.0),
            (2.0, 1.954_499_7),
        ] {
            let (xs, mut out) = ([x; LANES], [0f32; LANES]);
            // SAFETY: both hold a vector.
            unsafe { apply(level, UnaryOp::Gelu, xs.as_ptr(), out.as_mut_ptr()) };
            assert!(
                (out[0] - want).abs() < 2e-6,
                "{level:?} gelu({x}): {}",
                out[0]
            );
        }
    }
}

#[test]
fn registers_hold_odd_widths() {
    let body = Body {
        insts: vec![
            Inst::Result(0),
            Inst::Unary(UnaryOp::Relu, 0),
            Inst::Result(1),
            Inst::Binary(BinaryOp::Sub, 1, 2),
        ],
    };
    let program = body::Program::sources_only(&body).expect("no operands");
    let (a, b): (Vec<f32>, Vec<f32>) = (0..37).map(|i| (i as f32 - 9.0, i as f32 * 0.5)).unzip();
    for level in levels() {
        let mut regs = Registers::new(program.len(), 37);
        let results = [a.as_ptr(), b.as_ptr()];
        let lanes = Lanes {
            row: 0,
            first: 0,
            count: 37,
            results: &results,
            arena: std::ptr::null(),
            ropes: &[],
        };
        // SAFETY: both results hold 37 lanes.
        let out =
            unsafe { std::slice::from_raw_parts(body::run(level, &program, lanes, &mut regs), 37) };
        for i in 0..37 {
            assert_eq!(out[i], a[i].max(0.0) - b[i], "{level:?} lane {i}");
        }
    }
}

/// What a body of one result gives of `x`.
fn result_of(level: Level, insts: Vec<Inst>, x: &[f32]) -> Vec<f32> {
    let program = body::Program::sources_only(&Body { insts }).expect("no operands");
    let mut regs = Registers::new(program.len(), x.len());
    let results = [x.as_ptr()];
    let lanes = Lanes {
        row: 0,
        first: 0,
        count: x.len(),
        results: &results,
        arena: std::ptr::null(),
        ropes: &[],
    };
    // SAFETY: the result holds as many lanes, and so do the registers.
    unsafe { std::slice::from_raw_parts(body::run(level, &program, lanes, &mut regs), x.len()) }
        .to_vec()
}

/// Groups of no whole vector and of many, whatever the numbers' magnitude.
#[test]
fn softmax_is_close_and_sums_to_one() {
    let mut noise = Noise(97);
    for (lanes, group) in [(1, 1), (5, 5), (37, 37), (96, 3), (96, 48), (4096, 4096)] {
        for spread in [1.0f32, 20.0, 1e4] {
            let x: Vec<f32> = noise.floats(lanes).iter().map(|v| v * spread).collect();
            let insts = vec![
                Inst::Result(0),
                Inst::Softmax {
                    x: 0,
                    group: group as u32,
                },
            ];
            for level in levels() {
                let have = result_of(level, insts.clone(), &x);
                for (x, have) in x.chunks(group).zip(have.chunks(group)) {
                    let name = format!("{level:?}, {group} of {lanes}, to {spread}");
                    assert_shares(&name, x, have);
                }
            }
        }
    }
}

/// Compares a group with the softmax in double precision.
fn assert_shares(name: &str, x: &[f32], have: &[f32]) {
    let most = f64::from(x.iter().copied().fold(f32::NEG_INFINITY, f32::max));
    let weights = x.iter().map(|x| (f64::from(*x) - most).exp());
    let total: f64 = weights.clone().sum();
    for (have, weight) in have.iter().zip(weights) {
        let apart = (f64::from(*have) - weight / total).abs();
        assert!(apart < 2e-6, "{name}: {have} for {}", weight / total);
    }
    let sum: f64 = have.iter().map(|v| f64::from(*v)).sum();
    assert!((sum - 1.0).abs() < 1e-5, "{name}: {sum}");
}
