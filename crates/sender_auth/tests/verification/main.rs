//! The check of senders, with messages that were signed elsewhere and a DNS in memory.

mod chains;
mod dkim;
mod dmarc;
mod dns_map;
mod limits;
mod session;
mod vectors;
