//! Measures the cost of a login: `cargo run --release -p lookup --example credentials_cost`.
//!
//! One thread logs in with throttled, cached and computed passwords. Prints the time per login and
//! the resulting logins per second on one processor.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::Arc;
use std::time::{Duration, Instant};

use credentials::{
    CredentialChecker, CredentialCheckerSettings, CredentialSource, LoginResult, StoredPassword, ThrottleLimit,
    ThrottleSettings, generate,
};
use lookup::{LookupAnswer, LookupFuture, Table};

const HERE: IpAddr = IpAddr::V4(Ipv4Addr::LOCALHOST);

struct Everyone(String);

impl Table for Everyone {
    fn name(&self) -> &str {
        "everyone"
    }

    fn lookup<'a>(&'a self, keys: &'a [&'a str]) -> LookupFuture<'a> {
        Box::pin(std::future::ready(keys.iter().map(|_| LookupAnswer::Found(vec![self.0.clone()])).collect()))
    }
}

fn report(what: &str, count: u32, took: Duration) {
    let each = took / count;
    println!("{what:<44} {:>12.2} µs {:>12.0} /s", each.as_secs_f64() * 1e6, 1.0 / each.as_secs_f64());
}

async fn logins(
    credentials: &CredentialChecker,
    count: u32,
    attempt: impl Fn(u32) -> (String, &'static str, IpAddr),
) -> Duration {
    let attempts: Vec<_> = (0..count).map(attempt).collect();
    let began = Instant::now();
    for (user, password, client) in &attempts {
        black_box(credentials.verify_password(user, password, *client).await);
    }
    began.elapsed()
}

#[tokio::main(flavor = "current_thread")]
async fn main() -> Result<(), Box<dyn std::error::Error>> {
    let stored = generate::hash_argon2id("secret", [7; 16])?;
    let open = ThrottleLimit { failures: u32::MAX, delay: Duration::ZERO, delay_max: Duration::ZERO };
    let unthrottled = ThrottleSettings { pair: open, client: open, user: open, ..ThrottleSettings::default() };
    let table: Arc<dyn Table> = Arc::new(Everyone(stored.clone()));
    let new = |settings| CredentialChecker::new(CredentialSource::Table(table.clone()), settings, [7; 32]);

    let credentials = new(CredentialCheckerSettings::default())?;
    for wrong in ["1", "2", "3", "4", "5"] {
        credentials.verify_password("bob", wrong, HERE).await;
    }
    assert_eq!(credentials.verify_password("bob", "wrong", HERE).await, LoginResult::Throttled);
    let count = 1_000_000;
    let took = tokio::time::timeout(Duration::from_secs(60), async {
        let credentials = new(CredentialCheckerSettings {
            throttle: ThrottleSettings {
                pair: ThrottleLimit {
                    failures: 1,
                    delay: Duration::from_secs(900),
                    delay_max: Duration::from_secs(900),
                },
                client: ThrottleLimit {
                    failures: 1,
                    delay: Duration::from_secs(900),
                    delay_max: Duration::from_secs(900),
                },
                ..ThrottleSettings::default()
            },
            ..CredentialCheckerSettings::default()
        })?;
        credentials.verify_password("bob", "wrong", HERE).await;
        let one = logins(&credentials, count, |_| ("bob".into(), "wrong", HERE)).await;
        let many = logins(&credentials, count, |number| (format!("user{number}@example.org"), "wrong", HERE)).await;
        Ok::<_, Box<dyn std::error::Error>>((one, many))
    });
    let (one, many) = took.await??;
    report("throttled: one user, one client", count, one);
    report("throttled: a new user each, one client", count, many);

    credentials.verify_password("carol", "secret", HERE).await;
    report("remembered", 100_000, logins(&credentials, 100_000, |_| ("carol".into(), "secret", HERE)).await);

    let credentials = new(CredentialCheckerSettings { throttle: unthrottled, ..CredentialCheckerSettings::default() })?;
    let client = |number: u32| IpAddr::V4((0x0a00_0000 + number).into());
    report("argon2id, wrong", 50, logins(&credentials, 50, |number| ("bob".into(), "wrong", client(number))).await);

    for (name, text) in [
        ("argon2id alone, as made here", stored.as_str()),
        ("bcrypt, cost 4", "$2y$04$abcdefghijklmnopqrstuumJUK7dJmoK7yMfXBMkeTJL1Y.du7qIG"),
        ("SHA256-CRYPT, 5000 rounds", "$5$saltsalt$AHEKnDWlz30naxZICwx9iP.q/8kkh.5vY4KFHIo4Rn8"),
        ("SCRAM-SHA-256, 4096 iterations", &generate::hash_scram_sha_256("secret", [7; 16])?),
        ("SSHA", "{SSHA}zOdC8N52MwSafj2ThLEwR3Kgw5/I7XUo"),
    ] {
        let stored = StoredPassword::parse(text)?;
        let began = Instant::now();
        (0..50).for_each(|_| {
            assert_eq!(black_box(stored.verify("wrong")), Ok(false));
        });
        report(name, 50, began.elapsed());
    }
    Ok(())
}
