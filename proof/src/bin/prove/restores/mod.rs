//! 14.5: a backup of the store is restored, with queued, signed, sent and mined transactions since it was taken. Nothing is
//! paid twice, every lost request is named by a halted lane or was repeated and is paid or held once, and a lane that lost
//! nothing goes on.
//!
//! Without a witness and without a declaration, a snapshot and a folder look like the store itself. What is promised then is
//! less: nonces that the chain has and the store does not are attributed before anything is allocated, so nothing is paid
//! twice; but no lane names a request that was accepted after the backup and never sent. Here its client repeats it. And a
//! lane that such a backup does not have at all looks like any new one: what it has paid is paid again if it is repeated.

mod backup;
mod checks;

use std::time::Duration;

use proof::cluster::{Cluster, Settings};
use proof::config::Lease;
use proof::ledger::{Ledger, Promise};
use proof::{Outcome, Report, ensure, eventually, flag, print_step, run};
use serde_json::{Value, json};

use backup::{Backup, StoreKind};

/// Requests per lane and stage.
const COUNT: usize = 2;
/// How long a stage may take.
const WITHIN: Duration = Duration::from_secs(30);

/// The lanes by what happens to their requests after the backup.
const MINED: usize = 0;
const SENT: usize = 1;
const SIGNED: usize = 2;
/// Its request waits without a nonce in the backup, and is mined after it.
const QUEUED: usize = 3;
/// Nothing.
const WHOLE: usize = 4;
/// The backup does not have it: its first requests are mined after it.
const NEW: usize = 5;
const LANES: usize = 6;

/// How a restore is noticed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Notice {
    /// The node has a state folder.
    Witness,
    /// `migrate --restored`.
    Declared,
    Neither,
}

impl Notice {
    const ALL: [Self; 3] = [Self::Witness, Self::Declared, Self::Neither];

    fn name(self) -> &'static str {
        match self {
            Self::Witness => "witness",
            Self::Declared => "declared",
            Self::Neither => "neither",
        }
    }
}

pub(crate) async fn prove(report: &mut Report) -> Outcome<String> {
    let is_short = std::env::args().any(|arg| arg == "--short");
    let stores = flag(
        "store",
        if is_short {
            "folder"
        } else {
            "folder,snapshot,dump"
        },
    );
    let notices = flag("notice", "witness,declared,neither");
    let (mut restores, mut lost, mut halted) = (0, 0, 0);
    for kind in StoreKind::ALL {
        for notice in Notice::ALL {
            let is_chosen = |list: &str, name: &str| list.split(',').any(|chosen| chosen == name);
            if !is_chosen(&stores, kind.name()) || !is_chosen(&notices, notice.name()) {
                continue;
            }
            report.part(format!("{}, {}", kind.name(), notice.name()));
            let case = Case::start(kind, notice).await?;
            let counts = case.run(report).await?;
            restores += 1;
            lost += counts.lost;
            halted += counts.halted;
        }
    }
    ensure(restores > 0, "--store or --notice names nothing")?;
    Ok(format!(
        "{restores} restores, {lost} lost requests: {halted} lanes halted and named, every payment once, 0 paid twice"
    ))
}

/// What came of one restore.
struct Counts {
    lost: usize,
    halted: usize,
}

/// A node on a store, and its restore.
struct Case {
    cluster: Cluster,
    notice: Notice,
    backup: Backup,
    /// Requests that the backup has.
    kept: Ledger,
    /// Requests that were accepted after it.
    lost: Ledger,
}

impl Case {
    async fn start(kind: StoreKind, notice: Notice) -> Outcome<Self> {
        let backup = Backup::of(kind).await?;
        let settings = Settings {
            lease: Lease::SHORT,
            ..Settings::new("14-5-restores", LANES)
        };
        let mut cluster = Cluster::start(settings, &[backup.store_url()]).await?;
        if notice == Notice::Witness {
            let state_dir = backup.state_dir().display().to_string();
            let env = ("LANEKEEPER_NODE__STATE_DIR".to_owned(), state_dir);
            cluster.nodes[0].env.push(env);
            cluster.nodes[0].terminate().await?;
            cluster.start_node(0)?;
            cluster.nodes[0].ready().await?;
        }
        Ok(Self {
            cluster,
            notice,
            backup,
            kept: Ledger::default(),
            lost: Ledger::default(),
        })
    }

    async fn run(mut self, report: &mut Report) -> Outcome<Counts> {
        self.fill_and_back_up().await?;
        self.lose().await?;
        self.restore().await?;
        let reasons = checks::settled_lanes(&self).await?;
        for (lane, reason) in &reasons {
            report.fact(&format!("lane{lane}"), reason.as_str());
        }
        checks::require_named(&self, &reasons)?;
        self.resume(reasons.keys().copied()).await?;
        self.repeat_lost().await?;
        checks::require_paid_once(&self).await?;
        Ok(Counts {
            lost: self.lost.promised_count(),
            halted: reasons.len(),
        })
    }

    /// Requests that the backup contains: mined ones in every lane but one, whose request still waits for a nonce.
    async fn fill_and_back_up(&mut self) -> Outcome<()> {
        print_step("requests before the backup");
        for lane in [MINED, SENT, SIGNED, WHOLE] {
            self.pay(&self.kept, lane, "before").await?;
        }
        self.cluster.auditor(&self.kept).wait_until_idle().await?;
        self.cluster.chain_wire.cut();
        self.pay(&self.kept, QUEUED, "queued").await?;
        self.backup.take(&mut self.cluster).await?;
        self.cluster.chain_wire.heal();
        self.cluster.nodes[0].ready().await?;
        self.cluster.auditor(&self.kept).wait_until_idle().await
    }

    /// Requests after the backup, of which the restored store knows nothing.
    async fn lose(&mut self) -> Outcome<()> {
        print_step("requests after the backup: mined, sent, signed");
        self.pay(&self.lost, MINED, "mined").await?;
        if self.notice != Notice::Neither || self.backup.kind() == StoreKind::Dump {
            self.pay(&self.lost, NEW, "first").await?;
        }
        // An open lane signs without its chain.
        self.pay(&self.lost, SIGNED, "opened").await?;
        self.cluster.auditor(&self.lost).wait_until_idle().await?;
        let chain = &self.cluster.chain.chain;
        chain.call("evm_setAutomine", json!([false])).await?;
        self.pay(&self.lost, SENT, "sent").await?;
        let signer = &self.cluster.lanes[SENT];
        eventually("the bytes are in the pool", WITHIN, || async {
            let pending = chain.pending_nonce(signer).await?;
            Ok((pending >= 2 * COUNT as u64).then_some(()))
        })
        .await?;
        self.cluster.chain_wire.cut();
        self.pay(&self.lost, SIGNED, "signed").await?;
        if self.notice == Notice::Witness {
            self.backup
                .wait_until_witnessed(&self.cluster.lanes[SIGNED])
                .await?;
        }
        Ok(())
    }

    async fn restore(&mut self) -> Outcome<()> {
        print_step(format!("the backup is restored ({})", self.notice.name()));
        self.cluster.nodes[0].kill_nine().await?;
        self.backup.restore().await?;
        // A dump does not contain the settings of the serving role.
        let config = self.cluster.nodes[0].config().display().to_string();
        let mut args = vec!["migrate", "--config", &config];
        if self.notice == Notice::Declared {
            args.extend(["--restored", "--reason", "the proof has restored a backup"]);
        }
        let output = run(&args, &[]).await?;
        let error = String::from_utf8_lossy(&output.stderr).into_owned();
        ensure(output.status.success(), format!("{args:?}: {error}"))?;
        self.cluster.chain_wire.heal();
        self.cluster.start_node(0)?;
        self.cluster.nodes[0].ready().await
    }

    /// An operator has compared and lets the lanes go on.
    async fn resume(&self, lanes: impl Iterator<Item = usize>) -> Outcome<()> {
        let chain = &self.cluster.chain.chain;
        chain.call("evm_setAutomine", json!([true])).await?;
        let url = self.cluster.nodes[0].api.url();
        for lane in lanes {
            let signer = &self.cluster.lanes[lane];
            let accept = ["--accept-loss", "--reason", "the proof has counted it"];
            let args = [&["lane", "resume", signer][..], &accept, &["--url", url]].concat();
            let output = run(&args, &[]).await?;
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            ensure(output.status.success(), format!("lane resume: {error}"))?;
        }
        Ok(())
    }

    /// Clients repeat what they were promised; and every lane gets further requests.
    async fn repeat_lost(&self) -> Outcome<()> {
        print_step("every lost request is repeated");
        for ledger in [&self.lost, &self.kept] {
            for (id, payment) in ledger.payments() {
                self.create(&body(&payment.signer, &id, &payment.to))
                    .await?;
            }
        }
        for lane in 0..LANES {
            self.pay(&self.kept, lane, "after").await?;
        }
        Ok(())
    }

    async fn pay(&self, ledger: &Ledger, lane: usize, name: &str) -> Outcome<()> {
        for number in 0..COUNT {
            let id = format!("{name}-{lane}-{number}");
            let mut request = ledger.transfer_body(&self.cluster.lanes[lane], &id);
            request["payload"]["gas"] = json!("21000"); // the chain is not needed for an estimate
            let tx = self.create(&request).await?;
            ledger.record_promise(&id, Promise::read(&tx))?;
        }
        Ok(())
    }

    /// A request is accepted, at the latest when its lane was opened.
    async fn create(&self, request: &Value) -> Outcome<Value> {
        let what = format!("{} is accepted", request["requestId"]);
        eventually(&what, WITHIN, || async {
            let answer = self.cluster.nodes[0].api.create(request.clone(), "").await;
            let accepted = answer.ok().filter(|(status, _)| status.is_success());
            Ok(accepted.map(|(_, tx)| tx))
        })
        .await
    }
}

/// A payment of 1 wei.
fn body(signer: &str, id: &str, to: &str) -> Value {
    json!({"signer": signer, "requestId": id, "payload": {"to": to, "value": "1", "gas": "21000"}})
}
