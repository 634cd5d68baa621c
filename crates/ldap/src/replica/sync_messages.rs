//! Encoding and decoding of the controls and messages of the Sync Operation (RFC 4533 section 2).

use super::batch::EntryUuid;
use super::sync_operation::{EntryState, SUCCESS, SyncMessage};
use crate::ber::{BOOLEAN, BerReader, BerWriter, ENUMERATED, Malformed, OCTETS, SEQUENCE, SET};
use crate::connection::LdapControl;

/// The OID of the Sync Request Control, listed by servers that offer the operation.
pub(super) const REQUEST: &str = "1.3.6.1.4.1.4203.1.9.1.1";
/// The OID of Sync Info Messages.
pub(super) const INFO: &str = "1.3.6.1.4.1.4203.1.9.1.4";
const STATE: &str = "1.3.6.1.4.1.4203.1.9.1.2";
const DONE: &str = "1.3.6.1.4.1.4203.1.9.1.3";

const REFRESH_AND_PERSIST: u32 = 3;
const NEW_COOKIE: u8 = 0x80;
const REFRESH_DELETE: u8 = 0xa1;
const REFRESH_PRESENT: u8 = 0xa2;
const ID_SET: u8 = 0xa3;

/// Requests the changes since the cookie, or everything, and then changes as they happen (section
/// 2.2). Critical, because a plain search would not report changes.
pub(super) fn request(cookie: Option<&[u8]>) -> LdapControl {
    let mut writer = BerWriter::default();
    writer.nested(SEQUENCE, |writer| {
        writer.number(ENUMERATED, REFRESH_AND_PERSIST);
        if let Some(cookie) = cookie {
            writer.octets(OCTETS, cookie);
        }
    });
    LdapControl { oid: REQUEST.into(), critical: true, value: Some(writer.into_octets().into()) }
}

/// Decodes the Sync State Control of an entry (section 2.3).
pub(super) fn entry(controls: &[LdapControl]) -> Result<SyncMessage, Malformed> {
    let value = value_of(controls, STATE).ok_or(Malformed("entry without Sync State Control"))?;
    let mut reader = BerReader::new(value).nested(SEQUENCE)?;
    let state = match reader.number(ENUMERATED)? {
        0 => EntryState::Present,
        1 => EntryState::Add,
        2 => EntryState::Modify,
        3 => EntryState::Delete,
        _ => return Err(Malformed("unknown sync state")),
    };
    let uuid = uuid(reader.expect(OCTETS)?)?;
    Ok(SyncMessage::Entry { state, uuid, cookie: cookie(&mut reader)? })
}

/// Decodes a Sync Info Message (section 2.5).
pub(super) fn info(value: &[u8]) -> Result<SyncMessage, Malformed> {
    let (tag, content) = BerReader::new(value).element()?;
    let mut reader = BerReader::new(content);
    match tag {
        NEW_COOKIE => Ok(SyncMessage::NewCookie(content.to_vec())),
        REFRESH_DELETE => {
            Ok(SyncMessage::RefreshDelete { cookie: cookie(&mut reader)?, done: boolean_or(&mut reader, true)? })
        }
        REFRESH_PRESENT => {
            Ok(SyncMessage::RefreshPresent { cookie: cookie(&mut reader)?, done: boolean_or(&mut reader, true)? })
        }
        ID_SET => {
            let (cookie, deletes) = (cookie(&mut reader)?, boolean_or(&mut reader, false)?);
            let mut set = reader.nested(SET)?;
            let mut uuids = Vec::new();
            while !set.is_empty() {
                uuids.push(uuid(set.expect(OCTETS)?)?);
            }
            Ok(SyncMessage::IdSet { cookie, deletes, uuids })
        }
        _ => Err(Malformed("unknown Sync Info Message")),
    }
}

/// Decodes the end of the operation (section 2.4). Success requires the control: without it, all
/// unmentioned entries would be removed.
pub(super) fn done(code: u32, controls: &[LdapControl]) -> Result<SyncMessage, Malformed> {
    let Some(value) = value_of(controls, DONE) else {
        return match code {
            SUCCESS => Err(Malformed("success without Sync Done Control")),
            _ => Ok(SyncMessage::Done { code, cookie: None, deletes: false }),
        };
    };
    let mut reader = BerReader::new(value).nested(SEQUENCE)?;
    Ok(SyncMessage::Done { code, cookie: cookie(&mut reader)?, deletes: boolean_or(&mut reader, false)? })
}

fn value_of<'a>(controls: &'a [LdapControl], oid: &str) -> Option<&'a [u8]> {
    controls.iter().find(|control| *control.oid == *oid)?.value.as_deref()
}

fn uuid(octets: &[u8]) -> Result<EntryUuid, Malformed> {
    octets.try_into().map_err(|_| Malformed("a UUID must have 16 octets"))
}

fn cookie(reader: &mut BerReader<'_>) -> Result<Option<Vec<u8>>, Malformed> {
    Ok(reader.optional(OCTETS)?.map(<[u8]>::to_vec))
}

fn boolean_or(reader: &mut BerReader<'_>, otherwise: bool) -> Result<bool, Malformed> {
    Ok(reader.optional(BOOLEAN)?.map_or(otherwise, |octets| octets.iter().any(|&octet| octet != 0)))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn control(oid: &str, value: &[u8]) -> [LdapControl; 1] {
        [LdapControl { oid: oid.into(), critical: false, value: Some(value.into()) }]
    }

    #[test]
    fn a_request_has_the_cookie_if_there_is_one() {
        assert_eq!(request(None).value.as_deref(), Some(&[0x30, 3, 10, 1, 3][..]));
        assert_eq!(request(Some(b"c")).value.as_deref(), Some(&[0x30, 6, 10, 1, 3, 4, 1, b'c'][..]));
    }

    #[test]
    fn a_state_comes_with_each_entry() {
        let value = [&[0x30, 24, 10, 1, 3, 4, 16][..], &[7; 16], &[4, 1, b'c']].concat();
        let expected = SyncMessage::Entry { state: EntryState::Delete, uuid: [7; 16], cookie: Some(b"c".to_vec()) };
        assert_eq!(entry(&control(STATE, &value)), Ok(expected));
        assert!(entry(&[]).is_err());
        for cut in 0..value.len() - 3 {
            assert!(entry(&control(STATE, &value[..cut])).is_err(), "{cut}");
        }
    }

    #[test]
    fn what_is_left_out_has_its_default() {
        assert_eq!(info(&[0x80, 1, b'c']), Ok(SyncMessage::NewCookie(b"c".to_vec())));
        assert_eq!(info(&[0xa1, 0]), Ok(SyncMessage::RefreshDelete { cookie: None, done: true }));
        assert_eq!(info(&[0xa2, 3, 1, 1, 0]), Ok(SyncMessage::RefreshPresent { cookie: None, done: false }));
        let set = [&[0xa3, 23, 1, 1, 0xff, 0x31, 18, 4, 16][..], &[9; 16]].concat();
        assert_eq!(info(&set), Ok(SyncMessage::IdSet { cookie: None, deletes: true, uuids: vec![[9; 16]] }));
        assert!(info(&[0xa4, 0]).is_err());
        assert!(done(0, &[]).is_err());
        assert_eq!(done(4096, &[]), Ok(SyncMessage::Done { code: 4096, cookie: None, deletes: false }));
        let end = done(0, &control(DONE, &[0x30, 6, 4, 1, b'c', 1, 1, 1]));
        assert_eq!(end, Ok(SyncMessage::Done { code: 0, cookie: Some(b"c".to_vec()), deletes: true }));
    }

    proptest::proptest! {
        #[test]
        fn any_octets_are_read_or_refused(octets in proptest::collection::vec(proptest::num::u8::ANY, 0..48)) {
            let _ = info(&octets);
            let _ = entry(&control(STATE, &octets));
            let _ = done(0, &control(DONE, &octets));
        }
    }
}
