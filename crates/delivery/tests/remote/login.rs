//! Logins at next hops: each sender's mail goes over connections with its own login, a login is sent
//! only over connections that are safe enough, and a failed one defers.

use std::sync::Arc;

use delivery::remote::{
    LoginFuture, LoginSecurity, LoginSource, NextHop, NextHopFeedback, RelayLogins, RemoteDeliveryConfig,
};
use mail::Address;
use net::TlsClient;
use protocol::sasl::client::LoginMechanism;
use protocol::sasl::{decode, encode};
use protocol::smtp::client::{SmtpClientConfig, SmtpCredentials, TlsPolicy};

use super::support::*;

const TO: &[&str] = &["bob@example.net"];
const LOGIN: &str = "250-mx\r\n250-PIPELINING\r\n250 AUTH PLAIN\r\n";
/// `AUTH PLAIN` of the user `alice` with the password `secret`.
const ALICE: &str = "AUTH PLAIN AGFsaWNlAHNlY3JldA==";
/// The same of `eve`.
const EVE: &str = "AUTH PLAIN AGV2ZQBzZWNyZXQ=";

/// The local part of the sender is the user; `nobody` has no login, that of `broken` is not available,
/// and `guesser` has the user of another, with a wrong password.
#[derive(Debug)]
struct Users {
    depends_on_sender: bool,
    needs_tls: bool,
    mechanism: LoginMechanism,
}

impl LoginSource for Users {
    fn find<'a>(&'a self, sender: Option<&'a Address>) -> LoginFuture<'a> {
        Box::pin(async move {
            match sender.map(|sender| sender.local_part().to_string()).as_deref() {
                None | Some("nobody") => Ok(None),
                Some("broken") => Err("the table is not available".to_owned()),
                Some(user) => {
                    let (user, secret) = if user == "guesser" { ("alice", "guessed") } else { (user, "secret") };
                    let login = SmtpCredentials::new(user, secret).unwrap();
                    Ok(Some(login.restricted(&[self.mechanism], self.needs_tls)))
                }
            }
        })
    }

    fn depends_on_sender(&self) -> bool {
        self.depends_on_sender
    }
}

fn users(security: LoginSecurity, depends_on_sender: bool) -> Users {
    let needs_tls = security != LoginSecurity::ClearText;
    Users { depends_on_sender, needs_tls, mechanism: LoginMechanism::Plain }
}

fn config(security: LoginSecurity, depends_on_sender: bool) -> RemoteDeliveryConfig {
    let source = Arc::new(users(security, depends_on_sender));
    RemoteDeliveryConfig {
        tls_client: Some(TlsClient::unverified()),
        logins: Some(RelayLogins { source, security }),
        ..super::support::config()
    }
}

/// Accepts messages after this login.
async fn serve_login(mut connection: TestConnection, login: &str, seen: &ServerActivity) {
    connection.expect_commands(&[login]).await;
    connection.send("235 2.7.0 welcome\r\n").await;
    while let Some(message) = connection.read_message().await {
        seen.messages.borrow_mut().push(message);
        connection.send("250 kept\r\n").await;
    }
}

async fn send_from(sender: &str, delivery: &mut TestDelivery, hop: &Arc<NextHop>) -> (String, NextHopFeedback) {
    let mut task = task(hop, 1, TO, body(TEXT));
    Arc::make_mut(&mut task.envelope).sender = sender.parse().ok();
    delivery.remote.start_task(task);
    let end = delivery.end().await;
    let text = match &outcomes(&end)[0] {
        mail::Outcome::Deferred(reply) | mail::Outcome::Failed(reply) => format!("{} {}", summary(&end)[0], reply.text),
        _ => summary(&end)[0].clone(),
    };
    (text, end.feedback)
}

#[test]
fn a_connection_carries_only_mail_with_its_login() {
    run_test(async {
        let seen = ServerActivity::default();
        let inner = seen.clone();
        let endpoint = serve(&seen, move |mut connection, number| {
            let seen = inner.clone();
            async move {
                connection.greet(LOGIN).await;
                match number {
                    0 => serve_login(connection, ALICE, &seen).await,
                    1 => serve_login(connection, EVE, &seen).await,
                    _ => {
                        while let Some(message) = connection.read_message().await {
                            seen.messages.borrow_mut().push(message);
                            connection.send("250 kept\r\n").await;
                        }
                    }
                }
            }
        });
        let hop = hop(config(LoginSecurity::ClearText, true), &[endpoint.await]);
        let mut delivery = TestDelivery::new();
        for (sender, connections) in [
            ("alice@example.org", 1),
            ("alice@example.org", 1),
            ("eve@example.org", 2),
            ("alice@example.org", 2),
            ("nobody@example.org", 3),
            ("eve@example.org", 3),
            ("", 3),
        ] {
            assert_eq!(send_from(sender, &mut delivery, &hop).await.0, "relayed", "{sender}");
            assert_eq!(seen.connections.get(), connections, "{sender}");
        }
        assert_eq!(seen.messages.borrow().len(), 7);
        let (text, feedback) = send_from("broken@example.org", &mut delivery, &hop).await;
        assert_eq!(text, "deferred 454 4.7.0 the table is not available");
        assert_eq!(feedback, NextHopFeedback::Unknown);
    });
}

/// Whoever controls a domain has a certificate for its MX host, so the certificate of a host that the
/// recipient's address leads to proves nothing.
#[test]
fn no_login_is_sent_to_hosts_that_were_not_configured() {
    run_test(async {
        for security in [LoginSecurity::Verified, LoginSecurity::Encrypted, LoginSecurity::ClearText] {
            let seen = ServerActivity::default();
            let inner = seen.clone();
            let endpoint = serve(&seen, move |mut connection, _| {
                let seen = inner.clone();
                async move {
                    connection.greet(LOGIN).await;
                    serve_login(connection, ALICE, &seen).await;
                }
            });
            let configured = hop(config(security, true), &[endpoint.await]);
            let hop = Arc::new(NextHop { is_configured: false, ..(*configured).clone() });
            let (text, feedback) = send_from("alice@example.org", &mut TestDelivery::new(), &hop).await;
            assert!(
                text.starts_with("deferred 454 4.7.0 login as \"alice\": ") && text.ends_with("`next_hop`"),
                "{text}"
            );
            assert_eq!((feedback, seen.connections.get()), (NextHopFeedback::Unknown, 0));
        }
    });
}

#[test]
fn a_login_with_another_secret_has_a_connection_of_its_own() {
    run_test(async {
        let seen = ServerActivity::default();
        let inner = seen.clone();
        let endpoint = serve(&seen, move |mut connection, number| {
            let seen = inner.clone();
            async move {
                connection.greet(LOGIN).await;
                match number {
                    0 => serve_login(connection, ALICE, &seen).await,
                    _ => {
                        // alice, guessed
                        connection.expect_commands(&["AUTH PLAIN AGFsaWNlAGd1ZXNzZWQ="]).await;
                        connection.send("535 5.7.8 wrong\r\n").await;
                        connection.expect_commands(&["QUIT"]).await;
                    }
                }
            }
        });
        let hop = hop(config(LoginSecurity::ClearText, true), &[endpoint.await]);
        let mut delivery = TestDelivery::new();
        assert_eq!(send_from("alice@example.org", &mut delivery, &hop).await.0, "relayed");
        let (text, _) = send_from("guesser@example.org", &mut delivery, &hop).await;
        assert!(text.ends_with("535 5.7.8 wrong"), "{text}");
        assert_eq!(seen.connections.get(), 2);
    });
}

#[test]
fn a_missing_login_defers_what_the_server_refuses_for_it() {
    for has_logins in [true, false] {
        run_test(async {
            let seen = ServerActivity::default();
            let endpoint = serve(&seen, |mut connection, _| async move {
                connection.greet(LOGIN).await;
                assert!(connection.read_line().await.starts_with("MAIL FROM:<>"));
                connection.send("530 5.7.0 login first\r\n").await;
            });
            let config = config(LoginSecurity::ClearText, true);
            let logins = config.logins.clone().filter(|_| has_logins);
            let hop = hop(RemoteDeliveryConfig { logins, ..config }, &[endpoint.await]);
            let (text, _) = send_from("", &mut TestDelivery::new(), &hop).await;
            let expected = if has_logins { "deferred" } else { "failed" };
            assert_eq!(text, format!("{expected} 530 5.7.0 login first"));
        });
    }
}

#[test]
fn a_refused_login_defers_and_counts_against_the_next_hop_only_if_all_mail_has_it() {
    for depends_on_sender in [true, false] {
        run_test(async {
            let seen = ServerActivity::default();
            let endpoint = serve(&seen, |mut connection, _| async move {
                connection.greet(LOGIN).await;
                connection.expect_commands(&[ALICE]).await;
                connection.send("535 5.7.8 wrong\r\n").await;
                connection.expect_commands(&["QUIT"]).await;
            });
            let hop = hop(config(LoginSecurity::ClearText, depends_on_sender), &[endpoint.await]);
            let (text, feedback) = send_from("alice@example.org", &mut TestDelivery::new(), &hop).await;
            assert!(text.starts_with("deferred 454 4.7.0 mx0.example["), "{text}");
            assert!(text.ends_with(": login as \"alice\": 535 5.7.8 wrong"), "{text}");
            assert_eq!(matches!(feedback, NextHopFeedback::Failed(_)), !depends_on_sender);
        });
    }
}

/// The proof takes some milliseconds of another thread.
#[test]
fn a_login_by_scram_sends_its_proof() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve(&seen, |mut connection, _| async move {
            connection.greet("250-mx\r\n250 AUTH SCRAM-SHA-256\r\n").await;
            let line = connection.read_line().await;
            let first = decoded(line.strip_prefix("AUTH SCRAM-SHA-256 ").unwrap());
            let nonce = first.strip_prefix("n,,n=alice,r=").unwrap();
            let challenge = format!("r={nonce}server,s=c2FsdA==,i=4096");
            connection.send(&format!("334 {}\r\n", encode(challenge.as_bytes()))).await;
            let proof = decoded(&connection.read_line().await);
            assert!(proof.starts_with(&format!("c=biws,r={nonce}server,p=")), "{proof}");
            connection.send("535 5.7.8 wrong\r\n").await;
        });
        let mut config = config(LoginSecurity::ClearText, true);
        let source =
            Arc::new(Users { mechanism: LoginMechanism::ScramSha256, ..users(LoginSecurity::ClearText, true) });
        config.logins = Some(RelayLogins { source, security: LoginSecurity::ClearText });
        let hop = hop(config, &[endpoint.await]);
        let (text, _) = send_from("alice@example.org", &mut TestDelivery::new(), &hop).await;
        assert!(text.ends_with("535 5.7.8 wrong"), "{text}");
    });
}

fn decoded(base64: &str) -> String {
    String::from_utf8(decode(base64.trim_end().as_bytes()).unwrap().to_vec()).unwrap()
}

/// Eight addresses of one relay once counted eight guesses for each message, and locked the account.
#[test]
fn a_login_that_is_refused_is_not_tried_at_other_addresses() {
    for (reply, connections) in [("535 5.7.8 wrong\r\n", 1), ("454 4.7.0 later\r\n", 3)] {
        for depends_on_sender in [true, false] {
            run_test(async {
                let seen = ServerActivity::default();
                let refuse = move |mut connection: TestConnection, _: usize| async move {
                    connection.greet(LOGIN).await;
                    connection.expect_commands(&[ALICE]).await;
                    connection.send(reply).await;
                };
                let endpoints = [serve(&seen, refuse).await, serve(&seen, refuse).await, serve(&seen, refuse).await];
                let hop = hop(config(LoginSecurity::ClearText, depends_on_sender), &endpoints);
                let (text, feedback) = send_from("alice@example.org", &mut TestDelivery::new(), &hop).await;
                assert!(text.starts_with("deferred 454 4.7.0 ") && text.ends_with(reply.trim_end()), "{text}");
                assert_eq!(seen.connections.get(), connections);
                assert_eq!(matches!(feedback, NextHopFeedback::Failed(_)), !depends_on_sender);
            });
        }
    }
}

#[test]
fn a_login_is_not_sent_without_tls() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve(&seen, |mut connection, _| async move {
            connection.greet(LOGIN).await;
            connection.expect_commands(&["QUIT"]).await;
        });
        let hop = hop(config(LoginSecurity::Encrypted, true), &[endpoint.await]);
        let (text, _) = send_from("alice@example.org", &mut TestDelivery::new(), &hop).await;
        assert!(text.ends_with("login as \"alice\": the login needs TLS, which is not offered"), "{text}");
    });
}

#[test]
fn a_failed_handshake_does_not_send_the_login_in_clear_text() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve(&seen, |mut connection, number| async move {
            connection.greet("250-mx\r\n250-STARTTLS\r\n250 AUTH PLAIN\r\n").await;
            if number == 0 {
                connection.expect_commands(&["STARTTLS"]).await;
                connection.send("220 go\r\nthis is no TLS\r\n").await;
            } else {
                connection.expect_commands(&["QUIT"]).await;
            }
        });
        let hop = hop(config(LoginSecurity::Encrypted, true), &[endpoint.await]);
        let (text, _) = send_from("alice@example.org", &mut TestDelivery::new(), &hop).await;
        assert!(text.starts_with("deferred 454 4.7.0") && text.contains("needs TLS"), "{text}");
    });
}

#[test]
fn implicit_tls_begins_with_the_handshake() {
    for tls in [TlsPolicy::Offered, TlsPolicy::Required] {
        run_test(async {
            let seen = ServerActivity::default();
            let inner = seen.clone();
            let endpoint = serve(&seen, move |connection, _| {
                let seen = inner.clone();
                async move {
                    let mut connection = connection.accept_tls().await;
                    connection.greet("250-mx\r\n250-STARTTLS\r\n250 AUTH PLAIN\r\n").await;
                    serve_login(connection, ALICE, &seen).await;
                }
            });
            let mut config = config(LoginSecurity::Encrypted, true);
            config.connections.implicit_tls = Some(true);
            config.client = Arc::new(SmtpClientConfig { tls, ..(*config.client).clone() });
            let hop = hop(config, &[endpoint.await]);
            assert_eq!(send_from("alice@example.org", &mut TestDelivery::new(), &hop).await.0, "relayed");
        });
    }
}

#[test]
fn implicit_tls_has_no_clear_text_to_fall_back_to() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve_all(&seen, LOGIN).await;
        let mut config = config(LoginSecurity::Encrypted, true);
        config.connections.implicit_tls = Some(true);
        let hop = hop(config, &[endpoint]);
        let (text, _) = send_from("alice@example.org", &mut TestDelivery::new(), &hop).await;
        assert!(text.starts_with("deferred 451 4.7.5") && text.contains(": TLS: "), "{text}");
        assert_eq!(seen.connections.get(), 1);
    });
}

#[test]
fn a_login_for_verified_hosts_is_not_sent_to_others() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = serve(&seen, |connection, _| async move { drop(connection.accept_tls().await) });
        let hop = hop(config(LoginSecurity::Verified, true), &[endpoint.await]);
        let (text, feedback) = send_from("alice@example.org", &mut TestDelivery::new(), &hop).await;
        assert!(text.starts_with("deferred 454 4.7.0") && text.contains("verified"), "{text}");
        assert_eq!((feedback, seen.connections.get()), (NextHopFeedback::Unknown, 0));
    });
}
