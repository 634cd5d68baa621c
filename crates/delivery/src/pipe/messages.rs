//! The messages between the server and the launcher. Each is one packet of a unix socket; its parts are
//! texts with a NUL between them, which no argument of a program can contain.
//!
//! | from | message | parts |
//! |---|---|---|
//! | server, at first | `define` | name, user, group, folder, null sender, delimiter, arguments |
//! | server, then once | `ready` | |
//! | server | `run`, with the input and the output of the program | number, name, queue ID, size, client, sender, recipients |
//! | server | `kill` | number |
//! | launcher | `exited`, `killed`, `unstarted`, `refused` | number, and the status, the signal or the reason |

use std::path::PathBuf;

use super::arguments::ArgumentTemplate;
use super::run_request::RunRequest;

/// The longest message. It holds [`super::RECIPIENTS_MAX`] addresses, and fits into a socket's buffer.
pub(super) const MESSAGE_OCTETS_MAX: usize = 96 << 10;

/// A program that the launcher may run.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ProgramDefinition {
    /// The name of the transport.
    pub name: Box<str>,
    /// The user and the group that it runs as; never root.
    pub user: (u32, u32),
    /// Its working folder.
    pub folder: PathBuf,
    /// `${sender}` of the null sender.
    pub null_sender: Box<str>,
    /// Between a mailbox and its tag, for `${user}` and `${extension}`.
    pub delimiter: Option<char>,
    /// The path of the program, and its arguments; at least one.
    pub arguments: Vec<ArgumentTemplate>,
}

/// A message to the launcher.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum LauncherRequest {
    Define(ProgramDefinition),
    Ready,
    Run { number: u64, request: RunRequest },
    Kill { number: u64 },
}

/// How a program ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum ProgramEnd {
    /// With this status.
    Exited(i32),
    /// By this signal.
    Killed(i32),
    /// It could not be started, and why.
    Unstarted(String),
    /// This argument would have been an option.
    Refused(String),
}

impl LauncherRequest {
    /// None: it is too long, or a part contains a NUL.
    pub(super) fn encode(&self) -> Option<Vec<u8>> {
        let parts: Vec<String> = match self {
            LauncherRequest::Define(program) => definition_parts(program)?,
            LauncherRequest::Ready => vec!["ready".into()],
            LauncherRequest::Run { number, request } => {
                let RunRequest { program, queue_id, size, client_address, sender, recipients } = request.clone();
                let front = ["run".into(), number.to_string(), program, queue_id, size.to_string(), client_address];
                front.into_iter().chain([sender]).chain(recipients).collect()
            }
            LauncherRequest::Kill { number } => vec!["kill".into(), number.to_string()],
        };
        encode_parts(&parts)
    }

    /// None: not a message.
    pub(super) fn decode(bytes: &[u8]) -> Option<Self> {
        let mut parts = std::str::from_utf8(bytes).ok()?.split('\0');
        match parts.next()? {
            "define" => definition(&mut parts).map(LauncherRequest::Define),
            "ready" => Some(LauncherRequest::Ready),
            "run" => {
                let number = parts.next()?.parse().ok()?;
                let mut text = || parts.next().map(str::to_owned);
                let (program, queue_id, size) = (text()?, text()?, text()?.parse().ok()?);
                let (client_address, sender) = (text()?, text()?);
                let recipients = parts.map(str::to_owned).collect();
                let request = RunRequest { program, queue_id, size, client_address, sender, recipients };
                Some(LauncherRequest::Run { number, request })
            }
            "kill" => Some(LauncherRequest::Kill { number: parts.next()?.parse().ok()? }),
            _ => None,
        }
    }
}

fn definition_parts(program: &ProgramDefinition) -> Option<Vec<String>> {
    let ProgramDefinition { name, user: (uid, gid), folder, null_sender, delimiter, arguments } = program;
    let delimiter = delimiter.map(String::from).unwrap_or_default();
    let front = ["define".into(), name.to_string(), uid.to_string(), gid.to_string(), folder.to_str()?.into()];
    let arguments = arguments.iter().map(ArgumentTemplate::to_string);
    Some(front.into_iter().chain([null_sender.to_string(), delimiter]).chain(arguments).collect())
}

fn definition<'a>(parts: &mut impl Iterator<Item = &'a str>) -> Option<ProgramDefinition> {
    let name = parts.next()?.into();
    let user = (parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    let (folder, null_sender, delimiter) = (parts.next()?.into(), parts.next()?.into(), parts.next()?.chars().next());
    let arguments = parts.map(|text| text.parse().ok()).collect::<Option<Vec<_>>>()?;
    let program = ProgramDefinition { name, user, folder, null_sender, delimiter, arguments };
    Some(program).filter(|program| !program.arguments.is_empty())
}

/// The answer about the run with this number.
pub(super) fn encode_end(number: u64, end: &ProgramEnd) -> Option<Vec<u8>> {
    let (word, value) = match end {
        ProgramEnd::Exited(status) => ("exited", status.to_string()),
        ProgramEnd::Killed(signal) => ("killed", signal.to_string()),
        ProgramEnd::Unstarted(why) => ("unstarted", why.clone()),
        ProgramEnd::Refused(argument) => ("refused", argument.clone()),
    };
    encode_parts(&[word.into(), number.to_string(), value])
}

/// None: not an answer.
pub(super) fn decode_end(bytes: &[u8]) -> Option<(u64, ProgramEnd)> {
    let mut parts = std::str::from_utf8(bytes).ok()?.split('\0');
    let (word, number, value) = (parts.next()?, parts.next()?.parse().ok()?, parts.next()?);
    let end = match word {
        "exited" => ProgramEnd::Exited(value.parse().ok()?),
        "killed" => ProgramEnd::Killed(value.parse().ok()?),
        "unstarted" => ProgramEnd::Unstarted(value.into()),
        "refused" => ProgramEnd::Refused(value.into()),
        _ => return None,
    };
    Some((number, end))
}

fn encode_parts(parts: &[String]) -> Option<Vec<u8>> {
    let message = parts.join("\0").into_bytes();
    let is_sound = message.len() <= MESSAGE_OCTETS_MAX && parts.iter().all(|part| !part.contains('\0'));
    is_sound.then_some(message)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn run(recipients: &[&str]) -> LauncherRequest {
        let request = RunRequest {
            program: "lists".into(),
            queue_id: "1-0-7".into(),
            size: 42,
            client_address: String::new(),
            sender: String::new(),
            recipients: recipients.iter().map(|&recipient| recipient.to_owned()).collect(),
        };
        LauncherRequest::Run { number: 9, request }
    }

    #[test]
    fn messages_are_read_as_they_were_written() {
        let program = ProgramDefinition {
            name: "lists".into(),
            user: (1000, 1001),
            folder: "/".into(),
            null_sender: "<>".into(),
            delimiter: Some('+'),
            arguments: ["/bin/x", "${user}", ""].map(|text| text.parse().unwrap()).into(),
        };
        let all = [LauncherRequest::Define(program), LauncherRequest::Ready, LauncherRequest::Kill { number: 1 }];
        for request in all.into_iter().chain([run(&["a@b.example", "c d@e.example"])]) {
            assert_eq!(LauncherRequest::decode(&request.encode().unwrap()), Some(request));
        }
        let ends = [ProgramEnd::Exited(-1), ProgramEnd::Killed(9), ProgramEnd::Unstarted("no: such".into())];
        for end in ends.into_iter().chain([ProgramEnd::Refused("-o".into())]) {
            assert_eq!(decode_end(&encode_end(7, &end).unwrap()), Some((7, end)));
        }
    }

    #[test]
    fn what_does_not_fit_into_a_message_is_not_sent() {
        assert_eq!(run(&["a\0b@c.example"]).encode(), None);
        assert_eq!(run(&["x".repeat(MESSAGE_OCTETS_MAX).as_str()]).encode(), None);
        let longest = format!("{}@{}", "x".repeat(64), "y".repeat(255));
        assert!(run(&[longest.as_str(); super::super::RECIPIENTS_MAX]).encode().is_some());
    }

    proptest! {
        #[test]
        fn any_bytes_are_read(bytes in "(define|run|kill|ready|exited)?(\0[0-9a-z${}]{0,4}){0,9}|(?s).{0,30}") {
            LauncherRequest::decode(bytes.as_bytes());
            decode_end(bytes.as_bytes());
        }
    }
}
