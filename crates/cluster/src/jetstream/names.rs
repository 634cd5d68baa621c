//! The names that a cluster has on its servers: streams, subjects and buckets.

use mail::QueueId;
use spool::LaneId;

use crate::lane::RecordSubject;
use crate::{ClusterName, NodeName};

/// Every name begins with it.
const PREFIX: &str = "mailrace";

/// The last word of the subject of Renew records.
const RENEW: &str = "renew";

/// `mailrace-NAME-LANE`.
pub(crate) fn stream_name(cluster: &ClusterName, lane: LaneId) -> String {
    format!("{PREFIX}-{cluster}-{lane}")
}

/// The lane of a stream; None if the stream is something else.
pub(crate) fn lane_of_stream(cluster: &ClusterName, name: &str) -> Option<LaneId> {
    let lane = name.strip_prefix(PREFIX)?.strip_prefix('-')?.strip_prefix(cluster.as_str())?.strip_prefix('-')?;
    parse_lane(lane)
}

/// A lane, as its text says.
pub(crate) fn parse_lane(text: &str) -> Option<LaneId> {
    let first: QueueId = format!("{text}-0").parse().ok()?;
    let lane = LaneId { spool: first.spool(), number: first.lane() };
    (lane.to_string() == text).then_some(lane)
}

/// `mailrace.NAME.lane.LANE.SUBJECT`.
pub(crate) fn record_subject(cluster: &ClusterName, lane: LaneId, subject: RecordSubject) -> String {
    let word = match subject {
        RecordSubject::Log => "log",
        RecordSubject::Renew => RENEW,
        RecordSubject::Epoch => "epoch",
    };
    format!("{PREFIX}.{cluster}.lane.{lane}.{word}")
}

/// The subjects of all signs of life.
pub(crate) fn all_renew_subjects(cluster: &ClusterName) -> String {
    format!("{PREFIX}.{cluster}.lane.*.{RENEW}")
}

/// The lane of a sign of life.
pub(crate) fn lane_of_renewal(subject: &str) -> Option<LaneId> {
    parse_lane(subject.split('.').nth(3)?)
}

/// The stream of the closed lanes.
pub(crate) fn closed_stream(cluster: &ClusterName) -> String {
    format!("{PREFIX}-{cluster}-closed")
}

/// `mailrace.NAME.closed.LANE`.
pub(crate) fn closed_subject(cluster: &ClusterName, lane: LaneId) -> String {
    format!("{PREFIX}.{cluster}.closed.{lane}")
}

/// The subjects of all closed lanes.
pub(crate) fn closed_subjects(cluster: &ClusterName) -> String {
    format!("{PREFIX}.{cluster}.closed.*")
}

/// The bucket of the nodes.
pub(crate) fn nodes_bucket(cluster: &ClusterName) -> String {
    format!("{PREFIX}-{cluster}-nodes")
}

/// The bucket of requests for departures.
pub(crate) fn rates_bucket(cluster: &ClusterName) -> String {
    format!("{PREFIX}-{cluster}-rates")
}

/// The subject of broadcasts.
pub(crate) fn broadcast_subject(cluster: &ClusterName) -> String {
    format!("{PREFIX}.{cluster}.broadcast")
}

/// The subject on which a node answers that it is there.
pub(crate) fn presence_subject(cluster: &ClusterName, node: &NodeName) -> String {
    format!("{PREFIX}.{cluster}.node.{node}.presence")
}

/// The subject of requests to one node.
pub fn control_subject(cluster: &ClusterName, node: &NodeName) -> String {
    format!("{PREFIX}.{cluster}.node.{node}.control")
}

#[cfg(test)]
mod tests {
    use mail::SpoolId;

    use super::*;

    #[test]
    fn a_lane_is_found_again_by_the_name_of_its_stream_and_by_its_subject() {
        let cluster: ClusterName = "mx".parse().unwrap();
        let lane = LaneId { spool: SpoolId::new(0xab), number: 7 };
        assert_eq!(lane_of_stream(&cluster, &stream_name(&cluster, lane)), Some(lane));
        assert_eq!(lane_of_renewal(&record_subject(&cluster, lane, RecordSubject::Renew)), Some(lane));
        for other in [
            "mailrace-mx-nodes",
            "mailrace-mx-closed",
            "KV_mailrace-mx-nodes",
            "mailrace-mx2-00000000000000ab-7",
            "orders",
        ] {
            assert_eq!(lane_of_stream(&cluster, other), None, "{other}");
        }
    }
}
