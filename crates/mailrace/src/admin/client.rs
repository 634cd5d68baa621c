//! The client side of the control socket: what the commands ask of a running server, and how they
//! show its answers. An answer is read whole before it is shown, so that the server does not wait
//! for a pager.

use std::io::{self, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use mail::Address;
use queue::Act;
use serde::Deserialize;
use serde_json::Value;

use super::explain::Verdict;
use super::filter::Filter;
use super::question::{Order, Question};
use super::text::{Text, counted};
use super::{QUESTION_OCTETS_MAX, list as listed, show};
use crate::cli::{Explain, QueueAct, QueueList, Target};
use crate::config::Config;
use crate::exit::{self, Exit, Page};
use crate::output::output;
use crate::reload::Answer;
use crate::terminal::printable;

/// `mailrace queue list`.
pub fn list(config: &Config, how: &QueueList) -> anyhow::Result<()> {
    let filter = how.filter.clone();
    let question = match how.by {
        Some(by) => Question::Summary { by, filter },
        None if how.count => Question::Count(filter),
        None => Question::List(filter),
    };
    let answer = ask(&config.admin.socket, &question)?;
    if how.count || how.json {
        return print(answer.lines());
    }
    let rows = answer.lines().map(serde_json::from_str).collect::<Result<Vec<Value>, _>>()?;
    match how.by {
        Some(by) => print(show::summary(by, &rows, how.ages)),
        None => print(rows.iter().map(listed::human)),
    }
}

/// `mailrace queue hold`, `release`, `retry`, `remove`, `bounce`.
pub fn act(config: &Config, act: Act, how: &QueueAct) -> anyhow::Result<()> {
    if how.filter.is_empty() && !how.all {
        let text = "no recipients selected: give a filter or --all".into();
        return Err(Exit { code: exit::USAGE, text }.into());
    }
    let question = Question::act(act, Order { filter: how.filter.clone(), dry_run: how.dry_run });
    let answer = ask(&config.admin.socket, &question)?;
    let fate = match act {
        Act::Hold => "held",
        Act::Release => "released",
        Act::Retry => "tried again",
        Act::Remove => "removed",
        Act::Bounce => "bounced",
    };
    let will = if how.dry_run { "would be" } else { "to be" };
    print([format!("{} {will} {fate}", counted(answer.trim_end().parse()?, "recipient"))])
}

/// `mailrace queue pause` and `resume`.
pub fn pause(config: &Config, queue: &str, paused: bool) -> anyhow::Result<()> {
    let queue = queue.to_owned();
    let question = if paused { Question::Pause { queue } } else { Question::Resume { queue } };
    ask(&config.admin.socket, &question).map(drop)
}

/// `mailrace explain`.
pub fn explain(config: &Config, what: &Explain) -> anyhow::Result<()> {
    let sender = what.sender.clone().map(Text);
    let (client, helo) = (what.client, what.helo.clone());
    let question = match &what.target {
        Target::Address(address) => Question::ExplainAddress { address: Text(address.clone()), sender, client, helo },
        Target::Message(id) => Question::ExplainMessage { id: Text(*id) },
    };
    print(ask(&config.admin.socket, &question)?.lines())
}

/// `mailrace load`.
pub fn load(config: &Config) -> anyhow::Result<()> {
    print(ask(&config.admin.socket, &Question::Load)?.lines())
}

/// `mailrace status`.
pub fn status(config: &Config) -> anyhow::Result<()> {
    print(ask(&config.admin.socket, &Question::Status)?.lines())
}

/// `mailrace reload`.
pub fn reload(config: &Config) -> anyhow::Result<()> {
    let answer: Answer = serde_json::from_str(&ask(&config.admin.socket, &Question::Reload)?)?;
    match answer.code {
        0 => print(answer.text.lines()),
        code => Err(Page { code, text: answer.text }.into()),
    }
}

/// Prints lines, which may contain text from strangers.
pub(super) fn print(lines: impl IntoIterator<Item = impl AsRef<str>>) -> anyhow::Result<()> {
    let mut out = BufWriter::new(output());
    lines.into_iter().try_for_each(|line| writeln!(out, "{}", printable(line.as_ref())))?;
    Ok(out.flush()?)
}

/// Why there is no answer.
#[derive(Debug)]
pub(super) enum Unasked {
    /// Nothing listens on the socket, or we may not connect: the server may not be running.
    NoServer(io::Error),
    /// The server was asked, and failed or refused.
    Exit(Exit),
}

impl From<Exit> for Unasked {
    fn from(exit: Exit) -> Self {
        Unasked::Exit(exit)
    }
}

/// `sendmail -q`: retries the selected recipients that wait for a later attempt. Returns how many.
pub fn retry_now(config: &Config, filter: Filter) -> anyhow::Result<usize> {
    let answer = ask(&config.admin.socket, &Question::Retry(Order { filter, dry_run: false }))?;
    Ok(answer.trim_end().parse()?)
}

/// `sendmail -bv`: prints a line for each address with what would happen to its mail. The exit
/// codes are those of Exim: 2 if any address is undeliverable, else 1 if any is unknown now.
pub fn verify(config: &Config, addresses: &[Address]) -> anyhow::Result<()> {
    let mut worst = Verdict::Deliverable;
    for address in addresses {
        let answer = ask(&config.admin.socket, &Question::Verify { address: Text(address.clone()) })?;
        let Verified { verdict, why } = serde_json::from_str(&answer)?;
        worst = worst.max(verdict);
        print([format!("{address}: {}: {why}", verdict.word())])?;
    }
    let (code, text) = match worst {
        Verdict::Deliverable => return Ok(()),
        Verdict::Unknown => (exit::NO, "some addresses cannot be verified now"),
        Verdict::Undeliverable => (exit::UNDELIVERABLE, "mail for some addresses cannot be delivered"),
    };
    Err(Exit { code, text: text.into() }.into())
}

#[derive(Deserialize)]
struct Verified {
    verdict: Verdict,
    why: String,
}

/// The whole answer.
pub(super) fn ask(socket: &Path, question: &Question) -> anyhow::Result<String> {
    put(socket, question).map_err(|error| told(socket, error))
}

/// The same, for answers that are not text.
pub(super) fn ask_octets(socket: &Path, question: &Question) -> anyhow::Result<Vec<u8>> {
    put_octets(socket, question).map_err(|error| told(socket, error))
}

fn told(socket: &Path, error: Unasked) -> anyhow::Error {
    match error {
        Unasked::Exit(exit) => exit.into(),
        Unasked::NoServer(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let text =
                format!("permission denied: only the server's user and root may use {}: {error}", socket.display());
            Exit { code: exit::PERMISSION, text }.into()
        }
        Unasked::NoServer(error) => {
            let text = format!("cannot connect to the server at {}: {error}", socket.display());
            Exit { code: exit::UNAVAILABLE, text }.into()
        }
    }
}

/// The same, for callers that can do without a server.
pub(super) fn put(socket: &Path, question: &Question) -> Result<String, Unasked> {
    let answer = put_octets(socket, question)?;
    let cut = |_| Exit { code: exit::IO, text: "the server's answer is not text".into() };
    Ok(String::from_utf8(answer).map_err(cut)?)
}

fn put_octets(socket: &Path, question: &Question) -> Result<Vec<u8>, Unasked> {
    let unavailable = |text| Exit { code: exit::UNAVAILABLE, text };
    let line = format!("{question}\n");
    if line.len() as u64 > QUESTION_OCTETS_MAX {
        return Err(Exit {
            code: exit::USAGE,
            text: format!("the request is longer than {QUESTION_OCTETS_MAX} bytes"),
        }
        .into());
    }
    let stream = UnixStream::connect(socket).map_err(Unasked::NoServer)?;
    // A server that refuses may close before it reads the request; its answer is still there to
    // read.
    let asked = (&stream).write_all(line.as_bytes());
    let mut answer = Vec::new();
    let read = (&stream).read_to_end(&mut answer);
    let body = answer.strip_suffix(b"\n").unwrap_or(&answer);
    let start = body.iter().rposition(|octet| *octet == b'\n').map_or(0, |end| end + 1);
    let last = String::from_utf8_lossy(&body[start..]);
    let is_whole = answer.ends_with(b"\n");
    if let Some(why) = last.strip_prefix("no: ").filter(|_| is_whole) {
        return Err(Exit { code: exit::NO, text: printable(why).into() }.into());
    }
    if let Some(why) = last.strip_prefix("failed: ").filter(|_| is_whole) {
        return Err(unavailable(format!("the server failed: {}", printable(why))).into());
    }
    if last != "done" || !is_whole {
        let error = asked.err().or(read.err()).map_or_else(String::new, |error| format!(": {error}"));
        let text = format!("the server's answer is truncated{error}");
        return Err(Exit { code: exit::IO, text }.into());
    }
    answer.truncate(start);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::thread;

    use super::super::sample;
    use super::super::server::{bind, read_question};
    use super::*;

    /// The client's result for an answer of these bytes.
    fn answered(bytes: &'static [u8]) -> Result<String, (u8, String)> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            assert_eq!(read_question(&stream).unwrap(), "list {}");
            stream.write_all(bytes).unwrap();
        });
        let answer = ask(&socket, &Question::List(Filter::default())).map_err(|error| {
            let exit = error.downcast::<Exit>().unwrap();
            (exit.code, exit.text)
        });
        server.join().unwrap();
        answer
    }

    #[test]
    fn an_answer_that_was_cut_short_is_none() {
        assert_eq!(answered(b"a\nb\ndone\n").unwrap(), "a\nb\n");
        assert_eq!(answered(b"done\n").unwrap(), "");
        for cut in [&b""[..], b"a\n", b"a\nb", b"a\ndone", b"a\nfailed: x", b"a\nno: x", b"done\na\n"] {
            assert_eq!(answered(cut).unwrap_err(), (74, "the server's answer is truncated".into()), "{cut:?}");
        }
    }

    #[test]
    fn a_no_is_told_apart_from_a_failure() {
        assert_eq!(answered(b"a\nfailed: x\n").unwrap_err(), (69, "the server failed: x".into()));
        assert_eq!(answered(b"no: unknown queue\n").unwrap_err(), (1, "unknown queue".into()));
    }

    #[test]
    fn what_the_server_would_not_read_is_not_sent() {
        let id = "7-0-1";
        let filter = sample::filter(&[&["--id"][..], &[id; 10_000]].concat());
        let error = ask(Path::new("nowhere"), &Question::List(filter)).unwrap_err();
        assert_eq!(error.downcast::<Exit>().unwrap().code, 64);
    }
}
