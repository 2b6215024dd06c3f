//! `rusty adapter`: what can be done with adapter files beside running them.

use crate::adapter::{prepare, split, stated, stored_bytes};
use crate::args::{
    Adapter, AdapterCompress, AdapterConvert, AdapterInspect, AdapterMerge, MergeMethod,
};
use crate::{model, progress, stderr};
use anyhow::{Context, Result, ensure};
use rusty_adapters::merge::{Method, merge};
use rusty_adapters::{Base, Container, Precision, Pruning, Stated, compress, export, packed};
use rusty_backend::DeviceChoice;
use rusty_compiler::{DeltaTable, KvFormat, SlotData};
use rusty_engine::experts::Library;
use rusty_engine::{AdapterSet, Engine, EngineOptions, Message, Prompt};
use rusty_graph::Graph;
use rusty_loader::ModelFile;
use rusty_loader::output_file::{self, is_taken};
use serde_json::{Value, json};
use std::io::Write;
use std::path::Path;
use std::time::Instant;

/// Tokens of an answer by which compression is measured.
const ANSWER: usize = 48;

/// Runs one of the commands.
pub fn run(command: &Adapter) -> Result<()> {
    match command {
        Adapter::Inspect(options) => inspect(options),
        Adapter::Merge(options) => merged(options),
        Adapter::Convert(options) => convert(options),
        Adapter::Compress(options) => compressed(options),
    }
}

fn inspect(options: &AdapterInspect) -> Result<()> {
    let file = model::open(options.model.as_deref())?;
    let graph = rusty_graph::arch::build(&*file)?;
    let base = Base::new(&graph, &*file);
    let stated = stated(&options.adapter)?;
    let start = Instant::now();
    let adapter = match prepare(&options.adapter, &base, Precision::Stored) {
        Err(error) => return unread(options, &stated, error),
        Ok(adapter) => adapter,
    };
    let seconds = start.elapsed().as_secs_f64();
    let mut out = std::io::stdout().lock();
    if options.json {
        let object = facts(&adapter, &stated, &graph, seconds);
        writeln!(out, "{}", serde_json::to_string_pretty(&object)?)?;
        return Ok(());
    }
    writeln!(out, "{}, for {}", adapter.name, file.label())?;
    write_stated(&mut out, &stated)?;
    let mib = adapter.bytes() as f64 / (1u64 << 20) as f64;
    writeln!(
        out,
        "tables          {mib:.2} MiB, prepared in {seconds:.3} s"
    )?;
    writeln!(out, "virtual tokens  {}", adapter.virtual_tokens())?;
    let embedding = match changes_embedding(&adapter) {
        true => "changed",
        false => "as it is",
    };
    writeln!(out, "embedding       {embedding}")?;
    writeln!(
        out,
        "sites           {} of {}",
        adapter.sites.len(),
        graph.sites.len()
    )?;
    print_sites(&mut out, &adapter, &graph)
}

/// Whether an adapter cannot be read for a model because it is another's.
fn is_misfit(error: &anyhow::Error) -> bool {
    use rusty_adapters::Error::{Misfit, Product};
    matches!(error.downcast_ref(), Some(Misfit { .. } | Product { .. }))
}

/// What the demo's adapters state as their model.
const DEMO: &str = "rusty-demo";
const OTHERS: &str = "the demo model was looked at: give the adapter's own with -m";

/// What is said of an adapter that could not be read for the model: what it states itself, where no model was given and it is not the demo's.
fn unread(options: &AdapterInspect, stated: &Stated, error: anyhow::Error) -> Result<()> {
    let made_for_demo = stated.base_model.as_deref() == Some(DEMO);
    match (&options.model, is_misfit(&error)) {
        (Some(_), true) => Err(error.context("it does not fit this model")),
        (Some(_), false) => Err(error),
        (None, _) if made_for_demo => Err(error),
        (None, false) => Err(error.context(OTHERS)),
        (None, true) => {
            print_stated(options, stated)?;
            stderr::line(format_args!("{error:#}; {OTHERS}"));
            Ok(())
        }
    }
}

/// What an adapter says of itself.
fn print_stated(options: &AdapterInspect, stated: &Stated) -> Result<()> {
    let mut out = std::io::stdout().lock();
    if options.json {
        let object = json!({
            "adapter": options.adapter, "kind": stated.kind, "alpha": stated.alpha,
            "base_model": stated.base_model,
        });
        writeln!(out, "{}", serde_json::to_string_pretty(&object)?)?;
    } else {
        writeln!(out, "{}", options.adapter)?;
        write_stated(&mut out, stated)?;
    }
    Ok(())
}

fn write_stated(out: &mut dyn Write, stated: &Stated) -> Result<()> {
    let alpha = stated.alpha.map_or("-".into(), |a| a.to_string());
    let made_for = stated.base_model.as_deref().unwrap_or("-");
    writeln!(out, "kind            {}", stated.kind)?;
    writeln!(out, "alpha           {alpha}")?;
    Ok(writeln!(out, "made for        {made_for}")?)
}

/// Whether tokens are embedded otherwise; a soft prompt only comes in front of them.
fn changes_embedding(adapter: &SlotData) -> bool {
    let embedding = adapter.embedding.as_ref();
    embedding.is_some_and(|e| e.table.is_some() || !e.low_ranks.is_empty())
}

/// A line for each site that an adapter changes.
fn print_sites(out: &mut dyn Write, adapter: &SlotData, graph: &Graph) -> Result<()> {
    for (id, d) in &adapter.sites {
        let mut also = vec![];
        if let Some(kron) = &d.kron {
            also.push(format!("{} x {} blocks", kron.rows, kron.columns));
        }
        for (there, what) in [
            (d.gain_low.is_some(), "gain of the factors"),
            (d.gain_in.is_some(), "input gain"),
            (d.gain_out.is_some(), "output gain"),
            (d.bias.is_some(), "bias"),
        ] {
            also.extend(there.then(|| what.to_string()));
        }
        let name = &graph.site(*id).name;
        let (a, b, also) = (format(&d.a), format(&d.b), also.join(", "));
        writeln!(
            out,
            "  {name:<22} rank {:<5} A {a:<5} B {b:<5} {also}",
            d.rank
        )?;
    }
    Ok(())
}

/// An adapter as JSON.
fn facts(adapter: &SlotData, stated: &Stated, graph: &Graph, seconds: f64) -> Value {
    let sites = adapter.sites.iter().map(|(id, d)| {
        json!({
            "site": graph.site(*id).name, "rank": d.rank, "a": format(&d.a), "b": format(&d.b),
            "blocks": d.kron.as_ref().map(|kron| [kron.rows, kron.columns]),
            "gain_low": d.gain_low.is_some(), "gain_in": d.gain_in.is_some(), "gain_out": d.gain_out.is_some(),
            "bias": d.bias.is_some(), "bytes": d.bytes(),
        })
    });
    json!({
        "adapter": adapter.name, "bytes": adapter.bytes(), "rank": adapter.largest_rank(),
        "virtual_tokens": adapter.virtual_tokens(), "embedding": changes_embedding(adapter),
        "kind": stated.kind, "alpha": stated.alpha, "base_model": stated.base_model,
        "prepared_s": seconds, "sites": sites.collect::<Vec<_>>(),
    })
}

fn format(table: &Option<DeltaTable>) -> &'static str {
    table.as_ref().map_or("-", |t| t.format().name())
}

fn merged(options: &AdapterMerge) -> Result<()> {
    let model = options.model.as_deref().context(
        "merging copies the model's file, and the built-in demo has none: \
         pass a GGUF file, a folder or a hub id as -m MODEL",
    )?;
    let source = model::resolve(model)?;
    let file = rusty_loader::open(&source)?;
    let graph = rusty_graph::arch::build(&*file)?;
    let base = Base::new(&graph, &*file);
    let mut adapters = vec![];
    for argument in &options.adapters {
        let (name, weight) = split(argument)?;
        adapters.push((prepare(name, &base, Precision::Stored)?, weight));
    }
    let density = options.density.unwrap_or(0.5);
    if options.density.is_some()
        && matches!(options.method, MergeMethod::Linear | MergeMethod::Slerp)
    {
        tracing::warn!("--density is for --method ties and dare");
    }
    let method = match options.method {
        MergeMethod::Linear => Method::Linear,
        MergeMethod::Slerp => Method::Slerp,
        MergeMethod::Ties => Method::Ties { density },
        MergeMethod::Dare => Method::Dare {
            density,
            seed: options.seed,
        },
    };
    let bar = progress::bar("merging", false);
    let parts: Vec<(&SlotData, f32)> = adapters.iter().map(|(a, w)| (a, *w)).collect();
    let paths = (&*source, &*options.out);
    merge(&parts, method, &base, paths, &|done, all| {
        bar.set_length(all as u64);
        bar.set_position(done as u64);
    })?;
    bar.finish_and_clear();
    Ok(writeln!(std::io::stdout(), "{}", options.out.display())?)
}

fn convert(options: &AdapterConvert) -> Result<()> {
    let ending = options.out.extension().and_then(|e| e.to_str());
    ensure!(
        !ending.is_some_and(|e| ["bin", "json", "pt", "pth", "safetensors"].contains(&e)),
        "{}: a converted adapter is a .gguf file or a folder",
        options.out.display()
    );
    let file = model::open(options.model.as_deref())?;
    let graph = rusty_graph::arch::build(&*file)?;
    let base = Base::new(&graph, &*file);
    let adapter = prepare(&options.adapter, &base, Precision::Stored)?;
    export(&adapter, &base, &options.out, Container::of(&options.out))?;
    Ok(writeln!(std::io::stdout(), "{}", options.out.display())?)
}

fn compressed(options: &AdapterCompress) -> Result<()> {
    let ending = options.out.extension();
    ensure!(
        ending.is_some_and(|e| e == "safetensors"),
        "{}: a compressed adapter is a .safetensors file",
        options.out.display()
    );
    ensure!(
        !is_taken(&options.out),
        "{} is there already",
        options.out.display()
    );
    output_file::check(&options.out)?;
    let file: Box<dyn ModelFile> = model::open(options.model.as_deref())?;
    // Single precision keys and values: what is measured should be the adapter's loss alone.
    let engine = Engine::load(
        &*file,
        &EngineOptions {
            device: DeviceChoice::Cpu,
            kv: KvFormat::F32,
            ..EngineOptions::default()
        },
    )?;
    engine.keep_base(file.into());
    let base = engine.adapter_base();
    let adapter = prepare(&options.adapter, &base, Precision::Stored)?;
    let small = smaller(options, &adapter, &base)?;
    let cost = cost(options, &engine, &adapter, &small)?;
    packed::pack(&small, &base, &options.out, true)?;
    let (before, after) = (
        stored_bytes(&options.adapter).unwrap_or(adapter.bytes() as u64),
        stored_bytes(&options.out.to_string_lossy()).unwrap_or_default(),
    );
    let mut out = std::io::stdout().lock();
    let ratio = before as f64 / after.max(1) as f64;
    writeln!(out, "{}", options.out.display())?;
    writeln!(out, "bytes     {before} -> {after}, {ratio:.1}x smaller")?;
    writeln!(out, "{cost}")?;
    Ok(())
}

/// The adapter pruned, and in another precision.
fn smaller(options: &AdapterCompress, adapter: &SlotData, base: &Base<'_>) -> Result<SlotData> {
    let pruning = match (options.sparsity, options.block_sparsity) {
        (share, _) if share > 0.0 => Pruning::Values(share),
        (_, share) if share > 0.0 => Pruning::Blocks(share),
        _ => Pruning::Nothing,
    };
    let small = compress(adapter, base, pruning, options.precision.into());
    let sites = adapter.sites.len();
    ensure!(
        sites == 0 || !small.sites.is_empty() || small.embedding.is_some(),
        "nothing would be left of '{}' at any of its {sites} sites: take out less with --sparsity or --block-sparsity",
        adapter.name
    );
    Ok(small)
}

/// What compression costs, for people. Where the model takes no words there is nothing to measure it by.
fn cost(
    options: &AdapterCompress,
    engine: &Engine,
    adapter: &SlotData,
    small: &SlotData,
) -> Result<String> {
    if engine.tokenizer().is_none() && options.prompts.is_none() {
        return Ok("measured  not at all: the model has no tokenizer that can be read".into());
    }
    let (prompts, source) = prompts(options, engine)?;
    let first: AdapterSet = engine.attach(adapter.clone())?.into();
    let second: AdapterSet = engine.attach(small.clone())?.into();
    let apart = engine.divergence(&prompts, ANSWER, &first, &second)?;
    Ok(format!(
        "logit KL  mean {:.7}, max {:.5}; the same token is first at {:.1}% of {} positions\n\
         measured  on {} prompts: {source}",
        apart.mean,
        apart.max,
        apart.same_top * 100.0,
        apart.positions,
        prompts.len()
    ))
}

/// The prompts as the model is asked them, and where they come from: a file, a demo expert's examples, or those of all.
fn prompts(options: &AdapterCompress, engine: &Engine) -> Result<(Vec<Prompt>, String)> {
    let (lines, source): (Vec<String>, String) = match &options.prompts {
        Some(path) => {
            let text = std::fs::read_to_string(path);
            let text = text.with_context(|| path.display().to_string())?;
            let lines = text.lines().map(str::to_string).collect();
            (lines, path.display().to_string())
        }
        None => {
            let library = Library::demo()?;
            let own = Path::new(&options.adapter).file_name();
            let own = library.manifests().find(|m| Some(m.name.as_ref()) == own);
            match own {
                Some(manifest) => {
                    let source = format!("the examples of the demo's expert {}", manifest.name);
                    (manifest.examples.clone(), source)
                }
                None => {
                    let all = library.manifests().flat_map(|m| m.examples.clone());
                    let source = "the examples of the demo's experts; --prompts takes others";
                    (all.collect(), source.into())
                }
            }
        }
    };
    let lines = lines.into_iter().filter(|l| !l.trim().is_empty());
    let prompt = |line: String| match engine.has_template() {
        true => Prompt::Chat(vec![Message::new("user", &line)]),
        false => Prompt::Text(line),
    };
    let prompts: Vec<Prompt> = lines.map(prompt).collect();
    if let Some(path) = &options.prompts {
        ensure!(!prompts.is_empty(), "{} holds no prompt", path.display());
    }
    Ok((prompts, source))
}
