//! Passwords; wiped from memory when dropped, and never shown.

use std::fmt;

use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

/// A password.
#[derive(Clone)]
pub struct Secret(Zeroizing<String>);

impl Secret {
    /// Takes ownership of the text, and wipes it when dropped.
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
