//! Milters as checks: programs outside that are told of a session and its messages as in Sendmail and
//! Postfix, and may refuse and change them.
//!
//! [`Milter`] is one of them as configured. Its check in a session has a connection from the pool of
//! the milter, from connect to the end of the session. A milter that fails loses the session's
//! connection, and the failure action decides about the message; the next MAIL tries again, and the
//! stages before it are repeated. Mail of local programs passes all stages when it is complete.
//!
//! | limit | result |
//! |---|---|
//! | [`MilterSettings::connections_max`], waited for as long as for a connection | failure |
//! | [`MilterSettings::connect_time_max`], [`MilterSettings::command_time_max`], [`MilterSettings::message_time_max`] | failure |
//! | [`PROGRESS_TIME_MAX`], however often the milter reports progress | failure |
//! | `MilterLimits`: changes, their size, the size of a new body | failure |
//! | [`HEADER_OCTETS_MAX`](crate::header::HEADER_OCTETS_MAX) | failure |

mod check;
mod connection;
mod content;
mod edits;
mod failure;
mod macro_values;
mod parameters;

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use mail::OperatorLog;
use protocol::milter::{MilterClient, MilterLimits};

use crate::check::{Check, CheckFactory, CheckOrder, Origin};
use crate::client_names::ClientNames;
use crate::service::{ConnectionPool, ServiceAddress};
use crate::service_scope::{FailureAction, ServiceScope};
use crate::stage::{Stage, Stages};

/// How long a milter may put off an answer by reporting progress: as long as clients wait for the
/// reply to a message (RFC 5321 section 4.5.3.2.6).
pub const PROGRESS_TIME_MAX: Duration = Duration::from_secs(600);

/// A milter in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MilterSettings {
    /// Its name in the log.
    pub name: Box<str>,
    /// Where it listens.
    pub address: ServiceAddress,
    /// For which mail it is asked.
    pub scope: ServiceScope,
    /// What becomes of mail if it fails.
    pub on_failure: FailureAction,
    /// How long a session waits for a connection, with the negotiation.
    pub connect_time_max: Duration,
    /// How long it waits for the answer to a command.
    pub command_time_max: Duration,
    /// How long it waits for the answer to the end of a message.
    pub message_time_max: Duration,
    /// Connections at the same time, each for one session.
    pub connections_max: usize,
    /// Whether connections serve one session after another, if the milter knows how.
    pub reuses_connections: bool,
    /// Whether the parts of a message are sent ahead of the answers to earlier ones, if the milter knows how.
    pub sends_ahead: bool,
    /// The macro `{daemon_name}`; None: the hostname.
    pub daemon_name: Option<Box<str>>,
}

/// A milter: makes the [`Check`]s of sessions.
pub struct Milter {
    settings: MilterSettings,
    hostname: Box<str>,
    limits: MilterLimits,
    pool: ConnectionPool<MilterClient>,
    /// The settings allow it, and no answer has shown that the milter does not work so.
    sends_ahead: AtomicBool,
    names: Arc<dyn ClientNames>,
    log: Arc<dyn OperatorLog>,
}

impl Milter {
    /// A milter without connections. `message_octets_max` limits a new body.
    pub fn new(
        settings: MilterSettings,
        hostname: Box<str>,
        message_octets_max: u64,
        names: Arc<dyn ClientNames>,
        log: Arc<dyn OperatorLog>,
    ) -> Milter {
        let pool = ConnectionPool::new(settings.address.clone(), settings.connections_max);
        let limits = MilterLimits { body_octets_max: message_octets_max, ..MilterLimits::default() };
        let sends_ahead = AtomicBool::new(settings.sends_ahead);
        Milter { settings, hostname, limits, pool, sends_ahead, names, log }
    }

    fn sends_ahead(&self) -> bool {
        self.sends_ahead.load(Ordering::Relaxed)
    }

    /// The milter gets one command at a time from now on.
    fn stop_sending_ahead(&self) {
        if self.sends_ahead.swap(false, Ordering::Relaxed) {
            self.log(format_args!(
                "gets one command at a time from now on, since it answered before the end of a message"
            ));
        }
    }

    fn log(&self, line: std::fmt::Arguments<'_>) {
        let MilterSettings { name, address, .. } = &self.settings;
        self.log.log_line(format_args!("milter {name} at {address}: {line}"));
    }
}

impl CheckFactory for Milter {
    fn order(&self) -> CheckOrder {
        CheckOrder::ExternalFilters
    }

    fn stages(&self, origin: Origin) -> Stages {
        match origin {
            _ if !self.settings.scope.includes_origin(origin) => Stages::default(),
            Origin::Client => Stage::ALL.into_iter().collect(),
            Origin::LocalProgram => [Stage::Message].into_iter().collect(),
        }
    }

    fn hears_unknown_commands(&self) -> bool {
        true
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(check::MilterCheck::new(self))
    }
}
