//! What explanations answer: how mail for an address would be routed ([`AddressExplanation`]), and what a message
//! waits for ([`MessageExplanation`]). Each finding is a value with a `kind` that programs can rely on. Whoever
//! shows an explanation words it: the command by [`crate::explanation_text`], the dashboard by its script.

use serde::{Deserialize, Serialize};
use utoipa::ToSchema;

/// How mail for an address would be routed.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddressExplanation {
    /// The address.
    pub address: String,
    /// The address that it stands for: another one if it is the postmaster of this host.
    pub normalized: String,
    /// What the access rules do with the client; null if none was given.
    pub access: Option<AccessExplanation>,
    /// What the directory says.
    pub directory: DirectoryFinding,
    /// What the sender becomes in other domains; null if it stays.
    pub forwarded_sender: Option<ForwardedSender>,
    /// The routes of the addresses that it stands for, as many as are traced.
    pub recipients: Vec<RecipientRouteExplanation>,
    /// How many more addresses it stands for.
    pub omitted: usize,
}

/// What the access rules do with a client.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessExplanation {
    /// The stages of a session, up to the one that decides; empty if there are no rules.
    pub stages: Vec<StageExplanation>,
    /// Whether the client may relay without login; null if the address is one of ours.
    pub relaying: Option<RelayPermission>,
}

/// What the access rules do at one stage of a session.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct StageExplanation {
    /// `connect`, `helo`, `mail`, `rcpt`, `data` or `message`.
    pub stage: String,
    /// Its rules, up to the one that decides.
    pub rules: Vec<AccessRuleExplanation>,
    /// What follows from them.
    pub result: StageResult,
}

/// What follows from the rules of a stage.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum StageResult {
    /// There are no rules.
    NoRules,
    /// They were not checked: they need a HELO name.
    NeedsHelo,
    /// They were not checked: they depend on the verdicts on a message.
    NeedsMessage,
    /// A rule accepts the client; later stages are skipped.
    Accepted,
    /// A rule decides.
    Decided,
    /// The next stage follows.
    Continues,
}

/// An access rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessRuleExplanation {
    /// Its name.
    pub rule: String,
    /// Its conditions; without any, it always matches.
    pub conditions: Vec<AccessConditionExplanation>,
    /// What it does.
    pub verdict: AccessVerdict,
}

/// A condition of an access rule.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AccessConditionExplanation {
    /// As it is configured.
    pub condition: String,
    /// What was found.
    pub result: ConditionResult,
}

/// What was found about a condition.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ConditionResult {
    /// It holds.
    Holds,
    /// It holds: a DNS list has this name.
    Listed {
        /// The name.
        name: String,
    },
    /// It holds: a table has the subject.
    Value {
        /// What the table says.
        value: String,
        /// Whether that is an action or a class.
        is_known: bool,
    },
    /// It does not hold.
    Fails,
    /// The table is unavailable.
    TableUnavailable {
        /// Why.
        reason: String,
    },
    /// It does not hold: the DNS list is unavailable.
    ListUnavailable {
        /// Why.
        reason: String,
    },
    /// It was not asked.
    NotAsked,
}

/// What an access rule does.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum AccessVerdict {
    /// It does not match.
    NoMatch,
    /// It accepts.
    Accept,
    /// It accepts, for the rules of its list only.
    AcceptInList,
    /// It holds the message.
    Hold,
    /// It drops the message.
    Discard,
    /// It drops the message; rules outside its list are evaluated.
    DiscardInList,
    /// It puts a field before the others.
    Prepend {
        /// The field.
        field: String,
    },
    /// It sends a copy.
    Copy {
        /// To this address.
        address: String,
    },
    /// It sends the message to one recipient in place of all others.
    Redirect {
        /// The recipient.
        address: String,
    },
    /// It changes the message in another way.
    Edit,
    /// It writes to the log.
    Log {
        /// What.
        text: String,
    },
    /// The rules of a class apply, too.
    EnterClass {
        /// The class.
        class: String,
    },
    /// It refuses.
    Refuse {
        /// The reply.
        reply: String,
    },
    /// A later refusal is one for the time being.
    DeferIfRefused {
        /// The reply.
        reply: String,
    },
    /// It refuses for the time being.
    Defer {
        /// The reply.
        reply: String,
    },
}

/// Whether a client may send mail for other domains without login.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RelayPermission {
    /// Its address.
    pub client: String,
    /// The codes of the reply at RCPT; null if it may.
    pub refusal: Option<String>,
}

/// What the directory says about an address.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum DirectoryFinding {
    /// It is a mailbox here.
    Mailbox,
    /// It is an alias.
    Alias {
        /// The addresses that it expands to.
        addresses: Vec<String>,
    },
    /// It is in none of our domains.
    Remote,
    /// It is in one of our domains, and nobody has it.
    UnknownUser,
    /// There are too many alias steps, possibly a loop.
    TooManySteps,
    /// It expands to too many addresses.
    TooManyAddresses,
    /// It cannot be looked up now.
    Unavailable {
        /// Why.
        reason: String,
    },
    /// It is the rewritten sender of forwarded mail (SRS), and takes only bounces.
    ReturnPath,
    /// It looks like one, but this host has not made it.
    ForgedReturnPath,
    /// It is one that has expired.
    ExpiredReturnPath,
}

/// What becomes of a sender in other domains.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum ForwardedSender {
    /// If a stranger sends it, it becomes an SRS address. The address is left out: with it, anybody could send
    /// notices to the sender by this host.
    Rewritten {
        /// The domain of that address.
        domain: String,
    },
    /// It is too long for SRS, and stays.
    TooLong {
        /// The sender.
        sender: String,
    },
    /// The directory does not say now whether the sender is one of ours.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// Where mail for a final address goes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RecipientRouteExplanation {
    /// The address.
    pub address: String,
    /// The queue that it enters.
    pub queue: QueueChoice,
    /// Its destination, in most cases the domain.
    pub destination: String,
    /// What names the destination.
    pub destination_source: DestinationSource,
    /// The route.
    pub route: RouteExplanation,
    /// The limits of the transport; null if there is no route.
    pub limits: Option<TransportLimits>,
    /// The limits that are configured for this next hop.
    pub next_hop_limits: Option<NextHopLimitsExplanation>,
    /// The quota of the mailbox, if it is here and has one.
    pub quota: Option<MailboxQuota>,
    /// The load of the next hop, if it is known to the queue.
    pub next_hop_load: Option<NextHopLoad>,
    /// What mail for it would wait for.
    pub obstacles: Vec<Obstacle>,
}

/// The queue that mail enters, and why.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct QueueChoice {
    /// Its name.
    pub name: String,
    /// The rule that chooses it.
    pub rule: QueueRule,
    /// Rules by client that may choose another one.
    pub client_rules: usize,
    /// Rules by header that may choose another one.
    pub header_rules: usize,
}

/// A rule that chooses a queue.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum QueueRule {
    /// The mailbox is local.
    LocalMailbox,
    /// By sender.
    Sender {
        /// What the sender matches.
        pattern: String,
    },
    /// By sender, in a table.
    SenderTable {
        /// The table.
        table: String,
    },
    /// By domain.
    Domain {
        /// What the domain matches.
        pattern: String,
    },
    /// No rule matches.
    Default,
}

/// What names a destination.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum DestinationSource {
    /// The domain of the address.
    Domain,
    /// The directory, which knows the host of the mailbox.
    Directory,
    /// A configured route.
    Route,
}

/// A route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum RouteExplanation {
    /// To something on this host.
    Local {
        /// The transport.
        transport: String,
        /// What takes the mail.
        target: LocalTarget,
    },
    /// To other hosts.
    Hosts {
        /// The name of the next hop.
        next_hop: String,
        /// The transport.
        transport: String,
        /// How long the route is valid.
        valid_for_seconds: u64,
        /// The hosts, best first.
        hosts: Vec<RouteHost>,
        /// What is to be known of their TLS policies.
        tls_notes: Vec<String>,
    },
    /// It is not known now: mail waits.
    Deferred {
        /// Why, as a reply.
        reply: String,
    },
    /// There is none: mail fails.
    Failed {
        /// Why, as a reply.
        reply: String,
    },
    /// It cannot be told now.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// What takes mail on this host.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum LocalTarget {
    /// A mailbox.
    Mailbox,
    /// A program.
    Program,
    /// Nothing: mail is discarded.
    Discard,
}

/// A host of a route.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RouteHost {
    /// 1 for the best; hosts with the same rank are equal.
    pub rank: usize,
    /// Its name.
    pub name: String,
    /// Where it listens: addresses with ports, or paths of sockets.
    pub endpoints: Vec<String>,
    /// What it must prove by TLS; null: what the transport requires.
    pub tls: Option<String>,
}

/// The limits of a transport at each next hop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct TransportLimits {
    /// Attempts at a time.
    pub attempts: usize,
    /// Recipients of an attempt.
    pub recipients_per_attempt: Option<usize>,
    /// Messages per time.
    pub rate: Option<RateLimit>,
}

/// The limits that are configured for one next hop.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextHopLimitsExplanation {
    /// Connections at a time.
    pub connections: Option<usize>,
    /// Messages per time.
    pub rate: Option<RateLimit>,
    /// Messages of a connection.
    pub messages_per_connection: Option<u32>,
    /// Recipients of a message.
    pub recipients_per_message: Option<usize>,
}

/// Messages per time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RateLimit {
    /// How many messages.
    pub messages: u32,
    /// In how many seconds.
    pub per_seconds: u64,
}

/// The quota of a mailbox.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum MailboxQuota {
    /// Its limits, and what it holds.
    Known {
        /// The limit of bytes; 0: none.
        bytes_max: u64,
        /// The limit of messages; 0: none.
        messages_max: u64,
        /// Bytes that it holds.
        bytes: u64,
        /// Messages that it holds.
        messages: u64,
    },
    /// It is unknown now.
    Unknown {
        /// Why.
        reason: String,
    },
}

/// The load of a next hop.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct NextHopLoad {
    /// Attempts in progress.
    pub attempts: usize,
    /// Their limit now.
    pub attempts_max: usize,
    /// Failures since it last answered.
    pub failures: u32,
}

/// What a message waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct MessageExplanation {
    /// The queue ID.
    pub id: String,
    /// The sender; empty for bounces.
    pub sender: String,
    /// Its bytes.
    pub size: u64,
    /// When it was accepted (RFC 3339).
    pub accepted: String,
    /// Seconds since then.
    pub age_seconds: u64,
    /// How many recipients it has.
    pub recipient_count: usize,
    /// The first 1000 of them.
    pub recipients: Vec<RecipientExplanation>,
    /// The destinations of those that are queued.
    pub destinations: Vec<DestinationExplanation>,
}

/// A recipient of a message, and what it waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct RecipientExplanation {
    /// Its address.
    pub recipient: String,
    /// Its state.
    pub state: ExplainedState,
    /// When the next attempt is due, if it is waiting.
    pub due: Option<DueTime>,
    /// Attempts made so far, if it is queued.
    pub attempts: Option<u16>,
    /// The reason of the last deferral since the start of the server.
    pub error: Option<String>,
    /// Its mail is forwarded, with a rewritten sender.
    pub is_forwarded: bool,
}

/// The state of a recipient.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ExplainedState {
    /// It waits for its turn.
    Ready,
    /// An attempt or an action is not recorded yet.
    InFlight,
    /// An operator holds it.
    Held,
    /// It waits for an attempt that is due later.
    Waiting,
    /// It was delivered.
    Delivered,
    /// It has failed, or was removed by an operator.
    Failed,
    /// The message is damaged and was set aside.
    SetAside,
    /// The client was told that it was not accepted.
    Withdrawn,
    /// It is entering or leaving the queue.
    Moving,
}

/// A destination of a message, and what its mail waits for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DestinationExplanation {
    /// Its name, in most cases a domain.
    pub destination: String,
    /// Its queue.
    pub queue: String,
    /// Its next hop, if it is known.
    pub next_hop: Option<String>,
    /// Recipients of the message that are queued for it.
    pub recipients: usize,
    /// What they wait for, beside the time of their next attempt.
    pub obstacles: Vec<Obstacle>,
}

/// What mail waits for, whichever message it is.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
#[serde(tag = "kind", rename_all = "kebab-case")]
pub enum Obstacle {
    /// Deliveries are stopped because of high load.
    Stopped,
    /// Too many attempts have ended and are not recorded: the disk is slow.
    Unrecorded {
        /// How many.
        attempts: usize,
        /// The limit.
        attempts_max: usize,
    },
    /// The queue is paused, or its concurrency is 0.
    QueuePaused {
        /// The queue.
        queue: String,
    },
    /// The next hop is paused.
    NextHopPaused {
        /// When the pause ends; null: when it is resumed.
        until: Option<DueTime>,
    },
    /// The destination is paused.
    DestinationPaused {
        /// When the pause ends; null: when it is resumed.
        until: Option<DueTime>,
    },
    /// The route is not resolved yet.
    NoRoute,
    /// The next hop cannot be reached.
    NextHopUnreachable {
        /// The next attempt.
        next_attempt: DueTime,
        /// Its last error.
        error: String,
    },
    /// The next hop interrupts messages: one is tried at a time.
    NextHopInterrupts {
        /// How many in a row.
        messages: u32,
        /// The next attempt.
        next_attempt: DueTime,
        /// Its last error.
        error: String,
    },
    /// The rate limit of the next hop is reached.
    RateLimit {
        /// The next message.
        next_attempt: DueTime,
    },
    /// The next hop has all attempts that it may have now.
    NextHopFull {
        /// Attempts in progress.
        attempts: usize,
        /// The limit now.
        attempts_max: usize,
    },
    /// The next hop has all attempts that the other nodes of the cluster leave to this one now.
    SlotsElsewhere {
        /// Attempts in progress.
        attempts: usize,
        /// The limit of this node now.
        attempts_max: usize,
        /// The limit of all nodes.
        cluster_max: usize,
    },
    /// The queue has all attempts that it may have.
    QueueFull {
        /// The queue.
        queue: String,
        /// Attempts in progress.
        attempts: usize,
        /// The limit.
        attempts_max: usize,
    },
    /// The next hop failed or was slow, and is served by another queue with fewer attempts.
    Adopted {
        /// The queue.
        queue: String,
        /// How long the next hop must have worked well before it is released.
        release_after_seconds: u64,
        /// Seconds since its last trouble.
        trouble_age_seconds: u64,
    },
}

/// A time that is to come.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct DueTime {
    /// In RFC 3339.
    pub at: String,
    /// In how many milliseconds; 0: now.
    pub in_ms: u64,
}

/// Whether mail for an address would be delivered, as far as this can be told without sending any.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, ToSchema)]
pub struct AddressVerification {
    /// Whether it would be.
    pub verdict: Deliverability,
    /// Why, in a sentence.
    pub why: String,
}

/// Whether mail would be delivered. The last is the worst.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize, ToSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Deliverability {
    /// It would be.
    Deliverable,
    /// The directory or the DNS does not answer now.
    Unknown,
    /// It would bounce.
    Undeliverable,
}

impl Deliverability {
    /// The word in the output.
    pub fn word(self) -> &'static str {
        match self {
            Deliverability::Deliverable => "deliverable",
            Deliverability::Unknown => "unknown now",
            Deliverability::Undeliverable => "undeliverable",
        }
    }
}
