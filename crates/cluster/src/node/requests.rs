//! Requests of operators that reach this node through another one, and those that it sends to others.
//!
//! A request is begun only after the node that sent it has said that it still waits for the answer. So what was
//! reported as not done is not done later, however long the request was on its way or waited here, and whatever the
//! clocks of the nodes say.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use futures_util::StreamExt;
use futures_util::future::join_all;
use tokio::sync::Semaphore;
use tokio::task::spawn_blocking;
use tokio::time::{sleep, timeout};

use super::{ClusterNode, NodeShared, RETRY_DELAY};
use crate::{AskError, NodeName, NodeRequest, StreamError};

/// How long all nodes together may take to answer. A request that waits here for longer is dropped.
const ANSWER_TIME_MAX: Duration = Duration::from_secs(5);
/// Requests of other nodes that are answered at the same time. Others wait.
const CONCURRENT_MAX: usize = 4;

/// Answers the request of another node. It is called on blocking threads.
pub type AnswerRequest = Arc<dyn Fn(&[u8]) -> Vec<u8> + Send + Sync>;

/// The nodes that were asked, each with its answer.
pub type NodeAnswers = Vec<(NodeName, Result<Bytes, AskError>)>;

impl ClusterNode {
    /// Answers what other nodes ask, from now on. Called once.
    pub fn serve_requests(&self, answer: AnswerRequest) {
        self.thread.handle().spawn(serve(self.shared.clone(), answer));
    }

    /// Sends a question to another node, or to all others that are alive, at the same time.
    ///
    /// # Errors
    ///
    /// The servers do not say which nodes there are.
    pub fn ask(&self, node: Option<NodeName>, question: &[u8]) -> Result<NodeAnswers, StreamError> {
        let nodes = match node {
            Some(node) => vec![node],
            None => self.nodes()?.into_iter().map(|(name, _)| name).filter(|name| name != self.name()).collect(),
        };
        let (connection, question) = (&self.shared.connection, Bytes::copy_from_slice(question));
        let ask = async |node: NodeName| {
            let answer = connection.ask(&node, question.clone(), ANSWER_TIME_MAX).await;
            (node, answer)
        };
        Ok(self.thread.handle().block_on(join_all(nodes.into_iter().map(ask))))
    }
}

/// Takes requests, for ever.
async fn serve(shared: Arc<NodeShared>, answer: AnswerRequest) {
    let places = Arc::new(Semaphore::new(CONCURRENT_MAX));
    loop {
        if let Ok(requests) = shared.connection.requests().await {
            let mut requests = Box::pin(requests);
            while let Some(request) = requests.next().await {
                tokio::spawn(answer_one(request, answer.clone(), places.clone()));
            }
        }
        sleep(RETRY_DELAY).await;
    }
}

async fn answer_one(request: NodeRequest, answer: AnswerRequest, places: Arc<Semaphore>) {
    // The semaphore is never closed.
    let Ok(Ok(_place)) = timeout(ANSWER_TIME_MAX, places.acquire()).await else { return };
    if !request.is_awaited().await {
        return;
    }
    let payload = request.payload.clone();
    if let Ok(bytes) = spawn_blocking(move || answer(&payload)).await {
        request.answer(bytes.into()).await;
    }
}
