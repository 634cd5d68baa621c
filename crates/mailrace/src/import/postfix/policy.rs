//! What Postfix is told and this server does by itself, and what it does not do at all.

use super::Conversion;
use super::restrictions;
use super::words::list;

/// Parameters for which nothing has to be said, and why.
const SAME: [(&str, &str); 43] = [
    ("alias_database", "tables are read as text; nothing has to be built"),
    ("allow_percent_hack", "a % in an address means nothing"),
    ("append_at_myorigin", "addresses are taken as they are"),
    ("append_dot_mydomain", "addresses are taken as they are"),
    ("biff", "nobody is told of new mail on a terminal"),
    ("command_directory", "a folder of Postfix's own"),
    ("compatibility_level", "a matter of Postfix's own versions"),
    ("config_directory", "a folder of Postfix's own"),
    ("daemon_directory", "a folder of Postfix's own"),
    ("data_directory", "a folder of Postfix's own; ours is data_dir"),
    ("debug_peer_level", "see [log]"),
    ("debugger_command", "there are no processes to be debugged"),
    ("default_database_type", "used to read the tables above"),
    ("default_process_limit", "sessions are no processes; limits.sessions bounds them"),
    ("disable_vrfy_command", "VRFY tells nothing of who exists"),
    ("enable_long_queue_ids", "queue ids are never used twice"),
    ("html_directory", "a folder of Postfix's own"),
    ("mail_owner", "`user` says who the server becomes"),
    ("mailq_path", "a file of Postfix's own"),
    ("manpage_directory", "a folder of Postfix's own"),
    ("meta_directory", "a folder of Postfix's own"),
    ("newaliases_path", "a file of Postfix's own"),
    ("queue_directory", "a folder of Postfix's own; ours is data_dir"),
    ("readme_directory", "a folder of Postfix's own"),
    ("sample_directory", "a folder of Postfix's own"),
    ("sendmail_path", "a file of Postfix's own"),
    ("setgid_group", "a group of Postfix's own"),
    ("shlib_directory", "a folder of Postfix's own"),
    ("anvil_rate_time_unit", "rates above are by this time"),
    ("broken_sasl_auth_clients", "the old form of AUTH is not told; LOGIN is spoken"),
    ("maps_rbl_reject_code", "a rule refuses with 5xx; with 4xx here, it puts off"),
    ("parent_domain_matches_subdomains", "keys of access tables are written as it says; see relay_domains, too"),
    ("smtpd_client_event_limit_exceptions", "`relay.networks` are exempt from these limits"),
    ("smtpd_delay_reject", "all rules that were made of restrictions are asked at RCPT"),
    ("smtpd_null_access_lookup_key", "no sender is <> in tables"),
    ("smtpd_reject_unlisted_recipient", "who does not exist is refused, always"),
    ("smtpd_restriction_classes", "they are filled in where lists name them"),
    ("smtpd_forbid_bare_newline", "a bare CR or LF is refused"),
    ("smtpd_helo_required", "a client introduces itself first"),
    ("smtpd_relay_before_recipient_restrictions", "only `relay.networks` may send elsewhere, always"),
    ("smtputf8_enable", "SMTPUTF8 is always there"),
    ("strict_rfc821_envelopes", "addresses are read strictly"),
    ("unknown_local_recipient_reject_code", "who does not exist is answered 550"),
];

/// Parameters that nothing stands for, and why or what to do. Those that end in `*` stand for all that begin so.
const LOST: [(&str, &str); 47] = [
    ("always_bcc", "nobody gets copies of others' mail"),
    ("recipient_bcc_maps", "nobody gets copies of others' mail"),
    ("sender_bcc_maps", "nobody gets copies of others' mail"),
    ("bounce_queue_lifetime", "bounces are tried as long as other mail: `lifetime` of `retry`"),
    ("canonical_maps", "addresses are not rewritten; `aliases` of a domain say who gets mail"),
    ("sender_canonical_maps", "addresses are not rewritten"),
    ("recipient_canonical_maps", "addresses are not rewritten; `aliases` of a domain say who gets mail"),
    ("masquerade_domains", "addresses are not rewritten"),
    ("smtp_generic_maps", "addresses are not rewritten"),
    ("relocated_maps", "who has moved is not told; an alias passes mail on"),
    ("content_filter", "mail is not filtered. Let the filter stand before this server, or behind it as a next hop"),
    ("receive_override_options", "there is no content filter"),
    ("smtpd_milters", "milters are not asked. Let a filter stand before this server"),
    ("non_smtpd_milters", "milters are not asked"),
    ("milter_*", "milters are not asked"),
    ("header_checks", "messages are not looked at; headers choose queues only, by `headers` of [[queue]]"),
    ("body_checks", "messages are not looked at"),
    ("mime_header_checks", "messages are not looked at"),
    ("nested_header_checks", "messages are not looked at"),
    ("smtp_header_checks", "messages are not looked at"),
    (
        "home_mailbox",
        "Maildirs are below one folder and belong to one user: `path` and `places` of [transport.maildir]",
    ),
    ("mail_spool_directory", "there are no mbox files; see `path` of [transport.maildir]"),
    ("mailbox_command", "mail is not given to programs; an LMTP server can do that"),
    ("mailbox_command_maps", "mail is not given to programs; an LMTP server can do that"),
    ("virtual_uid_maps", "all Maildirs belong to the user that the server runs as"),
    ("virtual_gid_maps", "all Maildirs belong to the user that the server runs as"),
    ("virtual_minimum_uid", "all Maildirs belong to the user that the server runs as"),
    ("forward_path", "files in home folders are not read; write an alias"),
    ("fallback_transport", "who does not exist is refused; `catch_all` takes all others of a domain"),
    ("smtp_fallback_relay", "mail that cannot be delivered waits and is tried again"),
    ("sender_dependent_relayhost_maps", "routes are by the recipient's domain"),
    ("sender_dependent_default_transport_maps", "routes are by the recipient's domain"),
    ("smtp_sasl_*", "this server does not log on to next hops; a relay host has to know it by its address"),
    ("smtpd_sasl_*", "there is no such setting; see [auth]"),
    (
        "smtpd_tls_*",
        "not read from Postfix; what this version has of TLS for clients stands in the list of all settings",
    ),
    ("smtp_tls_*", "TLS to next hops is `tls` of [transport.smtp]; it has no other settings"),
    ("tls_*", "there are no settings for this"),
    ("postscreen_*", "clients are not tested before they are let in; [limits] bounds what one may do"),
    ("smtpd_banner", "the greeting is the host name"),
    ("smtpd_proxy_*", "there is no filter in front of the queue"),
    ("smtpd_client_recipient_rate_limit", "messages of a client are counted, and not its recipients"),
    ("smtpd_client_auth_rate_limit", "logins that fail are counted: [auth.throttle]"),
    ("smtpd_client_new_tls_session_rate_limit", "connections of a client are counted, and not those with TLS"),
    (
        "smtpd_authorized_xforward_hosts",
        "what a proxy says of a client is not only logged here: `xclient_from` of [smtp]",
    ),
    ("smtpd_authorized_verp_clients", "`verp` of [bounce] is by sender"),
    ("rbl_reply_maps", "a client is told which list it is on"),
    ("default_rbl_reply", "a client is told which list it is on"),
];

/// Lists that are asked behind RCPT, or of other commands.
const LATE: [&str; 3] = ["smtpd_data_restrictions", "smtpd_end_of_data_restrictions", "smtpd_etrn_restrictions"];

/// Restrictions of the lists that are asked when the message is there, and what this server does by itself.
const RESTRICTIONS: [(&str, &str); 4] = [
    ("permit", "nothing comes behind it"),
    ("reject_unauth_pipelining", "commands beyond what PIPELINING allows are answered in their order"),
    ("permit_mynetworks", "no rule is asked then"),
    ("permit_sasl_authenticated", "no rule is asked then"),
];

impl Conversion<'_> {
    /// Gives a fate to every parameter that has none.
    pub(super) fn policy(&mut self) {
        let names: Vec<String> = self.main.settings().map(|(name, _)| name.to_owned()).collect();
        for name in names {
            if name.ends_with("_restrictions") && LATE.contains(&name.as_str()) {
                self.late_restrictions(&name);
            }
            if !self.draft.fates.contains_key(&name) {
                self.fate(&name);
            }
        }
        self.notices();
    }

    /// Lists that are asked behind RCPT.
    fn late_restrictions(&mut self, name: &str) {
        self.draft.lost(name, "rules are asked at RCPT and before; what becomes of each restriction stands below");
        for element in restrictions::elements(&self.values, name) {
            let known = RESTRICTIONS.iter().find(|(known, _)| *known == element.rule).map(|(_, does)| *does);
            let does = known.unwrap_or("no rule is asked then");
            self.draft.rules.push((format!("{name}: {}", element.text()), does.to_owned()));
            if known.is_none() {
                self.draft.look_at(format!("{name}: not all of its rules hold here; the end of this file tells which"));
            }
        }
    }

    fn fate(&mut self, name: &str) {
        if let Some((_, why)) = SAME.iter().find(|(same, _)| *same == name) {
            return self.draft.same(name, why);
        }
        let stands = |lost: &str| match lost.strip_suffix('*') {
            Some(beginning) => name.starts_with(beginning),
            None => lost == name,
        };
        if let Some((_, why)) = LOST.iter().find(|(lost, _)| stands(lost)) {
            return self.draft.lost(name, *why);
        }
        let used = format!("${name}");
        let other = [format!("${{{name}"), format!("$({name}")];
        let uses = |value: &str| value.contains(&used) || other.iter().any(|it| value.contains(it.as_str()));
        let mut of_services = self.master.services.iter().flat_map(|service| &service.overrides);
        match self.main.settings().any(|(_, value)| uses(value)) || of_services.any(|(_, value)| uses(value)) {
            true => self.draft.same(name, "filled in where other parameters name it"),
            false => self.draft.lost(name, "no setting is known that stands for it; see postconf(5) for what it did"),
        }
    }

    /// Who is told of what.
    fn notices(&mut self) {
        let Some(classes) = self.values.given("notify_classes") else { return };
        self.draft
            .lost("notify_classes", "the log tells; of mail that cannot even be returned also `double_bounces_to`");
        if list(&classes).iter().any(|class| class == "2bounce") {
            let given = self.values.given("2bounce_notice_recipient").unwrap_or_else(|| "postmaster".into());
            if let Ok(address) = super::text::target(&given, &self.site) {
                self.draft.set(
                    "[bounce]",
                    "double_bounces_to",
                    super::draft::quoted(&address),
                    "2bounce_notice_recipient",
                );
            }
        }
    }
}
