//! Files and mailboxes by HTTP with a real listener: in clear text and over TLS, with and without
//! sendfile.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

mod http_mailboxes;
mod http_server;
#[path = "../../net/tests/tls_peer/mod.rs"]
mod tls_peer;

use std::fs;
use std::os::unix::fs::{FileExt, symlink};
use std::time::Duration;

use http_server::{PATIENCE, Response, Server};
use retrieval::http::{ContentSettings, FileSettings, HttpProtocol, HttpSettings, HttpSetupError};
use rustix::fs::{CWD, FileType, Mode, mknodat};

/// An hour: nothing changes for the server.
const LONG: Duration = Duration::from_secs(3600);

/// A server for each way to send.
fn servers() -> [Server; 4] {
    [(false, true), (false, false), (true, true), (true, false)]
        .map(|(has_tls, sendfile)| Server::start_with(has_tls, |settings| settings.sendfile = sendfile))
}

/// The settings of files.
fn files(settings: &mut HttpSettings) -> &mut FileSettings {
    match &mut settings.content {
        ContentSettings::Files(files) => files,
        _ => panic!("the server has no files"),
    }
}

/// The text of a body.
fn text(response: &Response) -> &str {
    str::from_utf8(&response.body).unwrap()
}

#[tokio::test]
async fn a_certificate_authority_gets_its_answer_before_any_file() {
    let server = Server::start(|settings| files(settings).requires_login = true);
    let path = "/.well-known/acme-challenge/token-1";
    assert_eq!(server.get(path).await.status, 403);
    let pending = server.challenges.add_http("token-1", "token-1.thumbprint").unwrap();
    let response = server.get(path).await;
    assert_eq!((response.status, text(&response)), (200, "token-1.thumbprint"));
    assert_eq!(response.field("content-type"), Some("application/octet-stream"));
    assert_eq!(server.get("/.well-known/acme-challenge/token-2").await.status, 403);
    drop(pending);
    assert_eq!(server.get(path).await.status, 403);
}

#[tokio::test]
async fn a_listener_may_serve_nothing_but_answers_to_authorities() {
    let server = Server::start(|settings| settings.content = ContentSettings::Nothing);
    let _pending = server.challenges.add_http("token-1", "token-1.thumbprint").unwrap();
    assert_eq!(text(&server.get("/.well-known/acme-challenge/token-1").await), "token-1.thumbprint");
    for path in ["/", "/index.html", "/.well-known/acme-challenge/", "/.well-known/acme-challenge/token-2"] {
        assert_eq!(server.get(path).await.status, 404, "{path}");
    }
}

#[tokio::test]
async fn files_of_all_sizes_arrive_on_one_connection() {
    for server in servers() {
        let mut client = server.connect().await;
        for octets in [0, 1, 10_000, 65_536, 65_537, 300_000, 5_000_003] {
            let name = format!("file-{octets}.txt");
            let bytes = server.write(&name, octets);
            for _ in 0..2 {
                let response = client.get(&format!("/{name}")).await;
                assert_eq!(response.status, 200);
                assert_eq!(response.field("content-type"), Some("text/plain; charset=utf-8"));
                assert_eq!(response.field("x-content-type-options"), Some("nosniff"));
                assert!(response.field("date").unwrap().ends_with(" GMT"));
                assert!(response.body == bytes, "{name}");
            }
            let head = client.head(&format!("/{name}")).await;
            assert_eq!(head.field("content-length"), Some(&*octets.to_string()));
        }
        assert_eq!(client.get("/none").await.status, 404);
        assert_eq!(server.log.lines(), [""; 0]);
    }
}

#[tokio::test]
async fn ranges_of_small_and_large_files_arrive() {
    for server in servers() {
        let mut client = server.connect().await;
        for octets in [5_000, 3_000_000] {
            let path = format!("/file-{octets}");
            let bytes = server.write(&path[1..], octets);
            let range = |first: usize, last: usize| format!("Range: bytes={first}-{last}\r\n");
            let part = client.get_with(&path, &range(1000, 3999)).await;
            assert_eq!(part.status, 206);
            assert_eq!(part.field("content-range"), Some(&*format!("bytes 1000-3999/{octets}")));
            assert!(part.body == bytes[1000..4000]);
            let end = client.get_with(&path, "Range: bytes=-100\r\n").await;
            assert!(end.body == bytes[octets - 100..]);
            let parts = client.get_with(&path, "Range: bytes=4000-4099,0-9\r\n").await;
            let boundary = parts.field("content-type").unwrap().split_once("boundary=").unwrap().1.to_owned();
            let part = |range: &str, bytes: &[u8]| {
                let kind = "application/octet-stream";
                let head = format!(
                    "\r\n--{boundary}\r\nContent-Type: {kind}\r\nContent-Range: bytes {range}/{octets}\r\n\r\n"
                );
                [head.as_bytes(), bytes].concat()
            };
            let expected = [part("4000-4099", &bytes[4000..4100]), part("0-9", &bytes[..10])].concat();
            assert!(parts.body == [expected, format!("\r\n--{boundary}--\r\n").into_bytes()].concat());
            assert_eq!(client.get_with(&path, &range(octets, octets)).await.status, 416);
        }
    }
}

#[tokio::test]
async fn a_client_that_has_a_file_does_not_get_it_again() {
    let server = Server::start(|settings| files(settings).cache.time = Duration::ZERO);
    server.write_bytes("page.html", b"first");
    let mut client = server.connect().await;
    let first = client.get("/page.html").await;
    let (etag, modified) = (first.field("etag").unwrap(), first.field("last-modified").unwrap());
    let known = format!("If-None-Match: {etag}\r\n");
    let same = client.get_with("/page.html", &known).await;
    assert_eq!((same.status, same.field("etag"), same.field("content-length")), (304, Some(etag), None));
    assert_eq!(client.get_with("/page.html", &format!("If-Modified-Since: {modified}\r\n")).await.status, 304);
    assert_eq!(client.get_with("/page.html", "If-Match: \"other\"\r\n").await.status, 412);
    server.write_bytes("page.html", b"second");
    let changed = client.get_with("/page.html", &known).await;
    assert_eq!((changed.status, text(&changed)), (200, "second"));
    assert_ne!(changed.field("etag"), Some(etag));
    let partial = format!("Range: bytes=0-1\r\nIf-Range: {etag}\r\n");
    assert_eq!(text(&client.get_with("/page.html", &partial).await), "second");
}

#[tokio::test]
async fn pipelined_requests_are_answered_in_order() {
    for server in servers() {
        let (small, large) = (server.write("small", 5_000), server.write("large", 400_000));
        let mut client = server.connect().await;
        let request = |name: &str| format!("GET /{name} HTTP/1.1\r\nHost: x\r\n\r\n");
        client.send(&(request("small") + &request("large")).repeat(50)).await;
        for _ in 0..50 {
            assert!(client.response().await.body == small);
            assert!(client.response().await.body == large);
        }
        client.send("GET /small HTTP/1.0\r\n\r\nGET /large HTTP/1.0\r\n\r\n").await;
        let last = client.response().await;
        assert!(last.body == small && last.field("connection") == Some("close"));
        let (rest, end) = client.rest().await;
        end.unwrap();
        assert_eq!(rest, b"", "a request after the last one was answered");
    }
}

#[tokio::test]
async fn no_path_leads_out_of_the_folder() {
    let server = Server::start(|_| {});
    server.write_bytes("../outside/secret", b"secret");
    server.write_bytes("inside/page", b"page");
    let outside = server.path("../outside");
    symlink(&outside, server.path("absolute")).unwrap();
    symlink("../outside", server.path("relative")).unwrap();
    symlink("../../outside/secret", server.path("inside/file")).unwrap();
    symlink("/proc/self/root", server.path("process")).unwrap();
    symlink("loop", server.path("loop")).unwrap();
    symlink("../inside", server.path("inside/again")).unwrap();
    for path in [
        "/absolute/secret",
        "/relative/secret",
        "/relative/",
        "/inside/file",
        "/process/etc/passwd",
        "/loop",
        "/inside/page/",
        "/..%5coutside%5csecret",
    ] {
        for _ in 0..2 {
            assert_eq!(server.get(path).await.status, 404, "{path}");
        }
    }
    for path in [
        "/../outside/secret",
        "/inside/../../outside/secret",
        "/%2e%2e/outside/secret",
        "/.%2e/outside/secret",
        "/..%2foutside/secret",
        "/%2E%2E%2Foutside%2Fsecret",
        "/inside/%2e%2e%2f%2e%2e/outside/secret",
        "//../outside/secret",
        "http://x/../outside/secret",
        "/outside%00",
    ] {
        assert_eq!(server.get(path).await.status, 400, "{path}");
    }
    assert_eq!(text(&server.get("/inside/again/page").await), "page");
    assert_eq!(text(&server.get("/inside/./x/..//%70age").await), "page");
}

#[tokio::test]
async fn folders_hidden_names_and_special_files_have_their_answers() {
    let server = Server::start(|_| {});
    server.write_bytes("index.html", b"top");
    server.write_bytes("folder/index.html", b"inner");
    server.write_bytes("bare/a", b"a");
    server.write_bytes(".hidden", b"hidden");
    server.write_bytes(".git/config", b"hidden");
    server.write_bytes(".well-known/x", b"known");
    mknodat(CWD, server.path("pipe"), FileType::Fifo, Mode::RUSR, 0).unwrap();
    let mut client = server.connect().await;
    assert_eq!(text(&client.get("/").await), "top");
    assert_eq!(client.get("/").await.field("content-type"), Some("text/html; charset=utf-8"));
    let moved = client.get("/folder?a=b").await;
    assert_eq!((moved.status, moved.field("location")), (301, Some("/folder/?a=b")));
    assert_eq!(text(&client.get("/folder/").await), "inner");
    assert_eq!(client.get("/bare/").await.status, 403);
    assert_eq!(client.get("/bare/none/").await.status, 404);
    assert_eq!(client.get("/pipe").await.status, 404);
    assert_eq!(client.get("/.hidden").await.status, 404);
    assert_eq!(client.get("/.git/config").await.status, 404);
    assert_eq!(text(&client.get("/.well-known/x").await), "known");
    assert_eq!(client.get(&format!("/{}", "a".repeat(300))).await.status, 404);
}

#[tokio::test]
async fn folders_are_listed_if_the_operator_wants() {
    let server = Server::start(|settings| files(settings).lists_folders = true);
    server.write_bytes("list/<b>", b"x");
    server.write_bytes("list/sub/x", b"x");
    server.write_bytes("list/.hidden", b"x");
    let page = server.get("/list/").await;
    let expected =
        "<li><a href=\"../\">../</a>\n<li><a href=\"%3Cb%3E\">&lt;b&gt;</a>\n<li><a href=\"sub/\">sub/</a>\n</ul>";
    assert!(page.status == 200 && text(&page).contains(expected), "{}", text(&page));
}

#[tokio::test]
async fn a_cached_file_is_trusted_for_its_time_and_no_longer() {
    let slow = Server::start(|settings| files(settings).cache.time = LONG);
    slow.write_bytes("page", b"old");
    let mut client = slow.connect().await;
    assert_eq!(text(&client.get("/page").await), "old");
    fs::remove_file(slow.path("page")).unwrap();
    slow.write_bytes("page", b"new page");
    assert_eq!(text(&client.get("/page").await), "old");
    assert_eq!(text(&slow.get("/page").await), "old");

    let quick = Server::start(|settings| files(settings).cache.time = Duration::ZERO);
    let mut client = quick.connect().await;
    // Of the same length and, in part, within one tick of the clock of the file system.
    for round in 0..200 {
        let content = format!("{round:04}");
        quick.write_bytes("page", content.as_bytes());
        assert_eq!(text(&client.get("/page").await), content);
    }
    fs::remove_file(quick.path("page")).unwrap();
    assert_eq!(client.get("/page").await.status, 404);
}

#[tokio::test]
async fn a_file_that_is_replaced_while_it_is_sent_arrives_as_it_was() {
    for server in servers() {
        let bytes = server.write("large", 20_000_000);
        let mut client = server.connect().await;
        client.send(&"GET /large HTTP/1.1\r\nHost: x\r\n\r\n".repeat(2)).await;
        // More than the sockets hold: the server still sends.
        let first = client.response_head().await;
        server.write("next", 100);
        fs::rename(server.path("next"), server.path("large")).unwrap();
        assert!(client.body(first).await.body == bytes);
        assert_eq!(client.response().await.body.len(), 100);
    }
}

#[tokio::test]
async fn a_file_that_is_truncated_while_it_is_sent_ends_the_connection() {
    for server in servers() {
        let file = server.write_huge("huge");
        let mut client = server.connect().await;
        client.send("GET /huge HTTP/1.1\r\nHost: x\r\n\r\nGET /huge HTTP/1.1\r\nHost: x\r\n\r\n").await;
        client.read(1_000_000).await;
        file.set_len(1).unwrap();
        let (rest, _) = client.rest().await;
        assert!(rest.len() < 63 << 20 && rest.iter().all(|octet| *octet == 0), "{}", rest.len());
        let lines = server.log.lines();
        assert!(lines.len() == 1 && lines[0].starts_with("cannot serve /huge: "), "{lines:?}");
    }
}

#[tokio::test]
async fn a_file_that_is_overwritten_after_it_was_copied_arrives_as_it_was() {
    let server = Server::start(|settings| settings.sendfile = false);
    let file = server.write_huge("huge");
    let mut client = server.connect().await;
    client.send("GET /huge HTTP/1.1\r\nHost: x\r\n\r\n").await;
    // It arrives together with the first octets.
    client.response_head().await;
    file.write_all_at(&[b'x'; 8192], 0).unwrap();
    assert!(client.read(8192).await.iter().all(|octet| *octet == 0));
}

#[tokio::test]
async fn clients_that_do_nothing_are_disconnected() {
    let server = Server::start(|settings| {
        settings.limits.head_time_max = Duration::from_millis(200);
        settings.limits.idle_time_max = Duration::from_millis(100);
        settings.limits.send_time_max = Duration::from_millis(100);
    });
    server.write("file", 10);
    let file = server.write_huge("huge");
    let mut silent = server.connect().await;
    assert_eq!(silent.rest().await.0, b"");
    let mut slow = server.connect().await;
    slow.send("GET / HTTP/1.1\r\nHost: x\r\n").await;
    assert_eq!(slow.response().await.status, 408);
    slow.rest().await.1.unwrap();
    let mut idle = server.connect().await;
    assert_eq!(idle.get("/file").await.status, 200);
    assert_eq!(idle.rest().await.0, b"");
    let mut deaf = server.connect().await;
    deaf.send("GET /huge HTTP/1.1\r\nHost: x\r\n\r\n").await;
    // From its head on, the session is known to be counted.
    deaf.response_head().await;
    while server.limiter.session_count() > 0 {
        tokio::task::yield_now().await;
    }
    let (rest, _) = deaf.rest().await;
    assert!((rest.len() as u64) < file.metadata().unwrap().len());
}

#[tokio::test]
async fn a_hundred_clients_get_what_they_asked_for() {
    for has_tls in [false, true] {
        let server = Server::start_with(has_tls, |_| {});
        let files: Vec<Vec<u8>> =
            (0..10_usize).map(|number| server.write(&format!("{number}"), 30_011 * number)).collect();
        let client = async |seed: usize| {
            let mut client = server.connect().await;
            for round in 0..20 {
                let number = (seed + round * 7) % files.len();
                assert!(client.get(&format!("/{number}")).await.body == files[number], "{number}");
            }
        };
        futures_util::future::join_all((0..100).map(client)).await;
    }
}

#[tokio::test]
async fn a_stop_ends_idle_connections_at_once() {
    let server = Server::start(|_| {});
    server.write("file", 10);
    let mut client = server.connect().await;
    assert_eq!(client.get("/file").await.status, 200);
    assert!(server.workers.drain(PATIENCE).await);
    client.rest().await.1.unwrap();
    server.workers.abort();
}

#[tokio::test]
async fn clients_log_in_where_they_must() {
    let credentials = |text: &str| format!("Authorization: Basic {text}\r\n");
    let (bob, wrong, down) = (credentials("Ym9iOnNlY3JldA=="), credentials("Ym9iOndyb25n"), credentials("ZG93bjp4"));
    let server = Server::start_with(true, |settings| {
        (files(settings).requires_login, settings.realm) = (true, "my files".into());
    });
    server.write_bytes("file", b"content");
    let mut client = server.connect().await;
    let asked = client.get("/file").await;
    assert_eq!(asked.field("www-authenticate"), Some("Basic realm=\"my files\", charset=\"UTF-8\""));
    assert_eq!(asked.status, 401);
    assert_eq!(client.get_with("/none", "").await.status, 401, "a client learned what there is");
    assert_eq!(client.get_with("/file", &wrong).await.status, 401);
    for _ in 0..3 {
        assert_eq!(text(&client.get_with("/file", &bob).await), "content");
    }
    assert_eq!(client.get("/file").await.status, 401, "a login outlived its credentials");
    assert_eq!(client.get_with("/file", &wrong).await.status, 401);
    let unavailable = client.get_with("/file", &down).await;
    assert!(unavailable.status == 503 && unavailable.field("retry-after").is_some());
    let events: Vec<String> = server.log.lines().into_iter().filter(|line| line.contains("BASIC")).collect();
    assert_eq!(events, ["bob BASIC refused", "bob BASIC ok", "bob BASIC refused", "down BASIC unavailable"]);

    let clear = |allowed| {
        Server::start(move |settings| (files(settings).requires_login, settings.clear_text_logins) = (true, allowed))
    };
    let (refusing, allowing) = (clear(false), clear(true));
    allowing.write_bytes("file", b"content");
    assert_eq!(refusing.connect().await.get_with("/file", &bob).await.status, 403);
    assert_eq!(allowing.connect().await.get_with("/file", &bob).await.status, 200);
    assert_eq!(refusing.log.lines(), [""; 0], "a password in clear text was checked");
}

#[tokio::test]
async fn a_server_without_its_folder_does_not_start() {
    let missing = HttpProtocol::new(HttpSettings::new(ContentSettings::Files(FileSettings::new("/none".into())))).err();
    assert!(matches!(missing, Some(HttpSetupError::Folder { .. })), "{missing:?}");
}
