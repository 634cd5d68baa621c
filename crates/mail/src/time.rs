//! Wall-clock time as data. Logic receives it as an argument; only the binary and the code that
//! drives sockets read the clock.

use std::fmt;
use std::ops::{Add, Sub};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Milliseconds since 1970-01-01 00:00 UTC, without leap seconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp(pub u64);

impl Timestamp {
    /// Milliseconds since the epoch.
    pub fn millis(self) -> u64 {
        self.0
    }

    /// Whole seconds since the epoch.
    pub fn seconds(self) -> u64 {
        self.0 / 1000
    }

    /// The time since `earlier`; zero if `earlier` is later, since clocks may be set back.
    pub fn since(self, earlier: Timestamp) -> Duration {
        Duration::from_millis(self.0.saturating_sub(earlier.0))
    }

    /// `Fri, 20 Nov 2026 17:46:16 +0000`: the date format of messages (RFC 5322 section 3.3), in
    /// UTC.
    pub fn to_rfc5322(self) -> String {
        let c = CalendarTime::from_timestamp(self);
        let mut text = String::with_capacity(40);
        text.push_str(DAYS[c.weekday]);
        text.push_str(", ");
        push_number(&mut text, c.day, if c.day < 10 { 1 } else { 2 });
        text.push(' ');
        text.push_str(MONTHS[c.month - 1]);
        text.push(' ');
        push_number(&mut text, c.year, 4);
        text.push(' ');
        c.push_time_of_day(&mut text);
        text.push_str(" +0000");
        text
    }

    /// `Fri, 20 Nov 2026 17:46:16 GMT`: the date format of HTTP (IMF-fixdate, RFC 9110 section
    /// 5.6.7).
    pub fn to_http_date(self) -> String {
        let c = CalendarTime::from_timestamp(self);
        let mut text = String::with_capacity(29);
        text.push_str(DAYS[c.weekday]);
        text.push_str(", ");
        push_number(&mut text, c.day, 2);
        text.push(' ');
        text.push_str(MONTHS[c.month - 1]);
        text.push(' ');
        push_number(&mut text, c.year, 4);
        text.push(' ');
        c.push_time_of_day(&mut text);
        text.push_str(" GMT");
        text
    }

    /// Reads a date of HTTP in any of its three formats (RFC 9110 section 5.6.7); None if it is
    /// invalid. A time before 1970 becomes the start of 1970.
    pub fn from_http_date(text: &str) -> Option<Timestamp> {
        let words: Vec<&str> = text.split([' ', ',', '-']).filter(|word| !word.is_empty()).take(7).collect();
        let (day, month, year, time) = match words[..] {
            // `Sun, 06 Nov 1994 08:49:37 GMT`, or `Sunday, 06-Nov-94 08:49:37 GMT`.
            [_, day, month, year, time, "GMT"] => (day, month, year, time),
            // `Sun Nov  6 08:49:37 1994`.
            [_, month, day, time, year] => (day, month, year, time),
            _ => return None,
        };
        let month = MONTHS.iter().position(|name| *name == month)? + 1;
        let year = match (number(year)?, year.len()) {
            (year @ 0..70, 2) => 2000 + year,
            (year, 2) => 1900 + year,
            (year, 4) => year,
            _ => return None,
        };
        let day = number(day).filter(|day| (1..=31).contains(day))?;
        let mut parts = time.splitn(3, ':').map(number);
        let (hour, minute, second) = (parts.next()??, parts.next()??, parts.next()??);
        if hour > 23 || minute > 59 || second > 60 {
            return None;
        }
        let seconds = days_since_1970(year, month, day) * 86_400 + hour * 3600 + minute * 60 + second;
        Some(Timestamp(seconds * 1000))
    }

    /// `Fri Nov 20 17:46:16 2026`: the date format of `From ` lines and of asctime(3), in UTC.
    pub fn to_asctime(self) -> String {
        let c = CalendarTime::from_timestamp(self);
        let mut text = format!("{} {} {:>2} ", DAYS[c.weekday], MONTHS[c.month - 1], c.day);
        c.push_time_of_day(&mut text);
        text.push(' ');
        push_number(&mut text, c.year, 4);
        text
    }

    /// `2026-11-20T17:46:16.123Z`: the date format of logs (RFC 3339), in UTC.
    pub fn to_rfc3339(self) -> String {
        let c = CalendarTime::from_timestamp(self);
        let mut text = String::with_capacity(32);
        push_number(&mut text, c.year, 4);
        text.push('-');
        push_number(&mut text, c.month as u64, 2);
        text.push('-');
        push_number(&mut text, c.day, 2);
        text.push('T');
        c.push_time_of_day(&mut text);
        text.push('.');
        push_number(&mut text, self.0 % 1000, 3);
        text.push('Z');
        text
    }
}

const DAYS: [&str; 7] = ["Sun", "Mon", "Tue", "Wed", "Thu", "Fri", "Sat"];
const MONTHS: [&str; 12] = ["Jan", "Feb", "Mar", "Apr", "May", "Jun", "Jul", "Aug", "Sep", "Oct", "Nov", "Dec"];

/// From 1 March of the year 0 to 1970-01-01.
const DAYS_FROM_YEAR_0_TO_1970: u64 = 719_468;

/// A calendar date and time of day, in UTC.
struct CalendarTime {
    year: u64,
    month: usize,
    day: u64,
    weekday: usize,
    hour: u64,
    minute: u64,
    second: u64,
}

impl CalendarTime {
    /// Counts years from 1 March of the year 0, so that the leap day is the last day of a year: 400
    /// such years have 146,097 days, and any five months starting in March or August (31, 30, 31,
    /// 30, 31) have 153.
    fn from_timestamp(time: Timestamp) -> Self {
        let (days, second) = (time.seconds() / 86_400, time.seconds() % 86_400);
        let day = days + DAYS_FROM_YEAR_0_TO_1970;
        let (era, day) = (day / 146_097, day % 146_097);
        let year = (day - day / 1460 + day / 36_524 - day / 146_096) / 365;
        let day = day - (365 * year + year / 4 - year / 100);
        let month = (5 * day + 2) / 153;
        let after_december = month >= 10;
        CalendarTime {
            year: era * 400 + year + u64::from(after_december),
            month: (if after_december { month - 9 } else { month + 3 }) as usize,
            day: day - (153 * month + 2) / 5 + 1,
            // 1970-01-01 was a Thursday.
            weekday: ((days + 4) % 7) as usize,
            hour: second / 3600,
            minute: second / 60 % 60,
            second: second % 60,
        }
    }
}

/// The inverse of [`CalendarTime::from_timestamp`]; 0 for a date before 1970. The year has at most
/// four digits, the month is 1 to 12 and the day 1 to 31.
fn days_since_1970(year: u64, month: usize, day: u64) -> u64 {
    if year < 1970 {
        return 0;
    }
    let year = if month < 3 { year - 1 } else { year };
    let month = (month as u64 + 9) % 12;
    let days = 365 * year + year / 4 - year / 100 + year / 400 + (153 * month + 2) / 5 + day - 1;
    days.saturating_sub(DAYS_FROM_YEAR_0_TO_1970)
}

/// Parses up to four digits.
fn number(digits: &str) -> Option<u64> {
    let is_sound = (1..=4).contains(&digits.len()) && digits.bytes().all(|digit| digit.is_ascii_digit());
    is_sound.then(|| digits.parse().ok())?
}

impl CalendarTime {
    fn push_time_of_day(&self, text: &mut String) {
        push_number(text, self.hour, 2);
        text.push(':');
        push_number(text, self.minute, 2);
        text.push(':');
        push_number(text, self.second, 2);
    }
}

/// Appends a number with at least `width` digits. Each message has two dates, and the formatting
/// machinery takes ten times as long.
fn push_number(text: &mut String, number: u64, width: u32) {
    let mut unit = 10_u64.pow(width - 1);
    while number / unit > 9 {
        unit *= 10;
    }
    while unit > 0 {
        text.push(char::from(b'0' + (number / unit % 10) as u8));
        unit /= 10;
    }
}

impl From<SystemTime> for Timestamp {
    fn from(time: SystemTime) -> Self {
        let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
        Timestamp(u64::try_from(since.as_millis()).unwrap_or(u64::MAX))
    }
}

impl Add<Duration> for Timestamp {
    type Output = Timestamp;

    fn add(self, span: Duration) -> Timestamp {
        let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Timestamp(self.0.saturating_add(millis))
    }
}

impl Sub<Duration> for Timestamp {
    type Output = Timestamp;

    fn sub(self, span: Duration) -> Timestamp {
        let millis = u64::try_from(span.as_millis()).unwrap_or(u64::MAX);
        Timestamp(self.0.saturating_sub(millis))
    }
}

impl fmt::Display for Timestamp {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}.{:03}", self.0 / 1000, self.0 % 1000)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn dates_are_those_of_the_calendar() {
        for (millis, rfc3339, rfc5322) in [
            (0, "1970-01-01T00:00:00.000Z", "Thu, 1 Jan 1970 00:00:00 +0000"),
            (951_782_400_000, "2000-02-29T00:00:00.000Z", "Tue, 29 Feb 2000 00:00:00 +0000"),
            (951_868_799_999, "2000-02-29T23:59:59.999Z", "Tue, 29 Feb 2000 23:59:59 +0000"),
            (951_868_800_000, "2000-03-01T00:00:00.000Z", "Wed, 1 Mar 2000 00:00:00 +0000"),
            (1_795_196_776_123, "2026-11-20T17:46:16.123Z", "Fri, 20 Nov 2026 17:46:16 +0000"),
            (1_798_761_599_000, "2026-12-31T23:59:59.000Z", "Thu, 31 Dec 2026 23:59:59 +0000"),
            (4_107_542_400_000, "2100-03-01T00:00:00.000Z", "Mon, 1 Mar 2100 00:00:00 +0000"),
        ] {
            assert_eq!(Timestamp(millis).to_rfc3339(), rfc3339);
            assert_eq!(Timestamp(millis).to_rfc5322(), rfc5322);
        }
    }

    #[test]
    fn http_dates_have_a_fixed_length() {
        for (millis, text) in [(784_111_777_000, "Sun, 06 Nov 1994 08:49:37 GMT"), (0, "Thu, 01 Jan 1970 00:00:00 GMT")]
        {
            assert_eq!(Timestamp(millis).to_http_date(), text);
        }
    }

    #[test]
    fn http_dates_are_read_in_three_formats() {
        let texts = ["Sun, 06 Nov 1994 08:49:37 GMT", "Sunday, 06-Nov-94 08:49:37 GMT", "Sun Nov  6 08:49:37 1994"];
        for text in texts {
            assert_eq!(Timestamp::from_http_date(text), Some(Timestamp(784_111_777_000)), "{text}");
        }
        for day in (0..60_000).step_by(7) {
            let time = Timestamp(day * 86_400_000 + 3_723_000);
            assert_eq!(Timestamp::from_http_date(&time.to_http_date()), Some(time));
        }
        assert_eq!(Timestamp::from_http_date("Thu, 01 Jan 1960 00:00:00 GMT"), Some(Timestamp(0)));
        let wrong = [
            "",
            "now",
            "Sun, 06 Nov 1994 08:49:37 CET",
            "Sun, 06 Now 1994 08:49:37 GMT",
            "Sun, 00 Nov 1994 08:49:37 GMT",
            "Sun, 06 Nov 19944 08:49:37 GMT",
            "Sun, 06 Nov 1994 24:49:37 GMT",
            "Sun, 06 Nov 1994 08:49 GMT",
            "Sun, 06 Nov 1994 08:49:+7 GMT",
            "Sun, 06 Nov 1994 08:49:37 GMT x",
        ];
        for text in wrong {
            assert_eq!(Timestamp::from_http_date(text), None, "{text}");
        }
    }

    #[test]
    fn each_day_of_800_years_follows_the_one_before() {
        let date = |day: u64| {
            let c = CalendarTime::from_timestamp(Timestamp(day * 86_400_000));
            (c.year, c.month, c.day, c.weekday)
        };
        let is_leap = |year: u64| year.is_multiple_of(4) && (!year.is_multiple_of(100) || year.is_multiple_of(400));
        let last = |year, month| match month {
            2 if is_leap(year) => 29,
            2 => 28,
            4 | 6 | 9 | 11 => 30,
            _ => 31,
        };
        for today in 0..292_194 {
            let (year, month, day, weekday) = date(today);
            let tomorrow = match (month, day) {
                (12, 31) => (year + 1, 1, 1),
                (_, day) if day == last(year, month) => (year, month + 1, 1),
                _ => (year, month, day + 1),
            };
            let (year, month, day) = tomorrow;
            assert_eq!(date(today + 1), (year, month, day, (weekday + 1) % 7));
        }
    }

    #[test]
    fn the_end_of_time_is_a_date_too() {
        assert!(Timestamp(u64::MAX).to_rfc5322().ends_with("+0000"));
    }
}
