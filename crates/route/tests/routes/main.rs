//! The router with good and bad name servers.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod dns_queries;
mod host_tls;
mod record_types;
mod routing;
