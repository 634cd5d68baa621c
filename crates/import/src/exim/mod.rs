//! Converts an Exim configuration to a mailrace.toml.
//!
//! Exim decides in programs: ACLs and routers that it runs for each address. The import runs them once for
//! each domain that they name, and for a domain that they do not name. What strangers may send to becomes a
//! `[[domain]]`, and nothing else does. The new file names each part without a counterpart, and the mail that
//! depends on it waits or is refused, unless the text at the top of the file says otherwise.

mod access;
mod acl_verdict;
mod address_syntax;
mod alias_targets;
pub mod debian;
mod domains;
mod expansion;
mod general;
mod hosts;
mod logins;
mod outbound;
mod rewriting;
mod routers;
pub mod sections;
pub mod source;
mod statements;
mod tables;
mod tags;
mod transports;

use std::cell::RefCell;
use std::collections::{BTreeSet, HashMap};
use std::path::Path;
use std::rc::Rc;

use crate::config_draft::{ConfigDraft, NewFile, TomlSection, quoted};
use crate::output_text::{self, SourceServer};
use crate::{FileReader, ImportResult};
use acl_verdict::RelayRights;
use domains::{ConditionOutcome, DomainGroup, DomainItem};
use expansion::{Expander, Lookup};
use mail::Address;
use sections::EximConfig;
use source::SourceError;
use tables::TableUse;

/// Converts `text`, the configuration at `path`, and the files that it names, for a host named `machine`. New
/// files go to `folder`.
///
/// # Errors
///
/// The text cannot be read as an Exim configuration.
pub fn import(
    text: &str,
    path: &Path,
    machine: &str,
    files: &dyn FileReader,
    folder: &Path,
) -> Result<ImportResult, SourceError> {
    let config = EximConfig::parse(&source::read_lines(text, path, files)?);
    if config.routers.is_empty() && config.acls.is_empty() && config.main.options.is_empty() {
        let fault = "this is not an Exim configuration: it has no option, router or ACL".to_owned();
        return Err(SourceError { place: path.display().to_string(), fault });
    }
    let settings = config.main.options.iter().map(|option| {
        let is_secret = option.name.ends_with("_servers") || option.name.ends_with("secret");
        let value = if is_secret { "(not shown)" } else { option.value.as_str() };
        (option.name.clone(), value.to_owned())
    });
    let source = SourceServer { name: "Exim", command: "exim", setting: "option", settings: settings.collect() };
    let mut conversion = Conversion::new(&config, files, folder, machine);
    conversion.draft.sources.insert(path.file_name().unwrap_or_default().to_string_lossy().into_owned());
    conversion.run();
    let draft = conversion.draft;
    Ok(ImportResult {
        text: output_text::render(&draft, &source),
        files: draft.files,
        behavior_changes: draft.behavior_changes,
    })
}

/// A conversion in progress.
struct Conversion<'a> {
    config: &'a EximConfig,
    expander: Expander<'a>,
    files: &'a dyn FileReader,
    folder: &'a Path,
    draft: ConfigDraft,
    hostname: String,
    /// The domain of addresses without one.
    origin: String,
    /// Names of tables and transports that are in use.
    names: BTreeSet<String>,
    /// Lookups that are tables already, with their domains.
    tables: Vec<(Lookup, TableUse, Vec<String>, String)>,
    /// The domains that the configuration names.
    groups: Vec<DomainGroup>,
    /// Lists of domains that are read already, by their text.
    known_items: RefCell<HashMap<String, Rc<[DomainItem]>>>,
    /// What `acl_smtp_rcpt` decides for strangers.
    known_verdicts: RefCell<HashMap<DomainGroup, ConditionOutcome>>,
    relay: RelayRights,
    /// Whether users may log in.
    has_users: bool,
    /// Addresses whose mail gets 451.
    deferred_addresses: Vec<String>,
    /// Lines of the table of replies to RCPT.
    alias_replies: Vec<String>,
    /// Addresses whose mail is dropped, and their table.
    dropped_addresses: Vec<String>,
    dropped_table: Option<String>,
    /// Tables of aliases that refuse all addresses that are not in them.
    closed_tables: BTreeSet<String>,
}

impl<'a> Conversion<'a> {
    fn new(config: &'a EximConfig, files: &'a dyn FileReader, folder: &'a Path, machine: &str) -> Self {
        let is_domain = |name: &String| Address::new("postmaster", name).is_ok();
        let bare = Expander { files, constants: Vec::new() };
        let named = |option: &str| config.main.value(option).and_then(|value| bare.constant(value)).filter(is_domain);
        let hostname = named("primary_hostname").unwrap_or_else(|| machine.to_owned());
        let hostname = if is_domain(&hostname) { hostname } else { "localhost".to_owned() };
        let constants = vec![("primary_hostname", hostname.clone())];
        let expander = Expander { files, constants };
        let qualified =
            |option: &str| config.main.value(option).and_then(|value| expander.constant(value)).filter(is_domain);
        let origin = qualified("qualify_recipient").or_else(|| qualified("qualify_domain"));
        let origin = origin.unwrap_or_else(|| hostname.clone());
        let constants = vec![
            ("primary_hostname", hostname.clone()),
            ("qualify_domain", origin.clone()),
            ("qualify_recipient", origin.clone()),
        ];
        Conversion {
            config,
            expander: Expander { files, constants },
            files,
            folder,
            draft: ConfigDraft::default(),
            hostname,
            origin,
            names: ["smtp", "maildir"].map(str::to_owned).into(),
            tables: Vec::new(),
            groups: Vec::new(),
            known_items: RefCell::default(),
            known_verdicts: RefCell::default(),
            relay: RelayRights::default(),
            has_users: false,
            deferred_addresses: Vec::new(),
            alias_replies: Vec::new(),
            dropped_addresses: Vec::new(),
            dropped_table: None,
            closed_tables: BTreeSet::new(),
        }
    }

    fn run(&mut self) {
        for line in &self.config.oddities {
            self.draft.add_unsupported(line, "this line is not understood");
        }
        let (hostname, origin) = (quoted(&self.hostname), quoted(&self.origin));
        self.draft.set("", "hostname", hostname, "primary_hostname");
        self.draft.set("", "origin", origin, "qualify_domain");
        self.draft.section("").set("data_dir", quoted("/var/lib/mailrace"), "");
        self.find_groups();
        self.find_relay_rights();
        self.certificates();
        self.logins();
        self.listeners();
        self.relay_section();
        self.malformed_addresses();
        self.access();
        self.numbers();
        self.domains();
        self.outbound();
        self.retry();
        self.rewriting();
        self.write_deferred_table();
        self.other_options();
    }

    /// A name that no table or transport has yet.
    fn unused_name(&mut self, wanted: &str) -> String {
        let is_fit = |c: char| c.is_ascii_alphanumeric() || c == '-' || c == '_';
        let mut base: String = wanted.chars().map(|c| if is_fit(c) { c.to_ascii_lowercase() } else { '-' }).collect();
        if !base.starts_with(|c: char| c.is_ascii_lowercase()) {
            base = format!("t{base}");
        }
        let numbered = (2..).map(|number| format!("{base}-{number}"));
        let name = std::iter::once(base.clone()).chain(numbered).find(|name| !self.names.contains(name));
        let name = name.unwrap_or(base);
        self.names.insert(name.clone());
        name
    }

    /// Adds a file beside the new configuration, and returns its path.
    fn add_file(&mut self, name: &str, text: String, secret: bool) -> String {
        let path = self.folder.join(name);
        let shown = path.to_string_lossy().into_owned();
        self.draft.files.push(NewFile { path, text, secret });
        shown
    }

    /// Adds a table with such a text, and returns its name.
    fn add_text_table(&mut self, wanted: &str, kind: &str, text: String, comment: &str) -> String {
        let name = self.unused_name(wanted);
        let path = self.add_file(&name, text, false);
        let mut block = TomlSection::new("[[table]]");
        if !comment.is_empty() {
            block = block.comment(comment);
        }
        self.draft.add(block.key("name", quoted(&name), "").key("type", quoted(kind), "").key(
            "path",
            quoted(&path),
            "",
        ));
        name
    }

    /// Adds a table whose lookups always fail, and returns its name.
    fn add_unavailable_table(&mut self, wanted: &str, reason: &str) -> String {
        let name = self.unused_name(wanted);
        let reason: String = reason.chars().filter(|c| !c.is_control()).collect();
        let block = TomlSection::new("[[table]]").key("name", quoted(&name), "");
        self.draft.add(block.key("type", quoted("unavailable"), "").key("reason", quoted(&reason), ""));
        name
    }
}
