//! Stands in for a NATS server in measurements: it answers each publish after a fixed time, and
//! keeps nothing but the last record of each subject. What a node costs is then seen without the cost
//! of real servers and their disks.
//!
//! `nats_stub ADDRESS MICROSECONDS` listens until it is killed, and prints its port. It knows what a
//! node of a cluster asks, checks the expected last sequence as a server does, and answers anything else
//! with 503. To the line `BYTES` it answers with the bytes that it was sent, in all of its connections.

#![expect(clippy::unwrap_used, reason = "a program for measurements: it ends at the first surprise")]

use std::collections::HashMap;
use std::io::{BufRead, BufReader, Read, Write};
use std::net::{TcpListener, TcpStream};
use std::sync::atomic::{AtomicU64, Ordering::Relaxed};
use std::sync::mpsc::{Receiver, Sender, channel};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

use base64::Engine;
use base64::prelude::BASE64_STANDARD;
use serde_json::{Value, json};

const TIME: &str = "2026-01-01T00:00:00Z";
const EXPECTED_LAST: &str = "Nats-Expected-Last-Sequence: ";

/// The bytes of all operations so far.
static BYTES: AtomicU64 = AtomicU64::new(0);

/// All streams by their names.
type Streams = Arc<Mutex<HashMap<String, StubStream>>>;

#[derive(Default)]
struct StubStream {
    config: Value,
    subjects: Vec<String>,
    first: u64,
    last: u64,
    /// The last record of each subject, with its sequence.
    records: HashMap<String, (u64, Vec<u8>)>,
}

fn main() {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, delay] = &arguments[..] else { panic!("usage: nats_stub ADDRESS MICROSECONDS") };
    let delay = Duration::from_micros(delay.parse().unwrap());
    let (listener, streams) = (TcpListener::bind(address).unwrap(), Streams::default());
    println!("{}", listener.local_addr().unwrap().port());
    for socket in listener.incoming() {
        let (socket, streams) = (socket.unwrap(), streams.clone());
        socket.set_nodelay(true).unwrap();
        std::thread::spawn(move || serve(&socket, delay, &streams));
    }
}

/// Serves one client until it leaves.
fn serve(socket: &TcpStream, delay: Duration, streams: &Streams) {
    let (answers, due) = channel();
    let writer = socket.try_clone().unwrap();
    std::thread::spawn(move || write_when_due(writer, due));
    let mut client =
        Client { reader: BufReader::with_capacity(1 << 20, socket), answers, delay, subscriptions: Vec::new() };
    let info = json!({"server_id": "stub", "server_name": "stub", "version": "2.15.0", "headers": true,
        "max_payload": 1 << 20, "proto": 1, "jetstream": true, "host": "127.0.0.1", "port": 0, "go": "",
        "auth_required": false, "tls_required": false, "client_id": 1, "client_ip": "", "nonce": ""});
    client.send(format!("INFO {info}\r\n").into_bytes(), Duration::ZERO);
    while client.serve_operation(streams).is_some() {}
}

fn write_when_due(mut socket: TcpStream, due: Receiver<(Instant, Vec<u8>)>) {
    for (when, bytes) in due {
        std::thread::sleep(when.saturating_duration_since(Instant::now()));
        if socket.write_all(&bytes).is_err() {
            return;
        }
    }
}

struct Client<'a> {
    reader: BufReader<&'a TcpStream>,
    answers: Sender<(Instant, Vec<u8>)>,
    delay: Duration,
    /// Their numbers and patterns.
    subscriptions: Vec<(String, String)>,
}

impl Client<'_> {
    /// None: the client has left.
    fn serve_operation(&mut self, streams: &Streams) -> Option<()> {
        let mut line = String::new();
        self.reader.read_line(&mut line).ok().filter(|length| *length > 0)?;
        BYTES.fetch_add(line.len() as u64, Relaxed);
        let words: Vec<&str> = line.split_whitespace().collect();
        match words[..] {
            ["BYTES"] => self.send(format!("{}\r\n", BYTES.load(Relaxed)).into_bytes(), Duration::ZERO),
            ["PING"] => self.send(b"PONG\r\n".to_vec(), Duration::ZERO),
            ["SUB", pattern, number] => self.subscriptions.push((number.to_owned(), pattern.to_owned())),
            ["UNSUB", number, ..] => self.subscriptions.retain(|(other, _)| other != number),
            ["PUB", subject, reply, length] => self.take(streams, subject, reply, "0", length)?,
            ["HPUB", subject, reply, head, length] => self.take(streams, subject, reply, head, length)?,
            ["PUB", subject, length] => self.take(streams, subject, "", "0", length)?,
            _ => {}
        }
        Some(())
    }

    fn take(&mut self, streams: &Streams, subject: &str, reply: &str, head: &str, length: &str) -> Option<()> {
        let mut bytes = vec![0; length.parse::<usize>().unwrap() + 2];
        self.reader.read_exact(&mut bytes).ok()?;
        BYTES.fetch_add(bytes.len() as u64, Relaxed);
        bytes.truncate(bytes.len() - 2);
        let payload = bytes.split_off(head.parse().unwrap());
        let (answer, delay) = {
            let mut streams = streams.lock().unwrap();
            match subject.strip_prefix("$JS.API.") {
                Some(request) => (answer_request(&mut streams, request, &payload), Duration::ZERO),
                None => (store(&mut streams, subject, &String::from_utf8_lossy(&bytes), payload), self.delay),
            }
        };
        self.answer(reply, answer, delay);
        Some(())
    }

    fn answer(&self, reply: &str, answer: Option<Value>, delay: Duration) {
        let Some((number, _)) = self.subscriptions.iter().find(|(_, pattern)| matches(pattern, reply)) else { return };
        let message = match answer {
            Some(answer) => {
                let body = answer.to_string();
                format!("MSG {reply} {number} {}\r\n{body}\r\n", body.len())
            }
            None => format!("HMSG {reply} {number} 16 16\r\nNATS/1.0 503\r\n\r\n\r\n"),
        };
        self.send(message.into_bytes(), delay);
    }

    fn send(&self, bytes: Vec<u8>, delay: Duration) {
        // The writer ends when the client leaves.
        drop(self.answers.send((Instant::now() + delay, bytes)));
    }
}

/// Whether a subject is one of a pattern, in which `*` is a word and `>` all further ones.
fn matches(pattern: &str, subject: &str) -> bool {
    let (mut patterns, mut words) = (pattern.split('.'), subject.split('.'));
    loop {
        match (patterns.next(), words.next()) {
            (Some(">"), Some(_)) | (None, None) => return true,
            (Some(pattern), Some(word)) if pattern == "*" || pattern == word => {}
            _ => return false,
        }
    }
}

/// Stores a record; None if no stream has its subject.
fn store(streams: &mut HashMap<String, StubStream>, subject: &str, head: &str, record: Vec<u8>) -> Option<Value> {
    let of_subject = |stream: &StubStream| stream.subjects.iter().any(|pattern| matches(pattern, subject));
    let (name, stream) = streams.iter_mut().find(|(_, stream)| of_subject(stream))?;
    let expected = head.split_once(EXPECTED_LAST).and_then(|(_, rest)| rest.split("\r\n").next()?.parse().ok());
    if expected.is_some_and(|expected: u64| expected != stream.last) {
        let description = format!("wrong last sequence: {}", stream.last);
        let error = json!({"code": 400, "err_code": 10071, "description": description});
        return Some(json!({"error": error, "stream": name, "seq": 0}));
    }
    stream.last += 1;
    stream.records.insert(subject.to_owned(), (stream.last, record));
    Some(json!({"stream": name, "seq": stream.last}))
}

fn answer_request(streams: &mut HashMap<String, StubStream>, request: &str, payload: &[u8]) -> Option<Value> {
    let body: Value = serde_json::from_slice(payload).unwrap_or_default();
    let (verb, name) = request.rsplit_once('.').unwrap_or((request, ""));
    let not_found = json!({"error": {"code": 404, "err_code": 10059, "description": "stream not found"}});
    if verb == "STREAM.CREATE" {
        let subjects = body["subjects"].as_array()?.iter().filter_map(|it| Some(it.as_str()?.to_owned())).collect();
        let stream = StubStream { config: body, subjects, first: 1, ..StubStream::default() };
        return Some(info(streams.entry(name.to_owned()).or_insert(stream)));
    }
    match (request, verb, streams.get_mut(name)) {
        ("INFO", ..) => Some(account()),
        ("STREAM.NAMES", ..) => {
            let names: Vec<_> = streams.keys().cloned().collect();
            Some(json!({"total": names.len(), "offset": 0, "limit": 1024, "streams": names}))
        }
        (_, "STREAM.INFO" | "STREAM.UPDATE", Some(stream)) => Some(info(stream)),
        (_, "STREAM.DELETE", Some(_)) => {
            streams.remove(name);
            Some(json!({"success": true}))
        }
        (_, "STREAM.PURGE", Some(stream)) => {
            stream.first = body["seq"].as_u64().unwrap_or(stream.last + 1);
            Some(json!({"success": true, "purged": 0}))
        }
        (_, "STREAM.MSG.GET", Some(stream)) => Some(stream.message(&body)),
        (_, "STREAM.INFO" | "STREAM.UPDATE" | "STREAM.DELETE" | "STREAM.PURGE" | "STREAM.MSG.GET", None) => {
            Some(not_found)
        }
        _ => None,
    }
}

impl StubStream {
    /// The record that a request names, if it is still known.
    fn message(&self, request: &Value) -> Value {
        let is_wanted = |subject: &str, sequence: u64| {
            request["last_by_subj"].as_str() == Some(subject) || request["seq"].as_u64() == Some(sequence)
        };
        let found = self.records.iter().find(|(subject, (sequence, _))| is_wanted(subject, *sequence));
        match found {
            Some((subject, (sequence, record))) => json!({"message": {"subject": subject, "seq": sequence,
                "data": BASE64_STANDARD.encode(record), "time": TIME}}),
            None => json!({"error": {"code": 404, "err_code": 10037, "description": "no message found"}}),
        }
    }
}

fn info(stream: &StubStream) -> Value {
    json!({"config": stream.config, "created": TIME, "state": {
        "messages": (stream.last + 1).saturating_sub(stream.first), "bytes": 0, "first_seq": stream.first, "first_ts": TIME,
        "last_seq": stream.last, "last_ts": TIME, "consumer_count": 0}})
}

fn account() -> Value {
    json!({"memory": 0, "storage": 0, "reserved_memory": 0, "reserved_storage": 0, "streams": 0, "consumers": 0, "api": {"total": 0, "errors": 0}, "limits": {
        "max_memory": -1, "max_storage": -1, "max_streams": -1, "max_consumers": -1, "max_ack_pending": -1,
        "memory_max_stream_bytes": -1, "storage_max_stream_bytes": -1, "max_bytes_required": false}})
}
