//! For which mail a program outside is asked, and what becomes of mail if it fails.

use std::net::SocketAddr;

use mail::{EnhancedCode, Networks, Reply};

use crate::check::{Decision, Origin, Refusal, SessionInfo, Verdict};
use crate::stage::Stage;

const UNAVAILABLE: Reply = Reply::constant(451, EnhancedCode(4, 7, 1), "Service unavailable, try again later");
const UNAVAILABLE_AT_CONNECT: Reply =
    Reply::constant(421, EnhancedCode(4, 7, 1), "Service unavailable, try again later");
const REFUSED: Reply = Reply::constant(550, EnhancedCode(5, 7, 1), "Service unavailable");

/// The mail that a program is asked about.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServiceScope {
    /// Sessions on these listeners, by the address in the configuration; empty: all.
    pub listeners: Vec<SocketAddr>,
    /// Clients in these networks; empty: all.
    pub clients: Networks,
    /// But not clients in these.
    pub exempt: Networks,
    /// Also clients that have logged in.
    pub users: bool,
    /// Also mail of programs on this machine.
    pub local_programs: bool,
}

impl Default for ServiceScope {
    fn default() -> Self {
        ServiceScope {
            listeners: Vec::new(),
            clients: Networks::default(),
            exempt: Networks::default(),
            users: true,
            local_programs: true,
        }
    }
}

impl ServiceScope {
    /// Whether a message from there can be in the scope.
    pub(crate) fn includes_origin(&self, origin: Origin) -> bool {
        origin == Origin::Client || self.local_programs
    }

    /// Whether the session is in the scope, whoever has logged in.
    pub(crate) fn includes_session(&self, session: &SessionInfo<'_>) -> bool {
        let Some(listener) = session.listener else { return self.local_programs };
        let is_listener = self.listeners.is_empty() || self.listeners.contains(&listener);
        let is_in = |networks: &Networks| session.client.is_some_and(|client| networks.contains(client));
        is_listener && (self.clients.is_empty() || is_in(&self.clients)) && !is_in(&self.exempt)
    }

    /// Whether the message of the session is in the scope, once nobody can log in any more.
    pub(crate) fn includes_message(&self, session: &SessionInfo<'_>) -> bool {
        self.users || session.listener.is_none() || !session.is_user
    }
}

/// What becomes of mail that a program should have decided about.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum FailureAction {
    /// It is accepted as if the program did not exist.
    Accept,
    /// The client may try again later.
    #[default]
    Defer,
    /// It is refused for good.
    Refuse,
    /// It is accepted and held.
    Quarantine,
}

impl FailureAction {
    /// The word in the configuration.
    pub fn name(self) -> &'static str {
        match self {
            FailureAction::Accept => "accept",
            FailureAction::Defer => "defer",
            FailureAction::Refuse => "refuse",
            FailureAction::Quarantine => "quarantine",
        }
    }

    /// The verdict at a stage, of the check with this name.
    pub(crate) fn verdict(self, stage: Stage, by: &str) -> Verdict {
        let refuse = |reply| Decision::Refuse(Refusal { by: by.into(), reply }).into();
        match self {
            FailureAction::Accept => Verdict::default(),
            FailureAction::Defer if stage == Stage::Connect => refuse(UNAVAILABLE_AT_CONNECT),
            FailureAction::Defer => refuse(UNAVAILABLE),
            FailureAction::Refuse => refuse(REFUSED),
            FailureAction::Quarantine => Verdict { held: true, ..Verdict::default() },
        }
    }
}
