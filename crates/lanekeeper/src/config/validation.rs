//! Relations between keys. Each violation is reported with the value, the rule and the fix.

use super::{Config, Origin, Problem};

impl Config {
    /// All violated relations. What a value must satisfy by itself is declared with its key.
    pub(super) fn validate(&self) -> Vec<Problem> {
        let mut validation = Validation {
            config: self,
            problems: Vec::new(),
        };
        validation.check_node();
        validation.check_access();
        validation.check_chains();
        validation.check_signers();
        validation.check_reservations();
        validation.problems
    }

    /// What works but should be changed.
    pub(super) fn find_warnings(&self) -> Vec<Problem> {
        let mut warnings = Vec::new();
        let secret = self.origin("node.clusterSecret");
        if matches!(secret, Origin::File { .. }) {
            let message = "node.clusterSecret holds the secret in the file: move it to \
                           clusterSecretFile, or to the environment";
            warnings.push(Problem::at_origin(&secret, message.to_owned()));
        }
        for (index, signer) in self.signers.iter().enumerate() {
            let origin = self.origin(&format!("signer[{index}].key"));
            // The keys of `dev` are public.
            if signer.key.is_some() && origin != Origin::Dev {
                let message = format!(
                    "signer[{index}].key holds a private key in the file: move it to keyFile or keyEnv"
                );
                warnings.push(Problem::at_origin(&origin, message));
            }
        }
        warnings.extend(self.unused_bump_keys());
        warnings
    }
}

/// The problems found so far.
pub(super) struct Validation<'c> {
    pub(super) config: &'c Config,
    pub(super) problems: Vec<Problem>,
}

impl Validation<'_> {
    /// Reports a problem with the value of `path`. The message continues after "is <value>, ".
    pub(super) fn reject(&mut self, path: &str, value: &str, rule_and_fix: &str) {
        let message = format!("{path} is {value}, {rule_and_fix}");
        self.problems
            .push(Problem::at_origin(&self.config.origin(path), message));
    }

    pub(super) fn require_range(&mut self, path: &str, value: u64, min: u64, max: u64) {
        if !(min..=max).contains(&value) {
            let rule = format!("but must be from {min} to {max}");
            self.reject(path, &value.to_string(), &rule);
        }
    }
}
