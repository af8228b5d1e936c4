//! What several endpoints say consumed nonces of an account, as one answer.

use thiserror::Error;

use super::ConsumedNonce;

/// Endpoints do not agree on what consumed a nonce.
#[derive(Clone, Debug, PartialEq, Eq, Error)]
#[error("{0}")]
pub struct ConsumersDisputed(String);

/// The transactions that two endpoints show alike (or the only one shows), from the lowest queried nonce upwards; empty
/// when the lowest is not consumed. Where no two show the transaction, it is left out: a person must look for it.
/// `answers` are of different endpoints, and each is in nonce order without a hole.
pub fn agree_on_consumers(
    answers: &[Vec<ConsumedNonce>],
    needed: usize,
) -> Result<Vec<ConsumedNonce>, ConsumersDisputed> {
    if answers.len() < needed.max(1) {
        return Err(ConsumersDisputed(format!(
            "{} of {needed} endpoints show which transactions consumed the account's nonces",
            answers.len()
        )));
    }
    let alike = answers.iter().enumerate().flat_map(|(at, one)| {
        let others = answers.iter().skip(at.saturating_add(1));
        others.map(|other| common_prefix(one, other))
    });
    let agreed = match needed {
        0 | 1 => answers.first().cloned(),
        _ => alike
            .max_by_key(Vec::len)
            .filter(|agreed| !agreed.is_empty()),
    };
    if let Some(agreed) = agreed {
        return Ok(agreed);
    }
    let mut firsts = answers.iter().map(|answer| answer.first());
    if firsts.all(|first| first.is_none()) {
        return Ok(Vec::new());
    }
    let shown = answers.iter().filter_map(|answer| answer.first());
    let (shown, unseen): (Vec<_>, Vec<_>) = shown.partition(|one| one.transaction.is_some());
    match (unseen.first(), shown.as_slice()) {
        // The others cannot show it, so none contradicts it; but one endpoint alone is not believed.
        (Some(unseen), [] | [_]) if is_consumed_everywhere(answers) => Ok(vec![(*unseen).clone()]),
        _ => Err(ConsumersDisputed(
            "endpoints show different transactions at a nonce of the account".to_owned(),
        )),
    }
}

/// Whether every endpoint reports the lowest nonce as consumed.
fn is_consumed_everywhere(answers: &[Vec<ConsumedNonce>]) -> bool {
    answers.iter().all(|answer| !answer.is_empty())
}

fn common_prefix(one: &[ConsumedNonce], other: &[ConsumedNonce]) -> Vec<ConsumedNonce> {
    let pairs = one.iter().zip(other);
    let alike = pairs.take_while(|(one, other)| one == other && one.transaction.is_some());
    alike.map(|(one, _)| one.clone()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::lane::MinedTransaction;
    use crate::lane::tests::request;
    use crate::{B256, Nonce};

    fn used(nonce: u64, hash: Option<u8>) -> ConsumedNonce {
        ConsumedNonce {
            nonce: Nonce(nonce),
            transaction: hash.map(|hash| MinedTransaction {
                hash: B256::with_last_byte(hash),
                payload: request(nonce).payload,
            }),
        }
    }

    #[test]
    fn two_endpoints_must_show_the_same_transactions() {
        let both = vec![used(3, Some(1)), used(4, Some(2))];
        let agree = |answers: &[Vec<ConsumedNonce>]| agree_on_consumers(answers, 2);
        assert_eq!(agree(&[both.clone(), both.clone()]), Ok(both.clone()));
        let shorter = vec![used(3, Some(1)), used(4, Some(9))];
        assert_eq!(agree(&[both.clone(), shorter]), Ok(both[..1].to_vec()));
        let other = vec![used(3, Some(9))];
        assert!(agree(&[both.clone(), other.clone()]).is_err());
        assert_eq!(
            agree(&[other, both.clone(), both.clone()]),
            Ok(both.clone())
        );
        assert!(
            agree(std::slice::from_ref(&both)).is_err(),
            "the second did not answer"
        );
        assert!(agree(&[both, vec![]]).is_err(), "one is behind");
        assert_eq!(agree(&[vec![], vec![]]), Ok(vec![]), "not consumed");
    }

    #[test]
    fn transaction_that_no_two_endpoints_show_is_left_out() {
        let (shown, unseen) = (vec![used(3, Some(1))], vec![used(3, None)]);
        let left_out = Ok(unseen.clone());
        let agree = |answers: &[Vec<ConsumedNonce>]| agree_on_consumers(answers, 2);
        assert_eq!(agree(&[unseen.clone(), unseen.clone()]), left_out);
        assert_eq!(agree(&[shown.clone(), unseen.clone()]), left_out);
        assert_eq!(
            agree_on_consumers(std::slice::from_ref(&shown), 1),
            Ok(shown.clone())
        );
        assert_eq!(agree_on_consumers(&[unseen], 1), left_out);
    }
}
