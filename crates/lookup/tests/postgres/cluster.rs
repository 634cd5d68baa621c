//! A temporary PostgreSQL server for a test, on a free port of 127.0.0.1.

use std::fs;
use std::os::unix::fs::{MetadataExt, PermissionsExt, chown};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use tempfile::TempDir;
use tokio_postgres::{Client, NoTls};

/// The server refuses to run as root; root starts it as this user.
const USER: &str = "postgres";
const START_MAX: Duration = Duration::from_secs(60);

pub(crate) struct Cluster {
    folder: TempDir,
    programs: PathBuf,
    port: u16,
    server: Option<Child>,
}

impl Cluster {
    /// Starts a server with an empty database; None if PostgreSQL is not installed.
    pub(crate) fn start() -> Option<Self> {
        let programs = programs()?;
        let folder = tempfile::Builder::new().prefix("mailrace-pg-").tempdir().unwrap();
        fs::set_permissions(folder.path(), fs::Permissions::from_mode(0o777)).unwrap();
        let port = sim::free_port();
        let mut cluster = Cluster { folder, programs, port, server: None };
        let mut make = cluster.program("initdb");
        make.args(["--no-sync", "-E", "UTF8", "--no-locale", "-A", "trust", "-U", USER, "-D"]).arg(cluster.data());
        let made = make.output().unwrap();
        assert!(made.status.success(), "initdb: {}", String::from_utf8_lossy(&made.stderr));
        cluster.restart();
        Some(cluster)
    }

    pub(crate) fn port(&self) -> u16 {
        self.port
    }

    pub(crate) fn url(&self) -> String {
        format!("postgres://{USER}@127.0.0.1:{}/postgres?sslmode=disable", self.port)
    }

    pub(crate) fn socket_url(&self) -> String {
        format!("host={} port={} user={USER} dbname=postgres", self.folder.path().display(), self.port)
    }

    /// Starts the server again with the same port and data.
    pub(crate) fn restart(&mut self) {
        let mut server = self.program("postgres");
        let settings =
            ["listen_addresses=localhost,127.0.0.1", "fsync=off", "shared_buffers=16MB", "max_connections=20"];
        server.arg("-D").arg(self.data()).args(["-p", &self.port.to_string(), "-k"]).arg(self.folder.path());
        server.args(settings.iter().flat_map(|setting| ["-c", setting]));
        let log = fs::File::create(self.folder.path().join("log")).unwrap();
        self.server = Some(server.stderr(log).stdout(Stdio::null()).spawn().unwrap());
        self.wait_for_psql("SELECT 1");
    }

    /// Stops the server and closes all connections.
    pub(crate) fn stop(&mut self) {
        if let Some(mut server) = self.server.take() {
            let mut stop = self.program("pg_ctl");
            let stopped = stop.args(["stop", "-s", "-w", "-m", "immediate", "-D"]).arg(self.data()).status();
            if !stopped.is_ok_and(|status| status.success()) {
                server.kill().unwrap();
            }
            server.wait().unwrap();
        }
    }

    /// Runs SQL statements.
    pub(crate) async fn sql(&self, text: &str) {
        self.client().await.batch_execute(text).await.unwrap();
    }

    /// Runs SQL statements in another process, without running tasks of this thread.
    pub(crate) fn sql_in_other_process(&self, text: &str) {
        assert!(self.psql(text).status().unwrap().success());
    }

    /// Waits until the condition is true.
    pub(crate) async fn wait_until(&self, condition: &str) {
        let client = self.client().await;
        let deadline = Instant::now() + START_MAX;
        while !client.query_one(condition, &[]).await.unwrap().get::<_, bool>(0) {
            assert!(Instant::now() < deadline, "timed out waiting for {condition}");
            tokio::time::sleep(Duration::from_millis(20)).await;
        }
    }

    /// The number of connections from tables.
    pub(crate) async fn clients(&self) -> i64 {
        let count = "SELECT count(*) FROM pg_stat_activity WHERE application_name = 'mailrace'";
        self.client().await.query_one(count, &[]).await.unwrap().get(0)
    }

    /// Gives the server a certificate for this name and enables TLS. Returns the CA certificate
    /// that signed it and an unrelated one.
    pub(crate) fn enable_tls(&mut self, name: &str) -> (PathBuf, PathBuf) {
        let file = |name: &str| self.folder.path().join(name);
        let new_key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:P-256", "-nodes"];
        let authority = |name: &str, key: &Path, certificate: &Path| {
            let subject = format!("/CN={name}");
            let arguments = [&["req", "-x509", "-subj", &subject], &new_key[..]].concat();
            openssl(&arguments, &[("-keyout", key), ("-out", certificate)]);
        };
        authority("ours", &file("ours.key"), &file("ours.pem"));
        authority("another", &file("another.key"), &file("another.pem"));
        let request = [&["req", "-subj", "/CN=server"], &new_key[..]].concat();
        openssl(&request, &[("-keyout", &self.data_file("server.key")), ("-out", &file("request.pem"))]);
        fs::write(file("names"), format!("subjectAltName=DNS:{name}\nbasicConstraints=CA:FALSE\n")).unwrap();
        openssl(
            &["x509", "-req", "-CAcreateserial"],
            &[
                ("-in", &file("request.pem")),
                ("-CA", &file("ours.pem")),
                ("-CAkey", &file("ours.key")),
                ("-extfile", &file("names")),
                ("-out", &self.data_file("server.crt")),
            ],
        );
        let (ours, another) = (file("ours.pem"), file("another.pem"));
        let key = self.data_file("server.key");
        fs::set_permissions(&key, fs::Permissions::from_mode(0o600)).unwrap();
        chown(&key, Some(fs::metadata(self.data()).unwrap().uid()), None).unwrap();
        self.sql_in_other_process("ALTER SYSTEM SET ssl = on");
        self.reload();
        (ours, another)
    }

    /// Requires passwords over TCP.
    pub(crate) fn require_passwords(&self) {
        fs::write(self.data_file("pg_hba.conf"), "local all all trust\nhost all all 127.0.0.1/32 scram-sha-256\n")
            .unwrap();
        self.reload();
    }

    /// Reloads the settings and waits until new sessions have them.
    fn reload(&self) {
        let before = self.psql("SELECT pg_conf_load_time()").arg("-At").stdout(Stdio::piped()).output().unwrap();
        let before = String::from_utf8(before.stdout).unwrap();
        self.sql_in_other_process("SELECT pg_reload_conf()");
        let is_read = format!("SELECT 1 / (pg_conf_load_time() > '{}')::int", before.trim());
        self.wait_for_psql(&is_read);
    }

    /// Waits until the statement succeeds.
    fn wait_for_psql(&self, text: &str) {
        let deadline = Instant::now() + START_MAX;
        while !self.psql(text).status().unwrap().success() {
            let log = || fs::read_to_string(self.folder.path().join("log")).unwrap();
            assert!(Instant::now() < deadline, "timed out waiting for {text}: {}", log());
            std::thread::sleep(Duration::from_millis(20));
        }
    }

    async fn client(&self) -> Client {
        let (client, connection) = tokio_postgres::connect(&self.socket_url(), NoTls).await.unwrap();
        tokio::spawn(connection);
        client
    }

    fn psql(&self, text: &str) -> Command {
        let mut psql = Command::new(self.programs.join("psql"));
        psql.arg("-h").arg(self.folder.path()).args(["-p", &self.port.to_string(), "-U", USER, "-X", "-q"]);
        psql.args(["-v", "ON_ERROR_STOP=1", "-c", text]).stdout(Stdio::null()).stderr(Stdio::null());
        psql
    }

    fn data(&self) -> PathBuf {
        self.folder.path().join("data")
    }

    fn data_file(&self, name: &str) -> PathBuf {
        self.data().join(name)
    }

    fn program(&self, name: &str) -> Command {
        let program = self.programs.join(name);
        if !is_root() {
            return Command::new(program);
        }
        let mut command = Command::new("setpriv");
        command.args(["--reuid", USER, "--regid", USER, "--init-groups", "--"]).arg(program).current_dir("/");
        command
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop();
    }
}

/// The programs of the newest version: Debian does not put them in PATH.
fn programs() -> Option<PathBuf> {
    let versions = fs::read_dir("/usr/lib/postgresql").ok()?;
    let programs = versions.filter_map(|version| Some(version.ok()?.path().join("bin")));
    programs.filter(|programs| programs.join("initdb").exists()).max()
}

fn is_root() -> bool {
    fs::metadata("/proc/self").is_ok_and(|process| process.uid() == 0)
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
