//! The route of a destination: the resolver's answer, which the queue gives to each attempt.

use std::sync::Arc;

use delivery::pipe::PipeConfig;
use delivery::remote::NextHop;
use mail::{Outcome, TlsPolicyFailure};

/// The route of a destination.
#[derive(Debug)]
pub enum DeliveryRoute {
    /// To local mailboxes.
    Mailboxes {
        /// The name of the transport.
        transport: Box<str>,
    },
    /// To a program.
    Program {
        /// How messages are passed to it.
        pipe: Arc<PipeConfig>,
    },
    /// Nowhere: every attempt succeeds.
    Discard {
        /// The name of the transport.
        transport: Box<str>,
    },
    /// To other hosts.
    Remote {
        /// The name of the transport.
        transport: Box<str>,
        /// The hosts.
        hop: Arc<NextHop>,
    },
    /// The mailbox host or the route is unknown: each attempt asks the directory and the tables again.
    HostUnknown,
    /// No route: every attempt ends like this.
    NoRoute {
        /// The outcome of each attempt.
        outcome: Outcome,
        /// The policies about TLS of the domain that are the cause, if any are, for reports to its owner.
        tls_failures: Vec<TlsPolicyFailure>,
    },
}

impl DeliveryRoute {
    /// The name of the transport, for the log.
    pub fn transport_name(&self) -> &str {
        match self {
            DeliveryRoute::Mailboxes { transport }
            | DeliveryRoute::Discard { transport }
            | DeliveryRoute::Remote { transport, .. } => transport,
            DeliveryRoute::Program { pipe } => &pipe.transport,
            DeliveryRoute::HostUnknown | DeliveryRoute::NoRoute { .. } => "none",
        }
    }
}
