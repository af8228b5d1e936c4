//! One connection to one Redis server, which says who it is.

use std::sync::Arc;

use ::redis::aio::MultiplexedConnection;
use ::redis::{AsyncConnectionConfig, Client, Cmd, FromRedisValue, RedisError, ScriptInvocation};

use super::{Away, RedisConfig};

/// An open connection, shared by all callers. It never connects anew by itself, so everything that is asked
/// through it is asked of the same server process: the one whose `run_id` was read when it was made.
#[derive(Clone)]
pub struct Link {
    wire: MultiplexedConnection,
    run_id: Arc<str>,
    replication_id: Arc<str>,
    number: u64,
}

impl Link {
    /// Connects, and asks who answers. A replica is refused: it takes no writes.
    pub(super) async fn open(
        client: &Client,
        config: &RedisConfig,
        number: u64,
    ) -> Result<Self, Away> {
        let options = AsyncConnectionConfig::new()
            .set_connection_timeout(Some(config.connect_within))
            .set_response_timeout(Some(config.answer_within));
        let wire = client
            .get_multiplexed_async_connection_with_config(&options)
            .await;
        let mut wire = wire.map_err(|error| away(&error))?;
        let info = |section: &str| {
            let mut info = ::redis::cmd("INFO");
            info.arg(section);
            info
        };
        let server: String = ask(&info("server"), &mut wire).await?;
        let replication: String = ask(&info("replication"), &mut wire).await?;
        if field(&replication, "role") != Some("master") {
            return Err(Away("the server is a replica".into()));
        }
        let run_id = field(&server, "run_id");
        let run_id = run_id.ok_or_else(|| Away("the server says no run_id".into()))?;
        let replication_id = field(&replication, "master_replid");
        let replication_id =
            replication_id.ok_or_else(|| Away("the server says no master_replid".into()))?;
        Ok(Self {
            run_id: run_id.into(),
            replication_id: replication_id.into(),
            wire,
            number,
        })
    }

    /// Which life of which server this is: another one after a restart or a failover.
    #[must_use]
    pub fn run_id(&self) -> &str {
        &self.run_id
    }

    /// Which history of data: another one whenever the server becomes a master, even without a restart.
    #[must_use]
    pub fn replication_id(&self) -> &str {
        &self.replication_id
    }

    /// Which connection of this process it is: a greater number was made later.
    #[must_use]
    pub fn number(&self) -> u64 {
        self.number
    }

    pub(super) async fn run<T: FromRedisValue>(
        &self,
        script: &ScriptInvocation<'_>,
    ) -> Result<T, Away> {
        let answer = script.invoke_async(&mut self.wire.clone()).await;
        answer.map_err(|error| away(&error))
    }

    pub(super) async fn command<T: FromRedisValue>(&self, command: &Cmd) -> Result<T, Away> {
        ask(command, &mut self.wire.clone()).await
    }
}

async fn ask<T: FromRedisValue>(
    command: &Cmd,
    wire: &mut MultiplexedConnection,
) -> Result<T, Away> {
    let answer = command.query_async(wire).await;
    answer.map_err(|error| away(&error))
}

/// The value of `name:value` in what `INFO` says.
fn field<'a>(info: &'a str, name: &str) -> Option<&'a str> {
    info.lines()
        .find_map(|line| line.strip_prefix(name)?.strip_prefix(':'))
        .map(str::trim)
}

/// Without the address, which may hold a password.
fn away(error: &RedisError) -> Away {
    let detail = error.detail().unwrap_or_default();
    Away(format!("{} {detail}", error.category()).trim().to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn fields_are_read_line_by_line() {
        let info = "# Server\r\nredis_version:7.0.15\r\nrun_id:abc\r\nno_run_id:x\r\n";
        assert_eq!(field(info, "run_id"), Some("abc"));
        assert_eq!(field(info, "role"), None);
    }
}
