//! The kinds of values that keys take: each says its form, and reads and shows itself.

use std::net::SocketAddr;
use std::path::PathBuf;
use std::time::Duration;

use chain::rpc::{BadEndpointUrl, EndpointUrl};
use domain::Address;
use domain::window::Depth;

use super::raw::Raw;

/// Why a raw value was not taken.
#[derive(Debug, PartialEq, Eq)]
pub(crate) enum Wrong {
    /// It has not the form of its kind.
    Form,
    /// It is refused for this reason.
    Because(String),
}

/// A kind of value.
pub(crate) trait Setting: Sized {
    /// Completes the sentence "must be …".
    const FORM: &'static str;
    /// Whether messages must not repeat it: it is, or may carry, a credential.
    const IS_SECRET: bool = false;
    fn from_raw(raw: &Raw) -> Result<Self, Wrong>;
    /// As `config show` prints it.
    fn shown(&self) -> String;
    /// The value of a key that may be left out and was; `None` for kinds that always have one.
    fn unset() -> Option<Self> {
        None
    }
}

impl<T: Setting> Setting for Option<T> {
    const FORM: &'static str = T::FORM;
    const IS_SECRET: bool = T::IS_SECRET;
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        T::from_raw(raw).map(Some)
    }
    fn shown(&self) -> String {
        self.as_ref().map_or_else(String::new, T::shown)
    }
    fn unset() -> Option<Self> {
        Some(None)
    }
}

impl Setting for String {
    const FORM: &'static str = "a text";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        text(raw).map(str::to_owned)
    }
    fn shown(&self) -> String {
        self.clone()
    }
}

impl Setting for PathBuf {
    const FORM: &'static str = "a path";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        text(raw).map(Self::from)
    }
    fn shown(&self) -> String {
        self.display().to_string()
    }
}

impl Setting for u64 {
    const FORM: &'static str = "a whole number, 0 or more";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        match raw {
            Raw::Integer(n) => Self::try_from(*n).ok(),
            Raw::Word(text) => text.parse().ok(),
            Raw::Text(_) | Raw::Float(_) | Raw::Bool(_) | Raw::List(_) | Raw::Other(_) => None,
        }
        .ok_or(Wrong::Form)
    }
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Setting for bool {
    const FORM: &'static str = "true or false";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        match raw {
            Raw::Bool(b) => Some(*b),
            Raw::Word(text) => text.parse().ok(),
            Raw::Text(_) | Raw::Integer(_) | Raw::Float(_) | Raw::List(_) | Raw::Other(_) => None,
        }
        .ok_or(Wrong::Form)
    }
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Setting for Duration {
    const FORM: &'static str = "a duration such as \"10s\", \"500ms\", \"2m\" or \"1h\"";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        parse_duration(text(raw)?).ok_or(Wrong::Form)
    }
    fn shown(&self) -> String {
        show_duration(*self)
    }
}

impl Setting for Address {
    const FORM: &'static str = "an address, 0x and 40 hex digits";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        let text = text(raw)?;
        let has_lower = text.bytes().skip(2).any(|b| b.is_ascii_lowercase());
        let has_upper = text.bytes().skip(2).any(|b| b.is_ascii_uppercase());
        if has_lower && has_upper {
            // Mixed case is a checksum (EIP-55).
            return Self::parse_checksummed(text, None).map_err(|_mistyped| {
                Wrong::Because(format!("{text} has a wrong checksum: check it for a typo"))
            });
        }
        text.strip_prefix("0x")
            .and_then(|_| text.parse().ok())
            .ok_or(Wrong::Form)
    }
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Setting for SocketAddr {
    const FORM: &'static str = "an address and a port such as \"127.0.0.1:8645\"";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        let text = text(raw)?;
        let text = text.replace("localhost", "127.0.0.1");
        text.parse().ok().ok_or(Wrong::Form)
    }
    fn shown(&self) -> String {
        self.to_string()
    }
}

impl Setting for Depth {
    const FORM: &'static str = "\"auto\" or a number, 1 or more";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        if text(raw) == Ok("auto") {
            return Ok(Self::auto());
        }
        match u64::from_raw(raw)? {
            0 => Err(Wrong::Form),
            n => Ok(Self::Fixed(n)),
        }
    }
    fn shown(&self) -> String {
        match self {
            Self::Auto { .. } => "auto".to_owned(),
            Self::Fixed(n) => n.to_string(),
        }
    }
}

/// A list of kinds.
impl<T: Setting> Setting for Vec<T> {
    const FORM: &'static str = "a list in brackets, with at least one entry";
    const IS_SECRET: bool = T::IS_SECRET;
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        let Raw::List(items) = raw else {
            return Err(Wrong::Form);
        };
        if items.is_empty() {
            return Err(Wrong::Form);
        }
        let read = |(index, item): (usize, &Raw)| match T::from_raw(item) {
            Err(Wrong::Form) => Err(Wrong::Because(format!(
                "entry {} must be {}",
                index + 1,
                T::FORM
            ))),
            other => other,
        };
        items.iter().enumerate().map(read).collect()
    }
    fn shown(&self) -> String {
        self.iter().map(T::shown).collect::<Vec<_>>().join(", ")
    }
}

/// Bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Size(pub(crate) u64);

const KIB: u64 = 1 << 10;
const MIB: u64 = 1 << 20;

impl Setting for Size {
    const FORM: &'static str = "a size such as \"64KiB\" or \"1MiB\"";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        let (number, unit) = split_unit(text(raw)?);
        let unit = match unit {
            "B" | "" => 1,
            "KiB" => KIB,
            "MiB" => MIB,
            "GiB" => MIB * KIB,
            _ => return Err(Wrong::Form),
        };
        let number: u64 = number.parse().ok().ok_or(Wrong::Form)?;
        number.checked_mul(unit).map(Self).ok_or(Wrong::Form)
    }
    fn shown(&self) -> String {
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
    /// Whether it names this machine only.
    pub(crate) fn is_loopback(&self) -> bool {
        let url = reqwest::Url::parse(&self.0).ok();
        let host = url.as_ref().and_then(reqwest::Url::host_str);
        host.is_some_and(|host| {
            let address: Option<std::net::IpAddr> = host.trim_matches(['[', ']']).parse().ok();
            host == "localhost" || address.is_some_and(|address| address.is_loopback())
        })
    }
}

impl Setting for Url {
    const FORM: &'static str = "an address such as \"http://127.0.0.1:8545\"";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        let text = text(raw)?;
        let url = reqwest::Url::parse(text).ok().ok_or(Wrong::Form)?;
        let fits = matches!(url.scheme(), "http" | "https") && url.has_host();
        if fits {
            Ok(Self(text.to_owned()))
        } else {
            Err(Wrong::Form)
        }
    }
    fn shown(&self) -> String {
        self.0.clone()
    }
}

/// The address of a chain's node: gateways put credentials into it.
impl Setting for EndpointUrl {
    const FORM: &'static str = "an address such as \"http://127.0.0.1:8545\"";
    const IS_SECRET: bool = true;
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        Self::parse(text(raw)?).ok().ok_or(Wrong::Form)
    }
    fn shown(&self) -> String {
        self.name().to_owned()
    }
}

/// The address of a chain's node that tells of heads by itself; with credentials as well.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct WsUrl(pub(crate) EndpointUrl);

impl Setting for WsUrl {
    const FORM: &'static str = "an address such as \"ws://127.0.0.1:8546\"";
    const IS_SECRET: bool = true;
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        let url = EndpointUrl::parse_ws(text(raw)?);
        url.map(Self).map_err(|bad| match bad {
            BadEndpointUrl::Credentials => Wrong::Because(bad.to_string()),
            BadEndpointUrl::NotUrl(_) | BadEndpointUrl::Scheme(_) | BadEndpointUrl::NoHost => {
                Wrong::Form
            }
        })
    }
    fn shown(&self) -> String {
        self.0.name().to_owned()
    }
}

/// Wei.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Wei(pub(crate) u128);

impl Setting for Wei {
    const FORM: &'static str = "an amount such as \"30gwei\", or a number of wei";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        if let Raw::Integer(n) = raw {
            return u128::try_from(*n).ok().map(Self).ok_or(Wrong::Form);
        }
        let wei = crate::amount::parse(text(raw)?)
            .ok()
            .and_then(|wei| u128::try_from(wei).ok());
        wei.map(Self).ok_or(Wrong::Form)
    }
    fn shown(&self) -> String {
        format!("{} wei", self.0)
    }
}

/// A factor in hundredths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Hundredths(pub(crate) u64);

impl Setting for Hundredths {
    const FORM: &'static str = "a factor from 1.0 to 10.0 with at most two decimals, such as 1.2";
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        let number = match raw {
            Raw::Integer(_) | Raw::Float(_) | Raw::Word(_) => raw.to_string(),
            Raw::Text(_) | Raw::Bool(_) | Raw::List(_) | Raw::Other(_) => return Err(Wrong::Form),
        };
        let (whole, part) = number.split_once('.').unwrap_or((&number, ""));
        let digits = whole
            .bytes()
            .chain(part.bytes())
            .all(|b| b.is_ascii_digit());
        if !digits || part.len() > 2 || whole.is_empty() || whole.len() > 2 {
            return Err(Wrong::Form);
        }
        let hundredths: u64 = format!("{whole}{part:0<2}")
            .parse()
            .ok()
            .ok_or(Wrong::Form)?;
        if (100..=1000).contains(&hundredths) {
            Ok(Self(hundredths))
        } else {
            Err(Wrong::Form)
        }
    }
    fn shown(&self) -> String {
        format!("{}.{:02}", self.0 / 100, self.0 % 100)
    }
}

/// What must not be printed.
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
    fn from_raw(raw: &Raw) -> Result<Self, Wrong> {
        text(raw).map(|text| Self(text.to_owned()))
    }
    fn shown(&self) -> String {
        "(hidden)".to_owned()
    }
}

pub(super) fn text(raw: &Raw) -> Result<&str, Wrong> {
    match raw {
        Raw::Text(text) | Raw::Word(text) => Ok(text),
        Raw::Integer(_) | Raw::Float(_) | Raw::Bool(_) | Raw::List(_) | Raw::Other(_) => {
            Err(Wrong::Form)
        }
    }
}

fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

/// Reads `10s`, `500ms`, `2m`, `1h`.
pub(crate) fn parse_duration(text: &str) -> Option<Duration> {
    let (number, unit) = split_unit(text);
    let number: u64 = number.parse().ok()?;
    let millis = match unit {
        "ms" => 1,
        "s" => 1_000,
        "m" => 60_000,
        "h" => 3_600_000,
        _ => return None,
    };
    number.checked_mul(millis).map(Duration::from_millis)
}

/// Writes a duration as [`parse_duration`] reads it.
pub(crate) fn show_duration(duration: Duration) -> String {
    match duration.as_millis() {
        0 => "0s".to_owned(),
        ms if ms % 3_600_000 == 0 => format!("{}h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{}m", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn parse_setting<T: Setting>(text: &str) -> Result<T, Wrong> {
        T::from_raw(&Raw::Word(text.into()))
    }

    #[test]
    fn durations_and_sizes_read_what_they_show() {
        for text in ["0s", "10s", "500ms", "2m", "1h", "1500ms"] {
            assert_eq!(
                parse_duration(text).map(show_duration).as_deref(),
                Some(text)
            );
        }
        for bad in [
            "",
            "10",
            "s",
            "-1s",
            "1.5s",
            "10 years",
            "99999999999999999999s",
        ] {
            assert_eq!(parse_duration(bad), None, "{bad:?}");
        }
        for text in ["1MiB", "64KiB", "1000B"] {
            assert_eq!(parse_setting::<Size>(text).unwrap().shown(), text);
        }
        assert_eq!(parse_setting::<Size>("1XB"), Err(Wrong::Form));
        assert_eq!(parse_setting::<Size>("99999999999GiB"), Err(Wrong::Form));
    }

    #[test]
    fn factors_are_exact() {
        assert_eq!(parse_setting("1.2"), Ok(Hundredths(120)));
        assert_eq!(Hundredths::from_raw(&Raw::Float(1.25)), Ok(Hundredths(125)));
        assert_eq!(Hundredths::from_raw(&Raw::Integer(2)), Ok(Hundredths(200)));
        for bad in ["0.9", "1.234", "11", "x", "", "-1", "1e3", "NaN"] {
            assert_eq!(
                parse_setting::<Hundredths>(bad),
                Err(Wrong::Form),
                "{bad:?}"
            );
        }
    }

    #[test]
    fn depth_is_auto_or_a_number() {
        assert_eq!(parse_setting("auto"), Ok(Depth::auto()));
        assert_eq!(parse_setting("1000000"), Ok(Depth::Fixed(1_000_000)));
        assert_eq!(Depth::from_raw(&Raw::Integer(0)), Err(Wrong::Form));
    }
}
