//! Formats of keys and values against other implementations' logits.

use crate::expected::Expected;
use crate::golden_paths::golden;
use crate::reference::{
    SELECTED, adapted_logits, all_logits, bound, bound_with, distance, everywhere, gpu,
    instruction_sets, mean_kl, try_bound,
};
use rusty_compiler::{BindOptions, KvFormat, SiteDelta, SlotData, SlotId};
use rusty_graph::SiteId;
use std::sync::Arc;

/// Keys and values of each format stay within its distance of the reference: root mean square of the logits'
/// differences, one less the cosine, and mean KL divergence, which is near half the mean square where that is small.
#[test]
fn caches_of_every_format_are_close() {
    let folders = ["models/qwen3-tied", "models/deepseek-v3", "models/gemma3"];
    for (folder, on) in folders
        .into_iter()
        .flat_map(|folder| everywhere().into_iter().map(move |on| (folder, on)))
    {
        let file = rusty_loader::open(golden(folder)).expect(folder);
        let expected = Expected::read(folder);
        let ids = expected.ids("ids.1").expect("ids");
        let want = expected.floats("logits.1");
        let pages: Vec<u32> = (0..24).collect();
        for kv in KvFormat::ALL {
            let (most, least, nats) = match kv {
                KvFormat::F32 => (1e-3, 1e-6, 1e-6),
                KvFormat::F16 => (0.05, 1e-4, 2e-5),
                // A routed expert may be another one.
                KvFormat::Bf16 => (0.4, 5e-3, 0.04),
                KvFormat::Q8_0 => (0.1, 3e-4, 3e-3),
                KvFormat::Q4_0 => (1.2, 6e-2, 0.5),
            };
            if !takes(folder, kv) {
                continue;
            }
            let mut exe = bound(&*file, &on, kv, 2);
            let have = all_logits(&mut *exe, &ids, SELECTED, &pages).concat();
            let (rms, apart) = distance(&have, &want);
            let kl = mean_kl(&have, &want, ids.len());
            let said =
                format!("{folder} {on:?} {kv:?}: rms {rms}, 1 - cosine {apart}, mean KL {kl}");
            println!("{said}");
            assert!(rms < most && apart < least && kl < nats, "{said}");
        }
    }
}

/// Values beyond half precision are stored as its largest number: as infinities, rows that give them no probability would
/// have no number.
#[test]
fn values_beyond_a_formats_range_harm_no_row() {
    let folder = "models/qwen3-tied";
    let file = rusty_loader::open(golden(folder)).expect(folder);
    let graph = rusty_graph::arch::build(&*file).expect("graph");
    let values = graph.sites.iter().enumerate();
    let values = values.filter(|(_, site)| site.name.contains("attn_v"));
    let huge = values.map(|(id, site)| {
        let delta = SiteDelta {
            gain_out: Some(vec![1e6; site.n as usize].into()),
            ..SiteDelta::default()
        };
        (SiteId(id as u32), delta)
    });
    let adapter = Arc::new(SlotData {
        name: "huge".into(),
        sites: huge.collect(),
        ..SlotData::default()
    });
    assert!(!adapter.sites.is_empty());
    let ids: Vec<u32> = (0..40).map(|i| i * 37 % 200).collect();
    let pages: Vec<u32> = (0..4).collect();
    for (kv, most) in [
        (KvFormat::F16, 1e-2),
        (KvFormat::Bf16, 1e-2),
        (KvFormat::Q8_0, 0.1),
    ] {
        let mut first = None;
        for on in everywhere() {
            let options = BindOptions {
                pages: 4,
                kv,
                slots: 1,
            };
            let mut exe = bound_with(&*file, &on, 2, options);
            exe.attach(SlotId(1), adapter.clone()).expect("attached");
            let have = adapted_logits(&mut *exe, SlotId(1), &ids, SELECTED, &pages).concat();
            assert!(have.iter().all(|l| l.is_finite()), "{on:?} {kv:?}");
            let (rms, _) = distance(&have, first.get_or_insert_with(|| have.clone()));
            assert!(rms < most, "{on:?} {kv:?}: {rms}");
        }
    }
}

/// Blocks are for values of their own.
fn takes(folder: &str, kv: KvFormat) -> bool {
    kv.block_lanes() == 1 || !folder.contains("deepseek")
}

/// What cannot be stored in blocks is refused with a way out.
#[test]
fn caches_that_a_device_cannot_hold_are_refused() {
    for (folder, on) in [
        ("models/deepseek-v3", instruction_sets().remove(0)),
        ("models/llama-mha-f16", instruction_sets().remove(0)),
        ("models/deepseek-v3", gpu()),
    ] {
        let file = rusty_loader::open(golden(folder)).expect(folder);
        let options = BindOptions {
            pages: 4,
            kv: KvFormat::Q8_0,
            slots: 0,
        };
        let refused = try_bound(&*file, &on, 1, options).err().expect(folder);
        let text = refused.to_string();
        assert!(text.contains("q8_0") && text.contains("take f16"), "{text}");
    }
}
