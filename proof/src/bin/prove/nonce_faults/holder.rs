//! One holder process: started, instructed, frozen, killed and restarted.

use std::fs::File;
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use proof::cluster::{Signal, send};
use proof::{Outcome, Scratch, binary, ensure};
use serde_json::Value;
use tokio::io::AsyncWriteExt as _;
use tokio::process::{Child, ChildStdin, Command};

/// Pending work ends within this time.
const ENDED_WITHIN: Duration = Duration::from_secs(30);

pub(crate) struct HolderProcess {
    settings: PathBuf,
    home: PathBuf,
    log: PathBuf,
    child: Option<(Child, ChildStdin)>,
}

impl HolderProcess {
    /// With these settings, not started.
    pub(crate) fn new(
        name: &str,
        settings: &Value,
        scratch: &Scratch,
        logs: &Path,
    ) -> Outcome<Self> {
        let file = scratch.path().join(format!("{name}.json"));
        std::fs::write(&file, settings.to_string())?;
        let log = logs.join(format!("{name}.log"));
        File::create(&log)?; // truncates the log of an earlier run
        Ok(Self {
            settings: file,
            home: scratch.path().to_owned(),
            log,
            child: None,
        })
    }

    pub(crate) fn start(&mut self) -> Outcome<()> {
        ensure(self.child.is_none(), "the holder runs")?;
        let log = File::options().append(true).open(&self.log)?;
        let mut child = Command::new(binary().with_file_name("holder"))
            .arg(&self.settings)
            .current_dir(&self.home)
            .stdin(Stdio::piped())
            .stdout(log.try_clone()?)
            .stderr(log)
            .kill_on_drop(true)
            .spawn()?;
        let orders = child.stdin.take().ok_or("the holder has no input")?;
        self.child = Some((child, orders));
        Ok(())
    }

    pub(crate) async fn order(&mut self, line: &str) -> Outcome<()> {
        let (_, orders) = self.child.as_mut().ok_or("the holder has ended")?;
        orders.write_all(format!("{line}\n").as_bytes()).await?;
        Ok(orders.flush().await?)
    }

    pub(crate) async fn signal(&self, signal: Signal) -> Outcome<()> {
        let pid = self.child.as_ref().and_then(|(child, _)| child.id());
        send(signal, pid.ok_or("the holder has ended")?).await
    }

    pub(crate) async fn kill_nine(&mut self) -> Outcome<()> {
        let (mut child, _) = self.child.take().ok_or("the holder has ended")?;
        child.start_kill()?;
        child.wait().await?;
        Ok(())
    }

    /// Waits until pending work is done; the exit code must be 0.
    pub(crate) async fn stop(&mut self) -> Outcome<()> {
        self.order("stop").await?;
        let (mut child, orders) = self.child.take().ok_or("the holder has ended")?;
        let status = tokio::time::timeout(ENDED_WITHIN, child.wait()).await??;
        drop(orders);
        let log = self.log.display();
        ensure(
            status.success(),
            format!("a holder ended with {status}, see {log}"),
        )
    }

    /// Fails if it has ended by itself.
    pub(crate) fn must_run(&mut self) -> Outcome<()> {
        let Some((child, _)) = self.child.as_mut() else {
            return Ok(());
        };
        match child.try_wait()? {
            None => Ok(()),
            Some(status) => {
                let log = self.log.display();
                Err(format!("a holder ended by itself with {status}, see {log}").into())
            }
        }
    }
}
