//! The options of `sendmail`, as programs have used them for forty years: single letters that can
//! be combined, with values attached or in the next word. Options without a use here are ignored if
//! Postfix ignores them; unknown options, and requests that are not supported, are errors.

use std::collections::VecDeque;
use std::path::PathBuf;

use mail::{BodyType, DsnNotify, DsnReturn, QueueId};

use control::DestinationPattern;
use intake::drop_folder::is_envid;

/// The parsed options.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Options {
    /// The mode.
    pub(super) mode: Mode,
    /// `-C`, `--config`: the configuration file.
    pub(super) config: Option<PathBuf>,
    /// `-t`: read recipients from the header.
    pub(super) from_header: bool,
    /// `-i`, `-oi`: a line with a single dot does not end the input.
    pub(super) keep_dots: bool,
    /// `-f`, `-r`: the envelope sender as written; empty or `<>` is the null sender.
    pub(super) sender: Option<String>,
    /// `-F`: the sender's full name, for a missing From.
    pub(super) full_name: Option<String>,
    /// `-v`: print what was done.
    pub(super) verbose: bool,
    /// `-N`: when to send reports.
    pub(super) notify: DsnNotify,
    /// `-R`: how much of the message reports return.
    pub(super) ret: Option<DsnReturn>,
    /// `-V`: the envelope ID.
    pub(super) envid: Option<Box<str>>,
    /// `-B`: the body type.
    pub(super) body_type: BodyType,
    /// The recipients, as written.
    pub(super) recipients: Vec<String>,
}

/// What to do.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Mode {
    /// `-bm`: read a message.
    Message,
    /// `-bs`: speak SMTP.
    Smtp,
    /// `-bS`: read SMTP commands without replying.
    Batch,
    /// `-bp`: list the queue.
    Queue,
    /// `-q`: retry waiting mail now.
    Flush(Flush),
    /// `-bv`: check mail for the recipients.
    Verify,
    /// `-bi`, `-I`: build alias tables.
    Aliases,
    /// `--mbox`: inject all messages in a file.
    Mbox(PathBuf),
    /// `--folder`: inject each file in a folder or Maildir.
    Folder(PathBuf),
}

/// Which part of the queue to retry.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Flush {
    /// `-q`: all of it.
    All,
    /// `-qI`: this message.
    Message(QueueId),
    /// `-qR`: mail for this destination.
    Site(DestinationPattern),
}

/// A command line that is not valid.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub(super) struct OptionError(pub(super) String);

/// Letters that take a value.
const OPTIONS_WITH_VALUE: &str = "ABCFLNOQRVXbefhopqr";

impl Default for Options {
    fn default() -> Self {
        Options {
            mode: Mode::Message,
            config: None,
            from_header: false,
            keep_dots: false,
            sender: None,
            full_name: None,
            verbose: false,
            notify: DsnNotify::UNSET,
            ret: None,
            envid: None,
            body_type: BodyType::SevenBit,
            recipients: Vec::new(),
        }
    }
}

impl Options {
    /// Parses the words after the name of the program. Options end at `--` or at the first other
    /// word.
    ///
    /// # Errors
    ///
    /// A word is not valid.
    pub(super) fn read(words: impl IntoIterator<Item = String>) -> Result<Options, OptionError> {
        let mut words: VecDeque<String> = words.into_iter().collect();
        let mut options = Options::default();
        while let Some(word) = words.pop_front() {
            match word.strip_prefix('-') {
                Some("-") => break,
                Some(long) if long.starts_with('-') => options.parse_long(&long[1..], &mut words)?,
                Some(letters) if !letters.is_empty() => options.parse_short(letters, &mut words)?,
                _ => {
                    words.push_front(word);
                    break;
                }
            }
        }
        options.recipients = words.into();
        options.validate()
    }

    fn validate(self) -> Result<Options, OptionError> {
        let conversation = match self.mode {
            Mode::Smtp => Some("-bs"),
            Mode::Batch => Some("-bS"),
            _ => None,
        };
        match conversation {
            _ if matches!(self.mode, Mode::Flush(_)) && !self.recipients.is_empty() => {
                Err(OptionError("recipients are not allowed with -q".into()))
            }
            _ if self.mode == Mode::Verify && self.recipients.is_empty() => {
                Err(OptionError("-bv: name the addresses to verify".into()))
            }
            Some(name) if self.from_header => Err(OptionError(format!("-t is not allowed with {name}"))),
            Some(name) if !self.recipients.is_empty() => {
                Err(OptionError(format!("recipients are not allowed with {name}")))
            }
            _ => Ok(self),
        }
    }

    fn parse_long(&mut self, word: &str, words: &mut VecDeque<String>) -> Result<(), OptionError> {
        let (name, value) = match word.split_once('=') {
            Some((name, value)) => (name, Some(value.to_owned())),
            None => (word, None),
        };
        let mut path = || value.clone().or_else(|| words.pop_front()).map(PathBuf::from);
        let missing = || OptionError(format!("--{name} needs a value"));
        match name {
            "config" => self.config = Some(path().ok_or_else(missing)?),
            "mbox" => self.mode = Mode::Mbox(path().ok_or_else(missing)?),
            "folder" => self.mode = Mode::Folder(path().ok_or_else(missing)?),
            _ => return Err(OptionError(format!("unknown option --{name}"))),
        }
        Ok(())
    }

    /// Letters of one word; the last one may take a value.
    fn parse_short(&mut self, letters: &str, words: &mut VecDeque<String>) -> Result<(), OptionError> {
        let mut rest = letters.chars();
        while let Some(letter) = rest.next() {
            if OPTIONS_WITH_VALUE.contains(letter) {
                return self.parse_valued(letter, rest.as_str(), words);
            }
            self.parse_flag(letter)?;
        }
        Ok(())
    }

    fn parse_flag(&mut self, letter: char) -> Result<(), OptionError> {
        match letter {
            't' => self.from_header = true,
            'i' => self.keep_dots = true,
            'v' => self.verbose = true,
            'I' => self.mode = Mode::Aliases,
            // Gateway mode, cron's -n, and others that Postfix ignores.
            'G' | 'U' | 'c' | 'm' | 'n' | 'x' => {}
            _ => return Err(OptionError(format!("unknown option -{letter}"))),
        }
        Ok(())
    }

    fn parse_valued(&mut self, letter: char, attached: &str, words: &mut VecDeque<String>) -> Result<(), OptionError> {
        // The value is attached, or missing.
        if letter == 'q' {
            self.mode = Mode::Flush(parse_flush(attached)?);
            return Ok(());
        }
        let value = match attached {
            "" => words.pop_front().ok_or_else(|| OptionError(format!("-{letter} needs a value")))?,
            _ => attached.to_owned(),
        };
        match letter {
            'b' => self.mode = parse_mode(&value)?,
            'o' => self.parse_set_option(&value),
            'f' | 'r' => self.sender = Some(value),
            'F' => self.full_name = Some(value),
            'C' => self.config = Some(value.into()),
            'N' => self.notify = parse_notify(&value)?,
            'R' => self.ret = Some(parse_ret(&value)?),
            'V' => self.envid = Some(parse_envid(&value)?),
            'B' => self.body_type = parse_body_type(&value)?,
            // Alias files, labels, hop counts, error modes, Sendmail settings, protocols and
            // traffic logs have no use here.
            _ => {}
        }
        Ok(())
    }

    /// Settings of Sendmail, of which one letter still has a meaning.
    fn parse_set_option(&mut self, value: &str) {
        if value == "i" || value == "iTrue" {
            self.keep_dots = true;
        }
    }
}

fn parse_mode(value: &str) -> Result<Mode, OptionError> {
    Ok(match value {
        "m" => Mode::Message,
        "s" => Mode::Smtp,
        "S" => Mode::Batch,
        "p" => Mode::Queue,
        "i" => Mode::Aliases,
        "d" | "D" | "l" => return Err(OptionError(format!("-b{value}: to start the server, use `mailrace serve`"))),
        "v" => Mode::Verify,
        "t" => return Err(OptionError("-bt: use `mailrace explain ADDRESS`, or -bv".into())),
        _ => return Err(OptionError(format!("unknown mode -b{value}"))),
    })
}

fn parse_flush(value: &str) -> Result<Flush, OptionError> {
    let wrong = |error: &dyn std::fmt::Display| OptionError(format!("-q{value}: {error}"));
    match value.split_at_checked(1) {
        None | Some(("", _)) => Ok(Flush::All),
        Some(("I", id)) => id.parse().map(Flush::Message).map_err(|error| wrong(&error)),
        Some(("R", site)) => site.parse().map(Flush::Site).map_err(|error| wrong(&error)),
        Some(("S", _)) => Err(wrong(&"use `mailrace queue retry --sender ADDRESS`")),
        Some((digit, _)) if digit.chars().all(|c| c.is_ascii_digit()) => {
            Err(wrong(&"the server retries mail on the schedule in [[queue]]; use -q alone to retry now"))
        }
        Some(_) => Err(wrong(&"expected -q, -qI with a queue ID, or -qR with a destination")),
    }
}

fn parse_notify(value: &str) -> Result<DsnNotify, OptionError> {
    let wrong = || OptionError(format!("-N {value}: expected never, or some of success,failure,delay"));
    if value.eq_ignore_ascii_case("never") {
        return Ok(DsnNotify::NEVER);
    }
    value.split(',').try_fold(DsnNotify::UNSET, |all, word| match word.to_ascii_lowercase().as_str() {
        "success" => Ok(all.with(DsnNotify::SUCCESS)),
        "failure" => Ok(all.with(DsnNotify::FAILURE)),
        "delay" => Ok(all.with(DsnNotify::DELAY)),
        _ => Err(wrong()),
    })
}

fn parse_ret(value: &str) -> Result<DsnReturn, OptionError> {
    match value.to_ascii_lowercase().as_str() {
        "full" => Ok(DsnReturn::Full),
        "hdrs" => Ok(DsnReturn::Headers),
        _ => Err(OptionError(format!("-R {value}: expected full or hdrs"))),
    }
}

fn parse_envid(value: &str) -> Result<Box<str>, OptionError> {
    let sound = is_envid(value).then(|| value.into());
    sound.ok_or_else(|| {
        OptionError(format!("-V {value}: expected xtext (RFC 3461 section 4) of at most 100 characters"))
    })
}

fn parse_body_type(value: &str) -> Result<BodyType, OptionError> {
    match value.to_ascii_uppercase().as_str() {
        "7BIT" => Ok(BodyType::SevenBit),
        "8BITMIME" => Ok(BodyType::EightBitMime),
        _ => Err(OptionError(format!("-B {value}: expected 7BIT or 8BITMIME"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(line: &str) -> Result<Options, OptionError> {
        Options::read(line.split_whitespace().map(str::to_owned))
    }

    #[test]
    fn options_have_many_spellings() {
        let cron = read("-FCronDaemon -i -odi -oem -oi -t -f root").unwrap();
        let expected = Options {
            from_header: true,
            keep_dots: true,
            full_name: Some("CronDaemon".into()),
            sender: Some("root".into()),
            ..Options::default()
        };
        assert_eq!(cron, expected);
        for (line, sender) in
            [("-fa@b c@d", "a@b"), ("-f a@b c@d", "a@b"), ("-r a@b c@d", "a@b"), ("-tif a@b c@d", "a@b")]
        {
            let options = read(line).unwrap();
            assert_eq!(
                (options.sender.as_deref(), &*options.recipients),
                (Some(sender), &["c@d".to_owned()][..]),
                "{line}"
            );
        }
        assert_eq!(read("-- -x@y").unwrap().recipients, ["-x@y"]);
        assert_eq!(read("a@b -t").unwrap().recipients, ["a@b", "-t"]);
        assert!(Options::read(["-f".into(), String::new()]).unwrap().sender.is_some_and(|sender| sender.is_empty()));
    }

    #[test]
    fn modes_have_letters_and_long_names() {
        for (line, mode) in [
            ("-bm", Mode::Message),
            ("-bs", Mode::Smtp),
            ("-b S", Mode::Batch),
            ("-bp", Mode::Queue),
            ("-bi", Mode::Aliases),
            ("-I", Mode::Aliases),
            ("-bv a@b", Mode::Verify),
            ("-q", Mode::Flush(Flush::All)),
            ("-qI7-0-1 -v", Mode::Flush(Flush::Message("7-0-1".parse().unwrap()))),
            ("-qRexample.org", Mode::Flush(Flush::Site("example.org".parse().unwrap()))),
            ("--mbox a", Mode::Mbox("a".into())),
            ("-t --folder=b", Mode::Folder("b".into())),
        ] {
            assert_eq!(read(line).unwrap().mode, mode, "{line}");
        }
    }

    #[test]
    fn report_options_are_parsed() {
        let options = read("-N success,delay -R hdrs -V QQ+2B1 -B 8bitmime a@b").unwrap();
        assert_eq!(options.notify, DsnNotify::SUCCESS.with(DsnNotify::DELAY));
        assert_eq!((options.ret, options.body_type), (Some(DsnReturn::Headers), BodyType::EightBitMime));
        assert_eq!(options.envid.as_deref(), Some("QQ+2B1"));
    }

    #[test]
    fn unused_options_are_ignored() {
        assert_eq!(
            read("-A c -G -L tag -O Timeout=5 -X log -U -em -ep -e m -om -o7 -p x -n -m -h 3").unwrap(),
            Options::default()
        );
    }

    #[test]
    fn unknown_options_are_errors() {
        for (line, part) in [
            ("-Z", "unknown option -Z"),
            ("-bd", "mailrace serve"),
            ("-bv", "name the addresses"),
            ("-bt a@b", "explain"),
            ("-bz", "unknown mode"),
            ("-q a@b", "recipients are not allowed with -q"),
            ("-q15m", "on the schedule"),
            ("-qIx", "not a queue id"),
            ("-qR", "expected a name"),
            ("-qSbob", "queue retry --sender"),
            ("-qf", "expected -q"),
            ("-f", "needs a value"),
            ("--mbox", "needs a value"),
            ("--colour", "unknown option --colour"),
            ("-N sometimes", "expected never"),
            ("-R all", "expected full"),
            ("-V a=b", "xtext"),
            ("-B 9BIT", "expected 7BIT"),
            ("-bs -t", "-t is not allowed with -bs"),
            ("-bS a@b", "recipients are not allowed with -bS"),
        ] {
            let told = read(line).unwrap_err().0;
            assert!(told.contains(part), "{line}: {told}");
        }
    }
}
