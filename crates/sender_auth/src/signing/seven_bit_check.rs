//! Conversion to 7 bits of what is to be signed (RFC 6376 section 5.3): a next hop without 8BITMIME would
//! get the message converted, and the signature would be void.
//!
//! Only messages with octets above 127 are read. The converted message is made in memory: of a budget
//! for all sessions, and only up to [`CONTENT_BYTES_MAX`]. What is larger, or nested too deep, is signed
//! as it is.

use std::sync::Arc;
use std::time::Duration;

use filter::{
    Check, CheckFactory, CheckFuture, CheckOrder, CheckedMessage, Edit, Origin, SessionInfo, Stages, Verdict,
};
use protocol::mime::seven_bit::{SevenBitConverter, SevenBitScan};
use tokio::sync::{Semaphore, SemaphorePermit};

use super::content::{read_content, read_header};
use super::policy::{Deferral, SigningPolicy};

/// The largest content that is converted.
const CONTENT_BYTES_MAX: u64 = 8 << 20;
/// Content that is converted at the same time, in units.
const BUDGET_UNITS: usize = 64 << 10;
const UNIT_BYTES: u64 = 1 << 10;
/// How long a message waits for its share of the budget.
const WAIT_MAX: Duration = Duration::from_secs(10);

/// Makes the checks that convert.
pub struct SevenBitCheck {
    policy: Arc<SigningPolicy>,
    budget: Semaphore,
}

impl SevenBitCheck {
    /// Converts what this policy signs.
    pub fn new(policy: Arc<SigningPolicy>) -> SevenBitCheck {
        SevenBitCheck { policy, budget: Semaphore::new(BUDGET_UNITS) }
    }
}

impl CheckFactory for SevenBitCheck {
    fn order(&self) -> CheckOrder {
        CheckOrder::SevenBitConversion
    }

    fn stages(&self, origin: Origin) -> Stages {
        self.policy.stages(origin)
    }

    fn start(self: Arc<Self>) -> Box<dyn Check> {
        Box::new(MessageConversion(self))
    }
}

/// The check of one session, which keeps nothing of it.
struct MessageConversion(Arc<SevenBitCheck>);

impl Check for MessageConversion {
    fn message<'a>(&'a mut self, session: &'a SessionInfo<'a>, message: &'a mut dyn CheckedMessage) -> CheckFuture<'a> {
        Box::pin(async move {
            let is_convertible = message.is_eight_bit() && message.content_len() <= CONTENT_BYTES_MAX;
            if !is_convertible || !self.0.policy.includes(session.submitter) {
                return Verdict::default();
            }
            match self.0.convert(session, message).await {
                Ok(edit) => Verdict { edits: edit.into_iter().collect(), ..Verdict::default() },
                Err(why) => self.0.policy.defer(&why),
            }
        })
    }
}

impl SevenBitCheck {
    /// The edit that converts the message; None: it is not to be signed, or stays as it is.
    async fn convert(
        &self,
        session: &SessionInfo<'_>,
        message: &mut dyn CheckedMessage,
    ) -> Result<Option<Edit>, Deferral> {
        let Some((header, _)) = read_header(message).await? else { return Ok(None) };
        if self.policy.begin(session.submitter, &header).await?.is_none() {
            return Ok(None);
        }
        let _share = self.share(message.content_len()).await?;
        let mut scan = SevenBitScan::new();
        read_content(message, 0, |bytes| scan.handle_input(bytes)).await?;
        let Ok(plan) = scan.finish() else { return Ok(None) };
        if plan.is_identity() {
            return Ok(None);
        }
        let (mut converter, mut converted) = (SevenBitConverter::new(Arc::new(plan)), Vec::new());
        read_content(message, 0, |bytes| converter.handle_input(bytes, &mut converted)).await?;
        converter.finish(&mut converted);
        Ok(Some(Edit::ReplaceContent(converted)))
    }

    async fn share(&self, bytes: u64) -> Result<SemaphorePermit<'_>, Deferral> {
        let units = u32::try_from(bytes.div_ceil(UNIT_BYTES)).unwrap_or(u32::MAX);
        let acquired = tokio::time::timeout(WAIT_MAX, self.budget.acquire_many(units)).await;
        let share = acquired.ok().and_then(Result::ok);
        share.ok_or_else(|| Deferral("too many messages are being converted to 7 bits".into()))
    }
}
