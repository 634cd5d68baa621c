//! Mail protocols as sans-I/O machines.
//!
//! A machine takes events in by its `handle_*` methods (bytes, answers, the passing of time) and
//! gives actions out by its `poll_*` methods. It opens no sockets, reads no clock and looks nothing
//! up; its driver does that. So any session can be replayed, byte by byte, from a text file.

pub mod backend_login;
pub mod dovecot_auth;
pub mod http;
pub mod imap;
pub mod milter;
pub mod mime;
pub mod policy;
pub mod pop3;
pub mod sasl;
pub mod smtp;
mod text;
mod tls_mode;

pub use tls_mode::TlsMode;
