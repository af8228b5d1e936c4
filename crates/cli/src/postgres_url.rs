//! The URL of a PostgreSQL database.

use std::fmt;

/// The URL of a PostgreSQL database. It may contain a password, so that `Debug` redacts it.
#[derive(Clone, PartialEq, Eq)]
pub struct PostgresUrl(String);

impl PostgresUrl {
    /// Accepts the two URL schemes of PostgreSQL; the driver parses the rest.
    #[must_use]
    pub fn parse(url: &str) -> Option<Self> {
        let rest = url
            .strip_prefix("postgres://")
            .or_else(|| url.strip_prefix("postgresql://"))?;
        (!rest.is_empty()).then(|| Self(url.to_owned()))
    }

    /// The same server and account with another database.
    #[must_use]
    pub fn with_database(&self, name: &str) -> Self {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("postgres", ""));
        let (account, place) = rest.rsplit_once('@').unwrap_or(("", rest));
        let at = if account.is_empty() { "" } else { "@" };
        let (place, options) = place.split_once('?').unwrap_or((place, ""));
        let (host, _) = place.split_once('/').unwrap_or((place, ""));
        let mark = if options.is_empty() { "" } else { "?" };
        Self(format!(
            "{scheme}://{account}{at}{host}/{name}{mark}{options}"
        ))
    }

    /// The URL with its password.
    #[must_use]
    pub fn secret(&self) -> &str {
        &self.0
    }

    /// The URL without its password, wherever that is. In doubt it hides more than necessary.
    #[must_use]
    pub fn redacted(&self) -> String {
        let (scheme, rest) = self.0.split_once("://").unwrap_or(("postgres", ""));
        // A password may contain characters that should have been escaped.
        let account = rest.rsplit_once('@').and_then(|(account, place)| {
            let (user, _) = account.split_once(':')?;
            Some(format!("{user}:***@{place}"))
        });
        let rest = account.unwrap_or_else(|| rest.to_owned());
        let hide = |option: &str| match option.split_once('=') {
            Some((key, _)) if key.contains("password") => format!("{key}=***"),
            Some(_) | None => option.to_owned(),
        };
        let parts: Vec<String> = rest.split('&').map(hide).collect();
        format!("{scheme}://{}", parts.join("&"))
    }
}

impl fmt::Debug for PostgresUrl {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.redacted())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn replacing_the_database_keeps_the_rest_of_the_url() {
        let other = |url: &str| PostgresUrl::parse(url).unwrap().with_database("b").0;
        assert_eq!(other("postgres://h"), "postgres://h/b");
        assert_eq!(
            other("postgres://u:p@h:1/a?sslmode=require"),
            "postgres://u:p@h:1/b?sslmode=require"
        );
    }

    #[test]
    fn passwords_are_redacted_wherever_they_are() {
        let redacted = |url: &str| PostgresUrl::parse(url).unwrap().redacted();
        for (url, expected) in [
            ("postgres://h/db", "postgres://h/db"),
            ("postgres://u@h/db", "postgres://u@h/db"),
            (
                "postgresql://u:hunter2@a,b:1/db",
                "postgresql://u:***@a,b:1/db",
            ),
            ("postgres://u:hun/te@r2@h/db", "postgres://u:***@h/db"),
            ("postgres://u:hunter2?x@h/db", "postgres://u:***@h/db"),
            (
                "postgres://h/db?sslmode=require&password=hunter2&sslpassword=hunter2",
                "postgres://h/db?sslmode=require&password=***&sslpassword=***",
            ),
            (
                "postgres://h/db?password=hunter2&application_name=a@b",
                "postgres://h/db?password=***&application_name=a@b",
            ),
        ] {
            assert_eq!(redacted(url), expected);
            assert!(!format!("{:?}", PostgresUrl::parse(url)).contains("hunter2"));
        }
    }
}
