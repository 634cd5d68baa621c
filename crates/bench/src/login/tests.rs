//! Sessions with a scripted server, over real sockets.

use std::io::{BufRead, BufReader, Write};
use std::net::{SocketAddr, TcpListener, TcpStream};
use std::sync::Mutex;
use std::thread;

use clap::Parser;

use super::*;

/// The reply to a line; that of the greeting is empty. None ends the connection without one.
type Script = fn(&str) -> Option<String>;

struct Server {
    address: SocketAddr,
    /// The lines it received.
    lines: Arc<Mutex<Vec<String>>>,
}

impl Server {
    fn start(script: Script) -> Server {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let address = listener.local_addr().unwrap();
        let lines = Arc::new(Mutex::new(Vec::new()));
        let heard = lines.clone();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let heard = heard.clone();
                thread::spawn(move || serve(&stream.unwrap(), &heard, script));
            }
        });
        Server { address, lines }
    }

    /// How many times this line was received.
    fn count(&self, line: &str) -> usize {
        self.lines.lock().unwrap().iter().filter(|heard| *heard == line).count()
    }
}

fn serve(mut stream: &TcpStream, heard: &Mutex<Vec<String>>, script: Script) {
    let lines = [Ok(String::new())].into_iter().chain(BufReader::new(stream).lines());
    for line in lines.map_while(Result::ok) {
        heard.lock().unwrap().push(line.clone());
        let Some(reply) = script(&line) else { return };
        if stream.write_all(reply.as_bytes()).is_err() || line == "QUIT" || line.ends_with("LOGOUT") {
            return;
        }
    }
}

fn pop3(_line: &str) -> Option<String> {
    Some("+OK\r\n".to_owned())
}

fn imap(line: &str) -> Option<String> {
    Some(match line.split_once(' ') {
        None => "* OK ready\r\n".to_owned(),
        Some((tag, "LOGOUT")) => format!("* BYE\r\n{tag} OK\r\n"),
        Some((tag, _)) => format!("* CAPABILITY IMAP4rev1\r\n{tag} OK logged in\r\n"),
    })
}

#[derive(Parser)]
struct CommandLine {
    #[command(flatten)]
    options: LoginOptions,
}

fn load(server: &Server, words: &[&str]) -> LoadSummary {
    let target = server.address.to_string();
    let line = ["login", "--target", &target, "--user", "user{}", "--users", "3", "--password", "secret{}"];
    run_load(&CommandLine::try_parse_from([&line, words].concat()).unwrap().options).unwrap()
}

fn errors(summary: &LoadSummary) -> Vec<(&str, u64)> {
    summary.errors.iter().map(|(text, &count)| (text.as_str(), count)).collect()
}

#[test]
fn users_log_in_and_out_in_turn() {
    let pop3_lines = ["USER user{}", "PASS secret{}", "QUIT"];
    let imap_lines = ["L LOGIN \"user{}\" \"secret{}\"", "Q LOGOUT"];
    for (protocol, script, expected) in [("pop3", pop3 as Script, &pop3_lines[..]), ("imap", imap, &imap_lines)] {
        let server = Server::start(script);
        let summary = load(&server, &["--protocol", protocol, "--sessions", "6", "--connections", "2"]);
        assert_eq!((summary.done, summary.failed, summary.parts, summary.connections), (6, 0, 6, 6), "{summary}");
        assert_eq!(summary.verdict(), RunVerdict::Good, "{summary}");
        let phases: Vec<_> = summary.phases.iter().map(|times| (times.name, times.count)).collect();
        assert_eq!(phases, [("connect", 6), ("login", 6), ("logout", 6)]);
        for line in expected {
            let of_users: Vec<_> = (1..=3).map(|user| server.count(&line.replace("{}", &user.to_string()))).collect();
            assert_eq!(of_users, if line.contains("{}") { [2; 3] } else { [6; 3] }, "{line}");
        }
    }
}

#[test]
fn a_refusal_is_counted_by_its_text() {
    let server = Server::start(|line| match line {
        "PASS secret2" => Some("-ERR [AUTH] not user2\r\n".to_owned()),
        line => pop3(line),
    });
    let summary = load(&server, &["--sessions", "3", "--connections", "1"]);
    assert_eq!((summary.done, summary.failed, summary.parts), (2, 1, 2));
    assert_eq!(errors(&summary), [("login: [AUTH] not user2", 1)]);
    assert_eq!(summary.verdict(), RunVerdict::Bad);
    assert_eq!(server.count("QUIT"), 2);
}

#[test]
fn a_broken_session_is_an_error_that_names_the_step() {
    let said = |script: Script| {
        let server = Server::start(script);
        let summary = load(&server, &["--protocol", "imap", "--sessions", "1", "--timeout", "200ms"]);
        assert_eq!((summary.done, summary.failed), (0, 1));
        errors(&summary)[0].0.to_owned()
    };
    assert_eq!(said(|_| Some("* BYE busy\r\n".to_owned())), "login: it refuses connections: BYE busy");
    assert_eq!(said(|_| None), "login: it closed the connection");
    assert_eq!(said(|line| imap(line).filter(|_| !line.ends_with("LOGOUT"))), "logout: no reply");
    let foreign_tag = said(|line| imap(line).map(|reply| reply.replace("L OK", "M OK")));
    assert_eq!(foreign_tag, "login: unexpected line \"M OK logged in\"");
}
