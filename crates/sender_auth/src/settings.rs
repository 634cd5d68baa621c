//! What the checks of incoming mail do: which of them run, what follows from their verdicts, and
//! their limits.

use std::sync::Arc;
use std::time::Duration;

use mail::{Networks, Rate};

/// A method of checking who sent a message.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Method {
    /// RFC 7208.
    Spf,
    /// RFC 6376.
    Dkim,
    /// RFC 9989.
    Dmarc,
    /// RFC 8617.
    Arc,
    /// The reverse name of the client (RFC 8601 section 3).
    Iprev,
}

impl Method {
    /// All methods.
    pub const ALL: [Method; 5] = [Method::Spf, Method::Dkim, Method::Dmarc, Method::Arc, Method::Iprev];

    /// The word of RFC 8601, also in the configuration and in metrics.
    pub fn name(self) -> &'static str {
        match self {
            Method::Spf => "spf",
            Method::Dkim => "dkim",
            Method::Dmarc => "dmarc",
            Method::Arc => "arc",
            Method::Iprev => "iprev",
        }
    }

    /// The words that it can say.
    pub fn results(self) -> &'static [&'static str] {
        match self {
            Method::Spf => &["none", "neutral", "pass", "fail", "softfail", "temperror", "permerror"],
            Method::Dkim => &["none", "pass", "fail", "policy", "neutral", "temperror", "permerror"],
            Method::Dmarc => &["none", "pass", "fail", "temperror", "permerror"],
            Method::Arc => &["none", "pass", "fail", "temperror"],
            Method::Iprev => &["pass", "fail", "temperror", "permerror"],
        }
    }
}

/// Whether a method is used.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum MethodMode {
    /// Not at all.
    Off,
    /// Its verdict is recorded.
    #[default]
    Observe,
    /// Its verdict also decides what happens to the message.
    Enforce,
}

/// What happens to a message by a verdict. Of several, the last one of these wins; but fields and the
/// queue of the others count too, unless the message is not accepted.
#[derive(Clone, Debug, Default, PartialEq, Eq, PartialOrd, Ord)]
pub enum VerdictAction {
    /// Nothing.
    #[default]
    Accept,
    /// It gets a field that names the verdict.
    Tag,
    /// It goes to the queue of this name.
    Queue(Arc<str>),
    /// It is held until the operator releases it.
    Hold,
    /// The client gets 451.
    Defer,
    /// The client gets 550.
    Refuse,
}

/// What happens by each verdict, where a method is enforced.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerdictActions(Vec<(Method, &'static str, VerdictAction)>);

/// All verdicts that can have an action, with the default. Those of DMARC are the policies of
/// domains for mail that fails.
const ACTIONS: [(Method, &str, VerdictAction); 19] = [
    (Method::Spf, "fail", VerdictAction::Refuse),
    (Method::Spf, "softfail", VerdictAction::Accept),
    (Method::Spf, "permerror", VerdictAction::Accept),
    (Method::Spf, "temperror", VerdictAction::Accept),
    (Method::Dkim, "none", VerdictAction::Accept),
    (Method::Dkim, "fail", VerdictAction::Tag),
    (Method::Dkim, "policy", VerdictAction::Accept),
    (Method::Dkim, "neutral", VerdictAction::Accept),
    (Method::Dkim, "permerror", VerdictAction::Accept),
    (Method::Dkim, "temperror", VerdictAction::Accept),
    (Method::Dmarc, "reject", VerdictAction::Refuse),
    (Method::Dmarc, "quarantine", VerdictAction::Tag),
    (Method::Dmarc, "permerror", VerdictAction::Refuse),
    (Method::Dmarc, "temperror", VerdictAction::Defer),
    (Method::Arc, "fail", VerdictAction::Tag),
    (Method::Arc, "temperror", VerdictAction::Accept),
    (Method::Iprev, "fail", VerdictAction::Refuse),
    (Method::Iprev, "permerror", VerdictAction::Accept),
    (Method::Iprev, "temperror", VerdictAction::Accept),
];

impl Default for VerdictActions {
    fn default() -> VerdictActions {
        VerdictActions(ACTIONS.into())
    }
}

impl VerdictActions {
    /// The verdicts of a method that have an action.
    pub fn verdicts(method: Method) -> impl Iterator<Item = &'static str> {
        ACTIONS.into_iter().filter(move |(own, ..)| *own == method).map(|(_, verdict, _)| verdict)
    }

    /// What happens by a verdict; others than those of [`VerdictActions::verdicts`] are accepted.
    pub fn action(&self, method: Method, verdict: &str) -> VerdictAction {
        let found = self.0.iter().find(|(own, word, _)| *own == method && *word == verdict);
        found.map_or(VerdictAction::Accept, |(.., action)| action.clone())
    }

    /// The queues of all actions.
    pub fn queues(&self) -> impl Iterator<Item = &str> {
        self.0.iter().filter_map(|(.., action)| match action {
            VerdictAction::Queue(name) => Some(&**name),
            _ => None,
        })
    }

    /// Sets what happens by a verdict.
    pub fn set(&mut self, method: Method, verdict: &str, action: VerdictAction) {
        let found = self.0.iter_mut().find(|(own, word, _)| *own == method && *word == verdict);
        if let Some((.., known)) = found {
            *known = action;
        }
    }
}

/// The settings of `[sender_auth]` for incoming mail.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VerificationSettings {
    /// In the order of [`Method::ALL`].
    pub modes: [MethodMode; 5],
    /// What follows from verdicts.
    pub actions: VerdictActions,
    /// Clients that are not checked, beside the relay networks.
    pub exempt: Networks,
    /// The name of this server in Authentication-Results. None: its hostname.
    pub authserv_id: Option<Box<str>>,
    /// Clients whose fields in this name stay.
    pub results_from: Networks,
    /// Domains whose ARC seals are believed, in lower case.
    pub trusted_sealers: Vec<Box<str>>,
    /// The name of the field that [`VerdictAction::Tag`] adds.
    pub tag: Box<str>,
    /// The time for all DNS queries and key operations of a message.
    pub time_max: Duration,
    /// The most DNS queries for the signatures of one message that the cache does not answer; as many
    /// again for SPF of the sender, and for SPF and the name of the client. SPF alone may take 111
    /// (RFC 7208 section 4.6.4).
    pub queries_max: u32,
    /// The same for all messages of one client.
    pub client_queries: Option<Rate>,
    /// The most messages that are verified at the same time.
    pub concurrent_max: usize,
    /// The most threads that verify signatures; 0: half the number of processors.
    pub threads: usize,
    /// Signatures of larger messages are not verified, and so confirm nothing: a temporary error, but where
    /// DMARC depends on it, what the policy of the domain says about failures happens.
    pub message_octets_max: u64,
}

impl Default for VerificationSettings {
    fn default() -> VerificationSettings {
        VerificationSettings {
            modes: [MethodMode::Observe; 5],
            actions: VerdictActions::default(),
            exempt: Networks::default(),
            authserv_id: None,
            results_from: Networks::default(),
            trusted_sealers: Vec::new(),
            tag: "X-Authentication-Warning".into(),
            time_max: Duration::from_secs(20),
            queries_max: 125,
            client_queries: Some(Rate { count: 10_000, per: Duration::from_secs(60) }),
            concurrent_max: 1000,
            threads: 0,
            message_octets_max: 50 << 20,
        }
    }
}

impl VerificationSettings {
    /// Whether a method is used.
    pub fn mode(&self, method: Method) -> MethodMode {
        self.modes[method as usize]
    }

    /// Whether a verdict of the method is reported.
    pub fn is_on(&self, method: Method) -> bool {
        self.mode(method) != MethodMode::Off
    }

    /// Whether nothing is checked.
    pub fn is_off(&self) -> bool {
        self.modes.iter().all(|mode| *mode == MethodMode::Off)
    }

    /// Whether SPF is evaluated: DMARC needs it too.
    pub(crate) fn needs_spf(&self) -> bool {
        self.is_on(Method::Spf) || self.is_on(Method::Dmarc)
    }

    /// Whether signatures are verified: DMARC needs them too.
    pub(crate) fn needs_dkim(&self) -> bool {
        self.is_on(Method::Dkim) || self.is_on(Method::Dmarc)
    }

    /// Whether chains are verified: DMARC needs them if a sealer is trusted.
    pub(crate) fn needs_arc(&self) -> bool {
        self.is_on(Method::Arc) || self.is_on(Method::Dmarc) && !self.trusted_sealers.is_empty()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_verdict_without_an_action_is_accepted() {
        let mut actions = VerdictActions::default();
        assert_eq!(actions.action(Method::Dmarc, "reject"), VerdictAction::Refuse);
        assert_eq!(actions.action(Method::Dmarc, "temperror"), VerdictAction::Defer);
        assert_eq!(actions.action(Method::Spf, "pass"), VerdictAction::Accept);
        actions.set(Method::Spf, "pass", VerdictAction::Refuse);
        assert_eq!(actions.action(Method::Spf, "pass"), VerdictAction::Accept);
        actions.set(Method::Spf, "fail", VerdictAction::Tag);
        assert_eq!(actions.action(Method::Spf, "fail"), VerdictAction::Tag);
        assert_eq!(actions.queues().count(), 0);
        actions.set(Method::Dmarc, "quarantine", VerdictAction::Queue("slow".into()));
        assert!(actions.queues().eq(["slow"]));
        assert!(VerdictActions::verdicts(Method::Arc).eq(["fail", "temperror"]));
        let in_order =
            [VerdictAction::Accept, VerdictAction::Tag, VerdictAction::Queue("slow".into()), VerdictAction::Hold];
        assert!(in_order.is_sorted() && VerdictAction::Refuse > VerdictAction::Defer);
    }
}
