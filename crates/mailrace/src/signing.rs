//! Signing as the configuration wants it: the keys, and what signs mail of clients and notices.

use std::sync::Arc;
use std::time::SystemTime;

use anyhow::Context;
use config::Config;
use delivery::bounce::{NoticeSigner, SignatureFuture};
use filter::CheckFactory;
use intake::LoginPolicy;
use lookup::Table;
use mail::{Address, OperatorLog};
use sender_auth::signing::{
    AuthorRights, KeyRing, PrivateKey, RightsFuture, SevenBitCheck, Signer, SigningCheck, SigningCounters, SigningKey,
    SigningPolicy,
};

use crate::tables::OpenTables;

/// What signs.
#[derive(Clone)]
pub struct SigningParts {
    /// None: there are no keys.
    pub signer: Option<Arc<Signer>>,
    /// What was signed since the start.
    pub counters: Arc<SigningCounters>,
}

impl SigningParts {
    /// Reads the keys and starts the threads; `before` are the parts in use.
    ///
    /// # Errors
    ///
    /// A key cannot be read, or the system starts no thread.
    pub fn build(config: &Config, tables: &OpenTables, before: Option<&SigningParts>) -> anyhow::Result<SigningParts> {
        let counters = before.map_or_else(Arc::default, |before| before.counters.clone());
        if !config.signing.has_keys() {
            return Ok(SigningParts { signer: None, counters });
        }
        let settings = &config.signing;
        let keys = load_keys(config, key_table(config, tables))?;
        let signer = Signer::start(keys, &settings.threads, settings.expires_after, counters.clone());
        let signer = signer.context("starting the threads that sign")?;
        Ok(SigningParts { signer: Some(Arc::new(signer)), counters })
    }

    /// Reads the keys of an unchanged configuration again. Returns whether they have changed.
    pub fn reload_keys(&self, config: &Config, tables: &OpenTables) -> anyhow::Result<bool> {
        match &self.signer {
            Some(signer) => Ok(signer.replace_keys(load_keys(config, key_table(config, tables))?)),
            None => Ok(false),
        }
    }

    /// What was signed, for the metrics; None: there are no keys.
    pub fn counters_if_signing(&self) -> Option<Arc<SigningCounters>> {
        self.signer.as_ref().map(|_| self.counters.clone())
    }

    /// The checks that sign mail of clients and local programs.
    pub fn checks(
        &self,
        config: &Config,
        logins: Option<&LoginPolicy>,
        log: &Arc<dyn OperatorLog>,
    ) -> Vec<Arc<dyn CheckFactory>> {
        let Some(signer) = self.signer.clone() else { return Vec::new() };
        let owners = logins.filter(|logins| logins.senders.is_some());
        let rights = owners.map(|logins| Arc::new(SenderRights(logins.clone())) as Arc<dyn AuthorRights>);
        let (submitters, log) = (config.signing.submitters, log.clone());
        let policy = Arc::new(SigningPolicy { signer, submitters, rights, log });
        let conversion = config.signing.seven_bit.then(|| Arc::new(SevenBitCheck::new(policy.clone())));
        let conversion = conversion.map(|check| check as Arc<dyn CheckFactory>);
        conversion.into_iter().chain([Arc::new(SigningCheck { policy }) as Arc<dyn CheckFactory>]).collect()
    }

    /// What signs notices.
    pub fn notice_signer(&self, config: &Config, log: Arc<dyn OperatorLog>) -> Option<Arc<dyn NoticeSigner>> {
        let signer = self.signer.clone().filter(|_| config.signing.notices)?;
        Some(Arc::new(LoggingNoticeSigner { signer, log }))
    }
}

fn key_table(config: &Config, tables: &OpenTables) -> Option<Arc<dyn Table>> {
    config.signing.table.as_ref().and_then(|name| tables.find(name)).cloned()
}

/// The keys in files, and the table of others.
pub fn load_keys(config: &Config, table: Option<Arc<dyn Table>>) -> anyhow::Result<KeyRing> {
    let mut keys = Vec::with_capacity(config.signing.keys.len());
    for key in &config.signing.keys {
        let read = PrivateKey::load(&key.file);
        let read = read.with_context(|| format!("the key of {}, {}", key.domain, key.file.display()))?;
        keys.push((key.domain.clone(), SigningKey { selector: key.selector.clone(), key: Arc::new(read) }));
    }
    Ok(KeyRing::new(keys, table))
}

/// Users may write as the addresses that they may use as senders.
struct SenderRights(LoginPolicy);

impl AuthorRights for SenderRights {
    fn may_use<'a>(&'a self, user: &'a str, address: &'a Address) -> RightsFuture<'a> {
        Box::pin(self.0.may_use_address(user, address))
    }
}

struct LoggingNoticeSigner {
    signer: Arc<Signer>,
    log: Arc<dyn OperatorLog>,
}

impl NoticeSigner for LoggingNoticeSigner {
    fn sign<'a>(&'a self, notice: &'a [u8]) -> SignatureFuture<'a> {
        Box::pin(async move {
            match self.signer.sign_bytes(notice, SystemTime::now().into()).await {
                Ok(fields) => fields.iter().rev().flat_map(|field| field.wire().bytes()).collect(),
                Err(why) => {
                    self.log.log_line(format_args!("cannot sign a notice: {why}"));
                    Vec::new()
                }
            }
        })
    }
}
