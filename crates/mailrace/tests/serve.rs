//! The server as a process, as its operator sees it, from the first start to shutdown.
//!
//! Each test has a server of its own, on a port chosen by the system and in a temporary folder.
//! Events that nothing reports are polled until [`WAIT_MAX`].

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::io::{BufRead, BufReader, Read, Write};
use std::net::{SocketAddr, TcpStream};
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus, Output, Stdio};
use std::thread::{self, JoinHandle};
use std::time::{Duration, Instant};

use nix::sys::signal::{Signal, kill};
use nix::unistd::{Pid, User, geteuid};

const BINARY: &str = env!("CARGO_BIN_EXE_mailrace");
/// Gives [`large`] a body file of its own.
const SPILL: &str = "[limits]\nspill_above = \"64KiB\"";
const WAIT_MAX: Duration = Duration::from_secs(30);

/// A process that ends with its test, even if the test fails.
struct Process(Child);

impl Drop for Process {
    fn drop(&mut self) {
        // Usually it has ended already.
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

struct Server {
    process: Process,
    address: SocketAddr,
    said: JoinHandle<String>,
}

impl Server {
    /// Starts the server with the configuration in the folder, and waits until it listens.
    fn start(folder: &Path) -> Server {
        let mut command = Command::new(BINARY);
        let mut process = Process(command.arg("serve").current_dir(folder).stderr(Stdio::piped()).spawn().unwrap());
        let mut stderr = BufReader::new(process.0.stderr.take().unwrap());
        let mut said = String::new();
        let address = loop {
            assert_ne!(stderr.read_line(&mut said).unwrap(), 0, "the server ended early: {said}");
            if let Some((_, address)) = said.trim_end().rsplit_once("listening protocol=smtp address=") {
                break address.parse().unwrap();
            }
        };
        let said = thread::spawn(move || {
            stderr.read_to_string(&mut said).unwrap();
            said
        });
        Server { process, address, said }
    }

    fn signal(&self, signal: Signal) {
        kill(Pid::from_raw(self.process.0.id() as i32), signal).unwrap();
    }

    /// The exit status and everything on standard error.
    fn end(mut self) -> (ExitStatus, String) {
        let status = wait_until("the end of the server", || self.process.0.try_wait().unwrap());
        (status, self.said.join().unwrap())
    }

    fn stop(self) {
        self.signal(Signal::SIGTERM);
        let (status, said) = self.end();
        assert!(status.success() && !said.contains("was not closed"), "{status}: {said}");
    }

    /// A session after the banner.
    fn client(&self) -> BufReader<TcpStream> {
        let stream = TcpStream::connect(self.address).unwrap();
        stream.set_read_timeout(Some(WAIT_MAX)).unwrap();
        let mut client = BufReader::new(stream);
        expect_reply(&mut client, "220");
        client
    }

    fn deliver(&self, body: &str) {
        self.send("a@client.test", "bob@localhost", body);
    }

    fn send(&self, sender: &str, recipient: &str, body: &str) {
        let mut client = self.client();
        for (command, code) in [
            ("HELO client.test", "250"),
            (&*format!("MAIL FROM:<{sender}>"), "250"),
            (&*format!("RCPT TO:<{recipient}>"), "250"),
            ("DATA", "354"),
            (&*format!("{body}\r\n."), "250"),
        ] {
            send_command(&mut client, command, code);
        }
    }
}

fn send_command(client: &mut BufReader<TcpStream>, line: &str, code: &str) {
    client.get_mut().write_all(format!("{line}\r\n").as_bytes()).unwrap();
    expect_reply(client, code);
}

fn expect_reply(client: &mut BufReader<TcpStream>, code: &str) {
    let mut reply = String::new();
    client.read_line(&mut reply).unwrap();
    assert!(reply.starts_with(code), "{reply:?}, expected {code}");
}

fn wait_until<T>(what: &str, mut look: impl FnMut() -> Option<T>) -> T {
    let begin = Instant::now();
    loop {
        if let Some(found) = look() {
            return found;
        }
        assert!(begin.elapsed() < WAIT_MAX, "timed out waiting for {what}");
        thread::sleep(Duration::from_millis(5));
    }
}

/// A folder with a configuration: a port chosen by the system and, unless `more` names another, a
/// local queue that delivers nothing.
fn folder(more: &str) -> tempfile::TempDir {
    let folder = tempfile::tempdir().unwrap();
    std::fs::set_permissions(folder.path(), PermissionsExt::from_mode(0o755)).unwrap();
    configure(folder.path(), &format!("{more}\n[[queue]]\nname = \"local\"\nconcurrency = 0\n"));
    folder
}

fn configure(folder: &Path, more: &str) {
    let text = format!(
        "hostname = \"localhost\"\nallow_root = true\n{more}\n\
         [[listener]]\nprotocol = \"smtp\"\naddress = \"127.0.0.1:0\"\n"
    );
    std::fs::write(folder.join("mailrace.toml"), text).unwrap();
}

fn mailrace(folder: &Path, arguments: &[&str]) -> Output {
    Command::new(BINARY).args(arguments).current_dir(folder).output().unwrap()
}

fn run_status(output: &Output) -> (Option<i32>, String) {
    let said = [&*output.stdout, &*output.stderr].concat();
    (output.status.code(), String::from_utf8(said).unwrap())
}

#[test]
fn a_queue_that_is_held_is_counted_and_listed() {
    let folder = folder("");
    let ask = |arguments: &[&str]| run_status(&mailrace(folder.path(), arguments));
    let server = Server::start(folder.path());
    assert_eq!(ask(&["queue", "list"]), (Some(0), String::new()));
    server.deliver("one");
    server.deliver("two");
    assert_eq!(ask(&["queue", "list", "--count"]), (Some(0), "2\n".into()));
    let (code, list) = ask(&["queue", "list"]);
    assert_eq!((code, list.lines().count()), (Some(0), 2), "{list}");
    assert!(list.lines().all(|line| line.ends_with("<a@client.test> to <bob@localhost>: ready")), "{list}");
    let (code, metrics) = ask(&["status"]);
    assert_eq!(code, Some(0));
    assert!(metrics.contains("\nmailrace_queue_recipients 2\n"), "{metrics}");
    assert!(metrics.contains("\nmailrace_spool_relaxed 0\n") && !metrics.contains("done"), "{metrics}");
    server.stop();
    assert_eq!(ask(&["queue", "list", "--count"]).0, Some(69));
}

#[test]
fn status_names_what_the_server_adapts_with_its_bounds_and_the_reason() {
    let folder = folder("");
    let ask = |arguments: &[&str]| run_status(&mailrace(folder.path(), arguments));
    let server = Server::start(folder.path());
    server.deliver("one");
    let (code, text) = ask(&["status"]);
    assert_eq!(code, Some(0));
    let (table, metrics) = text.split_once("\n# HELP ").unwrap();
    assert!(table.starts_with("# ADAPTS ") && table.lines().all(|line| line.starts_with("# ")), "{table}");
    assert!(metrics.contains("\nmailrace_queue_recipients 1\n"), "{metrics}");
    let (code, json) = ask(&["status", "--json"]);
    assert_eq!(code, Some(0));
    let status: serde_json::Value = serde_json::from_str(&json).unwrap();
    assert_eq!(status["metrics"]["mailrace_queue_recipients"], 1.0);
    let adapts = status["adapts"].as_array().unwrap();
    assert!(adapts.iter().all(|value| value.as_object().unwrap().len() == 7 && value["why"] != ""), "{json}");
    let find =
        |name: &str| adapts.iter().find(|value| value["name"] == name).unwrap_or_else(|| panic!("{name}: {json}"));
    for name in ["spool.gather", "maildir.batch_recipients", "load.clients", "load.mail", "limits.sessions"] {
        assert!(table.contains(&format!("# {name} ")), "{table}");
        find(name);
    }
    let batch = find("spool.batch_bytes");
    assert_eq!(
        (&batch["lowest"], &batch["highest"], &batch["start"]),
        (&262_144.into(), &8_388_608.into(), &8_388_608.into())
    );
    assert_eq!(find("load.deliveries")["value"], "all");
    server.stop();
}

#[test]
fn the_operator_summarizes_the_queue() {
    let folder = folder("");
    let ask = |arguments: &[&str]| run_status(&mailrace(folder.path(), arguments));
    let server = Server::start(folder.path());
    server.send("news@lists.test", "bob@localhost", "one");
    server.send("news@lists.test", "joe@localhost", &"x".repeat(5000));
    server.send("a@client.test", "joe@localhost", "three");
    let second = |arguments: &[&str]| {
        let (code, text) = ask(&[&["queue", "list", "--by"], arguments].concat());
        assert_eq!(code, Some(0), "{text}");
        text.lines().nth(1).unwrap_or_default().split_whitespace().take(4).collect::<Vec<_>>().join(" ")
    };
    assert_eq!(second(&["destination"]), "localhost local 3 3");
    assert_eq!(second(&["destination", "--larger-than", "4kB"]), "localhost local 1 1");
    assert_eq!(second(&["destination", "--ages"]), "localhost local 3 3");
    assert_eq!(second(&["sender"]), "news@lists.test 2 2 0");
    assert_eq!(second(&["queue"]), "local open 0 0");
    let count = |filter: &[&str]| ask(&[&["queue", "list", "--count"], filter].concat());
    assert_eq!(count(&["--sender", "@lists.test", "--recipient", "j*@*"]), (Some(0), "1\n".into()));
    assert_eq!(count(&["--older-than", "1h"]), (Some(0), "0\n".into()));
    let (code, said) = count(&["--queue", "lists"]);
    assert_eq!(code, Some(1));
    assert!(said.contains("no such queue: \"lists\"; expected one of: local, standard, lame"), "{said}");
    server.stop();
}

#[test]
fn the_operator_acts_on_queued_recipients() {
    let folder = folder("");
    let ask = |arguments: &[&str]| run_status(&mailrace(folder.path(), arguments));
    let server = Server::start(folder.path());
    server.send("joe@localhost", "bob@localhost", "one");
    server.send("a@client.test", "joe@localhost", &"x".repeat(5000));
    let queue = |arguments: &[&str]| ask(&[&["queue"], arguments].concat());
    let until = |what: &str| wait_until(what, || queue(&["list"]).1.contains(what).then_some(()));
    let recipients = |number: &str| wait_until(number, || (queue(&["list", "--count"]).1 == number).then_some(()));

    let held = ["hold", "--recipient", "bob@*", "--dry-run"];
    assert_eq!(queue(&held), (Some(0), "1 recipient would be held\n".into()));
    assert!(!queue(&["list"]).1.contains("held"));
    assert_eq!(queue(&held[..3]), (Some(0), "1 recipient to be held\n".into()));
    until("to <bob@localhost>: held");
    assert_eq!(queue(&["release", "--all"]), (Some(0), "1 recipient to be released\n".into()));
    until("to <bob@localhost>: ready");
    assert_eq!(queue(&["remove", "--larger-than", "4kB"]), (Some(0), "1 recipient to be removed\n".into()));
    recipients("1\n");
    // The sender of the bounced message gets a notice, which waits here too.
    assert_eq!(queue(&["bounce", "--sender", "joe@localhost"]), (Some(0), "1 recipient to be bounced\n".into()));
    until("<> to <joe@localhost>: ready");
    recipients("1\n");
    assert!(ask(&["status"]).1.contains("\nmailrace_outcomes_total{outcome=\"failed\"} 1\n"));
    server.stop();
}

#[test]
fn messages_that_cannot_be_read_are_left_out_and_counted_and_the_log_names_the_first() {
    let folder = folder(SPILL);
    let server = Server::start(folder.path());
    server.deliver(&large());
    let queue = |arguments: &[&str]| {
        let Output { status, stdout, stderr } = mailrace(folder.path(), &[&["queue"], arguments].concat());
        (status.code(), String::from_utf8(stdout).unwrap(), String::from_utf8(stderr).unwrap())
    };
    let damaged = queue(&["list"]).1.split_whitespace().next().unwrap().to_owned();
    server.deliver("two");
    std::fs::remove_file(body_file(folder.path()).unwrap()).unwrap();
    // The exit code says so, too: a script must not take the result for a whole one.
    let left_out = "mailrace: 1 message left out: unable to read; the log names the first one\n";
    for (arguments, lines) in [
        (&["list"][..], 1),
        (&["list", "--json"], 1),
        (&["list", "--by", "sender"], 2),
        (&["list", "--by", "destination", "--sender", "a@*"], 2),
    ] {
        let (code, shown, said) = queue(arguments);
        assert_eq!((code, shown.lines().count(), &*said), (Some(74), lines, left_out), "{shown}");
        assert!(!shown.contains(&damaged) && !shown.contains("unreadable"), "{shown}");
    }
    assert_eq!(queue(&["list", "--count", "--sender", "a@*"]), (Some(74), "1\n".into(), left_out.into()));
    // No message has to be read for this.
    assert_eq!(queue(&["list", "--count"]), (Some(0), "2\n".into(), String::new()));
    let (code, _, said) = queue(&["hold", "--sender", "a@*"]);
    assert_eq!(code, Some(69));
    assert!(said.contains("1 recipient recorded; 1 message left out that cannot be read"), "{said}");
    server.signal(Signal::SIGTERM);
    let (status, said) = server.end();
    let named = format!("unreadable=1 id={damaged} error=");
    assert!(status.success() && said.matches(&named).count() == 6, "{said}");
}

#[test]
fn explain_shows_what_holds_a_message() {
    let folder = folder("");
    let ask = |arguments: &[&str]| run_status(&mailrace(folder.path(), arguments));
    let server = Server::start(folder.path());
    server.deliver("one");
    let id = ask(&["queue", "list"]).1.split_whitespace().next().unwrap().to_owned();
    let held = "waits: the queue local is paused, or its concurrency is 0";
    let (code, said) = ask(&["explain", &id]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.starts_with(&format!("{id} from <a@client.test> to 1 recipient\n")) && said.contains(held), "{said}");
    let (code, said) = ask(&["explain", "bob@localhost", "--sender", "a@client.test"]);
    assert_eq!(code, Some(0), "{said}");
    assert!(said.contains("route: local mailbox, transport maildir") && said.contains(held), "{said}");
    assert_eq!(ask(&["explain", "0-0-0"]).0, Some(1));

    let paused = "queue standard: paused until it is resumed\n";
    assert_eq!(ask(&["queue", "pause", "standard"]), (Some(0), paused.to_owned()));
    assert!(ask(&["status"]).1.contains("\nmailrace_queue_paused{queue=\"standard\"} 1\n"));
    assert_eq!(ask(&["queue", "resume", "standard"]).0, Some(0));
    assert!(ask(&["status"]).1.contains("\nmailrace_queue_paused{queue=\"standard\"} 0\n"));
    assert_eq!(ask(&["queue", "pause", "lists"]).0, Some(1));

    let (code, load) = ask(&["load"]);
    assert_eq!(code, Some(0), "{load}");
    assert!(load.contains("load average: ") && load.contains("no mail is taken: not in force"), "{load}");
    server.stop();
}

#[test]
fn table_commands_query_the_running_server() {
    let folder = folder("[[table]]\nname = \"people\"\ntype = \"text\"\npath = \"people\"\n");
    std::fs::write(folder.path().join("people"), "bob@localhost bob, robert\n").unwrap();
    let server = Server::start(folder.path());
    // The server answers from what it has opened, not from the changed file.
    std::fs::write(folder.path().join("people"), "amy@localhost amy\n").unwrap();
    let get = |key| {
        let output = mailrace(folder.path(), &["table", "get", "people", key]);
        let text = |bytes| String::from_utf8(bytes).unwrap();
        (output.status.code(), text(output.stdout), text(output.stderr))
    };
    let (code, values, said) = get("Bob@localhost");
    assert_eq!((code, &*values), (Some(0), "bob\nrobert\n"));
    assert!(said.contains("\npeople: found in memory; "), "{said}");
    let (code, values, said) = get("amy@localhost");
    assert_eq!((code, &*values), (Some(1), ""));
    assert!(said.contains("people: not found in memory; ") && said.contains("is not in the table"), "{said}");

    let (code, counted) = run_status(&mailrace(folder.path(), &["table", "stats"]));
    assert!(code == Some(0) && counted.contains("\npeople  text "), "{counted}");
    let (code, counted) = run_status(&mailrace(folder.path(), &["table", "stats", "people", "--json"]));
    assert_eq!((code, &*counted), (Some(0), "{\"table\":\"people\",\"type\":\"text\"}\n"));
    let (code, said) = run_status(&mailrace(folder.path(), &["table", "stats", "lists"]));
    assert!(code == Some(1) && said.contains("no such table: \"lists\""), "{said}");
    let (code, said) = run_status(&mailrace(folder.path(), &["table", "accept", "people"]));
    assert!(code == Some(1) && said.contains("has no removals held back"), "{said}");

    // A missing key differs from a table that the server does not know.
    let config = std::fs::read_to_string(folder.path().join("mailrace.toml")).unwrap();
    std::fs::write(folder.path().join("mailrace.toml"), config.replace("name = \"people\"", "name = \"lists\""))
        .unwrap();
    let (code, said) = run_status(&mailrace(folder.path(), &["table", "get", "lists", "bob@localhost"]));
    assert!(code == Some(64) && said.contains("the running server: no such table: \"lists\""), "{said}");
    server.stop();
}

#[test]
fn a_table_that_is_down_is_reported_everywhere() {
    // Nothing listens on this loopback port.
    let table = "[[table]]\nname = \"people\"\ntype = \"postgres\"\nurl = \"postgres://mail@127.0.0.1:1/mail\"\n\
                 query = \"SELECT a, a FROM people WHERE a = ANY($1)\"\nbreaker = { failures = 1, probe = \"1h\" }\n";
    let folder = folder(table);
    let ask = |arguments: &[&str]| run_status(&mailrace(folder.path(), arguments));
    let get = || {
        let (code, said) = ask(&["table", "get", "people", "bob@localhost"]);
        assert_eq!(code, Some(69), "{said}");
        said
    };
    let refused = "127.0.0.1:1/mail: error connecting to server: Connection refused";
    let said = get();
    assert!(said.contains("\npeople: no running server, queried directly: no answer from the backend; "), "{said}");
    let server = Server::start(folder.path());
    let said = get();
    assert!(said.contains("\npeople: no answer from the backend; ") && said.contains(refused), "{said}");
    let said = get();
    assert!(said.contains("\npeople: no answer: the backend is down and was not queried; "), "{said}");

    let (_, counted) = ask(&["table", "stats", "people"]);
    assert!(counted.contains(" down for ") && counted.contains(refused), "{counted}");
    let (_, metrics) = ask(&["status"]);
    for metric in ["answers_total{table=\"people\",answer=\"unavailable\"} 2", "requests_total{table=\"people\"} 1"] {
        assert!(metrics.contains(&format!("\nmailrace_table_{metric}\n")), "{metrics}");
    }
    server.signal(Signal::SIGTERM);
    let (status, said) = server.end();
    assert!(status.success(), "{status}: {said}");
    for event in ["warning message=\"a table lookup failed\" table=people", "error message=\"a table is down: "] {
        assert!(said.contains(event), "{said}");
    }
}

#[test]
fn a_client_that_does_not_read_delays_no_other() {
    let folder = folder("");
    let server = Server::start(folder.path());
    let socket = folder.path().join("mailrace-data/control.sock");
    let silent: Vec<_> = (0..7).map(|_| UnixStream::connect(&socket).unwrap()).collect();
    let (code, counted) = run_status(&mailrace(folder.path(), &["queue", "list", "--count"]));
    assert_eq!((code, &*counted), (Some(0), "0\n"));
    let mut more = Vec::new();
    let refused = wait_until("a refusal", || {
        more.push(UnixStream::connect(&socket).unwrap());
        let (code, said) = run_status(&mailrace(folder.path(), &["queue", "list", "--count"]));
        (code == Some(69)).then_some(said)
    });
    assert!(refused.contains("too many requests in progress (8)"), "{refused}");
    // Shutdown does not wait for them either.
    server.stop();
    drop((silent, more));
}

#[test]
fn a_second_stop_signal_ends_the_server() {
    let folder = folder("");
    let server = Server::start(folder.path());
    let (mut busy, mut idle) = (server.client(), server.client());
    for (command, code) in [("HELO client.test", "250"), ("MAIL FROM:<>", "250"), ("RCPT TO:<bob@localhost>", "250")] {
        send_command(&mut busy, command, code);
    }
    send_command(&mut busy, "DATA", "354");
    server.signal(Signal::SIGTERM);
    expect_reply(&mut idle, "421");
    server.signal(Signal::SIGINT);
    let (status, said) = server.end();
    assert_eq!(status.code(), Some(70));
    assert!(said.contains("stopped by a second signal"), "{said}");
}

#[test]
fn sighup_and_sigusr1_open_the_log_again() {
    let folder = folder("[log]\nto = \"logs/of/mail\"");
    let (log, rotated) = (folder.path().join("logs/of/mail"), folder.path().join("logs/of/mail.1"));
    let server = Server::start(folder.path());
    let says = |word| std::fs::read_to_string(&log).ok().filter(|text| text.contains(word));
    wait_until("the start in the log", || says("message=started"));
    for signal in [Signal::SIGHUP, Signal::SIGUSR1] {
        std::fs::rename(&log, &rotated).unwrap();
        server.signal(signal);
        wait_until("the new log", || says("reopened the log"));
    }
    server.stop();
    assert!(says("message=stopped").is_some());
    assert!(!std::fs::read_to_string(&rotated).unwrap().contains("message=stopped"));
}

#[test]
fn a_first_start_as_root_gives_the_user_all_that_it_needs() {
    if !geteuid().is_root() {
        return;
    }
    let nobody = User::from_name("nobody").unwrap().unwrap();
    let folder = folder(
        "user = \"nobody\"\ndata_dir = \"var/lib/mailrace\"\n[log]\nto = \"var/log/mailrace/log\"\n\
         [admin]\nsocket = \"var/run/mailrace/control.sock\"\n[spool]\nlanes = [\"disk/one/lane\"]",
    );
    let server = Server::start(folder.path());
    server.deliver("one");
    assert_eq!(run_status(&mailrace(folder.path(), &["queue", "list", "--count"])), (Some(0), "1\n".into()));
    for place in ["var", "var/lib/mailrace", "var/log/mailrace/log", "var/run/mailrace/control.sock", "disk/one"] {
        assert_eq!(folder.path().join(place).metadata().unwrap().uid(), nobody.uid.as_raw(), "{place}");
    }
    server.stop();
}

#[test]
fn a_low_file_limit_refuses_the_start_or_limits_sessions() {
    let folder = folder("[log]\nto = \"log\"");
    let limited = |files: u32| {
        let script = format!("ulimit -n {files}; exec {BINARY} serve");
        let mut command = Command::new("sh");
        command.args(["-c", &script]).current_dir(folder.path());
        command
    };
    let (code, said) = run_status(&limited(319).output().unwrap());
    assert_eq!(code, Some(77), "{said}");
    assert!(said.contains("319 open files (RLIMIT_NOFILE), expected at least 320"), "{said}");
    let mut server = Process(limited(400).stderr(Stdio::null()).spawn().unwrap());
    let logged =
        || std::fs::read_to_string(folder.path().join("log")).ok().filter(|text| text.contains("message=started"));
    let log = wait_until("the start", logged);
    assert!(log.contains("limit=10000 sessions=104"), "{log}");
    kill(Pid::from_raw(server.0.id() as i32), Signal::SIGTERM).unwrap();
    assert!(server.0.wait().unwrap().success());
}

#[test]
fn it_runs_without_a_reader_of_its_output() {
    let folder = tempfile::tempdir().unwrap();
    let (reader, writer) = std::io::pipe().unwrap();
    drop(reader);
    let mut command = Command::new(BINARY);
    let status = command.args(["-c", "missing", "check"]).current_dir(folder.path()).stderr(writer).status().unwrap();
    assert_eq!(status.code(), Some(74));
}

#[test]
fn verify_reads_bodies_that_have_files_of_their_own() {
    let folder = folder(SPILL);
    let server = Server::start(folder.path());
    server.deliver(&large());
    server.stop();
    let verify = || run_status(&mailrace(folder.path(), &["spool", "verify"]));
    assert_eq!(verify().0, Some(0), "{}", verify().1);

    let body = body_file(folder.path()).unwrap();
    let bytes = std::fs::read(&body).unwrap();
    let mut flipped = bytes.clone();
    *flipped.last_mut().unwrap() ^= 1;
    for (damage, said) in [(&flipped[..], "wrong checksum"), (&bytes[1..], "bytes, expected ")] {
        std::fs::write(&body, damage).unwrap();
        let (code, verified) = verify();
        assert_eq!(code, Some(1));
        assert!(verified.contains(said) && verified.contains("1 damaged places"), "{verified}");
    }
    std::fs::remove_file(&body).unwrap();
    let (code, verified) = verify();
    assert_eq!(code, Some(1));
    assert!(verified.contains("No such file"), "{verified}");
}

#[test]
fn verify_does_not_miss_the_body_of_a_message_that_is_delivered() {
    let folder = tempfile::tempdir().unwrap();
    configure(folder.path(), SPILL);
    let server = Server::start(folder.path());
    server.deliver(&large());
    wait_until("the delivery", || body_file(folder.path()).is_none().then_some(()));
    // A clean stop would remove the file.
    server.signal(Signal::SIGKILL);
    server.end();
    let (code, verified) = run_status(&mailrace(folder.path(), &["spool", "verify"]));
    assert_eq!(code, Some(0), "{verified}");
    assert!(verified.contains(", 1 messages"), "the log has it: {verified}");
}

fn large() -> String {
    format!("Subject: large\r\n{}", "\r\n0123456789".repeat(200_000))
}

fn body_file(folder: &Path) -> Option<PathBuf> {
    let mut lane = std::fs::read_dir(folder.join("mailrace-data/spool")).unwrap().map(|entry| entry.unwrap().path());
    lane.find(|path| path.file_name().unwrap().to_str().unwrap().starts_with("body-"))
}
