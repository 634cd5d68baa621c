//! Parses master.cf in the syntax of master(5): one service per line, with eight fields and
//! arguments. Of the arguments, only `-o name=value` is parsed; a line that is not a service is
//! kept, to be reported.

use super::main_cf::{definition, logical_lines};
use super::words::{braced, split};

/// A service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Service {
    /// Its address: a port with or without a host, or a name.
    pub name: String,
    /// `inet`, `unix`, `fifo`, `unix-dgram` or `pass`.
    pub kind: String,
    /// Whether its processes see only the queue folder.
    pub is_chrooted: bool,
    /// The most processes; None is Postfix's default, or no limit.
    pub process_limit: Option<u32>,
    /// The program.
    pub command: String,
    /// Its settings that replace those of main.cf.
    pub overrides: Vec<(String, String)>,
    /// All arguments as written.
    pub arguments: Vec<String>,
}

/// The services in a file.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MasterCf {
    /// The valid services, in the order of the file.
    pub services: Vec<Service>,
    /// Lines that are not services.
    pub oddities: Vec<String>,
}

impl MasterCf {
    /// Parses any text.
    pub fn parse(text: &str) -> Self {
        let mut file = MasterCf::default();
        for line in logical_lines(text) {
            match service(&line) {
                Some(service) => file.services.push(service),
                None => file.oddities.push(line),
            }
        }
        file
    }
}

fn service(line: &str) -> Option<Service> {
    let mut fields = split(line, char::is_whitespace).into_iter();
    let (name, kind) = (fields.next()?, fields.next()?);
    if !["inet", "unix", "fifo", "unix-dgram", "pass"].contains(&&*kind) {
        return None;
    }
    // Who may use it and its wakeup time concern only Postfix.
    let chroot = fields.nth(2)?;
    let process_limit = fields.nth(1)?.parse().ok().filter(|limit| *limit > 0);
    let command = fields.next()?;
    let arguments: Vec<String> = fields.collect();
    Some(Service {
        name,
        kind,
        is_chrooted: chroot == "y",
        process_limit,
        command,
        overrides: overrides(&arguments),
        arguments,
    })
}

/// `-o name=value`, `-oname=value` and `-o { name = value }`.
fn overrides(arguments: &[String]) -> Vec<(String, String)> {
    let mut overrides = Vec::new();
    let mut arguments = arguments.iter();
    while let Some(argument) = arguments.next() {
        let text = match argument.strip_prefix("-o") {
            Some("") => arguments.next(),
            Some(_) => Some(argument),
            None => None,
        };
        let text = text.map(|text| text.strip_prefix("-o").unwrap_or(text));
        let pair = text.and_then(|text| definition(braced(text).unwrap_or(text)));
        overrides.extend(pair.map(|(name, value)| (name.to_owned(), value.to_owned())));
    }
    overrides
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn a_service_has_settings_of_its_own() {
        let text = "# service type\nsubmission inet n - y - 20 smtpd\n  -o syslog_name=postfix/submission\n\
                    \x20 -o { smtpd_banner = two words } -osmtpd_tls_security_level=encrypt\n  -v\nnothing\n";
        let file = MasterCf::parse(text);
        let pair = |name: &str, value: &str| (name.to_owned(), value.to_owned());
        assert_eq!(file.oddities, ["nothing"]);
        assert_eq!(file.services.len(), 1);
        let service = &file.services[0];
        assert_eq!((&*service.name, &*service.kind, &*service.command), ("submission", "inet", "smtpd"));
        assert_eq!((service.is_chrooted, service.process_limit), (true, Some(20)));
        let expected = [
            pair("syslog_name", "postfix/submission"),
            pair("smtpd_banner", "two words"),
            pair("smtpd_tls_security_level", "encrypt"),
        ];
        assert_eq!(service.overrides, expected);
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "(?s)[-a-z{} =\n\t]{0,200}") {
            MasterCf::parse(&text);
        }
    }
}
