//! Who may call this node: customers by their keys, other nodes by the cluster's secret.

use std::collections::BTreeMap;

use api::keys::{ApiKey, BadKey};
use api::peers::ClusterSecret;
use engine::node::NonKeeper;

use super::super::Problem;
use super::super::words::{AuthMode, StoreUrl};
use super::Found;

/// Reaches this node from this machine only.
enum Reach {
    Loopback,
    /// The key and its value by which others may reach it.
    Beyond(&'static str, String),
}

impl Found<'_> {
    pub(super) fn access(&mut self) {
        self.callers();
        self.keys();
        self.advertised();
        self.secret();
    }

    fn callers(&mut self) {
        let listen = self.config.http.listen;
        let has_keys = !self.config.auth_keys.is_empty();
        match self.config.auth.mode {
            AuthMode::None if !listen.ip().is_loopback() => self.wrong(
                "http.listen",
                &listen.to_string(),
                "but auth.mode = \"none\" lets everyone send who can reach it: set auth.mode = \
                 \"keys\", or listen on loopback (127.0.0.1 or [::1])",
            ),
            AuthMode::None if has_keys => self.wrong(
                "auth.mode",
                "\"none\"",
                "but there are [[auth.key]] entries, which nobody would be asked for: set it to \
                 \"keys\"",
            ),
            AuthMode::Keys if !has_keys => self.wrong(
                "auth.mode",
                "\"keys\"",
                "but there is no [[auth.key]], so that nobody could call: make one with \
                 `lanekeeper key new --name NAME`",
            ),
            AuthMode::None | AuthMode::Keys => {}
        }
    }

    fn keys(&mut self) {
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
                self.problems.push(Problem::of(&origin, message));
            }
            if let Some(other) = seen.insert(key.hash.to_lowercase(), index) {
                let rule = format!("but auth.key[{other}] has the same key: make one for each");
                self.wrong(&path("hash"), &key.hash, &rule);
            }
        }
    }

    /// Whether nodes hand requests to each other: one store for several nodes, and told to do so.
    fn forwards(&self) -> bool {
        let is_shared = match self.config.store.url {
            StoreUrl::Postgres(_) => true,
            StoreUrl::Sqlite(_) => false,
        };
        is_shared && self.config.routing.non_keeper == NonKeeper::Forward
    }

    fn advertised(&mut self) {
        let listen = self.config.http.listen;
        match &self.config.node.advertise {
            Some(url) if url.0.contains(['?', '#', '@']) => {
                // Not repeated: an account may have a password.
                let rule = "but must be host and port only, such as \"http://10.0.0.7:8645\"";
                self.wrong("node.advertise", "an address with an account, ? or #", rule);
            }
            None if listen.ip().is_unspecified() && self.forwards() => self.wrong(
                "http.listen",
                &listen.to_string(),
                "which is no address that other nodes could be told: set node.advertise to the \
                 URL under which they reach this one",
            ),
            Some(_) | None => {}
        }
    }

    fn secret(&mut self) {
        let node = &self.config.node;
        if node.cluster_secret.is_some() && node.cluster_secret_file.is_some() {
            let rule = "but node.clusterSecretFile is set too: leave one of them out";
            self.wrong("node.clusterSecret", "(hidden)", rule);
        }
        let inline = node.cluster_secret.as_ref();
        if let Some(Err(bad)) = inline.map(|secret| ClusterSecret::parse(&secret.0)) {
            let origin = self.config.origin("node.clusterSecret");
            let message = format!("node.clusterSecret: {bad}");
            self.problems.push(Problem::of(&origin, message));
        }
        let is_set = node.cluster_secret.is_some() || node.cluster_secret_file.is_some();
        if is_set || !self.forwards() {
            return;
        }
        let because = match (self.reach(), self.config.auth.mode) {
            (Reach::Beyond(path, value), _) => format!("{path} is {value}"),
            (Reach::Loopback, AuthMode::Keys) => "auth.mode is \"keys\"".to_owned(),
            (Reach::Loopback, AuthMode::None) => return,
        };
        self.problems.push(Problem::nowhere(format!(
            "node.clusterSecretFile is not set, but {because} and nodes hand requests to each other \
             (routing.nonKeeper = \"forward\"), so that they must know each other: put the same \
             secret on every node (`openssl rand -hex 32`)"
        )));
    }

    fn reach(&self) -> Reach {
        let listen = self.config.http.listen;
        if !listen.ip().is_loopback() {
            return Reach::Beyond("http.listen", listen.to_string());
        }
        match &self.config.node.advertise {
            Some(url) if !url.is_loopback() => Reach::Beyond("node.advertise", url.0.clone()),
            Some(_) | None => Reach::Loopback,
        }
    }
}
