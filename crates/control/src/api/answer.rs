//! Answers requests that were let in, from the functions of the control socket. This may wait for the
//! scheduler, the disk, the directory and the DNS, so it runs on a thread that may.

mod node_answers;

use mail::{Body, QueueId, Timestamp};
use protocol::http::server::ErrorStatus;
use queue::OperatorAction;
use serde::Serialize;
use serde::de::DeserializeOwned;
use serde_json::{Map, Value};

use super::openapi;
use super::page_file::{self, PageFile};
use super::query::{
    AddressQuery, DestinationOrder, DestinationQuery, EventQuery, ExplainQuery, HistoryQuery, KeyQuery, LogLines,
    NextHopOrder, NextHopQuery, NodeQuery, Query,
};
use super::routes::{OPENMETRICS, Operation, PLAIN_TEXT};
use super::types::{
    AcmeCertificateList, ActDone, ActRequest, ActResult, LaneList, OverviewAnswer, PauseList, ProblemDocument,
    QueueList, RedirectList, ReloadResult, RenewRequest, RenewResult, ReportList, SendReportsRequest, ServerStatus,
    TableList,
};
use crate::ReloadAnswer;
use crate::act_report::ActReport;
use crate::adaptive_text;
use crate::handler::{ControlError, ControlHandler};
use crate::live::{EventReader, READERS_MAX};
use crate::metrics_text;
use crate::pages::{DestinationPage, NextHopPage, PageRequest};
use crate::pauses::{PauseRequest, PausedName, ResumeRequest};
use crate::process::{ConfigText, DrainRequest};
use crate::redirects::{EndRedirectRequest, Redirect};
use crate::request::{ActionRequest, ControlRequest};
use crate::text::SerdeAsText;
use crate::tokens::Role;

/// Entries of a page, if the client does not say.
const PAGE_ENTRIES: u32 = 100;

/// A request that was let in.
pub(super) struct ApiRequest {
    pub(super) operation: Operation,
    /// The segments of the path in place of those in braces.
    pub(super) names: Vec<String>,
    pub(super) query: Query,
    /// The content, as received.
    pub(super) content: Vec<u8>,
    /// Who made it, for the log.
    pub(super) caller: String,
    /// Whether the caller may operate the server.
    pub(super) is_operator: bool,
    /// The most entries of a page.
    pub(super) page_entries_max: usize,
}

/// A successful response.
#[derive(Debug)]
pub(super) enum ApiAnswer {
    Json(Vec<u8>),
    Text {
        content_type: &'static str,
        text: String,
    },
    /// The bytes of a message.
    Content {
        id: String,
        body: Body,
        accepted_at: Timestamp,
    },
    Events(EventReader),
}

/// A request that failed: a problem document (RFC 9457).
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) status: ErrorStatus,
    /// What happened in this case, for the client.
    pub(super) detail: String,
    /// Fields of the response that only this case has, each with its CRLF.
    pub(super) fields: &'static str,
}

impl Problem {
    pub(super) fn new(status: ErrorStatus, detail: impl Into<String>) -> Problem {
        Problem { status, detail: detail.into(), fields: "" }
    }

    /// The document.
    pub(super) fn to_json(&self) -> Vec<u8> {
        let (code, title) = self.status.text().split_once(' ').unwrap_or_default();
        let code: u16 = code.parse().unwrap_or_default();
        let members = ProblemDocument {
            kind: "about:blank".to_owned(),
            title: title.to_owned(),
            status: code,
            detail: Some(self.detail.clone()),
        };
        // Text and numbers can always be written.
        serde_json::to_vec(&members).unwrap_or_default()
    }
}

impl From<ControlError> for Problem {
    fn from(error: ControlError) -> Problem {
        let status = match error {
            ControlError::NotFound(_) => ErrorStatus::NotFound,
            ControlError::Refused(_) => ErrorStatus::UnprocessableContent,
            ControlError::InvalidRequest(_) => ErrorStatus::BadRequest,
            ControlError::Stopping
            | ControlError::LogFull
            | ControlError::NotKept(_)
            | ControlError::Unfinished(_)
            | ControlError::Io(_) => ErrorStatus::Unavailable,
        };
        Problem::new(status, error.to_string())
    }
}

/// Answers a request.
pub(super) fn answer(handler: &ControlHandler, request: ApiRequest) -> Result<ApiAnswer, Problem> {
    let ApiRequest { operation, names, query, content, caller, is_operator, page_entries_max } = request;
    let name = names.into_iter().next().unwrap_or_default();
    let act_on = |act, query| apply(handler, &caller, act, query, &content);
    match operation {
        Operation::Health => Ok(text(PLAIN_TEXT, "ok\n")),
        Operation::Readiness => match handler.unreadiness() {
            None => Ok(text(PLAIN_TEXT, "ready\n")),
            Some(why) => Err(Problem::new(ErrorStatus::Unavailable, why)),
        },
        Operation::OpenApi => Ok(ApiAnswer::Json(openapi::DOCUMENT.clone())),
        Operation::Metrics => Ok(text(OPENMETRICS, metrics_text::openmetrics(&handler.metrics()?))),
        Operation::Status => status(handler),
        Operation::Overview => overview(handler, is_operator),
        Operation::Limits => json(&handler.load_status()),
        Operation::Lanes => json(&LaneList { lanes: handler.lanes() }),
        Operation::Queues => json(&QueueList { queues: handler.queues()? }),
        Operation::PauseQueue => {
            done(handler.pause(&caller, PauseRequest { target: PausedName::Queue(name), duration: None }).map(drop))
        }
        Operation::ResumeQueue => done(handler.resume(&caller, ResumeRequest { target: PausedName::Queue(name) })),
        Operation::Pauses => json(&PauseList { pauses: handler.pauses()? }),
        Operation::Pause => json(&handler.pause(&caller, read_content(&content)?)?),
        Operation::Resume => done(handler.resume(&caller, read_content(&content)?)),
        Operation::Redirects => json(&RedirectList { redirects: handler.redirects() }),
        Operation::Redirect => done(handler.redirect(&caller, read_content(&content)?)),
        Operation::EndRedirect => done(handler.end_redirect(&caller, read_content(&content)?)),
        Operation::NextHops => next_hops(handler, query.read().map_err(bad_request)?, page_entries_max),
        Operation::Destinations => destinations(handler, query.read().map_err(bad_request)?, page_entries_max),
        Operation::History => {
            let HistoryQuery { span } = query.read().map_err(bad_request)?;
            json(&handler.shared.live.history(span))
        }
        Operation::Events => events(handler, is_operator, query),
        Operation::Page(file) => Ok(text(file.content_type(), file.text())),
        Operation::PageModule => page_module(&name),
        Operation::Recipients => recipients(handler, query, page_entries_max),
        Operation::Hold => act_on(OperatorAction::Hold, query),
        Operation::Release => act_on(OperatorAction::Release, query),
        Operation::Retry => act_on(OperatorAction::Retry, query),
        Operation::Remove => act_on(OperatorAction::Remove, query),
        Operation::Bounce => act_on(OperatorAction::Bounce, query),
        Operation::Message => json(&handler.message(queue_id(&name)?)?),
        Operation::Content => {
            let (body, accepted_at) = handler.message_body(&caller, queue_id(&name)?)?;
            Ok(ApiAnswer::Content { id: name, body, accepted_at })
        }
        Operation::ExplainAddress => explain_address(handler, query),
        Operation::ExplainMessage => json(&handler.explain_message(queue_id(&name)?)?),
        Operation::Verify => verify(handler, query),
        Operation::MessageHistory => json(&handler.history(queue_id(&name)?)?),
        Operation::Config => json(handler.config_document()),
        Operation::CheckConfig => check_config(handler, &content),
        Operation::Drain => done(handler.drain(&caller, read_content(&content)?)),
        Operation::Tables => json(&TableList { tables: handler.table_stats(None)? }),
        Operation::TableLookup => {
            let KeyQuery { key } = query.read().map_err(bad_request)?;
            json(&handler.table_get(&name, &key)?)
        }
        Operation::AcceptRemovals => done(handler.accept_table_removals(&caller, name)),
        Operation::Reload => reload(handler.reload(&caller)?),
        Operation::Cluster(operation) => {
            node_answers::answer(handler, operation, &caller, name, query, page_entries_max)
        }
        Operation::AcmeStatus => json(&AcmeCertificateList { certificates: handler.acme_certificates()? }),
        Operation::RenewCertificates => renew_certificates(handler, &caller, &content),
        Operation::Reports => json(&ReportList { reports: handler.pending_reports()? }),
        Operation::SendReports => send_reports(handler, &caller, &content),
    }
}

fn status(handler: &ControlHandler) -> Result<ApiAnswer, Problem> {
    let adapts: Vec<Value> = handler.adaptive_values()?;
    let metrics = adaptive_text::metrics_json(&handler.metrics()?);
    let certificates = handler.certificates();
    json(&ServerStatus { version: env!("CARGO_PKG_VERSION"), adapts, certificates, metrics })
}

fn overview(handler: &ControlHandler, is_operator: bool) -> Result<ApiAnswer, Problem> {
    let role = if is_operator { Role::Operate } else { Role::Read };
    json(&OverviewAnswer { role, server: handler.overview()? })
}

fn page_module(name: &str) -> Result<ApiAnswer, Problem> {
    match page_file::script(name) {
        Some(script) => Ok(text(PageFile::Script.content_type(), script)),
        None => Err(Problem::new(ErrorStatus::NotFound, format!("the dashboard has no script {name:?}"))),
    }
}

fn events(handler: &ControlHandler, is_operator: bool, query: Query) -> Result<ApiAnswer, Problem> {
    let EventQuery { log } = query.read().map_err(bad_request)?;
    let sees_log = is_operator && log == LogLines::Yes;
    let too_many = || Problem::new(ErrorStatus::Unavailable, format!("{READERS_MAX} clients read events already"));
    handler.shared.live.read_events(sees_log).map(ApiAnswer::Events).ok_or_else(too_many)
}

fn next_hops(handler: &ControlHandler, query: NextHopQuery, page_entries_max: usize) -> Result<ApiAnswer, Problem> {
    let NextHopQuery { limit, cursor, order } = query;
    let limit = page_limit(limit, page_entries_max);
    match order {
        NextHopOrder::Trouble if cursor.is_some() => Err(bad_request("cursor: expected only with the order name")),
        NextHopOrder::Trouble => json(&NextHopPage { next_hops: handler.troubled_next_hops(limit)?, next: None }),
        NextHopOrder::Name => {
            let next_hops = handler.next_hops(cursor, limit)?;
            let is_full = next_hops.len() == limit;
            let next = next_hops.last().filter(|_| is_full).map(|last| last.next_hop.clone());
            json(&NextHopPage { next_hops, next })
        }
    }
}

fn destinations(
    handler: &ControlHandler,
    query: DestinationQuery,
    page_entries_max: usize,
) -> Result<ApiAnswer, Problem> {
    let DestinationQuery { limit, cursor, order } = query;
    let limit = page_limit(limit, page_entries_max);
    match order {
        DestinationOrder::Recipients if cursor.is_some() => {
            Err(bad_request("cursor: expected only with the order name"))
        }
        DestinationOrder::Recipients => {
            json(&DestinationPage { destinations: handler.largest_destinations(limit)?, next: None })
        }
        DestinationOrder::Name => {
            // Neither names of queues nor domains have a space.
            let after = |cursor: String| {
                let (name, queue) = cursor.rsplit_once(' ')?;
                Some((name.to_owned(), queue.to_owned()))
            };
            let no_cursor = || bad_request("cursor: expected `next` of an earlier page");
            let after = cursor.map(|cursor| after(cursor).ok_or_else(no_cursor)).transpose()?;
            let destinations = handler.destinations(after, limit)?;
            let is_full = destinations.len() == limit;
            let next =
                destinations.last().filter(|_| is_full).map(|last| format!("{} {}", last.destination, last.queue));
            json(&DestinationPage { destinations, next })
        }
    }
}

fn recipients(handler: &ControlHandler, mut query: Query, page_entries_max: usize) -> Result<ApiAnswer, Problem> {
    let page = query.take_page().map_err(bad_request)?;
    let filter = query.read().map_err(bad_request)?;
    let from = page.cursor.as_deref().map_or(Ok(0), str::parse);
    let from = from.map_err(|_| bad_request("cursor: expected `next` of an earlier page"))?;
    let limit = page_limit(page.limit, page_entries_max);
    json(&handler.recipient_page(filter, PageRequest { from, limit })?)
}

/// At least one entry, so that pages come to an end.
fn page_limit(limit: Option<SerdeAsText<u32>>, page_entries_max: usize) -> usize {
    let limit = limit.map_or(PAGE_ENTRIES, |limit| limit.0);
    (limit.max(1) as usize).min(page_entries_max)
}

fn check_config(handler: &ControlHandler, content: &[u8]) -> Result<ApiAnswer, Problem> {
    let ConfigText { text } = read_content(content)?;
    json(&handler.check_config(&text))
}

fn renew_certificates(handler: &ControlHandler, caller: &str, content: &[u8]) -> Result<ApiAnswer, Problem> {
    let RenewRequest { name } = read_content(content)?;
    json(&RenewResult { certificates: handler.renew_certificates(caller, name)? })
}

fn send_reports(handler: &ControlHandler, caller: &str, content: &[u8]) -> Result<ApiAnswer, Problem> {
    let SendReportsRequest { domain } = read_content(content)?;
    json(&ReportList { reports: handler.send_reports(caller, domain)? })
}

/// Acts on all nodes of the cluster, or on the one that the query names.
fn apply(
    handler: &ControlHandler,
    caller: &str,
    act: OperatorAction,
    query: Query,
    content: &[u8],
) -> Result<ApiAnswer, Problem> {
    let NodeQuery { node } = query.read().map_err(bad_request)?;
    let ActRequest { filter, all, dry_run } = read_content(content)?;
    if filter.is_empty() != all {
        let detail = "expected either a filter that is not empty, or \"all\": true";
        return Err(Problem::new(ErrorStatus::UnprocessableContent, detail));
    }
    let action = ActionRequest { filter, dry_run };
    if node.is_none() && handler.shared.cluster.is_none() {
        let ActReport { recipients, in_attempt } = handler.act(caller, act, action)?;
        return json(&ActResult { recipients, in_attempt, nodes: None });
    }
    let answers = handler.ask_nodes(caller, node.as_deref(), &ControlRequest::action(act, action))?;
    let nodes = node_answers::act_results(answers)?;
    json(&ActResult {
        recipients: nodes.iter().filter_map(|node| node.recipients).sum(),
        in_attempt: nodes.iter().filter_map(|node| node.in_attempt).sum(),
        nodes: Some(nodes),
    })
}

/// The content as a type. Derived code would accept an array too.
fn read_content<T: DeserializeOwned>(content: &[u8]) -> Result<T, Problem> {
    let invalid = |error: serde_json::Error| bad_request(format!("invalid content: {error}"));
    let members: Map<String, Value> = serde_json::from_slice(content).map_err(invalid)?;
    serde_json::from_value(Value::Object(members)).map_err(invalid)
}

/// For fuzzing: reads content as all types.
pub(super) fn is_content_of_any_act(content: &[u8]) -> bool {
    let types = [
        read_content::<ActRequest>(content).is_ok(),
        read_content::<PauseRequest>(content).is_ok(),
        read_content::<ResumeRequest>(content).is_ok(),
        read_content::<Redirect>(content).is_ok(),
        read_content::<EndRedirectRequest>(content).is_ok(),
        read_content::<ConfigText>(content).is_ok(),
        read_content::<DrainRequest>(content).is_ok(),
        read_content::<RenewRequest>(content).is_ok(),
        read_content::<SendReportsRequest>(content).is_ok(),
    ];
    types.contains(&true)
}

/// Refuses content where the path takes none but `{}`: what the client means by it would not be done.
pub(super) fn expect_no_members(content: &[u8]) -> Result<(), Problem> {
    if content.is_empty() {
        return Ok(());
    }
    let invalid = |error: serde_json::Error| bad_request(format!("invalid content: {error}"));
    let members: Map<String, Value> = serde_json::from_slice(content).map_err(invalid)?;
    match members.keys().next() {
        None => Ok(()),
        Some(name) => Err(bad_request(format!("unknown member {name:?}: this path takes none"))),
    }
}

fn explain_address(handler: &ControlHandler, query: Query) -> Result<ApiAnswer, Problem> {
    let ExplainQuery { address, sender, client, helo } = explain_query(query)?;
    let client = client.map(|client| (client, helo.as_deref()));
    json(&handler.explain_address(&address.0, sender.map(|sender| sender.0), client)?)
}

fn verify(handler: &ControlHandler, query: Query) -> Result<ApiAnswer, Problem> {
    let AddressQuery { address } = query.read().map_err(bad_request)?;
    json(&handler.verify(&address.0)?)
}

fn explain_query(query: Query) -> Result<ExplainQuery, Problem> {
    let query: ExplainQuery = query.read().map_err(bad_request)?;
    match query.helo.is_some() && query.client.is_none() {
        true => Err(bad_request("helo: expected only with a client")),
        false => Ok(query),
    }
}

fn reload(answer: ReloadAnswer) -> Result<ApiAnswer, Problem> {
    match answer {
        ReloadAnswer::InForce { source, changes } => json(&ReloadResult { source, changes }),
        ReloadAnswer::Refused { errors, .. } => Err(Problem::new(ErrorStatus::UnprocessableContent, errors.trim_end())),
    }
}

fn done(result: Result<(), ControlError>) -> Result<ApiAnswer, Problem> {
    result?;
    json(&ActDone { done: true })
}

fn queue_id(text: &str) -> Result<QueueId, Problem> {
    text.parse().map_err(|_| Problem::new(ErrorStatus::NotFound, format!("{text:?} is no queue ID")))
}

fn bad_request(detail: impl Into<String>) -> Problem {
    Problem::new(ErrorStatus::BadRequest, detail)
}

fn text(content_type: &'static str, text: impl Into<String>) -> ApiAnswer {
    ApiAnswer::Text { content_type, text: text.into() }
}

fn json(value: &impl Serialize) -> Result<ApiAnswer, Problem> {
    let text = serde_json::to_vec(value);
    Ok(ApiAnswer::Json(text.map_err(|error| Problem::new(ErrorStatus::Unavailable, error.to_string()))?))
}
