//! What an executable needs before its first step: kernels compiled, sizes known.

use super::attention::{ATTENTION_ROWS, SPLIT_CUBES};
use super::attention_cuts::Room;
use super::depth_cuts::DepthCut;
use super::kernels::gemv_order::COUNTER_STRIDE;
use super::stage::{Choice, Stage, When};
use super::text::{KernelSpec, Kind};
use crate::plan::{Operand, Plan};
use crate::self_test::is_refusal;
use crate::{Error, Result};
use rayon::prelude::*;
use rusty_backend::{GpuDevice, Pipeline, Target};
use rusty_graph::WeightId;
use std::collections::{BTreeSet, HashMap};

/// Kernels that are compiled.
pub(super) type Pipelines = HashMap<KernelSpec, Pipeline>;

/// Refuses a plan whose kernels another kind of device runs.
pub(super) fn of_this_language(plan: &Plan, here: &Target) -> Result<()> {
    if plan.target.language == here.language {
        return Ok(());
    }
    Err(Error::Target {
        target: here.name.clone(),
        kernel: "all".into(),
        reason: format!("the plan was made for {}", plan.target.name),
    })
}

/// Weights that bodies read as vectors.
pub(super) fn vector_weights(plan: &Plan) -> Vec<WeightId> {
    let operands = plan.kernels.iter().flat_map(|k| &k.operands);
    let vectors = operands.filter_map(|o| match o {
        Operand::Vector(w) => Some(*w),
        _ => None,
    });
    vectors.collect::<BTreeSet<_>>().into_iter().collect()
}

/// Compiles every kernel that is not `known`, in parallel, and gives those that are needed.
///
/// # Errors
/// [`Error::Refused`] where the device does not take one; [`Error::Device`] where it fails.
pub(super) fn compile<'a>(
    stages: impl IntoIterator<Item = &'a Stage>,
    target: &Target,
    device: &dyn GpuDevice,
    known: &Pipelines,
) -> Result<Pipelines> {
    let mut needed: HashMap<&KernelSpec, &Choice> = HashMap::new();
    for stage in stages {
        for choice in stage.plain.iter().chain(&stage.adapted) {
            needed.extend(choice.templates.iter().map(|t| (&t.spec, choice)));
        }
    }
    let fresh = |spec: &KernelSpec| -> Result<Pipeline> {
        let text = spec.found_text(target)?;
        Ok(device.pipeline(&text)?)
    };
    let made = needed
        .into_par_iter()
        .map(|(spec, choice)| {
            let pipeline = match known.get(spec) {
                Some(pipeline) => pipeline.clone(),
                None => fresh(spec).map_err(|error| refused(error, choice, target))?,
            };
            Ok((spec.clone(), pipeline))
        })
        .collect::<Result<Pipelines>>()?;
    tracing::debug!(kernels = made.len(), "compiled");
    Ok(made)
}

/// An error that says for what there may be another kernel, where it is not the device that fails.
fn refused(error: Error, choice: &Choice, target: &Target) -> Error {
    if !is_refusal(&error) {
        return error;
    }
    let label = choice.templates.first().map(|t| t.label.clone());
    Error::Refused {
        target: target.name.clone(),
        kernel: label.unwrap_or_default(),
        variant: Box::new(choice.variant.clone()),
        reason: error.to_string(),
    }
}

/// Words of counters of cubes that are done: of rows whose keys are split or whose best is looked for, of tiles that share their depth, and
/// of launches whose cubes wait for the first of the same
/// rows, of which there are at most as many as rows.
pub(super) fn counters(plan: &Plan) -> u64 {
    let rows = (plan.row_budget() as u64).next_multiple_of(16);
    u64::from(SPLIT_CUBES).max(u64::from(COUNTER_STRIDE) * rows)
}

/// Words that cubes leave each other at most, as splits of attention do, and what its kernels take of a step.
pub(super) fn attention_room(stages: &[Stage], plan: &Plan) -> (u32, Room) {
    let templates = || {
        let choices = stages.iter().flat_map(|s| s.plain.iter().chain(&s.adapted));
        choices.flat_map(|choice| &choice.templates)
    };
    let choices = templates().filter_map(|t| match &t.spec.kind {
        Kind::Choose(config) => Some(config.left_words()),
        _ => None,
    });
    let configs = templates().filter_map(|t| match &t.spec.kind {
        Kind::RowAttention(config) => Some(config),
        _ => None,
    });
    let configs: Vec<_> = configs.collect();
    let words = configs.iter().map(|c| SPLIT_CUBES * c.partial_words());
    let splits = configs.iter().map(|c| SPLIT_CUBES / c.shape.cubes());
    let room = Room {
        tile_rows: tile_rows(stages),
        alone: !configs.is_empty(),
        splits: splits.min().unwrap_or(0),
        behind: configs.iter().any(|c| !c.meets),
    };
    let words = words.chain(choices.map(|words| words * plan.output_budget() as u32));
    let shares = templates().filter_map(|t| t.depth.as_ref().map(DepthCut::left_words));
    (words.chain(shares).max().unwrap_or(0), room)
}

/// Query rows that every prefill attention kernel of a plan takes at once: many query heads per key/value head, or
/// little shared memory, leave room for fewer.
fn tile_rows(stages: &[Stage]) -> u32 {
    let prefill = stages.iter().flat_map(|s| &s.plain);
    let prefill = prefill.filter(|choice| choice.when != When::Decode(true));
    let rows = prefill
        .flat_map(|choice| &choice.templates)
        .filter_map(|t| match &t.spec.kind {
            Kind::Attention(config) => Some(config.rows),
            Kind::MatrixAttention(config) => Some(config.rows()),
            _ => None,
        });
    rows.min().unwrap_or(ATTENTION_ROWS)
}
