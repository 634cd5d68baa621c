//! What senders are told of mail that does not arrive.

use std::time::Duration;

use mail::Address;

use super::Rate;

/// How senders are told of failures and delays.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Bounce {
    /// A sender is told once of mail that has waited so long; None: never.
    pub delay_notice_after: Option<Duration>,
    /// Who gets a bounce that cannot be delivered itself; None: nobody, and the log tells.
    pub double_bounces_to: Option<Address>,
    /// Bounces and notices to one sender for mail from clients that are not trusted, whose sender may be forged; beyond, the
    /// log tells. Mail of users, relay networks and programs here has no bound. None: no bound at all.
    pub per_sender: Option<Rate>,
    /// Envelope senders that become `name+recipient=domain@...`, each recipient its own, so that bounces name whom
    /// they are about. Our own bounces go there, too, and have no bound.
    pub verp: Vec<Address>,
}

impl Default for Bounce {
    fn default() -> Self {
        Bounce {
            delay_notice_after: Some(Duration::from_secs(4 * 3600)),
            double_bounces_to: None,
            per_sender: Some(Rate { count: 100, per: Duration::from_secs(3600) }),
            verp: Vec::new(),
        }
    }
}
