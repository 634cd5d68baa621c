//! Secrets of SRS in files: the first line, without white space around it.

use std::fs::File;
use std::io::{self, Read};
use std::path::Path;

use zeroize::Zeroizing;

use super::SECRET_OCTETS_MIN;

/// A larger file is no secret.
const FILE_OCTETS_MAX: u64 = 4096;

/// Why a file cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum SecretFileError {
    /// It cannot be read.
    #[error("unable to read the secret: {0}")]
    Unreadable(#[from] io::Error),
    /// It is larger than any secret.
    #[error("the file has more than {FILE_OCTETS_MAX} octets")]
    TooLarge,
    /// The secret can be guessed.
    #[error("the first line has fewer than {SECRET_OCTETS_MIN} octets: write random letters and digits into it")]
    Short,
}

/// Reads a secret.
///
/// # Errors
///
/// The file cannot be read, is too large, or its first line is too short.
pub fn load_secret(path: &Path) -> Result<Zeroizing<Vec<u8>>, SecretFileError> {
    // Reserved at once, so that no copy is left behind when it grows.
    let mut bytes = Zeroizing::new(Vec::with_capacity(FILE_OCTETS_MAX as usize + 2));
    File::open(path)?.take(FILE_OCTETS_MAX + 1).read_to_end(&mut bytes)?;
    if bytes.len() as u64 > FILE_OCTETS_MAX {
        return Err(SecretFileError::TooLarge);
    }
    let line = bytes.split(|octet| *octet == b'\n').next().unwrap_or_default().trim_ascii();
    match line.len() >= SECRET_OCTETS_MIN {
        true => Ok(Zeroizing::new(line.to_vec())),
        false => Err(SecretFileError::Short),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_line_is_the_secret() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("secret");
        let load = |content: &str| {
            std::fs::write(&file, content).unwrap();
            load_secret(&file).map(|secret| String::from_utf8(secret.to_vec()).unwrap())
        };
        assert_eq!(load(" 0123456789abcdef\r\n# of 2026\n").unwrap(), "0123456789abcdef");
        assert!(matches!(load("0123456789abcde\n0123456789abcdef\n"), Err(SecretFileError::Short)));
        assert!(matches!(load(""), Err(SecretFileError::Short)));
        assert!(matches!(load(&"x".repeat(4097)), Err(SecretFileError::TooLarge)));
        assert!(matches!(load_secret(&folder.path().join("missing")), Err(SecretFileError::Unreadable(_))));
    }
}
