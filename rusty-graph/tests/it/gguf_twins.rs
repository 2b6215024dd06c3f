//! Every golden model once more as a GGUF: the same logits, whichever file the network came from.

use super::expected::Expected;
use super::gguf_twin::twin;
use super::oracle::assert_close;
use super::{MODELS, open};
use rusty_graph::Interpreter;
use rusty_loader::SharedBytes;

#[test]
fn gguf_twins_give_the_same_logits() {
    for model in MODELS {
        let folder = format!("models/{model}");
        let bytes = SharedBytes::from_vec(twin(&*open(&folder)));
        let file = rusty_loader::open_gguf_bytes(model, bytes).expect(model);
        let graph = rusty_graph::arch::build(&*file).expect(model);
        let interpreter = Interpreter::new(&graph, &*file).expect(model);
        let expected = Expected::read(&folder);
        for prompt in 0..3 {
            let ids = expected.ids(&format!("ids.{prompt}")).expect("ids");
            let values = interpreter.run(&ids, &[]).expect(model);
            let want = expected.floats(&format!("logits.{prompt}"));
            assert_close(
                &format!("{model} as GGUF, {prompt}"),
                values.logits(),
                &want,
            );
        }
    }
}
