//! Deliveries: one attempt at one next hop, and the text of bounces. This room never sees the spool; it gets a
//! message by its envelope and a leased body, and says what became of each recipient.

pub mod bounce;
pub mod local;
