//! One connection to one identified Redis server.

use std::sync::Arc;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError, ScriptInvocation};

use super::{RedisConfig, RedisUnavailable};

/// An open connection, shared by all callers. It never reconnects, so everything sent through it reaches the server
/// process whose `run_id` was read when it was opened.
#[derive(Clone)]
pub struct RedisConnection {
    multiplexed: MultiplexedConnection,
    run_id: Arc<str>,
    replication_id: Arc<str>,
    number: u64,
}

impl RedisConnection {
    /// Connects and reads the server's identity. A replica is refused: it accepts no writes.
    pub(super) async fn open(
        client: &Client,
        config: &RedisConfig,
        number: u64,
    ) -> Result<Self, RedisUnavailable> {
        let options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_within))
            .set_response_timeout(Some(config.answer_within));
        let multiplexed = client
            .get_multiplexed_async_connection_with_config(&options)
            .await;
        let mut multiplexed = multiplexed.map_err(|error| unavailable(&error))?;
        let info = |section: &str| {
            let mut info = ::redis::cmd("INFO");
            info.arg(section);
            info
        };
        let server: String = query(&info("server"), &mut multiplexed).await?;
        let replication: String = query(&info("replication"), &mut multiplexed).await?;
        if info_field(&replication, "role") != Some("master") {
            return Err(RedisUnavailable("the server is a replica".into()));
        }
        let run_id = info_field(&server, "run_id");
        let run_id = run_id.ok_or_else(|| RedisUnavailable("INFO has no run_id".into()))?;
        let replication_id = info_field(&replication, "master_replid");
        let replication_id =
            replication_id.ok_or_else(|| RedisUnavailable("INFO has no master_replid".into()))?;
        Ok(Self {
            run_id: run_id.into(),
            replication_id: replication_id.into(),
            multiplexed,
            number,
        })
    }

    /// The server's incarnation: changes with a restart or a failover.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// The server's data set: changes whenever the server becomes a master, also without a restart.
    pub(crate) fn replication_id(&self) -> &str {
        &self.replication_id
    }

    /// The number of this connection in its process; later ones have greater numbers.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, RedisUnavailable> {
        let answer = script.invoke_async(&mut self.multiplexed.clone()).await;
        answer.map_err(|error| unavailable(&error))
    }

    pub(super) async fn command<T: FromRedisValue>(
        &self,
        command: &Cmd,
    ) -> Result<T, RedisUnavailable> {
        query(command, &mut self.multiplexed.clone()).await
    }
}

async fn query<T: FromRedisValue>(
    command: &Cmd,
    multiplexed: &mut MultiplexedConnection,
) -> Result<T, RedisUnavailable> {
    let answer = command.query_async(multiplexed).await;
    answer.map_err(|error| unavailable(&error))
}

/// The value of `name:value` in the answer of `INFO`.
fn info_field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// Leaves out the address, which may contain a password.
fn unavailable(error: &RedisError) -> RedisUnavailable {
    let detail = error.detail().unwrap_or_default();
    RedisUnavailable(format!("{} {detail}", error.category()).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn info_fields_are_read_line_by_line() {
        let info = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\nno_run_id:x\r\n";
        assert_eq!(info_field(info, "run_id"), Some("abc"));
        assert_eq!(info_field(info, "role"), None);
    }
}
