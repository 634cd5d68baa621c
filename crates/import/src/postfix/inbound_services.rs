//! The services in master.cf that receive mail, with their own settings in place of those in
//! main.cf. This file evaluates them; `listeners` writes them.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};

use super::Conversion;
use super::delivery_methods::port;
use super::main_cf::MainCf;
use super::master_cf::Service;
use super::restrictions::{ClientKind, LISTS, RestrictionLists};
use super::words::list;
use crate::ip_net::{IpNet, intersection};

/// The ports for users.
const USER_PORTS: [u16; 2] = [587, 465];
/// Settings of a service that are evaluated here or not needed.
const READ: [&str; 31] = [
    "content_filter",
    "smtpd_authorized_xforward_hosts",
    "smtpd_data_restrictions",
    "smtpd_end_of_data_restrictions",
    "smtpd_proxy_filter",
    "milter_macro_daemon_name",
    "smtpd_milters",
    "mynetworks",
    "postscreen_access_list",
    "postscreen_blacklist_action",
    "postscreen_denylist_action",
    "postscreen_dnsbl_action",
    "postscreen_dnsbl_sites",
    "postscreen_dnsbl_threshold",
    "postscreen_greet_action",
    "postscreen_greet_wait",
    "postscreen_upstream_proxy_protocol",
    "smtpd_enforce_tls",
    "smtpd_reject_unlisted_recipient",
    "smtpd_sasl_auth_enable",
    "smtpd_sasl_path",
    "smtpd_sasl_security_options",
    "smtpd_sasl_tls_security_options",
    "smtpd_sasl_type",
    "smtpd_sender_login_maps",
    "smtpd_tls_auth_only",
    "smtpd_tls_security_level",
    "smtpd_tls_wrappermode",
    "smtpd_upstream_proxy_protocol",
    "smtpd_use_tls",
    "syslog_name",
];

/// The required level of TLS.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum TlsLevel {
    Never,
    Offered,
    Required,
}

/// A service that receives mail.
#[derive(Clone, Debug)]
pub(super) struct InboundService {
    /// The service, for comments.
    pub(super) description: String,
    pub(super) addresses: Vec<SocketAddr>,
    /// Its settings.
    pub(super) main: MainCf,
    pub(super) lists: RestrictionLists,
    /// Whether users may log in.
    pub(super) has_logins: bool,
    pub(super) tls_level: TlsLevel,
    /// TLS from the first byte.
    pub(super) implicit_tls: bool,
    /// Load balancers send PROXY headers.
    pub(super) expects_proxy_protocol: bool,
    pub(super) uses_postscreen: bool,
    /// The content filter sends mail back to it.
    pub(super) is_from_filter: bool,
    /// The networks in its `mynetworks`.
    pub(super) networks: Vec<IpNet>,
}

impl InboundService {
    fn listens_on(&self, ports: &[u16]) -> bool {
        self.addresses.iter().any(|address| ports.contains(&address.port()))
    }

    /// Whether only this machine can reach it.
    pub(super) fn is_local(&self) -> bool {
        !self.addresses.is_empty() && self.addresses.iter().all(|address| address.ip().is_loopback())
    }

    /// Whether it is for users, who log in.
    pub(super) fn is_submission(&self) -> bool {
        let is_meant = self.implicit_tls || self.listens_on(&USER_PORTS);
        let takes_users_alone =
            self.lists.rejects_all_from(ClientKind::Untrusted) && !self.lists.rejects_all_from(ClientKind::User);
        self.has_logins && (is_meant || takes_users_alone && !self.listens_on(&[25]))
    }

    /// The networks that may send to other domains.
    fn relay_networks(&self) -> Vec<IpNet> {
        if self.lists.may_relay(ClientKind::Network) { self.networks.clone() } else { Vec::new() }
    }
}

/// The networks that may relay through all services. Services for users do not count; a service on
/// the loopback interface counts only for this machine.
pub(super) fn common_relay_networks(inbound_services: &[InboundService]) -> Vec<IpNet> {
    let (mut relays, mut is_first) = (Vec::new(), true);
    let counted = || inbound_services.iter().filter(|inbound| !inbound.is_submission() && !inbound.is_from_filter);
    for inbound in counted().filter(|door| !door.is_local()) {
        relays = if is_first { inbound.relay_networks() } else { intersection(&relays, &inbound.relay_networks()) };
        is_first = false;
    }
    for inbound in counted().filter(|door| door.is_local()) {
        let own = inbound.relay_networks();
        match is_first {
            true => relays = own,
            false => {
                let is_heard = |net: &IpNet| inbound.addresses.iter().any(|address| address.is_ipv4() == net.is_v4());
                let is_here =
                    |net: &IpNet| is_heard(net) && IpNet::loopback().iter().any(|loopback| loopback.covers(net));
                relays.retain(|net| !is_here(net) || own.iter().any(|other| other.covers(net)));
            }
        }
        is_first = false;
    }
    relays
}

impl Conversion<'_> {
    /// Evaluates all services.
    pub(super) fn find_inbound_services(&mut self) {
        let services = self.master.services.clone();
        let mut taken: Vec<SocketAddr> = Vec::new();
        for service in &services {
            let takes_mail = service.kind == "inet" && ["smtpd", "postscreen"].contains(&service.command.as_str());
            // The service to which postscreen passes clients is read with postscreen.
            if takes_mail {
                self.read_inbound_service(service, &mut taken);
            }
        }
        if services.is_empty() {
            let addresses = self.interfaces().into_iter().map(|ip| SocketAddr::new(ip, 25)).collect();
            self.add_inbound_service("", addresses, &[], false);
        }
        ["inet_interfaces", "inet_protocols"].iter().for_each(|name| self.draft.mapped(name));
    }

    fn read_inbound_service(&mut self, service: &Service, taken: &mut Vec<SocketAddr>) {
        let what = format!("{} {} {} (master.cf)", service.name, service.kind, service.command);
        let (host, port_name) = match service.name.rsplit_once(':') {
            Some((host, port)) => (Some(host.trim_matches(['[', ']'])), port),
            None => (None, service.name.as_str()),
        };
        let Some(port) = port(port_name) else {
            return self.skip_service(what, "its port name is unknown");
        };
        let ips = match host {
            None | Some("") => self.interfaces(),
            Some(host) => match host.parse() {
                Ok(ip) => vec![ip],
                Err(_) => return self.skip_service(what, "it listens on a host name, and a listener needs an address"),
            },
        };
        let mut addresses: Vec<SocketAddr> = ips.into_iter().map(|ip| SocketAddr::new(ip, port)).collect();
        addresses.retain(|address| !taken.contains(address));
        taken.extend(&addresses);
        let is_screened = service.command == "postscreen";
        let mut overrides = service.overrides.clone();
        let behind = self.master.services.iter().find(|it| is_screened && it.kind == "pass" && it.command == "smtpd");
        overrides.extend(behind.into_iter().flat_map(|it| it.overrides.clone()));
        self.add_inbound_service(&what, addresses, &overrides, is_screened);
    }

    /// Reports a service without a listener.
    pub(super) fn skip_service(&mut self, what: String, why: &str) {
        self.draft.add_behavior_change(format!(
            "Mail for {what} is not accepted, because there is no listener for it: {why}."
        ));
        self.draft.add_unsupported(what, why);
    }

    fn add_inbound_service(
        &mut self,
        what: &str,
        addresses: Vec<SocketAddr>,
        overrides: &[(String, String)],
        is_screened: bool,
    ) {
        let is_from_filter = self.is_from_filter(&addresses, overrides);
        for (name, value) in overrides.iter().filter(|_| !is_from_filter) {
            if !READ.contains(&name.as_str()) && !LISTS.contains(&name.as_str()) {
                self.draft.add_unsupported(
                    format!("{what}: -o {name}={value}"),
                    "settings apply to all listeners, with the value in main.cf",
                );
                if let Some(alarm) = super::policy::behavior_change_of(name, value) {
                    self.draft.add_behavior_change(format!("{alarm}, at {what}."));
                }
            }
        }
        let main = self.main.with_overrides(overrides);
        let values = self.values.with_main_cf(&main);
        let is_yes = |name: &str| values.value(name).eq_ignore_ascii_case("yes");
        let level = match values.value("smtpd_tls_security_level").as_str() {
            "" if is_yes("smtpd_enforce_tls") => TlsLevel::Required,
            "" if is_yes("smtpd_use_tls") => TlsLevel::Offered,
            "" | "none" => TlsLevel::Never,
            "may" => TlsLevel::Offered,
            _ => TlsLevel::Required,
        };
        let balanced = ["smtpd_upstream_proxy_protocol", "postscreen_upstream_proxy_protocol"];
        let lists = RestrictionLists::read(&values);
        let (has_logins, is_wrapped) = (is_yes("smtpd_sasl_auth_enable"), is_yes("smtpd_tls_wrappermode"));
        let is_balanced = !values.value(balanced[usize::from(is_screened)]).is_empty();
        let mynetworks = values.explicit_value("mynetworks");
        let networks = match mynetworks {
            Some(value) => self.network_list("mynetworks", &value),
            None => IpNet::loopback(),
        };
        let what = what.to_owned();
        let inbound = InboundService {
            description: what,
            addresses,
            main,
            lists,
            has_logins,
            tls_level: level,
            implicit_tls: is_wrapped,
            expects_proxy_protocol: is_balanced,
            uses_postscreen: is_screened,
            is_from_filter,
            networks,
        };
        self.inbound_services.push(inbound);
    }

    /// Whether a service takes mail that the content filter has passed.
    fn is_from_filter(&self, addresses: &[SocketAddr], overrides: &[(String, String)]) -> bool {
        let has = |wanted: &str, is_wanted: fn(&str) -> bool| {
            overrides.iter().any(|(name, value)| name == wanted && is_wanted(value))
        };
        let is_set_off = has("content_filter", str::is_empty);
        let is_behind_proxy = !has("smtpd_proxy_filter", |value| !value.is_empty())
            && (has("smtpd_proxy_filter", str::is_empty) || has("smtpd_authorized_xforward_hosts", |_| true));
        let is_for_others =
            addresses.iter().any(|address| address.port() == 25 || USER_PORTS.contains(&address.port()));
        let is_local = addresses.iter().all(|address| address.ip().is_loopback());
        !is_for_others
            && (is_set_off && (is_local || self.has_filter("content_filter"))
                || is_behind_proxy && is_local && self.has_filter("smtpd_proxy_filter"))
    }

    /// Whether main.cf or a service sets this filter.
    fn has_filter(&self, parameter: &str) -> bool {
        let is_set = |(name, value): &(String, String)| name == parameter && !value.is_empty();
        self.values.explicit_value(parameter).is_some_and(|value| !value.is_empty())
            || self.master.services.iter().flat_map(|service| &service.overrides).any(is_set)
    }

    /// The service whose restrictions become rules: the first that is not only for users.
    pub(super) fn main_inbound_service(&self) -> Option<&InboundService> {
        self.inbound_services
            .iter()
            .find(|inbound| !inbound.is_submission() && !inbound.is_local() && !inbound.is_from_filter)
            .or(self.inbound_services.first())
    }

    /// The addresses on which mail is received.
    fn interfaces(&mut self) -> Vec<IpAddr> {
        let (v4, v6) = match self.values.value("inet_protocols").as_str() {
            "ipv4" => (true, false),
            "ipv6" => (false, true),
            _ => (true, true),
        };
        let mut addresses: Vec<IpAddr> = Vec::new();
        for interface in list(&self.values.value("inet_interfaces")) {
            match interface.as_str() {
                "all" => addresses.extend([IpAddr::from(Ipv4Addr::UNSPECIFIED), Ipv6Addr::UNSPECIFIED.into()]),
                "loopback-only" | "localhost" => {
                    addresses.extend([IpAddr::from(Ipv4Addr::LOCALHOST), Ipv6Addr::LOCALHOST.into()])
                }
                name => match name.trim_matches(['[', ']']).parse() {
                    Ok(ip) => addresses.push(ip),
                    Err(_) => {
                        self.draft.add_behavior_change(format!(
                            "Mail to the interface {name} is not accepted, because inet_interfaces names no address \
                             for it: add a [[listener]]."
                        ));
                    }
                },
            }
        }
        addresses.retain(|ip| if ip.is_ipv4() { v4 } else { v6 });
        addresses
    }
}
