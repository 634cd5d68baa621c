//! Converts a Postfix configuration folder to a mailrace.toml.
//!
//! Texts go in and come out: the caller reads and writes files. Every parameter of main.cf appears
//! in the new file: translated, listed as unsupported, or listed as not needed.

mod access;
mod access_table;
mod certificates;
mod dnsbl;
mod domains;
mod doors;
mod draft;
pub mod expand;
mod hops;
mod ldap;
mod limits;
mod listeners;
mod logins;
mod lookups;
pub mod main_cf;
pub mod master_cf;
mod networks;
mod outbound;
mod policy;
mod quotas;
mod render;
mod restrictions;
mod rules;
mod sql;
mod text;
mod transports;
mod words;

use std::collections::BTreeSet;
use std::io;
use std::path::Path;

use doors::Door;
pub use draft::NewFile;
use draft::{Draft, quoted};
use expand::Values;
use lookups::Made;
use mail::Address;
use main_cf::MainCf;
use master_cf::MasterCf;
use text::Site;
use transports::TransportMap;

/// Reads the files that a configuration names.
pub trait Files {
    /// The text of a file.
    ///
    /// # Errors
    ///
    /// It does not exist, cannot be read, or is not UTF-8.
    fn text(&self, path: &Path) -> io::Result<String>;
}

/// The result of an import.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Import {
    /// The new configuration.
    pub text: String,
    /// The files that it names.
    pub files: Vec<NewFile>,
    /// How mail is handled differently than by Postfix, one sentence each; also at the top of the
    /// text.
    pub alarms: Vec<String>,
}

/// Converts `main` and `master`, the texts of main.cf and master.cf, and the files that they name,
/// for a host named `machine`. New files go to `folder`.
pub fn import(main: &str, master: &str, machine: &str, files: &dyn Files, folder: &Path) -> Import {
    let main = MainCf::parse(main);
    let mut conversion = Conversion {
        main: &main,
        values: Values::new(&main, machine),
        master: MasterCf::parse(master),
        files,
        folder,
        draft: Draft::default(),
        made: Made::new(),
        names: BTreeSet::new(),
        site: Site::default(),
        doors: Vec::new(),
        has_certificates: false,
        has_users: false,
        owned: None,
        has_lost_networks: false,
        has_lost_pass: false,
        transport_map: TransportMap::default(),
        stopped: Vec::new(),
        put_off: Vec::new(),
    };
    conversion.run();
    let draft = conversion.draft;
    Import { text: render::render(&draft, &main), files: draft.files, alarms: draft.alarms }
}

/// A conversion in progress.
struct Conversion<'a> {
    main: &'a MainCf,
    values: Values<'a>,
    master: MasterCf,
    files: &'a dyn Files,
    folder: &'a Path,
    draft: Draft,
    made: Made,
    /// Names of tables, transports and files that are in use.
    names: BTreeSet<String>,
    site: Site,
    /// The services that receive mail.
    doors: Vec<Door>,
    has_certificates: bool,
    /// Whether any listener accepts logins.
    has_users: bool,
    /// The table of senders that belong to users.
    owned: Option<String>,
    /// Whether mynetworks contains clients that could not be translated.
    has_lost_networks: bool,
    /// Whether the current list had a permit restriction that could not be translated.
    has_lost_pass: bool,
    /// The contents of transport_maps.
    transport_map: TransportMap,
    /// Recipients whose mail access rules refuse or defer: an address and its table value.
    stopped: Vec<(String, String)>,
    /// Local addresses whose mail gets 451.
    put_off: Vec<String>,
}

impl Conversion<'_> {
    fn run(&mut self) {
        self.draft.sources.insert("main.cf".into());
        if !self.master.services.is_empty() {
            self.draft.sources.insert("master.cf".into());
        }
        for line in self.main.oddities().iter().chain(&self.master.oddities) {
            self.draft.losses.push((line.clone(), "this line is neither a comment nor a definition".into()));
        }
        let hostname = self.hostname();
        self.draft.set("", "hostname", quoted(&hostname), "myhostname");
        self.draft.section("").set("data_dir", quoted("/var/lib/mailrace"), "");
        self.find_site();
        self.find_doors();
        self.networks();
        self.certificates();
        self.listeners();
        self.numbers();
        self.read_transport_maps();
        self.domains();
        self.outbound();
        self.logins();
        self.access();
        self.quotas();
        self.policy();
        self.write_put_off();
    }

    fn hostname(&self) -> String {
        let name = self.values.value("myhostname");
        if Address::new("postmaster", &name).is_ok() { name } else { "localhost".into() }
    }
}
