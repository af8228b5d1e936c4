//! The witness file of a node: what it has seen committed, outside of everything that a restore of the store brings back.
//!
//! A text of one line per lane, between a header that names the node and a checksum. It is replaced as a whole: written
//! beside, synced, renamed. A file that cannot be used means that the node has no opinion: this is logged and counted, and
//! the node starts.

use std::fs::{self, File, TryLockError};
use std::io::{self, Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::sync::Arc;

use alloy_primitives::keccak256;
use cli::Failure;
use domain::{ChainId, LaneKey, LaneWitness, NodeName, Nonce, Token};
use engine::ports::{Witness, WitnessError, WitnessedLanes};
use metrics::counter;

const FILE: &str = "witness";
const NEW_FILE: &str = "witness.new";
/// Where a file is put that cannot be read, for people.
const DAMAGED_FILE: &str = "witness.damaged";
const LOCK: &str = "witness.lock";
/// The first line, without the node's name.
const HEADER: &str = "lanekeeper witness 1, node ";
const CHECKSUM: &str = "checksum ";
/// The largest file that is read: enough for several hundred thousand lanes.
const BYTES_MAX: u64 = 64 << 20;

/// The file of one node.
#[derive(Clone)]
pub(crate) struct WitnessFile {
    dir: PathBuf,
    node: NodeName,
    /// What the file had when the node started.
    found: Arc<Option<WitnessedLanes>>,
    /// Locked while the process lives; `None` where the folder cannot be written.
    _lock: Arc<Option<File>>,
}

/// Why a file is not read.
#[derive(Debug, PartialEq, Eq)]
enum Unusable {
    /// It was written by this node.
    OfNode(String),
    Damaged(&'static str),
}

impl WitnessFile {
    /// Opens the folder of a node and reads its file. Refused only where another node uses the folder.
    pub(crate) fn open(dir: &Path, node: &NodeName) -> Result<Self, Failure> {
        let lock = lock_dir(dir)?;
        let found = match read_file(&dir.join(FILE)) {
            Ok(None) => {
                report_missing(dir);
                None
            }
            Ok(Some(text)) => recall(dir, node, &text)?,
            Err(error) => {
                report_unread(dir, &error.to_string());
                None
            }
        };
        let lanes = found.as_ref().map(WitnessedLanes::len);
        tracing::info!(dir = %dir.display(), ?lanes, "what this node has committed is recorded in node.stateDir");
        Ok(Self {
            dir: dir.to_owned(),
            node: node.clone(),
            found: Arc::new(found),
            _lock: Arc::new(lock),
        })
    }
}

#[async_trait::async_trait]
impl Witness for WitnessFile {
    async fn read(&self) -> Option<WitnessedLanes> {
        self.found.as_ref().clone()
    }

    async fn write(&self, lanes: &WitnessedLanes) -> Result<(), WitnessError> {
        let (dir, text) = (self.dir.clone(), to_text(&self.node, lanes));
        let written = tokio::task::spawn_blocking(move || replace_file(&dir, &text)).await;
        let failed = |error: &dyn std::fmt::Display| {
            WitnessError(format!("{}: {error}", self.dir.join(FILE).display()))
        };
        written
            .map_err(|error| failed(&error))?
            .map_err(|error| failed(&error))
    }
}

/// Locks the folder for this process, and creates it where it is missing.
fn lock_dir(dir: &Path) -> Result<Option<File>, Failure> {
    let open = || {
        fs::create_dir_all(dir)?;
        let mut options = File::options();
        options.create(true).truncate(false).write(true);
        options.open(dir.join(LOCK))
    };
    let lock = match open() {
        Ok(lock) => lock,
        Err(error) => {
            report_unread(dir, &error.to_string());
            return Ok(None);
        }
    };
    match lock.try_lock() {
        Ok(()) => Ok(Some(lock)),
        Err(TryLockError::WouldBlock) => Err(Failure::Refused(format!(
            "node.stateDir {} is in use by another process: every node needs a folder of its own",
            dir.display()
        ))),
        Err(TryLockError::Error(error)) => {
            report_unread(dir, &error.to_string());
            Ok(None)
        }
    }
}

fn recall(dir: &Path, node: &NodeName, text: &str) -> Result<Option<WitnessedLanes>, Failure> {
    match parse(node, text) {
        Ok(lanes) => Ok(Some(lanes)),
        Err(Unusable::OfNode(other)) => Err(Failure::Refused(format!(
            "node.stateDir {} belongs to node {other}, and this is node {node}: every node needs a folder of its own. \
             If the node was renamed, remove {}",
            dir.display(),
            dir.join(FILE).display()
        ))),
        Err(Unusable::Damaged(why)) => {
            report_unread(dir, why);
            // Kept for people, and not written over. Where that fails, it is.
            fs::rename(dir.join(FILE), dir.join(DAMAGED_FILE)).ok();
            Ok(None)
        }
    }
}

/// Expected once, at the first start of a node.
fn report_missing(dir: &Path) {
    tracing::warn!(dir = %dir.display(), "node.stateDir has no witness file: a backup of the store that was restored before this \
         start is noticed only when it is declared (`lanekeeper migrate --restored`)");
}

fn report_unread(dir: &Path, why: &str) {
    counter!("lanekeeper_witness_failures_total", "op" => "read").increment(1);
    tracing::error!(dir = %dir.display(), why, "node.stateDir cannot be used as it is: a backup of the store that was restored \
         before this start is noticed only when it is declared (`lanekeeper migrate --restored`)");
}

/// The file's text; `None` where there is no file.
fn read_file(path: &Path) -> io::Result<Option<String>> {
    let file = match File::open(path) {
        Ok(file) => file,
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    // One byte more shows that it is too large: a checksum is missing then.
    file.take(BYTES_MAX.saturating_add(1))
        .read_to_end(&mut bytes)?;
    Ok(Some(String::from_utf8_lossy(&bytes).into_owned()))
}

/// Replaces the file: after a crash there is the old one or the new one, whole.
fn replace_file(dir: &Path, text: &str) -> io::Result<()> {
    let new = dir.join(NEW_FILE);
    let mut file = File::create(&new)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()?;
    fs::rename(&new, dir.join(FILE))?;
    File::open(dir)?.sync_all()
}

fn to_text(node: &NodeName, lanes: &WitnessedLanes) -> String {
    let mut text = format!("{HEADER}{node}\n");
    for (lane, seen) in lanes {
        let LaneWitness {
            history,
            token,
            batch_seq,
            next_nonce,
        } = seen;
        let LaneKey { chain_id, signer } = lane;
        text += &format!("{chain_id} {signer} {history} {token} {batch_seq} {next_nonce}\n");
    }
    let checksum = keccak256(text.as_bytes());
    text + &format!("{CHECKSUM}{checksum}\n")
}

fn parse(node: &NodeName, text: &str) -> Result<WitnessedLanes, Unusable> {
    let (body, checksum) = text
        .rfind(CHECKSUM)
        .map(|at| text.split_at(at))
        .ok_or(Unusable::Damaged("the checksum is missing"))?;
    if checksum != format!("{CHECKSUM}{}\n", keccak256(body.as_bytes())) {
        return Err(Unusable::Damaged("the checksum is wrong"));
    }
    let mut lines = body.lines();
    let writer = lines.next().and_then(|line| line.strip_prefix(HEADER));
    let writer = writer.ok_or(Unusable::Damaged(
        "it is not a witness file of this version",
    ))?;
    if writer != node.0 {
        return Err(Unusable::OfNode(writer.to_owned()));
    }
    let lanes = lines.map(parse_lane);
    let lanes: Option<WitnessedLanes> = lanes.collect();
    lanes.ok_or(Unusable::Damaged("a line cannot be read"))
}

fn parse_lane(line: &str) -> Option<(LaneKey, LaneWitness)> {
    let mut words = line.split(' ');
    let lane = LaneKey {
        chain_id: ChainId(words.next()?.parse().ok()?),
        signer: words.next()?.parse().ok()?,
    };
    let seen = LaneWitness {
        history: words.next()?.parse().ok()?,
        token: Token(words.next()?.parse().ok()?),
        batch_seq: words.next()?.parse().ok()?,
        next_nonce: Nonce(words.next()?.parse().ok()?),
    };
    words.next().is_none().then_some((lane, seen))
}

#[cfg(test)]
mod tests;
