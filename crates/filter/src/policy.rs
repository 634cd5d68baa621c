//! Policy services as checks: programs outside that are asked at stages of a session by Postfix's
//! policy delegation protocol, such as greylisting daemons.
//!
//! Each question takes a connection from the pool of the service, and gives it back with the answer. A
//! service that fails leaves the decision to its failure action.
//!
//! | limit | result |
//! |---|---|
//! | [`PolicySettings::connections_max`], waited for as long as for a connection | failure |
//! | [`PolicySettings::connect_time_max`], [`PolicySettings::answer_time_max`] | failure |
//! | `ANSWER_OCTETS_MAX` of the protocol | failure |

mod attributes;
mod check;
mod exchange;
mod restrictions;

use std::sync::Arc;
use std::sync::atomic::AtomicU64;
use std::time::{Duration, SystemTime, UNIX_EPOCH};

use mail::OperatorLog;

use crate::access::AccessCheck;
use crate::check::{Check, CheckFactory, CheckOrder, Origin};
use crate::client_names::ClientNames;
use crate::service::{ConnectionPool, ServiceAddress};
use crate::service_scope::{FailureAction, ServiceScope};
use crate::stage::{Stage, Stages};

/// A policy service in the configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PolicySettings {
    /// Its name in the log.
    pub name: Box<str>,
    /// Where it listens.
    pub address: ServiceAddress,
    /// The stages at which it is asked.
    pub stages: Vec<Stage>,
    /// For which mail it is asked; never for that of local programs, which has no session.
    pub scope: ServiceScope,
    /// What becomes of mail if it fails.
    pub on_failure: FailureAction,
    /// How long a session waits for a connection.
    pub connect_time_max: Duration,
    /// How long it waits for the answer.
    pub answer_time_max: Duration,
    /// Connections at the same time.
    pub connections_max: usize,
    /// The attribute `policy_context`.
    pub context: Box<str>,
}

/// A policy service: makes the [`Check`]s of sessions.
pub struct PolicyService {
    settings: PolicySettings,
    pool: ConnectionPool<()>,
    names: Arc<dyn ClientNames>,
    log: Arc<dyn OperatorLog>,
    /// The rules whose classes it may name.
    access: Option<Arc<AccessCheck>>,
    /// Numbers sessions for the attribute `instance`, which no two messages share: also with those before a
    /// restart.
    sessions: AtomicU64,
    started_micros: u128,
}

impl PolicyService {
    /// A service without connections.
    pub fn new(settings: PolicySettings, names: Arc<dyn ClientNames>, log: Arc<dyn OperatorLog>) -> PolicyService {
        let pool = ConnectionPool::new(settings.address.clone(), settings.connections_max);
        let started_micros = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default().as_micros();
        PolicyService { settings, pool, names, log, access: None, sessions: AtomicU64::new(1), started_micros }
    }

    /// Lets it name classes of these rules.
    pub fn with_access_rules(self, access: Option<Arc<AccessCheck>>) -> PolicyService {
        PolicyService { access, ..self }
    }

    fn log(&self, line: std::fmt::Arguments<'_>) {
        let PolicySettings { name, address, .. } = &self.settings;
        self.log.log_line(format_args!("policy service {name} at {address}: {line}"));
    }
}

impl CheckFactory for PolicyService {
    fn order(&self) -> CheckOrder {
        CheckOrder::ExternalFilters
    }

    /// Connect finds out whether the session is in the scope, and MAIL whether the message is.
    fn stages(&self, origin: Origin) -> Stages {
        match origin {
            Origin::Client => self.settings.stages.iter().copied().chain([Stage::Connect, Stage::Mail]).collect(),
            Origin::LocalProgram => Stages::default(),
        }
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(check::PolicyCheck::new(self))
    }
}
