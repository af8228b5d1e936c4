//! The kinds of values: each describes its form, parses and prints itself.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use chain::rpc::{BadEndpointUrl, EndpointUrl};
use domain::{Address, BadAddress};

use super::raw::Raw;

/// Why a raw value was refused.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum ValueError {
    /// It does not have the form of its kind.
    Malformed,
    /// It has the form, and is refused for this reason.
    Rejected(String),
}

/// A kind of value.
pub(crate) trait Setting: Sized {
    /// Completes the sentence "must be …".
    const FORM: &'static str;
    /// Whether messages must not contain it: it is, or may contain, a credential.
    const IS_SECRET: bool = false;
    fn from_raw(raw: &Raw) -> Result<Self, ValueError>;
    /// The value as `config show` prints it.
    fn to_text(&self) -> String;
    /// The value of an absent optional key; `None` for kinds that always have a value.
    fn unset() -> Option<Self> {
        None
    }
}

impl<T: Setting> Setting for Option<T> {
    const FORM: &'static str = T::FORM;
    const IS_SECRET: bool = T::IS_SECRET;
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        T::from_raw(raw).map(Some)
    }
    fn to_text(&self) -> String {
        self.as_ref().map_or_else(String::new, T::to_text)
    }
    fn unset() -> Option<Self> {
        Some(None)
    }
}

impl Setting for String {
    const FORM: &'static str = "a text";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        text(raw).map(str::to_owned)
    }
    fn to_text(&self) -> String {
        self.clone()
    }
}

impl Setting for PathBuf {
    const FORM: &'static str = "a path";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        text(raw).map(Self::from)
    }
    fn to_text(&self) -> String {
        self.display().to_string()
    }
}

impl Setting for u64 {
    const FORM: &'static str = "a whole number, 0 or more";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        match raw {
            Raw::Integer(n) => Self::try_from(*n).ok(),
            Raw::Bare(text) => text.parse().ok(),
            Raw::Text(_) | Raw::Float(_) | Raw::Bool(_) | Raw::List(_) | Raw::Other(_) => None,
        }
        .ok_or(ValueError::Malformed)
    }
    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl Setting for bool {
    const FORM: &'static str = "true or false";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        match raw {
            Raw::Bool(b) => Some(*b),
            Raw::Bare(text) => text.parse().ok(),
            Raw::Text(_) | Raw::Integer(_) | Raw::Float(_) | Raw::List(_) | Raw::Other(_) => None,
        }
        .ok_or(ValueError::Malformed)
    }
    fn to_text(&self) -> String {
        self.to_string()
    }
}

/// A year: no wait of a node is longer, and a point in time this far ahead is still one.
const DURATION_MAX: Duration = Duration::from_secs(365 * 24 * 3600);

impl Setting for Duration {
    const FORM: &'static str = "a duration such as \"10s\", \"500ms\", \"2m\" or \"1h\"";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        let duration = cli::duration::parse(text(raw)?).ok_or(ValueError::Malformed)?;
        if duration > DURATION_MAX {
            let why = format!("at most {} is allowed", cli::duration::format(DURATION_MAX));
            return Err(ValueError::Rejected(why));
        }
        Ok(duration)
    }
    fn to_text(&self) -> String {
        cli::duration::format(*self)
    }
}

impl Setting for Address {
    const FORM: &'static str = "an address, 0x and 40 hex digits";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        let text = text(raw)?;
        domain::parse_address(text).map_err(|error| match error {
            BadAddress::Form => ValueError::Malformed,
            BadAddress::Checksum => {
                ValueError::Rejected(format!("{text} has a wrong checksum: check it for a typo"))
            }
        })
    }
    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl Setting for SocketAddr {
    const FORM: &'static str = "an address and a port such as \"127.0.0.1:8645\"";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        let text = text(raw)?;
        let text = text.replace("localhost", "127.0.0.1");
        text.parse().ok().ok_or(ValueError::Malformed)
    }
    fn to_text(&self) -> String {
        self.to_string()
    }
}

impl<T: Setting> Setting for Vec<T> {
    const FORM: &'static str = "a list in brackets, with at least one entry";
    const IS_SECRET: bool = T::IS_SECRET;
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        let Raw::List(items) = raw else {
            return Err(ValueError::Malformed);
        };
        if items.is_empty() {
            return Err(ValueError::Malformed);
        }
        let read = |(index, item): (usize, &Raw)| match T::from_raw(item) {
            Err(ValueError::Malformed) => Err(ValueError::Rejected(format!(
                "entry {} must be {}",
                index + 1,
                T::FORM
            ))),
            other => other,
        };
        items.iter().enumerate().map(read).collect()
    }
    fn to_text(&self) -> String {
        self.iter().map(T::to_text).collect::<Vec<_>>().join(", ")
    }
}

/// A number of bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

impl Setting for Size {
    const FORM: &'static str = "a size such as \"64KiB\" or \"1MiB\"";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        let (number, unit) = cli::duration::split_unit(text(raw)?);
        let unit = match unit {
            "B" | "" => 1,
            "KiB" => KIB,
            "MiB" => MIB,
            "GiB" => MIB * KIB,
            _ => return Err(ValueError::Malformed),
        };
        let number: Option<u64> = number.parse().ok();
        let bytes = number.and_then(|number| number.checked_mul(unit));
        bytes.map(Self).ok_or(ValueError::Malformed)
    }
    fn to_text(&self) -> String {
        match self.0 {
            n if n >= MIB && n % MIB == 0 => format!("{}MiB", n / MIB),
            n if n >= KIB && n % KIB == 0 => format!("{}KiB", n / KIB),
            n => format!("{n}B"),
        }
    }
}

/// An `http://` or `https://` address.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Url(pub(crate) String);

impl Url {
    /// Whether it is reachable from this machine only.
    pub(crate) fn is_loopback(&self) -> bool {
        EndpointUrl::parse(&self.0).is_ok_and(|url| url.is_loopback())
    }

    /// The host that it names.
    pub(crate) fn host(&self) -> Option<String> {
        let url = reqwest::Url::parse(&self.0).ok()?;
        url.host_str().map(str::to_owned)
    }
}

impl Setting for Url {
    const FORM: &'static str = "an address such as \"http://127.0.0.1:8545\"";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        let text = text(raw)?;
        match reqwest::Url::parse(text) {
            Ok(url) if matches!(url.scheme(), "http" | "https") && url.has_host() => {
                Ok(Self(text.to_owned()))
            }
            Ok(_) | Err(_) => Err(ValueError::Malformed),
        }
    }
    fn to_text(&self) -> String {
        self.0.clone()
    }
}

/// Names of hosts, without ports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct HostNames(pub(crate) Vec<String>);

impl Setting for HostNames {
    const FORM: &'static str =
        "a list of host names without ports, such as [\"lanekeeper.internal\"]";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        let is_name = |name: &str| {
            let is_part = |c: char| c.is_ascii_alphanumeric() || matches!(c, '-' | '.' | '_');
            !name.is_empty() && name.chars().all(is_part)
        };
        list_of(raw, is_name).map(Self)
    }
    fn to_text(&self) -> String {
        self.0.join(", ")
    }
}

/// Web sites by scheme, host and port.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WebOrigins(pub(crate) Vec<String>);

impl Setting for WebOrigins {
    const FORM: &'static str = "a list of origins such as [\"https://console.example.com\"]";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        let is_origin = |text: &str| {
            let url = reqwest::Url::parse(text);
            url.is_ok_and(|url| url.origin().ascii_serialization() == text)
        };
        list_of(raw, is_origin).map(Self)
    }
    fn to_text(&self) -> String {
        self.0.join(", ")
    }
}

/// A list of texts, which may be empty.
fn list_of(raw: &Raw, is_valid: impl Fn(&str) -> bool) -> Result<Vec<String>, ValueError> {
    let Raw::List(items) = raw else {
        return Err(ValueError::Malformed);
    };
    let item = |item| text(item).ok().filter(|text| is_valid(text));
    let items = items.iter().map(|raw| item(raw).map(str::to_owned));
    items.collect::<Option<_>>().ok_or(ValueError::Malformed)
}

/// The URL of a chain's node, which contains the credentials of many gateways.
impl Setting for EndpointUrl {
    const FORM: &'static str = "an address such as \"http://127.0.0.1:8545\"";
    const IS_SECRET: bool = true;
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        Self::parse(text(raw)?).ok().ok_or(ValueError::Malformed)
    }
    fn to_text(&self) -> String {
        self.name().to_owned()
    }
}

/// The WebSocket URL of a chain's node, which may contain credentials too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WsUrl(pub(crate) EndpointUrl);

impl Setting for WsUrl {
    const FORM: &'static str = "an address such as \"ws://127.0.0.1:8546\"";
    const IS_SECRET: bool = true;
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        let url = EndpointUrl::parse_ws(text(raw)?);
        url.map(Self).map_err(|bad| match bad {
            BadEndpointUrl::Credentials => ValueError::Rejected(bad.to_string()),
            BadEndpointUrl::NotUrl(_) | BadEndpointUrl::Scheme(_) | BadEndpointUrl::NoHost => {
                ValueError::Malformed
            }
        })
    }
    fn to_text(&self) -> String {
        self.0.name().to_owned()
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wei(pub(crate) u128);

impl Setting for Wei {
    const FORM: &'static str = "an amount such as \"30gwei\", or a number of wei";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        if let Raw::Integer(n) = raw {
            return u128::try_from(*n)
                .ok()
                .map(Self)
                .ok_or(ValueError::Malformed);
        }
        let wei = cli::amount::parse(text(raw)?)
            .ok()
            .and_then(|wei| u128::try_from(wei).ok());
        wei.map(Self).ok_or(ValueError::Malformed)
    }
    fn to_text(&self) -> String {
        format!("{} wei", self.0)
    }
}

/// A factor in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hundredths(pub(crate) u64);

impl Setting for Hundredths {
    const FORM: &'static str = "a factor from 1.0 to 10.0 with at most two decimals, such as 1.2";
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        let number = match raw {
            Raw::Integer(_) | Raw::Float(_) | Raw::Bare(_) => raw.to_string(),
            Raw::Text(_) | Raw::Bool(_) | Raw::List(_) | Raw::Other(_) => {
                return Err(ValueError::Malformed);
            }
        };
        let (whole, part) = number.split_once('.').unwrap_or((&number, ""));
        let digits = whole
            .bytes()
            .chain(part.bytes())
            .all(|b| b.is_ascii_digit());
        if !digits || part.len() > 2 || whole.is_empty() || whole.len() > 2 {
            return Err(ValueError::Malformed);
        }
        match format!("{whole}{part:0<2}").parse() {
            Ok(hundredths @ 100..=1000) => Ok(Self(hundredths)),
            Ok(_) | Err(_) => Err(ValueError::Malformed),
        }
    }
    fn to_text(&self) -> String {
        format!("{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// A value that must not be printed.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct Secret(pub(crate) String);

impl std::fmt::Debug for Secret {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Setting for Secret {
    const FORM: &'static str = "a text";
    const IS_SECRET: bool = true;
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        text(raw).map(|text| Self(text.to_owned()))
    }
    fn to_text(&self) -> String {
        "(hidden)".to_owned()
    }
}

/// The URL of Redis, which often contains its password.
#[derive(Clone, PartialEq, Eq)]
pub(crate) struct RedisUrl(pub(crate) String);

impl std::fmt::Debug for RedisUrl {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("(hidden)")
    }
}

impl Setting for RedisUrl {
    const FORM: &'static str = "a URL such as \"redis://127.0.0.1:6379/0\"";
    const IS_SECRET: bool = true;
    fn from_raw(raw: &Raw) -> Result<Self, ValueError> {
        let text = text(raw)?;
        match reqwest::Url::parse(text) {
            Ok(url) if url.scheme() == "redis" && url.has_host() => Ok(Self(text.to_owned())),
            Ok(_) | Err(_) => Err(ValueError::Malformed),
        }
    }
    fn to_text(&self) -> String {
        "(hidden)".to_owned()
    }
}

pub(super) fn text(raw: &Raw) -> Result<&str, ValueError> {
    match raw {
        Raw::Text(text) | Raw::Bare(text) => Ok(text),
        Raw::Integer(_) | Raw::Float(_) | Raw::Bool(_) | Raw::List(_) | Raw::Other(_) => {
            Err(ValueError::Malformed)
        }
    }
}

/// Numbers that become a `usize` have a small upper bound.
pub(super) fn as_usize(n: u64) -> usize {
    usize::try_from(n).unwrap_or(usize::MAX)
}

/// Kinds that are one of a few names, and names that a later version may support.
macro_rules! choices {
    ($kind:ty, $form:literal, { $($name:literal => $value:path),* $(,)? }
     $(, later { $($later:literal => $why:literal),* })?) => {
        impl $crate::config::setting::Setting for $kind {
            const FORM: &'static str = $form;
            fn from_raw(
                raw: &$crate::config::raw::Raw,
            ) -> Result<Self, $crate::config::setting::ValueError> {
                match $crate::config::setting::text(raw)? {
                    $($name => Ok($value),)*
                    $($($later => Err($crate::config::setting::ValueError::Rejected($why.to_owned())),)*)?
                    _ => Err($crate::config::setting::ValueError::Malformed),
                }
            }
            fn to_text(&self) -> String {
                match self { $($value => $name,)* }.to_owned()
            }
        }
    };
}
pub(crate) use choices;

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_setting<T: Setting>(text: &str) -> Result<T, ValueError> {
        T::from_raw(&Raw::Bare(text.into()))
    }

    #[test]
    fn printed_sizes_parse_to_the_same_value() {
        for text in ["1MiB", "64KiB", "1000B"] {
            assert_eq!(parse_setting::<Size>(text).unwrap().to_text(), text);
        }
        assert_eq!(parse_setting::<Size>("1XB"), Err(ValueError::Malformed));
        assert_eq!(
            parse_setting::<Size>("99999999999GiB"),
            Err(ValueError::Malformed)
        );
    }

    #[test]
    fn factors_are_parsed_exactly() {
        assert_eq!(parse_setting("1.2"), Ok(Hundredths(120)));
        assert_eq!(Hundredths::from_raw(&Raw::Float(1.25)), Ok(Hundredths(125)));
        assert_eq!(Hundredths::from_raw(&Raw::Integer(2)), Ok(Hundredths(200)));
        for bad in ["0.9", "1.234", "11", "x", "", "-1", "1e3", "NaN"] {
            assert_eq!(
                parse_setting::<Hundredths>(bad),
                Err(ValueError::Malformed),
                "{bad:?}"
            );
        }
    }
}
