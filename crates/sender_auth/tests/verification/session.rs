//! A session with the check, and a message in memory that hands out its bytes in small pieces.

use std::future::{Future, ready};
use std::pin::Pin;
use std::sync::Arc;

use filter::{CheckFactory, CheckedMessage, ContentFuture, Edit, SessionInfo, Verdict};
use mail::{Address, Networks, Reply};
use sender_auth::{Method, MethodMode, SenderAuth, VerificationSettings, VerificationState};

use crate::dns_map::DnsMap;

/// Odd, so that pieces end anywhere.
const PIECE_OCTETS: usize = 37;

pub(crate) struct TestMessage(pub(crate) Vec<u8>);

impl CheckedMessage for TestMessage {
    fn sender(&self) -> Option<&Address> {
        None
    }

    fn recipients(&self) -> Vec<&Address> {
        Vec::new()
    }

    fn prefix(&self) -> &[u8] {
        b""
    }

    fn content_len(&self) -> u64 {
        self.0.len() as u64
    }

    fn is_eight_bit(&self) -> bool {
        false
    }

    fn read_content(&mut self, position: u64) -> ContentFuture<'_> {
        let rest = &self.0[(position as usize).min(self.0.len())..];
        Box::pin(ready(Ok(&rest[..rest.len().min(PIECE_OCTETS)])))
    }

    fn edit(&mut self, _edit: Edit) -> Pin<Box<dyn Future<Output = Result<(), Reply>> + Send + '_>> {
        Box::pin(ready(Ok(())))
    }
}

/// What the check says of a message.
pub(crate) struct Checked {
    pub(crate) verdict: Verdict,
    pub(crate) counters: Arc<sender_auth::VerdictCounters>,
}

impl Checked {
    /// The result of a method.
    pub(crate) fn result(&self, method: &str) -> &'static str {
        let found = self.verdict.findings.iter().find(|finding| finding.method == method);
        found.map_or("not checked", |finding| finding.result)
    }

    /// The field with the results, in one line.
    pub(crate) fn results(&self) -> String {
        let fields = self.verdict.edits.iter().filter_map(|edit| match edit {
            Edit::PrependField(field) if field.wire().starts_with("Authentication-Results") => Some(field.wire()),
            _ => None,
        });
        fields.collect::<String>().split_whitespace().collect::<Vec<_>>().join(" ")
    }

    /// The reply of a refusal.
    pub(crate) fn reply(&self) -> Option<String> {
        match &self.verdict.decision {
            filter::Decision::Refuse(refusal) => Some(refusal.reply.to_string()),
            _ => None,
        }
    }

    pub(crate) fn limit(&self, name: &str) -> u64 {
        self.counters.limits().into_iter().find(|(limit, _)| *limit == name).map_or(0, |(_, count)| count)
    }
}

/// Settings with one method enforced.
pub(crate) fn enforcing(method: Method) -> VerificationSettings {
    let mut settings = VerificationSettings::default();
    settings.modes[method as usize] = MethodMode::Enforce;
    settings
}

pub(crate) fn sender_auth(dns: DnsMap, settings: VerificationSettings) -> Arc<SenderAuth> {
    Arc::new(SenderAuth {
        authserv_id: "mx.example.org".into(),
        hostname: "mx.example.org".into(),
        relay_networks: Networks::loopback(),
        dns: Arc::new(dns),
        state: VerificationState::new(&settings, 2, None),
        settings,
        reports: None,
    })
}

/// Sends a message of a stranger.
pub(crate) async fn check(auth: &Arc<SenderAuth>, message: &[u8]) -> Checked {
    let sender: Address = "ann@a.example".parse().unwrap();
    let session = SessionInfo {
        client: Some("192.0.2.1".parse().unwrap()),
        helo: Some("mail.a.example"),
        sender: Some(Some(&sender)),
        ..SessionInfo::default()
    };
    let mut check = auth.clone().start();
    check.data(&session).await;
    let verdict = check.message(&session, &mut TestMessage(message.to_vec())).await;
    Checked { verdict, counters: auth.state.counters.clone() }
}
