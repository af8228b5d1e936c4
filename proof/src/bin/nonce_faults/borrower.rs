//! One borrowing process: started, ordered about, frozen, killed and started again.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use proof::cluster::{Signal, send};
use proof::{Outcome, Scratch, binary, demand};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};

/// How long one may take to finish what is under way.
const ENDED_WITHIN: Duration = Duration::from_secs(30);

pub(crate) struct Borrower {
    settings: PathBuf,
    home: PathBuf,
    log: PathBuf,
    child: Option<(Child, ChildStdin)>,
}

impl Borrower {
    /// One that keeps to these settings, not started.
    pub(crate) fn new(
        name: &str,
        settings: &Value,
        scratch: &Scratch,
        logs: &Path,
    ) -> Outcome<Self> {
        let file = scratch.path().join(format!("{name}.json"));
        std::fs::write(&file, settings.to_string())?;
        let log = logs.join(format!("{name}.log"));
        File::create(&log)?; // what a former run left goes
        Ok(Self {
            settings: file,
            home: scratch.path().to_owned(),
            log,
            child: None,
        })
    }

    pub(crate) fn start(&mut self) -> Outcome<()> {
        demand(self.child.is_none(), "the borrower runs")?;
        let log = File::options().append(true).open(&self.log)?;
        let mut child = Command::new(binary().with_file_name("borrower"))
            .arg(&self.settings)
            .current_dir(&self.home)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let orders = child.stdin.take().ok_or("the borrower has no input")?;
        self.child = Some((child, orders));
        Ok(())
    }

    pub(crate) async fn order(&mut self, line: &str) -> Outcome<()> {
        let (_, orders) = self.child.as_mut().ok_or("the borrower has ended")?;
        orders.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(orders.flush().await?)
    }

    pub(crate) async fn signal(&self, signal: Signal) -> Outcome<()> {
        let pid = self.child.as_ref().and_then(|(child, _)| child.id());
        send(signal, pid.ok_or("the borrower has ended")?).await
    }

    /// `kill -9`.
    pub(crate) async fn kill_nine(&mut self) -> Outcome<()> {
        let (mut child, _) = self.child.take().ok_or("the borrower has ended")?;
        child.start_kill()?;
        child.wait().await?;
        Ok(())
    }

    /// Lets it finish what is under way; it must say that it went well.
    pub(crate) async fn stop(&mut self) -> Outcome<()> {
        self.order("stop").await?;
        let (mut child, orders) = self.child.take().ok_or("the borrower has ended")?;
        let status = tokio::time::timeout(ENDED_WITHIN, child.wait()).await??;
        drop(orders);
        let log = self.log.display();
        demand(
            status.success(),
            format!("a borrower ended with {status}, see {log}"),
        )
    }

    /// Fails when it has ended by itself.
    pub(crate) fn must_run(&mut self) -> Outcome<()> {
        let Some((child, _)) = self.child.as_mut() else {
            return Ok(());
        };
        match child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let log = self.log.display();
                Err(format!("a borrower ended by itself with {status}, see {log}").into())
            }
        }
    }
}
