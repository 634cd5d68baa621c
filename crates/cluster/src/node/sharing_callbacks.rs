//! How the rest of the server takes what nodes share.

use std::net::IpAddr;

use super::usage::LimitUse;
use crate::departures::Departures;

/// Takes departures to a next hop.
pub type GrantDepartures = Box<dyn Fn(&str, Departures) + Send + Sync>;

/// Takes how many attempts may be made to a next hop at a time.
pub type GrantSlots = Box<dyn Fn(&str, u32) + Send + Sync>;

/// Takes a login that has failed: the user, and the client.
pub type CountFailedLogin = Box<dyn Fn(&str, IpAddr) + Send + Sync>;

/// Takes what the other nodes tell.
pub struct SharingCallbacks {
    /// Departures to a next hop were granted.
    pub grant: GrantDepartures,
    /// The slots of a next hop were granted.
    pub grant_slots: GrantSlots,
    /// A next hop was found to be lame.
    pub report_lame: Box<dyn Fn(&str) + Send + Sync>,
    /// A login of this user has failed.
    pub count_failed_login: CountFailedLogin,
    /// A key of a limit has used something.
    pub count_usage: Box<dyn Fn(&LimitUse) + Send + Sync>,
}
