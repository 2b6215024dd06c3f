//! The pool of KV pages: which are free and which are held.

use crate::{Error, Result};

/// Pages of 16 tokens, each free or held by one sequence.
#[derive(Debug)]
pub struct PagePool {
    free: Vec<u32>,
    held: Vec<bool>,
}

impl PagePool {
    /// A pool of `pages` free pages.
    pub fn new(pages: u32) -> Self {
        Self {
            free: (0..pages).rev().collect(),
            held: vec![false; pages as usize],
        }
    }

    /// Pages nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// All pages.
    pub fn total(&self) -> usize {
        self.held.len()
    }

    /// Takes `count` pages, all or none.
    ///
    /// # Errors
    /// [`Error::CacheFull`] where fewer are free; nothing is taken then.
    pub fn take(&mut self, count: usize) -> Result<Vec<u32>> {
        if count > self.free.len() {
            return Err(Error::CacheFull {
                asked: count,
                free: self.free.len(),
                total: self.total(),
            });
        }
        let pages = self.free.split_off(self.free.len() - count);
        for page in &pages {
            self.held[*page as usize] = true;
        }
        Ok(pages)
    }

    /// Lets pages go. One that is free already stays so, once.
    pub fn release(&mut self, pages: impl IntoIterator<Item = u32>) {
        for page in pages {
            let held = std::mem::replace(&mut self.held[page as usize], false);
            debug_assert!(held, "page {page} released twice");
            if held {
                self.free.push(page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PagePool;

    #[test]
    fn pages_are_taken_all_or_none_and_come_back() {
        let mut pool = PagePool::new(4);
        let pages = pool.take(3).expect("pages");
        assert_eq!(pool.free(), 1);
        assert!(pool.take(2).is_err());
        assert_eq!(pool.free(), 1, "a refused request takes nothing");
        pool.release([pages[0]]);
        assert_eq!(pool.free(), 2);
        pool.release(pages[1..].iter().copied());
        assert_eq!(pool.free(), 4);
        let mut all = pool.take(4).expect("all pages");
        all.sort_unstable();
        assert_eq!(all, [0, 1, 2, 3]);
    }
}
