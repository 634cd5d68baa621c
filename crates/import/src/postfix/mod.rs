//! Converts a Postfix configuration folder to a mailrace.toml.
//!
//! Texts go in and come out: the caller reads and writes files. Every parameter of main.cf appears
//! in the new file: translated, listed as unsupported, or listed as not needed.

mod access;
mod access_table;
mod certificates;
mod content_rules;
mod delivery_methods;
mod dnsbl;
mod domain_lists;
mod domains;
pub mod expand;
mod filters;
mod generic_maps;
mod inbound_services;
mod late_restrictions;
mod ldap;
mod limits;
mod listeners;
mod logins;
mod lookups;
pub mod main_cf;
mod map_text;
pub mod master_cf;
mod networks;
mod other_services;
mod outbound;
mod pattern_flags;
mod pipes;
mod policy;
mod postscreen;
mod quotas;
mod relay_logins;
mod restriction_classes;
mod restrictions;
mod rewriting;
mod rules;
mod sender_routes;
mod table_rules;
mod transport_target;
mod transports;
mod untranslated;

use std::collections::BTreeSet;
use std::path::Path;

use crate::config_draft::{self, ConfigDraft, quoted};
use crate::output_text::{self, SourceServer};
use crate::{FileReader, ImportResult, mysql, placeholders, sql, words};
use expand::ExpandedParameters;
use inbound_services::InboundService;
use lookups::ConvertedTables;
use mail::Address;
use main_cf::MainCf;
use map_text::SiteDomains;
use master_cf::MasterCf;
use transports::TransportMap;

/// Converts `main` and `master`, the texts of main.cf and master.cf, and the files that they name,
/// for a host named `machine`. New files go to `folder`.
pub fn import(main: &str, master: &str, machine: &str, files: &dyn FileReader, folder: &Path) -> ImportResult {
    let main = MainCf::parse(main);
    let mut conversion = Conversion {
        main: &main,
        values: ExpandedParameters::new(&main, machine),
        master: MasterCf::parse(master),
        files,
        folder,
        draft: ConfigDraft::default(),
        converted_tables: ConvertedTables::new(),
        names: BTreeSet::new(),
        site: SiteDomains::default(),
        inbound_services: Vec::new(),
        has_certificates: false,
        has_users: false,
        owned_senders: None,
        networks_incomplete: false,
        dropped_permit: false,
        transport_map: TransportMap::default(),
        blocked_recipients: Vec::new(),
        deferred_addresses: Vec::new(),
        used_services: BTreeSet::new(),
        relayed_parents: Vec::new(),
        direct_parents: Vec::new(),
    };
    conversion.run();
    let draft = conversion.draft;
    let settings = main.settings().map(|(name, value)| (name.to_owned(), value.to_owned())).collect();
    let source = SourceServer { name: "Postfix", command: "postfix", setting: "parameter", settings };
    ImportResult {
        text: output_text::render(&draft, &source),
        files: draft.files,
        behavior_changes: draft.behavior_changes,
    }
}

/// A conversion in progress.
struct Conversion<'a> {
    main: &'a MainCf,
    values: ExpandedParameters<'a>,
    master: MasterCf,
    files: &'a dyn FileReader,
    folder: &'a Path,
    draft: ConfigDraft,
    converted_tables: ConvertedTables,
    /// Names of tables, transports and files that are in use.
    names: BTreeSet<String>,
    site: SiteDomains,
    /// The services that receive mail.
    inbound_services: Vec<InboundService>,
    has_certificates: bool,
    /// Whether any listener accepts logins.
    has_users: bool,
    /// The table of senders that belong to users.
    owned_senders: Option<String>,
    /// Whether mynetworks contains clients that could not be translated.
    networks_incomplete: bool,
    /// Whether the current list had a permit restriction that could not be translated.
    dropped_permit: bool,
    /// The contents of transport_maps.
    transport_map: TransportMap,
    /// Recipients whose mail access rules refuse or defer: an address and its table value.
    blocked_recipients: Vec<(String, String)>,
    /// Local addresses whose mail gets 451.
    deferred_addresses: Vec<String>,
    /// Domains whose subdomains are relayed.
    relayed_parents: Vec<String>,
    /// Those of them whose subdomains have no other next hop than their own MX.
    direct_parents: Vec<String>,
    /// The names of services in master.cf that mail or filters use.
    used_services: BTreeSet<String>,
}

impl Conversion<'_> {
    fn run(&mut self) {
        self.draft.sources.insert("main.cf".into());
        if !self.master.services.is_empty() {
            self.draft.sources.insert("master.cf".into());
        }
        for line in self.main.malformed_lines().iter().chain(&self.master.oddities) {
            self.draft.unsupported.push((line.clone(), "this line is neither a comment nor a definition".into()));
        }
        let hostname = self.hostname();
        self.draft.set("", "hostname", quoted(&hostname), "myhostname");
        self.draft.section("").set("data_dir", quoted("/var/lib/mailrace"), "");
        self.find_site();
        self.find_inbound_services();
        self.relay_networks();
        self.certificates();
        self.listeners();
        self.numbers();
        self.read_transport_maps();
        self.domains();
        self.outbound();
        self.logins();
        self.malformed_recipients();
        self.access();
        self.milters();
        self.quotas();
        self.content_rules();
        self.generic_maps();
        self.share_client_settings();
        self.rewriting();
        self.report_other_services();
        self.policy();
        self.write_deferred_table();
    }

    fn hostname(&self) -> String {
        let name = self.values.value("myhostname");
        if Address::new("postmaster", &name).is_ok() { name } else { "localhost".into() }
    }
}
