//! Our server accepts what our client sends: [`protocol::smtp::server`] on a socket.

use std::cell::RefCell;
use std::net::Ipv4Addr;
use std::rc::Rc;
use std::sync::Arc;

use delivery::remote::Config;
use mail::Reply;
use net::Endpoint;
use protocol::smtp::Flavor;
use protocol::smtp::client;
use protocol::smtp::server::{self, Action, Answer, Limits, Peer, Question, Session};
use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
use tokio::net::{TcpListener, TcpStream};
use tokio::task::spawn_local;

use super::kit::*;

type Kept = Rc<RefCell<Vec<Vec<u8>>>>;

/// Recipients that begin with `n` do not exist.
fn answer(question: &Question, body: &mut Vec<u8>, kept: &Kept) -> Answer {
    match question {
        Question::Recipient(request) if request.address.as_str().starts_with('n') => {
            Answer::Refuse(Reply::plain(550, "no such mailbox"))
        }
        Question::Message(_) => {
            kept.borrow_mut().push(std::mem::take(body));
            Answer::Done(Reply::plain(250, "kept"))
        }
        _ => Answer::Accept,
    }
}

async fn converse(mut stream: TcpStream, flavor: Flavor, kept: Kept) {
    let limits = Limits { message_octets_max: 1 << 30, ..Limits::default() };
    let config = server::Config {
        hostname: "mx.example.org".into(),
        flavor,
        tls: server::Tls::Never,
        auth: None,
        tolerance: server::Tolerance::default(),
        limits,
    };
    let peer = Peer::default();
    let mut session = Session::new(Arc::new(config), peer, net::steady_now());
    let (mut body, mut input) = (Vec::new(), vec![0; 10_000]);
    loop {
        while let Some(action) = session.poll_action() {
            match action {
                Action::Ask(question) => {
                    let answer = answer(&question, &mut body, &kept);
                    session.handle_answer(net::steady_now(), answer, &mut body);
                }
                Action::Abandon => body.clear(),
                Action::Refused { .. } | Action::Login { .. } => {}
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

async fn serve_by_machine(flavor: Flavor, kept: &Kept) -> Endpoint {
    let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
    let endpoint = Endpoint::Tcp(listener.local_addr().unwrap());
    let kept = kept.clone();
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            spawn_local(converse(stream, flavor, kept.clone()));
        }
    });
    endpoint
}

#[test]
fn our_server_keeps_what_our_client_sends() {
    let mut large = b"Subject: x\r\n\r\n".to_vec();
    large.extend((0..100_000).flat_map(|number| format!(".line {number}\r\n..\r\n").into_bytes()));
    for flavor in [Flavor::Smtp, Flavor::Lmtp] {
        for (pipelining, chunking) in [(false, false), (true, false), (false, true), (true, true)] {
            run(async {
                let kept = Kept::default();
                let client = client::Config { flavor, pipelining, chunking, ..client() };
                let endpoint = serve_by_machine(flavor, &kept).await;
                let hop = hop(Config { client: client.into(), ..config() }, &[endpoint]);
                let mut sender = Sender::new();
                for text in [TEXT, b".\r\n", &large] {
                    let to = ["a@example.net", "nobody@example.net", "b@example.net"];
                    let end = sender.send(&hop, &to, Stored::body(text).1).await;
                    assert_eq!(summary(&end), ["relayed", "failed 550", "relayed"]);
                    let end = sender.send(&hop, &to[1..2], Stored::body(text).1).await;
                    assert_eq!(
                        summary(&end),
                        ["failed 550"],
                        "no recipient is accepted, and the connection stays open"
                    );
                    assert!(kept.take().iter().all(|found| found == text), "{} octets", text.len());
                }
            });
        }
    }
}
