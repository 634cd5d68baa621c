//! The arguments of a program: templates with macros, and their expansion. No shell takes part, so an
//! address stays inside of its argument, whatever its characters.
//!
//! | macro | value |
//! |---|---|
//! | `${sender}` | the reverse-path, or a fixed text for the null sender |
//! | `${recipient}`, `${user}`, `${extension}`, `${domain}` | the recipient, its parts, and the tag |
//! | `${queue_id}`, `${size}`, `${client_address}` | of the message |
//!
//! An argument with a macro of the recipient is repeated for each recipient. `$$` is a dollar sign.
//! An argument that begins with a macro must not become an option: if its value begins with `-`, and
//! there is no argument `--` before it, the program is not run.

use std::fmt;
use std::str::FromStr;

use super::run_request::RunRequest;

/// One argument of a program.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ArgumentTemplate {
    /// As the operator wrote it.
    text: Box<str>,
    pieces: Vec<Piece>,
}

/// Not an argument.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum InvalidArgument {
    /// A macro without a name that is known.
    #[error("unknown macro '{0}'")]
    UnknownMacro(Box<str>),
    /// A dollar sign that starts no macro.
    #[error("expected '${{name}}', or '$$' for a dollar sign")]
    LoneDollar,
    /// It cannot be passed to a program.
    #[error("contains a NUL")]
    Nul,
}

#[derive(Clone, Debug, PartialEq, Eq)]
enum Piece {
    Text(Box<str>),
    Macro(Macro),
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Macro {
    Sender,
    Recipient,
    User,
    Extension,
    Domain,
    QueueId,
    Size,
    ClientAddress,
}

const MACROS: [(&str, Macro); 8] = [
    ("sender", Macro::Sender),
    ("recipient", Macro::Recipient),
    ("user", Macro::User),
    ("extension", Macro::Extension),
    ("domain", Macro::Domain),
    ("queue_id", Macro::QueueId),
    ("size", Macro::Size),
    ("client_address", Macro::ClientAddress),
];

impl Macro {
    fn is_of_recipient(self) -> bool {
        matches!(self, Macro::Recipient | Macro::User | Macro::Extension | Macro::Domain)
    }
}

impl ArgumentTemplate {
    fn is_of_recipient(&self) -> bool {
        self.pieces.iter().any(|piece| matches!(piece, Piece::Macro(one) if one.is_of_recipient()))
    }

    fn begins_with_macro(&self) -> bool {
        matches!(self.pieces.first(), Some(Piece::Macro(_)))
    }
}

impl FromStr for ArgumentTemplate {
    type Err = InvalidArgument;

    fn from_str(text: &str) -> Result<Self, InvalidArgument> {
        if text.contains('\0') {
            return Err(InvalidArgument::Nul);
        }
        let (mut pieces, mut rest) = (Vec::new(), text);
        while let Some((before, after)) = rest.split_once('$') {
            let (piece, behind) = read_macro(after)?;
            pieces.extend((!before.is_empty()).then(|| Piece::Text(before.into())));
            pieces.push(piece);
            rest = behind;
        }
        pieces.extend((!rest.is_empty()).then(|| Piece::Text(rest.into())));
        Ok(ArgumentTemplate { text: text.into(), pieces })
    }
}

impl fmt::Display for ArgumentTemplate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

/// What follows a dollar sign, and the rest of the text.
fn read_macro(after: &str) -> Result<(Piece, &str), InvalidArgument> {
    if let Some(rest) = after.strip_prefix('$') {
        return Ok((Piece::Text("$".into()), rest));
    }
    let (name, rest) =
        after.strip_prefix('{').and_then(|after| after.split_once('}')).ok_or(InvalidArgument::LoneDollar)?;
    let known = MACROS.iter().find(|(known, _)| *known == name);
    let (_, known) = known.ok_or_else(|| InvalidArgument::UnknownMacro(format!("${{{name}}}").into()))?;
    Ok((Piece::Macro(*known), rest))
}

/// What macros need beside the request.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct MacroSettings<'a> {
    /// `${sender}` of the null sender.
    pub(super) null_sender: &'a str,
    /// Between the mailbox and its tag.
    pub(super) delimiter: Option<char>,
}

/// The arguments for a run.
///
/// # Errors
///
/// The argument that would become an option, for the notice.
pub(super) fn expand(
    templates: &[ArgumentTemplate],
    request: &RunRequest,
    settings: &MacroSettings<'_>,
) -> Result<Vec<String>, String> {
    let mut arguments: Vec<String> = Vec::with_capacity(templates.len() + request.recipients.len());
    for template in templates {
        let recipients = match template.is_of_recipient() {
            true => request.recipients.iter().map(String::as_str).collect(),
            false => vec![""],
        };
        for recipient in recipients {
            let argument = expand_one(template, request, recipient, settings);
            let may_be_option = template.begins_with_macro() && !arguments.iter().any(|earlier| earlier == "--");
            if may_be_option && argument.starts_with('-') {
                return Err(argument);
            }
            arguments.push(argument);
        }
    }
    Ok(arguments)
}

fn expand_one(
    template: &ArgumentTemplate,
    request: &RunRequest,
    recipient: &str,
    settings: &MacroSettings<'_>,
) -> String {
    let (local, domain) = recipient.rsplit_once('@').unwrap_or((recipient, ""));
    let (user, extension) = split_tag(local, settings.delimiter);
    let value = |piece: &Piece| match piece {
        Piece::Text(text) => text.to_string(),
        Piece::Macro(Macro::Sender) if request.sender.is_empty() => settings.null_sender.to_owned(),
        Piece::Macro(Macro::Sender) => request.sender.clone(),
        Piece::Macro(Macro::Recipient) => recipient.to_owned(),
        Piece::Macro(Macro::User) => user.to_owned(),
        Piece::Macro(Macro::Extension) => extension.to_owned(),
        Piece::Macro(Macro::Domain) => domain.to_owned(),
        Piece::Macro(Macro::QueueId) => request.queue_id.clone(),
        Piece::Macro(Macro::Size) => request.size.to_string(),
        Piece::Macro(Macro::ClientAddress) => request.client_address.clone(),
    };
    template.pieces.iter().map(value).collect()
}

/// The mailbox and its tag. A delimiter at the start belongs to the mailbox.
fn split_tag(local: &str, delimiter: Option<char>) -> (&str, &str) {
    let split = delimiter.and_then(|delimiter| local.split_once(delimiter));
    split.filter(|(mailbox, _)| !mailbox.is_empty()).unwrap_or((local, ""))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn request(sender: &str, recipients: &[&str]) -> RunRequest {
        RunRequest {
            program: "lists".into(),
            queue_id: "1-0-7".into(),
            size: 42,
            client_address: "192.0.2.1".into(),
            sender: sender.into(),
            recipients: recipients.iter().map(|&recipient| recipient.to_owned()).collect(),
        }
    }

    fn arguments(templates: &[&str], request: &RunRequest) -> Result<Vec<String>, String> {
        let templates: Vec<ArgumentTemplate> = templates.iter().map(|text| text.parse().unwrap()).collect();
        expand(&templates, request, &MacroSettings { null_sender: "MAILER-DAEMON", delimiter: Some('+') })
    }

    #[test]
    fn each_macro_stays_in_its_argument() {
        let templates = ["/bin/x", "-f", "${sender}", "--to=${user}/${extension}", "${domain}", "$$1 ${queue_id}"];
        let rest = ["${size}", "${client_address}"];
        let one = request("a@b.example", &["\"b o; rm -rf $HOME\"+tag@c.example"]);
        let expected = ["/bin/x", "-f", "a@b.example", "--to=\"b o; rm -rf $HOME\"/tag", "c.example", "$1 1-0-7"];
        let all: Vec<&str> = templates.into_iter().chain(rest).collect();
        assert_eq!(arguments(&all, &one).unwrap(), expected.into_iter().chain(["42", "192.0.2.1"]).collect::<Vec<_>>());
        assert_eq!(arguments(&["x", "${sender}"], &request("", &["a@b"])).unwrap(), ["x", "MAILER-DAEMON"]);
        assert_eq!(arguments(&["x", "[${extension}]"], &request("", &["+a@b"])).unwrap(), ["x", "[]"]);
    }

    #[test]
    fn an_argument_of_the_recipient_is_repeated() {
        let two = request("", &["a@b.example", "c@d.example"]);
        let expanded = arguments(&["x", "--", "${recipient}", "end"], &two).unwrap();
        assert_eq!(expanded, ["x", "--", "a@b.example", "c@d.example", "end"]);
    }

    /// Postfix's pipe(8) had to learn it, too.
    #[test]
    fn an_address_never_becomes_an_option() {
        let bad = request("-f@x.example", &["-oQ/tmp@b.example"]);
        assert_eq!(arguments(&["x", "${recipient}"], &bad), Err("-oQ/tmp@b.example".into()));
        assert_eq!(arguments(&["x", "${user}"], &bad), Err("-oQ/tmp".into()));
        assert_eq!(arguments(&["x", "${sender}"], &bad), Err("-f@x.example".into()));
        assert_eq!(arguments(&["x", "--", "${user}"], &bad).unwrap(), ["x", "--", "-oQ/tmp"]);
        assert_eq!(arguments(&["x", "to=${user}"], &bad).unwrap(), ["x", "to=-oQ/tmp"]);
    }

    #[test]
    fn what_is_no_macro_is_refused() {
        for text in ["$recipient", "${recipient", "a$", "${nexthop}", "${}", "a\0b"] {
            assert!(text.parse::<ArgumentTemplate>().is_err(), "{text}");
        }
        let text = "a$$${user}b";
        assert_eq!(text.parse::<ArgumentTemplate>().unwrap().to_string(), text);
    }
}
