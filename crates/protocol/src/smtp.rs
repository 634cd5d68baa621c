//! SMTP (RFC 5321), and LMTP (RFC 2033), which differs from it in one word and in how a message is answered.

pub mod server;
