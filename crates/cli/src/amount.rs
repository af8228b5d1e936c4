//! Amounts as people write them: `1.5eth`, `2gwei`, plain wei.

use alloy_primitives::U256;

const UNITS: [(&str, usize); 4] = [("gwei", 9), ("ether", 18), ("eth", 18), ("wei", 0)];

/// Reads an amount as wei. Exact: more decimals than the unit has are refused.
pub fn parse(text: &str) -> Result<U256, String> {
    let refused = || {
        format!("{text:?} is not an amount: write 1.5eth, 2gwei, or a number of wei (also as 0x…)")
    };
    let text = text.trim();
    if let Some(hex) = text.strip_prefix("0x").filter(|hex| !hex.is_empty()) {
        return U256::from_str_radix(hex, 16).map_err(|_not_hex| refused());
    }
    let unit = UNITS
        .iter()
        .find_map(|(unit, decimals)| Some((text.strip_suffix(unit)?, *decimals)));
    let (number, decimals) = unit.unwrap_or((text, 0));
    let (whole, part) = number
        .trim_end()
        .split_once('.')
        .unwrap_or((number.trim_end(), ""));
    let digits = whole
        .bytes()
        .chain(part.bytes())
        .all(|b| b.is_ascii_digit());
    if !digits || whole.is_empty() || part.len() > decimals {
        return Err(refused());
    }
    U256::from_str_radix(&format!("{whole}{part:0<decimals$}"), 10).map_err(|_too_large| refused())
}

/// Writes wei for people: in ether or gwei where that is short, else as wei.
pub fn show(wei: U256) -> String {
    let plain = wei.to_string();
    for (unit, decimals) in [(" eth", 18), (" gwei", 9)] {
        let padded = format!("{plain:0>width$}", width = decimals + 1);
        let (whole, part) = padded.split_at(padded.len() - decimals);
        let part = part.trim_end_matches('0');
        if !wei.is_zero() && part.len() <= SHOWN_DECIMALS_MAX {
            let dot = if part.is_empty() { "" } else { "." };
            return format!("{whole}{dot}{part}{unit}");
        }
    }
    format!("{plain} wei")
}

/// More decimals than this read worse than the smaller unit.
const SHOWN_DECIMALS_MAX: usize = 6;

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn amounts_are_exact() {
        let eth = U256::from(10).pow(U256::from(18));
        assert_eq!(parse("1eth"), Ok(eth));
        assert_eq!(parse("1.5eth"), Ok(eth * U256::from(3) / U256::from(2)));
        assert_eq!(parse("0.1 eth"), Ok(eth / U256::from(10)));
        assert_eq!(parse("2gwei"), Ok(U256::from(2_000_000_000_u64)));
        assert_eq!(parse("7"), Ok(U256::from(7)));
        assert_eq!(parse("7wei"), Ok(U256::from(7)));
        assert_eq!(parse("0xff"), Ok(U256::from(255)));
        assert_eq!(parse("0.000000000000000001eth"), Ok(U256::from(1)));
        let too_large = "9".repeat(79);
        for bad in [
            "", "eth", "1.5", "1.5wei", "-1", "1e18", "1,5eth", ".5eth", "0x", &too_large,
        ] {
            assert!(parse(bad).is_err(), "{bad:?}");
        }
        assert!(parse("0.0000000000000000001eth").is_err());
    }

    #[test]
    fn amounts_read_well() {
        let shown = |text: &str| show(parse(text).unwrap());
        assert_eq!(shown("1eth"), "1 eth");
        assert_eq!(shown("0.1eth"), "0.1 eth");
        assert_eq!(shown("2gwei"), "2 gwei");
        assert_eq!(shown("1.000000001gwei"), "1000000001 wei");
        assert_eq!(shown("12345.5eth"), "12345.5 eth");
        assert_eq!(shown("0"), "0 wei");
        assert_eq!(shown("7"), "7 wei");
    }
}
