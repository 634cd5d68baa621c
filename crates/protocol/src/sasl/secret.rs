//! Passwords, which are wiped from memory when they are dropped and never shown.

use std::fmt;

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// A password.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes it over: what it was in is this one's now, and is wiped with it.
    pub fn new(text: String) -> Secret {
        Secret(Zeroizing::new(text))
    }

    /// The password itself.
    pub fn reveal(&self) -> &str {
        &self.0
    }
}

impl PartialEq for Secret {
    fn eq(&self, other: &Secret) -> bool {
        self.0.as_bytes().ct_eq(other.0.as_bytes()).into()
    }
}

impl Eq for Secret {}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("Secret(..)")
    }
}
