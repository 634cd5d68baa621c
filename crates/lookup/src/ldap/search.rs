//! One search, from its request to what its end means.
//!
//! | the server ends it with                                       | what that means                                  |
//! |---------------------------------------------------------------|--------------------------------------------------|
//! | success (0)                                                   | all that there is was found                      |
//! | timeLimitExceeded (3), sizeLimitExceeded (4), adminLimitExceeded (11), inappropriateMatching (18), invalidAttributeSyntax (21) | a matter of the keys: split them |
//! | noSuchObject (32)                                             | the base is not there: a matter of configuration |
//! | referral (10)                                                 | ask elsewhere, where referrals are followed      |
//! | busy (51)                                                     | the next one may be asked, or the same after a pause |
//! | unavailable (52); connection lost, time-out                   | the server failed: the next one may be asked     |
//! | anything else                                                 | it failed, and would at the next server too: of several keys asked one by one those do, and where all do the request does |

use std::pin::Pin;

use super::connection::{Connector, Entry, Response, Search, Session};
use super::message::Done;
use super::{Scope, Url, url};
use crate::backend::Failure;

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

/// Referrals that lead to referrals.
const HOPS_MAX: usize = 3;

/// Takes the entries that are found; false when no more are wanted.
pub(super) type Take<'a> = &'a mut dyn FnMut(&Entry) -> bool;

/// A search that a server has ended.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Ending {
    /// All that there is was found, or all that was wanted.
    Complete,
    /// The keys were too many for one search, or one of them cannot be a value; the server's words.
    Keys(String),
    /// The base does not exist, or is no DN; the server's words.
    NoBase(String),
}

/// A search that did not end as it must.
#[derive(Debug)]
pub(super) enum Trouble {
    /// The server failed; another one, or the same on a fresh connection, may not.
    Server(Failure),
    /// No answer within the time of an operation; the same, unless others are answered meanwhile.
    Late(Failure),
    /// The server has too much to do for now.
    Busy(Failure),
    /// The server did not do it.
    Refused(Failure),
}

impl From<Trouble> for Failure {
    fn from(trouble: Trouble) -> Failure {
        match trouble {
            Trouble::Server(failure) | Trouble::Late(failure) | Trouble::Busy(failure) | Trouble::Refused(failure) => {
                failure
            }
        }
    }
}

/// Searches on one session.
#[derive(Clone, Copy)]
pub(super) struct Searcher<'a> {
    pub(super) session: &'a Session,
    /// Makes the connections that referrals need.
    pub(super) connector: &'a Connector,
    pub(super) referrals: bool,
}

impl Searcher<'_> {
    /// Searches, within the time-out of an operation, and gives the entries to `take`.
    pub(super) async fn run(&self, search: &Search<'_>, take: Take<'_>) -> Result<Ending, Trouble> {
        let within = self.connector.servers().timeout;
        match tokio::time::timeout(within, self.run_on(self.session, search, take, 0)).await {
            Ok(ended) => ended,
            Err(_) => {
                let what = format!("search: no answer within {} s", within.as_secs_f64());
                Err(Trouble::Late(Failure::new(self.session.url().to_string(), what)))
            }
        }
    }

    async fn run_on(
        &self,
        session: &Session,
        search: &Search<'_>,
        take: Take<'_>,
        hops: usize,
    ) -> Result<Ending, Trouble> {
        let mut stream = session.search(search).map_err(Trouble::Server)?;
        let mut elsewhere = Vec::new();
        let done = loop {
            match stream.next().await.map_err(Trouble::Server)? {
                Response::Entry(entry) if take(&entry) => {}
                Response::Entry(_) => return Ok(Ending::Complete),
                Response::Reference(urls) if self.referrals => elsewhere.push(urls),
                Response::Reference(_) | Response::Intermediate { .. } => {}
                Response::Done(done) => break done,
            }
        };
        let mut ending = match (done.code, self.referrals) {
            (REFERRAL, true) => {
                elsewhere.push(done.referrals);
                Ending::Complete
            }
            _ => ending(session.url(), &done)?,
        };
        for urls in elsewhere {
            match self.follow(session, &urls, search, take, hops + 1).await? {
                Ending::Complete => {}
                other => ending = other,
            }
        }
        Ok(ending)
    }

    /// Goes on where one of these URLs leads (RFC 4511 sections 4.1.10 and 4.5.3).
    fn follow<'a>(
        &'a self,
        from: &'a Session,
        urls: &'a [String],
        search: &'a Search<'a>,
        take: Take<'a>,
        hops: usize,
    ) -> Pin<Box<dyn Future<Output = Result<Ending, Trouble>> + 'a>> {
        Box::pin(async move {
            let refused = |what: String| Trouble::Refused(Failure::new(from.url().to_string(), what));
            if hops > HOPS_MAX {
                return Err(refused(format!("more than {HOPS_MAX} referrals lead from one to the next")));
            }
            let mut why = "it names no server".to_owned();
            for text in urls {
                let target = match Target::parse(text) {
                    Ok(target) => target,
                    Err(error) => {
                        why = error;
                        continue;
                    }
                };
                if self.is_private(from.url()) && !self.is_private(&target.url) {
                    why = format!("{} is open, and {} is not", target.url, from.url());
                    continue;
                }
                match self.connector.connect_to(&target.url).await {
                    Ok(session) => {
                        let base = target.base.as_deref().unwrap_or(search.base);
                        let search = Search { base, scope: target.scope.unwrap_or(search.scope), ..*search };
                        // That server's failure is not one of the server that was asked first.
                        let ended = self.run_on(&session, &search, take, hops).await;
                        return ended.map_err(|trouble| Trouble::Refused(trouble.into()));
                    }
                    Err(failure) => why = failure.to_string(),
                }
            }
            Err(refused(format!("a referral cannot be followed: {why}")))
        })
    }

    /// Whether nobody between can read what is said, such as the password.
    fn is_private(&self, url: &Url) -> bool {
        match url {
            Url::Tcp { tls, .. } => *tls || self.connector.servers().starttls,
            Url::Unix { .. } => true,
        }
    }
}

/// What it means that a server ended a search like this.
fn ending(url: &Url, done: &Done) -> Result<Ending, Trouble> {
    let failure = |what: String| Failure::new(url.to_string(), what);
    match done.code {
        SUCCESS => Ok(Ending::Complete),
        TIME_LIMIT_EXCEEDED
        | SIZE_LIMIT_EXCEEDED
        | ADMIN_LIMIT_EXCEEDED
        | INAPPROPRIATE_MATCHING
        | INVALID_ATTRIBUTE_SYNTAX => Ok(Ending::Keys(done.to_string())),
        NO_SUCH_OBJECT | INVALID_DN_SYNTAX => Ok(Ending::NoBase(done.to_string())),
        REFERRAL => {
            let to = done.referrals.first().map_or("no server", |url| url.as_str());
            let what = format!("refers to {to}, and referrals are not followed: {done}");
            Err(Trouble::Refused(failure(what)))
        }
        BUSY => Err(Trouble::Busy(failure(done.to_string()))),
        UNAVAILABLE => Err(Trouble::Server(failure(done.to_string()))),
        _ => Err(Trouble::Refused(failure(done.to_string()))),
    }
}

/// Where a referral leads (RFC 4516): `ldap://host:port/dn?attributes?scope?filter`.
#[derive(Debug, PartialEq, Eq)]
struct Target {
    url: Url,
    base: Option<String>,
    scope: Option<Scope>,
}

impl Target {
    /// Where it leads, or why it cannot be followed.
    fn parse(text: &str) -> Result<Target, String> {
        let bad = || format!("'{text}' is no URL of a search");
        let (scheme, rest) = text.split_once("://").ok_or_else(bad)?;
        if !scheme.eq_ignore_ascii_case("ldap") && !scheme.eq_ignore_ascii_case("ldaps") {
            return Err(format!("'{text}' is neither ldap:// nor ldaps://"));
        }
        let (host, search) = rest.split_once('/').unwrap_or((rest, ""));
        let url = format!("{scheme}://{host}").parse().map_err(|error: url::UrlError| error.to_string())?;
        let mut parts = search.split('?');
        let base = url::percent_decoded(parts.next().unwrap_or_default()).ok_or_else(bad)?;
        // The attributes are those that were asked for.
        let scope = match parts.nth(1).unwrap_or_default() {
            "" => None,
            scope => Some(scope.parse().map_err(|_| bad())?),
        };
        if parts.next().is_some_and(|filter| !filter.is_empty()) {
            return Err(format!("'{text}' has a filter of its own, which is not followed"));
        }
        Ok(Target { url, base: Some(base).filter(|base| !base.is_empty()), scope })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn referrals_say_where_to_go_on() {
        let target = |text| Target::parse(text).unwrap();
        let plain = target("ldap://b.example.org");
        assert_eq!(plain, Target { url: "ldap://b.example.org".parse().unwrap(), base: None, scope: None });
        let whole = target("ldaps://b:1636/ou=a%20b,dc=c??base");
        assert_eq!(whole.url.to_string(), "ldaps://b:1636");
        assert_eq!((whole.base.as_deref(), whole.scope), (Some("ou=a b,dc=c"), Some(Scope::Base)));
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
            assert!(Target::parse(text).is_err(), "{text}");
        }
    }

    #[test]
    fn ends_of_searches_are_told_apart() {
        let url: Url = "ldap://dir".parse().unwrap();
        let end = |code| ending(&url, &Done { code, text: "its words".into(), ..Done::default() });
        assert_eq!(end(0).unwrap(), Ending::Complete);
        assert_eq!(end(4).unwrap(), Ending::Keys("sizeLimitExceeded (4): its words".into()));
        for code in [3, 11, 18, 21] {
            assert!(matches!(end(code), Ok(Ending::Keys(_))), "{code}");
        }
        assert_eq!(end(32).unwrap(), Ending::NoBase("noSuchObject (32): its words".into()));
        assert!(matches!(end(51), Err(Trouble::Busy(_))));
        assert!(matches!(end(52), Err(Trouble::Server(_))));
        for code in [1, 8, 50, 53, 80, 12345] {
            let Err(Trouble::Refused(failure)) = end(code) else { panic!("{code}") };
            assert!(failure.to_string().starts_with("ldap://dir:389: "), "{failure}");
            assert!(
                failure.to_string().ends_with(&format!("{code}): its words"))
                    || failure.to_string().ends_with(&format!("result code {code}: its words"))
            );
        }
        assert!(matches!(end(10), Err(Trouble::Refused(failure)) if failure.what.contains("are not followed")));
    }
}
