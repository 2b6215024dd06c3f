//! What the rows of a step get back. Its room is made before the step is enqueued, so that results come with the step's own
//! submission, each to where it stays.

use crate::plan::{Plan, PlanValueId};
use crate::{RowResult, Step, StepOutput, Want};
use rusty_backend::{DeviceBuffer, Fetch};

/// Room for the results of a step.
pub(super) struct Results {
    /// Rows that want an output, and what.
    selected: Vec<u32>,
    wants: Vec<Want>,
    /// A token for each of them, where one wants a token.
    picks: Vec<u32>,
    values: Vec<Value>,
}

/// Room for a row's logits or hidden state.
struct Value {
    /// Byte of the arena at which it lies.
    at: u64,
    data: Vec<f32>,
}

impl Results {
    /// Room for what the rows of `step` want.
    pub fn of(step: &Step<'_>, plan: &Plan) -> Self {
        let selected = step.selected();
        let wants: Vec<Want> = selected.iter().map(|r| step.wants[*r as usize]).collect();
        let picks = match wants.contains(&Want::ArgMax) {
            true => vec![0; selected.len()],
            false => Vec::new(),
        };
        let value = |(place, want): (usize, &Want)| match want {
            Want::Logits => Some(Value::of(plan, plan.logits, place)),
            Want::Hidden => Some(Value::of(plan, plan.hidden, place)),
            Want::ArgMax | Want::Nothing => None,
        };
        Self {
            values: wants.iter().enumerate().filter_map(value).collect(),
            selected,
            wants,
            picks,
        }
    }

    /// The ranges of the buffers of chosen tokens and of intermediates that they come from; that of tokens is empty where no row
    /// wants one.
    pub fn ranges<'a>(&self, picks: &'a DeviceBuffer, arena: &'a DeviceBuffer) -> Vec<Fetch<'a>> {
        let picks = Fetch {
            buffer: picks,
            offset: 0,
            len: self.picks.len() * 4,
        };
        let values = self.values.iter().map(|value| Fetch {
            buffer: arena,
            offset: value.at,
            len: value.data.len() * 4,
        });
        [picks].into_iter().chain(values).collect()
    }

    /// Whether no row wants anything.
    pub fn is_empty(&self) -> bool {
        self.selected.is_empty()
    }

    /// Tokens that the step chooses, one for each row that wants an output where any wants a token.
    pub fn chosen(&self) -> u32 {
        self.picks.len() as u32
    }

    /// Where the ranges go.
    pub fn places(&mut self) -> Vec<&mut [u8]> {
        let picks = bytemuck::cast_slice_mut(&mut self.picks);
        let values = self.values.iter_mut();
        let values = values.map(|value| bytemuck::cast_slice_mut(&mut value.data));
        [picks].into_iter().chain(values).collect()
    }

    /// The results, once the ranges have come.
    pub fn output(self) -> StepOutput {
        let mut values = self.values.into_iter().map(|value| value.data);
        let mut next = || values.next().unwrap_or_default();
        let wants = self.wants.iter().enumerate();
        let results = wants.map(|(place, want)| {
            let result = match want {
                Want::Logits => RowResult::Logits(next()),
                Want::Hidden => RowResult::Hidden(next()),
                Want::ArgMax | Want::Nothing => RowResult::pick(self.picks[place]),
            };
            (self.selected[place], result)
        });
        StepOutput {
            results: results.collect(),
        }
    }
}

impl Value {
    /// Of the row that is the `place`-th of those that want an output.
    fn of(plan: &Plan, id: PlanValueId, place: usize) -> Self {
        let value = plan.value(id);
        let width = value.width as usize;
        Self {
            at: value.offset + (place * width * 4) as u64,
            data: vec![0.0; width],
        }
    }
}
