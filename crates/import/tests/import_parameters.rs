//! No parameter is ignored silently: each one that affects mail is translated, or the import
//! reports its effect. A parameter with Postfix's default value causes no report.

use std::io;
use std::path::Path;

use config::Config;
use import::postfix::import;
use import::{FileReader, ImportResult};

const OWN: &str = "compatibility_level = 3.6\nmydestination =\nmyorigin = example.com\nmyhostname = mx.example.com\nrelayhost = [192.0.2.1]\n";
const MASTER: &str = "smtp inet n - y - - smtpd\nsmtp unix - - y - - smtp\nscan unix - - n - - smtp\n";

struct Tables;

impl FileReader for Tables {
    fn text(&self, path: &Path) -> io::Result<String> {
        let text = match path.to_str() {
            Some("/etc/passwd") => "bob:x:1000:1000::/home/bob:/bin/sh\n",
            Some("/etc/aliases") => "postmaster: bob\n",
            Some("/map") => "a@v.example b@v.example\n",
            Some("/routes") => {
                "hosts = 127.0.0.1\ndbname = mail\nquery = SELECT transport FROM routes WHERE name = '%s'\n"
            }
            Some("/passwords") => "[192.0.2.1] a:b\n",
            _ => return Err(io::Error::new(io::ErrorKind::NotFound, "no such file")),
        };
        Ok(text.to_owned())
    }
}

fn convert(main: &str) -> ImportResult {
    let made = import(main, MASTER, "mx.example.com", &Tables, Path::new("/etc/mailrace/mailrace-tables"));
    if let Err(faults) = Config::parse(&made.text, "mailrace.toml", "mx.example.com") {
        panic!("{faults}\n{}", made.text);
    }
    made
}

/// The result for some lines of main.cf.
enum Expected {
    /// The new files contain this text, and there is no report.
    Text(&'static str),
    /// This is reported.
    Alarm(&'static str),
}

use Expected::{Alarm, Text};

const LOCAL: &str = "mydestination = example.com\n";
const VIRTUAL: &str = "virtual_mailbox_domains = v.example\nvirtual_mailbox_maps = hash:/map\n";

const CASES: &[(&str, &[&str], Expected)] = &[
    ("virtual_alias_domains = v.example\nvirtual_alias_maps = hash:/map", &[], Text("name = \"v.example\"")),
    (
        "virtual_alias_domains = v.example\nvirtual_alias_maps = inline:{@v.example=b@x.example}",
        &[],
        Text("@v.example  "),
    ),
    ("virtual_alias_maps = hash:/map", &[], Alarm("Mail to a@v.example gets 450")),
    ("local_recipient_maps =", &[LOCAL], Text("mailboxes = \"users\"")),
    ("local_recipient_maps =\nluser_relay = bob", &[LOCAL], Text("catch_all = \"bob@example.com\"")),
    ("local_recipient_maps =\nluser_relay = $user@other.example", &[LOCAL], Alarm("Mail to unknown users")),
    ("mailbox_command = /usr/bin/procmail", &[LOCAL], Alarm("example.com waits in the queue (451)")),
    ("mailbox_command_maps = hash:/map", &[LOCAL], Alarm("example.com waits in the queue (451)")),
    ("home_mailbox = Maildir/", &[LOCAL], Alarm("Mail to users of this machine")),
    (
        "mailbox_transport = lmtp:unix:private/dovecot",
        &[LOCAL],
        Text("next_hop = \"unix:/var/spool/postfix/private/dovecot\""),
    ),
    ("mailbox_transport = maildrop", &[LOCAL], Alarm("example.com waits in the queue (451)")),
    ("fallback_transport = smtp:[x.example]", &[LOCAL], Alarm("Mail to users that are not in local_recipient_maps")),
    (
        "virtual_transport = lmtp:unix:private/dovecot",
        &[VIRTUAL],
        Text("next_hop = \"unix:/var/spool/postfix/private/dovecot\""),
    ),
    ("virtual_transport = dovecot", &[VIRTUAL], Alarm("v.example waits in the queue (451)")),
    ("virtual_mailbox_base =", &[VIRTUAL], Alarm("Mail to virtual_mailbox_domains goes into Maildirs")),
    (
        "virtual_mailbox_maps = mysql:/etc/postfix/m.cf",
        &["virtual_mailbox_domains = v.example\nvirtual_mailbox_base = /v\n"],
        Alarm("gets 451 until the table"),
    ),
    (
        "virtual_mailbox_domains = mysql:/etc/postfix/m.cf",
        &[],
        Alarm("Mail to every domain that is not in this file gets 451"),
    ),
    ("smtpd_recipient_restrictions = permit_mynetworks, reject_unauth_destination", &[], Text("always")),
    ("smtpd_recipient_restrictions = reject_unauth_destination, permit_mynetworks", &[], Text("networks = []")),
    (
        "smtpd_recipient_restrictions = reject_unauth_destination, check_recipient_access inline:{a@v.example=REJECT}",
        &[],
        Text("recipients_in"),
    ),
    (
        "smtpd_recipient_restrictions = check_recipient_access mysql:/m.cf",
        &[],
        Alarm("All mail that its rule applies to gets 451"),
    ),
    (
        "smtpd_recipient_restrictions = check_policy_service unix:private/p",
        &[],
        Text("address = \"unix:/var/spool/postfix/private/p\""),
    ),
    (
        "smtpd_recipient_restrictions = reject_unverified_recipient, reject_unknown_sender_domain",
        &[],
        Text("sender_is = [\"unknown\"]"),
    ),
    ("smtpd_client_restrictions = reject_unknown_client_hostname", &[], Text("reverse_name = [")),
    ("smtpd_helo_restrictions = reject_non_fqdn_helo_hostname", &[], Text("helo_is = [\"not_qualified\"]")),
    ("smtpd_client_recipient_rate_limit = 30", &[], Text("recipients = \"30/60s\"")),
    ("smtpd_data_restrictions = reject_multi_recipient_bounce", &[], Text("recipients_min = 2")),
    ("smtpd_data_restrictions = check_sender_access static:REJECT", &[], Text("stage = \"data\"")),
    ("smtpd_end_of_data_restrictions = check_client_access static:HOLD", &[], Text("stage = \"message\"")),
    ("smtpd_data_restrictions = check_recipient_access static:REJECT", &[], Alarm("gets 451 until you remove")),
    ("smtpd_data_restrictions = check_recipient_access static:OK", &[], Alarm("it permitted is checked by later")),
    ("smtpd_sender_restrictions = check_sender_mx_access static:REJECT", &[], Alarm("gets 451 until you remove")),
    ("smtpd_sender_restrictions = reject_unverified_sender", &[], Alarm("with senders = [\"@*\"] that reaches")),
    ("smtpd_client_restrictions = check_reverse_client_hostname_access static:REJECT", &[], Text("reverse_names_in")),
    ("smtpd_client_restrictions = check_client_access inline:{x.example=REJECT}", &[], Text("client_names_in")),
    ("smtpd_client_restrictions = check_client_access inline:{192.0.2.1=REJECT}", &[], Text("clients_in")),
    (
        "smtpd_recipient_restrictions = reject_unverified_recipient",
        &["relay_domains = r.example\n"],
        Alarm("@*.r.example"),
    ),
    (
        "smtpd_recipient_restrictions = reject_unknown_recipient_domain, permit_mynetworks, reject_unauth_destination",
        &[],
        Alarm("returned to its sender"),
    ),
    (
        "smtpd_recipient_restrictions = permit_mynetworks, reject_unauth_destination, reject_unknown_recipient_domain",
        &[],
        Text("reject_unknown_recipient_domain"),
    ),
    ("smtpd_etrn_restrictions = reject", &[], Text("there is no ETRN")),
    (
        "smtpd_sender_restrictions = check_sender_access inline:{{x.example=FILTER smtp:[192.0.2.7]}}",
        &[],
        Text("FILTER filter:"),
    ),
    ("smtpd_end_of_data_restrictions = check_policy_service unix:p", &[], Text("stages = [\"message\"]")),
    ("smtpd_milters = inet:localhost:8891", &[], Text("address = \"localhost:8891\"")),
    ("smtpd_milters = local:odd/sock", &[], Text("address = \"unix:/var/spool/postfix/odd/sock\"")),
    ("non_smtpd_milters = inet:localhost:8891", &[], Text("clients = [\"0.0.0.0/32\"]")),
    // A file with these addresses could not be read.
    ("smtpd_milters = inet:odd*host:8891", &[], Alarm("gets 451 until its [[milter]] has an address")),
    ("smtpd_client_restrictions = check_policy_service inet:127*.0.0.1:10023", &[], Alarm("gets 451")),
    ("smtpd_milters = odd:8891", &[], Alarm("gets 451 until its [[milter]] has an address")),
    ("content_filter = scan:[127.0.0.1]:10024", &[], Text("[content_filter]\ntransport = \"filter\"")),
    ("message_drop_headers = bcc, received", &[], Text("^(?:bcc|received)")),
    ("recipient_delimiter = +", &[], Text("^(?:bcc|content")),
    ("smtpd_proxy_filter = 127.0.0.1:10024", &[], Alarm("is returned to its sender")),
    ("recipient_delimiter = +", &[LOCAL], Text("delimiter = \"+\"")),
    ("recipient_delimiter = +-", &[LOCAL], Alarm("Mail to addresses with a tag")),
    ("address_verify_map = btree:/v", &[], Text("address_verify_map")),
    ("sender_dependent_relayhost_maps = inline:{a@v.example=[192.0.2.9]}", &[], Text("sender_transports = ")),
    ("sender_dependent_relayhost_maps = hash:/map", &[], Alarm("other domains from a@v.example waits")),
    ("sender_dependent_default_transport_maps = hash:/map", &[], Alarm("other domains from a@v.example waits")),
    (
        "smtp_sasl_auth_enable = yes\nsmtp_sasl_password_maps = hash:/passwords",
        &[],
        Text("auth = { user = \"a\", password_file = "),
    ),
    ("smtp_sasl_auth_enable = yes", &[], Alarm("Mail to next hops that require a password")),
    ("header_checks = regexp:/h", &[], Alarm("All mail gets 451 until you replace")),
    ("body_checks = regexp:/h", &[], Alarm("All mail gets 451 until you replace")),
    ("mime_header_checks = regexp:/h", &[], Alarm("All mail gets 451 until you replace")),
    ("smtp_header_checks = regexp:/h", &[], Alarm("is sent with its header")),
    ("always_bcc = archive@example.com", &[], Text("always = \"archive@example.com\"")),
    ("recipient_bcc_maps = hash:/map", &[], Text("recipient_table = ")),
    ("sender_bcc_maps = hash:/map", &[], Text("sender_table = ")),
    ("masquerade_domains = example.com", &[], Text("masquerade = [\"example.com\"]")),
    ("canonical_maps = hash:/map", &[], Text("\ncanonical = ")),
    ("recipient_canonical_maps = hash:/map", &[], Text("recipient_canonical = ")),
    ("sender_canonical_maps = hash:/map", &[], Text("sender_canonical = ")),
    ("smtp_generic_maps = hash:/map", &[], Text("\ngeneric = \"map\"")),
    ("smtp_generic_maps = hash:/missing", &[], Alarm("Mail that its transports send waits in the queue")),
    (
        "smtp_generic_maps = hash:/map\nrecipient_delimiter = +\npropagate_unmatched_extensions = generic",
        &[],
        Alarm("An address with a tag loses it"),
    ),
    ("relocated_maps = hash:/map", &[], Text("550 5.1.6 User has moved to")),
    ("relocated_maps = ldap:/t.cf", &[], Alarm("its entries cannot be read")),
    ("soft_bounce = yes", &[], Alarm("gets 5xx and bounces")),
    ("defer_transports = smtp", &[], Alarm("is delivered, not held")),
    ("smtp_fallback_relay = [x.example]", &[], Alarm("waits, and bounces")),
    ("smtp_tls_policy_maps = hash:/map", &[], Alarm("is sent with the same TLS settings")),
    ("smtp_tls_security_level = dane", &[], Text("tls = \"offered\"")),
    ("smtp_tls_security_level = dane\nsmtp_dns_support_level = dnssec", &[], Text("validating = true")),
    ("smtp_tls_security_level = dane-only", &[], Alarm("certificate of a trusted authority")),
    ("smtp_tls_security_level = secure", &[], Text("tls = \"verified\"")),
    ("smtp_tls_security_level = verify", &[], Text("tls_names = [\"*\"]")),
    ("smtp_tls_security_level = secure\nsmtp_tls_CAfile = /ca.pem", &[], Text("tls_ca_file = \"/ca.pem\"")),
    ("smtp_enforce_tls = yes", &[], Text("tls = \"required\"")),
    ("relay_domains = r.example", &[], Text("/\\.r\\.example$/ x")),
    ("relay_domains = r.example\nparent_domain_matches_subdomains =", &[], Text("name = \"r.example\"")),
    ("default_transport = scan:[192.0.2.7]", &[], Text("next_hop = \"[192.0.2.7]\"")),
    ("default_transport = uucp", &[], Alarm("other domains waits in the queue (451)")),
    ("relayhost = [a b]", &[], Alarm("other domains waits in the queue (451)")),
    ("transport_maps = ldap:/t.cf", &[], Alarm("waits in the queue until the table")),
    ("mynetworks = 127.0.0.0/8, host.example", &[], Alarm("\"host.example\" in mynetworks")),
    ("mynetworks_style = subnet", &[], Alarm("this machine's networks")),
    ("message_size_limit = 0", &[], Alarm("gets 552")),
    ("authorized_submit_users = root", &[], Alarm("Mail of all local users is accepted")),
    ("smtpd_sasl_auth_enable = yes", &[], Alarm("Users cannot log in")),
    ("made_up_parameter = 5", &[], Alarm("The effect of made_up_parameter on mail is unknown")),
    ("my_own = 5\nlocal_transport = $my_own", &[], Text("expanded in the parameters that use it")),
];

#[test]
fn what_treats_mail_in_its_own_way_is_translated_or_told() {
    let mut faults = Vec::new();
    for (lines, with, makes) in CASES {
        let main = [OWN, &with.concat(), lines, "\n"].concat();
        let before = convert(&[OWN, &with.concat()].concat());
        let import = convert(&main);
        let files = import.files.iter().map(|file| &*file.text);
        let text: String = std::iter::once(&*import.text).chain(files).collect();
        let new: Vec<_> =
            import.behavior_changes.iter().filter(|alarm| !before.behavior_changes.contains(alarm)).collect();
        let is_right = match makes {
            Text(words) => new.is_empty() && text.contains(words),
            Alarm(words) => import.behavior_changes.iter().any(|it| it.contains(words)),
        };
        if !is_right {
            faults.push(format!("{lines}: {new:#?}"));
        }
        for alarm in &import.behavior_changes {
            let head = import.text.split("\n\n").next().unwrap_or_default().replace("\n#   ", "").replace("\n# ", " ");
            let begin: String = alarm.split_whitespace().take(4).collect::<Vec<_>>().join(" ");
            assert!(head.contains(&begin), "{alarm}\n{head}");
        }
    }
    assert!(faults.is_empty(), "{}", faults.join("\n"));
}

/// A stock master.cf has services for programs that are not installed: the new configuration would not start
/// with their users.
#[test]
fn a_table_that_is_read_later_can_name_the_programs_whose_users_exist() {
    let pipe = |name: &str, user: &str| {
        format!("{name} unix - n n - - pipe\n  flags=R user={user} argv=/usr/bin/{name} ${{recipient}}\n")
    };
    let master =
        format!("{MASTER}{}{}{}", pipe("lists", "bob"), pipe("grouped", "bob:mail"), pipe("maildrop", "vmail"));
    let main = format!("{OWN}transport_maps = mysql:/routes\n");
    let made = import(&main, &master, "mx.example.com", &Tables, Path::new("/etc/mailrace/mailrace-tables"));
    let config = Config::parse(&made.text, "mailrace.toml", "mx.example.com");
    assert!(config.is_ok(), "{}", made.text);
    for (name, is_made) in [("lists", true), ("grouped", true), ("maildrop", false)] {
        assert_eq!(made.text.contains(&format!("[transport.{name}]")), is_made, "{name}\n{}", made.text);
        let is_told = made.text.contains(&format!("master.cf: {name}"));
        assert_eq!(is_told, !is_made, "{name}\n{}", made.text);
    }
    assert!(made.text.contains("its user does not exist"), "{}", made.text);
}

/// The output of `postconf -d` in Postfix 3.7.
const DEFAULTS: &[&str] = &[
    "always_bcc =",
    "append_dot_mydomain = yes",
    "authorized_submit_users = static:anyone",
    "body_checks =",
    "bounce_queue_lifetime = 5d",
    "canonical_maps =",
    "content_filter =",
    "default_transport = smtp",
    "defer_transports =",
    "fallback_transport =",
    "header_checks =",
    "home_mailbox =",
    "inet_interfaces = all",
    "local_transport = local:$myhostname",
    "luser_relay =",
    "mailbox_command =",
    "mailbox_transport =",
    "masquerade_domains =",
    "milter_default_action = tempfail",
    "mime_header_checks = $header_checks",
    "nested_header_checks = $header_checks",
    "non_smtpd_milters =",
    "propagate_unmatched_extensions = canonical, virtual",
    "receive_override_options =",
    "recipient_bcc_maps =",
    "recipient_delimiter =",
    "relay_recipient_maps =",
    "relay_transport = relay",
    "relocated_maps =",
    "sender_dependent_relayhost_maps =",
    "smtp_fallback_relay =",
    "lmtp_generic_maps =",
    "smtp_generic_maps =",
    "smtp_sasl_auth_enable = no",
    "smtp_sasl_password_maps =",
    "smtp_tls_policy_maps =",
    "smtpd_banner = $myhostname ESMTP $mail_name",
    "smtpd_client_restrictions =",
    "smtpd_data_restrictions =",
    "smtpd_milters =",
    "smtpd_recipient_restrictions =",
    "smtpd_relay_restrictions = permit_mynetworks, permit_sasl_authenticated, defer_unauth_destination",
    "smtpd_sasl_auth_enable = no",
    "smtpd_sender_login_maps =",
    "soft_bounce = no",
    "transport_maps =",
    "virtual_alias_domains = $virtual_alias_maps",
    "virtual_alias_maps =",
    "virtual_mailbox_base =",
    "virtual_mailbox_maps =",
    "virtual_transport = virtual",
];

#[test]
fn what_says_what_postfix_has_by_default_is_no_reason_to_tell() {
    let before = convert(OWN);
    assert_eq!(before.behavior_changes, [""; 0], "{}", before.text);
    let is_told = |line: &&&str| {
        let import = convert(&format!("{OWN}{line}\n"));
        !import.behavior_changes.is_empty() || import.text.contains("not translated:")
    };
    assert_eq!(DEFAULTS.iter().filter(is_told).collect::<Vec<_>>(), [&""; 0]);
}
