//! Loads against scripted servers, over real sockets.

use std::collections::BTreeSet;
use std::io::{Read, Write};
use std::net::{IpAddr, SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;

use clap::Parser;

use super::*;

const PAGE: &[u8] = b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhello";

/// What a server does with a request.
enum ServerAction {
    Reply(&'static [u8]),
    ReplyAndClose(&'static [u8]),
    Close,
    Nothing,
}

/// A request as received; numbers start at 0.
struct ReceivedRequest<'a> {
    connection: usize,
    request: usize,
    text: &'a str,
}

/// What a server received.
#[derive(Default)]
struct ServerLog {
    peers: Vec<IpAddr>,
    requests: Vec<String>,
}

struct Server {
    address: SocketAddr,
    seen: Arc<Mutex<ServerLog>>,
}

impl Server {
    /// Answers each request as the script says.
    fn start(script: impl Fn(&ReceivedRequest<'_>) -> ServerAction + Send + Sync + 'static) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let seen = Arc::new(Mutex::new(ServerLog::default()));
        let (script, noted) = (Arc::new(script), seen.clone());
        thread::spawn(move || {
            for (connection, stream) in listener.incoming().enumerate() {
                let (stream, script, seen) = (stream.unwrap(), script.clone(), noted.clone());
                seen.lock().unwrap().peers.push(stream.peer_addr().unwrap().ip());
                thread::spawn(move || serve(stream, connection, script.as_ref(), &seen));
            }
        });
        Server { address, seen }
    }

    fn url(&self, path: &str) -> String {
        format!("http://{}{path}", self.address)
    }

    fn connections(&self) -> usize {
        self.seen.lock().unwrap().peers.len()
    }

    /// The number of requests that contain this text.
    fn requests_with(&self, text: &str) -> usize {
        self.seen.lock().unwrap().requests.iter().filter(|request| request.contains(text)).count()
    }
}

fn serve(
    mut stream: TcpStream,
    connection: usize,
    script: &dyn Fn(&ReceivedRequest<'_>) -> ServerAction,
    seen: &Mutex<ServerLog>,
) {
    for request in 0.. {
        let Some(text) = read_request(&mut stream) else { return };
        seen.lock().unwrap().requests.push(text.clone());
        match script(&ReceivedRequest { connection, request, text: &text }) {
            ServerAction::Reply(bytes) => stream.write_all(bytes).unwrap(),
            ServerAction::ReplyAndClose(bytes) => return stream.write_all(bytes).unwrap(),
            ServerAction::Close => return,
            ServerAction::Nothing => {}
        }
    }
}

fn read_request(stream: &mut TcpStream) -> Option<String> {
    let mut text = Vec::new();
    while !text.ends_with(b"\r\n\r\n") {
        let mut byte = [0];
        stream.read_exact(&mut byte).ok()?;
        text.push(byte[0]);
    }
    Some(String::from_utf8(text).unwrap())
}

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    options: HttpOptions,
}

fn options(words: &[&str]) -> HttpOptions {
    CommandLine::try_parse_from([&["http"], words].concat()).unwrap().options
}

/// Requests one page this many times, with these options.
fn load(server: &Server, requests: usize, words: &[&str]) -> LoadSummary {
    let (url, requests) = (server.url("/page"), requests.to_string());
    let options = options(&[&["--target", &url, "--requests", &requests], words].concat());
    run_load(&options, &options.load).unwrap()
}

fn errors(summary: &LoadSummary) -> Vec<(&str, u64)> {
    summary.errors.iter().map(|(text, &count)| (text.as_str(), count)).collect()
}

#[test]
fn connections_are_kept_and_pages_compared() {
    let server = Server::start(|_| ServerAction::Reply(PAGE));
    let summary = load(&server, 100, &["--connections", "2"]);
    assert_eq!((summary.done, summary.failed, summary.parts, summary.octets), (100, 0, 100, 500));
    assert_eq!((summary.connections, server.connections()), (2, 2));
    assert_eq!(summary.verdict(), RunVerdict::Good);
    let phases: Vec<_> = summary.phases.iter().map(|times| (times.name, times.count)).collect();
    assert_eq!(phases, [("connect", 2), ("first byte", 100), ("whole", 100)]);
}

#[test]
fn a_connection_carries_the_requested_number_of_requests_and_marks_the_last() {
    let server = Server::start(|asked| match asked.text.contains("Connection: close") {
        true => ServerAction::ReplyAndClose(b"HTTP/1.1 200 OK\r\nConnection: close\r\nContent-Length: 5\r\n\r\nhello"),
        false => ServerAction::Reply(PAGE),
    });
    let summary = load(&server, 20, &["--connections", "1", "--per-connection", "5"]);
    assert_eq!((summary.done, summary.connections, server.connections()), (20, 4, 4));
    assert_eq!(server.requests_with("Connection: close"), 4);
}

#[test]
fn other_statuses_than_200_are_errors() {
    let server = Server::start(|asked| match asked.request {
        0 => ServerAction::Reply(b"HTTP/1.1 404 Not Found\r\nContent-Length: 4\r\n\r\ngone"),
        1 | 2 => ServerAction::Reply(b"HTTP/1.1 503 Busy\r\nTransfer-Encoding: chunked\r\n\r\n0\r\n\r\n"),
        _ => ServerAction::Reply(PAGE),
    });
    let summary = load(&server, 5, &["--connections", "1"]);
    assert_eq!((summary.done, summary.failed, summary.octets, summary.connections), (2, 3, 10, 1));
    assert_eq!(errors(&summary), [("status 404", 1), ("status 503", 2)]);
    assert_eq!(summary.verdict(), RunVerdict::Bad);
}

#[test]
fn a_page_whose_content_changes_is_an_error() {
    let script = |asked: &ReceivedRequest<'_>| match asked.request {
        3 => ServerAction::Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhallo"),
        _ => ServerAction::Reply(PAGE),
    };
    let server = Server::start(script);
    let summary = load(&server, 5, &["--connections", "1"]);
    let complaint = format!("{}: the content differs from the first response", server.url("/page"));
    assert_eq!(errors(&summary), [(complaint.as_str(), 1)]);
    assert_eq!((summary.done, summary.failed, summary.parts), (4, 1, 4));
    let unchecked = load(&Server::start(script), 5, &["--connections", "1", "--no-check"]);
    assert_eq!((unchecked.done, unchecked.parts, unchecked.verdict()), (5, 0, RunVerdict::Good));
}

#[test]
fn a_reply_that_is_cut_short_or_none_is_an_error() {
    let server = Server::start(|asked| match asked.connection {
        0 => ServerAction::ReplyAndClose(b"HTTP/1.1 200 OK\r\nContent-Length: 5\r\n\r\nhell"),
        1 => ServerAction::Close,
        2 => ServerAction::Reply(b"220 mx ESMTP\r\n\r\n"),
        _ => ServerAction::Reply(PAGE),
    });
    let summary = load(&server, 4, &["--connections", "1"]);
    let cut = "connection closed before the end of the reply";
    assert_eq!(errors(&summary), [(cut, 2), ("invalid HTTP/1.1 response head", 1)]);
    assert_eq!((summary.done, summary.failed), (1, 3));
}

#[test]
fn a_server_may_close_an_idle_connection() {
    let server =
        Server::start(|asked| if asked.request == 2 { ServerAction::Close } else { ServerAction::Reply(PAGE) });
    let summary = load(&server, 10, &["--connections", "1"]);
    assert_eq!((summary.done, summary.connections, summary.verdict()), (10, 5, RunVerdict::Good));
}

#[test]
fn a_silent_server_is_a_timeout() {
    let server = Server::start(|_| ServerAction::Nothing);
    let summary = load(&server, 2, &["--connections", "2", "--timeout", "50ms"]);
    assert_eq!(errors(&summary), [("no answer in time", 2)]);
}

#[test]
fn a_refused_connection_is_an_error_and_not_a_fault() {
    let address = TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap();
    let options = options(&["--target", &format!("http://{address}/"), "--requests", "2", "--connections", "2"]);
    let summary = run_load(&options, &options.load).unwrap();
    assert_eq!(errors(&summary), [("connect: Connection refused", 2)]);
}

#[test]
fn head_requests_are_supported() {
    let server = Server::start(|_| ServerAction::Reply(b"HTTP/1.1 200 OK\r\nContent-Length: 5000\r\n\r\n"));
    let summary = load(&server, 10, &["--connections", "1", "--head"]);
    assert_eq!((summary.done, summary.octets, summary.parts), (10, 0, 0));
    assert_eq!(server.requests_with("HEAD /page HTTP/1.1\r\n"), 10);
}

#[test]
fn pages_come_in_turn_or_at_random() {
    let server = Server::start(|_| ServerAction::Reply(PAGE));
    let mut list = tempfile::NamedTempFile::new().unwrap();
    write!(list, "{}\n\n{}\n", server.url("/b"), server.url("/c")).unwrap();
    let count = |order: &str| {
        server.seen.lock().unwrap().requests.clear();
        let urls = list.path().to_str().unwrap();
        let options = options(&["--target", &server.url("/a"), "--urls", urls, "--requests", "300", "--order", order]);
        assert_eq!(run_load(&options, &options.load).unwrap().done, 300);
        ["/a", "/b", "/c"].map(|page| server.requests_with(page))
    };
    assert_eq!(count("turn"), [100, 100, 100]);
    let drawn = count("random");
    assert!(drawn != [100; 3] && drawn.iter().all(|&count| count > 60), "{drawn:?}");
}

#[test]
fn a_connection_is_not_used_for_a_page_of_another_server() {
    let (one, other) = (Server::start(|_| ServerAction::Reply(PAGE)), Server::start(|_| ServerAction::Reply(PAGE)));
    let options = options(&[
        "--target",
        &one.url("/one"),
        "--target",
        &other.url("/other"),
        "--requests",
        "4",
        "--connections",
        "1",
    ]);
    let summary = run_load(&options, &options.load).unwrap();
    assert_eq!((summary.done, summary.connections), (4, 4));
    assert_eq!((one.requests_with("/one"), other.requests_with("/other")), (2, 2));
}

#[test]
fn local_addresses_take_turns() {
    let server = Server::start(|_| ServerAction::Reply(PAGE));
    load(&server, 40, &["--connections", "4", "--local", "127.0.0.2", "--local", "127.0.0.3"]);
    let peers: BTreeSet<String> = server.seen.lock().unwrap().peers.iter().map(IpAddr::to_string).collect();
    assert_eq!(peers, ["127.0.0.2", "127.0.0.3"].map(str::to_owned).into());
}

#[test]
fn a_sweep_runs_once_for_each_number_of_connections() {
    let server = Server::start(|asked| match asked.connection {
        0 => ServerAction::Reply(b"HTTP/1.1 500 Oh\r\nContent-Length: 0\r\n\r\n"),
        _ => ServerAction::Reply(PAGE),
    });
    let options = options(&["--target", &server.url("/"), "--requests", "40", "--sweep", "1,2,4"]);
    let sweep = sweep(&options).unwrap();
    assert_eq!(sweep.verdict(), RunVerdict::Bad);
    let said = sweep.to_string();
    let lines: Vec<Vec<&str>> = said.lines().skip(3).map(|line| line.split_whitespace().collect()).collect();
    assert_eq!((lines[0][0], lines[0][1], lines[0][6]), ("1", "0", "100.00%"), "{said}");
    assert_eq!((lines[1][0], lines[1][1], lines[1][6]), ("2", "40", "0.00%"), "{said}");
    assert_eq!((lines[2][0], lines[2][1], lines[2][6]), ("4", "40", "0.00%"), "{said}");
    assert!(said.ends_with("40  with 1 connections: status 500\n"), "{said}");
    assert!(serde_json::to_value(&sweep).unwrap()["steps"][0]["error_share"] == 1.0);
}

#[test]
fn invalid_options_are_refused_before_any_request() {
    let fault = |words: &[&str]| run(&options(words)).expect_err("these options are invalid").to_string();
    assert!(fault(&["--target", "http://192.0.2.1/"]).contains("--i-own-this-target 192.0.2.1"));
    assert!(fault(&["--target", "http://127.0.0.1/", "--sweep", "1,2"]).contains("--requests or --duration"));
    assert!(fault(&["--urls", "/dev/null"]).contains("no pages"));
    assert!(CommandLine::try_parse_from(["http"]).is_err());
}
