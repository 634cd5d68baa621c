//! `[auth]`: logins, and which senders belong to which user. Postfix verifies passwords with
//! Dovecot or Cyrus SASL, which is not supported here. So the new table of users is empty, and
//! nobody can log in until the operator adds users.

use std::collections::BTreeMap;

use super::Conversion;
use super::doors::Door;
use super::draft::{Block, quoted};
use super::lookups::Named;
use super::restrictions::{Element, LISTS, Who};
use super::text::{self, Use};
use super::words::list;

/// Restrictions that apply `smtpd_sender_login_maps` to users.
const ASKS_USERS: [&str; 3] = [
    "reject_sender_login_mismatch",
    "reject_authenticated_sender_login_mismatch",
    "reject_known_sender_login_mismatch",
];

/// Restrictions that apply it to clients without a login.
pub(super) const ASKS_STRANGERS: [&str; 2] =
    ["reject_sender_login_mismatch", "reject_unauthenticated_sender_login_mismatch"];

const LOGINS: &str = "\
# Users and their password hashes, one per line, as printed by `mailrace password`.
# For lines of Dovecot's passwd-file, such as bob:{BLF-CRYPT}$2y$..., use the first two fields,
# separated by a space.
";

impl Conversion<'_> {
    pub(super) fn logins(&mut self) {
        self.login_fates();
        if !self.has_users {
            return;
        }
        let path = self.add_file("logins", "", LOGINS.into(), true);
        let name = super::lookups::file_name(&path);
        let table = Block::new("[[table]]").comment("The users who may log in: add them here.");
        let table = table.key("name", quoted(&name), "").key("type", quoted("text"), "");
        self.draft.add(table.key("path", quoted(&path.to_string_lossy()), ""));
        let (kind, place) = (self.values.value("smtpd_sasl_type"), self.values.value("smtpd_sasl_path"));
        let asked = format!("smtpd_sasl_type = {kind}, smtpd_sasl_path = {place}");
        self.draft.alarm(format!(
            "Mail from users is not accepted, because nobody can log in yet: add users to {}, or set `passwords` of \
             [auth] to a table with their password hashes (such as a query in Dovecot's database), or `bind` to one \
             of type ldap. Postfix used: {asked}.",
            path.display()
        ));
        let auth = Block::new("[auth]").comment(format!(
            "Postfix used {asked}, which is not supported here. Instead of `passwords`, `bind` may name a table of \
             type ldap, and passwords are then verified by its directory; see docs/submission.md."
        ));
        self.draft.add(auth.key("passwords", quoted(&name), "smtpd_sasl_path"));
        if self.values.value("smtpd_sasl_authenticated_header") == "yes" {
            self.draft.set("[auth]", "trace_users", "true", "smtpd_sasl_authenticated_header");
        }
        self.senders();
    }

    fn login_fates(&mut self) {
        let given = |name: &str| self.main.value(name).is_some();
        if given("smtpd_sasl_auth_enable") {
            match self.has_users || self.values.value("smtpd_sasl_auth_enable") != "yes" {
                true => self.draft.mapped("smtpd_sasl_auth_enable"),
                false => self.draft.lost("smtpd_sasl_auth_enable", "no listener accepts logins; see above"),
            }
        }
        match self.has_users {
            true => ["smtpd_sasl_type", "smtpd_sasl_path"].iter().for_each(|name| self.draft.mapped(name)),
            false => {
                let names = ["smtpd_sasl_type", "smtpd_sasl_path", "smtpd_sender_login_maps"];
                names.iter().for_each(|name| self.draft.same(name, "nobody logs in"));
            }
        }
        match self.values.value("smtpd_tls_auth_only") == "yes" {
            true => self.draft.same("smtpd_tls_auth_only", "logins require TLS"),
            false => {
                self.draft.lost("smtpd_tls_auth_only", "logins require TLS, unless `clear_text` of [auth] is true")
            }
        }
    }

    /// Converts the senders of users, if a restriction checks them for users.
    fn senders(&mut self) {
        let parameter = "smtpd_sender_login_maps";
        let is_asked = |door: &&Door| {
            let reached = |list: usize| {
                let elements = door.lists.0[list].iter();
                elements
                    .filter(|it| it.idle.is_none() && ASKS_USERS.contains(&it.rule.as_str()))
                    .any(|it| door.lists.reach(list, it, Who::User))
            };
            door.has_logins && (0..LISTS.len()).any(reached)
        };
        let Some(door) = self.doors.iter().find(is_asked).cloned() else {
            return self.draft.lost(
                parameter,
                "no restriction applies it to users, so they may use any sender; see `senders` of [auth]",
            );
        };
        self.draft.mapped(parameter);
        let value = self.values.of(&door.main).value(parameter);
        let mut owners: Vec<(String, String)> = Vec::new();
        let mut has_unknown = false;
        for element in list(&value) {
            match Named::read(&element).and_then(|named| self.entries(&named, false)) {
                // The unreadable table comes first and may contain the same senders.
                Some(_) if has_unknown => self.draft.loss(
                    format!("{parameter}: {element}"),
                    "the table before it cannot be inverted, and may assign the same senders to other users",
                ),
                Some(entries) => owners.extend(entries),
                None => {
                    has_unknown = true;
                    self.draft.loss(
                        format!("{parameter}: {element}"),
                        "it maps senders to users; `senders` of [auth] maps users to senders",
                    );
                    self.draft.alarm(format!(
                        "Mail from users that are not in the table `senders` of [auth] gets 553: {parameter} = \
                         {element} maps senders to users, and cannot be inverted."
                    ));
                }
            }
        }
        let Turned { senders, owned, shared } = turned(&owners, &self.site, has_unknown);
        for (user, domain) in shared {
            self.draft.alarm(format!(
                "Mail of {user} from addresses at {domain} gets 553 unless `senders` of [auth] contains them: \
                 {parameter} gives {user} the domain, but some addresses there may belong to other users. Add each \
                 address of {user}."
            ));
        }
        let name = self.sender_table("senders", senders, "Users and their senders.");
        self.draft.set("[auth]", "senders", quoted(&name), parameter);
        let asks_strangers = |front: &Door| {
            let asks = |it: &Element| it.idle.is_none() && ASKS_STRANGERS.contains(&it.rule.as_str());
            front.has_logins && front.lists.0.iter().flatten().any(asks)
        };
        if !owned.is_empty() && self.front_door().is_some_and(asks_strangers) {
            let name = self.sender_table("owned-senders", owned, "Senders that belong to a user.");
            self.owned = Some(name);
        }
    }

    fn sender_table(&mut self, like: &str, text: String, what: &str) -> String {
        let path = self.add_file(like, "", text, false);
        let name = super::lookups::file_name(&path);
        let block = Block::new("[[table]]").comment(format!("{what} From smtpd_sender_login_maps."));
        let block = block.key("name", quoted(&name), "").key("type", quoted("text"), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        name
    }
}

/// Tables of senders.
struct Turned {
    /// Users and their senders.
    senders: String,
    /// All senders that belong to a user.
    owned: String,
    /// Users and domains that they own except for addresses of others.
    shared: Vec<(String, String)>,
}

/// Converts a table of senders and owners to one of owners and senders. Postfix looks up the
/// address before the domain, so the owner of a domain does not own addresses that belong to
/// others. Here such a user would, and therefore does not get the domain. `has_unknown`: any
/// address may belong to another user.
fn turned(owners: &[(String, String)], site: &text::Site, has_unknown: bool) -> Turned {
    let mut by_sender: Vec<(String, Vec<String>)> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    let mut lost = String::new();
    for (sender, users) in owners {
        let senders = match text::keys(sender, Use::Aliases, site) {
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
    Turned { senders, owned, shared }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn owners_of_senders_become_users_and_what_they_own() {
        let entries = text::entries(
            "bob@a.example bob, Alice\n@b.example alice\ninfo alice\nx@ z\nBOB@a.example eve\nq@a.example #x \"y\n",
            false,
        );
        let site = text::Site { domains: vec!["a.example".into()], origin: "a.example".into() };
        let Turned { senders, owned, shared } = turned(&entries, &site, false);
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
        let entries = text::entries("bob@n.example bob\n@N.example carol, bob\n@m.example carol\n", false);
        let made = turned(&entries, &text::Site::default(), false);
        insta::assert_snapshot!(made.senders, @r"
        bob                             bob@n.example, @N.example
        carol                           @m.example
        # not translated: @N.example carol: addresses there may belong to other users
        ");
        assert_eq!(made.shared, [("carol".to_owned(), "@N.example".to_owned())]);
        assert_eq!(turned(&entries, &text::Site::default(), true).shared.len(), 3);
    }
}
