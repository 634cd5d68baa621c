//! The router against name servers, good and bad.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod asking;
mod ways;
mod zone;
