//! The `[[access]]` sections of rules, and the tables that they name.

use std::path::Path;

use super::Conversion;
use super::access::{Rule, What};
use super::access_table::{self, Act, Content, Subject};
use super::draft::{Block, quoted};
use super::listeners::networks;
use super::lookups::{Named, file_name};
use super::networks::Net;
use super::words::list;

impl Conversion<'_> {
    /// Writes rules in their order, with the networks accepted before those that these are not asked by.
    pub(super) fn write_rules(&mut self, rules: &[Rule], mynetworks: &[Net]) {
        let mut are_let = false;
        for rule in rules {
            if rule.behind_networks && !are_let && !mynetworks.is_empty() {
                let block = Block::new("[[access]]").key("name", quoted("mynetworks"), "permit_mynetworks");
                let block = block.key("stage", quoted("rcpt"), "").key("clients", networks(mynetworks), "mynetworks");
                self.draft.add(block.key("action", quoted("accept"), ""));
            }
            are_let |= rule.behind_networks;
            self.write_rule(rule);
        }
    }

    fn write_rule(&mut self, rule: &Rule) {
        let spares = rule.spares_users;
        match &rule.what {
            What::All(action) => self.add_rule(&rule.from, "all others", spares, &[], action, None),
            What::Listed(zone, action) => {
                self.add_rule(&rule.from, &zone.name, spares, &[("dnsbl", zone.value())], action, None);
            }
            What::Owned(table) => {
                let reply = Some("553 5.7.1 Sender address rejected: not logged in".to_owned());
                self.add_rule(&rule.from, table, true, &[("senders_in", quoted(table))], "refuse", reply);
            }
            What::Table(_, named, Content::Networks(nets)) => {
                let name = file_name(Path::new(&named.name));
                for (nets, act) in runs(nets) {
                    if let Some((action, reply)) = act.action() {
                        self.add_rule(&rule.from, &name, spares, &[("clients", networks(&nets))], action, reply);
                    }
                }
            }
            What::Table(subject, named, content) => {
                let Some(table) = self.access_table(*subject, named, content, &rule.from) else { return };
                self.add_rule(&rule.from, &table, spares, &[(subject.key(), quoted(&table))], "table", None);
            }
        }
    }

    fn add_rule(
        &mut self,
        from: &str,
        name: &str,
        spares_users: bool,
        conditions: &[(&str, String)],
        action: &str,
        reply: Option<String>,
    ) {
        let name = self.free_rule_name(name);
        let mut block = Block::new("[[access]]").comment(format!("{from}.")).key("name", quoted(&name), "");
        block.set("stage", quoted("rcpt"), "");
        conditions.iter().for_each(|(key, value)| block.set(key, value.clone(), ""));
        // Rules with lists in the DNS leave out users by themselves, all others have to be told.
        let leaves_out = conditions.iter().any(|(key, _)| *key == "dnsbl");
        if self.has_users && spares_users != leaves_out {
            block.set("users", (!spares_users).to_string(), "");
        }
        block.set("action", quoted(action), "");
        reply.iter().for_each(|reply| block.set("reply", quoted(reply), ""));
        self.draft.add(block);
    }

    fn free_rule_name(&self, like: &str) -> String {
        let is_free = |name: &String| {
            let name = quoted(name);
            let rules = self.draft.blocks.iter().filter(|block| block.header == "[[access]]");
            !rules.flat_map(|block| &block.keys).any(|(key, value, _)| key == "name" && *value == name)
        };
        let more = (2..).map(|number| format!("{like} {number}"));
        std::iter::once(like.to_owned()).chain(more).find(is_free).unwrap_or_default()
    }

    /// The table of a check, written anew.
    fn access_table(&mut self, subject: Subject, named: &Named, content: &Content, from: &str) -> Option<String> {
        let (text, kind) = match content {
            Content::Opaque(table) => return Some(table.clone()),
            Content::Networks(_) => return None,
            Content::Patterns(lines) => {
                if named.kind != "static" {
                    self.draft.look_at(format!(
                        "{from}: a table of patterns is asked for parts of addresses and names, too, and there is no \
                         looking around in patterns"
                    ));
                }
                (access_table::pattern_text(lines), "regexp")
            }
            Content::Entries(entries) => {
                let parents = list(&self.values.value("parent_domain_matches_subdomains"));
                let parents = parents.iter().any(|it| it == "smtpd_access_maps");
                let written = access_table::entry_text(entries, subject, parents);
                self.tell_entries(from, &written);
                (written.text, "text")
            }
        };
        let is_written_here = ["inline", "static"].contains(&named.kind.as_str());
        let (like, source) = match is_written_here {
            true => (named.kind.clone(), from.to_owned()),
            false => (named.name.clone(), format!("{}:{}", named.kind, named.name)),
        };
        let path = self.add_file(&like, "", text, false);
        let name = file_name(&path);
        let block = Block::new("[[table]]").comment(format!("From {source}."));
        let block = block.key("name", quoted(&name), "").key("type", quoted(kind), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        Some(name)
    }

    fn tell_entries(&mut self, from: &str, written: &access_table::Written) {
        if written.lost > 0 {
            self.draft.look_at(format!(
                "{from}: {} entries say something else here, of which {} refused somebody and are not there; they are \
                 comments in its file",
                written.lost, written.unrefused
            ));
        }
    }
}

/// Networks that say the same, one behind the other, without those of which an earlier entry says nothing.
pub(super) fn runs(entries: &[(Net, Act)]) -> Vec<(Vec<Net>, Act)> {
    let (mut runs, mut holes): (Vec<(Vec<Net>, Act)>, Vec<Net>) = (Vec::new(), Vec::new());
    for (net, act) in entries {
        if matches!(act, Act::Dunno(_)) {
            holes.push(*net);
            continue;
        }
        let mut rest = vec![*net];
        for hole in &holes {
            rest = rest.into_iter().flat_map(|net| net.without(hole)).collect();
        }
        match runs.last_mut().filter(|(_, last)| last == act) {
            Some((nets, _)) => nets.extend(rest),
            None if rest.is_empty() => {}
            None => runs.push((rest, act.clone())),
        }
    }
    runs
}
