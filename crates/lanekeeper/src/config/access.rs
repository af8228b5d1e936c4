//! `[auth]` and `[[auth.key]]`: callers authenticate with API keys, other nodes with the cluster secret.

use std::collections::BTreeMap;

use api::keys::{ApiKey, BadKey, Scope};
use api::peers::ClusterSecret;
use engine::node::NonKeeper;

use super::Problem;
use super::node::StoreUrl;
use super::reader::Fallback::Required;
use super::section::{default, section};
use super::setting::choices;
use super::validation::Validation;

section! {
    /// Access to the API.
    Auth = "auth" {
        /// How callers authenticate.
        mode: AuthMode = default("none");
    }
}

section! {
    /// An API key, once per key (`lanekeeper key new` makes one).
    AuthKey = "auth.key" {
        /// The caller's name; it is logged, and a part of the key.
        name: String = Required;
        /// The SHA-256 of the key, in hex.
        hash: String = Required;
        /// What the key permits.
        scopes: Vec<Scope> = Required;
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum AuthMode {
    None,
    Keys,
}

choices!(AuthMode, "\"keys\" or \"none\"", {
    "keys" => AuthMode::Keys, "none" => AuthMode::None,
});
choices!(Scope, "\"read\", \"send\", \"operate\" or \"metrics\"", {
    "read" => Scope::Read, "send" => Scope::Send,
    "operate" => Scope::Operate, "metrics" => Scope::Metrics,
});

impl Validation<'_> {
    pub(super) fn check_access(&mut self) {
        self.check_auth_mode();
        self.check_auth_keys();
        self.check_advertised_url();
        self.check_cluster_secret();
    }

    fn check_auth_mode(&mut self) {
        let listen = self.config.http.listen;
        let has_keys = !self.config.auth_keys.is_empty();
        match self.config.auth.mode {
            AuthMode::None if !listen.ip().is_loopback() => self.reject(
                "http.listen",
                &listen.to_string(),
                "but auth.mode = \"none\" lets every host on the network send transactions: set auth.mode = \
                 \"keys\", or listen on loopback (127.0.0.1 or [::1])",
            ),
            AuthMode::None if has_keys => self.reject(
                "auth.mode",
                "\"none\"",
                "but there are [[auth.key]] entries, which would not be checked: set it to \"keys\"",
            ),
            AuthMode::Keys if !has_keys => self.reject(
                "auth.mode",
                "\"keys\"",
                "but there is no [[auth.key]], so that every call would be refused: make one with \
                 `lanekeeper key new --name NAME`",
            ),
            AuthMode::None | AuthMode::Keys => {}
        }
    }

    fn check_auth_keys(&mut self) {
        let mut seen = BTreeMap::new();
        for (index, key) in self.config.auth_keys.iter().enumerate() {
            let path = |field: &str| format!("auth.key[{index}].{field}");
            if let Err(bad) = ApiKey::new(&key.name, &key.hash, &key.scopes) {
                let field = match bad {
                    BadKey::Name(_) => "name",
                    BadKey::Hash => "hash",
                    BadKey::Scope(_) | BadKey::NoScope => "scopes",
                };
                let message = format!("{}: {bad}", path(field));
                let origin = self.config.origin(&path(field));
                self.problems.push(Problem::at_origin(&origin, message));
            }
            if let Some(other) = seen.insert(key.hash.to_lowercase(), index) {
                let rule = format!("but auth.key[{other}] has the same key: make one for each");
                self.reject(&path("hash"), &key.hash, &rule);
            }
        }
    }

    /// Whether nodes forward requests to each other.
    fn has_forwarding(&self) -> bool {
        let is_shared = match self.config.store.url {
            StoreUrl::Postgres(_) => true,
            StoreUrl::Sqlite(_) => false,
        };
        is_shared && self.config.routing.non_keeper == NonKeeper::Forward
    }

    fn check_advertised_url(&mut self) {
        let listen = self.config.http.listen;
        match &self.config.node.advertise {
            Some(url) if url.0.contains(['?', '#', '@']) => {
                // The URL is not shown: it may contain a password.
                let rule = "but must be host and port only, such as \"http://10.0.0.7:8645\"";
                self.reject("node.advertise", "a URL with an account, ? or #", rule);
            }
            None if listen.ip().is_unspecified() && self.has_forwarding() => self.reject(
                "http.listen",
                &listen.to_string(),
                "which is not an address that other nodes can connect to: set node.advertise to the \
                 URL under which they reach this node",
            ),
            Some(_) | None => {}
        }
    }

    fn check_cluster_secret(&mut self) {
        let node = &self.config.node;
        if node.cluster_secret.is_some() && node.cluster_secret_file.is_some() {
            let rule = "but node.clusterSecretFile is set too: leave one of them out";
            self.reject("node.clusterSecret", "(hidden)", rule);
        }
        let inline = node.cluster_secret.as_ref();
        if let Some(Err(bad)) = inline.map(|secret| ClusterSecret::parse(&secret.0)) {
            let origin = self.config.origin("node.clusterSecret");
            let message = format!("node.clusterSecret: {bad}");
            self.problems.push(Problem::at_origin(&origin, message));
        }
        let is_set = node.cluster_secret.is_some() || node.cluster_secret_file.is_some();
        if is_set || !self.has_forwarding() {
            return;
        }
        let because = match (self.network_address(), self.config.auth.mode) {
            (Some(setting), _) => setting,
            (None, AuthMode::Keys) => "auth.mode is \"keys\"".to_owned(),
            (None, AuthMode::None) => return,
        };
        self.problems.push(Problem::without_location(format!(
            "node.clusterSecretFile is not set, but {because} and nodes forward requests to each other \
             (routing.nonKeeper = \"forward\"), which requires authentication: put the same \
             secret on every node (`openssl rand -hex 32`)"
        )));
    }

    /// The setting that makes this node reachable from other machines, if there is one.
    fn network_address(&self) -> Option<String> {
        let listen = self.config.http.listen;
        if !listen.ip().is_loopback() {
            return Some(format!("http.listen is {listen}"));
        }
        let advertise = self.config.node.advertise.as_ref()?;
        (!advertise.is_loopback()).then(|| format!("node.advertise is {}", advertise.0))
    }
}
