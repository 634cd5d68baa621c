//! Values of the programs that the server depends on: name servers, rsyslog, slapd.

use std::collections::HashSet;
use std::time::Duration;

use crate::host::Host;
use crate::resolver::name_servers;
use crate::settings::ServerSettings;
use crate::survey::Observed;
use crate::value::Value;

/// Folders of slapd's configuration: Debian's and Red Hat's.
const SLAPD_FOLDERS: [&str; 2] = ["/etc/ldap", "/etc/openldap"];
/// The size of an mdb database without the setting, in bytes.
const MAXSIZE_DEFAULT: u64 = 10 << 20;

/// How long the first name server takes to answer, in whole milliseconds; nothing without `--probe`.
pub(super) fn name_server_time(host: &Host) -> Observed {
    let milliseconds = |time: Duration| u64::try_from(time.as_millis()).unwrap_or(u64::MAX);
    host.name_server_time().map_or(Observed::Absent, |time| Observed::number(Some(milliseconds(time))))
}

/// The addresses of the name servers, in the order in which they are asked.
pub(super) fn name_server_addresses(host: &Host, settings: &ServerSettings) -> Observed {
    let servers = name_servers(host, settings);
    let addresses: Vec<String> = servers.iter().map(|server| server.ip().to_string()).collect();
    Observed::known(Some(Value::Text(addresses.join(", "))).filter(|_| !addresses.is_empty()))
}

/// Whether rsyslog syncs after each line.
pub(super) fn syslog_sync(host: &Host) -> Observed {
    let folder = "/etc/rsyslog.d";
    let names = host.list(folder).unwrap_or_default();
    let files = names.iter().filter(|name| name.ends_with(".conf")).map(|name| format!("{folder}/{name}"));
    let files = std::iter::once("/etc/rsyslog.conf".to_owned()).chain(files);
    let texts: Vec<String> = files.filter_map(|path| host.read(&path)).collect();
    if texts.is_empty() {
        return Observed::Absent;
    }
    let is_synced = texts.iter().flat_map(|text| text.lines()).any(syncs);
    Observed::text(Some(if is_synced { "synced" } else { "not synced" }))
}

/// Whether a line of rsyslog.conf switches syncing on, in its older or its newer form.
fn syncs(line: &str) -> bool {
    let line = line.split('#').next().unwrap_or_default().to_ascii_lowercase();
    let words: Vec<_> = line.split_ascii_whitespace().collect();
    words == ["$actionfileenablesync", "on"] || line.replace(' ', "").contains("sync=\"on\"")
}

/// A setting of slapd, with its name in slapd.conf.
struct SlapdSetting {
    name: String,
    value: String,
}

/// The attributes of the configured lookups that have no index for equality.
pub(super) fn slapd_index(host: &Host, settings: &ServerSettings) -> Observed {
    let Some(slapd) = slapd(host, settings) else { return unreadable_slapd(host, settings) };
    let indexed: HashSet<String> =
        slapd.iter().filter(|it| it.name == "index").flat_map(|it| indexed(&it.value)).collect();
    let attributes = settings.ldap_tables.iter().flat_map(|table| &table.attributes);
    let mut missing: Vec<&str> =
        attributes.filter(|attribute| !indexed.contains(*attribute)).map(String::as_str).collect();
    missing.sort_unstable();
    missing.dedup();
    Observed::Value(Value::Text(if missing.is_empty() { "none".to_owned() } else { missing.join(", ") }))
}

/// `mail,uid eq,sub`: attributes and kinds. Without kinds those of the default apply, which is taken for equality.
fn indexed(value: &str) -> Vec<String> {
    let mut words = value.split_ascii_whitespace();
    let names = words.next().unwrap_or_default().to_ascii_lowercase();
    let has_equality = words.next().is_none_or(|kinds| kinds.split(',').any(|kind| kind == "eq"));
    if has_equality { names.split(',').map(str::to_owned).collect() } else { Vec::new() }
}

/// The log level; without the setting the default, which is "stats".
pub(super) fn slapd_loglevel(host: &Host, settings: &ServerSettings) -> Observed {
    let Some(slapd) = slapd(host, settings) else { return unreadable_slapd(host, settings) };
    let level = slapd.iter().rev().find(|it| it.name == "loglevel").map(|it| it.value.trim().to_ascii_lowercase());
    Observed::Value(Value::Text(level.unwrap_or_else(|| "stats".to_owned())))
}

/// The size of the smallest mdb database, in bytes.
pub(super) fn slapd_maxsize(host: &Host, settings: &ServerSettings) -> Observed {
    let Some(slapd) = slapd(host, settings) else { return unreadable_slapd(host, settings) };
    let is_mdb = |it: &SlapdSetting| it.name == "database" && it.value.trim().ends_with("mdb");
    if !slapd.iter().any(is_mdb) {
        return Observed::Absent;
    }
    let sizes = slapd.iter().filter(|it| it.name == "maxsize").map(|it| it.value.trim().parse::<u64>());
    let sizes: Result<Vec<u64>, _> = sizes.collect();
    Observed::number(sizes.ok().map(|sizes| sizes.into_iter().min().unwrap_or(MAXSIZE_DEFAULT)))
}

/// Without a table in a directory, or without slapd on this host, there is nothing to check.
fn unreadable_slapd(host: &Host, settings: &ServerSettings) -> Observed {
    let is_configuration = |name: &String| ["slapd.d", "slapd.conf"].contains(&&**name);
    let has_slapd = |folder: &&str| host.list(folder).is_some_and(|names| names.iter().any(is_configuration));
    match settings.ldap_tables.is_empty() || !SLAPD_FOLDERS.iter().any(has_slapd) {
        true => Observed::Absent,
        false => Observed::Unknown,
    }
}

/// The settings of slapd on this host, if a table needs a directory and they can be read.
fn slapd(host: &Host, settings: &ServerSettings) -> Option<Vec<SlapdSetting>> {
    if settings.ldap_tables.is_empty() {
        return None;
    }
    SLAPD_FOLDERS
        .iter()
        .find_map(|folder| slapd_d(host, &format!("{folder}/slapd.d")).or_else(|| slapd_conf(host, folder)))
}

/// `name value` in each line; lines that begin with white space continue the one before.
fn slapd_conf(host: &Host, folder: &str) -> Option<Vec<SlapdSetting>> {
    let text = host.read(&format!("{folder}/slapd.conf"))?.replace("\n ", " ").replace("\n\t", " ");
    let lines = text.lines().filter(|line| !line.starts_with('#'));
    let setting = |line: &str| {
        let (name, value) = line.trim().split_once(|c: char| c.is_ascii_whitespace())?;
        Some(SlapdSetting { name: name.to_ascii_lowercase(), value: value.trim().to_owned() })
    };
    Some(lines.filter_map(setting).collect())
}

/// The attributes of cn=config that matter, in the files of its LDIF backend.
fn slapd_d(host: &Host, folder: &str) -> Option<Vec<SlapdSetting>> {
    const NAMES: [(&str, &str); 4] = [
        ("olcDbIndex", "index"),
        ("olcLogLevel", "loglevel"),
        ("olcDbMaxSize", "maxsize"),
        ("olcDatabase", "database"),
    ];
    let main = host.read(&format!("{folder}/cn=config.ldif"))?;
    let databases = host.list(&format!("{folder}/cn=config"))?;
    let databases = databases.iter().filter(|name| name.starts_with("olcDatabase=") && name.ends_with(".ldif"));
    let databases: Option<Vec<String>> =
        databases.map(|name| host.read(&format!("{folder}/cn=config/{name}"))).collect();
    let texts = std::iter::once(main).chain(databases?);
    let setting = |line: &str| {
        let (name, value) = line.split_once(": ")?;
        let (_, name) = NAMES.iter().find(|(ldif, _)| name.eq_ignore_ascii_case(ldif))?;
        Some(SlapdSetting { name: (*name).to_owned(), value: value.trim().to_owned() })
    };
    Some(texts.flat_map(|text| text.replace("\n ", "").lines().filter_map(setting).collect::<Vec<_>>()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn syncing_is_recognised_in_both_forms() {
        assert!(syncs("$ActionFileEnableSync on"));
        assert!(syncs("mail.* action(type=\"omfile\" file=\"/var/log/mail.log\" sync=\"on\")"));
        assert!(!syncs("# $ActionFileEnableSync on"));
        assert!(!syncs("mail.* action(type=\"omfile\" asyncWriting=\"on\")"));
        assert!(!syncs("mail.* -/var/log/mail.log"));
    }

    #[test]
    fn an_index_needs_equality() {
        assert_eq!(indexed("mail,Uid eq,sub"), ["mail", "uid"]);
        assert!(indexed("cn pres,sub").is_empty());
        assert_eq!(indexed("cn"), ["cn"]);
    }
}
