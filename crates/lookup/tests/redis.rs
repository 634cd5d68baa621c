//! Redis tables with scripted servers. A real Redis is asked by tests/ecosystem/test_redis.py.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use lookup::LookupAnswer;
use lookup::backend::{Backend, BackendFailure};
use lookup::redis::{Redis, RedisCommand, RedisCommandKind, RedisConfig};

/// What a server answers to a command, or None to close the connection.
type Script = Arc<dyn Fn(&[String]) -> Option<Vec<u8>> + Send + Sync>;

/// A server that answers by a script, and the commands that it was given.
struct Server {
    port: u16,
    commands: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(script: impl Fn(&[String]) -> Option<Vec<u8>> + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let port = listener.local_addr().unwrap().port();
        let commands = Arc::new(Mutex::new(Vec::new()));
        let (script, log): (Script, _) = (Arc::new(script), commands.clone());
        std::thread::spawn(move || {
            for stream in listener.incoming().map_while(Result::ok) {
                let (script, log) = (script.clone(), log.clone());
                std::thread::spawn(move || while answer(&stream, &script, &log).is_some() {});
            }
        });
        Server { port, commands }
    }

    fn url(&self, login: &str, database: &str) -> String {
        format!("redis://{login}127.0.0.1:{}/{database}", self.port)
    }

    fn commands(&self) -> Vec<String> {
        self.commands.lock().unwrap().clone()
    }
}

/// Answers one command; None when the connection ends.
fn answer(stream: &TcpStream, script: &Script, log: &Mutex<Vec<String>>) -> Option<()> {
    let mut reader = BufReader::with_capacity(1, stream);
    let mut number = |mark: char| {
        let mut line = String::new();
        reader.read_line(&mut line).ok()?;
        line.trim_end().strip_prefix(mark)?.parse::<usize>().ok()
    };
    let count = number('*')?;
    let mut words = Vec::new();
    for _ in 0..count {
        let mut line = String::new();
        let mut reader = BufReader::with_capacity(1, stream);
        reader.read_line(&mut line).ok()?;
        let mut word = vec![0; line.trim_end().strip_prefix('$')?.parse::<usize>().ok()? + 2];
        reader.read_exact(&mut word).ok()?;
        word.truncate(word.len() - 2);
        words.push(String::from_utf8(word).ok()?);
    }
    log.lock().unwrap().push(words.join(" "));
    let mut stream = stream;
    stream.write_all(&script(&words)?).ok()
}

fn config(url: &str) -> RedisConfig {
    RedisConfig {
        url: url.parse().unwrap(),
        password: None,
        ca_file: None,
        command: RedisCommand { kind: RedisCommandKind::Get, key: "mail:{key}".parse().unwrap() },
        timeout: Duration::from_secs(5),
        connect_timeout: Duration::from_secs(1),
        connections: 2,
    }
}

async fn ask(table: &Redis, keys: &[&str]) -> Result<Vec<LookupAnswer>, BackendFailure> {
    let keys: Vec<Box<str>> = keys.iter().map(|&key| key.into()).collect();
    table.ask(&keys).await
}

fn found(values: &[&str]) -> LookupAnswer {
    LookupAnswer::Found(values.iter().map(|&value| value.to_owned()).collect())
}

/// A well-behaved server.
fn usual(words: &[String]) -> Option<Vec<u8>> {
    let reply = match words.iter().map(String::as_str).collect::<Vec<_>>()[..] {
        ["AUTH", .., "s3cret"] | ["SELECT", "3"] => "+OK\r\n",
        ["AUTH", ..] => "-WRONGPASS invalid username-password pair\r\n",
        ["PING"] => "+PONG\r\n",
        ["GET", "mail:bob@x"] => "$6\r\nb\r\n1@x\r\n",
        ["GET", "mail:list@x"] => "-WRONGTYPE Operation against a key\r\n",
        _ => "$-1\r\n",
    };
    Some(reply.into())
}

#[tokio::test]
async fn keys_are_asked_together_after_one_login() {
    let server = Server::start(usual);
    let table = Redis::new(config(&server.url("mail:s3cret@", "3"))).unwrap();
    let answers = ask(&table, &["bob@x", "eve@x", "list@x", "bob@x\r\nFLUSHALL"]).await.unwrap();
    assert_eq!(
        [&answers[0], &answers[1], &answers[3]],
        [&found(&["b\r\n1@x"]), &LookupAnswer::NotFound, &LookupAnswer::NotFound]
    );
    assert!(matches!(&answers[2], LookupAnswer::Unavailable(why) if why.contains("WRONGTYPE")), "{answers:?}");
    assert_eq!(ask(&table, &["eve@x"]).await.unwrap(), [LookupAnswer::NotFound]);
    table.probe().await.unwrap();
    let expected = [
        "AUTH mail s3cret",
        "SELECT 3",
        "GET mail:bob@x",
        "GET mail:eve@x",
        "GET mail:list@x",
        "GET mail:bob@x\r\nFLUSHALL",
        "GET mail:eve@x",
        "PING",
    ];
    assert_eq!(server.commands(), expected);
}

#[tokio::test]
async fn keys_without_a_part_are_not_asked() {
    let server = Server::start(usual);
    let field = RedisCommandKind::Hget("{local}".parse().unwrap());
    let command = RedisCommand { kind: field, key: "{domain}".parse().unwrap() };
    let table = Redis::new(RedisConfig { command, ..config(&server.url("", "")) }).unwrap();
    assert_eq!(ask(&table, &["bob", "@x"]).await.unwrap(), [LookupAnswer::NotFound, LookupAnswer::NotFound]);
    assert_eq!(server.commands(), [""; 0]);
}

#[tokio::test]
async fn a_refused_login_is_told_without_the_password() {
    let server = Server::start(usual);
    let with = RedisConfig { password: Some("guessed".into()), ..config(&server.url("", "")) };
    let failure = ask(&Redis::new(with).unwrap(), &["bob@x"]).await.unwrap_err().to_string();
    assert!(failure.contains("WRONGPASS") && !failure.contains("guessed"), "{failure}");
}

#[tokio::test]
async fn a_connection_that_died_unnoticed_costs_no_answer() {
    let turn = Mutex::new(0);
    let server = Server::start(move |words| {
        let mut turn = turn.lock().unwrap();
        *turn += 1;
        if *turn == 2 { None } else { usual(words) }
    });
    let table = Redis::new(config(&server.url("", ""))).unwrap();
    for _ in 0..3 {
        assert_eq!(ask(&table, &["bob@x"]).await.unwrap(), [found(&["b\r\n1@x"])]);
    }
}

#[tokio::test]
async fn a_server_that_breaks_the_protocol_fails_the_request() {
    for (reply, expected) in [
        (&b"HTTP/1.1 400 Bad Request\r\n"[..], "not a reply of Redis"),
        (b"\r\n", "an empty line"),
        (b"+OK\r\n", "not a value"),
        (b":7\r\n", "not a value"),
        (b"$99999999999\r\n", "too much"),
        (b"$2\r\nabc\r\n", "a text without its end"),
        (b"*2\r\n$1\r\na\r\n*1\r\n", "a member that is not a text"),
        (b"-LOADING Redis is loading the dataset in memory\r\n", "LOADING"),
        (b"$5\r\nab", "no answer within 5s"),
        (b"", "no answer within 5s"),
    ] {
        let server = Server::start(move |_| Some(reply.to_vec()));
        let began = Instant::now();
        let failure = ask(&Redis::new(config(&server.url("", ""))).unwrap(), &["bob@x"]).await.unwrap_err().to_string();
        assert!(failure.contains(expected), "{reply:?}: {failure}");
        assert!(began.elapsed() < Duration::from_secs(15));
    }
    let endless = Server::start(|_| Some(vec![b'+'; 1_000_000]));
    let failure = ask(&Redis::new(config(&endless.url("", ""))).unwrap(), &["bob@x"]).await.unwrap_err();
    assert!(failure.what.contains("a line that does not end"), "{failure}");
    let closing = Server::start(|_| None);
    let failure = ask(&Redis::new(config(&closing.url("", ""))).unwrap(), &["bob@x"]).await.unwrap_err();
    assert!(failure.what.contains("end of file"), "{failure}");
    let members = Server::start(|_| {
        let member = format!("${}\r\n{}\r\n", 1 << 22, "x".repeat(1 << 22));
        Some(format!("*20\r\n{}", member.repeat(20)).into_bytes())
    });
    let failure = ask(&Redis::new(config(&members.url("", ""))).unwrap(), &["bob@x"]).await.unwrap_err();
    assert!(failure.what.contains("more than 64 MiB"), "{failure}");
}

#[tokio::test]
async fn the_first_server_that_lets_us_in_answers() {
    let server = Server::start(usual);
    let dead = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let hosts = format!("127.0.0.1:{dead},%2Fnowhere");
    let failure = ask(&Redis::new(config(&format!("redis://{hosts}"))).unwrap(), &["bob@x"]).await.unwrap_err();
    assert!(failure.what.contains("refused") && failure.what.contains("/nowhere: No such file"), "{failure}");
    let url = format!("redis://{hosts},127.0.0.1:{}", server.port);
    assert_eq!(ask(&Redis::new(config(&url)).unwrap(), &["eve@x"]).await.unwrap(), [LookupAnswer::NotFound]);
}
