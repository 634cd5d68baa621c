//! `mailrace inject`, also called `sendmail`: accepts mail from local programs. A message is
//! accepted once it is in the [drop folder](intake::drop_folder), whether the server is running or not;
//! otherwise the exit code says why not.
//!
//! | exit code | meaning |
//! |---|---|
//! | 0 | accepted |
//! | 64 | not accepted: wrong command line, or no recipients |
//! | 65 | not accepted: too large, or an invalid address |
//! | 74 | not accepted: cannot read the input |
//! | 75 | not accepted: cannot write to the drop folder; try again later |
//! | 1, 2 | `-bv`: unknown at present; mail for an address would bounce |
//! | 69 | `-q`, `-bv`, `-bp`: the server does not answer |
//! | 77, 78 | not accepted: the configuration cannot be read, or has errors |
//!
//! Of many messages some may be accepted: then each failure is printed, and the code is never 75.

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

use intake::drop_folder::{self, DropFile, DropFileError, DropFolderWriter};
use mail::{Address, BodyType, Timestamp};
use nix::unistd::{Uid, User, getuid};
use protocol::smtp::server::RcptRequest;

use crate::exit::{self, ExitError};
use crate::output::output;
use crate::privileges::ProcessUser;
use crate::stderr::print_stderr;
use crate::{control_client, from_config};
use config::{self, Config, LoadedConfig};
use control::RecipientFilter;
use control::text::SerdeAsText;

use addresses::parse_addresses;
use header::{HeaderDefaults, MessageHeader};
use options::{Flush, Mode, Options};
use text::TextError;

/// The names by which other programs call this one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ProgramName {
    /// Injects mail.
    Sendmail,
    /// Lists the queue.
    Mailq,
    /// Builds alias tables.
    Newaliases,
}

impl ProgramName {
    /// The name in the first word of a command line, if it is one of these.
    pub fn from_argv0(program: &OsString) -> Option<ProgramName> {
        match Path::new(program).file_name()?.to_str()? {
            "sendmail" => Some(ProgramName::Sendmail),
            "mailq" => Some(ProgramName::Mailq),
            "newaliases" => Some(ProgramName::Newaliases),
            _ => None,
        }
    }
}

/// Runs the program with these arguments, without the program name.
///
/// # Errors
///
/// See the table above.
pub fn run(name: ProgramName, configuration: Option<PathBuf>, words: &[OsString]) -> anyhow::Result<()> {
    let words = words.iter().map(|word| word.to_str().map(str::to_owned));
    let words: Option<Vec<String>> = words.collect();
    let words = words.ok_or_else(|| usage_error("an argument is not UTF-8"))?;
    let mut options = Options::read(words).map_err(usage_error)?;
    match name {
        ProgramName::Sendmail => {}
        ProgramName::Mailq => options.mode = Mode::Queue,
        ProgramName::Newaliases => options.mode = Mode::Aliases,
    }
    let named = options.config.take().or(configuration);
    if options.mode == Mode::Aliases {
        // The caller has changed an alias file and needs to know what else to do.
        let told = "mailrace: run `mailrace reload` after changes to text tables, and `mailrace table build` for tables of type cdb";
        return Ok(writeln!(output(), "{told}")?);
    }
    let loaded = config::load_for_injection(named.as_deref())?;
    if !matches!(options.mode, Mode::Queue | Mode::Flush(_) | Mode::Verify) {
        make_drop_folder(&loaded);
    }
    let config = loaded.config;
    match options.mode.clone() {
        Mode::Queue => control_client::mailq(&config),
        Mode::Flush(what) => flush(&config, &what, options.verbose),
        Mode::Verify => verify(&config, &options),
        Mode::Message => Injector::new(&config, options)?.inject_stdin(),
        Mode::Smtp => session::run_interactive(&config, &Injector::new(&config, options)?),
        Mode::Batch => session::run_batch(&config, &Injector::new(&config, options)?),
        Mode::Mbox(file) => bulk::mbox(&Injector::new(&config, options)?, &file),
        Mode::Folder(folder) => bulk::folder(&Injector::new(&config, options)?, &folder),
        Mode::Aliases => Ok(()),
    }
}

/// Retries waiting mail now, as Postfix and Sendmail do. Prints nothing unless `verbose`.
fn flush(config: &Config, what: &Flush, verbose: bool) -> anyhow::Result<()> {
    let filter = match what {
        Flush::All => RecipientFilter::default(),
        Flush::Message(id) => RecipientFilter { id: vec![SerdeAsText(*id)], ..RecipientFilter::default() },
        Flush::Site(site) => {
            RecipientFilter { destination: Some(SerdeAsText(site.clone())), ..RecipientFilter::default() }
        }
    };
    let count = control_client::retry_now(config, filter)?;
    if verbose {
        print_stderr(format_args!("mailrace: {count} to be retried now"));
    }
    Ok(())
}

/// Checks the addresses of the command line, completed as for a message.
fn verify(config: &Config, options: &Options) -> anyhow::Result<()> {
    let origin = from_config::origin_domain(config);
    let named = options.recipients.iter().flat_map(|text| parse_addresses(text));
    let addresses: Result<Vec<Address>, InjectError> = named.map(|text| qualify(&text, &origin)).collect();
    control_client::verify_addresses(
        config,
        &addresses.map_err(|error| ExitError { code: error.exit_code(), text: error.to_string() })?,
    )
}

fn usage_error(what: impl ToString) -> ExitError {
    ExitError { code: exit::USAGE, text: what.to_string() }
}

/// Creates the drop folder, if the server has never run. Only root and the owner of `data_dir` can,
/// and only in the server's own `data_dir`. If this fails, the message is not accepted.
fn make_drop_folder(loaded: &LoadedConfig) {
    let data_dir = &loaded.config.data_dir;
    if drop_folder::drop_folder_path(data_dir).symlink_metadata().is_err()
        && let Ok(identity) = ProcessUser::resolve(loaded)
        && is_owned(data_dir, identity.uid())
    {
        // Writing the message reports the error.
        let _ = identity.make_drop_folder(data_dir);
    }
}

/// Whether the folder exists and belongs to this user. A mount point without its disk belongs to
/// root: files written there would be hidden from the server once the disk is mounted.
fn is_owned(folder: &Path, uid: Uid) -> bool {
    folder.metadata().is_ok_and(|folder| folder.is_dir() && folder.uid() == uid.as_raw())
}

/// Writes messages into the drop folder.
struct Injector {
    options: Options,
    drop_folder: DropFolderWriter,
    /// The server's control socket.
    socket: PathBuf,
    /// The domain added to addresses without one.
    origin: Box<str>,
    hostname: Box<str>,
    sender: Option<Address>,
    octets_max: u64,
    recipients_max: usize,
}

/// Why a message was not accepted.
#[derive(Debug, thiserror::Error)]
enum InjectError {
    #[error("no recipients: name them, or use -t to read them from the header")]
    NoRecipients,
    #[error("no recipient in the header")]
    NoHeaderRecipients,
    #[error("{0:?} is not an address: {1}")]
    Address(String, mail::AddressError),
    #[error("more than {0} recipients (limits.expanded_recipients)")]
    TooMany(usize),
    #[error(transparent)]
    Text(#[from] TextError),
    #[error("the server does not accept the envelope: {0}")]
    Envelope(DropFileError),
    #[error("the message cannot be written to {}: {}", .0.display(), .1)]
    DropFolder(PathBuf, io::Error),
}

impl InjectError {
    /// The error that ends the process.
    fn into_exit(self) -> ExitError {
        ExitError { code: self.exit_code(), text: format!("the message was not accepted: {self}{}", self.advice()) }
    }

    fn exit_code(&self) -> u8 {
        match self {
            InjectError::NoRecipients => exit::USAGE,
            InjectError::NoHeaderRecipients
            | InjectError::Address(..)
            | InjectError::TooMany(_)
            | InjectError::Envelope(_) => exit::DATA,
            InjectError::Text(TextError::TooLarge(_)) => exit::DATA,
            InjectError::Text(TextError::Read(_)) => exit::IO,
            InjectError::DropFolder(..) => exit::TEMPFAIL,
        }
    }

    /// A hint, unless the error is clear by itself.
    fn advice(&self) -> &'static str {
        match self {
            InjectError::DropFolder(_, error) if error.kind() == ErrorKind::NotFound => {
                "; drop folder missing: check that this is the server's configuration and that data_dir is mounted, and start the server once"
            }
            InjectError::DropFolder(_, error) if error.kind() == ErrorKind::PermissionDenied => {
                "; data_dir must have mode 711, so that users can reach the drop folder"
            }
            _ => "",
        }
    }
}

impl Injector {
    fn new(config: &Config, options: Options) -> anyhow::Result<Injector> {
        let origin = from_config::origin_domain(config);
        let sender = match options.sender.as_deref().map(str::trim) {
            Some("" | "<>") => None,
            Some(named) => Some(parse_single_address(named, &origin).map_err(InjectError::into_exit)?),
            None => Some(user_address(&login_name(), &origin).map_err(InjectError::into_exit)?),
        };
        Ok(Injector {
            options,
            drop_folder: DropFolderWriter::new(drop_folder::drop_folder_path(&config.data_dir)),
            socket: config.admin.socket.clone(),
            origin,
            hostname: config.hostname.clone(),
            sender,
            octets_max: config.limits.session.message_octets_max,
            recipients_max: config.limits.expanded_recipients_max,
        })
    }

    /// Injects the message on standard input.
    fn inject_stdin(&self) -> anyhow::Result<()> {
        if self.options.recipients.is_empty() && !self.options.from_header {
            return Err(InjectError::NoRecipients.into_exit().into());
        }
        let message = text::read_message(io::stdin().lock(), !self.options.keep_dots, self.octets_max);
        let message = message.map_err(|error| InjectError::from(error).into_exit())?;
        let count = self.inject(&message, self.options.from_header).map_err(InjectError::into_exit)?;
        if self.options.verbose {
            self.report_stored(count);
        }
        Ok(())
    }

    /// Accepts a message in wire form, for the recipients of the command line and those in its
    /// header. Returns the number of recipients.
    fn inject(&self, message: &[u8], from_header: bool) -> Result<usize, InjectError> {
        let draft = MessageHeader::new(message);
        let mut recipients = Vec::new();
        let mut add = |text: &str| -> Result<(), InjectError> {
            for address in parse_addresses(text) {
                recipients.push(self.to_recipient(qualify(&address, &self.origin)?));
            }
            Ok(())
        };
        self.options.recipients.iter().try_for_each(|text| add(text))?;
        if from_header {
            draft.recipients().try_for_each(|value| add(&String::from_utf8_lossy(value)))?;
        }
        if recipients.is_empty() {
            return Err(InjectError::NoHeaderRecipients);
        }
        let drop_file = DropFile {
            sender: self.sender.clone(),
            recipients,
            ret: self.options.ret,
            envid: self.options.envid.clone(),
            body_type: self.options.body_type,
            smtputf8: false,
            content: Vec::new(),
        };
        self.store(drop_file, &draft, now())
    }

    fn to_recipient(&self, address: Address) -> RcptRequest {
        RcptRequest { address, notify: self.options.notify, orcpt: None }
    }

    /// Adds missing header fields and writes the message to the drop folder.
    fn store(&self, mut drop_file: DropFile, draft: &MessageHeader<'_>, now: Timestamp) -> Result<usize, InjectError> {
        let count = drop_file.recipients.len();
        if count > self.recipients_max {
            return Err(InjectError::TooMany(self.recipients_max));
        }
        let unwritten = |error| InjectError::DropFolder(self.drop_folder.folder().to_owned(), error);
        let from =
            drop_file.sender.as_ref().map_or_else(|| format!("MAILER-DAEMON@{}", self.origin), Address::to_string);
        let id = format!("{:x}.{}@{}", now.millis(), drop_folder::random_name().map_err(unwritten)?, self.hostname);
        let name = self.options.full_name.as_deref();
        let date = now.to_rfc5322();
        drop_file.content = draft.complete(&HeaderDefaults { from: &from, name, date: &date, message_id: &id });
        if drop_file.content.len() as u64 > self.octets_max {
            return Err(TextError::TooLarge(self.octets_max).into());
        }
        if !drop_file.content.is_ascii() {
            drop_file.body_type = BodyType::EightBitMime;
        }
        let file = drop_file.encode();
        // A message that the server would set aside must not be accepted.
        DropFile::decode(&file, self.recipients_max).map_err(InjectError::Envelope)?;
        self.drop_folder.write_file(&file, now).map_err(unwritten)?;
        Ok(count)
    }

    fn report_stored(&self, recipients: usize) {
        let plural = if recipients == 1 { "recipient" } else { "recipients" };
        print_stderr(format_args!(
            "mailrace: accepted for {recipients} {plural}, stored in {}",
            self.drop_folder.folder().display()
        ));
        // The user may not have access to the socket, which says nothing about the server.
        let gone = [ErrorKind::NotFound, ErrorKind::ConnectionRefused];
        if UnixStream::connect(&self.socket).is_err_and(|error| gone.contains(&error.kind())) {
            print_stderr("mailrace: the server is not running; the message is sent when it starts");
        }
    }
}

/// Parses an address; without a domain it gets the origin.
fn qualify(text: &str, origin: &str) -> Result<Address, InjectError> {
    Address::parse_lenient(text, Some(origin)).map_err(|error| InjectError::Address(text.to_owned(), error))
}

/// The address of a user, whose login name may need quotes.
fn user_address(name: &str, origin: &str) -> Result<Address, InjectError> {
    Address::new(name, origin).map_err(|error| InjectError::Address(name.to_owned(), error))
}

/// Parses a text that must be a single address.
fn parse_single_address(text: &str, origin: &str) -> Result<Address, InjectError> {
    match &*parse_addresses(text) {
        [one] => qualify(one, origin),
        _ => Err(InjectError::Address(text.to_owned(), mail::AddressError::Local)),
    }
}

/// The name of the user who started the process.
fn login_name() -> String {
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
            ("/usr/sbin/sendmail", Some(ProgramName::Sendmail)),
            ("mailq", Some(ProgramName::Mailq)),
            ("./newaliases", Some(ProgramName::Newaliases)),
            ("mailrace", None),
            ("", None),
        ] {
            assert_eq!(ProgramName::from_argv0(&program.into()), name);
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
            assert_eq!(qualify(text, "here.example").unwrap().as_str(), expected);
        }
        for text in ["a b", "a@", "@b", "a@b@c", ""] {
            assert!(qualify(text, "here.example").is_err(), "{text}");
        }
        assert_eq!(parse_single_address("<Root@X>", "o").unwrap().as_str(), "Root@x");
        assert!(parse_single_address("a@b, c@d", "o").is_err());
        assert!(qualify("> Bob", "here.example").is_err());
        assert_eq!(user_address("DOMAIN\\user", "o").unwrap().as_str(), "\"DOMAIN\\\\user\"@o");
    }
}
