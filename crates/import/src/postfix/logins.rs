//! `[auth]`: logins, and which senders belong to which user. Where Postfix asks Dovecot about passwords,
//! so does this server. Cyrus SASL is not supported: then the new table of users is empty, and nobody can
//! log in until the operator adds users.

use std::collections::BTreeMap;

use super::Conversion;
use super::config_draft::{TomlSection, quoted};
use super::inbound_services::InboundService;
use super::lookups::MapRef;
use super::map_text::{self, TableUse};
use super::restrictions::{ClientKind, LISTS, Restriction};
use super::words::list;

/// Restrictions that apply `smtpd_sender_login_maps` to users.
const USER_SENDER_CHECKS: [&str; 3] = [
    "reject_sender_login_mismatch",
    "reject_authenticated_sender_login_mismatch",
    "reject_known_sender_login_mismatch",
];

/// Restrictions that apply it to clients without a login.
pub(super) const OTHER_SENDER_CHECKS: [&str; 2] =
    ["reject_sender_login_mismatch", "reject_unauthenticated_sender_login_mismatch"];

const AUTH_EXAMPLE: &str = "\
# Users and their password hashes, one per line, as printed by `mailrace password`.
# For lines of Dovecot's passwd-file, such as bob:{BLF-CRYPT}$2y$..., use the first two fields,
# separated by a space.
";

impl Conversion<'_> {
    pub(super) fn logins(&mut self) {
        self.report_login_parameters();
        if !self.has_users {
            return;
        }
        match self.dovecot_socket() {
            Some(socket) => {
                self.draft.set("[auth]", "dovecot", quoted(&socket), "smtpd_sasl_path");
                self.draft.add_review_note(format!(
                    "Dovecot's socket {} checks logins: the server's user must be able to use it",
                    socket.trim_start_matches("unix:")
                ));
                self.draft.add_behavior_change(
                    "Users log in by PLAIN or LOGIN alone, whatever other mechanisms Dovecot offers: clients that are \
                     set to another one, such as CRAM-MD5, SCRAM or GSSAPI, must be changed.",
                );
            }
            None => self.empty_logins(),
        }
        if self.values.value("smtpd_sasl_authenticated_header") == "yes" {
            self.draft.set("[auth]", "trace_users", "true", "smtpd_sasl_authenticated_header");
        }
        self.sender_tables();
    }

    /// The socket of Dovecot's authentication server.
    fn dovecot_socket(&self) -> Option<String> {
        let users = self.inbound_services.iter().filter(|inbound| inbound.has_logins);
        let mut sockets = users.map(|inbound| {
            let values = self.values.with_main_cf(&inbound.main);
            (values.value("smtpd_sasl_type"), values.value("smtpd_sasl_path"))
        });
        let (kind, path) = sockets.next()?;
        let is_same = sockets.all(|other| other == (kind.clone(), path.clone()));
        let path = path.strip_prefix("unix:").unwrap_or(&path);
        let is_socket = is_same && kind == "dovecot" && !path.starts_with("inet:") && !path.is_empty();
        is_socket.then(|| format!("unix:{}", self.socket_path(path)))
    }

    /// A table of users to be filled.
    fn empty_logins(&mut self) {
        let path = self.add_file("logins", "", AUTH_EXAMPLE.into(), true);
        let name = super::lookups::file_name(&path);
        let table = TomlSection::new("[[table]]").comment("The users who may log in: add them here.");
        let table = table.key("name", quoted(&name), "").key("type", quoted("text"), "");
        self.draft.add(table.key("path", quoted(&path.to_string_lossy()), ""));
        let (kind, place) = (self.values.value("smtpd_sasl_type"), self.values.value("smtpd_sasl_path"));
        let asked = format!("smtpd_sasl_type = {kind}, smtpd_sasl_path = {place}");
        self.draft.add_behavior_change(format!(
            "Mail from users is not accepted, because nobody can log in yet: add users to {}, or set `passwords` of \
             [auth] to a table with their password hashes (such as a query in Dovecot's database), or `bind` to one \
             of type ldap. Postfix used: {asked}.",
            path.display()
        ));
        let auth = TomlSection::new("[auth]").comment(format!(
            "Postfix used {asked}, which is not supported here. Instead of `passwords`, `bind` may name a table of \
             type ldap, and passwords are then verified by its directory; see docs/submission.md."
        ));
        self.draft.add(auth.key("passwords", quoted(&name), "smtpd_sasl_path"));
    }

    fn report_login_parameters(&mut self) {
        let given = |name: &str| self.main.value(name).is_some();
        if given("smtpd_sasl_auth_enable") {
            match self.has_users || self.values.value("smtpd_sasl_auth_enable") != "yes" {
                true => self.draft.mapped("smtpd_sasl_auth_enable"),
                false => self.draft.unsupported("smtpd_sasl_auth_enable", "no listener accepts logins; see above"),
            }
        }
        match self.has_users {
            true => ["smtpd_sasl_type", "smtpd_sasl_path"].iter().for_each(|name| self.draft.mapped(name)),
            false => {
                let names = ["smtpd_sasl_type", "smtpd_sasl_path", "smtpd_sender_login_maps"];
                names.iter().for_each(|name| self.draft.not_needed(name, "nobody logs in"));
            }
        }
        match self.values.value("smtpd_tls_auth_only") == "yes" {
            true => self.draft.not_needed("smtpd_tls_auth_only", "logins require TLS"),
            false => self
                .draft
                .unsupported("smtpd_tls_auth_only", "logins require TLS, unless `clear_text` of [auth] is true"),
        }
    }

    /// Converts the senders of users, if a restriction checks them for users.
    fn sender_tables(&mut self) {
        let parameter = "smtpd_sender_login_maps";
        let is_asked = |inbound: &&InboundService| {
            let reached = |list: usize| {
                let elements = inbound.lists.0[list].iter();
                elements
                    .filter(|it| it.no_effect.is_none() && USER_SENDER_CHECKS.contains(&it.rule.as_str()))
                    .any(|it| inbound.lists.reaches(list, it, ClientKind::User))
            };
            inbound.has_logins && (0..LISTS.len()).any(reached)
        };
        let Some(inbound) = self.inbound_services.iter().find(is_asked).cloned() else {
            return self.draft.unsupported(
                parameter,
                "no restriction applies it to users, so they may use any sender; see `senders` of [auth]",
            );
        };
        self.draft.mapped(parameter);
        let value = self.values.with_main_cf(&inbound.main).value(parameter);
        let mut owners: Vec<(String, String)> = Vec::new();
        let mut has_unknown = false;
        for element in list(&value) {
            match MapRef::parse(&element).and_then(|map_ref| self.entries(&map_ref, false)) {
                // The unreadable table comes first and may contain the same senders.
                Some(_) if has_unknown => self.draft.add_unsupported(
                    format!("{parameter}: {element}"),
                    "the table before it cannot be inverted, and may assign the same senders to other users",
                ),
                Some(entries) => owners.extend(entries),
                None => {
                    has_unknown = true;
                    self.draft.add_unsupported(
                        format!("{parameter}: {element}"),
                        "it maps senders to users; `senders` of [auth] maps users to senders",
                    );
                    self.draft.add_behavior_change(format!(
                        "Mail from users that are not in the table `senders` of [auth] gets 553: {parameter} = \
                         {element} maps senders to users, and cannot be inverted."
                    ));
                }
            }
        }
        let OwnersByUser { senders, owned_senders: owned, withheld: shared } =
            invert_owners(&owners, &self.site, has_unknown);
        for (user, domain) in shared {
            self.draft.add_behavior_change(format!(
                "Mail of {user} from addresses at {domain} gets 553 unless `senders` of [auth] contains them: \
                 {parameter} gives {user} the domain, but some addresses there may belong to other users. Add each \
                 address of {user}."
            ));
        }
        if !self.values.value("recipient_delimiter").is_empty() {
            self.draft.add_behavior_change(
                "Mail of users from their own addresses with a tag gets 553, unless `senders` of [auth] has the address \
                 with the tag.",
            );
        }
        let name = self.sender_table("senders", senders, "Users and their senders.");
        self.draft.set("[auth]", "senders", quoted(&name), parameter);
        let asks_strangers = |front: &InboundService| {
            let asks = |it: &Restriction| it.no_effect.is_none() && OTHER_SENDER_CHECKS.contains(&it.rule.as_str());
            front.has_logins && front.lists.0.iter().flatten().any(asks)
        };
        if !owned.is_empty() && self.main_inbound_service().is_some_and(asks_strangers) {
            let name = self.sender_table("owned-senders", owned, "Senders that belong to a user.");
            self.owned_senders = Some(name);
        }
    }

    fn sender_table(&mut self, like: &str, text: String, what: &str) -> String {
        let path = self.add_file(like, "", text, false);
        let name = super::lookups::file_name(&path);
        let block = TomlSection::new("[[table]]").comment(format!("{what} From smtpd_sender_login_maps."));
        let block = block.key("name", quoted(&name), "").key("type", quoted("text"), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        name
    }
}

/// Tables of senders.
struct OwnersByUser {
    /// Users and their senders.
    senders: String,
    /// All senders that belong to a user.
    owned_senders: String,
    /// Users and domains that they own except for addresses of others.
    withheld: Vec<(String, String)>,
}

/// Converts a table of senders and owners to one of owners and senders. Postfix looks up the
/// address before the domain, so the owner of a domain does not own addresses that belong to
/// others. Here such a user would, and therefore does not get the domain. `has_unknown`: any
/// address may belong to another user.
fn invert_owners(owners: &[(String, String)], site: &map_text::SiteDomains, has_unknown: bool) -> OwnersByUser {
    let mut by_sender: Vec<(String, Vec<String>)> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut lost = String::new();
    for (sender, users) in owners {
        let senders = match map_text::keys(sender, TableUse::Aliases, site) {
            Ok(senders) if !senders.is_empty() => senders,
            _ => {
                lost.push_str(&format!("# not translated: {sender}: expected an address, or a domain after an @\n"));
                continue;
            }
        };
        let is_sound = |user: &String| !user.contains('"') && !user.starts_with('#') && !user.ends_with(':');
        let users: Vec<String> = list(users).into_iter().filter(is_sound).map(|user| user.to_lowercase()).collect();
        let new = senders.into_iter().filter(|sender| seen.insert(sender.to_lowercase()));
        by_sender.extend(new.map(|sender| (sender, users.clone())));
    }
    // The owners of addresses, by domain.
    let mut exact: BTreeMap<String, Vec<&Vec<String>>> = BTreeMap::new();
    for (sender, users) in by_sender.iter().filter(|(sender, _)| !sender.starts_with('@')) {
        let domain = sender.rsplit_once('@').map_or("", |(_, domain)| domain).to_lowercase();
        exact.entry(domain).or_default().push(users);
    }
    let owns_all = |user: &String, domain: &str| {
        let others = exact.get(&domain.to_lowercase()).into_iter().flatten();
        !has_unknown && others.into_iter().all(|users| users.contains(user))
    };
    let mut by_user: BTreeMap<&String, Vec<&str>> = BTreeMap::new();
    let mut shared = Vec::new();
    for (sender, users) in &by_sender {
        for user in users {
            match sender.strip_prefix('@') {
                Some(domain) if !owns_all(user, domain) => shared.push((user.clone(), sender.clone())),
                _ => by_user.entry(user).or_default().push(sender),
            }
        }
    }
    let kept_back = |(user, sender): &(String, String)| {
        format!("# not translated: {sender} {user}: addresses there may belong to other users\n")
    };
    let line = |(user, senders): (&&String, &Vec<&str>)| format!("{user:<31} {}\n", senders.join(", "));
    let senders = by_user.iter().map(line).chain(shared.iter().map(kept_back)).chain([lost]).collect();
    let owned = by_sender.iter().map(|(sender, _)| format!("{sender}\n")).collect();
    OwnersByUser { senders, owned_senders: owned, withheld: shared }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_of_senders_become_users_and_what_they_own() {
        let entries = map_text::entries(
            "bob@a.example bob, Alice\n@b.example alice\ninfo alice\nx@ z\nBOB@a.example eve\nq@a.example #x \"y\n",
            false,
        );
        let site = map_text::SiteDomains { domains: vec!["a.example".into()], origin: "a.example".into() };
        let OwnersByUser { senders, owned_senders: owned, withheld: shared } = invert_owners(&entries, &site, false);
        assert_eq!(shared, []);
        insta::assert_snapshot!(senders, @r#"
        alice                           bob@a.example, @b.example, info@a.example
        bob                             bob@a.example
        # not translated: x@: expected an address, or a domain after an @
        "#);
        assert_eq!(owned, "bob@a.example\n@b.example\ninfo@a.example\nq@a.example\n");
    }

    /// Carol was able to send as Bob.
    #[test]
    fn who_owns_a_domain_does_not_own_addresses_of_others_there() {
        let entries = map_text::entries("bob@n.example bob\n@N.example carol, bob\n@m.example carol\n", false);
        let made = invert_owners(&entries, &map_text::SiteDomains::default(), false);
        insta::assert_snapshot!(made.senders, @r"
        bob                             bob@n.example, @N.example
        carol                           @m.example
        # not translated: @N.example carol: addresses there may belong to other users
        ");
        assert_eq!(made.withheld, [("carol".to_owned(), "@N.example".to_owned())]);
        assert_eq!(invert_owners(&entries, &map_text::SiteDomains::default(), true).withheld.len(), 3);
    }
}
