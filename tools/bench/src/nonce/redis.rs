//! The Redis server under test: its counters, `redis-benchmark`, and the removal of the benchmark's keys.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::process::Stdio;
use std::time::Duration;

use ::redis::aio::MultiplexedConnection;
use ::redis::{Client, ConnectionAddr, IntoConnectionInfo as _, RedisError, cmd};
use cli::Failure;
use domain::LaneKey;
use nonce::redis::RedisConfig;
use tokio::process::Command;

use super::setup::Contender;
use crate::accept::spinner;

/// Connections of `redis-benchmark`: the same number as pgbench.
const CLIENTS: u32 = crate::postgres::pgbench::SINGLE_CLIENTS;
/// Requests per millisecond of the requested duration: `redis-benchmark` takes a number, not a time.
const REQUESTS_PER_MS: u128 = 80;
const REQUESTS_MIN: u128 = 10_000;
/// The key that INCR increments.
const COUNTER: &str = "lanekeeper:bench:counter";
/// Keys per SCAN call.
const SCAN_COUNT: u32 = 1_000;

pub(super) struct Server {
    pub(super) address: Address,
    connection: MultiplexedConnection,
    benchmark: PathBuf,
}

/// An address in the form that `redis-benchmark` takes.
pub(super) struct Address {
    pub(super) url: String,
    host: String,
    port: u16,
    database: i64,
}

/// Calls by command since the start of the server.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct CallFilter(BTreeMap<String, u64>);

impl Address {
    pub(super) fn parse(url: &str) -> Result<Self, Failure> {
        // The URL is never shown: it may contain a password.
        let info = url
            .into_connection_info()
            .map_err(|_not_shown: RedisError| {
                Failure::Usage("--redis takes redis://host:6379/0".to_owned())
            })?;
        let ConnectionAddr::Tcp(host, port) = info.addr().clone() else {
            return Err(Failure::Usage(
                "--redis takes redis://host:6379/0: neither TLS nor a socket".to_owned(),
            ));
        };
        if info.redis_settings().password().is_some() {
            return Err(Failure::Usage(
                "--redis has a password, which redis-benchmark takes as an argument that every user of this \
                 machine can read: use a server without a password"
                    .to_owned(),
            ));
        }
        Ok(Self {
            url: url.to_owned(),
            host,
            port,
            database: info.redis_settings().db(),
        })
    }
}

impl Server {
    pub(super) async fn open(address: Address, benchmark: Option<&Path>) -> Result<Self, Failure> {
        let benchmark = match benchmark {
            Some(path) => Some(path.to_owned()).filter(|path| path.is_file()),
            None => find_in_path("redis-benchmark"),
        };
        let benchmark = benchmark.ok_or_else(|| {
            Failure::Usage(
                "redis-benchmark was not found: install the Redis tools, or give --redis-benchmark PATH"
                    .to_owned(),
            )
        })?;
        let unreachable =
            |e: RedisError| Failure::Unreachable(format!("Redis does not answer: {e}"));
        let client = Client::open(address.url.as_str()).map_err(unreachable)?;
        let connection = client.get_multiplexed_async_connection().await;
        Ok(Self {
            address,
            connection: connection.map_err(unreachable)?,
            benchmark,
        })
    }

    pub(super) async fn version(&self) -> Result<String, Failure> {
        let info = self.read_info("server").await?;
        let version = info
            .lines()
            .find_map(|line| line.strip_prefix("redis_version:"));
        Ok(version.unwrap_or("?").trim().to_owned())
    }

    pub(super) async fn read_calls(&self) -> Result<CallFilter, Failure> {
        Ok(CallFilter::parse(&self.read_info("commandstats").await?))
    }

    /// Measures INCR on one key with `redis-benchmark`, in commands per second.
    pub(super) async fn measure_incr(&self, duration: Duration) -> Result<f64, Failure> {
        let bar = spinner("redis-benchmark, INCR");
        let Address {
            host,
            port,
            database,
            ..
        } = &self.address;
        let requests = (duration.as_millis() * REQUESTS_PER_MS).max(REQUESTS_MIN);
        let mut command = Command::new(&self.benchmark);
        command
            .args(["-h", host, "-p", &port.to_string()])
            .args(["--dbnum", &database.to_string()])
            .args(["-c", &CLIENTS.to_string(), "-n", &requests.to_string()])
            .args(["--csv", "INCR", COUNTER])
            .stdin(Stdio::null())
            .kill_on_drop(true);
        let output = command.output().await;
        bar.finish_and_clear();
        let output =
            output.map_err(|e| Failure::refused(&self.benchmark.display().to_string(), &e))?;
        cmd("DEL")
            .arg(COUNTER)
            .query_async::<()>(&mut self.connection.clone())
            .await
            .map_err(|e| redis_failure(&e))?;
        let stdout = String::from_utf8_lossy(&output.stdout);
        parse_rate(&stdout).ok_or_else(|| {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let last = stderr.lines().last().unwrap_or_default().to_owned();
            Failure::Refused(format!("redis-benchmark failed: {last}"))
        })
    }

    /// Deletes the keys of these lanes.
    pub(super) async fn delete_keys_of(&self, lanes: &[LaneKey]) -> Result<(), Failure> {
        let lanes: BTreeSet<String> = lanes.iter().map(LaneKey::to_string).collect();
        let pattern = format!("{}:nonce:*", RedisConfig::new(&self.address.url).prefix);
        let mut cursor = 0_u64;
        loop {
            let mut scan = cmd("SCAN");
            scan.arg(cursor).arg("MATCH").arg(&pattern);
            scan.arg("COUNT").arg(SCAN_COUNT);
            let page = scan.query_async(&mut self.connection.clone()).await;
            let (next, keys): (u64, Vec<String>) = page.map_err(|e| redis_failure(&e))?;
            let ours: Vec<&String> = keys
                .iter()
                .filter(|key| lane_of(key).is_some_and(|lane| lanes.contains(lane)))
                .collect();
            if !ours.is_empty() {
                cmd("UNLINK")
                    .arg(&ours)
                    .query_async::<()>(&mut self.connection.clone())
                    .await
                    .map_err(|e| redis_failure(&e))?;
            }
            if next == 0 {
                return Ok(());
            }
            cursor = next;
        }
    }

    async fn read_info(&self, section: &str) -> Result<String, Failure> {
        let info = cmd("INFO")
            .arg(section)
            .query_async(&mut self.connection.clone())
            .await;
        info.map_err(|e| redis_failure(&e))
    }
}

impl CallFilter {
    fn parse(info: &str) -> Self {
        let call = |line: &str| {
            let (name, rest) = line.strip_prefix("cmdstat_")?.split_once(":calls=")?;
            let (count, _) = rest.split_once(',')?;
            Some((name.to_owned(), count.parse().ok()?))
        };
        Self(info.lines().filter_map(call).collect())
    }

    /// The calls since `before`: those that clients sent, and all including those inside scripts.
    pub(super) fn since(&self, before: &Self, contender: Contender) -> (u64, u64) {
        let count = |name: &str| {
            let total = |calls: &Self| calls.0.get(name).copied().unwrap_or(0);
            total(self).saturating_sub(total(before))
        };
        let scripts = ["evalsha", "eval"];
        let plain = contender.plain_commands();
        let sent = scripts.iter().chain(plain).map(|name| count(name)).sum();
        let all = self.0.keys().map(|name| count(name)).sum();
        (sent, all)
    }
}

/// The lane of a key, which is in braces so that all keys of a lane share a slot.
fn lane_of(key: &str) -> Option<&str> {
    let (_, rest) = key.split_once('{')?;
    rest.split_once('}').map(|(lane, _)| lane)
}

/// Parses the rate of the last line: `"INCR …","81234.56",…`.
fn parse_rate(csv: &str) -> Option<f64> {
    let line = csv.lines().rfind(|line| line.contains(COUNTER))?;
    line.split("\",\"").nth(1)?.parse().ok()
}

fn find_in_path(program: &str) -> Option<PathBuf> {
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|folder| folder.join(program))
        .find(|program| program.is_file())
}

fn redis_failure(error: &RedisError) -> Failure {
    Failure::Refused(format!("Redis returned an error: {error}"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn calls_sent_by_clients_and_inside_scripts_are_counted() {
        let before =
            CallFilter::parse("cmdstat_evalsha:calls=10,usec=5\r\ncmdstat_get:calls=3,usec=1\r\n");
        let info = "# Commandstats\r\ncmdstat_evalsha:calls=14,usec=5,usec_per_call=1\r\n\
                    cmdstat_get:calls=7,usec=1\r\ncmdstat_set:calls=4,usec=1\r\n\
                    cmdstat_client|setinfo:calls=1,usec=1\r\n";
        let now = CallFilter::parse(info);
        assert_eq!(now.since(&before, Contender::RedisIssue), (4, 13));
        assert_eq!(now.since(&before, Contender::RowLockRedis), (8, 13));
    }

    #[test]
    fn rate_and_lane_of_a_key_are_parsed() {
        let csv = "\"test\",\"rps\",\"avg_latency_ms\"\n\
                   \"INCR lanekeeper:bench:counter\",\"81234.56\",\"0.4\"\n";
        assert_eq!(parse_rate(csv), Some(81_234.56));
        assert_eq!(parse_rate("Could not connect"), None);
        assert_eq!(lane_of("lanekeeper:nonce:{1:0xaa}:next"), Some("1:0xaa"));
        assert_eq!(lane_of("lanekeeper"), None);
    }
}
