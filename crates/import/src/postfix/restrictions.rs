//! Parses restriction lists as smtpd does, and determines what they mean for a client: whether any
//! of its mail is accepted, and whether it may relay. Restriction classes are expanded.

use super::expand::ExpandedParameters;
use super::words::list;

/// The lists that are converted, in the order in which smtpd evaluates them at RCPT.
pub(super) const LISTS: [&str; 5] = [
    "smtpd_client_restrictions",
    "smtpd_helo_restrictions",
    "smtpd_sender_restrictions",
    "smtpd_relay_restrictions",
    "smtpd_recipient_restrictions",
];
/// The effect of `warn_if_reject`.
const WARN_ONLY: &str = "only warns and refuses nothing";
/// The effect of restrictions on later commands.
const TOO_EARLY: &str = "with smtpd_delay_reject = no it is evaluated too early and has no effect";
/// Nested classes.
const DEPTH_MAX: usize = 10;
/// Words of one list: classes can expand to more than any memory.
const ELEMENTS_MAX: usize = 1000;

/// Restrictions that reject all mail.
const REJECTING: [&str; 3] = ["reject", "defer", "defer_if_permit"];
/// Restrictions that reject all mail to other domains.
const RELAY_GUARDS: [&str; 2] = ["reject_unauth_destination", "defer_unauth_destination"];

/// A restriction with its argument.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Restriction {
    pub(super) rule: String,
    pub(super) argument: Option<String>,
    /// Why it has no effect, if so.
    pub(super) no_effect: Option<&'static str>,
}

impl Restriction {
    /// As written.
    pub(super) fn text(&self) -> String {
        let warns = if self.no_effect == Some(WARN_ONLY) { "warn_if_reject " } else { "" };
        match &self.argument {
            Some(argument) => format!("{warns}{} {argument}", self.rule),
            None => format!("{warns}{}", self.rule),
        }
    }

    /// Whether it lets this kind of client pass.
    fn permits(&self, who: ClientKind) -> bool {
        match self.rule.as_str() {
            _ if self.no_effect.is_some() => false,
            "permit" => true,
            "permit_mynetworks" => who == ClientKind::Network,
            "permit_sasl_authenticated" => who == ClientKind::User,
            _ => false,
        }
    }

    fn is_one_of(&self, rules: &[&str]) -> bool {
        self.no_effect.is_none() && rules.contains(&self.rule.as_str())
    }
}

impl RestrictionLists {
    /// Restrictions that let clients relay that may not relay here: those for which `passes` holds,
    /// unless a list rejects these clients.
    pub(super) fn other_relays(
        &self,
        has_logins: bool,
        passes: &mut dyn FnMut(&Restriction) -> bool,
    ) -> Vec<&Restriction> {
        let others: Vec<Vec<bool>> =
            self.0.iter().map(|list| list.iter().map(|it| it.no_effect.is_none() && passes(it)).collect()).collect();
        let lists = || self.0.iter().zip(&others);
        let mut found: Vec<&Restriction> = Vec::new();
        for who in [&[][..], &[ClientKind::Network], &[ClientKind::User], &[ClientKind::Network, ClientKind::User]] {
            let relays_here = who.iter().any(|one| self.may_relay(*one) && (has_logins || *one == ClientKind::Network));
            if relays_here || who.contains(&ClientKind::User) && !has_logins {
                continue;
            }
            let ends: Vec<ListEnd> = lists().map(|(list, others)| list_end(list, others, who)).collect();
            if !ends.iter().any(|end| matches!(end, ListEnd::Rejected)) {
                let by = ends.iter().filter_map(|end| if let ListEnd::Permitted(by) = end { Some(*by) } else { None });
                found.extend(by);
            }
        }
        found.dedup();
        found
    }
}

/// The result of a list for mail to other domains.
enum ListEnd<'a> {
    Rejected,
    /// For another reason than the kind of client.
    Permitted(&'a Restriction),
    Open,
}

/// `others`: which elements let this client pass for another reason than its kind.
fn list_end<'a>(list: &'a [Restriction], others: &[bool], who: &[ClientKind]) -> ListEnd<'a> {
    let keeps = |it: &Restriction| it.is_one_of(&REJECTING) || it.is_one_of(&RELAY_GUARDS);
    for (place, (element, other)) in list.iter().zip(others).enumerate() {
        if who.iter().any(|one| *one != ClientKind::Untrusted && element.rule != "permit" && element.permits(*one)) {
            return ListEnd::Open;
        }
        if *other || element.permits(ClientKind::Untrusted) {
            // It does not matter if nothing after it rejects mail.
            return if list[place..].iter().any(keeps) { ListEnd::Permitted(element) } else { ListEnd::Open };
        }
        if keeps(element) {
            return ListEnd::Rejected;
        }
    }
    ListEnd::Open
}

/// The kind of a client.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClientKind {
    /// An unknown client.
    Untrusted,
    /// A client in `mynetworks`.
    Network,
    /// A client that has logged in.
    User,
}

/// All lists of one service.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct RestrictionLists(pub(super) [Vec<Restriction>; 5]);

impl RestrictionLists {
    /// Parses the lists. Without `smtpd_delay_reject`, restrictions on later commands have no
    /// effect.
    pub(super) fn read(values: &ExpandedParameters<'_>) -> RestrictionLists {
        let mut lists = RestrictionLists(LISTS.map(|name| parse_list(values, name)));
        if values.value("smtpd_delay_reject").eq_ignore_ascii_case("no") {
            // The old names of `reject_..._helo_hostname` have no `helo`.
            let unknown: [&[&str]; 3] = [
                &["helo", "sender", "recipient", "destination", "sasl", "authenticated", "hostname"],
                &["sender", "recipient", "destination", "sasl", "authenticated"],
                &["recipient", "destination"],
            ];
            let is_about_client = |rule: &str| rule.contains("client_hostname");
            for (list, subjects) in lists.0.iter_mut().zip(unknown) {
                let is_early = |it: &&mut Restriction| {
                    !is_about_client(&it.rule) && it.rule.split('_').any(|word| subjects.contains(&word))
                };
                list.iter_mut().filter(is_early).for_each(|it| it.no_effect = Some(TOO_EARLY));
            }
        }
        lists
    }

    /// Whether all mail from such clients is rejected.
    pub(super) fn rejects_all_from(&self, who: ClientKind) -> bool {
        self.0.iter().any(|elements| rejects_all(elements, who))
    }

    /// Whether such clients may send to other domains: any list can prevent it.
    pub(super) fn may_relay(&self, who: ClientKind) -> bool {
        !self.rejects_all_from(who) && self.0.iter().all(|elements| list_may_relay(elements, who))
    }

    /// Whether clients that may not relay are deferred, not refused.
    pub(super) fn defers_relaying(&self) -> bool {
        let decides = |it: &&Restriction| {
            it.permits(ClientKind::Untrusted) || it.is_one_of(&REJECTING) || it.is_one_of(&RELAY_GUARDS)
        };
        let ends = self.0.iter().filter_map(|elements| elements.iter().find(decides));
        let mut ends = ends.filter(|end| !end.permits(ClientKind::Untrusted));
        ends.next().is_some_and(|end| end.rule == "defer_unauth_destination")
    }

    /// Whether this element of a list is evaluated for such clients.
    pub(super) fn reaches(&self, list: usize, element: &Restriction, who: ClientKind) -> bool {
        for own in &self.0[list] {
            match own {
                own if own == element => return true,
                own if own.permits(who) => return false,
                _ => {}
            }
        }
        false
    }
}

fn rejects_all(elements: &[Restriction], who: ClientKind) -> bool {
    let ends =
        |it: &&Restriction| it.permits(who) || it.is_one_of(&REJECTING) || it.is_one_of(&["permit_auth_destination"]);
    elements.iter().find(ends).is_some_and(|end| end.is_one_of(&REJECTING))
}

fn list_may_relay(elements: &[Restriction], who: ClientKind) -> bool {
    let mut asks_others_alone = false;
    for element in elements {
        if element.permits(who) {
            return true;
        }
        // Rules cannot check only mail to other domains, so clients with such a restriction may not
        // relay.
        let is_asked = asks_others_alone && element.no_effect.is_none();
        if is_asked || element.is_one_of(&REJECTING) || element.is_one_of(&RELAY_GUARDS) {
            return false;
        }
        asks_others_alone |= element.is_one_of(&["permit_auth_destination"]);
    }
    true
}

/// The elements of the list of this name.
pub(super) fn parse_list(values: &ExpandedParameters<'_>, name: &str) -> Vec<Restriction> {
    parse_text(values, name, &values.value(name))
}

/// The elements of a text in the list of this name.
pub(super) fn parse_text(values: &ExpandedParameters<'_>, name: &str, text: &str) -> Vec<Restriction> {
    let classes = list(&values.value("smtpd_restriction_classes"));
    let mut words = Vec::new();
    expand_class(values, &classes, text, 0, &mut words);
    let mut elements = Vec::new();
    let (mut words, mut idle) = (words.into_iter(), None);
    while let Some(word) = words.next() {
        if word == "warn_if_reject" {
            idle = Some(WARN_ONLY);
            continue;
        }
        let is_table = word.contains(':') && !word.starts_with('{');
        let element = match is_table {
            // A table alone is short for the check of its list.
            true => Restriction { rule: default_check(name), argument: Some(word), no_effect: idle },
            false => {
                let argument = if takes_argument(&word) { words.next() } else { None };
                Restriction { rule: word.to_ascii_lowercase(), argument, no_effect: idle }
            }
        };
        elements.push(element);
        idle = None;
    }
    elements
}

fn expand_class(
    values: &ExpandedParameters<'_>,
    classes: &[String],
    text: &str,
    depth: usize,
    words: &mut Vec<String>,
) {
    for word in list(text) {
        if words.len() >= ELEMENTS_MAX {
            // What is left out may refuse. The last word may take another one as its argument.
            words.truncate(ELEMENTS_MAX);
            return words.extend(["defer".to_owned(), "defer".to_owned()]);
        }
        match classes.contains(&word) && depth < DEPTH_MAX {
            true => expand_class(values, classes, &values.value(&word), depth + 1, words),
            false => words.push(word),
        }
    }
}

fn default_check(list: &str) -> String {
    let subject = match list {
        "smtpd_client_restrictions" => "client",
        "smtpd_helo_restrictions" => "helo",
        "smtpd_sender_restrictions" => "sender",
        _ => "recipient",
    };
    format!("check_{subject}_access")
}

/// Whether a restriction has an argument.
fn takes_argument(rule: &str) -> bool {
    let beginnings = ["check_", "reject_rbl_", "reject_rhsbl_", "permit_dnswl_", "permit_rhswl_", "sleep"];
    beginnings.iter().any(|beginning| rule.to_ascii_lowercase().starts_with(beginning))
}

#[cfg(test)]
mod tests {
    use super::super::main_cf::MainCf;
    use super::*;

    fn lists(main: &str) -> RestrictionLists {
        let main = MainCf::parse(main);
        RestrictionLists::read(&ExpandedParameters::new(&main, "mail.example.com"))
    }

    #[test]
    fn classes_are_filled_in_and_tables_stand_for_the_check_of_their_list() {
        let lists = lists(
            "smtpd_restriction_classes = strict, round\nround = round\nstrict = Permit_Mynetworks reject\n\
             smtpd_helo_restrictions = hash:/h, strict\nsmtpd_recipient_restrictions = warn_if_reject \
             reject_rbl_client a.example, check_policy_service { unix:x, timeout=1s } round\n",
        );
        let texts = |place: usize| lists.0[place].iter().map(Restriction::text).collect::<Vec<_>>();
        assert_eq!(texts(1), ["check_helo_access hash:/h", "permit_mynetworks", "reject"]);
        assert_eq!(texts(4)[0], "warn_if_reject reject_rbl_client a.example");
        assert_eq!(texts(4)[1], "check_policy_service { unix:x, timeout=1s }");
    }

    /// What came after the last element that is read was not refused.
    #[test]
    fn a_list_that_is_too_long_defers() {
        for word in ["reject_unlisted_sender", "check_client_access hash:/c", "warn_if_reject reject_unlisted_sender"] {
            let words = format!("{word} ").repeat(ELEMENTS_MAX);
            for words in [words.clone(), format!("permit_mynetworks {words}")] {
                let lists = lists(&format!("smtpd_client_restrictions = {words} reject\n"));
                let last = lists.0[0].last().unwrap();
                assert_eq!((&*last.rule, last.no_effect), ("defer", None), "{word}");
            }
        }
    }

    #[test]
    fn who_may_relay_is_whom_both_lists_let() {
        let both = "permit_mynetworks, permit_sasl_authenticated, reject_unauth_destination";
        for (relay, recipient, networks, users) in [
            (both, "", true, true),
            (both, "permit_sasl_authenticated, reject", false, true),
            ("permit_mynetworks, reject_unauth_destination", "permit_sasl_authenticated", true, false),
            ("reject_unauth_destination, permit_mynetworks", "", false, false),
            (both, "reject_unauth_destination", false, false),
            ("permit", "permit_mynetworks, warn_if_reject reject", true, true),
            ("permit_mynetworks, permit_auth_destination, reject", "", true, false),
            (both, "permit_auth_destination, permit_sasl_authenticated, reject_rbl_client a.example", false, true),
        ] {
            let lists =
                lists(&format!("smtpd_relay_restrictions = {relay}\nsmtpd_recipient_restrictions = {recipient}\n"));
            assert_eq!(
                (lists.may_relay(ClientKind::Network), lists.may_relay(ClientKind::User)),
                (networks, users),
                "{relay} | {recipient}"
            );
        }
    }

    #[test]
    fn what_is_asked_before_it_is_known_says_nothing() {
        let lists = lists(
            "smtpd_delay_reject = no\nsmtpd_client_restrictions = permit_auth_destination, check_sender_access static:OK, reject\n\
             smtpd_sender_restrictions = check_sender_access static:OK, reject_unauth_destination\n",
        );
        assert!(lists.rejects_all_from(ClientKind::Untrusted));
        let idle = |list: usize| lists.0[list].iter().map(|it| it.no_effect.is_some()).collect::<Vec<_>>();
        assert_eq!((idle(0), idle(2)), (vec![true, true, false], vec![false, true]));
    }

    #[test]
    fn shut_is_what_takes_nothing_from_somebody() {
        let lists = lists("smtpd_client_restrictions = permit_mynetworks, permit_sasl_authenticated, reject\n");
        assert!(lists.rejects_all_from(ClientKind::Untrusted));
        assert!(!lists.rejects_all_from(ClientKind::Network) && !lists.rejects_all_from(ClientKind::User));
    }
}
