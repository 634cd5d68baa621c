//! Parses transcripts of client sessions; `tests/client_transcripts/README.md` describes the
//! format.

#[path = "../transcript/text.rs"]
mod text;

use std::path::PathBuf;
use std::time::Duration;

use text::unescape;

pub(crate) use text::duration;

/// One transcript.
pub(crate) struct Transcript {
    /// The file name without its extension.
    pub(crate) name: String,
    /// Settings of the client: names and values.
    pub(crate) settings: Vec<(String, String)>,
    /// The steps, in order.
    pub(crate) steps: Vec<Step>,
}

/// Something that happens or is expected.
pub(crate) struct Step {
    /// The line number in the file.
    pub(crate) line: usize,
    /// The event.
    pub(crate) event: Event,
}

/// The kinds of steps.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    /// The server sends these bytes: all its lines up to the next step of another kind.
    Receive(Vec<u8>),
    /// The client sends exactly these bytes: all its lines up to the next step of another kind.
    Send(Vec<u8>),
    /// The sender of the next transaction, with its parameters.
    Sender { address: String, parameters: Vec<String> },
    /// Another recipient of the next transaction, with its parameters.
    Recipient { address: String, parameters: Vec<String> },
    /// More bytes of the next transaction's message.
    Message(Vec<u8>),
    /// The next transaction begins.
    Begin,
    /// The driver calls `quit`.
    Quit,
    /// The TLS handshake has succeeded.
    Secured,
    /// Time passes.
    Wait(Duration),
    /// The server closes.
    End,
    /// From here on the connection accepts this many more octets; None for no limit.
    Accepts(Option<u64>),
    /// An event that the client reports.
    Reported(String),
    /// The client closes.
    Closed,
}

impl Transcript {
    /// All transcripts of the folder, by name.
    pub(crate) fn all() -> Vec<Transcript> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/client_transcripts");
        let entries = std::fs::read_dir(folder).expect("the folder of the transcripts is there");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("its entries can be read").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "smtp"));
        paths.sort();
        let read = |path: &PathBuf| std::fs::read_to_string(path).expect("a transcript is a text file");
        let name = |path: &PathBuf| path.file_stem().unwrap_or_default().to_string_lossy().into_owned();
        paths.iter().map(|path| Transcript::parse(name(path), &read(path))).collect()
    }

    fn parse(name: String, text: &str) -> Transcript {
        let mut transcript = Transcript { name, settings: Vec::new(), steps: Vec::new() };
        for (index, line) in text.lines().enumerate() {
            let understood = transcript.take(index + 1, line);
            assert!(understood.is_some(), "{}.smtp:{}: not understood: {line}", transcript.name, index + 1);
        }
        transcript
    }

    fn take(&mut self, number: usize, line: &str) -> Option<()> {
        let (mark, rest) = line.split_at_checked(2).unwrap_or((line, ""));
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        let event = match mark {
            "" | "# " | "#" => return Some(()),
            "% " => {
                let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
                self.settings.push((name.to_owned(), value.to_owned()));
                return Some(());
            }
            "S:" => Event::Receive([rest.as_bytes(), b"\r\n"].concat()),
            "S|" => Event::Receive(unescape(rest)?),
            "C:" => Event::Send([rest.as_bytes(), b"\r\n"].concat()),
            "C|" => Event::Send(unescape(rest)?),
            "M:" => Event::Message([rest.as_bytes(), b"\r\n"].concat()),
            "M|" => Event::Message(unescape(rest)?),
            "= " => (rest == "closed").then_some(Event::Closed)?,
            "@ " => parse_moment(rest)?,
            "> " => Event::Reported(rest.to_owned()),
            _ => return None,
        };
        self.push(number, event);
        Some(())
    }

    /// Joins bytes of the same direction.
    fn push(&mut self, line: usize, event: Event) {
        match (self.steps.last_mut().map(|step| &mut step.event), event) {
            (Some(Event::Receive(before)), Event::Receive(bytes)) => before.extend(bytes),
            (Some(Event::Send(before)), Event::Send(bytes)) => before.extend(bytes),
            (_, event) => self.steps.push(Step { line, event }),
        }
    }
}

fn parse_moment(text: &str) -> Option<Event> {
    match text.split_once(' ').unwrap_or((text, "")) {
        ("begin", "") => Some(Event::Begin),
        ("quit", "") => Some(Event::Quit),
        ("secured", "") => Some(Event::Secured),
        ("end", "") => Some(Event::End),
        ("room", "all") => Some(Event::Accepts(None)),
        ("room", octets) => Some(Event::Accepts(Some(octets.parse().ok()?))),
        ("from", path) => path_and_parameters(path).map(|(address, parameters)| Event::Sender { address, parameters }),
        ("to", path) => path_and_parameters(path).map(|(address, parameters)| Event::Recipient { address, parameters }),
        _ => text.strip_prefix('+').and_then(duration).map(Event::Wait),
    }
}

fn path_and_parameters(text: &str) -> Option<(String, Vec<String>)> {
    let (address, rest) = text.strip_prefix('<')?.split_once('>')?;
    Some((address.to_owned(), rest.split_ascii_whitespace().map(str::to_owned).collect()))
}
