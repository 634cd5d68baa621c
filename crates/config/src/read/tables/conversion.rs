//! The common keys of tables outside of memory: what is done to their keys and values.

use lookup::conversion::ConversionRules;
use mail::Address;
use toml::Spanned;

use super::{Type, parse_value};
use crate::section::Section;
use crate::value_kind::{self, ValueKind};

const DOMAIN: ValueKind<String> = ValueKind {
    expected: "the name of a domain, such as \"example.org\"",
    parse: |v| v.as_str().filter(|name| Address::new("postmaster", name).is_ok()).map(str::to_owned),
};
const FORMAT: ValueKind<String> =
    ValueKind { expected: "a text such as \"smtp:[{value}]\"", parse: value_kind::TEXT.parse };

/// `match_subdomains`, `domains`, `separator`, `result_format` and `values_max`, which tables in memory do not have.
pub(super) fn conversion_rules(section: &mut Section<'_, '_>, of_type: Type) -> ConversionRules {
    let domains = section.list("domains", &DOMAIN);
    let format = section.take_spanned("result_format", &FORMAT);
    let format = format.and_then(|format| parse_value(section, "result_format", &FORMAT, &format));
    ConversionRules {
        match_subdomains: section.take_or("match_subdomains", &value_kind::FLAG, false),
        domains: domains.map(|domains| domains.into_iter().map(Spanned::into_inner).map(Into::into).collect()),
        separator: section.take("separator", &value_kind::TEXT).map(Into::into),
        result_format: format,
        // A directory counts the values while it reads them.
        values_max: if of_type == Type::Ldap { None } else { section.take("values_max", &ValueKind::COUNT) },
    }
}
