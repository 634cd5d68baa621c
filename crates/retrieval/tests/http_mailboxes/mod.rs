//! Mailboxes by HTTP: what users see of their messages, and what messages cannot do to them.

use std::fs;
use std::os::unix::fs::symlink;
use std::path::Path;
use std::time::Duration;

use mailbox::maildrop::{Maildrop, MaildropSettings};
use retrieval::http::{ContentSettings, HttpSettings, MailboxSettings, PAGE_MESSAGES_MAX};

use crate::http_server::{Client, Response, Server};
use crate::text;

const BOB: &str = "Authorization: Basic Ym9iOnNlY3JldA==\r\n";
const ALICE: &str = "Authorization: Basic YWxpY2U6c2VjcmV0\r\n";
const PART_POLICY: &str = "sandbox; default-src 'none'";

/// A server of mailboxes that are listed for each request.
fn start(change: impl FnOnce(&mut MailboxSettings)) -> Server {
    Server::start_mailboxes(false, |settings| {
        let mailboxes = mailboxes(settings);
        mailboxes.limits.listing_time = Duration::ZERO;
        change(mailboxes);
    })
}

fn mailboxes(settings: &mut HttpSettings) -> &mut MailboxSettings {
    match &mut settings.content {
        ContentSettings::Mailboxes(mailboxes) => mailboxes,
        _ => panic!("the server has no mailboxes"),
    }
}

/// Puts a message into new/; messages are numbered in the order of these numbers.
fn deliver(server: &Server, user: &str, number: u32, message: &[u8]) {
    fs::write(server.maildir(user).join(format!("new/{number}.a.mx")), message).unwrap();
}

async fn get(client: &mut Client, path: &str) -> Response {
    client.get_with(path, BOB).await
}

/// The bytes of a message with this many lines.
fn message(lines: usize, line_end: &str) -> Vec<u8> {
    let body = format!("{}{line_end}", "0123456789".repeat(7)).repeat(lines);
    format!("From: a@example.org{line_end}Subject: x{line_end}{line_end}{body}").into_bytes()
}

/// All files of a Maildir's messages, with their contents.
fn files(maildir: &Path) -> Vec<(String, Vec<u8>)> {
    let of_part = |part: &str| fs::read_dir(maildir.join(part)).unwrap().map(|entry| entry.unwrap().path());
    let mut files: Vec<_> = of_part("new").chain(of_part("cur")).chain(of_part("tmp")).collect();
    files.sort();
    files.into_iter().map(|path| (path.display().to_string(), fs::read(path).unwrap())).collect()
}

#[tokio::test]
async fn a_mailbox_is_for_its_user_only() {
    let server = Server::start_mailboxes(true, |_| {});
    deliver(&server, "bob", 1, b"Subject: for bob\r\n\r\n");
    deliver(&server, "alice", 1, b"Subject: for alice\r\n\r\n");
    let mut client = server.connect().await;
    for path in ["/", "/1.eml", "/1/", "/1/1/part-1.txt", "/none"] {
        let asked = client.get(path).await;
        assert_eq!(asked.status, 401, "{path}");
        assert_eq!(asked.field("www-authenticate"), Some("Basic realm=\"mailbox\", charset=\"UTF-8\""));
    }
    assert_eq!(client.get_with("/", "Authorization: Basic Ym9iOndyb25n\r\n").await.status, 401);
    for _ in 0..2 {
        assert_eq!(text(&client.get_with("/1.eml", BOB).await), "Subject: for bob\r\n\r\n");
        assert_eq!(text(&client.get_with("/1.eml", ALICE).await), "Subject: for alice\r\n\r\n");
    }
    assert_eq!(client.get("/1.eml").await.status, 401, "a login outlived its credentials");
    let refusing = Server::start_mailboxes(false, |settings| settings.clear_text_logins = false);
    assert_eq!(refusing.connect().await.get_with("/", BOB).await.status, 403);
    assert_eq!(refusing.log.lines(), [""; 0], "a password in clear text was checked");
}

#[tokio::test]
async fn a_message_arrives_as_it_is_stored() {
    for (has_tls, sendfile) in [(false, true), (false, false), (true, true)] {
        let server = Server::start_mailboxes(has_tls, |settings| settings.sendfile = sendfile);
        let messages =
            [message(3, "\n"), message(3, "\r\n"), message(50_000, "\n"), message(50_000, "\r\n"), Vec::new()];
        for (number, bytes) in (1..).zip(&messages) {
            deliver(&server, "bob", number, bytes);
        }
        let mut client = server.connect().await;
        for (uid, bytes) in (1..).zip(&messages) {
            let path = format!("/{uid}.eml");
            let response = get(&mut client, &path).await;
            assert!(response.status == 200 && response.body == *bytes, "{path}");
            assert_eq!(response.field("content-type"), Some("message/rfc822"));
            assert_eq!(response.field("content-disposition"), Some(&*format!("attachment; filename=\"{uid}.eml\"")));
            assert_eq!(response.field("content-security-policy"), Some(PART_POLICY));
            assert_eq!(response.field("cross-origin-resource-policy"), Some("same-origin"));
            assert_eq!(response.field("x-content-type-options"), Some("nosniff"));
            assert_eq!(response.field("cache-control"), Some("private, no-cache"));
            let head = client.head_with(&path, BOB).await;
            assert_eq!(head.field("content-length"), Some(&*bytes.len().to_string()));
            let known = format!("{BOB}If-None-Match: {}\r\n", response.field("etag").unwrap());
            assert_eq!(client.get_with(&path, &known).await.status, 304);
            let known = format!("{BOB}If-Modified-Since: {}\r\n", response.field("last-modified").unwrap());
            assert_eq!(client.get_with(&path, &known).await.status, 304);
        }
        let part = client.get_with("/4.eml", &format!("{BOB}Range: bytes=100000-199999\r\n")).await;
        assert!(part.status == 206 && part.body == messages[3][100_000..200_000]);
        let part = client.get_with("/1.eml", &format!("{BOB}Range: bytes=-10\r\n")).await;
        assert!(part.status == 206 && part.body == messages[0][messages[0].len() - 10..]);
        assert_eq!(client.get_with("/1.eml", &format!("{BOB}Range: bytes=1000-\r\n")).await.status, 416);
    }
}

#[tokio::test]
async fn uids_are_those_of_pop3_and_nothing_else_changes() {
    let server = start(|_| {});
    let maildir = server.maildir("bob");
    fs::write(maildir.join("cur/2.b.mx:2,S"), "Subject: second\n\n").unwrap();
    deliver(&server, "bob", 3, b"Subject: third\n\n");
    deliver(&server, "bob", 1, b"Subject: first\n\n");
    let before = files(&maildir);
    let mut client = server.connect().await;
    let page = get(&mut client, "/").await;
    for uid in 1..=3 {
        assert_eq!(get(&mut client, &format!("/{uid}.eml")).await.status, 200);
        assert_eq!(get(&mut client, &format!("/{uid}/")).await.status, 200);
    }
    let uids: Vec<_> = text(&page).split("<td><a href=\"/").skip(1).map(|row| row.split_once('/').unwrap().0).collect();
    let session = Maildrop::open(&maildir, &MaildropSettings::default()).unwrap();
    let unique_id = |message| {
        let mut unique_id = Vec::new();
        session.write_uid(message, &mut unique_id);
        u32::from_str_radix(str::from_utf8(&unique_id[..8]).unwrap(), 16).unwrap()
    };
    let newest_first: Vec<_> = (0..session.len()).rev().map(unique_id).collect();
    let links: Vec<u32> = uids.iter().filter_map(|uid| uid.parse().ok()).collect();
    assert_eq!(links, newest_first);
    assert_eq!(text(&get(&mut client, "/2.eml").await), "Subject: second\n\n", "a POP3 session locked readers out");
    assert_eq!(files(&maildir), before);
}

#[tokio::test]
async fn a_page_has_a_hundred_messages_and_links_to_the_others() {
    let server = start(|_| {});
    assert_eq!(PAGE_MESSAGES_MAX, 100);
    for number in 1..=201 {
        let subject = format!("Date: Fri, 20 Nov 2026 10:11:12 +0100\r\nSubject: number {number}\r\n\r\n");
        deliver(&server, "bob", number, subject.as_bytes());
    }
    let mut client = server.connect().await;
    let subjects = |page: &Response| -> Vec<u32> {
        let rows = text(page).split("<bdi>number ").skip(1);
        rows.map(|row| row.split_once('<').unwrap().0.parse().unwrap()).collect()
    };
    let first = get(&mut client, "/").await;
    assert!(subjects(&first).into_iter().eq((102..=201).rev()), "{}", text(&first));
    assert!(text(&first).contains("<p>Messages: 201</p>") && text(&first).contains("Fri, 20 Nov 2026 10:11:12 +0100"));
    assert!(text(&first).contains("<a href=\"/?page=2\">Older") && !text(&first).contains("Newer"));
    let policy = first.field("content-security-policy").unwrap();
    assert!(policy.starts_with("default-src 'none';"), "{policy}");
    let second = get(&mut client, "/?page=2").await;
    assert!(subjects(&second).into_iter().eq((2..=101).rev()));
    assert!(
        text(&second).contains("<a href=\"/?page=1\">Newer") && text(&second).contains("<a href=\"/?page=3\">Older")
    );
    let last = get(&mut client, "/?page=3").await;
    assert!(subjects(&last) == [1] && !text(&last).contains("Older"));
    for none in ["/?page=4", "/?page=0", "/?page=x", "/?page=4294967295"] {
        assert_eq!(get(&mut client, none).await.status, 404, "{none}");
    }
}

#[tokio::test]
async fn the_parts_of_a_message_are_listed_and_decoded() {
    let server = start(|_| {});
    let parts = "From: =?utf-8?Q?J=C3=BCrgen?= <j@example.org>\nTo: bob@example.org\nSubject: =?utf-8?B?w6TDtsO8?=\n\
        Content-Type: multipart/mixed; boundary=b\n\n--b\nContent-Type: text/plain; charset=iso-8859-1\n\
        Content-Transfer-Encoding: quoted-printable\n\n=FCber\n--b\nContent-Type: image/png; name*=UTF-8''%C3%A4%22.png\n\
        Content-Transfer-Encoding: base64\n\niVBO\nRw0K\n--b--\n";
    deliver(&server, "bob", 1, parts.as_bytes());
    deliver(&server, "bob", 2, parts.replace('\n', "\r\n").as_bytes());
    let mut client = server.connect().await;
    for uid in [1, 2] {
        let moved = get(&mut client, &format!("/{uid}")).await;
        assert_eq!((moved.status, moved.field("location")), (301, Some(&*format!("/{uid}/"))));
        let page = get(&mut client, &format!("/{uid}/")).await;
        for shown in [
            "<bdi>Jürgen &lt;j@example.org&gt;</bdi>".to_owned(),
            "<bdi>äöü</bdi>".to_owned(),
            format!("<a href=\"/{uid}.eml\">"),
            format!("<a href=\"/{uid}/1/part-1.txt\">"),
            format!("<a href=\"/{uid}/2/%C3%A4%22.png\"><bdi>ä&quot;.png</bdi></a>"),
        ] {
            assert!(text(&page).contains(&shown), "{shown}: {}", text(&page));
        }
        let first = get(&mut client, &format!("/{uid}/1/part-1.txt")).await;
        assert_eq!(first.field("content-type"), Some("text/plain; charset=iso-8859-1"));
        assert_eq!(first.body, b"\xfcber");
        let second = get(&mut client, &format!("/{uid}/2/any-name")).await;
        assert_eq!((second.field("content-type"), &second.body[..]), (Some("image/png"), &b"\x89PNG\r\n"[..]));
        let disposition = "attachment; filename=\"__.png\"; filename*=UTF-8''%C3%A4%22.png";
        assert_eq!(second.field("content-disposition"), Some(disposition));
        assert_eq!(second.field("content-security-policy"), Some(PART_POLICY));
        assert_eq!(second.field("cache-control"), Some("private, no-cache"));
        let part = client.get_with(&format!("/{uid}/2/a"), &format!("{BOB}Range: bytes=1-3\r\n")).await;
        assert_eq!((part.status, &part.body[..]), (206, &b"PNG"[..]));
        assert_eq!(get(&mut client, &format!("/{uid}/3/a")).await.status, 404);
    }
}

#[tokio::test]
async fn what_a_message_says_is_never_markup_or_a_field() {
    let server = start(|_| {});
    let hostile = "Subject: <script>alert(1)</script>\r\nFrom: \"<img src=x onerror=y>\" <a@x.org>\r\n\
        To: =?utf-8?Q?=22=3E=3Cb=3E=0D=0ASet-Cookie=3A_x?= <b@x.org>\r\n\
        Content-Type: multipart/mixed; boundary=b\r\n\r\n\
        --b\r\nContent-Type: text/html\r\nContent-Disposition: attachment; filename=\"'><script>.html\"\r\n\r\n<script>\r\n\
        --b\r\nContent-Type: text/x\"<b>; charset=\"a b\"\r\n\
        Content-Disposition: attachment; filename*=UTF-8''a%0D%0ASet-Cookie%3A%20x%2F..%2F\r\n\r\nx\r\n--b--\r\n";
    deliver(&server, "bob", 1, hostile.as_bytes());
    let mut client = server.connect().await;
    for path in ["/", "/1/"] {
        let page = get(&mut client, path).await;
        assert_eq!(page.field("set-cookie"), None);
        assert_eq!(page.field("cache-control"), Some("private, no-cache"));
        assert!(text(&page).contains("&lt;script&gt;alert(1)"), "{}", text(&page));
        for markup in ["<script", "<img", "<b>", "\"><"] {
            let own = text(&page).replace("\"><bdi>", "");
            assert!(!own.contains(markup), "{markup} in {}", text(&page));
        }
    }
    for (part, content_type) in [("/1/1/x", "text/html"), ("/1/2/x", "application/octet-stream")] {
        let part = get(&mut client, part).await;
        assert_eq!(part.field("content-type"), Some(content_type));
        assert!(part.field("content-disposition").unwrap().starts_with("attachment; filename="));
        assert_eq!((part.field("set-cookie"), part.field("x-content-type-options")), (None, Some("nosniff")));
        assert_eq!(part.field("content-security-policy"), Some(PART_POLICY));
    }
}

#[tokio::test]
async fn no_path_leads_to_another_mailbox() {
    let server = start(|_| {});
    let alice = server.maildir("alice");
    fs::write(alice.join("new/1.a.mx"), "Subject: secret\n\n").unwrap();
    let bob = server.maildir("bob");
    symlink(alice.join("new/1.a.mx"), bob.join("new/1.a.mx")).unwrap();
    symlink(&alice, bob.join("alice")).unwrap();
    let mut client = server.connect().await;
    assert!(text(&get(&mut client, "/").await).contains("<p>Messages: 0</p>"));
    for path in [
        "/1.eml",
        "/1/",
        "/1",
        "/1/1/x",
        "/1.a.mx",
        "/new/1.a.mx",
        "/alice/new/1.a.mx",
        "/alice/",
        "/dovecot-uidlist",
        "/alice%2f1.eml",
        "/1/1/x/y",
    ] {
        assert_eq!(get(&mut client, path).await.status, 404, "{path}");
    }
    for path in ["/../alice/new/1.a.mx", "/%2e%2e/alice/1.eml", "/..%2falice/1.eml", "/1/..%2f..%2falice", "/1%00.eml"]
    {
        assert_eq!(server.connect().await.get_with(path, BOB).await.status, 400, "{path}");
    }
}

#[tokio::test]
async fn a_message_that_another_program_moves_or_deletes_is_found_or_missing() {
    let server = Server::start_mailboxes(false, |settings| {
        mailboxes(settings).limits.listing_time = Duration::from_secs(3600);
    });
    for number in 1..=3 {
        deliver(&server, "bob", number, b"Subject: x\n\nx");
    }
    let mut client = server.connect().await;
    assert_eq!(get(&mut client, "/1.eml").await.status, 200);
    let maildir = server.maildir("bob");
    fs::rename(maildir.join("new/1.a.mx"), maildir.join("cur/1.a.mx:2,S")).unwrap();
    fs::remove_file(maildir.join("new/2.a.mx")).unwrap();
    fs::remove_file(maildir.join("new/3.a.mx")).unwrap();
    symlink("/etc/passwd", maildir.join("new/3.a.mx")).unwrap();
    assert_eq!(text(&get(&mut client, "/1.eml").await), "Subject: x\n\nx");
    for gone in ["/2.eml", "/2/", "/2/1/x", "/2", "/3.eml", "/3/"] {
        assert_eq!(get(&mut client, gone).await.status, 404, "{gone}");
    }
    let page = get(&mut client, "/").await;
    assert!(text(&page).contains("/1.eml") && !text(&page).contains("/2.eml"), "{}", text(&page));
    deliver(&server, "bob", 4, b"Subject: new\n\n");
    assert_eq!(get(&mut client, "/4.eml").await.status, 404, "the folder was listed again before its time");
    assert_eq!(get(&mut server.connect().await, "/4.eml").await.status, 200);
}

#[tokio::test]
async fn users_without_a_mailbox_here_get_their_statuses() {
    let server = start(|_| {});
    let credentials = |text: &str| format!("Authorization: Basic {text}\r\n");
    let mut client = server.connect().await;
    for (user, status) in [
        ("bmV3Y29tZXI6c2VjcmV0", 200),
        ("ZWxzZXdoZXJlOnNlY3JldA==", 403),
        ("aG9tZWxlc3M6c2VjcmV0", 404),
        ("bG9zdDpzZWNyZXQ=", 503),
        ("ZG93bjp4", 503),
    ] {
        let response = client.get_with("/", &credentials(user)).await;
        assert_eq!(response.status, status, "{user}");
        assert!(status != 200 || text(&response).contains("<p>Messages: 0</p>"));
    }
    let lines = server.log.lines();
    assert!(lines.contains(&"cannot look up the mailbox of user \"lost\": no cable".to_owned()), "{lines:?}");
}

#[tokio::test]
async fn what_is_read_into_memory_is_limited() {
    let message = message(100, "\n");
    let limited = start(|mailboxes| mailboxes.limits.message_octets_max = 1000);
    deliver(&limited, "bob", 1, &message);
    let mut client = limited.connect().await;
    let page = get(&mut client, "/1/").await;
    assert!(text(&page).contains("too large") && text(&page).contains("a@example.org"), "{}", text(&page));
    assert_eq!(get(&mut client, "/1/1/x").await.status, 413);
    assert!(get(&mut client, "/1.eml").await.body == message);

    let full = start(|mailboxes| mailboxes.limits.memory_octets_max = 1000);
    deliver(&full, "bob", 1, &message);
    let mut client = full.connect().await;
    for path in ["/1/", "/1/1/x"] {
        assert_eq!(get(&mut client, path).await.status, 503, "{path}");
    }
    assert_eq!(get(&mut client, "/1.eml").await.status, 200);

    // What a response has needed is free again for the next one.
    let tight = start(|mailboxes| mailboxes.limits.memory_octets_max = 8000);
    deliver(&tight, "bob", 1, &message);
    let mut client = tight.connect().await;
    for _ in 0..3 {
        assert_eq!(get(&mut client, "/1/1/x").await.status, 200);
        assert_eq!(get(&mut client, "/1/").await.status, 200);
    }

    let heads = start(|mailboxes| mailboxes.limits.head_octets_max = 100);
    let long = format!("Subject: shown\nX-Long: {}\nFrom: hidden@example.org\n\nbody", "x".repeat(200));
    deliver(&heads, "bob", 1, long.as_bytes());
    let page = get(&mut heads.connect().await, "/").await;
    assert!(text(&page).contains("shown") && !text(&page).contains("hidden"), "{}", text(&page));
}
