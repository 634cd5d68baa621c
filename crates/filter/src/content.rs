//! Content rules: header fields, MIME fields, lines of the body and attachments decide what happens to
//! a message. This module owns the rules; `check` evaluates them at the end of a message.
//!
//! A rule applies if the message is in its scope, one of its lines matches, and one attachment matches,
//! as far as it has such conditions. Rules are evaluated in order:
//!
//! | action of a rule that applies | what happens | later rules |
//! |---|---|---|
//! | refuse, defer, discard, accept | the message is refused, deferred, dropped, let pass | are not evaluated |
//! | hold, redirect, bcc, prepend, replace, remove, queue, filter, warn | that | are evaluated |
//!
//! Of the rules with the same list, only the first one that matches a line takes that line, as in a
//! table of Postfix's header_checks(5); `accept` then only protects the line from the rest of the list.
//!
//! A message is read once for all rules, and only as far as one of them needs: header rules never read
//! the body. All regular expressions are searched for in one pass over each line, in linear time; a field
//! is only read if a rule may be about its name.
//!
//! | limit | result |
//! |---|---|
//! | `HEADER_OCTETS_MAX` of the message or of a part | the message is refused (554 5.6.0) |
//! | an enclosed message that is encoded (RFC 2045 section 6.4 forbids it), a second type with parts, for rules about parts | the same |
//! | [`DEPTH_MAX`](protocol::mime::DEPTH_MAX), [`PARTS_MAX`](protocol::mime::PARTS_MAX), a boundary that is too long, `ATTACHMENT_FIELD_OCTETS_MAX`, `ATTACHMENT_NAMES_MAX` | the same |
//! | `CHANGES_MAX` lines that are replaced or removed | the same |
//! | `TABLE_LINES_MAX` fields, `TABLE_ATTACHMENTS_MAX` attachments that are looked up in tables | the same |
//! | [`ContentLimits::body_octets_max`] | lines after it are not compared |
//! | [`ContentLimits::body_lookup_octets_max`] | lines after it are not looked up in tables |
//! | `LINE_OCTETS_MAX` | a longer line of the body is compared in pieces |

mod attachment;
mod check;
mod decoder;
mod edits;
mod field_patterns;
mod field_text;
mod findings;
mod line_patterns;
mod parameter_names;
mod pattern;
mod scan;
mod table_conditions;

use std::sync::Arc;

use lookup::Table;
use mail::{Address, OperatorLog, Reply};

pub use attachment::AttachmentCondition;
pub use check::ContentRules;
pub use pattern::{InvalidPattern, Pattern};

use crate::service_scope::ServiceScope;

/// A rule in the configuration.
#[derive(Clone, Debug, PartialEq)]
pub struct ContentRule {
    /// Its name in the log, which is unique.
    pub name: Box<str>,
    /// Its list: the first of the list's rules that matches a line takes it.
    pub list: Option<Box<str>>,
    /// The mail that it is about.
    pub scope: ServiceScope,
    /// One line must match; None: any message does.
    pub lines: Option<LineCondition>,
    /// One attachment must match; None: any message does.
    pub attachment: Option<AttachmentCondition>,
    /// What it does.
    pub action: ContentAction,
}

/// Which lines match.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct LineCondition {
    /// In which of these they are.
    pub scopes: Vec<LineScope>,
    /// The names of fields, in lower case; empty: all.
    pub fields: Vec<Box<str>>,
    /// All of these match the line: `Name: value` of a field.
    pub matches: Vec<Pattern>,
    /// None of these does.
    pub unless: Vec<Pattern>,
    /// The table has the value of the field, or an address in it; of the body, the line.
    pub table: Option<Box<str>>,
}

/// The part of a message whose lines a condition is about.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LineScope {
    /// A field of the message's header, without line ends.
    Header,
    /// A MIME field (`Content-...`, `MIME-Version`) of any header: the message's, a part's, or that of an
    /// enclosed message.
    Mime,
    /// Another field in the header of an enclosed message.
    Nested,
    /// A line after the header, as it was sent; of an encoded text part also as it is decoded.
    Body,
}

/// What a rule does.
#[derive(Clone, Debug, PartialEq)]
pub enum ContentAction {
    /// The message passes, whatever later rules say; in a list, the line does.
    Accept,
    /// 5xx. None: the default reply.
    Refuse(Option<Reply>),
    /// 4xx.
    Defer(Option<Reply>),
    /// The message is accepted and held.
    Hold,
    /// The message gets a positive reply, and is dropped.
    Discard,
    /// This recipient gets the message instead of all others.
    Redirect(Address),
    /// This recipient gets the message too.
    Bcc(Address),
    /// Puts a field before all others: `Name: value`, in which `$1` or `${1}` are the groups of the first
    /// pattern.
    Prepend(Box<str>),
    /// Replaces each line that matches, in the same notation.
    Replace(Box<str>),
    /// Removes each line that matches.
    Remove,
    /// The message goes into this queue.
    Queue(Box<str>),
    /// The message goes to this content filter first, `transport:next hop`.
    Filter(Box<str>),
    /// A line in the log.
    Warn,
}

/// Limits of the configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ContentLimits {
    /// The octets after the header whose lines are compared.
    pub body_octets_max: u64,
    /// The octets of lines of the body, with their line ends, that are looked up in tables.
    pub body_lookup_octets_max: u64,
}

/// A rule with its table.
struct CompiledContentRule {
    rule: ContentRule,
    /// The number of its scope among those of all rules.
    scope: usize,
    /// Of its condition on lines.
    table: Option<Arc<dyn Table>>,
    /// Of its condition on attachments.
    attachment_table: Option<Arc<dyn Table>>,
}

impl ContentRules {
    /// Takes the rules in order, and finds their tables by name. None: there are no rules.
    ///
    /// # Errors
    ///
    /// The patterns are too large together.
    pub fn new<'t>(
        rules: Vec<ContentRule>,
        limits: ContentLimits,
        find_table: impl Fn(&str) -> Option<&'t Arc<dyn Table>>,
        log: Arc<dyn OperatorLog>,
    ) -> Result<Option<ContentRules>, InvalidPattern> {
        let table = |rule: &ContentRule| find_table(rule.lines.as_ref()?.table.as_deref()?).cloned();
        let of_attachment = |rule: &ContentRule| find_table(rule.attachment.as_ref()?.table.as_deref()?).cloned();
        let mut scopes: Vec<ServiceScope> = Vec::new();
        let compile = |rule: ContentRule| {
            let scope = scopes.iter().position(|known| *known == rule.scope).unwrap_or_else(|| {
                scopes.push(rule.scope.clone());
                scopes.len() - 1
            });
            let (table, attachment_table) = (table(&rule), of_attachment(&rule));
            CompiledContentRule { rule, scope, table, attachment_table }
        };
        let rules: Vec<CompiledContentRule> = rules.into_iter().map(compile).collect();
        (!rules.is_empty()).then(|| ContentRules::of(rules, scopes, limits, log)).transpose()
    }
}

impl ContentRule {
    /// Whether it depends on what is found in the message.
    fn is_conditional(&self) -> bool {
        self.lines.is_some() || self.attachment.is_some()
    }

    fn looks_at(&self, scope: LineScope) -> bool {
        self.lines.as_ref().is_some_and(|lines| lines.scopes.contains(&scope))
    }
}
