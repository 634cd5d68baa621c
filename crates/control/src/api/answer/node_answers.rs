//! Answers about a cluster: its nodes and lanes, and what the nodes have answered: which node did what, and
//! which has not answered. A request to several nodes fails as a whole only if no node has done it.

use std::collections::BTreeMap;

use mail::printable;
use protocol::http::server::ErrorStatus;
use serde::de::DeserializeOwned;

use super::super::query::{ExplainQuery, LimitQuery, NodeQuery, Query, SummaryQuery};
use super::super::routes::ClusterOperation;
use super::super::types::{
    ClusterAddressExplanation, ClusterLaneList, ClusterMessageExplanation, ClusterNodeList, ClusterRecipients,
    ClusterStatus, ClusterSummary, NodeActResult, NodeRecipients, NodeStatus, NodeSummary,
};
use super::{ApiAnswer, Problem, bad_request, done, explain_query, json, page_limit, queue_id};
use crate::act_report::ActReport;
use crate::adaptive_text;
use crate::handler::{ControlError, ControlHandler};
use crate::list::QueuedRecipient;
use crate::metrics::MetricFamily;
use crate::nodes::{NodeAnswer, NodeResult};
use crate::request::ControlRequest;
use crate::text::SerdeAsText;
use crate::unreadable_row::take_unreadable;

/// Answers a request about the cluster. `name` is the lane or the message in the path.
pub(super) fn answer(
    handler: &ControlHandler,
    operation: ClusterOperation,
    caller: &str,
    name: String,
    query: Query,
    page_entries_max: usize,
) -> Result<ApiAnswer, Problem> {
    match operation {
        ClusterOperation::Lanes => json(&ClusterLaneList { lanes: handler.cluster()?.lanes() }),
        ClusterOperation::Nodes => {
            let nodes = handler.cluster()?.nodes().map_err(ControlError::Refused)?;
            json(&ClusterNodeList { nodes })
        }
        ClusterOperation::Recipients => list_recipients(handler, caller, query, page_entries_max),
        ClusterOperation::Status => status(handler, caller, query),
        ClusterOperation::Summary => summary(handler, caller, query),
        ClusterOperation::ExplainAddress => explain_address(handler, caller, query),
        ClusterOperation::ExplainMessage => explain_message(handler, caller, &name, query),
        ClusterOperation::Adopt => done(handler.adopt_lane(caller, name)),
        ClusterOperation::Drain => done(handler.drain_node(caller)),
    }
}

fn list_recipients(
    handler: &ControlHandler,
    caller: &str,
    mut query: Query,
    page_entries_max: usize,
) -> Result<ApiAnswer, Problem> {
    let NodeQuery { node } = query.take(&["node"]).map_err(bad_request)?;
    let LimitQuery { limit } = query.take(&["limit"]).map_err(bad_request)?;
    let limit = page_limit(limit, page_entries_max);
    // One more than are shown says that there are more.
    let request = ControlRequest::ListOldest { limit: limit + 1, filter: query.read().map_err(bad_request)? };
    let answers = handler.ask_nodes(caller, node.as_deref(), &request)?;
    json(&ClusterRecipients { nodes: recipients(answers, limit)? })
}

fn status(handler: &ControlHandler, caller: &str, query: Query) -> Result<ApiAnswer, Problem> {
    let NodeQuery { node } = query.read().map_err(bad_request)?;
    let ask = |request| handler.ask_nodes(caller, node.as_deref(), &request);
    let mut adaptive: BTreeMap<String, NodeResult> =
        ask(ControlRequest::Adaptive)?.into_iter().map(NodeAnswer::into_result).collect();
    let metrics = results(ask(ControlRequest::Status)?)?;
    let of_node = |(node, lines): NodeLines| {
        let read = lines.and_then(|lines| {
            let adapts = match adaptive.remove(&node) {
                Some(NodeResult::Lines(lines)) => rows(&lines)?,
                Some(NodeResult::Refused(why) | NodeResult::Missing(why)) => return Err(why),
                None => return Err("the node has answered only in part".to_owned()),
            };
            Ok(NodeStatus { adapts, metrics: adaptive_text::metrics_json(&rows::<MetricFamily>(&lines)?) })
        });
        (node, read)
    };
    json(&ClusterStatus::new(metrics.into_iter().map(of_node)))
}

fn summary(handler: &ControlHandler, caller: &str, mut query: Query) -> Result<ApiAnswer, Problem> {
    let NodeQuery { node } = query.take(&["node"]).map_err(bad_request)?;
    let SummaryQuery { by } = query.take(&["by"]).map_err(bad_request)?;
    let request = ControlRequest::Summary { by, filter: query.read().map_err(bad_request)? };
    let answers = results(handler.ask_nodes(caller, node.as_deref(), &request)?)?;
    let summary = |mut lines: Vec<String>| {
        let unreadable = take_unreadable(&mut lines);
        Ok(NodeSummary { groups: rows(&lines)?, unreadable })
    };
    let of_node = |(node, lines): NodeLines| (node, lines.and_then(summary));
    json(&ClusterSummary::new(answers.into_iter().map(of_node)))
}

fn explain_address(handler: &ControlHandler, caller: &str, mut query: Query) -> Result<ApiAnswer, Problem> {
    let NodeQuery { node } = query.take(&["node"]).map_err(bad_request)?;
    let ExplainQuery { address, sender, client, helo } = explain_query(query)?;
    let request = ControlRequest::ExplainAddress { address, sender, client, helo };
    let answers = results(handler.ask_nodes(caller, node.as_deref(), &request)?)?;
    json(&ClusterAddressExplanation::new(answers.into_iter().map(first_row)))
}

fn explain_message(handler: &ControlHandler, caller: &str, id: &str, query: Query) -> Result<ApiAnswer, Problem> {
    let NodeQuery { node } = query.read().map_err(bad_request)?;
    let request = ControlRequest::ExplainMessage { id: SerdeAsText(queue_id(id)?) };
    let answers = lines_of_owner(handler.ask_nodes(caller, node.as_deref(), &request)?)?;
    json(&ClusterMessageExplanation::new(answers.into_iter().map(first_row)))
}

/// The answer of a node that is one row.
fn first_row<T: DeserializeOwned>((node, lines): NodeLines) -> (String, Result<T, String>) {
    let row = lines.and_then(|lines| rows(&lines)?.pop().ok_or_else(|| "the answer of the node is empty".to_owned()));
    (node, row)
}

/// The rows of a node. Those of a node with another version may lack members.
fn rows<T: DeserializeOwned>(lines: &[String]) -> Result<Vec<T>, String> {
    lines.iter().map(|line| serde_json::from_str(line).map_err(|error| error.to_string())).collect()
}

/// The results of an action, whose answer is an [`ActReport`].
pub(super) fn act_results(answers: Vec<NodeAnswer>) -> Result<Vec<NodeActResult>, Problem> {
    let result = |(node, lines): NodeLines| {
        let read = |lines: Vec<String>| {
            lines.join("\n").parse().map_err(|_| "the answer of the node is not a number".to_owned())
        };
        match lines.and_then(read) {
            Ok(ActReport { recipients, in_attempt }) => {
                NodeActResult { node, recipients: Some(recipients), in_attempt: Some(in_attempt), error: None }
            }
            Err(error) => NodeActResult { node, recipients: None, in_attempt: None, error: Some(error) },
        }
    };
    Ok(results(answers)?.into_iter().map(result).collect())
}

/// The first recipients of each node.
fn recipients(answers: Vec<NodeAnswer>, limit: usize) -> Result<Vec<NodeRecipients>, Problem> {
    let of_node = |(node, lines): NodeLines| {
        let read = lines.and_then(|mut lines| {
            let unreadable = take_unreadable(&mut lines);
            let shown = &lines[..lines.len().min(limit)];
            Ok((rows::<QueuedRecipient>(shown)?, unreadable, lines.len() > limit))
        });
        match read {
            Ok((rows, unreadable, has_more)) => {
                NodeRecipients { node, recipients: Some(rows), unreadable, has_more, error: None }
            }
            Err(error) => NodeRecipients { node, recipients: None, unreadable: 0, has_more: false, error: Some(error) },
        }
    };
    Ok(results(answers)?.into_iter().map(of_node).collect())
}

/// The name of a node, and its lines or why there are none.
type NodeLines = (String, Result<Vec<String>, String>);

/// The lines of each node. If no node has any, the request has failed.
fn results(answers: Vec<NodeAnswer>) -> Result<Vec<NodeLines>, Problem> {
    lines_of(answers.into_iter().map(NodeAnswer::into_result).collect())
}

/// The same about a message: nodes that refuse have nothing to do with it, if another one has it.
fn lines_of_owner(answers: Vec<NodeAnswer>) -> Result<Vec<NodeLines>, Problem> {
    let mut results: Vec<_> = answers.into_iter().map(NodeAnswer::into_result).collect();
    if results.iter().any(|(_, result)| matches!(result, NodeResult::Lines(_))) {
        results.retain(|(_, result)| !matches!(result, NodeResult::Refused(_)));
    }
    lines_of(results)
}

fn lines_of(results: Vec<(String, NodeResult)>) -> Result<Vec<NodeLines>, Problem> {
    if !results.iter().any(|(_, result)| matches!(result, NodeResult::Lines(_))) {
        return Err(failure(&results));
    }
    let lines = |(node, result)| match result {
        NodeResult::Lines(lines) => (node, Ok(lines)),
        NodeResult::Refused(why) | NodeResult::Missing(why) => (node, Err(why)),
    };
    Ok(results.into_iter().map(lines).collect())
}

/// No node has done it.
fn failure(results: &[(String, NodeResult)]) -> Problem {
    let is_refused = results.iter().any(|(_, result)| matches!(result, NodeResult::Refused(_)));
    let status = if is_refused { ErrorStatus::UnprocessableContent } else { ErrorStatus::Unavailable };
    let reason = |(node, result): &(String, NodeResult)| match result {
        NodeResult::Refused(why) | NodeResult::Missing(why) => Some(format!("node {node}: {}", printable(why))),
        NodeResult::Lines(_) => None,
    };
    let reasons: Vec<String> = results.iter().filter_map(reason).collect();
    Problem::new(status, reasons.join("; "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::explanation::MessageExplanation;

    fn answers(of_nodes: &[(&str, Option<&str>)]) -> Vec<NodeAnswer> {
        let answer = |(node, answer): &(&str, Option<&str>)| NodeAnswer {
            node: (*node).to_owned(),
            answer: answer.map(str::to_owned),
            error: answer.is_none().then(|| "no route".to_owned()),
        };
        of_nodes.iter().map(answer).collect()
    }

    #[test]
    fn a_client_sees_which_node_has_acted_and_which_has_not() {
        let of_nodes = [("a", Some("3\ndone\n")), ("b", None), ("c", Some("no: x\n")), ("d", Some("1\n2\ndone\n"))];
        let results = act_results(answers(&of_nodes)).unwrap();
        let seen: Vec<_> =
            results.iter().map(|it| (&*it.node, it.recipients, it.in_attempt, it.error.as_deref())).collect();
        let expected = [
            ("a", Some(3), Some(0), None),
            ("b", None, None, Some("no route")),
            ("c", None, None, Some("x")),
            ("d", Some(1), Some(2), None),
        ];
        assert_eq!(seen, expected);
    }

    #[test]
    fn a_request_fails_if_no_node_has_done_it() {
        let problem = |of_nodes: &[(&str, Option<&str>)]| act_results(answers(of_nodes)).unwrap_err();
        let refused = problem(&[("a", Some("no: such queue\n")), ("b", None)]);
        assert_eq!(refused.status, ErrorStatus::UnprocessableContent);
        assert_eq!(refused.detail, "node a: such queue; node b: no route");
        assert_eq!(problem(&[("a", None)]).status, ErrorStatus::Unavailable);
        assert_eq!(problem(&[]).status, ErrorStatus::Unavailable);
    }

    #[test]
    fn a_message_is_on_one_node_and_the_others_say_nothing_about_it() {
        let of_owner = |of_nodes: &[(&str, Option<&str>)]| lines_of_owner(answers(of_nodes));
        let (has, lacks, silent) = (("a", Some("{}\ndone\n")), ("b", Some("no: no message 7-0-1\n")), ("c", None));
        let nodes: Vec<_> = of_owner(&[has, lacks, silent]).unwrap().into_iter().map(|(node, _)| node).collect();
        assert_eq!(nodes, ["a", "c"]);
        assert_eq!(of_owner(&[lacks, silent]).unwrap_err().status, ErrorStatus::UnprocessableContent);
    }

    #[test]
    fn a_long_list_of_a_node_is_cut_and_says_so() {
        let row = r#"{"id":"7-0-1","sender":"","recipient":"a@b.example"}"#;
        let lines = format!("{row}\n{row}\ndone\n");
        let refused = recipients(answers(&[("a", Some(&lines))]), 1).unwrap();
        // The row of a node with another version may lack members.
        assert_eq!((refused[0].recipients.is_none(), refused[0].error.is_some()), (true, true));
    }

    #[test]
    fn messages_that_a_node_cannot_read_are_counted_and_are_no_recipients() {
        let listed =
            recipients(answers(&[("a", Some("{\"unreadable\":2}\ndone\n")), ("b", Some("done\n"))]), 1).unwrap();
        let seen: Vec<_> = listed.iter().map(|it| (it.recipients.as_deref(), it.unreadable, it.has_more)).collect();
        assert_eq!(seen, [(Some(&[][..]), 2, false), (Some(&[][..]), 0, false)]);
    }

    #[test]
    fn an_answer_of_a_node_that_cannot_be_read_is_an_error_of_this_node() {
        let read = |lines: &[&str]| {
            let lines = lines.iter().map(|line| (*line).to_owned()).collect();
            first_row::<MessageExplanation>(("a".to_owned(), Ok(lines)))
        };
        for lines in [&[][..], &["7-0-1 from <x@a.example> to 1 recipient"], &["{}"]] {
            let (_, found) = read(lines);
            assert!(found.is_err(), "{found:?}");
        }
    }
}
