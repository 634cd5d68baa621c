//! DKIM signatures on mail that goes out (RFC 6376): who signs what, with which keys.
//!
//! | part | owns |
//! |---|---|
//! | [`SigningPolicy`] | which messages are signed |
//! | [`SigningCheck`] | the edit that puts the signatures before a message |
//! | [`SevenBitCheck`] | before that, the conversion of 8-bit content |
//! | [`Signer`] | one message: hashes, fields, key operations |
//! | [`KeyRing`] | which domain signs, and its keys |
//! | [`PrivateKey`] | a key: reading, making, signing |
//! | [`key_record`] | the record that publishes a key |
//!
//! All signatures are relaxed/relaxed, over the whole body and a fixed list of fields, with
//! rsa-sha256 and ed25519-sha256 (RFC 8463) beside each other where a domain has both keys. Nothing
//! unsigned leaves because of a fault here: the message is deferred.

mod check;
mod content;
mod job_line;
pub mod key_record;
mod key_ring;
mod policy;
mod private_key;
mod result_notifier;
mod seven_bit_check;
mod signature_field;
mod signed_fields;
mod signer;
mod signing_threads;
#[cfg(test)]
mod tests;

pub use check::SigningCheck;
pub use key_ring::{KEYS_PER_DOMAIN_MAX, KeyRing, KeysUnavailable, SigningDomain, SigningKey, is_selector};
pub use policy::{AuthorRights, RightsFuture, SignedSubmitters, SigningPolicy};
pub use private_key::{CryptoError, KeyAlgorithm, KeyError, PrivateKey, RsaBits};
pub use seven_bit_check::SevenBitCheck;
pub use signer::{Signer, SigningCounters, SigningError};
pub use signing_threads::SigningThreadsConfig;
