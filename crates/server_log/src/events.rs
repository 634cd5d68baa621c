//! The log events about mail, and the fields of each: the definition for the writer of lines, for
//! their summary, and for docs/logs.md. Debug builds refuse to write other fields, and a test
//! compares the page with this file in both directions.

/// The kind of a log line about mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
#[expect(missing_docs, reason = "each is the event of its name in docs/logs.md")]
pub enum MailEventKind {
    Received,
    Delivered,
    Deferred,
    Bounced,
    Discarded,
    Held,
    Released,
    Removed,
    Refused,
    Login,
    Insecure,
    SetAside,
}

impl MailEventKind {
    /// All kinds.
    pub const ALL: [MailEventKind; 12] = [
        MailEventKind::Received,
        MailEventKind::Delivered,
        MailEventKind::Deferred,
        MailEventKind::Bounced,
        MailEventKind::Discarded,
        MailEventKind::Held,
        MailEventKind::Released,
        MailEventKind::Removed,
        MailEventKind::Refused,
        MailEventKind::Login,
        MailEventKind::Insecure,
        MailEventKind::SetAside,
    ];

    /// The event with this name.
    pub fn named(name: &str) -> Option<MailEventKind> {
        MailEventKind::ALL.into_iter().find(|event| event.name() == name)
    }

    /// The name in log lines.
    pub fn name(self) -> &'static str {
        match self {
            MailEventKind::Received => "received",
            MailEventKind::Delivered => "delivered",
            MailEventKind::Deferred => "deferred",
            MailEventKind::Bounced => "bounced",
            MailEventKind::Discarded => "discarded",
            MailEventKind::Held => "held",
            MailEventKind::Released => "released",
            MailEventKind::Removed => "removed",
            MailEventKind::Refused => "refused",
            MailEventKind::Login => "login",
            MailEventKind::Insecure => "insecure",
            MailEventKind::SetAside => "set_aside",
        }
    }

    /// The fields that its lines may have, in order.
    pub fn fields(self) -> &'static [&'static str] {
        match self {
            MailEventKind::Received => &[
                "id",
                "client",
                "helo",
                "from",
                "recipients",
                "size",
                "protocol",
                "tls",
                "cipher",
                "user",
                "auth",
                "message_id",
                "subject",
            ],
            MailEventKind::Delivered => &["id", "from", "to", "transport", "relay", "reply", "delay_ms"],
            MailEventKind::Deferred => &["id", "from", "to", "transport", "relay", "until", "reason"],
            MailEventKind::Bounced => &["id", "from", "to", "transport", "relay", "bounce", "reason"],
            MailEventKind::Discarded => &["id", "client", "helo", "from", "check"],
            MailEventKind::Held | MailEventKind::Released | MailEventKind::Removed => &["id", "to"],
            MailEventKind::Refused => &["client", "helo", "stage", "address", "rule", "reply"],
            MailEventKind::Login => &["result", "client", "helo", "mechanism", "user"],
            MailEventKind::Insecure => &["client", "helo", "reason"],
            MailEventKind::SetAside => &["id", "what"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../docs/logs.md");

    /// The names in the first column of the tables below a heading: each is the only text in
    /// backquotes there.
    fn documented(heading: &str) -> Option<Vec<&'static str>> {
        let (_, section) = PAGE.split_once(&format!("\n### {heading}\n"))?;
        let section = section.split("\n#").next()?;
        let cell = |line: &'static str| line.strip_prefix("| `")?.split_once('`').map(|(name, _)| name);
        Some(section.lines().filter_map(cell).collect())
    }

    #[test]
    fn the_page_tells_of_every_event_and_every_field_and_of_no_other() {
        for event in MailEventKind::ALL {
            assert_eq!(documented(event.name()).as_deref(), Some(event.fields()), "{}", event.name());
        }
        let headings = PAGE.lines().filter_map(|line| line.strip_prefix("### "));
        let known = MailEventKind::ALL.map(MailEventKind::name);
        assert_eq!(headings.filter(|name| !known.contains(name)).collect::<Vec<_>>(), ["info, warning, error"]);
    }
}
