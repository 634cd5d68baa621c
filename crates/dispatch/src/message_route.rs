//! Routes that depend on more than the recipient's domain: on its address, on the sender, or on a
//! table of either. They are tried in their order, before all routes by domain. The route of a
//! recipient is chosen when its message is queued, and again after a reload that changes them.
//!
//! | route | concerns | keys in the table |
//! |---|---|---|
//! | an address | this recipient, in our domains too | |
//! | a sender | its mail to domains of other hosts | |
//! | a table of recipients | every recipient, in our domains too | `bob+tag@a.example`, `bob@a.example`, `a.example`, `.example`, `*` |
//! | a table of senders | mail to domains of other hosts | the address, `@domain`; `<>` without a sender |
//!
//! Values of tables are those of Postfix's transport(5): `transport:nexthop` ([`RouteKey`] has the
//! result). A table that does not answer defers the recipient.

use std::collections::HashMap;
use std::iter;
use std::sync::Arc;

use lookup::directory::RecipientDirectory;
use lookup::{LookupAnswer, Table, fold_key};
use mail::Address;
use route::{DomainPattern, RouteKey};

use super::queue_rules::SenderRule;
use super::transport_entry::{self, TransportEntry};

pub use super::transport_entry::TransportTraits;

/// A route by more than the recipient's domain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MessageRoute {
    /// Mail for one address.
    Address {
        /// The recipient.
        address: Address,
        /// Where its mail goes.
        key: RouteKey,
    },
    /// Mail of a sender to domains of other hosts.
    Sender {
        /// The sender.
        sender: SenderRule,
        /// The domains of the recipients.
        domain: DomainPattern,
        /// Where the mail goes.
        key: RouteKey,
    },
    /// Mail for the recipients in this table.
    RecipientTable(Box<str>),
    /// Mail of the senders in this table to domains of other hosts.
    SenderTable(Box<str>),
}

/// All routes by more than the domain, with what is needed to apply them.
#[derive(Clone, Default)]
pub struct MessageRoutes {
    /// The routes; the first match wins.
    pub routes: Vec<MessageRoute>,
    /// The tables that they name. A missing one counts as empty.
    pub tables: HashMap<Box<str>, Arc<dyn Table>>,
    /// The transports that tables may name.
    pub transports: HashMap<Box<str>, TransportTraits>,
}

/// What the routes say of a recipient.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RouteChoice {
    /// Nothing: its domain decides.
    ByDomain,
    /// This transport.
    Route {
        /// The transport and its next hop.
        key: RouteKey,
        /// The transport delivers to Maildirs.
        is_maildir: bool,
    },
    /// A table does not answer, and why.
    Unavailable(String),
}

/// A recipient, and the sender of its message.
#[derive(Clone, Copy, Debug)]
pub struct RoutedRecipient<'a> {
    /// None: the null sender.
    pub sender: Option<&'a Address>,
    /// The recipient.
    pub address: &'a Address,
}

impl MessageRoutes {
    /// Whether the same recipients have the same routes, as far as the configuration shows.
    pub(super) fn is_same(&self, other: &MessageRoutes) -> bool {
        self.routes == other.routes && self.transports == other.transports
    }

    /// Whether a route may match, for which [`MessageRoutes::choose`] has to find out.
    pub(super) fn may_match(&self, recipient: RoutedRecipient<'_>) -> bool {
        self.routes.iter().any(|route| match route {
            MessageRoute::Address { address, .. } => is_same_address(address, recipient.address),
            MessageRoute::Sender { sender, .. } => recipient.sender.is_some_and(|own| sender.matches(own)),
            MessageRoute::RecipientTable(_) | MessageRoute::SenderTable(_) => true,
        })
    }

    /// The choice for each recipient, in the same order. Each table gets at most one query.
    pub async fn choose(&self, recipients: &[RoutedRecipient<'_>], directory: &RecipientDirectory) -> Vec<RouteChoice> {
        let mut choices = vec![None; recipients.len()];
        let mut locality = Locality { directory, by_domain: HashMap::new() };
        for route in &self.routes {
            let open: Vec<usize> = (0..recipients.len()).filter(|&index| choices[index].is_none()).collect();
            if open.is_empty() {
                break;
            }
            let concerned = match route {
                MessageRoute::Address { .. } | MessageRoute::RecipientTable(_) => open,
                MessageRoute::Sender { .. } | MessageRoute::SenderTable(_) => {
                    locality.filter_foreign(open, recipients, &mut choices).await
                }
            };
            let matches = self.match_route(route, &concerned, recipients, directory).await;
            concerned.into_iter().zip(matches).for_each(|(index, choice)| choices[index] = choice);
        }
        choices.into_iter().map(|choice| choice.unwrap_or(RouteChoice::ByDomain)).collect()
    }

    /// What one route says of the recipients at `places`; None if it does not match.
    async fn match_route(
        &self,
        route: &MessageRoute,
        places: &[usize],
        recipients: &[RoutedRecipient<'_>],
        directory: &RecipientDirectory,
    ) -> Vec<Option<RouteChoice>> {
        let concerned = places.iter().map(|&index| recipients[index]);
        match route {
            MessageRoute::Address { address, key } => {
                concerned.map(|own| is_same_address(address, own.address).then(|| self.choice(key))).collect()
            }
            MessageRoute::Sender { sender, domain, key } => {
                let matches = |own: RoutedRecipient<'_>| {
                    own.sender.is_some_and(|own| sender.matches(own)) && domain.matches(own.address.domain())
                };
                concerned.map(|own| matches(own).then(|| self.choice(key))).collect()
            }
            MessageRoute::RecipientTable(table) => {
                let mut keys = Vec::with_capacity(places.len());
                for own in concerned {
                    keys.push(recipient_keys(own.address, directory.strip_tag(own.address).await.as_ref()));
                }
                self.look_up(table, keys).await
            }
            MessageRoute::SenderTable(table) => {
                self.look_up(table, concerned.map(|own| sender_keys(own.sender)).collect()).await
            }
        }
    }

    /// The entry of the first key that the table has, for each list of keys.
    async fn look_up(&self, table: &str, keys: Vec<Vec<String>>) -> Vec<Option<RouteChoice>> {
        let Some(table) = self.tables.get(table) else { return vec![None; keys.len()] };
        let all: Vec<&str> = keys.iter().flatten().map(String::as_str).collect();
        let mut answers = table.lookup(&all).await.into_iter();
        keys.iter().map(|own| self.first_entry(table.name(), answers.by_ref().take(own.len()).collect())).collect()
    }

    fn first_entry(&self, table: &str, answers: Vec<LookupAnswer>) -> Option<RouteChoice> {
        let first = answers.into_iter().find(|answer| !matches!(answer, LookupAnswer::NotFound))?;
        let values = match first {
            LookupAnswer::Found(values) => values,
            LookupAnswer::Unavailable(why) | LookupAnswer::Unconfirmed(why) => {
                return Some(RouteChoice::Unavailable(format!("table '{table}': {why}")));
            }
            LookupAnswer::NotFound => return None,
        };
        let value = values.first().map_or("", String::as_str);
        let unavailable = |why| RouteChoice::Unavailable(format!("table '{table}' has {value:?}: {why}"));
        Some(self.named(value).unwrap_or_else(unavailable))
    }

    /// What an entry of a table says.
    ///
    /// # Errors
    ///
    /// Its transport is unknown, or its next hop is invalid.
    pub(super) fn named(&self, entry: &str) -> Result<RouteChoice, &'static str> {
        Ok(match transport_entry::parse(entry, &self.transports)? {
            TransportEntry::Unchanged => RouteChoice::ByDomain,
            TransportEntry::Route(key) => self.choice(&key),
        })
    }

    fn choice(&self, key: &RouteKey) -> RouteChoice {
        let is_maildir = self.transports.get(key.transport()).is_some_and(|traits| traits.is_maildir);
        RouteChoice::Route { key: key.clone(), is_maildir }
    }
}

/// The keys of a recipient, the closest first.
fn recipient_keys(recipient: &Address, without_tag: Option<&Address>) -> Vec<String> {
    let domain = recipient.domain();
    let parents = domain.match_indices('.').map(|(dot, _)| domain[dot..].to_owned());
    let parents = parents.filter(|_| !domain.starts_with('['));
    let addresses = iter::once(recipient).chain(without_tag).map(|address| fold_key(address.as_str()));
    addresses.chain(iter::once(domain.to_owned())).chain(parents).chain(iter::once("*".to_owned())).collect()
}

fn sender_keys(sender: Option<&Address>) -> Vec<String> {
    match sender {
        Some(sender) => vec![fold_key(sender.as_str()), format!("@{}", sender.domain())],
        None => vec!["<>".to_owned()],
    }
}

fn is_same_address(one: &Address, other: &Address) -> bool {
    one.as_str().eq_ignore_ascii_case(other.as_str())
}

/// Which domains are ours, as far as it was asked.
struct Locality<'a> {
    directory: &'a RecipientDirectory,
    by_domain: HashMap<String, Result<bool, String>>,
}

impl Locality<'_> {
    /// Those of the recipients at `open` that are in domains of other hosts. Whose domain cannot be
    /// looked up has a choice after that.
    async fn filter_foreign(
        &mut self,
        open: Vec<usize>,
        recipients: &[RoutedRecipient<'_>],
        choices: &mut [Option<RouteChoice>],
    ) -> Vec<usize> {
        let mut foreign = Vec::with_capacity(open.len());
        for index in open {
            match self.is_ours(recipients[index].address.domain()).await {
                Ok(true) => {}
                Ok(false) => foreign.push(index),
                Err(why) => choices[index] = Some(RouteChoice::Unavailable(why)),
            }
        }
        foreign
    }

    async fn is_ours(&mut self, domain: &str) -> Result<bool, String> {
        if let Some(known) = self.by_domain.get(domain) {
            return known.clone();
        }
        let found = self.directory.domain(domain).await.map(|found| found.is_some());
        self.by_domain.insert(domain.to_owned(), found.clone());
        found
    }
}

#[cfg(test)]
mod tests {
    use lookup::LookupFuture;
    use lookup::directory::{AliasLimits, LocalDomain};

    use super::*;

    /// Has these entries; every key with "down" is unavailable.
    struct Entries(&'static [(&'static str, &'static str)]);

    impl Table for Entries {
        fn name(&self) -> &str {
            "entries"
        }

        fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
            let answer = |key: &&str| match self.0.iter().find(|(known, _)| known == key) {
                Some((_, value)) => LookupAnswer::Found(vec![(*value).to_owned()]),
                None if key.contains("down") => LookupAnswer::Unavailable("it is down".into()),
                None => LookupAnswer::NotFound,
            };
            Box::pin(std::future::ready(keys.iter().map(answer).collect()))
        }
    }

    fn directory() -> RecipientDirectory {
        let ours = LocalDomain {
            name: "ours.example".into(),
            mailboxes: None,
            aliases: None,
            catch_all: None,
            wildcard_mailbox: false,
            hosts: None,
            delimiter: Some('+'),
            transport: "maildir".into(),
            is_final: true,
        };
        RecipientDirectory::new(vec![ours], AliasLimits::default())
    }

    fn routes(routes: Vec<MessageRoute>, tables: &[(&str, &'static [(&'static str, &'static str)])]) -> MessageRoutes {
        let traits = |by_mx, is_maildir| TransportTraits { by_mx, is_maildir };
        let table =
            |(name, entries): &(&str, &'static [_])| (Box::from(*name), Arc::new(Entries(entries)) as Arc<dyn Table>);
        MessageRoutes {
            routes,
            tables: tables.iter().map(table).collect(),
            transports: [
                ("smtp".into(), traits(true, false)),
                ("lists".into(), traits(false, false)),
                ("maildir".into(), traits(false, true)),
            ]
            .into(),
        }
    }

    /// What is chosen, as the front of the destination, for a sender and a recipient.
    fn choose(routes: &MessageRoutes, sender: &str, recipient: &str) -> String {
        let sender = (!sender.is_empty()).then(|| sender.parse().expect("an address"));
        let address = recipient.parse().expect("an address");
        let runtime = tokio::runtime::Builder::new_current_thread().build().expect("a runtime");
        let recipient = RoutedRecipient { sender: sender.as_ref(), address: &address };
        match runtime.block_on(routes.choose(&[recipient], &directory())).pop().expect("one choice") {
            RouteChoice::ByDomain => "by domain".into(),
            RouteChoice::Route { key, is_maildir: false } => key.to_string(),
            RouteChoice::Route { key, is_maildir: true } => format!("{key} here"),
            RouteChoice::Unavailable(why) => why,
        }
    }

    #[test]
    fn a_table_of_recipients_has_addresses_domains_and_parents() {
        let entries: &[_] = &[
            ("list@ours.example", "lists:[127.0.0.1]:8024"),
            ("partner.example", "smtp:relay.partner.example"),
            (".partner.example", ":[192.0.2.1]"),
            ("users.example", "local:"),
            ("*", "error:5.1.2 nowhere"),
            ("ours.example", ":"),
        ];
        let routes = routes(vec![MessageRoute::RecipientTable("map".into())], &[("map", entries)]);
        for (recipient, chosen) in [
            ("list@ours.example", "lists>[127.0.0.1]:8024"),
            ("LIST+confirm@ours.example", "lists>[127.0.0.1]:8024"),
            ("bob@ours.example", "by domain"),
            ("bob@partner.example", "smtp>mx:relay.partner.example"),
            ("bob@a.partner.example", "smtp>[192.0.2.1]"),
            ("bob@users.example", "maildir> here"),
            ("bob@else.example", "smtp>550 5.1.2 nowhere"),
            ("down@else.example", "table 'entries': it is down"),
        ] {
            assert_eq!(choose(&routes, "a@b.example", recipient), chosen, "{recipient}");
        }
    }

    #[test]
    fn a_route_by_sender_concerns_only_domains_of_others() {
        let by_sender = |sender: &str, domain: &str, transport: &str| MessageRoute::Sender {
            sender: sender.parse().expect("a sender"),
            domain: domain.parse().expect("a pattern"),
            key: RouteKey::new(transport, None),
        };
        let list = vec![
            by_sender("news@a.example", "*.partner.example", "partner"),
            by_sender("@a.example", "*", "relay"),
            MessageRoute::SenderTable("senders".into()),
        ];
        let routes =
            routes(list, &[("senders", &[("c@b.example", "smtp:[192.0.2.9]:587"), ("<>", "smtp:[192.0.2.8]")])]);
        for (sender, recipient, chosen) in [
            ("News@A.example", "x@mail.partner.example", "partner>"),
            ("news@a.example", "x@else.example", "relay>"),
            ("other@a.example", "x@mail.partner.example", "relay>"),
            ("c@b.example", "x@else.example", "smtp>[192.0.2.9]:587"),
            ("", "x@else.example", "smtp>[192.0.2.8]"),
            ("d@b.example", "x@else.example", "by domain"),
            ("news@a.example", "x@ours.example", "by domain"),
        ] {
            assert_eq!(choose(&routes, sender, recipient), chosen, "{sender} {recipient}");
        }
    }

    #[test]
    fn the_first_route_that_matches_wins() {
        let address: Address = "list@ours.example".parse().expect("an address");
        let one = MessageRoute::Address { address, key: RouteKey::new("lists", None) };
        let routes = routes(vec![one, MessageRoute::RecipientTable("map".into())], &[("map", &[("*", "smtp:")])]);
        assert_eq!(choose(&routes, "", "List@ours.example"), "lists>");
        assert_eq!(choose(&routes, "", "bob@ours.example"), "smtp>");
        let known = |recipient: &str| {
            let address = recipient.parse().expect("an address");
            routes.may_match(RoutedRecipient { sender: None, address: &address })
        };
        assert!(known("list@ours.example") && known("bob@ours.example"));
    }
}
