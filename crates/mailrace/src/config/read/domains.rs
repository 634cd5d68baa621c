//! `[[domain]]`: whose mail is kept here.

use super::transports::Transports;
use super::{Unique, named};
use crate::config::key;
use crate::config::section::Section;
use crate::config::{Domain, Transport};

/// What parts a mailbox from a tag.
const DELIMITER: Option<char> = Some('+');

pub(super) fn domains(document: &mut Section<'_, '_>, tables: &[String], transports: &Transports) -> Vec<Domain> {
    let Some(sections) = document.sections("domain") else {
        return vec![Domain {
            name: "localhost".into(),
            mailboxes: None,
            aliases: None,
            hosts: None,
            transport: Transport::MAILDIR.into(),
            catch_all: None,
            delimiter: DELIMITER,
        }];
    };
    let mut unique = Unique::default();
    sections.into_iter().filter_map(|section| domain(section, tables, transports, &mut unique)).collect()
}

fn domain(
    mut section: Section<'_, '_>,
    tables: &[String],
    transports: &Transports,
    unique: &mut Unique,
) -> Option<Domain> {
    let name = section.required("name", &key::HOST);
    if let Some(name) = &name {
        unique.claim(&section, "name", name.get_ref(), name.span());
    }
    let mut table = |key| named(&mut section, key, "[[table]]", tables).map(|name| name.into_inner().into());
    let (mailboxes, aliases, hosts) = (table("mailboxes"), table("aliases"), table("hosts"));
    let transport = transport(&mut section, transports);
    let catch_all = section.take("catch_all", &key::ADDRESS);
    let delimiter = section.take_or("delimiter", &key::DELIMITER, DELIMITER);
    Some(Domain { name: name?.into_inner(), mailboxes, aliases, hosts, transport, catch_all, delimiter })
}

/// The transport's name. One that asks the recipient's domain for its hosts would come back here.
fn transport(section: &mut Section<'_, '_>, transports: &Transports) -> Box<str> {
    let Some(name) = named(section, "transport", "[transport.NAME]", &transports.names) else {
        return Transport::MAILDIR.into();
    };
    let astray = |transport: &&Transport| !transport.is_maildir() && transport.next_hop().is_none();
    if transports.find(name.get_ref()).filter(astray).is_some() {
        let label = format!("expected a transport into Maildirs, or a `next_hop` in [transport.{}]", name.get_ref());
        section.state(name.span(), "transport", "has no next hop, and the domain's own is this server", label);
    }
    name.into_inner().into()
}
