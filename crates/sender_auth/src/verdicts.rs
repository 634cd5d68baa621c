//! From the verdicts of all methods to what happens to the message: the field with the results, the
//! findings for later checks, and the action of the strictest method that is enforced.

use std::net::IpAddr;
use std::time::SystemTime;

use filter::{Decision, Edit, Field, Finding, Refusal, Verdict};
use mail::{EnhancedCode, QUEUE_FIELD, Reply};

use crate::arc::{ArcCheck, ArcResult, says_dmarc_passed};
use crate::counters::VerdictCounters;
use crate::dkim::{DkimCheck, DkimResult, message_result};
use crate::dmarc::record::Policy;
use crate::dmarc::{DmarcCheck, DmarcResult, DomainState};
use crate::message_header::MessageHeader;
use crate::reports::{
    Disposition, DkimSignatureResult, DmarcRow, Observation, OverrideReason, ReportCollector, ReportKind, ReportRow,
    ReportSubject, SpfDomainResult,
};
use crate::results::ResultsField;
use crate::sender_check::SenderVerdicts;
use crate::settings::{Method, MethodMode, VerdictAction, VerificationSettings};
use crate::signatures::{FoundSignatures, SignatureVerdicts};

/// The verdicts on a message. None: not asked for.
pub(crate) struct MessageVerdicts {
    pub(crate) sender: SenderVerdicts,
    pub(crate) signatures: SignatureVerdicts,
    pub(crate) dmarc: Option<DmarcCheck>,
}

/// What the results depend on beside the message.
pub(crate) struct VerdictContext<'a> {
    pub(crate) settings: &'a VerificationSettings,
    pub(crate) authserv_id: &'a str,
    pub(crate) client: Option<IpAddr>,
    /// The domain of the sender; empty for the null sender.
    pub(crate) envelope_from: &'a str,
    /// What counts for reports; None: nothing is reported.
    pub(crate) reports: Option<&'a ReportCollector>,
}

/// A set of ARC: who sealed it, and the number of the field with its results.
pub(crate) struct ChainLink {
    sealer: Box<str>,
    results_field: usize,
}

/// The verdict of a method, and what happens by it.
struct Judged {
    method: Method,
    /// The word of RFC 8601.
    result: &'static str,
    action: VerdictAction,
    /// A signature or a seal that nobody verified, since the message is too large, may be valid.
    is_oversized: bool,
}

impl ChainLink {
    /// The links of a chain, the oldest first.
    pub(crate) fn of(found: &FoundSignatures) -> Vec<ChainLink> {
        let sets = found.chain.iter().flatten().flatten();
        sets.map(|set| ChainLink { sealer: set.seal.domain.clone(), results_field: set.results_field }).collect()
    }
}

impl MessageVerdicts {
    /// Counts the verdicts and decides. `removal` removes the fields that claim to be ours.
    pub(crate) fn into_verdict(
        self,
        context: &VerdictContext<'_>,
        header: &MessageHeader,
        chain: &[ChainLink],
        removal: Option<Edit>,
        counters: &VerdictCounters,
    ) -> Verdict {
        let sealer = self.sealer_of_pass(context.settings, header, chain);
        let judged = self.judge(context.settings, sealer);
        judged.iter().for_each(|judged| counters.count(judged.method, judged.result));
        if let Some(reports) = context.reports
            && let Some(observation) = self.observation(context, &judged, sealer.is_some())
        {
            reports.submit(SystemTime::now().into(), observation);
        }
        let strictest = judged.iter().max_by(|one, other| one.action.cmp(&other.action));
        let decision = match strictest {
            Some(judged) if matches!(judged.action, VerdictAction::Refuse | VerdictAction::Defer) => {
                Decision::Refuse(Refusal { by: judged.method.name().into(), reply: self.reply(context, judged) })
            }
            _ => Decision::Continue,
        };
        let results = Field::new("Authentication-Results", &self.results(context, sealer)).ok();
        let added = tag_field(&judged, &context.settings.tag).into_iter().chain(queue_field(&judged)).chain(results);
        Verdict {
            decision,
            held: strictest.is_some_and(|judged| judged.action == VerdictAction::Hold),
            edits: removal.into_iter().chain(added.map(Edit::PrependField)).collect(),
            findings: self.findings(&judged),
            ..Verdict::default()
        }
    }

    /// The trusted sealer who says that DMARC passed before the message was changed. All who passed it
    /// on since must be trusted too.
    fn sealer_of_pass<'a>(
        &self,
        settings: &VerificationSettings,
        header: &MessageHeader,
        chain: &'a [ChainLink],
    ) -> Option<&'a str> {
        let dmarc = self.dmarc.as_ref().filter(|dmarc| dmarc.result == DmarcResult::Fail)?;
        let author = dmarc.author_domain.as_deref()?;
        let is_trusted = |link: &&ChainLink| settings.trusted_sealers.contains(&link.sealer);
        let mut trusted = chain.iter().rev().take_while(is_trusted);
        let found = trusted.find(|link| says_dmarc_passed(header.field(link.results_field).value, author));
        found.map(|link| &*link.sealer)
    }

    /// The verdicts of the methods that are on.
    fn judge(&self, settings: &VerificationSettings, sealer: Option<&str>) -> Vec<Judged> {
        let mut judged = Vec::with_capacity(Method::ALL.len());
        let mut add = |method: Method, result: Option<&'static str>, verdict: Option<&'static str>| {
            let Some(result) = result.filter(|_| settings.is_on(method)) else { return };
            let action = match settings.mode(method) {
                MethodMode::Enforce => self.enforced_action(settings, method, verdict.unwrap_or(result)),
                MethodMode::Off | MethodMode::Observe => VerdictAction::Accept,
            };
            judged.push(Judged { method, result, action, is_oversized: false });
        };
        // Of equally strict methods, the last one here gives the reply.
        let arc = self.signatures.arc.as_ref();
        add(Method::Iprev, self.sender.iprev.as_ref().map(|check| check.result.as_str()), None);
        add(Method::Arc, arc.map(|check| check.result.as_str()), None);
        let dkim = self.signatures.dkim.as_ref();
        add(Method::Dkim, dkim.map(|(checks, _)| message_result(checks).as_str()), None);
        add(Method::Spf, self.sender.spf_result().map(|result| result.as_str()), None);
        let dmarc = self.dmarc.as_ref();
        let verdict = dmarc.map(|check| self.dmarc_verdict(settings, check, sealer.and(arc)));
        add(Method::Dmarc, dmarc.map(|check| check.result.as_str()), verdict);
        let has_unread_seal = sealer.is_some() && self.signatures.is_oversized;
        let is_oversized = has_unread_seal || dmarc.is_some_and(|check| check.is_oversized);
        judged.iter_mut().filter(|judged| judged.method == Method::Dmarc).for_each(|it| it.is_oversized = is_oversized);
        judged
    }

    /// The verdict on DMARC that has an action. `chain` is one by which a failure may be accepted.
    fn dmarc_verdict(
        &self,
        settings: &VerificationSettings,
        check: &DmarcCheck,
        chain: Option<&ArcCheck>,
    ) -> &'static str {
        let policy = check.policy.map_or("none", Policy::as_str);
        match (check.result, chain) {
            (DmarcResult::Fail, Some(chain)) if chain.result == ArcResult::Pass => "pass",
            // Nothing would happen to the message if it failed.
            (DmarcResult::Fail | DmarcResult::TempError, _) if check.policy == Some(Policy::None) => policy,
            // It will be as large when it is sent again, so it is not deferred.
            (DmarcResult::Fail, _) if self.signatures.is_oversized => policy,
            (DmarcResult::Fail, Some(chain)) if may_be_valid(chain, settings) => "temperror",
            (DmarcResult::Fail, _) => policy,
            (DmarcResult::TempError, _) if check.is_oversized => policy,
            (result, _) => result.as_str(),
        }
    }

    /// What follows from a verdict. A forger can reach our limits, so a sender that cannot be judged because
    /// of one is deferred where a failure is refused, whatever follows from other temporary errors.
    fn enforced_action(&self, settings: &VerificationSettings, method: Method, verdict: &str) -> VerdictAction {
        let action = settings.actions.action(method, verdict);
        let is_of_sender = matches!(method, Method::Spf | Method::Iprev);
        match is_of_sender && self.sender.is_limited && verdict == "temperror" {
            true => action.max(settings.actions.action(method, "fail").min(VerdictAction::Defer)),
            false => action,
        }
    }

    /// What the owner of the policy wants to know; None: nothing, or the message is deferred and comes again.
    fn observation(
        &self,
        context: &VerdictContext<'_>,
        judged: &[Judged],
        has_trusted_pass: bool,
    ) -> Option<Observation> {
        let check = self.dmarc.as_ref()?;
        let reported = check.reported.as_deref()?;
        let action = &judged.iter().find(|judged| judged.method == Method::Dmarc)?.action;
        let disposition = match (check.result, action) {
            (_, VerdictAction::Defer) => return None,
            (DmarcResult::Pass, _) => Disposition::Pass,
            (_, VerdictAction::Refuse) => Disposition::Reject,
            (_, VerdictAction::Tag | VerdictAction::Queue(_) | VerdictAction::Hold) => Disposition::Quarantine,
            (_, VerdictAction::Accept) => Disposition::None,
        };
        let wanted = match check.policy {
            _ if check.result == DmarcResult::Pass => Disposition::Pass,
            Some(Policy::Reject) => Disposition::Reject,
            Some(Policy::Quarantine) => Disposition::Quarantine,
            Some(Policy::None) | None => Disposition::None,
        };
        let reason = if has_trusted_pass { OverrideReason::TrustedSeal } else { OverrideReason::LocalPolicy };
        let row = DmarcRow {
            source: context.client?.to_canonical(),
            disposition,
            dkim_aligned: reported.dkim_aligned,
            spf_aligned: reported.spf_aligned,
            reason: (disposition != wanted).then_some(reason),
            header_from: check.author_domain.clone()?,
            envelope_from: context.envelope_from.into(),
            dkim: self.signature_results(),
            spf: self.sender.mail_from.as_ref().map(|check| SpfDomainResult {
                domain: check.domain.chars().take(REPLY_TEXT_OCTETS_MAX).collect::<String>().into(),
                result: check.result.as_str().into(),
            }),
        };
        let subject = ReportSubject { kind: ReportKind::Dmarc, domain: reported.policy.domain.clone() };
        Some(Observation { subject, policy: Some(reported.policy.published.clone()), row: ReportRow::Dmarc(row) })
    }

    /// The signatures whose domain and selector are names.
    fn signature_results(&self) -> Vec<DkimSignatureResult> {
        let result = |check: &DkimCheck| {
            Some(DkimSignatureResult {
                domain: dns::to_ascii(check.label.domain.as_deref()?)?,
                selector: dns::to_ascii(check.label.selector.as_deref()?)?,
                result: check.result.as_str().into(),
            })
        };
        self.signatures.dkim.iter().flat_map(|(checks, _)| checks).filter_map(result).collect()
    }

    /// For later checks: one for each method, and for each domain that has signed the message.
    fn findings(&self, judged: &[Judged]) -> Vec<Finding> {
        let finding = |judged: &Judged, domain| Finding { method: judged.method.name(), result: judged.result, domain };
        let mut ordered: Vec<&Judged> = judged.iter().collect();
        ordered.sort_by_key(|judged| judged.method);
        let mut findings = Vec::with_capacity(judged.len());
        for judged in ordered {
            if judged.method == Method::Dkim && judged.result == DkimResult::Pass.as_str() {
                let signed = self.signatures.signing_domains().filter(|(_, state)| *state == DomainState::Passed);
                findings.extend(signed.map(|(domain, _)| finding(judged, Some(domain))));
            } else {
                findings.push(finding(judged, None));
            }
        }
        findings
    }

    /// The value of Authentication-Results.
    fn results(&self, context: &VerdictContext<'_>, sealer: Option<&str>) -> String {
        let settings = context.settings;
        let mut field = ResultsField::new(context.authserv_id);
        if settings.is_on(Method::Spf) {
            self.push_spf(&mut field);
        }
        if let Some((checks, others)) = self.signatures.dkim.as_ref().filter(|_| settings.is_on(Method::Dkim)) {
            checks.iter().for_each(|check| field.push_dkim(check));
            match (checks.is_empty(), others) {
                (true, _) => field.push_dkim_rest("none", 0),
                (false, 0) => {}
                (false, others) => field.push_dkim_rest("policy", *others),
            }
        }
        let arc = self.signatures.arc.as_ref();
        let sealer = sealer.filter(|_| arc.is_some_and(|check| check.result == ArcResult::Pass));
        self.dmarc.iter().for_each(|check| field.push_dmarc(check, sealer));
        arc.filter(|_| settings.is_on(Method::Arc)).into_iter().for_each(|check| field.push_arc(check));
        if let (Some(check), Some(client)) = (&self.sender.iprev, context.client) {
            field.push_iprev(check.result.as_str(), &client.to_string(), check.name.as_deref());
        }
        field.finish()
    }

    fn push_spf(&self, field: &mut ResultsField) {
        if let Some(check) = &self.sender.mail_from {
            let identity = if self.sender.is_null_sender { "helo" } else { "mailfrom" };
            field.push_spf(check.result.as_str(), identity, &check.domain);
        }
        if let Some(check) = &self.sender.helo {
            field.push_spf(check.result.as_str(), "helo", &check.domain);
        }
    }

    /// The reply to the client (RFC 7372).
    fn reply(&self, context: &VerdictContext<'_>, judged: &Judged) -> Reply {
        if judged.action == VerdictAction::Refuse && judged.is_oversized {
            return self.size_reply(context.settings.message_octets_max);
        }
        let (detail, text) = match judged.method {
            Method::Spf => (if judged.result == "fail" { 23 } else { 24 }, self.spf_text(judged.result)),
            Method::Dkim => (20, format!("DKIM: {}", judged.result)),
            Method::Dmarc => self.dmarc_text(judged.result),
            Method::Arc => (29, format!("ARC: {}", judged.result)),
            Method::Iprev => (25, format!("The reverse name of your address: {}", judged.result)),
        };
        match judged.action {
            VerdictAction::Defer => Reply::new(451, EnhancedCode(4, 7, detail), format!("{text}; try again later")),
            _ => Reply::new(550, EnhancedCode(5, 7, detail), text),
        }
    }

    /// RFC 1870 section 6.3 has the code for messages that are too large.
    fn size_reply(&self, octets_max: u64) -> Reply {
        let domain = self.dmarc.as_ref().and_then(|check| check.author_domain.as_deref()).unwrap_or_default();
        let text = format!(
            "Too large to verify that it is from {}, as its DMARC policy asks: more than {octets_max} octets",
            reply_text(domain)
        );
        Reply::new(552, EnhancedCode(5, 3, 4), text)
    }

    fn spf_text(&self, result: &str) -> String {
        let checks = [&self.sender.helo, &self.sender.mail_from].into_iter().flatten();
        let mut decisive = checks.filter(|check| check.result.as_str() == result);
        let Some(check) = decisive.next() else { return format!("SPF: {result}") };
        let explanation = check.explanation.as_deref().map(|text| format!(" ({text})")).unwrap_or_default();
        format!("SPF: {result} for {}{explanation}", reply_text(&check.domain))
    }

    fn dmarc_text(&self, result: &str) -> (u16, String) {
        let check = self.dmarc.as_ref();
        let domain = check.and_then(|check| check.author_domain.as_deref()).unwrap_or_default();
        match (result, check.and_then(|check| check.reason)) {
            ("permerror", reason) => {
                (1, format!("The author cannot be verified: {}", reason.unwrap_or("From is invalid")))
            }
            ("fail", _) => (26, format!("Not from {}, by its DMARC policy", reply_text(domain))),
            _ => (26, format!("DMARC: {result} for {}", reply_text(domain))),
        }
    }
}

/// Whether only keys of trusted sealers are without an answer. A forger can write their names, and has
/// slow domains of his own, but not a valid seal of theirs.
fn may_be_valid(chain: &ArcCheck, settings: &VerificationSettings) -> bool {
    chain.result == ArcResult::TempError
        && chain.unanswered.iter().all(|sealer| settings.trusted_sealers.contains(sealer))
}

/// The field that names the verdicts whose action is a tag.
fn tag_field(judged: &[Judged], name: &str) -> Option<Field> {
    let tagged = judged.iter().filter(|judged| judged.action == VerdictAction::Tag);
    let tags: Vec<String> = tagged.map(|judged| format!("{}={}", judged.method.name(), judged.result)).collect();
    if tags.is_empty() { None } else { Field::new(name, &tags.join(", ")).ok() }
}

/// The field that chooses the queue: of several, that of the last method.
fn queue_field(judged: &[Judged]) -> Option<Field> {
    let queue = judged.iter().rev().find_map(|judged| match &judged.action {
        VerdictAction::Queue(name) => Some(name),
        _ => None,
    });
    Field::new(QUEUE_FIELD, queue?).ok()
}

/// Text from outside, for a reply.
fn reply_text(text: &str) -> String {
    text.chars().filter(char::is_ascii_graphic).take(REPLY_TEXT_OCTETS_MAX).collect()
}

/// A domain, in a reply or a report.
const REPLY_TEXT_OCTETS_MAX: usize = 253;
