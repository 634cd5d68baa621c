//! Any message meets content rules of every kind: no panic, and the verdict is the same whether the message is read
//! whole or in pieces. The last byte chooses their size.

#![no_main]

use std::fmt;
use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::{Arc, LazyLock};

use filter::content::{
    AttachmentCondition, ContentAction, ContentLimits, ContentRule, ContentRules, LineCondition, LineScope, Pattern,
};
use filter::{CheckFactory, CheckedMessage, ContentFuture, Edit, ServiceScope, SessionInfo, Verdict};
use libfuzzer_sys::fuzz_target;
use lookup::Table;
use lookup::fixed::StaticTable;
use mail::{Address, OperatorLog, Reply};

const LIMITS: ContentLimits = ContentLimits { body_octets_max: 1000, body_lookup_octets_max: 100 };

static RULES: LazyLock<Arc<ContentRules>> = LazyLock::new(|| {
    let table: Arc<dyn Table> = Arc::new(StaticTable::new("all", vec!["x".to_owned()]));
    let rules = ContentRules::new(rules(), LIMITS, |_| Some(&table), Arc::new(NoLog));
    Arc::new(rules.expect("they are small").expect("there are some"))
});

fn pattern(text: &str) -> Pattern {
    text.parse().expect("it is valid")
}

fn rule(name: &str, lines: Option<LineCondition>, attachment: Option<AttachmentCondition>, action: ContentAction) -> ContentRule {
    ContentRule { name: name.into(), list: None, scope: ServiceScope::default(), lines, attachment, action }
}

fn rules() -> Vec<ContentRule> {
    let lines = |scope, expression: &str, table: Option<&str>| LineCondition {
        scopes: vec![scope],
        matches: vec![pattern(expression)],
        table: table.map(Into::into),
        ..LineCondition::default()
    };
    let names = AttachmentCondition {
        names: vec![Pattern::from_name("*.exe").expect("it is short")],
        types: Vec::new(),
        larger_than: None,
        table: None,
    };
    let large = AttachmentCondition { names: Vec::new(), larger_than: Some(100), ..names.clone() };
    vec![
        rule("subject", Some(lines(LineScope::Header, "^Subject: .*a", None)), None, ContentAction::Replace("X-A: $0".into())),
        rule("any", Some(lines(LineScope::Header, "b", None)), None, ContentAction::Remove),
        rule("mime", Some(lines(LineScope::Mime, "name", None)), None, ContentAction::Prepend("X-Mime: ${0}".into())),
        rule("nested", Some(lines(LineScope::Nested, "^From:", None)), None, ContentAction::Hold),
        rule("body", Some(lines(LineScope::Body, "^x", None)), None, ContentAction::Replace("y".into())),
        rule("table", Some(lines(LineScope::Body, ".", Some("all"))), None, ContentAction::Warn),
        rule("large", None, Some(large), ContentAction::Hold),
        rule("names", None, Some(names), ContentAction::Refuse(None)),
    ]
}

struct NoLog;

impl OperatorLog for NoLog {
    fn log_line(&self, _: fmt::Arguments<'_>) {}
}

/// A message that is read in pieces.
struct PiecedMessage<'a> {
    content: &'a [u8],
    piece: usize,
}

impl CheckedMessage for PiecedMessage<'_> {
    fn sender(&self) -> Option<&Address> {
        None
    }

    fn recipients(&self) -> Vec<&Address> {
        Vec::new()
    }

    fn prefix(&self) -> &[u8] {
        b"X-B: b\r\nReceived: by us\r\n"
    }

    fn content_len(&self) -> u64 {
        self.content.len() as u64
    }

    fn is_eight_bit(&self) -> bool {
        false
    }

    fn read_content(&mut self, position: u64) -> ContentFuture<'_> {
        let from = usize::try_from(position).unwrap_or(usize::MAX).min(self.content.len());
        let to = from.saturating_add(self.piece).min(self.content.len());
        Box::pin(ready(Ok(&self.content[from..to])))
    }

    fn edit(&mut self, _: Edit) -> Pin<Box<dyn Future<Output = Result<(), Reply>> + Send + '_>> {
        Box::pin(ready(Ok(())))
    }
}

fn check(content: &[u8], piece: usize) -> Verdict {
    let runtime = tokio::runtime::Builder::new_current_thread().build().expect("it needs no resources");
    let mut check = RULES.clone().start();
    runtime.block_on(check.message(&SessionInfo::default(), &mut PiecedMessage { content, piece }))
}

fuzz_target!(|bytes: &[u8]| {
    let Some((&choice, content)) = bytes.split_last() else { return };
    assert_eq!(check(content, usize::MAX), check(content, 1 + usize::from(choice)));
});
