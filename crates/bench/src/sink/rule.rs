//! Rules of a sink: which clients they apply to, in which stage, and what happens.
//!
//! ```text
//! RULE     = [SHARE] [WHO] [STAGE] ACTION
//! SHARE    = 5%                             apply at random to this share
//! WHO      = *  |  lame.test  |  *@lame.test    all clients, or the recipients of a domain
//! STAGE    = connect | helo | mail | rcpt | data | message
//! ACTION   = delay 10s                      answers later
//!          | reject [[CODE] TEXT]           answers 5xx, or the given code
//!          | defer [[CODE] TEXT]            answers 4xx, or the given code
//!          | drop                           closes the connection without a reply
//!          | garbage                        answers with bytes that are not SMTP, and closes
//!          | slow 100B/s                    limits the rate of reading from now on
//!          | stall 1s every 10s             the whole sink stalls for 1 s in every 10 s; only after *
//! ```
//!
//! A rule has a share, a WHO, or both. The default stage is `rcpt` with a domain and `connect`
//! without. With a domain, `data` and `message` rules apply to messages that have an accepted
//! recipient in it. A refusal at `connect` or `helo` closes the connection.

use std::borrow::Cow;
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

use mail::{Enhanced, Reply, units};

use crate::options;

/// The number of rules. A transaction has a bit mask of rules.
pub(super) const RULES_MAX: usize = 64;

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub struct Rule {
    text: String,
    /// From 0 to 1.
    share: Option<f64>,
    /// In lower case.
    domain: Option<Box<str>>,
    pub(super) stage: Stage,
    pub(super) action: Action,
}

/// A stage of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Stage {
    /// Before the greeting.
    Connect,
    /// Before the reply to HELO, EHLO or LHLO.
    Helo,
    Mail,
    Rcpt,
    Data,
    /// Before the reply to the end of the message.
    Message,
}

/// The action of a rule.
#[derive(Clone, Debug, PartialEq)]
pub(super) enum Action {
    Delay(Duration),
    /// 4xx or 5xx.
    Refuse(Reply),
    Drop,
    Garbage,
    Slow {
        octets_per_second: u64,
    },
    Stall(Stall),
}

/// Periodic stalls of the whole sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Stall {
    length: Duration,
    every: Duration,
}

impl Rule {
    /// Whether it applies to recipients in this domain.
    pub(super) fn names(&self, domain: &str) -> bool {
        self.domain.as_deref().is_none_or(|named| named.eq_ignore_ascii_case(domain))
    }

    /// Whether it applies to all clients.
    pub(super) fn is_for_all(&self) -> bool {
        self.domain.is_none()
    }

    /// Draws whether it applies this time, by its share.
    pub(super) fn draws(&self, random: &mut fastrand::Rng) -> bool {
        self.share.is_none_or(|share| random.f64() < share)
    }
}

impl Stall {
    /// The rest of the current stall, this long after the sink began. A stall is at the end of each
    /// period.
    pub(super) fn left(self, elapsed: Duration) -> Option<Duration> {
        let nanos = elapsed.as_nanos() % self.every.as_nanos();
        let left = self.every.checked_sub(Duration::from_nanos(u64::try_from(nanos).ok()?))?;
        (left <= self.length).then_some(left)
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for Rule {
    type Err = String;

    fn from_str(text: &str) -> Result<Rule, String> {
        let mut words = Words(text.trim());
        let share = words.take_if(share).transpose()?;
        let who = words.take_if(who);
        if share.is_none() && who.is_none() {
            return Err("expected a share (5%), a domain or * first".into());
        }
        let domain = who.flatten();
        let stage = words.take_if(stage);
        let action = Action::parse(words)?;
        let default = if domain.is_some() { Stage::Rcpt } else { Stage::Connect };
        let is_whole = share.is_none() && domain.is_none() && stage.is_none();
        if matches!(action, Action::Stall(_)) && !is_whole {
            return Err("a stall applies to the whole sink; expected: * stall 1s every 10s".into());
        }
        let stage = stage.unwrap_or(default);
        if domain.is_some() && matches!(stage, Stage::Connect | Stage::Helo | Stage::Mail) {
            return Err("the recipient's domain is not known before rcpt".into());
        }
        Ok(Rule { text: text.trim().to_owned(), share, domain, stage, action })
    }
}

impl Action {
    fn parse(mut words: Words<'_>) -> Result<Action, String> {
        const ACTIONS: &str = "expected delay, reject, defer, drop, garbage, slow or stall";
        let action = match words.next().unwrap_or_default() {
            "delay" => Action::Delay(words.span()?),
            "drop" => Action::Drop,
            "garbage" => Action::Garbage,
            "slow" => Action::Slow { octets_per_second: words.speed()? },
            "stall" => Action::Stall(words.stall()?),
            "reject" => return refusal(words.rest(), 5, "rejected by a rule"),
            "defer" => return refusal(words.rest(), 4, "deferred by a rule"),
            "" => return Err(ACTIONS.into()),
            other => return Err(format!("{other}: {ACTIONS}")),
        };
        match words.rest() {
            "" => Ok(action),
            more => Err(format!("{more}: unexpected text")),
        }
    }
}

/// Parses `550 5.7.1 text`; any part may be left out.
fn refusal(text: &str, class: u8, default: &'static str) -> Result<Action, String> {
    let mut words = Words(text);
    let code = words.take_if(code).unwrap_or(if class == 5 { 550 } else { 451 });
    if code / 100 != u16::from(class) {
        return Err(format!("{code}: expected a {class}xx code"));
    }
    let enhanced = words.take_if(enhanced).unwrap_or(Enhanced(class, 7, 1));
    if enhanced.0 != class {
        return Err(format!("{enhanced}: expected a {class}.x.x enhanced code"));
    }
    let text = match words.rest() {
        "" => Cow::Borrowed(default),
        text => Cow::Owned(text.to_owned()),
    };
    Ok(Action::Refuse(Reply { code, enhanced: Some(enhanced), text }))
}

fn share(word: &str) -> Option<Result<f64, String>> {
    word.ends_with('%').then(|| options::share(word).map_err(|why| format!("{word}: {why}")))
}

/// `Some(None)` is all clients.
fn who(word: &str) -> Option<Option<Box<str>>> {
    let domain = match word {
        "*" => return Some(None),
        _ => word.strip_prefix("*@").or_else(|| word.contains('.').then_some(word))?,
    };
    Some(Some(domain.to_ascii_lowercase().into()))
}

fn stage(word: &str) -> Option<Stage> {
    Some(match word {
        "connect" => Stage::Connect,
        "helo" => Stage::Helo,
        "mail" => Stage::Mail,
        "rcpt" => Stage::Rcpt,
        "data" => Stage::Data,
        "message" => Stage::Message,
        _ => return None,
    })
}

fn code(word: &str) -> Option<u16> {
    word.parse().ok().filter(|code| (100..=999).contains(code))
}

fn enhanced(word: &str) -> Option<Enhanced> {
    let mut parts = word.splitn(3, '.');
    let enhanced = Enhanced(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(enhanced)
}

/// The unparsed rest of a rule.
struct Words<'a>(&'a str);

impl<'a> Words<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest.trim_start();
        (!word.is_empty()).then_some(word)
    }

    /// Takes the next word if `read` accepts it.
    fn take_if<T>(&mut self, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let mut after = Words(self.0);
        let taken = read(after.next()?)?;
        *self = after;
        Some(taken)
    }

    fn rest(self) -> &'a str {
        self.0
    }

    fn span(&mut self) -> Result<Duration, String> {
        let span = self.take_if(units::span).filter(|span| !span.is_zero());
        span.ok_or_else(|| format!("{}: expected a time span: 500ms, 10s", self.0))
    }

    fn speed(&mut self) -> Result<u64, String> {
        let speed = |word: &str| {
            let amount = word.strip_suffix("/s")?;
            units::size(amount).or_else(|| amount.parse().ok()).filter(|&speed| speed > 0)
        };
        self.take_if(speed).ok_or_else(|| format!("{}: expected a speed: 100B/s, 64KiB/s", self.0))
    }

    fn stall(&mut self) -> Result<Stall, String> {
        let length = self.span()?;
        if self.next() != Some("every") {
            return Err("expected: stall 1s every 10s".into());
        }
        let every = self.span()?;
        if every <= length {
            return Err("a stall must be shorter than its period".into());
        }
        Ok(Stall { length, every })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Option<f64>, Option<String>, Stage, Action) {
        let rule: Rule = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(rule.to_string(), text);
        (rule.share, rule.domain.map(String::from), rule.stage, rule.action)
    }

    fn refuse(code: u16, enhanced: Enhanced, text: &'static str) -> Action {
        Action::Refuse(Reply::new(code, enhanced, text))
    }

    #[test]
    fn a_rule_says_whom_it_meets_when_and_what_happens() {
        let lame = || Some("lame.test".to_owned());
        let ten = Action::Delay(Duration::from_secs(10));
        assert_eq!(parse("*@Lame.test rcpt delay 10s"), (None, lame(), Stage::Rcpt, ten.clone()));
        assert_eq!(parse("lame.test delay 10s"), (None, lame(), Stage::Rcpt, ten.clone()));
        assert_eq!(parse("* helo delay 10s"), (None, None, Stage::Helo, ten));
        assert_eq!(parse("5% drop"), (Some(0.05), None, Stage::Connect, Action::Drop));
        assert_eq!(parse("0.5% *@x data garbage"), (Some(0.005), Some("x".into()), Stage::Data, Action::Garbage));
        assert_eq!(parse("* slow 2KiB/s").3, Action::Slow { octets_per_second: 2048 });
        let stall = Stall { length: Duration::from_secs(1), every: Duration::from_secs(10) };
        assert_eq!(parse("* stall 1s every 10s").3, Action::Stall(stall));
    }

    #[test]
    fn a_refusal_is_worded_in_part_or_whole() {
        for (text, expected) in [
            ("* reject", refuse(550, Enhanced(5, 7, 1), "rejected by a rule")),
            ("* reject no", refuse(550, Enhanced(5, 7, 1), "no")),
            ("* reject 554 go away", refuse(554, Enhanced(5, 7, 1), "go away")),
            ("* reject 552 5.2.2 the box is full", refuse(552, Enhanced(5, 2, 2), "the box is full")),
            ("* defer", refuse(451, Enhanced(4, 7, 1), "deferred by a rule")),
            ("* defer 421 later", refuse(421, Enhanced(4, 7, 1), "later")),
        ] {
            assert_eq!(parse(text).3, expected, "{text}");
        }
    }

    #[test]
    fn what_is_no_rule_is_refused_with_the_reason() {
        for (text, why) in [
            ("", "expected a share (5%), a domain or * first"),
            ("drop", "expected a share (5%), a domain or * first"),
            ("101% drop", "101%: expected 0% to 100%"),
            ("*", "expected delay, reject, defer, drop, garbage, slow or stall"),
            ("* explode", "explode: expected delay, reject, defer, drop, garbage, slow or stall"),
            ("* drop it", "it: unexpected text"),
            ("* delay soon", "soon: expected a time span: 500ms, 10s"),
            ("* slow 100", "100: expected a speed: 100B/s, 64KiB/s"),
            ("* reject 451", "451: expected a 5xx code"),
            ("* reject 550 4.7.1 no", "4.7.1: expected a 5.x.x enhanced code"),
            ("* stall 1s", "expected: stall 1s every 10s"),
            ("* stall 10s every 1s", "a stall must be shorter than its period"),
            ("5% stall 1s every 10s", "a stall applies to the whole sink; expected: * stall 1s every 10s"),
            ("x.test mail drop", "the recipient's domain is not known before rcpt"),
        ] {
            assert_eq!(text.parse::<Rule>().unwrap_err(), why, "{text}");
        }
    }

    #[test]
    fn a_share_is_met_as_often_as_it_says() {
        let rule: Rule = "5% drop".parse().unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let met = (0..100_000).filter(|_| rule.draws(&mut random)).count();
        assert!((4_500..5_500).contains(&met), "{met}");
    }

    #[test]
    fn a_stall_ends_each_period() {
        let stall = Stall { length: Duration::from_secs(1), every: Duration::from_secs(10) };
        let left = |millis| stall.left(Duration::from_millis(millis)).map(|left| left.as_millis());
        assert_eq!((left(0), left(8_999), left(9_000), left(9_900)), (None, None, Some(1000), Some(100)));
        assert_eq!((left(10_000), left(19_500)), (None, Some(500)));
    }
}
