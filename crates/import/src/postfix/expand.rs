//! Expands `$name` in values as described in postconf(5), with Postfix's defaults for the
//! parameters that matter here.
//!
//! | form                                  | means                                              |
//! |---------------------------------------|----------------------------------------------------|
//! | `$name`, `${name}`, `$(name)`         | the value of that parameter                        |
//! | `${name?text}`, `${name?{text}}`      | the text, if the value is not empty                |
//! | `${name:text}`, `${name:{text}}`      | the text, if it is empty                           |
//! | `${name?{text}:{other}}`              | the first text if it is not empty, else the second |
//! | `${{a} == {b} ? {text} : {other}}`    | the same for a comparison, numeric for numbers     |
//! | `$$`                                  | a dollar sign                                      |
//!
//! Anything else stays as written, and so do loops and values that become too long.

use super::main_cf::MainCf;
use super::words::leading_braces;

/// Nested parameters.
const DEPTH_MAX: usize = 20;
/// Bytes of an expanded value: a few lines can expand to more than any memory.
const OCTETS_MAX: usize = 256 * 1024;

/// Postfix's defaults for parameters that decide about the output or that others refer to.
const DEFAULTS: [(&str, &str); 25] = [
    ("alias_maps", "hash:/etc/aliases"),
    ("config_directory", "/etc/postfix"),
    ("default_database_type", "hash"),
    ("default_transport", "smtp"),
    ("inet_interfaces", "all"),
    ("inet_protocols", "all"),
    ("local_recipient_maps", "proxy:unix:passwd.byname $alias_maps"),
    ("local_transport", "local:$myhostname"),
    ("mail_name", "Postfix"),
    ("mail_owner", "postfix"),
    ("mydestination", "$myhostname, localhost.$mydomain, localhost"),
    ("myorigin", "$myhostname"),
    ("proxy_interfaces", ""),
    ("queue_directory", "/var/spool/postfix"),
    ("relay_domains", ""),
    ("relay_transport", "relay"),
    (
        "parent_domain_matches_subdomains",
        "debug_peer_list,fast_flush_domains,mynetworks,permit_mx_backup_networks,qmqpd_authorized_clients,relay_domains,\
         smtpd_access_maps",
    ),
    ("smtpd_relay_restrictions", "permit_mynetworks, permit_sasl_authenticated, defer_unauth_destination"),
    ("smtpd_sasl_path", "smtpd"),
    ("smtpd_sasl_type", "cyrus"),
    ("virtual_alias_domains", "$virtual_alias_maps"),
    ("virtual_alias_maps", ""),
    ("virtual_mailbox_domains", "$virtual_mailbox_maps"),
    ("virtual_mailbox_maps", ""),
    ("virtual_transport", "virtual"),
];

/// Values with all parameters expanded.
#[derive(Clone, Copy, Debug)]
pub struct ExpandedParameters<'a> {
    main: &'a MainCf,
    /// The host name, if main.cf does not set it.
    machine: &'a str,
}

impl<'a> ExpandedParameters<'a> {
    /// The values of a file on the host named `machine`.
    pub fn new(main: &'a MainCf, machine: &'a str) -> Self {
        ExpandedParameters { main, machine }
    }

    /// The same for another file, such as that of a service with its own settings.
    pub fn with_main_cf<'b>(&self, main: &'b MainCf) -> ExpandedParameters<'b>
    where
        'a: 'b,
    {
        ExpandedParameters { main, machine: self.machine }
    }

    /// The expanded value of a parameter or its default; empty if it is unknown.
    pub fn value(&self, name: &str) -> String {
        self.expand(&self.raw(name))
    }

    /// The expanded value, if main.cf sets the parameter.
    pub fn explicit_value(&self, name: &str) -> Option<String> {
        self.main.value(name).map(|value| self.expand(value))
    }

    /// Expands a text.
    pub fn expand(&self, text: &str) -> String {
        let mut expansion = Expansion { values: self, octets: 0 };
        expansion.text(text, 0).unwrap_or_else(|| text.to_owned())
    }

    fn raw(&self, name: &str) -> String {
        if let Some(value) = self.main.value(name) {
            return value.to_owned();
        }
        match name {
            "myhostname" if self.machine.contains('.') || self.main.value("mydomain").is_none() => {
                self.machine.to_owned()
            }
            "myhostname" => format!("{}.$mydomain", self.machine),
            // Without a dot there is no domain; Postfix also uses a made-up one.
            "mydomain" => {
                let host = self.main.value("myhostname").unwrap_or(self.machine);
                host.split_once('.').map_or("localdomain", |(_, domain)| domain).to_owned()
            }
            _ => DEFAULTS
                .iter()
                .find(|(known, _)| *known == name)
                .map(|(_, value)| *value)
                .unwrap_or_default()
                .to_owned(),
        }
    }
}

struct Expansion<'v, 'a> {
    values: &'v ExpandedParameters<'a>,
    octets: usize,
}

impl Expansion<'_, '_> {
    /// None if it cannot be expanded.
    fn text(&mut self, text: &str, depth: usize) -> Option<String> {
        let mut done = String::new();
        let mut rest = text;
        while let Some((before, behind)) = rest.split_once('$') {
            done.push_str(before);
            rest = self.parameter(behind, depth, &mut done)?;
            if done.len() > OCTETS_MAX {
                return None;
            }
        }
        done.push_str(rest);
        self.octets += done.len();
        (self.octets <= OCTETS_MAX && depth <= DEPTH_MAX).then_some(done)
    }

    /// Expands the text after a dollar sign; returns the rest.
    fn parameter<'t>(&mut self, text: &'t str, depth: usize, done: &mut String) -> Option<&'t str> {
        if let Some(rest) = text.strip_prefix('$') {
            done.push('$');
            return Some(rest);
        }
        if text.starts_with('{') {
            let (inside, rest) = leading_braces(text)?;
            done.push_str(&self.braces(inside, depth)?);
            return Some(rest);
        }
        if let Some((name, rest)) = text.strip_prefix('(').and_then(|text| text.split_once(')')) {
            done.push_str(&self.braces(name, depth)?);
            return Some(rest);
        }
        let end = text.find(|c: char| !is_name(c)).unwrap_or(text.len());
        match &text[..end] {
            "" => done.push('$'),
            name => done.push_str(&self.named(name, depth)?),
        }
        Some(&text[end..])
    }

    fn named(&mut self, name: &str, depth: usize) -> Option<String> {
        (depth < DEPTH_MAX).then(|| self.values.raw(name)).and_then(|value| self.text(&value, depth + 1))
    }

    fn braces(&mut self, inside: &str, depth: usize) -> Option<String> {
        let inside = inside.trim();
        if inside.starts_with('{') {
            let (holds, choice) = self.comparison(inside, depth)?;
            return self.choice(holds, choice, depth);
        }
        let end = inside.find(|c: char| !is_name(c)).unwrap_or(inside.len());
        let value = self.named(&inside[..end], depth)?;
        match inside[end..].trim_start() {
            "" => Some(value),
            choice => self.choice(!value.is_empty(), choice, depth),
        }
    }

    /// `?{text}:{other}`, `?text` or `:text`.
    fn choice(&mut self, holds: bool, choice: &str, depth: usize) -> Option<String> {
        let wanted = match (choice.strip_prefix('?'), choice.strip_prefix(':')) {
            (Some(both), _) => match leading_braces(both) {
                Some((text, other)) => match other.trim_start().strip_prefix(':') {
                    Some(other) if !holds => leading_braces(other).map_or(other, |(other, _)| other),
                    _ if holds => text,
                    _ => "",
                },
                None if holds => both,
                None => "",
            },
            (None, Some(_)) if holds => "",
            (None, Some(other)) => leading_braces(other).map_or(other, |(other, _)| other),
            (None, None) => return None,
        };
        // A text in braces may have white space around it for readability.
        (depth < DEPTH_MAX).then(|| self.text(wanted.trim(), depth + 1)).flatten()
    }

    /// Whether `{a} == {b}` holds, and the text after it.
    fn comparison<'t>(&mut self, text: &'t str, depth: usize) -> Option<(bool, &'t str)> {
        let (left, rest) = leading_braces(text)?;
        let rest = rest.trim_start();
        let operator = ["==", "!=", "<=", ">=", "<", ">"].into_iter().find(|operator| rest.starts_with(operator))?;
        let (right, choice) = leading_braces(&rest[operator.len()..])?;
        let (left, right) = (self.text(left.trim(), depth + 1)?, self.text(right.trim(), depth + 1)?);
        let order = match (left.parse::<i64>(), right.parse::<i64>()) {
            (Ok(left), Ok(right)) => left.cmp(&right),
            _ => left.cmp(&right),
        };
        let holds = match operator {
            "==" => order.is_eq(),
            "!=" => order.is_ne(),
            "<=" => order.is_le(),
            ">=" => order.is_ge(),
            "<" => order.is_lt(),
            _ => order.is_gt(),
        };
        Some((holds, choice.trim_start()))
    }
}

fn is_name(c: char) -> bool {
    c.is_ascii_alphanumeric() || c == '_'
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn expanded(text: &str) -> String {
        let main = MainCf::parse("a = 1\nempty =\nb = <$a>\ncircle = x$circle\nmydomain = example.org\n");
        ExpandedParameters::new(&main, "mail.example.net").expand(text)
    }

    #[test]
    fn parameters_are_filled_in() {
        for (text, expected) in [
            ("$a ${a} $(a) $a.x", "1 1 1 1.x"),
            ("${b}$b", "<1><1>"),
            ("$$a $ x$", "$a $ x$"),
            ("${a?yes}${empty?no}", "yes"),
            ("${a:no}${empty:yes}", "yes"),
            ("${a?{yes}:{no}} ${empty?{yes}:{no $a}}", "yes no 1"),
            ("${{$a} == {1} ? {same} : {other}}", "same"),
            ("${{10} > {9}?{more}:{less}}", "more"),
            ("$unknown.", "."),
            ("$mydestination", "mail.example.net, localhost.example.org, localhost"),
            ("$circle", "$circle"),
            ("${a", "${a"),
            ("${a%b}", "${a%b}"),
        ] {
            assert_eq!(expanded(text), expected, "{text}");
        }
    }

    #[test]
    fn a_value_that_grows_without_end_stays_as_it_is_written() {
        let text: String = (1..19).map(|n| format!("p{n} = {}\n", format!("$p{}", n - 1).repeat(9))).collect();
        let main = MainCf::parse(&format!("p0 = x\n{text}"));
        assert_eq!(ExpandedParameters::new(&main, "host").value("p18"), "$p17".repeat(9));
    }

    proptest! {
        #[test]
        fn any_text_is_expanded(text in "[ab${}()?:= <]{0,60}|(?s).{0,100}") {
            expanded(&text);
        }
    }
}
