//! Transports and next hops: `lmtp:unix:private/dovecot`, `[relay.example.net]:587`, and what we call them.

use super::Conversion;
use super::draft::{Block, quoted};
use super::words::list;
use crate::config::FixedHop;

/// Ports that have names.
const PORTS: [(&str, u16); 5] = [("smtp", 25), ("submission", 587), ("smtps", 465), ("submissions", 465), ("lmtp", 24)];

/// The number of a port.
pub(super) fn port(text: &str) -> Option<u16> {
    PORTS.iter().find(|(name, _)| *name == text).map(|(_, port)| *port).or_else(|| text.parse().ok()).filter(|n| *n > 0)
}

/// A way out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Way {
    /// `smtp` or `lmtp`.
    pub(super) kind: &'static str,
    /// In our words; None: by the MX of the recipient's domain.
    pub(super) next_hop: Option<String>,
    /// The port that goes with `mx:`, which names none.
    pub(super) port: Option<u16>,
}

/// A next hop in our words, and a port where it cannot have one itself.
pub(super) fn next_hop(text: &str, kind: &str, queue_directory: &str) -> Option<(String, Option<u16>)> {
    let text = text.strip_prefix("inet:").unwrap_or(text);
    if let Some(path) = text.strip_prefix("unix:") {
        let path = if path.starts_with('/') { path.to_owned() } else { format!("{queue_directory}/{path}") };
        return sound(format!("unix:{path}"), None);
    }
    let (host, behind) = match text.strip_prefix('[').and_then(|text| text.split_once(']')) {
        Some((host, behind)) => (host, behind.strip_prefix(':')),
        None => text.split_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    let number = match behind {
        Some(text) => Some(port(text)?),
        None => None,
    };
    let literal = host.parse::<std::net::IpAddr>().is_ok();
    let host = match literal {
        true => format!("[{host}]"),
        false => host.to_owned(),
    };
    // Without brackets, and over SMTP, Postfix asks for the MX.
    if !literal && !text.starts_with('[') && kind == "smtp" {
        return sound(format!("mx:{host}"), number);
    }
    sound(number.map_or(host.clone(), |number| format!("{host}:{number}")), None)
}

fn sound(hop: String, port: Option<u16>) -> Option<(String, Option<u16>)> {
    hop.parse::<FixedHop>().ok().map(|_| (hop, port))
}

impl Conversion<'_> {
    /// What `transport:nexthop` means; or why it means nothing here.
    pub(super) fn way(&mut self, text: &str) -> Result<Way, String> {
        let (name, hops) = text.split_once(':').unwrap_or((text, ""));
        let kind = match name {
            "" | "smtp" | "relay" => "smtp",
            "lmtp" => "lmtp",
            "error" | "retry" | "discard" => {
                return Err(format!("{name}: mail is not refused or thrown away by routes"));
            }
            name => {
                let service = self.master.services.iter().find(|it| it.name == name && it.kind == "unix");
                match service.map(|it| it.command.as_str()) {
                    Some("smtp") => "smtp",
                    Some("lmtp") => "lmtp",
                    Some("pipe") => {
                        return Err(format!("{name}: mail is not given to programs; an LMTP server can do that"));
                    }
                    _ => return Err(format!("{name}: there is no such transport here")),
                }
            }
        };
        self.hop(hops, kind)
    }

    /// The same for a next hop alone.
    pub(super) fn hop(&mut self, hops: &str, kind: &'static str) -> Result<Way, String> {
        let hops = list(hops);
        let Some(first) = hops.first() else { return Ok(Way { kind, next_hop: None, port: None }) };
        if hops.len() > 1 {
            self.draft.loss(hops.join(", "), "a route has one next hop; only the first one is taken");
        }
        let directory = self.values.value("queue_directory");
        match next_hop(first, kind, &directory) {
            Some((hop, port)) => Ok(Way { kind, next_hop: Some(hop), port }),
            None => Err(format!("{first} is no next hop here")),
        }
    }

    /// The name of a transport for this way, made where there is none yet.
    pub(super) fn transport(&mut self, like: &str, way: &Way, from: &str) -> String {
        let mut keys = vec![("type".to_owned(), quoted(way.kind))];
        keys.extend(way.next_hop.as_ref().map(|hop| ("next_hop".to_owned(), quoted(hop))));
        keys.extend(way.port.map(|port| ("port".to_owned(), port.to_string())));
        let pairs = |block: &Block| -> Vec<_> {
            block.keys.iter().map(|(key, value, _)| (key.clone(), value.clone())).collect()
        };
        let made =
            self.draft.blocks.iter().find(|block| block.header.starts_with("[transport.") && pairs(block) == keys);
        if let Some(name) = made.and_then(|block| block.header.strip_prefix("[transport.")?.strip_suffix(']')) {
            return name.to_owned();
        }
        let name = self.free_name(like);
        let mut block = Block::new(&format!("[transport.{name}]"));
        keys.into_iter().for_each(|(key, value)| block.set(&key, value, from));
        self.draft.add(block);
        name
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn brackets_mean_no_mx() {
        for (text, kind, expected) in [
            ("[relay.example.net]:587", "smtp", Some(("relay.example.net:587", None))),
            ("relay.example.net", "smtp", Some(("mx:relay.example.net", None))),
            ("relay.example.net:submission", "smtp", Some(("mx:relay.example.net", Some(587)))),
            ("[192.0.2.1]", "smtp", Some(("[192.0.2.1]", None))),
            ("[2001:db8::1]:25", "smtp", Some(("[2001:db8::1]:25", None))),
            ("unix:private/dovecot-lmtp", "lmtp", Some(("unix:/var/spool/postfix/private/dovecot-lmtp", None))),
            ("inet:127.0.0.1:24", "lmtp", Some(("[127.0.0.1]:24", None))),
            ("host.example", "lmtp", Some(("host.example", None))),
            ("[a b]", "smtp", None),
            ("host:port", "smtp", None),
        ] {
            let expected = expected.map(|(hop, port)| (hop.to_owned(), port));
            assert_eq!(next_hop(text, kind, "/var/spool/postfix"), expected, "{text}");
        }
    }

    proptest! {
        #[test]
        fn any_text_is_read(text in "[\\[\\]a1.:/unix ]{0,20}|(?s).{0,30}") {
            next_hop(&text, "smtp", "/q");
        }
    }
}
