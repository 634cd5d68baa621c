//! The records that a domain should have.
//!
//! Some are facts about this server: MX, TLSA, PTR. Others say what the operator wants: SPF, DMARC,
//! MTA-STS and TLSRPT. For these the line is a proposal, and any valid record of the kind is right.

use std::fmt;
use std::net::IpAddr;

use config::Config;
use dns::{QueryType, TlsaRecord, reverse_name};
use net::Certificate;

/// This server, as the records describe it.
pub(super) struct MailServer {
    /// Its name, with A-labels.
    pub(super) hostname: Box<str>,
    /// The addresses that the DNS has for it.
    addresses: Vec<IpAddr>,
    /// The digests of the public keys of the certificates that it presents under its name.
    key_digests: Vec<[u8; 32]>,
    /// Certificates that cannot be used.
    problems: Vec<String>,
}

/// A record that a domain should have.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct ExpectedRecord {
    /// Its name, without the final dot.
    pub(super) name: String,
    /// Its content.
    pub(super) data: ExpectedData,
    /// Whether mail works without it.
    pub(super) importance: Importance,
    /// What it is for, in one line.
    pub(super) purpose: &'static str,
}

/// Whether a domain can do without a record.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Importance {
    /// Without it, mail is not delivered, or treated as spam.
    Needed,
    /// It makes mail safer.
    Optional,
}

/// The content of a record.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ExpectedData {
    /// This MX host, with any preference.
    Mx(Box<str>),
    /// Exactly one text that begins with this version; the rest is a proposal.
    TextOfKind { version: &'static str, proposal: String },
    /// This record.
    Tlsa(TlsaRecord),
    /// This name.
    Ptr(Box<str>),
}

impl MailServer {
    /// Reads the certificates from disk.
    pub(super) fn from_config(config: &Config, addresses: Vec<IpAddr>) -> MailServer {
        let hostname = dns::to_ascii(&config.hostname).unwrap_or_else(|| config.hostname.clone());
        let (mut loaded, mut problems) = (Vec::new(), Vec::new());
        for certificate in &config.certificates {
            match Certificate::load(&certificate.files) {
                Ok(certificate) => loaded.push(certificate),
                Err(error) => problems.push(error.to_string()),
            }
        }
        let is_own = |certificate: &&Certificate| certificate.names().iter().any(|name| covers(name, &hostname));
        let mut presented: Vec<&Certificate> = loaded.iter().filter(is_own).collect();
        if presented.is_empty() {
            // Clients that ask for another name get the first certificate.
            presented.extend(loaded.first());
        }
        let key_digests = presented.into_iter().filter_map(Certificate::public_key_sha256).collect();
        MailServer { hostname, addresses, key_digests, problems }
    }

    /// What keeps some records from being known.
    pub(super) fn remarks(&self) -> impl Iterator<Item = String> {
        let none = self.addresses.is_empty().then(|| {
            format!("{} has no address in the DNS (A, AAAA): it needs one, and a PTR record for each", self.hostname)
        });
        none.into_iter().chain(self.problems.iter().map(|why| format!("no TLSA record: {why}")))
    }
}

/// The records for mail of this domain.
pub(super) fn records(domain: &str, server: &MailServer) -> Vec<ExpectedRecord> {
    let text = |name: String, importance, purpose, version, rest: String| ExpectedRecord {
        name,
        data: ExpectedData::TextOfKind { version, proposal: format!("{version}{rest}") },
        importance,
        purpose,
    };
    let policy_id = sts_policy_id(server);
    let mut records = vec![
        ExpectedRecord {
            name: domain.to_owned(),
            data: ExpectedData::Mx(server.hostname.clone()),
            importance: Importance::Needed,
            purpose: "Mail goes to this server",
        },
        text(
            domain.to_owned(),
            Importance::Needed,
            "SPF: the MX hosts send mail, and nobody else",
            "v=spf1",
            " mx -all".into(),
        ),
        text(
            format!("_dmarc.{domain}"),
            Importance::Needed,
            "DMARC: reports go to the postmaster; p=quarantine or p=reject once they show no surprise",
            "v=DMARC1",
            format!("; p=none; rua=mailto:postmaster@{domain}"),
        ),
    ];
    records.extend(server.addresses.iter().map(|address| ExpectedRecord {
        name: reverse_name(*address),
        data: ExpectedData::Ptr(server.hostname.clone()),
        importance: Importance::Needed,
        purpose: "The address of this server has its name; whoever provides the address publishes this",
    }));
    records.push(text(
        format!("_mta-sts.{domain}"),
        Importance::Optional,
        "MTA-STS: others must verify this server; a new id with each change of the policy below",
        "v=STSv1",
        format!("; id={policy_id};"),
    ));
    records.push(text(
        format!("_smtp._tls.{domain}"),
        Importance::Optional,
        "TLSRPT: others report failures of TLS",
        "v=TLSRPTv1",
        format!("; rua=mailto:postmaster@{domain}"),
    ));
    records.extend(server.key_digests.iter().map(|digest| ExpectedRecord {
        name: format!("_25._tcp.{}", server.hostname),
        data: ExpectedData::Tlsa(TlsaRecord { usage: 3, selector: 1, matching: 1, data: digest.as_slice().into() }),
        importance: Importance::Optional,
        purpose: "DANE: the key of this server; only in a zone signed by DNSSEC, and before a new key is used",
    }));
    records
}

/// The MTA-STS policy for mail that this server receives.
pub(super) fn sts_policy(server: &MailServer) -> String {
    format!("version: STSv1\nmode: testing\nmx: {}\nmax_age: 604800\n", server.hostname)
}

/// An id that changes with the policy.
fn sts_policy_id(server: &MailServer) -> String {
    // FNV-1a: the same in every version and on every machine.
    let digest = sts_policy(server)
        .bytes()
        .fold(0xcbf2_9ce4_8422_2325_u64, |digest, byte| (digest ^ u64::from(byte)).wrapping_mul(0x0100_0000_01b3));
    format!("{digest:016x}")
}

/// Whether a name of a certificate is for this host.
fn covers(name: &str, hostname: &str) -> bool {
    match name.strip_prefix("*.") {
        Some(parent) => hostname.split_once('.').is_some_and(|(_, rest)| rest == parent),
        None => name == hostname,
    }
}

impl ExpectedRecord {
    /// The type to look up.
    pub(super) fn kind(&self) -> QueryType {
        match self.data {
            ExpectedData::Mx(_) => QueryType::Mx,
            ExpectedData::TextOfKind { .. } => QueryType::Txt,
            ExpectedData::Tlsa(_) => QueryType::Tlsa,
            ExpectedData::Ptr(_) => QueryType::Ptr,
        }
    }

    /// Whether there is also a policy to look at.
    pub(super) fn announces_sts_policy(&self) -> bool {
        matches!(self.data, ExpectedData::TextOfKind { version: "v=STSv1", .. })
    }
}

/// A line of a zone file.
impl fmt::Display for ExpectedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}. IN ", self.name)?;
        match &self.data {
            ExpectedData::Mx(host) => write!(f, "MX 10 {host}."),
            ExpectedData::TextOfKind { proposal, .. } => write!(f, "TXT \"{proposal}\""),
            ExpectedData::Tlsa(record) => write!(f, "TLSA {}", tlsa_text(record)),
            ExpectedData::Ptr(host) => write!(f, "PTR {host}."),
        }
    }
}

/// The data of a TLSA record as in a zone file.
pub(super) fn tlsa_text(record: &TlsaRecord) -> String {
    let digits: String = record.data.iter().map(|octet| format!("{octet:02x}")).collect();
    format!("{} {} {} {digits}", record.usage, record.selector, record.matching)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_records_are_lines_of_a_zone_file() {
        let server = MailServer {
            hostname: "mx1.example.org".into(),
            addresses: vec!["192.0.2.25".parse().unwrap(), "2001:db8::25".parse().unwrap()],
            key_digests: vec![[0xab; 32]],
            problems: Vec::new(),
        };
        let lines: Vec<String> = records("example.org", &server).iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(lines.join("\n") + "\n" + &sts_policy(&server));
    }

    #[test]
    fn a_wildcard_covers_one_label() {
        for (name, host, is_covered) in [
            ("mx.example.org", "mx.example.org", true),
            ("*.example.org", "mx.example.org", true),
            ("*.example.org", "a.mx.example.org", false),
            ("*.example.org", "example.org", false),
            ("example.org", "mx.example.org", false),
        ] {
            assert_eq!(covers(name, host), is_covered, "{name} {host}");
        }
    }
}
