//! PostgreSQL tables, each test with its own server. Without PostgreSQL the tests print a message
//! and pass.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod cluster;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use cluster::Cluster;
use lookup::LookupAnswer;
use lookup::backend::{Backend, BackendFailure};
use lookup::postgres::{Postgres, PostgresConfig, PostgresConfigError};

const BY_ADDRESS: &str = "SELECT address, target, second FROM aliases WHERE lower(address) = ANY($1) ORDER BY n";

fn config(url: &str, query: &str) -> PostgresConfig {
    PostgresConfig {
        url: url.parse().unwrap(),
        password: None,
        ca_file: None,
        query: query.into(),
        timeout: Duration::from_secs(20),
        connect_timeout: Duration::from_secs(20),
        connections: 2,
    }
}

fn table(url: &str, query: &str) -> Postgres {
    Postgres::new(config(url, query)).unwrap()
}

async fn ask(table: &Postgres, keys: &[&str]) -> Result<Vec<LookupAnswer>, BackendFailure> {
    let keys: Vec<Box<str>> = keys.iter().map(|&key| key.into()).collect();
    table.ask(&keys).await
}

fn found(values: &[&str]) -> LookupAnswer {
    LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect())
}

/// Runs a test with a server that has a few aliases, if PostgreSQL is installed.
fn with_cluster(test: impl AsyncFnOnce(&mut Cluster)) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    let Some(mut cluster) = Cluster::start() else {
        eprintln!("skipped: PostgreSQL is not installed");
        return;
    };
    runtime.block_on(async {
        let aliases = "CREATE TABLE aliases (n serial, address text, target text, second text, number int);
             INSERT INTO aliases (address, target, second, number) VALUES ('Bob@X', 'b1@x', 'B2@x', 1),
                 ('bob@x', 'b3@x', NULL, 2), ('JüRGEN@x', NULL, 'j@x', 3), ('none@x', NULL, NULL, 4)";
        cluster.sql(aliases).await;
        test(&mut cluster).await;
    });
}

#[test]
fn rows_find_their_keys_whatever_their_case_and_order() {
    with_cluster(async |cluster| {
        let two = table(&cluster.url(), BY_ADDRESS);
        let keys = ["nobody@x", "none@x", "jürgen@x", "bob@x", "' OR ''='", "nul\0", "a,b{}\"\\"];
        let expected = [LookupAnswer::NotFound, found(&[]), found(&["j@x"]), found(&["b1@x", "B2@x", "b3@x"])];
        let answers = ask(&two, &keys).await.unwrap();
        assert_eq!(answers[..4], expected);
        assert!(answers[4..].iter().all(|answer| *answer == LookupAnswer::NotFound));
        assert_eq!(ask(&two, &[]).await.unwrap(), []);
        assert_eq!(ask(&two, &["nul\0"]).await.unwrap(), [LookupAnswer::NotFound]);
        let exists =
            table(&cluster.socket_url(), "SELECT address::varchar FROM aliases WHERE lower(address) = ANY($1)");
        assert_eq!(ask(&exists, &["bob@x", "nobody@x"]).await.unwrap(), [found(&[]), LookupAnswer::NotFound]);
        exists.probe().await.unwrap();
    });
}

#[test]
fn a_query_that_is_none_for_a_table_fails_with_a_clear_text() {
    with_cluster(async |cluster| {
        for (query, expected) in [
            ("SELECT a FROM nowhere WHERE a = ANY($1)", "ERROR: relation \"nowhere\" does not exist (SQLSTATE 42P01)"),
            ("SELECT a FROM WHERE $1", "SQLSTATE 42601"),
            (
                "SELECT address, number FROM aliases WHERE address = ANY($1)",
                "'number' of the query is int4, not text; write number::text",
            ),
            (
                "SELECT address FROM aliases WHERE address = ANY($1) OR address = $2",
                "the query has parameters other than $1",
            ),
            ("SELECT FROM aliases WHERE address = ANY($1)", "the query has no columns"),
            ("SELECT address FROM aliases WHERE 'x' = ANY($1) OR true", "returned the key 'Bob@X', which is not in $1"),
            ("SELECT NULL::text FROM aliases WHERE 'x' != ALL($1)", "returned NULL as a key"),
        ] {
            let table = table(&cluster.url(), query);
            for turn in ["first", "next"] {
                let failure = ask(&table, &["nobody@x"]).await.unwrap_err();
                assert!(failure.what.contains(expected), "{turn}: {query}: {failure}");
                assert_eq!(*failure.at, *format!("postgres://127.0.0.1:{}", cluster.port()));
            }
            table.probe().await.unwrap();
        }
    });
}

#[test]
fn a_key_that_the_database_cannot_take_spoils_no_other() {
    with_cluster(async |cluster| {
        let numbers = table(&cluster.url(), "SELECT k, (k::int + 1)::text FROM unnest($1) AS k WHERE k::int < 5");
        let answers = ask(&numbers, &["1", "x", "7", "2", "y"]).await.unwrap();
        assert_eq!([&answers[0], &answers[2], &answers[3]], [&found(&["2"]), &LookupAnswer::NotFound, &found(&["3"])]);
        for place in [1, 4] {
            assert!(
                matches!(&answers[place], LookupAnswer::Unavailable(why) if why.contains("SQLSTATE 22P02")),
                "{answers:?}"
            );
        }
        assert_eq!(cluster.clients().await, 1, "the connection is kept");
    });
}

#[test]
fn a_connection_that_died_unnoticed_costs_no_answer() {
    with_cluster(async |cluster| {
        let table = table(&cluster.url(), BY_ADDRESS);
        let bob = || async { ask(&table, &["bob@x"]).await.unwrap() };
        let first = bob().await;
        assert_eq!(cluster.clients().await, 1);
        // The server closes the connection unnoticed: no task of this thread runs before the next
        // query.
        cluster.sql_in_other_process(
            "SELECT pg_terminate_backend(pid, 10000) FROM pg_stat_activity WHERE application_name = 'mailrace'",
        );
        assert_eq!(bob().await, first);
        // The prepared statement has another result type now.
        cluster.sql("ALTER TABLE aliases ALTER second TYPE varchar(50)").await;
        assert_eq!(bob().await, first);
        let (one, other) = tokio::join!(bob(), bob());
        assert_eq!([one, other], [first.clone(), first.clone()]);
        assert_eq!(cluster.clients().await, 2);
        futures_util::future::join_all((0..5).map(|_| bob())).await;
        assert_eq!(cluster.clients().await, 2, "no more connections than configured");
    });
}

#[test]
fn a_server_that_is_down_fails_requests_until_it_is_back() {
    with_cluster(async |cluster| {
        let table = table(&cluster.url(), BY_ADDRESS);
        let answers = ask(&table, &["bob@x"]).await.unwrap();
        cluster.stop();
        let failure = ask(&table, &["bob@x"]).await.unwrap_err();
        assert!(failure.what.contains("refused"), "{failure}");
        assert_eq!(*failure.at, *format!("postgres://127.0.0.1:{}/postgres", cluster.port()));
        assert!(table.probe().await.is_err());
        cluster.restart();
        table.probe().await.unwrap();
        assert_eq!(ask(&table, &["bob@x"]).await.unwrap(), answers);
    });
}

#[test]
fn what_takes_too_long_is_given_up_on_the_server_too() {
    with_cluster(async |cluster| {
        let timeout = Duration::from_millis(200);
        let query = "SELECT k, pg_sleep(CASE k WHEN 'slow' THEN 600 ELSE 0 END)::text FROM unnest($1) AS k";
        let table = Postgres::new(PostgresConfig { timeout, ..config(&cluster.url(), query) }).unwrap();
        assert_eq!(ask(&table, &["fast"]).await.unwrap(), [found(&[""])]);
        let began = Instant::now();
        let failure = ask(&table, &["slow"]).await.unwrap_err();
        assert!(failure.what.contains("no answer within 200ms"), "{failure}");
        assert!(began.elapsed() >= timeout);
        cluster.wait_until("SELECT count(*) = 0 FROM pg_stat_activity WHERE application_name = 'mailrace'").await;
        assert_eq!(ask(&table, &["fast"]).await.unwrap(), [found(&[""])]);
    });
}

#[test]
fn the_first_host_that_lets_us_in_answers() {
    with_cluster(async |cluster| {
        // Hosts that refuse connections, accept but never respond, and have no address.
        let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mute, port) = (silent.local_addr().unwrap().port(), cluster.port());
        let hosts = format!("127.0.0.1:{dead},127.0.0.1:{mute},nowhere.invalid:1");
        let connect_timeout = Duration::from_millis(300);
        let of = |hosts: &str| {
            let url = format!("postgres://postgres@{hosts}/postgres?sslmode=disable");
            Postgres::new(PostgresConfig { connect_timeout, ..config(&url, BY_ADDRESS) }).unwrap()
        };
        let failure = ask(&of(&hosts), &["bob@x"]).await.unwrap_err().to_string();
        for part in [
            format!(":{dead}: error connecting to server"),
            format!(":{mute}: no connection within 300ms"),
            "nowhere.invalid:1: ".into(),
        ] {
            assert!(failure.contains(&part), "{failure}");
        }
        let table = of(&format!("{hosts},127.0.0.1:{port}"));
        assert_eq!(ask(&table, &["nobody@x"]).await.unwrap(), [LookupAnswer::NotFound]);
    });
}

#[test]
fn the_ca_decides_whether_tls_is_trusted() {
    with_cluster(async |cluster| {
        let (ours, another) = cluster.enable_tls("localhost");
        let port = cluster.port();
        let attempt = async |url: &str, ca_file: Option<&std::path::Path>| {
            let config = PostgresConfig { ca_file: ca_file.map(Into::into), ..config(url, BY_ADDRESS) };
            ask(&Postgres::new(config).unwrap(), &["nobody@x"]).await.map_err(|failure| failure.what)
        };
        let by_name = |mode: &str| format!("postgres://postgres@localhost:{port}/postgres?sslmode={mode}");
        for mode in ["require", "prefer"] {
            assert_eq!(attempt(&by_name(mode), Some(&ours)).await.unwrap(), [LookupAnswer::NotFound], "{mode}");
            let refused = attempt(&by_name(mode), Some(&another)).await.unwrap_err();
            assert!(refused.contains("invalid peer certificate") && refused.contains("ca_file"), "{mode}: {refused}");
            let refused = attempt(&by_name(mode), None).await.unwrap_err();
            assert!(refused.contains("invalid peer certificate"), "{mode}: {refused}");
        }
        let by_address = format!("host=127.0.0.1 port={port} user=postgres sslmode=require");
        let refused = attempt(&by_address, Some(&ours)).await.unwrap_err();
        assert!(refused.contains("not valid for name"), "{refused}");
        let both = format!("host=localhost hostaddr=127.0.0.1 port={port} user=postgres sslmode=require");
        assert_eq!(attempt(&both, Some(&ours)).await.unwrap(), [LookupAnswer::NotFound]);
        assert_eq!(attempt(&by_name("disable"), None).await.unwrap(), [LookupAnswer::NotFound]);
    });
}

#[test]
fn a_server_without_tls_is_refused_where_it_is_required() {
    with_cluster(async |cluster| {
        let url = |mode: &str| format!("postgres://postgres@127.0.0.1:{}/postgres?sslmode={mode}", cluster.port());
        let failure = ask(&table(&url("require"), BY_ADDRESS), &["bob@x"]).await.unwrap_err();
        assert!(failure.what.contains("server does not support TLS"), "{failure}");
        assert_eq!(ask(&table(&url("prefer"), BY_ADDRESS), &["nobody@x"]).await.unwrap(), [LookupAnswer::NotFound]);
    });
}

#[test]
fn a_password_may_stand_beside_the_url() {
    with_cluster(async |cluster| {
        cluster.sql("CREATE ROLE mail LOGIN PASSWORD 's3cret'; GRANT SELECT ON aliases TO mail").await;
        cluster.require_passwords();
        let url = format!("postgres://mail:wrong@127.0.0.1:{}/postgres", cluster.port());
        let refused = ask(&table(&url, BY_ADDRESS), &["bob@x"]).await.unwrap_err();
        assert!(
            refused.what.contains("password authentication failed for user \"mail\" (SQLSTATE 28P01)"),
            "{refused}"
        );
        let with = PostgresConfig { password: Some("s3cret".into()), ..config(&url, BY_ADDRESS) };
        assert_eq!(ask(&Postgres::new(with).unwrap(), &["nobody@x"]).await.unwrap(), [LookupAnswer::NotFound]);
    });
}

#[test]
fn what_can_never_work_is_refused_before_anything_is_asked() {
    let url = "postgres://mail@db/mail";
    assert!(matches!(Postgres::new(config(url, "SELECT a FROM b")), Err(PostgresConfigError::NoKeys)));
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    for (path, expected) in [(empty, "no certificate found"), ("/proc/no such file".into(), "No such file")] {
        let config = PostgresConfig { ca_file: Some(path.clone()), ..config(url, BY_ADDRESS) };
        let error = Postgres::new(config).err().unwrap().to_string();
        assert!(error.starts_with(&format!("{}: ", path.display())) && error.contains(expected), "{error}");
    }
}
