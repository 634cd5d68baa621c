//! One attempt at a certificate: an order at the authority, from the account to the chain on disk
//! (RFC 8555 section 7.4).
//!
//! | the order is | then |
//! |---|---|
//! | placed | it is remembered on disk, with the key that the certificate will have |
//! | pending | the challenges are answered, until the authority has seen them all |
//! | ready | the names are signed with the key, and the certificate requested |
//! | processing | waited for |
//! | valid | the chain is checked, and replaces the certificate with its key |
//! | invalid, or unknown to the authority | forgotten: the next attempt places another one |
//!
//! An attempt can be dropped, or killed, at any time: the next one goes on with the same order. One that
//! turns out to be dead is replaced in the same attempt. This blocks on disk I/O.

use std::fs;
use std::io;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

use base64::Engine;
use base64::engine::general_purpose::URL_SAFE_NO_PAD;
use instant_acme::{
    Account, AccountBuilder, AuthorizationStatus, Error, ExternalAccountKey, Identifier, NewAccount, NewOrder, Order,
    OrderStatus, RetryPolicy,
};
use net::{Certificate, ChallengeError, ChallengeStore, PendingChallenge, TrustedRootsError};
use rcgen::{CertificateParams, DistinguishedName, KeyPair};

use crate::authority_client::AuthorityClient;
use crate::file_store::{FileStore, InstallError, StoredAccount, StoredOrder};
use crate::placeholder::challenge_certificate;
use crate::settings::{AcmeSettings, CertificateNames, ChallengeMethod};

/// How long the authority may take to check the names, and to issue the certificate; asked with growing
/// waits, or when it says.
const PATIENCE: RetryPolicy =
    RetryPolicy::new().initial_delay(Duration::from_millis(500)).backoff(1.5).timeout(Duration::from_secs(180));
/// How often an attempt is repeated because the authority wants another nonce. Each request has been
/// repeated twice by then; the next attempt goes on with the same order.
const NONCE_RETRIES: usize = 3;
/// What errors are called (RFC 8555 section 6.7).
const ERROR_URN: &str = "urn:ietf:params:acme:error:";

/// Why there is no certificate.
#[derive(Debug, thiserror::Error)]
pub(crate) enum IssueError {
    /// The authority, or the way to it.
    #[error("{0}")]
    Authority(#[from] Error),
    #[error("the authority offers no {method} challenge for {name}")]
    NoChallenge { method: &'static str, name: String },
    #[error("the authority cannot verify {name}: {why}")]
    Unverified { name: String, why: String },
    #[error("the authority refuses the order without a reason")]
    Refused,
    #[error(transparent)]
    Challenges(#[from] ChallengeError),
    #[error(transparent)]
    Roots(#[from] TrustedRootsError),
    #[error("unable to write to {}: {error}", folder.display())]
    Files { folder: PathBuf, error: io::Error },
    #[error("unable to use the key in {}: {why}", path.display())]
    ExternalKey { path: PathBuf, why: String },
    #[error("unable to make a key or a certificate of our own: {0}")]
    Key(#[from] rcgen::Error),
    #[error(transparent)]
    Chain(InstallError),
}

impl IssueError {
    /// Whether nothing more can come of the order.
    fn ends_order(&self) -> bool {
        match self {
            IssueError::Authority(Error::Api(_)) => {
                !["rateLimited", "serverInternal", "badNonce"].into_iter().any(|temporary| self.is_problem(temporary))
            }
            IssueError::NoChallenge { .. }
            | IssueError::Unverified { .. }
            | IssueError::Refused
            | IssueError::Chain(_)
            | IssueError::Key(_) => true,
            _ => false,
        }
    }

    /// Whether the authority calls it by this name.
    fn is_problem(&self, name: &str) -> bool {
        let IssueError::Authority(Error::Api(problem)) = self else { return false };
        problem.r#type.as_deref().and_then(|kind| kind.strip_prefix(ERROR_URN)) == Some(name)
    }
}

/// What an attempt needs.
pub(crate) struct Issuer<'a> {
    pub(crate) settings: &'a AcmeSettings,
    pub(crate) challenges: &'a Arc<ChallengeStore>,
    pub(crate) client: AuthorityClient,
}

impl Issuer<'_> {
    /// Obtains a certificate, and puts it in its file. An account that the authority has forgotten is
    /// made anew.
    pub(crate) async fn obtain(&self, names: &CertificateNames) -> Result<Certificate, IssueError> {
        self.store().create().map_err(|error| self.files(error))?;
        match self.attempt_with_any_nonce(names).await {
            Err(error) if error.is_problem("accountDoesNotExist") => {
                self.store().remove_account();
                self.attempt_with_any_nonce(names).await
            }
            attempted => attempted,
        }
    }

    async fn attempt_with_any_nonce(&self, names: &CertificateNames) -> Result<Certificate, IssueError> {
        for _ in 0..NONCE_RETRIES {
            match self.attempt(names).await {
                Err(error) if error.is_problem("badNonce") => {}
                attempted => return attempted,
            }
        }
        self.attempt(names).await
    }

    async fn attempt(&self, names: &CertificateNames) -> Result<Certificate, IssueError> {
        let account = self.account().await?;
        if let Some((order, key)) = self.open_order(&account, names).await? {
            match self.complete(order, &key, names).await {
                Err(error) if error.ends_order() => {}
                completed => return completed,
            }
        }
        let (order, key) = self.place_order(&account, names).await?;
        self.complete(order, &key, names).await
    }

    async fn account(&self) -> Result<Account, IssueError> {
        let contacts: Vec<String> = self.settings.contacts.iter().map(|contact| format!("mailto:{contact}")).collect();
        let contact_refs: Vec<&str> = contacts.iter().map(String::as_str).collect();
        let Some(mut stored) = self.store().account() else {
            return self.new_account(&contact_refs).await;
        };
        let Ok(credentials) = serde_json::from_value(stored.credentials.clone()) else {
            return self.new_account(&contact_refs).await;
        };
        let account = self.account_builder().from_credentials(credentials).await?;
        if stored.contacts != contacts {
            account.update_contacts(&contact_refs).await?;
            stored.contacts = contacts;
            self.store().save_account(&stored).map_err(|error| self.files(error))?;
        }
        Ok(account)
    }

    async fn new_account(&self, contacts: &[&str]) -> Result<Account, IssueError> {
        // The configuration is not valid unless the operator accepts the terms.
        let wanted = NewAccount { contact: contacts, terms_of_service_agreed: true, only_return_existing: false };
        let directory = self.settings.directory.to_string();
        let external = self.external_key()?;
        let (account, credentials) =
            self.account_builder().create(&wanted, directory.clone(), external.as_ref()).await?;
        let contacts = contacts.iter().map(ToString::to_string).collect();
        let credentials = serde_json::to_value(&credentials).map_err(Error::from)?;
        let stored = StoredAccount { directory, contacts, credentials };
        self.store().save_account(&stored).map_err(|error| self.files(error))?;
        Ok(account)
    }

    fn account_builder(&self) -> AccountBuilder {
        Account::builder_with_http(Box::new(self.client.clone()))
    }

    fn external_key(&self) -> Result<Option<ExternalAccountKey>, IssueError> {
        let Some(external) = &self.settings.external_account else { return Ok(None) };
        let unusable = |why: String| IssueError::ExternalKey { path: external.key_file.clone(), why };
        let text = fs::read_to_string(&external.key_file).map_err(|error| unusable(error.to_string()))?;
        let key = URL_SAFE_NO_PAD.decode(text.trim().trim_end_matches('='));
        let key = key.map_err(|_| unusable("it is not base64url".into()))?;
        Ok(Some(ExternalAccountKey::new(external.key_id.clone(), &key)))
    }

    /// The order that an earlier attempt has left, if the authority still knows it.
    async fn open_order(
        &self,
        account: &Account,
        names: &CertificateNames,
    ) -> Result<Option<(Order, KeyPair)>, IssueError> {
        let Some(stored) = self.store().order(names) else { return Ok(None) };
        let Ok(key) = KeyPair::from_pem(&stored.key) else { return Ok(None) };
        match account.order(stored.url).await.map_err(IssueError::from) {
            Ok(mut order) => Ok((order.state().status != OrderStatus::Invalid).then_some((order, key))),
            Err(error) if error.ends_order() => Ok(None),
            Err(error) => Err(error),
        }
    }

    async fn place_order(&self, account: &Account, names: &CertificateNames) -> Result<(Order, KeyPair), IssueError> {
        let old_key = if self.settings.reuses_key { self.store().key(names) } else { None };
        let key = old_key.map_or_else(KeyPair::generate, Ok)?;
        let identifiers: Vec<Identifier> = names.iter().map(|name| Identifier::Dns(name.to_string())).collect();
        let order = account.new_order(&NewOrder::new(&identifiers)).await?;
        let stored = StoredOrder {
            directory: self.settings.directory.to_string(),
            names: names.clone(),
            url: order.url().to_owned(),
            key: key.serialize_pem(),
        };
        self.store().save_order(&stored).map_err(|error| self.files(error))?;
        Ok((order, key))
    }

    /// Takes an order to its end. It is forgotten unless the next attempt can go on with it.
    async fn complete(
        &self,
        mut order: Order,
        key: &KeyPair,
        names: &CertificateNames,
    ) -> Result<Certificate, IssueError> {
        let chain = self.chain(&mut order, key, names).await;
        let installed = chain.and_then(|chain| {
            let installed = self.store().install(names, &chain, &key.serialize_pem(), SystemTime::now());
            installed.map_err(|error| match error {
                InstallError::Io(error) => self.files(error),
                unusable => IssueError::Chain(unusable),
            })
        });
        if installed.as_ref().map_or_else(IssueError::ends_order, |_| true) {
            self.store().remove_order(names);
        }
        installed
    }

    async fn chain(&self, order: &mut Order, key: &KeyPair, names: &CertificateNames) -> Result<String, IssueError> {
        if order.state().status == OrderStatus::Pending {
            // The answers are there until the authority has seen them.
            let _answers = self.answer_challenges(order).await?;
            match order.poll_ready(&PATIENCE).await {
                Ok(OrderStatus::Ready) => {}
                Ok(_) | Err(Error::Api(_)) => return Err(refusal(order).await),
                Err(error) => return Err(error.into()),
            }
        }
        if order.state().status == OrderStatus::Ready {
            let mut params = CertificateParams::new(names.iter().map(ToString::to_string).collect::<Vec<_>>())?;
            params.distinguished_name = DistinguishedName::new();
            order.finalize_csr(params.serialize_request(key)?.der()).await?;
        }
        Ok(order.poll_certificate(&PATIENCE).await?)
    }

    /// Prepares the answer to each challenge, and tells the authority to ask.
    async fn answer_challenges(&self, order: &mut Order) -> Result<Vec<PendingChallenge>, IssueError> {
        let method = self.settings.challenge;
        let mut pending = Vec::new();
        let mut authorizations = order.authorizations();
        while let Some(authorization) = authorizations.next().await {
            let mut authorization = authorization?;
            if authorization.status != AuthorizationStatus::Pending {
                continue;
            }
            let name = authorization.identifier().to_string();
            let Some(mut challenge) = authorization.challenge(method.challenge_type()) else {
                return Err(IssueError::NoChallenge { method: method.name(), name });
            };
            let answer = challenge.key_authorization();
            pending.push(match method {
                ChallengeMethod::Http01 => self.challenges.add_http(&challenge.token, answer.as_str())?,
                ChallengeMethod::TlsAlpn01 => {
                    let (certificate, key) = challenge_certificate(&name, answer.digest().as_ref())?;
                    self.challenges.add_tls(&name.to_ascii_lowercase(), certificate, key)?
                }
            });
            challenge.set_ready().await?;
        }
        Ok(pending)
    }

    fn store(&self) -> FileStore<'_> {
        FileStore(self.settings)
    }

    fn files(&self, error: io::Error) -> IssueError {
        IssueError::Files { folder: self.settings.folder.clone(), error }
    }
}

/// Why the order is invalid: the error of the first challenge that failed.
async fn refusal(order: &mut Order) -> IssueError {
    let mut authorizations = order.authorizations();
    while let Some(authorization) = authorizations.next().await {
        let Ok(mut authorization) = authorization else { continue };
        let Ok(state) = authorization.refresh().await else { continue };
        if let Some(problem) = state.challenges.iter().find_map(|challenge| challenge.error.as_ref()) {
            let why = problem.detail.clone().unwrap_or_else(|| problem.to_string());
            return IssueError::Unverified { name: state.identifier().to_string(), why };
        }
    }
    IssueError::Refused
}

#[cfg(test)]
mod tests {
    use instant_acme::Problem;

    use super::*;

    fn problem(kind: &str) -> IssueError {
        let kind = Some(format!("{ERROR_URN}{kind}"));
        Error::Api(Problem { r#type: kind, detail: None, status: None, subproblems: Vec::new() }).into()
    }

    #[test]
    fn an_order_ends_with_what_the_authority_says_about_it() {
        for kind in ["unauthorized", "badCSR", "malformed", "orderNotReady"] {
            assert!(problem(kind).ends_order(), "{kind}");
        }
        for kind in ["rateLimited", "serverInternal", "badNonce"] {
            assert!(!problem(kind).ends_order(), "{kind}");
        }
        assert!(!IssueError::from(Error::Timeout(None)).ends_order());
        assert!(IssueError::Refused.ends_order());
    }
}
