//! Bounces and delay notices.

use std::time::Duration;

use delivery::bounce::NoticeLimits;
use mail::{Address, Rate};

/// Settings of bounces and delay notices.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BounceConfig {
    /// A sender gets one notice about mail that has waited this long; None: never.
    pub delay_notice_after: Option<Duration>,
    /// The recipient of bounces that cannot be delivered; None: they are only logged.
    pub double_bounces_to: Option<Address>,
    /// Limit on bounces and notices to one sender for mail from untrusted clients, whose sender may
    /// be forged. Further ones are only logged. Mail from users, relay networks and local programs
    /// has no limit. None: no limit at all.
    pub per_sender: Option<Rate>,
    /// Envelope senders that become `name+recipient=domain@...`, different for each recipient, so
    /// that bounces identify the recipient. Bounces of this server go there too, without a limit.
    pub verp: Vec<Address>,
}

impl Default for BounceConfig {
    fn default() -> Self {
        BounceConfig {
            delay_notice_after: Some(Duration::from_secs(4 * 3600)),
            double_bounces_to: None,
            per_sender: Some(NoticeLimits::default().per_sender),
            verp: Vec::new(),
        }
    }
}
