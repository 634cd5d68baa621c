//! The sender rewriting scheme: senders of forwarded mail in our domain, so that SPF of the next
//! host passes, and notices that find their way back.
//!
//! | sender                            | forwarded as                                    |
//! |-----------------------------------|-------------------------------------------------|
//! | `bob@a.example`                   | `SRS0=mac=day=a.example=bob@us`                 |
//! | `SRS0=rest@b.example`             | `SRS1=daymac=b.example==rest@us`                |
//! | `SRS1=other=b.example==rest@c.example` | the same, so that the chain does not grow  |
//! | in our domain, and ours           | unchanged                                       |
//!
//! Nobody without a secret makes an address that leads anywhere: the code (HMAC-SHA-256, 40 bits of
//! it) covers the whole day, so that an address does not come back to life when its two characters
//! for the day do. It covers letters in lower case, since hosts on the way may change their case.

mod rewriter;
mod secret_file;

use hmac::{Hmac, KeyInit, Mac};
use mail::{Address, Timestamp};
use sha2::Sha256;
use subtle::ConstantTimeEq;
use zeroize::Zeroizing;

pub use rewriter::{SrsCounters, SrsRewriter};
pub use secret_file::{SecretFileError, load_secret};

/// Rewrites senders, and finds them again.
#[derive(PartialEq, Eq)]
pub struct Srs {
    /// Of the rewritten addresses.
    domain: Box<str>,
    /// The first one signs; all verify.
    secrets: Vec<Zeroizing<Vec<u8>>>,
    days_max: u16,
}

/// Why the settings do not work.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SrsSettingsError {
    /// There is no secret.
    #[error("no secret: give at least one")]
    NoSecret,
    /// A secret can be guessed.
    #[error("a secret has fewer than {SECRET_OCTETS_MIN} octets")]
    ShortSecret,
    /// Addresses would be valid for so long that their days cannot be told apart.
    #[error("the lifetime is not between 1 and {DAYS_MAX} days")]
    Days,
}

/// Why there is no address.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SrsError {
    /// The address is not a rewritten one.
    #[error("not an SRS address")]
    NotRewritten,
    /// It is not from us, or was changed.
    #[error("not an SRS address of this host")]
    Forged,
    /// It was ours, but too long ago.
    #[error("the SRS address has expired")]
    Expired,
    /// The rewritten address exceeds a limit of RFC 5321 section 4.5.3.1.
    #[error("the address is too long to be rewritten")]
    TooLong,
}

impl Srs {
    /// For senders in `domain`, with secrets of which the first one signs. Addresses are valid for
    /// `days_max` days after the one on which they are made.
    pub fn new(domain: &str, secrets: Vec<Zeroizing<Vec<u8>>>, days_max: u16) -> Result<Srs, SrsSettingsError> {
        if secrets.is_empty() {
            return Err(SrsSettingsError::NoSecret);
        }
        if secrets.iter().any(|secret| secret.len() < SECRET_OCTETS_MIN) {
            return Err(SrsSettingsError::ShortSecret);
        }
        if !(1..=DAYS_MAX).contains(&days_max) {
            return Err(SrsSettingsError::Days);
        }
        Ok(Srs { domain: domain.to_lowercase().into(), secrets, days_max })
    }

    /// The sender with which a message of `sender` is forwarded.
    ///
    /// # Errors
    ///
    /// [`SrsError::TooLong`].
    pub fn forward(&self, sender: &Address, now: Timestamp) -> Result<Address, SrsError> {
        if sender.domain() == &*self.domain && self.reverse(sender, now).is_ok() {
            return Ok(sender.clone());
        }
        let (local_part, day) = (sender.unquoted_local_part(), day(now));
        let rewritten = match RewrittenPart::parse(&local_part) {
            Some(RewrittenPart::First { rest }) => self.rewrite_again(sender.domain(), rest, day),
            Some(RewrittenPart::Further { host, rest, .. }) => self.rewrite_again(host, rest, day),
            None => {
                let parts = [sender.domain(), &local_part];
                format!("SRS0={}={}={}={local_part}", self.code(day, "0", &parts), day_text(day), parts[0])
            }
        };
        Address::new(&rewritten, &self.domain).map_err(|_| SrsError::TooLong)
    }

    /// Where mail for a rewritten address goes: to the sender, or to the host that rewrote it first.
    ///
    /// # Errors
    ///
    /// [`SrsError::NotRewritten`], [`SrsError::Forged`], [`SrsError::Expired`].
    pub fn reverse(&self, recipient: &Address, now: Timestamp) -> Result<Address, SrsError> {
        let local_part = recipient.unquoted_local_part();
        match RewrittenPart::parse(&local_part).ok_or(SrsError::NotRewritten)? {
            RewrittenPart::First { rest } => self.reverse_first(rest, now),
            RewrittenPart::Further { code, host, rest } => self.reverse_further(code, host, rest, now),
        }
    }

    /// `SRS1` for an address that `host` rewrote first; `rest` is what follows its `SRS0`.
    fn rewrite_again(&self, host: &str, rest: &str, day: u64) -> String {
        format!("SRS1={}{}={host}={rest}", day_text(day), self.code(day, "1", &[host, rest]))
    }

    /// `rest` is `=code=day=domain=local`.
    fn reverse_first(&self, rest: &str, now: Timestamp) -> Result<Address, SrsError> {
        let mut parts = rest.get(1..).unwrap_or_default().splitn(4, '=');
        let mut part = || parts.next().ok_or(SrsError::Forged);
        let (code, day_text, domain, local_part) = (part()?, part()?, part()?, part()?);
        self.check(code, day_text, "0", &[domain, local_part], now)?;
        Address::new(local_part, domain).map_err(|_| SrsError::Forged)
    }

    /// `code` begins with the day, and `rest` is what followed `SRS0` at `host`.
    fn reverse_further(&self, code: &str, host: &str, rest: &str, now: Timestamp) -> Result<Address, SrsError> {
        let (day_text, code) = code.split_at_checked(DAY_CHARS).ok_or(SrsError::Forged)?;
        self.check(code, day_text, "1", &[host, rest], now)?;
        Address::new(&format!("SRS0{rest}"), host).map_err(|_| SrsError::Forged)
    }

    /// Whether an address with these parts is ours and valid.
    fn check(&self, code: &str, day_text: &str, kind: &str, parts: &[&str; 2], now: Timestamp) -> Result<(), SrsError> {
        let made = parse_day(day_text).ok_or(SrsError::Forged)?;
        // Another host of ours may already be in tomorrow.
        let newest = day(now) + 1;
        let age = (newest + DAY_RANGE - made) % DAY_RANGE;
        if age > u64::from(self.days_max) + 1 {
            return Err(SrsError::Expired);
        }
        let (made, code) = (newest.saturating_sub(age), code.to_ascii_lowercase());
        let is_ours = |secret: &Zeroizing<Vec<u8>>| {
            bool::from(code_with(secret, made, kind, parts).as_bytes().ct_eq(code.as_bytes()))
        };
        if self.secrets.iter().any(is_ours) { Ok(()) } else { Err(SrsError::Forged) }
    }

    fn code(&self, day: u64, kind: &str, parts: &[&str; 2]) -> String {
        self.secrets.first().map(|secret| code_with(secret, day, kind, parts)).unwrap_or_default()
    }
}

/// The local part of a rewritten address.
enum RewrittenPart<'a> {
    /// `SRS0` and what follows, which begins with `=`, `+` or `-`.
    First { rest: &'a str },
    /// `SRS1`, a code, the host that rewrote the address first, and what followed its `SRS0`.
    Further { code: &'a str, host: &'a str, rest: &'a str },
}

impl<'a> RewrittenPart<'a> {
    fn parse(local_part: &'a str) -> Option<Self> {
        let (prefix, rest) = local_part.split_at_checked(PREFIX_CHARS)?;
        let after = rest.strip_prefix(SEPARATORS)?;
        if prefix.eq_ignore_ascii_case("SRS0") {
            return Some(RewrittenPart::First { rest });
        }
        let (code, after) = after.split_once('=').filter(|_| prefix.eq_ignore_ascii_case("SRS1"))?;
        let (host, rest) = after.split_once('=')?;
        rest.starts_with(SEPARATORS).then_some(RewrittenPart::Further { code, host, rest })
    }
}

/// The code of an address: letters and digits, in lower case.
fn code_with(secret: &[u8], day: u64, kind: &str, parts: &[&str; 2]) -> String {
    let mut mac = Hmac::<Sha256>::new_from_slice(secret).expect("HMAC accepts keys of any length");
    mac.update(kind.as_bytes());
    mac.update(&day.to_be_bytes());
    for part in parts {
        mac.update(&(part.len() as u64).to_be_bytes());
        mac.update(part.to_ascii_lowercase().as_bytes());
    }
    let octets = mac.finalize().into_bytes();
    let bits = octets.iter().take(CODE_CHARS * 5 / 8).fold(0u64, |bits, octet| bits << 8 | u64::from(*octet));
    (0..CODE_CHARS).map(|place| digit(bits >> (5 * place))).collect()
}

/// Days since 1970.
fn day(now: Timestamp) -> u64 {
    now.seconds() / (24 * 60 * 60)
}

/// The last ten bits of a day.
fn day_text(day: u64) -> String {
    [digit(day >> 5), digit(day)].into_iter().collect()
}

fn parse_day(text: &str) -> Option<u64> {
    let digits: Option<Vec<u64>> = text.bytes().map(parse_digit).collect();
    digits.filter(|digits| digits.len() == DAY_CHARS).map(|digits| digits[0] << 5 | digits[1])
}

/// The last five bits of a number, as RFC 4648 section 6 writes them.
fn digit(bits: u64) -> char {
    char::from(DIGITS[(bits & 31) as usize])
}

fn parse_digit(digit: u8) -> Option<u64> {
    DIGITS.iter().position(|one| *one == digit.to_ascii_lowercase()).map(|place| place as u64)
}

/// RFC 4648 section 6, in lower case.
const DIGITS: &[u8; 32] = b"abcdefghijklmnopqrstuvwxyz234567";
/// What may follow `SRS0` and `SRS1`.
const SEPARATORS: [char; 3] = ['=', '+', '-'];
/// The size of `SRS0` and `SRS1`.
const PREFIX_CHARS: usize = 4;
/// The size of a code, of five bits each.
const CODE_CHARS: usize = 8;
/// The size of a day.
const DAY_CHARS: usize = 2;
/// How many days two characters tell apart.
const DAY_RANGE: u64 = 1 << 10;
/// The longest lifetime, well below the days that two characters tell apart.
pub const DAYS_MAX: u16 = 366;
/// A secret has at least 128 bits.
const SECRET_OCTETS_MIN: usize = 16;

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const DAY_MS: u64 = 24 * 60 * 60 * 1000;
    const NOW: Timestamp = Timestamp(20_000 * DAY_MS + 5);

    fn srs(domain: &str, secrets: &[&str]) -> Srs {
        let secrets = secrets.iter().map(|secret| Zeroizing::new(secret.repeat(8).into_bytes())).collect();
        Srs::new(domain, secrets, 21).unwrap()
    }

    fn address(text: &str) -> Address {
        text.parse().unwrap()
    }

    fn days_later(days: u64) -> Timestamp {
        Timestamp(NOW.0 + days * DAY_MS)
    }

    #[test]
    fn a_notice_finds_its_way_back_through_all_forwarders() {
        let (one, two, three) =
            (srs("one.example", &["1111"]), srs("two.example", &["2222"]), srs("x.example", &["3333"]));
        for sender in
            ["bob@a.example", "B=o=b@a.example", "\"b b\"@a.example", "bob@[192.0.2.1]", "jürgen@müller.example"]
        {
            let sender = address(sender);
            let first = one.forward(&sender, NOW).unwrap();
            let second = two.forward(&first, NOW).unwrap();
            let third = three.forward(&second, NOW).unwrap();
            assert!(first.as_str().contains("SRS0=") && first.domain() == "one.example", "{first}");
            assert!(second.as_str().contains("SRS1=") && second.as_str().contains("=one.example=="), "{second}");
            assert_eq!(
                third.as_str().len(),
                second.as_str().len() - "two".len() + "x".len(),
                "the chain does not grow"
            );
            assert_eq!(three.reverse(&third, NOW).as_ref(), Ok(&first));
            assert_eq!(two.reverse(&second, NOW).as_ref(), Ok(&first));
            assert_eq!(one.reverse(&first, NOW), Ok(sender));
        }
    }

    #[test]
    fn an_address_of_ours_stays_as_it_is_but_a_forged_one_gets_nobody_a_code() {
        let srs = srs("us.example", &["1111"]);
        let ours = srs.forward(&address("bob@a.example"), NOW).unwrap();
        assert_eq!(srs.forward(&ours, NOW).as_ref(), Ok(&ours));
        let forged = address("SRS0=aaaaaaaa=aa=victim.example=eve@us.example");
        let again = srs.forward(&forged, NOW).unwrap();
        assert_eq!(srs.reverse(&again, NOW).as_ref(), Ok(&forged), "leads to what we refuse");
        assert!(srs.reverse(&forged, NOW).is_err());
    }

    #[test]
    fn other_hosts_may_change_the_case_and_use_other_separators() {
        let srs = srs("us.example", &["1111"]);
        let ours = srs.forward(&address("Bob@a.example"), NOW).unwrap();
        let folded = ours.as_str().to_ascii_lowercase();
        assert_eq!(srs.reverse(&address(&folded), NOW), Ok(address("bob@a.example")));
        assert_eq!(srs.reverse(&address(&ours.as_str().to_ascii_uppercase()), NOW), Ok(address("BOB@a.example")));
        let plus = address("SRS0+XXXX=YY=a.example=bob@b.example");
        let again = srs.forward(&plus, NOW).unwrap();
        assert!(again.as_str().contains("=b.example=+XXXX=YY=a.example=bob@us.example"), "{again}");
        assert_eq!(srs.reverse(&again, NOW), Ok(plus));
    }

    #[test]
    fn an_address_expires_and_stays_so() {
        let srs = srs("us.example", &["1111"]);
        for sender in ["bob@a.example", "SRS0=xxxx=yy=a.example=bob@b.example"] {
            let ours = srs.forward(&address(sender), NOW).unwrap();
            for (days, valid) in [(0, true), (1, true), (21, true), (22, false), (500, false), (1022, false)] {
                assert_eq!(srs.reverse(&ours, days_later(days)).is_ok(), valid, "{sender} after {days} days");
            }
            for days in [1023, 1024, 1030, 1045, 2048, 3 * 1024] {
                assert!(srs.reverse(&ours, days_later(days)).is_err(), "{sender} after {days} days");
            }
            let tomorrow = srs.forward(&address(sender), days_later(1)).unwrap();
            assert!(srs.reverse(&tomorrow, NOW).is_ok(), "clocks differ");
            let later = srs.forward(&address(sender), days_later(2)).unwrap();
            assert_eq!(srs.reverse(&later, NOW), Err(SrsError::Expired));
        }
    }

    #[test]
    fn any_of_the_secrets_verifies_and_the_first_one_signs() {
        let (old, both, new) =
            (srs("us.example", &["1111"]), srs("us.example", &["2222", "1111"]), srs("us.example", &["2222"]));
        let sender = address("bob@a.example");
        let by_old = old.forward(&sender, NOW).unwrap();
        assert_eq!(both.reverse(&by_old, NOW).as_ref(), Ok(&sender));
        assert_eq!(new.reverse(&by_old, NOW), Err(SrsError::Forged));
        let by_both = both.forward(&sender, NOW).unwrap();
        assert_eq!(new.reverse(&by_both, NOW), Ok(sender));
    }

    #[test]
    fn what_is_not_ours_leads_nowhere() {
        let srs = srs("us.example", &["1111"]);
        for (local, error) in [
            ("bob", SrsError::NotRewritten),
            ("SRS", SrsError::NotRewritten),
            ("SRS0", SrsError::NotRewritten),
            ("SRS0bob", SrsError::NotRewritten),
            ("SRS2=x=y=a.example=bob", SrsError::NotRewritten),
            ("SRS1=x", SrsError::NotRewritten),
            ("SRS1=x=y=z", SrsError::NotRewritten),
            ("SRS0=x", SrsError::Forged),
            ("SRS0=aaaaaaaa=aa=a.example=bob", SrsError::Expired),
            ("SRS0=x=y=z", SrsError::Forged),
            ("SRS0=x=!!=a.example=bob", SrsError::Forged),
            ("SRS0=x=yyy=a.example=bob", SrsError::Forged),
            ("SRS1=x=b.example==z", SrsError::Forged),
            ("SRS1=ü=b.example==z", SrsError::Forged),
        ] {
            assert_eq!(srs.reverse(&Address::new(local, "us.example").unwrap(), NOW), Err(error), "{local}");
        }
    }

    #[test]
    fn what_does_not_fit_is_an_error_and_weak_settings_are_refused() {
        let long = Address::new(&"x".repeat(50), "a.example").unwrap();
        assert_eq!(srs("us.example", &["1111"]).forward(&long, NOW), Err(SrsError::TooLong));
        let secret = |octets: usize| vec![Zeroizing::new(vec![7; octets])];
        let error = |secrets, days| Srs::new("us.example", secrets, days).err();
        assert_eq!(error(Vec::new(), 21), Some(SrsSettingsError::NoSecret));
        assert_eq!(error(secret(15), 21), Some(SrsSettingsError::ShortSecret));
        assert_eq!([0, 1, 366, 367].map(|days| error(secret(16), days).is_some()), [true, false, false, true]);
    }

    proptest! {
        #[test]
        fn a_changed_character_makes_it_another_address(
            local in "[a-z0-9=+.-]{1,20}",
            place in 5usize..40,
            other in "[a-z0-9]",
        ) {
            let Ok(sender) = Address::new(&local, "a.example") else { return Ok(()) };
            let srs = srs("us.example", &["1111"]);
            let ours = srs.forward(&sender, NOW).unwrap();
            let text = ours.unquoted_local_part();
            prop_assert_eq!(srs.reverse(&ours, NOW), Ok(sender));
            if place < text.len() && !text[place..].starts_with(&other) {
                let changed = format!("{}{other}{}", &text[..place], &text[place + 1..]);
                if let Ok(changed) = Address::new(&changed, "us.example") {
                    prop_assert!(srs.reverse(&changed, NOW).is_err(), "{}", changed);
                }
            }
        }

        #[test]
        fn any_address_has_an_answer(local in "(SRS[01][=+-])?\\PC{1,50}", days in 0u64..3000) {
            let Ok(address) = Address::new(&local, "us.example") else { return Ok(()) };
            let srs = srs("us.example", &["1111"]);
            prop_assert!(srs.reverse(&address, days_later(days)).is_err());
            if let Ok(ours) = srs.forward(&address, days_later(days)) {
                prop_assert_eq!(srs.reverse(&ours, days_later(days)), Ok(address));
            }
        }
    }
}
