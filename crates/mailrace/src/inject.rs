//! `mailrace inject`, and the same by the name of `sendmail`: takes mail from programs on this machine. A message is kept
//! once it is in the [drop](crate::maildrop), whether the server runs or not; before that it is not, and the exit code says
//! so.
//!
//! | exit code | what became of the message |
//! |---|---|
//! | 0 | kept |
//! | 64 | not kept: the command line is wrong, or names no recipient |
//! | 65 | not kept: it is too large, or an address in it is none |
//! | 74 | not kept: the input cannot be read |
//! | 75 | not kept: the folder cannot be written; the same may succeed later |
//! | 1, 2 | `-bv`: of an address it cannot be said now; mail for one would come back |
//! | 69 | `-q`, `-bv`, `-bp`: the server does not answer |
//! | 77, 78 | not kept: the configuration cannot be read, or has faults |
//!
//! Of several messages some may be kept: then what failed is named, and the code is never 75.

mod addresses;
mod bulk;
mod header;
mod mbox;
mod options;
mod session;
mod text;

use std::ffi::OsString;
use std::io::{self, ErrorKind, Write};
use std::os::unix::fs::MetadataExt;
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use mail::{Address, BodyType, Recipient, Timestamp};
use nix::unistd::{Uid, User, getuid};

use crate::admin::{Filter, Text};
use crate::config::{self, Config, Loaded};
use crate::exit::{self, Exit};
use crate::maildrop::{self, NotAParcel, Parcel, Place};
use crate::output::output;
use crate::privileges::Identity;
use crate::say::say;
use crate::{admin, plan};

use addresses::addresses;
use header::{Additions, Draft};
use options::{Flush, Mode, Options};
use text::TextError;

/// A program that others call by a name of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Name {
    /// Takes mail.
    Sendmail,
    /// Lists the queue.
    Mailq,
    /// Builds tables of aliases.
    Newaliases,
}

impl Name {
    /// The name in the first word of a command line, if it is one of these.
    pub fn of(program: &OsString) -> Option<Name> {
        match Path::new(program).file_name()?.to_str()? {
            "sendmail" => Some(Name::Sendmail),
            "mailq" => Some(Name::Mailq),
            "newaliases" => Some(Name::Newaliases),
            _ => None,
        }
    }
}

/// Does what the words ask for, of which none is the name of the program.
///
/// # Errors
///
/// By the table above.
pub fn run(name: Name, configuration: Option<PathBuf>, words: &[OsString]) -> anyhow::Result<()> {
    let words = words.iter().map(|word| word.to_str().map(str::to_owned));
    let words: Option<Vec<String>> = words.collect();
    let words = words.ok_or_else(|| usage("there is a word that is not UTF-8"))?;
    let mut options = Options::read(words).map_err(usage)?;
    match name {
        Name::Sendmail => {}
        Name::Mailq => options.mode = Mode::Queue,
        Name::Newaliases => options.mode = Mode::Aliases,
    }
    let named = options.config.take().or(configuration);
    if options.mode == Mode::Aliases {
        // Whoever calls it has changed a text, and wants to know whether more is to be done.
        let told = "mailrace: `mailrace reload` reads changed texts; `mailrace table build` makes those of type cdb";
        return Ok(writeln!(output(), "{told}")?);
    }
    let loaded = config::load_for_mail(named.as_deref())?;
    if !matches!(options.mode, Mode::Queue | Mode::Flush(_) | Mode::Verify) {
        make_folder(&loaded);
    }
    let config = loaded.config;
    match options.mode.clone() {
        Mode::Queue => admin::mailq(&config),
        Mode::Flush(what) => flush(&config, &what, options.verbose),
        Mode::Verify => verify(&config, &options),
        Mode::Message => Clerk::new(&config, options)?.take_input(),
        Mode::Smtp => session::converse(&config, &Clerk::new(&config, options)?),
        Mode::Batch => session::obey(&config, &Clerk::new(&config, options)?),
        Mode::Mbox(file) => bulk::mbox(&Clerk::new(&config, options)?, &file),
        Mode::Folder(folder) => bulk::folder(&Clerk::new(&config, options)?, &folder),
        Mode::Aliases => Ok(()),
    }
}

/// What waits for a later attempt is tried now, as Postfix and Sendmail have it. Says nothing unless it is asked to.
fn flush(config: &Config, what: &Flush, verbose: bool) -> anyhow::Result<()> {
    let filter = match what {
        Flush::All => Filter::default(),
        Flush::Message(id) => Filter { id: vec![Text(*id)], ..Filter::default() },
        Flush::Site(site) => Filter { destination: Some(Text(site.clone())), ..Filter::default() },
    };
    let count = admin::retry_now(config, filter)?;
    if verbose {
        say(format_args!("mailrace: {count} to be tried now"));
    }
    Ok(())
}

/// The addresses of the command line, as they would be completed for a message.
fn verify(config: &Config, options: &Options) -> anyhow::Result<()> {
    let origin = plan::origin(config);
    let named = options.recipients.iter().flat_map(|text| addresses(text));
    let addresses: Result<Vec<Address>, Refused> = named.map(|text| qualified(&text, &origin)).collect();
    admin::verify(config, &addresses.map_err(|error| Exit { code: error.code(), text: error.to_string() })?)
}

fn usage(what: impl ToString) -> Exit {
    Exit { code: exit::USAGE, text: what.to_string() }
}

/// Before its first start the server has not made the folder. Root and the owner of `data_dir` make it as the server would,
/// where `data_dir` is the server's; otherwise, and where that fails, the message is refused.
fn make_folder(loaded: &Loaded) {
    let data_dir = &loaded.config.data_dir;
    if maildrop::folder(data_dir).symlink_metadata().is_err()
        && let Ok(identity) = Identity::of(loaded)
        && is_owned(data_dir, identity.uid())
    {
        // The fault comes out again where the message is written.
        let _ = identity.make_drop(data_dir);
    }
}

/// Whether a folder is there and belongs to that user. A mount point whose disk is not mounted is root's: what is written
/// into it is lost to the server as soon as the disk is mounted.
fn is_owned(folder: &Path, uid: Uid) -> bool {
    folder.metadata().is_ok_and(|folder| folder.is_dir() && folder.uid() == uid.as_raw())
}

/// Who takes messages, and by what.
struct Clerk {
    options: Options,
    place: Place,
    /// The server's control socket.
    socket: PathBuf,
    /// The domain of those who are named without one.
    origin: Box<str>,
    hostname: Box<str>,
    sender: Option<Address>,
    octets_max: u64,
    recipients_max: usize,
}

/// Why a message was not kept.
#[derive(Debug, thiserror::Error)]
enum Refused {
    #[error("no recipients: name them, or use -t to take those in the header")]
    Nobody,
    #[error("there is no recipient in the header")]
    NobodyNamed,
    #[error("{0:?} is not an address: {1}")]
    Address(String, mail::AddressError),
    #[error("there are more than {0} recipients (limits.expanded_recipients)")]
    TooMany(usize),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("its envelope is none that the server takes: {0}")]
    Envelope(NotAParcel),
    #[error("the message cannot be left in {}: {}", .0.display(), .1)]
    Place(PathBuf, io::Error),
}

impl Refused {
    /// What ends the process.
    fn exit(self) -> Exit {
        Exit { code: self.code(), text: format!("the message was not accepted: {self}{}", self.advice()) }
    }

    fn code(&self) -> u8 {
        match self {
            Refused::Nobody => exit::USAGE,
            Refused::NobodyNamed | Refused::Address(..) | Refused::TooMany(_) | Refused::Envelope(_) => exit::DATA,
            Refused::Text(TextError::TooLarge(_)) => exit::DATA,
            Refused::Text(TextError::Read(_)) => exit::IO,
            Refused::Place(..) => exit::TEMPFAIL,
        }
    }

    /// What can be done, where that is not plain.
    fn advice(&self) -> &'static str {
        match self {
            Refused::Place(_, error) if error.kind() == ErrorKind::NotFound => {
                "; drop folder missing: is this its configuration, and is the disk of data_dir mounted? Start the server once"
            }
            Refused::Place(_, error) if error.kind() == ErrorKind::PermissionDenied => {
                "; users may pass through data_dir only where it has mode 711"
            }
            _ => "",
        }
    }
}

impl Clerk {
    fn new(config: &Config, options: Options) -> anyhow::Result<Clerk> {
        let origin = plan::origin(config);
        let sender = match options.sender.as_deref().map(str::trim) {
            Some("" | "<>") => None,
            Some(named) => Some(one_address(named, &origin).map_err(Refused::exit)?),
            None => Some(user_address(&login(), &origin).map_err(Refused::exit)?),
        };
        Ok(Clerk {
            options,
            place: Place::new(maildrop::folder(&config.data_dir)),
            socket: config.admin.socket.clone(),
            origin,
            hostname: config.hostname.clone(),
            sender,
            octets_max: config.limits.message_octets_max,
            recipients_max: config.limits.expanded_recipients_max,
        })
    }

    /// The message on the standard input.
    fn take_input(&self) -> anyhow::Result<()> {
        if self.options.recipients.is_empty() && !self.options.from_header {
            return Err(Refused::Nobody.exit().into());
        }
        let message = text::read(io::stdin().lock(), !self.options.keep_dots, self.octets_max);
        let message = message.map_err(|error| Refused::from(error).exit())?;
        let count = self.take(&message, self.options.from_header).map_err(Refused::exit)?;
        if self.options.verbose {
            self.tell(count);
        }
        Ok(())
    }

    /// Keeps a message in wire form, with the recipients that were given and those of its header, and says how many they
    /// are.
    fn take(&self, message: &[u8], from_header: bool) -> Result<usize, Refused> {
        let draft = Draft::new(message);
        let mut recipients = Vec::new();
        let mut add = |text: &str| -> Result<(), Refused> {
            for address in addresses(text) {
                recipients.push(self.recipient(qualified(&address, &self.origin)?));
            }
            Ok(())
        };
        self.options.recipients.iter().try_for_each(|text| add(text))?;
        if from_header {
            draft.recipients().try_for_each(|value| add(&String::from_utf8_lossy(value)))?;
        }
        if recipients.is_empty() {
            return Err(Refused::NobodyNamed);
        }
        let parcel = Parcel {
            sender: self.sender.clone(),
            recipients,
            ret: self.options.ret,
            envid: self.options.envid.clone(),
            body_type: self.options.body_type,
            smtputf8: false,
            content: Vec::new(),
        };
        self.keep(parcel, &draft, now())
    }

    fn recipient(&self, address: Address) -> Recipient {
        Recipient { address, original: None, notify: self.options.notify, orcpt: None }
    }

    /// Completes the message and leaves it in the folder.
    fn keep(&self, mut parcel: Parcel, draft: &Draft<'_>, now: Timestamp) -> Result<usize, Refused> {
        let count = parcel.recipients.len();
        if count > self.recipients_max {
            return Err(Refused::TooMany(self.recipients_max));
        }
        let unwritten = |error| Refused::Place(self.place.folder().to_owned(), error);
        let from = parcel.sender.as_ref().map_or_else(|| format!("MAILER-DAEMON@{}", self.origin), Address::to_string);
        let id = format!("{:x}.{}@{}", now.millis(), maildrop::secret().map_err(unwritten)?, self.hostname);
        let name = self.options.full_name.as_deref();
        let date = now.rfc5322_date();
        parcel.content = draft.complete(&Additions { from: &from, name, date: &date, message_id: &id });
        if parcel.content.len() as u64 > self.octets_max {
            return Err(TextError::TooLarge(self.octets_max).into());
        }
        if !parcel.content.is_ascii() {
            parcel.body_type = BodyType::EightBitMime;
        }
        let file = parcel.encode();
        // Whoever is told that it is kept must not find it set aside.
        Parcel::decode(&file, self.recipients_max).map_err(Refused::Envelope)?;
        self.place.leave(&file, now).map_err(unwritten)?;
        Ok(count)
    }

    fn tell(&self, recipients: usize) {
        let plural = if recipients == 1 { "recipient" } else { "recipients" };
        say(format_args!("mailrace: kept for {recipients} {plural}, in {}", self.place.folder().display()));
        // A user may not be let in there, which says nothing of the server.
        let gone = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];
        if UnixStream::connect(&self.socket).is_err_and(|error| gone.contains(&error.kind())) {
            say("mailrace: the server does not run; the message leaves when it does");
        }
    }
}

/// The address that a text is, with the origin as its domain where it has none.
fn qualified(text: &str, origin: &str) -> Result<Address, Refused> {
    Address::parse_lenient(text, Some(origin)).map_err(|error| Refused::Address(text.to_owned(), error))
}

/// The address of a user by the name of the login, which may have signs that want quotes.
fn user_address(name: &str, origin: &str) -> Result<Address, Refused> {
    Address::new(name, origin).map_err(|error| Refused::Address(name.to_owned(), error))
}

/// The only address of a text.
fn one_address(text: &str, origin: &str) -> Result<Address, Refused> {
    match &*addresses(text) {
        [one] => qualified(one, origin),
        _ => Err(Refused::Address(text.to_owned(), mail::AddressError::Local)),
    }
}

/// By whom the process was started.
fn login() -> String {
    let uid = getuid();
    let user = User::from_uid(uid).ok().flatten();
    user.map_or_else(|| format!("uid{uid}"), |user| user.name)
}

fn now() -> Timestamp {
    SystemTime::now().into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_name_of_the_program_says_what_it_is() {
        for (program, name) in [
            ("/usr/sbin/sendmail", Some(Name::Sendmail)),
            ("mailq", Some(Name::Mailq)),
            ("./newaliases", Some(Name::Newaliases)),
            ("mailrace", None),
            ("", None),
        ] {
            assert_eq!(Name::of(&program.into()), name);
        }
    }

    #[test]
    fn a_data_dir_is_the_servers_only_where_it_is_there_and_its_own() {
        let folder = tempfile::tempdir().unwrap();
        let us = nix::unistd::geteuid();
        assert!(is_owned(folder.path(), us));
        assert!(!is_owned(folder.path(), Uid::from_raw(us.as_raw() + 1)));
        assert!(!is_owned(&folder.path().join("missing"), us));
        std::fs::write(folder.path().join("file"), "").unwrap();
        assert!(!is_owned(&folder.path().join("file"), us));
    }

    #[test]
    fn who_has_no_domain_gets_the_origin() {
        for (text, expected) in
            [("root", "root@here.example"), ("a@b", "a@b"), ("a@b.", "a@b"), ("\"a b\"@c", "\"a b\"@c")]
        {
            assert_eq!(qualified(text, "here.example").unwrap().as_str(), expected);
        }
        for text in ["a b", "a@", "@b", "a@b@c", ""] {
            assert!(qualified(text, "here.example").is_err(), "{text}");
        }
        assert_eq!(one_address("<Root@X>", "o").unwrap().as_str(), "Root@x");
        assert!(one_address("a@b, c@d", "o").is_err());
        assert!(qualified("> Bob", "here.example").is_err());
        assert_eq!(user_address("DOMAIN\\user", "o").unwrap().as_str(), "\"DOMAIN\\\\user\"@o");
    }
}
