//! The log events about mail, and the fields of each: the definition for the writer of lines, for
//! their summary, and for docs/logs.md. Debug builds refuse to write other fields, and a test
//! compares the page with this file in both directions.

/// The kind of a log line about mail.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Event {
    Received,
    Delivered,
    Deferred,
    Bounced,
    Held,
    Released,
    Removed,
    Refused,
    Login,
    Insecure,
    SetAside,
}

impl Event {
    pub(crate) const ALL: [Event; 11] = [
        Event::Received,
        Event::Delivered,
        Event::Deferred,
        Event::Bounced,
        Event::Held,
        Event::Released,
        Event::Removed,
        Event::Refused,
        Event::Login,
        Event::Insecure,
        Event::SetAside,
    ];

    /// The event with this name.
    pub(crate) fn named(name: &str) -> Option<Event> {
        Event::ALL.into_iter().find(|event| event.name() == name)
    }

    /// The name in log lines.
    pub(crate) fn name(self) -> &'static str {
        match self {
            Event::Received => "received",
            Event::Delivered => "delivered",
            Event::Deferred => "deferred",
            Event::Bounced => "bounced",
            Event::Held => "held",
            Event::Released => "released",
            Event::Removed => "removed",
            Event::Refused => "refused",
            Event::Login => "login",
            Event::Insecure => "insecure",
            Event::SetAside => "set_aside",
        }
    }

    /// The fields that its lines may have, in order.
    pub(crate) fn fields(self) -> &'static [&'static str] {
        match self {
            Event::Received => &[
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
                "message_id",
                "subject",
            ],
            Event::Delivered => &["id", "from", "to", "transport", "relay", "reply", "delay_ms"],
            Event::Deferred => &["id", "from", "to", "transport", "relay", "until", "reason"],
            Event::Bounced => &["id", "from", "to", "transport", "relay", "bounce", "reason"],
            Event::Held | Event::Released | Event::Removed => &["id", "to"],
            Event::Refused => &["client", "helo", "stage", "address", "rule", "reply"],
            Event::Login => &["result", "client", "helo", "mechanism", "user"],
            Event::Insecure => &["client", "helo", "reason"],
            Event::SetAside => &["id", "what"],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const PAGE: &str = include_str!("../../../../docs/logs.md");

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
        for event in Event::ALL {
            assert_eq!(documented(event.name()).as_deref(), Some(event.fields()), "{}", event.name());
        }
        let headings = PAGE.lines().filter_map(|line| line.strip_prefix("### "));
        let known = Event::ALL.map(Event::name);
        assert_eq!(headings.filter(|name| !known.contains(name)).collect::<Vec<_>>(), ["info, warning, error"]);
    }
}
