//! The same requests at a node with API keys and a cluster secret: who is let in, and what nodes of the
//! cluster hand over.
//!
//! Where a header's value holds the word `KEY`, a true key stands in its place; where it is `SEAL`, a true
//! seal of the path and body: no mutation could guess them, and the code behind them is to be reached.

use api::Auth;
use api::keys::{ApiKey, Scope, hash};
use api::peers::ClusterSecret;
use axum::body::{Body, to_bytes};
use axum::http::{HeaderValue, Request};
use ring::digest::{SHA256, digest};
use ring::hmac;
use tokio::runtime::Runtime;

use super::Target;
use super::http::{call_router, request};
use crate::worlds::node::NodeWorld;
use crate::worlds::still_runtime;

const KEY: &str = "lk_fuzz_0123456789abcdefghjkmnpqrstvwxyz0123456789abcdefghjk";
const SECRET: &str = "a secret of at least thirty-two characters";
/// After so many inputs the node is made anew, so that what it holds does not grow.
const INPUTS_PER_NODE: u32 = 300;
/// The longest body that is sealed: longer ones are not made.
const BODY_BYTES_MAX: usize = 1 << 20;

pub(super) fn make() -> Box<dyn Target> {
    Box::new(Access::default())
}

#[derive(Default)]
struct Access {
    /// The node before the runtime that drives it.
    world: Option<(NodeWorld, Runtime)>,
    inputs: u32,
}

impl Target for Access {
    fn prepare(&mut self) {
        if self.world.is_none() || self.inputs >= INPUTS_PER_NODE {
            self.world = None;
            self.inputs = 0;
            let runtime = still_runtime();
            let key = ApiKey::new("fuzz", &hash(KEY), Scope::ALL).expect("a good key");
            let secret = ClusterSecret::parse(SECRET).expect("a good secret");
            let starting = NodeWorld::start(None, Auth::Keys(vec![key]), Some(secret));
            let world = runtime.block_on(starting);
            self.world = Some((world, runtime));
        }
        self.inputs += 1;
    }

    fn run(&mut self, input: &[u8]) -> Result<(), String> {
        let (world, runtime) = self.world.as_ref().expect("it was prepared");
        let Some(request) = request(input) else {
            return Ok(());
        };
        runtime.block_on(async {
            let request = authentic(world, request).await;
            call_router(world, request).await
        })
    }
}

/// Puts the true key and the true seal where the words stand.
async fn authentic(world: &NodeWorld, request: Request<Body>) -> Request<Body> {
    let (mut parts, body) = request.into_parts();
    let body = to_bytes(body, BODY_BYTES_MAX).await.unwrap_or_default();
    let path = parts.uri.path().to_owned();
    for value in parts.headers.values_mut() {
        let Ok(text) = value.to_str() else {
            continue;
        };
        let text = if text == "SEAL" {
            seal(&path, world.clock.now().0, &body)
        } else {
            text.replace("KEY", KEY)
        };
        if let Ok(changed) = HeaderValue::from_str(&text) {
            *value = changed;
        }
    }
    Request::from_parts(parts, Body::from(body))
}

/// A seal as nodes of the cluster make it.
fn seal(path: &str, at: u64, body: &[u8]) -> String {
    let body = hex::encode(digest(&SHA256, body));
    let key = hmac::Key::new(hmac::HMAC_SHA256, SECRET.as_bytes());
    let sealed = format!("lanekeeper-cluster v1\nPOST\n{path}\n{at}\n{body}");
    let tag = hex::encode(hmac::sign(&key, sealed.as_bytes()));
    format!("v1 {at} {body} {tag}")
}
