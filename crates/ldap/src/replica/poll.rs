//! Copying from a server without the Sync Operation: fetches all entries page by page (RFC 2696)
//! and removes those that are missing.
//!
//! Entries are identified by entryUUID (RFC 4530), by Active Directory's objectGUID, or by a digest
//! of the DN if there is neither; in that case a renamed entry counts as new.

use super::batch::EntryUuid;
use super::follow::{FollowError, Follower};
use super::server_info::ServerInfo;
use crate::ber::{BerReader, BerWriter, INTEGER, Malformed, OCTETS, SEQUENCE};
use crate::connection::{LdapControl, LdapResponse, LdapSession, SearchEntry};
use crate::schema::EqualityRule;
use lookup::backend::BackendFailure;

const PAGED_RESULTS: &str = "1.2.840.113556.1.4.319";
/// Entries per page; servers may send fewer.
const PAGE_ENTRIES: u32 = 1000;

impl Follower<'_> {
    /// Makes the copy match the server.
    pub(super) async fn poll(
        &mut self,
        session: &LdapSession,
        server: &ServerInfo,
        rules: &[EqualityRule],
    ) -> Result<(), FollowError> {
        // The cookie is invalid once entries have other identities.
        if self.copy.cookie().is_some() {
            self.copy.forget_cookie()?;
        }
        self.copy.begin_refresh(self.now())?;
        let mut names = self.content.attributes();
        names.extend(["entryUUID", "objectGUID"]);
        let mut cookie = Vec::new();
        loop {
            let controls = [paging_control(&cookie)];
            let mut stream = session.search(&self.content.search(&names, &controls))?;
            cookie = loop {
                let response = tokio::time::timeout(self.timeout, stream.next()).await;
                self.accept_removals()?;
                match response.map_err(|_| BackendFailure::new(session.url().to_string(), "timed out"))?? {
                    LdapResponse::Entry(entry) => {
                        let (keys, values) = self.content.read(&entry, &server.schema, rules);
                        self.copy.put(entry_uuid(&entry), &keys, values.as_deref(), self.now())?;
                    }
                    LdapResponse::Done(done) if done.code == 0 => {
                        break next_cookie(&done.controls)
                            .map_err(|error| BackendFailure::new(session.url().to_string(), error))?;
                    }
                    LdapResponse::Done(done) => {
                        return Err(BackendFailure::new(session.url().to_string(), done.to_string()).into());
                    }
                    LdapResponse::Reference(_) | LdapResponse::Intermediate { .. } => {}
                }
            };
            if cookie.is_empty() {
                break;
            }
        }
        self.copy.mark_unmentioned_gone();
        self.finish_refresh(None)
    }
}

fn paging_control(cookie: &[u8]) -> LdapControl {
    let mut writer = BerWriter::default();
    writer.nested(SEQUENCE, |writer| {
        writer.number(INTEGER, PAGE_ENTRIES);
        writer.octets(OCTETS, cookie);
    });
    // Not critical: a server without paging sends everything at once.
    LdapControl { oid: PAGED_RESULTS.into(), critical: false, value: Some(writer.into_octets().into()) }
}

/// The cookie of the next page; empty after the last one.
fn next_cookie(controls: &[LdapControl]) -> Result<Vec<u8>, Malformed> {
    let control = controls.iter().find(|control| *control.oid == *PAGED_RESULTS);
    let Some(value) = control.and_then(|control| control.value.as_deref()) else { return Ok(Vec::new()) };
    let mut reader = BerReader::new(value).nested(SEQUENCE)?;
    reader.number(INTEGER)?;
    reader.expect(OCTETS).map(<[u8]>::to_vec)
}

/// The identity of an entry.
fn entry_uuid(entry: &SearchEntry) -> EntryUuid {
    let value = |wanted: &str| {
        let mut attributes = entry.attributes().filter(|(name, _)| name.eq_ignore_ascii_case(wanted));
        attributes.next().and_then(|(_, mut values)| values.next())
    };
    let named = value("entryUUID").and_then(parse_uuid).or_else(|| value("objectGUID")?.try_into().ok());
    named.unwrap_or_else(|| digest(&entry.dn().to_lowercase()))
}

/// Parses the text form of a UUID (RFC 4122 section 3).
fn parse_uuid(text: &[u8]) -> Option<EntryUuid> {
    let mut digits = text.iter().filter(|&&octet| octet != b'-').map(|&octet| char::from(octet).to_digit(16));
    let mut uuid = [0; 16];
    for octet in &mut uuid {
        *octet = (digits.next()?? * 16 + digits.next()??) as u8;
    }
    digits.next().is_none().then_some(uuid)
}

/// 128-bit FNV-1a. It must stay the same in all versions.
fn digest(text: &str) -> EntryUuid {
    const OFFSET: u128 = 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d;
    const PRIME: u128 = 0x0000_0000_0100_0000_0000_0000_0000_013b;
    let digest = text.bytes().fold(OFFSET, |hash, octet| (hash ^ u128::from(octet)).wrapping_mul(PRIME));
    digest.to_be_bytes()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_uuid_is_read_from_its_text() {
        let octets = [0xa0, 0xb1, 0xc2, 0xd3, 0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 255];
        assert_eq!(parse_uuid(b"a0b1c2d3-0001-0203-0405-06070809 0aff"), None);
        assert_eq!(parse_uuid(b"a0b1c2d3-0001-0203-0405-060708090aff"), Some(octets));
        assert_eq!(parse_uuid(b"A0B1C2D3000102030405060708090AFF"), Some(octets));
        assert_eq!(parse_uuid(b"a0b1c2d3-0001-0203-0405-060708090a"), None);
        assert_eq!(parse_uuid(b"a0b1c2d3-0001-0203-0405-060708090aff00"), None);
    }

    #[test]
    fn the_digest_is_fnv_1a() {
        assert_eq!(u128::from_be_bytes(digest("")), 0x6c62_272e_07bb_0142_62b8_2175_6295_c58d);
        assert_eq!(u128::from_be_bytes(digest("a")), 0xd228_cb69_6f1a_8caf_7891_2b70_4e4a_8964);
    }

    #[test]
    fn the_next_page_is_asked_for_by_its_cookie() {
        assert_eq!(paging_control(b"c").value.as_deref(), Some(&[0x30, 7, 2, 2, 3, 0xe8, 4, 1, b'c'][..]));
        assert_eq!(next_cookie(&[paging_control(b"c")]), Ok(b"c".to_vec()));
        assert_eq!(next_cookie(&[]), Ok(Vec::new()));
    }
}
