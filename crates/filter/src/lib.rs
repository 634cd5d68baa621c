//! Checks of sessions and messages by the operator's policy: which checks exist, in which order
//! they run, and what they may do.
//!
//! A [`Check`] has a method for each [`Stage`] of a session. The checks of a configuration form a
//! [`CheckChain`]; each session has its own [`SessionChecks`]. The order is fixed ([`CheckOrder`]),
//! so that a signature covers what is sent, and a verification sees what was received.
//!
//! Whether a recipient exists and who may relay is not decided here, and no check grants it.
//! Without checks a session keeps nothing and calls nothing; a message is only read again if a
//! check takes part in [`Stage::Message`].

pub mod access;
mod action_edit;
mod address_keys;
pub mod bcc;
mod chain;
mod check;
mod client_names;
pub mod content;
mod edit;
pub mod greylist;
pub mod header;
mod key_digest;
pub mod limits;
pub mod milter;
mod ordered_table;
pub mod policy;
mod replies;
pub mod rewrite;
mod service;
mod service_scope;
mod stage;

pub use chain::{CheckChain, Disposition, MessageCheckError, RecipientEffects, SessionChecks};
pub use check::{
    Check, CheckFactory, CheckFuture, CheckOrder, CheckedMessage, ContentFuture, Decision, Finding, Origin, Refusal,
    SessionInfo, Submitter, Verdict,
};
pub use client_names::{ClientNameFuture, ClientNames};
pub use edit::{Edit, Field, InvalidField, ReplacedOctets, has_bare_newline};
pub use key_digest::ClientPrefixes;
pub use service::{InvalidServiceAddress, ServiceAddress};
pub use service_scope::{FailureAction, ServiceScope};
pub use stage::{Stage, Stages};
