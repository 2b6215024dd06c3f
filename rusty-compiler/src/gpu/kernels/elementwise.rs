//! Functions of single lanes.

// `erf` is CubeCL's; the standard library's unstable method of that name takes no part.
#![allow(unstable_name_collisions)]

use cubecl::prelude::*;
use rusty_graph::{BinaryOp, UnaryOp};

/// Functions of one operand.
#[cube]
pub(super) fn unary(x: f32, #[comptime] op: UnaryOp) -> f32 {
    match op {
        UnaryOp::Silu => x / (1.0 + (-x).exp()),
        UnaryOp::Gelu => 0.5 * x * (1.0 + (x * 0.707_106_77_f32).erf()),
        UnaryOp::GeluTanh => {
            let inner = 0.797_884_6_f32 * (x + 0.044715f32 * x * x * x);
            0.5 * x * (1.0 + safe_tanh(inner))
        }
        UnaryOp::Tanh => safe_tanh(x),
        UnaryOp::Sigmoid => 1.0 / (1.0 + (-x).exp()),
        UnaryOp::Relu => max(x, 0.0f32),
        UnaryOp::Neg => -x,
    }
}

/// `tanh` that does not overflow where a device computes it by `exp`.
#[cube]
pub(super) fn safe_tanh(x: f32) -> f32 {
    1.0 - 2.0 / ((2.0 * x).exp() + 1.0)
}

/// Functions of two operands.
#[cube]
pub(super) fn binary(a: f32, b: f32, #[comptime] op: BinaryOp) -> f32 {
    match op {
        BinaryOp::Add => a + b,
        BinaryOp::Sub => a - b,
        BinaryOp::Mul => a * b,
        BinaryOp::Div => a / b,
    }
}
