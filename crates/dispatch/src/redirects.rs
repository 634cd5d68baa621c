//! Redirects of the operator: mail for a destination, or for a next hop, goes to another next hop until
//! the redirect is ended. They apply where a route is resolved, so mail that is queued and mail that comes
//! later goes the same way.
//!
//! | mail | goes |
//! |---|---|
//! | for a redirected destination | where the redirect says, whatever its route is |
//! | whose route leads to a redirected next hop | where the redirect says |
//! | that was redirected | there, even if that next hop or destination is redirected too: no redirect leads in a circle |
//! | for mailboxes or programs of this host | there, unless its destination is redirected |

use std::collections::BTreeMap;
use std::sync::Arc;

use parking_lot::RwLock;
use route::{Route, RouteAnswer, RouteKey, Router};

/// The mail that is redirected.
#[derive(Clone, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum RedirectSource {
    /// That for the next hop with this name.
    NextHop(Box<str>),
    /// That for the destination with this name, in all queues.
    Destination(Box<str>),
}

/// The redirects at one time.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RedirectTable(pub BTreeMap<RedirectSource, RouteKey>);

impl RedirectTable {
    /// The route of a destination.
    pub async fn route(&self, router: &Router, destination: &str) -> Route {
        let source = || RedirectSource::Destination(destination.into());
        if let Some(key) = self.find(source) {
            return router.route(&key.destination(domain_of(destination))).await;
        }
        let route = router.route(destination).await;
        let RouteAnswer::Hosts(hosts) = &route.answer else { return route };
        match self.find(|| RedirectSource::NextHop(hosts.next_hop.clone())) {
            Some(key) => router.route(&key.destination(domain_of(destination))).await,
            None => route,
        }
    }

    fn find(&self, source: impl FnOnce() -> RedirectSource) -> Option<&RouteKey> {
        if self.0.is_empty() { None } else { self.0.get(&source()) }
    }
}

/// The domain of a destination, which may have a host or a route before it.
fn domain_of(destination: &str) -> &str {
    destination.rsplit_once('!').map_or(destination, |(_, domain)| domain)
}

/// The redirects in force.
#[derive(Clone, Debug, Default)]
pub struct Redirects(Arc<RwLock<Arc<RedirectTable>>>);

impl Redirects {
    /// The redirects that a server starts with.
    pub fn new(table: RedirectTable) -> Redirects {
        Redirects(Arc::new(RwLock::new(Arc::new(table))))
    }

    /// The table in force.
    pub fn current(&self) -> Arc<RedirectTable> {
        self.0.read().clone()
    }

    /// Replaces the table. Routes in use were resolved with the old one: invalidate them afterwards.
    pub fn replace(&self, table: RedirectTable) {
        *self.0.write() = Arc::new(table);
    }

    /// Does something unless another table is in force than this one; returns whether it did. No table is
    /// replaced meanwhile, so that what is sent to the scheduler comes before routes are invalidated.
    pub(crate) fn if_current(&self, table: &Arc<RedirectTable>, act: impl FnOnce()) -> bool {
        let current = self.0.read();
        let is_current = Arc::ptr_eq(&current, table);
        if is_current {
            act();
        }
        is_current
    }
}

#[cfg(test)]
mod tests {
    use route::{Config, EndpointOptions, RouteRule};

    use super::*;

    fn key(next_hop: &str) -> RouteKey {
        RouteKey::new("smtp", Some(&next_hop.parse().unwrap()))
    }

    #[test]
    fn a_destination_keeps_its_domain() {
        for (destination, domain) in [
            ("a.example", "a.example"),
            ("mx.b.example!a.example", "a.example"),
            ("smtp>[192.0.2.1]!a.example", "a.example"),
        ] {
            assert_eq!(domain_of(destination), domain);
        }
    }

    fn next_hop(route: &Route) -> Box<str> {
        match &route.answer {
            RouteAnswer::Hosts(hosts) => hosts.next_hop.clone(),
            other => panic!("{other:?}"),
        }
    }

    #[test]
    fn mail_goes_where_the_redirect_says_and_no_further() {
        let rule = |domain: &str, to: &str| RouteRule {
            pattern: domain.parse().unwrap(),
            transport: "smtp".into(),
            next_hop: Some(to.parse().unwrap()),
            next_hop_table: None,
        };
        let rules = vec![rule("a.example", "[192.0.2.1]"), rule("b.example", "[192.0.2.2]")];
        let mut config = Config { rules, ..Config::new("mx.we.example") };
        config.endpoint_options.insert("smtp".into(), EndpointOptions::default());
        // It is never asked.
        config.resolver.query.servers = vec!["127.0.0.1:9".parse().unwrap()];
        let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
        let _entered = runtime.enter();
        let router = Router::new(config).unwrap();
        let resolved =
            |redirects: &RedirectTable, destination| next_hop(&runtime.block_on(redirects.route(&router, destination)));
        let none = RedirectTable::default();
        let (a, b) = (resolved(&none, "a.example"), resolved(&none, "b.example"));
        let redirects = RedirectTable(
            [
                (RedirectSource::NextHop(a.clone()), key("[192.0.2.2]")),
                (RedirectSource::NextHop(b.clone()), key("[192.0.2.1]")),
                (RedirectSource::Destination("host!c.example".into()), key("[192.0.2.3]:26")),
            ]
            .into(),
        );
        for (destination, expected) in [("a.example", &*b), ("b.example", &*a), ("host!c.example", "192.0.2.3")] {
            let found = resolved(&redirects, destination);
            assert!(found.contains(expected), "{destination}: {found}");
        }
    }

    #[test]
    fn what_was_found_with_another_table_is_not_used() {
        let redirects = Redirects::default();
        let before = redirects.current();
        assert!(redirects.if_current(&before, || ()));
        redirects.replace(RedirectTable([(RedirectSource::NextHop("a".into()), key("[192.0.2.1]"))].into()));
        assert!(!redirects.if_current(&before, || panic!("it is outdated")));
        assert!(redirects.if_current(&redirects.current(), || ()));
    }
}
