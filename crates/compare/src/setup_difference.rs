//! What differs between two setups of a system: the options of its load, and the lines of its configuration. The first
//! difference of each side is named, and the others are counted.

use crate::result::System;

/// The longest piece that is shown, in characters.
const PIECE_LENGTH_MAX: usize = 120;
/// A port after one of these was chosen for the run.
const HOSTS: [&str; 3] = ["127.0.0.1:", "[::1]:", "localhost:"];

/// How the options of the commands differ; None if they do not.
pub(crate) fn load_difference(new: &[String], old: &[String]) -> Option<String> {
    if without_ports(&new.join("\n")) == without_ports(&old.join("\n")) {
        return None;
    }
    let options = |commands: &[String]| commands.iter().flat_map(|command| options(command)).collect::<Vec<_>>();
    Some(difference(&options(new), &options(old)))
}

/// How the lines of the configurations differ; None if they do not, or if one of them is not known.
pub(crate) fn configuration_difference(new: &System, old: &System) -> Option<String> {
    let text = |system: &System| system.configuration.as_deref().map(without_ports);
    let (new, old) = (text(new)?, text(old)?);
    let lines = |text: &str| text.lines().map(|line| line.trim().to_owned()).collect::<Vec<_>>();
    (new != old).then(|| difference(&lines(&new), &lines(&old)))
}

fn difference(new: &[String], old: &[String]) -> String {
    let only_old: Vec<&String> = old.iter().filter(|piece| !new.contains(piece)).collect();
    let only_new: Vec<&String> = new.iter().filter(|piece| !old.contains(piece)).collect();
    let first = |pieces: &[&String], side: &str| pieces.first().map(|piece| format!("{} ({side})", shortened(piece)));
    let firsts: Vec<String> = [first(&only_old, "old"), first(&only_new, "new")].into_iter().flatten().collect();
    let others = only_old.len() + only_new.len() - firsts.len();
    match (firsts.is_empty(), others) {
        (true, _) => "in its order".to_owned(),
        (_, 0) => firsts.join(", "),
        (_, 1) => format!("{}, and 1 other", firsts.join(", ")),
        _ => format!("{}, and {others} others", firsts.join(", ")),
    }
}

/// The words of a command line, each option with its value.
fn options(command: &str) -> Vec<String> {
    let mut options: Vec<String> = Vec::new();
    for word in without_ports(command).split_whitespace() {
        match options.last_mut() {
            Some(option) if option.starts_with('-') && !option.contains(' ') && !word.starts_with('-') => {
                option.push(' ');
                option.push_str(word);
            }
            _ => options.push(word.to_owned()),
        }
    }
    options
}

fn without_ports(text: &str) -> String {
    let mut shown = text.to_owned();
    for host in HOSTS {
        let mut parts = shown.split(host);
        let first = parts.next().unwrap_or_default().to_owned();
        shown = parts.fold(first, |done, part| done + host + part.trim_start_matches(|c: char| c.is_ascii_digit()));
    }
    shown
}

fn shortened(piece: &str) -> String {
    let mut letters = piece.chars();
    let start: String = letters.by_ref().take(PIECE_LENGTH_MAX).collect();
    if letters.next().is_some() { start + "..." } else { start }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn load(new: &str, old: &str) -> Option<String> {
        load_difference(&[new.to_owned()], &[old.to_owned()])
    }

    #[test]
    fn an_option_is_named_with_its_value() {
        let line =
            |connections: u32| format!("mailrace bench smtp --target 127.0.0.1:0 --connections {connections} --json");
        assert_eq!(load(&line(10), &line(10)), None);
        assert_eq!(load(&line(20), &line(10)).unwrap(), "--connections 10 (old), --connections 20 (new)");
        assert_eq!(load(&(line(10) + " --tls"), &line(10)).unwrap(), "--tls (new)");
        assert_eq!(load("a -x 1 -y 2", "a -x 3 -y 4").unwrap(), "-x 3 (old), -x 1 (new), and 2 others");
        assert_eq!(load("a -y -x", "a -x -y").unwrap(), "in its order");
        assert_eq!(load("wrk http://127.0.0.1:4000/1", "wrk http://127.0.0.1:5123/1"), None);
    }

    #[test]
    fn a_long_line_is_cut() {
        let text = load(&"x".repeat(500), "y").unwrap();
        assert!(text.starts_with("y (old), xxx") && text.len() < 150, "{text}");
    }
}
