//! Stands in for a milter in measurements: it takes every message and changes none, so that what is
//! measured is the mail server. One thread serves all connections, so that many answers cost few
//! wake-ups.
//!
//! `milter_stub ADDRESS MODE` listens until it is killed, at HOST:PORT or unix:PATH. The modes:
//!
//! | mode | what it answers |
//! |---|---|
//! | `end` | the end of each message; it negotiates that it answers nothing else |
//! | `each` | every command, as milters do by default |
//! | `never` | nothing after the negotiation, which is that of `end`: clients wait for the end of their message |

use std::fs::{Permissions, set_permissions};
use std::io;
use std::os::unix::fs::PermissionsExt;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt};
use tokio::net::{TcpListener, UnixListener};

const VERSION: u32 = 6;
/// "No reply" to HEADER, CONNECT, HELO, MAIL, RCPT, DATA, unknown commands, END OF HEADER and BODY.
const NO_REPLIES: u32 = 0x80 | 0x1000 | 0x2000 | 0x4000 | 0x8000 | 0x1_0000 | 0x2_0000 | 0x4_0000 | 0x8_0000;
const LENGTH_OCTETS: usize = 4;
/// Larger than any frame that a mail server sends.
const INPUT_OCTETS: usize = 256 << 10;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Mode {
    End,
    Each,
    Never,
}

fn main() -> io::Result<()> {
    let arguments: Vec<String> = std::env::args().skip(1).collect();
    let [address, mode] = &arguments[..] else { panic!("usage: milter_stub ADDRESS end|each|never") };
    let mode = match &**mode {
        "end" => Mode::End,
        "each" => Mode::Each,
        "never" => Mode::Never,
        other => panic!("{other:?} is none of end, each and never"),
    };
    let runtime = tokio::runtime::Builder::new_current_thread().enable_io().build()?;
    match address.strip_prefix("unix:") {
        Some(path) => runtime.block_on(listen_at_path(path, mode)),
        None => runtime.block_on(listen(address, mode)),
    }
}

async fn listen(address: &str, mode: Mode) -> io::Result<()> {
    let listener = TcpListener::bind(address).await?;
    println!("ready");
    loop {
        let (socket, _) = listener.accept().await?;
        socket.set_nodelay(true)?;
        tokio::spawn(serve(socket, mode));
    }
}

async fn listen_at_path(path: &str, mode: Mode) -> io::Result<()> {
    let listener = UnixListener::bind(path)?;
    // Mail servers have users of their own.
    set_permissions(path, Permissions::from_mode(0o777))?;
    println!("ready");
    loop {
        let (socket, _) = listener.accept().await?;
        tokio::spawn(serve(socket, mode));
    }
}

/// Serves a mail server until it leaves.
async fn serve(mut socket: impl AsyncRead + AsyncWrite + Unpin, mode: Mode) -> io::Result<()> {
    let (mut input, mut filled) = (vec![0; INPUT_OCTETS], 0);
    loop {
        let count = socket.read(&mut input[filled..]).await?;
        if count == 0 {
            return Ok(());
        }
        filled += count;
        let (mut answers, mut taken) = (Vec::new(), 0);
        while let Some(frame) = next_frame(&input[taken..filled]) {
            taken += LENGTH_OCTETS + frame.len();
            push_answer(&mut answers, frame, mode);
        }
        input.copy_within(taken..filled, 0);
        filled -= taken;
        socket.write_all(&answers).await?;
    }
}

/// The code of the first frame with its data, once it is complete.
fn next_frame(input: &[u8]) -> Option<&[u8]> {
    let (length, rest) = input.split_first_chunk::<LENGTH_OCTETS>()?;
    rest.get(..u32::from_be_bytes(*length) as usize)
}

/// Appends what the milter says to a command.
fn push_answer(answers: &mut Vec<u8>, frame: &[u8], mode: Mode) {
    let answer: &[u8] = match (frame[0], mode) {
        (b'O', _) => &negotiation(frame, mode),
        // Macros, the end of a transaction, and those of a session are never answered.
        (b'D' | b'A' | b'Q' | b'K', _) | (_, Mode::Never) => return,
        (b'E', _) | (_, Mode::Each) => b"c",
        (_, Mode::End) => return,
    };
    answers.extend_from_slice(&(answer.len() as u32).to_be_bytes());
    answers.extend_from_slice(answer);
}

/// The answer to the offer of a version, actions and options: no actions, and of the options those that
/// spare answers.
fn negotiation(offer: &[u8], mode: Mode) -> Vec<u8> {
    let offered = offer.last_chunk().map_or(0, |options| u32::from_be_bytes(*options));
    let options = if mode == Mode::Each { 0 } else { offered & NO_REPLIES };
    let words = [VERSION, 0, options].map(u32::to_be_bytes);
    [b"O".as_slice(), words.as_flattened()].concat()
}
