//! `bench crash` against small servers: one that keeps what it acknowledges, one that relays, one
//! that loses mail, and others.
//!
//! Each server is this test program, started with [`ROLE`] in its environment. A trial kills all
//! descendants of this process, so trials run one at a time.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::fs;
use std::io::{BufRead as _, BufReader, Write as _};
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError};
use std::time::Duration;

use bench::{Acknowledged, Fault, Verdict, crash};
use clap::Parser as _;

/// Makes this program a server: `KIND PORT PLACE`.
const ROLE: &str = "TOY_SERVER";

#[derive(clap::Parser)]
#[command(args_override_self = true)]
struct Line {
    #[command(flatten)]
    options: crash::Options,
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The right to run a trial, with a port and a folder of its own.
struct Turn {
    port: u16,
    folder: tempfile::TempDir,
    _only: MutexGuard<'static, ()>,
}

impl Turn {
    fn take() -> Turn {
        let _only = ONE_AT_A_TIME.lock().unwrap_or_else(PoisonError::into_inner);
        Turn { port: free_port(), folder: tempfile::tempdir().unwrap(), _only }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs a trial with a light load.
    fn trial(&self, start: &str, arguments: &[&str]) -> Result<Verdict, Fault> {
        let ready = format!("127.0.0.1:{}", self.port);
        let line = ["crash", "--start", start, "--ready", &ready, "--rounds", "3", "--connections", "2"];
        let load = ["--size", "2000", "--load-min", "200ms", "--load-max", "400ms", "--users", "5", "--rate", "300"];
        // The output of the server is not needed.
        let ledger = self.path("ledger");
        let rest = ["--settle", "3s", "--server-log", "/dev/null", "--ledger", &ledger];
        let line = line.iter().chain(&load).chain(&rest).chain(arguments);
        crash::run(&Line::try_parse_from(line).unwrap().options)
    }

    /// The shell command that starts this program as a server.
    fn toy(&self, kind: &str, place: &str) -> String {
        let program = std::env::current_exe().unwrap();
        let port = self.port;
        format!("{ROLE}='{kind} {port} {place}' {} --exact the_toy_server --nocapture", program.display())
    }

    /// Listens on the server's port once the start command has written its pid and `is_time` is
    /// true.
    fn impersonate(&self, is_time: fn(pid: &str) -> bool) {
        let (port, told) = (self.port, self.path("told"));
        std::thread::spawn(move || {
            let is_told = || fs::read_to_string(&told).is_ok_and(|pid| pid.ends_with('\n') && is_time(pid.trim()));
            while !is_told() {
                std::thread::yield_now();
            }
            for stream in TcpListener::bind(("127.0.0.1", port)).unwrap().incoming() {
                std::thread::spawn(|| serve(stream.unwrap(), |_| true));
            }
        });
    }
}

fn free_port() -> u16 {
    TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port()
}

fn is_up(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[test]
fn a_server_that_keeps_what_it_acknowledges_is_good_even_where_it_forks_away() {
    let turn = Turn::take();
    let (mail, ledger, log) = (turn.path("mail"), turn.path("ledger"), turn.path("log"));
    let start = format!("({} &)", turn.toy("honest", &mail));
    let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();
    let places = ["--maildir", &mail, "--server-log", &log];
    assert_eq!(turn.trial(&start, &places).unwrap(), Verdict::Good);
    assert_eq!(fs::read_to_string(&log).unwrap().matches("running 1 test").count(), 4, "three rounds and the end");
    assert!(Acknowledged::read(Path::new(&ledger)).unwrap().len() > 10);
    assert!(!is_up(turn.port), "the server is still running");
    assert_eq!(stranger.try_wait().unwrap(), None, "an older process was killed");
    stranger.kill().unwrap();
    stranger.wait().unwrap();

    fs::remove_dir_all(&mail).unwrap();
    assert_eq!(turn.trial(&start, &places).unwrap(), Verdict::Good, "earlier runs of the ledger were expected");
}

#[test]
fn a_server_that_answers_before_it_has_the_mail_is_found_out() {
    let turn = Turn::take();
    let (mail, ledger) = (turn.path("mail"), turn.path("ledger"));
    assert_eq!(turn.trial(&turn.toy("liar", &mail), &["--maildir", &mail]).unwrap(), Verdict::Bad);
    assert!(Path::new(&ledger).exists(), "the ledger was removed");
}

#[test]
fn a_server_that_delivers_again_after_its_start_is_bad_only_where_doubles_are() {
    for (arguments, verdict) in [(&[][..], Verdict::Good), (&["--no-doubles"], Verdict::Bad)] {
        let turn = Turn::take();
        let mail = turn.path("mail");
        let arguments = [&["--maildir", &mail, "--rounds", "1"], arguments].concat();
        assert_eq!(turn.trial(&turn.toy("again", &mail), &arguments).unwrap(), verdict);
    }
}

#[test]
fn what_a_server_relays_is_taken_here() {
    let turn = Turn::take();
    let sink = format!("127.0.0.1:{}", free_port());
    assert_eq!(turn.trial(&turn.toy("relay", &sink), &["--sink", &sink]).unwrap(), Verdict::Good);
}

#[test]
fn a_server_that_does_not_come_up_proves_nothing_and_is_ended() {
    let turn = Turn::take();
    let mail = turn.path("mail");
    let span = format!("9753.{}", std::process::id());
    let fault = turn.trial(&format!("exec sleep {span}"), &["--maildir", &mail, "--ready-within", "300ms"]);
    let fault = fault.unwrap_err();
    assert!(matches!(&fault, Fault::Unavailable(_)), "{fault}");
    assert!(!runs(span.as_bytes()), "the server is still running");
}

#[test]
fn a_round_in_which_nothing_is_acknowledged_proves_nothing() {
    for (kind, round) in [("refuser", "round 1 of 3"), ("fickle", "round 2 of 3")] {
        let turn = Turn::take();
        let mail = turn.path("mail");
        let fault = turn.trial(&turn.toy(kind, &mail), &["--maildir", &mail]).unwrap_err().to_string();
        assert!(fault.starts_with(round) && fault.ends_with("nothing was proved"), "{fault}");
    }
}

#[test]
fn who_listens_before_the_server_is_started_is_not_tried() {
    let turn = Turn::take();
    let mail = turn.path("mail");
    let _other = TcpListener::bind(("127.0.0.1", turn.port)).unwrap();
    let fault = turn.trial(&turn.toy("honest", &mail), &["--maildir", &mail]).unwrap_err().to_string();
    assert!(fault.contains("before the server is started"), "{fault}");
}

#[test]
fn who_greets_and_was_not_started_is_not_tried() {
    let turn = Turn::take();
    let (mail, told) = (turn.path("mail"), turn.path("told"));
    turn.impersonate(is_dead);
    let fault = turn.trial(&format!("echo $$ > {told}"), &["--maildir", &mail]).unwrap_err().to_string();
    assert!(fault.contains("was not started by --start"), "{fault}");
}

#[test]
fn who_still_listens_after_the_kill_was_not_killed() {
    let turn = Turn::take();
    let (mail, told) = (turn.path("mail"), turn.path("told"));
    turn.impersonate(|_| true);
    let start = format!("echo $$ > {told}; exec sleep 600");
    let fault = turn.trial(&start, &["--maildir", &mail]).unwrap_err().to_string();
    assert!(fault.contains("after all started processes are dead"), "{fault}");
}

#[test]
fn a_load_that_would_end_before_the_kill_is_refused() {
    let turn = Turn::take();
    for end in [["--messages", "5"], ["--duration", "1s"]] {
        let fault = turn.trial("true", &[&["--maildir", "nowhere"], &end[..]].concat()).unwrap_err();
        assert!(matches!(&fault, Fault::Usage(_)), "{fault}");
    }
}

/// Whether a process has ended, even if it was not reaped yet.
fn is_dead(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

fn runs(argument: &[u8]) -> bool {
    let commands =
        fs::read_dir("/proc").unwrap().filter_map(|entry| fs::read(entry.unwrap().path().join("cmdline")).ok());
    commands.into_iter().any(|command| command.split(|&byte| byte == 0).any(|word| word == argument))
}

/// Not a test: the server process of other tests, which runs until it is killed. Returns at once
/// without [`ROLE`].
#[test]
fn the_toy_server() {
    let Ok(role) = std::env::var(ROLE) else { return };
    let words: Vec<&str> = role.split(' ').collect();
    let &[kind, port, place] = &words[..] else { panic!("{role}: expected KIND PORT PLACE") };
    let listener = TcpListener::bind(("127.0.0.1", port.parse().unwrap())).unwrap();
    let kept = Arc::new(Mutex::new(Vec::new()));
    if kind == "liar" {
        let (kept, place) = (kept.clone(), PathBuf::from(place));
        std::thread::spawn(move || write_behind(&kept, &place));
    }
    let has_mail = Path::new(place).exists();
    if kind == "again" && has_mail {
        let letter = any_letter(Path::new(place));
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            fs::copy(&letter, letter.with_extension("again")).unwrap();
        });
    }
    for stream in listener.incoming() {
        let (kind, place, kept) = (kind.to_owned(), place.to_owned(), kept.clone());
        std::thread::spawn(move || {
            serve(stream.unwrap(), |letter| match &*kind {
                "honest" | "again" => deliver(&letter, Path::new(&place)),
                "fickle" => !has_mail && deliver(&letter, Path::new(&place)),
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

/// Speaks enough SMTP for a source. `keep` decides whether a message is accepted.
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

/// SIGKILL leaves the page cache intact, so a renamed file is kept.
fn deliver(letter: &Letter, root: &Path) -> bool {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let folder = root.join(&letter.recipient);
    ["new", "cur", "tmp"].iter().for_each(|part| fs::create_dir_all(folder.join(part)).unwrap());
    let name = format!("{}.{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
    fs::write(folder.join("tmp").join(&name), &letter.text).unwrap();
    fs::rename(folder.join("tmp").join(&name), folder.join("new").join(&name)).is_ok()
}

fn any_letter(root: &Path) -> PathBuf {
    let mut folders = fs::read_dir(root).unwrap().map(|folder| folder.unwrap().path().join("new"));
    folders.find_map(|folder| Some(fs::read_dir(folder).unwrap().next()?.unwrap().path())).unwrap()
}

/// Messages of the last moments before a kill are lost.
fn write_behind(kept: &Mutex<Vec<Letter>>, root: &Path) {
    loop {
        std::thread::sleep(Duration::from_millis(150));
        let letters = std::mem::take(&mut *kept.lock().unwrap());
        letters.iter().for_each(|letter| assert!(deliver(letter, root)));
    }
}

/// Accepts a message when the next hop does.
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
