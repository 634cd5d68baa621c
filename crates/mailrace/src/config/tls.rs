//! TLS for clients: certificates, and what listeners make of them. That the files are there, and what is in them, is not
//! asked here but by [`examine`](super::examine): most commands read a configuration without the right to read its keys.

use std::ops::Range;
use std::path::PathBuf;
use std::time::Duration;

pub use net::TlsVersion;

/// A certificate with its key, in PEM files.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Certificate {
    /// The server's own certificate first, then those that lead to its authority.
    pub chain: PathBuf,
    /// Its private key.
    pub key: PathBuf,
    /// For which names of ours it is presented, in lower case; `*.` in front is for all with one label more. None: those
    /// in the certificate.
    pub names: Vec<Box<str>>,
    /// Where the text names the chain.
    pub(super) chain_place: Range<usize>,
    /// Where the text names the key.
    pub(super) key_place: Range<usize>,
}

/// What TLS is to the clients of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum ListenerTls {
    /// There is none.
    #[default]
    None,
    /// STARTTLS may be used (RFC 3207).
    Starttls,
    /// Nothing of mail is spoken before STARTTLS.
    Required,
    /// The handshake comes first (RFC 8314 section 3).
    Implicit,
}

/// What all listeners share.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerTls {
    /// Clients that speak none so high are refused.
    pub version_min: TlsVersion,
    /// A handshake that takes longer fails.
    pub handshake_time_max: Duration,
    /// The time between looks at the files.
    pub reload_every: Duration,
}

impl Default for ServerTls {
    fn default() -> Self {
        ServerTls {
            version_min: TlsVersion::V1_2,
            handshake_time_max: Duration::from_secs(30),
            reload_every: Duration::from_secs(60),
        }
    }
}
