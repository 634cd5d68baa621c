//! When sessions use TLS, in every protocol with an upgrade.

/// The use of TLS by the sessions of a listener.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TlsMode {
    /// TLS is not available.
    #[default]
    Never,
    /// STARTTLS is offered (RFC 3207), or STLS (RFC 2595).
    Offered,
    /// The upgrade is required before any mail command or login.
    Required,
    /// The handshake precedes the first byte of the session (RFC 8314 section 3).
    Implicit,
}
