//! Fair turns: deficit round robin as a heap with the links inside the values.
//!
//! A value is in one [`Rounds`] at most, with the number of the round of its next turn; within a
//! round, values keep the order in which they were added. A new value joins the next round, and a
//! value that used n units skips n - 1 rounds. So every round ends, and no value waits longer than
//! one turn of each other value.
//!
//! The heap is a skew heap (Sleator, Tarjan: Self-Adjusting Heaps, 1986) with parent links, so that
//! any value can be removed: amortised O(log n) per operation, 24 bytes per value, and no
//! allocation.

use std::ops::IndexMut;

use crate::chain::NONE;

/// A value's node in the heap.
#[derive(Clone, Copy)]
pub(crate) struct Seat {
    round: u64,
    /// Orders the values of one round. It wraps after 2^32 additions, which misorders a few values
    /// once.
    turn: u32,
    up: u32,
    left: u32,
    right: u32,
}

impl Seat {
    pub(crate) const NEW: Seat = Seat { round: 0, turn: 0, up: NONE, left: NONE, right: NONE };

    fn comes_before(&self, other: &Seat) -> bool {
        (self.round, self.turn) < (other.round, other.turn)
    }
}

/// A value with a node.
pub(crate) trait Seated {
    fn seat(&mut self) -> &mut Seat;
}

/// The values that take turns.
pub(crate) struct Rounds {
    first: u32,
    turn: u32,
    /// The round of the last turn.
    present: u64,
}

impl Rounds {
    pub(crate) const EMPTY: Rounds = Rounds { first: NONE, turn: 0, present: 0 };

    pub(crate) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    /// The value whose turn is next.
    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Whether there is exactly one value. `seat` returns the node of a value.
    pub(crate) fn is_single(&self, seat: impl Fn(u32) -> Seat) -> bool {
        self.first().map(seat).is_some_and(|seat| (seat.left, seat.right) == (NONE, NONE))
    }

    /// Adds a value to the next round.
    pub(crate) fn join(&mut self, values: &mut impl IndexMut<u32, Output: Seated>, index: u32) {
        values[index].seat().round = 0;
        self.resume(values, index);
    }

    /// Adds a value to the round stored in its node, or to the next round if that has passed.
    pub(crate) fn resume(&mut self, values: &mut impl IndexMut<u32, Output: Seated>, index: u32) {
        let seat = values[index].seat();
        *seat = Seat { round: seat.round.max(self.present + 1), turn: self.turn, ..Seat::NEW };
        self.turn = self.turn.wrapping_add(1);
        self.first = merge(values, self.first, index);
    }

    /// Removes the value whose turn it is. If it is added again with `resume`, it skips `cost` - 1
    /// rounds.
    pub(crate) fn take(&mut self, values: &mut impl IndexMut<u32, Output: Seated>, index: u32, cost: usize) {
        self.present = self.present.max(values[index].seat().round);
        self.leave(values, index);
        values[index].seat().round = self.present + cost as u64;
    }

    /// Removes a value, whether or not it is its turn.
    pub(crate) fn leave(&mut self, values: &mut impl IndexMut<u32, Output: Seated>, index: u32) {
        let Seat { up, left, right, .. } = *values[index].seat();
        let rest = merge(values, left, right);
        if rest != NONE {
            values[rest].seat().up = up;
        }
        if up == NONE {
            self.first = rest;
            return;
        }
        let parent = values[up].seat();
        if parent.left == index {
            parent.left = rest;
        } else {
            parent.right = rest;
        }
    }
}

/// Merges two heaps. On the way down, each value that comes first swaps its children. The root has
/// no parent.
fn merge(values: &mut impl IndexMut<u32, Output: Seated>, mut a: u32, mut b: u32) -> u32 {
    let (mut root, mut parent) = (NONE, NONE);
    while a != NONE && b != NONE {
        let (seat_a, seat_b) = (*values[a].seat(), *values[b].seat());
        if seat_b.comes_before(&seat_a) {
            std::mem::swap(&mut a, &mut b);
        }
        hang(values, &mut root, parent, a);
        let seat = values[a].seat();
        let rest = std::mem::replace(&mut seat.right, seat.left);
        seat.left = NONE;
        (parent, a) = (a, rest);
    }
    hang(values, &mut root, parent, if a == NONE { b } else { a });
    root
}

fn hang(values: &mut impl IndexMut<u32, Output: Seated>, root: &mut u32, parent: u32, child: u32) {
    if parent == NONE {
        *root = child;
    } else {
        values[parent].seat().left = child;
    }
    if child != NONE {
        values[child].seat().up = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Pages;

    struct Node(Seat);

    impl Seated for Node {
        fn seat(&mut self) -> &mut Seat {
            &mut self.0
        }
    }

    fn nodes(count: u32) -> Pages<Node> {
        let mut nodes = Pages::new();
        (0..count).for_each(|_| nodes.push(Node(Seat::NEW)));
        nodes
    }

    #[test]
    fn each_has_a_turn_a_round_and_pays_for_what_it_took() {
        let (mut nodes, mut rounds) = (nodes(3), Rounds::EMPTY);
        (0..3).for_each(|index| rounds.join(&mut nodes, index));
        let order: Vec<u32> = (0..10)
            .map(|_| {
                let index = rounds.first().unwrap();
                rounds.take(&mut nodes, index, if index == 0 { 3 } else { 1 });
                rounds.resume(&mut nodes, index);
                index
            })
            .collect();
        assert_eq!(order, [0, 1, 2, 1, 2, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn they_come_as_from_a_sorted_list_whoever_leaves_in_between() {
        let (mut nodes, mut rounds) = (nodes(500), Rounds::EMPTY);
        let mut model: Vec<(u64, u32, u32)> = Vec::new();
        let mut random = 1u64;
        for turn in 0..20_000u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let index = (random >> 33) as u32 % 500;
            match model.iter().position(|&(.., seated)| seated == index) {
                Some(place) => {
                    rounds.leave(&mut nodes, index);
                    model.remove(place);
                }
                None => {
                    nodes[index].0.round = random >> 60;
                    rounds.resume(&mut nodes, index);
                    model.push((nodes[index].0.round, nodes[index].0.turn, index));
                }
            }
            assert_eq!(rounds.first(), model.iter().min().map(|&(.., index)| index), "after step {turn}");
        }
    }
}
