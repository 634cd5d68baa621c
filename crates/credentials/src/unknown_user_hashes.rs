//! Chooses the hashes that are computed for unknown users, so that response times do not reveal
//! which users exist.
//!
//! Keeps one hash per scheme and cost seen, up to [`KINDS_MAX`]. A keyed hash of name and kind
//! chooses one of them, so a name always costs the same, as for a real user. A new kind affects
//! only the names for which it is chosen.

use super::password::{Cost, StoredPassword};
use super::scram::hmac;

/// Kinds to keep: more than any real table has.
const KINDS_MAX: usize = 16;

/// The kinds of stored passwords seen so far.
pub(super) struct UnknownUserHashes {
    /// Used before any stored password was seen.
    pub(super) fallback: StoredPassword,
    kinds: Vec<HashKind>,
    warning: Option<&'static str>,
}

/// The stored passwords of one kind of user, in order.
struct HashKind {
    costs: Vec<Cost>,
    hashes: Vec<StoredPassword>,
}

impl UnknownUserHashes {
    pub(super) fn new(first: StoredPassword) -> UnknownUserHashes {
        UnknownUserHashes { fallback: first, kinds: Vec::new(), warning: None }
    }

    /// Learns from the stored passwords of a real user.
    pub(super) fn observe(&mut self, stored: &[StoredPassword]) {
        let costs: Vec<Cost> = stored.iter().map(StoredPassword::cost).collect();
        if self.kinds.len() < KINDS_MAX && self.kinds.iter().all(|kind| kind.costs != costs) {
            self.kinds.push(HashKind { costs, hashes: stored.iter().map(StoredPassword::unmatched).collect() });
        }
        if let Some(warning) = stored.iter().find_map(StoredPassword::weak_password_warning) {
            self.warning = Some(warning);
        }
    }

    /// The hashes to compute for an unknown user.
    pub(super) fn hashes(&self, key: &[u8; 32], user: &str) -> Vec<StoredPassword> {
        let chosen = self.choose_kind(key, user, |_| true);
        chosen.map_or_else(|| vec![self.fallback.clone()], |kind| kind.hashes.clone())
    }

    /// The SCRAM iterations to pretend for such a user; None if no user with iterations was seen.
    pub(super) fn iterations(&self, key: &[u8; 32], user: &str, of_clear_text: u32) -> Option<u32> {
        let of = |kind: &HashKind| kind.hashes.iter().find_map(|hash| hash.scram_iterations(of_clear_text));
        self.choose_kind(key, user, |kind| of(kind).is_some()).and_then(of)
    }

    /// A warning for the operator about the stored passwords.
    pub(super) fn warning(&self) -> Option<&'static str> {
        self.warning
    }

    /// Chooses the kind whose hash with the name is the greatest.
    fn choose_kind(&self, key: &[u8; 32], user: &str, is_eligible: impl Fn(&HashKind) -> bool) -> Option<&HashKind> {
        let weight = |kind: &&HashKind| {
            // The name comes last, so that different pairs never look the same.
            let costs = kind.costs.iter().flat_map(Cost::octets);
            let message: Vec<u8> = b"decoy\0".iter().copied().chain(costs).chain([0]).chain(user.bytes()).collect();
            hmac(key, &message)
        };
        self.kinds.iter().filter(|kind| is_eligible(kind)).max_by_key(weight)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const KEY: [u8; 32] = [5; 32];

    fn plain() -> StoredPassword {
        StoredPassword::parse("{PLAIN}x").unwrap()
    }

    fn argon2(memory: u32) -> StoredPassword {
        let hash = "c29tZXNhbHQ$nf65EOgLrQMR/uIPnA4rEsF5h7TKyQwu9U1bMCHGi/4";
        StoredPassword::parse(&format!("$argon2id$v=19$m={memory},t=2,p=1${hash}")).unwrap()
    }

    fn costs(hashes: &UnknownUserHashes, user: &str) -> Vec<Cost> {
        hashes.hashes(&KEY, user).iter().map(StoredPassword::cost).collect()
    }

    /// Regression: the hash of the most recent user was computed once, so an unknown name stood out
    /// by its changing time.
    #[test]
    fn a_name_always_costs_the_same_and_names_differ_in_cost() {
        let mut hashes = UnknownUserHashes::new(plain());
        let users = [vec![argon2(256)], vec![argon2(512)], vec![plain(), argon2(256)]];
        users.iter().for_each(|stored| hashes.observe(stored));
        let names: Vec<String> = (0..100).map(|number| format!("nobody{number}")).collect();
        let before: Vec<_> = names.iter().map(|name| costs(&hashes, name)).collect();
        for stored in users.iter().rev() {
            hashes.observe(stored);
            assert_eq!(names.iter().map(|name| costs(&hashes, name)).collect::<Vec<_>>(), before);
        }
        for stored in &users {
            let costs: Vec<Cost> = stored.iter().map(StoredPassword::cost).collect();
            assert!(before.iter().filter(|of_name| **of_name == costs).count() > 10, "{costs:?}");
        }
        // Another kind affects only the names that get it.
        let further = vec![argon2(1024)];
        hashes.observe(&further);
        for (name, before) in names.iter().zip(before) {
            let now = costs(&hashes, name);
            assert!(now == before || now == [further[0].cost()], "{name}");
        }
    }

    #[test]
    fn kinds_are_bounded_and_a_fallback_exists() {
        let mut hashes = UnknownUserHashes::new(plain());
        assert_eq!(costs(&hashes, "nobody"), [plain().cost()]);
        (0..100).for_each(|number| hashes.observe(&[argon2(64 + number)]));
        assert_eq!(hashes.kinds.len(), KINDS_MAX);
    }
}
