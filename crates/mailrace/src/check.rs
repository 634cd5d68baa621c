//! `mailrace check`: a summary of the configuration, and warnings that an operator should see
//! before using it. The errors themselves come from `config`.

mod shadow;
mod sockets;

use std::fmt;
use std::fs;
use std::net::IpAddr;
use std::os::unix::fs::MetadataExt;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::SystemTime;

use config::{
    AuthBackend, BackendAccountSettings, Config, ConfigErrors, ConfigSource, LoadedConfig, QueueSettings,
    RelayAuthSettings, TableKind, TransportSettings,
};
use control::ConfigVerdict;
use delivery::remote::LoginSecurity;
use ldap::{LdapBindMethod, LdapUrl};
use mail::Network;
use net::TrustedRoots;
use protocol::TlsMode;
use sender_auth::Method;
use server_log::LogTarget;
use spool::Durability;

use crate::exit::ExitError;
use crate::tables::{TableOpener, TablePurpose};

use sockets::unreachable_socket_warnings;

/// What a configuration that has no errors still lacks.
pub struct ConfigCheck {
    /// Warnings about certificates, and about sockets on which nothing listens.
    pub doubts: Vec<String>,
    /// Tables that cannot be used.
    pub broken_tables: Vec<ExitError>,
}

/// Checks what the text alone does not show: certificates, tables and sockets of this machine.
///
/// # Errors
///
/// Certificates, signing keys or secrets of SRS that cannot be used.
pub fn check(loaded: &LoadedConfig) -> Result<ConfigCheck, ConfigErrors> {
    let mut doubts = config::check_certificates(loaded, SystemTime::now())?;
    doubts.extend(config::check_secret_files(loaded)?);
    let mut opener = TableOpener::new(&loaded.config, TablePurpose::Query, Arc::new(|_| {}));
    let tables = loaded.config.tables.iter();
    let broken_tables = tables.filter_map(|table| opener.get_or_open(&table.name).err()).collect();
    doubts.extend(unreachable_socket_warnings(&loaded.config));
    Ok(ConfigCheck { doubts, broken_tables })
}

/// Checks a text that is no file of this machine: neither files that it names nor servers are asked, so
/// that who sends it learns nothing about them.
pub fn check_text(text: &str) -> ConfigVerdict {
    match Config::parse(text, "the text", &config::machine_name()) {
        Ok(config) => ConfigVerdict { valid: true, errors: String::new(), warnings: all_warnings(&config) },
        Err(errors) => ConfigVerdict { valid: false, errors: errors.to_string(), warnings: Vec::new() },
    }
}

/// The summary of a valid configuration.
pub struct ConfigSummary<'a>(pub &'a LoadedConfig);

impl fmt::Display for ConfigSummary<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let config = &self.0.config;
        writeln!(f, "{} has no errors", self.0.source)?;
        writeln!(f, "  hostname   {}", config.hostname)?;
        for listener in &config.listeners {
            let protocol = listener.protocol.name();
            let tls = match listener.tls {
                TlsMode::Never => "",
                TlsMode::Offered => ", STARTTLS",
                TlsMode::Required => ", STARTTLS required",
                TlsMode::Implicit => ", TLS",
            };
            let auth = match (listener.auth, listener.require_auth) {
                (_, true) => ", login required",
                (true, false) => ", login",
                (false, false) => "",
            };
            let api = if listener.api { ", the API" } else { "" };
            writeln!(f, "  listener   {protocol} on {}{tls}{auth}{api}", listener.address)?;
        }
        for certificate in &config.certificates {
            let names = certificate.files.names.join(", ");
            let names = if names.is_empty() { "the names in it" } else { &names };
            writeln!(f, "  certificate {}: for {names}", certificate.files.chain.display())?;
        }
        if let Some(auth) = &config.auth {
            let source = match &auth.source {
                AuthBackend::Passwords(table) => format!("passwords in {table:?}"),
                AuthBackend::Bind(table) => format!("by bind to {table:?}"),
                AuthBackend::Dovecot(socket) => format!("by Dovecot at {}", socket.display()),
            };
            let mechanisms: Vec<&str> = auth.mechanisms.iter().map(|mechanism| mechanism.name()).collect();
            writeln!(f, "  logins     {source}, by {}", mechanisms.join(", "))?;
        }
        for key in &config.signing.keys {
            writeln!(f, "  signing    {}: selector {}, {}", key.domain, key.selector, key.file.display())?;
        }
        if let Some(srs) = &config.srs {
            let secrets: Vec<String> = srs.secrets.iter().map(|secret| secret.path.display().to_string()).collect();
            writeln!(f, "  srs        {}: {}, for {} days", srs.domain, secrets.join(", "), srs.days)?;
        }
        for table in &config.tables {
            writeln!(f, "  table      {}: {}", table.name, describe_table(&table.kind))?;
        }
        for domain in &config.domains {
            let who =
                domain.mailboxes.as_ref().map_or("all mailboxes".into(), |table| format!("mailboxes in {table:?}"));
            writeln!(f, "  domain     {}: {who}, by transport {:?}", domain.name, domain.transport)?;
        }
        write_routes(config, f)?;
        for lane in &config.spool.lanes {
            writeln!(f, "  spool      {}", lane.display())?;
        }
        match &config.log.to {
            LogTarget::Stderr => writeln!(f, "  log        standard error")?,
            LogTarget::File(path) => writeln!(f, "  log        {}", path.display())?,
        }
        let mut warnings = all_warnings(config).into_iter().chain(readable_secret_warnings(self.0));
        warnings.try_for_each(|warning| writeln!(f, "warning: {warning}"))
    }
}

/// The source of a table's answers.
fn describe_table(kind: &TableKind) -> String {
    let word = kind.type_name();
    match kind {
        TableKind::Text { path } | TableKind::Cdb { path } | TableKind::Regexp { path } => {
            format!("{word} {}", path.display())
        }
        TableKind::Static { values } => format!("{word} {}", values.join(", ")),
        TableKind::Unavailable { reason, .. } => format!("{word}: {reason}"),
        TableKind::Chain { tables } => format!("{word} of {}", tables.join(", ")),
        TableKind::Sqlite(sqlite) => format!("{word} {}", sqlite.database.path.display()),
        // Neither URL shows a password.
        TableKind::Postgres(postgres) => format!("{word} {}", postgres.url),
        TableKind::Ldap(ldap) => {
            let urls: Vec<String> = ldap.directory.servers.urls.iter().map(ToString::to_string).collect();
            format!("{word} {}{}", urls.join(", "), if ldap.replica.is_some() { " (replica)" } else { "" })
        }
    }
}

/// The routes and queues.
fn write_routes(config: &Config, f: &mut fmt::Formatter<'_>) -> fmt::Result {
    for route in &config.routes {
        let to = route.next_hop.as_ref().map_or("the domain's own MX".into(), ToString::to_string);
        writeln!(f, "  route      {}: {to}, by transport {:?}", route.pattern, route.transport)?;
    }
    for queue in &config.queues {
        let adopts = if queue.adopt.is_some() { ", adopts slow next hops" } else { "" };
        writeln!(f, "  queue      {}: {} concurrent attempts{adopts}", queue.name, queue.concurrency)?;
    }
    Ok(())
}

/// Warnings: not errors, but an operator should know about them.
fn all_warnings(config: &Config) -> Vec<String> {
    let loss = match config.spool.durability {
        Durability::Relaxed { sync_every } => Some(format!(
            "durability is \"relaxed\": a power failure can lose mail that was acknowledged in the last {sync_every:?}"
        )),
        Durability::Commit => None,
    };
    loss.into_iter().chain(startup_warnings(config)).collect()
}

/// The same without the warning about power failures, which the server logs in its own words.
pub fn startup_warnings(config: &Config) -> Vec<String> {
    let mut warnings: Vec<String> = config.queues.iter().filter_map(queue_warning).collect();
    if config.relay.networks.iter().any(Network::matches_all) {
        warnings.push("[relay] networks contains all addresses: this server is an open relay".into());
    }
    if config.auth.as_ref().is_some_and(|auth| auth.clear_text) {
        warnings.push("[auth] clear_text is set: passwords of clients without TLS can be intercepted".into());
    }
    warnings.extend(
        cleartext_bind_urls(config)
            .map(|url| format!("[auth] bind sends users' passwords to {url} without TLS: they can be intercepted")),
    );
    warnings.extend(open_signing_warning(config));
    warnings.extend(report_warnings(config));
    warnings.extend(cleartext_relay_warnings(config));
    warnings.extend(missing_login_warnings(config));
    warnings.extend(config.transports.iter().filter_map(ca_file_warning));
    warnings.extend(wide_proxy_warnings(config));
    warnings.extend(shadow::unreachable_rules(config));
    if config.user.is_none() && config.allow_root {
        warnings.push("allow_root is set without `user`: if started as root, the server stays root".into());
    }
    warnings
}

/// Reports that would be empty, or that nobody accepts.
fn report_warnings(config: &Config) -> impl Iterator<Item = String> {
    let is_unchecked = config.reports.dmarc && !config.sender_auth.is_on(Method::Dmarc);
    let empty = is_unchecked.then_some("[reports] dmarc is set, but [sender_auth] dmarc is off: nothing is reported");
    let is_unsigned = config.reports.tls && !(config.signing.has_keys() && config.signing.notices);
    let text = "[reports] tls is set, but [signing] signs no notices: receivers ignore reports without a signature";
    empty.into_iter().chain(is_unsigned.then_some(text)).map(str::to_owned)
}

/// Nobody can be verified without CA certificates, so all mail of the transport would wait.
fn ca_file_warning(transport: &TransportSettings) -> Option<String> {
    let smtp = transport.smtp()?;
    let error = TrustedRoots::in_file(smtp.tls_ca_file.as_deref()?).load().err()?;
    Some(format!("[transport.{}] tls_ca_file: {error}; its mail waits", transport.name))
}

/// The directories to which users' passwords are sent over the network without TLS.
fn cleartext_bind_urls(config: &Config) -> impl Iterator<Item = &LdapUrl> {
    let directory = match config.auth.as_ref().map(|auth| &auth.source) {
        Some(AuthBackend::Bind(name)) => config.table(name).map(|table| &table.kind),
        Some(AuthBackend::Passwords(_) | AuthBackend::Dovecot(_)) | None => None,
    };
    let servers = match directory {
        Some(TableKind::Ldap(ldap)) => Some(&ldap.directory.servers),
        _ => None,
    };
    let is_here = |host: &str| {
        host.eq_ignore_ascii_case("localhost") || host.parse::<IpAddr>().is_ok_and(|address| address.is_loopback())
    };
    let urls = servers.filter(|servers| !servers.starttls).into_iter().flat_map(|servers| &servers.urls);
    urls.filter(move |url| matches!(url, LdapUrl::Tcp { host, tls: false, .. } if !is_here(host)))
}

/// A signature says that the domain stands for the author.
fn open_signing_warning(config: &Config) -> Option<String> {
    let signs_for_users = config.signing.has_keys() && config.signing.submitters.users;
    let any_author = config.auth.as_ref().is_some_and(|auth| auth.senders.is_none());
    (signs_for_users && any_author).then(|| {
        "[auth] senders is not set: every user can write as any address of the domains in [signing], and gets their \
         signature"
            .into()
    })
}

/// Transports whose mail of some senders has no login.
fn missing_login_warnings(config: &Config) -> impl Iterator<Item = String> {
    let without_login = relay_logins(config).filter(|(_, auth)| auth.login.is_none());
    without_login.map(|(name, _)| {
        format!("[transport.{name}] auth has no `user`: notices, and mail of senders without an entry, have no login")
    })
}

/// Transports that send passwords in clear text.
fn cleartext_relay_warnings(config: &Config) -> impl Iterator<Item = String> {
    let open = relay_logins(config).filter(|(_, auth)| auth.security == LoginSecurity::ClearText);
    open.map(|(name, _)| {
        format!("[transport.{name}] auth sends passwords to next hops without TLS: they can be intercepted")
    })
}

/// Proxies that may state the address of their client may also state one in the relay networks.
fn wide_proxy_warnings(config: &Config) -> Vec<String> {
    let proxies = ("[smtp] xclient_from".to_owned(), &config.smtp.xclient_from);
    let balancers = config.listeners.iter().map(|own| (format!("proxy_from of {}", own.address), &own.proxies));
    let of_all = std::iter::once(proxies)
        .chain(balancers)
        .flat_map(|(list, all)| all.iter().map(move |one| (list.clone(), one)));
    let caution = |(list, network): (String, &Network)| {
        format!(
            "{list} contains {network}: every host there may claim any client address, even one in the relay networks"
        )
    };
    of_all.filter(|(_, network)| network.is_wide()).map(caution).collect()
}

fn queue_warning(queue: &QueueSettings) -> Option<String> {
    let built_in = [QueueSettings::LOCAL, QueueSettings::STANDARD, QueueSettings::LAME].contains(&&*queue.name);
    let name = &queue.name;
    if queue.concurrency == 0 {
        Some(format!("the queue {name:?} is held (concurrency = 0): its mail is not delivered"))
    } else if !built_in && queue.rules.is_empty() && queue.adopt.is_none() {
        Some(format!("the queue {name:?} has no rules and does not adopt, so it gets no mail"))
    } else {
        None
    }
}

/// Files with a password or private key that all local users can read.
fn readable_secret_warnings(loaded: &LoadedConfig) -> Vec<String> {
    let kinds = || loaded.config.tables.iter().map(|table| &table.kind);
    let is_in_text = |kind: &TableKind| match kind {
        TableKind::Postgres(postgres) => postgres.url.has_password(),
        TableKind::Ldap(ldap) => {
            matches!(&ldap.directory.servers.bind, LdapBindMethod::Simple { password, .. } if !password.is_empty())
        }
        _ => false,
    };
    let text = match &loaded.source {
        ConfigSource::File(file) if kinds().any(is_in_text) => Some(file),
        ConfigSource::File(_) | ConfigSource::BuiltIn => None,
    };
    let others = kinds().filter_map(|kind| match kind {
        TableKind::Postgres(postgres) => postgres.password_file.as_ref(),
        TableKind::Ldap(ldap) => ldap.password_file.as_ref(),
        _ => None,
    });
    let master = match &loaded.config.proxy.account {
        BackendAccountSettings::Master { password_file, .. } => Some(password_file),
        BackendAccountSettings::User | BackendAccountSettings::UserUnchecked => None,
    };
    let relays =
        relay_logins(&loaded.config).filter_map(|(_, auth)| auth.login.as_ref()).map(|login| login.secret.path());
    let relay_tables = relay_logins(&loaded.config).filter_map(|(_, auth)| loaded.config.table(auth.senders.as_ref()?));
    let relay_tables = relay_tables.filter_map(|table| match &table.kind {
        TableKind::Text { path } | TableKind::Cdb { path } => Some(path),
        _ => None,
    });
    let logins = match loaded.config.auth.as_ref().map(|auth| &auth.source) {
        Some(AuthBackend::Passwords(name)) => loaded.config.table(name).map(|table| &table.kind),
        Some(AuthBackend::Bind(_) | AuthBackend::Dovecot(_)) | None => None,
    };
    let stored = match logins {
        Some(TableKind::Text { path } | TableKind::Cdb { path }) => Some((path, "password hash")),
        _ => None,
    };
    let keys = loaded.config.certificates.iter().map(|certificate| (&certificate.files.key, "private key"));
    let passwords = text.into_iter().chain(others).chain(master).chain(relays).chain(relay_tables);
    let passwords = passwords.map(|file| (file, "password"));
    let is_open = |(file, _): &(&PathBuf, _)| fs::metadata(file).is_ok_and(|about| about.mode() & 0o004 != 0);
    let warning = |(file, secret): (&PathBuf, _)| {
        format!("all local users can read {}, which contains a {secret}", file.display())
    };
    passwords.chain(keys).chain(stored).filter(is_open).map(warning).collect()
}

/// The transports with logins.
fn relay_logins(config: &Config) -> impl Iterator<Item = (&str, &RelayAuthSettings)> {
    config.transports.iter().filter_map(|transport| Some((&*transport.name, transport.smtp()?.auth.as_ref()?)))
}

#[cfg(test)]
mod tests {
    use std::os::unix::fs::PermissionsExt;

    use super::*;

    #[test]
    fn tables_are_summed_up_without_their_passwords() {
        let text = include_str!("../../config/tests/tables.toml");
        let config = Config::parse(text, "text", "host.example").unwrap();
        let summary =
            ConfigSummary(&LoadedConfig { source: ConfigSource::BuiltIn, text: text.into(), config }).to_string();
        let tables: Vec<_> = summary.lines().filter(|line| line.starts_with("  table ")).collect();
        insta::assert_snapshot!(tables.join("\n"));
        assert!(!summary.contains("hidden"));
    }

    #[test]
    fn open_relays_and_held_queues_are_reported() {
        let cautions_of = |text: &str| startup_warnings(&Config::parse(text, "text", "host.example").unwrap());
        assert_eq!(cautions_of(""), [""; 0]);
        for (text, caution) in [
            ("[[queue]]\nname = \"standard\"\nconcurrency = 0\n", "the queue \"standard\" is held"),
            ("[[queue]]\nname = \"lists\"\n", "the queue \"lists\" has no rules"),
            ("[relay]\nnetworks = [\"0.0.0.0/0\"]\n", "open relay"),
            ("[smtp]\nxclient_from = [\"10.0.0.1\", \"0.0.0.0/1\"]\n", "[smtp] xclient_from contains 0.0.0.0/1"),
            (
                "[[listener]]\nprotocol = \"smtp\"\naddress = \"127.0.0.1:25\"\nproxy_from = [\"::/0\", \"10.0.0.1\"]\n",
                "proxy_from of 127.0.0.1:25 contains ::/0",
            ),
            ("allow_root = true\n", "the server stays root"),
            (
                "[transport.smtp]\nnext_hop = \"relay\"\nauth = { user = \"us\", password_file = \"/p\", tls = \"offered\" }\n",
                "[transport.smtp] auth sends passwords",
            ),
            (
                "[[table]]\nname = \"a\"\ntype = \"static\"\nvalues = [\"x:y\"]\n[transport.relay]\ntype = \"smtp\"\ntls = \"verified\"\nauth = { senders = \"a\" }\n",
                "[transport.relay] auth has no `user`",
            ),
            (
                "[auth]\npasswords = \"a\"\nclear_text = true\n[[table]]\nname = \"a\"\ntype = \"static\"\nvalues = [\"x\"]\n",
                "intercepted",
            ),
        ] {
            let told = cautions_of(text);
            assert!(told.len() == 1 && told[0].contains(caution), "{told:?}");
        }
        let relaxed = Config::parse("[spool]\ndurability = \"relaxed\"\n", "text", "host.example").unwrap();
        assert_eq!((all_warnings(&relaxed).len(), startup_warnings(&relaxed).len()), (1, 0));
    }

    #[test]
    fn reports_that_are_empty_or_unsigned_are_told() {
        let told = |text: &str| startup_warnings(&Config::parse(text, "text", "host.example").unwrap());
        let empty = told("[reports]\ndmarc = true\n[sender_auth]\ndmarc = \"off\"\n");
        assert!(empty.len() == 1 && empty[0].contains("nothing is reported"), "{empty:?}");
        let unsigned = told("[reports]\ntls = true\n");
        assert!(unsigned.len() == 1 && unsigned[0].contains("without a signature"), "{unsigned:?}");
        assert_eq!(told("[reports]\ndmarc = true\n"), [""; 0]);
    }

    #[test]
    fn signatures_for_any_author_are_told() {
        let told = |signing: &str, auth: &str| {
            let table = |name: &str| format!("[[table]]\nname = \"{name}\"\ntype = \"static\"\nvalues = [\"x\"]\n");
            let text = format!("{}{}{signing}\n{auth}\n", table("a"), table("b"));
            startup_warnings(&Config::parse(&text, "text", "host.example").unwrap())
        };
        let (keys, logins) = ("[signing]\ntable = \"b\"", "[auth]\npasswords = \"a\"");
        let open = told(keys, logins);
        assert!(open.len() == 1 && open[0].starts_with("[auth] senders is not set"), "{open:?}");
        for (signing, auth) in [
            ("", logins),
            (keys, ""),
            (keys, "[auth]\npasswords = \"a\"\nsenders = \"b\""),
            ("[signing]\ntable = \"b\"\nsign = [\"relay_networks\"]", logins),
        ] {
            assert_eq!(told(signing, auth), [""; 0], "{signing} {auth}");
        }
    }

    #[test]
    fn passwords_of_users_that_go_to_a_directory_in_the_clear_are_told() {
        let told = |servers: &str, auth: &str| {
            let table = "[[table]]\nname = \"d\"\ntype = \"ldap\"\nbase = \"dc=a\"\nfilter = \"(mail={key})\"";
            let text = format!("{table}\n{servers}\n[auth]\n{auth} = \"d\"\n");
            startup_warnings(&Config::parse(&text, "text", "host.example").unwrap())
        };
        let open = told("url = [\"ldap://directory.example\", \"ldap://127.0.0.1\"]", "bind");
        assert!(open.len() == 1 && open[0].contains("passwords to ldap://directory.example"), "{open:?}");
        for servers in [
            "url = [\"ldaps://directory.example\", \"ldap://[::1]:3389\", \"ldap://localhost\", \"ldapi:///run/ldapi\"]",
            "url = \"ldap://directory.example\"\nstarttls = true",
        ] {
            assert_eq!(told(servers, "bind"), [""; 0], "{servers}");
        }
        assert_eq!(told("url = \"ldap://directory.example\"", "passwords"), [""; 0]);
    }

    #[test]
    fn passwords_that_everyone_can_read_are_told() {
        let folder = tempfile::tempdir().unwrap();
        let (text, password) = (folder.path().join("text"), folder.path().join("password"));
        let told = |table: &str, mode| {
            for file in [&text, &password] {
                fs::write(file, "").unwrap();
                fs::set_permissions(file, fs::Permissions::from_mode(mode)).unwrap();
            }
            let table = format!("[[table]]\nname = \"x\"\n{table}\n");
            let config = Config::parse(&table, "text", "host.example").unwrap();
            readable_secret_warnings(&LoadedConfig { source: ConfigSource::File(text.clone()), text: table, config })
        };
        let postgres = |url| format!("type = \"postgres\"\nurl = {url:?}\nquery = \"SELECT $1\"");
        let ldap = "type = \"ldap\"\nurl = \"ldap://a\"\nbase = \"dc=a\"\nfilter = \"(mail={key})\"";
        let bound = format!("{ldap}\nbind_dn = \"cn=a\"\n");
        let (in_text, in_file) = (format!("{bound}password = \"p\""), format!("{bound}password_file = {password:?}"));
        for (table, file) in [
            (postgres("host=a password=p"), Some(&text)),
            (postgres("host=a"), None),
            (format!("{}\npassword_file = {password:?}", postgres("host=a")), Some(&password)),
            (in_text, Some(&text)),
            (in_file, Some(&password)),
            (ldap.to_owned(), None),
        ] {
            assert_eq!(told(&table, 0o640), [""; 0], "{table}");
            let told = told(&table, 0o644);
            assert_eq!(told.len(), usize::from(file.is_some()), "{table}: {told:?}");
            assert!(file.is_none_or(|file| told[0].contains(file.to_str().unwrap())), "{table}: {told:?}");
        }
        let stored = format!("type = \"text\"\npath = {password:?}\n[auth]\npasswords = \"x\"");
        assert_eq!(told(&stored, 0o640), [""; 0]);
        assert!(told(&stored, 0o644)[0].ends_with("which contains a password hash"));
    }
}
