//! Encoding and decoding of LDAP messages (RFC 4511 section 4).
//!
//! [`decode`] checks a message completely, so reading an [`SearchEntry`] later cannot fail. An
//! entry keeps the received octets; its attributes are slices of them.

use std::ops::Range;

use super::SearchScope;
use super::ber::{BOOLEAN, BerReader, BerWriter, ENUMERATED, INTEGER, Malformed, OCTETS, SEQUENCE, SET};

const BIND_REQUEST: u8 = 0x60;
const BIND_RESPONSE: u8 = 0x61;
const UNBIND_REQUEST: u8 = 0x42;
const SEARCH_REQUEST: u8 = 0x63;
const SEARCH_ENTRY: u8 = 0x64;
const SEARCH_DONE: u8 = 0x65;
const SEARCH_REFERENCE: u8 = 0x73;
const ABANDON_REQUEST: u8 = 0x50;
const EXTENDED_REQUEST: u8 = 0x77;
const EXTENDED_RESPONSE: u8 = 0x78;
const INTERMEDIATE: u8 = 0x79;
const CONTROLS: u8 = 0xa0;
const REFERRALS: u8 = 0xa3;

const VERSION: u32 = 3;
/// The OID of StartTLS (RFC 4511 section 4.14).
const STARTTLS: &[u8] = b"1.3.6.1.4.1.1466.20037";
/// Requests no attributes (RFC 4511 section 4.5.1.8).
const NO_ATTRIBUTES: &str = "1.1";

/// A control of a message (RFC 4511 section 4.1.11).
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapControl {
    /// The OID.
    pub oid: Box<str>,
    /// Whether a server that does not know the control must refuse the request.
    pub critical: bool,
    /// The value.
    pub value: Option<Box<[u8]>>,
}

/// A search request (RFC 4511 section 4.5.1).
#[derive(Clone, Copy, Debug)]
pub struct SearchRequest<'a> {
    /// The base DN.
    pub base: &'a str,
    /// The scope.
    pub scope: SearchScope,
    /// The encoded filter.
    pub filter: &'a [u8],
    /// The attributes to return; empty means none.
    pub attributes: &'a [&'a str],
    /// The controls.
    pub controls: &'a [LdapControl],
}

/// The result of an operation (RFC 4511 section 4.1.9).
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct LdapResult {
    /// The result code.
    pub code: u32,
    /// The diagnostic message.
    pub text: Box<str>,
    /// The URLs of a referral.
    pub referrals: Vec<String>,
    /// The controls.
    pub controls: Vec<LdapControl>,
}

/// A message from the server.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum LdapResponse {
    /// A search result entry.
    Entry(SearchEntry),
    /// A search result reference.
    Reference(Vec<String>),
    /// An intermediate response (RFC 4511 section 4.13).
    Intermediate {
        /// Its OID.
        oid: Box<str>,
        /// Its value.
        value: Box<[u8]>,
    },
    /// The result of the operation.
    Done(LdapResult),
}

/// A search result entry as received.
#[derive(Clone, PartialEq, Eq)]
pub struct SearchEntry {
    message: Box<[u8]>,
    dn: Range<usize>,
    attributes: Range<usize>,
    /// The controls.
    pub controls: Vec<LdapControl>,
}

impl SearchEntry {
    /// The DN.
    pub fn dn(&self) -> &str {
        str::from_utf8(&self.message[self.dn.clone()]).unwrap_or_default()
    }

    /// The length of the whole message.
    pub fn octet_count(&self) -> usize {
        self.message.len()
    }

    /// The attributes: description with options, and values.
    pub fn attributes(&self) -> impl Iterator<Item = (&str, Values<'_>)> {
        let mut reader = BerReader::new(&self.message[self.attributes.clone()]);
        std::iter::from_fn(move || {
            let mut attribute = reader.nested(SEQUENCE).ok()?;
            let name = str::from_utf8(attribute.expect(OCTETS).ok()?).ok()?;
            Some((name, Values(attribute.nested(SET).ok()?)))
        })
    }
}

impl std::fmt::Debug for SearchEntry {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_tuple("Entry").field(&self.dn()).finish()
    }
}

/// The values of one attribute, in the server's order.
#[derive(Clone, Debug)]
pub struct Values<'a>(BerReader<'a>);

impl<'a> Iterator for Values<'a> {
    type Item = &'a [u8];

    fn next(&mut self) -> Option<&'a [u8]> {
        self.0.expect(OCTETS).ok()
    }
}

/// A simple bind request (RFC 4513 section 5.1). The password is not wiped from memory afterwards,
/// neither here nor in the connection's buffers.
pub(crate) fn simple_bind(id: u32, dn: &str, password: &str) -> Vec<u8> {
    request(id, &[], |writer| {
        writer.nested(BIND_REQUEST, |writer| {
            writer.number(INTEGER, VERSION);
            writer.octets(OCTETS, dn.as_bytes());
            writer.octets(0x80, password.as_bytes());
        });
    })
}

/// A SASL EXTERNAL bind request (RFC 4422 appendix A).
pub(crate) fn external_bind(id: u32) -> Vec<u8> {
    request(id, &[], |writer| {
        writer.nested(BIND_REQUEST, |writer| {
            writer.number(INTEGER, VERSION);
            writer.octets(OCTETS, b"");
            writer.nested(0xa3, |writer| {
                writer.octets(OCTETS, b"EXTERNAL");
                writer.octets(OCTETS, b"");
            });
        });
    })
}

/// A StartTLS request (RFC 4511 section 4.14.1).
pub(crate) fn starttls(id: u32) -> Vec<u8> {
    request(id, &[], |writer| writer.nested(EXTENDED_REQUEST, |writer| writer.octets(0x80, STARTTLS)))
}

/// A search request. Sets no time or size limit; callers have timeouts.
pub(crate) fn search(id: u32, search: &SearchRequest<'_>) -> Vec<u8> {
    request(id, search.controls, |writer| {
        writer.nested(SEARCH_REQUEST, |writer| {
            writer.octets(OCTETS, search.base.as_bytes());
            writer.number(ENUMERATED, search.scope as u32);
            // Do not dereference aliases: directory aliases (RFC 4512 section 2.6) are not mail
            // aliases.
            writer.number(ENUMERATED, 0);
            writer.number(INTEGER, 0);
            writer.number(INTEGER, 0);
            writer.boolean(BOOLEAN, false);
            writer.raw(search.filter);
            writer.nested(SEQUENCE, |writer| {
                for attribute in search.attributes {
                    writer.octets(OCTETS, attribute.as_bytes());
                }
                if search.attributes.is_empty() {
                    writer.octets(OCTETS, NO_ATTRIBUTES.as_bytes());
                }
            });
        });
    })
}

/// Abandons the operation `other` (RFC 4511 section 4.11).
pub(crate) fn abandon(id: u32, other: u32) -> Vec<u8> {
    request(id, &[], |writer| writer.number(ABANDON_REQUEST, other))
}

/// Closes the connection (RFC 4511 section 4.3).
pub(crate) fn unbind(id: u32) -> Vec<u8> {
    request(id, &[], |writer| writer.octets(UNBIND_REQUEST, b""))
}

fn request(id: u32, controls: &[LdapControl], operation: impl FnOnce(&mut BerWriter)) -> Vec<u8> {
    let mut writer = BerWriter::default();
    writer.nested(SEQUENCE, |writer| {
        writer.number(INTEGER, id);
        operation(writer);
        if controls.is_empty() {
            return;
        }
        writer.nested(CONTROLS, |writer| {
            for control in controls {
                writer.nested(SEQUENCE, |writer| {
                    writer.octets(OCTETS, control.oid.as_bytes());
                    if control.critical {
                        writer.boolean(BOOLEAN, true);
                    }
                    if let Some(value) = &control.value {
                        writer.octets(OCTETS, value);
                    }
                });
            }
        });
    });
    writer.into_octets()
}

/// Decodes a message and its message ID. The response is None if the operation is unknown.
pub(crate) fn decode(message: Box<[u8]>) -> Result<(u32, Option<LdapResponse>), Malformed> {
    let mut reader = BerReader::new(&message).nested(SEQUENCE)?;
    let id = reader.number(INTEGER)?;
    let (tag, content) = reader.element()?;
    let controls = match reader.optional(CONTROLS)? {
        Some(content) => controls(BerReader::new(content))?,
        // Active Directory puts the name of its Notice of Disconnection here, against the standard.
        None => Vec::new(),
    };
    let mut operation = BerReader::new(content);
    let response = match tag {
        SEARCH_ENTRY => {
            let (dn, attributes) = entry(operation)?;
            let (dn, attributes) = (range_in(&message, dn), range_in(&message, attributes));
            LdapResponse::Entry(SearchEntry { message, dn, attributes, controls })
        }
        SEARCH_REFERENCE => LdapResponse::Reference(texts(operation)?),
        SEARCH_DONE | BIND_RESPONSE | EXTENDED_RESPONSE => LdapResponse::Done(done(operation, controls)?),
        INTERMEDIATE => {
            let oid = text(operation.optional(0x80)?.unwrap_or_default())?.into();
            LdapResponse::Intermediate { oid, value: operation.optional(0x81)?.unwrap_or_default().into() }
        }
        _ => return Ok((id, None)),
    };
    Ok((id, Some(response)))
}

/// Checks an entry and returns its DN and attributes.
fn entry(mut reader: BerReader<'_>) -> Result<(&[u8], &[u8]), Malformed> {
    let dn = reader.expect(OCTETS)?;
    text(dn)?;
    let attributes = reader.expect(SEQUENCE)?;
    let mut rest = BerReader::new(attributes);
    while !rest.is_empty() {
        let mut attribute = rest.nested(SEQUENCE)?;
        text(attribute.expect(OCTETS)?)?;
        let mut values = attribute.nested(SET)?;
        while !values.is_empty() {
            values.expect(OCTETS)?;
        }
    }
    Ok((dn, attributes))
}

fn done(mut reader: BerReader<'_>, controls: Vec<LdapControl>) -> Result<LdapResult, Malformed> {
    let code = reader.number(ENUMERATED)?;
    // The matched DN is not used.
    reader.expect(OCTETS)?;
    let text = String::from_utf8_lossy(reader.expect(OCTETS)?).into();
    let referrals = match reader.optional(REFERRALS)? {
        Some(content) => texts(BerReader::new(content))?,
        None => Vec::new(),
    };
    Ok(LdapResult { code, text, referrals, controls })
}

fn controls(mut reader: BerReader<'_>) -> Result<Vec<LdapControl>, Malformed> {
    let mut controls = Vec::new();
    while !reader.is_empty() {
        let mut control = reader.nested(SEQUENCE)?;
        let oid = text(control.expect(OCTETS)?)?.into();
        let critical = control.optional(BOOLEAN)?.is_some_and(|truth| truth != [0]);
        let value = control.optional(OCTETS)?.map(Into::into);
        controls.push(LdapControl { oid, critical, value });
    }
    Ok(controls)
}

fn texts(mut reader: BerReader<'_>) -> Result<Vec<String>, Malformed> {
    let mut texts = Vec::new();
    while !reader.is_empty() {
        texts.push(text(reader.expect(OCTETS)?)?.to_owned());
    }
    Ok(texts)
}

fn text(octets: &[u8]) -> Result<&str, Malformed> {
    str::from_utf8(octets).map_err(|_| Malformed("invalid UTF-8"))
}

/// The range of the slice `part` within `whole`.
fn range_in(whole: &[u8], part: &[u8]) -> Range<usize> {
    let start = part.as_ptr().addr() - whole.as_ptr().addr();
    start..start + part.len()
}

/// The name of a result code (RFC 4511 appendix A).
pub(crate) fn code_text(code: u32) -> String {
    let name = match code {
        0 => "success",
        1 => "operationsError",
        2 => "protocolError",
        3 => "timeLimitExceeded",
        4 => "sizeLimitExceeded",
        7 => "authMethodNotSupported",
        8 => "strongerAuthRequired",
        10 => "referral",
        11 => "adminLimitExceeded",
        12 => "unavailableCriticalExtension",
        13 => "confidentialityRequired",
        14 => "saslBindInProgress",
        16 => "noSuchAttribute",
        18 => "inappropriateMatching",
        21 => "invalidAttributeSyntax",
        32 => "noSuchObject",
        34 => "invalidDNSyntax",
        48 => "inappropriateAuthentication",
        49 => "invalidCredentials",
        50 => "insufficientAccessRights",
        51 => "busy",
        52 => "unavailable",
        53 => "unwillingToPerform",
        80 => "other",
        4096 => "e-syncRefreshRequired",
        _ => return format!("result code {code}"),
    };
    format!("{name} ({code})")
}

impl std::fmt::Display for LdapResult {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(&code_text(self.code))?;
        match self.text.trim() {
            "" => Ok(()),
            text => write!(f, ": {text}"),
        }
    }
}

#[cfg(test)]
pub(super) mod tests {
    use proptest::prelude::*;

    use super::*;

    fn encoded(dn: &str, attributes: &[(&str, &[&[u8]])]) -> Vec<u8> {
        request(7, &[LdapControl { oid: "1.2".into(), critical: true, value: Some(Box::from(&b"v"[..])) }], |writer| {
            writer.nested(SEARCH_ENTRY, |writer| {
                writer.octets(OCTETS, dn.as_bytes());
                writer.nested(SEQUENCE, |writer| {
                    for (name, values) in attributes {
                        writer.nested(SEQUENCE, |writer| {
                            writer.octets(OCTETS, name.as_bytes());
                            writer.nested(SET, |writer| values.iter().for_each(|value| writer.octets(OCTETS, value)));
                        });
                    }
                });
            });
        })
    }

    /// An entry as received from a server.
    pub(crate) fn entry(dn: &str, attributes: &[(&str, &[&[u8]])]) -> SearchEntry {
        match decode(encoded(dn, attributes).into()) {
            Ok((7, Some(LdapResponse::Entry(entry)))) => entry,
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn an_entry_is_read_as_it_was_sent() {
        let entry = entry("cn=x", &[("mail", &[b"a", b"", &[0xff]]), ("void", &[])]);
        assert_eq!(entry.dn(), "cn=x");
        let attributes: Vec<(&str, Vec<&[u8]>)> =
            entry.attributes().map(|(name, values)| (name, values.collect())).collect();
        assert_eq!(attributes, [("mail", vec![&b"a"[..], b"", &[0xff]]), ("void", vec![])]);
        assert_eq!(
            entry.controls,
            [LdapControl { oid: "1.2".into(), critical: true, value: Some(Box::from(&b"v"[..])) }]
        );
    }

    #[test]
    fn requests_are_those_of_the_standard() {
        let wanted = SearchRequest {
            base: "dc=a",
            scope: SearchScope::One,
            filter: b"\x87\x01o",
            attributes: &["cn"],
            controls: &[],
        };
        let expected = b"\x30\x23\x02\x01\x02\x63\x1e\x04\x04dc=a\x0a\x01\x01\x0a\x01\x00\x02\x01\x00\x02\x01\x00\x01\x01\x00\x87\x01o\x30\x04\x04\x02cn";
        assert_eq!(search(2, &wanted), expected);
        assert_eq!(simple_bind(1, "cn=a", "pw"), b"\x30\x12\x02\x01\x01\x60\x0d\x02\x01\x03\x04\x04cn=a\x80\x02pw");
        assert_eq!(
            external_bind(1),
            b"\x30\x18\x02\x01\x01\x60\x13\x02\x01\x03\x04\x00\xa3\x0c\x04\x08EXTERNAL\x04\x00"
        );
        assert_eq!(starttls(1), b"\x30\x1d\x02\x01\x01\x77\x18\x80\x161.3.6.1.4.1.1466.20037");
        assert_eq!(abandon(6, 5), b"\x30\x06\x02\x01\x06\x50\x01\x05");
        assert_eq!(unbind(3), b"\x30\x05\x02\x01\x03\x42\x00");
        // An empty list would mean all attributes (RFC 4511 section 4.5.1.8).
        assert!(search(2, &SearchRequest { attributes: &[], ..wanted }).ends_with(b"\x30\x05\x04\x031.1"));
    }

    proptest! {
        #[test]
        fn any_octets_are_decoded_or_refused(
            place in 0usize..60, octet in 0u8.., rest in proptest::collection::vec(0u8.., 0..40),
        ) {
            let mut octets = encoded("cn=x", &[("mail", &[b"a", b"b"]), ("cn", &[b"x"])]);
            let place = place % octets.len();
            octets[place] = octet;
            for octets in [octets.clone(), [&octets[..place], &rest[..]].concat(), rest] {
                if let Ok((_, Some(LdapResponse::Entry(entry)))) = decode(octets.into()) {
                    let values = entry.attributes().flat_map(|(_, values)| values).count();
                    prop_assert!(values <= 30 && entry.dn().len() <= 70);
                }
            }
        }
    }
}
