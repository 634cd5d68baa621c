//! POP3 (RFC 1939): reading mail from a mailbox over a connection.

pub mod client;
pub mod server;
