//! SMTP (RFC 5321), and LMTP (RFC 2033), which differs in the greeting and in the replies to a
//! message.

pub mod client;
pub mod server;

/// The protocol spoken: SMTP or LMTP.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MailProtocol {
    /// RFC 5321.
    Smtp,
    /// RFC 2033: LHLO instead of EHLO, and after a message one reply for each recipient.
    Lmtp,
}
