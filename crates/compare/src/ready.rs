//! When a started server is ready: it accepts connections, its log has a line, or a command succeeds.

use std::net::{SocketAddr, TcpStream};
use std::process::{Command, Stdio};
use std::time::Duration;

/// How long one attempt to connect may take.
const CONNECT_TIME_MAX: Duration = Duration::from_secs(2);
/// How long one attempt of a command may take.
const COMMAND_SECONDS_MAX: &str = "10";
/// Stands for the port in the text of a log line.
const PORT: &str = "{port}";

/// What a server is waited for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Ready {
    /// It accepts connections here.
    Connects(SocketAddr),
    /// Its output has this text, such as `listening protocol=smtp address=127.0.0.1:{port}`. If the
    /// text has `{port}`, a number must be there: the port that the server chose.
    Logs(String),
    /// This shell command exits with 0.
    Succeeds(String),
}

impl Ready {
    /// Whether the server is ready, given what it has printed so far; the port if its output has it.
    pub(crate) fn poll(&self, output: &str) -> Option<Option<u16>> {
        match self {
            Ready::Connects(address) => accepts(*address).then_some(None),
            Ready::Logs(text) => find_text(text, output),
            Ready::Succeeds(line) => succeeds(line).then_some(None),
        }
    }

    /// For messages: `it does not accept connections at 127.0.0.1:25`.
    pub(crate) fn fault(&self) -> String {
        match self {
            Ready::Connects(address) => format!("it does not accept connections at {address}"),
            Ready::Logs(text) => format!("its output does not contain `{text}`"),
            Ready::Succeeds(line) => format!("`{line}` does not succeed"),
        }
    }
}

/// A connection to a closed local port can connect to itself; that does not count.
fn accepts(address: SocketAddr) -> bool {
    let stream = TcpStream::connect_timeout(&address, CONNECT_TIME_MAX);
    stream.is_ok_and(|stream| stream.local_addr().is_ok_and(|local| local != address))
}

fn succeeds(line: &str) -> bool {
    let mut command = Command::new("timeout");
    command.args([COMMAND_SECONDS_MAX, "/bin/sh", "-c", line]);
    command.stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null());
    command.status().is_ok_and(|status| status.success())
}

/// The port may be cut off in the last line while it is being written, so a whole line is needed.
fn find_text(text: &str, output: &str) -> Option<Option<u16>> {
    let lines = output.split_inclusive('\n').filter_map(|line| line.strip_suffix('\n'));
    match text.split_once(PORT) {
        None => lines.into_iter().any(|line| line.contains(text)).then_some(None),
        Some((before, after)) => lines.into_iter().find_map(|line| find_port(before, after, line)).map(Some),
    }
}

fn find_port(before: &str, after: &str, line: &str) -> Option<u16> {
    line.match_indices(before).find_map(|(at, _)| {
        let rest = &line[at + before.len()..];
        let digits = rest.find(|c: char| !c.is_ascii_digit()).unwrap_or(rest.len());
        rest[digits..].starts_with(after).then(|| rest[..digits].parse().ok())?
    })
}

#[cfg(test)]
mod tests {
    use std::net::TcpListener;

    use super::*;

    #[test]
    fn a_line_is_found_once_it_is_whole_and_gives_the_port() {
        let log = |text: &str, output: &str| Ready::Logs(text.to_owned()).poll(output);
        assert_eq!(log("ready", "starting\nready"), None);
        assert_eq!(log("ready", "starting\nready to serve\n"), Some(None));
        let listening = "protocol=smtp address=127.0.0.1:{port}";
        let output = "protocol=pop3 address=127.0.0.1:1\nlistening protocol=smtp address=127.0.0.1:1234\n";
        assert_eq!(log(listening, output), Some(Some(1234)));
        assert_eq!(log(listening, "listening protocol=smtp address=127.0.0.1:12"), None);
        assert_eq!(log("port {port} open", "port x open, port 99999 open\nport 25 open\n"), Some(Some(25)));
    }

    #[test]
    fn an_open_port_and_a_command_are_seen() {
        let listener = TcpListener::bind("127.0.0.1:0").unwrap();
        let open = Ready::Connects(listener.local_addr().unwrap());
        assert_eq!(open.poll(""), Some(None));
        drop(listener);
        assert_eq!(open.poll(""), None);
        assert_eq!(Ready::Succeeds("exit 0".to_owned()).poll(""), Some(None));
        assert_eq!(Ready::Succeeds("exit 1".to_owned()).poll(""), None);
    }
}
