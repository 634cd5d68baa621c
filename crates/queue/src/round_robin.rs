//! Fair turns: deficit round robin as a heap with the links inside the values.
//!
//! A value is in one [`RoundRobin`] at most, with the number of the round of its next turn; within
//! a round, values keep the order in which they were added. A new value joins the next round, and a
//! value that used n units skips n - 1 rounds. So every round ends, and no value waits longer than
//! one turn of each other value.
//!
//! The heap is a skew heap (Sleator, Tarjan: Self-Adjusting Heaps, 1986) with parent links, so that
//! any value can be removed: amortised O(log n) per operation, 24 bytes per value, and no
//! allocation.

use std::ops::IndexMut;

use crate::intrusive_list::NONE;

/// A value's node in the heap.
#[derive(Clone, Copy)]
pub(crate) struct RoundNode {
    round: u64,
    /// Orders the values of one round. It wraps after 2^32 additions, which misorders a few values
    /// once.
    turn: u32,
    up: u32,
    left: u32,
    right: u32,
}

impl RoundNode {
    pub(crate) const NEW: RoundNode = RoundNode { round: 0, turn: 0, up: NONE, left: NONE, right: NONE };

    fn comes_before(&self, other: &RoundNode) -> bool {
        (self.round, self.turn) < (other.round, other.turn)
    }
}

/// A value with a node.
pub(crate) trait HasRoundNode {
    fn round_node(&mut self) -> &mut RoundNode;
}

/// The values that take turns.
pub(crate) struct RoundRobin {
    first: u32,
    turn: u32,
    /// The round of the last turn.
    current_round: u64,
}

impl RoundRobin {
    pub(crate) const EMPTY: RoundRobin = RoundRobin { first: NONE, turn: 0, current_round: 0 };

    pub(crate) fn is_empty(&self) -> bool {
        self.first == NONE
    }

    /// The value whose turn is next.
    pub(crate) fn first(&self) -> Option<u32> {
        (self.first != NONE).then_some(self.first)
    }

    /// Whether there is exactly one value. `node` returns the node of a value.
    pub(crate) fn is_single(&self, node: impl Fn(u32) -> RoundNode) -> bool {
        self.first().map(node).is_some_and(|node| (node.left, node.right) == (NONE, NONE))
    }

    /// Adds a value to the next round.
    pub(crate) fn insert(&mut self, values: &mut impl IndexMut<u32, Output: HasRoundNode>, index: u32) {
        values[index].round_node().round = 0;
        self.reinsert(values, index);
    }

    /// Adds a value to the round stored in its node, or to the next round if that has passed.
    pub(crate) fn reinsert(&mut self, values: &mut impl IndexMut<u32, Output: HasRoundNode>, index: u32) {
        let node = values[index].round_node();
        *node = RoundNode { round: node.round.max(self.current_round + 1), turn: self.turn, ..RoundNode::NEW };
        self.turn = self.turn.wrapping_add(1);
        self.first = merge(values, self.first, index);
    }

    /// Removes the value whose turn it is. If it is added again with `reinsert`, it skips `cost` -
    /// 1 rounds.
    pub(crate) fn take(&mut self, values: &mut impl IndexMut<u32, Output: HasRoundNode>, index: u32, cost: usize) {
        self.current_round = self.current_round.max(values[index].round_node().round);
        self.remove(values, index);
        values[index].round_node().round = self.current_round + cost as u64;
    }

    /// Removes a value, whether or not it is its turn.
    pub(crate) fn remove(&mut self, values: &mut impl IndexMut<u32, Output: HasRoundNode>, index: u32) {
        let RoundNode { up, left, right, .. } = *values[index].round_node();
        let rest = merge(values, left, right);
        if rest != NONE {
            values[rest].round_node().up = up;
        }
        if up == NONE {
            self.first = rest;
            return;
        }
        let parent = values[up].round_node();
        if parent.left == index {
            parent.left = rest;
        } else {
            parent.right = rest;
        }
    }
}

/// Merges two heaps. On the way down, each value that comes first swaps its children. The root has
/// no parent.
fn merge(values: &mut impl IndexMut<u32, Output: HasRoundNode>, mut a: u32, mut b: u32) -> u32 {
    let (mut root, mut parent) = (NONE, NONE);
    while a != NONE && b != NONE {
        let (node_a, node_b) = (*values[a].round_node(), *values[b].round_node());
        if node_b.comes_before(&node_a) {
            std::mem::swap(&mut a, &mut b);
        }
        attach(values, &mut root, parent, a);
        let node = values[a].round_node();
        let rest = std::mem::replace(&mut node.right, node.left);
        node.left = NONE;
        (parent, a) = (a, rest);
    }
    attach(values, &mut root, parent, if a == NONE { b } else { a });
    root
}

fn attach(values: &mut impl IndexMut<u32, Output: HasRoundNode>, root: &mut u32, parent: u32, child: u32) {
    if parent == NONE {
        *root = child;
    } else {
        values[parent].round_node().left = child;
    }
    if child != NONE {
        values[child].round_node().up = parent;
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::pages::Pages;

    struct Node(RoundNode);

    impl HasRoundNode for Node {
        fn round_node(&mut self) -> &mut RoundNode {
            &mut self.0
        }
    }

    fn nodes(count: u32) -> Pages<Node> {
        let mut nodes = Pages::new();
        (0..count).for_each(|_| nodes.push(Node(RoundNode::NEW)));
        nodes
    }

    #[test]
    fn each_value_has_one_turn_per_round_and_skips_rounds_by_its_cost() {
        let (mut nodes, mut rounds) = (nodes(3), RoundRobin::EMPTY);
        (0..3).for_each(|index| rounds.insert(&mut nodes, index));
        let order: Vec<u32> = (0..10)
            .map(|_| {
                let index = rounds.first().unwrap();
                rounds.take(&mut nodes, index, if index == 0 { 3 } else { 1 });
                rounds.reinsert(&mut nodes, index);
                index
            })
            .collect();
        assert_eq!(order, [0, 1, 2, 1, 2, 1, 2, 0, 1, 2]);
    }

    #[test]
    fn one_value_is_single_and_none_or_two_are_not() {
        let (mut nodes, mut rounds) = (nodes(2), RoundRobin::EMPTY);
        let is_single = |rounds: &RoundRobin, nodes: &Pages<Node>| rounds.is_single(|index| nodes[index].0);
        assert!(!is_single(&rounds, &nodes));
        rounds.insert(&mut nodes, 0);
        assert!(is_single(&rounds, &nodes));
        rounds.insert(&mut nodes, 1);
        assert!(!is_single(&rounds, &nodes));
    }

    #[test]
    fn the_order_matches_a_sorted_list_when_values_are_removed() {
        let (mut nodes, mut rounds) = (nodes(500), RoundRobin::EMPTY);
        let mut model: Vec<(u64, u32, u32)> = Vec::new();
        let mut random = 1u64;
        for turn in 0..20_000u32 {
            random = random.wrapping_mul(6_364_136_223_846_793_005).wrapping_add(1_442_695_040_888_963_407);
            let index = (random >> 33) as u32 % 500;
            match model.iter().position(|&(.., seated)| seated == index) {
                Some(place) => {
                    rounds.remove(&mut nodes, index);
                    model.remove(place);
                }
                None => {
                    nodes[index].0.round = random >> 60;
                    rounds.reinsert(&mut nodes, index);
                    model.push((nodes[index].0.round, nodes[index].0.turn, index));
                }
            }
            assert_eq!(rounds.first(), model.iter().min().map(|&(.., index)| index), "after step {turn}");
        }
    }
}
