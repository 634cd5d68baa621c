//! The mailboxes to read and their passwords. Values that cannot be sent in a command are refused
//! before the load begins.

use std::fmt;
use std::fs;
use std::path::{Path, PathBuf};

use protocol::pop3::client::Pop3Command;

use crate::BenchError;

/// Stands for the number in a pattern.
const NUMBER_PLACEHOLDER: &str = "{}";

/// Users and passwords on the command line.
#[derive(Clone, Debug, clap::Args)]
pub struct Pop3AccountOptions {
    /// User name; {} is a number from 1 to --users
    #[arg(long, value_name = "PATTERN", default_value = "user{}@bench.test")]
    pub user: String,
    /// Number of users of the pattern
    #[arg(long, value_name = "N", default_value_t = 1000, value_parser = clap::value_parser!(u32).range(1..))]
    pub users: u32,
    /// Password; {} is the user's number
    #[arg(long, value_name = "PATTERN")]
    pub password: Option<String>,
    /// File with a user name, white space and a password on each line
    #[arg(long, value_name = "FILE", conflicts_with_all = ["user", "users", "password"])]
    pub users_file: Option<PathBuf>,
}

/// A user name and password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Account {
    pub(crate) user: String,
    pub(crate) password: String,
}

/// All accounts; never empty.
pub(crate) enum Accounts {
    Numbered { user: String, password: String, count: u32 },
    Listed(Vec<Account>),
}

impl Accounts {
    /// Reads the accounts that the options name.
    pub(crate) fn from_options(mailboxes: &Pop3AccountOptions) -> Result<Accounts, BenchError> {
        match (&mailboxes.users_file, &mailboxes.password) {
            (Some(path), _) => Accounts::read(path),
            (None, None) => Err(BenchError::Usage("give --password or --users-file".to_owned())),
            (None, Some(password)) => {
                let (user, password, count) = (mailboxes.user.clone(), password.clone(), mailboxes.users);
                let accounts = Accounts::Numbered { user, password, count };
                // The largest number makes the longest line.
                accounts.account(count as usize - 1).check().map_err(BenchError::Usage)?;
                Ok(accounts)
            }
        }
    }

    fn read(path: &Path) -> Result<Accounts, BenchError> {
        let text = fs::read_to_string(path).map_err(BenchError::system(path.display()))?;
        let lines = text.lines().enumerate().filter(|(_, line)| !line.trim().is_empty());
        let accounts = lines.map(|(place, line)| {
            let fault = |why: &str| BenchError::Data(format!("{}:{}: {why}", path.display(), place + 1));
            let words = line.trim_start().split_once(char::is_whitespace);
            let (user, password) = words.ok_or_else(|| fault("expected a user, white space and a password"))?;
            let account = Account { user: user.to_owned(), password: password.trim_start().to_owned() };
            account.check().map_err(|why| fault(&why))?;
            Ok(account)
        });
        let accounts: Vec<Account> = accounts.collect::<Result<_, BenchError>>()?;
        if accounts.is_empty() {
            return Err(BenchError::Data(format!("{}: no users", path.display())));
        }
        Ok(Accounts::Listed(accounts))
    }

    /// The number of accounts.
    pub(crate) fn len(&self) -> usize {
        match self {
            Accounts::Numbered { count, .. } => *count as usize,
            Accounts::Listed(accounts) => accounts.len(),
        }
    }

    /// The account at an index, from 0.
    pub(crate) fn account(&self, place: usize) -> Account {
        match self {
            Accounts::Listed(accounts) => accounts[place].clone(),
            Accounts::Numbered { user, password, .. } => {
                let number = (place + 1).to_string();
                Account {
                    user: user.replace(NUMBER_PLACEHOLDER, &number),
                    password: password.replace(NUMBER_PLACEHOLDER, &number),
                }
            }
        }
    }
}

/// Does not show passwords.
impl fmt::Debug for Accounts {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Accounts").field("count", &self.len()).finish_non_exhaustive()
    }
}

impl Account {
    fn check(&self) -> Result<(), String> {
        let commands = [Pop3Command::User(&self.user), Pop3Command::Pass(&self.password)];
        commands.iter().try_for_each(|command| command.check().map_err(|why| format!("{}: {why}", command.verb())))
    }
}

#[cfg(test)]
mod tests {
    use std::io::Write as _;

    use super::*;

    fn mailboxes(user: &str, password: Option<&str>, users_file: Option<&Path>) -> Pop3AccountOptions {
        let (password, users_file) = (password.map(str::to_owned), users_file.map(Path::to_owned));
        Pop3AccountOptions { user: user.to_owned(), users: 1000, password, users_file }
    }

    fn listed(text: &str) -> Result<Vec<(String, String)>, String> {
        let mut file = tempfile::NamedTempFile::new().unwrap();
        file.write_all(text.as_bytes()).unwrap();
        let accounts =
            Accounts::from_options(&mailboxes("", None, Some(file.path()))).map_err(|fault| fault.to_string())?;
        let account = |place| accounts.account(place);
        Ok((0..accounts.len()).map(account).map(|account| (account.user, account.password)).collect())
    }

    #[test]
    fn users_and_passwords_have_the_same_number() {
        let accounts = Accounts::from_options(&mailboxes("user{}@virt.test", Some("secret{}"), None)).unwrap();
        let last = accounts.account(accounts.len() - 1);
        assert_eq!((last.user.as_str(), last.password.as_str()), ("user1000@virt.test", "secret1000"));
        assert_eq!(accounts.account(0).user, "user1@virt.test");
    }

    #[test]
    fn a_file_lists_users_and_passwords() {
        let pair = |user: &str, password: &str| (user.to_owned(), password.to_owned());
        assert_eq!(listed("a\tb c\n\n  d \t e\n"), Ok(vec![pair("a", "b c"), pair("d", "e")]));
        assert!(listed("a b\nc\n").unwrap_err().contains(":2: expected"));
        assert!(listed("\n").unwrap_err().ends_with("no users"));
    }

    #[test]
    fn credentials_that_no_command_can_carry_are_refused() {
        let fault =
            |user: &str, password| Accounts::from_options(&mailboxes(user, password, None)).err().unwrap().to_string();
        assert!(fault("user{}", None).contains("--password or --users-file"));
        assert!(fault("a\r\nDELE 1", Some("x")).starts_with("USER: "));
        assert!(fault("a", Some(&"x".repeat(300))).starts_with("PASS: "));
    }
}
