//! `[rewrite]` and `[bcc]`.

use filter::bcc::BccSettings;
use filter::rewrite::{AddressClass, CanonicalTable, MasqueradeDomain, MasqueradeSettings, RewriteSettings};
use mail::Networks;

use super::{networks, take_reference, unspanned};
use crate::section::Section;
use crate::value_kind::{self, ValueKind};

use AddressClass::{EnvelopeRecipient, EnvelopeSender, HeaderRecipient, HeaderSender};

/// The words for classes.
const CLASSES: [(&str, AddressClass); 4] = [
    ("envelope_sender", EnvelopeSender),
    ("envelope_recipient", EnvelopeRecipient),
    ("header_sender", HeaderSender),
    ("header_recipient", HeaderRecipient),
];

const CLASS: ValueKind<AddressClass> = ValueKind {
    expected: "\"envelope_sender\", \"envelope_recipient\", \"header_sender\" or \"header_recipient\"",
    parse: |v| CLASSES.iter().find(|(word, _)| v.as_str() == Some(word)).map(|(_, class)| *class),
};

const MASQUERADE: ValueKind<MasqueradeDomain> = ValueKind {
    expected: "a domain such as \"example.org\", or \"!lab.example.org\" for one whose addresses stay",
    parse: |v| {
        let text = v.as_str()?;
        let (is_kept, name) = text.strip_prefix('!').map_or((false, text), |name| (true, name));
        Some(MasqueradeDomain { name: value_kind::host(name)?, is_kept })
    },
};

/// None: there is no such section.
pub(super) fn rewriting(document: &mut Section<'_, '_>, tables: &[String]) -> Option<RewriteSettings> {
    let mut section = document.section("rewrite")?;
    // As in Postfix, what is about senders or recipients alone comes first.
    let canonical = [
        canonical(
            &mut section,
            tables,
            "sender_canonical",
            "sender_canonical_classes",
            &[EnvelopeSender, HeaderSender],
        ),
        canonical(
            &mut section,
            tables,
            "recipient_canonical",
            "recipient_canonical_classes",
            &[EnvelopeRecipient, HeaderRecipient],
        ),
        canonical(
            &mut section,
            tables,
            "canonical",
            "canonical_classes",
            &[EnvelopeSender, EnvelopeRecipient, HeaderSender, HeaderRecipient],
        ),
    ];
    let exceptions = section.list("masquerade_exceptions", &value_kind::TEXT).map(unspanned).unwrap_or_default();
    let domains = section.list("masquerade", &MASQUERADE).map(unspanned).unwrap_or_default();
    let classes = classes(&mut section, "masquerade_classes", &[EnvelopeSender, HeaderSender, HeaderRecipient]);
    let exceptions = exceptions.into_iter().map(|name| name.to_lowercase().into()).collect();
    Some(RewriteSettings {
        canonical: canonical.into_iter().flatten().collect(),
        masquerade: MasqueradeSettings { domains, exceptions, classes },
        header_clients: networks(&mut section, "header_clients").unwrap_or_else(Networks::loopback),
        header_users: section.take_or("header_users", &value_kind::FLAG, false),
    })
}

fn canonical(
    section: &mut Section<'_, '_>,
    tables: &[String],
    key: &'static str,
    classes_key: &'static str,
    defaults: &[AddressClass],
) -> Option<CanonicalTable> {
    let table = take_reference(section, key, "[[table]]", tables);
    let classes = classes(section, classes_key, defaults);
    Some(CanonicalTable { table: table?.into_inner().into(), classes })
}

fn classes(section: &mut Section<'_, '_>, key: &'static str, defaults: &[AddressClass]) -> Vec<AddressClass> {
    section.list(key, &CLASS).map_or_else(|| defaults.to_vec(), unspanned)
}

pub(super) fn copies(document: &mut Section<'_, '_>, tables: &[String]) -> BccSettings {
    let Some(mut section) = document.section("bcc") else { return BccSettings::default() };
    let table = |section: &mut Section<'_, '_>, key| {
        take_reference(section, key, "[[table]]", tables).map(|table| table.into_inner().into())
    };
    BccSettings {
        always: section.take("always", &value_kind::ADDRESS),
        sender_table: table(&mut section, "sender_table"),
        recipient_table: table(&mut section, "recipient_table"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn parse(text: &str) -> Result<Config, String> {
        let text = format!("[[table]]\nname = \"t\"\ntype = \"static\"\nvalues = [\"a\"]\n{text}");
        Config::parse(&text, "text", "mx.here").map_err(|faults| faults.to_string())
    }

    #[test]
    fn tables_for_one_side_come_first_and_have_the_classes_of_postfix() {
        let text = "[rewrite]\ncanonical = \"t\"\nsender_canonical = \"t\"\ncanonical_classes = [\"header_sender\"]\n";
        let settings = parse(text).unwrap().rewrite.unwrap();
        let classes: Vec<_> = settings.canonical.iter().map(|table| &*table.classes).collect();
        assert_eq!(classes, [&[EnvelopeSender, HeaderSender][..], &[HeaderSender]]);
        assert_eq!((settings.header_clients, settings.header_users), (Networks::loopback(), false));
        assert_eq!(parse("").unwrap().rewrite, None);
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        for (text, expected) in [
            ("[rewrite]\ncanonical = \"u\"", "unknown [[table]]"),
            ("[rewrite]\ncanonical_classes = [\"sender\"]", "invalid value"),
            ("[rewrite]\nmasquerade = [\"a b\"]", "a domain such as"),
            ("[bcc]\nalways = \"archive\"", "a mail address"),
        ] {
            let faults = parse(text).unwrap_err();
            assert!(faults.contains(expected), "{text}\n{faults}");
        }
    }
}
