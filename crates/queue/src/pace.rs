//! The pace of attempts at a next hop that has a rate: this server's own, or one that it shares with
//! others.

use std::time::Duration;

use mail::Timestamp;

use crate::NextHopLimits;
use crate::departures::{Departures, GrantedDepartures};
use crate::rate_limiter::RateLimiter;

/// When attempts may begin.
#[derive(Clone, Debug)]
pub(crate) enum Pace {
    Own(RateLimiter),
    Shared(Departures),
}

impl Pace {
    /// The pace of a next hop; None without a rate.
    pub(crate) fn new(limits: &NextHopLimits) -> Option<Pace> {
        let rate = limits.rate?;
        Some(match limits.is_rate_shared {
            true => Pace::Shared(Departures::new(rate)),
            false => Pace::Own(RateLimiter::new(rate)),
        })
    }

    /// The pace by other limits, which keeps what was used.
    pub(crate) fn with_limits(&self, limits: &NextHopLimits) -> Option<Pace> {
        match (self, limits.rate) {
            (Pace::Own(limiter), Some(rate)) if !limits.is_rate_shared => Some(Pace::Own(limiter.with_rate(rate))),
            _ => Pace::new(limits),
        }
    }

    /// When the next attempt may begin.
    pub(crate) fn free_at(&self, now: Timestamp) -> Timestamp {
        match self {
            Pace::Own(limiter) => limiter.free_at(),
            Pace::Shared(departures) => departures.free_at(now),
        }
    }

    /// Counts an attempt.
    pub(crate) fn consume(&mut self, now: Timestamp) {
        match self {
            Pace::Own(limiter) => limiter.consume(now),
            Pace::Shared(departures) => departures.consume(now),
        }
    }

    /// See [`Departures::request`].
    pub(crate) fn request(&mut self, now: Timestamp) -> Option<(Duration, u32)> {
        match self {
            Pace::Own(_) => None,
            Pace::Shared(departures) => departures.request(now),
        }
    }

    /// See [`Departures::grant`].
    pub(crate) fn grant(&mut self, granted: GrantedDepartures) {
        if let Pace::Shared(departures) = self {
            departures.grant(granted);
        }
    }

    /// Corrects the state after the clock was set back.
    pub(crate) fn clamp_to_clock(&mut self, now: Timestamp) {
        match self {
            Pace::Own(limiter) => limiter.clamp_to_clock(now),
            Pace::Shared(departures) => departures.forget(),
        }
    }
}
