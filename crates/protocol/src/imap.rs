//! IMAP (RFC 9051, RFC 3501) up to the login: what a proxy needs to know before another host has the
//! session.

pub mod server;
