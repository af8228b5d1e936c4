//! The values that are one of a few words, and the words that this version does not have yet.

use std::fmt;
use std::path::PathBuf;

use api::keys::Scope;
use domain::lane::{ChainQuery, Finality, FinalityTag, OnForeignNonce};
use domain::window::Release;
use engine::node::{NonKeeper, OnTimelineChange};
use nonce::{RejectPolicy, SchemeKind};

use super::raw::Raw;
use super::values::{Setting, Wrong, text};

/// Which store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// The embedded store in this folder.
    Sqlite(PathBuf),
    /// The cluster's store.
    Postgres(PostgresUrl),
}

/// The address of a PostgreSQL database. It may hold a password, so it is never shown as it is.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct PostgresUrl(String);

impl PostgresUrl {
    /// Whether this looks like one at all; the store reads it.
    pub(crate) fn parse(url: &str) -> Option<Self> {
        let rest = url
            .strip_prefix("postgres://")
            .or_else(|| url.strip_prefix("postgresql://"))?;
        (!rest.is_empty()).then(|| Self(url.to_owned()))
    }

    /// The same server and account, another database.
    pub(crate) fn with_database(&self, name: &str) -> Self {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("postgres", ""));
        let (account, place) = rest
            .rsplit_once('@')
            .map_or(("", rest), |(account, place)| (account, place));
        let at = if account.is_empty() { "" } else { "@" };
        let (place, options) = place.split_once('?').unwrap_or((place, ""));
        let (host, _) = place.split_once('/').unwrap_or((place, ""));
        let mark = if options.is_empty() { "" } else { "?" };
        Self(format!(
            "{scheme}://{account}{at}{host}/{name}{mark}{options}"
        ))
    }

    /// With its password.
    pub(crate) fn secret(&self) -> &str {
        &self.0
    }

    /// Without its password, wherever that stands. In doubt more is hidden than need be.
    pub(crate) fn shown(&self) -> String {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("postgres", ""));
        // A password may hold any character that its writer forgot to escape.
        let rest = match rest.rsplit_once('@') {
            Some((account, place)) => match account.split_once(':') {
                Some((user, _)) => format!("{user}:***@{place}"),
                None => rest.to_owned(),
            },
            None => rest.to_owned(),
        };
        let hide = |option: &str| match option.split_once('=') {
            Some((key, _)) if key.contains("password") => format!("{key}=***"),
            Some(_) | None => option.to_owned(),
        };
        let parts: Vec<String> = rest.split('&').map(hide).collect();
        format!("{scheme}://{}", parts.join("&"))
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.shown())
    }
}

impl Setting for StoreUrl {
    const IS_SECRET: bool = true;
    const FORM: &'static str = "\"postgres://user:password@host/database\", or \"sqlite:\" and a \
                                folder, such as \"sqlite:/var/lib/lanekeeper\"";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        let url = text(raw)?;
        if let Some(url) = PostgresUrl::parse(url) {
            return Ok(Self::Postgres(url));
        }
        match url
            .strip_prefix("sqlite:")
            .map(|path| path.trim_start_matches("//"))
        {
            None | Some("") => Err(Wrong::Form),
            Some(_) if url.starts_with("sqlite:///") => {
                Ok(Self::Sqlite(PathBuf::from(&url["sqlite://".len()..])))
            }
            Some(path) => Ok(Self::Sqlite(PathBuf::from(path))),
        }
    }
    fn shown(&self) -> String {
        match self {
            Self::Sqlite(path) => format!("sqlite:{}", path.display()),
            Self::Postgres(url) => url.shown(),
        }
    }
}

impl Setting for Finality {
    const FORM: &'static str = "a number of blocks, \"safe\" or \"finalized\"";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        match text(raw) {
            Ok("safe") => Ok(Self::Tag(FinalityTag::Safe)),
            Ok("finalized") => Ok(Self::Tag(FinalityTag::Finalized)),
            Ok(_) | Err(_) => u64::from_raw(raw).map(Self::Depth),
        }
    }
    fn shown(&self) -> String {
        match self {
            Self::Depth(blocks) => blocks.to_string(),
            Self::Tag(FinalityTag::Safe) => "safe".to_owned(),
            Self::Tag(FinalityTag::Finalized) => "finalized".to_owned(),
        }
    }
}

/// Kinds that are one of a few words, and words that DESIGN names but this version does not have.
macro_rules! words {
    ($kind:ty, $form:literal, { $($word:literal => $value:path),* $(,)? }
     $(, later { $($later:literal => $why:literal),* })?) => {
        impl Setting for $kind {
            const FORM: &'static str = $form;
            fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
                match text(raw)? {
                    $($word => Ok($value),)*
                    $($($later => Err(Wrong::Because($why.to_owned())),)*)?
                    _ => Err(Wrong::Form),
                }
            }
            fn shown(&self) -> String {
                match self { $($value => $word,)* }.to_owned()
            }
        }
    };
}

/// How often confirmations are told.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Progress {
    Final,
    EveryBlock,
}

/// What is sent when a tx waits too long.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Policy {
    Rebroadcast,
    Bump,
}

/// What is done with a STUCK tx by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum StuckAction {
    Wait,
}

/// Which kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignerKind {
    Key,
    Keystore,
    /// None here: its nonces are lent.
    External,
}

/// How calls for lent nonces reach the books.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum NonceMode {
    Basic,
    WorkerQueue,
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthMode {
    None,
    Keys,
}

words!(ChainQuery, "\"pending\", \"latest\" or \"off\"", {
    "pending" => ChainQuery::Pending, "latest" => ChainQuery::Latest, "off" => ChainQuery::Off,
});
words!(Release, "\"mined\" or \"final\"", {
    "mined" => Release::Mined, "final" => Release::Final,
});
words!(Progress, "\"final\" or \"every-block\"", {
    "final" => Progress::Final, "every-block" => Progress::EveryBlock,
});
words!(OnForeignNonce, "\"requeue\" or \"hold\"", {
    "requeue" => OnForeignNonce::Requeue, "hold" => OnForeignNonce::Hold,
});
words!(Policy, "\"rebroadcast\" or \"bump\"", {
    "rebroadcast" => Policy::Rebroadcast, "bump" => Policy::Bump,
});
words!(StuckAction, "\"wait\"", { "wait" => StuckAction::Wait });
words!(NonKeeper, "\"forward\", \"queue\" or \"reject\"", {
    "forward" => NonKeeper::Forward, "queue" => NonKeeper::Queue, "reject" => NonKeeper::Reject,
});
words!(OnTimelineChange, "\"halt\" or \"continue\"", {
    "halt" => OnTimelineChange::Halt, "continue" => OnTimelineChange::Continue,
});
words!(Scope, "\"read\", \"send\", \"operate\" or \"metrics\"", {
    "read" => Scope::Read, "send" => Scope::Send,
    "operate" => Scope::Operate, "metrics" => Scope::Metrics,
});
words!(NonceMode, "\"basic\" or \"worker-queue\"", {
    "basic" => NonceMode::Basic, "worker-queue" => NonceMode::WorkerQueue,
});
words!(RejectPolicy, "\"FAIL_FAST\" or \"CALLER_RUNS\"", {
    "FAIL_FAST" => RejectPolicy::FailFast, "CALLER_RUNS" => RejectPolicy::CallerRuns,
});
words!(SchemeKind, "\"lane\", \"row-lock\", \"redis-issue\", \"redis-reserve\" or \"segment\"", {
    "lane" => SchemeKind::Lane, "row-lock" => SchemeKind::RowLock, "redis-issue" => SchemeKind::RedisIssue,
    "redis-reserve" => SchemeKind::RedisReserve, "segment" => SchemeKind::Segment,
});
words!(SignerKind, "\"key\", \"keystore\" or \"external\"", {
    "key" => SignerKind::Key, "keystore" => SignerKind::Keystore, "external" => SignerKind::External,
}, later {
    "web3signer" => "remote signers are not in this version: use \"key\" or \"keystore\"",
    "gcp-kms" => "remote signers are not in this version: use \"key\" or \"keystore\"",
    "aws-kms" => "remote signers are not in this version: use \"key\" or \"keystore\""
});
words!(AuthMode, "\"keys\" or \"none\"", {
    "keys" => AuthMode::Keys, "none" => AuthMode::None,
});

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_urls() {
        let read = |url: &str| StoreUrl::from_raw(&Raw::Word(url.into()));
        let folder = |path: &str| Ok(StoreUrl::Sqlite(PathBuf::from(path)));
        assert_eq!(read("sqlite:a/b.db"), folder("a/b.db"));
        assert_eq!(read("sqlite:/a/b.db"), folder("/a/b.db"));
        assert_eq!(read("sqlite:///a/b.db"), folder("/a/b.db"));
        assert_eq!(read("sqlite://b.db"), folder("b.db"));
        for bad in ["sqlite:", "postgres:", "postgres://", "mysql://h/db"] {
            assert_eq!(read(bad), Err(Wrong::Form), "{bad}");
        }
    }

    #[test]
    fn a_result_is_final_by_depth_or_by_the_chains_word() {
        let read = |raw: Raw| Finality::from_raw(&raw);
        assert_eq!(read(Raw::Integer(0)), Ok(Finality::Depth(0)));
        assert_eq!(read(Raw::Word("20".into())), Ok(Finality::Depth(20)));
        for (word, tag) in [
            ("safe", FinalityTag::Safe),
            ("finalized", FinalityTag::Finalized),
        ] {
            let finality = read(Raw::Text(word.into()));
            assert_eq!(finality, Ok(Finality::Tag(tag)));
            assert_eq!(Finality::Tag(tag).shown(), word);
        }
        for bad in [
            Raw::Text("latest".into()),
            Raw::Text("20".into()),
            Raw::Integer(-1),
            Raw::Bool(true),
        ] {
            assert_eq!(read(bad), Err(Wrong::Form));
        }
    }

    #[test]
    fn another_database_keeps_the_rest_of_the_address() {
        let other = |url: &str| PostgresUrl::parse(url).unwrap().with_database("b").0;
        assert_eq!(other("postgres://h"), "postgres://h/b");
        assert_eq!(
            other("postgres://u:p@h:1/a?sslmode=require"),
            "postgres://u:p@h:1/b?sslmode=require"
        );
    }

    #[test]
    fn passwords_are_not_shown_wherever_they_stand() {
        let shown = |url: &str| PostgresUrl::parse(url).unwrap().shown();
        for (url, expected) in [
            ("postgres://h/db", "postgres://h/db"),
            ("postgres://u@h/db", "postgres://u@h/db"),
            (
                "postgresql://u:hunter2@a,b:1/db",
                "postgresql://u:***@a,b:1/db",
            ),
            ("postgres://u:hun/te@r2@h/db", "postgres://u:***@h/db"),
            ("postgres://u:hunter2?x@h/db", "postgres://u:***@h/db"),
            (
                "postgres://h/db?sslmode=require&password=hunter2&sslpassword=hunter2",
                "postgres://h/db?sslmode=require&password=***&sslpassword=***",
            ),
            (
                "postgres://h/db?password=hunter2&application_name=a@b",
                "postgres://h/db?password=***&application_name=a@b",
            ),
        ] {
            assert_eq!(shown(url), expected);
            assert!(!format!("{:?}", PostgresUrl::parse(url)).contains("hunter2"));
        }
    }
}
