//! Backups of a store, taken and restored as an operator does it.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use std::time::Duration;

use proof::cluster::{Cluster, postgres, run_blocking};
use proof::virtual_address::VirtualAddress;
use proof::{Outcome, Scratch, ensure, eventually};
use rig::postgres::{Database, Postgres, majors};

const WITNESSED_WITHIN: Duration = Duration::from_secs(10);

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum StoreKind {
    /// The embedded store's folder is copied while no process has it open.
    Folder,
    /// The data directory of a PostgreSQL server is copied while it is stopped, as a volume snapshot.
    Snapshot,
    /// `pg_dump` is loaded into a new server.
    Dump,
}

impl StoreKind {
    pub(super) const ALL: [Self; 3] = [Self::Folder, Self::Snapshot, Self::Dump];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Folder => "folder",
            Self::Snapshot => "snapshot",
            Self::Dump => "dump",
        }
    }
}

/// A PostgreSQL server under one address, behind which a restored one may take its place.
struct Served {
    server: Arc<Postgres>,
    database: Database,
    wire: VirtualAddress,
    /// The server into which a dump was loaded.
    _restored: Option<Arc<Postgres>>,
}

/// A store and its backup.
pub(super) struct Backup {
    kind: StoreKind,
    served: Option<Served>,
    home: Scratch,
}

impl Backup {
    pub(super) async fn of(kind: StoreKind) -> Outcome<Self> {
        let served = match kind {
            StoreKind::Folder => None,
            StoreKind::Snapshot | StoreKind::Dump => {
                // Not every installed major has its client programs.
                let has_dump = |major: &u32| rig::tools::postgres(*major, "pg_dump").is_ok();
                let major = majors().into_iter().find(has_dump);
                let major = major.ok_or("no PostgreSQL with pg_dump is installed")?;
                let server = postgres(major).await?;
                let of_database = Arc::clone(&server);
                let database = run_blocking(move || of_database.database("restores")).await?;
                Some(Served {
                    wire: VirtualAddress::to(server.port()).await?,
                    server,
                    database,
                    _restored: None,
                })
            }
        };
        Ok(Self {
            kind,
            served,
            home: Scratch::new()?,
        })
    }

    pub(super) fn kind(&self) -> StoreKind {
        self.kind
    }

    pub(super) fn store_url(&self) -> String {
        match &self.served {
            Some(served) => served.database.url_through(served.wire.port()),
            None => format!("sqlite:{}", self.home.path().join("store").display()),
        }
    }

    /// Outside of everything that is restored.
    pub(super) fn state_dir(&self) -> PathBuf {
        self.home.path().join("state")
    }

    /// Waits until the witness has the last commit of a lane: the file names it with a cursor behind all of its requests.
    pub(super) async fn wait_until_witnessed(&self, signer: &str) -> Outcome<()> {
        let path = self.state_dir().join("witness");
        let cursor = format!(" {}", 3 * super::COUNT);
        eventually("the witness is written", WITNESSED_WITHIN, || async {
            let text = fs::read_to_string(&path).unwrap_or_default();
            let signer = signer.to_lowercase();
            let has_all = text
                .lines()
                .any(|line| line.to_lowercase().contains(&signer) && line.ends_with(&cursor));
            Ok(has_all.then_some(()))
        })
        .await
    }

    fn copy_path(&self) -> PathBuf {
        self.home.path().join("backup")
    }

    /// Takes the backup; the node runs afterwards.
    pub(super) async fn take(&self, cluster: &mut Cluster) -> Outcome<()> {
        let copy = self.copy_path();
        match &self.served {
            None => {
                cluster.nodes[0].terminate().await?;
                copy_dir(&self.home.path().join("store"), &copy)?;
                cluster.start_node(0)
            }
            Some(served) if self.kind == StoreKind::Snapshot => {
                cluster.nodes[0].terminate().await?;
                let server = Arc::clone(&served.server);
                run_blocking(move || {
                    server.stop();
                    let copied = copy_dir(&server.data(), &copy).map_err(|error| error.to_string());
                    server.start_again();
                    copied
                })
                .await??;
                cluster.start_node(0)
            }
            Some(served) => {
                cluster.nodes[0].terminate().await?;
                let args = ["--dbname", served.database.url(), "--file"];
                execute(tool(&served.server, "pg_dump")?.args(args).arg(&copy))?;
                cluster.start_node(0)
            }
        }
    }

    /// Restores it; no node runs.
    pub(super) async fn restore(&mut self) -> Outcome<()> {
        let copy = self.copy_path();
        let Some(served) = &mut self.served else {
            let store = self.home.path().join("store");
            fs::remove_dir_all(&store)?;
            return copy_dir(&copy, &store);
        };
        if self.kind == StoreKind::Snapshot {
            let server = Arc::clone(&served.server);
            return run_blocking(move || {
                server.stop();
                let data = server.data();
                for entry in fs::read_dir(&data).map_err(|error| error.to_string())? {
                    let path = entry.map_err(|error| error.to_string())?.path();
                    execute(Command::new("rm").arg("-rf").arg(path))
                        .map_err(|error| error.to_string())?;
                }
                let restored = copy_dir(&copy, &data).map_err(|error| error.to_string());
                server.start_again();
                restored
            })
            .await?
            .map_err(Into::into);
        }
        let new = postgres(served.server.major()).await?;
        let name = served.database.name().to_owned();
        let of_database = Arc::clone(&new);
        run_blocking(move || of_database.exec(&format!("CREATE DATABASE \"{name}\""))).await?;
        let url = new.url_of(served.database.name());
        let args = [
            "--quiet",
            "--set",
            "ON_ERROR_STOP=1",
            "--dbname",
            &url,
            "--file",
        ];
        execute(tool(&served.server, "psql")?.args(args).arg(&copy))?;
        served.wire.point_to(new.port());
        served._restored = Some(new);
        Ok(())
    }
}

fn tool(server: &Postgres, program: &str) -> Outcome<Command> {
    Ok(Command::new(rig::tools::postgres(server.major(), program)?))
}

/// With owners and modes: the database's files belong to the user of its server.
fn copy_dir(from: &Path, to: &Path) -> Outcome<()> {
    fs::create_dir_all(to)?;
    execute(Command::new("cp").arg("-a").arg(from.join(".")).arg(to))
}

fn execute(command: &mut Command) -> Outcome<()> {
    let output = command.output()?;
    let error = String::from_utf8_lossy(&output.stderr).into_owned();
    ensure(output.status.success(), format!("{command:?}: {error}"))
}
