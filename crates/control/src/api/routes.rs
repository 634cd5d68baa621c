//! The paths of the API: what each does, who may, and what it takes and gives. Requests are dispatched
//! by this table, and the OpenAPI document is made from it.

use protocol::http::Method;
use protocol::http::server::ErrorStatus;
use utoipa::openapi::RefOr;
use utoipa::openapi::schema::Schema;
use utoipa::{PartialSchema, ToSchema};

use super::page_file::PageFile;
use super::query::{
    AddressQuery, DestinationQuery, EventQuery, ExplainQuery, HistoryQuery, KeyQuery, LimitQuery, NextHopQuery,
    NodeQuery, PageQuery, SummaryQuery,
};
use super::types::{
    AcmeCertificateList, ActDone, ActRequest, ActResult, ClusterAddressExplanation, ClusterLaneList,
    ClusterMessageExplanation, ClusterNodeList, ClusterRecipients, ClusterStatus, ClusterSummary, LaneList,
    OverviewAnswer, PauseList, QueueList, RedirectList, ReloadResult, RenewRequest, RenewResult, ReportList,
    SendReportsRequest, ServerStatus, TableList,
};
use crate::RecipientFilter;
use crate::explanation::{AddressExplanation, AddressVerification, MessageExplanation};
use crate::history::HistoryAnswer;
use crate::load::LoadStatus;
use crate::message::MessageDetails;
use crate::message_history::MessageHistory;
use crate::pages::{DestinationPage, NextHopPage, RecipientPage};
use crate::pauses::{PauseRequest, PauseStatus, ResumeRequest};
use crate::process::{ConfigDocument, ConfigText, ConfigVerdict, DrainRequest};
use crate::redirects::{EndRedirectRequest, Redirect};
use crate::tables::LookupReport;
use crate::tokens::Role;

/// What a request does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Operation {
    Health,
    Readiness,
    OpenApi,
    Metrics,
    Overview,
    Status,
    Limits,
    Lanes,
    History,
    Events,
    Destinations,
    Page(PageFile),
    PageModule,
    Queues,
    PauseQueue,
    ResumeQueue,
    Pauses,
    Pause,
    Resume,
    Redirects,
    Redirect,
    EndRedirect,
    NextHops,
    Recipients,
    Hold,
    Release,
    Retry,
    Remove,
    Bounce,
    Message,
    Content,
    ExplainAddress,
    ExplainMessage,
    Verify,
    MessageHistory,
    Config,
    CheckConfig,
    Drain,
    Tables,
    TableLookup,
    AcceptRemovals,
    Reload,
    Cluster(ClusterOperation),
    AcmeStatus,
    RenewCertificates,
    Reports,
    SendReports,
}

/// What a request about the cluster does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum ClusterOperation {
    Lanes,
    Nodes,
    Recipients,
    Status,
    Summary,
    ExplainAddress,
    ExplainMessage,
    Adopt,
    Drain,
}

/// The requests that an operation shares its limit with.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum RequestGroup {
    /// Its answer waits for nothing, so there is no limit.
    Immediate,
    /// The metrics, which other requests must not delay: whoever watches the server would take it for dead.
    Metrics,
    /// The rest, which may wait for the scheduler, the disk, tables, the DNS and other nodes.
    Others,
}

impl Operation {
    /// Its group.
    pub(super) fn request_group(self) -> RequestGroup {
        match self {
            Operation::Health
            | Operation::Readiness
            | Operation::OpenApi
            | Operation::Page(_)
            | Operation::PageModule => RequestGroup::Immediate,
            Operation::Metrics => RequestGroup::Metrics,
            _ => RequestGroup::Others,
        }
    }

    /// The errors of the answer itself, beside those that any request can get.
    pub(super) fn problems(self) -> &'static [ErrorStatus] {
        use ErrorStatus::{NotFound, UnprocessableContent};
        match self {
            Operation::Cluster(ClusterOperation::ExplainMessage) => &[NotFound, UnprocessableContent],
            Operation::Resume | Operation::ResumeQueue | Operation::TableLookup | Operation::PageModule => &[NotFound],
            Operation::Recipients
            | Operation::Hold
            | Operation::Release
            | Operation::Retry
            | Operation::Remove
            | Operation::Bounce
            | Operation::Redirect
            | Operation::Drain
            | Operation::Cluster(_)
            | Operation::AcmeStatus
            | Operation::RenewCertificates
            | Operation::Reports
            | Operation::SendReports
            | Operation::Reload => &[UnprocessableContent],
            Operation::Pause
            | Operation::PauseQueue
            | Operation::EndRedirect
            | Operation::Message
            | Operation::Content
            | Operation::ExplainMessage
            | Operation::MessageHistory
            | Operation::AcceptRemovals => &[NotFound, UnprocessableContent],
            _ => &[],
        }
    }
}

/// Makes the schema of a type.
type SchemaFunction = fn() -> RefOr<Schema>;

/// A type in JSON, for the document.
#[derive(Clone, Copy)]
pub(super) struct JsonType {
    pub(super) name: fn() -> std::borrow::Cow<'static, str>,
    pub(super) schema: SchemaFunction,
    /// Adds the types that it refers to.
    pub(super) add_parts: fn(&mut Vec<(String, RefOr<Schema>)>),
}

/// What a successful response has.
#[derive(Clone, Copy)]
pub(super) enum AnswerType {
    Json(JsonType),
    /// JSON without a type of ours.
    AnyJson,
    /// Text of this type.
    Text(&'static str),
    /// A message, of which ranges can be asked for.
    Message,
    /// Server-sent events.
    Events,
}

/// A path with a method.
pub(super) struct Route {
    pub(super) method: Method,
    /// A segment in braces stands for any.
    pub(super) path: &'static str,
    pub(super) operation: Operation,
    /// What it takes; None: no token is needed.
    pub(super) role: Option<Role>,
    pub(super) summary: &'static str,
    /// The types whose members are the parameters of the query.
    pub(super) query: &'static [SchemaFunction],
    /// The content that it takes.
    pub(super) content: Option<JsonType>,
    pub(super) answer: AnswerType,
}

const fn json<T: ToSchema>() -> JsonType {
    JsonType { name: T::name, schema: T::schema, add_parts: T::schemas }
}

const fn get(path: &'static str, operation: Operation, answer: AnswerType, summary: &'static str) -> Route {
    let (role, query, content): (_, &[SchemaFunction], _) = (Some(Role::Read), &[], None);
    Route { method: Method::Get, path, operation, role, summary, query, content, answer }
}

const fn post(path: &'static str, operation: Operation, answer: JsonType, summary: &'static str) -> Route {
    let answer = AnswerType::Json(answer);
    Route { method: Method::Post, role: Some(Role::Operate), ..get(path, operation, answer, summary) }
}

/// A file of the dashboard: everybody may have it, since it shows nothing without a token.
const fn page(path: &'static str, file: PageFile, summary: &'static str) -> Route {
    let (operation, answer) = (Operation::Page(file), AnswerType::Text(file.content_type()));
    Route { role: None, ..get(path, operation, answer, summary) }
}

/// An action on the recipients that a filter selects, on all nodes of a cluster.
const fn act(path: &'static str, operation: Operation, summary: &'static str) -> Route {
    let route = post(path, operation, json::<ActResult>(), summary);
    Route { content: Some(json::<ActRequest>()), query: &[NodeQuery::schema], ..route }
}

/// The type of [`Operation::Metrics`].
pub(super) const OPENMETRICS: &str = "application/openmetrics-text; version=1.0.0; charset=utf-8";
/// The type of [`Operation::Events`].
pub(super) const EVENT_STREAM: &str = "text/event-stream";
/// The type of other text.
pub(super) const PLAIN_TEXT: &str = "text/plain; charset=utf-8";

const PLAIN: AnswerType = AnswerType::Text(PLAIN_TEXT);

/// All paths.
pub(super) const ROUTES: &[Route] = &[
    Route { role: None, ..get("/healthz", Operation::Health, PLAIN, "Whether the process runs") },
    Route {
        role: None,
        ..get("/readyz", Operation::Readiness, PLAIN, "Whether the server takes mail; 503 with the reason if not")
    },
    page("/", PageFile::Html, "The dashboard, which asks for a token"),
    page("/dashboard.css", PageFile::Style, "The style of the dashboard"),
    page("/dashboard.js", PageFile::Script, "The script of the dashboard"),
    Route {
        operation: Operation::PageModule,
        ..page("/dashboard/{script}", PageFile::Script, "A part of that script")
    },
    get("/metrics", Operation::Metrics, AnswerType::Text(OPENMETRICS), "All metrics, in the OpenMetrics text format"),
    Route { role: None, ..get("/api/v1/openapi.json", Operation::OpenApi, AnswerType::AnyJson, "This document") },
    get(
        "/api/v1/overview",
        Operation::Overview,
        AnswerType::Json(json::<OverviewAnswer>()),
        "What the dashboard shows, read at most once a second for all clients: what hurts most, the machine, certificates",
    ),
    get(
        "/api/v1/status",
        Operation::Status,
        AnswerType::Json(json::<ServerStatus>()),
        "The values that the server adapts itself, and all metrics",
    ),
    get(
        "/api/v1/limits",
        Operation::Limits,
        AnswerType::Json(json::<LoadStatus>()),
        "The load of the machine, and the limits in force",
    ),
    get(
        "/api/v1/lanes",
        Operation::Lanes,
        AnswerType::Json(json::<LaneList>()),
        "The lanes of the spool, with their counters since the start of the server",
    ),
    Route {
        query: &[HistoryQuery::schema],
        ..get(
            "/api/v1/history",
            Operation::History,
            AnswerType::Json(json::<HistoryAnswer>()),
            "Rates, queue depth and times of the last hour or day, since the start of the server",
        )
    },
    Route {
        query: &[EventQuery::schema],
        ..get(
            "/api/v1/events",
            Operation::Events,
            AnswerType::Events,
            "What happens, as server-sent events: `sample` every two seconds, `action`, `log` for operators; ends after \
             15 minutes",
        )
    },
    get("/api/v1/queues", Operation::Queues, AnswerType::Json(json::<QueueList>()), "All queues"),
    post(
        "/api/v1/queues/{queue}/pause",
        Operation::PauseQueue,
        json::<ActDone>(),
        "Stop deliveries from a queue until it is resumed or the server restarts",
    ),
    post("/api/v1/queues/{queue}/resume", Operation::ResumeQueue, json::<ActDone>(), "Resume a paused queue"),
    get("/api/v1/pauses", Operation::Pauses, AnswerType::Json(json::<PauseList>()), "The pauses in force"),
    Route {
        content: Some(json::<PauseRequest>()),
        ..post(
            "/api/v1/pause",
            Operation::Pause,
            json::<PauseStatus>(),
            "Stop deliveries from a queue, to a next hop or to a destination, for some time or until they are resumed",
        )
    },
    Route {
        content: Some(json::<ResumeRequest>()),
        ..post("/api/v1/resume", Operation::Resume, json::<ActDone>(), "End a pause")
    },
    get(
        "/api/v1/redirects",
        Operation::Redirects,
        AnswerType::Json(json::<RedirectList>()),
        "Mail that the operator redirects to other next hops",
    ),
    Route {
        content: Some(json::<Redirect>()),
        ..post(
            "/api/v1/redirect",
            Operation::Redirect,
            json::<ActDone>(),
            "Redirect the mail for a next hop or a destination to another next hop, until the redirect is ended",
        )
    },
    Route {
        content: Some(json::<EndRedirectRequest>()),
        ..post("/api/v1/redirect/end", Operation::EndRedirect, json::<ActDone>(), "End a redirect")
    },
    Route {
        query: &[NextHopQuery::schema],
        ..get(
            "/api/v1/next-hops",
            Operation::NextHops,
            AnswerType::Json(json::<NextHopPage>()),
            "Known next hops, by name or by trouble",
        )
    },
    Route {
        query: &[DestinationQuery::schema],
        ..get(
            "/api/v1/destinations",
            Operation::Destinations,
            AnswerType::Json(json::<DestinationPage>()),
            "Destinations with recipients, by name or by recipients, and what blocks each",
        )
    },
    Route {
        query: &[PageQuery::schema, RecipientFilter::schema],
        ..get(
            "/api/v1/recipients",
            Operation::Recipients,
            AnswerType::Json(json::<RecipientPage>()),
            "Queued recipients that pass all filters, in no particular order",
        )
    },
    act("/api/v1/recipients/hold", Operation::Hold, "Hold recipients until they are released"),
    act("/api/v1/recipients/release", Operation::Release, "Release held recipients; they are due now"),
    act("/api/v1/recipients/retry", Operation::Retry, "Retry waiting recipients now"),
    act("/api/v1/recipients/remove", Operation::Remove, "Remove recipients without a bounce"),
    act("/api/v1/recipients/bounce", Operation::Bounce, "Bounce recipients to their senders"),
    get(
        "/api/v1/messages/{id}",
        Operation::Message,
        AnswerType::Json(json::<MessageDetails>()),
        "A message: its envelope, its recipients, and what they wait for",
    ),
    Route {
        role: Some(Role::Operate),
        ..get("/api/v1/messages/{id}/content", Operation::Content, AnswerType::Message, "A message, byte for byte")
    },
    get(
        "/api/v1/messages/{id}/explanation",
        Operation::ExplainMessage,
        AnswerType::Json(json::<MessageExplanation>()),
        "What a message waits for: the state of its recipients, and the obstacles of their destinations",
    ),
    get(
        "/api/v1/messages/{id}/history",
        Operation::MessageHistory,
        AnswerType::Json(json::<MessageHistory>()),
        "What happened to a message, as far as the log of the server has it; also after it is finished",
    ),
    Route {
        query: &[ExplainQuery::schema],
        ..get(
            "/api/v1/explanation",
            Operation::ExplainAddress,
            AnswerType::Json(json::<AddressExplanation>()),
            "How mail for an address would be routed, and what the access rules do with a client",
        )
    },
    Route {
        query: &[AddressQuery::schema],
        ..get(
            "/api/v1/verify",
            Operation::Verify,
            AnswerType::Json(json::<AddressVerification>()),
            "Whether mail for an address would be delivered, as far as this can be told without sending any",
        )
    },
    get("/api/v1/tables", Operation::Tables, AnswerType::Json(json::<TableList>()), "All tables, with their counters"),
    Route {
        role: Some(Role::Operate),
        query: &[KeyQuery::schema],
        ..get(
            "/api/v1/tables/{table}/lookup",
            Operation::TableLookup,
            AnswerType::Json(json::<LookupReport>()),
            "The answer of a table for a key",
        )
    },
    post(
        "/api/v1/tables/{table}/accept-removals",
        Operation::AcceptRemovals,
        json::<ActDone>(),
        "Let the copy of a directory apply the removals that it held back",
    ),
    get(
        "/api/v1/config",
        Operation::Config,
        AnswerType::Json(json::<ConfigDocument>()),
        "The configuration in force, with asterisks where a secret may be",
    ),
    Route {
        content: Some(json::<ConfigText>()),
        ..post(
            "/api/v1/config/check",
            Operation::CheckConfig,
            json::<ConfigVerdict>(),
            "Check the text of a configuration, without a look at the files that it names and without an effect",
        )
    },
    Route {
        content: Some(json::<DrainRequest>()),
        ..post(
            "/api/v1/drain",
            Operation::Drain,
            json::<ActDone>(),
            "Accept no mail, deliver what can be delivered within a time, and stop the server",
        )
    },
    post(
        "/api/v1/reload",
        Operation::Reload,
        json::<ReloadResult>(),
        "Read the configuration again; 422 with the reasons if it is refused",
    ),
    get(
        "/api/v1/cluster/lanes",
        Operation::Cluster(ClusterOperation::Lanes),
        AnswerType::Json(json::<ClusterLaneList>()),
        "The lanes of the cluster that this node owns or watches",
    ),
    get(
        "/api/v1/cluster/nodes",
        Operation::Cluster(ClusterOperation::Nodes),
        AnswerType::Json(json::<ClusterNodeList>()),
        "The nodes of the cluster that are alive",
    ),
    Route {
        query: &[NodeQuery::schema, LimitQuery::schema, RecipientFilter::schema],
        ..get(
            "/api/v1/cluster/recipients",
            Operation::Cluster(ClusterOperation::Recipients),
            AnswerType::Json(json::<ClusterRecipients>()),
            "The oldest queued recipients of each node that pass all filters, and which nodes have not answered",
        )
    },
    Route {
        query: &[NodeQuery::schema],
        ..get(
            "/api/v1/cluster/status",
            Operation::Cluster(ClusterOperation::Status),
            AnswerType::Json(json::<ClusterStatus>()),
            "The values that each node adapts itself, and its metrics, and which nodes have not answered",
        )
    },
    Route {
        query: &[NodeQuery::schema, SummaryQuery::schema, RecipientFilter::schema],
        ..get(
            "/api/v1/cluster/summary",
            Operation::Cluster(ClusterOperation::Summary),
            AnswerType::Json(json::<ClusterSummary>()),
            "The recipients of each node that pass all filters, counted by destination, next hop, queue or sender",
        )
    },
    Route {
        query: &[NodeQuery::schema, ExplainQuery::schema],
        ..get(
            "/api/v1/cluster/explanation",
            Operation::Cluster(ClusterOperation::ExplainAddress),
            AnswerType::Json(json::<ClusterAddressExplanation>()),
            "How each node would route mail for an address",
        )
    },
    Route {
        query: &[NodeQuery::schema],
        ..get(
            "/api/v1/cluster/messages/{id}/explanation",
            Operation::Cluster(ClusterOperation::ExplainMessage),
            AnswerType::Json(json::<ClusterMessageExplanation>()),
            "What a message waits for, from the node that has it",
        )
    },
    post(
        "/api/v1/cluster/lanes/{lane}/adopt",
        Operation::Cluster(ClusterOperation::Adopt),
        json::<ActDone>(),
        "Take over a lane whose node is gone, without waiting for the end of its lease",
    ),
    post(
        "/api/v1/cluster/drain",
        Operation::Cluster(ClusterOperation::Drain),
        json::<ActDone>(),
        "Hand the lanes of this node over to others, and stop it",
    ),
    get(
        "/api/v1/acme",
        Operation::AcmeStatus,
        AnswerType::Json(json::<AcmeCertificateList>()),
        "The certificates that the server obtains from an authority",
    ),
    Route {
        content: Some(json::<RenewRequest>()),
        ..post(
            "/api/v1/acme/renew",
            Operation::RenewCertificates,
            json::<RenewResult>(),
            "Attempt to renew certificates now",
        )
    },
    get(
        "/api/v1/reports",
        Operation::Reports,
        AnswerType::Json(json::<ReportList>()),
        "What is counted for reports to the owners of other domains",
    ),
    Route {
        content: Some(json::<SendReportsRequest>()),
        ..post(
            "/api/v1/reports/send",
            Operation::SendReports,
            json::<ReportList>(),
            "Send the reports about a domain now",
        )
    },
];

/// Why there is no route.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum NoRoute {
    /// No route has the path.
    Path,
    /// The path has another method, which the `Allow` field names.
    Method {
        /// With its CRLF.
        allow_field: &'static str,
    },
}

impl Route {
    /// Each path has either GET, with HEAD, or POST.
    fn allow_field(&self) -> &'static str {
        match self.method {
            Method::Get | Method::Head => "Allow: GET, HEAD, OPTIONS\r\n",
            Method::Post => "Allow: POST, OPTIONS\r\n",
        }
    }
}

/// The route of a request, and the segments of the path that stand for something.
pub(super) fn find(method: Method, path: &[u8]) -> Result<(&'static Route, Vec<String>), NoRoute> {
    let path = str::from_utf8(path).map_err(|_| NoRoute::Path)?;
    let method = if method == Method::Head { Method::Get } else { method };
    let found = ROUTES.iter().find_map(|route| Some((route, segments(route.path, path)?)));
    match found.ok_or(NoRoute::Path)? {
        (route, names) if route.method == method => Ok((route, names)),
        (route, _) => Err(NoRoute::Method { allow_field: route.allow_field() }),
    }
}

/// The group of a request. A path that does not exist is refused at once.
pub(super) fn request_group(method: Method, path: &[u8]) -> RequestGroup {
    find(method, path).map_or(RequestGroup::Immediate, |(route, _)| route.operation.request_group())
}

/// The `Allow` field of a path, with its CRLF; None if there is no such path.
pub(super) fn allow_field(path: &[u8]) -> Option<&'static str> {
    match find(Method::Get, path) {
        Ok((route, _)) => Some(route.allow_field()),
        Err(NoRoute::Method { allow_field }) => Some(allow_field),
        Err(NoRoute::Path) => None,
    }
}

/// The segments in place of those in braces; None if the path is another one.
fn segments(pattern: &str, path: &str) -> Option<Vec<String>> {
    let (mut given, mut values) = (path.split('/'), Vec::new());
    for expected in pattern.split('/') {
        let segment = given.next()?;
        if expected.starts_with('{') {
            values.push(segment.to_owned());
        } else if expected != segment {
            return None;
        }
    }
    (given.next().is_none() && values.iter().all(|value| !value.is_empty())).then_some(values)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_path_and_a_method_have_one_route() {
        let operation =
            |method, path: &str| find(method, path.as_bytes()).map(|(route, names)| (route.operation, names));
        assert_eq!(operation(Method::Get, "/healthz"), Ok((Operation::Health, vec![])));
        assert_eq!(operation(Method::Head, "/metrics"), Ok((Operation::Metrics, vec![])));
        let named = (Operation::PauseQueue, vec!["a b".to_owned()]);
        assert_eq!(operation(Method::Post, "/api/v1/queues/a b/pause"), Ok(named));
        let (reads, acts) = ("Allow: GET, HEAD, OPTIONS\r\n", "Allow: POST, OPTIONS\r\n");
        let not_get = operation(Method::Get, "/api/v1/queues/a/pause");
        assert_eq!(not_get, Err(NoRoute::Method { allow_field: acts }));
        assert_eq!(operation(Method::Post, "/healthz"), Err(NoRoute::Method { allow_field: reads }));
        let allow_fields = ["/healthz", "/api/v1/reload", "/none"].map(|path| allow_field(path.as_bytes()));
        assert_eq!(allow_fields, [Some(reads), Some(acts), None]);
        for path in
            ["//", "/healthz/", "/api/v1/queues/", "/api/v1/messages//content", "/api/v1/queues/a/b/pause", "/x"]
        {
            assert_eq!(operation(Method::Get, path), Err(NoRoute::Path), "{path}");
        }
        assert_eq!(find(Method::Get, b"/\xff").err(), Some(NoRoute::Path));
        for (place, route) in ROUTES.iter().enumerate() {
            let (found, _) = find(route.method, route.path.as_bytes()).ok().unwrap();
            assert_eq!(found.operation, route.operation, "route {place}");
        }
    }

    #[test]
    fn only_an_operator_can_change_anything_or_read_mail_or_values_of_tables() {
        for route in ROUTES {
            // Tables may have hashes of passwords, and the passwords of logins to other hosts.
            let is_secret = [Operation::Content, Operation::TableLookup].contains(&route.operation);
            let is_act = route.method == Method::Post || is_secret;
            assert_eq!(route.role == Some(Role::Operate), is_act, "{}", route.path);
            let is_open = [Operation::Health, Operation::Readiness, Operation::OpenApi].contains(&route.operation)
                || matches!(route.operation, Operation::Page(_) | Operation::PageModule);
            assert_eq!(route.role.is_none(), is_open, "{}", route.path);
            // The tokens are in a file, which may be on a slow disk.
            assert_eq!(request_group(route.method, route.path.as_bytes()) == RequestGroup::Immediate, is_open);
        }
    }
}
