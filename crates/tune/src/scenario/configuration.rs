//! The configuration of a measured server: the operator's settings that matter for the scenario, and nothing that
//! reaches out of the measurement.
//!
//! Limits, queues, threads, storage settings, and the settings of deliveries are the operator's. Listeners, folders,
//! domains, routes, certificates, access rules and limits on load are not: a run accepts mail from this machine only,
//! for a domain of its own. `lookup` has the operator's domains, transports and tables too, and delivers nothing.

use std::path::Path;

use toml::{Table, Value};

use super::{DOMAIN, Scenario};
use crate::setting_path::SettingPath;

/// Sections and settings of the operator that every scenario keeps.
const KEPT: [&str; 7] = ["threads", "limits", "queues", "smtp", "http", "log", "spool"];
/// Those that only `lookup` keeps.
const KEPT_FOR_LOOKUP: [&str; 5] = ["hostname", "origin", "domain", "transport", "table"];
/// The built-in queues; rules that choose others do not apply to the load.
const QUEUES: [&str; 3] = ["local", "standard", "lame"];
const QUEUE_KEYS: [&str; 4] = ["name", "concurrency", "retry", "adopt"];
/// Settings of the built-in transports that lead out of the measurement.
const LEFT_OUT: [&str; 10] =
    ["type", "path", "places", "root", "quota", "quota_table", "next_hop", "source", "helo", "families"];
/// Settings of tables that are paths.
const TABLE_PATHS: [&str; 3] = ["path", "password_file", "ca_file"];
const DATA_DIR: &str = "./mailrace-data";

/// Where a server is, and what it talks to.
pub(super) struct Place<'a> {
    /// The folder of the run.
    pub(super) folder: &'a Path,
    /// Whether this process is root, whose server gives up its rights if the operator's does.
    pub(super) is_root: bool,
    /// Where relative paths of the operator's configuration begin.
    pub(super) working_folder: &'a Path,
    /// The port of the sink.
    pub(super) sink: Option<u16>,
}

/// The folder of files that a server serves by HTTP.
pub(super) fn pages_folder(folder: &Path) -> std::path::PathBuf {
    folder.join("pages")
}

/// The configuration of a run.
///
/// # Errors
///
/// A part of the operator's configuration that has to be a section is none.
pub(super) fn derive(operator: &Table, scenario: Scenario, place: &Place<'_>) -> Result<Table, String> {
    let mut table = kept(operator, scenario, place);
    let mut set = |name: &str, value: Value| {
        let path: SettingPath = name.parse().expect("these names are valid");
        path.set(&mut table, value)
    };
    set("data_dir", text(place.folder.join("data")))?;
    for rate in ["limits.connections_per_client", "limits.messages_per_client"] {
        set(rate, "0".into())?;
    }
    if !scenario.delivers() {
        set("queue.local.concurrency", 0.into())?;
        set("queue.standard.concurrency", 0.into())?;
    }
    if scenario != Scenario::Lookup {
        let transport = if scenario == Scenario::Relay { "smtp" } else { "maildir" };
        set("hostname", "mx.bench.test".into())?;
        set(&format!("domain.\"{DOMAIN}\".transport"), transport.into())?;
    }
    if let Some(port) = place.sink {
        set("transport.smtp.next_hop", format!("127.0.0.1:{port}").into())?;
    }
    table.insert("listener".to_owned(), listeners(scenario, place.folder));
    rights(&mut table, operator, place.is_root);
    Ok(table)
}

fn kept(operator: &Table, scenario: Scenario, place: &Place<'_>) -> Table {
    let more: &[&str] = if scenario == Scenario::Lookup { &KEPT_FOR_LOOKUP } else { &[] };
    let kept = KEPT.iter().chain(more);
    let mut table: Table = kept.filter_map(|key| Some(((*key).to_owned(), operator.get(*key)?.clone()))).collect();
    for (section, key) in [("spool", "lanes"), ("log", "to")] {
        if let Some(Value::Table(section)) = table.get_mut(section) {
            section.remove(key);
        }
    }
    if let Some(queues) = queues(operator) {
        table.insert("queue".to_owned(), queues);
    }
    if scenario != Scenario::Lookup {
        table.extend(transports(operator).map(|transports| ("transport".to_owned(), transports)));
    }
    if let Some(Value::Array(tables)) = table.get_mut("table") {
        let data_dir = operator.get("data_dir").and_then(Value::as_str).unwrap_or(DATA_DIR);
        tables.iter_mut().filter_map(Value::as_table_mut).for_each(|it| move_paths(it, data_dir, place.working_folder));
    }
    table
}

/// The built-in queues, without the rules that choose mail for them.
fn queues(operator: &Table) -> Option<Value> {
    let of_name = |queue: &&Value| QUEUES.iter().any(|name| queue.get("name").and_then(Value::as_str) == Some(*name));
    let without_rules = |queue: &Value| {
        let kept = QUEUE_KEYS.iter().filter_map(|key| Some(((*key).to_owned(), queue.get(*key)?.clone())));
        Value::Table(kept.collect())
    };
    Some(Value::Array(operator.get("queue")?.as_array()?.iter().filter(of_name).map(without_rules).collect()))
}

/// The built-in transports, without what leads out of the measurement.
fn transports(operator: &Table) -> Option<Value> {
    let transports = operator.get("transport")?;
    let find = |name: &str| {
        let mut settings = transports.get(name)?.as_table()?.clone();
        LEFT_OUT.iter().for_each(|key| drop(settings.remove(*key)));
        Some((name.to_owned(), Value::Table(settings)))
    };
    Some(Value::Table(["maildir", "smtp"].into_iter().filter_map(find).collect()))
}

/// Paths of a table that depend on the data folder, or on the working folder, become absolute. A replica would copy the
/// whole directory for each run, so the directory is asked instead.
fn move_paths(table: &mut Table, data_dir: &str, working_folder: &Path) {
    for key in TABLE_PATHS {
        if let Some(Value::String(path)) = table.get_mut(key) {
            *path = working_folder.join(path.replace("{data_dir}", data_dir)).display().to_string();
        }
    }
    if table.remove("replica").is_some() {
        table.insert("mode".to_owned(), "direct".into());
    }
}

fn listeners(scenario: Scenario, folder: &Path) -> Value {
    let mut listener = Table::new();
    listener.insert("protocol".to_owned(), scenario.protocol().into());
    listener.insert("address".to_owned(), "127.0.0.1:0".into());
    if scenario == Scenario::ReadHttp {
        listener.insert("files".to_owned(), text(pages_folder(folder)));
    }
    Value::Array(vec![listener.into()])
}

/// A server that root starts runs as the operator's does.
fn rights(table: &mut Table, operator: &Table, is_root: bool) {
    if !is_root {
        return;
    }
    match operator.get("user") {
        Some(user) => table.insert("user".to_owned(), user.clone()),
        None => table.insert("allow_root".to_owned(), true.into()),
    };
}

fn text(path: std::path::PathBuf) -> Value {
    Value::String(path.display().to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    const OPERATOR: &str = r#"
        hostname = "mx.example.org"
        data_dir = "/srv/mail"
        user = "mailrace"
        threads = 3
        limits = { sessions = 50, connections_per_client = "5/s" }
        spool = { lanes = ["/srv/a", "/srv/b"], spare_segments = 2 }
        log = { to = "/var/log/mail", format = "json" }
        load = { refuse_above = 1.0 }
        dns = { servers = ["192.0.2.53:53"] }
        [[listener]]
        protocol = "smtp"
        address = "0.0.0.0:25"
        [[table]]
        name = "people"
        type = "text"
        path = "{data_dir}/people"
        [[table]]
        name = "others"
        type = "text"
        path = "others"
        [[domain]]
        name = "example.org"
        mailboxes = "people"
        [[queue]]
        name = "local"
        concurrency = 7
        [[queue]]
        name = "standard"
        senders = ["@lists.example.org"]
        [[queue]]
        name = "bulk"
        sender_table = "others"
        [transport.maildir]
        places = "people"
        concurrency = { start = 5 }
        [transport.smtp]
        next_hop = "relay.example.org"
        connections = 9
    "#;

    fn derived(scenario: Scenario) -> Table {
        let place = Place {
            folder: Path::new("/spool/run"),
            is_root: true,
            working_folder: Path::new("/etc/mailrace"),
            sink: (scenario == Scenario::Relay).then_some(2526),
        };
        let table = derive(&OPERATOR.parse().unwrap(), scenario, &place).unwrap();
        config::Config::parse(&table.to_string(), "derived", "machine").unwrap();
        table
    }

    fn value(table: &Table, path: &str) -> Option<Value> {
        path.parse::<SettingPath>().unwrap().find(table).cloned()
    }

    #[test]
    fn limits_queues_and_storage_are_the_operators_and_nothing_leads_out() {
        for scenario in NAMES_OF_ALL {
            let table = derived(scenario);
            assert_eq!(value(&table, "threads"), Some(3.into()));
            assert_eq!(value(&table, "limits.sessions"), Some(50.into()));
            assert_eq!(value(&table, "limits.connections_per_client"), Some("0".into()));
            assert_eq!(value(&table, "spool.spare_segments"), Some(2.into()));
            assert_eq!(value(&table, "user"), Some("mailrace".into()));
            assert_eq!(value(&table, "data_dir"), Some("/spool/run/data".into()));
            for left_out in ["spool.lanes", "log.to", "load", "dns", "queue.bulk.name", "queue.standard.senders"] {
                assert_eq!(value(&table, left_out), None, "{scenario}: {left_out}");
            }
            let text = table.to_string();
            assert!(text.contains("127.0.0.1:0") && !text.contains("0.0.0.0:25"), "{text}");
        }
    }

    #[test]
    fn only_what_delivers_has_the_operators_concurrency() {
        assert_eq!(value(&derived(Scenario::AcceptMany), "queue.local.concurrency"), Some(0.into()));
        assert_eq!(value(&derived(Scenario::Lookup), "queue.standard.concurrency"), Some(0.into()));
        let maildir = derived(Scenario::DeliverMaildir);
        assert_eq!(value(&maildir, "queue.local.concurrency"), Some(7.into()));
        assert_eq!(value(&maildir, "transport.maildir.concurrency.start"), Some(5.into()));
        assert_eq!(value(&maildir, "transport.maildir.places"), None);
        assert_eq!(value(&maildir, "transport.smtp.next_hop"), None);
    }

    #[test]
    fn relayed_mail_goes_to_the_sink_by_the_operators_settings() {
        let table = derived(Scenario::Relay);
        assert_eq!(value(&table, "transport.smtp.next_hop"), Some("127.0.0.1:2526".into()));
        assert_eq!(value(&table, "transport.smtp.connections"), Some(9.into()));
    }

    #[test]
    fn lookups_ask_the_operators_tables_where_they_are() {
        let table = derived(Scenario::Lookup);
        assert_eq!(value(&table, "domain.\"example.org\".mailboxes"), Some("people".into()));
        assert_eq!(value(&table, "table.people.path"), Some("/srv/mail/people".into()));
        assert_eq!(value(&table, "table.others.path"), Some("/etc/mailrace/others".into()));
        assert_eq!(value(&derived(Scenario::AcceptMany), "table"), None);
    }

    const NAMES_OF_ALL: [Scenario; 6] = [
        Scenario::AcceptMany,
        Scenario::AcceptOne,
        Scenario::DeliverMaildir,
        Scenario::Relay,
        Scenario::Lookup,
        Scenario::ReadHttp,
    ];
}
