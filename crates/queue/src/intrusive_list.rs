//! First-in-first-out lists with the links inside the values: four bytes per value, no allocation.
//!
//! A value is in one list at most. The list holds its two ends; the caller passes the slab with the
//! values.

use std::ops::IndexMut;

/// The index that marks the end of a list.
pub(crate) const NONE: u32 = u32::MAX;

/// A value that contains a link.
pub(crate) trait Linked {
    /// The index of the next value, or [`NONE`].
    fn link(&mut self) -> &mut u32;
}

/// The two ends of a list.
#[derive(Clone, Copy)]
pub(crate) struct IntrusiveList {
    front: u32,
    back: u32,
}

impl IntrusiveList {
    pub(crate) const EMPTY: IntrusiveList = IntrusiveList { front: NONE, back: NONE };

    pub(crate) fn is_empty(self) -> bool {
        self.front == NONE
    }

    /// The index of the first value.
    pub(crate) fn front(self) -> Option<u32> {
        (self.front != NONE).then_some(self.front)
    }

    pub(crate) fn push_back(&mut self, values: &mut impl IndexMut<u32, Output: Linked>, index: u32) {
        *values[index].link() = NONE;
        match self.back {
            NONE => self.front = index,
            back => *values[back].link() = index,
        }
        self.back = index;
    }

    /// Moves all values of `other` to the back.
    pub(crate) fn append(&mut self, values: &mut impl IndexMut<u32, Output: Linked>, other: IntrusiveList) {
        if other.is_empty() {
            return;
        }
        match self.back {
            NONE => self.front = other.front,
            back => *values[back].link() = other.front,
        }
        self.back = other.back;
    }

    pub(crate) fn pop_front(&mut self, values: &mut impl IndexMut<u32, Output: Linked>) -> Option<u32> {
        let index = self.front()?;
        self.front = std::mem::replace(values[index].link(), NONE);
        if self.front == NONE {
            self.back = NONE;
        }
        Some(index)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Slab;

    struct Node(u32);

    impl Linked for Node {
        fn link(&mut self) -> &mut u32 {
            &mut self.0
        }
    }

    #[test]
    fn an_appended_list_comes_after_the_other() {
        let mut nodes = Slab::new();
        let indices: Vec<u32> = (0..4).map(|_| nodes.insert(Node(77))).collect();
        let (mut all, mut more) = (IntrusiveList::EMPTY, IntrusiveList::EMPTY);
        indices[..2].iter().for_each(|&index| more.push_back(&mut nodes, index));
        all.append(&mut nodes, more);
        all.append(&mut nodes, IntrusiveList::EMPTY);
        let mut last = IntrusiveList::EMPTY;
        last.push_back(&mut nodes, indices[2]);
        all.append(&mut nodes, last);
        all.push_back(&mut nodes, indices[3]);
        assert!(indices.into_iter().eq(std::iter::from_fn(|| all.pop_front(&mut nodes))));
        assert!(all.is_empty());
    }

    #[test]
    fn values_leave_in_order_even_after_the_list_was_empty() {
        let mut nodes = Slab::new();
        let mut chain = IntrusiveList::EMPTY;
        for _ in 0..2 {
            let indices: Vec<u32> = (0..3).map(|_| nodes.insert(Node(77))).collect();
            indices.iter().for_each(|&index| chain.push_back(&mut nodes, index));
            assert_eq!(chain.front(), Some(indices[0]));
            assert!(indices.iter().copied().eq(std::iter::from_fn(|| chain.pop_front(&mut nodes))));
            assert!(chain.is_empty());
        }
    }
}
