//! This server, as the records of a domain describe it: its addresses, the key of its certificate, and
//! the keys that sign the domain's mail.
//!
//! What cannot be read or told is a remark, and the records for it are left out.

use std::net::IpAddr;

use config::Config;
use dns::{AddressFamilies, DnsAnswer, Resolver};
use net::Certificate;
use sender_auth::signing::SigningDomain;

/// This server, as the records describe it.
#[derive(Default)]
pub(super) struct MailServer {
    /// Its name, with A-labels.
    pub(super) hostname: Box<str>,
    /// The addresses that the DNS has for it.
    pub(super) addresses: Vec<IpAddr>,
    /// The addresses from which mail leaves; empty if they cannot be told.
    pub(super) senders: Vec<IpAddr>,
    /// The digests of the public keys of the certificates that it presents under its name.
    pub(super) key_digests: Vec<[u8; 32]>,
    /// The keys that sign the mail of the domain.
    pub(super) signing: Option<SigningDomain>,
    /// What keeps some records from being known or judged.
    pub(super) remarks: Vec<String>,
}

impl MailServer {
    /// Reads the certificates from disk and looks up the hostname. `signing` has the keys for mail of the
    /// domain.
    pub(super) async fn new(
        config: &Config,
        resolver: &Resolver,
        domain: &str,
        signing: anyhow::Result<Option<SigningDomain>>,
    ) -> MailServer {
        let hostname = dns::to_ascii(&config.hostname).unwrap_or_else(|| config.hostname.clone());
        let addresses = match resolver.addresses(&hostname, AddressFamilies::Both).await.answer {
            DnsAnswer::Addresses(addresses) => addresses.to_vec(),
            _ => Vec::new(),
        };
        let mut server = MailServer { hostname, addresses, ..MailServer::default() };
        if server.addresses.is_empty() {
            let host = &server.hostname;
            server.remarks.push(format!(
                "{host} has no address in the DNS (A, AAAA): it needs one, and a PTR record for each; \
                 without one, SPF cannot be judged"
            ));
        }
        server.set_senders(config);
        server.set_signing(domain, signing);
        server.read_certificates(config);
        server
    }

    /// Mail leaves from the source addresses of the transport for all other domains. One that is not public
    /// is translated on the way, most likely into an address of the hostname.
    fn set_senders(&mut self, config: &Config) {
        let Some(route) = config.routes.last() else { return };
        if let Some(hop) = &route.next_hop {
            let remark = format!("mail to other domains leaves by {hop}: SPF is not judged, since its addresses count");
            return self.remarks.push(remark);
        }
        let Some(transport) = config.transport(&route.transport).and_then(|transport| transport.smtp()) else { return };
        let sources = [
            transport.connections.source_v4.map(IpAddr::V4).filter(is_public),
            transport.connections.source_v6.map(IpAddr::V6).filter(is_public),
        ];
        let has_source = |address: &IpAddr| sources.iter().flatten().any(|it| it.is_ipv4() == address.is_ipv4());
        let is_used = |address: &IpAddr| transport.endpoints.families.contains(*address);
        let own = self.addresses.iter().copied().filter(|address| !has_source(address));
        self.senders = sources.into_iter().flatten().chain(own).filter(is_used).collect();
    }

    fn set_signing(&mut self, domain: &str, signing: anyhow::Result<Option<SigningDomain>>) {
        match signing {
            Ok(Some(signing)) => self.signing = Some(signing),
            Ok(None) => self.remarks.push(format!(
                "no DKIM record: no key signs for {domain}; make one with `mailrace dkim generate {domain}`"
            )),
            Err(why) => self.remarks.push(format!("no DKIM record: {why:#}")),
        }
    }

    fn read_certificates(&mut self, config: &Config) {
        let mut loaded = Vec::new();
        for certificate in &config.certificates {
            match Certificate::load(&certificate.files) {
                Ok(certificate) => loaded.push(certificate),
                Err(error) => self.remarks.push(format!("no TLSA record: {error}")),
            }
        }
        let is_own = |certificate: &&Certificate| certificate.names().iter().any(|name| covers(name, &self.hostname));
        let mut presented: Vec<&Certificate> = loaded.iter().filter(is_own).collect();
        if presented.is_empty() {
            // Clients that ask for another name get the first certificate.
            presented.extend(loaded.first());
        }
        self.key_digests = presented.into_iter().filter_map(Certificate::public_key_sha256).collect();
    }
}

fn is_public(address: &IpAddr) -> bool {
    match address {
        IpAddr::V4(address) => !(address.is_private() || address.is_loopback() || address.is_link_local()),
        IpAddr::V6(address) => !(address.is_unique_local() || address.is_loopback() || address.is_unicast_link_local()),
    }
}

/// Whether a name of a certificate is for this host.
fn covers(name: &str, hostname: &str) -> bool {
    match name.strip_prefix("*.") {
        Some(parent) => hostname.split_once('.').is_some_and(|(_, rest)| rest == parent),
        None => name == hostname,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

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

    #[test]
    fn mail_leaves_from_public_source_addresses_or_those_of_the_hostname() {
        let senders = |settings: &str| {
            let config = Config::parse(settings, "text", "mx1.example.org").unwrap();
            let addresses = vec!["192.0.2.25".parse().unwrap(), "2001:db8::25".parse().unwrap()];
            let mut server = MailServer { addresses, ..MailServer::default() };
            server.set_senders(&config);
            server.senders.iter().map(ToString::to_string).chain(server.remarks).collect::<Vec<_>>().join(" ")
        };
        assert_eq!(senders(""), "192.0.2.25 2001:db8::25");
        assert_eq!(senders("[transport.smtp]\nsource = [\"198.51.100.7\"]\n"), "198.51.100.7 2001:db8::25");
        assert_eq!(senders("[transport.smtp]\nsource = [\"10.0.0.5\"]\n"), "192.0.2.25 2001:db8::25");
        assert_eq!(senders("[transport.smtp]\nfamilies = \"ipv4\"\n"), "192.0.2.25");
        let relayed = senders("[transport.smtp]\nnext_hop = \"relay.example.net\"\n");
        assert!(relayed.contains("leaves by relay.example.net: SPF is not judged"), "{relayed}");
    }
}
