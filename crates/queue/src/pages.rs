//! Memory in pages of a fixed size: growing never copies values, so the millionth push costs as
//! much as the first.
//!
//! [`Pages`] is a stack with indexes. [`Slab`] hands out indexes that stay valid until their value
//! is removed; freed slots are reused, last freed first, and an emptied slab frees all pages but
//! one.

use std::ops::{Index, IndexMut, Range};

use crate::intrusive_list::NONE;

/// Values per page.
const PAGE_LEN: usize = 1024;

/// A stack that grows and shrinks by whole pages. Every page but the last is full.
pub(crate) struct Pages<T> {
    pages: Vec<Vec<T>>,
}

impl<T> Pages<T> {
    pub(crate) const fn new() -> Self {
        Pages { pages: Vec::new() }
    }

    pub(crate) fn len(&self) -> u32 {
        let len = self.pages.last().map_or(0, |last| (self.pages.len() - 1) * PAGE_LEN + last.len());
        u32::try_from(len).expect("there are fewer than 2^32 values")
    }

    pub(crate) fn push(&mut self, value: T) {
        match self.pages.last_mut() {
            Some(page) if page.len() < PAGE_LEN => page.push(value),
            _ => {
                let mut page = Vec::with_capacity(PAGE_LEN);
                page.push(value);
                self.pages.push(page);
            }
        }
    }

    pub(crate) fn pop(&mut self) -> Option<T> {
        let page = self.pages.last_mut()?;
        let value = page.pop();
        if page.is_empty() {
            self.pages.pop();
        }
        value
    }

    /// Removes all values but keeps one page, so that a queue that empties often does not allocate
    /// each time.
    fn clear(&mut self) {
        self.pages.truncate(1);
        self.pages.iter_mut().for_each(Vec::clear);
    }

    pub(crate) fn iter(&self) -> impl Iterator<Item = &T> {
        self.pages.iter().flatten()
    }
}

impl<T> Index<u32> for Pages<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        let index = index as usize;
        &self.pages[index / PAGE_LEN][index % PAGE_LEN]
    }
}

impl<T> IndexMut<u32> for Pages<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        let index = index as usize;
        &mut self.pages[index / PAGE_LEN][index % PAGE_LEN]
    }
}

/// Values with indexes that stay valid until removal.
pub(crate) struct Slab<T> {
    slots: Pages<Slot<T>>,
    /// The slot freed last; each free slot holds the index of the one freed before it.
    free: u32,
    used: usize,
}

enum Slot<T> {
    Used(T),
    Free { next: u32 },
}

impl<T> Slab<T> {
    pub(crate) const fn new() -> Self {
        Slab { slots: Pages::new(), free: NONE, used: 0 }
    }

    pub(crate) fn len(&self) -> usize {
        self.used
    }

    pub(crate) fn insert(&mut self, value: T) -> u32 {
        self.used += 1;
        if self.free == NONE {
            let index = self.slots.len();
            assert_ne!(index, NONE, "all 2^32 - 1 slots are in use");
            self.slots.push(Slot::Used(value));
            return index;
        }
        let index = self.free;
        match std::mem::replace(&mut self.slots[index], Slot::Used(value)) {
            Slot::Free { next } => self.free = next,
            Slot::Used(_) => panic!("a used slot is in the free list"),
        }
        index
    }

    pub(crate) fn remove(&mut self, index: u32) -> T {
        let Slot::Used(value) = std::mem::replace(&mut self.slots[index], Slot::Free { next: self.free }) else {
            panic!("slot {index} is not in use: it was already removed")
        };
        self.free = index;
        self.used -= 1;
        if self.used == 0 {
            self.slots.clear();
            self.free = NONE;
        }
        value
    }

    /// The value, or None if the slot is free or was never used.
    pub(crate) fn get(&self, index: u32) -> Option<&T> {
        if index >= self.slots.len() {
            return None;
        }
        match &self.slots[index] {
            Slot::Used(value) => Some(value),
            Slot::Free { .. } => None,
        }
    }

    /// The values with their indexes.
    pub(crate) fn entries(&self) -> impl Iterator<Item = (u32, &T)> {
        (0..).zip(self.slots.iter()).filter_map(|(index, slot)| match slot {
            Slot::Used(value) => Some((index, value)),
            Slot::Free { .. } => None,
        })
    }

    /// The indexes of the values among these slots.
    pub(crate) fn used_slots(&self, slots: Range<u32>) -> impl Iterator<Item = u32> {
        let end = slots.end.min(self.slots.len());
        (slots.start..end).filter(|index| matches!(self.slots[*index], Slot::Used(_)))
    }

    /// Used and free slots.
    pub(crate) fn slot_count(&self) -> u32 {
        self.slots.len()
    }
}

impl<T> Index<u32> for Slab<T> {
    type Output = T;

    fn index(&self, index: u32) -> &T {
        match &self.slots[index] {
            Slot::Used(value) => value,
            Slot::Free { .. } => panic!("slot {index} is not in use"),
        }
    }
}

impl<T> IndexMut<u32> for Slab<T> {
    fn index_mut(&mut self, index: u32) -> &mut T {
        match &mut self.slots[index] {
            Slot::Used(value) => value,
            Slot::Free { .. } => panic!("slot {index} is not in use"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_stack_returns_its_values_across_page_boundaries() {
        let mut pages = Pages::new();
        (0..3000u32).for_each(|n| pages.push(n));
        assert_eq!(pages.len(), 3000);
        assert_eq!(pages[2047], 2047);
        assert!((0..3000).rev().eq(std::iter::from_fn(|| pages.pop())));
        assert_eq!((pages.len(), pages.pop()), (0, None));
    }

    #[test]
    fn freed_slots_are_used_again_before_new_ones() {
        let mut slab = Slab::new();
        let indices: Vec<u32> = (0..5).map(|n| slab.insert(n)).collect();
        assert_eq!((slab.remove(indices[1]), slab.remove(indices[3])), (1, 3));
        assert_eq!((slab.get(1), slab.get(2), slab.get(9)), (None, Some(&2), None));
        assert_eq!((slab.insert(30), slab.insert(10), slab.insert(5)), (3, 1, 5));
        assert!(slab.entries().map(|(_, value)| *value).eq([0, 10, 2, 30, 4, 5]));
        assert_eq!(slab.len(), 6);
    }

    #[test]
    fn an_emptied_slab_frees_its_pages_and_still_works() {
        let mut slab = Slab::new();
        let indices: Vec<u32> = (0..10_000u64).map(|n| slab.insert(n)).collect();
        assert_eq!(slab.slots.pages.len(), 10);
        indices.iter().for_each(|&index| _ = slab.remove(index));
        assert_eq!(slab.slots.pages.len(), 1);
        assert_eq!(slab.insert(7), 0);
        assert_eq!((slab[0], slab.len()), (7, 1));
    }

    #[test]
    #[should_panic(expected = "already removed")]
    fn a_slot_is_not_removed_twice() {
        let mut slab = Slab::new();
        let (kept, gone) = (slab.insert('a'), slab.insert('b'));
        slab.remove(gone);
        assert_eq!(slab[kept], 'a');
        slab.remove(gone);
    }
}
