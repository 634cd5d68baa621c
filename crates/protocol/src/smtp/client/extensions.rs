//! What a server offered in its reply to EHLO or LHLO (RFC 5321 section 4.1.1.1).

/// The extensions that matter to a client; all absent before EHLO was answered, after HELO, and from STARTTLS until
/// EHLO was said again.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Extensions {
    /// SIZE (RFC 1870), with the server's limit; 0 is none.
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
    /// The names behind AUTH (RFC 4954), parted by spaces; empty without it.
    pub mechanisms: Box<str>,
}

impl Extensions {
    /// Reads the text of a reply. Its first line is the server's name.
    pub(super) fn parse(text: &str) -> Self {
        let mut found = Extensions::default();
        for line in text.split('\n').skip(1) {
            found.take(line);
        }
        found
    }

    /// Whether AUTH has this mechanism.
    pub fn has_mechanism(&self, name: &str) -> bool {
        self.mechanisms.split(' ').any(|offered| offered.eq_ignore_ascii_case(name))
    }

    fn take(&mut self, line: &str) {
        // Old servers write `AUTH=LOGIN`, beside the line of RFC 4954 or instead of it.
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
            _ if keyword.eq_ignore_ascii_case("AUTH") => self.mechanisms = join(&self.mechanisms, rest),
            _ => {}
        }
    }
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
}
