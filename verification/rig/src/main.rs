//! `rig COMMAND …`: runs a command with one shared PostgreSQL server per installed major and a shared Redis, and
//! stops them afterwards.

use std::process::{Command, ExitCode};
use std::thread;

use rig::postgres::{self, Postgres};
use rig::redis::{self, Persistence, Redis};

fn main() -> ExitCode {
    let mut words = std::env::args_os().skip(1);
    let Some(program) = words.next() else {
        eprintln!("usage: rig COMMAND [ARGUMENT...]");
        return ExitCode::from(2);
    };
    let servers: Vec<Postgres> = thread::scope(|scope| {
        let starts: Vec<_> = postgres::majors()
            .into_iter()
            .map(|major| scope.spawn(move || postgres::start_shared(major)))
            .collect();
        let servers = starts.into_iter().map(|start| start.join());
        servers
            .map(|server| server.expect("the failure was printed above"))
            .collect()
    });
    let addresses = servers
        .iter()
        .map(|server| (postgres::variable(server.major()), server.url()));
    let redis = Redis::start(Persistence::Nothing);
    let status = Command::new(&program)
        .args(words)
        .envs(addresses)
        .env(redis::VARIABLE, redis.url())
        .status();
    match status {
        Ok(status) => ExitCode::from(
            status
                .code()
                .and_then(|code| u8::try_from(code).ok())
                .unwrap_or(1),
        ),
        Err(error) => {
            eprintln!("{}: {error}", program.display());
            ExitCode::from(127)
        }
    }
}
