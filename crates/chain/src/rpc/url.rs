//! The URL of an endpoint. It often contains a credential, so only its host and port are shown.

use std::fmt;
use std::net::IpAddr;

use reqwest::Url;
use thiserror::Error;

/// The URL of a JSON-RPC endpoint.
#[derive(Clone, PartialEq, Eq)]
pub struct EndpointUrl {
    url: Url,
    name: String,
}

/// Why a text is not the URL of an endpoint. Never quotes it.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
pub enum BadEndpointUrl {
    #[error("it is not a URL: {0}")]
    NotUrl(String),
    #[error("its scheme is not {0}")]
    Scheme(&'static str),
    /// The WebSocket client would not send them.
    #[error("a WebSocket URL may have no user and password; put keys into its path or query")]
    Credentials,
    #[error("it has no host")]
    NoHost,
}

impl EndpointUrl {
    /// Parses an `http://` or `https://` URL.
    pub fn parse(text: &str) -> Result<Self, BadEndpointUrl> {
        Self::with_scheme(text, ["http", "https"], "http or https")
    }

    /// Parses a `ws://` or `wss://` URL.
    pub fn parse_ws(text: &str) -> Result<Self, BadEndpointUrl> {
        let url = Self::with_scheme(text, ["ws", "wss"], "ws or wss")?;
        if !url.url.username().is_empty() || url.url.password().is_some() {
            return Err(BadEndpointUrl::Credentials);
        }
        Ok(url)
    }

    fn with_scheme(
        text: &str,
        schemes: [&str; 2],
        expected: &'static str,
    ) -> Result<Self, BadEndpointUrl> {
        let url =
            Url::parse(text.trim()).map_err(|error| BadEndpointUrl::NotUrl(error.to_string()))?;
        if !schemes.contains(&url.scheme()) {
            return Err(BadEndpointUrl::Scheme(expected));
        }
        let host = url
            .host_str()
            .filter(|host| !host.is_empty())
            .ok_or(BadEndpointUrl::NoHost)?;
        let port = url.port_or_known_default().unwrap_or_default();
        let name = format!("{host}:{port}");
        Ok(Self { url, name })
    }

    /// Host and port, the only parts that may be shown.
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// Whether requests to both reach the same endpoint, however the URLs are written: a trailing slash makes no
    /// other endpoint, and a fragment is not sent.
    #[must_use]
    pub fn is_same_endpoint(&self, other: &Self) -> bool {
        let plain = |url: &Self| {
            let mut plain = url.url.clone();
            plain.set_fragment(None);
            let path = plain.path().trim_end_matches('/').to_owned();
            plain.set_path(&path);
            plain
        };
        plain(self) == plain(other)
    }

    pub(super) fn secret(&self) -> &Url {
        &self.url
    }

    pub(super) fn is_tls(&self) -> bool {
        ["https", "wss"].contains(&self.url.scheme())
    }

    pub(super) fn is_ws(&self) -> bool {
        ["ws", "wss"].contains(&self.url.scheme())
    }

    /// Whether the host is this machine, where no proxy is used.
    #[must_use]
    pub fn is_loopback(&self) -> bool {
        let host = self
            .url
            .host_str()
            .unwrap_or_default()
            .trim_matches(['[', ']']);
        host == "localhost" || host.parse().is_ok_and(|ip: IpAddr| ip.is_loopback())
    }
}

impl fmt::Display for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

impl fmt::Debug for EndpointUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_host_and_port_are_shown() {
        let cases = [
            (
                "https://user:secret@node.example/v3/secret?key=secret",
                "node.example:443",
            ),
            ("http://127.0.0.1:8545", "127.0.0.1:8545"),
            (" http://localhost/secret ", "localhost:80"),
            ("http://[::1]:8545/", "[::1]:8545"),
        ];
        for (text, name) in cases {
            let url = EndpointUrl::parse(text).unwrap();
            assert_eq!(format!("{url} {url:?}"), format!("{name} {name}"));
            assert_eq!(url.is_loopback(), !text.contains("node.example"));
        }
    }

    #[test]
    fn spelling_makes_no_other_endpoint() {
        let is_same = |one: &str, other: &str| {
            let parse = |text| EndpointUrl::parse(text).unwrap();
            parse(one).is_same_endpoint(&parse(other))
        };
        for (one, other) in [
            ("http://node.example", "http://NODE.example:80/"),
            (
                "https://node.example/v3/key",
                "https://node.example/v3/key/",
            ),
            ("http://node.example/#a", "http://node.example//#b"),
        ] {
            assert!(is_same(one, other), "{one} {other}");
        }
        for (one, other) in [
            ("http://node.example/v3/key", "http://node.example/v3/KEY"),
            ("http://node.example?key=1", "http://node.example?key=2"),
            ("http://node.example", "https://node.example"),
            ("http://node.example:1", "http://node.example:2"),
        ] {
            assert!(!is_same(one, other), "{one} {other}");
        }
    }

    #[test]
    fn invalid_url_is_refused_and_not_quoted() {
        for text in [
            "",
            "secret",
            "ws://node.example/secret",
            "http://",
            "file:///secret",
            "http://a b",
        ] {
            let error = EndpointUrl::parse(text).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
    #[test]
    fn websocket_urls_have_their_own_rules() {
        let url = EndpointUrl::parse_ws("wss://node.example/v3/secret").unwrap();
        assert_eq!(url.to_string(), "node.example:443");
        assert!(url.is_ws() && url.is_tls());
        for text in [
            "http://node.example/secret",
            "ws://user:secret@node.example",
            "ws://secret@node.example",
            "ws://",
        ] {
            let error = EndpointUrl::parse_ws(text).unwrap_err().to_string();
            assert!(!error.contains("secret"), "{error}");
        }
    }
}
