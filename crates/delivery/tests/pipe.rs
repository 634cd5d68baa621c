//! Programs through a launcher: how they end, what they get, and what they cannot do.

#![expect(clippy::unwrap_used, reason = "a test that cannot go on fails")]

use std::sync::Arc;
use std::thread;
use std::time::{Duration, Instant};

use delivery::DeliveryResult;
use delivery::pipe::{
    AddedFields, LauncherSocket, PipeConfig, PipeDelivery, PipeResult, PipeTask, ProgramDefinition, ProgramLineEnds,
    launcher,
};
use mail::{
    Body, BodyFlags, BodyType, ClientInfo, DsnNotify, Envelope, Outcome, QueueId, Recipient, SpoolId, Timestamp,
};

const MESSAGE: &str = "Subject: x\r\n\r\nHello.\r\n";

/// The launcher of these shell commands, each under its number, in a thread.
fn launch(commands: &[&str]) -> LauncherSocket {
    let (ours, theirs) = LauncherSocket::pair().unwrap();
    let user = (nix::unistd::geteuid().as_raw(), nix::unistd::getegid().as_raw());
    let program = |(number, command): (usize, &&str)| ProgramDefinition {
        name: number.to_string().into(),
        user,
        folder: "/".into(),
        null_sender: "MAILER-DAEMON".into(),
        delimiter: Some('+'),
        arguments: ["/bin/sh", "-c", command.replace('$', "$$").as_str(), "to=${recipient}"]
            .map(|text| text.parse().unwrap())
            .into(),
    };
    thread::spawn(move || launcher::serve(theirs));
    ours.define(&commands.iter().enumerate().map(program).collect::<Vec<_>>()).unwrap();
    ours
}

fn task(number: usize, recipient: &str, body: Body) -> PipeTask {
    let recipient = Recipient {
        address: recipient.parse().unwrap(),
        original: None,
        notify: DsnNotify::UNSET,
        orcpt: None,
        is_forwarded: false,
    };
    let envelope = Envelope {
        sender: Some("alice@example.org".parse().unwrap()),
        recipients: vec![recipient],
        accepted_at: Timestamp(1_700_000_000_000),
        client: ClientInfo { address: None, helo: "test".into(), trusted: true },
        body_type: BodyType::SevenBit,
        smtputf8: false,
        ret: None,
        envid: None,
        content_filter: false,
    };
    let config = PipeConfig {
        transport: number.to_string().into(),
        fields: AddedFields { return_path: true, ..AddedFields::default() },
        line_ends: ProgramLineEnds::Lf,
        time_max: Duration::from_secs(2),
        output_octets_max: 4096,
    };
    PipeTask {
        id: QueueId::new(SpoolId::new(1), 0, 7),
        envelope: Arc::new(envelope),
        recipients: vec![0],
        body,
        config: Arc::new(config),
    }
}

fn body(text: &str) -> Body {
    let digest = crc32c::crc32c(text.as_bytes());
    let flags = BodyFlags { ends_in_crlf: true, ..BodyFlags::default() };
    Body::new(Arc::new(text.as_bytes().to_vec()), 0, text.len() as u64, digest, flags)
}

/// Runs each task on the same launcher, at the same time.
fn deliver(launcher: Option<LauncherSocket>, tasks: Vec<PipeTask>) -> Vec<PipeResult> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().unwrap();
    tokio::task::LocalSet::new().block_on(&runtime, async move {
        let delivery = PipeDelivery::new(launcher).unwrap();
        let start = |task| {
            let delivery = delivery.clone();
            tokio::task::spawn_local(async move { delivery.deliver(task).await })
        };
        let running: Vec<_> = tasks.into_iter().map(start).collect();
        let mut ended = Vec::new();
        for run in running {
            ended.push(run.await.unwrap());
        }
        ended
    })
}

/// What became of the only recipient: `2`, or the reply.
fn told(result: &PipeResult) -> String {
    match &result.result {
        DeliveryResult::Outcomes(outcomes) => match &outcomes[..] {
            [Outcome::Delivered] => "2".into(),
            [Outcome::Deferred(reply) | Outcome::Failed(reply)] => reply.to_string(),
            other => panic!("{other:?}"),
        },
        DeliveryResult::Damaged(what) => format!("damaged: {what}"),
        DeliveryResult::Withheld => "withheld".to_owned(),
    }
}

#[test]
fn programs_end_in_every_way() {
    let commands = [
        "exit 0",
        "cat >&2; exit 75",
        "echo \"$0\"; exit 67",
        "kill -9 $$",
        "sleep 100 & wait",
        "head -c 10000000 /dev/zero | tr '\\0' x; exit 1",
        "sleep 100 & exit 0",
    ];
    let tasks = (0..=commands.len()).map(|number| task(number, "bob@example.org", body(MESSAGE))).collect();
    let begin = Instant::now();
    let results = deliver(Some(launch(&commands)), tasks);
    let told: Vec<String> = results.iter().map(told).collect();
    assert_eq!(told[0], "2");
    let input = "Return-Path: <alice@example.org> Subject: x Hello.";
    assert_eq!(told[1], format!("451 4.3.0 the program exited with status 75 (temporary failure): {input}"));
    assert_eq!(told[2], "550 5.1.1 the program exited with status 67 (user unknown): to=bob@example.org");
    assert_eq!(told[3], "451 4.3.0 the program was killed by signal 9");
    assert_eq!(told[4], "451 4.3.0 the program was killed after 2s");
    assert!(told[5].starts_with("550 5.3.0 the program exited with status 1: xxx") && told[5].len() < 600);
    assert_eq!(told[6], "2");
    assert!(told[7].contains("restart"), "{}", told[7]);
    assert!(results[7].unavailable.is_some() && results[..7].iter().all(|result| result.unavailable.is_none()));
    assert!(begin.elapsed() < Duration::from_secs(60), "nothing waited for what programs left behind");
}

#[test]
fn a_message_that_is_not_read_or_is_damaged_harms_nobody() {
    let long = format!("Subject: x\r\n\r\n{}", "Hello.\r\n".repeat(100_000));
    let damaged = Body::new(
        Arc::new(long.clone().into_bytes()),
        0,
        long.len() as u64,
        7,
        BodyFlags { ends_in_crlf: true, ..BodyFlags::default() },
    );
    let commands = ["exit 0", "cat >/dev/null", "cat | wc -c; exit 1"];
    let tasks = vec![
        task(0, "bob@example.org", body(&long)),
        task(1, "bob@example.org", damaged),
        task(2, "bob@example.org", body(&long)),
    ];
    let results = deliver(Some(launch(&commands)), tasks);
    assert_eq!(told(&results[0]), "2");
    assert!(told(&results[1]).starts_with("damaged: "), "{}", told(&results[1]));
    let octets = "Return-Path: <alice@example.org>\n".len() + long.len() - 100_002;
    assert!(told(&results[2]).ends_with(&format!(": {octets}")), "{}", told(&results[2]));
}

#[test]
fn without_a_launcher_mail_waits() {
    let results = deliver(None, vec![task(0, "bob@example.org", body(MESSAGE))]);
    assert!(told(&results[0]).starts_with("451 4.3.5 "));
    let (ours, theirs) = LauncherSocket::pair().unwrap();
    drop(theirs);
    let results = deliver(Some(ours), vec![task(0, "bob@example.org", body(MESSAGE))]);
    assert!(told(&results[0]).starts_with("451 4.3.5 cannot run the program"), "{}", told(&results[0]));
}
