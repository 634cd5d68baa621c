//! A server that breaks the protocol, or does not answer.

use std::io::{Read, Write};
use std::net::{TcpListener, TcpStream};
use std::time::Duration;

/// What the server sends after it has greeted and let the client in.
#[derive(Clone)]
pub(crate) enum Trick {
    /// These octets in place of a greeting.
    Greeting(Vec<u8>),
    /// These octets in place of the answer to the login.
    Login(Vec<u8>),
    /// These octets in answer to the statement, after which the connection stays open.
    Statement(Vec<u8>),
    /// The same, and then it is closed.
    StatementAndClose(Vec<u8>),
    /// A row again and again, in answer to the execution.
    EndlessRows,
}

/// Serves every connection in this way; returns the port.
pub(crate) fn serve(trick: Trick) -> u16 {
    let listener = TcpListener::bind("127.0.0.1:0").unwrap();
    let port = listener.local_addr().unwrap().port();
    std::thread::spawn(move || {
        for stream in listener.incoming().map_while(Result::ok) {
            let trick = trick.clone();
            // The client may leave at any time.
            std::thread::spawn(move || drop(play(stream, trick)));
        }
    });
    port
}

pub(crate) fn packet(sequence: u8, content: &[u8]) -> Vec<u8> {
    [&(content.len() as u32).to_le_bytes()[..3], &[sequence], content].concat()
}

/// A greeting without TLS.
pub(crate) fn greeting() -> Vec<u8> {
    let mut content = b"\x0a5.7.0\0\x07\0\0\0abcdefgh\0".to_vec();
    let capabilities = 1u32 << 9 | 1 << 15 | 1 << 19;
    content.extend_from_slice(&(capabilities as u16).to_le_bytes());
    content.extend_from_slice(&[45, 2, 0]);
    content.extend_from_slice(&((capabilities >> 16) as u16).to_le_bytes());
    content.push(21);
    content.extend_from_slice(&[0; 10]);
    content.extend_from_slice(b"ijklmnopqrst\0mysql_native_password\0");
    packet(0, &content)
}

/// The answer to a statement with a parameter and a column.
pub(crate) fn prepared() -> Vec<u8> {
    let described = [packet(2, &column()), packet(3, END), packet(4, &column()), packet(5, END)].concat();
    [packet(1, &[0, 1, 0, 0, 0, 1, 0, 1, 0, 0, 0, 0]), described].concat()
}

const OK: &[u8] = &[0, 0, 0, 2, 0, 0, 0];
const END: &[u8] = &[0xfe, 0, 0, 2, 0];

fn column() -> Vec<u8> {
    [&b"\x03def\0\0\0\x01a\x01a\x0c"[..], &[45, 0, 255, 0, 0, 0, 253, 0, 0, 0, 0, 0]].concat()
}

fn play(mut stream: TcpStream, trick: Trick) -> std::io::Result<()> {
    if let Trick::Greeting(octets) = trick {
        stream.write_all(&octets)?;
        return wait(stream);
    }
    stream.write_all(&greeting())?;
    read_packet(&mut stream)?;
    if let Trick::Login(octets) = trick {
        stream.write_all(&octets)?;
        return wait(stream);
    }
    stream.write_all(&packet(2, OK))?;
    read_packet(&mut stream)?;
    match trick {
        Trick::Statement(octets) => stream.write_all(&octets)?,
        Trick::StatementAndClose(octets) => return stream.write_all(&octets),
        _ => {
            stream.write_all(&prepared())?;
            read_packet(&mut stream)?;
            let start = [packet(1, &[1]), packet(2, &column()), packet(3, END)].concat();
            stream.write_all(&start)?;
            let mut sequence = 4u8;
            loop {
                let rows: Vec<u8> = (0..256)
                    .flat_map(|_| {
                        let row = packet(sequence, b"\0\0\x01x");
                        sequence = sequence.wrapping_add(1);
                        row
                    })
                    .collect();
                stream.write_all(&rows)?;
            }
        }
    }
    wait(stream)
}

/// Keeps the connection open until the client leaves, or the test ends.
fn wait(mut stream: TcpStream) -> std::io::Result<()> {
    stream.set_read_timeout(Some(Duration::from_secs(60)))?;
    let mut rest = [0; 64];
    while stream.read(&mut rest)? > 0 {}
    Ok(())
}

fn read_packet(stream: &mut TcpStream) -> std::io::Result<()> {
    let mut header = [0; 4];
    stream.read_exact(&mut header)?;
    let mut content = vec![0; usize::from(header[0]) | usize::from(header[1]) << 8];
    stream.read_exact(&mut content)
}
