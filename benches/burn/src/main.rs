//! Burn's side of the comparison of chains: op by op, on the CPU (its Flex back end) or on a GPU through wgpu, without its
//! fusion. Each line that it reads is a job, as JSON, and is answered by a line with a JSON object: times, the answer and the
//! device, or an error.

use burn::tensor::{Bool, Device, DeviceKind, Tensor, TensorData, activation};
use serde::{Deserialize, Serialize};
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::Instant;

/// Different rows of activations.
const PERIOD: usize = 64;

#[derive(Deserialize)]
struct Job {
    chain: String,
    device: String,
    rows: usize,
    width: usize,
    inner: usize,
    heads: usize,
    kv_heads: usize,
    head_dim: usize,
    scores: usize,
    warm_up: f64,
    timed: f64,
}

#[derive(Serialize)]
struct Reply {
    /// Of each run.
    seconds: Vec<f64>,
    /// The last row.
    answer: Vec<f32>,
    /// The back end.
    device: &'static str,
}

#[derive(Serialize)]
struct Failed {
    error: String,
}

/// The number at `i` of input `seed`, between `-spread` and `spread`; every side makes the same.
fn value(seed: usize, i: usize, spread: f32) -> f32 {
    let hash = ((i + seed * 1_000_003) as u32).wrapping_mul(2_654_435_761);
    ((hash >> 8) as f32 / (1u32 << 23) as f32 - 1.0) * spread
}

struct Maker<'a> {
    job: &'a Job,
    device: &'a Device,
}

impl Maker<'_> {
    fn input(&self, seed: usize, rows: usize, width: usize, spread: f32) -> Tensor<2> {
        let values: Vec<f32> = (0..rows * width).map(|i| value(seed, i, spread)).collect();
        Tensor::from_data(TensorData::new(values, [rows, width]), self.device)
    }

    /// Rows of activations, which come again after [`PERIOD`].
    fn rows(&self, seed: usize, width: usize) -> Tensor<2> {
        let at = |i: usize| i / width % PERIOD * width + i % width;
        let count = self.job.rows * width;
        let values: Vec<f32> = (0..count).map(|i| value(seed, at(i), 1.7)).collect();
        Tensor::from_data(TensorData::new(values, [self.job.rows, width]), self.device)
    }

    /// A matrix that keeps the length of a row of `k`, turned for `matmul`.
    fn matrix(&self, seed: usize, n: usize, k: usize) -> Tensor<2> {
        self.input(seed, n, k, (3.0 / k as f32).sqrt()).transpose()
    }

    /// Cosines and sines of each row's position, twice side by side.
    fn angles(&self) -> [Tensor<2>; 2] {
        let half = self.job.head_dim / 2;
        [f64::cos, f64::sin].map(|f| {
            let of = |row: usize, i: usize| {
                let frequency = 1e4f64.powf(-2.0 * i as f64 / self.job.head_dim as f64);
                f(row as f64 * frequency) as f32
            };
            let values: Vec<f32> = (0..self.job.rows)
                .flat_map(|row| (0..2 * half).map(move |i| of(row, i % half)))
                .collect();
            let shape = [self.job.rows, 2 * half];
            Tensor::from_data(TensorData::new(values, shape), self.device)
        })
    }

    /// The chain, with its inputs on the device.
    fn chain(&self) -> Box<dyn Fn() -> Tensor<2>> {
        let Job {
            width,
            inner,
            scores,
            ..
        } = *self.job;
        match self.job.chain.as_str() {
            "add-multiply" => {
                let [a, b, c] = [1, 2, 3].map(|seed| self.rows(seed, width));
                Box::new(move || (a.clone() + b.clone()) * c.clone())
            }
            "norm" => {
                let (x, gain) = (self.rows(1, width), self.input(2, 1, width, 1.0));
                Box::new(move || norm(x.clone()) * gain.clone())
            }
            "softmax" => {
                let x = self.rows(1, scores);
                Box::new(move || activation::softmax(x.clone() * 4.0, 1))
            }
            "rotary" => self.rotary(),
            "matmul" => {
                let (x, w) = (self.rows(1, width), self.matrix(2, inner, width));
                Box::new(move || x.clone().matmul(w.clone()))
            }
            "matmul-add-gelu" => {
                let (x, w) = (self.rows(1, width), self.matrix(2, inner, width));
                let bias = self.input(3, 1, inner, 1.0);
                Box::new(move || activation::gelu(x.clone().matmul(w.clone()) + bias.clone()))
            }
            "norm-gate-up-silu" => {
                let (x, gain) = (self.rows(1, width), self.input(2, 1, width, 1.0));
                let [gate, up] = [3, 4].map(|seed| self.matrix(seed, inner, width));
                Box::new(move || {
                    let x = norm(x.clone()) * gain.clone();
                    let gated = activation::silu(x.clone().matmul(gate.clone()));
                    gated * x.matmul(up.clone())
                })
            }
            "attention" => self.attention(),
            other => panic!("no chain {other}"),
        }
    }

    fn rotary(&self) -> Box<dyn Fn() -> Tensor<2>> {
        let Job {
            rows,
            heads,
            head_dim,
            ..
        } = *self.job;
        let x = self.rows(1, heads * head_dim);
        let [cos, sin] = self.angles();
        let spread = move |t: Tensor<2>| t.reshape([rows, 1, head_dim]);
        let (cos, sin) = (spread(cos), spread(sin));
        Box::new(move || {
            let x = x.clone().reshape([rows, heads, head_dim]);
            let low = x.clone().slice([0..rows, 0..heads, 0..head_dim / 2]);
            let high = x.clone().slice([0..rows, 0..heads, head_dim / 2..head_dim]);
            let turned = Tensor::cat(vec![-high, low], 2);
            let rotated = x * cos.clone() + turned * sin.clone();
            rotated.reshape([rows, heads * head_dim])
        })
    }

    fn attention(&self) -> Box<dyn Fn() -> Tensor<2>> {
        let Job {
            rows,
            heads,
            kv_heads,
            head_dim,
            ..
        } = *self.job;
        let q = self.rows(1, heads * head_dim);
        let [k, v] = [2, 3].map(|seed| self.rows(seed, kv_heads * head_dim));
        let hidden = Tensor::<2, Bool>::tril_mask([rows, rows], 0, self.device);
        let split = move |t: Tensor<2>, heads| t.reshape([rows, heads, head_dim]).swap_dims(0, 1);
        Box::new(move || {
            let group = heads / kv_heads;
            let shared = |t: Tensor<2>| {
                let t = split(t, kv_heads).reshape([kv_heads, 1, rows, head_dim]);
                t.repeat_dim(1, group).reshape([heads, rows, head_dim])
            };
            let (k, v) = (shared(k.clone()), shared(v.clone()));
            let scores = split(q.clone(), heads).matmul(k.swap_dims(1, 2));
            let scores = scores * (1.0 / (head_dim as f32).sqrt());
            let mask = hidden.clone().reshape([1, rows, rows]);
            let mask = mask.repeat_dim(0, heads);
            let shares = activation::softmax(scores.mask_fill(mask, f32::NEG_INFINITY), 2);
            let out = shares.matmul(v).swap_dims(0, 1);
            out.reshape([rows, heads * head_dim])
        })
    }
}

/// Rows over their root mean square.
fn norm(x: Tensor<2>) -> Tensor<2> {
    let squares = x.clone() * x.clone();
    x / (squares.mean_dim(1) + 1e-6).sqrt()
}

fn answer(job: &Job) -> Reply {
    let (device, name) = match job.device.as_str() {
        "cpu" => (Device::flex(), "cpu (Flex)"),
        _ => (Device::wgpu(DeviceKind::DefaultDevice), "wgpu"),
    };
    let maker = Maker {
        job,
        device: &device,
    };
    let chain = maker.chain();
    let last = |out: Tensor<2>| {
        let [rows, width] = out.dims();
        let row = out.slice([rows - 1..rows, 0..width]).into_data();
        row.try_to_vec::<f32>().expect("floats")
    };
    // The first run compiles and chooses.
    let answer = last(chain());
    let times = |seconds: f64| {
        let start = Instant::now();
        let mut all = vec![];
        while start.elapsed().as_secs_f64() < seconds {
            let one = Instant::now();
            last(chain());
            all.push(one.elapsed().as_secs_f64());
        }
        all
    };
    times(job.warm_up);
    Reply {
        seconds: times(job.timed),
        answer,
        device: name,
    }
}

fn main() {
    for line in std::io::stdin().lines() {
        let job: Job = serde_json::from_str(&line.expect("text")).expect("a job");
        // Other chains may do. What was wrong is on standard error.
        let reply = catch_unwind(AssertUnwindSafe(|| answer(&job)));
        let said = match reply {
            Ok(reply) => serde_json::to_string(&reply),
            Err(panic) => serde_json::to_string(&Failed {
                error: format!("{} panicked: {}", job.chain, reason(&*panic)),
            }),
        };
        println!("{}", said.expect("JSON"));
    }
}

/// What a panic says.
fn reason(panic: &(dyn std::any::Any + Send)) -> &str {
    let text = panic.downcast_ref::<String>().map(String::as_str);
    let text = text.or(panic.downcast_ref::<&str>().copied());
    text.unwrap_or("no words")
}
