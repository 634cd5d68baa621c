//! The proxies before a real Dovecot, by every way to log in. Skipped where there is none.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]
#![allow(dead_code, reason = "the other tests of the proxy need more of its helpers")]

mod proxy_server;

use std::fs;
use std::net::{Ipv4Addr, SocketAddr};
use std::path::Path;
use std::process::{Child, Command};

use protocol::backend_login::BackendLoginMethod;
use protocol::sasl::Secret;
use retrieval::proxy::{BackendAccount, MasterUser, MasterUserForm};
use tempfile::TempDir;
use tokio::net::TcpStream;

use proxy_server::{PATIENCE, Proxy, Settings};

const BINARY: &str = "/usr/sbin/dovecot";

/// A server for any user with the password `secret`, and the master user root with `boss`.
struct Dovecot {
    process: Child,
    folder: TempDir,
    imap: SocketAddr,
    pop3: SocketAddr,
}

impl Dovecot {
    /// None where Dovecot cannot be started: it is not installed, or needs root.
    async fn start() -> Option<Dovecot> {
        let is_root = fs::metadata("/proc/self").is_ok_and(|own| std::os::unix::fs::MetadataExt::uid(&own) == 0);
        if !Path::new(BINARY).exists() || !is_root {
            return None;
        }
        let folder = TempDir::new().unwrap();
        fs::set_permissions(folder.path(), std::os::unix::fs::PermissionsExt::from_mode(0o755)).unwrap();
        let [imap, pop3] = [sim::free_port(), sim::free_port()];
        let file = folder.path().join("dovecot.conf");
        fs::write(&file, config(folder.path(), imap, pop3)).unwrap();
        let process = Command::new(BINARY).arg("-F").arg("-c").arg(&file).spawn().unwrap();
        let at = |port| SocketAddr::from((Ipv4Addr::LOCALHOST, port));
        let dovecot = Dovecot { process, folder, imap: at(imap), pop3: at(pop3) };
        let listening = async {
            while TcpStream::connect(dovecot.imap).await.is_err() || TcpStream::connect(dovecot.pop3).await.is_err() {
                tokio::task::yield_now().await;
            }
        };
        tokio::time::timeout(PATIENCE, listening).await.unwrap();
        Some(dovecot)
    }
}

impl Drop for Dovecot {
    fn drop(&mut self) {
        // On SIGTERM it ends its processes.
        let _ = Command::new("kill").arg(self.process.id().to_string()).status();
        let _ = self.process.wait();
    }
}

fn config(home: &Path, imap: u16, pop3: u16) -> String {
    let home = home.display();
    format!(
        "base_dir = {home}/run\nstate_dir = {home}/state\nlog_path = {home}/dovecot.log\nprotocols = imap pop3\n\
         listen = 127.0.0.1\nssl = no\ndisable_plaintext_auth = no\nauth_mechanisms = plain login\n\
         mail_location = maildir:{home}/mail/%u\nfirst_valid_uid = 0\nlogin_trusted_networks = 127.0.0.1\n\
         auth_master_user_separator = *\n\
         passdb {{\n driver = static\n args = password=boss user=root\n master = yes\n result_success = continue\n}}\n\
         passdb {{\n driver = static\n args = password=secret\n}}\n\
         userdb {{\n driver = static\n args = uid=nobody gid=nogroup home={home}/mail/%u\n}}\n\
         service imap-login {{\n inet_listener imap {{\n  port = {imap}\n }}\n inet_listener imaps {{\n  port = 0\n }}\n}}\n\
         service pop3-login {{\n inet_listener pop3 {{\n  port = {pop3}\n }}\n inet_listener pop3s {{\n  port = 0\n }}\n}}\n",
    )
}

/// The users: with their own passwords, checked here or there, and with the master's.
fn accounts() -> Vec<(BackendAccount, BackendLoginMethod)> {
    let master = |form| {
        let (user, password) = ("root".into(), Secret::new("boss".into()));
        BackendAccount::Master(MasterUser { user, password, form })
    };
    vec![
        (BackendAccount::User, BackendLoginMethod::Plain),
        (BackendAccount::User, BackendLoginMethod::Login),
        (BackendAccount::UserUnchecked, BackendLoginMethod::Plain),
        (master(MasterUserForm::Authzid), BackendLoginMethod::Plain),
        (master(MasterUserForm::Separator('*')), BackendLoginMethod::Login),
    ]
}

fn change(settings: &mut Settings, account: &BackendAccount, method: BackendLoginMethod) {
    settings.proxy.account = account.clone();
    settings.proxy.method = method;
    settings.proxy.tells_client_address = true;
}

#[tokio::test]
async fn users_of_dovecot_log_in_through_the_proxy() {
    let Some(dovecot) = Dovecot::start().await else { return };
    let mail = dovecot.folder.path().join("mail");
    fs::create_dir(&mail).unwrap();
    fs::set_permissions(&mail, std::os::unix::fs::PermissionsExt::from_mode(0o777)).unwrap();
    for (account, method) in accounts() {
        let log = || fs::read_to_string(dovecot.folder.path().join("dovecot.log")).unwrap_or_default();
        let proxy = Proxy::imap(dovecot.imap, |settings| change(settings, &account, method));
        let mut client = proxy.greeted().await;
        client.send("a LOGIN bob secret\r\nb SELECT INBOX\r\nc LOGOUT\r\n").await;
        let reply = client.line().await;
        assert!(reply.starts_with("a OK [CAPABILITY IMAP4rev1 "), "{account:?} {reply:?}\n{}", log());
        let mut lines = Vec::new();
        while lines.last().is_none_or(|line: &String| !line.is_empty()) {
            lines.push(client.line().await);
        }
        assert!(lines.iter().any(|line| line.starts_with("b OK ")), "{lines:?}\n{}", log());
        assert!(lines.iter().any(|line| line.starts_with("c OK ")), "{lines:?}");

        let proxy = Proxy::pop3(dovecot.pop3, |settings| change(settings, &account, method));
        let mut client = proxy.greeted().await;
        client.expect("USER bob", "+OK").await;
        client.expect("PASS secret", "+OK Logged in.").await;
        client.expect("STAT", "+OK 0 0").await;
        client.expect("QUIT", "+OK").await;
        assert!(client.is_ended().await);
    }
    let proxy = Proxy::imap(dovecot.imap, |settings| {
        change(settings, &BackendAccount::UserUnchecked, BackendLoginMethod::Plain);
    });
    proxy.greeted().await.expect("a LOGIN bob wrong", "a NO [AUTHENTICATIONFAILED]").await;
}
