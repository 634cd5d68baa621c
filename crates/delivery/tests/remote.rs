//! Delivery to other hosts, against servers that say what they should not, or nothing, or go away: every task has one
//! end, with an outcome for each recipient, and connections are used again and never wasted.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "remote/content.rs"]
mod content;
#[path = "remote/hostile.rs"]
mod hostile;
#[path = "remote/kit.rs"]
mod kit;
#[path = "remote/machine.rs"]
mod machine;
#[path = "remote/reuse.rs"]
mod reuse;
