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

use mail::{EnhancedCode, Reply, units};

use crate::options;

/// The number of rules. A transaction has a bit mask of rules.
pub(super) const RULES_MAX: usize = 64;

/// A rule.
#[derive(Clone, Debug, PartialEq)]
pub struct SinkRule {
    text: String,
    /// From 0 to 1.
    share: Option<f64>,
    /// In lower case.
    domain: Option<Box<str>>,
    pub(super) stage: RuleStage,
    pub(super) action: RuleAction,
}

/// A stage of a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RuleStage {
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
pub(super) enum RuleAction {
    Delay(Duration),
    /// 4xx or 5xx.
    Refuse(Reply),
    Drop,
    Garbage,
    Slow {
        octets_per_second: u64,
    },
    Stall(StallSchedule),
}

/// Periodic stalls of the whole sink.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct StallSchedule {
    length: Duration,
    every: Duration,
}

impl SinkRule {
    /// Whether it applies to recipients in this domain.
    pub(super) fn matches_domain(&self, domain: &str) -> bool {
        self.domain.as_deref().is_none_or(|named| named.eq_ignore_ascii_case(domain))
    }

    /// Whether it applies to all clients.
    pub(super) fn matches_all(&self) -> bool {
        self.domain.is_none()
    }

    /// Draws whether it applies this time, by its share.
    pub(super) fn is_sampled(&self, random: &mut fastrand::Rng) -> bool {
        self.share.is_none_or(|share| random.f64() < share)
    }
}

impl StallSchedule {
    /// The rest of the current stall, this long after the sink began. A stall is at the end of each
    /// period.
    pub(super) fn time_left(self, elapsed: Duration) -> Option<Duration> {
        let nanos = elapsed.as_nanos() % self.every.as_nanos();
        let left = self.every.checked_sub(Duration::from_nanos(u64::try_from(nanos).ok()?))?;
        (left <= self.length).then_some(left)
    }
}

impl fmt::Display for SinkRule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text)
    }
}

impl FromStr for SinkRule {
    type Err = String;

    fn from_str(text: &str) -> Result<SinkRule, String> {
        let mut parser = RuleParser(text.trim());
        let share = parser.take_if(parse_share).transpose()?;
        let domain_or_all = parser.take_if(parse_domain);
        if share.is_none() && domain_or_all.is_none() {
            return Err("expected a share (5%), a domain or * first".into());
        }
        let domain = domain_or_all.flatten();
        let stage = parser.take_if(parse_stage);
        let action = RuleAction::parse(parser)?;
        let default = if domain.is_some() { RuleStage::Rcpt } else { RuleStage::Connect };
        let is_whole = share.is_none() && domain.is_none() && stage.is_none();
        if matches!(action, RuleAction::Stall(_)) && !is_whole {
            return Err("a stall applies to the whole sink; expected: * stall 1s every 10s".into());
        }
        let stage = stage.unwrap_or(default);
        if domain.is_some() && matches!(stage, RuleStage::Connect | RuleStage::Helo | RuleStage::Mail) {
            return Err("the recipient's domain is not known before rcpt".into());
        }
        Ok(SinkRule { text: text.trim().to_owned(), share, domain, stage, action })
    }
}

impl RuleAction {
    fn parse(mut parser: RuleParser<'_>) -> Result<RuleAction, String> {
        const ACTIONS: &str = "expected delay, reject, defer, drop, garbage, slow or stall";
        let action = match parser.next().unwrap_or_default() {
            "delay" => RuleAction::Delay(parser.span()?),
            "drop" => RuleAction::Drop,
            "garbage" => RuleAction::Garbage,
            "slow" => RuleAction::Slow { octets_per_second: parser.speed()? },
            "stall" => RuleAction::Stall(parser.stall()?),
            "reject" => return parse_refusal(parser.rest(), 5, "rejected by a rule"),
            "defer" => return parse_refusal(parser.rest(), 4, "deferred by a rule"),
            "" => return Err(ACTIONS.into()),
            other => return Err(format!("{other}: {ACTIONS}")),
        };
        match parser.rest() {
            "" => Ok(action),
            more => Err(format!("{more}: unexpected text")),
        }
    }
}

/// Parses `550 5.7.1 text`; any part may be left out.
fn parse_refusal(text: &str, class: u8, default: &'static str) -> Result<RuleAction, String> {
    let mut parser = RuleParser(text);
    let code = parser.take_if(parse_code).unwrap_or(if class == 5 { 550 } else { 451 });
    if code / 100 != u16::from(class) {
        return Err(format!("{code}: expected a {class}xx code"));
    }
    let enhanced = parser.take_if(parse_enhanced).unwrap_or(EnhancedCode(class, 7, 1));
    if enhanced.0 != class {
        return Err(format!("{enhanced}: expected a {class}.x.x enhanced code"));
    }
    let text = match parser.rest() {
        "" => Cow::Borrowed(default),
        text => Cow::Owned(text.to_owned()),
    };
    Ok(RuleAction::Refuse(Reply { code, enhanced: Some(enhanced), text }))
}

fn parse_share(word: &str) -> Option<Result<f64, String>> {
    word.ends_with('%').then(|| options::share(word).map_err(|why| format!("{word}: {why}")))
}

/// `Some(None)` is all clients.
fn parse_domain(word: &str) -> Option<Option<Box<str>>> {
    let domain = match word {
        "*" => return Some(None),
        _ => word.strip_prefix("*@").or_else(|| word.contains('.').then_some(word))?,
    };
    Some(Some(domain.to_ascii_lowercase().into()))
}

fn parse_stage(word: &str) -> Option<RuleStage> {
    Some(match word {
        "connect" => RuleStage::Connect,
        "helo" => RuleStage::Helo,
        "mail" => RuleStage::Mail,
        "rcpt" => RuleStage::Rcpt,
        "data" => RuleStage::Data,
        "message" => RuleStage::Message,
        _ => return None,
    })
}

fn parse_code(word: &str) -> Option<u16> {
    word.parse().ok().filter(|code| (100..=999).contains(code))
}

fn parse_enhanced(word: &str) -> Option<EnhancedCode> {
    let mut parts = word.splitn(3, '.');
    let enhanced = EnhancedCode(parts.next()?.parse().ok()?, parts.next()?.parse().ok()?, parts.next()?.parse().ok()?);
    Some(enhanced)
}

/// The unparsed rest of a rule.
struct RuleParser<'a>(&'a str);

impl<'a> RuleParser<'a> {
    fn next(&mut self) -> Option<&'a str> {
        let (word, rest) = self.0.split_once(' ').unwrap_or((self.0, ""));
        self.0 = rest.trim_start();
        (!word.is_empty()).then_some(word)
    }

    /// Takes the next word if `read` accepts it.
    fn take_if<T>(&mut self, read: impl FnOnce(&str) -> Option<T>) -> Option<T> {
        let mut after = RuleParser(self.0);
        let taken = read(after.next()?)?;
        *self = after;
        Some(taken)
    }

    fn rest(self) -> &'a str {
        self.0
    }

    fn span(&mut self) -> Result<Duration, String> {
        let span = self.take_if(units::parse_duration).filter(|span| !span.is_zero());
        span.ok_or_else(|| format!("{}: expected a time span: 500ms, 10s", self.0))
    }

    fn speed(&mut self) -> Result<u64, String> {
        let speed = |word: &str| {
            let amount = word.strip_suffix("/s")?;
            units::parse_size(amount).or_else(|| amount.parse().ok()).filter(|&speed| speed > 0)
        };
        self.take_if(speed).ok_or_else(|| format!("{}: expected a speed: 100B/s, 64KiB/s", self.0))
    }

    fn stall(&mut self) -> Result<StallSchedule, String> {
        let length = self.span()?;
        if self.next() != Some("every") {
            return Err("expected: stall 1s every 10s".into());
        }
        let every = self.span()?;
        if every <= length {
            return Err("a stall must be shorter than its period".into());
        }
        Ok(StallSchedule { length, every })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse(text: &str) -> (Option<f64>, Option<String>, RuleStage, RuleAction) {
        let rule: SinkRule = text.parse().unwrap_or_else(|error| panic!("{text}: {error}"));
        assert_eq!(rule.to_string(), text);
        (rule.share, rule.domain.map(String::from), rule.stage, rule.action)
    }

    fn refuse(code: u16, enhanced: EnhancedCode, text: &'static str) -> RuleAction {
        RuleAction::Refuse(Reply::new(code, enhanced, text))
    }

    #[test]
    fn a_rule_has_a_share_a_domain_a_stage_and_an_action() {
        let lame = || Some("lame.test".to_owned());
        let ten = RuleAction::Delay(Duration::from_secs(10));
        assert_eq!(parse("*@Lame.test rcpt delay 10s"), (None, lame(), RuleStage::Rcpt, ten.clone()));
        assert_eq!(parse("lame.test delay 10s"), (None, lame(), RuleStage::Rcpt, ten.clone()));
        assert_eq!(parse("* helo delay 10s"), (None, None, RuleStage::Helo, ten));
        assert_eq!(parse("5% drop"), (Some(0.05), None, RuleStage::Connect, RuleAction::Drop));
        assert_eq!(
            parse("0.5% *@x data garbage"),
            (Some(0.005), Some("x".into()), RuleStage::Data, RuleAction::Garbage)
        );
        assert_eq!(parse("* slow 2KiB/s").3, RuleAction::Slow { octets_per_second: 2048 });
        let stall = StallSchedule { length: Duration::from_secs(1), every: Duration::from_secs(10) };
        assert_eq!(parse("* stall 1s every 10s").3, RuleAction::Stall(stall));
    }

    #[test]
    fn any_part_of_a_refusal_may_be_left_out() {
        for (text, expected) in [
            ("* reject", refuse(550, EnhancedCode(5, 7, 1), "rejected by a rule")),
            ("* reject no", refuse(550, EnhancedCode(5, 7, 1), "no")),
            ("* reject 554 go away", refuse(554, EnhancedCode(5, 7, 1), "go away")),
            ("* reject 552 5.2.2 the box is full", refuse(552, EnhancedCode(5, 2, 2), "the box is full")),
            ("* defer", refuse(451, EnhancedCode(4, 7, 1), "deferred by a rule")),
            ("* defer 421 later", refuse(421, EnhancedCode(4, 7, 1), "later")),
        ] {
            assert_eq!(parse(text).3, expected, "{text}");
        }
    }

    #[test]
    fn an_invalid_rule_is_refused_with_the_reason() {
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
            assert_eq!(text.parse::<SinkRule>().unwrap_err(), why, "{text}");
        }
    }

    #[test]
    fn a_share_applies_as_often_as_it_says() {
        let rule: SinkRule = "5% drop".parse().unwrap();
        let mut random = fastrand::Rng::with_seed(1);
        let met = (0..100_000).filter(|_| rule.is_sampled(&mut random)).count();
        assert!((4_500..5_500).contains(&met), "{met}");
    }

    #[test]
    fn a_stall_ends_each_period() {
        let stall = StallSchedule { length: Duration::from_secs(1), every: Duration::from_secs(10) };
        let left = |millis| stall.time_left(Duration::from_millis(millis)).map(|left| left.as_millis());
        assert_eq!((left(0), left(8_999), left(9_000), left(9_900)), (None, None, Some(1000), Some(100)));
        assert_eq!((left(10_000), left(19_500)), (None, Some(500)));
    }
}
