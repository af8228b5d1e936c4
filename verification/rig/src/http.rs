//! The HTTP client of the rig, for servers on loopback only.

use std::time::Duration;

use reqwest::{Client, redirect};

/// Longer than any call to a server of the rig; a test's own deadline is shorter.
const ANSWER_TIMEOUT: Duration = Duration::from_secs(120);

/// A client with its own connections, which belong to the runtime of their first use.
pub(crate) fn client() -> Client {
    // An error means that a provider is already installed, which is fine.
    rustls::crypto::ring::default_provider()
        .install_default()
        .ok();
    Client::builder()
        .timeout(ANSWER_TIMEOUT)
        .no_proxy()
        .tls_certs_only([]) // TLS is not used here
        .redirect(redirect::Policy::none())
        .build()
        .expect("the client uses no settings of the machine")
}
