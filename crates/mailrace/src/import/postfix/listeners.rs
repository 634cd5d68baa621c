//! Where mail comes in: services of master.cf that run smtpd, on the addresses of `inet_interfaces`, and `mynetworks`.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr};
use std::path::Path;

use super::Conversion;
use super::draft::{Block, quoted, quoted_list};
use super::hops::port;
use super::lookups::Named;
use super::master_cf::Service;
use super::words::list;
use crate::config::Network;

impl Conversion<'_> {
    pub(super) fn listeners(&mut self) {
        let services = self.master.services.clone();
        let mut taken: Vec<SocketAddr> = Vec::new();
        for service in &services {
            let takes_mail = service.kind == "inet" && ["smtpd", "postscreen"].contains(&service.command.as_str());
            match takes_mail {
                true => self.listener(service, &mut taken),
                false => self.other_service(service),
            }
        }
        if services.is_empty() {
            for ip in self.interfaces() {
                taken.push(SocketAddr::new(ip, 25));
                self.add_listener(SocketAddr::new(ip, 25), "");
            }
        }
        if taken.is_empty() {
            self.draft.look_at("no service of master.cf takes mail from the network; the listener is a placeholder, for this machine only");
            self.add_listener(SocketAddr::from((Ipv4Addr::LOCALHOST, 2525)), "");
        }
        ["inet_interfaces", "inet_protocols"].iter().for_each(|name| self.draft.mapped(name));
    }

    fn listener(&mut self, service: &Service, taken: &mut Vec<SocketAddr>) {
        let what = format!("{} {} {} (master.cf)", service.name, service.kind, service.command);
        let (host, port_name) = match service.name.rsplit_once(':') {
            Some((host, port)) => (Some(host.trim_matches(['[', ']'])), port),
            None => (None, service.name.as_str()),
        };
        let submission = ["submission", "submissions", "smtps", "587", "465"].contains(&port_name);
        if submission {
            self.draft.look_at(
                "submission (ports 587 and 465) is not taken over: let Postfix, or another server, go on taking it",
            );
            self.draft
                .loss(what, "submission with passwords is not read from master.cf; see the manual of [[listener]]");
            return;
        }
        let Some(port) = port(port_name) else {
            self.draft.loss(what, "this port has no number here");
            return;
        };
        let addresses = match host {
            None | Some("") => self.interfaces(),
            Some(host) => match host.parse() {
                Ok(ip) => vec![ip],
                Err(_) => {
                    self.draft.loss(what, "expected an address; names are not looked up here");
                    return;
                }
            },
        };
        for ip in addresses {
            let address = SocketAddr::new(ip, port);
            if !taken.contains(&address) {
                taken.push(address);
                self.add_listener(address, &what);
            }
        }
        if service.command == "postscreen" {
            self.draft.loss(&what, "clients are not tested before they are let in; [limits] bounds what one may do");
        }
        for (name, value) in &service.overrides {
            self.draft.loss(format!("{what}: -o {name}={value}"), "one setting is for all listeners");
        }
    }

    fn add_listener(&mut self, address: SocketAddr, from: &str) {
        let block = Block::new("[[listener]]").key("protocol", quoted("smtp"), from);
        self.draft.add(block.key("address", quoted(&address.to_string()), "inet_interfaces"));
    }

    fn other_service(&mut self, service: &Service) {
        let own = [
            "pickup",
            "cleanup",
            "qmgr",
            "tlsmgr",
            "trivial-rewrite",
            "bounce",
            "verify",
            "flush",
            "proxymap",
            "smtp",
            "showq",
            "error",
            "discard",
            "local",
            "virtual",
            "lmtp",
            "anvil",
            "scache",
            "postlogd",
            "smtpd",
            "dnsblog",
            "tlsproxy",
            "oqmgr",
        ];
        let what = format!("{} {} {} (master.cf)", service.name, service.kind, service.command);
        for (name, value) in &service.overrides {
            self.draft.loss(format!("{what}: -o {name}={value}"), "settings of this service are not read");
        }
        if !own.contains(&service.command.as_str()) {
            let why = "no service here stands for it; mail is not given to programs, an LMTP server can do that";
            self.draft.loss(format!("{what} {}", service.arguments.join(" ")), why);
        }
    }

    /// The addresses at which mail is taken.
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
                        self.draft
                            .look_at(format!("inet_interfaces names {name}: write its address into a [[listener]]"));
                        self.draft
                            .loss(format!("inet_interfaces: {name}"), "a listener has an address; write it there");
                    }
                },
            }
        }
        addresses.retain(|ip| if ip.is_ipv4() { v4 } else { v6 });
        addresses
    }

    /// Who may send to other people's domains.
    pub(super) fn networks(&mut self) {
        let Some(value) = self.values.given("mynetworks") else {
            self.networks_by_style();
            return;
        };
        let mut networks = Vec::new();
        self.collect_networks(&value, &mut networks, 0);
        self.draft.set("[relay]", "networks", quoted_list(networks.iter().map(String::as_str)), "mynetworks");
        if self.main.value("mynetworks_style").is_some() {
            self.draft.same("mynetworks_style", "mynetworks says it");
        }
    }

    fn networks_by_style(&mut self) {
        let Some(style) = self.values.given("mynetworks_style") else {
            self.draft.look_at("mynetworks is not set: only this machine's loopback addresses may send elsewhere; Postfix let its other addresses, too");
            return;
        };
        match style.as_str() {
            "host" => {
                self.draft.same("mynetworks_style", "only this machine may send elsewhere, by its loopback addresses")
            }
            style => {
                self.draft
                    .lost("mynetworks_style", "write the networks into `relay.networks`: they are not found out here");
                self.draft.look_at(format!(
                    "mynetworks_style = {style}: write the networks that may send elsewhere into [relay]"
                ));
            }
        }
    }

    fn collect_networks(&mut self, text: &str, networks: &mut Vec<String>, depth: usize) {
        for element in list(text) {
            let plain = element.replace(['[', ']'], "");
            match plain.parse::<Network>() {
                Ok(_) if networks.contains(&plain) => {}
                Ok(_) => networks.push(plain),
                Err(_) if plain.starts_with("::ffff:") => {}
                Err(_) if element.starts_with('/') && depth == 0 => {
                    if let Some(text) = self.read(Path::new(&element)) {
                        let lines: String = super::main_cf::logical_lines(&text).join(" ");
                        self.collect_networks(&lines, networks, 1);
                    }
                }
                Err(_) => match Named::read(&element).and_then(|named| self.entries(&named, false)) {
                    Some(entries) if depth == 0 => {
                        entries.iter().for_each(|(key, _)| self.collect_networks(key, networks, 1));
                    }
                    _ => {
                        self.draft
                            .loss(format!("mynetworks: {element}"), "expected a network; write those that are meant");
                        self.draft.look_at("mynetworks has parts that are not networks; see what has no counterpart");
                    }
                },
            }
        }
    }
}
