//! A page, whatever was found.

use super::*;
use crate::devices::Present;
use crate::outcome::{Adapted, Facts};

fn devices() -> All {
    let present = |choice: &str| Present {
        choice: choice.into(),
        name: "a GPU".into(),
        memory_bytes: 1,
        hardware: true,
    };
    All {
        present: vec![present("cuda"), present("vulkan")],
        lines: vec!["cuda a GPU".into(), "vulkan a GPU".into()],
    }
}

fn speed(stage: Stage, device: &str, what: &str, rate: f64) -> Outcome {
    let facts = match what.contains("tg") {
        true => Facts {
            per_token: Some((1_000_000, 100)),
            ..Facts::default()
        },
        false => Facts::default(),
    };
    Outcome::new(stage, device, what, Found::Speed { rate, facts })
}

#[test]
fn a_model_is_a_line() {
    let products = Found::Products {
        operations: 5e14,
        rate: Some(20_000.0),
    };
    let outcomes = [
        Outcome::new(Stage::Bandwidth, "cuda", "copies", Found::Bandwidth(1e9)),
        speed(Stage::Speeds, "cuda", "m q4_0 tg128", 500.0),
        speed(Stage::Speeds, "cuda", "m q4_0 pp512", 10_000.0),
        speed(Stage::Speeds, "cuda", "m q4_0 tg128 as guessed", 400.0),
        speed(Stage::More, "cuda", "m q4_0 tg64", 450.0),
        speed(Stage::More, "cuda", "m q4_0 tg64x16", 900.0),
        speed(Stage::Speeds, "vulkan", "m q4_0 tg128", 250.0),
        Outcome::new(Stage::Matmul, "matmul", "m bf16 pp512", products),
        speed(Stage::Eager, "eager", "m bf16 tg128", 50.0),
    ];
    let lines = speeds(&devices(), &outcomes);
    let words = |line: &String| line.split_whitespace().collect::<Vec<_>>().join(" ");
    let rows: Vec<String> = lines[2..].iter().map(words).collect();
    let want = [
        "cuda m q4_0 500.0 50% 20.00 10.00x - - 10000 50%",
        "cuda m q4_0 as guessed 400.0 40% 25.00 - - - -",
        "vulkan m q4_0 250.0 - - 5.00x - 0.50x -",
    ];
    assert_eq!(rows, want);
}

#[test]
fn what_went_wrong_or_was_left_out_is_named() {
    let tests = Found::Tests {
        passed: 3,
        failed: vec!["of_bytes".into()],
        unfinished: vec!["of_tiles".into()],
        left_out: 2,
    };
    let without = Found::Without(vec!["gemv_bytes for 8 to 8 in q4_0".into()]);
    let adapted = Found::Speed {
        rate: 90.0,
        facts: Facts {
            adapted: Some(Adapted {
                base: 100.0,
                bound: 0.9,
            }),
            ..Facts::default()
        },
    };
    let start = Found::Start {
        first: 3.0,
        later: Some(0.5),
    };
    let outcomes = [
        Outcome::new(Stage::Quick, "cuda", "rusty-compiler", tests),
        Outcome::new(Stage::Speeds, "cuda", "m q4_0", without),
        Outcome::new(Stage::More, "cuda", "m q4_0 tg64 1 adapters", adapted),
        Outcome::new(Stage::Start, "cuda", "m q4_0 start", start),
        Outcome::new(Stage::Kernels, "vulkan", "the other kernels", Found::NoTime),
    ];
    assert!(outcomes[1].failed());
    let text = summary(&devices(), &outcomes);
    for part in [
        "tests: 3 passed, 1 failed, 1 unfinished",
        "cuda rusty-compiler: FAILED of_bytes",
        "cuda rusty-compiler: UNFINISHED of_tiles",
        "cuda m q4_0: DOES WITHOUT gemv_bytes for 8 to 8 in q4_0",
        "0.90 of base",
        "then after 0.50 s",
        "for: cuda rusty-compiler (2 tests); vulkan the other kernels;",
    ] {
        assert!(text.contains(part), "{part} is not in\n{text}");
    }
}

/// However much was found.
#[test]
fn it_is_a_page() {
    let names: Vec<String> = (0..100).map(|i| format!("kernels::of_{i}")).collect();
    let mut outcomes = vec![];
    for i in 0..60 {
        let what = format!("model-{i} q4_0");
        let tests = Found::Tests {
            passed: 1,
            failed: names.clone(),
            unfinished: names.clone(),
            left_out: 1,
        };
        let start = Found::Start {
            first: 1.0,
            later: None,
        };
        let adapted = Found::Speed {
            rate: 1.0,
            facts: Facts {
                adapted: Some(Adapted {
                    base: 1.0,
                    bound: 1.0,
                }),
                ..Facts::default()
            },
        };
        let error = Found::Error("é".repeat(500));
        let tg = format!("{what} tg128");
        outcomes.extend([
            Outcome::new(Stage::Conformance, "cuda", what.clone(), tests),
            Outcome::new(Stage::Start, "cuda", what.clone(), start),
            Outcome::new(Stage::More, "cuda", format!("{tg} 1 adapters"), adapted),
            Outcome::new(Stage::More, "cuda", what, error),
            speed(Stage::Speeds, "cuda", &tg, 1e5),
        ]);
    }
    let text = summary(&devices(), &outcomes);
    assert!(text.lines().count() <= 45, "{text}");
    assert!(text.chars().count() < 6000, "{text}");
    assert!(text.contains("kernels::of_0 ") && text.contains("lines more"));
}
