//! The records that a domain should have.
//!
//! Some are facts about this server: MX, the public keys of DKIM, TLSA, PTR. Others say what the operator
//! wants: SPF, DMARC, MTA-STS and TLSRPT. For these the line is a proposal, and another valid record of
//! the kind is right too; SPF must let this server send.

use std::fmt;
use std::sync::Arc;

use dns::{QueryType, TlsaRecord, reverse_name};
use sender_auth::signing::{PrivateKey, SigningKey, key_record};

use super::mail_server::MailServer;
use super::text_kind::TextKind;

/// A record that a domain should have.
#[derive(Clone)]
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
#[derive(Clone)]
pub(super) enum ExpectedData {
    /// This MX host, with any preference.
    Mx(Box<str>),
    /// Exactly one text of this kind, without faults.
    Text { kind: TextKind, proposal: String },
    /// The public key that belongs to this private one; the value is a proposal.
    DkimKey { key: Arc<PrivateKey>, value: String },
    /// This record.
    Tlsa(TlsaRecord),
    /// This name.
    Ptr(Box<str>),
}

/// The records for mail of this domain.
///
/// # Errors
///
/// The public key of a private one cannot be computed.
pub(super) fn records(domain: &str, server: &MailServer) -> anyhow::Result<Vec<ExpectedRecord>> {
    let mut records = vec![
        ExpectedRecord {
            name: domain.to_owned(),
            data: ExpectedData::Mx(server.hostname.clone()),
            importance: Importance::Needed,
            purpose: "Mail goes to this server",
        },
        ExpectedRecord {
            name: domain.to_owned(),
            data: text(TextKind::SPF, " mx -all"),
            importance: Importance::Needed,
            purpose: "SPF: the MX hosts send mail, and nobody else",
        },
    ];
    records.extend(key_records(server)?);
    records.push(ExpectedRecord {
        name: format!("_dmarc.{domain}"),
        data: text(TextKind::DMARC, &format!("; p=none; rua=mailto:postmaster@{domain}")),
        importance: Importance::Needed,
        purpose: "DMARC: reports go to the postmaster; p=quarantine or p=reject once they show no surprise",
    });
    records.extend(server.addresses.iter().map(|address| ExpectedRecord {
        name: reverse_name(*address),
        data: ExpectedData::Ptr(server.hostname.clone()),
        importance: Importance::Needed,
        purpose: "The address of this server has its name; whoever provides the address publishes this",
    }));
    records.extend(tls_records(domain, server));
    Ok(records)
}

/// The keys that sign the domain's mail, which may be those of a parent domain.
fn key_records(server: &MailServer) -> anyhow::Result<Vec<ExpectedRecord>> {
    let keys = server.signing.iter().flat_map(|signing| signing.keys.iter().map(|key| (&*signing.domain, key)));
    let record = |(domain, key): (&str, &SigningKey)| {
        Ok(ExpectedRecord {
            name: key_record::record_name(&key.selector, domain),
            data: ExpectedData::DkimKey { key: key.key.clone(), value: key_record::record_value(&key.key)? },
            importance: Importance::Needed,
            purpose: "DKIM: the key by which others verify signatures; before it is used",
        })
    };
    keys.map(record).collect()
}

/// What makes TLS with this server safer.
fn tls_records(domain: &str, server: &MailServer) -> impl Iterator<Item = ExpectedRecord> {
    let optional = |name, data, purpose| ExpectedRecord { name, data, importance: Importance::Optional, purpose };
    let sts = optional(
        format!("_mta-sts.{domain}"),
        text(TextKind::MtaSts, &format!("; id={};", sts_policy_id(server))),
        "MTA-STS: others must verify this server; a new id with each change of the policy below",
    );
    let reporting = optional(
        format!("_smtp._tls.{domain}"),
        text(TextKind::TLS_REPORTING, &format!("; rua=mailto:postmaster@{domain}")),
        "TLSRPT: others report failures of TLS",
    );
    let tlsa = server.key_digests.iter().map(move |digest| {
        optional(
            format!("_25._tcp.{}", server.hostname),
            ExpectedData::Tlsa(TlsaRecord { usage: 3, selector: 1, matching: 1, data: digest.as_slice().into() }),
            "DANE: the key of this server; only in a zone signed by DNSSEC, and before a new key is used",
        )
    });
    [sts, reporting].into_iter().chain(tlsa)
}

fn text(kind: TextKind, rest: &str) -> ExpectedData {
    ExpectedData::Text { kind, proposal: format!("{}{rest}", kind.version()) }
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

impl ExpectedRecord {
    /// The type to look up.
    pub(super) fn query_type(&self) -> QueryType {
        match self.data {
            ExpectedData::Mx(_) => QueryType::Mx,
            ExpectedData::Text { .. } | ExpectedData::DkimKey { .. } => QueryType::Txt,
            ExpectedData::Tlsa(_) => QueryType::Tlsa,
            ExpectedData::Ptr(_) => QueryType::Ptr,
        }
    }

    /// Whether it is a text of this kind.
    pub(super) fn is_text(&self, expected: TextKind) -> bool {
        matches!(self.data, ExpectedData::Text { kind, .. } if kind == expected)
    }
}

/// A line of a zone file.
impl fmt::Display for ExpectedRecord {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let name = &self.name;
        match &self.data {
            ExpectedData::Mx(host) => write!(f, "{name}. IN MX 10 {host}."),
            ExpectedData::Text { proposal, .. } => f.write_str(&key_record::zone_line(name, proposal)),
            ExpectedData::DkimKey { value, .. } => f.write_str(&key_record::zone_line(name, value)),
            ExpectedData::Tlsa(record) => write!(f, "{name}. IN TLSA {record}"),
            ExpectedData::Ptr(host) => write!(f, "{name}. IN PTR {host}."),
        }
    }
}

#[cfg(test)]
mod tests {
    use sender_auth::signing::SigningDomain;

    use super::*;

    #[test]
    fn the_records_are_lines_of_a_zone_file() {
        // RFC 8463 appendix A.2.
        let key = PrivateKey::parse(b"nWGxne/9WmC6hEr0kuwsxERJxWl7MmkZcDusAxyuf2A=\n").unwrap();
        let keys = vec![SigningKey { selector: "mail".into(), key: Arc::new(key) }];
        let server = MailServer {
            hostname: "mx1.example.org".into(),
            addresses: vec!["192.0.2.25".parse().unwrap(), "2001:db8::25".parse().unwrap()],
            key_digests: vec![[0xab; 32]],
            signing: Some(SigningDomain { domain: "example.org".into(), keys }),
            ..MailServer::default()
        };
        let lines: Vec<String> = records("example.org", &server).unwrap().iter().map(ToString::to_string).collect();
        insta::assert_snapshot!(lines.join("\n") + "\n" + &sts_policy(&server));
    }
}
