//! A temporary MariaDB server for a test, on a free port of 127.0.0.1 and a Unix socket.

use std::fs;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};

use tempfile::TempDir;

const START_MAX: Duration = Duration::from_secs(60);

pub(crate) struct Server {
    folder: TempDir,
    port: u16,
    process: Option<Child>,
}

impl Server {
    /// Starts a server with an empty database `mail`; None if MariaDB is not installed.
    pub(crate) fn start() -> Option<Self> {
        // All tests copy the same empty data, whose creation takes seconds.
        static EMPTY: OnceLock<Option<TempDir>> = OnceLock::new();
        let empty = EMPTY.get_or_init(create_data).as_ref()?;
        let folder = tempfile::Builder::new().prefix("mailrace-my-").tempdir().unwrap();
        let copied = Command::new("cp").arg("-r").arg(empty.path()).arg(folder.path().join("data")).status().unwrap();
        assert!(copied.success());
        let mut server = Server { folder, port: sim::free_port(), process: None };
        server.restart(&[]);
        server.sql("CREATE DATABASE mail CHARACTER SET utf8mb4");
        Some(server)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("mysql://root@127.0.0.1:{}/mail", self.port)
    }

    pub(crate) fn socket_url(&self) -> String {
        format!("mysql://root@localhost/mail?socket={}", self.socket().display())
    }

    /// Starts the server, again with the same port and data, with more settings.
    pub(crate) fn restart(&mut self, settings: &[String]) {
        self.stop();
        let mut server = Command::new("mariadbd");
        server.args(["--no-defaults", "--bind-address=127.0.0.1", "--skip-log-bin", "--skip-name-resolve"]);
        server.args(["--innodb-buffer-pool-size=8M", "--innodb-log-file-size=4M"]);
        server.arg("--innodb-flush-log-at-trx-commit=2").arg(format!("--port={}", self.port));
        server.arg(format!("--datadir={}", self.folder.path().join("data").display()));
        server.arg(format!("--socket={}", self.socket().display())).args(user()).args(settings);
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        self.process = Some(server.stderr(log).stdout(Stdio::null()).spawn().unwrap());
        let deadline = Instant::now() + START_MAX;
        while !self.client("SELECT 1").status.success() {
            let log = || fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(Instant::now() < deadline, "the server does not start: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    /// Kills the server, and with it all connections.
    pub(crate) fn stop(&mut self) {
        if let Some(mut process) = self.process.take() {
            process.kill().unwrap();
            process.wait().unwrap();
        }
    }

    /// Runs SQL statements; returns what they print.
    pub(crate) fn sql(&self, text: &str) -> String {
        let done = self.client(text);
        assert!(done.status.success(), "{text}: {}", String::from_utf8_lossy(&done.stderr));
        String::from_utf8(done.stdout).unwrap()
    }

    /// The connections of tables, by what they do.
    pub(crate) fn clients(&self) -> Vec<String> {
        let list =
            "SELECT command FROM information_schema.processlist WHERE id != CONNECTION_ID() AND user != 'system user'";
        self.sql(list).lines().map(str::to_owned).collect()
    }

    /// Gives the server a certificate for this name. Returns the CA certificate that signed it and
    /// an unrelated one.
    pub(crate) fn enable_tls(&mut self, name: &str) -> (PathBuf, PathBuf) {
        let file = |name: &str| self.folder.path().join(name);
        let new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        for authority in ["ours", "another"] {
            let subject = format!("/CN={authority}");
            let arguments = [&["req", "-x509", "-subj", &subject], &new_key[..]].concat();
            let (key, certificate) = (file(&format!("{authority}.key")), file(&format!("{authority}.pem")));
            openssl(&arguments, &[("-keyout", &key), ("-out", &certificate)]);
        }
        let request = [&["req", "-subj", "/CN=server"], &new_key[..]].concat();
        openssl(&request, &[("-keyout", &file("server.key")), ("-out", &file("request.pem"))]);
        fs::write(file("names"), format!("subjectAltName=DNS:{name}\nbasicConstraints=CA:FALSE\n")).unwrap();
        openssl(
            &["x509", "-req", "-CAcreateserial"],
            &[
                ("-in", &file("request.pem")),
                ("-CA", &file("ours.pem")),
                ("-CAkey", &file("ours.key")),
                ("-extfile", &file("names")),
                ("-out", &file("server.pem")),
            ],
        );
        let (ours, another) = (file("ours.pem"), file("another.pem"));
        let settings = [
            format!("--ssl-cert={}", file("server.pem").display()),
            format!("--ssl-key={}", file("server.key").display()),
            format!("--ssl-ca={}", ours.display()),
        ];
        self.restart(&settings);
        (ours, another)
    }

    fn client(&self, text: &str) -> std::process::Output {
        let mut client = Command::new("mariadb");
        client.args(["--no-defaults", "-u", "root", "-N", "-B", "--default-character-set=utf8mb4"]);
        client.arg("-S").arg(self.socket()).args(["-e", text]).output().unwrap()
    }

    fn socket(&self) -> PathBuf {
        self.folder.path().join("s")
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        self.stop();
    }
}

/// An empty data folder; None if MariaDB is not installed.
fn create_data() -> Option<TempDir> {
    let folder = tempfile::Builder::new().prefix("mailrace-my-empty-").tempdir().unwrap();
    let mut install = Command::new("mariadb-install-db");
    install.args(["--no-defaults", "--auth-root-authentication-method=normal", "--skip-test-db"]);
    install.arg("--innodb-log-file-size=4M").arg(format!("--datadir={}", folder.path().display())).args(user());
    let made = install.output().ok()?;
    assert!(made.status.success(), "mariadb-install-db: {}", String::from_utf8_lossy(&made.stderr));
    Some(folder)
}

/// The server runs as root only if it is told to.
fn user() -> Option<&'static str> {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0).then_some("--user=root")
}

fn openssl(arguments: &[&str], files: &[(&str, &Path)]) {
    let mut openssl = Command::new("openssl");
    openssl.args(arguments);
    for (argument, file) in files {
        openssl.arg(argument).arg(file);
    }
    let done = openssl.output().unwrap();
    assert!(done.status.success(), "openssl: {}", String::from_utf8_lossy(&done.stderr));
}
