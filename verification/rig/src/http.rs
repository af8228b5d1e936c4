//! The HTTP client of the rig: to servers on loopback, and to nowhere else.

use std::time::Duration;

use reqwest::{Client, redirect};

/// Longer than any server of ours takes for anything; a test's own deadline comes before it.
const ANSWER_WITHIN: Duration = Duration::from_secs(120);

/// A client with its own connections. They belong to the runtime in which they are first used.
pub(crate) fn client() -> Client {
    // An error means that a provider is installed already, which is as good.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    Client::builder()
        .timeout(ANSWER_WITHIN)
        .no_proxy()
        .tls_certs_only([]) // nothing here is encrypted
        .redirect(redirect::Policy::none())
        .build()
        .expect("nothing of the machine's own settings is used")
}
