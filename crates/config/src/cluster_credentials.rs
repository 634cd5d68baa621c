//! The file of `cluster.credentials_file`. As with signing keys, it is not read with the text, but by
//! [`check_cluster_credentials`].

use std::ops::Range;
use std::path::PathBuf;

use cluster::check_credentials;
use toml::de::{DeTable, DeValue};

use super::LoadedConfig;
use super::error::ConfigErrors;
use super::secret_file::{CheckedFile, check_files};

/// Reads the file with what the NATS servers ask of this node. Returns an error if it cannot be used, otherwise a
/// warning if others can read it, which starts with its place in the text.
pub fn check_cluster_credentials(loaded: &LoadedConfig) -> Result<Vec<String>, ConfigErrors> {
    let file = |path: &PathBuf| CheckedFile {
        path: path.clone(),
        span: span_of_path(&loaded.text).unwrap_or_default(),
        fault: check_credentials(path).err().map(|error| error.to_string()),
    };
    let path = loaded.config.cluster.iter().flat_map(|cluster| &cluster.credentials_file);
    check_files(loaded, "cluster.credentials_file", "what lets this node in to the NATS servers", path.map(file))
}

/// The span of the path in a text that was read before.
fn span_of_path(text: &str) -> Option<Range<usize>> {
    let document = DeTable::parse(text).ok()?;
    match document.get_ref().get("cluster")?.get_ref() {
        DeValue::Table(section) => Some(section.get("credentials_file")?.span()),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use std::fs::Permissions;
    use std::os::unix::fs::PermissionsExt;

    use super::*;
    use crate::{Config, ConfigSource};

    #[test]
    fn a_file_that_cannot_be_used_is_an_error_and_one_that_others_can_read_a_warning() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("node.creds");
        let section = "[cluster]\nnode = \"a\"\nservers = [\"nats://127.0.0.1:4222\"]\n";
        let text = format!("{section}credentials_file = \"{}\"\n", path.display());
        let config = Config::parse(&text, "text", "node1").unwrap();
        let loaded = LoadedConfig { source: ConfigSource::File("text".into()), text, config };
        let check = |content: &str, mode| {
            std::fs::write(&path, content).unwrap();
            std::fs::set_permissions(&path, Permissions::from_mode(mode)).unwrap();
            check_cluster_credentials(&loaded)
        };
        assert_eq!(check("node:password\n", 0o640).unwrap(), [""; 0]);
        let doubts = check("node:password\n", 0o644).unwrap();
        let file = path.display();
        let expected = format!(
            "text:4: all local users can read {file}, which contains what lets this node in to the NATS servers"
        );
        assert_eq!(doubts, [expected]);
        let error = check("two words\n", 0o600).unwrap_err().to_string();
        assert!(error.contains("`cluster.credentials_file` cannot be used") && error.contains("text:4"), "{error}");
    }
}
