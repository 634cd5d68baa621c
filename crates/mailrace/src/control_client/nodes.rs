//! Requests that concern all nodes of a cluster. A server that stands alone answers for itself.
//!
//! | a node | what is shown |
//! |---|---|
//! | answers | its answer, below a line with its name |
//! | refuses, does not answer, or is cut off | an error with its name, after the answers of the others |
//!
//! With such an error, the exit code is that of a server that does not answer. If all nodes refuse, that is
//! the answer.

use serde_json::Value;

use control::adaptive_text;
use control::nodes::NodeAnswer;
use control::request::ControlRequest;
use control::unreadable_row::split_unreadable;

use super::{ControlClientError, print, request_text, rows, split_status};
use crate::cli::NodeArgs;
use crate::exit::{self, ExitError};
use config::Config;

/// What one server has answered.
pub(super) struct ServerAnswer {
    /// The node; None: the server stands alone.
    pub(super) node: Option<String>,
    /// Its answer, without the last line.
    pub(super) text: String,
}

/// The answers of all that were asked.
pub(super) struct ServerAnswers {
    answers: Vec<ServerAnswer>,
    /// The nodes without an answer, and why there is none.
    missing: Vec<(String, ExitError)>,
}

/// Asks the server, or all nodes of its cluster, or one of them.
pub(super) fn ask(config: &Config, node: &NodeArgs, request: ControlRequest) -> anyhow::Result<ServerAnswers> {
    let socket = &config.admin.socket;
    if config.cluster.is_none() {
        if node.name.is_some() {
            let text = "--node needs a cluster: there is no [cluster] in the configuration".into();
            return Err(ExitError { code: exit::USAGE, text }.into());
        }
        let answers = vec![ServerAnswer { node: None, text: request_text(socket, &request)? }];
        return Ok(ServerAnswers { answers, missing: Vec::new() });
    }
    let request = ControlRequest::Nodes { node: node.name.clone(), request: Box::new(request) };
    let mut all = ServerAnswers { answers: Vec::new(), missing: Vec::new() };
    for answer in rows::<NodeAnswer>(&request_text(socket, &request)?)? {
        all.add(answer);
    }
    match all.answers.is_empty() {
        true => Err(all.into_error()),
        false => Ok(all),
    }
}

impl ServerAnswers {
    fn add(&mut self, NodeAnswer { node, answer, error }: NodeAnswer) {
        let unavailable = |text| ExitError { code: exit::UNAVAILABLE, text };
        let Some(answer) = answer else {
            let text = error.unwrap_or_else(|| format!("node {node} does not answer"));
            return self.missing.push((node, unavailable(text)));
        };
        match split_status(answer.into_bytes(), None) {
            Ok(text) => {
                self.answers.push(ServerAnswer { node: Some(node), text: String::from_utf8_lossy(&text).into() })
            }
            Err(ControlClientError::Failed(ExitError { code, text })) => {
                let text = format!("node {node}: {text}");
                self.missing.push((node, ExitError { code, text }));
            }
            Err(ControlClientError::NoServer(error)) => {
                let text = format!("node {node}: {error}");
                self.missing.push((node, unavailable(text)));
            }
        }
    }

    /// Takes the number of messages that were left out from the end of each answer, and returns their sum.
    pub(super) fn take_unreadable(&mut self) -> usize {
        let take = |answer: &mut ServerAnswer| {
            let (rows, unreadable) = split_unreadable(&answer.text);
            answer.text.truncate(rows.len());
            unreadable
        };
        self.answers.iter_mut().map(take).sum()
    }

    /// The answers, in the order of the names of their nodes.
    pub(super) fn iter(&self) -> impl Iterator<Item = &ServerAnswer> {
        self.answers.iter()
    }

    /// Nodes that say no have nothing to do with what was asked, if another one has.
    pub(super) fn without_refusals(mut self) -> Self {
        self.missing.retain(|(_, error)| error.code != exit::NEGATIVE);
        self
    }

    /// Prints what `lines` makes of each answer, below the name of its node, and reports the nodes that
    /// have none.
    pub(super) fn print(self, lines: impl Fn(&ServerAnswer) -> anyhow::Result<Vec<String>>) -> anyhow::Result<()> {
        for answer in &self.answers {
            print(answer.node.iter().map(|node| format!("# node {node}")))?;
            print(lines(answer)?)?;
        }
        self.finish()
    }

    /// Prints each row as a JSON object, with the name of its node.
    pub(super) fn print_json_rows(self) -> anyhow::Result<()> {
        for answer in &self.answers {
            let named = |mut row: Value| {
                if let (Some(node), Some(members)) = (&answer.node, row.as_object_mut()) {
                    members.insert("node".into(), node.as_str().into());
                }
                row.to_string()
            };
            match answer.node {
                Some(_) => print(rows::<Value>(&answer.text)?.into_iter().map(named))?,
                None => print(answer.text.lines())?,
            }
        }
        self.finish()
    }

    /// Prints these metrics with the adaptive values of the same nodes.
    pub(super) fn print_with(self, adaptive: &ServerAnswers, as_json: bool) -> anyhow::Result<()> {
        let adapted = |node: &Option<String>| adaptive.iter().find(|answer| answer.node == *node);
        let values =
            |answer: &ServerAnswer| rows::<Value>(adapted(&answer.node).map_or("", |found| found.text.as_str()));
        if !as_json {
            return self.print(|answer| Ok(adaptive_text::status_text(&values(answer)?, &rows(&answer.text)?)));
        }
        for answer in &self.answers {
            let mut status = adaptive_text::status_json(&values(answer)?, &rows(&answer.text)?);
            if let Some(node) = &answer.node {
                status["node"] = node.as_str().into();
            }
            print([status.to_string()])?;
        }
        self.finish()
    }

    /// Reports the nodes that have not answered.
    ///
    /// # Errors
    ///
    /// There are some.
    pub(super) fn finish(self) -> anyhow::Result<()> {
        match self.missing.is_empty() {
            true => Ok(()),
            false => Err(self.into_error()),
        }
    }

    /// If all nodes were asked and refuse, what they say is the answer.
    fn into_error(self) -> anyhow::Error {
        let is_refused = self.answers.is_empty() && self.missing.iter().all(|(_, error)| error.code == exit::NEGATIVE);
        let code = if is_refused { exit::NEGATIVE } else { exit::UNAVAILABLE };
        let texts: Vec<String> = self.missing.into_iter().map(|(_, error)| error.text).collect();
        ExitError { code, text: texts.join("; ") }.into()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answers(of_nodes: &[(&str, Result<&str, &str>)]) -> ServerAnswers {
        let mut all = ServerAnswers { answers: Vec::new(), missing: Vec::new() };
        for (node, answer) in of_nodes {
            let (answer, error) = (answer.ok().map(str::to_owned), answer.err().map(str::to_owned));
            all.add(NodeAnswer { node: (*node).into(), answer, error });
        }
        all
    }

    fn error(all: ServerAnswers) -> (u8, String) {
        let exit = all.into_error().downcast::<ExitError>().unwrap();
        (exit.code, exit.text)
    }

    #[test]
    fn a_node_that_does_not_answer_is_named() {
        let all = answers(&[("a", Ok("1\ndone\n")), ("b", Err("node b does not answer: no answer within 5s"))]);
        assert_eq!(all.iter().map(|answer| answer.text.as_str()).collect::<Vec<_>>(), ["1\n"]);
        assert_eq!(error(all), (exit::UNAVAILABLE, "node b does not answer: no answer within 5s".into()));
    }

    #[test]
    fn messages_that_nodes_cannot_read_are_added_up_and_are_no_rows() {
        let mut all = answers(&[("a", Ok("1\n{\"unreadable\":2}\ndone\n")), ("b", Ok("{\"unreadable\":1}\ndone\n"))]);
        assert_eq!(all.take_unreadable(), 3);
        assert_eq!(all.iter().map(|answer| answer.text.as_str()).collect::<Vec<_>>(), ["1\n", ""]);
        assert_eq!(all.take_unreadable(), 0);
    }

    #[test]
    fn an_answer_that_is_cut_off_is_none() {
        let all = answers(&[("a", Ok("1\n2"))]);
        assert_eq!(error(all), (exit::UNAVAILABLE, "node a: the server's answer is truncated".into()));
    }

    #[test]
    fn a_refusal_of_all_is_the_answer_and_one_of_some_says_nothing_about_a_message() {
        let refused = [("a", Ok("no: no such message\n")), ("b", Ok("no: no such message\n"))];
        assert_eq!(
            error(answers(&refused)),
            (exit::NEGATIVE, "node a: no such message; node b: no such message".into())
        );
        let found = answers(&[("a", Ok("text\ndone\n")), refused[1]]);
        assert!(found.without_refusals().finish().is_ok());
    }
}
