//! Writes `[[access]]` sections and their tables.

use std::path::Path;

use super::Conversion;
use super::access::{NAMES, Rule, What};
use super::access_table::{self, Act, Content, Subject};
use super::draft::{Block, quoted};
use super::listeners::networks;
use super::lookups::{Named, file_name};
use super::networks::Net;
use super::words::list;

/// The source of a rule.
#[derive(Clone, Copy)]
struct Origin<'a> {
    /// The restriction.
    from: &'a str,
    /// Its list, if something in it can accept.
    list: Option<&'a str>,
    spares_users: bool,
}

impl Conversion<'_> {
    /// Refuses or defers recipients that cannot be delivered, before all other rules.
    pub(super) fn write_stopped(&mut self) {
        if self.stopped.is_empty() {
            return;
        }
        let stopped = std::mem::take(&mut self.stopped);
        let mut seen = std::collections::BTreeSet::new();
        let new = stopped.iter().filter(|(address, _)| seen.insert(address.to_lowercase()));
        let entries: Vec<(String, Act)> = new.map(|(address, says)| (address.clone(), Act::read(says))).collect();
        let text = access_table::entry_text(&entries, Subject::Recipient, false).text;
        let path = self.add_file("stopped", "", text, false);
        let name = file_name(&path);
        let block =
            Block::new("[[table]]").comment("Recipients whose mail is refused or deferred; see the top of this file.");
        let block = block.key("name", quoted(&name), "").key("type", quoted("text"), "");
        self.draft.add(block.key("path", quoted(&path.to_string_lossy()), ""));
        let block = Block::new("[[access]]").key("name", quoted(&name), "").key("stage", quoted("rcpt"), "");
        self.draft.add(block.key("recipients_in", quoted(&name), "").key("action", quoted("table"), ""));
    }

    /// Writes rules in their order.
    pub(super) fn write_rules(&mut self, rules: &[Rule], mynetworks: &[Net]) {
        for rule in rules {
            let passes = |other: &Rule| other.list == rule.list && other.passes();
            let list = rules.iter().any(passes).then_some(NAMES[rule.list]);
            self.write_rule(rule, list, mynetworks);
        }
    }

    fn write_rule(&mut self, rule: &Rule, list: Option<&str>, mynetworks: &[Net]) {
        let of = Origin { from: &rule.from, list, spares_users: rule.spares_users };
        match &rule.what {
            What::All(action) => self.add_rule(&of, "all others", &[], action, None),
            What::Networks if mynetworks.is_empty() => {}
            What::Networks => {
                self.add_rule(&of, "mynetworks", &[("clients", networks(mynetworks))], "accept", None);
            }
            What::Listed(zone, action) => {
                self.add_rule(&of, &zone.name, &[("dnsbl", zone.value())], action, None);
            }
            What::Owned(table) => {
                let reply = Some("553 5.7.1 Sender address rejected: not logged in".to_owned());
                let of = Origin { spares_users: true, ..of };
                self.add_rule(&of, table, &[("senders_in", quoted(table))], "refuse", reply);
            }
            What::Table(_, named, Content::Networks(nets)) => {
                let name = file_name(Path::new(&named.name));
                for (nets, act) in runs(nets) {
                    if let Some((action, reply)) = act.action() {
                        self.add_rule(&of, &name, &[("clients", networks(&nets))], action, reply);
                    }
                }
            }
            What::Table(subject, named, content) => {
                let Some(table) = self.access_table(*subject, named, content, &rule.from) else { return };
                self.add_rule(&of, &table, &[(subject.key(), quoted(&table))], "table", None);
            }
        }
    }

    fn add_rule(
        &mut self,
        of: &Origin<'_>,
        name: &str,
        conditions: &[(&str, String)],
        action: &str,
        reply: Option<String>,
    ) {
        let name = self.free_rule_name(name);
        let mut block = Block::new("[[access]]").comment(format!("{}.", of.from)).key("name", quoted(&name), "");
        of.list.iter().for_each(|list| block.set("list", quoted(list), ""));
        block.set("stage", quoted("rcpt"), "");
        conditions.iter().for_each(|(key, value)| block.set(key, value.clone(), ""));
        // Rules with DNS lists exclude users by default; others must say so.
        let leaves_out = conditions.iter().any(|(key, _)| *key == "dnsbl");
        if self.has_users && of.spares_users != leaves_out {
            block.set("users", (!of.spares_users).to_string(), "");
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

    /// The table of a check, converted.
    fn access_table(&mut self, subject: Subject, named: &Named, content: &Content, from: &str) -> Option<String> {
        let (text, kind) = match content {
            Content::Opaque(table) => return Some(table.clone()),
            Content::Networks(_) => return None,
            Content::Patterns(lines) => {
                if named.kind != "static" {
                    self.draft.look_at(format!(
                        "{from}: patterns do not support back-references and look-around; `mailrace check` reports \
                         those that use them"
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
            let refused = match written.unrefused {
                0 => String::new(),
                1 => " One of them refused mail, which is now accepted.".to_owned(),
                number => format!(" {number} of them refused mail, which is now accepted."),
            };
            self.draft.alarm(format!(
                "A table decides differently than with Postfix for {} ({from}).{refused} Comments in the table's \
                 file say why.",
                entries(written.lost)
            ));
        }
    }
}

/// Groups consecutive networks with the same action, without those that an earlier entry exempts.
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

fn entries(number: usize) -> String {
    if number == 1 { "1 entry".to_owned() } else { format!("{number} entries") }
}
