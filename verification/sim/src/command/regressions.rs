//! Seeds that once failed, with the options of their worlds and the reason: one per line.

use crate::world::Options;

/// The recorded seeds, which run before any new seed.
const REGRESSIONS: &str = include_str!("../../regressions.txt");

/// A seed that once failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Regression {
    /// The seed.
    pub seed: u64,
    /// The kind of its world: stormy unless its line has other options.
    pub options: Options,
}

/// All of them.
#[must_use]
pub fn regressions() -> Vec<Regression> {
    REGRESSIONS.lines().filter_map(parse).collect()
}

/// `SEED [--calm] [--deep-forks] [--lossy] [--accept-loss] [--busy] [--scarce] [--impatient] [--hostile] why`. A comment
/// begins with `#`.
fn parse(line: &str) -> Option<Regression> {
    let mut words = line.split_whitespace();
    let seed = words.next()?.parse().ok()?;
    let options = kind_of(words);
    Some(Regression { seed, options })
}

/// The kind of a world from command-line options, up to the first other word.
pub(crate) fn kind_of<'a>(words: impl Iterator<Item = &'a str>) -> Options {
    let mut options = Options::default();
    for word in words.take_while(|word| word.starts_with("--")) {
        match word {
            "--calm" => options.calm = true,
            "--deep-forks" => options.deep_forks = true,
            "--lossy" => options.lossy = true,
            "--accept-loss" => options.accept_loss = true,
            "--busy" => options.busy = true,
            "--scarce" => options.scarce = true,
            "--impatient" => options.impatient = true,
            "--hostile" => options.hostile = true,
            _ => {}
        }
    }
    options
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regression_line_is_parsed() {
        assert_eq!(parse("# about this file"), None);
        assert_eq!(parse(""), None);
        let plain = parse("1018 a timeline change").expect("a seed");
        assert_eq!((plain.seed, plain.options), (1_018, Options::default()));
        let lossy = parse("7 --lossy --busy why").expect("a seed");
        assert!(lossy.options.lossy && lossy.options.busy && !lossy.options.calm);
    }

    #[test]
    fn every_regression_line_is_parsed() {
        let lines = REGRESSIONS.lines();
        let seeds = lines.filter(|line| !line.is_empty() && !line.starts_with('#'));
        assert_eq!(seeds.count(), regressions().len());
    }
}
