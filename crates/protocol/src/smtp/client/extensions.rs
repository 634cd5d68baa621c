//! The extensions offered in the reply to EHLO or LHLO (RFC 5321 section 4.1.1.1).

use std::num::NonZeroU32;

use mail::Address;

use super::ForwardedAttributes;

/// The extensions that a client can use. All are absent before the reply to EHLO, after HELO, and
/// between STARTTLS and the next EHLO.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// SIZE (RFC 1870), with the server's limit; 0 means no limit.
    pub size: Option<u64>,
    /// PIPELINING (RFC 2920).
    pub pipelining: bool,
    /// CHUNKING (RFC 3030).
    pub chunking: bool,
    /// 8BITMIME (RFC 6152).
    pub eight_bit_mime: bool,
    /// SMTPUTF8 (RFC 6531).
    pub smtputf8: bool,
    /// STARTTLS (RFC 3207).
    pub start_tls: bool,
    /// DSN (RFC 3461).
    pub dsn: bool,
    /// ENHANCEDSTATUSCODES (RFC 2034).
    pub enhanced_codes: bool,
    /// MAILMAX of LIMITS (RFC 9422 section 4): transactions per session.
    pub transactions_max: Option<NonZeroU32>,
    /// RCPTMAX: recipients per transaction.
    pub recipients_max: Option<NonZeroU32>,
    /// RCPTDOMAINMAX: recipient domains per transaction.
    pub recipient_domains_max: Option<NonZeroU32>,
    /// The mechanisms of AUTH (RFC 4954), separated by spaces; empty without AUTH.
    pub mechanisms: Box<str>,
    /// The attributes of XFORWARD (Postfix's XFORWARD_README).
    pub xforward: ForwardedAttributes,
}

impl Extensions {
    /// Parses the text of a reply. Its first line is the server's name.
    pub(super) fn parse(text: &str) -> Self {
        let mut found = Extensions::default();
        for line in text.split('\n').skip(1) {
            found.take(line);
        }
        found
    }

    /// Whether AUTH offers this mechanism.
    pub fn has_mechanism(&self, name: &str) -> bool {
        self.mechanisms.split(' ').any(|offered| offered.eq_ignore_ascii_case(name))
    }

    /// How many of these recipients, from the first on, fit into one transaction; at least one.
    pub fn fitting_recipient_count<'a>(&self, recipients: impl IntoIterator<Item = &'a Address>) -> usize {
        let most = |max: Option<NonZeroU32>| max.map_or(usize::MAX, |max| max.get() as usize);
        let recipients = recipients.into_iter().take(most(self.recipients_max));
        let Some(domains_max) = self.recipient_domains_max else { return recipients.count() };
        let mut domains: Vec<&'a str> = Vec::new();
        let fits = |recipient: &&'a Address| {
            if !domains.contains(&recipient.domain()) {
                domains.push(recipient.domain());
            }
            domains.len() <= domains_max.get() as usize
        };
        recipients.take_while(fits).count()
    }

    fn take(&mut self, line: &str) {
        // Old servers send `AUTH=LOGIN`, in addition to the line of RFC 4954 or instead of it.
        let (keyword, rest) = line.split_once([' ', '=']).unwrap_or((line, ""));
        match keyword {
            _ if keyword.eq_ignore_ascii_case("SIZE") => self.size = Some(rest.trim().parse().unwrap_or(0)),
            _ if keyword.eq_ignore_ascii_case("PIPELINING") => self.pipelining = true,
            _ if keyword.eq_ignore_ascii_case("CHUNKING") => self.chunking = true,
            _ if keyword.eq_ignore_ascii_case("8BITMIME") => self.eight_bit_mime = true,
            _ if keyword.eq_ignore_ascii_case("SMTPUTF8") => self.smtputf8 = true,
            _ if keyword.eq_ignore_ascii_case("STARTTLS") => self.start_tls = true,
            _ if keyword.eq_ignore_ascii_case("DSN") => self.dsn = true,
            _ if keyword.eq_ignore_ascii_case("ENHANCEDSTATUSCODES") => self.enhanced_codes = true,
            _ if keyword.eq_ignore_ascii_case("LIMITS") => self.take_limits(rest),
            _ if keyword.eq_ignore_ascii_case("AUTH") => self.mechanisms = join(&self.mechanisms, rest),
            _ if keyword.eq_ignore_ascii_case("XFORWARD") => self.xforward = ForwardedAttributes::parse(rest),
            _ => {}
        }
    }

    /// Unknown limits and invalid values are ignored (RFC 9422 section 3).
    fn take_limits(&mut self, limits: &str) {
        for limit in limits.split(' ') {
            let Some((name, value)) = limit.split_once('=') else { continue };
            let place = match name {
                _ if name.eq_ignore_ascii_case("MAILMAX") => &mut self.transactions_max,
                _ if name.eq_ignore_ascii_case("RCPTMAX") => &mut self.recipients_max,
                _ if name.eq_ignore_ascii_case("RCPTDOMAINMAX") => &mut self.recipient_domains_max,
                _ => continue,
            };
            *place = limit_value(value).or(*place);
        }
    }
}

/// One to six digits without a leading 0.
fn limit_value(digits: &str) -> Option<NonZeroU32> {
    let sound = digits.len() <= 6 && digits.bytes().all(|byte| byte.is_ascii_digit()) && !digits.starts_with('0');
    if sound { digits.parse().ok() } else { None }
}

fn join(known: &str, more: &str) -> Box<str> {
    let names: Vec<&str> = known.split(' ').chain(more.split(' ')).filter(|name| !name.is_empty()).collect();
    names.join(" ").into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn keywords_are_known_in_any_case_and_the_first_line_is_a_name() {
        let found = Extensions::parse("pipelining\nSize 1000\n8bitmime\nchunking\nXOTHER x\nauth PLAIN\nAUTH=LOGIN");
        assert!(!found.pipelining && found.eight_bit_mime && found.chunking && !found.dsn);
        assert_eq!(found.size, Some(1000));
        assert_eq!(&*found.mechanisms, "PLAIN LOGIN");
        assert!(
            found.has_mechanism("login") && !found.has_mechanism("CRAM-MD5") && !found.has_mechanism("PLAIN LOGIN")
        );
    }

    #[test]
    fn a_size_that_is_none_is_no_limit() {
        for text in ["x\nSIZE", "x\nSIZE ", "x\nSIZE 0", "x\nSIZE many"] {
            assert_eq!(Extensions::parse(text).size, Some(0), "{text}");
        }
        assert_eq!(Extensions::parse("x").size, None);
    }

    #[test]
    fn limits_are_read_and_unknown_or_broken_ones_passed_over() {
        let number = NonZeroU32::new;
        let found = Extensions::parse("x\nLIMITS RCPTMAX=20 XMAX=1 mailmax=5 RCPTDOMAINMAX=1");
        assert_eq!((found.recipients_max, found.transactions_max), (number(20), number(5)));
        assert_eq!(found.recipient_domains_max, number(1));
        let found = Extensions::parse("x\nLIMITS RCPTMAX=0 MAILMAX=1000000 RCPTDOMAINMAX=+1 RCPTMAX MAILMAX=");
        assert_eq!(found, Extensions::default());
    }

    #[test]
    fn the_first_recipients_fit_by_number_and_by_domains() {
        let recipients: Vec<Address> =
            ["a@x.example", "b@y.example", "c@x.example", "d@z.example"].map(|text| text.parse().unwrap()).into();
        let fit = |limits| Extensions::parse(&format!("x\n{limits}")).fitting_recipient_count(&recipients);
        assert_eq!(["", "LIMITS RCPTMAX=3", "LIMITS RCPTMAX=9"].map(fit), [4, 3, 4]);
        assert_eq!(["LIMITS RCPTDOMAINMAX=1", "LIMITS RCPTDOMAINMAX=2", "LIMITS RCPTDOMAINMAX=3"].map(fit), [1, 3, 4]);
        assert_eq!(fit("LIMITS RCPTMAX=2 RCPTDOMAINMAX=2"), 2);
    }
}
