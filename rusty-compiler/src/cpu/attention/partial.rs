//! What attention over some keys leaves of each query, and putting two of them together.

/// Most queries (rows times heads of a group) of a task.
pub(in crate::cpu) const MAX_QUERIES: usize = 32;

/// Softmax state of some queries: maximum, sum of exponentials, and the weighted values `[queries, padded]`.
#[derive(Clone, Copy)]
pub(in crate::cpu) struct Partial {
    pub(in crate::cpu) at: *mut f32,
    pub(in crate::cpu) padded: usize,
}

impl Partial {
    /// Values of one partial.
    pub(in crate::cpu) fn words(padded: usize) -> usize {
        MAX_QUERIES * (padded + 2)
    }

    pub(super) fn max(&self, q: usize) -> *mut f32 {
        self.at.wrapping_add(q)
    }

    pub(super) fn sum(&self, q: usize) -> *mut f32 {
        self.at.wrapping_add(MAX_QUERIES + q)
    }

    pub(super) fn values(&self, q: usize) -> *mut f32 {
        self.at.wrapping_add(2 * MAX_QUERIES + q * self.padded)
    }

    /// No key seen.
    ///
    /// # Safety
    /// The memory is this thread's.
    pub(in crate::cpu) unsafe fn clear(&self, queries: usize) {
        // SAFETY: the caller's duty.
        unsafe {
            for q in 0..queries {
                *self.max(q) = f32::NEG_INFINITY;
                *self.sum(q) = 0.0;
                std::ptr::write_bytes(self.values(q), 0, self.padded);
            }
        }
    }
}

/// Folds the partial of a later span into `into`.
///
/// # Safety
/// Both are this thread's and hold `queries` queries.
pub(in crate::cpu) unsafe fn merge(into: Partial, later: Partial, queries: usize) {
    // SAFETY: the caller's duty.
    unsafe {
        for q in 0..queries {
            let (a, b) = (*into.max(q), *later.max(q));
            if b == f32::NEG_INFINITY {
                continue;
            }
            let now = a.max(b);
            let (fa, fb) = ((a - now).exp(), (b - now).exp());
            *into.max(q) = now;
            *into.sum(q) = *into.sum(q) * fa + *later.sum(q) * fb;
            let values = std::slice::from_raw_parts_mut(into.values(q), into.padded);
            let others = std::slice::from_raw_parts(later.values(q), later.padded);
            for (v, o) in values.iter_mut().zip(others) {
                *v = *v * fa + o * fb;
            }
        }
    }
}
