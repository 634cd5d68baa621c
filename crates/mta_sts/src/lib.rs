//! MTA-STS (RFC 8461): the policies by which domains ask for verified TLS.
//!
//! A domain says by a TXT record that it has a policy, and publishes it by HTTPS. [`PolicyCache`]
//! finds the policy of a domain, keeps it in memory and on disk until it expires, and fetches it
//! anew before that. Whatever a policy host sends, the work is bounded in time, memory and disk
//! space; a policy that cannot be fetched changes nothing: the last one counts until it expires.
//! No error here is fatal, and mail never fails because of one.

mod cache;
mod cached_policy;
mod fetch;
mod policy;
mod record;
mod store;
mod turns;

pub use cache::{PolicyCache, StsLookup};
pub use cached_policy::CachedPolicy;
pub use fetch::{FETCH_TIME_MAX, FetchConfig, FetchError, POLICY_OCTETS_MAX, PolicyFetcher};
pub use policy::{MAX_AGE_MAX, MX_PATTERNS_MAX, Policy, PolicyError, PolicyMode, REPORTED_PATTERNS_MAX};
pub use record::{is_policy_record, policy_id};
pub use store::POLICIES_MAX;
pub use turns::FETCHES_PER_NETWORK_MAX;
