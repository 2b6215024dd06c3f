//! A LoRA as llama.cpp's `convert_lora_to_gguf.py` writes it.

use super::{At, Lora, Matrix};
use crate::Result;
use crate::base_model::Base;
use crate::draft::interleave;
use crate::factors::transposed;
use rusty_loader::Meta;
use rusty_loader::arch::{gguf_name, gguf_reorders_pairs};
use rusty_loader::gguf::write::GgufWriter;
use std::collections::BTreeMap;
use std::path::Path;

pub(super) fn write(lora: &Lora, name: &str, base: &Base<'_>, out: &Path) -> Result<()> {
    let arch = gguf_name(&base.graph.arch);
    let mut writer = GgufWriter::new(arch);
    writer.meta("general.type", Meta::from("adapter"));
    writer.meta("general.name", Meta::from(name));
    writer.meta("adapter.type", Meta::from("lora"));
    writer.meta("adapter.lora.alpha", Meta::F64(f64::from(lora.alpha)));
    let mut bytes = BTreeMap::new();
    for pair in &lora.pairs {
        let heads = match pair.at {
            At::Site(id) => base.rotated_heads(id),
            // Architectures with such modules have the rows of checkpoints in GGUFs, too.
            At::Sites | At::Experts(_) | At::Embedding => None,
        };
        let module = gguf_module(&pair.module);
        let heads = heads.filter(|_| gguf_reorders_pairs(arch));
        for (end, matrix) in [("lora_a", &pair.a), ("lora_b", &pair.b)] {
            let mut matrix = Matrix {
                values: matrix.values.clone(),
                ..*matrix
            };
            if let Some(head_dim) = heads.filter(|_| end == "lora_b") {
                interleave(&mut matrix.values, matrix.columns, head_dim);
            }
            if pair.at == At::Embedding && end == "lora_a" {
                matrix = Matrix {
                    rows: matrix.columns,
                    columns: matrix.rows,
                    values: transposed(&matrix.values, matrix.rows, matrix.columns),
                    format: matrix.format,
                };
            }
            let name = format!("{module}.weight.{end}");
            let shape = match pair.at {
                At::Experts(count) => &[count, matrix.rows / count, matrix.columns][..],
                _ => &[matrix.rows, matrix.columns],
            };
            writer.tensor(&name, matrix.format, shape);
            let stored = matrix.bytes(out, &name)?;
            bytes.insert(name, stored);
        }
    }
    writer.save(out, |name, file| file.write_all(&bytes[name]))?;
    let embedded = lora.pairs.iter().any(|pair| pair.at == At::Embedding);
    if embedded && base.tied_head().is_some() {
        tracing::warn!(
            "{}: llama.cpp does not read a changed embedding of a model whose head shares it",
            out.display()
        );
    }
    Ok(())
}

/// GGUF calls the product of gate and up by the name of its second part.
fn gguf_module(module: &str) -> String {
    match module.strip_suffix(".ffn_gate_up") {
        Some(block) => format!("{block}.ffn_up"),
        None => module.into(),
    }
}
