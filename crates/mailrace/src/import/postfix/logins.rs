//! `[auth]`: who logs in, and which senders are whose. Postfix asks Dovecot or Cyrus SASL for passwords, of which neither can
//! be asked here, so that there is a table without users in the beginning: nobody logs in until somebody says who may.

use std::collections::BTreeMap;

use super::Conversion;
use super::doors::Door;
use super::draft::{Block, quoted};
use super::lookups::Named;
use super::restrictions::{Element, LISTS, Who};
use super::text::{self, Use};
use super::words::list;

/// What asks `smtpd_sender_login_maps` of users.
const ASKS_USERS: [&str; 3] = [
    "reject_sender_login_mismatch",
    "reject_authenticated_sender_login_mismatch",
    "reject_known_sender_login_mismatch",
];

/// What asks it of those who have not logged in.
pub(super) const ASKS_STRANGERS: [&str; 2] =
    ["reject_sender_login_mismatch", "reject_unauthenticated_sender_login_mismatch"];

const LOGINS: &str = "\
# Who may log in: a line with a user and his stored password, as `mailrace password` prints it.
# Of a line of Dovecot's passwd-file, such as bob:{BLF-CRYPT}$2y$..., take the first two fields, with a space between them.
";

impl Conversion<'_> {
    pub(super) fn logins(&mut self) {
        self.login_fates();
        if !self.has_users {
            return;
        }
        let path = self.add_file("logins", "", LOGINS.into(), true);
        let name = super::lookups::file_name(&path);
        let table = Block::new("[[table]]").comment("Whoever may log in: to be filled in.");
        let table = table.key("name", quoted(&name), "").key("type", quoted("text"), "");
        self.draft.add(table.key("path", quoted(&path.to_string_lossy()), ""));
        let (kind, place) = (self.values.value("smtpd_sasl_type"), self.values.value("smtpd_sasl_path"));
        let asked = format!("smtpd_sasl_type = {kind}, smtpd_sasl_path = {place}");
        self.draft.alarm(format!(
            "Mail of users is not taken, since nobody can log in yet: fill {}, or let `passwords` of [auth] name a table that has \
             the users' hashes (a query of the database that Dovecot asks), or `bind` one of type ldap. Postfix asked elsewhere: \
             {asked}.",
            path.display()
        ));
        let auth = Block::new("[auth]")
            .comment(format!(
                "Postfix asked by {asked}, which is not spoken here. Instead of `passwords`, `bind` may name a table of type \
                 ldap, in whose directory the password is tried; see docs/submission.md."
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
                false => {
                    self.draft.lost("smtpd_sasl_auth_enable", "no listener is one that users can log in to; see above")
                }
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
            true => self.draft.same("smtpd_tls_auth_only", "users log in within TLS alone"),
            false => self
                .draft
                .lost("smtpd_tls_auth_only", "users log in within TLS alone, unless `clear_text` of [auth] is true"),
        }
    }

    /// Whose sender is whose, where a restriction asks that of users.
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
                "no restriction asks it of users, so that each may name any sender; see `senders` of [auth]",
            );
        };
        self.draft.mapped(parameter);
        let value = self.values.of(&door.main).value(parameter);
        let mut owners: Vec<(String, String)> = Vec::new();
        for element in list(&value) {
            match Named::read(&element).and_then(|named| self.entries(&named, false)) {
                Some(entries) => owners.extend(entries),
                None => {
                    self.draft.loss(
                        format!("{parameter}: {element}"),
                        "it says who owns a sender; `senders` of [auth] is asked which senders a user owns",
                    );
                    self.draft.alarm(format!(
                        "Mail of users whom the table `senders` of [auth] does not name gets 553: {parameter} = {element} says who \
                         owns a sender, and cannot be turned around."
                    ));
                }
            }
        }
        let (senders, owned) = turned(&owners, &self.site);
        let name = self.sender_table("senders", senders, "Users, and the senders that each of them owns.");
        self.draft.set("[auth]", "senders", quoted(&name), parameter);
        let asks_strangers = |front: &Door| {
            let asks = |it: &Element| it.idle.is_none() && ASKS_STRANGERS.contains(&it.rule.as_str());
            front.has_logins && front.lists.0.iter().flatten().any(asks)
        };
        if !owned.is_empty() && self.front_door().is_some_and(asks_strangers) {
            let name = self.sender_table("owned-senders", owned, "Senders that some user owns.");
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

/// From senders and their owners to owners and their senders; and all senders that somebody owns.
fn turned(owners: &[(String, String)], site: &text::Site) -> (String, String) {
    let mut by_user: BTreeMap<String, Vec<String>> = BTreeMap::new();
    let (mut lost, mut owned) = (String::new(), String::new());
    let mut seen = std::collections::BTreeSet::new();
    for (sender, users) in owners {
        let senders = match text::keys(sender, Use::Aliases, site) {
            Ok(senders) if !senders.is_empty() => senders,
            _ => {
                lost.push_str(&format!("# not translated: {sender}: expected an address, or a domain behind an @\n"));
                continue;
            }
        };
        for sender in senders.into_iter().filter(|sender| seen.insert(sender.to_lowercase())) {
            owned.push_str(&format!("{sender}\n"));
            let is_sound = |user: &&String| !user.contains('"') && !user.starts_with('#') && !user.ends_with(':');
            for user in list(users).iter().filter(is_sound) {
                by_user.entry(user.to_lowercase()).or_default().push(sender.clone());
            }
        }
    }
    let line = |(user, senders): (&String, &Vec<String>)| format!("{user:<31} {}\n", senders.join(", "));
    (by_user.iter().map(line).chain([lost]).collect(), owned)
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
        let (senders, owned) = turned(&entries, &site);
        insta::assert_snapshot!(senders, @r#"
        alice                           bob@a.example, @b.example, info@a.example
        bob                             bob@a.example
        # not translated: x@: expected an address, or a domain behind an @
        "#);
        assert_eq!(owned, "bob@a.example\n@b.example\ninfo@a.example\nq@a.example\n");
    }
}
