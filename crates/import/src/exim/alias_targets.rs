//! The targets of aliases, and the special ones among them: `:fail:` refuses an address, `:defer:` makes its mail wait at the client, and
//! `:blackhole:` drops it. The first two become a table of replies, the last one a route.

use mail::Address;

use super::Conversion;
use crate::config_draft::{TomlSection, quoted, transport_header};

/// The name of the table of replies, and of its rule.
const REPLIES_TABLE: &str = "alias-replies";
/// The table of addresses whose mail is dropped, and the transport that drops it.
const DROPPED_TABLE: &str = "dropped";
const DROPPING_TRANSPORT: &str = "drop";
/// Characters of a reply's text.
const REPLY_CHARACTERS_MAX: usize = 200;

/// Which special targets a router of aliases may use. With another one, Exim makes the mail wait.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct AllowedTargets {
    pub(super) fail: bool,
    pub(super) defer: bool,
}

/// What a list of targets asks for, if not delivery to them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SpecialTarget {
    /// A reply to RCPT.
    Reply(String),
    Drop,
}

/// Words of an alias, at commas and line ends outside quotes.
pub(super) fn alias_words(value: &str) -> Vec<String> {
    let mut is_quoted = false;
    let parts = value.split(|c: char| {
        is_quoted ^= c == '"';
        !is_quoted && (c == ',' || c == '\n')
    });
    parts.map(|word| word.trim().to_owned()).filter(|word| !word.is_empty()).collect()
}

impl SpecialTarget {
    /// The special target in the value of an alias.
    pub(super) fn of(value: &str, allowed: AllowedTargets) -> Option<SpecialTarget> {
        for (item, is_allowed, code, default) in [
            (":fail:", allowed.fail, "550 5.1.1", "Unrouteable address"),
            (":defer:", allowed.defer, "451 4.3.0", "Try again later"),
        ] {
            if let Some(text) = value.trim().strip_prefix(item).filter(|_| is_allowed) {
                let is_plain = |c: &char| *c == ' ' || c.is_ascii_graphic();
                let text: String = text.trim().chars().filter(is_plain).take(REPLY_CHARACTERS_MAX).collect();
                // The text may begin with the reply code.
                let text = text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.' || c == ' ');
                return Some(SpecialTarget::Reply(format!("{code} {}", if text.is_empty() { default } else { text })));
            }
        }
        let is_dropped = |word: &String| word == ":blackhole:" || word == "/dev/null";
        alias_words(value).iter().any(is_dropped).then_some(SpecialTarget::Drop)
    }
}

impl Conversion<'_> {
    /// Notes what becomes of mail for an address, and returns the line of the table of aliases for it.
    pub(super) fn special_entry(&mut self, address: &str, special: SpecialTarget) -> Option<String> {
        match special {
            SpecialTarget::Reply(reply) => {
                self.alias_replies.push(format!("{address} {reply}\n"));
                Some(format!("# {address}: see {REPLIES_TABLE}"))
            }
            SpecialTarget::Drop => {
                address.parse::<Address>().ok()?;
                self.dropped_addresses.push(address.to_owned());
                Some(format!("{address} {address}"))
            }
        }
    }

    /// The table and the rule of replies, and the table and the routes of dropped mail.
    pub(super) fn write_special_targets(&mut self) {
        if !self.alias_replies.is_empty() {
            let text = std::mem::take(&mut self.alias_replies).concat();
            let comment = "Replies for addresses. From :fail: and :defer: in aliases.";
            let table = self.add_text_table(REPLIES_TABLE, "text", text, comment);
            let block = TomlSection::new("[[access]]").key("name", quoted(&table), "").key("stage", quoted("rcpt"), "");
            self.add_first_rule(block.key("recipients_in", quoted(&table), "").key("action", quoted("table"), ""));
        }
        if self.dropped_addresses.is_empty() {
            return;
        }
        let addresses = std::mem::take(&mut self.dropped_addresses);
        let text = addresses.iter().map(|address| format!("{address}\n")).collect();
        let comment = "Mail to these is dropped. From :blackhole: in aliases.";
        self.dropped_table = Some(self.add_text_table(DROPPED_TABLE, "text", text, comment));
        let name = self.unused_name(DROPPING_TRANSPORT);
        self.draft.add(TomlSection::new(&transport_header(&name)).key("type", quoted("discard"), ""));
        for address in addresses {
            let block = TomlSection::new("[[route]]").key("address", quoted(&address), "");
            self.draft.add(block.key("transport", quoted(&name), ""));
        }
    }

    /// Adds a rule before all others, but after those about malformed addresses.
    pub(super) fn add_first_rule(&mut self, rule: TomlSection) {
        let is_other = |block: &TomlSection| {
            let is_malformed =
                |(key, value, _): &(String, String, String)| key == "name" && value.contains("malformed");
            block.header == "[[access]]" && !block.keys.iter().any(is_malformed)
        };
        let place = self.draft.sections.iter().position(is_other).unwrap_or(self.draft.sections.len());
        self.draft.sections.insert(place, rule);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn special_targets_are_those_that_the_router_allows() {
        let all = AllowedTargets { fail: true, defer: true };
        let reply = |text: &str| Some(SpecialTarget::Reply(text.into()));
        for (value, expected) in [
            (":fail: 550 5.1.1 gone, really", reply("550 5.1.1 gone, really")),
            (":fail:", reply("550 5.1.1 Unrouteable address")),
            (":defer: not today", reply("451 4.3.0 not today")),
            ("a@example.org, :blackhole:", Some(SpecialTarget::Drop)),
            ("/dev/null", Some(SpecialTarget::Drop)),
            (":include:/x", None),
            ("a@example.org", None),
        ] {
            assert_eq!(SpecialTarget::of(value, all), expected, "{value}");
        }
        assert_eq!(SpecialTarget::of(":fail: x", AllowedTargets::default()), None);
    }
}
