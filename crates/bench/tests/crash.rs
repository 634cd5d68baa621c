//! `bench crash` against small servers: one that keeps what it acknowledges, one that relays it, and one that lies.
//!
//! The servers are this very program, told by its environment to be one. A trial kills all processes that descend from
//! this one, so there is one trial at a time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, PoisonError};
use std::time::Duration;

use bench::{Acknowledged, Fault, Verdict, crash};
use clap::Parser as _;

/// Tells this program that it is a server: `KIND PORT PLACE`.
const ROLE: &str = "TOY_SERVER";

#[derive(clap::Parser)]
struct Line {
    #[command(flatten)]
    options: crash::Options,
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// Runs a trial with a light load.
fn trial(start: &str, port: u16, arguments: &[&str]) -> Result<Verdict, Fault> {
    let _turn = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
    let ready = format!("127.0.0.1:{port}");
    let line = ["crash", "--start", start, "--ready", &ready, "--rounds", "3", "--connections", "2", "--size", "2000"];
    let load = ["--load-min", "200ms", "--load-max", "400ms", "--users", "5", "--rate", "300", "--settle", "3s"];
    let options = Line::try_parse_from(line.iter().chain(&load).chain(arguments)).unwrap().options;
    crash::run(&options)
}

/// What the server says is nobody's business.
const QUIET: [&str; 2] = ["--server-log", "/dev/null"];

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

/// The shell command that starts this program as a server.
fn toy(kind: &str, port: u16, place: &str) -> String {
    let program = std::env::current_exe().unwrap();
    format!("{ROLE}='{kind} {port} {place}' {} --exact the_toy_server --nocapture", program.display())
}

fn is_up(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[test]
fn a_server_that_keeps_what_it_acknowledges_is_good_even_where_it_forks_away() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let (mail, ledger) = (folder.path().join("mail"), folder.path().join("ledger"));
    let start = format!("({} &)", toy("honest", port, mail.to_str().unwrap()));
    let log = folder.path().join("log");
    let files = ["--ledger", ledger.to_str().unwrap(), "--server-log", log.to_str().unwrap()];
    let places = [&["--maildir", mail.to_str().unwrap()], &files[..]].concat();
    assert_eq!(trial(&start, port, &places).unwrap(), Verdict::Good);
    assert_eq!(fs::read_to_string(log).unwrap().matches("running 1 test").count(), 4, "three rounds and the end");
    assert!(Acknowledged::read(&ledger).unwrap().len() > 10);
    assert!(!is_up(port), "nothing of it is left");
}

#[test]
fn a_server_that_answers_before_it_has_the_mail_is_found_out() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let (mail, ledger) = (folder.path().join("mail"), folder.path().join("ledger"));
    let places = ["--maildir", mail.to_str().unwrap(), "--ledger", ledger.to_str().unwrap(), "--no-doubles"];
    let places = [&places[..], &QUIET].concat();
    assert_eq!(trial(&toy("liar", port, mail.to_str().unwrap()), port, &places).unwrap(), Verdict::Bad);
    assert!(ledger.exists(), "it is evidence");
}

#[test]
fn what_a_server_relays_is_taken_here() {
    let (port, sink) = (free_port(), format!("127.0.0.1:{}", free_port()));
    assert_eq!(
        trial(&toy("relay", port, &sink), port, &[&["--sink", &sink], &QUIET[..]].concat()).unwrap(),
        Verdict::Good
    );
}

#[test]
fn a_server_that_does_not_come_up_proves_nothing_and_is_ended() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let places = ["--maildir", folder.path().to_str().unwrap(), "--ready-within", "300ms"];
    let fault = trial("exec sleep 9753.1", port, &places).unwrap_err();
    assert!(matches!(&fault, Fault::Unavailable(_)), "{fault}");
    assert!(!runs(b"9753.1"), "it is still there");
}

#[test]
fn a_server_that_acknowledges_nothing_proves_nothing() {
    let (folder, port) = (tempfile::tempdir().unwrap(), free_port());
    let places = ["--maildir", folder.path().to_str().unwrap()];
    let fault = trial(&toy("refuser", port, "nowhere"), port, &places).unwrap_err();
    assert!(fault.to_string().contains("nothing was proved"), "{fault}");
}

fn runs(argument: &[u8]) -> bool {
    let commands =
        fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.unwrap().path().join("cmdline")).ok());
    commands.into_iter().any(|command| command.split(|&byte| byte == 0).any(|word| word == argument))
}

/// Not a test: what a server's process runs, until it is killed. For others it does nothing.
#[test]
fn the_toy_server() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let &[kind, port, place] = &words[..] else { panic!("{role}: a kind, a port and a place expected") };
    let listener = TcpListener::bind(("127.0.0.1", port.parse().unwrap())).unwrap();
    let kept = Arc::new(Mutex::new(Vec::new()));
    if kind == "liar" {
        let (kept, place) = (kept.clone(), PathBuf::from(place));
        std::thread::spawn(move || write_behind(&kept, &place));
    }
    for stream in listener.incoming() {
        let (kind, place, kept) = (kind.to_owned(), place.to_owned(), kept.clone());
        std::thread::spawn(move || {
            serve(stream.unwrap(), |letter| match &*kind {
                "honest" => deliver(&letter, Path::new(&place)),
                "relay" => relay(&letter, &place),
                "liar" => {
                    kept.lock().unwrap().push(letter);
                    true
                }
                _ => false,
            })
        });
    }
}

struct Letter {
    recipient: String,
    text: String,
}

/// As much SMTP as a source speaks. `keep` says whether a message is accepted.
fn serve(stream: TcpStream, keep: impl Fn(Letter) -> bool) -> Option<()> {
    let mut out = stream.try_clone().ok()?;
    let mut lines = BufReader::new(stream).lines();
    let mut recipient = String::new();
    out.write_all(b"220 toy\r\n").ok()?;
    loop {
        let line = lines.next()?.ok()?;
        let answer = match line.get(..4).unwrap_or_default() {
            "RCPT" => {
                recipient = line[line.find('<')? + 1..line.find('>')?].to_owned();
                "250 ok"
            }
            "DATA" => {
                out.write_all(b"354 go on\r\n").ok()?;
                let text = lines.by_ref().map_while(Result::ok).take_while(|line| line != ".");
                let text: String =
                    text.map(|line| line.strip_prefix('.').unwrap_or(&line).to_owned() + "\r\n").collect();
                if keep(Letter { recipient: recipient.clone(), text }) { "250 kept" } else { "451 not kept" }
            }
            "QUIT" => "221 bye",
            _ => "250 ok",
        };
        out.write_all(format!("{answer}\r\n").as_bytes()).ok()?;
    }
}

/// SIGKILL takes no page cache with it, so that a renamed file is kept.
fn deliver(letter: &Letter, root: &Path) -> bool {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let folder = root.join(&letter.recipient);
    ["new", "cur", "tmp"].iter().for_each(|part| fs::create_dir_all(folder.join(part)).unwrap());
    let name = format!("{}.{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
    fs::write(folder.join("tmp").join(&name), &letter.text).unwrap();
    fs::rename(folder.join("tmp").join(&name), folder.join("new").join(&name)).is_ok()
}

/// What comes within the last moments before a kill is gone.
fn write_behind(kept: &Mutex<Vec<Letter>>, root: &Path) {
    loop {
        std::thread::sleep(Duration::from_millis(150));
        let letters = std::mem::take(&mut *kept.lock().unwrap());
        letters.iter().for_each(|letter| assert!(deliver(letter, root)));
    }
}

/// Accepted here when it is accepted there.
fn relay(letter: &Letter, next: &str) -> bool {
    let stream = TcpStream::connect(next).unwrap();
    let mut out = stream.try_clone().unwrap();
    let mut lines = BufReader::new(stream).lines();
    let to = format!("RCPT TO:<{}>", letter.recipient);
    let text = letter.text.lines().map(|line| if line.starts_with('.') { format!(".{line}") } else { line.to_owned() });
    let message = text.collect::<Vec<_>>().join("\r\n") + "\r\n.";
    for (say, code) in [("HELO toy", "220"), ("MAIL FROM:<>", "250"), (&to, "250"), ("DATA", "250"), (&message, "354")]
    {
        assert!(lines.next().unwrap().unwrap().starts_with(code));
        out.write_all(format!("{say}\r\n").as_bytes()).unwrap();
    }
    lines.next().unwrap().unwrap().starts_with("250")
}
