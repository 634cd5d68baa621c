//! Our server accepts what our client sends: [`protocol::smtp::server`] on a socket.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;

use delivery::remote::RemoteDeliveryConfig;
use mail::Reply;
use net::Endpoint;
use protocol::smtp::MailProtocol;
use protocol::smtp::client;
use protocol::smtp::server::{
    self, SessionAction, SessionAnswer, SessionLimits, SessionQuestion, SmtpPeer, SmtpSession,
};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use super::support::*;

type StoredMessages = Rc<RefCell<Vec<Vec<u8>>>>;

/// Recipients that begin with `n` do not exist.
fn answer(question: &SessionQuestion, body: &mut Vec<u8>, stored: &StoredMessages) -> SessionAnswer {
    match question {
        SessionQuestion::Recipient(request) if request.address.as_str().starts_with('n') => {
            SessionAnswer::Refuse(Reply::without_enhanced_code(550, "no such mailbox"))
        }
        SessionQuestion::Message(_) => {
            stored.borrow_mut().push(std::mem::take(body));
            SessionAnswer::Done(Reply::without_enhanced_code(250, "kept"))
        }
        _ => SessionAnswer::Accept,
    }
}

async fn serve_session(mut stream: TcpStream, flavor: MailProtocol, stored: StoredMessages) {
    let limits = SessionLimits { message_octets_max: 1 << 30, ..SessionLimits::default() };
    let config = server::SmtpServerConfig {
        hostname: "mx.example.org".into(),
        flavor,
        tls: protocol::TlsMode::Never,
        auth: None,
        tolerance: server::TolerancePolicy::default(),
        limits,
    };
    let peer = SmtpPeer::default();
    let mut session = SmtpSession::new(Arc::new(config), peer, net::steady_now());
    let (mut body, mut input) = (Vec::new(), vec![0; 10_000]);
    loop {
        while let Some(action) = session.poll_action() {
            match action {
                SessionAction::Ask(question) => {
                    let answer = answer(&question, &mut body, &stored);
                    session.handle_driver_answer(net::steady_now(), answer, &mut body);
                }
                SessionAction::Abandon => body.clear(),
                SessionAction::Refused { .. } | SessionAction::Login { .. } => {}
            }
        }
        let output = session.output().to_vec();
        session.handle_sent(output.len());
        if stream.write_all(&output).await.is_err() {
            return;
        }
        match stream.read(&mut input).await {
            Ok(0) | Err(_) => return,
            Ok(count) => session.handle_input(net::steady_now(), &input[..count], &mut body),
        }
    }
}

async fn serve_own(flavor: MailProtocol, stored: &StoredMessages) -> Endpoint {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let endpoint = Endpoint::Tcp(listener.local_addr().unwrap());
    let stored = stored.clone();
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawn_local(serve_session(stream, flavor, stored.clone()));
        }
    });
    endpoint
}

#[test]
fn our_server_keeps_what_our_client_sends() {
    let mut large = b"Subject: x\r\n\r\n".to_vec();
    large.extend((0..100_000).flat_map(|number| format!(".line {number}\r\n..\r\n").into_bytes()));
    for flavor in [MailProtocol::Smtp, MailProtocol::Lmtp] {
        for (pipelining, chunking) in [(false, false), (true, false), (false, true), (true, true)] {
            run_test(async {
                let stored = StoredMessages::default();
                let client = client::SmtpClientConfig { flavor, pipelining, chunking, ..client() };
                let endpoint = serve_own(flavor, &stored).await;
                let hop = hop(RemoteDeliveryConfig { client: client.into(), ..config() }, &[endpoint]);
                let mut sender = TestDelivery::new();
                for text in [TEXT, b".\r\n", &large] {
                    let to = ["a@example.net", "nobody@example.net", "b@example.net"];
                    let end = sender.send(&hop, &to, StoredFile::body(text).1).await;
                    assert_eq!(summary(&end), ["relayed", "failed 550", "relayed"]);
                    let end = sender.send(&hop, &to[1..2], StoredFile::body(text).1).await;
                    assert_eq!(
                        summary(&end),
                        ["failed 550"],
                        "no recipient is accepted, and the connection stays open"
                    );
                    assert!(stored.take().iter().all(|found| found == text), "{} octets", text.len());
                }
            });
        }
    }
}
