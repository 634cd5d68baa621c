//! What can be checked before the message is there: SPF and the name of the client. It runs beside
//! the session while the message comes in.

use std::net::IpAddr;
use std::time::Duration;

use mail::Address;
use tokio::task::JoinHandle;
use tokio::time::{Instant, timeout};

use crate::DnsLookup;
use crate::dmarc::{AlignedMethod, CheckedDomain, DomainState};
use crate::iprev::{self, IprevCheck};
use crate::spf::{self, SpfCheck, SpfClient, SpfResult};

/// Who sends, with all that a task must own.
pub(crate) struct SenderIdentity {
    pub(crate) client: IpAddr,
    pub(crate) helo: Box<str>,
    pub(crate) sender: Option<Address>,
    /// Our own name.
    pub(crate) hostname: Box<str>,
}

/// What was found; None: not asked for.
#[derive(Clone, Debug, Default)]
pub(crate) struct SenderVerdicts {
    /// MAIL had the null sender: its check was for the HELO name.
    pub(crate) is_null_sender: bool,
    /// Of the HELO name, unless the sender is the null sender.
    pub(crate) helo: Option<SpfCheck>,
    pub(crate) mail_from: Option<SpfCheck>,
    pub(crate) iprev: Option<IprevCheck>,
    /// A limit of ours may have caused a temporary error, the time included.
    pub(crate) is_limited: bool,
}

/// The DNS for a sender. What the client chooses freely, its HELO and its reverse name, cannot use up
/// the queries for the domain of the sender.
pub(crate) struct SenderDns<'a> {
    pub(crate) mail_from: &'a dyn DnsLookup,
    pub(crate) client: &'a dyn DnsLookup,
}

/// A running check; dropping it ends it.
pub(crate) struct SenderCheckTask(JoinHandle<SenderVerdicts>);

impl Drop for SenderCheckTask {
    fn drop(&mut self) {
        self.0.abort();
    }
}

impl SenderCheckTask {
    pub(crate) fn spawn(check: impl Future<Output = SenderVerdicts> + Send + 'static) -> SenderCheckTask {
        SenderCheckTask(tokio::spawn(check))
    }

    /// Waits for the verdicts. None: the runtime is stopping.
    pub(crate) async fn finish(mut self) -> Option<SenderVerdicts> {
        (&mut self.0).await.ok()
    }
}

/// Checks a sender. What has no result after this time, or that of an SPF check, has a temporary error.
/// Also returns whether that happened.
pub(crate) async fn check_sender(
    dns: &SenderDns<'_>,
    identity: &SenderIdentity,
    checks_spf: bool,
    checks_name: bool,
    time_max: Duration,
) -> (SenderVerdicts, bool) {
    let SenderIdentity { client, helo, sender, hostname } = identity;
    let client = SpfClient { address: *client, helo, hostname };
    let mail_from = spf::check_mail_from(dns.mail_from, &client, sender.as_ref());
    let started_at = Instant::now();
    let mail_from = when(checks_spf, timeout(time_max, mail_from));
    let helo_check = timeout(time_max, spf::check_helo(dns.client, &client));
    let helo_check = when(checks_spf && sender.is_some(), helo_check);
    let name = when(checks_name, timeout(time_max, iprev::check(dns.client, client.address)));
    let (mail_from, helo_check, name) = tokio::join!(mail_from, helo_check, name);
    let is_late = started_at.elapsed() >= time_max.min(spf::TIME_MAX);
    let sender_domain = sender.as_ref().map_or(&**helo, Address::domain);
    let verdicts = SenderVerdicts {
        is_null_sender: sender.is_none(),
        helo: helo_check.map(|check| check.unwrap_or_else(|_| late_spf(helo))),
        mail_from: mail_from.map(|check| check.unwrap_or_else(|_| late_spf(sender_domain))),
        iprev: name.map(|check| check.unwrap_or(LATE_NAME)),
        is_limited: false,
    };
    (verdicts, is_late)
}

impl SenderVerdicts {
    /// Nothing could be checked.
    pub(crate) fn unknown(identity: &SenderIdentity, checks_spf: bool, checks_name: bool) -> SenderVerdicts {
        let domain = identity.sender.as_ref().map_or(&*identity.helo, Address::domain);
        SenderVerdicts {
            is_null_sender: identity.sender.is_none(),
            helo: None,
            mail_from: checks_spf.then(|| late_spf(domain)),
            iprev: checks_name.then_some(LATE_NAME),
            is_limited: true,
        }
    }

    /// The domain of SPF for DMARC: only the sender's counts (RFC 9989 section 4.4.2).
    pub(crate) fn checked_domain(&self) -> Option<CheckedDomain<'_>> {
        let check = self.mail_from.as_ref()?;
        let state = match check.result {
            SpfResult::Pass => DomainState::Passed,
            SpfResult::TempError => DomainState::Unanswered,
            _ => return None,
        };
        Some(CheckedDomain { method: AlignedMethod::Spf, domain: &check.domain, state })
    }

    /// SPF as a whole: a HELO name that may not be used by the client decides (RFC 7208 section 2.3),
    /// else the sender does.
    pub(crate) fn spf_result(&self) -> Option<SpfResult> {
        let helo = self.helo.as_ref().map(|check| check.result).filter(|result| *result == SpfResult::Fail);
        helo.or(self.mail_from.as_ref().map(|check| check.result))
    }
}

const LATE_NAME: IprevCheck = IprevCheck { result: iprev::IprevResult::TempError, name: None, unconfirmed: None };

fn late_spf(domain: &str) -> SpfCheck {
    let domain = dns::to_ascii(domain).unwrap_or_else(|| domain.to_ascii_lowercase().into());
    SpfCheck { result: SpfResult::TempError, domain, explanation: None }
}

async fn when<T>(is_wanted: bool, check: impl Future<Output = T>) -> Option<T> {
    if is_wanted { Some(check.await) } else { None }
}
