//! The pool of KV pages: who holds which, with reference counts.

use crate::{Error, Result};

/// Pages of 16 tokens, counted; a page is free when nobody holds it.
#[derive(Debug)]
pub struct PagePool {
    free: Vec<u32>,
    holders: Vec<u32>,
}

impl PagePool {
    /// A pool of `pages` free pages.
    pub fn new(pages: u32) -> Self {
        Self {
            free: (0..pages).rev().collect(),
            holders: vec![0; pages as usize],
        }
    }

    /// Pages nobody holds.
    pub fn free(&self) -> usize {
        self.free.len()
    }

    /// All pages.
    pub fn total(&self) -> usize {
        self.holders.len()
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
            self.holders[*page as usize] = 1;
        }
        Ok(pages)
    }

    /// Adds a holder to a page that is held.
    pub fn share(&mut self, page: u32) {
        debug_assert!(self.holders[page as usize] > 0, "page {page} is free");
        self.holders[page as usize] += 1;
    }

    /// Lets pages go; those that nobody else holds become free.
    pub fn release(&mut self, pages: impl IntoIterator<Item = u32>) {
        for page in pages {
            let holders = &mut self.holders[page as usize];
            debug_assert!(*holders > 0, "page {page} released twice");
            *holders = holders.saturating_sub(1);
            if *holders == 0 {
                self.free.push(page);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::PagePool;

    #[test]
    fn a_shared_page_is_free_only_after_its_last_holder() {
        let mut pool = PagePool::new(4);
        let pages = pool.take(3).expect("pages");
        pool.share(pages[0]);
        pool.release(pages.clone());
        assert_eq!(pool.free(), 3);
        assert!(pool.take(4).is_err());
        assert_eq!(pool.free(), 3, "a refused request takes nothing");
        pool.release([pages[0]]);
        assert_eq!(pool.free(), 4);
    }
}
