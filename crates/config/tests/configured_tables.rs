//! Tables in the configuration file: their settings, errors in them, and that passwords stay
//! hidden.

use std::time::Duration;

use config::{
    Config, LdapReplicaConfig, LdapTableConfig, MysqlTableConfig, PostgresTableConfig, RedisTableConfig,
    SqliteTableConfig, TableConfig, TableKind,
};
use ldap::{GroupMembersConfig, LdapBindMethod, LdapConfig, LdapConnectionConfig, SearchScope};
use lookup::conversion::ConversionRules;
use lookup::layers::{BackendSettings, CacheSettings};
use lookup::redis::{RedisCommand, RedisCommandKind};
use lookup::sqlite;

fn parse(text: &str) -> Result<Config, String> {
    Config::parse(text, "mailrace.toml", "host.example").map_err(|faults| faults.to_string())
}

fn faults(text: &str) -> String {
    parse(text).expect_err("the text has faults")
}

fn seconds(seconds: u64) -> Duration {
    Duration::from_secs(seconds)
}

fn minutes(minutes: u64) -> Duration {
    seconds(minutes * 60)
}

/// The tables in the text with all keys.
fn tables() -> Vec<TableConfig> {
    parse(include_str!("tables.toml")).expect("the text has no errors").tables
}

fn kind(name: &str) -> TableKind {
    tables().into_iter().find(|table| &*table.name == name).expect("a table of that name").kind
}

#[test]
fn tables_are_in_the_order_of_the_text() {
    let kinds: Vec<_> = tables().iter().map(|table| format!("{}: {}", table.kind.type_name(), table.name)).collect();
    let expected = [
        "chain: all",
        "text: people",
        "cdb: aliases",
        "regexp: patterns",
        "static: everyone",
        "sqlite: sqlite",
        "sqlite: sqlite with defaults",
        "postgres: postgres",
        "postgres: postgres with defaults",
        "mysql: mysql",
        "mysql: mysql with defaults",
        "redis: redis",
        "redis: redis with defaults",
        "ldap: directory",
        "ldap: copy",
        "ldap: copy with defaults",
        "ldap: directory with defaults",
    ];
    assert_eq!(kinds, expected);
}

#[test]
fn what_tables_in_memory_are_made_of_arrives() {
    assert_eq!(kind("people"), TableKind::Text { path: "/data/people".into() });
    assert_eq!(kind("aliases"), TableKind::Cdb { path: "/etc/mailrace/aliases.cdb".into() });
    assert_eq!(kind("patterns"), TableKind::Regexp { path: "/etc/mailrace/patterns".into() });
    let values = vec!["one@example.org".to_owned(), "two@example.org".to_owned()];
    assert_eq!(kind("everyone"), TableKind::Static { values });
    let tables = ["people", "patterns", "everyone"].map(Into::into).into();
    assert_eq!(kind("all"), TableKind::Chain { tables });
}

#[test]
fn every_setting_of_databases_arrives() {
    let database = sqlite::SqliteConfig {
        path: "/data/mail.db".into(),
        query: "SELECT target FROM aliases WHERE address = :key".into(),
        timeout: seconds(11),
    };
    let cache = CacheSettings { ttl: minutes(13), negative_ttl: seconds(0), stale_if_error: seconds(0), entries: 14 };
    let lookup_settings = BackendSettings { cache: Some(cache), wait_max: seconds(12), ..BackendSettings::default() };
    assert_eq!(kind("sqlite"), TableKind::Sqlite(Box::new(SqliteTableConfig { database, lookup_settings })));
    let database =
        sqlite::SqliteConfig { path: "/mail.db".into(), query: "SELECT 1 WHERE :domain".into(), timeout: seconds(10) };
    let lookup_settings = BackendSettings { cache: None, ..BackendSettings::default() };
    assert_eq!(
        kind("sqlite with defaults"),
        TableKind::Sqlite(Box::new(SqliteTableConfig { database, lookup_settings }))
    );
    let postgres = PostgresTableConfig {
        url: "postgres://mail:hidden@db1:5433,db2/mail?sslmode=require".parse().unwrap(),
        password_file: None,
        ca_file: Some("/data/ca.pem".into()),
        query: "SELECT address, target FROM aliases WHERE address = ANY($1)".into(),
        timeout: seconds(21),
        connect_timeout: seconds(22),
        lookup_settings: BackendSettings {
            cache: None,
            batch_max: 23,
            concurrency: 24,
            wait_max: seconds(25),
            failures_max: 26,
            probe_interval: seconds(27),
            ..BackendSettings::default()
        },
    };
    assert_eq!(kind("postgres"), TableKind::Postgres(Box::new(postgres)));
    let postgres = PostgresTableConfig {
        url: "host=/run/postgresql user=mail".parse().unwrap(),
        password_file: Some("/data/password".into()),
        ca_file: None,
        query: "SELECT $1".into(),
        timeout: seconds(10),
        connect_timeout: seconds(5),
        lookup_settings: BackendSettings::default(),
    };
    assert_eq!(kind("postgres with defaults"), TableKind::Postgres(Box::new(postgres)));
}

/// Settings of the layers, all of which begin with the same digit.
fn layers(tens: u64) -> BackendSettings {
    BackendSettings {
        cache: None,
        batch_max: tens as usize + 3,
        concurrency: tens as usize + 4,
        wait_max: seconds(tens + 5),
        failures_max: tens as usize + 6,
        probe_interval: seconds(tens + 7),
        ..BackendSettings::default()
    }
}

#[test]
fn every_setting_of_mysql_arrives() {
    let mysql = MysqlTableConfig {
        url: "mysql://mail:hidden@db1:3307,db2/mail?ssl-mode=required".parse().unwrap(),
        password_file: None,
        ca_file: Some("/data/ca.pem".into()),
        query: "SELECT goto FROM alias WHERE address = :key".parse().unwrap(),
        timeout: seconds(61),
        connect_timeout: seconds(62),
        lookup_settings: layers(60),
    };
    assert_eq!(kind("mysql"), TableKind::Mysql(Box::new(mysql)));
    let conversion = ConversionRules {
        match_subdomains: true,
        domains: Some(vec!["example.org".into(), "example.com".into()]),
        separator: Some(",".into()),
        result_format: Some("{value_local}@{domain}".parse().unwrap()),
        values_max: Some(68),
    };
    let with_rules: Vec<_> =
        tables().into_iter().filter(|table| table.conversion != ConversionRules::default()).collect();
    assert!(with_rules.len() == 1 && with_rules[0].conversion == conversion, "{with_rules:?}");
    let mysql = MysqlTableConfig {
        url: "mysql:///mail?socket=/run/mysqld/mysqld.sock".parse().unwrap(),
        password_file: Some("/data/password".into()),
        ca_file: None,
        query: "SELECT 1 WHERE :label2".parse().unwrap(),
        timeout: seconds(10),
        connect_timeout: seconds(5),
        lookup_settings: BackendSettings::default(),
    };
    assert_eq!(kind("mysql with defaults"), TableKind::Mysql(Box::new(mysql)));
}

#[test]
fn every_setting_of_redis_arrives() {
    let command = |kind, key: &str| RedisCommand { kind, key: key.parse().unwrap() };
    let redis = RedisTableConfig {
        url: "rediss://mail:hidden@db1,db2:6380/1".parse().unwrap(),
        password_file: None,
        ca_file: Some("/data/ca.pem".into()),
        command: command(RedisCommandKind::Hget("{local}".parse().unwrap()), "aliases:{domain}"),
        timeout: seconds(71),
        connect_timeout: seconds(72),
        lookup_settings: layers(70),
    };
    assert_eq!(kind("redis"), TableKind::Redis(Box::new(redis)));
    let redis = RedisTableConfig {
        url: "redis://db".parse().unwrap(),
        password_file: Some("/data/password".into()),
        ca_file: None,
        command: command(RedisCommandKind::Get, "alias:{key}"),
        timeout: seconds(10),
        connect_timeout: seconds(5),
        lookup_settings: BackendSettings::default(),
    };
    assert_eq!(kind("redis with defaults"), TableKind::Redis(Box::new(redis)));
}

/// A directory with only the mandatory keys.
fn directory(url: &str) -> LdapConfig {
    LdapConfig {
        servers: LdapConnectionConfig {
            urls: vec![url.parse().expect("a URL")],
            starttls: false,
            ca_file: None,
            bind: LdapBindMethod::Anonymous,
            connect_timeout: seconds(5),
            timeout: seconds(10),
        },
        base: "dc=example,dc=org".into(),
        scope: SearchScope::Sub,
        filter: "(mail={key})".parse().expect("a filter"),
        results: Vec::new(),
        members: None,
        values_max: 1000,
        entries_max: None,
        referrals: false,
    }
}

#[test]
fn every_setting_of_directories_arrives() {
    let servers = LdapConnectionConfig {
        urls: vec!["ldap://127.0.0.1:389".parse().unwrap(), "ldap://[::1]:1389".parse().unwrap()],
        starttls: true,
        ca_file: Some("/etc/ssl/ours.pem".into()),
        bind: LdapBindMethod::Simple { dn: "cn=mail,dc=example,dc=org".into(), password: "hidden".into() },
        connect_timeout: seconds(33),
        timeout: seconds(34),
    };
    let asked = LdapConfig {
        servers,
        base: "ou=people,dc=example,dc=org".into(),
        scope: SearchScope::One,
        filter: "(&(objectClass=person)(|(mail={key})(alias={key})))".parse().unwrap(),
        results: vec!["mail".parse().unwrap(), "{mailMessageStore}/Maildir/".parse().unwrap()],
        members: Some(GroupMembersConfig {
            attributes: vec!["member".into()],
            leaf_results: vec!["mail".parse().unwrap()],
            terminal_results: vec!["maildrop".parse().unwrap()],
            depth_max: 31,
        }),
        values_max: 32,
        entries_max: Some(30),
        referrals: true,
    };
    let cache =
        CacheSettings { ttl: minutes(40), negative_ttl: seconds(41), stale_if_error: minutes(42 * 60), entries: 43 };
    let lookup_settings = BackendSettings {
        cache: Some(cache),
        batch_max: 35,
        concurrency: 36,
        wait_max: seconds(37),
        failures_max: 38,
        probe_interval: seconds(39),
        ..BackendSettings::default()
    };
    let expected = LdapTableConfig { directory: asked, password_file: None, lookup_settings, replica: None };
    assert_eq!(kind("directory"), TableKind::Ldap(Box::new(expected)));
    let asked = directory("ldap://ldap.example.org");
    let expected = LdapTableConfig {
        directory: asked,
        password_file: None,
        lookup_settings: BackendSettings::default(),
        replica: None,
    };
    assert_eq!(kind("directory with defaults"), TableKind::Ldap(Box::new(expected)));
}

#[test]
fn every_setting_of_copies_arrives() {
    let mut asked = directory("ldapi:///run/slapd/ldapi");
    asked.servers.bind = LdapBindMethod::External;
    asked.scope = SearchScope::Base;
    asked.results = vec!["mail".parse().unwrap()];
    let copy = LdapReplicaConfig { file: "/data/copy".into(), poll_every: minutes(51), removals_max: 1.0 };
    let lookup_settings = BackendSettings::default();
    let expected = LdapTableConfig { directory: asked, password_file: None, lookup_settings, replica: Some(copy) };
    assert_eq!(kind("copy"), TableKind::Ldap(Box::new(expected)));
    let mut asked = directory("ldaps://ldap.example.org");
    asked.servers.bind = LdapBindMethod::Simple { dn: "cn=mail".into(), password: "".into() };
    let file = "/data/tables/copy with defaults".into();
    let copy = LdapReplicaConfig { file, poll_every: minutes(5), removals_max: 0.1 };
    let password_file = Some("/etc/mailrace/password".into());
    let expected = LdapTableConfig { directory: asked, password_file, lookup_settings, replica: Some(copy) };
    assert_eq!(kind("copy with defaults"), TableKind::Ldap(Box::new(expected)));
}

#[test]
fn faults_of_tables_are_told() {
    let shown = faults(include_str!("mistabled.toml"));
    insta::assert_snapshot!(shown);
}

#[test]
fn faults_of_directories_are_told() {
    let shown = faults(include_str!("misdirected.toml"));
    insta::assert_snapshot!(shown);
}

#[test]
fn nothing_shows_a_password() {
    let shown = faults(include_str!("secrets.toml"));
    assert!(!shown.contains("hidden"), "{shown}");
    insta::assert_snapshot!(shown);
    let kept = format!("{:?}", Config::parse(include_str!("secrets.toml"), "", ""));
    assert!(!kept.contains("hidden"), "{kept}");
    let read = format!("{:?}", tables());
    assert!(read.contains("cn=mail") && !read.contains("hidden"), "{read}");
    let torn = faults(&include_str!("secrets.toml").replace(" = ", " = = "));
    assert!(torn.contains("this is not TOML") && !torn.contains("hidden"), "{torn}");
    for mark in ["/", "?", "#", ":", "@"] {
        let url = format!("postgres://mail:hid{mark}den@db/mail?sslrootcert=x");
        let shown = faults(&format!("[[table]]\nname = \"a\"\ntype = \"postgres\"\nurl = \"{url}\"\nquery = \"x\"\n"));
        assert!(shown.contains("url") && !shown.contains("den@"), "{shown}");
    }
    for quotes in ["\"\"\"", "'''"] {
        let text = format!("= 1\npassword = {quotes}\nhidden\nhidden{quotes} hidden = hidden\nshown = shown\n");
        for torn in [faults(&text), faults(&text.replace("hidden{quotes}", "hidden"))] {
            assert!(torn.contains("this is not TOML") && !torn.contains("hidden"), "{torn}");
        }
        assert!(faults(&text).contains("shown = shown"), "{}", faults(&text));
    }
}

#[test]
fn a_thousand_tables_are_enough() {
    let tables = |count: usize| {
        let table = |n| format!("[[table]]\nname = \"{n}\"\ntype = \"chain\"\ntables = [\"{}\"]\n", n + 1);
        let last = format!("[[table]]\nname = \"{count}\"\ntype = \"static\"\nvalues = [\"x\"]\n");
        (1..count).map(table).collect::<String>() + &last
    };
    assert_eq!(parse(&tables(1000)).unwrap().tables.len(), 1000);
    assert!(faults(&tables(1001)).contains("too many tables"));
}
