//! What is done to the keys and values of a table of any kind: only some domains are looked up, and
//! values are split, formatted and counted.
//!
//! | rule            | effect                                                                         |
//! |-----------------|--------------------------------------------------------------------------------|
//! | `match_subdomains` | the key `.example.org`, which means the subdomains, is looked up as `example.org` |
//! | `domains`       | a key without a local part, or of another domain, is NotFound without a lookup |
//! | `result_format` | a text made of each value; a value or a key that lacks a part of it gives none |
//! | `values_max`    | with more values, the key is Unavailable                                       |
//! | `separator`     | splits each value; quoted separators do not count, empty parts are left out    |
//!
//! The rules are those of Postfix's lookup tables (mysql_table(5), ldap_table(5)), in their order.
//! With a `result_format` an entry without usable values is NotFound.

use std::collections::HashSet;
use std::fmt;
use std::str::FromStr;
use std::sync::Arc;

use crate::key_part::KeyPart;
use crate::template::{self, TemplateError, TemplatePiece};
use crate::{LookupAnswer, LookupFuture, LookupStats, Table, TableLayer, TraceFuture, TracedAnswer, fold_key};

/// The rules for one table. By default nothing is changed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ConversionRules {
    /// A key that begins with a dot is looked up without it.
    pub match_subdomains: bool,
    /// The folded domains whose addresses are looked up. None: all keys.
    pub domains: Option<Vec<Box<str>>>,
    /// The text made of each value.
    pub result_format: Option<ResultFormat>,
    /// Maximum values per key, before they are split. None: no limit but that of the table itself.
    pub values_max: Option<usize>,
    /// The text between the parts of a value.
    pub separator: Option<Box<str>>,
}

impl ConversionRules {
    /// Puts the rules before a table, if there are any.
    pub fn apply(&self, table: Arc<dyn Table>) -> Arc<dyn Table> {
        if *self == ConversionRules::default() {
            return table;
        }
        let domains = self.domains.as_ref().map(|domains| domains.iter().map(|domain| fold_key(domain)).collect());
        Arc::new(ConvertedTable { rules: self.clone(), domains, table })
    }

    /// The values of an entry with these values. None: the key is not found. The error is their
    /// allowed number.
    fn convert(&self, key: &str, values: Vec<String>) -> Result<Option<Vec<String>>, usize> {
        let values = match &self.result_format {
            Some(format) => values.iter().filter_map(|value| format.fill(key, value)).collect(),
            None => values,
        };
        if let Some(most) = self.values_max.filter(|most| values.len() > *most) {
            return Err(most);
        }
        if self.result_format.is_some() && values.is_empty() {
            return Ok(None);
        }
        let Some(separator) = &self.separator else { return Ok(Some(values)) };
        Ok(Some(values.iter().flat_map(|value| split(value, separator)).map(str::to_owned).collect()))
    }
}

/// The parts of a value between separators that are not in double quotes, trimmed. Empty parts are
/// left out.
fn split<'v>(value: &'v str, separator: &str) -> Vec<&'v str> {
    let (mut parts, mut begin, mut at) = (Vec::new(), 0, 0);
    let mut is_quoted = false;
    while at < value.len() {
        let rest = &value[at..];
        if !is_quoted && rest.starts_with(separator) {
            parts.push(&value[begin..at]);
            begin = at + separator.len();
            at = begin;
            continue;
        }
        let mut chars = rest.chars();
        let first = chars.next().map_or(1, char::len_utf8);
        at += match rest.as_bytes()[0] {
            // An escaped quote does not end a quoted part.
            b'\\' if is_quoted => first + chars.next().map_or(0, char::len_utf8),
            _ => first,
        };
        is_quoted ^= rest.starts_with('"');
    }
    parts.push(&value[begin..]);
    parts.into_iter().map(str::trim).filter(|part| !part.is_empty()).collect()
}

/// A template for values, such as `smtp:[{value}]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ResultFormat {
    text: Box<str>,
    pieces: Vec<TemplatePiece<ResultPart>>,
}

/// A part of the value or of the key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum ResultPart {
    Value(KeyPart),
    Key(KeyPart),
}

/// All names, for errors.
const PART_NAMES: &str = "value, value_local, value_domain, key, local, domain or label1 to label9";

impl ResultPart {
    fn parse(name: &str) -> Option<ResultPart> {
        match name {
            "value" => Some(ResultPart::Value(KeyPart::Key)),
            "value_local" => Some(ResultPart::Value(KeyPart::Local)),
            "value_domain" => Some(ResultPart::Value(KeyPart::Domain)),
            _ => KeyPart::parse(name).map(ResultPart::Key),
        }
    }
}

impl ResultFormat {
    /// Whether the key has all parts that the format needs.
    fn suits(&self, key: &str) -> bool {
        let is_there = |piece: &TemplatePiece<ResultPart>| match piece {
            TemplatePiece::Placeholder(ResultPart::Key(part)) => part.of(key).is_some(),
            TemplatePiece::Placeholder(ResultPart::Value(_)) | TemplatePiece::Text(_) => true,
        };
        self.pieces.iter().all(is_there)
    }

    /// The text for a value; None if the value is empty, or it or the key lacks a part.
    fn fill(&self, key: &str, value: &str) -> Option<String> {
        if value.is_empty() {
            return None;
        }
        let mut filled = String::new();
        for piece in &self.pieces {
            filled.push_str(match piece {
                TemplatePiece::Text(text) => text,
                TemplatePiece::Placeholder(ResultPart::Value(part)) => part.of(value)?,
                TemplatePiece::Placeholder(ResultPart::Key(part)) => part.of(key)?,
            });
        }
        Some(filled)
    }
}

impl FromStr for ResultFormat {
    type Err = TemplateError;

    fn from_str(text: &str) -> Result<Self, TemplateError> {
        Ok(ResultFormat { text: text.into(), pieces: template::pieces(text, ResultPart::parse, PART_NAMES)? })
    }
}

impl fmt::Display for ResultFormat {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// A table behind its rules.
struct ConvertedTable {
    rules: ConversionRules,
    /// The folded domains; None: all keys are looked up.
    domains: Option<HashSet<String>>,
    table: Arc<dyn Table>,
}

impl ConvertedTable {
    /// The key that the table is asked for.
    fn asked_key(&self, key: &str) -> String {
        let key = fold_key(key);
        match key.strip_prefix('.').filter(|_| self.rules.match_subdomains) {
            Some(parent) => parent.to_owned(),
            None => key,
        }
    }

    /// Whether the key is looked up at all.
    fn is_wanted(&self, key: &str) -> bool {
        let is_ours = |domains: &HashSet<String>| match key.rsplit_once('@') {
            Some((local, domain)) => !local.is_empty() && domains.contains(domain),
            None => false,
        };
        self.domains.as_ref().is_none_or(is_ours)
            && self.rules.result_format.as_ref().is_none_or(|format| format.suits(key))
    }

    fn convert(&self, key: &str, answer: LookupAnswer) -> LookupAnswer {
        let LookupAnswer::Found(values) = answer else { return answer };
        match self.rules.convert(key, values) {
            Ok(Some(values)) => LookupAnswer::Found(values),
            Ok(None) => LookupAnswer::NotFound,
            Err(most) => {
                LookupAnswer::Unavailable(format!("table '{}': more than {most} values for '{key}'", self.name()))
            }
        }
    }

    async fn answers(&self, keys: &[&str]) -> Vec<LookupAnswer> {
        let asked: Vec<String> = keys.iter().map(|key| self.asked_key(key)).collect();
        let wanted: Vec<&str> = asked.iter().map(String::as_str).filter(|key| self.is_wanted(key)).collect();
        let mut given = match wanted.is_empty() {
            true => Vec::new(),
            false => self.table.lookup(&wanted).await,
        }
        .into_iter();
        let answer = |key: &String| match self.is_wanted(key) {
            true => given.next().map_or_else(|| self.no_answer(), |answer| self.convert(key, answer)),
            false => LookupAnswer::NotFound,
        };
        asked.iter().map(answer).collect()
    }

    fn no_answer(&self) -> LookupAnswer {
        LookupAnswer::Unavailable(format!("table '{}' returned no answer for a key", self.name()))
    }
}

impl Table for ConvertedTable {
    fn name(&self) -> &str {
        self.table.name()
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        Box::pin(self.answers(keys))
    }

    fn trace<'a>(&'a self, key: &'a str) -> TraceFuture<'a> {
        Box::pin(async move {
            let key = self.asked_key(key);
            if !self.is_wanted(&key) {
                return TracedAnswer { answer: LookupAnswer::NotFound, layer: TableLayer::Memory };
            }
            let TracedAnswer { answer, layer } = self.table.trace(&key).await;
            TracedAnswer { answer: self.convert(&key, answer), layer }
        })
    }

    fn whole_keys_only(&self) -> bool {
        self.table.whole_keys_only()
    }

    fn accept_removals(&self) -> bool {
        self.table.accept_removals()
    }

    fn stats(&self) -> Option<LookupStats> {
        self.table.stats()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixed::StaticTable;

    fn found(values: &[&str]) -> LookupAnswer {
        LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect())
    }

    /// What a table that has these values for every key answers behind the rules.
    async fn answers(rules: ConversionRules, values: &[&str], keys: &[&str]) -> Vec<LookupAnswer> {
        let table = StaticTable::new("people", values.iter().map(|&value| value.to_owned()).collect());
        let table = rules.apply(Arc::new(table));
        let answers = table.lookup(keys).await;
        for (key, answer) in keys.iter().zip(&answers) {
            assert_eq!(table.trace(key).await.answer, *answer, "{key}");
        }
        answers
    }

    fn format(text: &str) -> ConversionRules {
        ConversionRules { result_format: Some(text.parse().unwrap()), ..ConversionRules::default() }
    }

    #[tokio::test]
    async fn only_addresses_of_the_domains_are_looked_up() {
        let rules = ConversionRules { domains: Some(vec!["Example.org".into()]), ..ConversionRules::default() };
        let keys = ["bob@EXAMPLE.org", "bob@example.com", "bob", "@example.org", "example.org", "a@b@example.org"];
        let none = LookupAnswer::NotFound;
        let yes = found(&["x"]);
        assert_eq!(answers(rules, &["x"], &keys).await, [&yes, &none, &none, &none, &none, &yes].map(Clone::clone));
    }

    /// Tables for Postfix name a domain without a dot for all its subdomains.
    #[tokio::test]
    async fn subdomains_are_found_by_the_plain_name_of_their_parent() {
        let rules = |match_subdomains| ConversionRules {
            match_subdomains,
            result_format: Some("{key}".parse().unwrap()),
            ..ConversionRules::default()
        };
        let keys = ["a@b.Example.org", "b.example.org", ".Example.org", ".org"];
        let plain = ["a@b.example.org", "b.example.org", "example.org", "org"].map(|key| found(&[key]));
        assert_eq!(answers(rules(true), &["x"], &keys).await, plain);
        let dotted = ["a@b.example.org", "b.example.org", ".example.org", ".org"].map(|key| found(&[key]));
        assert_eq!(answers(rules(false), &["x"], &keys).await, dotted);
    }

    #[tokio::test]
    async fn values_are_split_outside_quotes() {
        let rules = ConversionRules { separator: Some(",".into()), ..ConversionRules::default() };
        for (value, parts) in [
            ("a@x,b@x", &["a@x", "b@x"][..]),
            (" a@x , , ü@x,", &["a@x", "ü@x"]),
            (r#""a,b"@x, "a\",ü"@x,c@x"#, &[r#""a,b"@x"#, r#""a\",ü"@x"#, "c@x"]),
            (r#""a,b"#, &[r#""a,b"#]),
            (",", &[]),
        ] {
            assert_eq!(answers(rules.clone(), &[value], &["bob@x"]).await, [found(parts)], "{value}");
        }
    }

    #[tokio::test]
    async fn a_format_is_filled_with_parts_of_the_value_and_the_key() {
        let keys = ["Bob@mail.example.org"];
        let all = "{value} {value_local} {value_domain} {key} {local} {domain} {label2}";
        assert_eq!(
            answers(format(all), &["A@X"], &keys).await,
            [found(&["A@X A X bob@mail.example.org bob mail.example.org example"])]
        );
        assert_eq!(answers(format("smtp:[{value}]"), &["a", "", "b"], &keys).await, [found(&["smtp:[a]", "smtp:[b]"])]);
        assert_eq!(answers(format("{value_local}"), &["a@x", "@x", "b"], &keys).await, [found(&["a", "b"])]);
        assert_eq!(answers(format("{value_domain}"), &["a@x", "@y", "b@"], &keys).await, [found(&["x", "y"])]);
    }

    #[tokio::test]
    async fn what_lacks_a_part_of_the_format_is_not_found() {
        assert_eq!(answers(format("{value_domain}"), &["a"], &["bob@x"]).await, [LookupAnswer::NotFound]);
        assert_eq!(answers(format("{value}"), &[""], &["bob@x"]).await, [LookupAnswer::NotFound]);
        assert_eq!(
            answers(format("{value}@{domain}"), &["a"], &["bob", "bob@x"]).await,
            [LookupAnswer::NotFound, found(&["a@x"])]
        );
    }

    #[tokio::test]
    async fn more_values_than_allowed_are_no_answer() {
        let rules = |values_max| ConversionRules {
            separator: Some(",".into()),
            values_max: Some(values_max),
            ..format("{value}")
        };
        assert_eq!(answers(rules(2), &["a,b", "c", ""], &["bob"]).await, [found(&["a", "b", "c"])]);
        let why = "table 'people': more than 1 values for 'bob'".to_owned();
        assert_eq!(answers(rules(1), &["a", "b"], &["bob"]).await, [LookupAnswer::Unavailable(why)]);
    }

    #[test]
    fn without_rules_the_table_is_the_same() {
        let table: Arc<dyn Table> = Arc::new(StaticTable::new("people", Vec::new()));
        assert!(Arc::ptr_eq(&ConversionRules::default().apply(table.clone()), &table));
    }
}
