//! What a transport demands of the hosts that it connects to. The defaults demand nothing.

use std::sync::Arc;

use mail::{HostTls, VerifiedBy, VerifiedNames};

use crate::DomainPattern;

/// What a transport demands of hosts by TLS.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TlsOptions {
    /// What each host must prove.
    pub demand: TlsDemand,
    /// With [`TlsDemand::Verified`]: further names of certificates. A pattern such as
    /// `*.example.net` is for the name of an MX host that matches it.
    pub names: Vec<DomainPattern>,
    /// Whether the MTA-STS policies of domains count (RFC 8461). Not with [`TlsDemand::Verified`].
    pub mta_sts: bool,
}

/// What each host must prove.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsDemand {
    /// Nothing: whether there is TLS depends on the transport and the host.
    #[default]
    Nothing,
    /// Its name, by a certificate of a trusted authority.
    Verified,
    /// Its certificate, if it has TLSA records (RFC 7672).
    Dane,
}

impl TlsOptions {
    /// Demands nothing.
    pub const NONE: TlsOptions = TlsOptions { demand: TlsDemand::Nothing, names: Vec::new(), mta_sts: false };

    /// What a host must prove that is configured by its address.
    pub(crate) fn for_address(&self, address: &str) -> HostTls {
        match self.demand {
            TlsDemand::Verified => self.verified(vec![address.into()]),
            TlsDemand::Nothing | TlsDemand::Dane => HostTls::Transport,
        }
    }

    /// What a host must prove that takes the mail of `domain`, or that is configured itself. Names
    /// count that nobody can forge: the domain, and the name of the host if it is below the domain,
    /// known beyond doubt, or as the operator says.
    pub(crate) fn verified_host(&self, host: &str, domain: Option<&str>, authenticated: bool) -> HostTls {
        let is_below = |domain: &str| host.strip_suffix(domain).is_some_and(|front| front.ends_with('.'));
        let trusts_host =
            authenticated || domain.is_some_and(is_below) || self.names.iter().any(|pattern| pattern.matches(host));
        let mut names: Vec<Box<str>> = domain.into_iter().map(Into::into).collect();
        if trusts_host && domain != Some(host) {
            names.push(host.into());
        }
        self.verified(names)
    }

    fn verified(&self, mut names: Vec<Box<str>>) -> HostTls {
        let further = self.names.iter().filter_map(|pattern| match pattern {
            DomainPattern::Exact(name) => Some(name.clone()),
            DomainPattern::Literal(address) => Some(address.to_string().into()),
            DomainPattern::Subdomains(_) | DomainPattern::Any => None,
        });
        for name in further {
            if !names.contains(&name) {
                names.push(name);
            }
        }
        HostTls::Verified(Arc::new(VerifiedNames { names, by: VerifiedBy::Transport }))
    }
}

impl Default for TlsOptions {
    fn default() -> Self {
        TlsOptions::NONE
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn names(patterns: &[&str], host: &str, domain: Option<&str>, authenticated: bool) -> Vec<String> {
        let names = patterns.iter().map(|pattern| pattern.parse().unwrap()).collect();
        let options = TlsOptions { demand: TlsDemand::Verified, names, mta_sts: false };
        let HostTls::Verified(verified) = options.verified_host(host, domain, authenticated) else { panic!() };
        verified.names.iter().map(ToString::to_string).collect()
    }

    #[test]
    fn a_name_from_an_unsigned_zone_counts_only_below_the_domain_or_if_the_operator_says_so() {
        let domain = Some("d.example");
        assert_eq!(names(&[], "relay.example", None, true), ["relay.example"]);
        assert_eq!(names(&[], "mx.elsewhere.example", domain, false), ["d.example"]);
        assert_eq!(names(&[], "mx.elsewhere.example", domain, true), ["d.example", "mx.elsewhere.example"]);
        assert_eq!(names(&[], "mx.d.example", domain, false), ["d.example", "mx.d.example"]);
        assert_eq!(names(&[], "mxd.example", domain, false), ["d.example"]);
        assert_eq!(names(&[], "d.example", domain, true), ["d.example"]);
        assert_eq!(names(&["*.e.example"], "mx.e.example", domain, false), ["d.example", "mx.e.example"]);
        assert_eq!(names(&["*"], "mx.e.example", domain, false), ["d.example", "mx.e.example"]);
        assert_eq!(names(&["mail.e.example"], "mx.e.example", domain, false), ["d.example", "mail.e.example"]);
        assert_eq!(names(&["relay.example"], "relay.example", None, true), ["relay.example"]);
    }

    #[test]
    fn an_address_is_a_name_itself() {
        let options = TlsOptions { demand: TlsDemand::Verified, ..TlsOptions::NONE };
        assert_eq!(options.for_address("192.0.2.1").to_string(), "verified, certificate for 192.0.2.1");
        assert_eq!(TlsOptions::NONE.for_address("192.0.2.1"), HostTls::Transport);
    }
}
