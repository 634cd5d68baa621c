//! The hosts of a set, before it is known which of them can be used.

use std::net::IpAddr;

use dns::{DnsAnswer, MxHost};
use mail::{HostTls, StsRule};

use crate::config::EndpointOptions;
use crate::tls_options::TlsOptions;

/// How many hosts of one set are looked up concurrently, so that one domain does not use up all
/// queries.
pub(crate) const CONCURRENT_HOSTS_MAX: usize = 32;

/// How hosts are looked up and reached.
pub(crate) struct HostParams<'a> {
    pub(crate) transport: &'a str,
    pub(crate) options: EndpointOptions,
    /// What the transport demands of the hosts.
    pub(crate) tls: &'a TlsOptions,
    /// Whether the hosts may include this one; true if a foreign zone names them.
    pub(crate) may_loop: bool,
}

/// How the hosts of a set were found.
#[derive(Clone, Copy)]
pub(crate) struct HostOrigin<'a> {
    /// The domain whose mail they take; None: the host was configured.
    pub(crate) domain: Option<&'a str>,
    /// Whether their names are beyond doubt: from the configuration, or from a validated answer.
    pub(crate) authenticated: bool,
}

/// A host of the set.
pub(crate) struct CandidateHost<'a> {
    pub(crate) mx_host: &'a MxHost,
    /// Its addresses in the DNS; None until they are looked up.
    pub(crate) answer: Option<DnsAnswer>,
    /// Whether the name servers validated them.
    pub(crate) authenticated: bool,
    /// What it must prove; or why it cannot be used.
    pub(crate) tls: Result<HostTls, Box<str>>,
    /// What the MTA-STS policy says of it, if that is the policy that counts.
    pub(crate) sts: Option<StsRule>,
}

impl CandidateHost<'_> {
    pub(crate) fn name(&self) -> &str {
        &self.mx_host.name
    }

    pub(crate) fn addresses(&self) -> &[IpAddr] {
        match &self.answer {
            Some(DnsAnswer::Addresses(addresses)) => addresses,
            _ => &[],
        }
    }
}
