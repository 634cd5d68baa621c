//! Debian's answers to its questions, /etc/exim4/update-exim4.conf.conf, as an Exim configuration: macros in front of
//! the template that the package has, as update-exim4.conf(8) puts them there. Without the template a short
//! configuration of the same kind is used.

use super::source::SourceError;

/// The name of the file with the answers.
pub const ANSWERS_FILE: &str = "update-exim4.conf.conf";
/// The folders with parts of the template, in order.
pub const PART_FOLDERS: [&str; 7] = ["main", "acl", "router", "transport", "retry", "rewrite", "auth"];
/// The line of the template that the macros take the place of.
const MACROS_LINE: &str = "UPEX4CmacrosUPEX4C";

/// Whether the answers say that the template is in several files.
pub fn is_split(answers: &str) -> bool {
    answer(answers, "dc_use_split_config") == "true"
}

/// The configuration for these answers. `mail_name` is the text of /etc/mailname.
///
/// # Errors
///
/// The type of configuration is not one of Debian's.
pub fn configuration(answers: &str, template: Option<&str>, mail_name: &str) -> Result<String, SourceError> {
    let kind = answer(answers, "dc_eximconfig_configtype");
    if !matches!(kind.as_str(), "internet" | "smarthost" | "satellite" | "local") {
        let fault = format!("dc_eximconfig_configtype is {kind:?}: expected internet, smarthost, satellite or local");
        return Err(SourceError { place: ANSWERS_FILE.into(), fault });
    }
    let read_host = answer(answers, "dc_readhost");
    let is_hidden = answer(answers, "dc_hide_mailname") == "true" && matches!(kind.as_str(), "satellite" | "smarthost");
    let local = format!("@:localhost:{}", answer(answers, "dc_other_hostnames").replace(';', ":"));
    let delivery = Some(answer(answers, "dc_localdelivery")).filter(|it| !it.is_empty());
    let type_macro = format!("DCconfig_{kind}");
    let mut macros = vec![
        ("MAIN_LOCAL_DOMAINS", local.trim_end_matches([':', ' ']).to_owned()),
        ("MAIN_RELAY_TO_DOMAINS", separated(&answer(answers, "dc_relay_domains"))),
        ("MAIN_RELAY_NETS", relay_networks(&answer(answers, "dc_relay_nets"))),
        ("ETC_MAILNAME", mail_name.split_whitespace().next().unwrap_or_default().to_lowercase()),
        ("LOCAL_DELIVERY", delivery.unwrap_or_else(|| "mail_spool".into())),
        ("DCreadhost", read_host.clone()),
        ("DCsmarthost", answer(answers, "dc_smarthost").replace(';', ":")),
        (type_macro.as_str(), "1".into()),
    ];
    let interfaces = separated(&answer(answers, "dc_local_interfaces"));
    macros.extend((!interfaces.is_empty()).then_some(("MAIN_LOCAL_INTERFACES", interfaces)));
    macros.extend((is_hidden && !read_host.is_empty()).then(|| ("HIDE_MAILNAME", "1".to_owned())));
    let definitions: String =
        macros.iter().map(|(name, value)| format!(".ifndef {name}\n{name}={value}\n.endif\n")).collect();
    let template = template.unwrap_or(TEMPLATE);
    let lines = template.lines().map(|line| match line.starts_with(MACROS_LINE) {
        true => format!("{line}\n{definitions}"),
        false => format!("{line}\n"),
    });
    Ok(lines.collect())
}

/// The value of a shell variable.
fn answer(text: &str, name: &str) -> String {
    let value = |line: &str| {
        let value = line.trim().strip_prefix(name)?.strip_prefix('=')?.trim();
        let inside = ['\'', '"'].iter().find_map(|quote| value.strip_prefix(*quote)?.strip_suffix(*quote));
        Some(inside.unwrap_or(value).trim().to_lowercase())
    };
    text.lines().rev().find_map(value).unwrap_or_default()
}

/// A list with semicolons says so in front.
fn separated(list: &str) -> String {
    if list.contains(';') && !list.starts_with('<') { format!("<; {list}") } else { list.to_owned() }
}

fn relay_networks(list: &str) -> String {
    match separated(list) {
        list if list.starts_with("<;") => format!("{list} ; 127.0.0.1 ; ::1"),
        list => format!("{list} : 127.0.0.1 : ::::1"),
    }
}

/// A configuration of the kind that Debian's template is, for answers without it.
const TEMPLATE: &str = r#"UPEX4CmacrosUPEX4C = 1
domainlist local_domains = MAIN_LOCAL_DOMAINS
domainlist relay_to_domains = MAIN_RELAY_TO_DOMAINS
hostlist relay_from_hosts = MAIN_RELAY_NETS
qualify_domain = ETC_MAILNAME
.ifdef MAIN_LOCAL_INTERFACES
local_interfaces = MAIN_LOCAL_INTERFACES
.endif
acl_smtp_rcpt = check_recipient
begin acl
check_recipient:
  accept hosts = :
  deny domains = +local_domains
    local_parts = ^[.] : ^.*[@%!/|`#&?]
    message = restricted characters in address
  deny domains = !+local_domains
    local_parts = ^[./|] : ^.*[@%!`#&?] : ^.*/\\.\\./
    message = restricted characters in address
  accept hosts = +relay_from_hosts
  accept authenticated = *
  require message = relay not permitted
    domains = +local_domains : +relay_to_domains
  require verify = recipient
  accept
begin routers
.ifdef DCconfig_internet
relayed:
  driver = dnslookup
  domains = ! +local_domains : +relay_to_domains
  transport = remote
  no_more
outside:
  driver = dnslookup
  domains = ! +local_domains
  transport = remote
  no_more
.endif
.ifdef DCconfig_local
outside:
  driver = redirect
  domains = ! +local_domains
  data = :fail: Mailing to remote domains not supported
  no_more
.endif
.ifdef DCconfig_smarthost DCconfig_satellite
outside:
  driver = manualroute
  domains = ! +local_domains
  transport = remote_by_host
  route_list = * DCsmarthost byname
  no_more
.endif
aliases:
  driver = redirect
  domains = +local_domains
  data = ${lookup{$local_part}lsearch{/etc/aliases}}
.ifdef DCconfig_satellite
hub_user:
  driver = redirect
  domains = +local_domains
  data = ${local_part}@DCreadhost
  check_local_user
.endif
local_user:
  driver = accept
  domains = +local_domains
  check_local_user
  local_parts = ! root
  transport = LOCAL_DELIVERY
begin transports
mail_spool:
  driver = appendfile
  file = /var/mail/$local_part_data
maildir_home:
  driver = appendfile
  directory = $home/Maildir
  maildir_format
remote:
  driver = smtp
.ifdef HIDE_MAILNAME
  headers_rewrite = *@+local_domains $1@DCreadhost frs : *@ETC_MAILNAME $1@DCreadhost frs
.endif
remote_by_host:
  driver = smtp
  hosts_try_auth = <; ${if exists{/etc/exim4/passwd.client}{*}{}}
.ifdef HIDE_MAILNAME
  headers_rewrite = *@+local_domains $1@DCreadhost frs : *@ETC_MAILNAME $1@DCreadhost frs
.endif
begin retry
* * F,2h,15m; G,16h,1h,1.5; F,4d,6h
begin rewrite
*@+local_domains "${lookup{${local_part}}lsearch{/etc/email-addresses}{$value}fail}" Ffrs
begin authenticators
plain:
  driver = plaintext
  public_name = PLAIN
  client_send = ${lookup{$host}nwildlsearch{/etc/exim4/passwd.client}{$value}fail}
"#;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn answers_become_macros() {
        let answers = "dc_eximconfig_configtype='smarthost'\ndc_other_hostnames='a.example;b.example'\n\
                       dc_smarthost='mail.example.net::587'\ndc_relay_nets='10.0.0.0/8;192.0.2.0/24'\n";
        let made = configuration(answers, Some("x\nUPEX4CmacrosUPEX4C = 1\ny\n"), "Host.Example\n").unwrap();
        for line in [
            "MAIN_LOCAL_DOMAINS=@:localhost:a.example:b.example",
            "MAIN_RELAY_NETS=<; 10.0.0.0/8;192.0.2.0/24 ; 127.0.0.1 ; ::1",
            "ETC_MAILNAME=host.example",
            "DCsmarthost=mail.example.net::587",
            "DCconfig_smarthost=1",
        ] {
            assert!(made.lines().any(|it| it == line), "{line}\n{made}");
        }
        assert!(configuration("dc_eximconfig_configtype='none'\n", None, "").is_err());
    }
}
