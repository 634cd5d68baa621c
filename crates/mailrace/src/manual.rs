//! Manual pages and completions, made of what else there is: those of the commands from `cli`, as the help is, and
//! mailrace.toml(5) from the file of defaults. Nothing is told here that is not told there.
//!
//! | page                      | of                                        |
//! |---------------------------|-------------------------------------------|
//! | mailrace.1                | the program                               |
//! | mailrace-QUEUE-LIST.1     | each command, by its names with '-' between |
//! | mailrace.toml.5           | the configuration file                    |

mod settings;

use std::fs;
use std::io::{self, Write};
use std::path::Path;

use anyhow::Context;
use clap::{ArgAction, CommandFactory};
use clap_mangen::Man;

use crate::cli::{Cli, Shell};
use crate::config;

const SETTINGS_PAGE: &str = "mailrace.toml.5";

/// Writes all pages into a folder, which is made where it is missing.
///
/// # Errors
///
/// The folder or a page could not be written.
pub fn write(folder: &Path) -> anyhow::Result<()> {
    fs::create_dir_all(folder).with_context(|| format!("making {}", folder.display()))?;
    for (name, page) in pages()? {
        let path = folder.join(name);
        fs::write(&path, page).with_context(|| format!("writing {}", path.display()))?;
    }
    Ok(())
}

/// Prints what the shell is to read.
///
/// # Errors
///
/// It could not be printed.
pub fn complete(shell: Shell, to: &mut dyn Write) -> io::Result<()> {
    let shell = match shell {
        Shell::Bash => clap_complete::Shell::Bash,
        Shell::Zsh => clap_complete::Shell::Zsh,
        Shell::Fish => clap_complete::Shell::Fish,
    };
    let mut text = Vec::new();
    clap_complete::generate(shell, &mut Cli::command(), "mailrace", &mut text);
    to.write_all(&text)
}

/// All pages by the names of their files, in the order of the commands.
///
/// # Errors
///
/// None that is known: pages are made in memory.
pub fn pages() -> io::Result<Vec<(String, String)>> {
    // Without this every command would have one more page for its `help`, which tells nothing.
    let mut root = Cli::command().disable_help_subcommand(true);
    root.build();
    let mut pages = Vec::new();
    add(&root, "mailrace", &mut pages)?;
    pages.push((SETTINGS_PAGE.to_owned(), settings::page(config::DEFAULT)));
    Ok(pages)
}

fn add(command: &clap::Command, name: &str, pages: &mut Vec<(String, String)>) -> io::Result<()> {
    pages.push((format!("{name}.1"), page(command, name)?));
    let commands = command.get_subcommands().filter(|command| !command.is_hide_set());
    commands.into_iter().try_for_each(|command| add(command, &format!("{name}-{}", command.get_name()), pages))
}

fn page(command: &clap::Command, name: &str) -> io::Result<String> {
    // What stands behind the help is a table in columns, so it is set as it is written.
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
    // An empty line between two ends of lines is a space; mandoc(1) minds the ends.
    let mut text = String::from_utf8_lossy(&text).replace(".br\n\n.br\n", ".sp\n");
    if let Some(behind) = behind {
        text.push_str(".SH NOTES\n.nf\n");
        behind.lines().for_each(|line| text.push_str(&format!("{}\n", escaped(line))));
        text.push_str(".fi\n");
    }
    text.push_str(&see_also(name));
    Ok(text)
}

/// The command with its options, and what each of them takes: `[-c|--config FILE]`.
fn synopsis(command: &clap::Command) -> String {
    let name = command.get_bin_name().unwrap_or_else(|| command.get_name());
    let mut words = vec![format!("\\fB{}\\fR", escaped(name))];
    let is_shown = |argument: &&clap::Arg| !argument.is_hide_set();
    let (after, before): (Vec<_>, Vec<_>) = command.get_arguments().filter(is_shown).partition(|it| it.is_positional());
    words.extend(before.into_iter().chain(after).map(usage));
    if command.has_subcommands() {
        words.push("\\fICOMMAND\\fR".to_owned());
    }
    // Whoever copies an option wants no hyphen in it.
    format!(".SH SYNOPSIS\n.nh\n.ad l\n{}\n.ad b\n.hy\n", words.join(" "))
}

/// One argument, on one line: a space in it is none at which a line may end.
fn usage(argument: &clap::Arg) -> String {
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

/// The title, without a date: pages are of a version.
fn heading(name: &str, section: u8) -> String {
    let (title, version) = (escaped(&name.to_uppercase()), env!("CARGO_PKG_VERSION"));
    format!(".TH \"{title}\" \"{section}\" \"\" \"mailrace {version}\" \"Mailrace\"\n")
}

/// To the page above, and to that of the configuration file.
fn see_also(name: &str) -> String {
    let above = name.rsplit_once('-').map(|(above, _)| format!("\\fB{}\\fR(1), ", escaped(above)));
    format!(".SH \"SEE ALSO\"\n{}\\fBmailrace.toml\\fR(5)\n", above.unwrap_or_default())
}

/// A line of text in which nothing is a request or an escape of roff (groff(7)).
fn escaped(line: &str) -> String {
    let line = line.replace('\\', "\\e").replace('-', "\\-").replace('\'', "\\(aq").replace('"', "\\(dq");
    match line.starts_with('.') {
        true => format!("\\&{line}"),
        false => line,
    }
}
