//! The part of the configuration that the knobs depend on, as plain numbers and names.

use std::net::SocketAddr;
use std::path::PathBuf;

use config::{Config, ListenerSettings, MaildirPathTemplate, QueueSettings, TableKind, TransportSettings};

use crate::setting_path::SettingPath;

/// What the server is configured to do.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ServerSettings {
    /// Threads for sessions; 0 lets the server choose.
    pub threads: u64,
    /// Sessions of clients that send mail.
    pub sessions: u64,
    /// Sessions of clients that read; 0 without such a listener.
    pub reading_sessions: u64,
    /// Connections that wait to be accepted.
    pub backlog: u64,
    /// Memory for message bodies, in bytes.
    pub body_memory: u64,
    /// Memory of the caches of small files of all HTTP listeners, in bytes.
    pub file_cache_memory: u64,
    /// Delivery attempts to other hosts at the same time, in all queues.
    pub outgoing: u64,
    /// Unused connections that one thread of deliveries keeps open.
    pub idle_connections: u64,
    /// The folders of the spool's lanes.
    pub lanes: Vec<PathBuf>,
    /// Free segments that each lane keeps.
    pub spare_segments: u64,
    /// Whether a 250 waits for a sync.
    pub syncs_each_commit: bool,
    /// Whether a limit on pressure is set.
    pub limits_pressure: bool,
    /// Name servers; empty: those of the host.
    pub name_servers: Vec<SocketAddr>,
    /// The folders of the mailboxes of each transport to Maildirs.
    pub mailboxes: Vec<PathBuf>,
    /// The concurrency with which each transport to Maildirs starts, by name.
    pub maildir_concurrency: Vec<(String, u64)>,
    /// The concurrency with which the transport `smtp` starts at each next hop.
    pub relay_concurrency: u64,
    /// The concurrency of each queue, by name.
    pub queue_concurrency: Vec<(String, u64)>,
    /// The keys in one request of each table on a server, by name.
    pub table_batch: Vec<(String, u64)>,
    /// Tables in directories.
    pub ldap_tables: Vec<LdapTable>,
}

/// A table in a directory.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LdapTable {
    /// Its name.
    pub name: String,
    /// The attributes that are compared with keys, in lower case.
    pub attributes: Vec<String>,
}

impl ServerSettings {
    /// Takes the numbers out of a configuration.
    pub fn from_config(config: &Config) -> ServerSettings {
        let has_readers = config.listeners.iter().any(ListenerSettings::is_for_readers);
        let http_listeners = config.listeners.iter().filter(|listener| listener.http.is_some()).count();
        let load = &config.load.limits;
        let pressure = [load.cpu_pressure_max, load.io_pressure_max, load.memory_pressure_max];
        ServerSettings {
            threads: config.threads as u64,
            sessions: config.limits.connections.sessions_max as u64,
            reading_sessions: if has_readers { config.limits.reading_sessions_max as u64 } else { 0 },
            backlog: config.limits.backlog.into(),
            body_memory: config.limits.body_memory_max,
            file_cache_memory: config.http.cache.octets_max.saturating_mul(http_listeners) as u64,
            outgoing: outgoing(config),
            idle_connections: idle_connections(config),
            lanes: config.spool.lanes.clone(),
            spare_segments: config.spool.spare_segments as u64,
            syncs_each_commit: config.spool.syncs_each_commit(),
            limits_pressure: pressure.iter().any(Option::is_some),
            name_servers: config.dns.query.servers.clone(),
            mailboxes: mailboxes(config),
            maildir_concurrency: maildir_concurrency(config),
            relay_concurrency: relay_concurrency(config),
            queue_concurrency: config.queues.iter().map(|q| (q.name.to_string(), q.concurrency as u64)).collect(),
            table_batch: table_batch(config),
            ldap_tables: config.tables.iter().filter_map(ldap_table).collect(),
        }
    }

    /// The value of a setting that its section may leave out, if that section exists: a default that the built-in
    /// configuration cannot name, since it has no such section.
    pub(crate) fn in_force(&self, path: &SettingPath) -> Option<u64> {
        let [section, name, key] = path.parts() else { return None };
        let values = match (section.as_str(), key.as_str()) {
            ("table", "batch") => &self.table_batch,
            ("queue", "concurrency") => &self.queue_concurrency,
            _ => return None,
        };
        values.iter().find(|(found, _)| found == name).map(|(_, value)| *value)
    }

    /// The threads that run sessions, as many as deliver to other hosts: half of the processors if the configuration
    /// leaves it to the server.
    pub(crate) fn session_threads(&self, processors: Option<u64>) -> u64 {
        match self.threads {
            0 => processors.unwrap_or(1).div_ceil(2),
            threads => threads,
        }
    }
}

fn outgoing(config: &Config) -> u64 {
    let remote = config.queues.iter().filter(|queue| &*queue.name != QueueSettings::LOCAL);
    remote.map(|queue| queue.concurrency as u64).sum()
}

fn idle_connections(config: &Config) -> u64 {
    let idle = config.transports.iter().filter_map(TransportSettings::smtp);
    idle.map(|smtp| smtp.connections.idle_connections_max as u64).max().unwrap_or(0)
}

fn mailboxes(config: &Config) -> Vec<PathBuf> {
    let each = config.transports.iter().filter_map(TransportSettings::maildir).flat_map(|maildir| {
        let places = maildir.places.as_ref().map(|places| places.root.clone());
        std::iter::once(fixed_part(&maildir.path)).chain(places)
    });
    each.collect()
}

/// The folder that contains all mailboxes of a template: what two of them have in common.
fn fixed_part(template: &MaildirPathTemplate) -> PathBuf {
    let (one, other) = (template.expand("a", "a"), template.expand("b", "b"));
    let parts = one.components().zip(other.components());
    parts.take_while(|(a, b)| a == b).map(|(part, _)| part).collect()
}

fn maildir_concurrency(config: &Config) -> Vec<(String, u64)> {
    let start = |transport: &TransportSettings| {
        Some((transport.name.to_string(), transport.maildir()?.concurrency.start as u64))
    };
    config.transports.iter().filter_map(start).collect()
}

fn relay_concurrency(config: &Config) -> u64 {
    let built_in = config.transports.iter().find(|transport| &*transport.name == TransportSettings::SMTP);
    built_in.and_then(TransportSettings::smtp).map_or(0, |smtp| smtp.limits.concurrency.start as u64)
}

fn table_batch(config: &Config) -> Vec<(String, u64)> {
    let each = config.tables.iter().filter_map(|table| {
        let settings = match &table.kind {
            TableKind::Ldap(ldap) => &ldap.lookup_settings,
            TableKind::Postgres(postgres) => &postgres.lookup_settings,
            TableKind::Mysql(mysql) => &mysql.lookup_settings,
            TableKind::Redis(redis) => &redis.lookup_settings,
            _ => return None,
        };
        Some((table.name.to_string(), settings.batch_max as u64))
    });
    each.collect()
}

fn ldap_table(table: &config::TableConfig) -> Option<LdapTable> {
    let TableKind::Ldap(ldap) = &table.kind else { return None };
    let attributes = ldap.directory.filter.key_attributes()?;
    Some(LdapTable {
        name: table.name.to_string(),
        attributes: attributes.into_iter().map(str::to_ascii_lowercase).collect(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn settings(text: &str) -> ServerSettings {
        ServerSettings::from_config(&Config::parse(text, "test", "mx.example.org").unwrap())
    }

    #[test]
    fn the_defaults_arrive() {
        let settings = settings(config::DEFAULT);
        assert_eq!((settings.sessions, settings.reading_sessions, settings.backlog), (10_000, 0, 1024));
        assert_eq!((settings.outgoing, settings.idle_connections), (1075, 2000));
        assert_eq!(settings.lanes, [PathBuf::from("./mailrace-data/spool")]);
        assert_eq!(settings.mailboxes, [PathBuf::from("./mailrace-data/mail")]);
        assert_eq!(settings.maildir_concurrency, [("maildir".to_owned(), 100)]);
        assert!(settings.syncs_each_commit && !settings.limits_pressure);
    }

    #[test]
    fn what_is_changed_arrives() {
        let settings = settings(
            "load = { io_pressure = 50.0 }\nspool = { durability = \"relaxed\" }\ndns = { servers = [\"127.0.0.1:53\"] }\n\
             [[listener]]\nprotocol = \"smtp\"\naddress = \"127.0.0.1:25\"\n\
             [[listener]]\nprotocol = \"http\"\naddress = \"127.0.0.1:80\"\nfiles = \"/srv\"\n\
             [[table]]\nname = \"people\"\ntype = \"ldap\"\nurl = \"ldap://127.0.0.1\"\nbase = \"o=x\"\n\
             filter = \"(|(mail={key})(UID={key}))\"\nbatch = 7\n\
             [transport.maildir]\nplaces = \"people\"\nroot = \"/srv/mail\"\n",
        );
        assert!(!settings.syncs_each_commit && settings.limits_pressure);
        assert_eq!((settings.reading_sessions, settings.file_cache_memory), (10_000, 64 << 20));
        assert_eq!(settings.table_batch, [("people".to_owned(), 7)]);
        assert_eq!(settings.ldap_tables[0].attributes, ["mail", "uid"]);
        assert_eq!(settings.mailboxes[1], PathBuf::from("/srv/mail"));
        assert_eq!(settings.name_servers, ["127.0.0.1:53".parse().unwrap()]);
    }
}
