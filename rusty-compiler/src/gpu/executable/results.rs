//! What the rows of a step get back. Its room is made before the step is enqueued, so that results come with the step's own
//! submission.

use crate::plan::{Plan, PlanValueId};
use crate::{RowResult, Step, StepOutput, Want};
use rusty_backend::{DeviceBuffer, Fetch};

/// Room for the results of a step.
pub(super) struct Results {
    /// Rows that want an output, and what.
    selected: Vec<u32>,
    wants: Vec<Want>,
    picks: Vec<u32>,
    logits: Rows,
    hidden: Rows,
}

/// Rows of a value from the first on.
struct Rows {
    /// Byte of the arena at which the value lies.
    at: u64,
    width: usize,
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
        Self {
            logits: Rows::of(plan, plan.logits, &wants, Want::Logits),
            hidden: Rows::of(plan, plan.hidden, &wants, Want::Hidden),
            selected,
            wants,
            picks,
        }
    }

    /// The ranges of the buffers of chosen tokens and of intermediates that they come from; empty where no row wants such.
    pub fn ranges<'a>(&self, picks: &'a DeviceBuffer, arena: &'a DeviceBuffer) -> [Fetch<'a>; 3] {
        let picks = Fetch {
            buffer: picks,
            offset: 0,
            len: self.picks.len() * 4,
        };
        let values = [&self.logits, &self.hidden].map(|rows| Fetch {
            buffer: arena,
            offset: rows.at,
            len: rows.data.len() * 4,
        });
        let [logits, hidden] = values;
        [picks, logits, hidden]
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
    pub fn places(&mut self) -> [&mut [u8]; 3] {
        [
            bytemuck::cast_slice_mut(&mut self.picks),
            bytemuck::cast_slice_mut(&mut self.logits.data),
            bytemuck::cast_slice_mut(&mut self.hidden.data),
        ]
    }

    /// The results, once the ranges have come.
    pub fn output(self) -> StepOutput {
        let result = |i: usize, want: Want| match want {
            Want::Logits => RowResult::Logits(self.logits.row(i)),
            Want::Hidden => RowResult::Hidden(self.hidden.row(i)),
            Want::ArgMax | Want::Nothing => RowResult::pick(self.picks[i]),
        };
        let wants = self.wants.iter().enumerate();
        let results = wants.map(|(i, want)| (self.selected[i], result(i, *want)));
        StepOutput {
            results: results.collect(),
        }
    }
}

impl Rows {
    /// Up to the last row that is wanted.
    fn of(plan: &Plan, id: PlanValueId, wants: &[Want], want: Want) -> Self {
        let value = plan.value(id);
        let width = value.width as usize;
        let last = wants.iter().rposition(|w| *w == want);
        Self {
            at: value.offset,
            width,
            data: vec![0.0; last.map_or(0, |last| (last + 1) * width)],
        }
    }

    fn row(&self, at: usize) -> Vec<f32> {
        self.data[at * self.width..(at + 1) * self.width].to_vec()
    }
}
