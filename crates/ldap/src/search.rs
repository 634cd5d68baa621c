//! Runs one search and interprets its result.
//!
//! | result of the search                                          | meaning                                          |
//! |---------------------------------------------------------------|--------------------------------------------------|
//! | success (0)                                                   | complete                                         |
//! | timeLimitExceeded (3), sizeLimitExceeded (4), adminLimitExceeded (11), inappropriateMatching (18), invalidAttributeSyntax (21) | a problem of the keys: split them |
//! | noSuchObject (32), invalidDNSyntax (34)                       | the base does not exist: a configuration error   |
//! | referral (10)                                                 | continue elsewhere, if referrals are followed    |
//! | busy (51)                                                     | try the next server, or the same after a pause   |
//! | unavailable (52); connection lost, timeout                    | the server failed: try the next one              |
//! | anything else                                                 | refused, as other servers would too: the key fails if it was searched alone, and the request fails if all its keys do |

use std::pin::Pin;

use super::connection::{Connector, LdapResponse, LdapSession, SearchEntry, SearchRequest};
use super::message::LdapResult;
use super::{LdapUrl, SearchScope, url};
use lookup::backend::BackendFailure;

const SUCCESS: u32 = 0;
const TIME_LIMIT_EXCEEDED: u32 = 3;
const SIZE_LIMIT_EXCEEDED: u32 = 4;
const REFERRAL: u32 = 10;
const ADMIN_LIMIT_EXCEEDED: u32 = 11;
const INAPPROPRIATE_MATCHING: u32 = 18;
const INVALID_ATTRIBUTE_SYNTAX: u32 = 21;
const NO_SUCH_OBJECT: u32 = 32;
const INVALID_DN_SYNTAX: u32 = 34;
const BUSY: u32 = 51;
const UNAVAILABLE: u32 = 52;

/// Maximum length of a chain of referrals.
const HOPS_MAX: usize = 3;

/// Handles an entry; returns false when no more are wanted.
pub(super) type EntryHandler<'a> = &'a mut dyn FnMut(&SearchEntry) -> bool;

/// The end of a search.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum SearchEnd {
    /// Complete, or stopped because no more entries were wanted.
    Complete,
    /// The server rejected the keys: too many, or one is not a valid value. Holds its message.
    KeysRejected(String),
    /// The base does not exist or is not a DN. Holds the server's message.
    NoBase(String),
}

/// A failed search.
#[derive(Debug)]
pub(super) enum SearchError {
    /// The server failed. Another server or a new connection may work.
    ServerFailed(BackendFailure),
    /// Timeout. Another server may work, unless this one answers other searches.
    TimedOut(BackendFailure),
    /// The server is busy.
    Busy(BackendFailure),
    /// The server refused the search.
    Refused(BackendFailure),
}

impl From<SearchError> for BackendFailure {
    fn from(trouble: SearchError) -> BackendFailure {
        match trouble {
            SearchError::ServerFailed(failure)
            | SearchError::TimedOut(failure)
            | SearchError::Busy(failure)
            | SearchError::Refused(failure) => failure,
        }
    }
}

/// Runs searches on one session.
#[derive(Clone, Copy)]
pub(super) struct Searcher<'a> {
    pub(super) session: &'a LdapSession,
    /// Opens connections for referrals.
    pub(super) connector: &'a Connector,
    pub(super) referrals: bool,
}

impl Searcher<'_> {
    /// Runs a search with the operation timeout and passes the entries to `take`.
    pub(super) async fn run(
        &self,
        search: &SearchRequest<'_>,
        take: EntryHandler<'_>,
    ) -> Result<SearchEnd, SearchError> {
        let within = self.connector.servers().timeout;
        match tokio::time::timeout(within, self.run_on(self.session, search, take, 0)).await {
            Ok(ended) => ended,
            Err(_) => {
                let what = format!("search: no answer within {} s", within.as_secs_f64());
                Err(SearchError::TimedOut(BackendFailure::new(self.session.url().to_string(), what)))
            }
        }
    }

    async fn run_on(
        &self,
        session: &LdapSession,
        search: &SearchRequest<'_>,
        take: EntryHandler<'_>,
        hops: usize,
    ) -> Result<SearchEnd, SearchError> {
        let mut stream = session.search(search).map_err(SearchError::ServerFailed)?;
        let mut elsewhere = Vec::new();
        let done = loop {
            match stream.next().await.map_err(SearchError::ServerFailed)? {
                LdapResponse::Entry(entry) if take(&entry) => {}
                LdapResponse::Entry(_) => return Ok(SearchEnd::Complete),
                LdapResponse::Reference(urls) if self.referrals => elsewhere.push(urls),
                LdapResponse::Reference(_) | LdapResponse::Intermediate { .. } => {}
                LdapResponse::Done(done) => break done,
            }
        };
        let mut ending = match (done.code, self.referrals) {
            (REFERRAL, true) => {
                elsewhere.push(done.referrals);
                SearchEnd::Complete
            }
            _ => interpret_result(session.url(), &done)?,
        };
        for urls in elsewhere {
            match self.follow_referral(session, &urls, search, take, hops + 1).await? {
                SearchEnd::Complete => {}
                other => ending = other,
            }
        }
        Ok(ending)
    }

    /// Follows the first URL that works (RFC 4511 sections 4.1.10 and 4.5.3).
    fn follow_referral<'a>(
        &'a self,
        from: &'a LdapSession,
        urls: &'a [String],
        search: &'a SearchRequest<'a>,
        take: EntryHandler<'a>,
        hops: usize,
    ) -> Pin<Box<dyn Future<Output = Result<SearchEnd, SearchError>> + 'a>> {
        Box::pin(async move {
            let refused = |what: String| SearchError::Refused(BackendFailure::new(from.url().to_string(), what));
            if hops > HOPS_MAX {
                return Err(refused(format!("more than {HOPS_MAX} referrals in a row")));
            }
            let mut why = "no server in it".to_owned();
            for text in urls {
                let target = match ReferralTarget::parse(text) {
                    Ok(target) => target,
                    Err(error) => {
                        why = error;
                        continue;
                    }
                };
                if self.is_private(from.url()) && !self.is_private(&target.url) {
                    why = format!("{} is not encrypted, but {} is private", target.url, from.url());
                    continue;
                }
                match self.connector.connect_to(&target.url).await {
                    Ok(session) => {
                        let base = target.base.as_deref().unwrap_or(search.base);
                        let search = SearchRequest { base, scope: target.scope.unwrap_or(search.scope), ..*search };
                        // A failure of that server is not a failure of the one asked first.
                        let ended = self.run_on(&session, &search, take, hops).await;
                        return ended.map_err(|trouble| SearchError::Refused(trouble.into()));
                    }
                    Err(failure) => why = failure.to_string(),
                }
            }
            Err(refused(format!("cannot follow referral: {why}")))
        })
    }

    /// Whether a connection to this URL is protected from eavesdropping.
    fn is_private(&self, url: &LdapUrl) -> bool {
        match url {
            LdapUrl::Tcp { tls, .. } => *tls || self.connector.servers().starttls,
            LdapUrl::Unix { .. } => true,
        }
    }
}

/// Interprets the result of a search.
fn interpret_result(url: &LdapUrl, done: &LdapResult) -> Result<SearchEnd, SearchError> {
    let failure = |what: String| BackendFailure::new(url.to_string(), what);
    match done.code {
        SUCCESS => Ok(SearchEnd::Complete),
        TIME_LIMIT_EXCEEDED
        | SIZE_LIMIT_EXCEEDED
        | ADMIN_LIMIT_EXCEEDED
        | INAPPROPRIATE_MATCHING
        | INVALID_ATTRIBUTE_SYNTAX => Ok(SearchEnd::KeysRejected(done.to_string())),
        NO_SUCH_OBJECT | INVALID_DN_SYNTAX => Ok(SearchEnd::NoBase(done.to_string())),
        REFERRAL => {
            let to = done.referrals.first().map_or("no server", |url| url.as_str());
            let what = format!("referral to {to}, but referrals are disabled: {done}");
            Err(SearchError::Refused(failure(what)))
        }
        BUSY => Err(SearchError::Busy(failure(done.to_string()))),
        UNAVAILABLE => Err(SearchError::ServerFailed(failure(done.to_string()))),
        _ => Err(SearchError::Refused(failure(done.to_string()))),
    }
}

/// The target of a referral (RFC 4516): `ldap://host:port/dn?attributes?scope?filter`.
#[derive(Debug, PartialEq, Eq)]
struct ReferralTarget {
    url: LdapUrl,
    base: Option<String>,
    scope: Option<SearchScope>,
}

impl ReferralTarget {
    /// Parses a referral URL. The error says why it cannot be followed.
    fn parse(text: &str) -> Result<ReferralTarget, String> {
        let bad = || format!("invalid LDAP URL '{text}'");
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        if !scheme.eq_ignore_ascii_case("ldap") && !scheme.eq_ignore_ascii_case("ldaps") {
            return Err(format!("'{text}' is neither ldap:// nor ldaps://"));
        }
        let (host, search) = rest.split_once('/').unwrap_or((rest, ""));
        let url = format!("{scheme}://{host}").parse().map_err(|error: url::LdapUrlError| error.to_string())?;
        let mut parts = search.split('?');
        let base = url::percent_decoded(parts.next().unwrap_or_default()).ok_or_else(bad)?;
        // The requested attributes remain the same.
        let scope = match parts.nth(1).unwrap_or_default() {
            "" => None,
            scope => Some(scope.parse().map_err(|_| bad())?),
        };
        if parts.next().is_some_and(|filter| !filter.is_empty()) {
            return Err(format!("'{text}' has its own filter, which is not supported"));
        }
        Ok(ReferralTarget { url, base: Some(base).filter(|base| !base.is_empty()), scope })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn referrals_say_where_to_go_on() {
        let target = |text| ReferralTarget::parse(text).unwrap();
        let plain = target("ldap://b.example.org");
        assert_eq!(plain, ReferralTarget { url: "ldap://b.example.org".parse().unwrap(), base: None, scope: None });
        let whole = target("ldaps://b:1636/ou=a%20b,dc=c??base");
        assert_eq!(whole.url.to_string(), "ldaps://b:1636");
        assert_eq!((whole.base.as_deref(), whole.scope), (Some("ou=a b,dc=c"), Some(SearchScope::Base)));
        for text in [
            "",
            "b",
            "http://b/",
            "ldapi:///run/ldapi",
            "ldap:///dc=a",
            "ldap://b/%zz",
            "ldap://b/a??up",
            "ldap://b/a???(a=b)",
        ] {
            assert!(ReferralTarget::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ends_of_searches_are_told_apart() {
        let url: LdapUrl = "ldap://dir".parse().unwrap();
        let end = |code| interpret_result(&url, &LdapResult { code, text: "details".into(), ..LdapResult::default() });
        assert_eq!(end(0).unwrap(), SearchEnd::Complete);
        assert_eq!(end(4).unwrap(), SearchEnd::KeysRejected("sizeLimitExceeded (4): details".into()));
        for code in [3, 11, 18, 21] {
            assert!(matches!(end(code), Ok(SearchEnd::KeysRejected(_))), "{code}");
        }
        assert_eq!(end(32).unwrap(), SearchEnd::NoBase("noSuchObject (32): details".into()));
        assert!(matches!(end(51), Err(SearchError::Busy(_))));
        assert!(matches!(end(52), Err(SearchError::ServerFailed(_))));
        for code in [1, 8, 50, 53, 80, 12345] {
            let Err(SearchError::Refused(failure)) = end(code) else { panic!("{code}") };
            assert!(failure.to_string().starts_with("ldap://dir:389: "), "{failure}");
            assert!(
                failure.to_string().ends_with(&format!("{code}): details"))
                    || failure.to_string().ends_with(&format!("result code {code}: details"))
            );
        }
        assert!(matches!(end(10), Err(SearchError::Refused(failure)) if failure.what.contains("are disabled")));
    }
}
