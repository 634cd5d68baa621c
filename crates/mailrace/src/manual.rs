//! Manual pages and shell completions: the commands' from `cli`, like the help, and
//! mailrace.toml(5) from `default.toml`. They contain nothing else.
//!
//! | page                  | contents                              |
//! |-----------------------|---------------------------------------|
//! | mailrace.1            | the program                           |
//! | mailrace-QUEUE-LIST.1 | each command, by its names with '-' between |
//! | mailrace.toml.5       | the configuration file                |

mod settings;

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use clap::{ArgAction, CommandFactory};
use clap_mangen::Man;

use crate::cli::{Cli, Shell};

const SETTINGS_PAGE: &str = "mailrace.toml.5";

/// Writes all pages to a folder, which is created if missing.
///
/// # Errors
///
/// The folder or a page cannot be written.
pub fn write(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    for (name, page) in pages()? {
        let path = folder.join(name);
        fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Prints a completion script.
///
/// # Errors
///
/// Writing to `to` fails.
pub fn print_completion_script(shell: Shell, to: &mut dyn Write) -> io::Result<()> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "mailrace", &mut text);
    to.write_all(&text)
}

/// All pages with their file names, in the order of the commands.
///
/// # Errors
///
/// None in practice: pages are made in memory.
pub fn pages() -> io::Result<Vec<(String, String)>> {
    // Otherwise each command would have a page for its `help`.
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    add_pages(&root, "mailrace", &mut pages)?;
    pages.push((SETTINGS_PAGE.to_owned(), settings::page(config::DEFAULT)));
    Ok(pages)
}

fn add_pages(command: &clap::Command, name: &str, pages: &mut Vec<(String, String)>) -> io::Result<()> {
    pages.push((format!("{name}.1"), page(command, name)?));
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    commands.into_iter().try_for_each(|command| add_pages(command, &format!("{name}-{}", command.get_name()), pages))
}

fn page(command: &clap::Command, name: &str) -> io::Result<String> {
    // The text after the options has aligned columns, so it is set verbatim.
    let behind = command.get_after_help().map(ToString::to_string);
    let man = Man::new(command.clone().display_name(name));
    let mut text = heading(name, 1).into_bytes();
    man.render_name_section(&mut text)?;
    text.extend(synopsis(command).into_bytes());
    man.render_description_section(&mut text)?;
    man.render_options_section(&mut text)?;
    if command.has_subcommands() {
        man.render_subcommands_section(&mut text)?;
    }
    // An empty line between two line ends becomes a space; mandoc(1) warns about the line ends.
    let mut text = String::from_utf8_lossy(&text).replace(".br\n\n.br\n", ".sp\n");
    if let Some(behind) = behind {
        text.push_str(".SH NOTES\n.nf\n");
        behind.lines().for_each(|line| text.push_str(&format!("{}\n", escaped(line))));
        text.push_str(".fi\n");
    }
    text.push_str(&see_also(name));
    Ok(text)
}

/// The command with its options and their values: `[-c|--config FILE]`.
fn synopsis(command: &clap::Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut words = vec![format!("\\fB{}\\fR", escaped(name))];
    let is_shown = |argument: &&clap::Arg| !argument.is_hide_set();
    let (after, before): (Vec<_>, Vec<_>) = command.get_arguments().filter(is_shown).partition(|it| it.is_positional());
    words.extend(before.into_iter().chain(after).map(argument_usage));
    if command.has_subcommands() {
        words.push("\\fICOMMAND\\fR".to_owned());
    }
    // Options are often copied, so they must not be hyphenated.
    format!(".SH SYNOPSIS\n.nh\n.ad l\n{}\n.ad b\n.hy\n", words.join(" "))
}

/// One argument, with non-breaking spaces.
fn argument_usage(argument: &clap::Arg) -> String {
    let short = argument.get_short().map(|short| format!("-{short}"));
    let long = argument.get_long().map(|long| format!("--{long}"));
    let names: Vec<String> = short.into_iter().chain(long).map(|name| format!("\\fB{}\\fR", escaped(&name))).collect();
    let values = match argument.get_value_names() {
        Some(values) if argument.get_action().takes_values() => values.join(" "),
        None if argument.is_positional() => argument.get_id().as_str().to_uppercase(),
        _ => String::new(),
    };
    let many = if argument.get_num_args().is_some_and(|range| range.max_values() > 1) { "..." } else { "" };
    let value = if values.is_empty() { values } else { format!("\\fI{}\\fR{many}", escaped(&values)) };
    let text = [names.join("|"), value].into_iter().filter(|part| !part.is_empty()).collect::<Vec<_>>().join("\\ ");
    let again = if many.is_empty() && matches!(argument.get_action(), ArgAction::Append) { "..." } else { "" };
    if argument.is_required_set() { format!("{text}{again}") } else { format!("[{text}]{again}") }
}

/// The title line, without a date: pages belong to a version.
fn heading(name: &str, section: u8) -> String {
    let (title, version) = (escaped(&name.to_uppercase()), env!("CARGO_PKG_VERSION"));
    format!(".TH \"{title}\" \"{section}\" \"\" \"mailrace {version}\" \"Mailrace\"\n")
}

/// References to the page of the parent command and to the configuration file.
fn see_also(name: &str) -> String {
    let above = name.rsplit_once('-').map(|(above, _)| format!("\\fB{}\\fR(1), ", escaped(above)));
    format!(".SH \"SEE ALSO\"\n{}\\fBmailrace.toml\\fR(5)\n", above.unwrap_or_default())
}

/// Escapes a line of text for roff (groff(7)).
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('"', "\\(dq");
    match line.starts_with('.') {
        true => format!("\\&{line}"),
        false => line,
    }
}
