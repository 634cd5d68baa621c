//! The table of cases in `spf_cases.txt`. `tests/peers/test_spf.py` checks the same table with
//! another implementation.
//!
//! | line                                   | meaning                                                    |
//! |----------------------------------------|------------------------------------------------------------|
//! | `== title`                             | a new section, with an empty zone                          |
//! | `? client helo sender -> result`       | a case; `HELO` checks the HELO name, `<>` the null sender  |
//! | `? client helo sender -> fail: text`   | with an explanation; otherwise there must be none          |
//! | `v=spf1 terms -> result`               | a case with this record: 192.0.2.1 sends mail of           |
//! |                                        | `bob@case.example` after `HELO helo.example`               |
//! | `# text`                               | a comment                                                  |
//! | anything else                          | a line of the zone                                         |

use sender_auth::spf::{SpfCheck, SpfClient, check_helo, check_mail_from};

use crate::zone::{Zone, ip, unescape};

const CASES: &str = include_str!("spf_cases.txt");

#[tokio::test(start_paused = true)]
async fn each_case_has_its_result() {
    let (mut count, mut failures) = (0, Vec::new());
    for section in CASES.split("\n== ").skip(1) {
        let (title, body) = section.split_once('\n').unwrap();
        let (cases, zone): (Vec<&str>, Vec<&str>) =
            body.lines().filter(|line| !line.starts_with('#')).partition(|line| is_case(line));
        for case in cases {
            let (question, expected) = case.rsplit_once(" -> ").unwrap_or_else(|| panic!("not a case: {case}"));
            let found = describe(&run(question, &zone).await);
            count += 1;
            if found != expected {
                failures.push(format!("{title}: {question}\n  expected {expected}\n  found    {found}"));
            }
        }
    }
    assert!(failures.is_empty(), "{} of {count} cases fail\n{}", failures.len(), failures.join("\n"));
    assert!(count > 200, "only {count} cases");
}

fn is_case(line: &str) -> bool {
    line.starts_with("? ") || line.starts_with("v=spf1")
}

async fn run(question: &str, zone: &[&str]) -> SpfCheck {
    let lines = zone.iter().copied();
    match question.strip_prefix("? ") {
        Some(question) => check(&Zone::parse(lines), question).await,
        None => {
            let record = format!("case.example TXT {question}");
            let zone = Zone::parse(lines.chain([&*record]));
            check(&zone, "192.0.2.1 helo.example bob@case.example").await
        }
    }
}

async fn check(zone: &Zone, question: &str) -> SpfCheck {
    let mut words = question.splitn(3, ' ');
    let mut word = || words.next().unwrap_or_else(|| panic!("not a case: {question}"));
    let (address, helo, sender) = (ip(word()), String::from_utf8(unescape(word())).unwrap(), word());
    let client = SpfClient { address, helo: &helo, hostname: "mx.receiver.example" };
    match sender {
        "HELO" => check_helo(zone, &client).await,
        "<>" => check_mail_from(zone, &client, None).await,
        sender => check_mail_from(zone, &client, Some(&sender.parse().unwrap())).await,
    }
}

fn describe(check: &SpfCheck) -> String {
    match &check.explanation {
        Some(text) => format!("{}: {text}", check.result.as_str()),
        None => check.result.as_str().into(),
    }
}
