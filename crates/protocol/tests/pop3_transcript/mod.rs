//! Parses transcripts of POP3 sessions; `tests/pop3_transcripts/README.md` describes the format.
//! This does not drive the machine.

#[path = "../transcript/text.rs"]
mod text;

use std::path::PathBuf;
use std::time::Duration;

pub(crate) use text::duration;
use text::unescape;

/// One transcript.
pub(crate) struct Transcript {
    /// The file name without its extension.
    pub(crate) name: String,
    /// Settings of the server: names and values.
    pub(crate) settings: Vec<(String, String)>,
    /// The messages of the maildrop, as stored.
    pub(crate) messages: Vec<Vec<u8>>,
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
    /// The client sends these bytes: all its lines up to the next step of another kind.
    Send(Vec<u8>),
    /// The server sends exactly this line.
    Line(String),
    /// The server sends a line with this prefix.
    Prefix(String),
    /// The server closes.
    Closed,
    /// Time passes.
    Wait(Duration),
    /// The client closes its side.
    End,
    /// The server shuts down.
    Shutdown,
    /// The TLS handshake that the server requested succeeds.
    Secured,
    /// The answer to a question from here on.
    Script { question: String, answer: String },
    /// What the driver is told.
    Outcome(String),
}

impl Transcript {
    /// All transcripts of the folder, by name.
    pub(crate) fn all() -> Vec<Transcript> {
        let folder = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("tests/pop3_transcripts");
        let entries = std::fs::read_dir(folder).expect("the folder of the transcripts is there");
        let mut paths: Vec<PathBuf> = entries.map(|entry| entry.expect("its entries can be read").path()).collect();
        paths.retain(|path| path.extension().is_some_and(|ending| ending == "pop3"));
        paths.sort();
        let read = |path: &PathBuf| std::fs::read_to_string(path).expect("a transcript is a text file");
        paths
            .iter()
            .map(|path| Transcript::parse(&path.file_stem().unwrap_or_default().to_string_lossy(), &read(path)))
            .collect()
    }

    /// Parses a transcript. Panics with the line number if a line is invalid.
    fn parse(name: &str, text: &str) -> Transcript {
        let (settings, messages, steps) = (Vec::new(), Vec::new(), Vec::new());
        let mut transcript = Transcript { name: name.to_owned(), settings, messages, steps };
        for (index, line) in text.lines().enumerate() {
            let understood = transcript.take(index + 1, line);
            assert!(understood.is_some(), "{name}.pop3:{}: not understood: {line}", index + 1);
        }
        transcript
    }

    fn take(&mut self, number: usize, line: &str) -> Option<()> {
        let (mark, rest) = line.split_at_checked(2).unwrap_or((line, ""));
        let rest = rest.strip_prefix(' ').unwrap_or(rest);
        match mark {
            "" | "# " | "#" => {}
            "% " => {
                let (name, value) = rest.split_once(' ').unwrap_or((rest, ""));
                self.settings.push((name.to_owned(), value.to_owned()));
            }
            "M|" => self.messages.push(unescape(rest)?),
            "C:" => self.send(number, [rest.as_bytes(), b"\r\n"].concat()),
            "C|" => self.send(number, unescape(rest)?),
            "S:" => self.push(number, Event::Line(rest.to_owned())),
            "S~" => self.push(number, Event::Prefix(rest.to_owned())),
            "= " => self.push(number, (rest == "closed").then_some(Event::Closed)?),
            "@ " => self.push(number, moment(rest)?),
            "? " => {
                let (question, answer) = rest.split_once(" -> ")?;
                self.push(number, Event::Script { question: question.to_owned(), answer: answer.to_owned() });
            }
            "> " => self.push(number, Event::Outcome(rest.to_owned())),
            _ => return None,
        }
        Some(())
    }

    fn push(&mut self, line: usize, event: Event) {
        self.steps.push(Step { line, event });
    }

    fn send(&mut self, line: usize, bytes: Vec<u8>) {
        match self.steps.last_mut() {
            Some(Step { event: Event::Send(before), .. }) => before.extend(bytes),
            _ => self.push(line, Event::Send(bytes)),
        }
    }
}

fn moment(text: &str) -> Option<Event> {
    match text {
        "end" => Some(Event::End),
        "shutdown" => Some(Event::Shutdown),
        "secured" => Some(Event::Secured),
        _ => text.strip_prefix('+').and_then(duration).map(Event::Wait),
    }
}
