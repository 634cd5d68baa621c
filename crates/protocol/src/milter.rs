//! The milter protocol, the side of the mail server: what a filter (`milter`) is told of a session
//! and its messages, and what it may answer. There is no RFC; the protocol is that of libmilter,
//! versions 2 to 6.
//!
//! [`MilterClient`] is the machine of one connection. It frames commands and their macros, negotiates
//! which commands the milter wants and which it answers, reads its answers, and collects the changes
//! that it asks for. It opens no socket and keeps no time: the driver sends, receives, and waits.
//!
//! A milter that breaks the protocol gets a [`MilterViolation`]; the driver closes the connection.

mod client;
mod command;
mod edits;
mod frame;
mod limits;
mod macros;
mod negotiation;
mod reply;
#[cfg(test)]
mod tests;

pub use client::{MilterAnswer, MilterClient, MilterEvent};
pub use command::{BODY_CHUNK_OCTETS_MAX, MilterCommand, MilterStep};
pub use edits::{MilterEdit, MilterEdits};
pub use limits::{ANSWER_OCTETS_MAX, FRAME_OCTETS_MAX, MilterLimits, MilterViolation, VERSION_MAX, VERSION_MIN};
pub use macros::MacroValues;
pub use negotiation::MilterActions;
