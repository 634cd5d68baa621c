//! The checks with a DNS in memory.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod iprev;
mod spf_cases;
mod spf_limits;
mod spf_properties;
mod zone;
