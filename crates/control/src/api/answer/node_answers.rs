//! Answers about a cluster: its nodes and lanes, and what the nodes have answered: which node did what, and
//! which has not answered. A request to several nodes fails as a whole only if no node has done it.

use mail::printable;
use protocol::http::server::ErrorStatus;

use super::super::query::{LimitQuery, NodeQuery, Query};
use super::super::routes::ClusterOperation;
use super::super::types::{ClusterLaneList, ClusterNodeList, ClusterRecipients, NodeActResult, NodeRecipients};
use super::{ApiAnswer, Problem, bad_request, done, json, page_limit};
use crate::handler::{ControlError, ControlHandler};
use crate::list::QueuedRecipient;
use crate::nodes::{NodeAnswer, NodeResult};
use crate::request::ControlRequest;

/// Answers a request about the cluster. `name` is the lane in the path.
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
    let request = ControlRequest::List(query.read().map_err(bad_request)?);
    let answers = handler.ask_nodes(caller, node.as_deref(), &request)?;
    json(&ClusterRecipients { nodes: recipients(answers, page_limit(limit, page_entries_max))? })
}

/// The results of an action, whose answer is the number of recipients.
pub(super) fn act_results(answers: Vec<NodeAnswer>) -> Result<Vec<NodeActResult>, Problem> {
    let result = |(node, lines): (String, Result<Vec<String>, String>)| {
        let recipients = lines.and_then(|lines| {
            let count = lines.first().and_then(|line| line.parse().ok());
            count.ok_or_else(|| "the answer of the node is not a number".to_owned())
        });
        match recipients {
            Ok(count) => NodeActResult { node, recipients: Some(count), error: None },
            Err(error) => NodeActResult { node, recipients: None, error: Some(error) },
        }
    };
    Ok(results(answers)?.into_iter().map(result).collect())
}

/// The first recipients of each node.
fn recipients(answers: Vec<NodeAnswer>, limit: usize) -> Result<Vec<NodeRecipients>, Problem> {
    let of_node = |(node, lines): (String, Result<Vec<String>, String>)| {
        let read = lines.and_then(|lines| {
            let rows = lines.iter().take(limit).map(|line| serde_json::from_str::<QueuedRecipient>(line));
            let rows = rows.collect::<Result<Vec<_>, _>>().map_err(|error| error.to_string())?;
            Ok((rows, lines.len() > limit))
        });
        match read {
            Ok((rows, has_more)) => NodeRecipients { node, recipients: Some(rows), has_more, error: None },
            Err(error) => NodeRecipients { node, recipients: None, has_more: false, error: Some(error) },
        }
    };
    Ok(results(answers)?.into_iter().map(of_node).collect())
}

/// The name of a node, and its lines or why there are none.
type NodeLines = (String, Result<Vec<String>, String>);

/// The lines of each node. If no node has any, the request has failed.
fn results(answers: Vec<NodeAnswer>) -> Result<Vec<NodeLines>, Problem> {
    let results: Vec<(String, NodeResult)> = answers.into_iter().map(NodeAnswer::into_result).collect();
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
        let results = act_results(answers(&[("a", Some("3\ndone\n")), ("b", None), ("c", Some("no: x\n"))])).unwrap();
        let seen: Vec<_> = results.iter().map(|it| (&*it.node, it.recipients, it.error.as_deref())).collect();
        assert_eq!(seen, [("a", Some(3), None), ("b", None, Some("no route")), ("c", None, Some("x"))]);
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
    fn a_long_list_of_a_node_is_cut_and_says_so() {
        let row = r#"{"id":"7-0-1","sender":"","recipient":"a@b.example"}"#;
        let lines = format!("{row}\n{row}\ndone\n");
        let refused = recipients(answers(&[("a", Some(&lines))]), 1).unwrap();
        // The row of a node with another version may lack members.
        assert_eq!((refused[0].recipients.is_none(), refused[0].error.is_some()), (true, true));
    }
}
