//! Executables of kernels that are right on a GPU and, where that is wanted, tuned for it.

use super::GpuExecutable;
use super::tuner::{self, Effort};
use crate::passes::select;
use crate::self_test::{is_refusal, replace_wrong};
use crate::{BUILD, BindOptions, Error, Executable, Plan, Result};
use rusty_backend::{GpuDevice, package};
use rusty_loader::ModelFile;
use std::sync::Arc;

/// [`bind_tested`](crate::bind_tested) on a GPU.
pub(crate) fn bind_tested_or_tuned(
    plan: Plan,
    file: &dyn ModelFile,
    gpu: &Arc<dyn GpuDevice>,
    options: &BindOptions,
    measuring: Option<&dyn Fn(u64, u64)>,
) -> Result<Box<dyn Executable>> {
    let packed = package::facts(&plan.target, BUILD).is_some();
    let Some(progress) = measuring.filter(|_| !packed) else {
        return Ok(Box::new(bind_gpu_tested(plan, file, gpu, options)?));
    };
    let effort = Effort::default();
    let tuned = bind_tuned(plan, file, gpu, options, &effort, progress)?;
    Ok(Box::new(tuned))
}

/// As [`bind_tested`](crate::bind_tested) on a GPU, where choices are measured with some effort unless an earlier process did it for a plan that does
/// without the same kernels. `progress` is told how many measurements are done, and how many there are.
///
/// # Errors
/// As [`bind_tested`](crate::bind_tested).
pub fn bind_tuned(
    plan: Plan,
    file: &dyn ModelFile,
    gpu: &Arc<dyn GpuDevice>,
    options: &BindOptions,
    effort: &Effort,
    progress: &dyn Fn(u64, u64),
) -> Result<GpuExecutable> {
    if let Some(tuning) = tuner::kept(&plan, options, effort) {
        let mut tuned = plan.clone();
        tuned.tuning = tuning;
        select::again(&mut tuned)?;
        match bind_gpu_tested(tuned, file, gpu, options) {
            Err(error) if is_refusal(&error) => {
                tracing::warn!("{}: not tuned as before: {error}", plan.target.name);
            }
            bound => return bound,
        }
    }
    // Tested first, because measuring takes what guesses give for right.
    let mut executable = bind_gpu_tested(plan, file, gpu, options)?;
    if !is_tuned_without(&mut executable, effort)? {
        tuner::tune(&mut executable, effort, progress)?;
    }
    replace_wrong(&mut executable, file)?;
    Ok(executable)
}

/// Whether an executable takes what was found for a plan that does without the same kernels: which ones is only known once it is bound.
fn is_tuned_without(executable: &mut GpuExecutable, effort: &Effort) -> Result<bool> {
    let plan = executable.plan();
    // What was found for a plan with all kernels has been looked for.
    if plan.excluded.is_empty() {
        return Ok(false);
    }
    let Some(tuning) = tuner::kept(plan, executable.options(), effort) else {
        return Ok(false);
    };
    match executable.retune(tuning) {
        Err(error) if is_refusal(&error) => {
            let target = &executable.plan().target.name;
            tracing::warn!("{target}: not tuned as before: {error}");
            Ok(false)
        }
        retuned => retuned.map(|()| true),
    }
}

/// As [`bind_tested`](crate::bind_tested) on a GPU, with kernels as the plan has chosen them: what it then does without is in the executable's
/// [plan](GpuExecutable::plan).
///
/// # Errors
/// As [`bind_tested`](crate::bind_tested).
pub fn bind_gpu_tested(
    mut plan: Plan,
    file: &dyn ModelFile,
    gpu: &Arc<dyn GpuDevice>,
    options: &BindOptions,
) -> Result<GpuExecutable> {
    let mut executable = loop {
        match GpuExecutable::bind(plan.clone(), file, gpu.clone(), *options) {
            Err(Error::Refused {
                target,
                kernel,
                variant,
                reason,
            }) => {
                tracing::warn!(
                    "{target}: {variant} is refused ({kernel}: {reason}), so it does without"
                );
                select::without(&mut plan, vec![*variant])?;
            }
            bound => break bound?,
        }
    };
    replace_wrong(&mut executable, file)?;
    Ok(executable)
}
