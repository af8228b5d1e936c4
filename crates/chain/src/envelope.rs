//! Encodes an unsigned envelope into the bytes that nodes accept: EIP-1559, or legacy with EIP-155.

use alloy_consensus::{SignableTransaction, TxEip1559, TxLegacy, TypedTransaction};
use alloy_eips::eip2718::Encodable2718;
use alloy_primitives::{Signature, TxKind};
use domain::{B256, Bytes, ChainId, Fees, UnsignedEnvelope};

/// The highest chain id that a legacy signature can carry (EIP-2294).
pub const CHAIN_ID_MAX: u64 = u64::MAX / 2 - 36;

/// A tx in the chain's own format, complete except for its signature.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Envelope(TypedTransaction);

/// The exact bytes of a signed envelope, and its hash on chain.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SignedBytes {
    pub hash: B256,
    /// The bytes to send.
    pub raw: Bytes,
}

/// No signature can bind an envelope to this chain.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
#[error("chain id {0} is not between 1 and {CHAIN_ID_MAX}")]
pub struct BadChainId(pub ChainId);

impl Envelope {
    /// Builds the envelope that the lane decided on; its fees determine the type.
    pub fn new(unsigned: &UnsignedEnvelope) -> Result<Self, BadChainId> {
        let chain_id = unsigned.chain_id.0;
        // Also keeps `2 * chain_id + 36` of a legacy signature inside 64 bits.
        if !(1..=CHAIN_ID_MAX).contains(&chain_id) {
            return Err(BadChainId(unsigned.chain_id));
        }
        let to = unsigned.to.map_or(TxKind::Create, TxKind::Call);
        Ok(Self(match unsigned.fees {
            Fees::Eip1559 {
                max_fee,
                max_priority_fee,
            } => TypedTransaction::Eip1559(TxEip1559 {
                chain_id,
                nonce: unsigned.nonce.0,
                gas_limit: unsigned.gas,
                max_fee_per_gas: max_fee,
                max_priority_fee_per_gas: max_priority_fee,
                to,
                value: unsigned.value,
                access_list: Default::default(),
                input: unsigned.data.clone(),
            }),
            // Bound to its chain by EIP-155.
            Fees::Legacy { gas_price } => TypedTransaction::Legacy(TxLegacy {
                chain_id: Some(chain_id),
                nonce: unsigned.nonce.0,
                gas_price,
                gas_limit: unsigned.gas,
                to,
                value: unsigned.value,
                input: unsigned.data.clone(),
            }),
        }))
    }

    /// The hash to sign.
    #[must_use]
    pub fn signing_hash(&self) -> B256 {
        self.0.signature_hash()
    }

    /// Adds the signature and encodes.
    #[must_use]
    pub fn seal(self, signature: Signature) -> SignedBytes {
        let signed = self.0.into_envelope(signature);
        SignedBytes {
            hash: *signed.tx_hash(),
            raw: signed.encoded_2718().into(),
        }
    }
}

#[cfg(test)]
mod tests {
    use alloy_consensus::transaction::SignerRecoverable;
    use alloy_consensus::{Transaction, TxEnvelope};
    use alloy_eips::eip2718::Decodable2718;
    use alloy_primitives::{Address, U256, address, b256, hex, keccak256};
    use alloy_signer::SignerSync;
    use alloy_signer_local::{PrivateKeySigner, Secp256k1Signer};
    use domain::{AttemptKind, Nonce, TxId};

    use super::*;

    /// The first account that anvil and hardhat fund.
    const KEY: B256 = b256!("ac0974bec39a17e36ba4a6b4d238ff944bacb478cbed5efcae784d7bf4f2ff80");
    const ACCOUNT: Address = address!("f39Fd6e51aad88F6F4ce6aB8827279cffFb92266");

    fn unsigned(fees: Fees) -> UnsignedEnvelope {
        UnsignedEnvelope {
            tx_id: TxId(Default::default()),
            kind: AttemptKind::Original,
            chain_id: ChainId(31_337),
            signer: ACCOUNT,
            nonce: Nonce(7),
            to: Some(address!("70997970C51812dc3A010C7d01b50e0d17dc79C8")),
            value: U256::from(1_000_000_000_000_000_000_u64),
            data: Bytes::new(),
            gas: 21_000,
            fees,
        }
    }

    fn sealed(unsigned: &UnsignedEnvelope) -> SignedBytes {
        let signer = Secp256k1Signer::from_bytes(&KEY).unwrap();
        let envelope = Envelope::new(unsigned).unwrap();
        let signature = signer.sign_hash_sync(&envelope.signing_hash()).unwrap();
        // RFC 6979 makes signatures deterministic, so the other library must return the same bits.
        let other = PrivateKeySigner::from_bytes(&KEY).unwrap();
        assert_eq!(
            other.sign_hash_sync(&envelope.signing_hash()).unwrap(),
            signature
        );
        envelope.seal(signature)
    }

    /// Decodes the bytes independently of the encoder.
    fn check(unsigned: &UnsignedEnvelope, signed: &SignedBytes) -> TxEnvelope {
        assert_eq!(keccak256(&signed.raw), signed.hash);
        let decoded = TxEnvelope::decode_2718_exact(&signed.raw).unwrap();
        assert_eq!(*decoded.tx_hash(), signed.hash);
        assert_eq!(decoded.recover_signer().unwrap(), unsigned.signer);
        assert_eq!(decoded.chain_id(), Some(unsigned.chain_id.0));
        assert_eq!(decoded.nonce(), unsigned.nonce.0);
        assert_eq!(decoded.to(), unsigned.to);
        assert_eq!(decoded.value(), unsigned.value);
        assert_eq!(decoded.input(), &unsigned.data);
        assert_eq!(decoded.gas_limit(), unsigned.gas);
        decoded
    }

    #[test]
    fn eip1559_transfer_has_its_known_bytes() {
        let unsigned = unsigned(Fees::Eip1559 {
            max_fee: 30_000_000_000,
            max_priority_fee: 2_000_000_000,
        });
        let signed = sealed(&unsigned);
        let decoded = check(&unsigned, &signed);
        assert!(decoded.is_eip1559());
        assert_eq!(decoded.max_fee_per_gas(), 30_000_000_000);
        assert_eq!(decoded.max_priority_fee_per_gas(), Some(2_000_000_000));
        // As eth-account (Python) signs the same transaction.
        let known = hex!(
            "02f875827a690784773594008506fc23ac008252089470997970c51812dc3a010c7d01b50e0d17dc79c8880de0b6b3a764000080c001a0f55bd52c7e477ef867267ed1d3162cf46461eb77bc1f12f73ca2ec5587f7f330a04efc3da06e26e4f7288a404fea53309cce72f06f76e9550339755e674b8b95a4"
        );
        assert_eq!(signed.raw[..], known[..]);
        let hash = b256!("aedfc0d96bc9b8885706716ccbc5997b2ab256807e54207a40d5c99c9c87360e");
        assert_eq!(signed.hash, hash);
    }

    #[test]
    fn legacy_transfer_has_its_known_bytes() {
        let unsigned = unsigned(Fees::Legacy {
            gas_price: 20_000_000_000,
        });
        let signed = sealed(&unsigned);
        let decoded = check(&unsigned, &signed);
        assert!(decoded.is_legacy());
        assert_eq!(decoded.gas_price(), Some(20_000_000_000));
        // As eth-account (Python) signs the same transaction.
        let known = hex!(
            "f86e078504a817c8008252089470997970c51812dc3a010c7d01b50e0d17dc79c8880de0b6b3a76400008082f4f5a0f9c0379bba227df9e7372b9f6bc7675ce201deea9689f790661f99f8e9877533a01590fb91ec1eb6a11a88b9b18fea4b45ed69ca578e68d7d229000549377121ff"
        );
        assert_eq!(signed.raw[..], known[..]);
        let hash = b256!("d42ce6dde06be63c8ec657ba0162a009306d1c2c451d20e0afa22b8dc72dc826");
        assert_eq!(signed.hash, hash);
    }

    #[test]
    fn eip155_example_has_its_published_bytes() {
        // The transaction of the EIP's text: chain 1, nonce 9, key 0x46…46.
        let unsigned = UnsignedEnvelope {
            chain_id: ChainId(1),
            signer: address!("9d8A62f656a8d1615C1294fd71e9CFb3E4855A4F"),
            nonce: Nonce(9),
            to: Some(Address::repeat_byte(0x35)),
            ..unsigned(Fees::Legacy {
                gas_price: 20_000_000_000,
            })
        };
        let envelope = Envelope::new(&unsigned).unwrap();
        let signing_hash =
            b256!("daf5a779ae972f972197303d7b574746c7ef83eadac0f2791ad23db92e4c8e53");
        assert_eq!(envelope.signing_hash(), signing_hash);
        let signer = Secp256k1Signer::from_bytes(&B256::repeat_byte(0x46)).unwrap();
        assert_eq!(signer.address(), unsigned.signer);
        let signed = envelope.seal(signer.sign_hash_sync(&signing_hash).unwrap());
        let published = hex!(
            "f86c098504a817c800825208943535353535353535353535353535353535353535880de0b6b3a76400008025a028ef61340bd939bc2195fe537567866003e1a15d3c71ff63e1590620aa636276a067cbe9d8997f761aecb703304b3800ccf555c9f3dc64214b297fb1966a3b6d83"
        );
        assert_eq!(signed.raw[..], published[..]);
        check(&unsigned, &signed);
    }

    #[test]
    fn deployment_has_no_recipient() {
        let unsigned = UnsignedEnvelope {
            to: None,
            data: Bytes::from_static(&[0x60, 0x00]),
            ..unsigned(Fees::Eip1559 {
                max_fee: 2,
                max_priority_fee: 1,
            })
        };
        assert_eq!(check(&unsigned, &sealed(&unsigned)).kind(), TxKind::Create);
    }

    #[test]
    fn chain_id_beyond_eip2294_is_refused() {
        for bad in [0, CHAIN_ID_MAX + 1, u64::MAX] {
            let unsigned = UnsignedEnvelope {
                chain_id: ChainId(bad),
                ..unsigned(Fees::Legacy { gas_price: 1 })
            };
            assert_eq!(Envelope::new(&unsigned), Err(BadChainId(ChainId(bad))));
        }
        let highest = UnsignedEnvelope {
            chain_id: ChainId(CHAIN_ID_MAX),
            ..unsigned(Fees::Legacy { gas_price: 1 })
        };
        check(&highest, &sealed(&highest));
    }
}
