//! The policy services and milters, from `[[policy_service]]` and `[[milter]]`. Each reload makes them
//! anew; sessions keep those they began with.

use std::sync::Arc;

use config::Config;
use filter::access::AccessCheck;
use filter::milter::Milter;
use filter::policy::PolicyService;
use filter::{CheckFactory, ClientNames};
use mail::OperatorLog;

/// The policy services and then the milters, in their order. Policy services may name classes of the access
/// rules.
pub fn external_filters(
    config: &Config,
    access: Option<&Arc<AccessCheck>>,
    names: &Arc<dyn ClientNames>,
    log: &Arc<dyn OperatorLog>,
) -> Vec<Arc<dyn CheckFactory>> {
    let services = config.policy_services.iter().map(|settings| {
        let service = PolicyService::new(settings.clone(), names.clone(), log.clone());
        Arc::new(service.with_access_rules(access.cloned())) as Arc<dyn CheckFactory>
    });
    let size_max = config.limits.session.message_octets_max;
    let milters = config.milters.iter().map(|settings| {
        let (settings, hostname) = (settings.clone(), config.hostname.clone());
        Arc::new(Milter::new(settings, hostname, size_max, names.clone(), log.clone())) as Arc<dyn CheckFactory>
    });
    services.chain(milters).collect()
}
