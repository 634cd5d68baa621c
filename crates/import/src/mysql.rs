//! Converts where the maps of mysql_table(5) are.

use super::words::list;

/// Settings that tables of type mysql do not have.
pub(crate) const UNSUPPORTED: [&str; 7] =
    ["option_file", "option_group", "tls_cert_file", "tls_key_file", "tls_CApath", "tls_ciphers", "tls_verify_cert"];
pub(crate) const UNSUPPORTED_WHY: &str =
    "tables of type mysql have no such key; with TLS they always check the certificate, by `ca_file`";
/// Where MySQL's own clients look for `localhost` on Debian.
const SOCKET: &str = "/run/mysqld/mysqld.sock";
const PORT: &str = "3306";

/// Hosts, user and database as a URL.
pub(crate) fn url(value: impl Fn(&str) -> Option<String>) -> String {
    let hosts = list(&value("hosts").unwrap_or_else(|| "localhost".into()));
    let servers: Vec<String> = hosts.iter().map(|host| server(host)).collect();
    let user = value("user").filter(|user| !user.is_empty()).map(|user| format!("{}@", encoded(&user)));
    let database = encoded(&value("dbname").unwrap_or_default());
    let tls = ["tls_CAfile", "tls_CApath", "tls_cert_file", "tls_key_file"];
    let is_network = servers.iter().any(|server| !server.starts_with('%'));
    let mode = match tls.iter().any(|name| value(name).is_some()) {
        true if is_network => "?ssl-mode=required",
        false if is_network => "?ssl-mode=disabled",
        _ => "",
    };
    format!("mysql://{}{}/{database}{mode}", user.unwrap_or_default(), servers.join(","))
}

/// A host, or the path of a socket. MySQL's clients connect to `localhost` by its socket.
fn server(text: &str) -> String {
    if let Some(path) = text.strip_prefix("unix:") {
        return encoded(path);
    }
    let host = text.strip_prefix("inet:").unwrap_or(text);
    let (name, port) = host.rsplit_once(':').unwrap_or((host, PORT));
    match name {
        "localhost" => encoded(SOCKET),
        _ => format!("{name}:{port}"),
    }
}

/// Percent-encodes all but letters, digits and a few signs.
fn encoded(text: &str) -> String {
    let octet = |octet: u8| match octet {
        b'a'..=b'z' | b'A'..=b'Z' | b'0'..=b'9' | b'-' | b'.' | b'_' | b'~' => char::from(octet).to_string(),
        _ => format!("%{octet:02X}"),
    };
    text.bytes().map(octet).collect()
}

#[cfg(test)]
mod tests {
    use lookup::mysql::MysqlUrl;

    use super::*;

    #[test]
    fn hosts_user_and_database_become_a_url() {
        for (hosts, user, tls, expected) in [
            ("", "", "", "mysql://%2Frun%2Fmysqld%2Fmysqld.sock/mail"),
            ("unix:/s", "a:b@c", "", "mysql://a%3Ab%40c@%2Fs/mail"),
            ("inet:db1, db2:3307", "p", "", "mysql://p@db1:3306,db2:3307/mail?ssl-mode=disabled"),
            ("db1 unix:/s", "p", "/ca.pem", "mysql://p@db1:3306,%2Fs/mail?ssl-mode=required"),
        ] {
            let made = url(|name| match name {
                "hosts" => Some(hosts.to_owned()).filter(|it| !it.is_empty()),
                "user" => Some(user.to_owned()),
                "dbname" => Some("mail".to_owned()),
                "tls_CAfile" => Some(tls.to_owned()).filter(|it| !it.is_empty()),
                _ => None,
            });
            assert_eq!(made, expected);
            assert!(made.parse::<MysqlUrl>().is_ok(), "{made}");
        }
    }
}
