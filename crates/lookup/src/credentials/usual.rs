//! Chooses the hashes that are computed for unknown users, so that response times do not reveal
//! which users exist.
//!
//! Keeps one hash per scheme and cost seen, up to [`KINDS_MAX`]. A keyed hash of name and kind
//! chooses one of them, so a name always costs the same, as for a real user. A new kind affects
//! only the names for which it is chosen.

use super::password::{Cost, Stored};
use super::scram::hmac;

/// Kinds to keep: more than any real table has.
const KINDS_MAX: usize = 16;

/// The kinds of stored passwords seen so far.
pub(super) struct Usual {
    /// Used before any stored password was seen.
    pub(super) first: Stored,
    kinds: Vec<Kind>,
    warning: Option<&'static str>,
}

/// The stored passwords of one kind of user, in order.
struct Kind {
    costs: Vec<Cost>,
    decoys: Vec<Stored>,
}

impl Usual {
    pub(super) fn new(first: Stored) -> Usual {
        Usual { first, kinds: Vec::new(), warning: None }
    }

    /// Learns from the stored passwords of a real user.
    pub(super) fn take_note(&mut self, stored: &[Stored]) {
        let costs: Vec<Cost> = stored.iter().map(Stored::cost).collect();
        if self.kinds.len() < KINDS_MAX && self.kinds.iter().all(|kind| kind.costs != costs) {
            self.kinds.push(Kind { costs, decoys: stored.iter().map(Stored::decoy).collect() });
        }
        if let Some(warning) = stored.iter().find_map(Stored::warning) {
            self.warning = Some(warning);
        }
    }

    /// The hashes to compute for an unknown user.
    pub(super) fn decoy(&self, key: &[u8; 32], user: &str) -> Vec<Stored> {
        let chosen = self.chosen(key, user, |_| true);
        chosen.map_or_else(|| vec![self.first.clone()], |kind| kind.decoys.clone())
    }

    /// The SCRAM iterations to pretend for such a user; None if no user with iterations was seen.
    pub(super) fn iterations(&self, key: &[u8; 32], user: &str, of_clear_text: u32) -> Option<u32> {
        let of = |kind: &Kind| kind.decoys.iter().find_map(|decoy| decoy.scram_iterations(of_clear_text));
        self.chosen(key, user, |kind| of(kind).is_some()).and_then(of)
    }

    /// A warning for the operator about the stored passwords.
    pub(super) fn warning(&self) -> Option<&'static str> {
        self.warning
    }

    /// Chooses the kind whose hash with the name is the greatest.
    fn chosen(&self, key: &[u8; 32], user: &str, is_meant: impl Fn(&Kind) -> bool) -> Option<&Kind> {
        let weight = |kind: &&Kind| {
            // The name comes last, so that different pairs never look the same.
            let costs = kind.costs.iter().flat_map(Cost::octets);
            let message: Vec<u8> = b"decoy\0".iter().copied().chain(costs).chain([0]).chain(user.bytes()).collect();
            hmac(key, &message)
        };
        self.kinds.iter().filter(|kind| is_meant(kind)).max_by_key(weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [5; 32];

    fn plain() -> Stored {
        Stored::read("{PLAIN}x").unwrap()
    }

    fn argon2(memory: u32) -> Stored {
        let hash = "c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
        Stored::read(&format!("$argon2id$v=19$m={memory},t=2,p=1${hash}")).unwrap()
    }

    fn costs(usual: &Usual, user: &str) -> Vec<Cost> {
        usual.decoy(&KEY, user).iter().map(Stored::cost).collect()
    }

    /// Regression: the hash of the most recent user was computed once, so an unknown name stood out
    /// by its changing time.
    #[test]
    fn a_name_costs_the_same_whoever_was_asked_for_before_and_not_every_name_costs_the_same() {
        let mut usual = Usual::new(plain());
        let users = [vec![argon2(256)], vec![argon2(512)], vec![plain(), argon2(256)]];
        users.iter().for_each(|stored| usual.take_note(stored));
        let names: Vec<String> = (0..100).map(|number| format!("nobody{number}")).collect();
        let before: Vec<_> = names.iter().map(|name| costs(&usual, name)).collect();
        for stored in users.iter().rev() {
            usual.take_note(stored);
            assert_eq!(names.iter().map(|name| costs(&usual, name)).collect::<Vec<_>>(), before);
        }
        for stored in &users {
            let costs: Vec<Cost> = stored.iter().map(Stored::cost).collect();
            assert!(before.iter().filter(|of_name| **of_name == costs).count() > 10, "{costs:?}");
        }
        // Another kind affects only the names that get it.
        let further = vec![argon2(1024)];
        usual.take_note(&further);
        for (name, before) in names.iter().zip(before) {
            let now = costs(&usual, name);
            assert!(now == before || now == [further[0].cost()], "{name}");
        }
    }

    #[test]
    fn kinds_are_bounded_and_before_any_was_seen_there_is_one() {
        let mut usual = Usual::new(plain());
        assert_eq!(costs(&usual, "nobody"), [plain().cost()]);
        (0..100).for_each(|number| usual.take_note(&[argon2(64 + number)]));
        assert_eq!(usual.kinds.len(), KINDS_MAX);
    }
}
