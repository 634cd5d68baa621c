//! MySQL tables: with a MariaDB server for each test, and with servers that break the protocol.
//! Without MariaDB the tests that need it print a message and pass.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod hostile;
mod server;

use std::net::TcpListener;
use std::time::{Duration, Instant};

use hostile::{Trick, packet};
use lookup::LookupAnswer;
use lookup::backend::{Backend, BackendFailure};
use lookup::mysql::{Mysql, MysqlConfig};
use server::Server;
use tokio::runtime::Builder;
use tokio::task::LocalSet;

const BY_ADDRESS: &str = "SELECT target, second FROM aliases WHERE address = :key";

fn config(url: &str, query: &str) -> MysqlConfig {
    MysqlConfig {
        url: url.parse().unwrap(),
        password: None,
        ca_file: None,
        query: query.parse().unwrap(),
        timeout: Duration::from_secs(20),
        connect_timeout: Duration::from_secs(20),
        connections: 2,
    }
}

fn table(url: &str, query: &str) -> Mysql {
    Mysql::new(config(url, query)).unwrap()
}

async fn ask(table: &Mysql, keys: &[&str]) -> Result<Vec<LookupAnswer>, BackendFailure> {
    let keys: Vec<Box<str>> = keys.iter().map(|&key| key.into()).collect();
    table.ask(&keys).await
}

fn found(values: &[&str]) -> LookupAnswer {
    LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect())
}

/// Runs a future as the thread of a table does.
fn run<T>(future: impl Future<Output = T>) -> T {
    let runtime = Builder::new_current_thread().enable_all().build().unwrap();
    LocalSet::new().block_on(&runtime, future)
}

/// Runs a test with a server that has a few aliases, if MariaDB is installed.
fn with_server(test: impl AsyncFnOnce(&mut Server)) {
    let Some(mut server) = Server::start() else {
        eprintln!("skipped: MariaDB is not installed");
        return;
    };
    server.sql(
        "USE mail; CREATE TABLE aliases (address varchar(100) PRIMARY KEY, target varchar(100), second text, n int unsigned,
             since date) CHARACTER SET utf8mb4 COLLATE utf8mb4_general_ci;
         INSERT INTO aliases VALUES ('Bob@X', 'b1@x', 'B2@x', 1, now()), ('JüRGEN@x', NULL, 'j@x', 2, now()),
             ('none@x', NULL, NULL, 4294967295, now());
         CREATE TABLE members (list varchar(100), member varchar(100));
         INSERT INTO members VALUES ('all@x', 'a'), ('all@x', 'b'), ('all@x', 'c')",
    );
    run(test(&mut server));
}

#[test]
fn rows_are_found_and_their_columns_are_values() {
    with_server(async |server| {
        let keys =
            ["nobody@x", "none@x", "jürgen@x", "bob@x", "' OR ''='", "nul\0", "%", "\\", "a'; DROP TABLE aliases"];
        let expected = [LookupAnswer::NotFound, found(&[]), found(&["j@x"]), found(&["b1@x", "B2@x"])];
        for url in [server.url(), server.socket_url()] {
            let table = table(&url, BY_ADDRESS);
            let answers = ask(&table, &keys).await.unwrap();
            assert_eq!(answers[..4], expected);
            assert!(answers[4..].iter().all(|answer| *answer == LookupAnswer::NotFound), "{answers:?}");
            assert_eq!(ask(&table, &[]).await.unwrap(), []);
            table.probe().await.unwrap();
        }
        let members = table(&server.url(), "SELECT member FROM members WHERE list = :key");
        assert_eq!(ask(&members, &["all@x"]).await.unwrap(), [found(&["a", "b", "c"])]);
        let numbers =
            table(&server.url(), "SELECT n, n / 2, -n FROM aliases WHERE address = CONCAT(:local, '@', :domain)");
        let answers = ask(&numbers, &["none@x", "none", "bob@x"]).await.unwrap();
        let expected = [found(&["4294967295", "2147483647.5000", "-4294967295"]), LookupAnswer::NotFound];
        assert_eq!(answers[..2], expected);
        assert_eq!(answers[2], found(&["1", "0.5000", "-1"]));
    });
}

#[test]
fn many_keys_share_few_statements() {
    with_server(async |server| {
        server
            .sql("INSERT INTO mail.aliases SELECT CONCAT('u', seq, '@x'), seq, NULL, 0, NULL FROM mysql.seq_1_to_300");
        let table = table(&server.url(), BY_ADDRESS);
        let names: Vec<String> = (0..=301).map(|number| format!("u{number}@x")).collect();
        let keys: Vec<&str> = names.iter().map(String::as_str).collect();
        let executed = || -> u64 {
            let status = server.sql("SHOW GLOBAL STATUS LIKE 'Com_stmt_execute'");
            status.split_whitespace().last().unwrap().parse().unwrap()
        };
        let before = executed();
        let answers = ask(&table, &keys).await.unwrap();
        for (number, answer) in answers.iter().enumerate() {
            let expected =
                if (1..=300).contains(&number) { found(&[&number.to_string()]) } else { LookupAnswer::NotFound };
            assert_eq!(*answer, expected, "{number}");
        }
        // Four times 64, and 32, 8, 4 and 2 keys.
        assert_eq!(executed() - before, 8);
    });
}

#[test]
fn a_query_that_cannot_be_combined_asks_keys_one_by_one() {
    with_server(async |server| {
        server.sql("CREATE PROCEDURE mail.find(IN a varchar(100)) SELECT target FROM mail.aliases WHERE address = a");
        let keys = ["bob@x", "nobody@x", "jürgen@x"];
        let called = table(&server.url(), "CALL find(:key)");
        for _ in 0..2 {
            let expected = [found(&["b1@x"]), LookupAnswer::NotFound, found(&[])];
            assert_eq!(ask(&called, &keys).await.unwrap(), expected);
        }
        let twice = table(&server.url(), "SELECT target, target FROM aliases WHERE address = :key -- why");
        assert_eq!(ask(&twice, &keys).await.unwrap()[0], found(&["b1@x", "b1@x"]));
    });
}

#[test]
fn a_query_that_is_none_for_a_table_fails_with_a_clear_text() {
    with_server(async |server| {
        for (query, expected) in [
            ("SELECT a FROM nowhere WHERE a = :key", "Table 'mail.nowhere' doesn't exist (error 1146, SQLSTATE 42S02)"),
            ("SELECT a FROM WHERE :key", "error 1064, SQLSTATE 42000"),
            (
                "SELECT since FROM aliases WHERE address = :key",
                "the column 'since' of the query holds a date or time, not text; write CAST(... AS CHAR)",
            ),
            ("SELECT UNHEX('FF') FROM aliases WHERE address = :key", "octets that are not UTF-8"),
        ] {
            let table = table(&server.url(), query);
            for turn in ["first", "next"] {
                let failure = ask(&table, &["bob@x"]).await.unwrap_err();
                assert!(failure.what.contains(expected), "{turn}: {query}: {failure}");
                assert_eq!(*failure.at, *format!("mysql://127.0.0.1:{}", server.port()));
            }
            table.probe().await.unwrap();
        }
    });
}

#[test]
fn a_key_that_the_database_cannot_take_spoils_no_other() {
    with_server(async |server| {
        server.sql("SET GLOBAL sql_mode = 'STRICT_ALL_TABLES'");
        server.sql(
            "DELIMITER //
             CREATE FUNCTION mail.checked(a varchar(100)) RETURNS int BEGIN
                 IF a = 'x@x' THEN SIGNAL SQLSTATE '22007' SET MESSAGE_TEXT = 'not a number'; END IF; RETURN 1; END//",
        );
        let table = table(&server.url(), "SELECT checked(:key)");
        let answers = ask(&table, &["1@x", "x@x", "2@x"]).await.unwrap();
        assert_eq!([&answers[0], &answers[2]], [&found(&["1"]), &found(&["1"])]);
        assert!(matches!(&answers[1], LookupAnswer::Unavailable(why) if why.contains("SQLSTATE 22007")), "{answers:?}");
        assert_eq!(server.clients().len(), 1, "the connection is kept");
    });
}

#[test]
fn a_connection_that_died_unnoticed_costs_no_answer() {
    with_server(async |server| {
        let table = table(&server.url(), BY_ADDRESS);
        let bob = || async { ask(&table, &["bob@x"]).await.unwrap() };
        let first = bob().await;
        server.sql("KILL USER root");
        assert_eq!(bob().await, first);
        // The prepared statement has another result now.
        server.sql("ALTER TABLE mail.aliases MODIFY second varchar(50)");
        assert_eq!(bob().await, first);
        let (one, other) = tokio::join!(bob(), bob());
        assert_eq!([one, other], [first.clone(), first.clone()]);
        futures_util::future::join_all((0..5).map(|_| bob())).await;
        assert_eq!(server.clients().len(), 2, "no more connections than configured");
    });
}

#[test]
fn a_server_that_is_down_fails_requests_until_it_is_back() {
    with_server(async |server| {
        let table = table(&server.url(), BY_ADDRESS);
        let answers = ask(&table, &["bob@x"]).await.unwrap();
        server.stop();
        let failure = ask(&table, &["bob@x"]).await.unwrap_err();
        assert!(failure.what.contains("refused"), "{failure}");
        assert_eq!(*failure.at, *format!("mysql://127.0.0.1:{}/mail", server.port()));
        assert!(table.probe().await.is_err());
        server.restart(&[]);
        table.probe().await.unwrap();
        assert_eq!(ask(&table, &["bob@x"]).await.unwrap(), answers);
    });
}

#[test]
fn what_takes_too_long_is_killed_on_the_server_too() {
    with_server(async |server| {
        let timeout = Duration::from_millis(300);
        let query = "SELECT IF(:key = 'slow@x', SLEEP(600), 0)";
        let table = Mysql::new(MysqlConfig { timeout, ..config(&server.url(), query) }).unwrap();
        assert_eq!(ask(&table, &["fast@x"]).await.unwrap(), [found(&["0"])]);
        let began = Instant::now();
        let failure = ask(&table, &["slow@x"]).await.unwrap_err();
        assert!(failure.what.contains("no answer within 300ms"), "{failure}");
        assert!(began.elapsed() >= timeout);
        let deadline = Instant::now() + Duration::from_secs(20);
        while !server.clients().is_empty() {
            assert!(Instant::now() < deadline, "{:?}", server.clients());
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
        assert_eq!(ask(&table, &["fast@x"]).await.unwrap(), [found(&["0"])]);
    });
}

#[test]
fn the_first_server_that_lets_us_in_answers() {
    with_server(async |server| {
        let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let silent = TcpListener::bind("127.0.0.1:0").unwrap();
        let (mute, port) = (silent.local_addr().unwrap().port(), server.port());
        let hosts = format!("127.0.0.1:{dead},127.0.0.1:{mute},nowhere.invalid:1,%2Fnowhere");
        let connect_timeout = Duration::from_millis(500);
        let of = |hosts: &str| {
            let url = format!("mysql://root@{hosts}/mail");
            Mysql::new(MysqlConfig { connect_timeout, ..config(&url, BY_ADDRESS) }).unwrap()
        };
        let failure = ask(&of(&hosts), &["bob@x"]).await.unwrap_err().to_string();
        for part in [
            format!(":{dead}: Connection refused"),
            format!(":{mute}: no connection within 500ms"),
            "nowhere.invalid:1: ".into(),
            "/nowhere: No such file".into(),
        ] {
            assert!(failure.contains(&part), "{failure}");
        }
        let table = of(&format!("{hosts},127.0.0.1:{port}"));
        assert_eq!(ask(&table, &["nobody@x"]).await.unwrap(), [LookupAnswer::NotFound]);
    });
}

#[test]
fn the_ca_decides_whether_tls_is_trusted() {
    with_server(async |server| {
        let (ours, another) = server.enable_tls("localhost");
        let port = server.port();
        let attempt = async |url: &str, ca_file: Option<&std::path::Path>| {
            let config = MysqlConfig { ca_file: ca_file.map(Into::into), ..config(url, BY_ADDRESS) };
            ask(&Mysql::new(config).unwrap(), &["nobody@x"]).await.map_err(|failure| failure.what)
        };
        server.sql("CREATE USER safe@'%' REQUIRE SSL; GRANT SELECT ON mail.* TO safe@'%'");
        let by_name = |mode: &str| format!("mysql://safe@localhost:{port}/mail?ssl-mode={mode}");
        for mode in ["required", "preferred"] {
            assert_eq!(attempt(&by_name(mode), Some(&ours)).await.unwrap(), [LookupAnswer::NotFound], "{mode}");
            for ca in [Some(&*another), None] {
                let refused = attempt(&by_name(mode), ca).await.unwrap_err();
                assert!(
                    refused.contains("invalid peer certificate") && refused.contains("ca_file"),
                    "{mode}: {refused}"
                );
            }
        }
        let by_address = format!("mysql://safe@127.0.0.1:{port}/mail?ssl-mode=required");
        let refused = attempt(&by_address, Some(&ours)).await.unwrap_err();
        assert!(refused.contains("not valid for name"), "{refused}");
        let refused = attempt(&by_name("disabled"), None).await.unwrap_err();
        assert!(refused.contains("Access denied"), "{refused}");
    });
}

#[test]
fn a_server_without_tls_is_refused_where_it_is_required() {
    with_server(async |server| {
        let url = |mode: &str| format!("{}?ssl-mode={mode}", server.url());
        let failure = ask(&table(&url("required"), BY_ADDRESS), &["bob@x"]).await.unwrap_err();
        assert!(failure.what.contains("the server does not support TLS"), "{failure}");
        assert_eq!(ask(&table(&url("preferred"), BY_ADDRESS), &["nobody@x"]).await.unwrap(), [LookupAnswer::NotFound]);
    });
}

#[test]
fn a_password_may_stand_beside_the_url() {
    with_server(async |server| {
        server.sql("CREATE USER mail@'%' IDENTIFIED BY 's3cret'; GRANT SELECT ON mail.* TO mail@'%'");
        let url = format!("mysql://mail:wrong@127.0.0.1:{}/mail", server.port());
        let refused = ask(&table(&url, BY_ADDRESS), &["bob@x"]).await.unwrap_err();
        assert!(refused.what.contains("Access denied for user 'mail'") && refused.what.contains("1045"), "{refused}");
        let with = MysqlConfig { password: Some("s3cret".into()), ..config(&url, BY_ADDRESS) };
        assert_eq!(ask(&Mysql::new(with).unwrap(), &["nobody@x"]).await.unwrap(), [LookupAnswer::NotFound]);
    });
}

#[test]
fn a_user_of_the_system_needs_no_password_on_the_socket() {
    with_server(async |server| {
        let name = std::process::Command::new("id").arg("-un").output().unwrap().stdout;
        let name = String::from_utf8(name).unwrap().trim().to_owned();
        let user = format!("'{name}'@localhost");
        server.sql(&format!(
            "CREATE USER IF NOT EXISTS {user}; ALTER USER {user} IDENTIFIED VIA unix_socket; GRANT SELECT ON mail.* TO {user}"
        ));
        let url = server.socket_url().replace("root@", &format!("{name}@"));
        assert_eq!(ask(&table(&url, BY_ADDRESS), &["nobody@x"]).await.unwrap(), [LookupAnswer::NotFound]);
    });
}

/// Asks a server that breaks the protocol, and returns the failure.
fn failure(trick: Trick) -> String {
    let url = format!("mysql://mail:secret@127.0.0.1:{}/mail", hostile::serve(trick));
    let second = Duration::from_secs(1);
    let config = MysqlConfig { timeout: second * 5, connect_timeout: second, ..config(&url, BY_ADDRESS) };
    let began = Instant::now();
    let failure = run(async { ask(&Mysql::new(config).unwrap(), &["bob@x"]).await.unwrap_err().to_string() });
    assert!(began.elapsed() < second * 10, "{failure}");
    assert!(!failure.contains("secret"), "{failure}");
    failure
}

#[test]
fn a_server_that_breaks_the_login_is_left() {
    let silence = "no connection within 1s";
    for (octets, expected) in [
        (b"220 mx.example ESMTP\r\n".to_vec(), "out of order"),
        (vec![0xff; 100], "more than 4 MiB"),
        (packet(0, b""), "too short"),
        (packet(0, b"\x09old"), "not a greeting of MySQL"),
        (packet(1, b"\x0a5.7"), "out of order"),
        (packet(0, b"\xff\x10\x04Too many connections"), "Too many connections"),
        (hostile::greeting()[..30].to_vec(), silence),
        (Vec::new(), silence),
    ] {
        let failure = failure(Trick::Greeting(octets));
        assert!(failure.contains(expected), "{failure}");
    }
    for (octets, expected) in [
        (packet(2, b""), "unknown step of the login"),
        (packet(2, b"\xff\x15\x04#28000no"), "no (error 1045, SQLSTATE 28000)"),
        (packet(2, b"\xfemysql_clear_password\0"), "'mysql_clear_password', which is not supported"),
        (packet(2, b"\xfemysql_native_password\0"), "too short"),
        (packet(2, b"\x01\x04"), "only sent by TLS or a Unix socket"),
        ((2..9).flat_map(|number| packet(number, b"\x01\x03")).collect(), "does not end the login"),
    ] {
        let failure = failure(Trick::Login(octets));
        assert!(failure.contains(expected), "{failure}");
    }
}

#[test]
fn a_server_that_breaks_an_answer_fails_the_request() {
    for (octets, expected) in [
        (packet(1, b""), "too short"),
        (packet(1, b"\x05"), "not an answer to a statement"),
        (packet(1, b"\0\x01\0\0\0"), "too short"),
        (packet(7, b"\0"), "out of order"),
        (packet(1, b"\xff\x7a\x04#42S02no table"), "no table (error 1146, SQLSTATE 42S02)"),
        (packet(1, &[0, 1, 0, 0, 0, 1, 0, 2, 0, 0, 0, 0]), "no answer within 5s"),
        (packet(1, b"\0\x01\0\0\0\xff\xff\xff\xff\0\0\0")[..9].to_vec(), "no answer within 5s"),
    ] {
        let failure = failure(Trick::Statement(octets));
        assert!(failure.contains(expected), "{failure}");
    }
    let failure = failure(Trick::StatementAndClose(packet(1, b"\0")[..3].to_vec()));
    assert!(failure.contains("end of file") || failure.contains("eof"), "{failure}");
}

#[test]
fn rows_without_end_are_cut_off() {
    let failure = failure(Trick::EndlessRows);
    assert!(failure.contains("more than 100000 rows in one answer"), "{failure}");
}

#[test]
fn what_can_never_work_is_refused_before_anything_is_asked() {
    let folder = tempfile::tempdir().unwrap();
    let empty = folder.path().join("empty.pem");
    std::fs::write(&empty, "").unwrap();
    for (path, expected) in [(empty, "no certificate found"), ("/proc/no such file".into(), "No such file")] {
        let config = MysqlConfig { ca_file: Some(path.clone()), ..config("mysql://db", BY_ADDRESS) };
        let error = Mysql::new(config).err().unwrap().to_string();
        assert!(error.starts_with(&format!("{}: ", path.display())) && error.contains(expected), "{error}");
    }
}
