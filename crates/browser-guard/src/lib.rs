//! Which requests of browsers a server on a private network answers, so that a web page cannot use it.
//!
//! A browser sends requests to every address that a page names, also to servers that only its own network reaches. It
//! names the host of the URL in `Host`, even after that name was rebound to another address, and the page in `Origin` and
//! `Sec-Fetch-Site`; scripts cannot change any of them. Programs that are not browsers send no `Origin`, and address a
//! server by a name that its operator knows.
#![warn(missing_docs)]

use std::net::IpAddr;

use http::header::{AUTHORIZATION, HOST, ORIGIN};
use http::{HeaderMap, HeaderName, Uri};
use thiserror::Error;

const SEC_FETCH_SITE: HeaderName = HeaderName::from_static("sec-fetch-site");

/// The names and pages that a server trusts, besides IP addresses, `localhost` and its own pages.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BrowserGuard {
    /// The names under which the server itself is reached.
    pub own_hosts: Vec<String>,
    /// Further names that the operator allows, without ports.
    pub allowed_hosts: Vec<String>,
    /// Origins of other sites that may send requests, such as `https://console.example.com`.
    pub allowed_origins: Vec<String>,
    /// Whether a request needs a secret in `Authorization`, which no page can guess.
    pub needs_bearer: bool,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
pub enum Refusal {
    /// The name may have been rebound to this server by the owner of the name.
    #[error("host {0:?} is not one of this server's names")]
    ForeignHost(String),
    /// A page of another site sent the request.
    #[error("a page of another site ({0:?}) may not use this server")]
    ForeignPage(String),
}

impl BrowserGuard {
    /// Checks the headers that browsers set.
    pub fn check(&self, uri: &Uri, headers: &HeaderMap) -> Result<(), Refusal> {
        let header = |name: &HeaderName| headers.get(name).map(|value| value.as_bytes());
        let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
        let host = uri
            .authority()
            .map(|authority| authority.as_str().to_owned());
        let host = host.or_else(|| header(&HOST).map(text));
        if let Some(host) = &host
            && !self.is_own_name(host)
            && !self.is_authenticated(headers)
        {
            return Err(Refusal::ForeignHost(host.clone()));
        }
        let origins: Vec<String> = headers
            .get_all(ORIGIN)
            .iter()
            .map(|origin| text(origin.as_bytes()))
            .collect();
        let is_trusted = |origin: &String| {
            self.is_allowed(origin) || host.as_ref().is_some_and(|host| is_of_host(origin, host))
        };
        if let Some(foreign) = origins.iter().find(|origin| !is_trusted(origin)) {
            return Err(Refusal::ForeignPage(foreign.clone()));
        }
        // A request without `Origin`, as of an image or a link.
        let is_cross_site = header(&SEC_FETCH_SITE) == Some(b"cross-site");
        if is_cross_site && !origins.iter().any(|origin| self.is_allowed(origin)) {
            return Err(Refusal::ForeignPage("cross-site".into()));
        }
        Ok(())
    }

    /// A name that only its operator can point to this server: an address needs no resolution, and `localhost` is not
    /// resolved by others.
    fn is_own_name(&self, host: &str) -> bool {
        let name = without_port(host).trim_end_matches('.');
        let is_listed = |names: &[String]| names.iter().any(|own| own.eq_ignore_ascii_case(name));
        let literal = name.trim_start_matches('[').trim_end_matches(']');
        literal.parse::<IpAddr>().is_ok()
            || name.eq_ignore_ascii_case("localhost")
            || is_listed(&self.own_hosts)
            || is_listed(&self.allowed_hosts)
    }

    /// Behind a load balancer with a name of its own, a request with a key passes without configuration. An operator
    /// who lists names wants only those.
    fn is_authenticated(&self, headers: &HeaderMap) -> bool {
        self.needs_bearer && self.allowed_hosts.is_empty() && headers.contains_key(AUTHORIZATION)
    }

    fn is_allowed(&self, origin: &str) -> bool {
        let mut allowed = self.allowed_origins.iter();
        allowed.any(|allowed| allowed.trim_end_matches('/').eq_ignore_ascii_case(origin))
    }
}

fn without_port(host: &str) -> &str {
    match host.rsplit_once(':') {
        // The last colon of an IPv6 address without a port stands inside of its brackets.
        Some((name, port)) if port.bytes().all(|b| b.is_ascii_digit()) => name,
        Some(_) | None => host,
    }
}

/// Whether an origin is a page of the host that the request names.
fn is_of_host(origin: &str, host: &str) -> bool {
    let Some((scheme, authority)) = origin.split_once("://") else {
        return false; // `null`: a sandboxed frame or a file
    };
    let default_port = match scheme {
        "http" => ":80",
        "https" => ":443",
        _ => return false,
    };
    let plain = |authority: &str| {
        let authority = authority.strip_suffix(default_port).unwrap_or(authority);
        authority.to_ascii_lowercase()
    };
    plain(authority) == plain(host)
}

#[cfg(test)]
mod tests {
    use http::HeaderValue;

    use super::*;

    fn guard() -> BrowserGuard {
        BrowserGuard {
            own_hosts: vec!["node-a.internal".into()],
            allowed_hosts: vec!["Lanekeeper.example.com".into()],
            allowed_origins: vec!["https://console.example.com".into()],
            needs_bearer: false,
        }
    }

    fn check(
        guard: &BrowserGuard,
        headers: &[(&'static str, &'static str)],
    ) -> Result<(), Refusal> {
        let mut map = HeaderMap::new();
        for (name, value) in headers {
            map.append(*name, HeaderValue::from_static(value));
        }
        guard.check(&Uri::from_static("/api/v1/tx"), &map)
    }

    #[test]
    fn names_that_others_can_rebind_are_refused() {
        let own = [
            "127.0.0.1:8645",
            "[::1]:8645",
            "[::1]",
            "10.0.0.7",
            "localhost:8645",
            "LOCALHOST.",
            "node-a.internal:8645",
            "lanekeeper.example.com",
        ];
        for host in own {
            assert_eq!(check(&guard(), &[("host", host)]), Ok(()), "{host}");
        }
        for host in [
            "evil.example",
            "127.0.0.1.evil.example",
            "localhost.evil.example:8645",
            "127.0.0.1@evil.example",
            "",
        ] {
            let refused = Err(Refusal::ForeignHost(host.into()));
            assert_eq!(check(&guard(), &[("host", host)]), refused, "{host}");
        }
        assert_eq!(check(&guard(), &[]), Ok(()), "browsers always name a host");
        let absolute = Uri::from_static("http://evil.example/api/v1/tx");
        let mut headers = HeaderMap::new();
        headers.insert(HOST, HeaderValue::from_static("127.0.0.1"));
        assert!(guard().check(&absolute, &headers).is_err());
    }

    #[test]
    fn key_stands_for_a_name_as_long_as_no_names_are_listed() {
        let headers = [("host", "lb.example"), ("authorization", "Bearer lk_x")];
        let mut keyed = BrowserGuard {
            needs_bearer: true,
            ..BrowserGuard::default()
        };
        assert_eq!(check(&keyed, &headers), Ok(()));
        assert!(check(&keyed, &headers[..1]).is_err());
        keyed.allowed_hosts = vec!["other.example".into()];
        assert!(check(&keyed, &headers).is_err());
        keyed.needs_bearer = false;
        keyed.allowed_hosts.clear();
        assert!(check(&keyed, &headers).is_err(), "the key is not checked");
    }

    #[test]
    fn pages_of_other_sites_are_refused() {
        let host = ("host", "127.0.0.1:8645");
        for origin in ["http://127.0.0.1:8645", "https://console.example.com"] {
            assert_eq!(check(&guard(), &[host, ("origin", origin)]), Ok(()));
        }
        for origin in [
            "http://127.0.0.1:3000",
            "https://evil.example",
            "null",
            "file://",
            "chrome-extension://abc",
            "http://127.0.0.1:8645.evil.example",
        ] {
            let refused = Err(Refusal::ForeignPage(origin.into()));
            assert_eq!(check(&guard(), &[host, ("origin", origin)]), refused);
        }
        let two = [
            host,
            ("origin", "http://127.0.0.1:8645"),
            ("origin", "null"),
        ];
        assert!(check(&guard(), &two).is_err());
        let site = |value| ("sec-fetch-site", value);
        assert!(check(&guard(), &[host, site("cross-site")]).is_err());
        assert_eq!(check(&guard(), &[host, site("same-origin")]), Ok(()));
        let allowed = ("origin", "https://console.example.com");
        assert_eq!(
            check(&guard(), &[host, allowed, site("cross-site")]),
            Ok(())
        );
    }

    #[test]
    fn default_ports_of_an_origin_are_those_of_its_scheme() {
        let https = [
            ("host", "lanekeeper.example.com"),
            ("origin", "https://lanekeeper.example.com:443"),
        ];
        assert_eq!(check(&guard(), &https), Ok(()));
        let http = [
            ("host", "lanekeeper.example.com:80"),
            ("origin", "http://lanekeeper.example.com"),
        ];
        assert_eq!(check(&guard(), &http), Ok(()));
    }
}
