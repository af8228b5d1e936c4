//! Signing: local keys sign inside the turn, so that bytes are durable before they are sent and the answer carries
//! the hash; remote keys sign between turns.

use std::sync::Arc;

use domain::{Attempt, Input, Nonce, Timestamp, UnsignedEnvelope};

use crate::core::Core;
use crate::draft::LaneDraft;
use crate::ports::{SignError, Signer};

/// Signs what local keys can sign, for all lanes of the turn at once. What is left in the drafts is signed
/// remotely, after the commit.
pub(super) async fn sign_locally(drafts: &mut [LaneDraft], signer: &dyn Signer, now: Timestamp) {
    let mut owners = Vec::new();
    let mut envelopes = Vec::new();
    for (at, draft) in drafts.iter_mut().enumerate() {
        if signer.is_local(draft.lane.key().signer) {
            let to_sign = std::mem::take(&mut draft.to_sign);
            owners.extend(std::iter::repeat_n(at, to_sign.len()));
            envelopes.extend(to_sign);
        }
    }
    if envelopes.is_empty() {
        return;
    }
    let nonces: Vec<_> = envelopes.iter().map(|unsigned| unsigned.nonce).collect();
    let answers = signer.sign(envelopes, now).await;
    assert_eq!(
        answers.len(),
        owners.len(),
        "the signer answers every envelope"
    );
    for ((at, nonce), answer) in owners.into_iter().zip(nonces).zip(answers) {
        drafts[at].step(signed_input(nonce, answer), now);
    }
}

/// Signs with a remote key.
pub(super) async fn sign_remotely(core: Arc<Core>, envelopes: Vec<UnsignedEnvelope>) -> Vec<Input> {
    let nonces: Vec<Nonce> = envelopes.iter().map(|envelope| envelope.nonce).collect();
    let now = core.ports.clock.now();
    let answers = core.ports.signer.sign(envelopes, now).await;
    let signed = nonces.into_iter().zip(answers);
    signed
        .map(|(nonce, answer)| signed_input(nonce, answer))
        .collect()
}

fn signed_input(nonce: Nonce, answer: Result<Attempt, SignError>) -> Input {
    match answer {
        Ok(attempt) => Input::Signed(attempt),
        Err(error) => Input::SigningFailed {
            nonce,
            reason: error.to_string(),
            retryable: match error {
                SignError::Refused(_) => false,
                SignError::Unavailable(_) => true,
            },
        },
    }
}
