//! One question to a policy service, and its answer. A connection that the service has closed while it
//! was idle is replaced once.

use std::io;

use protocol::policy::{AnswerReader, InvalidPolicyAction, PolicyViolation};
use tokio::time::timeout;

use super::PolicyService;
use crate::action_edit::InvalidActionEdit;
use crate::service::{PooledConnection, ServiceStream};

const INPUT_OCTETS: usize = 2 << 10;

/// Why a policy service could not decide.
#[derive(Debug, thiserror::Error)]
pub(super) enum PolicyFailure {
    #[error("no connection in time; all of them may be in use")]
    NoConnection,
    #[error("no answer in time")]
    NoAnswer,
    #[error("closed the connection")]
    Closed,
    #[error("{0}")]
    Io(#[from] io::Error),
    #[error("{0}")]
    Violation(#[from] PolicyViolation),
    #[error("{0}")]
    Action(#[from] InvalidPolicyAction),
    #[error("answered with {0}")]
    Edit(#[from] InvalidActionEdit),
}

/// Asks the service. The answer is the text of its action.
pub(super) async fn ask(service: &PolicyService, request: &[u8]) -> Result<String, PolicyFailure> {
    loop {
        let connected = timeout(service.settings.connect_time_max, service.pool.connect()).await;
        let PooledConnection { mut stream, state, permit } = connected.map_err(|_| PolicyFailure::NoConnection)??;
        let answered = timeout(service.settings.answer_time_max, exchange(&mut stream, request)).await;
        match answered.map_err(|_| PolicyFailure::NoAnswer)? {
            Ok(answer) => {
                service.pool.keep(stream, (), permit);
                return Ok(answer);
            }
            Err(PolicyFailure::Closed | PolicyFailure::Io(_)) if state.is_some() => {}
            Err(failure) => return Err(failure),
        }
    }
}

async fn exchange(stream: &mut ServiceStream, request: &[u8]) -> Result<String, PolicyFailure> {
    let mut rest = request;
    while !rest.is_empty() {
        let count = stream.write(rest).await?;
        rest = &rest[count..];
    }
    let (mut reader, mut input) = (AnswerReader::default(), Vec::with_capacity(INPUT_OCTETS));
    loop {
        if stream.read(&mut input).await? == 0 {
            return Err(PolicyFailure::Closed);
        }
        if let Some(action) = reader.handle_input(&input)? {
            return Ok(action);
        }
        input.clear();
    }
}
