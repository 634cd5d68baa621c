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
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::time::Duration;

use bench::{AcknowledgedMessages, BenchError, RunVerdict, crash};
use clap::Parser as _;
use parking_lot::{Mutex, MutexGuard};

/// Makes this program a server: `KIND PORT PLACE`.
const ROLE: &str = "TOY_SERVER";

#[derive(clap::Parser)]
#[command(args_override_self = true)]
struct CommandLine {
    #[command(flatten)]
    options: crash::CrashOptions,
}

static ONE_AT_A_TIME: Mutex<()> = Mutex::new(());

/// The right to run a trial, with a port and a folder of its own.
struct TrialGuard {
    port: u16,
    folder: tempfile::TempDir,
    _only: MutexGuard<'static, ()>,
}

impl TrialGuard {
    fn acquire() -> TrialGuard {
        let _only = ONE_AT_A_TIME.lock();
        TrialGuard { port: sim::free_port(), folder: tempfile::tempdir().unwrap(), _only }
    }

    fn path(&self, name: &str) -> String {
        self.folder.path().join(name).to_str().unwrap().to_owned()
    }

    /// Runs a trial with a light load.
    fn run_trial(&self, start: &str, arguments: &[&str]) -> Result<RunVerdict, BenchError> {
        let ready = format!("127.0.0.1:{}", self.port);
        let line = ["crash", "--start", start, "--ready", &ready, "--rounds", "3", "--connections", "2"];
        let load = ["--size", "2000", "--load-min", "200ms", "--load-max", "400ms", "--users", "5", "--rate", "300"];
        // The output of the server is not needed.
        let ledger = self.path("ledger");
        let rest = ["--settle", "3s", "--server-log", "/dev/null", "--ledger", &ledger];
        let line = line.iter().chain(&load).chain(&rest).chain(arguments);
        crash::run(&CommandLine::try_parse_from(line).unwrap().options)
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

fn is_up(port: u16) -> bool {
    TcpStream::connect(("127.0.0.1", port)).is_ok()
}

#[test]
fn a_server_that_keeps_acknowledged_mail_is_good_even_as_a_daemon() {
    let guard = TrialGuard::acquire();
    let (mail, ledger, log) = (guard.path("mail"), guard.path("ledger"), guard.path("log"));
    let start = format!("({} &)", guard.toy("honest", &mail));
    let mut stranger = Command::new("sleep").arg("600").spawn().unwrap();
    let places = ["--maildir", &mail, "--server-log", &log];
    assert_eq!(guard.run_trial(&start, &places).unwrap(), RunVerdict::Good);
    assert_eq!(fs::read_to_string(&log).unwrap().matches("running 1 test").count(), 4, "three rounds and the end");
    assert!(AcknowledgedMessages::read(Path::new(&ledger)).unwrap().len() > 10);
    assert!(!is_up(guard.port), "the server is still running");
    assert_eq!(stranger.try_wait().unwrap(), None, "an older process was killed");
    stranger.kill().unwrap();
    stranger.wait().unwrap();

    fs::remove_dir_all(&mail).unwrap();
    assert_eq!(guard.run_trial(&start, &places).unwrap(), RunVerdict::Good, "earlier runs of the ledger were expected");
}

#[test]
fn a_server_that_acknowledges_before_it_stores_is_bad() {
    let guard = TrialGuard::acquire();
    let (mail, ledger) = (guard.path("mail"), guard.path("ledger"));
    assert_eq!(guard.run_trial(&guard.toy("liar", &mail), &["--maildir", &mail]).unwrap(), RunVerdict::Bad);
    assert!(Path::new(&ledger).exists(), "the ledger was removed");
}

#[test]
fn a_server_that_delivers_again_after_a_restart_is_bad_only_with_no_doubles() {
    for (arguments, verdict) in [(&[][..], RunVerdict::Good), (&["--no-doubles"], RunVerdict::Bad)] {
        let guard = TrialGuard::acquire();
        let mail = guard.path("mail");
        let arguments = [&["--maildir", &mail, "--rounds", "1"], arguments].concat();
        assert_eq!(guard.run_trial(&guard.toy("again", &mail), &arguments).unwrap(), verdict);
    }
}

#[test]
fn relayed_mail_is_received_by_the_sink() {
    let guard = TrialGuard::acquire();
    let sink = format!("127.0.0.1:{}", sim::free_port());
    assert_eq!(guard.run_trial(&guard.toy("relay", &sink), &["--sink", &sink]).unwrap(), RunVerdict::Good);
}

#[test]
fn a_server_that_does_not_start_is_a_fault_and_is_killed() {
    let guard = TrialGuard::acquire();
    let mail = guard.path("mail");
    let span = format!("9753.{}", std::process::id());
    let fault = guard.run_trial(&format!("exec sleep {span}"), &["--maildir", &mail, "--ready-within", "300ms"]);
    let fault = fault.unwrap_err();
    assert!(matches!(&fault, BenchError::Unavailable(_)), "{fault}");
    assert!(!is_running(span.as_bytes()), "the server is still running");
}

#[test]
fn a_round_in_which_nothing_is_acknowledged_proves_nothing() {
    for (kind, round) in [("refuser", "round 1 of 3"), ("fickle", "round 2 of 3")] {
        let guard = TrialGuard::acquire();
        let mail = guard.path("mail");
        let fault = guard.run_trial(&guard.toy(kind, &mail), &["--maildir", &mail]).unwrap_err().to_string();
        assert!(fault.starts_with(round) && fault.ends_with("nothing was proved"), "{fault}");
    }
}

#[test]
fn a_port_in_use_before_the_start_is_a_fault() {
    let guard = TrialGuard::acquire();
    let mail = guard.path("mail");
    let _other = TcpListener::bind(("127.0.0.1", guard.port)).unwrap();
    let fault = guard.run_trial(&guard.toy("honest", &mail), &["--maildir", &mail]).unwrap_err().to_string();
    assert!(fault.contains("before the server is started"), "{fault}");
}

#[test]
fn a_greeting_from_a_process_that_was_not_started_is_a_fault() {
    let guard = TrialGuard::acquire();
    let (mail, told) = (guard.path("mail"), guard.path("told"));
    guard.impersonate(is_dead);
    let fault = guard.run_trial(&format!("echo $$ > {told}"), &["--maildir", &mail]).unwrap_err().to_string();
    assert!(fault.contains("was not started by --start"), "{fault}");
}

#[test]
fn a_port_still_open_after_the_kill_is_a_fault() {
    let guard = TrialGuard::acquire();
    let (mail, told) = (guard.path("mail"), guard.path("told"));
    guard.impersonate(|_| true);
    let start = format!("echo $$ > {told}; exec sleep 600");
    let fault = guard.run_trial(&start, &["--maildir", &mail]).unwrap_err().to_string();
    assert!(fault.contains("after all started processes are dead"), "{fault}");
}

#[test]
fn a_load_that_would_end_before_the_kill_is_refused() {
    let guard = TrialGuard::acquire();
    for end in [["--messages", "5"], ["--duration", "1s"]] {
        let fault = guard.run_trial("true", &[&["--maildir", "nowhere"], &end[..]].concat()).unwrap_err();
        assert!(matches!(&fault, BenchError::Usage(_)), "{fault}");
    }
}

/// Whether a process has ended, even if it was not reaped yet.
fn is_dead(pid: &str) -> bool {
    fs::read_to_string(format!("/proc/{pid}/stat")).map_or(true, |stat| stat.contains(") Z "))
}

fn is_running(argument: &[u8]) -> bool {
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
        let message = any_message_file(Path::new(place));
        std::thread::spawn(move || {
            std::thread::sleep(Duration::from_millis(300));
            fs::copy(&message, message.with_extension("again")).unwrap();
        });
    }
    for stream in listener.incoming() {
        let (kind, place, kept) = (kind.to_owned(), place.to_owned(), kept.clone());
        std::thread::spawn(move || {
            serve(stream.unwrap(), |message| match &*kind {
                "honest" | "again" => deliver(&message, Path::new(&place)),
                "fickle" => !has_mail && deliver(&message, Path::new(&place)),
                "relay" => relay(&message, &place),
                "liar" => {
                    kept.lock().push(message);
                    true
                }
                _ => false,
            })
        });
    }
}

struct ReceivedMessage {
    recipient: String,
    text: String,
}

/// Speaks enough SMTP for a source. `keep` decides whether a message is accepted.
fn serve(stream: TcpStream, keep: impl Fn(ReceivedMessage) -> bool) -> Option<()> {
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
                if keep(ReceivedMessage { recipient: recipient.clone(), text }) { "250 kept" } else { "451 not kept" }
            }
            "QUIT" => "221 bye",
            _ => "250 ok",
        };
        out.write_all(format!("{answer}\r\n").as_bytes()).ok()?;
    }
}

/// SIGKILL leaves the page cache intact, so a renamed file is kept.
fn deliver(message: &ReceivedMessage, root: &Path) -> bool {
    static NUMBER: AtomicU64 = AtomicU64::new(0);
    let folder = root.join(&message.recipient);
    ["new", "cur", "tmp"].iter().for_each(|part| fs::create_dir_all(folder.join(part)).unwrap());
    let name = format!("{}.{}", std::process::id(), NUMBER.fetch_add(1, Relaxed));
    fs::write(folder.join("tmp").join(&name), &message.text).unwrap();
    fs::rename(folder.join("tmp").join(&name), folder.join("new").join(&name)).is_ok()
}

fn any_message_file(root: &Path) -> PathBuf {
    let mut folders = fs::read_dir(root).unwrap().map(|folder| folder.unwrap().path().join("new"));
    folders.find_map(|folder| Some(fs::read_dir(folder).unwrap().next()?.unwrap().path())).unwrap()
}

/// Messages of the last moments before a kill are lost.
fn write_behind(kept: &Mutex<Vec<ReceivedMessage>>, root: &Path) {
    loop {
        std::thread::sleep(Duration::from_millis(150));
        let messages = std::mem::take(&mut *kept.lock());
        messages.iter().for_each(|letter| assert!(deliver(letter, root)));
    }
}

/// Accepts a message when the next hop does.
fn relay(received: &ReceivedMessage, next: &str) -> bool {
    let stream = TcpStream::connect(next).unwrap();
    let mut out = stream.try_clone().unwrap();
    let mut lines = BufReader::new(stream).lines();
    let to = format!("RCPT TO:<{}>", received.recipient);
    let text =
        received.text.lines().map(|line| if line.starts_with('.') { format!(".{line}") } else { line.to_owned() });
    let message = text.collect::<Vec<_>>().join("\r\n") + "\r\n.";
    for (say, code) in [("HELO toy", "220"), ("MAIL FROM:<>", "250"), (&to, "250"), ("DATA", "250"), (&message, "354")]
    {
        assert!(lines.next().unwrap().unwrap().starts_with(code));
        out.write_all(format!("{say}\r\n").as_bytes()).unwrap();
    }
    lines.next().unwrap().unwrap().starts_with("250")
}
