//! What can be wrong with a HELO name (RFC 5321 section 4.1.1.1).
//!
//! | fault | the name |
//! |---|---|
//! | invalid | is neither a host name nor an address |
//! | not qualified | is no host name with a dot, and no address literal |
//! | wrong address | is an address, or an address literal, that is not the client's |
//! | own | is the name of this server, or the address that the client connected to |
//! | unknown | is no address literal, and has neither an address nor an MX in the DNS |

use std::net::IpAddr;
use std::sync::Arc;

use super::HostNames;
use super::keys::normalize_helo;
use crate::check::SessionInfo;

/// The longest label of a name (RFC 1035 section 2.3.4).
const LABEL_OCTETS_MAX: usize = 63;
/// The longest name.
const NAME_OCTETS_MAX: usize = 253;

/// A fault of a HELO name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HeloFault {
    /// It is neither a host name nor an address.
    Invalid,
    /// It is no host name with a dot, and no address literal.
    NotQualified,
    /// It is an address that is not the client's.
    WrongAddress,
    /// It is the name or the address of this server.
    Own,
    /// The DNS does not know it.
    Unknown,
}

impl HeloFault {
    /// All faults.
    pub const ALL: [HeloFault; 5] =
        [HeloFault::Invalid, HeloFault::NotQualified, HeloFault::WrongAddress, HeloFault::Own, HeloFault::Unknown];

    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            HeloFault::Invalid => "invalid",
            HeloFault::NotQualified => "not_qualified",
            HeloFault::WrongAddress => "wrong_address",
            HeloFault::Own => "own",
            HeloFault::Unknown => "unknown",
        }
    }
}

/// The faults that a rule names.
pub struct HeloFaults {
    /// At least one.
    pub faults: Box<[HeloFault]>,
    /// The name of this server, in lower case.
    pub own_name: Box<str>,
    /// Knows which names exist.
    pub names: Arc<dyn HostNames>,
}

/// A HELO name, read.
enum HeloForm<'a> {
    Literal(IpAddr),
    Address(IpAddr),
    Host(&'a str),
    Invalid,
}

impl HeloFaults {
    /// Whether the name has one of the faults that need no DNS.
    pub(super) fn has_evident_fault(&self, info: &SessionInfo<'_>) -> bool {
        let Some(helo) = info.helo.map(normalize_helo) else { return false };
        self.faults.iter().any(|fault| self.has_fault(*fault, &helo, info))
    }

    /// The host name that the DNS is asked for, in lower case. None: it need not be.
    pub(super) fn host_to_ask(&self, info: &SessionInfo<'_>) -> Option<String> {
        let helo = info.helo.filter(|_| self.faults.contains(&HeloFault::Unknown)).map(normalize_helo)?;
        matches!(read(&helo), HeloForm::Host(_)).then(|| helo.into_owned())
    }

    fn has_fault(&self, fault: HeloFault, helo: &str, info: &SessionInfo<'_>) -> bool {
        let form = read(helo);
        match fault {
            HeloFault::Invalid => matches!(form, HeloForm::Invalid),
            HeloFault::NotQualified => match form {
                HeloForm::Literal(_) => false,
                HeloForm::Host(name) => !name.contains('.'),
                HeloForm::Address(_) | HeloForm::Invalid => true,
            },
            HeloFault::WrongAddress => match form {
                HeloForm::Literal(address) | HeloForm::Address(address) => {
                    info.client.is_some_and(|client| client.to_canonical() != address.to_canonical())
                }
                HeloForm::Host(_) | HeloForm::Invalid => false,
            },
            HeloFault::Own => match form {
                HeloForm::Literal(address) | HeloForm::Address(address) => {
                    info.local_address.is_some_and(|own| own.to_canonical() == address.to_canonical())
                }
                HeloForm::Host(name) => name == &*self.own_name,
                HeloForm::Invalid => false,
            },
            // A host name is looked up.
            HeloFault::Unknown => matches!(form, HeloForm::Invalid | HeloForm::Address(_)),
        }
    }
}

fn read(helo: &str) -> HeloForm<'_> {
    if let Some(literal) = helo.strip_prefix('[') {
        let address = literal.strip_suffix(']').map(|inner| inner.strip_prefix("ipv6:").unwrap_or(inner));
        return address.and_then(|address| address.parse().ok()).map_or(HeloForm::Invalid, HeloForm::Literal);
    }
    match helo.parse() {
        Ok(address) => HeloForm::Address(address),
        Err(_) if is_host_name(helo) => HeloForm::Host(helo),
        Err(_) => HeloForm::Invalid,
    }
}

/// Underscores are not allowed in host names, but occur. Names outside ASCII are for SMTPUTF8.
fn is_host_name(name: &str) -> bool {
    let is_inner = |c: char| c.is_alphanumeric() || c == '-' || c == '_';
    let is_label = |label: &str| {
        (1..=LABEL_OCTETS_MAX).contains(&label.len())
            && label.chars().all(is_inner)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    let is_number = name.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    name.len() <= NAME_OCTETS_MAX && !is_number && name.split('.').all(is_label)
}

#[cfg(test)]
mod tests {
    use super::super::host_names::tests::NoNames;
    use super::*;

    fn faults(helo: &str) -> String {
        let faults =
            HeloFaults { faults: HeloFault::ALL.into(), own_name: "mx.here.example".into(), names: Arc::new(NoNames) };
        let info = SessionInfo {
            client: "192.0.2.1".parse().ok(),
            local_address: "198.51.100.1".parse().ok(),
            helo: Some(helo),
            ..SessionInfo::default()
        };
        let helo = normalize_helo(helo);
        let found = HeloFault::ALL.into_iter().filter(|fault| faults.has_fault(*fault, &helo, &info));
        let found: Vec<&str> = found.map(HeloFault::name).chain(faults.host_to_ask(&info).map(|_| "ask")).collect();
        found.join(" ")
    }

    #[test]
    fn each_fault_is_recognised() {
        for (helo, expected) in [
            ("mail.example.org", "ask"),
            ("Mail.Example.ORG.", "ask"),
            ("m\u{e4}il.example", "ask"),
            ("my_host.example", "ask"),
            ("localhost", "not_qualified ask"),
            ("MX.here.example", "own ask"),
            ("[192.0.2.1]", ""),
            ("192.0.2.1", "not_qualified unknown"),
            ("[192.0.2.2]", "wrong_address"),
            ("[IPv6:2001:db8::1]", "wrong_address"),
            ("[198.51.100.1]", "wrong_address own"),
            ("[192.0.2.1", "invalid not_qualified unknown"),
            ("[example.org]", "invalid not_qualified unknown"),
            ("a..b", "invalid not_qualified unknown"),
            ("-a.example", "invalid not_qualified unknown"),
            ("a-.example", "invalid not_qualified unknown"),
            ("1.2.3", "invalid not_qualified unknown"),
            ("a b.example", "invalid not_qualified unknown"),
            ("(who)", "invalid not_qualified unknown"),
        ] {
            assert_eq!(faults(helo), expected, "{helo}");
        }
        assert_eq!(faults(&format!("{}.example", "a".repeat(64))), "invalid not_qualified unknown");
        assert_eq!(faults(&"a.".repeat(200)), "invalid not_qualified unknown");
    }
}
