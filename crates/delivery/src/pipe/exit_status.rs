//! What the end of a program means for its mail, as `sysexits.h` has it.
//!
//! | end | mail |
//! |---|---|
//! | 0 | is delivered |
//! | 75 (`EX_TEMPFAIL`), 71 (`EX_OSERR`), killed, too slow | waits |
//! | any other status | bounces, with the output of the program |
//!
//! If the output of a failed program begins with an enhanced status code such as `4.2.2`, that decides
//! whether mail waits. Output is shown on one line, with harmless characters only.

use std::time::Duration;

use mail::{EnhancedCode, Outcome, Reply};

/// Characters of the output that a reply has at most.
const TEXT_CHARS_MAX: usize = 400;

/// The exit statuses of `sysexits.h`: the enhanced code, and what it says.
const STATUSES: [(i32, EnhancedCode, &str); 15] = [
    (64, EnhancedCode(5, 3, 5), "command line usage error"),
    (65, EnhancedCode(5, 6, 0), "data format error"),
    (66, EnhancedCode(5, 3, 0), "cannot open input"),
    (67, EnhancedCode(5, 1, 1), "user unknown"),
    (68, EnhancedCode(5, 1, 2), "host name unknown"),
    (69, EnhancedCode(5, 3, 0), "service unavailable"),
    (70, EnhancedCode(5, 3, 0), "internal software error"),
    (71, EnhancedCode(4, 3, 0), "system resource problem"),
    (72, EnhancedCode(5, 3, 0), "critical OS file missing"),
    (73, EnhancedCode(5, 3, 0), "can't create user output file"),
    (74, EnhancedCode(5, 3, 0), "input/output error"),
    (75, EnhancedCode(4, 3, 0), "temporary failure"),
    (76, EnhancedCode(5, 5, 0), "remote error in protocol"),
    (77, EnhancedCode(5, 7, 0), "permission denied"),
    (78, EnhancedCode(5, 3, 5), "local configuration error"),
];

/// The outcome of a program that exited.
pub(super) fn outcome(code: i32, output: &[u8]) -> Outcome {
    if code == 0 {
        return Outcome::Delivered;
    }
    let known = STATUSES.iter().find(|(known, ..)| *known == code);
    let output = String::from_utf8_lossy(output);
    let output = output.trim();
    let (word, rest) = output.split_once(char::is_whitespace).unwrap_or((output, ""));
    let (enhanced, output) = match word.parse::<EnhancedCode>() {
        Ok(enhanced @ EnhancedCode(4 | 5, ..)) => (enhanced, rest),
        _ => (known.map_or(EnhancedCode(5, 3, 0), |(_, enhanced, _)| *enhanced), output),
    };
    let meaning = known.map_or(String::new(), |(.., text)| format!(" ({text})"));
    failure(enhanced, &format!("the program exited with status {code}{meaning}"), output)
}

/// The outcome of a program that a signal ended.
pub(super) fn killed(signal: i32, output: &[u8]) -> Outcome {
    let output = String::from_utf8_lossy(output);
    failure(EnhancedCode(4, 3, 0), &format!("the program was killed by signal {signal}"), &output)
}

/// The outcome of a program that took longer than `time_max`.
pub(super) fn timed_out(time_max: Duration, output: &[u8]) -> Outcome {
    let output = String::from_utf8_lossy(output);
    failure(EnhancedCode(4, 3, 0), &format!("the program was killed after {time_max:?}"), &output)
}

/// The outcome for an address that would be an option of the program.
pub(super) fn refused(argument: &str) -> Outcome {
    let text = "the program could take this address for an option";
    failure(EnhancedCode(5, 1, 3), text, argument)
}

fn failure(enhanced: EnhancedCode, what: &str, output: &str) -> Outcome {
    let output = printable_line(output);
    let text = if output.is_empty() { what.to_owned() } else { format!("{what}: {output}") };
    match enhanced.0 {
        4 => Outcome::Deferred(Reply::new(451, enhanced, text)),
        _ => Outcome::Failed(Reply::new(550, enhanced, text)),
    }
}

/// The text on one line, cut to a length that a reply can have. Its end is kept, too: programs tend to
/// say there what went wrong.
pub(super) fn printable_line(text: &str) -> String {
    let words: Vec<&str> = text.split_whitespace().collect();
    let line = words.join(" ").replace(|c: char| !(' '..='~').contains(&c), "?");
    match line.len() {
        0..=TEXT_CHARS_MAX => line,
        len => {
            let half = TEXT_CHARS_MAX / 2;
            format!("{} ... {}", &line[..half], &line[len - half..])
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The class, the enhanced code and the text of an outcome.
    fn told(outcome: &Outcome) -> (char, String) {
        match outcome {
            Outcome::Deferred(reply) => ('4', reply.to_string()),
            Outcome::Failed(reply) => ('5', reply.to_string()),
            Outcome::Delivered | Outcome::Relayed { .. } => ('2', String::new()),
        }
    }

    #[test]
    fn an_exit_status_says_what_becomes_of_mail() {
        for (code, output, class, text) in [
            (0, "4.2.2 whatever", '2', ""),
            (75, "", '4', "451 4.3.0 the program exited with status 75 (temporary failure)"),
            (67, "no bob here\n", '5', "550 5.1.1 the program exited with status 67 (user unknown): no bob here"),
            (1, "one\n\ttwo", '5', "550 5.3.0 the program exited with status 1: one two"),
            (1, "4.2.2 mailbox full", '4', "451 4.2.2 the program exited with status 1: mailbox full"),
            (75, "5.7.1 not this", '5', "550 5.7.1 the program exited with status 75 (temporary failure): not this"),
            (77, "2.0.0 odd", '5', "550 5.7.0 the program exited with status 77 (permission denied): 2.0.0 odd"),
        ] {
            assert_eq!(told(&outcome(code, output.as_bytes())), (class, text.to_owned()));
        }
        assert_eq!(told(&killed(9, b"")), ('4', "451 4.3.0 the program was killed by signal 9".into()));
        let late = told(&timed_out(Duration::from_secs(60), b"still at it"));
        assert_eq!(late, ('4', "451 4.3.0 the program was killed after 60s: still at it".into()));
    }

    #[test]
    fn output_is_short_and_harmless() {
        let long = printable_line(&"x\u{1b}[2J\0\u{202e}".repeat(10_000));
        assert!(long.len() <= TEXT_CHARS_MAX + 5 && long.bytes().all(|octet| (b' '..=b'~').contains(&octet)), "{long}");
        assert_eq!(printable_line(" \r\n a \r\n"), "a");
        let Outcome::Failed(reply) = outcome(1, &[0xff; 5000]) else { panic!("it bounces") };
        assert!(reply.to_string().parse::<Reply>().is_ok());
    }
}
