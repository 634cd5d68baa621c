//! The verification of one signature, once its key and the hash of the body are known.

use aws_lc_rs::digest::{SHA256, digest};
use aws_lc_rs::signature::{ED25519, RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, UnparsedPublicKey};

use super::key::{KeyRecord, PublicKey};
use super::signature::MessageSignature;
use super::{DkimResult, Rejection};
use crate::body_hash::BodyHashes;
use crate::message_header::{FieldName, MessageHeader};

/// The conditions of the key, before anything is hashed.
pub(crate) fn check_key(signature: &MessageSignature, key: &KeyRecord) -> Result<(), Rejection> {
    match key.is_strict && signature.identity_domain != signature.seal.domain {
        true => Err(Rejection::new(DkimResult::PermError, "the key does not sign for subdomains")),
        false => Ok(()),
    }
}

/// The hash of the body. A body of which `l=` covers only a part is refused after the signature was
/// found valid: see [`is_cut`].
pub(crate) fn check_body(signature: &MessageSignature, hashes: &BodyHashes) -> Result<(), Rejection> {
    let Some(hash) = hashes.hash(signature.body) else {
        return Err(Rejection::new(DkimResult::Neutral, "the body was not hashed"));
    };
    if signature.body.limit.is_some_and(|limit| limit > hash.body_len) {
        return Err(Rejection::new(DkimResult::Fail, "l= is longer than the body"));
    }
    match hash.digest == signature.body_hash {
        true => Ok(()),
        false => Err(Rejection::new(DkimResult::Fail, "the body has changed")),
    }
}

/// Whether part of the body is not signed: anybody can have added it.
pub(crate) fn is_cut(signature: &MessageSignature, hashes: &BodyHashes) -> bool {
    let len = hashes.hash(signature.body).map(|hash| hash.body_len);
    signature.body.limit.zip(len).is_some_and(|(limit, len)| limit < len)
}

/// The bytes that are signed: the fields of `h=`, each name from the bottom up, and the signature
/// field itself without its signature (RFC 6376 sections 3.7 and 5.4.2).
pub(crate) fn signed_bytes(header: &MessageHeader, field: usize, signature: &MessageSignature) -> Vec<u8> {
    let form = signature.header_form;
    let mut out = Vec::with_capacity(2048);
    let mut used: Vec<(&FieldName, usize)> = Vec::with_capacity(signature.fields.len());
    for name in &signature.fields {
        let known = used.iter().position(|(known, _)| *known == name);
        let before = known.map_or(header.len(), |known| used[known].1);
        let mut found = header.find_above(name, before);
        // The signer did not have this field yet.
        if found == Some(field) {
            found = header.find_above(name, field);
        }
        if let Some(number) = found {
            form.push_field(&header.field(number), &mut out);
            out.extend_from_slice(b"\r\n");
        }
        match known {
            Some(known) => used[known].1 = found.unwrap_or(0),
            None => used.push((name, found.unwrap_or(0))),
        }
    }
    form.push_signature_field(&header.field(field), &mut out);
    out
}

/// Whether the signature of these bytes is valid. Takes tens of microseconds.
pub(crate) fn is_valid(key: &PublicKey, bytes: &[u8], signature: &[u8]) -> bool {
    match key {
        PublicKey::Rsa(key) => UnparsedPublicKey::new(&RSA_PKCS1_1024_8192_SHA256_FOR_LEGACY_USE_ONLY, key)
            .verify(bytes, signature)
            .is_ok(),
        // RFC 8463 section 3: the hash is signed.
        PublicKey::Ed25519(key) => {
            let hash = digest(&SHA256, bytes);
            UnparsedPublicKey::new(&ED25519, key).verify(hash.as_ref(), signature).is_ok()
        }
    }
}
