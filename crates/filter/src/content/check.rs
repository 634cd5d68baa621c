//! Evaluates the content rules at the end of a message: the header first, then the rest as far as a rule
//! needs it.

use std::io;
use std::sync::Arc;

use mail::{EnhancedCode, OperatorLog, QueueId, Reply};

use super::attachment::PartFields;
use super::edits::ContentEdits;
use super::field_patterns::FieldPatterns;
use super::field_text::{is_mime_field, name_and_value, unfolded};
use super::findings::{Findings, LinePosition, TooManyChanges};
use super::line_patterns::LinePatterns;
use super::scan::{MessageScan, RulePatterns, ScanError, ScanNeeds, compare_field};
use super::table_conditions::{attachments_in_tables, found_in_tables};
use super::{CompiledContentRule, ContentAction, ContentLimits, ContentRule, InvalidPattern, LineScope};
use crate::check::{
    Check, CheckFactory, CheckFuture, CheckOrder, CheckedMessage, Decision, Origin, Refusal, SessionInfo, Verdict,
};
use crate::header;
use crate::service_scope::ServiceScope;
use crate::stage::{Stage, Stages};

const REFUSED: Reply = Reply::constant(550, EnhancedCode(5, 7, 1), "Message content rejected");
const DEFERRED: Reply =
    Reply::constant(451, EnhancedCode(4, 7, 1), "Message content not accepted now, try again later");
const UNAVAILABLE: Reply = Reply::constant(451, EnhancedCode(4, 3, 0), "Content rules unavailable, try again later");
const TOO_COMPLEX: Reply = Reply::constant(554, EnhancedCode(5, 6, 0), "Message structure too complex to be checked");
/// The name of the refusal in the log where no single rule refuses.
const BY_ALL: &str = "content rules";
/// Octets that are read at once; other sessions of the thread go on between two pieces.
const PIECE_OCTETS: usize = 32 << 10;

/// The content rules: makes the [`Check`]s of sessions, which keep nothing of them.
pub struct ContentRules {
    rules: Vec<CompiledContentRule>,
    /// Each scope of a rule, once: mostly all rules share one.
    scopes: Vec<ServiceScope>,
    /// Each rule has a condition that something must be found for.
    are_conditional: bool,
    patterns: RulePatterns,
    /// What all rules together need beyond the header.
    needs: ScanNeeds,
    limits: ContentLimits,
    log: Arc<dyn OperatorLog>,
}

/// Why the rules cannot be evaluated.
#[derive(Debug, thiserror::Error)]
enum CheckError {
    #[error(transparent)]
    Scan(#[from] ScanError),
    #[error("cannot read the message: {0}")]
    Unreadable(#[from] io::Error),
    #[error("{0}")]
    Table(String),
}

impl From<TooManyChanges> for CheckError {
    fn from(error: TooManyChanges) -> CheckError {
        CheckError::Scan(error.into())
    }
}

impl ContentRules {
    pub(super) fn of(
        rules: Vec<CompiledContentRule>,
        scopes: Vec<ServiceScope>,
        limits: ContentLimits,
        log: Arc<dyn OperatorLog>,
    ) -> Result<ContentRules, InvalidPattern> {
        let numbered = || rules.iter().map(|rule| &rule.rule).enumerate();
        let patterns = RulePatterns {
            fields: FieldPatterns::new(numbered())?,
            lines: LinePatterns::new(numbered(), &[LineScope::Body])?,
        };
        let needs = ScanNeeds {
            fields: rules.iter().any(needs_part_fields),
            lines: rules.iter().any(needs_lines),
            attachments: rules.iter().any(needs_attachments),
        };
        let are_conditional = rules.iter().all(|rule| rule.rule.is_conditional());
        Ok(ContentRules { rules, scopes, are_conditional, patterns, needs, limits, log })
    }

    async fn check(&self, session: &SessionInfo<'_>, message: &mut dyn CheckedMessage) -> Verdict {
        let includes = |scope: &ServiceScope| scope.includes_session(session) && scope.includes_message(session);
        let are_included: Vec<bool> = self.scopes.iter().map(includes).collect();
        let in_scope: Vec<bool> = self.rules.iter().map(|rule| are_included[rule.scope]).collect();
        if !in_scope.contains(&true) {
            return Verdict::default();
        }
        match self.find(Findings::new(&self.rules, in_scope, self.limits), message).await {
            // Most messages.
            Ok(findings) if findings.is_empty() && self.are_conditional => Verdict::default(),
            Ok(findings) => self.verdict(findings, session.id),
            Err(error) => {
                let id = session.id.map(|id| id.to_string()).unwrap_or_default();
                self.log.log_line(format_args!("content rules: cannot check {id}: {error}"));
                let reply = if let CheckError::Scan(_) = error { TOO_COMPLEX } else { UNAVAILABLE };
                refuse(BY_ALL, reply).into()
            }
        }
    }

    /// Reads the message as far as a rule needs it.
    async fn find<'r>(
        &'r self,
        mut findings: Findings<'r>,
        message: &mut dyn CheckedMessage,
    ) -> Result<Findings<'r>, CheckError> {
        if !findings.any_rule(|rule| rule.rule.is_conditional()) {
            return Ok(findings);
        }
        let header = header::read(message).await?.ok_or(ScanError::HeaderTooLong)?;
        self.compare_header(message.prefix(), &header, &mut findings)?;
        self.look_up_lines(&mut findings).await?;
        let needs = needs_beyond_header(self.needs, &findings, &header);
        if needs == ScanNeeds::default() {
            return Ok(findings);
        }
        let mut findings = self.scan(message, needs, findings).await?;
        self.look_up_lines(&mut findings).await?;
        let attachments = std::mem::take(&mut findings.table_attachments);
        for (rule, name) in attachments_in_tables(&self.rules, attachments).await.map_err(CheckError::Table)? {
            findings.add_attachment(rule, &name);
        }
        Ok(findings)
    }

    /// Takes the lines that the tables of their rules have.
    async fn look_up_lines(&self, findings: &mut Findings<'_>) -> Result<(), CheckError> {
        if findings.has_too_many_lookups {
            return Err(ScanError::TooManyLookups.into());
        }
        let lines = std::mem::take(&mut findings.table_lines);
        for line in found_in_tables(&self.rules, lines).await.map_err(CheckError::Table)? {
            findings.add_line(line.rule, &line.text, line.position.as_ref())?;
        }
        Ok(())
    }

    /// Reads the message after its header, and the header of the message for what it says of attachments.
    async fn scan<'r>(
        &'r self,
        message: &mut dyn CheckedMessage,
        needs: ScanNeeds,
        findings: Findings<'r>,
    ) -> Result<Findings<'r>, CheckError> {
        let mut scan = MessageScan::new(&self.patterns, needs, self.limits, findings);
        let mut position = 0;
        loop {
            let chunk = message.read_content(position).await?;
            let piece = &chunk[..chunk.len().min(PIECE_OCTETS)];
            let has_more = piece.len() < chunk.len();
            position += piece.len() as u64;
            if piece.is_empty() || !scan.handle_input(piece) {
                return Ok(scan.finish()?);
            }
            if has_more {
                tokio::task::yield_now().await;
            }
        }
    }

    /// Compares the fields before the content and those of its header.
    fn compare_header(&self, prefix: &[u8], content: &[u8], findings: &mut Findings<'_>) -> Result<(), TooManyChanges> {
        if !findings.any_rule(|CompiledContentRule { rule, .. }| is_about_fields(rule)) {
            return Ok(());
        }
        let mut names: Vec<String> = Vec::new();
        for field in header::fields(prefix).filter(|field| self.patterns.fields.may_match(field)) {
            let text = unfolded(field);
            let Some((name, _)) = name_and_value(&text) else { continue };
            let folded = name.to_ascii_lowercase();
            let number = 1 + names.iter().filter(|known| **known == folded).count();
            self.compare_own_field(&text, name, &LinePosition::Prefix(folded.as_str().into(), number), findings)?;
            names.push(folded);
        }
        let mut start = 0;
        for field in header::fields(content) {
            let place = start..start + field.len() as u64;
            start = place.end;
            if !self.patterns.fields.may_match(field) {
                continue;
            }
            let text = unfolded(field);
            let Some((name, _)) = name_and_value(&text) else { continue };
            self.compare_own_field(&text, name, &LinePosition::Field(place), findings)?;
        }
        Ok(())
    }

    fn compare_own_field(
        &self,
        text: &str,
        name: &str,
        position: &LinePosition,
        findings: &mut Findings<'_>,
    ) -> Result<(), TooManyChanges> {
        let scopes: &[LineScope] =
            if is_mime_field(name) { &[LineScope::Header, LineScope::Mime] } else { &[LineScope::Header] };
        compare_field(&self.patterns, findings, scopes, name, text, Some(position))
    }

    /// What the rules that apply do, in their order.
    fn verdict(&self, findings: Findings<'_>, id: Option<QueueId>) -> Verdict {
        let (mut edits, mut held, mut decision) = (ContentEdits::default(), false, Decision::Continue);
        for (CompiledContentRule { rule, .. }, found) in findings.applying() {
            match &rule.action {
                ContentAction::Accept if rule.list.is_some() => continue,
                ContentAction::Accept => break,
                ContentAction::Refuse(reply) => decision = refuse(&rule.name, reply.clone().unwrap_or(REFUSED)),
                ContentAction::Defer(reply) => decision = refuse(&rule.name, reply.clone().unwrap_or(DEFERRED)),
                ContentAction::Discard => decision = Decision::Discard { by: rule.name.clone() },
                ContentAction::Hold => held = true,
                ContentAction::Warn => {
                    let line = found.line.as_ref().map(|line| &line.text).or(found.attachment.as_ref());
                    let (id, line) = (id.map(|id| id.to_string()).unwrap_or_default(), line.map_or("", |line| line));
                    self.log.log_line(format_args!("content rule '{}' matches {id}: {line}", rule.name));
                }
                _ => {
                    if let Err(not_a_field) = edits.add(rule, found) {
                        let text = not_a_field.0;
                        self.log.log_line(format_args!(
                            "content rule '{}' changes nothing: not a header field: {text}",
                            rule.name
                        ));
                    }
                }
            }
            if decision != Decision::Continue {
                break;
            }
        }
        let edits = if decision == Decision::Continue { edits.into_edits() } else { Vec::new() };
        Verdict { decision, held, edits, ..Verdict::default() }
    }
}

fn refuse(by: &str, reply: Reply) -> Decision {
    Decision::Refuse(Refusal { by: by.into(), reply })
}

fn is_about_fields(rule: &ContentRule) -> bool {
    [LineScope::Header, LineScope::Mime, LineScope::Nested].into_iter().any(|scope| rule.looks_at(scope))
}

fn needs_part_fields(CompiledContentRule { rule, .. }: &CompiledContentRule) -> bool {
    rule.looks_at(LineScope::Mime) || rule.looks_at(LineScope::Nested)
}

fn needs_lines(CompiledContentRule { rule, .. }: &CompiledContentRule) -> bool {
    rule.looks_at(LineScope::Body)
}

fn needs_attachments(CompiledContentRule { rule, .. }: &CompiledContentRule) -> bool {
    rule.attachment.is_some()
}

/// What the rules about this message need that its own header cannot say; `of_all` is what all rules need.
fn needs_beyond_header(of_all: ScanNeeds, findings: &Findings<'_>, header: &[u8]) -> ScanNeeds {
    let needs = ScanNeeds {
        fields: of_all.fields && findings.any_rule(needs_part_fields),
        lines: of_all.lines && findings.any_rule(needs_lines),
        attachments: of_all.attachments && findings.any_rule(needs_attachments),
    };
    if !needs.fields && !needs.attachments {
        return needs;
    }
    let (has_parts, is_attachment) = match PartFields::read(header) {
        PartFields::Unreadable => (true, true),
        PartFields::Read { media_type, names, is_marked } => {
            let has_parts = media_type.starts_with("multipart/") || media_type.starts_with("message/");
            (has_parts, is_marked || !names.is_empty() || !media_type.starts_with("text/"))
        }
    };
    ScanNeeds {
        fields: needs.fields && has_parts,
        attachments: needs.attachments && (has_parts || is_attachment),
        ..needs
    }
}

impl CheckFactory for ContentRules {
    fn order(&self) -> CheckOrder {
        CheckOrder::ContentRules
    }

    fn stages(&self, origin: Origin) -> Stages {
        let takes_part = self.rules.iter().any(|rule| rule.rule.scope.includes_origin(origin));
        takes_part.then_some(Stage::Message).into_iter().collect()
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(self)
    }
}

impl Check for Arc<ContentRules> {
    fn message<'a>(&'a mut self, session: &'a SessionInfo<'a>, message: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        Box::pin(self.check(session, message))
    }
}
