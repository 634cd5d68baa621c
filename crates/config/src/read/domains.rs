//! `[[domain]]`: local domains.

use super::transports::TransportSections;
use super::{Unique, take_reference};
use crate::error::ConfigError;
use crate::section::Section;
use crate::value_kind;
use crate::{DomainSettings, DomainTableSettings, TransportSettings};

/// The default delimiter between mailbox and tag.
const DELIMITER: Option<char> = Some('+');

/// The domains in the text, and those whose names are in tables.
pub(super) fn domains(
    document: &mut Section<'_, '_>,
    tables: &[String],
    transports: &TransportSections,
) -> (Vec<DomainSettings>, Vec<DomainTableSettings>) {
    let Some(sections) = document.sections("domain") else { return (vec![localhost()], Vec::new()) };
    let (mut names, mut tabled) = (Unique::default(), Unique::default());
    let (mut domains, mut domain_tables) = (Vec::new(), Vec::new());
    let mut first_tabled = None;
    for mut section in sections {
        match take_reference(&mut section, "names", "[[table]]", tables) {
            Some(table) => {
                tabled.insert(&section, "names", table.get_ref(), table.span());
                first_tabled.get_or_insert(table.span());
                let settings = domain(&mut section, Box::default(), tables, transports);
                domain_tables.push(DomainTableSettings { names: table.into_inner().into(), settings });
            }
            None => {
                let name = section.take_required("name", &value_kind::HOST);
                if let Some(name) = &name {
                    names.insert(&section, "name", name.get_ref(), name.span());
                }
                let name = name.map(|name| name.into_inner()).unwrap_or_default();
                domains.push(domain(&mut section, name, tables, transports));
            }
        }
    }
    if let Some(place) = first_tabled.filter(|_| names.is_empty()) {
        let label = "expected another [[domain]] with a `name`: its postmaster is this server's postmaster";
        document.report_error(ConfigError::new(place, "all domains are in tables", label));
    }
    (domains, domain_tables)
}

fn localhost() -> DomainSettings {
    DomainSettings {
        name: "localhost".into(),
        mailboxes: None,
        wildcard_mailbox: false,
        aliases: None,
        hosts: None,
        transport: TransportSettings::MAILDIR.into(),
        catch_all: None,
        delimiter: DELIMITER,
    }
}

fn domain(
    section: &mut Section<'_, '_>,
    name: Box<str>,
    tables: &[String],
    transports: &TransportSections,
) -> DomainSettings {
    let mut table = |key| take_reference(section, key, "[[table]]", tables).map(|name| name.into_inner().into());
    let (mailboxes, aliases, hosts) = (table("mailboxes"), table("aliases"), table("hosts"));
    let wildcard_mailbox = wildcard_mailbox(section, mailboxes.is_some());
    let transport = transport(section, transports);
    let catch_all = section.take("catch_all", &value_kind::ADDRESS);
    let delimiter = section.take_or("delimiter", &value_kind::DELIMITER, DELIMITER);
    DomainSettings { name, mailboxes, wildcard_mailbox, aliases, hosts, transport, catch_all, delimiter }
}

/// Needs a table of mailboxes: without one, every address exists.
fn wildcard_mailbox(section: &mut Section<'_, '_>, has_table: bool) -> bool {
    let place = section.span_of("wildcard_mailbox");
    let wanted = section.take_or("wildcard_mailbox", &value_kind::FLAG, false);
    if wanted && !has_table {
        let label = "expected `mailboxes` too: without a table every address exists".to_owned();
        section.report(place, "wildcard_mailbox", "is not allowed here", label);
    }
    wanted
}

/// The transport's name. One that looked up the MX of the recipient's domain would come back to
/// this server.
fn transport(section: &mut Section<'_, '_>, transports: &TransportSections) -> Box<str> {
    let Some(name) = take_reference(section, "transport", "[transport.NAME]", &transports.names) else {
        return TransportSettings::MAILDIR.into();
    };
    let astray = |transport: &&TransportSettings| !transport.is_hostless() && transport.next_hop().is_none();
    if transports.find(name.get_ref()).filter(astray).is_some() {
        let label = format!("expected another type of transport, or a `next_hop` in [transport.{}]", name.get_ref());
        section.report(name.span(), "transport", "has no next hop, and the MX of the domain is this server", label);
    }
    name.into_inner().into()
}

#[cfg(test)]
mod tests {
    use crate::Config;

    #[test]
    fn a_wildcard_mailbox_needs_a_table_of_mailboxes() {
        let table = "[[table]]\nname = \"t\"\ntype = \"static\"\nvalues = [\"x\"]\n";
        let domain = |keys: &str| {
            let text = format!("{table}[[domain]]\nname = \"a.test\"\nwildcard_mailbox = true\n{keys}");
            Config::parse(&text, "mailrace.toml", "mx.test").map_err(|errors| errors.to_string())
        };
        assert!(domain("mailboxes = \"t\"\n").is_ok_and(|config| config.domains[0].wildcard_mailbox));
        assert!(domain("").is_err_and(|errors| errors.contains("`domain.wildcard_mailbox` is not allowed here")));
    }
}
