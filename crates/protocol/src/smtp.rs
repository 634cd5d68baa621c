//! SMTP (RFC 5321), and LMTP (RFC 2033), which differs from it in one word and in how a message is answered.

pub mod client;
pub mod server;

/// Which of the two protocols is spoken.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flavor {
    /// RFC 5321.
    Smtp,
    /// RFC 2033: LHLO for EHLO, and after a message one reply for each of its recipients.
    Lmtp,
}
