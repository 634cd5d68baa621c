//! Converts services of pipe(8) in master.cf to transports of type pipe.
//!
//! | pipe(8) | here |
//! |---|---|
//! | `argv` | `command`; `${nexthop}` becomes the next hop itself |
//! | `user`, `directory`, `null_sender`, `eol` | `user`, `directory`, `null_sender`, `line_ends` |
//! | `flags` D, F, O, R | `fields` |
//!
//! A service whose command names what is not known here has no counterpart, and its mail waits.

use super::config_draft::{quoted, quoted_list};
use super::master_cf::Service;
use super::words::braced;

/// Macros that exist here too.
const MACROS: [&str; 8] = ["sender", "recipient", "user", "extension", "domain", "queue_id", "size", "client_address"];
/// Flags and the fields that they put before the message.
const FIELDS: [(char, &str); 4] = [('F', "From"), ('R', "Return-Path"), ('O', "X-Original-To"), ('D', "Delivered-To")];
/// Flags without an effect on mail: final delivery, and lower case of names, which are so already.
const FLAGS_NOT_NEEDED: &str = "Xhu";

/// A transport of type pipe.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PipeProgram {
    /// Its keys and their values in TOML.
    pub(super) keys: Vec<(&'static str, String)>,
    /// Flags that have no counterpart.
    pub(super) lost_flags: String,
}

/// The transport for a service and a next hop; None is the domain of the recipient.
///
/// # Errors
///
/// Why there is none.
pub(super) fn program(service: &Service, next_hop: Option<&str>) -> Result<PipeProgram, String> {
    let start = service.arguments.iter().position(|it| it.starts_with("argv=")).ok_or("it has no argv")?;
    let (attributes, command) = service.arguments.split_at(start);
    let value = |name: &str| attributes.iter().find_map(|it| it.strip_prefix(name)?.strip_prefix('='));
    let words = command.iter().map(|word| {
        let word = braced(word).unwrap_or(word);
        argument(word.strip_prefix("argv=").unwrap_or(word), next_hop)
    });
    let words: Vec<String> = words.collect::<Result<_, _>>()?;
    if !words.first().is_some_and(|program| program.starts_with('/')) {
        return Err("its program has no absolute path".into());
    }
    if value("chroot").is_some() {
        return Err("programs have no chroot here".into());
    }
    let mut keys = vec![("type", quoted("pipe")), ("command", quoted_list(words.iter().map(String::as_str)))];
    for key in ["user", "directory", "null_sender"] {
        keys.extend(value(key).map(|value| (key, quoted(value))));
    }
    let flags = value("flags").unwrap_or_default();
    let fields: Vec<&str> = FIELDS.iter().filter(|(flag, _)| flags.contains(*flag)).map(|(_, field)| *field).collect();
    if !fields.is_empty() {
        keys.push(("fields", quoted_list(fields)));
    }
    if value("eol").is_some_and(|end| end.contains("\\r\\n")) {
        keys.push(("line_ends", quoted("crlf")));
    }
    let is_known = |flag: char| FLAGS_NOT_NEEDED.contains(flag) || FIELDS.iter().any(|(known, _)| *known == flag);
    Ok(PipeProgram { keys, lost_flags: flags.chars().filter(|flag| !is_known(*flag)).collect() })
}

/// An argument in our notation.
fn argument(text: &str, next_hop: Option<&str>) -> Result<String, String> {
    let (mut made, mut rest) = (String::new(), text);
    while let Some((before, after)) = rest.split_once('$') {
        made.push_str(before);
        let (name, behind) = macro_name(after);
        match name {
            "$" => made.push_str("$$"),
            "nexthop" => made.push_str(&next_hop.map_or("${domain}".to_owned(), |hop| hop.replace('$', "$$"))),
            name if MACROS.contains(&name) => made.push_str(&format!("${{{name}}}")),
            name => return Err(format!("its argument {text} needs ${{{name}}}, which does not exist here")),
        }
        rest = behind;
    }
    Ok(made + rest)
}

/// The name after a dollar sign, and what follows it.
fn macro_name(after: &str) -> (&str, &str) {
    for (open, close) in [('{', '}'), ('(', ')')] {
        if let Some(parts) = after.strip_prefix(open).and_then(|inside| inside.split_once(close)) {
            return parts;
        }
    }
    if after.starts_with('$') {
        return after.split_at(1);
    }
    after.split_at(after.find(|c: char| !c.is_ascii_alphanumeric() && c != '_').unwrap_or(after.len()))
}

#[cfg(test)]
mod tests {
    use super::super::master_cf::MasterCf;
    use super::*;

    fn converted(line: &str, next_hop: Option<&str>) -> Result<String, String> {
        let service = MasterCf::parse(line).services.remove(0);
        let made = program(&service, next_hop)?;
        let keys: Vec<String> = made.keys.iter().map(|(key, value)| format!("{key} = {value}")).collect();
        Ok(format!("{} lost: {}", keys.join("; "), made.lost_flags))
    }

    #[test]
    fn a_program_keeps_its_arguments_user_and_fields() {
        let line = "lists unix - n n - - pipe flags=FRXqD user=list:mail directory=/var null_sender= \
                    argv=/usr/lib/lists $nexthop ${user} $(extension) $$ { two words }";
        insta::assert_snapshot!(converted(line, Some("a$b")).unwrap(), @r#"type = "pipe"; command = ["/usr/lib/lists", "a$$b", "${user}", "${extension}", "$$", "two words"]; user = "list:mail"; directory = "/var"; null_sender = ""; fields = ["From", "Return-Path", "Delivered-To"] lost: q"#);
        assert!(converted(line, None).unwrap().contains("${domain}"));
    }

    #[test]
    fn what_is_not_known_here_is_told() {
        for (arguments, why) in [
            ("user=a argv=uux -r", "no absolute path"),
            ("user=a argv=/bin/x ${original_recipient}", "${original_recipient}"),
            ("user=a", "it has no argv"),
            ("user=a chroot=/x argv=/bin/x", "no chroot"),
        ] {
            let told = converted(&format!("x unix - n n - - pipe {arguments}"), None).unwrap_err();
            assert!(told.contains(why), "{told}");
        }
    }
}
