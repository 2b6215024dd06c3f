//! Failures as a user meets them: exit code, cause and way out.

use crate::command::failure;

#[test]
fn failures_name_the_cause_and_the_way_out() {
    let (code, text) = failure(&["run", "hi", "-m", "/nonesuch/model.gguf"]);
    assert!(
        code == 1 && text.contains("/nonesuch/model.gguf"),
        "{code} {text}"
    );
    let (code, text) = failure(&["run", "hi", "--device", "abacus"]);
    assert!(
        code == 1 && text.contains("abacus") && text.contains("vulkan"),
        "{code} {text}"
    );
    let (code, text) = failure(&["run", "hi", "--device", "metal"]);
    assert!(
        code == 1 && text.contains("available: cpu"),
        "{code} {text}"
    );
    let (code, text) = failure(&["run", "hi", "--adapter", "nonesuch"]);
    assert!(
        code == 1 && text.contains("nonesuch") && text.contains("sql"),
        "{code} {text}"
    );
    let (code, text) = failure(&["run", "hi", "--experts", "nonesuch"]);
    assert!(
        code == 1 && text.contains("nonesuch") && text.contains("'demo'"),
        "{code} {text}"
    );
    for words in [
        &["run", "hi", "--experts", "demo", "--adapter", "sql"][..],
        &["chat", "--router", "embedding"],
        &["run", "hi", "--experts", "demo", "--adapter-mix", "linear"],
    ] {
        let (code, text) = failure(words);
        assert!(code == 2 && text.contains("--experts"), "{code} {text}");
    }
    let (code, text) = failure(&["run", "hi", "--adapter", "sql=much"]);
    assert!(code == 1 && text.contains("much"), "{code} {text}");
    let (code, text) = failure(&["run", "hi", "--ctx", "900000000", "--device", "cpu"]);
    assert!(code == 1 && text.contains("out of memory"), "{code} {text}");
    for words in [
        &["run", "hi", "--ctx", "18446744073709551615"][..],
        &["bench", "-p", "900000000"],
        &["bench", "-p", "18446744073709551615", "-n", "1"],
    ] {
        let (code, text) = failure(&[words, &["--device", "cpu"]].concat());
        assert!(code == 1 && text.contains("out of memory"), "{code} {text}");
    }
    let (code, text) = failure(&["run", "hi", "--threads", "100000"]);
    assert!(code == 2 && text.contains("cores"), "{code} {text}");
    let (code, text) = failure(&["run", "hi", "--temp", "-1"]);
    assert!(code == 1 && text.contains("temperature"), "{code} {text}");
    let (code, text) = failure(&["run", "hi", "--adapter", "sql=1e38"]);
    assert!(code == 1 && text.contains("not finite"), "{code} {text}");
    let (code, text) = failure(&["run", "  "]);
    assert!(code == 1 && text.contains("no prompt"), "{code} {text}");
    let (code, text) = failure(&["tokenize", env!("CARGO_MANIFEST_DIR")]);
    assert!(code == 1 && text.contains("no text"), "{code} {text}");
    let (code, text) = failure(&["inspect", env!("CARGO_MANIFEST_DIR")]);
    assert!(
        code == 1 && text.contains("no model folder"),
        "{code} {text}"
    );
    let (code, text) = failure(&["bench", "--batch", "100000", "--device", "cpu"]);
    assert!(code == 1 && text.contains("sequences"), "{code} {text}");
    let (code, text) = failure(&["run"]);
    assert!(code == 1 && text.contains("no prompt"), "{code} {text}");
    let (code, text) = failure(&["logits", "--tokens", "99999", "--out", "/tmp/never"]);
    assert!(code == 1 && text.contains("99999"), "{code} {text}");
    let (code, text) = failure(&["explain", "--target", "toaster"]);
    assert!(code == 1 && text.contains("h200"), "{code} {text}");
    let (code, text) = failure(&["explain", "--target", "h200", "--device", "abacus"]);
    assert!(code == 2 && text.contains("--device"), "{code} {text}");
    let rope = ["--rope-scaling", "none", "--rope-factor", "4"];
    let (code, text) = failure(&[&["inspect"][..], &rope].concat());
    assert!(code == 1 && text.contains("--rope-factor"), "{code} {text}");
    let (code, text) = failure(&["perplexity", "model", "text", "--chunk", "0"]);
    assert!(code == 2 && text.contains("--chunk"), "{code} {text}");
    let (code, text) = failure(&["run", "hi", "--dry-base", "2"]);
    assert!(
        code == 2 && text.contains("--dry-multiplier"),
        "{code} {text}"
    );
    let (code, text) = failure(&["run", "hi", "--typical-p", "0"]);
    assert!(
        code == 1 && text.contains("typical-p is 0"),
        "{code} {text}"
    );
    let (code, _) = failure(&["run", "--temp", "warm", "hi"]);
    assert_eq!(code, 2);
    let (code, _) = failure(&["frobnicate"]);
    assert_eq!(code, 2);
}
