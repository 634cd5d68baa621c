//! Measures what admission costs a session: reading the load, entering and leaving the limiter, and
//! counting a message, with all limits set and the client tables full. Run it with `--release`; a
//! session should cost at most a microsecond. The wall-clock time is longer than the CPU time if
//! other processes compete for the CPU.

use std::hint::black_box;
use std::net::{IpAddr, Ipv4Addr};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};
use std::sync::{Arc, mpsc};
use std::thread;
use std::time::{Duration, Instant};

use load::{LoadLimits, LoadMonitor, LoadMonitorHandle, MachineGaugeReader};
use mail::Rate;
use net::{ConnectionLimiter, ConnectionLimits, RATED_CLIENTS_MAX};

const ROUNDS: u32 = 1_000_000;

fn main() -> std::io::Result<()> {
    let limits = LoadLimits { refuse_above: Some(1e9), memory_min: Some(1), ..LoadLimits::default() };
    let monitor = LoadMonitor::new(MachineGaugeReader::open(["."]), limits, |_, _| {});
    let watch = monitor.handle();
    // A thousand times as often as in a server, so that the cost of sampling would show.
    let _running = monitor.start(Duration::from_millis(1))?;
    let limiter = full_limiter();

    let cost = |what: &str, mut work: Box<dyn FnMut(u32) + '_>| {
        let (clock, processor) = (Instant::now(), processor_ns());
        (0..ROUNDS).for_each(&mut work);
        let each = |ns: u64| ns as f64 / f64::from(ROUNDS);
        let (clock, processor) = (clock.elapsed().as_nanos() as u64, processor_ns() - processor);
        println!("{what:<46} {:>7.1} ns by the clock, {:>7.1} ns of the processor", each(clock), each(processor));
    };
    cost("reading the load", Box::new(|_| _ = black_box(watch.restrictions())));
    cost("the whole, one client", Box::new(|_| session(&watch, &limiter, client(1))));
    cost("the whole, a million clients", Box::new(|number| session(&watch, &limiter, client(number))));
    with_other_thread(&watch, &limiter, || {
        cost(
            "the whole, while another thread does the same",
            Box::new(|number| session(&watch, &limiter, client(number))),
        );
    });
    Ok(())
}

/// The CPU time of this thread in nanoseconds: the first number in `schedstat`, which changes with
/// the scheduler's ticks; 0 if the file is missing.
fn processor_ns() -> u64 {
    let text = std::fs::read_to_string("/proc/thread-self/schedstat").unwrap_or_default();
    text.split_ascii_whitespace().next().and_then(|ns| ns.parse().ok()).unwrap_or(0)
}

/// Everything that load and limits cost a session with one message.
fn session(watch: &LoadMonitorHandle, limiter: &Arc<ConnectionLimiter>, client: IpAddr) {
    let open = watch.restrictions().intake == load::AllowedClients::Open;
    let permit = limiter.admit(client, false, Instant::now());
    let room = watch.restrictions().shortage.is_none();
    let message = permit.as_ref().is_ok_and(|permit| permit.admit_message(Instant::now()));
    black_box((open, room, message));
}

fn client(number: u32) -> IpAddr {
    Ipv4Addr::from_bits(number).into()
}

/// A limiter with all limits, ten thousand sessions, and a full table of clients.
fn full_limiter() -> Arc<ConnectionLimiter> {
    let rate = Some(Rate { count: 1_000_000_000, per: Duration::from_secs(60) });
    let limiter = ConnectionLimiter::new(ConnectionLimits {
        sessions_max: usize::MAX,
        sessions_per_client_max: usize::MAX,
        connections_per_client: rate,
        messages_per_client: rate,
        rated_clients_max: RATED_CLIENTS_MAX,
    });
    let enter = |number| limiter.admit(client(u32::MAX - number), false, Instant::now());
    (0..10_000).filter_map(|number| enter(number).ok()).for_each(std::mem::forget);
    (0..RATED_CLIENTS_MAX as u32).for_each(|number| drop(enter(number)));
    limiter
}

/// Runs the work while another thread keeps using the same limiter.
fn with_other_thread(watch: &LoadMonitorHandle, limiter: &Arc<ConnectionLimiter>, work: impl FnOnce()) {
    let over = AtomicBool::new(false);
    let (tell, begun) = mpsc::channel();
    thread::scope(|scope| {
        scope.spawn(|| {
            let begun = tell;
            (0..u32::MAX).take_while(|_| !over.load(Relaxed)).for_each(|number| {
                session(watch, limiter, client(u32::MAX / 2 + number % ROUNDS));
                if number == 0 {
                    // The receiver waits until this is sent.
                    let _ = begun.send(());
                }
            });
        });
        let _ = begun.recv();
        work();
        over.store(true, Relaxed);
    });
}
