//! `[sender_auth]`: how the senders of incoming mail are checked.

use filter::Field;
use sender_auth::{Method, MethodMode, VerdictAction, VerdictActions, VerificationSettings};

use super::{check_known_name, networks, unspanned};
use crate::QueueSettings;
use crate::section::{Keywords, Section};
use crate::value_kind::{self, ValueKind};

const MODE: Keywords<MethodMode> = Keywords {
    supported: &[("off", MethodMode::Off), ("observe", MethodMode::Observe), ("enforce", MethodMode::Enforce)],
    planned: &[],
};

/// The words for actions; a table names a queue.
#[derive(Clone, Copy)]
enum ActionWord {
    Accept,
    Tag,
    Hold,
    Defer,
    Refuse,
}

const ACTION: Keywords<ActionWord> = Keywords {
    supported: &[
        ("accept", ActionWord::Accept),
        ("tag", ActionWord::Tag),
        ("hold", ActionWord::Hold),
        ("defer", ActionWord::Defer),
        ("refuse", ActionWord::Refuse),
    ],
    planned: &[],
};

pub(super) fn verification(document: &mut Section<'_, '_>, queues: &[QueueSettings]) -> VerificationSettings {
    let defaults = VerificationSettings::default();
    let Some(mut s) = document.section("sender_auth") else { return defaults };
    let modes = Method::ALL.map(|method| s.choice(method.name(), &MODE).unwrap_or(defaults.mode(method)));
    let sealers = s.list("trusted_sealers", &value_kind::HOST);
    let sealers =
        sealers.map(|sealers| unspanned(sealers).iter().map(|name| name.to_ascii_lowercase().into()).collect());
    VerificationSettings {
        modes,
        actions: s.section("actions").map(|section| actions(section, queues)).unwrap_or_default(),
        exempt: networks(&mut s, "exempt").unwrap_or(defaults.exempt),
        authserv_id: s.take("authserv_id", &value_kind::HOST),
        results_from: networks(&mut s, "results_from").unwrap_or(defaults.results_from),
        trusted_sealers: sealers.unwrap_or(defaults.trusted_sealers),
        tag: tag(&mut s).unwrap_or(defaults.tag),
        time_max: s.take_or("time", &value_kind::DURATION, defaults.time_max),
        queries_max: s.take_or("queries", &ValueKind::COUNT, defaults.queries_max),
        client_queries: s.take_or("client_queries", &value_kind::RATE_OR_NONE, defaults.client_queries),
        concurrent_max: s.take_or("concurrency", &ValueKind::COUNT, defaults.concurrent_max),
        threads: s.take_or("threads", &ValueKind::COUNT_OR_ZERO, defaults.threads),
        message_octets_max: s.take_or("message_size", &value_kind::SIZE, defaults.message_octets_max),
    }
}

fn actions(mut section: Section<'_, '_>, queues: &[QueueSettings]) -> VerdictActions {
    let queues: Vec<String> = queues.iter().map(|queue| queue.name.to_string()).collect();
    let mut actions = VerdictActions::default();
    for method in Method::ALL {
        let Some(mut own) = section.section(method.name()) else { continue };
        for verdict in VerdictActions::verdicts(method) {
            if let Some(action) = action(&mut own, verdict, &queues) {
                actions.set(method, verdict, action);
            }
        }
    }
    actions
}

/// A word, or `{ queue = "NAME" }`.
fn action(section: &mut Section<'_, '_>, verdict: &'static str, queues: &[String]) -> Option<VerdictAction> {
    if section.is_table(verdict) {
        let mut table = section.section(verdict)?;
        let name = table.take_required("queue", &value_kind::TEXT)?;
        check_known_name(&table, "queue", &name, "[[queue]]", queues);
        return Some(VerdictAction::Queue(name.into_inner().into()));
    }
    Some(match section.choice(verdict, &ACTION)? {
        ActionWord::Accept => VerdictAction::Accept,
        ActionWord::Tag => VerdictAction::Tag,
        ActionWord::Hold => VerdictAction::Hold,
        ActionWord::Defer => VerdictAction::Defer,
        ActionWord::Refuse => VerdictAction::Refuse,
    })
}

/// The name of a header field.
fn tag(section: &mut Section<'_, '_>) -> Option<Box<str>> {
    let name = section.take_spanned("tag", &value_kind::TEXT)?;
    if Field::new(name.get_ref(), "x").is_err() {
        let label = "expected the name of a header field, such as X-Authentication-Warning".to_owned();
        section.report(name.span(), "tag", "has an invalid value", label);
    }
    Some(name.into_inner().into())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Config;

    fn parse(text: &str) -> Result<VerificationSettings, String> {
        Config::parse(text, "text", "mx.here").map(|config| config.sender_auth).map_err(|faults| faults.to_string())
    }

    #[test]
    fn a_verdict_has_the_action_of_its_method() {
        let settings =
            parse("[sender_auth]\nspf = \"enforce\"\n[sender_auth.actions]\nspf = { softfail = \"hold\" }\n").unwrap();
        assert_eq!(settings.mode(Method::Spf), MethodMode::Enforce);
        assert_eq!(settings.actions.action(Method::Spf, "softfail"), VerdictAction::Hold);
        assert_eq!(settings.actions.action(Method::Spf, "fail"), VerdictAction::Refuse);
    }

    #[test]
    fn an_action_can_be_a_queue_that_exists() {
        let queue =
            "[[queue]]\nname = \"slow\"\n[sender_auth.actions]\ndmarc = { quarantine = { queue = \"slow\" } }\n";
        let settings = parse(queue).unwrap();
        assert_eq!(settings.actions.action(Method::Dmarc, "quarantine"), VerdictAction::Queue("slow".into()));
    }

    #[test]
    fn what_cannot_be_meant_is_told() {
        for (text, expected) in [
            ("dkim = \"reject\"", "`sender_auth.dkim` has an invalid value"),
            ("tag = \"X Y\"", "`sender_auth.tag` has an invalid value"),
            ("actions = { spf = { pass = \"refuse\" } }", "unknown key `sender_auth.actions.spf.pass`"),
            ("actions = { dmarc = { reject = \"drop\" } }", "`sender_auth.actions.dmarc.reject` has an invalid value"),
            ("actions = { dmarc = { reject = { queue = \"slwo\" } } }", "unknown [[queue]]"),
            ("actions = { spf = { fail = {} } }", "`sender_auth.actions.spf.fail.queue` is missing"),
            ("actions = { spf = { fail = { queue = \"standard\", to = 1 } } }", "unknown key"),
            ("trusted_sealers = [\"a b\"]", "`sender_auth.trusted_sealers` has an invalid value"),
        ] {
            let faults = parse(&format!("[sender_auth]\n{text}\n")).unwrap_err();
            assert!(faults.contains(expected), "{text}: {faults}");
        }
    }
}
