//! The client side of the control socket: what the commands ask of a running server, and how they
//! show its answers. An answer is read whole before it is shown, so that the server does not wait
//! for a pager.

mod certificates;
mod cluster;
mod mailq;
mod message;
mod nodes;
mod pauses;
mod redirects;
mod reports;
mod tables;

use std::io::{self, BufWriter, Read, Write};
use std::os::unix::net::UnixStream;
use std::path::Path;

use mail::Address;
use queue::OperatorAction;
use serde::de::DeserializeOwned;
use serde_json::Value;

use control::act_report::ActReport;
use control::explanation::{AddressVerification, Deliverability};
use control::process::DrainRequest;
use control::request::{ActionRequest, ControlRequest};
use control::text::{DurationArg, SerdeAsText, plural};
use control::{
    REQUEST_OCTETS_MAX, RecipientFilter, ReloadAnswer, explanation_text, list, load_text, message_history,
    summary_text, unreadable_row,
};

use crate::cli::{ExplainArgs, ExplainTarget, NodeArgs, QueueActionArgs, QueueHistoryArgs, QueueListArgs};
use crate::exit::{self, ExitError, FormattedError};
use crate::output::output;
use crate::stderr::print_stderr;
use config::Config;
use mail::printable;

use nodes::ServerAnswers;

pub use certificates::{print_acme_status, renew_certificates};
pub use cluster::{adopt_lane, drain_node, forget_in_cluster, print_lanes, print_nodes};
pub use mailq::mailq;
pub use message::print_message;
pub use pauses::{pause, print_pauses, resume};
pub use redirects::{print_redirects, redirect};
pub use reports::{send_reports, show_reports};
pub use tables::{accept_table_removals, table_get, table_stats};

/// `mailrace queue list`. A result that is not whole is an error, so that scripts do not take it for one that is.
///
/// # Errors
///
/// A node does not answer, or messages were left out because they cannot be read; what there is, is printed.
pub fn print_queue(config: &Config, args: &QueueListArgs) -> anyhow::Result<()> {
    let filter = args.filter.clone();
    let request = match args.by {
        Some(by) => ControlRequest::Summary { by, filter },
        None if args.count => ControlRequest::Count(filter),
        None => ControlRequest::List(filter),
    };
    let mut answers = nodes::ask(config, &args.node, request)?;
    let unreadable = answers.take_unreadable();
    let shown = show_queue(args, answers);
    match unreadable_row::unreadable_text(unreadable) {
        Some(text) if shown.is_ok() => Err(ExitError { code: exit::IO, text }.into()),
        left_out => {
            left_out.iter().for_each(print_stderr);
            shown
        }
    }
}

fn show_queue(args: &QueueListArgs, answers: ServerAnswers) -> anyhow::Result<()> {
    if args.count {
        let counts: Vec<u64> = answers.iter().map(|answer| answer.text.trim_end().parse()).collect::<Result<_, _>>()?;
        print([counts.iter().sum::<u64>().to_string()])?;
        return answers.finish();
    }
    if args.json {
        return answers.print_json_rows();
    }
    answers.print(|answer| match args.by {
        Some(by) => Ok(summary_text::summary(by, &rows::<Value>(&answer.text)?, args.ages)),
        None => Ok(rows(&answer.text)?.iter().map(list::recipient_line).collect()),
    })
}

/// Has the server log what was done without it.
///
/// # Errors
///
/// The server does not run, or cannot log it.
pub fn record(config: &Config, change: &ControlRequest) -> anyhow::Result<()> {
    request_text(&config.admin.socket, change).map(drop)
}

/// The rows of an answer, a line each.
pub(super) fn rows<T: DeserializeOwned>(answer: &str) -> Result<Vec<T>, serde_json::Error> {
    answer.lines().map(serde_json::from_str).collect()
}

/// `mailrace queue hold`, `release`, `retry`, `remove`, `bounce`.
pub fn apply_queue_action(config: &Config, action: OperatorAction, args: &QueueActionArgs) -> anyhow::Result<()> {
    if args.filter.is_empty() && !args.all {
        let text = "no recipients selected: give a filter or --all".into();
        return Err(ExitError { code: exit::USAGE, text }.into());
    }
    let request = ControlRequest::action(action, ActionRequest { filter: args.filter.clone(), dry_run: args.dry_run });
    let answers = nodes::ask(config, &args.node, request)?;
    let fate = match action {
        OperatorAction::Hold => "held",
        OperatorAction::Release => "released",
        OperatorAction::Retry => "tried again",
        OperatorAction::Remove => "removed",
        OperatorAction::Bounce => "bounced",
    };
    let will = if args.dry_run { "would be" } else { "to be" };
    let sentence = |count| format!("{} {will} {fate}", plural(count, "recipient"));
    let (mut total, mut total_left_out) = (0, 0);
    for answer in answers.iter() {
        let ActReport { recipients, in_attempt } = answer.text.parse()?;
        total += recipients;
        total_left_out += in_attempt;
        print(answer.node.iter().map(|node| format!("node {node}: {}", sentence(recipients))))?;
    }
    print([sentence(total)])?;
    if total_left_out > 0 {
        print([format!("{} left out: in an attempt", plural(total_left_out, "recipient"))])?;
    }
    answers.finish()
}

/// `mailrace explain`.
pub fn print_explanation(config: &Config, args: &ExplainArgs) -> anyhow::Result<()> {
    let sender = args.sender.clone().map(SerdeAsText);
    let (client, helo) = (args.client, args.helo.clone());
    let request = match &args.target {
        ExplainTarget::Address(address) => {
            ControlRequest::ExplainAddress { address: SerdeAsText(address.clone()), sender, client, helo }
        }
        ExplainTarget::Message(id) => ControlRequest::ExplainMessage { id: SerdeAsText(*id) },
    };
    let is_about_message = matches!(request, ControlRequest::ExplainMessage { .. });
    let lines = |answer: &str| -> anyhow::Result<Vec<String>> {
        let text = match is_about_message {
            true => explanation_text::message_text(&serde_json::from_str(answer)?),
            false => explanation_text::address_text(&serde_json::from_str(answer)?),
        };
        Ok(text.lines().map(str::to_owned).collect())
    };
    // Nodes with the same configuration explain an address alike, and a message is on one of them.
    if !is_about_message && args.node.name.is_none() {
        return print(lines(&request_text(&config.admin.socket, &request)?)?);
    }
    nodes::ask(config, &args.node, request)?.without_refusals().print(|answer| lines(&answer.text))
}

/// `mailrace load`.
pub fn print_load(config: &Config) -> anyhow::Result<()> {
    let status = serde_json::from_str(&request_text(&config.admin.socket, &ControlRequest::Load)?)?;
    print(load_text::lines(&status))
}

/// `mailrace status`.
pub fn print_status(config: &Config, node: &NodeArgs, as_json: bool) -> anyhow::Result<()> {
    let adaptive = nodes::ask(config, node, ControlRequest::Adaptive)?;
    let metrics = nodes::ask(config, node, ControlRequest::Status)?;
    metrics.print_with(&adaptive, as_json)
}

/// `mailrace queue history`.
pub fn print_history(config: &Config, args: &QueueHistoryArgs) -> anyhow::Result<()> {
    let answer = request_text(&config.admin.socket, &ControlRequest::History { id: SerdeAsText(args.id) })?;
    match args.json {
        true => print(answer.lines()),
        false => print(message_history::lines(&serde_json::from_str(&answer)?)),
    }
}

/// `mailrace drain`.
pub fn drain(config: &Config, within: Option<&SerdeAsText<DurationArg>>) -> anyhow::Result<()> {
    let request = ControlRequest::Drain(DrainRequest { within: within.cloned() });
    request_text(&config.admin.socket, &request).map(drop)
}

/// `mailrace reload`.
pub fn reload(config: &Config) -> anyhow::Result<()> {
    show_reload(&request_text(&config.admin.socket, &ControlRequest::Reload)?)
}

/// The same, if a server answers. Returns whether one did.
pub fn reload_if_running(config: &Config) -> anyhow::Result<bool> {
    match try_request_text(&config.admin.socket, &ControlRequest::Reload) {
        Ok(answer) => show_reload(&answer).map(|()| true),
        Err(ControlClientError::NoServer(_)) => Ok(false),
        Err(ControlClientError::Failed(exit)) => Err(exit.into()),
    }
}

fn show_reload(answer: &str) -> anyhow::Result<()> {
    match serde_json::from_str(answer)? {
        ReloadAnswer::InForce { source, changes } => print(format!("{source}: {}", changes.join("; ")).lines()),
        ReloadAnswer::Refused { exit_code, errors } => Err(FormattedError { code: exit_code, text: errors }.into()),
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
pub(super) enum ControlClientError {
    /// Nothing listens on the socket, or we may not connect: the server may not be running.
    NoServer(io::Error),
    /// The server was asked, and failed or refused.
    Failed(ExitError),
}

impl From<ExitError> for ControlClientError {
    fn from(exit: ExitError) -> Self {
        ControlClientError::Failed(exit)
    }
}

/// `sendmail -q`: retries the selected recipients that wait for a later attempt. Returns how many.
pub fn retry_now(config: &Config, filter: RecipientFilter) -> anyhow::Result<usize> {
    let answer = request_text(&config.admin.socket, &ControlRequest::Retry(ActionRequest { filter, dry_run: false }))?;
    Ok(answer.parse::<ActReport>()?.recipients)
}

/// `sendmail -bv`: prints a line for each address with what would happen to its mail. The exit
/// codes are those of Exim: 2 if any address is undeliverable, else 1 if any is unknown now.
pub fn verify_addresses(config: &Config, addresses: &[Address]) -> anyhow::Result<()> {
    let mut worst = Deliverability::Deliverable;
    for address in addresses {
        let answer =
            request_text(&config.admin.socket, &ControlRequest::Verify { address: SerdeAsText(address.clone()) })?;
        let AddressVerification { verdict, why } = serde_json::from_str(&answer)?;
        worst = worst.max(verdict);
        print([format!("{address}: {}: {why}", verdict.word())])?;
    }
    let (code, text) = match worst {
        Deliverability::Deliverable => return Ok(()),
        Deliverability::Unknown => (exit::NEGATIVE, "some addresses cannot be verified now"),
        Deliverability::Undeliverable => (exit::UNDELIVERABLE, "mail for some addresses cannot be delivered"),
    };
    Err(ExitError { code, text: text.into() }.into())
}

/// The whole answer.
pub(super) fn request_text(socket: &Path, request: &ControlRequest) -> anyhow::Result<String> {
    try_request_text(socket, request).map_err(|error| into_exit(socket, error))
}

/// The same, for answers that are not text.
pub(super) fn request_bytes(socket: &Path, request: &ControlRequest) -> anyhow::Result<Vec<u8>> {
    try_request_bytes(socket, request).map_err(|error| into_exit(socket, error))
}

fn into_exit(socket: &Path, error: ControlClientError) -> anyhow::Error {
    match error {
        ControlClientError::Failed(exit) => exit.into(),
        ControlClientError::NoServer(error) if error.kind() == io::ErrorKind::PermissionDenied => {
            let text =
                format!("permission denied: only the server's user and root may use {}: {error}", socket.display());
            ExitError { code: exit::PERMISSION, text }.into()
        }
        ControlClientError::NoServer(error) => {
            let text = format!("cannot connect to the server at {}: {error}", socket.display());
            ExitError { code: exit::UNAVAILABLE, text }.into()
        }
    }
}

/// The same, for callers that can do without a server.
pub(super) fn try_request_text(socket: &Path, request: &ControlRequest) -> Result<String, ControlClientError> {
    let answer = try_request_bytes(socket, request)?;
    let cut = |_| ExitError { code: exit::IO, text: "the server's answer is not text".into() };
    Ok(String::from_utf8(answer).map_err(cut)?)
}

fn try_request_bytes(socket: &Path, request: &ControlRequest) -> Result<Vec<u8>, ControlClientError> {
    let line = format!("{request}\n");
    if line.len() as u64 > REQUEST_OCTETS_MAX {
        return Err(ExitError {
            code: exit::USAGE,
            text: format!("the request is longer than {REQUEST_OCTETS_MAX} bytes"),
        }
        .into());
    }
    let stream = UnixStream::connect(socket).map_err(ControlClientError::NoServer)?;
    // A server that refuses may close before it reads the request; its answer is still there to
    // read.
    let asked = (&stream).write_all(line.as_bytes());
    let mut answer = Vec::new();
    let read = (&stream).read_to_end(&mut answer);
    split_status(answer, asked.err().or(read.err()))
}

/// An answer without its last line, which says whether it is whole. `error`: what went wrong while it came.
pub(super) fn split_status(mut answer: Vec<u8>, error: Option<io::Error>) -> Result<Vec<u8>, ControlClientError> {
    let unavailable = |text| ExitError { code: exit::UNAVAILABLE, text };
    let body = answer.strip_suffix(b"\n").unwrap_or(&answer);
    let start = body.iter().rposition(|octet| *octet == b'\n').map_or(0, |end| end + 1);
    let last = String::from_utf8_lossy(&body[start..]);
    let is_whole = answer.ends_with(b"\n");
    if let Some(why) = last.strip_prefix("no: ").filter(|_| is_whole) {
        return Err(ExitError { code: exit::NEGATIVE, text: printable(why).into() }.into());
    }
    if let Some(why) = last.strip_prefix("failed: ").filter(|_| is_whole) {
        return Err(unavailable(format!("the server failed: {}", printable(why))).into());
    }
    if last != "done" || !is_whole {
        let error = error.map_or_else(String::new, |error| format!(": {error}"));
        let text = format!("the server's answer is truncated{error}");
        return Err(ExitError { code: exit::IO, text }.into());
    }
    answer.truncate(start);
    Ok(answer)
}

#[cfg(test)]
mod tests {
    use std::io::{BufRead, BufReader};
    use std::os::unix::net::UnixListener;
    use std::thread;

    use clap::{Args, FromArgMatches};

    use super::*;

    /// The client's result for an answer of these bytes.
    fn answered(bytes: &'static [u8]) -> Result<String, (u8, String)> {
        let folder = tempfile::tempdir().unwrap();
        let socket = folder.path().join("socket");
        let listener = UnixListener::bind(&socket).unwrap();
        let server = thread::spawn(move || {
            let (mut stream, _) = listener.accept().unwrap();
            let mut request = String::new();
            BufReader::new(&stream).read_line(&mut request).unwrap();
            assert_eq!(request, "list {}\n");
            stream.write_all(bytes).unwrap();
        });
        let answer = request_text(&socket, &ControlRequest::List(RecipientFilter::default())).map_err(|error| {
            let exit = error.downcast::<ExitError>().unwrap();
            (exit.code, exit.text)
        });
        server.join().unwrap();
        answer
    }

    #[test]
    fn a_truncated_answer_is_an_error() {
        assert_eq!(answered(b"a\nb\ndone\n").unwrap(), "a\nb\n");
        assert_eq!(answered(b"done\n").unwrap(), "");
        for cut in [&b""[..], b"a\n", b"a\nb", b"a\ndone", b"a\nfailed: x", b"a\nno: x", b"done\na\n"] {
            assert_eq!(answered(cut).unwrap_err(), (74, "the server's answer is truncated".into()), "{cut:?}");
        }
    }

    #[test]
    fn a_refusal_differs_from_a_failure() {
        assert_eq!(answered(b"a\nfailed: x\n").unwrap_err(), (69, "the server failed: x".into()));
        assert_eq!(answered(b"no: unknown queue\n").unwrap_err(), (1, "unknown queue".into()));
    }

    #[test]
    fn an_oversized_request_is_not_sent() {
        let id = "7-0-1";
        let command = RecipientFilter::augment_args(clap::Command::new("filter").no_binary_name(true));
        let options = command.get_matches_from([&["--id"][..], &[id; 10_000]].concat());
        let filter = RecipientFilter::from_arg_matches(&options).unwrap();
        let error = request_text(Path::new("nowhere"), &ControlRequest::List(filter)).unwrap_err();
        assert_eq!(error.downcast::<ExitError>().unwrap().code, 64);
    }
}
