//! The check of senders, with messages that were signed elsewhere and a DNS in memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod chains;
mod dkim;
mod dmarc;
mod dns_map;
mod limits;
mod reports;
mod session;
mod vectors;
