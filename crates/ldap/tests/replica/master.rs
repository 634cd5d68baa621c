//! A test LDAP server with a scripted Sync Operation.

use std::io::{Read, Write};
use std::net::{Shutdown, TcpListener, TcpStream};
use std::sync::mpsc::{self, Receiver};
use std::thread;
use std::time::Duration;

const SYNC: &str = "1.3.6.1.4.1.4203.1.9.1.";
const TYPES: &str = "( 0.9.2342.19200300.100.1.3 NAME 'mail' EQUALITY caseIgnoreIA5Match )";

/// An element with this tag and content.
pub(crate) fn element(tag: u8, content: &[u8]) -> Vec<u8> {
    let length = (content.len() as u32).to_be_bytes();
    [&[tag, 0x84][..], &length, content].concat()
}

fn attribute(name: &str, values: &[&str]) -> Vec<u8> {
    let values: Vec<u8> = values.iter().flat_map(|value| element(4, value.as_bytes())).collect();
    element(0x30, &[element(4, name.as_bytes()), element(0x31, &values)].concat())
}

fn entry(dn: &str, attributes: &[Vec<u8>]) -> Vec<u8> {
    element(0x64, &[element(4, dn.as_bytes()), element(0x30, &attributes.concat())].concat())
}

fn with_control(operation: &[u8], oid: &str, value: &[u8]) -> Vec<u8> {
    let control = element(0x30, &[element(4, oid.as_bytes()), element(4, value)].concat());
    [operation.to_vec(), element(0xa0, &control)].concat()
}

/// An added entry: `number` determines UUID and key, `value` is its value.
pub(crate) fn add(number: u8, value: &str) -> Vec<u8> {
    let attributes = [attribute("mail", &[&format!("User{number}@example.org")]), attribute("description", &[value])];
    with_control(&entry(&format!("cn={number}"), &attributes), &format!("{SYNC}2"), &state(1, number))
}

/// An unchanged entry.
pub(crate) fn present(number: u8) -> Vec<u8> {
    with_control(&entry("", &[]), &format!("{SYNC}2"), &state(0, number))
}

/// A deleted entry.
pub(crate) fn delete(number: u8) -> Vec<u8> {
    with_control(&entry("", &[]), &format!("{SYNC}2"), &state(3, number))
}

fn state(state: u8, number: u8) -> Vec<u8> {
    element(0x30, &[element(0x0a, &[state]), element(4, &[number; 16])].concat())
}

/// The end of a refresh, after a delete phase or a present phase.
pub(crate) fn refreshed(deletes: bool, cookie: &str) -> Vec<u8> {
    info(&element(if deletes { 0xa1 } else { 0xa2 }, &element(4, cookie.as_bytes())))
}

/// A new cookie.
pub(crate) fn cookie(cookie: &str) -> Vec<u8> {
    info(&element(0x80, cookie.as_bytes()))
}

fn info(value: &[u8]) -> Vec<u8> {
    element(0x79, &[element(0x80, format!("{SYNC}4").as_bytes()), element(0x81, value)].concat())
}

/// The end of a search.
pub(crate) fn done(code: u16) -> Vec<u8> {
    let code = code.to_be_bytes();
    element(0x65, &[element(0x0a, &code), element(4, b""), element(4, b"")].concat())
}

/// A client's search for the content.
pub(crate) struct Search {
    stream: TcpStream,
    id: Vec<u8>,
    /// The cookie of the Sync Request Control, if any.
    pub(crate) cookie: Option<String>,
    pub(crate) is_sync: bool,
}

impl Search {
    pub(crate) fn send(&self, operations: &[Vec<u8>]) {
        for operation in operations {
            let message = element(0x30, &[element(2, &self.id), operation.clone()].concat());
            (&self.stream).write_all(&message).unwrap();
        }
    }

    /// Closes the connection.
    pub(crate) fn hang_up(self) {
        let _ = self.stream.shutdown(Shutdown::Both);
    }
}

/// The server.
pub(crate) struct Master {
    pub(crate) url: String,
    searches: Receiver<Search>,
}

impl Master {
    pub(crate) fn start(offers_sync: bool) -> Master {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let url = format!("ldap://{}", listener.local_addr().unwrap());
        let (sender, searches) = mpsc::channel();
        thread::spawn(move || {
            for stream in listener.incoming() {
                let (stream, sender) = (stream.unwrap(), sender.clone());
                thread::spawn(move || serve_connection(stream, offers_sync, &sender));
            }
        });
        Master { url, searches }
    }

    /// Waits for the next search for the content.
    pub(crate) fn search(&self) -> Search {
        self.searches.recv_timeout(Duration::from_secs(20)).expect("a client searches")
    }
}

fn serve_connection(mut stream: TcpStream, offers_sync: bool, searches: &mpsc::Sender<Search>) {
    while let Some(message) = read(&mut stream) {
        let parts = elements(&message);
        let (id, (tag, operation)) = (parts[0].1.to_vec(), parts[1]);
        if tag != 0x63 {
            continue;
        }
        let base = String::from_utf8_lossy(elements(operation)[0].1).into_owned();
        let control = parts.get(2).and_then(|controls| {
            let controls: Vec<_> = elements(controls.1).into_iter().map(|control| elements(control.1)).collect();
            let sync = controls.into_iter().find(|control| control[0].1 == format!("{SYNC}1").as_bytes())?;
            Some(
                elements(elements(sync.last()?.1)[0].1)
                    .into_iter()
                    .map(|(tag, it)| (tag, it.to_vec()))
                    .collect::<Vec<_>>(),
            )
        });
        let cookie = control.as_ref().and_then(|parts| parts.iter().find(|part| part.0 == 4));
        let cookie = cookie.map(|part| String::from_utf8_lossy(&part.1).into_owned());
        let search = Search { stream: stream.try_clone().unwrap(), id, cookie, is_sync: control.is_some() };
        let supported = format!("{SYNC}1");
        let supported = if offers_sync { vec![&*supported] } else { vec![] };
        match base.as_str() {
            "" => search.send(&[
                entry(
                    "",
                    &[attribute("subschemaSubentry", &["cn=Subschema"]), attribute("supportedControl", &supported)],
                ),
                done(0),
            ]),
            "cn=Subschema" => search.send(&[entry("cn=Subschema", &[attribute("attributeTypes", &[TYPES])]), done(0)]),
            _ => drop(searches.send(search)),
        }
    }
}

fn read(stream: &mut TcpStream) -> Option<Vec<u8>> {
    let mut head = [0; 2];
    stream.read_exact(&mut head).ok()?;
    let length = match head[1] {
        length @ 0..0x80 => usize::from(length),
        form => {
            let mut octets = vec![0; usize::from(form & 0x7f)];
            stream.read_exact(&mut octets).ok()?;
            octets.iter().fold(0, |length, &octet| length << 8 | usize::from(octet))
        }
    };
    let mut content = vec![0; length];
    stream.read_exact(&mut content).ok()?;
    Some(content)
}

fn elements(mut octets: &[u8]) -> Vec<(u8, &[u8])> {
    let mut elements = Vec::new();
    while octets.len() >= 2 {
        let (head, length) = match octets[1] {
            length @ 0..0x80 => (2, usize::from(length)),
            form => {
                let head = 2 + usize::from(form & 0x7f);
                (head, octets[2..head].iter().fold(0, |length, &octet| length << 8 | usize::from(octet)))
            }
        };
        elements.push((octets[0], &octets[head..head + length]));
        octets = &octets[head + length..];
    }
    elements
}
