//! The values that are one of a few words, and the words that this version does not have yet.

use std::path::PathBuf;

use domain::lane::ChainQuery;
use domain::window::Release;
use engine::node::NonKeeper;

use super::raw::Raw;
use super::values::{Setting, Wrong, text};

/// Which store.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) enum StoreUrl {
    /// The embedded store in this folder.
    Sqlite(PathBuf),
}

impl Setting for StoreUrl {
    const IS_SECRET: bool = true;
    const FORM: &'static str = "\"sqlite:\" and a folder, such as \"sqlite:/var/lib/lanekeeper\"";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        let url = text(raw)?;
        if url.starts_with("postgres://") || url.starts_with("postgresql://") {
            return Err(Wrong::Because(
                "the PostgreSQL store is not in this version: use \"sqlite:FOLDER\"".to_owned(),
            ));
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

/// Which kind of key.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum SignerKind {
    Key,
    Keystore,
}

/// Who may ask.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthMode {
    None,
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
words!(NonKeeper, "\"queue\" or \"reject\"", {
    "queue" => NonKeeper::Queue, "reject" => NonKeeper::Reject,
}, later { "forward" => "forwarding to another node is not in this version (the embedded store has one node): use \"queue\" or \"reject\"" });
words!(SignerKind, "\"key\" or \"keystore\"", {
    "key" => SignerKind::Key, "keystore" => SignerKind::Keystore,
}, later {
    "web3signer" => "remote signers are not in this version: use \"key\" or \"keystore\"",
    "gcp-kms" => "remote signers are not in this version: use \"key\" or \"keystore\"",
    "aws-kms" => "remote signers are not in this version: use \"key\" or \"keystore\"",
    "external" => "the nonce component is not in this version: use \"key\" or \"keystore\""
});
words!(AuthMode, "\"none\"", {
    "none" => AuthMode::None,
}, later { "keys" => "API keys are not in this version: use \"none\", which is allowed on loopback" });

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn store_urls() {
        let path = |url: &str| {
            StoreUrl::from_raw(&Raw::Word(url.into())).map(|StoreUrl::Sqlite(path)| path)
        };
        assert_eq!(path("sqlite:a/b.db"), Ok(PathBuf::from("a/b.db")));
        assert_eq!(path("sqlite:/a/b.db"), Ok(PathBuf::from("/a/b.db")));
        assert_eq!(path("sqlite:///a/b.db"), Ok(PathBuf::from("/a/b.db")));
        assert_eq!(path("sqlite://b.db"), Ok(PathBuf::from("b.db")));
        assert_eq!(path("sqlite:"), Err(Wrong::Form));
        assert!(matches!(
            path("postgres://u:secret@h/db"),
            Err(Wrong::Because(_))
        ));
    }
}
