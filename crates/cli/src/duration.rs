//! Durations as people write them: `10s`, `500ms`, `2m`, `1h`.

use std::time::Duration;

/// Parses a duration.
#[must_use]
pub fn parse(text: &str) -> Option<Duration> {
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

/// Parses a command-line flag, which must not be zero.
pub fn parse_flag(text: &str) -> Result<Duration, String> {
    let parsed = parse(text).filter(|duration| !duration.is_zero());
    parsed.ok_or_else(|| format!("{text:?} is not a duration: write 10s, 500ms, 2m or 1h"))
}

/// Formats a duration as [`parse`] reads it.
#[must_use]
pub fn format(duration: Duration) -> String {
    match duration.as_millis() {
        0 => "0s".to_owned(),
        ms if ms % 3_600_000 == 0 => format!("{}h", ms / 3_600_000),
        ms if ms % 60_000 == 0 => format!("{}m", ms / 60_000),
        ms if ms % 1_000 == 0 => format!("{}s", ms / 1_000),
        ms => format!("{ms}ms"),
    }
}

/// Splits `10 s` into its digits and its unit.
#[must_use]
pub fn split_unit(text: &str) -> (&str, &str) {
    let text = text.trim();
    let end = text
        .find(|c: char| !c.is_ascii_digit())
        .unwrap_or(text.len());
    let (number, unit) = text.split_at(end);
    (number, unit.trim_start())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn formatted_durations_parse_to_the_same_value() {
        for text in ["0s", "10s", "500ms", "2m", "1h", "1500ms"] {
            assert_eq!(parse(text).map(format).as_deref(), Some(text));
        }
        let too_large = "99999999999999999999s";
        for bad in ["", "10", "s", "-1s", "1.5s", "10 years", too_large] {
            assert_eq!(parse(bad), None, "{bad:?}");
        }
    }
}
