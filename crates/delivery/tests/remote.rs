//! Delivery to hosts that misbehave, stay silent or disconnect: every task ends exactly once, with
//! an outcome for each recipient, and connections are reused.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

#[path = "remote/content.rs"]
mod content;
#[path = "remote/generic.rs"]
mod generic;
#[path = "remote/host_tls.rs"]
mod host_tls;
#[path = "remote/hostile.rs"]
mod hostile;
#[path = "remote/login.rs"]
mod login;
#[path = "remote/own_server.rs"]
mod own_server;
#[path = "remote/reuse.rs"]
mod reuse;
#[path = "remote/support.rs"]
mod support;
#[path = "remote/withheld.rs"]
mod withheld;
