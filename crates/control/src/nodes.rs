//! Requests to several nodes of a cluster: this one answers itself, and the others are asked through the
//! cluster, all at the same time. Each answer is that of the control socket, with its last line, so
//! that whoever asks sees which nodes have answered, and which have not and why.
//!
//! What a node does for another one is logged by the node that does it, with the name of the other.

use std::io::{self, Write};
use std::net::IpAddr;
use std::time::Instant;

use filter::limits::Quantity;
use serde::{Deserialize, Serialize};

use crate::cluster::NodeSilence;
use crate::current_handler::CurrentHandler;
use crate::handler::{ControlError, ControlHandler, ControlResult};
use crate::line_answer::write_answer;
use crate::request::ControlRequest;

/// The most bytes of a node's answer. One that would be longer is refused.
pub const NODE_ANSWER_BYTES_MAX: usize = 16 << 20;

/// What one node asks another.
#[derive(Debug, PartialEq, Eq, Serialize, Deserialize)]
struct NodeQuestion {
    /// Who asked the other node.
    by: String,
    /// The line of the request.
    request: String,
}

/// What a node has said.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct NodeAnswer {
    /// The name of the node.
    pub node: String,
    /// Its answer, with the last line; None: there is none.
    pub answer: Option<String>,
    /// Why there is none.
    pub error: Option<String>,
}

/// What an answer of a node amounts to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum NodeResult {
    /// Its lines.
    Lines(Vec<String>),
    /// The node refuses, for this reason.
    Refused(String),
    /// There is no answer, or not all of it.
    Missing(String),
}

impl NodeAnswer {
    /// The lines of the answer, if its last line says that it is all.
    pub(crate) fn into_result(self) -> (String, NodeResult) {
        let NodeAnswer { node, answer, error } = self;
        let Some(answer) = answer else {
            return (node, NodeResult::Missing(error.unwrap_or_else(|| "the node does not answer".to_owned())));
        };
        let mut lines: Vec<String> = answer.lines().map(str::to_owned).collect();
        let last = lines.pop().unwrap_or_default();
        let result = match last.split_once(": ") {
            _ if last == "done" => NodeResult::Lines(lines),
            Some(("no", why)) => NodeResult::Refused(why.to_owned()),
            Some(("failed", why)) => NodeResult::Missing(why.to_owned()),
            _ => NodeResult::Missing("the answer of the node was cut off".to_owned()),
        };
        (node, result)
    }
}

impl ControlHandler {
    /// Asks all nodes that are alive, or the named one. The answers are in the order of their names.
    pub(super) fn ask_nodes(
        &self,
        caller: &str,
        node: Option<&str>,
        request: &ControlRequest,
    ) -> ControlResult<Vec<NodeAnswer>> {
        if !request.is_for_nodes() {
            return Err(not_for_nodes());
        }
        let (cluster, line) = (self.cluster()?, request.to_string());
        let here = cluster.node();
        let mut answers = Vec::new();
        if node != Some(&here) {
            let question = NodeQuestion { by: format!("{caller} on node {here}"), request: line.clone() };
            let question = serde_json::to_vec(&question).map_err(io::Error::from)?;
            match cluster.ask(node, &question) {
                Ok(asked) => answers.extend(asked.into_iter().map(|(node, answer)| {
                    node_answer(node, answer.map_err(|silence| silence_text(&silence, request.is_change())))
                })),
                Err(why) => answers.push(unknown_nodes(&why)),
            }
        }
        if node.is_none_or(|node| node == here) {
            let own = bounded_answer(|out| write_answer(self, &line, caller, out));
            answers.push(node_answer(here, Ok(own)));
        }
        answers.sort_by(|a, b| a.node.cmp(&b.node));
        Ok(answers)
    }
}

impl CurrentHandler {
    /// Counts a login that has failed on another node.
    pub fn count_failed_login(&self, user: &str, client: IpAddr) {
        if let Some(logins) = &self.current().parts.intake.logins {
            logins.credentials.count_failure_elsewhere(user, client);
        }
    }

    /// Counts what a key of a limit has used on another node.
    pub fn count_limit_use(&self, limit: &str, quantity: &str, key: [u8; 16], cost: u64) {
        let quantity = Quantity::ALL.into_iter().find(|it| it.name() == quantity);
        if let (Some(limits), Some(quantity)) = (&self.current().parts.intake.rate_limits, quantity) {
            limits.count_elsewhere(limit, quantity, key, cost, Instant::now());
        }
    }

    /// The answer to a question of another node.
    pub fn answer_node(&self, question: &[u8]) -> Vec<u8> {
        let question = serde_json::from_slice::<NodeQuestion>(question).ok();
        let known =
            question.filter(|question| question.request.parse().is_ok_and(|it: ControlRequest| it.is_for_nodes()));
        match known {
            Some(NodeQuestion { by, request }) => {
                bounded_answer(|out| write_answer(&self.current(), &request, &by, out))
            }
            None => format!("no: {}\n", not_for_nodes()).into(),
        }
    }
}

/// Why there is no answer. Of a change it says what is known about its effect.
fn silence_text(silence: &NodeSilence, is_change: bool) -> String {
    match silence {
        NodeSilence::NotBegun(why) if is_change => format!("{why}; nothing was done there"),
        NodeSilence::Unfinished(why) if is_change => format!("{why}; it is not known whether it was done there"),
        NodeSilence::NotBegun(why) | NodeSilence::Unfinished(why) => why.clone(),
    }
}

/// What stands for nodes that nobody knows now: this one can still answer.
fn unknown_nodes(why: &str) -> NodeAnswer {
    NodeAnswer { node: "others".into(), answer: None, error: Some(format!("other nodes cannot be asked: {why}")) }
}

fn not_for_nodes() -> ControlError {
    ControlError::Refused("this node does not take this request for other nodes".into())
}

fn node_answer(node: String, answer: Result<Vec<u8>, String>) -> NodeAnswer {
    let answer = answer.and_then(|bytes| String::from_utf8(bytes).map_err(|_| "the answer is not text".to_owned()));
    match answer {
        Ok(answer) => NodeAnswer { node, answer: Some(answer), error: None },
        Err(error) => NodeAnswer { node, answer: None, error: Some(error) },
    }
}

/// What is written, or a refusal if it is too long.
fn bounded_answer(write: impl FnOnce(&mut BoundedBuffer) -> io::Result<()>) -> Vec<u8> {
    let mut out = BoundedBuffer::default();
    match write(&mut out) {
        Ok(()) => out.0,
        Err(error) if error.kind() == io::ErrorKind::FileTooLarge => {
            let text = "no: the answer is longer than a node may send: give a filter, or ask on the node itself\n";
            text.into()
        }
        Err(error) => format!("failed: {error}\n").into(),
    }
}

/// Takes at most [`NODE_ANSWER_BYTES_MAX`].
#[derive(Default)]
struct BoundedBuffer(Vec<u8>);

impl Write for BoundedBuffer {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        if self.0.len() + bytes.len() > NODE_ANSWER_BYTES_MAX {
            return Err(io::ErrorKind::FileTooLarge.into());
        }
        self.0.extend_from_slice(bytes);
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_is_too_long_is_refused_whole() {
        let answer = |lines: usize| bounded_answer(|out| (0..lines).try_for_each(|_| out.write_all(&[b'x'; 1 << 10])));
        assert_eq!(answer(2).len(), 2 << 10);
        assert_eq!(answer(16 << 10).len(), NODE_ANSWER_BYTES_MAX);
        let refused = String::from_utf8(answer((16 << 10) + 1)).unwrap();
        assert!(refused.starts_with("no: the answer is longer") && refused.ends_with('\n'), "{refused}");
    }

    #[test]
    fn an_answer_is_complete_only_with_its_last_line() {
        let result = |answer: &str| node_answer("a".into(), Ok(answer.into())).into_result().1;
        assert_eq!(result("1\n2\ndone\n"), NodeResult::Lines(vec!["1".into(), "2".into()]));
        assert_eq!(result("no: such queue\n"), NodeResult::Refused("such queue".into()));
        assert_eq!(result("1\nfailed: stopping\n"), NodeResult::Missing("stopping".into()));
        for text in ["", "1\n", "done: x\n"] {
            assert!(matches!(result(text), NodeResult::Missing(_)), "{text:?}");
        }
    }

    #[test]
    fn an_act_without_an_answer_says_whether_it_can_have_been_done() {
        let (not_begun, unfinished) = (NodeSilence::NotBegun("x".into()), NodeSilence::Unfinished("x".into()));
        let texts = [(&not_begun, true), (&unfinished, true), (&unfinished, false)];
        let texts = texts.map(|(silence, is_change)| silence_text(silence, is_change));
        assert_eq!(texts, ["x; nothing was done there", "x; it is not known whether it was done there", "x"]);
    }

    #[test]
    fn an_answer_that_is_not_text_is_none() {
        let answer = node_answer("a".into(), Ok(vec![0xff]));
        assert_eq!((answer.answer, answer.error.as_deref()), (None, Some("the answer is not text")));
    }
}
