//! What a server stores for SCRAM: enough to check a client's proof, not enough to impersonate the
//! client.

use std::fmt;

/// What is stored for one user of SCRAM-SHA-256 (RFC 5802 section 3, RFC 7677).
#[derive(Clone, PartialEq, Eq)]
pub struct ScramKeys {
    /// The salt of the password hash.
    pub salt: Box<[u8]>,
    /// PBKDF2 iterations.
    pub iterations: u32,
    /// `H(ClientKey)`, which verifies the client's proof.
    pub stored_key: [u8; 32],
    /// Proves the server to the client.
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
