//! What a server keeps of a password for SCRAM: enough to check a client's proof, not enough to be that client.

use std::fmt;

/// What is stored for one user of SCRAM-SHA-256 (RFC 5802 section 3, RFC 7677).
#[derive(Clone, PartialEq, Eq)]
pub struct ScramKeys {
    /// The salt that the password was hashed with.
    pub salt: Box<[u8]>,
    /// Rounds of PBKDF2.
    pub iterations: u32,
    /// `H(ClientKey)`: what a proof is checked by.
    pub stored_key: [u8; 32],
    /// What this server proves itself with.
    pub server_key: [u8; 32],
}

impl fmt::Debug for ScramKeys {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("ScramKeys").field("iterations", &self.iterations).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keys_are_not_shown() {
        let keys = ScramKeys { salt: [7; 16].into(), iterations: 4096, stored_key: [8; 32], server_key: [9; 32] };
        assert_eq!(format!("{keys:?}"), "ScramKeys { iterations: 4096, .. }");
    }
}
