//! Certificates for the listeners from an authority that speaks ACME (RFC 8555): obtained, renewed, and
//! kept on disk.
//!
//! [`CertificateRenewer`] is a thread that does all of it; the answers to the authority's challenges are
//! in a [`net::ChallengeStore`], from which listeners give them. Nothing here is fatal: a certificate
//! that cannot be renewed stays in use, and the next attempt comes later each time (`schedule.rs`).
//!
//! | on disk, in the folder of the settings | |
//! |---|---|
//! | `NAME.pem` | the chain and the key of the certificate whose first name is NAME, replaced as a whole |
//! | `NAME.order` | an order that is being worked on, with its key: a restart goes on with it |
//! | `NAME.state` | who issued the certificate; the failures since, and when the next attempt is due |
//! | `account@HOST` | the account at the authority on that host |
//!
//! All of them are readable by the user of the server only.

mod authority_client;
mod file_store;
mod issuer;
mod placeholder;
mod renewer;
mod schedule;
mod settings;

pub use placeholder::{PlaceholderError, placeholder};
pub use renewer::{AcmeCertificateStatus, CertificateRenewer, RenewalPlan, RenewerParts};
pub use settings::{
    AcmeSettings, CertificateNames, ChallengeMethod, DirectoryUrl, ExternalAccountSettings, InvalidUrl,
};
