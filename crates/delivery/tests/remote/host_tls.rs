//! What a host must prove by TLS: without it mail waits, and never goes in clear text or over a
//! connection that proved something else.

use std::sync::Arc;

use delivery::remote::{NextHop, NextHopFeedback, RemoteDeliveryConfig};
use mail::{
    DanePolicy, DaneRecord, DomainTlsPolicy, DsnNotify, HostTls, Outcome, StsRule, StsTest, TlsFailure,
    TlsPolicyFailure, TlsProof, VerifiedBy, VerifiedNames,
};
use net::{Endpoint, TlsClient, TrustedRoots};
use protocol::smtp::client::{self, TlsPolicy};

use super::support::{
    ServerActivity, TestConnection, TestDelivery, body, client, config, hop, run_test, serve, summary, task,
};

const TEXT: &[u8] = b"Subject: x\r\n\r\nx\r\n";
const TO: &[&str] = &["bob@example.net"];
/// The certificate of the test server: for mx.example, signed by itself.
const PEM: &[u8] = include_bytes!("mx.example.pem");

/// Offers TLS, and keeps what comes.
async fn server(seen: &ServerActivity) -> Endpoint {
    let inner = seen.clone();
    serve(seen, move |mut connection, _| {
        let seen = inner.clone();
        async move {
            connection.greet("250-mx\r\n250 STARTTLS\r\n").await;
            connection.expect_commands(&["STARTTLS"]).await;
            connection.send("220 go\r\n").await;
            let Some(mut connection) = connection.try_accept_tls().await else { return };
            connection.expect_commands(&["EHLO"]).await;
            connection.send("250 mx\r\n").await;
            serve_messages(&mut connection, &seen).await;
        }
    })
    .await
}

async fn serve_messages(connection: &mut TestConnection, seen: &ServerActivity) {
    while let Some(message) = connection.read_message().await {
        seen.messages.borrow_mut().push(message);
        connection.send("250 kept\r\n").await;
    }
}

/// A next hop whose hosts must prove this.
fn demanding_hop(tls: &HostTls, endpoints: &[Endpoint]) -> Arc<NextHop> {
    let ca_file = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/remote/mx.example.pem");
    let config = RemoteDeliveryConfig {
        client: client::SmtpClientConfig { tls: TlsPolicy::Offered, ..client() }.into(),
        tls_client: Some(TlsClient::unverified()),
        trusted_roots: TrustedRoots::in_file(ca_file.as_ref()),
        ..config()
    };
    let mut hop = Arc::unwrap_or_clone(hop(config, endpoints));
    hop.tiers.iter_mut().flatten().for_each(|target| target.tls = tls.clone());
    Arc::new(hop)
}

fn verified(name: &str, by: VerifiedBy) -> HostTls {
    HostTls::Verified(Arc::new(VerifiedNames { names: vec![name.into()], by }))
}

fn dane(data: &[u8]) -> HostTls {
    let records = vec![DaneRecord::new(3, 0, 0, data).unwrap()];
    let base_domain: Box<str> = "mx0.example".into();
    HostTls::Dane(Arc::new(DanePolicy { records, names: vec![base_domain.clone()], base_domain }))
}

fn certificate() -> Vec<u8> {
    use rustls::pki_types::pem::PemObject as _;
    rustls::pki_types::CertificateDer::from_pem_slice(PEM).unwrap().to_vec()
}

#[test]
fn a_host_that_proves_what_it_must_gets_the_mail() {
    let proofs = [
        (HostTls::Transport, TlsProof::Encrypted),
        (HostTls::Encrypted, TlsProof::Encrypted),
        (dane(&certificate()), TlsProof::Dane),
    ];
    for (tls, proof) in proofs {
        run_test(async move {
            let seen = ServerActivity::default();
            let hop = demanding_hop(&tls, &[server(&seen).await]);
            let end = TestDelivery::new().send(&hop, TO, body(TEXT)).await;
            assert_eq!((summary(&end), end.proof), (vec!["relayed".to_owned()], Some(proof)), "{tls}");
        });
    }
}

#[test]
fn a_host_that_proves_nothing_gets_no_mail_and_the_reason_is_told() {
    let by_transport = verified("mx0.example", VerifiedBy::Transport);
    for (tls, feedback_is_failed) in
        [(verified("mx0.example", VerifiedBy::MtaSts), false), (by_transport, true), (dane(&[1]), false)]
    {
        run_test(async move {
            let seen = ServerActivity::default();
            let hop = demanding_hop(&tls, &[server(&seen).await]);
            let end = TestDelivery::new().send(&hop, TO, body(TEXT)).await;
            assert_eq!((summary(&end), end.proof), (vec!["deferred 451 4.7.5".to_owned()], None), "{tls}");
            assert_eq!((seen.connections.get(), seen.messages.borrow().len()), (1, 0));
            let is_failed = matches!(end.feedback, NextHopFeedback::Failed(_));
            assert_eq!(is_failed, feedback_is_failed, "{tls}");
            let delivery::DeliveryResult::Outcomes(outcomes) = end.result else { panic!() };
            let Outcome::Deferred(reply) = &outcomes[0] else { panic!("{outcomes:?}") };
            assert!(reply.text.contains(&format!("(TLS: {tls})")), "{}", reply.text);
        });
    }
}

#[test]
fn a_host_without_tls_gets_no_mail_in_clear_text() {
    for how in ["250 mx\r\n", "250-mx\r\n250 STARTTLS\r\n"] {
        for tls in [HostTls::Encrypted, verified("mx.example", VerifiedBy::MtaSts), dane(&certificate())] {
            run_test(async move {
                let seen = ServerActivity::default();
                let inner = seen.clone();
                let endpoint = serve(&seen, move |mut connection, _| {
                    let seen = inner.clone();
                    async move {
                        connection.greet(how).await;
                        if how.contains("STARTTLS") {
                            connection.expect_commands(&["STARTTLS"]).await;
                            connection.send("454 4.7.0 not now\r\n").await;
                        }
                        serve_messages(&mut connection, &seen).await;
                    }
                });
                let hop = demanding_hop(&tls, &[endpoint.await]);
                let end = TestDelivery::new().send(&hop, TO, body(TEXT)).await;
                assert_eq!(summary(&end), ["deferred 451 4.7.5"], "{tls}");
                assert_eq!((end.feedback, seen.messages.borrow().len()), (NextHopFeedback::Unknown, 0));
            });
        }
    }
}

#[test]
fn the_next_host_is_tried_if_one_does_not_prove_what_it_must() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoints = [server(&seen).await, server(&seen).await];
        let mut hop = Arc::unwrap_or_clone(demanding_hop(&dane(&[1]), &endpoints));
        hop.tiers[1][0].tls = dane(&certificate());
        let end = TestDelivery::new().send(&Arc::new(hop), TO, body(TEXT)).await;
        assert_eq!((summary(&end), end.proof), (vec!["relayed".to_owned()], Some(TlsProof::Dane)));
        assert_eq!(end.peer.unwrap().host(), "mx1.example");
    });
}

/// Two domains share a next hop, and one of them demands more of its hosts.
#[test]
fn a_connection_that_proved_something_else_is_not_used() {
    run_test(async {
        let seen = ServerActivity::default();
        let endpoint = server(&seen).await;
        let plain = demanding_hop(&HostTls::Transport, std::slice::from_ref(&endpoint));
        let strict = demanding_hop(&dane(&certificate()), std::slice::from_ref(&endpoint));
        let mut sender = TestDelivery::new();
        for (hop, connections) in [(&plain, 1), (&strict, 2), (&plain, 2), (&strict, 2), (&plain, 2)] {
            assert_eq!(summary(&sender.send(hop, TO, body(TEXT)).await), ["relayed"]);
            assert_eq!(seen.connections.get(), connections);
        }
        let other = demanding_hop(&dane(&[1]), &[endpoint]);
        assert_eq!(summary(&sender.send(&other, TO, body(TEXT)).await), ["deferred 451 4.7.5"]);
    });
}

#[test]
fn how_tls_went_is_told_for_each_session_with_a_host_that_the_domain_names() {
    let signed_by_itself = verified("mx0.example", VerifiedBy::MtaSts);
    for (tls, is_configured, expected) in [
        (HostTls::Transport, false, vec![None]),
        (dane(&certificate()), false, vec![None]),
        (signed_by_itself, false, vec![Some(TlsFailure::Untrusted)]),
        (dane(&[1]), false, vec![Some(TlsFailure::Other)]),
        (dane(&[1]), true, vec![]),
    ] {
        run_test(async move {
            let seen = ServerActivity::default();
            let mut hop = Arc::unwrap_or_clone(demanding_hop(&tls, &[server(&seen).await]));
            hop.is_configured = is_configured;
            let (hop, mut delivery) = (Arc::new(hop), TestDelivery::new());
            // The second message goes over the same connection, if there is one: that is no other session.
            delivery.send(&hop, TO, body(TEXT)).await;
            let told: Vec<_> = delivery.tls_sessions.iter().map(|session| session.failure).collect();
            assert_eq!(told, expected, "{tls}");
            if expected == [None] {
                delivery.send(&hop, TO, body(TEXT)).await;
                assert_eq!(delivery.tls_sessions.len(), 1, "{tls}");
            }
            let domains = delivery.tls_sessions.iter().map(|session| &*session.domain);
            assert!(domains.eq(expected.iter().map(|_| "example.net")), "{tls}");
        });
    }
}

#[test]
fn a_policy_that_is_tried_out_is_told_and_demands_nothing() {
    for (test, expected) in [(StsTest::Named, TlsFailure::Untrusted), (StsTest::NotNamed, TlsFailure::HostNotNamed)] {
        run_test(async move {
            let seen = ServerActivity::default();
            let mut hop = Arc::unwrap_or_clone(demanding_hop(&HostTls::Transport, &[server(&seen).await]));
            let rule = StsRule { policy: ["mode: testing".into()].into(), test: Some(test) };
            hop.tiers.iter_mut().flatten().for_each(|target| target.sts = Some(rule.clone()));
            hop.is_configured = false;
            let mut delivery = TestDelivery::new();
            assert_eq!(summary(&delivery.send(&Arc::new(hop), TO, body(TEXT)).await), ["relayed"]);
            let [told] = &*delivery.tls_sessions else { panic!("one session") };
            assert_eq!((told.failure, &told.policy), (Some(expected), &DomainTlsPolicy::Sts(Some(rule.policy))));
            assert_eq!(told.reason.as_deref(), expected.reason_code());
        });
    }
}

#[test]
fn what_is_wrong_with_a_policy_is_told_once_for_each_session() {
    run_test(async {
        let seen = ServerActivity::default();
        let mut hop = Arc::unwrap_or_clone(demanding_hop(&HostTls::Transport, &[server(&seen).await]));
        let failure = TlsPolicyFailure {
            host: Some("mx9.example".into()),
            policy: DomainTlsPolicy::Tlsa(None),
            failure: TlsFailure::DnssecInvalid,
            reason: None,
        };
        hop.tls_failures = vec![failure.clone()];
        for (is_configured, expected) in [(false, 1), (true, 0)] {
            hop.is_configured = is_configured;
            let (hop, mut delivery) = (Arc::new(hop.clone()), TestDelivery::new());
            for _ in 0..2 {
                delivery.send(&hop, TO, body(TEXT)).await;
            }
            let told = delivery.tls_sessions.iter().filter(|session| **session == failure.session("example.net"));
            assert_eq!(told.count(), expected);
        }
    });
}

#[test]
fn a_transport_that_wants_no_tls_tells_nothing_about_its_hosts() {
    run_test(async {
        let seen = ServerActivity::default();
        let inner = seen.clone();
        let endpoint = serve(&seen, move |mut connection, _| {
            let seen = inner.clone();
            async move {
                connection.greet("250-mx\r\n250 STARTTLS\r\n").await;
                serve_messages(&mut connection, &seen).await;
            }
        });
        let mut hop = Arc::unwrap_or_clone(demanding_hop(&HostTls::Transport, &[endpoint.await]));
        hop.is_configured = false;
        let client = client::SmtpClientConfig { tls: TlsPolicy::Never, ..client() }.into();
        hop.config = Arc::new(RemoteDeliveryConfig { client, ..(*hop.config).clone() });
        let mut delivery = TestDelivery::new();
        assert_eq!(summary(&delivery.send(&Arc::new(hop), TO, body(TEXT)).await), ["relayed"]);
        assert_eq!(delivery.tls_sessions, []);
    });
}

/// A null sender or NOTIFY=NEVER alone may be of a client.
#[test]
fn a_session_for_a_report_of_this_server_is_not_told() {
    run_test(async {
        for (has_sender, notify, expected) in
            [(false, DsnNotify::NEVER, 0), (true, DsnNotify::NEVER, 1), (false, DsnNotify::UNSET, 1)]
        {
            let seen = ServerActivity::default();
            let mut hop = Arc::unwrap_or_clone(demanding_hop(&HostTls::Transport, &[server(&seen).await]));
            hop.is_configured = false;
            let mut delivery = TestDelivery::new();
            let mut task = task(&Arc::new(hop), 1, TO, body(TEXT));
            let envelope = Arc::make_mut(&mut task.envelope);
            envelope.sender = envelope.sender.take().filter(|_| has_sender);
            envelope.recipients[0].notify = notify;
            delivery.remote.start_task(task);
            delivery.end().await;
            assert_eq!(delivery.tls_sessions.len(), expected, "{has_sender} {notify:?}");
        }
    });
}

#[test]
fn a_session_in_clear_text_is_told_as_one_without_tls() {
    run_test(async {
        let seen = ServerActivity::default();
        let inner = seen.clone();
        let endpoint = serve(&seen, move |mut connection, _| {
            let seen = inner.clone();
            async move {
                connection.greet("250 mx\r\n").await;
                serve_messages(&mut connection, &seen).await;
            }
        });
        let mut hop = Arc::unwrap_or_clone(demanding_hop(&HostTls::Transport, &[endpoint.await]));
        hop.is_configured = false;
        let mut delivery = TestDelivery::new();
        delivery.send(&Arc::new(hop), TO, body(TEXT)).await;
        let told: Vec<_> = delivery.tls_sessions.iter().map(|session| session.failure).collect();
        assert_eq!(told, [Some(TlsFailure::NotSupported)]);
    });
}
